//! Values by a number that each is given, of which no single step takes long, however many there are: as in
//! [`super::table`], nothing moves when they become more.

use std::ops::{Index, IndexMut};

/// So many in a piece: with the index's, some 400 KB.
const PIECE: usize = 4096;

/// See the module. Numbers that were given back are given again.
pub(super) struct Slots<T> {
    pieces: Vec<Vec<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { pieces: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// A place for it.
    pub(super) fn put(&mut self, value: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self[place] = value;
            return place;
        }
        if self.pieces.last().is_none_or(|last| last.len() == PIECE) {
            // The first one grows as it is used: most have few.
            let room = if self.pieces.is_empty() { 0 } else { PIECE };
            self.pieces.push(Vec::with_capacity(room));
        }
        let full = (self.pieces.len() - 1) * PIECE;
        let last = self.pieces.last_mut().expect("one was just made");
        last.push(value);
        u32::try_from(full + last.len() - 1).expect("fewer than keys in memory")
    }

    /// Its value is not looked at again; the place is given to another.
    pub(super) fn give_back(&mut self, place: u32) {
        self.free.push(place);
    }

    /// How many are in use.
    pub(super) fn len(&self) -> usize {
        let last = self.pieces.last().map_or(0, Vec::len);
        (self.pieces.len().saturating_sub(1)) * PIECE + last - self.free.len()
    }

    /// Whether none is in use; then no memory is kept either.
    pub(super) fn clear_if_unused(&mut self) {
        if self.len() == 0 {
            *self = Slots::default();
        }
    }
}

impl<T> Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, place: u32) -> &T {
        &self.pieces[place as usize / PIECE][place as usize % PIECE]
    }
}

impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        &mut self.pieces[place as usize / PIECE][place as usize % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_place_and_places_are_given_again() {
        let mut places = Slots::default();
        let many = 2 * PIECE as u64 + 1;
        let given: Vec<u32> = (0..many).map(|n| places.put(n)).collect();
        assert!(given.iter().zip(0..).all(|(place, n)| places[*place] == n));
        assert_eq!(places.len() as u64, many);
        for place in given.iter().step_by(2) {
            places.give_back(*place);
        }
        let again: Vec<u32> = (0..many.div_ceil(2)).map(|n| places.put(n + many)).collect();
        assert!(again.iter().all(|place| place % 2 == 0 && places[*place] >= many));
        assert!(given.iter().skip(1).step_by(2).all(|place| places[*place] == u64::from(*place)));
        assert_eq!(places.len() as u64, many);
        places.clear_if_unused();
        assert_eq!(places.len() as u64, many);
        for place in given {
            places.give_back(place);
        }
        places.clear_if_unused();
        assert_eq!((places.len(), places.pieces.capacity(), places.put(7)), (0, 0, 0));
    }

    #[test]
    fn nothing_moves_when_they_become_more() {
        let mut places = Slots::default();
        for n in 0..=PIECE {
            places.put(n);
        }
        let second: *const usize = &raw const places[PIECE as u32];
        for n in 0..3 * PIECE {
            places.put(n);
        }
        assert_eq!(second, &raw const places[PIECE as u32]);
    }
}
