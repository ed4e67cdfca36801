//! When a leader appends entries: predicts whether the next append can carry a new commit index.

use crate::types::*;

/// The last append, and the time between it and the one before.
#[derive(Debug, Default)]
pub(super) struct AppendTimes {
    /// The last index of the log after it.
    last: Index,
    at: Micros,
    /// `None` before the second append.
    interval: Option<Micros>,
}

impl AppendTimes {
    /// The log ends at `last` now.
    pub(super) fn note(&mut self, now: Micros, last: Index) {
        if last == self.last {
            return;
        }
        self.interval = (self.last != 0).then(|| now.saturating_sub(self.at));
        (self.last, self.at) = (last, now);
    }

    /// Whether the next append is due by then, if the last interval repeats itself. Without an interval it may be.
    pub(super) fn expects_append_by(&self, by: Micros) -> bool {
        self.interval.is_none_or(|interval| self.at.saturating_add(interval) <= by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_append_is_expected_after_last_interval() {
        let mut times = AppendTimes::default();
        times.note(1_000, 7);
        assert!(times.expects_append_by(1_000), "one append tells no interval");
        times.note(6_000, 8);
        times.note(9_000, 8);
        assert!(!times.expects_append_by(10_999), "a round without new entries is no append");
        assert!(times.expects_append_by(11_000));
        times.note(9_500, 12);
        assert!(times.expects_append_by(13_000) && !times.expects_append_by(12_999));
    }
}
