//! Under the policy `all`: which members' disks make progress, since every commit waits for a stalled one.

use lockstep_core::policy::PolicyKind;
use lockstep_core::raft::Raft;
use lockstep_core::{Index, MemberId, Micros, Term};
use std::collections::BTreeMap;

/// A member whose disk makes no progress for this many election timeouts is taken out of the view.
const STALL_TIMEOUTS: Micros = 5;

/// A member's persisted index, and since when it has not advanced.
#[derive(Clone, Copy, Debug)]
struct Progress {
    persisted: Index,
    at: Micros,
    /// Since when it is not waited for.
    stalled: Option<Micros>,
}

/// Disk progress of the members connected to the leader. Reset in each term.
#[derive(Debug, Default)]
pub(in crate::member) struct DiskProgress {
    term: Term,
    /// When the progress was last noted.
    tracked_at: Micros,
    members: BTreeMap<MemberId, Progress>,
}

impl DiskProgress {
    /// Notes the progress of the connected members. A stalled member counts again once its disk advances and it lacks at
    /// most `near` entries.
    pub(in crate::member) fn track(
        &mut self,
        now: Micros,
        raft: &Raft,
        connected: impl Iterator<Item = MemberId>,
        near: Index,
    ) {
        let term = raft.term();
        let all = raft.policy().kind == PolicyKind::All;
        if !all || self.term != term {
            *self = DiskProgress { term, tracked_at: now, members: BTreeMap::new() };
        }
        if !all {
            return;
        }
        let last = raft.last_index();
        // The timeout in force, which follows the round trips: an ack cannot arrive sooner.
        let timeout = STALL_TIMEOUTS * raft.election_timeout();
        // While this process did not run, no ack could arrive: a longer interval counts only this much.
        let interval = now.saturating_sub(std::mem::replace(&mut self.tracked_at, now));
        let own_stall = interval.saturating_sub(raft.election_timeout());
        let mut before = std::mem::take(&mut self.members);
        for id in connected {
            let persisted = raft.matched(&id);
            let mut progress = before.remove(&id).unwrap_or(Progress { persisted, at: now, stalled: None });
            // One that is out of the view returns by progress only.
            if progress.stalled.is_none() {
                progress.at = (progress.at + own_stall).min(now);
            }
            if persisted > progress.persisted || persisted >= last {
                (progress.persisted, progress.at) = (persisted, now);
            }
            progress.stalled = match progress.stalled {
                Some(since) if progress.at > since && persisted + near >= last => None,
                Some(since) => Some(since),
                None => (now.saturating_sub(progress.at) > timeout).then_some(now),
            };
            self.members.insert(id, progress);
        }
    }

    /// Whether this member is out of the view because its disk is stalled.
    pub(in crate::member) fn is_stalled(&self, id: &MemberId) -> bool {
        self.members.get(id).is_some_and(|progress| progress.stalled.is_some())
    }
}
