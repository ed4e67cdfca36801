//! Terms, votes and campaigns.
//!
//! A campaign begins by asking whether it would succeed (pre-vote), so that a member that was cut off does not disturb
//! the others when it comes back. A member with a live leader refuses both requests, unless that leader itself asked for
//! the campaign (`transfer`).
//!
//! Any member that is asked answers, learner or not: the membership in force at the candidate may be newer than ours, and
//! the candidate counts only voters of its own.

use super::config::{Config, Rng};
use super::failpoints::Failpoint;
use super::local::{Local, Role};
use super::output::Outputs;
use crate::message::Message;
use crate::types::*;
use std::collections::BTreeMap;

/// The state of a campaign's votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum VoteCount {
    /// A majority grants.
    Won,
    /// A majority can no longer grant.
    Lost,
    /// Votes are missing.
    Open,
}

/// When this member campaigns, and the votes of its campaign.
#[derive(Debug)]
pub(super) struct Election {
    rng: Rng,
    /// When to campaign, or to campaign again.
    deadline: Micros,
    /// Time of the leader's last message. `None` without a leader.
    last_contact: Option<Micros>,
    /// The connection to the leader has broken since.
    leader_gone: bool,
    /// See [`super::Raft::set_leader_timeout`].
    leader_timeout: Micros,
    /// The answers to our campaign, by member. Our own is here once it is durable.
    votes: BTreeMap<MemberId, bool>,
    /// The campaign was requested by the previous leader.
    is_transfer: bool,
}

impl Election {
    pub(super) fn new(config: &Config) -> Election {
        Election {
            rng: Rng::new(config),
            deadline: 0,
            last_contact: None,
            leader_gone: false,
            leader_timeout: 0,
            votes: BTreeMap::new(),
            is_transfer: false,
        }
    }

    /// When this member campaigns.
    pub(super) fn deadline(&self) -> Micros {
        self.deadline
    }

    pub(super) fn leader_timeout(&self) -> Micros {
        self.leader_timeout
    }

    pub(super) fn set_leader_timeout(&mut self, timeout: Micros) {
        self.leader_timeout = timeout;
    }

    /// Campaigns at the next tick: no other member could be leading.
    pub(super) fn campaign_now(&mut self, local: &Local) {
        self.deadline = local.now();
    }

    /// Waits for an election timeout from now on.
    pub(super) fn reset_timer(&mut self, local: &Local) {
        self.deadline = local.now() + self.timeout(local);
    }

    /// One to two election timeouts.
    fn timeout(&mut self, local: &Local) -> Micros {
        let least = local.config().election_timeout;
        least + self.rng.below(least) + deference(local)
    }

    /// A message of the leader has arrived.
    pub(super) fn note_leader_active(&mut self, local: &Local) {
        debug_assert!(local.leader().is_some(), "a known leader is heard");
        self.last_contact = Some(local.now());
        self.leader_gone = false;
        self.reset_timer(local);
        let least = self.leader_timeout;
        if least > local.config().election_timeout {
            self.deadline = local.now() + least + self.rng.below(least) + deference(local);
        }
    }

    /// There is no leader, or it is this member.
    pub(super) fn forget_leader(&mut self) {
        self.last_contact = None;
    }

    /// Whether the leader was heard within the election timeout before `now`.
    pub(super) fn leader_active_since(&self, local: &Local, now: Micros) -> bool {
        self.last_contact.is_some_and(|at| now.saturating_sub(at) < local.config().election_timeout)
    }

    /// Whether there is a live leader, so that no member should campaign.
    pub(super) fn leader_is_active(&self, local: &Local) -> bool {
        let follows =
            local.leader().is_some() && !self.leader_gone && self.leader_active_since(local, local.now());
        local.is_leader() || follows
    }

    /// The connection to the leader has broken: perhaps the leader is gone. This member campaigns sooner; members that still
    /// hear the leader refuse. Until its timeout has passed it stays the leader should it return.
    pub(super) fn leader_lost(&mut self, local: &Local) {
        self.leader_gone = true;
        let half = local.config().election_timeout / 2;
        let soon = local.now() + half / 2 + self.rng.below(half) + deference(local);
        self.deadline = self.deadline.min(soon);
    }

    pub(super) fn clear_votes(&mut self) {
        self.votes.clear();
    }

    /// Asks all other voters whether they would vote for this member.
    pub(super) fn begin_pre_vote(&mut self, local: &Local, out: &mut Outputs) {
        debug_assert!(local.role() == Role::PreCandidate, "only a pre-candidate asks for pre-votes");
        // If a broken connection brought the question forward, the next one comes when it would have.
        let since = self.last_contact.unwrap_or(local.now());
        self.deadline = since + self.timeout(local);
        self.votes.clear();
        self.votes.insert(local.id(), true);
        for to in local.other_voters() {
            out.send(to, pre_vote(local));
        }
    }

