//! Commit policies, as far as they are the node's: changes are asked of the leader, what happens is said and counted.

use super::peers::WISHES_SINCE;
use super::{Effect, Level, Member, Micros, NodeMessage};
use crate::api::ServerEnd;
use crate::policy_request::PolicyRequest;
use lockstep_core::EntryKind;
use lockstep_core::codec::Reader;
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::{Entry, Index, MemberId, Term};
use std::collections::BTreeMap;

/// Who asked the leader for a policy asks again after this, for the leader may be another one by then.
const ASK_AGAIN: Micros = 500_000;
/// Nobody waits longer for a policy to be in force.
const PATIENCE: Micros = 10_000_000;
/// What is under way at the end of a server has been told by then.
const SOON: Micros = 1_000_000;
/// Under `all` a member whose disk has not moved for so many election timeouts is taken out of the view.
const STALLED: Micros = 5;

/// A change of policy that has been asked for here.
#[derive(Debug)]
pub(crate) struct PendingPolicyRequest {
    request: PolicyRequest,
    /// The leader does it once, however often it is asked.
    number: u64,
    ask_at: Micros,
    until: Micros,
    /// When a leader was asked first.
    asked: Option<Micros>,
    /// Policies that were agreed on up to here have been looked at.
    looked: Index,
    /// An earlier request of this member's may yet come about before this one: that all is as wished does not say that it
    /// stays so.
    unsure: bool,
}

/// What has been asked for here.
#[derive(Debug, Default)]
pub(super) struct PolicyRequests {
    /// What somebody here waits for.
    pending: Option<PendingPolicyRequest>,
    /// Nobody waits any more for the last one, and it may yet come about.
    in_vain: bool,
}

/// The last request of each member that the leader has put into the log, in its term.
#[derive(Debug, Default)]
pub(super) struct AppliedPolicyRequests {
    term: Term,
    last: BTreeMap<MemberId, u64>,
}

/// What a member has on its disk, and since when that has not moved.
#[derive(Clone, Copy, Debug)]
struct Moved {
    persisted: Index,
    at: Micros,
    /// Since when it is not waited for.
    stalled: Option<Micros>,
}

/// Under `all`, the disks of the members that are connected with the leader, in its term: what is known of them begins
/// anew with each.
#[derive(Debug, Default)]
pub(super) struct Disks {
    term: Term,
    moved: BTreeMap<MemberId, Moved>,
}

/// What policies have meant so far on this member.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commits {
    /// Semisync: transactions whose acks came.
    pub(crate) yes: u64,
    /// Transactions that returned without them, after the fallback.
    pub(crate) no: u64,
    /// How often it has fallen back.
    pub(crate) fallbacks: u64,
    /// Sum of the times from their place in the log to their return, µs, over `yes`.
    pub(crate) waited: u64,
    /// Rescue files: those found at the start, and those written since.
    pub(crate) rescued: u64,
    /// The transactions in them.
    pub(crate) rescued_transactions: u64,
    pub(super) said: Option<Policy>,
    /// For these settings, and so many members in so many zones, this leader has said what is too much, or that nothing is.
    pub(super) weighed: Option<(Policy, usize, usize)>,
    /// It has said so already when it was asked for these here.
    pub(super) told: Option<(Policy, usize, usize)>,
    /// The first entry that waits for acks, or for others to have what is at risk, and when to say so.
    pub(super) waits: Option<(Index, Micros)>,
    /// It has been said of that one.
    pub(super) waited_long: bool,
    /// When this was last looked at.
    pub(super) looked_at: Micros,
    pub(super) fallen: bool,
    /// When a fallback was last said, whether that is the present one, and how many were not since.
    pub(super) said_fallback: Option<Micros>,
    pub(super) fallback_told: bool,
    pub(super) unsaid: u64,
}

/// An end of the server's process that waits for the rescue file to be on the disk, where there is one.
#[derive(Debug)]
pub(super) struct Ending {
    ticket: u64,
    /// No longer than this.
    until: Micros,
    why: ServerEnd,
    text: String,
}

impl Ending {
    pub(super) fn written(&mut self, ticket: u64) {
        if ticket >= self.ticket {
            self.until = 0;
        }
    }
}

/// What a diverged server is told.
const DIVERGED: &str = "another member has taken over and does not have all that this one had committed ahead of it \
                        (commit.policy was weak): what the cluster does not have is kept in lockstep.rescue.*.log";

impl Member {
    /// Every round: what is new about policies.
    pub(super) fn policy_step(&mut self) {
        if !self.raft.has_log() {
            return;
        }
        self.say_policy();
        self.say_too_much();
        self.say_fallback();
        self.say_waiting();
        self.policy_request_step();
    }

