//! The node's part of commit policies: requests to change them, fallbacks, counters and the end of diverged servers.

use crate::api::ServerEnd;
use crate::effect::Effect;
use crate::member::membership::peers::POLICY_REQUESTS_SINCE;
use crate::member::{Level, Member, Micros, NodeMessage};
use crate::policy_request::PolicyRequest;
use lockstep_core::EntryKind;
use lockstep_core::codec::Reader;
use lockstep_core::policy::Policy;
use lockstep_core::{Entry, Index, MemberId, Term};
use std::collections::BTreeMap;

/// How often a policy request is repeated: the leader may have changed.
const ASK_AGAIN: Micros = 500_000;
/// How long a policy request waits to be in force.
const TIMEOUT: Micros = 10_000_000;

/// A policy change requested on this member.
#[derive(Debug)]
struct PendingPolicyRequest {
    request: PolicyRequest,
    /// The leader carries out each number once, even if asked again.
    number: u64,
    ask_at: Micros,
    until: Micros,
    /// When a leader was first asked.
    asked: Option<Micros>,
    /// Committed policies up to this index have been examined.
    examined: Index,
    /// An earlier request of this member may still be carried out after this one's settings are met, and undo them.
    unsure: bool,
}

/// Requests to change the policy: this member's own, and those that it has carried out as the leader.
#[derive(Debug, Default)]
pub(in crate::member) struct PolicyRequests {
    /// The request for which the front end waits.
    pending: Option<PendingPolicyRequest>,
    /// The last request timed out and may still be carried out.
    unresolved: bool,
    applied: AppliedPolicyRequests,
}

/// The last request of each member that this leader has appended in its term.
#[derive(Debug, Default)]
struct AppliedPolicyRequests {
    term: Term,
    last: BTreeMap<MemberId, u64>,
}

/// Commit statistics of this member.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Commits {
    /// Semisync: transactions that returned with their acks.
    pub(crate) yes: u64,
    /// Semisync: transactions that returned without acks, after a fallback.
    pub(crate) no: u64,
    /// How often the policy has fallen back.
    pub(crate) fallbacks: u64,
    /// Sum of the times from append to return over `yes`, µs.
    pub(crate) waited: u64,
    /// Rescue files: those found at start, and those written since.
    pub(crate) rescued: u64,
    /// The transactions in the rescue files.
    pub(crate) rescued_transactions: u64,
}

/// The error text for a diverged server.
const DIVERGED: &str = "another member has taken over and does not have all that this one had committed ahead of it \
                        (commit.policy was weak): what the cluster does not have is kept in lockstep.rescue.*.log";

impl Member {
    /// Reports policies in every round.
    pub(in crate::member) fn policy_step(&mut self) {
        if !self.ctx.raft.has_log() {
            return;
        }
        self.report_policy();
        self.warn_of_unsatisfiable();
        self.report_fallback();
        self.report_waiting();
        self.policy_request_step();
    }

    fn policy_request_step(&mut self) {
        if self.policy_request_is_met() {
            (self.admin.policy_requests.pending, self.admin.policy_requests.unresolved) = (None, false);
            return self.ctx.out.push(Effect::PolicyChanged(Ok(())));
        }
        let Some(request) = &mut self.admin.policy_requests.pending else { return };
        if self.ctx.now >= request.until {
            (self.admin.policy_requests.pending, self.admin.policy_requests.unresolved) = (None, true);
            let text = "the change of policy was not committed within 10 s: check that there is a leader and a \
                 majority. It may still take effect";
            // The client that made the request has been referred to the error log.
            self.ctx.log(Level::Warn, text);
            return self.ctx.out.push(Effect::PolicyChanged(Err(text.into())));
        }
        if self.ctx.now >= request.ask_at
            && let Some(leader) = self.ctx.raft.leader()
        {
            request.ask_at = self.ctx.now + ASK_AGAIN;
            request.asked.get_or_insert(self.ctx.now);
            let knows = leader == self.ctx.me.id
                || self.ctx.peers.get(&leader).is_some_and(|peer| peer.version >= POLICY_REQUESTS_SINCE);
            let message = match knows {
                true => NodeMessage::PolicyRequest { number: request.number, request: request.request },
                false => NodeMessage::Policy(request.request.on(&self.ctx.raft.policy())),
            };
            self.tell(leader, &message);
        }
    }

    /// Whether the requested settings have been committed, even if another request changed them again at once.
    fn policy_request_is_met(&mut self) -> bool {
        let commit = self.ctx.raft.commit();
        let Some(on_policy_request) = &mut self.admin.policy_requests.pending else { return false };
        let request = on_policy_request.request;
        let met = |policy: Policy| request.on(&policy) == policy;
        let new = on_policy_request.examined.max(self.ctx.raft.first_index() - 1) + 1..=commit;
        on_policy_request.examined = commit;
        let mut policies = new
            .filter_map(|index| self.ctx.raft.entry(index))
            .filter(|entry| entry.kind == EntryKind::Policy)
            .filter_map(|entry| Policy::decode(&mut Reader::new(entry.payload())).ok());
        if policies.any(met) {
            return true;
        }
        // A leader that was asked for the earlier request has since been asked for this one.
        let sure = !on_policy_request.unsure
            || on_policy_request.asked.is_some_and(|at| self.ctx.now >= at + ASK_AGAIN);
        sure && self.is_in_force(&request)
    }

    /// Whether the request changes neither the committed policy nor the appended one.
    fn is_in_force(&self, request: &PolicyRequest) -> bool {
        let committed = self.ctx.raft.committed_state().policy;
        [committed, self.ctx.raft.policy()].iter().all(|policy| request.on(policy) == *policy)
    }

