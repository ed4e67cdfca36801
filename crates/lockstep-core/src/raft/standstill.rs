//! How long a disk has finished nothing although it has something to write.
//!
//! Answers to heartbeats say that a process lives, not that its disk does: a hung disk gives no error, and its writes never
//! end. Only progress tells. So this compares the position given to a disk with the position that it has finished.

use crate::types::Micros;

/// The most that one interval between two reports counts. After a pause of the observer, or of the observed process, the
/// next report may be older than the pause: by itself it is no sign of a hung disk.
const INTERVAL_MAX: Micros = 1_000_000;

/// See the module. Positions are indices of the log, or numbers of writes: they grow as the disk works.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Standstill {
    /// The last reported position, and when it was reported.
    finished: u64,
    reported_at: Micros,
    /// For how long nothing was finished. `None`: there is nothing to write.
    lasts: Option<Micros>,
}

impl Standstill {
    /// A report: everything up to `finished` is done, and everything up to `given` is to be done.
    pub(super) fn report(&mut self, now: Micros, finished: u64, given: u64) {
        let interval = now.saturating_sub(self.reported_at).min(INTERVAL_MAX);
        self.lasts = match self.lasts {
            _ if given <= finished => None,
            Some(lasts) if finished == self.finished => Some(lasts + interval),
            _ => Some(0),
        };
        (self.finished, self.reported_at) = (finished, now);
    }

    /// The last reported position.
    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    /// For how long nothing was finished, as of the last report; 0 if there is nothing to do.
    pub(super) fn lasts(&self) -> Micros {
        self.lasts.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standstill_counts_until_something_is_finished() {
        let mut disk = Standstill::default();
        disk.report(10_000_000, 5, 5);
        assert_eq!(disk.lasts(), 0, "nothing to write");
        disk.report(10_100_000, 5, 7);
        disk.report(10_600_000, 5, 9);
        assert_eq!(disk.lasts(), 500_000, "counted from the first report with a write");
        disk.report(10_700_000, 6, 9);
        assert_eq!(disk.lasts(), 0, "slow is not hung");
        disk.report(10_800_000, 6, 9);
        assert_eq!(disk.lasts(), 100_000);
        disk.report(10_900_000, 9, 9);
        disk.report(11_900_000, 9, 10);
        assert_eq!(disk.lasts(), 0, "a new write has its own time");
    }

    #[test]
    fn pause_of_observer_counts_as_one_interval() {
        let mut disk = Standstill::default();
        disk.report(0, 1, 2);
        disk.report(60_000_000, 1, 2);
        assert_eq!(disk.lasts(), INTERVAL_MAX);
        disk.report(60_000_100, 2, 2);
        assert_eq!(disk.lasts(), 0);
    }

    #[test]
    fn replaced_entries_begin_a_new_standstill() {
        let mut disk = Standstill::default();
        disk.report(0, 8, 9);
        disk.report(900_000, 8, 9);
        disk.report(1_000_000, 6, 9);
        assert_eq!(disk.lasts(), 0, "the log was cut: other writes are under way");
    }
}
