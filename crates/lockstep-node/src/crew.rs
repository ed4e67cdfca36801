//! How many of a front end's threads have a write-set in their hands at once.
//!
//! A write-set that is applied without waiting for anything but its turn in commit order keeps a processor for some
//! microseconds. More threads than processors do not apply such ones faster: they take the processor from each other in
//! the middle, so that whoever's turn it is does not run while those who run wait for theirs, and each commit costs two
//! hand-offs. So there are as many at work as there are processors, and the one that has just finished, whose caches are
//! warm, takes the next.
//!
//! Where write-sets wait (for a flush of the disk at each commit, for pages to be read, for locks), it takes all threads
//! to overlap that, and there is no limit. Which of the two it is, is measured.
//!
//! **Invariant:** what waits is taken in the end, whatever those at work wait for. Either one of them comes back, or
//! [`Crew::nudged`] finds that none has, and lets one more go each time.

use lockstep_core::Seqno;
use std::time::Duration;

/// What a thread tells of the write-set that it took before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Its seqno.
    pub seqno: Seqno,
    /// How long it kept the thread.
    pub time: Duration,
    /// How long of that the thread waited, for its turn in commit order not counted. `None`: not measured.
    pub waited: Option<Duration>,
}

/// From this mean wait on, ns, all threads are of use,
const WAITS: u64 = 50_000;
/// and below this one they are not any more.
const WAITS_NOT: u64 = 25_000;
/// A longer wait says nothing of the next.
const MOST: u64 = 1_000_000;
/// The mean follows with the weight 1/this.
const WEIGHT: u64 = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Crew {
    processors: usize,
    /// What is in the hands of those at work.
    hands: Vec<Seqno>,
    /// The mean wait, ns, once one has been measured.
    waited: Option<u64>,
    limited: bool,
    /// So many more may be at work, for those who are have not come back.
    extra: usize,
    /// One has come back since the last nudge.
    came_back: bool,
}

impl Default for Crew {
    fn default() -> Crew {
        Crew::new(std::thread::available_parallelism().map_or(1, usize::from))
    }
}

impl Crew {
    fn new(processors: usize) -> Crew {
        Crew { processors, hands: Vec::new(), waited: None, limited: false, extra: 0, came_back: false }
    }

    /// One has taken this write-set.
    pub(crate) fn took(&mut self, seqno: Seqno) {
        self.hands.push(seqno);
    }

    /// One has come back.
    pub(crate) fn back(&mut self, done: &Done) {
        if let Some(waited) = done.waited {
            let waited = u64::try_from(waited.as_nanos()).unwrap_or(MOST).min(MOST);
            let mean = self.waited.map_or(waited, |mean| (mean * (WEIGHT - 1) + waited) / WEIGHT);
            self.waited = Some(mean);
            self.limited = mean < if self.limited { WAITS } else { WAITS_NOT };
        }
        self.gone(done.seqno);
    }

    /// The one with this in its hands takes no more, or comes back.
    pub(crate) fn gone(&mut self, seqno: Seqno) {
        if let Some(at) = self.hands.iter().position(|other| *other == seqno) {
            self.hands.swap_remove(at);
        }
        self.came_back = true;
        self.extra = 0;
    }

    /// Something waits, and so does a thread that could take it: another look at whether those at work will do.
    pub(crate) fn nudged(&mut self) {
        if !std::mem::take(&mut self.came_back) {
            self.extra += 1;
        }
    }

    /// How many more may take something, where the next one depends on this seqno and all before.
    ///
    /// One that depends on what is in somebody's hands is left to that one, who comes soon: another thread would only wait
    /// with it.
    pub(crate) fn room(&self, depends_on: Seqno) -> usize {
        if !self.limited {
            return usize::MAX;
        }
        if self.extra == 0 && self.hands.iter().any(|seqno| *seqno <= depends_on) {
            return 0;
        }
        (self.processors + self.extra).saturating_sub(self.hands.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(seqno: Seqno, waited: u64) -> Done {
        let waited = Some(Duration::from_micros(waited));
        Done { seqno, time: Duration::from_micros(waited.map_or(0, |w| w.as_micros() as u64 + 10)), waited }
    }

    /// Of two processors, with write-sets that do not wait.
    fn busy() -> Crew {
        let mut crew = Crew::new(2);
        crew.took(1);
        crew.back(&done(1, 0));
        crew
    }

    #[test]
    fn nobody_is_kept_from_work_before_something_is_known() {
        let mut crew = Crew::new(2);
        (1..9).for_each(|seqno| crew.took(seqno));
        crew.back(&Done { seqno: 1, time: Duration::from_micros(9), waited: None });
        assert_eq!(crew.room(0), usize::MAX);
    }

    #[test]
    fn as_many_as_processors_where_nobody_waits_and_all_where_they_do() {
        let mut crew = busy();
        assert_eq!(crew.room(0), 2);
        crew.took(2);
        crew.took(3);
        assert_eq!(crew.room(0), 0);
        crew.back(&done(2, 0));
        assert_eq!(crew.room(0), 1);
        // The disk has become one that is waited for.
        let mut flushes = 0;
        while crew.room(0) != usize::MAX {
            crew.back(&done(99, 200));
            flushes += 1;
        }
        assert!((2..20).contains(&flushes), "{flushes}");
        // One that waited for a lock for a minute is forgotten soon.
        let mut crew = busy();
        crew.back(&done(99, 60_000_000));
        let after = (0..).take_while(|_| {
            crew.room(0) == usize::MAX && {
                crew.back(&done(99, 0));
                true
            }
        });
        assert!(after.count() < 20);
    }

    #[test]
    fn what_depends_on_one_at_work_is_left_to_that_one() {
        let mut crew = busy();
        crew.took(5);
        assert_eq!((crew.room(4), crew.room(5), crew.room(7)), (1, 0, 0));
        crew.back(&done(5, 0));
        assert_eq!(crew.room(7), 2);
    }

    #[test]
    fn those_at_work_who_do_not_come_back_keep_nobody_waiting() {
        let mut crew = busy();
        crew.took(5);
        crew.took(6);
        // The last one came back after the nudge before.
        crew.nudged();
        assert_eq!(crew.room(0), 0);
        for seqno in 7..17 {
            crew.nudged();
            assert_eq!((crew.room(0), crew.room(seqno)), (1, 1), "independent or not");
            crew.took(seqno);
            assert_eq!(crew.room(0), 0);
        }
        // They do at last: those who came in addition have nothing to do until as few are at work as before.
        for seqno in 5..15 {
            assert_eq!(crew.room(0), 0);
            crew.back(&done(seqno, 0));
        }
        crew.back(&done(15, 0));
        assert_eq!(crew.room(0), 1);
    }

    #[test]
    fn one_that_ends_leaves_its_place() {
        let mut crew = busy();
        crew.took(5);
        crew.took(6);
        crew.gone(5);
        assert_eq!(crew.room(0), 1);
        crew.gone(5);
        assert_eq!(crew.room(0), 1);
    }
}
