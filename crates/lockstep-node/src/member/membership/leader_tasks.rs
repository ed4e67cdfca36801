//! A leader's tasks beside replication: it adds and removes members, appends views, promotes learners and demotes
//! voters. One membership change at a time. Each task runs anew at the next opportunity, so a refused or lost change is
//! simply retried.

use crate::api::{Level, LocalState};
use crate::member::context::Context;
use crate::member::delivery::Delivery;
use crate::member::leadership::NEAR_ENOUGH;
use crate::member::membership::disk_progress::DiskProgress;
use crate::member::membership::peers::Peer;
use lockstep_core::EntryKind;
use lockstep_core::codec::Writer;
use lockstep_core::members::{MemberInfo, Membership, Role, View, ViewMember};
use lockstep_core::policy::PolicyKind;
use lockstep_core::snapshot::TrimMark;
use lockstep_core::{MemberId, Micros, Seqno};

/// A connection that breaks and comes back within this time causes no view.
const VIEW_GRACE: Micros = 250_000;

/// An absent learner stays a member for this many `cluster.evict_timeout`s.
const LEARNER_RETENTION: Micros = 12;

/// The leader runs its tasks when something has changed, and at least this often; refused changes are retried then.
const PERIOD: Micros = 25_000;
/// A disk that has finished no write for this long does not count as working when a vote is withdrawn.
const DISK_STANDS_STILL: Micros = 1_000_000;
/// The leader writes a trim mark at least this often, if anything can be forgotten.
const TRIM_PERIOD: Micros = 1_000_000;
/// It also writes one after this many seqnos.
const TRIM_STEP: Seqno = 1024;

/// The times at which tasks are due, and the progress of the members' disks.
#[derive(Debug, Default)]
pub(in crate::member) struct LeaderTasks {
    due_at: Micros,
    last_trim_mark: Micros,
    disks: DiskProgress,
}

impl LeaderTasks {
    /// Something has changed: the tasks are due now.
    pub(in crate::member) fn schedule(&mut self, now: Micros) {
        self.due_at = now;
    }

    /// When the tasks are due, unless something changes.
    pub(in crate::member) fn deadline(&self) -> Micros {
        self.due_at
    }

    /// Whether the tasks are due; then they are due again after a period.
    pub(in crate::member) fn is_due(&mut self, now: Micros) -> bool {
        let due = now >= self.due_at;
        if due {
            self.due_at = now + PERIOD;
        }
        due
    }
}

impl LeaderTasks {
    /// Changes the membership, if a change is due.
    pub(in crate::member) fn change_membership(&mut self, ctx: &mut Context) {
        if let Some((membership, why)) = next_membership(ctx) {
            // Refused while the previous change is under way: retried soon.
            if ctx.raft.change_membership(ctx.now(), membership).is_ok() {
                ctx.log(Level::Info, why);
            }
        }
    }

    /// Appends a view, if it is due. Returns the trim mark that is due.
    pub(in crate::member) fn append_view(
        &mut self,
        ctx: &mut Context,
        delivery: &Delivery,
    ) -> Option<TrimMark> {
        self.disks.track(ctx.now(), &ctx.raft, ctx.peers.keys().copied(), NEAR_ENOUGH);
        self.make_view(ctx);
        self.make_trim_mark(ctx, delivery)
    }

    /// Appends a view if the members have changed, with this member first unless it is an arbitrator. A change of
    /// leader alone makes a view only under a weak policy.
    fn make_view(&self, ctx: &mut Context) {
        let current = ctx.raft.tail_state().view.clone();
        let members = self.view_members(ctx, ctx.me().id);
        let same = members.len() == current.members.len()
            && members
                .iter()
                .all(|m| current.members.iter().any(|c| c.id == m.id && c.view_uuid == m.view_uuid))
            && is_first_as_required(ctx, &members, &current);
        if !same {
            append_view(ctx, members);
        }
    }