    fn policy_request_step(&mut self) {
        if self.policy_request_is_met() {
            self.policy_requests = PolicyRequests::default();
            return self.effects.push(Effect::PolicyChanged(Ok(())));
        }
        let Some(request) = &mut self.policy_requests.pending else { return };
        if self.now >= request.until {
            self.policy_requests = PolicyRequests { pending: None, in_vain: true };
            let text = "the change of policy was not agreed on within 10 s: is there a leader, and a majority? It may yet \
                        come about";
            // Who has asked for it has been told to look here.
            self.log(Level::Warn, text);
            return self.effects.push(Effect::PolicyChanged(Err(text.into())));
        }
        if self.now >= request.ask_at
            && let Some(leader) = self.raft.leader()
        {
            request.ask_at = self.now + ASK_AGAIN;
            request.asked.get_or_insert(self.now);
            let knows = leader == self.me.id
                || self.peers.get(&leader).is_some_and(|peer| peer.version >= WISHES_SINCE);
            let message = match knows {
                true => NodeMessage::PolicyRequest { number: request.number, request: request.request },
                false => NodeMessage::Policy(request.request.on(&self.raft.policy())),
            };
            self.tell(leader, &message);
        }
    }

    /// Whether a policy as it was wished has been agreed on: also where another one that was overruled it at once.
    fn policy_request_is_met(&mut self) -> bool {
        let commit = self.raft.commit();
        let Some(wished) = &mut self.policy_requests.pending else { return false };
        let request = wished.request;
        let met = |policy: Policy| request.on(&policy) == policy;
        let new = wished.looked.max(self.raft.first_index() - 1) + 1..=commit;
        wished.looked = commit;
        let mut policies = new
            .filter_map(|index| self.raft.entry(index))
            .filter(|entry| entry.kind == EntryKind::Policy)
            .filter_map(|entry| Policy::decode(&mut Reader::new(entry.payload.clone())).ok());
        if policies.any(met) {
            return true;
        }
        // A leader that has been asked for the earlier one has been asked for this one since.
        let sure = !wished.unsure || wished.asked.is_some_and(|at| self.now >= at + ASK_AGAIN);
        sure && self.is_in_force(&request)
    }

    /// Whether it changes nothing, neither of what is agreed on nor of what is about to be.
    fn is_in_force(&self, request: &PolicyRequest) -> bool {
        let committed = self.raft.committed_state().policy;
        [committed, self.raft.policy()].iter().all(|policy| request.on(policy) == *policy)
    }

    /// The front end wants another policy.
    pub(crate) fn request_policy(&mut self, change: impl Fn(&mut Policy)) {
        let new = PolicyRequest::of(change);
        let PolicyRequests { pending, in_vain } = std::mem::take(&mut self.policy_requests);
        let unsure = in_vain || pending.is_some();
        if !unsure && self.is_in_force(&new) {
            return self.effects.push(Effect::PolicyChanged(Ok(())));
        }
        if !self.connection.is_primary() {
            // What is refused takes what it was to replace with it.
            self.policy_requests.in_vain = unsure;
            let text = "there is no primary component: a policy is agreed on by a majority";
            return self.effects.push(Effect::PolicyChanged(Err(text.into())));
        }
        // One that is under way is not to be lost for the next.
        let request = pending.map_or(new, |wished| wished.request.and(&new));
        let (number, until, looked) = (self.wall(), self.now + PATIENCE, self.raft.commit());
        let pending =
            PendingPolicyRequest { request, number, ask_at: self.now, until, asked: None, looked, unsure };
        self.policy_requests = PolicyRequests { pending: Some(pending), in_vain };
        self.warn_of_policy(request.on(&self.raft.policy()));
    }

    /// A member asks for another policy.
    pub(super) fn asked_for_policy(&mut self, from: MemberId, wanted: impl Fn(&Policy) -> Policy) -> bool {
        let member = self.raft.membership().get(&from).is_some();
        if !member || !self.raft.has_committed_in_term() {
            return false;
        }
        let now = self.raft.policy();
        let policy = wanted(&now);
        policy == now || self.raft.append_control(self.now, EntryKind::Policy, policy.to_payload()).is_ok()
    }

    /// The same, of the settings that are named. Asked again it is done already, and not once more: somebody may have
    /// changed the same settings since.
    pub(super) fn wished(&mut self, from: MemberId, number: u64, request: PolicyRequest) {
        let term = self.raft.term();
        if self.granted.term != term {
            self.granted = AppliedPolicyRequests { term, ..AppliedPolicyRequests::default() };
        }
        if self.granted.last.get(&from) != Some(&number) && self.asked_for_policy(from, |now| request.on(now))
        {
            self.granted.last.insert(from, number);
        }
    }

    /// Whether this member's server may write: under a weak policy the leader's alone.
    pub(crate) fn may_originate(&self) -> bool {
        !self.raft.has_log() || !self.raft.policy().is_weak() || self.raft.is_leader()
    }

