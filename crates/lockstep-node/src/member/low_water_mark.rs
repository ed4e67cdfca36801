//! How far certification may forget, as far as this member's own write-sets go.
//!
//! A server's thread notes what it has seen when it finishes its write-set, and hands it in a little later: at once, or
//! after some seconds where too much is under way. What it had seen must not have been forgotten by then, or the
//! write-set fails. So what is reported as seen stays behind what has finished: by a number of seqnos, which is short
//! where transactions are many; or by a time, which holds no more of the log than was written in it where they are few
//! and large.

use lockstep_core::{Micros, Seqno};

/// Seqnos that are kept in any case.
const SLACK: Seqno = 2048;
/// Longer than a write-set waits before it is handed in or refused.
const PATIENCE: Micros = 15_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LowWaterMark {
    /// What had finished at least [`PATIENCE`] ago, and at the last mark.
    marks: Option<(Seqno, Seqno)>,
    marked_at: Micros,
}

impl LowWaterMark {
    /// Called often: so much has finished.
    pub(super) fn note(&mut self, now: Micros, finished: Seqno) {
        match self.marks {
            None => self.marks = Some((Seqno::MIN, finished)),
            Some((_, last)) if now >= self.marked_at + PATIENCE => self.marks = Some((last, finished)),
            Some(_) => return,
        }
        self.marked_at = now;
    }

    /// Another position: nothing that was noted holds.
    pub(super) fn reset(&mut self) {
        self.marks = None;
    }

    /// What a write-set that is handed in now has seen at least.
    pub(super) fn low(&self, finished: Seqno) -> Seqno {
        let long_ago = self.marks.map_or(Seqno::MIN, |(long_ago, _)| long_ago);
        (finished - SLACK).max(long_ago).min(finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finished_long_ago_has_been_seen_however_few_came_since() {
        let mut seen = LowWaterMark::default();
        assert_eq!(seen.low(5000), 5000 - SLACK);
        seen.note(1, 5000);
        seen.note(PATIENCE, 5100);
        assert_eq!(seen.low(5100), 5100 - SLACK, "not long enough");
        seen.note(PATIENCE + 1, 5100);
        assert_eq!(seen.low(5200), 5000);
        assert_eq!(seen.low(9000), 9000 - SLACK, "many came: the number counts");
        seen.note(2 * PATIENCE, 5200);
        assert_eq!(seen.low(5300), 5000, "the last mark is not old enough yet");
        seen.note(2 * PATIENCE + 1, 5300);
        assert_eq!(seen.low(5300), 5100);
        assert_eq!(seen.low(40), 40, "never more than has finished");
        seen.reset();
        assert_eq!(seen.low(5300), 5300 - SLACK);
    }
}