    /// The front end requests another policy.
    pub(crate) fn request_policy(&mut self, change: impl Fn(&mut Policy)) {
        let new = PolicyRequest::of(change);
        let pending = self.admin.policy_requests.pending.take();
        let unresolved = std::mem::take(&mut self.admin.policy_requests.unresolved);
        let unsure = unresolved || pending.is_some();
        if !unsure && self.is_in_force(&new) {
            return self.ctx.out.push(Effect::PolicyChanged(Ok(())));
        }
        if !self.ctx.connection.is_primary() {
            // If the new request fails, so does the pending one that it was to replace.
            self.admin.policy_requests.unresolved = unsure;
            let text = "there is no primary component: a change of policy needs a majority";
            return self.ctx.out.push(Effect::PolicyChanged(Err(text.into())));
        }
        // Settings of the pending request are kept in the new one.
        let request = pending.map_or(new, |on_policy_request| on_policy_request.request.and(&new));
        let (number, until, examined) = (self.wall(), self.ctx.now + TIMEOUT, self.ctx.raft.commit());
        let pending = PendingPolicyRequest {
            request,
            number,
            ask_at: self.ctx.now,
            until,
            asked: None,
            examined,
            unsure,
        };
        (self.admin.policy_requests.pending, self.admin.policy_requests.unresolved) =
            (Some(pending), unresolved);
        self.warn_requester(request.on(&self.ctx.raft.policy()));
    }

    /// A member asks this leader for another policy.
    pub(in crate::member) fn append_policy(
        &mut self,
        from: MemberId,
        wanted: impl Fn(&Policy) -> Policy,
    ) -> bool {
        let member = self.ctx.raft.membership().get(&from).is_some();
        if !member || !self.ctx.raft.has_committed_in_term() {
            return false;
        }
        let now = self.ctx.raft.policy();
        let policy = wanted(&now);
        policy == now
            || self.ctx.raft.append_control(self.ctx.now, EntryKind::Policy, policy.to_payload()).is_ok()
    }

    /// The same, with single settings. A repeated request is not carried out again: the settings may have been changed
    /// since.
    pub(in crate::member) fn on_policy_request(
        &mut self,
        from: MemberId,
        number: u64,
        request: PolicyRequest,
    ) {
        let term = self.ctx.raft.term();
        if self.admin.policy_requests.applied.term != term {
            self.admin.policy_requests.applied =
                AppliedPolicyRequests { term, ..AppliedPolicyRequests::default() };
        }
        if self.admin.policy_requests.applied.last.get(&from) != Some(&number)
            && self.append_policy(from, |now| request.on(now))
        {
            self.admin.policy_requests.applied.last.insert(from, number);
        }
    }

    /// Whether this member's server may write: under a weak policy, only the leader's.
    pub(crate) fn may_originate(&self) -> bool {
        !self.ctx.raft.has_log() || !self.ctx.raft.policy().is_weak() || self.ctx.raft.is_leader()
    }

    /// How many acknowledged transactions would be lost with the leader, by its last report. Without a known leader: by
    /// this member's own delivery.
    pub(crate) fn at_risk(&self) -> u64 {
        let committed = self.ctx.raft.committed_state();
        let leader = self.ctx.raft.leader().and_then(|id| self.ctx.peers.get(&id));
        let theirs = leader.and_then(|peer| peer.health).map_or(0, |health| health.delivered);
        // A leader that is the only voter commits by itself: only entries known to be on another member are safe.
        let elsewhere = self.ctx.raft.persisted_elsewhere().unwrap_or(committed.seqno);
        let beyond = self.ctx.raft.seqnos_between(elsewhere, self.deliverer.delivered().max(theirs));
        let weak = self.ctx.raft.policy().is_weak() || committed.policy.is_weak();
        if weak { beyond as u64 } else { 0 }
    }

    /// Counts a local transaction that passed certification and may return. Transactions appended under another policy,
    /// or that return because the policy changed, are not counted.
    pub(in crate::member) fn count_acknowledged(&mut self, entry: &Entry, policy_at_append: Policy) {
        if !policy_at_append.awaits_acks() || !self.ctx.raft.committed_state().policy.awaits_acks() {
            return;
        }
        if self.ctx.raft.has_fallen_back() {
            self.admin.commits.no += 1;
        } else {
            self.admin.commits.yes += 1;
            self.admin.commits.waited += self.wall().saturating_sub(entry.time);
        }
    }

    /// The log has lost transactions that this member's server has.
    pub(in crate::member) fn on_diverged(&mut self, ticket: u64) {
        self.needs_state(DIVERGED);
        self.recovery.ending.diverged(self.ctx.now, ticket, DIVERGED);
    }

    /// Why the server process must end now, if so.
    pub(crate) fn server_must_end(&mut self) -> Option<(ServerEnd, String)> {
        self.recovery.ending.take_due(self.ctx.now)
    }

    /// Commit statistics, for the status.
    pub(crate) fn commits(&self) -> &Commits {
        &self.admin.commits
    }

    /// Rescue files, and the transactions in them, were found at the start.
    pub(crate) fn rescued_before(&mut self, files: u64, transactions: u64) {
        (self.admin.commits.rescued, self.admin.commits.rescued_transactions) = (files, transactions);
    }

    /// A rescue file has been written.
    pub(crate) fn rescued(&mut self, text: &str, transactions: u64) {
        self.admin.commits.rescued += 1;
        self.admin.commits.rescued_transactions += transactions;
        self.ctx.log(Level::Warn, text);
    }
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