    /// The members for a new view: this one and all connected members in the log, `first` at the head, then by age.
    pub(in crate::member) fn view_members(&self, ctx: &Context, first: MemberId) -> Vec<ViewMember> {
        let membership = ctx.raft.membership();
        let current = &ctx.raft.tail_state().view;
        let mut members: Vec<ViewMember> = ctx
            .peers
            .values()
            .filter(|p| membership.get(&p.id()).is_some() && !p.left())
            .filter(|p| !ctx.silent(&p.id()))
            .map(|p| p.hello().as_view_member())
            .chain([ctx.own_view_member()])
            .collect();
        if ctx.raft.policy().kind == PolicyKind::All {
            // Every commit waits for the view's members: a new or returning member is listed once it has nearly caught
            // up.
            let last = ctx.raft.last_index();
            let stays = |m: &ViewMember| {
                m.id == ctx.me().id
                    || current.members.iter().any(|c| c.id == m.id && c.view_uuid == m.view_uuid)
            };
            let near = |m: &ViewMember| ctx.raft.matched(&m.id) + NEAR_ENOUGH >= last;
            members.retain(|m| !self.disks.is_stalled(&m.id) && (stays(m) || near(m)));
        }
        for gone in &current.members {
            let grace = !self.disks.is_stalled(&gone.id)
                && ctx
                    .peers
                    .gone_since(&gone.id)
                    .is_some_and(|since| ctx.now().saturating_sub(since) < VIEW_GRACE)
                && membership.get(&gone.id).is_some();
            if grace && !members.iter().any(|m| m.id == gone.id) {
                members.push(gone.clone());
            }
        }
        // Clients are sent to the first member: it must have a database.
        let serves = |id: &MemberId| membership.get(id).is_none_or(|m| !m.arbitrator);
        let preferred = [Some(first), current.members.first().map(|m| m.id)].into_iter().flatten();
        let first = preferred
            .filter(|id| members.iter().any(|m| m.id == *id))
            .chain(members.iter().map(|m| m.id))
            .find(serves)
            .unwrap_or(first);
        // A server that got its state from another reads its first view back sorted by UUID. View UUIDs begin with the
        // time, so the member's own position is the same in both orders.
        members.sort_by_key(|member| (member.id != first, member.view_uuid));
        members
    }

    /// Makes a trim mark: certification may forget what every member of the view has finished, so that no write-set
    /// under way can conflict with it. A member that lags by more than the limit does not hold it back.
    fn make_trim_mark(&mut self, ctx: &Context, delivery: &Delivery) -> Option<TrimMark> {
        let deliverer = &delivery.deliverer;
        let due = ctx.now().saturating_sub(self.last_trim_mark) > TRIM_PERIOD
            || deliverer.seqno() - ctx.raft.tail_state().trim > TRIM_STEP;
        if !due || !deliverer.is_running() {
            return None;
        }
        self.last_trim_mark = ctx.now();
        let lag_limit = ctx.tuning().lag_limit as i64;
        let mut low = delivery.lowest_seen(ctx.finished()).min(deliverer.seqno());
        for peer in ctx.peers.values() {
            if let Some(health) = peer.health()
                && matches!(health.state, LocalState::Synced | LocalState::Joined | LocalState::Donor)
            {
                low = low.min(health.lowest_seen.max(deliverer.seqno() - lag_limit));
            }
        }
        // An uncommitted mark would be repeated by this one.
        if ctx.raft.tail_state().verdicts_to != ctx.raft.committed_state().verdicts_to {
            return None;
        }
        deliverer.next_trim(low, ctx.raft.tail_state())
    }
}

/// The next membership change due, with its log line.
fn next_membership(ctx: &Context) -> Option<(Membership, String)> {
    let membership = ctx.raft.membership();
    let connected = |id: &MemberId| *id == ctx.me().id || ctx.peers.contains_key(id);
    // The leader itself, too: its address may have changed since its last incarnation.
    for hello in ctx.peers.values().map(Peer::hello).chain([ctx.me()]) {
        match membership.get(&hello.id) {
            None if hello.id == ctx.me().id || ctx.peers.was_removed(hello) => {}
            None => {
                let former = membership.former(&hello.name, &hello.address);
                let mut why = format!("{} ({}) joins as a learner", hello.name, hello.address);
                if let Some(old) = former.filter(|old| !connected(&old.id)) {
                    // At another address, it may be a different server with a copied name while the old one
                    // restarts.
                    if old.address == hello.address || is_long_gone(ctx, &old.id) {
                        // Its log was lost: the old id goes first; another entry adds the new one.
                        let why =
                            format!("{} is back without its log: its old identity is removed", hello.name);
                        return Some((demoted_or_removed(&membership, &old.id, true), why));
                    }
                    if old.role.votes() {
                        why += &rival_text(ctx, old);
                    }
                }
                return Some((membership.with(hello.as_member(Role::Learner)), why));
            }
            Some(known) => {
                let announced = hello.as_member(known.role);
                if *known != announced {
                    return Some((
                        membership.with(announced),
                        format!("{} has a new address or zone", hello.name),
                    ));
                }
                // The member came back without its log so soon that its earlier id still counted as connected.
                let former = membership.members.iter().find(|m| {
                    m.id != hello.id
                        && m.name == hello.name
                        && m.address == hello.address
                        && !connected(&m.id)
                });
                if let Some(old) = former {
                    let why = format!("{} is back under a new identity: the old one goes", hello.name);
                    return Some((demoted_or_removed(&membership, &old.id, true), why));
                }
            }
        }
    }
    departure(ctx, &membership)
        .or_else(|| replacement(ctx, &membership))
        .or_else(|| promotion(ctx, &membership))
        .or_else(|| eviction(ctx, &membership))
        .or_else(|| forgotten(ctx, &membership))
}

