//! Reverted logs: a member finds out that its disk went back in time.
//!
//! A restored volume or snapshot, or a disk cache that lies, takes back entries that this member has acknowledged, and
//! votes that it has given. It must not vote on them: a leader could be elected that lacks committed entries. The other
//! members have evidence of this one's durable state ([`lockstep_core::raft::Durable`]), and report it at each connection.
//! This member compares the report with its disk as its process found it; or, if this process has sent the acks, with its
//! present state.
//!
//! A member with a reverted log gives it up like a damaged one: its process ends, the next start quarantines the log, and
//! the member returns under a new id. For its voters the old id is a voter that is gone.
//!
//! There is one exception. If the reporter and this member are the only two voters, the reporter has every committed entry,
//! and no other member can win an election. But without this member's vote the reporter cannot lead, and the cluster would
//! stand still. So this member first votes for the reporter, persists its entries, and waits until it is demoted.

use crate::wire::Evidence;
use lockstep_core::Index;
use lockstep_core::ViewUuid;
use lockstep_core::raft::{Durable, Raft};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct RevertedLog {
    /// The disk as the process found it.
    at_start: Durable,
    /// This process's incarnations begin here; those of earlier ones are lower.
    first_incarnation: u64,
    /// The view UUIDs of this process's connects.
    own: Vec<ViewUuid>,
    waiting: Option<Waiting>,
}

/// This member's log is reverted, and it waits to be demoted.
#[derive(Debug)]
struct Waiting {
    why: String,
    /// The end of the reporter's log at the report, which lists this member as a voter.
    listed_at: Index,
}

impl RevertedLog {
    /// `introduced`: view UUID and incarnation under which the process begins.
    pub(in crate::member) fn new(
        raft: &Raft,
        (view_uuid, first_incarnation): (ViewUuid, u64),
    ) -> RevertedLog {
        RevertedLog { at_start: raft.durable(), first_incarnation, own: vec![view_uuid], waiting: None }
    }

    /// A connect begins under this view UUID.
    pub(in crate::member) fn connect(&mut self, view_uuid: ViewUuid) {
        self.own.push(view_uuid);
    }

    /// The loss that a report proves, for people; `None` if nothing is lost.
    pub(in crate::member) fn judge(&self, raft: &Raft, evidence: &Evidence) -> Option<String> {
        let evidence = &evidence.sighting;
        let is_own = self.own.contains(&evidence.view_uuid);
        let (has, had) = (if is_own { raft.durable() } else { self.at_start }, evidence.durable);
        if has.last_index < had.last_index || has.last_term < had.last_term {
            return Some(format!(
                "it had acknowledged its log up to index {} of term {}, but its disk holds index {} of term {}",
                had.last_index, had.last_term, has.last_index, has.last_term
            ));
        }
        if has.is_behind(&had) {
            return Some(format!(
                "it had entered term {}, but its disk knows only term {}",
                had.term, has.term
            ));
        }
        let is_reused = !is_own && evidence.incarnation >= self.first_incarnation;
        is_reused.then(|| "an earlier process has used the incarnation that its disk gave to this one".into())
    }

    /// Waits to be demoted. Returns whether that is new.
    pub(in crate::member) fn wait(&mut self, why: &str, evidence: &Evidence) -> bool {
        let is_new = self.waiting.is_none();
        self.waiting = Some(Waiting { why: why.to_owned(), listed_at: evidence.reporter.last_index });
        is_new
    }

    /// Why this member waits to be demoted, if it does.
    pub(in crate::member) fn waits(&self) -> Option<&str> {
        self.waiting.as_ref().map(|waiting| waiting.why.as_str())
    }

    /// Whether this member has waited and is demoted: it may give up its log.
    pub(in crate::member) fn is_demoted(&self, raft: &Raft) -> bool {
        let Some(waiting) = &self.waiting else { return false };
        // An older part of the log may list fewer voters.
        raft.deliverable() > waiting.listed_at && !raft.committed_state().membership.is_voter(&raft.id())
    }
}