    /// How many transactions have been acknowledged and would be lost with the leader, as it last said where that is
    /// another member; or with this one, if it was the leader and knows no other.
    pub(crate) fn at_risk(&self) -> u64 {
        let committed = self.raft.committed_state();
        let leader = self.raft.leader().and_then(|id| self.peers.get(&id));
        let theirs = leader.and_then(|peer| peer.health).map_or(0, |health| health.delivered);
        // A leader that votes alone agrees with itself at once: what counts is what another member is known to have.
        let agreed = self.raft.persisted_elsewhere().unwrap_or(committed.seqno);
        let beyond = self.raft.seqnos_between(agreed, self.deliverer.delivered().max(theirs));
        let weak = self.raft.policy().is_weak() || committed.policy.is_weak();
        if weak { beyond as u64 } else { 0 }
    }

    /// A thread of this member's server hears that its transaction, which passes, may return. Of those that were placed
    /// under another policy, or may return since it is another one, nothing is known of acknowledgements.
    pub(super) fn count_answer(&mut self, entry: &Entry, placed_under: Policy) {
        if !placed_under.awaits_acks() || !self.raft.committed_state().policy.awaits_acks() {
            return;
        }
        if self.raft.has_fallen_back() {
            self.commits.no += 1;
        } else {
            self.commits.yes += 1;
            self.commits.waited += self.wall().saturating_sub(entry.time);
        }
    }

    /// The log has lost what this member's server has.
    pub(super) fn has_diverged(&mut self, ticket: u64) {
        let first = self.ending.as_ref().is_none_or(|ending| ending.why != ServerEnd::Diverged);
        self.needs_state(DIVERGED);
        if first {
            let (until, why, text) = (self.now + PATIENCE, ServerEnd::Diverged, DIVERGED.to_string());
            self.ending = Some(Ending { ticket, until, why, text });
        }
    }

    /// The server's process is to end soon: those who wait have their answers first, and the others hear that it leaves.
    pub(super) fn end_for_state(&mut self, text: &str) {
        self.end_at(self.now + SOON, ServerEnd::NeedsState, text);
    }

    /// The same, for a branch. A server that starts has nobody who waits, and is to end by this and not as one that was told
    /// something wrong.
    pub(super) fn end_for_branch(&mut self, starts: bool, text: &str) {
        self.end_at(if starts { self.now } else { self.now + SOON }, ServerEnd::GaveWay, text);
    }

    fn end_at(&mut self, until: Micros, why: ServerEnd, text: &str) {
        self.ending.get_or_insert(Ending { ticket: u64::MAX, until, why, text: text.to_string() });
    }

    /// Why the server's process is to end now, if it is: the rescue file is on the disk, or does not come about. The log
    /// loses nothing before it does, so that the next start would write it.
    pub(crate) fn server_must_end(&mut self) -> Option<(ServerEnd, String)> {
        self.ending.take_if(|ending| ending.until <= self.now).map(|ending| (ending.why, ending.text))
    }

    /// A rescue file has been written.
    pub(crate) fn rescued(&mut self, text: &str, transactions: u64) {
        self.commits.rescued += 1;
        self.commits.rescued_transactions += transactions;
        self.log(Level::Warn, text);
    }

    /// Under `all`: whose disks move? Everybody waits in vain for one that does not. It is back once it moves again and
    /// has nearly caught up.
    pub(super) fn watch_disks(&mut self, near: Index) {
        let term = self.raft.term();
        if self.raft.policy().kind != PolicyKind::All || self.disks.term != term {
            self.disks = Disks { term, ..Disks::default() };
        }
        if self.raft.policy().kind != PolicyKind::All {
            return;
        }
        let (now, last) = (self.now, self.raft.last_index());
        // The one in force: it follows the round trips, and an ack is no sooner there than they allow.
        let patience = STALLED * self.raft.election_timeout();
        let peers = &self.peers;
        self.disks.moved.retain(|id, _| peers.contains_key(id));
        for id in peers.keys() {
            let persisted = self.raft.matched(id);
            let moved = self.disks.moved.entry(*id).or_insert(Moved { persisted, at: now, stalled: None });
            if persisted > moved.persisted || persisted >= last {
                (moved.persisted, moved.at) = (persisted, now);
            }
            moved.stalled = match moved.stalled {
                Some(since) if moved.at > since && persisted + near >= last => None,
                Some(since) => Some(since),
                None => (now.saturating_sub(moved.at) > patience).then_some(now),
            };
        }
    }

    /// Whether this member is out of the view because its disk does not move.
    pub(super) fn stalls(&self, id: &MemberId) -> bool {
        self.disks.moved.get(id).is_some_and(|moved| moved.stalled.is_some())
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
