//! Leader failback: under `async` and `semisync`, leadership returns to the member whose clients write.
//!
//! Under these policies only the leader's server takes writes. A leader that loses an election, because its processor
//! was busy or its link broke for a moment, rejects its clients' writes from then on. If nothing moves the clients,
//! they stay there, and since nothing is written, leader placement ([`lockstep_core::placement`]) sees no writer. So a
//! member reports rejected writes to the leader.
//!
//! An elected leader returns leadership to the one before it under two conditions: for some seconds that member, and no
//! other, has reported rejected writes; and the new leader's own server has taken none.
//!
//! A leader chosen by an operator keeps leadership: a view listed it first before its term. It also keeps leadership if
//! the previous leader left or restarted, since that one's clients have noticed.

use crate::member::membership::leader_tasks::NEAR_ENOUGH;
use crate::member::membership::peers::REJECTED_WRITES_SINCE;
use crate::member::{Level, Member, Micros, NodeMessage};
use lockstep_core::{MemberId, Term, ViewUuid};

/// How often a member reports rejected writes at most.
const REPORT_INTERVAL: Micros = 1_000_000;
/// Leadership returns after this many reports in a row,
const REPORTS: u32 = 3;
/// each within this time of the one before.
const REPORT_GAP_MAX: Micros = 2_500_000;
/// If leadership is returned twice within this time, the next return needs twice as many reports,
const REPEAT_WINDOW: Micros = 60_000_000;
/// but never more than this.
const REPORTS_MAX: u32 = 60;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct Failback {
    /// How many writes of its clients this member has rejected for the policy; the front end counts them.
    pub(in crate::member) refused: u64,
    /// The number last reported to the leader, and when.
    reported: u64,
    reported_at: Option<Micros>,
    /// While another member leads: the leader, its view UUID, and whether a view lists this member first.
    leader: Option<(MemberId, ViewUuid)>,
    listed_first: bool,
    /// Set while this member leads.
    own_term: Option<OwnTerm>,
    /// When leadership was last returned, and how many reports that took.
    returned: Option<(Micros, u32)>,
}

#[derive(Debug)]
struct OwnTerm {
    term: Term,
    /// The previous leader, unless an operator's command made this member the leader.
    before: Option<(MemberId, ViewUuid)>,
    /// How many writes this member had proposed when the term began.
    written: u64,
    /// How many reports in a row came from the previous leader, and when the last one came.
    rejections: Option<(u32, Micros)>,
    /// When another member last reported rejected writes.
    others_at: Option<Micros>,
}

impl Member {
    /// The front end has rejected this many writes for the policy, in all.
    pub(crate) fn note_refused(&mut self, refused: u64) {
        self.failback.refused = refused;
    }

    /// In each round: records the leader, and reports rejected writes to it.
    pub(in crate::member) fn failback_step(&mut self) {
        if self.raft.is_leader() {
            let term = self.raft.term();
            if self.failback.own_term.as_ref().is_none_or(|own_term| own_term.term != term) {
                let before = self.failback.leader.filter(|_| !self.failback.listed_first);
                let written = self.own_writes();
                self.failback.own_term =
                    Some(OwnTerm { term, before, written, rejections: None, others_at: None });
            }
            return;
        }
        self.failback.own_term = None;
        self.failback.listed_first =
            self.raft.tail_state().view.members.first().is_some_and(|first| first.id == self.me.id);
        let Some(leader) = self.raft.leader() else { return };
        if let Some(peer) = self.peers.get(&leader) {
            self.failback.leader = Some((leader, peer.hello.view_uuid));
        }
        let due = self.failback.reported_at.is_none_or(|at| self.now >= at + REPORT_INTERVAL);
        let knows = self.peers.get(&leader).is_some_and(|peer| peer.version >= REJECTED_WRITES_SINCE);
        if self.failback.refused != self.failback.reported && due && knows && self.raft.policy().is_weak() {
            self.failback.reported = self.failback.refused;
            self.failback.reported_at = Some(self.now);
            self.tell(leader, &NodeMessage::TurnedAway);
        }
    }

    /// An operator wants leadership to stay.
    pub(in crate::member) fn keep_leadership(&mut self) {
        if let Some(own_term) = &mut self.failback.own_term {
            own_term.before = None;
        }
    }

    fn own_writes(&self) -> u64 {
        self.raft.written_by().get(&self.me.id).copied().unwrap_or(0)
    }

    /// A member reports rejected writes.
    pub(in crate::member) fn on_writes_rejected(&mut self, from: MemberId) {
        let now = self.now;
        let Some(own_term) = &mut self.failback.own_term else { return };
        if own_term.before.is_none_or(|(id, _)| id != from) {
            own_term.others_at = Some(now);
            return;
        }
        let before =
            own_term.rejections.filter(|(_, at)| now < at + REPORT_GAP_MAX).map_or(0, |(reports, _)| reports);
        own_term.rejections = Some((before + 1, now));
    }

    /// A leader's check whether leadership should return.
    pub(in crate::member) fn return_leadership(&mut self) {
        let Some(own_term) = &self.failback.own_term else { return };
        let (Some((previous, view_uuid)), Some((reports, at))) = (own_term.before, own_term.rejections)
        else {
            return;
        };
        let wanted = match self.failback.returned {
            // The time of this wait does not count.
            Some((returned_at, before))
                if self.now < returned_at + REPEAT_WINDOW + Micros::from(reports) * REPORT_INTERVAL =>
            {
                (2 * before).min(REPORTS_MAX)
            }
            _ => REPORTS,
        };
        let fresh = |at: Micros| self.now < at + REPORT_GAP_MAX;
        // Of older members it is unknown whether they reject writes.
        let all_versions_report =
            self.peers.values().all(|peer| peer.version >= REJECTED_WRITES_SINCE || peer.hello.arbitrator);
        let fits = self.tuning.follow_writer
            && self.raft.policy().is_weak()
            && reports >= wanted
            && fresh(at)
            && !own_term.others_at.is_some_and(fresh)
            && all_versions_report
            && self.own_writes() == own_term.written
            && self.peers.get(&previous).is_some_and(|peer| peer.hello.view_uuid == view_uuid)
            && self.raft.matched(&previous) + NEAR_ENOUGH >= self.raft.last_index()
            && !self.is_busy()
            && self.unfit_to_lead(&previous).is_none()
            && self.is_synced(&previous);
        if fits && self.raft.transfer_leadership(self.now, previous).is_ok() {
            self.failback.returned = Some((self.now, wanted));
            if let Some(own_term) = &mut self.failback.own_term {
                own_term.rejections = None;
            }
            let name = self.name_of(&previous);
            let text = format!(
                "Returning leadership to {name}: it is rejecting writes and none arrive here (leader.follow_writer)"
            );
            self.log(Level::Info, text);
        }
    }
}

#[cfg(test)]
#[path = "failback_tests.rs"]
mod tests;
