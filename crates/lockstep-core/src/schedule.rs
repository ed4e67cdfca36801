//! Which entries may be applied now.
//!
//! An entry may be applied when all seqnos up to its `depends_on` have finished. So all that matters is the *low
//! water*: the highest seqno up to which all have finished. Entries finish in any order.

use crate::types::Seqno;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Tracks the entries between the low water and the newest one pushed.
///
/// Memory grows to the widest such window and is reused; nothing is allocated per entry.
#[derive(Debug)]
pub struct Scheduler {
    /// Everything up to here has finished.
    low: Seqno,
    /// Of `low + 1`, `low + 2`, …, up to the newest pushed: whether it has finished.
    window: VecDeque<State>,
    /// Pushed, parents not finished: (depends_on, seqno), least first.
    waiting: BinaryHeap<Reverse<(Seqno, Seqno)>>,
    /// Parents finished, not yet taken: least seqno first.
    ready: BinaryHeap<Reverse<Seqno>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Pushed,
    Finished,
}

impl Scheduler {
    /// Everything up to `position` has finished.
    pub fn new(position: Seqno) -> Scheduler {
        Scheduler {
            low: position,
            window: VecDeque::new(),
            waiting: BinaryHeap::new(),
            ready: BinaryHeap::new(),
        }
    }

    /// The next entry. Seqnos that were left out before it count as finished. One that is not above all before it is
    /// ignored (returns false).
    pub fn push(&mut self, seqno: Seqno, depends_on: Seqno) -> bool {
        let newest = self.newest();
        if seqno <= newest {
            return false;
        }
        if self.window.is_empty() {
            self.low = seqno - 1;
        } else {
            for _ in newest + 1..seqno {
                self.window.push_back(State::Finished);
            }
        }
        self.window.push_back(State::Pushed);
        if depends_on <= self.low {
            self.ready.push(Reverse(seqno));
        } else {
            // An entry depends only on earlier ones.
            self.waiting.push(Reverse((depends_on.min(seqno - 1), seqno)));
            self.wake();
        }
        true
    }

    /// Takes the lowest entry that may be applied.
    pub fn next_ready(&mut self) -> Option<Seqno> {
        self.ready.pop().map(|Reverse(seqno)| seqno)
    }

    /// Whether an entry that depends on this may be applied.
    pub fn is_ready(&self, depends_on: Seqno) -> bool {
        depends_on <= self.low
    }

    /// This entry has finished. Returns whether the low water rose.
    pub fn finished(&mut self, seqno: Seqno) -> bool {
        let Some(state) = self.slot(seqno) else { return false };
        *state = State::Finished;
        let before = self.low;
        self.advance();
        if self.low > before {
            self.wake();
        }
        self.low > before
    }

    /// Everything up to here has finished.
    pub fn low_water(&self) -> Seqno {
        self.low
    }

    /// The highest seqno pushed; the low water where none is above it.
    pub fn newest(&self) -> Seqno {
        self.low + self.window.len() as Seqno
    }

    /// How many entries there are above the low water, finished or not.
    pub fn window(&self) -> usize {
        self.window.len()
    }

    fn slot(&mut self, seqno: Seqno) -> Option<&mut State> {
        let at = usize::try_from(seqno.checked_sub(self.low)?.checked_sub(1)?).ok()?;
        self.window.get_mut(at)
    }

    fn advance(&mut self) {
        while self.window.front() == Some(&State::Finished) {
            self.window.pop_front();
            self.low += 1;
        }
    }

    fn wake(&mut self) {
        while let Some(Reverse((depends_on, seqno))) = self.waiting.peek().copied() {
            if depends_on > self.low {
                break;
            }
            self.waiting.pop();
            self.ready.push(Reverse(seqno));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn parents_first() {
        let mut s = Scheduler::new(10);
        assert!(s.push(11, 10));
        assert!(s.push(12, 10));
        assert!(s.push(13, 11));
        assert!(s.push(14, 13));
        assert!(!s.push(14, 10));
        assert_eq!([s.next_ready(), s.next_ready(), s.next_ready()], [Some(11), Some(12), None]);
        assert!(!s.finished(12));
        assert_eq!(s.low_water(), 10);
        assert!(s.finished(11));
        assert_eq!((s.low_water(), s.window()), (12, 2));
        assert_eq!([s.next_ready(), s.next_ready()], [Some(13), None]);
        // A view leaves 15 and 16 out.
        assert!(s.push(17, 16));
        assert!(s.finished(13));
        assert_eq!(s.next_ready(), Some(14));
        assert!(s.finished(14));
        assert_eq!((s.low_water(), s.newest()), (16, 17));
        assert_eq!(s.next_ready(), Some(17));
        assert!(s.finished(17));
        assert!(!s.finished(17));
        assert!(!s.finished(99));
        assert_eq!((s.low_water(), s.window()), (17, 0));
    }

    proptest! {
        /// Compared with a map of the unfinished entries.
        #[test]
        fn as_a_map_says(steps in prop::collection::vec((0u8..4, 0i64..8, 0usize..8), 1..200)) {
            let mut s = Scheduler::new(0);
            // Seqno to (depends_on, taken).
            let mut open: BTreeMap<Seqno, (Seqno, bool)> = BTreeMap::new();
            let mut newest = 0;
            for (what, back, pick) in steps {
                match what {
                    0 => {
                        newest += 1 + (back == 7) as Seqno;
                        open.insert(newest, (newest - 1 - back, false));
                        prop_assert!(s.push(newest, newest - 1 - back));
                    }
                    1 | 2 => {
                        let low = open.keys().next().map_or(newest, |first| first - 1);
                        let next = open.iter().find(|(_, (on, taken))| !taken && *on <= low).map(|(at, _)| *at);
                        prop_assert_eq!(s.next_ready(), next);
                        if let Some(at) = next {
                            open.get_mut(&at).unwrap().1 = true;
                        }
                    }
                    _ => {
                        let taken: Vec<Seqno> = open.iter().filter(|(_, s)| s.1).map(|(at, _)| *at).collect();
                        if let Some(at) = taken.get(pick) {
                            open.remove(at);
                            s.finished(*at);
                        }
                    }
                }
                let low = open.keys().next().map_or(newest, |first| first - 1);
                prop_assert_eq!(s.low_water(), low);
                prop_assert_eq!(s.newest(), newest);
            }
        }
    }
}
