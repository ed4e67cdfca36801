//! Operator commands: switch over, remove a member, promote one to voter. Any member takes a command and forwards it to
//! the leader. The leader carries it out step by step as the log allows, and answers. Each wait is bounded.
//!
//! A switchover first appends a view with the new leader at its head, since proxies write to the first member.
//! Leadership then moves as when a leader leaves. If that fails, another view puts the old leader first again.

use crate::api::{Level, LocalState, state_comment};
use crate::effect::Effect;
use crate::member::admin::wait_report::commit_needs;
use crate::member::context::Context;
use crate::member::delivery::deliverer::Deliverer;
use crate::member::facts::Standing;
use crate::member::leadership::{Leadership, NEAR_ENOUGH};
use crate::member::membership::leader_tasks::{LeaderTasks, append_view};
use crate::operator::{Answer, Command};
use crate::wire::OperatorMessage;
use bytes::Bytes;
use lockstep_core::members::{MemberInfo, Membership, Role};
use lockstep_core::raft::ChangeError;
use lockstep_core::{MemberId, Micros, ViewUuid};

/// When a command is answered at the latest.
const TIMEOUT: Micros = 10_000_000;
/// How long a switchover waits for streaming transactions to end before it rolls the rest back.
const STREAMS_TIMEOUT: Micros = 2_000_000;
/// No streaming transaction is taken to be active if no fragment has come for this long.
const STREAMS_QUIET: Micros = 500_000;
/// Renewing a connection takes less than this.
const RECONNECT: Micros = 300_000;
/// A broken link is back within this time.
const LINKS_BREAK: Micros = 1_500_000;
/// How long the leader that was asked may take, once it leads no more, before the next one is asked.
const ASK_ANOTHER: Micros = 2_000_000;
/// How often a removed member that is still connected is ordered to leave.
const LEAVE_INTERVAL: Micros = 1_000_000;
/// How many commands may be under way.
const COMMANDS_MAX: usize = 16;

/// A command given to this member.
#[derive(Debug)]
struct PendingCommand {
    token: u64,
    command: Command,
    began: Micros,
    /// The leader that was asked, and when.
    asked: Option<(MemberId, Micros)>,
}

/// The member that waits for the answer to a [`Task`], and its id there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Requester {
    member: MemberId,
    id: u64,
}

/// A command that the leader carries out.
#[derive(Debug)]
struct Task {
    /// `None`: this member started the task itself.
    requester: Option<Requester>,
    began: Micros,
    work: Work,
}

/// The view that lists a new leader first.
#[derive(Clone, Copy, Debug)]
struct Listing {
    number: u64,
    /// How many open streaming transactions the view rolls back.
    streams: usize,
}

#[derive(Debug)]
enum Work {
    Switchover {
        to: MemberId,
        view: Option<Listing>,
    },
    Remove {
        id: MemberId,
        name: String,
        /// The incarnation that is connected and removed by force, if one is.
        connected: Option<ViewUuid>,
    },
    Promote {
        id: MemberId,
        name: String,
    },
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct Operator {
    commands: Vec<PendingCommand>,
    tasks: Vec<Task>,
    /// Since when too few voters are connected, as seen while a command is under way.
    cut_off_since: Option<Micros>,
    /// When removed members were last ordered to leave.
    leave_ordered: Option<Micros>,
}

/// The other components that commands concern.
pub(in crate::member) struct Others<'a> {
    pub(in crate::member) own: Standing,
    pub(in crate::member) deliverer: &'a Deliverer,
    pub(in crate::member) tasks: &'a LeaderTasks,
    pub(in crate::member) leadership: &'a mut Leadership,
}

/// The result of one step of a task.
enum Step {
    Wait,
    Done(String),
    Failed(String),
    /// Another leader may be asked.
    Retry,
}

/// A new voter's vote is needed at once, even for its own promotion.
fn unresponsive_voter(ctx: &Context, name: &str) -> Step {
    Step::Failed(format!(
        "{name} has not responded for some time, and as a voter would be needed for a majority: check its {} first",
        ctx.terms().process
    ))
}

