//! Moves of leadership by load and health: one component, [`Leadership`], with one decision.
//!
//! Other moves: an orderly leave, an operator's switchover, a log that cannot be read for a peer.
//!
//! The component gets facts: the candidates and their health, writes and their origins, the own disk and database. The
//! decision is at most one [`Action`]. The member carries it out. Reasons, in order:
//! 1. This member cannot lead well: it is an arbitrator, its server is under an apply hold, or waits for its state.
//! 2. Another member writes most (`leader.follow_writer`).
//! 3. The previous leader rejects its clients' writes, and none arrive here ([`failback`]).
//! 4. This member's disk or database hangs ([`failure_detector`]).
//!
//! [`Candidate::score`] orders the candidates.

mod decision;
pub(in crate::member) mod failback;
pub(in crate::member) mod failure_detector;
pub(in crate::member) mod leader_slowness;

pub(in crate::member) use decision::{Action, Candidate, Facts, NEAR_ENOUGH, Reason, best_successor};

use crate::api::Tuning;
use failback::Failback;
use failure_detector::{FailureDetector, Hang, Network, Timing};
use lockstep_core::placement::WriterShare;
use lockstep_core::raft::Raft;
use lockstep_core::{MemberId, Micros, Seqno, ViewUuid};

/// The length of the windows over which writes are counted.
const WINDOW: Micros = 1_000_000;

/// See the module's documentation.
#[derive(Debug)]
pub(in crate::member) struct Leadership {
    detector: FailureDetector,
    writer_share: WriterShare,
    failback: Failback,
    /// The last known leader, as far as this process knows.
    last_leader: Option<MemberId>,
}

impl Default for Leadership {
    fn default() -> Leadership {
        Leadership {
            detector: FailureDetector::default(),
            writer_share: WriterShare::new(WINDOW),
            failback: Failback::default(),
            last_leader: None,
        }
    }
}

impl Leadership {
    /// A leader's decision.
    pub(in crate::member) fn decide(&mut self, facts: &Facts<'_>) -> Option<Action> {
        self.replace_unfit(facts)
            .or_else(|| self.follow_writer(facts))
            .or_else(|| self.failback.decide(facts))
            .or_else(|| self.replace_hanging(facts))
    }

    /// A decided transfer has begun.
    pub(in crate::member) fn transfer_begun(&mut self, now: Micros, reason: &Reason) {
        match reason {
            Reason::Unfit => {}
            Reason::Writes { .. } => self.writer_share.moved(now),
            Reason::RejectsWrites { reports } => self.failback.returned(now, *reports),
        }
    }

    /// A successor if this member should not keep leadership.
    /// - An arbitrator leads only as long as no member with a database has its entries.
    /// - A leader under an apply hold makes no trim marks, without which certification on all members grows, and its
    ///   server refuses writes. It leads only until a member without a hold can. It does not wait until an entry is
    ///   held: if no other member writes, or may write, that never happens.
    /// - A leader whose server waits for a state transfer cannot write either.
    fn replace_unfit(&self, facts: &Facts<'_>) -> Option<Action> {
        if !facts.arbitrator && !facts.held {
            return None;
        }
        let last = facts.raft.last_index();
        let to =
            best_successor(&facts.candidates, |c| c.fit && c.is_near(last) && (!facts.held || c.synced))?;
        Some(Action::TransferTo { to, reason: Reason::Unfit })
    }

    /// The member that writes most, if nothing else is under way and its server is fit.
    fn follow_writer(&mut self, facts: &Facts<'_>) -> Option<Action> {
        let (to, share) = self.writer_share.look(facts.raft, facts.now)?;
        let writer = facts.candidate(&to)?;
        let moves = facts.tuning.follow_writer && !facts.busy && writer.fit && writer.synced;
        moves.then_some(Action::TransferTo { to, reason: Reason::Writes { share } })
    }

    /// A successor if this member's disk or database hangs: its disk has advanced, or its database is ahead.
    fn replace_hanging(&mut self, facts: &Facts<'_>) -> Option<Action> {
        let disk_for = facts.raft.disk_stands_still_for();
        let hang = self.detector.hang(facts.now, facts.tuning, disk_for)?;
        if facts.raft.is_transferring_leadership() || self.detector.tried_of_late(facts.now) {
            return None;
        }
        let persisted = facts.raft.persisted();
        let advances = |c: &Candidate| match hang {
            Hang::Disk(_) => c.finished.is_some() && c.matched > persisted,
            Hang::Database(_) => c.finished.is_some_and(|finished| finished > facts.finished),
        };
        let to = best_successor(&facts.candidates, |c| c.fit && advances(c))?;
        self.detector.tried(facts.now);
        Some(Action::StepDown { to, hang })
    }

    /// A leader is known, or none. Returns the last known one before.
    pub(in crate::member) fn leader_changed(&mut self, leader: Option<MemberId>) -> Option<MemberId> {
        let before = self.last_leader;
        self.last_leader = leader.or(before);
        before
    }

    /// At the end of each round: follows the leader. `peer` is its view UUID, and whether it knows the report of
    /// rejected writes. Returns whether to send it that report.
    pub(in crate::member) fn follow(
        &mut self,
        now: Micros,
        raft: &Raft,
        peer: Option<(ViewUuid, bool)>,
    ) -> bool {
        self.failback.follow(now, raft, peer)
    }

    /// The front end has rejected this many writes for the policy, in all.
    pub(in crate::member) fn note_refused(&mut self, refused: u64) {
        self.failback.note_refused(refused);
    }

    /// A member reports rejected writes.
    pub(in crate::member) fn on_writes_rejected(&mut self, now: Micros, from: MemberId) {
        self.failback.on_writes_rejected(now, from);
    }

    /// An operator wants leadership to stay.
    pub(in crate::member) fn keep(&mut self) {
        self.failback.keep();
    }

    /// A Raft message has arrived, or a round of this member began.
    pub(in crate::member) fn contact(&mut self, now: Micros, leader: Option<MemberId>, from: MemberId) {
        if leader == Some(from) {
            self.detector.leader_contact(now, from);
        }
    }

    /// Notes the progress of the database. `may_stand`: nothing is pending, or it may stand still.
    pub(in crate::member) fn note_database(&mut self, now: Micros, finished: Seqno, may_stand: bool) {
        self.detector.note_database(now, finished, may_stand);
    }

    /// The timeouts that the network and the leader's silences call for.
    pub(in crate::member) fn timing(&mut self, now: Micros, tuning: &Tuning, network: &Network) -> Timing {
        self.detector.timing(now, tuning, network)
    }

    #[cfg(test)]
    pub(in crate::member) fn refused(&self) -> u64 {
        self.failback.refused()
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod placement_tests;
#[cfg(test)]
mod tests;
