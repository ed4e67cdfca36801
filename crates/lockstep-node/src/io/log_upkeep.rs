//! The log's upkeep by `ls-node`: size, commit hint, and recovery after a failure.

use crate::api::{EndServer, Logger};
use crate::effect::QuarantineRequest;
use crate::io::disk_full;
use lockstep_core::{Index, Micros};
use std::path::PathBuf;

/// How often the commit hint is stored, which costs a sync.
const HINT_PERIOD: Micros = 1_000_000;

pub(crate) struct LogUpkeep {
    dir: PathBuf,
    /// Free space that a new start needs, in bytes.
    restart_bytes: u64,
    bytes: u64,
    /// The last stored commit hint, and when.
    hinted: Index,
    hinted_at: Micros,
}

impl LogUpkeep {
    pub(crate) fn new(dir: PathBuf, segment_bytes: u64, bytes: u64) -> LogUpkeep {
        // A start begins a segment, and its server wants some space, too.
        LogUpkeep { dir, restart_bytes: 2 * segment_bytes, bytes, hinted: 0, hinted_at: 0 }
    }

    /// The log's size on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    pub(crate) fn is_hint_due(&self, now: Micros) -> bool {
        now >= self.hinted_at + HINT_PERIOD
    }

    /// The index to give to the log as committed; `None` if it knows it.
    pub(crate) fn hint(&mut self, now: Micros, committed: Index) -> Option<Index> {
        if committed <= self.hinted {
            return None;
        }
        (self.hinted, self.hinted_at) = (committed, now);
        Some(committed)
    }

    /// Requests that the next start quarantines the log.
    pub(crate) fn quarantine(&self, request: &QuarantineRequest) -> Result<(), String> {
        crate::log_quarantine::request(&self.dir, request).map_err(|error| {
            format!("{error}; move this member's lockstep.* files away before it is started again")
        })
    }

    /// The log lacks space or a file descriptor: ends the server once its directory takes writes, unless the node has `stopped`
    /// by then.
    pub(crate) fn end_once_writable(
        &self,
        logger: Logger,
        end: EndServer,
        stopped: impl Fn() -> bool + Send + 'static,
    ) {
        disk_full::end_when_there_is(self.dir.clone(), self.restart_bytes, logger, end, stopped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_is_given_once_and_never_goes_back() {
        let mut log = LogUpkeep::new(PathBuf::new(), 1, 0);
        assert!(!log.is_hint_due(HINT_PERIOD - 1) && log.is_hint_due(HINT_PERIOD));
        assert_eq!(log.hint(HINT_PERIOD, 7), Some(7));
        assert!(!log.is_hint_due(HINT_PERIOD + 1), "it has just been given");
        assert_eq!(log.hint(3 * HINT_PERIOD, 7), None);
        assert_eq!(log.hint(3 * HINT_PERIOD, 6), None);
        assert!(log.is_hint_due(3 * HINT_PERIOD), "nothing was given since");
    }
}