impl Operator {
    /// Why a new command cannot be taken, if so.
    pub(in crate::member) fn refusal(&self, ctx: &Context) -> Option<&'static str> {
        if !ctx.connection().is_connected() {
            Some("this member is not connected to a cluster: ask another one")
        } else if self.commands.len() >= COMMANDS_MAX {
            Some("too many commands are under way: try again soon")
        } else {
            None
        }
    }

    /// Takes a command for the leader, answered by [`Effect::Answer`].
    pub(in crate::member) fn take(&mut self, now: Micros, token: u64, command: Command) {
        self.commands.push(PendingCommand { token, command, began: now, asked: None });
    }

    /// Whether commands are under way; rounds are more frequent then.
    pub(in crate::member) fn is_active(&self) -> bool {
        !self.commands.is_empty() || !self.tasks.is_empty()
    }

    /// A member asks this one, as the leader, to carry out a command.
    pub(in crate::member) fn on_ask(
        &mut self,
        ctx: &mut Context,
        others: &mut Others<'_>,
        from: MemberId,
        id: u64,
        command: &[u8],
    ) {
        let requester = Requester { member: from, id };
        match Command::parse(command) {
            Ok(command) => self.begin(ctx, others, requester, command),
            Err(text) => answer(ctx, requester, Step::Failed(text)),
        }
    }

    /// The leader answers a command of this member. `again`: another leader is to be asked.
    pub(in crate::member) fn on_answer(
        &mut self,
        ctx: &mut Context,
        from: MemberId,
        id: u64,
        (ok, again): (bool, bool),
        text: String,
    ) {
        let Some(at) = self.commands.iter().position(|g| g.token == id) else { return };
        let pending = &mut self.commands[at];
        if pending.asked.is_none_or(|(whom, _)| whom != from) {
            return;
        }
        if again {
            pending.asked = None;
        } else {
            self.finish_command(ctx, at, ok, text);
        }
    }

    fn finish_command(&mut self, ctx: &mut Context, at: usize, ok: bool, text: String) {
        let PendingCommand { token, began, .. } = self.commands.remove(at);
        let seconds = ctx.now().saturating_sub(began) as f64 / 1e6;
        ctx.emit(Effect::Answer { token, answer: Answer { ok, text, seconds, held: None } });
    }

    /// Advances the tasks of this member as the leader.
    pub(in crate::member) fn tasks_step(&mut self, ctx: &mut Context, others: &mut Others<'_>) {
        for task in std::mem::take(&mut self.tasks) {
            self.task_step(ctx, others, task);
        }
    }

    /// Advances the commands given to this member: asks the leader, and ends those that take too long. Answers of this
    /// member to itself have been dispatched, or another leader would be asked for a command that is done.
    pub(in crate::member) fn commands_step(&mut self, ctx: &mut Context) {
        if !self.is_active() {
            self.cut_off_since = None;
            return;
        }
        let leader = ctx.raft.leader().filter(|id| *id == ctx.me().id || ctx.peers.contains_key(id));
        // Without a majority there will be no leader soon; but connections may just be being renewed.
        let no_leader_soon = self.long_cut_off(ctx) && leader.is_none();
        let mut at = 0;
        while at < self.commands.len() {
            let PendingCommand { token, began, asked, ref command } = self.commands[at];
            let waited = ctx.now().saturating_sub(began);
            if waited > TIMEOUT || no_leader_soon && waited > RECONNECT {
                let text = match leader {
                    None => {
                        "no member leads: a majority of the voters is needed (`lockstep status` says who is missing; where those \
                         are gone for good, docs/operating.md, No majority)"
                    }
                    Some(_) => {
                        "the leader has not finished the command in time, and may still do so: see `lockstep status`"
                    }
                };
                self.finish_command(ctx, at, false, text.into());
                continue;
            }
            let asked_recently = |(whom, since): (MemberId, Micros)| {
                Some(whom) == leader
                    || ctx.peers.contains_key(&whom) && ctx.now().saturating_sub(since) < ASK_ANOTHER
            };
            if let Some(to) = leader.filter(|_| !asked.is_some_and(asked_recently)) {
                let json = serde_json::to_vec(command).unwrap_or_default();
                self.commands[at].asked = Some((to, ctx.now()));
                ctx.send_operator(to, OperatorMessage::Ask { id: token, command: Bytes::from(json) });
            }
            at += 1;
        }
    }

    /// A leader orders removed members that are still connected to leave, again and again: an order may be lost with its
    /// connection. A removal that is not committed may yet be undone by another leader, so it is no reason to leave.
    ///
    /// A removed member takes the order from its leader only, and hears nothing of the leader's log any more. So the
    /// leader shows itself first.
    pub(in crate::member) fn order_removed_to_leave(&mut self, ctx: &mut Context) {
        ctx.peers.review_removals(&ctx.raft);
        let recently = |at| ctx.now() < at + LEAVE_INTERVAL;
        if self.leave_ordered.is_some_and(recently) {
            return;
        }
        let Some(notice) = ctx.raft.leadership_notice() else { return };
        let (membership, committed) = (ctx.raft.membership(), &ctx.raft.committed_state().membership);
        let is_out = |id: &MemberId| membership.get(id).is_none() && committed.get(id).is_none();
        let removed: Vec<MemberId> = ctx.peers.removed().filter(is_out).collect();
        for id in removed {
            self.leave_ordered = Some(ctx.now());
            ctx.send_raft(id, &notice);
            let text = format!(
                "an operator has removed this member from the cluster: it refuses everything until its {} is started \
                 again, and then joins as a new one",
                ctx.terms().process
            );
            ctx.send_operator(id, OperatorMessage::Leave { text });
        }
    }

    /// Whether too few voters have been connected for longer than a broken link takes to come back.
    fn long_cut_off(&mut self, ctx: &mut Context) -> bool {
        if !ctx.cut_off() {
            self.cut_off_since = None;
            return false;
        }
        let since = *self.cut_off_since.get_or_insert(ctx.now());
        let since = ctx.majority_lost_since().map_or(since, |no_quorum| no_quorum.min(since));
        ctx.now().saturating_sub(since) > LINKS_BREAK
    }

    /// Begins the leader's part of a command.
    fn begin(&mut self, ctx: &mut Context, others: &mut Others<'_>, requester: Requester, command: Command) {
        if !ctx.raft.is_leader() {
            return answer(ctx, requester, Step::Retry);
        }
        // Only members may send commands; a connection alone is not enough.
        if ctx.raft.membership().get(&requester.member).is_none() {
            return answer(ctx, requester, Step::Failed("the command does not come from a member".into()));
        }
        if self.tasks.len() >= COMMANDS_MAX {
            return answer(
                ctx,
                requester,
                Step::Failed("too many commands are under way: try again soon".into()),
            );
        }
        let work = match command {
            Command::Switchover { to } => self.plan_switchover(ctx, others, &to),
            Command::Remove { name, force } => plan_removal(ctx, &name, force),
            Command::Promote { name } => plan_promotion(ctx, &name),
            Command::Hold | Command::Release { .. } | Command::Bootstrap => {
                Err(Step::Failed("the member that gets this command carries it out itself".into()))
            }
        };
        match work {
            Ok(work) => self.tasks.push(Task { requester: Some(requester), began: ctx.now(), work }),
            Err(step) => answer(ctx, requester, step),
        }
    }

    fn plan_switchover(
        &mut self,
        ctx: &mut Context,
        others: &mut Others<'_>,
        to: &str,
    ) -> Result<Work, Step> {
        let successor = find_member(ctx, to, false)?;
        let MemberInfo { id, name, .. } = successor;
        if id == ctx.me().id {
            others.leadership.keep();
            let but = proxies_avoid(ctx, others.own, &id);
            return Err(Step::Done(format!("{name} leads already, in term {}{but}", ctx.raft.term())));
        }
        if let Some(why) = ctx.unfit_to_lead(&id) {
            return Err(Step::Failed(format!("{name} {why}")));
        }
        if ctx.peer_is_held_back(&id) {
            return Err(Step::Failed(format!(
                "entries are kept from the {} of {name} (apply.paused, apply.delay, apply.until), so that it refuses \
                 writes and gives up leadership as soon as it can. To let it lead, run there: {}",
                ctx.terms().process,
                ctx.terms().set("apply.paused=no; apply.delay=0; apply.until=none")
            )));
        }
        if ctx.peers.health_of(&id).is_some_and(|health| health.state == LocalState::Joining) {
            return Err(Step::Failed(format!(
                "{name} is Joining: its {} waits for its data, and cannot write before it has them. Wait until `lockstep \
                 status` shows it Synced",
                ctx.terms().process
            )));
        }
        if self.tasks.iter().any(|t| matches!(t.work, Work::Switchover { .. })) {
            return Err(Step::Failed("another switchover is under way: try again soon".into()));
        }
        ctx.log(Level::Info, format!("switchover: {name} is to lead, by an operator's command"));
        Ok(Work::Switchover { to: id, view: None })
    }

    /// Begins to move leadership to `successor`, because this member should not lead.
    pub(in crate::member) fn step_down(&mut self, now: Micros, successor: MemberId) {
        if !self.tasks.iter().any(|t| matches!(t.work, Work::Switchover { .. })) {
            let work = Work::Switchover { to: successor, view: None };
            self.tasks.push(Task { requester: None, began: now, work });
        }
    }

    fn task_step(&mut self, ctx: &mut Context, others: &mut Others<'_>, mut task: Task) {
        let waited = ctx.now().saturating_sub(task.began);
        let late = waited > TIMEOUT;
        let step = match &mut task.work {
            Work::Switchover { to, view } => {
                let (to, mut placed) = (*to, *view);
                let step = switchover_step(ctx, others, to, &mut placed, waited);
                *view = placed;
                step
            }
            Work::Remove { id, name, connected } => removal_step(ctx, *id, name, *connected),
            Work::Promote { id, name } => {
                let step = promotion_step(ctx, *id, name);
                // Fail before the member that was given the command times out.
                let late_catch_up = ctx.now().saturating_sub(task.began) > TIMEOUT / 2;
                let waits = matches!(step, Step::Wait) && late_catch_up && !ctx.has_caught_up(id);
                match waits {
                    true => Step::Failed(format!(
                        "{name} has not caught up: try again when `lockstep status` shows it near the others"
                    )),
                    false => step,
                }
            }
        };
        let step = match step {
            Step::Wait if late => Step::Failed("not done in time: look at `lockstep status`".into()),
            step => step,
        };
        match (step, task.requester) {
            (Step::Wait, _) => self.tasks.push(task),
            (step, Some(requester)) => answer(ctx, requester, step),
            (Step::Done(text), None) => ctx.log(Level::Info, text),
            (Step::Failed(text), None) => ctx.log(Level::Warn, text),
            (Step::Retry, None) => {}
        }
    }
}

