//! Elections and the time in office of one process: the members that it has heard of, and the actions that this permits.

use crate::fallback::Fallback;
use crate::history::{Check, hold};
use crate::profile::SECOND;
use lockstep_core::members::Membership;
use lockstep_core::raft::{Raft, Role};
use lockstep_core::{Entry, Index, MemberId, Micros, Term};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

/// A member lengthens its election timeout to ten round trips, but never beyond this.
const ELECTION_TIMEOUT_MAX: Micros = 6 * SECOND;

/// Before a majority is heard again, so many stalls of a leader do not count as the others' silence. The core extends the
/// deadlines once; which of two stalls that is depends on when it was due, which the check does not know.
const EXTENSIONS: usize = 2;

/// A campaign, as it was when others first heard of it.
#[derive(Default)]
struct Campaign {
    term: Term,
    /// See `World::weather`.
    weather: u64,
    /// The membership at its begin.
    membership: Arc<Membership>,
}

/// See the module's documentation.
pub(crate) struct LeadershipChecks {
    id: MemberId,
    began: Micros,
    /// When, by its own clock, anything was last heard of each member.
    heard: BTreeMap<MemberId, Micros>,
    /// When, by its own clock, the last connection to each member was lost.
    lost: BTreeMap<MemberId, Micros>,
    /// Granted pre-votes by term.
    pre_votes: BTreeMap<Term, Vec<MemberId>>,
    /// Members that have voted for the present candidate, or told it how their logs end, and the index up to which they
    /// answered.
    reached: (Term, Vec<(MemberId, Index)>),
    campaign: Campaign,
    /// The membership at the end of the last round.
    membership: Arc<Membership>,
    /// The index of that membership's entry.
    membership_index: Index,
    /// When, by its own clock, it became a leader.
    leads_since: Micros,
    /// Its quorum timeout as a leader, and since when it shows a shorter one.
    quorum_timeout: (Micros, Micros),
    fallback: Fallback,
    /// By its own clock, the begin of its last round, and its election timeout then.
    ran: (Micros, Micros),
    /// By its own clock: the ends of its last stalls that do not count as the others' silence, the last one last.
    extended: [Micros; EXTENSIONS],
    /// Its term, and the end of its last stall as a leader by its own clock, until a majority is heard.
    stalled: Option<(Term, Micros)>,
    /// The last time since which it has, as a leader, heard a majority of an earlier membership while that was in force.
    heard_earlier_majority: Micros,
}

impl LeadershipChecks {
    pub(crate) fn new(raft: &Raft, local: Micros) -> LeadershipChecks {
        LeadershipChecks {
            id: raft.id(),
            began: local,
            heard: BTreeMap::new(),
            lost: BTreeMap::new(),
            pre_votes: BTreeMap::new(),
            reached: (0, Vec::new()),
            campaign: Campaign::default(),
            membership: raft.tail_state().membership.clone(),
            membership_index: raft.tail_state().membership_index,
            leads_since: Micros::MAX,
            quorum_timeout: (0, 0),
            fallback: Fallback::default(),
            ran: (local, Micros::MAX),
            extended: [0; EXTENSIONS],
            stalled: None,
            heard_earlier_majority: 0,
        }
    }

    /// A round begins, before its inputs.
    pub(crate) fn round_begins(&mut self, raft: &Raft, local: Micros) {
        let (ran_at, timeout_then) = std::mem::replace(&mut self.ran, (local, raft.election_timeout()));
        let idle = local.saturating_sub(ran_at);
        // A heartbeat was due within the first half of that time, so the core has noticed the stall.
        let stall = raft.election_timeout().max(timeout_then);
        if raft.role() == Role::Leader && idle >= stall {
            self.stalled = Some((raft.term(), local));
        }
        let oldest = self.extended[0];
        let may_extend = oldest == 0 || self.hears_majority_since(raft, oldest);
        if may_extend && idle >= raft.election_timeout().min(timeout_then) / 2 {
            self.extended.rotate_left(1);
            self.extended[EXTENSIONS - 1] = local;
        }
    }

    fn hears_majority_since(&self, raft: &Raft, since: Micros) -> bool {
        self.hears_majority_of(&raft.tail_state().membership, since)
    }

    fn hears_majority_of(&self, membership: &Membership, since: Micros) -> bool {
        let heard = |id: &MemberId| *id == self.id || self.heard.get(id).is_some_and(|at| *at >= since);
        membership.voters().filter(heard).count() >= membership.majority()
    }

    /// The last time since which a majority of these voters has been heard.
    fn majority_heard_since(&self, membership: &Membership, local: Micros) -> Micros {
        let heard =
            |id: MemberId| if id == self.id { local } else { self.heard.get(&id).copied().unwrap_or(0) };
        let mut times: Vec<Micros> = membership.voters().map(heard).collect();
        times.sort_unstable();
        times.iter().rev().nth(membership.majority() - 1).copied().unwrap_or(0)
    }