    /// Begins a campaign. Our own vote counts once it is durable: see [`Election::record`].
    pub(super) fn begin(&mut self, local: &Local, is_transfer: bool) {
        debug_assert!(local.role() == Role::Candidate, "only a candidate campaigns");
        self.last_contact = None;
        self.reset_timer(local);
        self.votes.clear();
        self.is_transfer = is_transfer;
    }

    /// A candidate's request for votes.
    pub(super) fn request(&self, local: &Local) -> Message {
        Message::Vote {
            term: local.term(),
            last_index: local.log().last(),
            last_term: local.log().tail().term,
            transfer: self.is_transfer,
        }
    }

    /// Whether a candidate's own vote, and with it its term, is durable.
    pub(super) fn has_own_vote(&self, local: &Local) -> bool {
        local.role() == Role::Candidate && self.votes.contains_key(&local.id())
    }

    /// Records an answer to the campaign. The first one of a member counts.
    pub(super) fn record(&mut self, from: MemberId, granted: bool) {
        self.votes.entry(from).or_insert(granted);
    }

    /// Counts the answers of the voters in force.
    pub(super) fn count(&self, local: &Local) -> VoteCount {
        let membership = local.membership();
        let majority = membership.majority();
        let of = |what: bool| membership.voters().filter(|id| self.votes.get(id) == Some(&what)).count();
        let (granted, refused) = (of(true), of(false));
        if granted >= majority {
            VoteCount::Won
        } else if refused > membership.voters().count() - majority {
            VoteCount::Lost
        } else {
            VoteCount::Open
        }
    }

    /// A connection has come up during the campaign: asks this voter, unless it has answered.
    pub(super) fn ask_again(&self, local: &Local, out: &mut Outputs, id: MemberId) {
        if !local.membership().is_voter(&id) || self.votes.contains_key(&id) {
            return;
        }
        match local.role() {
            Role::PreCandidate => out.send(id, pre_vote(local)),
            Role::Candidate if self.has_own_vote(local) => out.send(id, self.request(local)),
            _ => {}
        }
    }

    /// Answers a pre-vote.
    pub(super) fn on_pre_vote(
        &self,
        local: &Local,
        out: &mut Outputs,
        (from, term): (MemberId, Term),
        last: (Term, Index),
    ) {
        let granted = term > local.term()
            && local.may_support(&from)
            && !self.leader_is_active(local)
            && is_up_to_date(local, last)
            // The vote that a grant promises would not become durable.
            && !local.disk_hangs();
        let term = if granted { term } else { local.term() };
        out.send(from, Message::PreVoteReply { term, granted });
    }
}

/// Asks whether a campaign in the next term would get this vote.
pub(super) fn pre_vote(local: &Local) -> Message {
    let (last_index, last_term) = (local.log().last(), local.log().tail().term);
    Message::PreVote { term: local.term() + 1, last_index, last_term }
}

/// Whether this member gives its vote to a candidate of `term` whose log ends with `last`.
pub(super) fn grants_vote(local: &Local, candidate: MemberId, term: Term, last: (Term, Index)) -> bool {
    let free = match local.voted_for() {
        Some(id) => id == candidate,
        None => local.leader().is_none(),
    } || local.is_active(Failpoint::TwoVotes);
    term == local.term() && free && local.may_support(&candidate) && is_up_to_date(local, last)
}

/// Whether a log that ends with `last` holds all that a vote of this member must protect.
fn is_up_to_date(local: &Local, last: (Term, Index)) -> bool {
    let end = match local.is_active(Failpoint::VoteBelowFormerEnd) {
        true => local.end(),
        false => local.protected_end(),
    };
    last >= (end.term, end.index) || local.is_active(Failpoint::VoteForAnyLog)
}

/// A voter of the membership in force may campaign. So may a voter that an entry removes while it is not known to be
/// committed: perhaps only this member has the entry, so no other member can win. It counts the votes of the voters in
/// force, not its own. After a restart the known commit index may be too low, so any later membership that lets this
/// member vote is enough.
pub(super) fn may_campaign(local: &Local) -> bool {
    if local.disk_hangs() {
        return false;
    }
    let (id, log) = (&local.id(), local.log());
    let lacks_entries = local.former_end().is_some() && !local.is_active(Failpoint::CampaignBelowFormerEnd);
    if !local.may_support(id) || lacks_entries {
        return false;
    }
    if !log.exists() || log.tail().membership.is_voter(id) {
        return log.exists();
    }
    let open = log.tail().membership_index > log.commit();
    open && (log.committed().membership.is_voter(id) || log.open_memberships().any(|m| m.is_voter(id)))
}