/// The member with this name or id. If several have the name: the only one that is absent (or present), as `absent`
/// says.
fn find_member(ctx: &Context, name: &str, absent: bool) -> Result<MemberInfo, Step> {
    let membership = ctx.raft.membership();
    let all: Vec<&MemberInfo> =
        membership.members.iter().filter(|m| m.name == name || m.id.to_string() == name).collect();
    let gone = |m: &&MemberInfo| m.id != ctx.me().id && !ctx.peers.contains_key(&m.id);
    match all[..] {
        [] => {
            let mut names: Vec<&str> = membership.members.iter().map(|m| m.name.as_str()).collect();
            names.sort_unstable();
            Err(Step::Failed(format!(
                "no member is named {name}; there are {}. `lockstep status` lists them",
                names.join(", ")
            )))
        }
        [one] => Ok(one.clone()),
        _ => {
            let fit: Vec<&MemberInfo> = all.iter().copied().filter(|m| gone(m) == absent).collect();
            match fit[..] {
                [one] => Ok(one.clone()),
                _ => {
                    let ids: Vec<String> = all.iter().map(|m| m.id.to_string()).collect();
                    Err(Step::Failed(format!(
                        "several members are named {name}: say which one by its id: {}",
                        ids.join(", ")
                    )))
                }
            }
        }
    }
}