    /// A frame of Raft has arrived.
    pub(crate) fn hears(&mut self, from: MemberId, local: Micros) {
        self.heard.insert(from, local);
    }

    /// A pre-vote has arrived; the process is in this term before the round. A campaign may go on in this round before a
    /// newer term ends it.
    pub(crate) fn pre_vote(&mut self, from: MemberId, term: Term, before: Term) {
        self.pre_votes.entry(term).or_default().push(from);
        self.pre_votes.retain(|granted, _| *granted >= before);
    }

    /// A vote has arrived, or a reply that a member's log ends at `last`. Later ones do not count.
    pub(crate) fn reaches(&mut self, raft: &Raft, from: MemberId, term: Term, last: Index) {
        if raft.role() == Role::Candidate && raft.term() == term {
            if self.reached.0 != term {
                self.reached = (term, Vec::new());
            }
            self.reached.1.push((from, last));
        }
    }

    /// A connection is lost.
    pub(crate) fn loses(&mut self, id: &MemberId, local: Micros) {
        self.lost.insert(*id, local);
        self.reached.1.retain(|(other, _)| other != id);
    }

    /// The index up to which this member has answered for its log to the candidate of this term, if the candidate has
    /// heard of it.
    pub(crate) fn reached(&self, term: Term, id: &MemberId) -> Option<Index> {
        let of_term = self.reached.1.iter().filter(|_| self.reached.0 == term);
        of_term.filter(|(other, _)| other == id).map(|(_, last)| *last).max()
    }

    /// Others hear of a campaign.
    pub(crate) fn campaigns(&mut self, term: Term, weather: u64) {
        if self.campaign.term < term {
            self.campaign = Campaign { term, weather, membership: self.membership.clone() };
        }
    }

    /// Whether nothing has happened since the campaign of this term began.
    pub(crate) fn is_undisturbed(&self, term: Term, weather: u64) -> bool {
        (self.campaign.term, self.campaign.weather) == (term, weather)
    }

    /// Nobody disturbs the others by an election that a majority would not support.
    pub(crate) fn may_campaign(&self, name: &dyn Display, term: Term) -> Check {
        let granted =
            |id: &MemberId| *id == self.id || self.pre_votes.get(&term).is_some_and(|who| who.contains(id));
        let membership = &self.campaign.membership;
        let count = membership.voters().filter(granted).count();
        hold!(
            count >= membership.majority(),
            "whoever campaigns has asked",
            "{name} campaigns in term {term}; {count} of {} support it",
            membership.voters().count()
        );
        Ok(())
    }

    /// A leader that has not heard a majority for an election timeout does not believe that it leads; for some of them,
    /// where its last terms of office ended so. Its own stalls do not count as the others' silence.
    fn may_lead(&mut self, name: &dyn Display, raft: &Raft, local: Micros, timeout: Micros) -> Check {
        if raft.role() != Role::Leader {
            self.leads_since = Micros::MAX;
            self.extended = [0; EXTENSIONS];
            return Ok(());
        }
        self.leads_since = self.leads_since.min(local);
        // A commit ends a longer quorum timeout; the leader checks its quorum again with its next heartbeat.
        let quorum_timeout = raft.quorum_timeout().min(16 * timeout.max(ELECTION_TIMEOUT_MAX));
        if quorum_timeout >= self.quorum_timeout.0 || local.saturating_sub(self.quorum_timeout.1) >= timeout {
            self.quorum_timeout = (quorum_timeout, Micros::MAX);
        } else {
            // A process that was stopped meanwhile has had no heartbeat: the time counts from when it shows the shorter one.
            self.quorum_timeout.1 = self.quorum_timeout.1.min(local);
        }
        let quorum_timeout = self.quorum_timeout.0;
        let membership = &raft.tail_state().membership;
        let alive = |other: &MemberId| {
            let heard = self.heard.get(other).copied().unwrap_or(self.began);
            let silent_since = heard.max(self.extended[EXTENSIONS - 1]);
            *other == self.id || local.saturating_sub(silent_since) < quorum_timeout
        };
        // A new voter gets some time.
        let settled = local.saturating_sub(self.leads_since) >= 2 * quorum_timeout
            && raft.tail_state().membership_index <= raft.commit();
        hold!(
            !settled || membership.voters().filter(alive).count() >= membership.majority(),
            "a leader hears a majority",
            "{name} leads and has not heard a majority of its {} voters",
            membership.voters().count()
        );
        Ok(())
    }