/// An arbitrator lets the others campaign first: it should lead only if none of them can.
fn deference(local: &Local) -> Micros {
    let member = local.membership().get(&local.id());
    if member.is_some_and(|m| m.arbitrator) { local.config().election_timeout / 2 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::local::Support;
    use super::super::output::Output;
    use super::super::restore::LogEnd;
    use super::super::testing::{damaged_follower, follower, member, persisted, with_entries};
    use super::*;

    fn candidate(voters: u8) -> (Local, Election) {
        let mut local = follower(voters, None);
        local.set_role(Role::Candidate);
        let mut election = Election::new(local.config());
        election.begin(&local, false);
        (local, election)
    }

    #[test]
    fn majority_of_voters_decides_campaign() {
        let (local, mut election) = candidate(5);
        election.record(local.id(), true);
        election.record(member(2), true);
        election.record(member(9), true);
        assert_eq!(election.count(&local), VoteCount::Open, "a stranger has no vote");
        election.record(member(3), false);
        election.record(member(3), true);
        assert_eq!(election.count(&local), VoteCount::Open, "the first answer counts");
        election.record(member(4), true);
        assert_eq!(election.count(&local), VoteCount::Won);
    }

    #[test]
    fn campaign_is_lost_when_majority_is_out_of_reach() {
        let (local, mut election) = candidate(3);
        election.record(member(2), false);
        assert_eq!(election.count(&local), VoteCount::Open);
        election.record(member(3), false);
        assert_eq!(election.count(&local), VoteCount::Lost);
    }

    #[test]
    fn member_with_live_leader_refuses_pre_vote() {
        let mut local = follower(3, Some(member(2)));
        let mut election = Election::new(local.config());
        let mut out = Outputs::new();
        election.note_leader_active(&local);
        let mut granted = |election: &Election, local: &Local| {
            election.on_pre_vote(local, &mut out, (member(3), local.term() + 1), (9, 9));
            matches!(
                out.take()[..],
                [Output::Send { message: Message::PreVoteReply { granted: true, .. }, .. }]
            )
        };
        assert!(!granted(&election, &local));
        local.advance(local.config().election_timeout);
        assert!(granted(&election, &local), "the leader has been silent for an election timeout");
    }

    #[test]
    fn vote_is_given_once_and_to_no_shorter_log() {
        let mut local = with_entries(follower(3, None), 2);
        assert!(!grants_vote(&local, member(2), 1, (1, 1)), "its log is shorter");
        assert!(grants_vote(&local, member(2), 1, (1, 2)));
        local.vote_for(member(2));
        assert!(grants_vote(&local, member(2), 1, (1, 2)), "a repeated request gets the same vote");
        assert!(!grants_vote(&local, member(3), 1, (1, 2)));
    }

    #[test]
    fn damaged_log_votes_and_campaigns_by_its_former_end() {
        let former = LogEnd { term: 1, index: 5 };
        let mut local = with_entries(damaged_follower(3, None, Some(former)), 2);
        assert!(!may_campaign(&local));
        let pre_vote = |local: &Local, last| {
            let (election, mut out) = (Election::new(local.config()), Outputs::new());
            election.on_pre_vote(local, &mut out, (member(2), local.term() + 1), last);
            matches!(
                out.take()[..],
                [Output::Send { message: Message::PreVoteReply { granted: true, .. }, .. }]
            )
        };
        for (last, is_granted) in [((1, 2), false), ((1, 4), false), ((1, 5), true), ((2, 1), true)] {
            assert_eq!(grants_vote(&local, member(2), 1, last), is_granted, "{last:?}");
            assert_eq!(pre_vote(&local, last), is_granted, "{last:?}");
        }
        local = with_entries(local, 3);
        assert!(may_campaign(&local) && local.former_end().is_none());
        // Until that is on the disk, a truncation brings the former end back.
        local.enter_term(2);
        local.truncate(4);
        assert!(!may_campaign(&local) && local.former_end() == Some(former));
        local = persisted(with_entries(local, 2));
        local.enter_term(3);
        local.truncate(4);
        assert!(may_campaign(&local) && grants_vote(&local, member(2), 3, (1, 3)));
    }

    #[test]
    fn support_limits_votes_and_own_campaign() {
        let mut local = with_entries(follower(3, None), 2);
        assert!(may_campaign(&local));
        local.set_support(Support::Only(member(2)));
        assert!(!may_campaign(&local) && !grants_vote(&local, member(3), 1, (1, 2)));
        assert!(grants_vote(&local, member(2), 1, (1, 2)));
        assert!(!grants_vote(&local, member(2), 1, (1, 1)), "its log is shorter");
        local.set_support(Support::Nobody);
        assert!(!may_campaign(&local) && !grants_vote(&local, member(2), 1, (1, 2)));
    }

    #[test]
    fn lost_connection_brings_campaign_forward() {
        let local = follower(3, Some(member(2)));
        let mut election = Election::new(local.config());
        election.note_leader_active(&local);
        assert!(election.deadline() >= local.config().election_timeout);
        election.leader_lost(&local);
        assert!(election.deadline() < local.config().election_timeout);
        assert!(!election.leader_is_active(&local));
    }
}
