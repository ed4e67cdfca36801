//! The event queue: the simulated clock moves from event to event.

use lockstep_core::Micros;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events in the order of their times; those of one time in the order in which they were put in.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    heap: BinaryHeap<Reverse<(Micros, u64, u32)>>,
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
        self.heap.push(Reverse((at, self.order, slot)));
    }

    /// The next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(Micros, E)> {
        let Reverse((at, _, slot)) = self.heap.pop()?;
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