/// Whether a member has been away long enough to be removed.
fn is_long_gone(ctx: &Context, id: &MemberId) -> bool {
    let timeout = ctx.tuning().evict_timeout.as_micros() as Micros;
    ctx.gone_since(id).is_some_and(|since| ctx.now().saturating_sub(since) > timeout)
}

/// The log line's suffix for a new member with the name of an absent one at another address.
fn rival_text(ctx: &Context, old: &MemberInfo) -> String {
    format!(
        "; a member of the same name at {} is away: if the new one is its replacement, it votes when the old one has \
         been gone for {} s (cluster.evict_timeout), or after `lockstep remove --name {}`; if not, give it a {} of \
         its own",
        old.address,
        ctx.tuning().evict_timeout.as_secs(),
        old.name,
        ctx.terms().name
    )
}

/// Demotes a long absent voter if a learner with its name could replace it. The voter only loses its vote, since it
/// may still be another server.
fn replacement(ctx: &Context, membership: &Membership) -> Option<(Membership, String)> {
    let learners = membership.members.iter().filter(|m| m.role == Role::Learner && m.wants_vote);
    let (new, old) = learners
        .filter(|m| ctx.has_caught_up(&m.id))
        .filter_map(|m| Some((m, rival(ctx, membership, m)?)))
        .find(|(_, old)| is_long_gone(ctx, &old.id))?;
    let why = format!(
        "{} ({}) has been gone for more than {} s, and {} has its name: that one is to vote in its place",
        old.name,
        old.address,
        ctx.tuning().evict_timeout.as_secs(),
        new.address
    );
    Some((demoted_or_removed(membership, &old.id, false), why))
}

/// The absent voter with this learner's name. The two may be one server that lost its log and has a new address, or
/// two servers with one name. If several members have the name, there is no telling which.
fn rival<'a>(ctx: &Context, membership: &'a Membership, learner: &MemberInfo) -> Option<&'a MemberInfo> {
    let mut named = membership.members.iter().filter(|m| m.name == learner.name && m.id != learner.id);
    let only = named.next().filter(|_| named.next().is_none())?;
    (only.role.votes() && ctx.gone_since(&only.id).is_some()).then_some(only)
}

/// Demotes a voter to learner, or removes a member.
fn demoted_or_removed(membership: &Membership, id: &MemberId, remove: bool) -> Membership {
    match membership.get(id) {
        Some(member) if member.role.votes() && !remove => {
            membership.with(MemberInfo { role: Role::Learner, ..member.clone() })
        }
        _ => membership.without(id),
    }
}

/// The change for a member that leaves in good order: its vote is withdrawn if the others can go on without it. Voters that
/// have been absent for long are demoted for that. One that may be back in a moment keeps its vote, since it may hold the
/// only other copy of a commit.
fn departure(ctx: &Context, membership: &Membership) -> Option<(Membership, String)> {
    let leaver = ctx.peers.values().find(|p| p.leaving() && membership.is_voter(&p.id()))?.hello();
    if membership.voters().count() == 1 {
        return None;
    }
    if others_are_majority(ctx, &leaver.id) {
        let why = format!("{} leaves the voters", leaver.name);
        return Some((demoted_or_removed(membership, &leaver.id, false), why));
    }
    let dead = membership.voters().find(|id| is_long_gone(ctx, id))?;
    let name = ctx.name_of(&dead);
    let why = format!(
        "{name} has been gone for more than {} s and {} leaves: {name} votes no more until it is back",
        ctx.tuning().evict_timeout.as_secs(),
        leaver.name
    );
    Some((demoted_or_removed(membership, &dead, false), why))
}