fn plan_removal(ctx: &mut Context, name: &str, force: bool) -> Result<Work, Step> {
    let member = find_member(ctx, name, true)?;
    let (id, name) = (member.id, member.name.clone());
    if id == ctx.me().id {
        return Err(Step::Failed(format!(
            "{name} leads: let another member lead first (`lockstep switchover --to NAME`)"
        )));
    }
    let membership = ctx.raft.membership();
    let rest = membership.without(&id);
    let present = rest.voters().filter(|v| *v == ctx.me().id || ctx.peers.contains_key(v)).count();
    if present < rest.majority() {
        return Err(Step::Failed(format!(
            "without {name} {present} of {} voters would be connected, and {} are needed: remove those that are \
             not connected first",
            rest.voters().count(),
            rest.majority()
        )));
    }
    let connected = ctx.peers.view_uuid_of(&id);
    if connected.is_some() && !force {
        return Err(Step::Failed(format!(
            "{name} is connected: stop its {}, which takes it out of the voters in good order; --force removes it anyway",
            ctx.terms().process
        )));
    }
    ctx.log(Level::Info, format!("{name} is removed, by an operator's command"));
    Ok(Work::Remove { id, name, connected })
}

fn plan_promotion(ctx: &mut Context, name: &str) -> Result<Work, Step> {
    let member = find_member(ctx, name, false)?;
    let (id, name) = (member.id, member.name.clone());
    if member.role.votes() {
        return Err(Step::Done(format!("{name} votes already")));
    }
    let Some(peer) = ctx.peers.get(&id) else {
        return Err(Step::Failed(format!(
            "{name} is not connected: start its {} first",
            ctx.terms().process
        )));
    };
    if peer.leaving() {
        return Err(Step::Failed(format!("{name} is about to leave")));
    }
    if !ctx.responds(&id) {
        return Err(unresponsive_voter(ctx, &name));
    }
    ctx.log(Level::Info, format!("{name} is to vote, by an operator's command"));
    Ok(Work::Promote { id, name })
}

