//! Certification's low-water mark: how far keys may be forgotten, as far as this member's own write-sets are concerned.
//!
//! A server thread notes its last seen seqno when it finishes its write-set, and submits the write-set a little later:
//! at once, or after some seconds under load. Keys above that seqno must not have been forgotten by then, or the
//! write-set fails. So the reported mark stays behind the finished seqno, by a number of seqnos or by a time, whichever
//! is less. A number of seqnos is a short time if transactions are many; a time covers few entries if transactions are
//! few and large.

use lockstep_core::{Micros, Seqno};

/// The mark is at most this many seqnos behind the finished one.
const SLACK: Seqno = 2048;
/// Longer than a write-set waits before it is submitted or refused.
const TIMEOUT: Micros = 15_000_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct LowWaterMark {
    /// The seqnos finished at least [`TIMEOUT`] ago, and at the last mark.
    marks: Option<(Seqno, Seqno)>,
    marked_at: Micros,
}

impl LowWaterMark {
    /// Notes the finished seqno; called often.
    pub(in crate::member) fn note(&mut self, now: Micros, finished: Seqno) {
        match self.marks {
            None => self.marks = Some((Seqno::MIN, finished)),
            Some((_, last)) if now >= self.marked_at + TIMEOUT => self.marks = Some((last, finished)),
            Some(_) => return,
        }
        self.marked_at = now;
    }

    /// The position changed: earlier marks do not hold.
    pub(in crate::member) fn reset(&mut self) {
        self.marks = None;
    }

    /// The least last seen seqno of a write-set submitted now.
    pub(in crate::member) fn low(&self, finished: Seqno) -> Seqno {
        let long_ago = self.marks.map_or(Seqno::MIN, |(long_ago, _)| long_ago);
        (finished - SLACK).max(long_ago).min(finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_water_mark_advances_by_time_or_count() {
        let mut seen = LowWaterMark::default();
        assert_eq!(seen.low(5000), 5000 - SLACK);
        seen.note(1, 5000);
        seen.note(TIMEOUT, 5100);
        assert_eq!(seen.low(5100), 5100 - SLACK, "not long enough");
        seen.note(TIMEOUT + 1, 5100);
        assert_eq!(seen.low(5200), 5000);
        assert_eq!(seen.low(9000), 9000 - SLACK, "many came: the number counts");
        seen.note(2 * TIMEOUT, 5200);
        assert_eq!(seen.low(5300), 5000, "the last mark is not old enough yet");
        seen.note(2 * TIMEOUT + 1, 5300);
        assert_eq!(seen.low(5300), 5100);
        assert_eq!(seen.low(40), 40, "never more than has finished");
        seen.reset();
        assert_eq!(seen.low(5300), 5300 - SLACK);
    }
}
