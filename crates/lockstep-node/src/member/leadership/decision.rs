//! The inputs and the result of a leader's decision.

use crate::api::Tuning;
use crate::member::leadership::failure_detector::Hang;
use lockstep_core::raft::Raft;
use lockstep_core::{Index, MemberId, Micros, Seqno, ViewUuid};

/// A candidate at most this many entries behind takes over at once.
pub(in crate::member) const NEAR_ENOUGH: Index = 1000;

/// Another voter, as the leader knows it.
#[derive(Clone, Debug)]
pub(in crate::member) struct Candidate {
    pub(in crate::member) id: MemberId,
    /// The view UUID of its connection; `None` if it is not connected.
    pub(in crate::member) view_uuid: Option<ViewUuid>,
    /// It wants to leave.
    pub(in crate::member) leaving: bool,
    /// Nothing speaks against it as the leader: see `Context::unfit_to_lead`.
    pub(in crate::member) fit: bool,
    /// It has a database: it is no arbitrator.
    pub(in crate::member) database: bool,
    pub(in crate::member) synced: bool,
    /// An apply hold keeps entries from its server.
    pub(in crate::member) held_back: bool,
    /// Its log equals this member's up to here.
    pub(in crate::member) matched: Index,
    /// The seqno that its database has finished, once reported.
    pub(in crate::member) finished: Option<Seqno>,
}

impl Candidate {
    /// The greater, the better a leader: with a database, Synced, without an apply hold, with most of the log.
    fn score(&self) -> (bool, bool, bool, Index) {
        (self.database, self.synced, !self.held_back, self.matched)
    }

    /// Whether it lacks few entries.
    pub(super) fn is_near(&self, last: Index) -> bool {
        self.matched + NEAR_ENOUGH >= last
    }
}

/// The candidate with the best score for which `fit` holds.
pub(in crate::member) fn best_successor(
    candidates: &[Candidate],
    fit: impl Fn(&Candidate) -> bool,
) -> Option<MemberId> {
    candidates.iter().filter(|candidate| fit(candidate)).max_by_key(|c| c.score()).map(|c| c.id)
}

/// The inputs of a leader's decision.
pub(in crate::member) struct Facts<'a> {
    pub(in crate::member) now: Micros,
    pub(in crate::member) raft: &'a Raft,
    pub(in crate::member) tuning: &'a Tuning,
    /// The other voters.
    pub(in crate::member) candidates: Vec<Candidate>,
    /// This member has no database.
    pub(in crate::member) arbitrator: bool,
    /// This member's server may not write: it is under an apply hold, or waits for its state.
    pub(in crate::member) held: bool,
    /// The seqno that this member's database has finished.
    pub(in crate::member) finished: Seqno,
    /// A command is under way, or a member joins, leaves or takes its state.
    pub(in crate::member) busy: bool,
    /// All peers are of a version that reports rejected writes.
    pub(in crate::member) all_report_rejections: bool,
}

impl Facts<'_> {
    pub(super) fn candidate(&self, id: &MemberId) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.id == *id)
    }
}

/// Why leadership moves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::member) enum Reason {
    /// This member cannot lead well.
    Unfit,
    /// The other member proposes this share of all write-sets, in percent.
    Writes { share: u64 },
    /// The other member rejected its clients' writes, in this many reports.
    RejectsWrites { reports: u32 },
}

/// A leader's action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::member) enum Action {
    /// Transfer leadership at once.
    TransferTo { to: MemberId, reason: Reason },
    /// Hand over as in a switchover, since this member hangs.
    StepDown { to: MemberId, hang: Hang },
}