/// A warning if proxies send nothing to the member. A Desynced member may lead on purpose, but clients then find no
/// writable server.
fn proxies_avoid(ctx: &Context, own: Standing, id: &MemberId) -> String {
    let state = match *id == ctx.me().id {
        true => Some(own.state),
        false => ctx.peers.health_of(id).map(|health| health.state),
    };
    match state {
        None | Some(LocalState::Synced) => String::new(),
        Some(LocalState::Donor) => {
            ". But it is Donor/Desynced (wsrep_desync=ON there, or it donates its state): proxies send nothing to \
             it until it is Synced"
                .into()
        }
        Some(state) => {
            format!(
                ". But it is {}: proxies send nothing to it before it is Synced",
                state_comment(state)
            )
        }
    }
}

fn promotion_step(ctx: &mut Context, id: MemberId, name: &str) -> Step {
    let votes = |membership: &Membership| membership.get(&id).is_some_and(|m| m.role.votes());
    let membership = ctx.raft.membership();
    if votes(&membership) {
        if !votes(&ctx.raft.committed_state().membership) {
            return Step::Wait;
        }
        let lasting = match membership.get(&id).is_some_and(|m| m.wants_vote) {
            true => "",
            false => {
                ". Write member.vote=yes into its options, or it votes no more after a stop in good order"
            }
        };
        return Step::Done(format!(
            "{name} votes: there are {} voters, and {}{lasting}",
            membership.voters().count(),
            commit_needs(&ctx.raft.policy(), membership.majority())
        ));
    }
    if !ctx.raft.is_leader() {
        return Step::Retry;
    }
    let Some(member) = membership.get(&id) else {
        return Step::Failed(format!("{name} is no longer a member"));
    };
    if ctx.peers.get(&id).is_none_or(|peer| peer.leaving()) {
        return Step::Failed(format!("{name} has left"));
    }
    if !ctx.responds(&id) {
        return unresponsive_voter(ctx, name);
    }
    if !ctx.has_caught_up(&id) {
        return Step::Wait;
    }
    let role = if member.arbitrator { Role::Arbitrator } else { Role::Voter };
    match ctx.raft.change_membership(ctx.now(), membership.with(MemberInfo { role, ..member.clone() })) {
        Ok(_) | Err(ChangeError::TooEarly | ChangeError::HandingOver) => Step::Wait,
        Err(error) => Step::Failed(error.to_string()),
    }
}