/// Whether the voters that answer, and whose disks work, are a majority of the voters once `leaver` votes no more. Only
/// the leader knows of the others' disks.
fn others_are_majority(ctx: &Context, leaver: &MemberId) -> bool {
    let membership = ctx.raft.membership();
    let others = || membership.voters().filter(|id| id != leaver);
    let answers = |id: &MemberId| *id == ctx.me().id || ctx.responds(id);
    let works = |id: &MemberId| ctx.raft.disk_of_stands_still_for(id) < DISK_STANDS_STILL;
    others().filter(|id| answers(id) && works(id)).count() > others().count() / 2
}

/// Whether the leader withdraws this member's vote when it leaves, as far as this member knows.
pub(in crate::member) fn gives_up_vote(ctx: &Context) -> bool {
    others_are_majority(ctx, &ctx.me().id) || ctx.raft.membership().voters().any(|id| is_long_gone(ctx, &id))
}

/// Promotes a learner that wants to vote, has the state and is near the end of the log, unless it may be a second
/// identity of an absent voter.
fn promotion(ctx: &Context, membership: &Membership) -> Option<(Membership, String)> {
    let member = membership
        .members
        .iter()
        .filter(|m| m.role == Role::Learner && m.wants_vote)
        .filter(|m| ctx.has_caught_up(&m.id) && ctx.responds(&m.id))
        .find(|m| rival(ctx, membership, m).is_none())?;
    let role = if member.arbitrator { Role::Arbitrator } else { Role::Voter };
    let why = format!("{} has caught up and votes from now on", member.name);
    Some((membership.with(MemberInfo { role, ..member.clone() }), why))
}

/// Demotes long absent voters, if demoting all of them lowers the majority.
fn eviction(ctx: &Context, membership: &Membership) -> Option<(Membership, String)> {
    let timeout = ctx.tuning().evict_timeout.as_secs();
    let dead: Vec<MemberId> = membership.voters().filter(|id| is_long_gone(ctx, id)).collect();
    let voters = membership.voters().count();
    if dead.is_empty() || (voters - dead.len()) / 2 + 1 >= membership.majority() {
        return None;
    }
    let name = ctx.name_of(&dead[0]);
    let why = format!("{name} has been gone for more than {timeout} s: it votes no more until it is back");
    Some((demoted_or_removed(membership, &dead[0], false), why))
}

/// Removes a learner that has been absent for long: its name and address become free, and the log is no longer kept
/// for it. If it comes back, it joins anew.
fn forgotten(ctx: &Context, membership: &Membership) -> Option<(Membership, String)> {
    let timeout = LEARNER_RETENTION * ctx.tuning().evict_timeout.as_micros() as Micros;
    let member = membership.members.iter().find(|m| {
        m.role == Role::Learner
            && ctx.gone_since(&m.id).is_some_and(|since| ctx.now().saturating_sub(since) > timeout)
    })?;
    let why = format!(
        "{} does not vote and has been gone for {} min: it is forgotten until it is back",
        member.name,
        timeout / 60_000_000
    );
    Some((membership.without(&member.id), why))
}

/// Under a weak policy only the leader takes writes, and proxies send them to the view's first member. Leadership
/// may have moved without a view before the policy became weak.
fn is_first_as_required(ctx: &Context, members: &[ViewMember], current: &View) -> bool {
    let first = |members: &[ViewMember]| members.first().map(|m| m.id);
    !ctx.raft.policy().is_weak() || first(members) == first(&current.members)
}

/// Appends a view of these members; returns its number.
pub(in crate::member) fn append_view(ctx: &mut Context, members: Vec<ViewMember>) -> Option<u64> {
    let view = View { number: ctx.raft.tail_state().view.number + 1, members };
    let names: Vec<&str> = view.members.iter().map(|m| m.name.as_str()).collect();
    let text = format!("view {}: {}", view.number, names.join(", "));
    let mut w = Writer::new();
    view.encode(&mut w);
    ctx.raft.append_control(ctx.now(), EntryKind::View, w.into_bytes()).ok()?;
    ctx.log(Level::Info, text);
    Some(view.number)
}

#[cfg(test)]
#[path = "leader_tasks_tests.rs"]
mod tests;
