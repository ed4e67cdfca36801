//! Leader failback: under `async` and `semisync`, leadership returns to the member whose clients write.
//!
//! Under these policies only the leader's server takes writes. A leader that loses an election, because its processor
//! was busy or its link broke for a moment, rejects its clients' writes from then on. If nothing moves the clients,
//! they stay there, and since nothing is written, leader placement ([`lockstep_core::placement`]) sees no writer. So a
//! member reports rejected writes to the leader.
//!
//! An elected leader returns leadership to the previous leader under two conditions. For some seconds only that member has
//! reported rejected writes; and the new leader's own server has accepted none.
//!
//! A leader chosen by an operator keeps leadership: a view listed it first before its term. It also keeps leadership if
//! the previous leader left or restarted, since that one's clients have noticed.

use crate::member::leadership::decision::{Action, Facts, Reason};
use lockstep_core::raft::Raft;
use lockstep_core::{MemberId, Micros, Term, ViewUuid};

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
    refused: u64,
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

/// How many write-sets this member has proposed.
fn own_writes(raft: &Raft) -> u64 {
    raft.written_by().get(&raft.id()).copied().unwrap_or(0)
}

impl Failback {
    /// The front end has rejected this many writes for the policy, in all.
    pub(in crate::member) fn note_refused(&mut self, refused: u64) {
        self.refused = refused;
    }

    /// In each round: records the leader. `peer` is its view UUID, and whether it knows the report of rejected writes.
    /// Returns whether to send it that report.
    pub(in crate::member) fn follow(
        &mut self,
        now: Micros,
        raft: &Raft,
        peer: Option<(ViewUuid, bool)>,
    ) -> bool {
        if raft.is_leader() {
            let term = raft.term();
            if self.own_term.as_ref().is_none_or(|own_term| own_term.term != term) {
                let before = self.leader.filter(|_| !self.listed_first);
                let written = own_writes(raft);
                self.own_term = Some(OwnTerm { term, before, written, rejections: None, others_at: None });
            }
            return false;
        }
        self.own_term = None;
        self.listed_first = raft.tail_state().view.members.first().is_some_and(|first| first.id == raft.id());
        let (Some(leader), Some((view_uuid, knows))) = (raft.leader(), peer) else { return false };
        self.leader = Some((leader, view_uuid));
        let due = self.reported_at.is_none_or(|at| now >= at + REPORT_INTERVAL);
        let reports = self.refused != self.reported && due && knows && raft.policy().is_weak();
        if reports {
            self.reported = self.refused;
            self.reported_at = Some(now);
        }
        reports
    }

    /// An operator wants leadership to stay.
    pub(in crate::member) fn keep(&mut self) {
        if let Some(own_term) = &mut self.own_term {
            own_term.before = None;
        }
    }

    /// A member reports rejected writes.
    pub(in crate::member) fn on_writes_rejected(&mut self, now: Micros, from: MemberId) {
        let Some(own_term) = &mut self.own_term else { return };
        if own_term.before.is_none_or(|(id, _)| id != from) {
            own_term.others_at = Some(now);
            return;
        }
        let before =
            own_term.rejections.filter(|(_, at)| now < at + REPORT_GAP_MAX).map_or(0, |(reports, _)| reports);
        own_term.rejections = Some((before + 1, now));
    }

    /// A leader's check whether leadership should return.
    pub(in crate::member) fn decide(&self, facts: &Facts<'_>) -> Option<Action> {
        let own_term = self.own_term.as_ref()?;
        let ((to, view_uuid), (reports, at)) = own_term.before.zip(own_term.rejections)?;
        let wanted = match self.returned {
            // The time of this wait does not count.
            Some((returned_at, before))
                if facts.now < returned_at + REPEAT_WINDOW + Micros::from(reports) * REPORT_INTERVAL =>
            {
                (2 * before).min(REPORTS_MAX)
            }
            _ => REPORTS,
        };
        let fresh = |at: Micros| facts.now < at + REPORT_GAP_MAX;
        let previous = facts.candidate(&to)?;
        // Of older members it is unknown whether they reject writes.
        let returns = facts.tuning.follow_writer
            && facts.raft.policy().is_weak()
            && reports >= wanted
            && fresh(at)
            && !own_term.others_at.is_some_and(fresh)
            && facts.all_report_rejections
            && own_writes(facts.raft) == own_term.written
            && previous.view_uuid == Some(view_uuid)
            && previous.is_near(facts.raft.last_index())
            && !facts.busy
            && previous.fit
            && previous.synced;
        returns.then_some(Action::TransferTo { to, reason: Reason::RejectsWrites { reports: wanted } })
    }

    /// A return of leadership has begun, after this many reports.
    pub(in crate::member) fn returned(&mut self, now: Micros, reports: u32) {
        self.returned = Some((now, reports));
        if let Some(own_term) = &mut self.own_term {
            own_term.rejections = None;
        }
    }

    #[cfg(test)]
    pub(in crate::member) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
#[path = "failback_tests.rs"]
mod tests;