fn switchover_step(
    ctx: &mut Context,
    others: &mut Others<'_>,
    to: MemberId,
    view: &mut Option<Listing>,
    waited: Micros,
) -> Step {
    let name = ctx.name_of(&to);
    let term = ctx.raft.term();
    match ctx.raft.leader() {
        Some(leader) if leader == to => {
            let listed = view.map_or(String::new(), |view| format!("; view {} lists it first", view.number));
            let streams = match view.map_or(0, |view| view.streams) {
                0 => String::new(),
                streams => format!(". {}", rolled_back_text(streams)),
            };
            let writers = match ctx.raft.policy().is_weak() {
                true => format!(
                    ". Under {} it alone takes writes: {}",
                    ctx.raft.policy().name(),
                    ctx.terms().elsewhere
                ),
                false => String::new(),
            };
            let but = proxies_avoid(ctx, others.own, &to);
            return Step::Done(format!("{name} leads in term {term}{listed}{streams}{writers}{but}"));
        }
        Some(leader) if leader != ctx.me().id => {
            let other = ctx.name_of(&leader);
            return Step::Failed(format!("{other} has become the leader meanwhile, in term {term}"));
        }
        None => return Step::Wait,
        Some(_) => {}
    }
    if ctx.raft.is_transferring_leadership() || !ctx.raft.has_committed_in_term() {
        return Step::Wait;
    }
    let why = match ctx.unfit_to_lead(&to) {
        Some(why) => Some(why),
        None if view.is_some() => Some("did not take over".into()),
        None if waited > TIMEOUT => Some("does not catch up".into()),
        None => None,
    };
    if let Some(why) = why {
        if view.is_some() {
            // The leader is first in the view.
            let members = others.tasks.view_members(ctx, ctx.me().id);
            append_view(ctx, members);
        }
        return Step::Failed(format!("{name} {why}: {} stays the leader", ctx.me().name));
    }
    if ctx.raft.matched(&to) + NEAR_ENOUGH < ctx.raft.last_index() {
        return Step::Wait;
    }
    // Servers roll back all streaming transactions at this view: give those about to end the time.
    let busy = others.deliverer.fragment_at().is_some_and(|at| ctx.now() < at + STREAMS_QUIET);
    if view.is_none() && busy && waited <= STREAMS_TIMEOUT {
        return Step::Wait;
    }
    let streams = others.deliverer.open_streams().max(busy.into());
    let members = others.tasks.view_members(ctx, to);
    *view = append_view(ctx, members).map(|number| Listing { number, streams });
    if streams > 0 {
        ctx.log(Level::Warn, format!("switchover to {name}: {}", rolled_back_text(streams)));
    }
    match ctx.raft.transfer_leadership(ctx.now(), to) {
        Ok(()) => Step::Wait,
        Err(error) => Step::Failed(error.to_string()),
    }
}

fn removal_step(ctx: &mut Context, id: MemberId, name: &str, connected: Option<ViewUuid>) -> Step {
    let membership = ctx.raft.membership();
    if membership.get(&id).is_none() {
        if ctx.raft.committed_state().membership.get(&id).is_some() {
            return Step::Wait;
        }
        let (voters, majority) = (membership.voters().count(), membership.majority());
        return Step::Done(match voters {
            1 => format!("{name} is removed: one voter remains"),
            _ => {
                format!(
                    "{name} is removed: {voters} voters remain, and {}",
                    commit_needs(&ctx.raft.policy(), majority)
                )
            }
        });
    }
    if !ctx.raft.is_leader() {
        return Step::Retry;
    }
    match ctx.raft.change_membership(ctx.now(), membership.without(&id)) {
        Ok(_) => {
            // Not earlier: a command that fails before removes nobody.
            if let Some(view_uuid) = connected {
                ctx.peers.set_removed(id, view_uuid, ctx.raft.term());
            }
            Step::Wait
        }
        Err(ChangeError::TooEarly | ChangeError::HandingOver) => Step::Wait,
        Err(error) => Step::Failed(error.to_string()),
    }
}

/// Answers a task's requester, once the task has ended.
fn answer(ctx: &mut Context, requester: Requester, step: Step) {
    let (ok, again, text) = match step {
        Step::Wait => return,
        Step::Done(text) => (true, false, text),
        Step::Failed(text) => (false, false, text),
        Step::Retry => (false, true, String::new()),
    };
    ctx.send_operator(requester.member, OperatorMessage::Answer { id: requester.id, ok, again, text });
}

/// The effect on streaming transactions of a second view with the same members.
fn rolled_back_text(streams: usize) -> String {
    let what = if streams == 1 { "transaction was open: it is" } else { "transactions were open: they are" };
    format!("{streams} streaming {what} rolled back (wsrep_trx_fragment_size)")
}

#[cfg(test)]
#[path = "operator_tests.rs"]
mod tests;
