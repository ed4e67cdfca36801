//! The event queue: the simulated clock moves from event to event.

use lockstep_core::Micros;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The time, the order and the slot of an event in one number: one comparison without branches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key(u128);

/// The slot takes so many bits of a key, and the order so many above them.
const SLOT_BITS: u32 = 24;
const ORDER_BITS: u32 = 40;

impl Key {
    fn new(at: Micros, order: u64, slot: u32) -> Key {
        assert!(order >> ORDER_BITS == 0 && slot >> SLOT_BITS == 0, "event {order} in slot {slot}");
        Key(u128::from(at) << 64 | u128::from(order << SLOT_BITS | u64::from(slot)))
    }

    fn at(self) -> Micros {
        (self.0 >> 64) as Micros
    }

    fn slot(self) -> u32 {
        self.0 as u32 & ((1 << SLOT_BITS) - 1)
    }
}

/// Events in the order of their times; those of one time in the order in which they were put in.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<Key>>,
    /// The events themselves, so that the heap moves only small keys.
    slots: Vec<Option<E>>,
    free: Vec<u32>,
    order: u64,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue { heap: BinaryHeap::new(), slots: Vec::new(), free: Vec::new(), order: 0 }
    }
}

impl<E> Queue<E> {
    /// Puts an event in.
    pub(crate) fn push(&mut self, at: Micros, event: E) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(event);
                slot
            }
            None => {
                self.slots.push(Some(event));
                (self.slots.len() - 1) as u32
            }
        };
        self.order += 1;
        self.heap.push(Reverse(Key::new(at, self.order, slot)));
    }

    /// The next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(Micros, E)> {
        let Reverse(key) = self.heap.pop()?;
        let (at, slot) = (key.at(), key.slot());
        self.free.push(slot);
        let event = self.slots[slot as usize].take();
        debug_assert!(event.is_some(), "each key has its event");
        Some((at, event?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_those_of_one_time_in_order() {
        let mut queue = Queue::default();
        for (at, name) in [(5, "c"), (1, "a"), (5, "d"), (2, "b")] {
            queue.push(at, name);
        }
        assert_eq!(queue.pop(), Some((1, "a")));
        queue.push(5, "e");
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, e)| e).collect();
        assert_eq!(rest, ["b", "c", "d", "e"]);
        assert_eq!(queue.pop(), None);
    }
}
