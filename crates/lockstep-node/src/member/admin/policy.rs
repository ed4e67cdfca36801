//! The node's part of commit policies: requests to change them, fallbacks, counters and the end of diverged servers.

use crate::api::Level;
use crate::effect::Effect;
use crate::member::admin::wait_report::PolicyReports;
use crate::member::context::Context;
use crate::member::membership::peers::POLICY_REQUESTS_SINCE;
use crate::policy_request::PolicyRequest;
use crate::wire::NodeMessage;
use lockstep_core::EntryKind;
use lockstep_core::codec::Reader;
use lockstep_core::policy::Policy;
use lockstep_core::{Index, MemberId, Micros, Term};
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

impl PolicyRequests {
    /// At the end of each round: answers the request of the front end, or asks the leader.
    pub(in crate::member) fn step(&mut self, ctx: &mut Context) {
        if self.is_met(ctx) {
            (self.pending, self.unresolved) = (None, false);
            return ctx.emit(Effect::PolicyChanged(Ok(())));
        }
        let Some(request) = &mut self.pending else { return };
        if ctx.now() >= request.until {
            (self.pending, self.unresolved) = (None, true);
            let text = "the change of policy was not committed within 10 s: check that there is a leader and a \
                 majority. It may still take effect";
            // The client that made the request has been referred to the error log.
            ctx.log(Level::Warn, text);
            return ctx.emit(Effect::PolicyChanged(Err(text.into())));
        }
        if ctx.now() >= request.ask_at
            && let Some(leader) = ctx.raft.leader()
        {
            request.ask_at = ctx.now() + ASK_AGAIN;
            request.asked.get_or_insert(ctx.now());
            let knows = leader == ctx.me().id
                || ctx.peers.get(&leader).is_some_and(|peer| peer.supports(POLICY_REQUESTS_SINCE));
            let message = match knows {
                true => NodeMessage::PolicyRequest { number: request.number, request: request.request },
                false => NodeMessage::Policy(request.request.on(&ctx.raft.policy())),
            };
            ctx.send(leader, &message);
        }
    }

    /// Whether the requested settings have been committed, even if another request changed them again at once.
    fn is_met(&mut self, ctx: &mut Context) -> bool {
        let commit = ctx.raft.commit();
        let Some(on_policy_request) = &mut self.pending else { return false };
        let request = on_policy_request.request;
        let met = |policy: Policy| request.on(&policy) == policy;
        let new = on_policy_request.examined.max(ctx.raft.first_index() - 1) + 1..=commit;
        on_policy_request.examined = commit;
        let mut policies = new
            .filter_map(|index| ctx.raft.entry(index))
            .filter(|entry| entry.kind == EntryKind::Policy)
            .filter_map(|entry| Policy::decode(&mut Reader::new(entry.payload())).ok());
        if policies.any(met) {
            return true;
        }
        // A leader that was asked for the earlier request has since been asked for this one.
        let sure = !on_policy_request.unsure
            || on_policy_request.asked.is_some_and(|at| ctx.now() >= at + ASK_AGAIN);
        sure && is_in_force(ctx, &request)
    }

    /// The front end requests another policy.
    pub(in crate::member) fn request(
        &mut self,
        ctx: &mut Context,
        reports: &mut PolicyReports,
        change: impl Fn(&mut Policy),
    ) {
        let new = PolicyRequest::of(change);
        let pending = self.pending.take();
        let unresolved = std::mem::take(&mut self.unresolved);
        let unsure = unresolved || pending.is_some();
        if !unsure && is_in_force(ctx, &new) {
            return ctx.emit(Effect::PolicyChanged(Ok(())));
        }
        if !ctx.connection().is_primary() {
            // If the new request fails, so does the pending one that it was to replace.
            self.unresolved = unsure;
            let text = "there is no primary component: a change of policy needs a majority";
            return ctx.emit(Effect::PolicyChanged(Err(text.into())));
        }
        // Settings of the pending request are kept in the new one.
        let request = pending.map_or(new, |on_policy_request| on_policy_request.request.and(&new));
        let (number, until, examined) = (ctx.wall(), ctx.now() + TIMEOUT, ctx.raft.commit());
        let pending =
            PendingPolicyRequest { request, number, ask_at: ctx.now(), until, asked: None, examined, unsure };
        (self.pending, self.unresolved) = (Some(pending), unresolved);
        reports.warn_requester(ctx, request.on(&ctx.raft.policy()));
    }

    /// The same, with single settings. A repeated request is not carried out again: the settings may have been changed
    /// since.
    pub(in crate::member) fn on_request(
        &mut self,
        ctx: &mut Context,
        from: MemberId,
        number: u64,
        request: PolicyRequest,
    ) {
        let term = ctx.raft.term();
        if self.applied.term != term {
            self.applied = AppliedPolicyRequests { term, ..AppliedPolicyRequests::default() };
        }
        if self.applied.last.get(&from) != Some(&number) && append(ctx, from, |now| request.on(now)) {
            self.applied.last.insert(from, number);
        }
    }
}

/// A member asks this leader for another policy.
pub(in crate::member) fn append(
    ctx: &mut Context,
    from: MemberId,
    wanted: impl Fn(&Policy) -> Policy,
) -> bool {
    let member = ctx.raft.membership().get(&from).is_some();
    if !member || !ctx.raft.has_committed_in_term() {
        return false;
    }
    let now = ctx.raft.policy();
    let policy = wanted(&now);
    policy == now || ctx.raft.append_control(ctx.now(), EntryKind::Policy, policy.to_payload()).is_ok()
}

/// Whether the request changes neither the committed policy nor the appended one.
fn is_in_force(ctx: &Context, request: &PolicyRequest) -> bool {
    let committed = ctx.raft.committed_state().policy;
    [committed, ctx.raft.policy()].iter().all(|policy| request.on(policy) == *policy)
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
