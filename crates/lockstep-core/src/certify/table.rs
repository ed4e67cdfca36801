//! A map from hashes of keys without long pauses, whatever its size.
//!
//! A hash table that grows moves all its keys. With millions of keys that takes tens of milliseconds, or seconds if
//! hundreds of threads share the processor. Meanwhile the cluster waits for the certifying thread. So this map consists
//! of many small tables, which grow one after the other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

/// The number of tables. With a million keys each has about 4096, and moves them in some 50 µs.
const SHARDS: usize = 256;
/// A shard with room for fewer is not worth shrinking.
const SPARE: usize = 256;

/// Keys are hashes already.
#[derive(Default, Clone, Copy)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ *byte as u64;
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

type Shard<T> = HashMap<u64, T, BuildHasherDefault<AsIs>>;

/// See the module.
pub(super) struct Table<T> {
    shards: Box<[Shard<T>]>,
    len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { shards: (0..SHARDS).map(|_| Shard::default()).collect(), len: 0 }
    }
}

/// The shard's place. Within it the hash table goes by the lowest and the highest bits; these are neither.
fn place(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

impl<T> Table<T> {
    /// How many keys there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn get(&self, hash: u64) -> Option<&T> {
        self.shards[place(hash)].get(&hash)
    }

    pub(super) fn get_mut(&mut self, hash: u64) -> Option<&mut T> {
        self.shards[place(hash)].get_mut(&hash)
    }

    /// The present value; or puts `fresh` there and returns `None`.
    pub(super) fn held_or_put(&mut self, hash: u64, fresh: T) -> Option<&mut T> {
        match self.shards[place(hash)].entry(hash) {
            Entry::Occupied(held) => Some(held.into_mut()),
            Entry::Vacant(free) => {
                free.insert(fresh);
                self.len += 1;
                None
            }
        }
    }

    /// Gives memory back after a peak, too.
    pub(super) fn remove(&mut self, hash: u64) {
        let shard = &mut self.shards[place(hash)];
        if shard.remove(&hash).is_none() {
            return;
        }
        self.len -= 1;
        if shard.capacity() > SPARE && shard.capacity() / 8 > shard.len() {
            shard.shrink_to(shard.len() * 2);
        }
    }
}

#[cfg(test)]
impl<T> Table<T> {
    /// For how many keys the largest and the smallest shard have room.
    fn rooms(&self) -> (usize, usize) {
        let rooms = || self.shards.iter().map(HashMap::capacity);
        (rooms().max().unwrap(), rooms().min().unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spread as the hashes of keys are.
    fn hash(number: u64) -> u64 {
        (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    #[test]
    fn table_holds_inserted_values_and_frees_memory() {
        const MANY: u64 = 300_000;
        let mut table = Table::default();
        for number in 0..MANY {
            assert!(table.held_or_put(hash(number), number).is_none());
        }
        assert_eq!(table.len() as u64, MANY);
        let (most, least) = table.rooms();
        assert!(most <= 16 * MANY as usize / SHARDS && least >= MANY as usize / SHARDS / 2, "{most} {least}");
        assert_eq!(table.held_or_put(hash(7), 0), Some(&mut 7));
        *table.get_mut(hash(7)).unwrap() = 8;
        assert_eq!((table.get(hash(7)), table.get(hash(MANY))), (Some(&8), None));
        table.remove(hash(MANY));
        for number in 1..MANY {
            table.remove(hash(number));
        }
        assert_eq!((table.len(), table.get(hash(0)), table.get(hash(1))), (1, Some(&0), None));
        assert!(table.rooms().0 <= 2 * SPARE, "{:?}", table.rooms());
        table.remove(hash(0));
        assert!(table.is_empty());
    }
}
