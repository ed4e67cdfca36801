//! Log retention: which segments of the log may be removed.

use crate::effect::TrimLimits;
use lockstep_core::raft::Raft;
use lockstep_core::{Index, MemberId, Micros, SEQNO_UNDEFINED, Seqno};
use std::collections::VecDeque;

/// How often the log is trimmed.
const PERIOD: Micros = 1_000_000;
/// How often a warning about early removal is repeated.
const WARN_INTERVAL: Micros = 600_000_000;
/// A lost member may have been behind by this much before it was lost.
const MAX_LAG_OF_LOST: Micros = 60_000_000;

/// The state of the other members, as far as retention depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Presence {
    /// Connected.
    Connected,
    /// Lost at this time of the monotonic clock.
    LostAt(Micros),
    /// Not seen since this process began.
    NeverSeen,
}

/// The inputs of a decision.
pub(super) struct Inputs<'a> {
    pub(super) now: Micros,
    /// Wall clock, µs since 1970.
    pub(super) wall: Micros,
    pub(super) raft: &'a Raft,
    /// The last seqno finished by the own server.
    pub(super) finished: Seqno,
    /// The next index to deliver.
    pub(super) next_index: Index,
    /// `log.keep_min`, `log.size` and `log.max_size`.
    pub(super) keep: Micros,
    pub(super) keep_bytes: u64,
    pub(super) max_bytes: u64,
    pub(super) presence: &'a dyn Fn(&MemberId) -> Presence,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LogRetention {
    last_trim: Micros,
    /// Times, and the finished seqno then, for the last `log.keep_min`.
    finished_at: VecDeque<(Micros, Seqno)>,
    /// When early removal was last logged.
    warned: Option<Micros>,
}

impl LogRetention {
    /// The limits of the next removal of segments, if one is due and possible.
    pub(super) fn step(&mut self, inputs: &Inputs<'_>) -> Option<TrimLimits> {
        let Inputs { now, wall, raft, finished, .. } = *inputs;
        if now < self.last_trim + PERIOD {
            return None;
        }
        self.last_trim = now;
        let long_ago = self.finished_long_ago(now, inputs.keep, finished);
        let needed = inputs.next_index.min(raft.deliverable());
        let membership = raft.membership();
        let others = || membership.members.iter().filter(|m| m.id != raft.id());
        let presence = inputs.presence;
        // Entries that a connected member has not persisted are kept up to `log.max_size` only: a hanging disk elsewhere
        // must not fill this one. Such a member then gets a snapshot, like one that was away for too long.
        let wanted = others()
            .filter(|m| raft.is_leader() && presence(&m.id) == Presence::Connected)
            .map(|m| raft.matched(&m.id) + 1)
            .min()
            .unwrap_or(Index::MAX);
        // Entries that a lagging server has only just finished may not be on its disk, however old they are.
        let flushed = raft.segment_bases().filter(|b| b.seqno <= long_ago).last();
        let flushed = flushed.map_or(0, |b| b.index + 1);
        // Certification after a restart begins at the trim mark before the last.
        let trim = raft.committed_state().trim_previous.min(finished);
        let below = raft.segment_bases().filter(|b| b.seqno <= trim && b.index <= needed).last()?.index + 1;
        let ago = |time: Micros| wall.saturating_sub(time);
        // Entries that an absent member lacks are kept like young ones.
        let absent_since = others()
            .filter(|m| !m.arbitrator)
            .filter_map(|m| match presence(&m.id) {
                Presence::Connected => None,
                Presence::LostAt(at) => Some(ago(now.saturating_sub(at) + MAX_LAG_OF_LOST)),
                Presence::NeverSeen => Some(0),
            })
            .min()
            .unwrap_or(Micros::MAX);
        Some(TrimLimits {
            below,
            wanted,
            flushed,
            keep_bytes: inputs.keep_bytes,
            older_than: ago(inputs.keep).min(absent_since),
            max_bytes: inputs.max_bytes,
        })
    }

    /// Whether an early removal of entries is to be logged now.
    pub(super) fn warn_of_early_removal(&mut self, now: Micros) -> bool {
        let due = self.warned.is_none_or(|at| now >= at + WARN_INTERVAL);
        if due {
            self.warned = Some(now);
        }
        due
    }

    /// The seqno that the own server had finished `keep` ago. The seqno finished at the start of the process is on its disk.
    fn finished_long_ago(&mut self, now: Micros, keep: Micros, finished: Seqno) -> Seqno {
        let at = if self.finished_at.is_empty() { now.saturating_sub(keep) } else { now };
        self.finished_at.push_back((at, finished));
        while self.finished_at.get(1).is_some_and(|(at, _)| at + keep <= now) {
            self.finished_at.pop_front();
        }
        let first = self.finished_at.front().filter(|(at, _)| at + keep <= now);
        first.map_or(SEQNO_UNDEFINED, |(_, seqno)| *seqno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_seqno_counts_after_keep_time() {
        let mut retention = LogRetention::default();
        let keep = 10_000_000;
        // The first value is from before the process began.
        assert_eq!(retention.finished_long_ago(20_000_000, keep, 5), 5);
        assert_eq!(retention.finished_long_ago(21_000_000, keep, 8), 5);
        assert_eq!(retention.finished_long_ago(30_999_999, keep, 9), 5);
        assert_eq!(retention.finished_long_ago(31_000_000, keep, 9), 8);
    }

    #[test]
    fn early_removal_is_logged_once_per_interval() {
        let mut retention = LogRetention::default();
        assert!(retention.warn_of_early_removal(1));
        assert!(!retention.warn_of_early_removal(WARN_INTERVAL));
        assert!(retention.warn_of_early_removal(1 + WARN_INTERVAL));
    }
}