    /// Whether a leader may deliver entries before they are committed: a majority, of the present membership or of the last
    /// round's, was heard after its last stall.
    pub(crate) fn may_deliver_early(&self, raft: &Raft) -> bool {
        let stalled = self.stalled.filter(|(term, _)| *term == raft.term());
        stalled.is_none_or(|(_, at)| {
            self.hears_majority_since(raft, at) || self.hears_majority_of(&self.membership, at)
        })
    }

    /// A leader that answers its own server has heard of a majority since it was asked. It may have been a majority of a
    /// membership that is no longer in force, also since this very round: two successive memberships have no majorities
    /// without a common voter, so no other leader could commit meanwhile.
    pub(crate) fn may_read(&self, name: &dyn Display, raft: &Raft, asked: Micros) -> Check {
        if raft.role() != Role::Leader || self.leads_since >= asked {
            return Ok(());
        }
        hold!(
            self.hears_majority_since(raft, asked)
                || self.hears_majority_of(&self.membership, asked)
                || self.heard_earlier_majority >= asked,
            "a read asks a majority",
            "{name} answers a read and has heard nobody since it was asked"
        );
        Ok(())
    }

    /// How long it has led.
    pub(crate) fn led_for(&self, local: Micros) -> Micros {
        local.saturating_sub(self.leads_since.min(local))
    }

    /// The log loses everything from here on.
    pub(crate) fn cut(&mut self, from: Index) {
        self.membership_index = self.membership_index.min(from - 1);
    }

    /// A membership is appended.
    pub(crate) fn changes(&mut self, index: Index) {
        self.membership_index = index;
    }

    /// A leader changes one voter at a time, once the change before it and an entry of its own term are committed.
    pub(crate) fn may_change(
        &self,
        name: &dyn Display,
        raft: &Raft,
        entry: &Entry,
        before: &Membership,
        next: &Membership,
    ) -> Check {
        if !places(raft, entry) {
            return Ok(());
        }
        let changed = next.voters_changed(before);
        hold!(changed <= 1, "one voter at a time", "{name} changes {changed} voters in one entry: {next:?}");
        let commit = raft.commit();
        hold!(
            self.membership_index <= commit && raft.term_at(commit) == Some(entry.term),
            "one membership change at a time",
            "{name} of term {} appends a membership at {}, the one before is at {}, committed is {commit}",
            entry.term,
            entry.index,
            self.membership_index
        );
        Ok(())
    }

    /// A leader takes the vote of a member that leaves only if the connected voters are a majority of the others. It takes
    /// the vote of an absent member only after `long`.
    #[allow(clippy::too_many_arguments, reason = "the change, and what the leader knows of the voters")]
    pub(crate) fn may_demote(
        &self,
        name: &dyn Display,
        raft: &Raft,
        entry: &Entry,
        before: &Membership,
        next: &Membership,
        connected: impl Fn(&MemberId) -> bool,
        local: Micros,
        long: Micros,
    ) -> Check {
        if !places(raft, entry) {
            return Ok(());
        }
        let is_demoted = |id: &MemberId| next.get(id).is_some_and(|member| !member.role.votes());
        for id in before.voters().filter(is_demoted) {
            let absent = local.saturating_sub(self.lost.get(&id).copied().unwrap_or(self.began));
            hold!(
                connected(&id) || absent > long,
                "an absent voter keeps its vote",
                "{name} demotes {id:?}, which has been absent for {absent} us"
            );
            let rest = next.voters().filter(&connected).count();
            hold!(
                !connected(&id) || rest >= next.majority(),
                "a member that leaves lets the others go on",
                "{name} demotes {id:?}, and {rest} of the voters left are connected: {next:?}"
            );
        }
        Ok(())
    }

    /// The end of a round. Whether semisync has fallen back in it.
    pub(crate) fn round_ends(
        &mut self,
        name: &dyn Display,
        raft: &Raft,
        local: Micros,
        election_timeout: Option<Micros>,
    ) -> Result<bool, crate::history::Violation> {
        if let Some(timeout) = election_timeout {
            self.may_lead(name, raft, local, timeout)?;
        }
        if self.may_deliver_early(raft) {
            self.stalled = None;
        }
        let membership = &raft.tail_state().membership;
        if raft.role() != Role::Leader {
            self.heard_earlier_majority = 0;
        }
        if !Arc::ptr_eq(&self.membership, membership) {
            if raft.role() == Role::Leader {
                let heard = self.majority_heard_since(&self.membership, local);
                self.heard_earlier_majority = self.heard_earlier_majority.max(heard);
            }
            self.membership = membership.clone();
        }
        self.membership_index = raft.tail_state().membership_index;
        self.fallback.round_ends(name, raft, local)
    }
}

/// Whether the member appends this entry as the leader of its term.
fn places(raft: &Raft, entry: &Entry) -> bool {
    raft.role() == Role::Leader && entry.term == raft.term()
}
