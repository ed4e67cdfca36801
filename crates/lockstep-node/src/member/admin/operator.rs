//! Operator commands: switch over, remove a member, promote one to voter. Any member takes a command and forwards it to
//! the leader. The leader carries it out step by step as the log allows, and answers. Each wait is bounded.
//!
//! A switchover first appends a view with the new leader at its head, since proxies write to the first member.
//! Leadership then moves as when a leader leaves. If that fails, another view puts the old leader first again.

use crate::api::LocalState;
use crate::api::state_comment;
use crate::effect::Effect;
use crate::member::{Level, Member, Micros};
use crate::operator::{Answer, Command};
use crate::wire::{FRAME_OPERATOR, Hello, OperatorMessage};
use bytes::Bytes;
use lockstep_core::members::{MemberInfo, Membership, Role};
use lockstep_core::raft::ChangeError;
use lockstep_core::{Index, MemberId, Uuid, ViewUuid};

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
/// A new leader that lacks more entries than this must catch up first; until then no commit is delayed for it.
const NEAR_ENOUGH: Index = 1000;
/// How many commands may be under way.
const COMMANDS_MAX: usize = 16;
/// How many removed members are remembered.
const REMOVED_MAX: usize = 256;

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
    Switchover { to: MemberId, view: Option<Listing> },
    Remove { id: MemberId, name: String },
    Promote { id: MemberId, name: String },
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct Operator {
    commands: Vec<PendingCommand>,
    tasks: Vec<Task>,
    /// Incarnations that were removed while connected: this leader does not let them back.
    removed: Vec<(MemberId, ViewUuid)>,
    /// Since when too few voters are connected, as seen while a command is under way.
    cut_off_since: Option<Micros>,
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
fn unresponsive_voter(name: &str) -> Step {
    Step::Failed(format!(
        "{name} has not responded for some time, and as a voter would be needed for a majority: check its server \
         first"
    ))
}

impl Member {
    /// A command from the socket, answered by [`Effect::Answer`]. `fresh` names the history of a new branch, if the
    /// command begins one.
    pub(crate) fn command(&mut self, token: u64, command: Command, fresh: Uuid) {
        let refusal = if !self.ctx.connection.is_connected() {
            Some("this member is not connected to a cluster: ask another one")
        } else if self.admin.operator.commands.len() >= COMMANDS_MAX {
            Some("too many commands are under way: try again soon")
        } else {
            None
        };
        if let Some(text) = refusal {
            let answer = Answer { ok: false, text: text.into(), seconds: 0.0, held: None };
            return self.ctx.out.push(Effect::Answer { token, answer });
        }
        match command {
            Command::Hold => return self.begin_barrier(token),
            Command::Release { hold } => return self.release(token, hold),
            Command::Bootstrap => return self.begin_forced_bootstrap(token, fresh),
            Command::Switchover { .. } | Command::Remove { .. } | Command::Promote { .. } => {}
        }
        self.admin.operator.commands.push(PendingCommand {
            token,
            command,
            began: self.ctx.now,
            asked: None,
        });
    }

    /// Whether commands are under way; rounds are more frequent then.
    pub(in crate::member) fn is_commanded(&self) -> bool {
        !self.admin.operator.commands.is_empty()
            || !self.admin.operator.tasks.is_empty()
            || self.roster.branches.is_bootstrapping()
    }

    /// Whether a removal ended this connection of the member.
    pub(in crate::member) fn was_removed(&self, hello: &Hello) -> bool {
        self.admin.operator.removed.contains(&(hello.id, hello.view_uuid))
    }

    pub(in crate::member) fn operator_message(&mut self, from: MemberId, message: OperatorMessage) {
        match message {
            OperatorMessage::Ask { id, command } => {
                let requester = Requester { member: from, id };
                match Command::parse(&command) {
                    Ok(command) => self.begin(requester, command),
                    Err(text) => self.answer(requester, Step::Failed(text)),
                }
            }
            OperatorMessage::Answer { id, ok, again, text } => {
                let Some(at) = self.admin.operator.commands.iter().position(|g| g.token == id) else {
                    return;
                };
                let pending = &mut self.admin.operator.commands[at];
                if pending.asked.is_none_or(|(whom, _)| whom != from) {
                    return;
                }
                if again {
                    pending.asked = None;
                } else {
                    self.finish_command(at, ok, text);
                }
            }
            OperatorMessage::Leave { text } => {
                if self.ctx.raft.leader() == Some(from) {
                    self.ctx.log(Level::Error, text.clone());
                    self.give_up(&text);
                }
            }
            about_a_hold => self.on_barrier_message(from, about_a_hold),
        }
    }

    fn finish_command(&mut self, at: usize, ok: bool, text: String) {
        let PendingCommand { token, began, .. } = self.admin.operator.commands.remove(at);
        let seconds = self.ctx.now.saturating_sub(began) as f64 / 1e6;
        self.ctx.out.push(Effect::Answer { token, answer: Answer { ok, text, seconds, held: None } });
    }

    pub(in crate::member) fn send_operator(&mut self, to: MemberId, message: OperatorMessage) {
        if to == self.ctx.me.id {
            self.operator_message(to, message);
        } else {
            let payload = message.to_bytes();
            self.ctx.out.push(Effect::Send { to, kind: FRAME_OPERATOR, payload: vec![payload] });
        }
    }

    fn answer(&mut self, requester: Requester, step: Step) {
        let (ok, again, text) = match step {
            Step::Wait => return,
            Step::Done(text) => (true, false, text),
            Step::Failed(text) => (false, false, text),
            Step::Retry => (false, true, String::new()),
        };
        self.send_operator(requester.member, OperatorMessage::Answer { id: requester.id, ok, again, text });
    }

    /// Advances all commands under way.
    pub(in crate::member) fn operator_step(&mut self) {
        if !self.is_commanded() {
            self.admin.operator.cut_off_since = None;
            return;
        }
        for task in std::mem::take(&mut self.admin.operator.tasks) {
            self.task_step(task);
        }
        let leader =
            self.ctx.raft.leader().filter(|id| *id == self.ctx.me.id || self.ctx.peers.contains_key(id));
        // Without a majority there will be no leader soon; but connections may just be being renewed.
        let no_leader_soon = self.long_cut_off() && leader.is_none();
        let mut at = 0;
        while at < self.admin.operator.commands.len() {
            let PendingCommand { token, began, asked, ref command } = self.admin.operator.commands[at];
            let waited = self.ctx.now.saturating_sub(began);
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
                self.finish_command(at, false, text.into());
                continue;
            }
            at += 1;
            let asked_recently = |(whom, since): (MemberId, Micros)| {
                Some(whom) == leader
                    || self.ctx.peers.contains_key(&whom) && self.ctx.now.saturating_sub(since) < ASK_ANOTHER
            };
            if let Some(to) = leader.filter(|_| !asked.is_some_and(asked_recently)) {
                let json = serde_json::to_vec(command).unwrap_or_default();
                self.admin.operator.commands[at - 1].asked = Some((to, self.ctx.now));
                let count = self.admin.operator.commands.len();
                self.send_operator(to, OperatorMessage::Ask { id: token, command: Bytes::from(json) });
                if self.admin.operator.commands.len() < count {
                    at -= 1;
                }
            }
        }
    }

    /// Whether too few voters have been connected for longer than a broken link takes to come back.
    fn long_cut_off(&mut self) -> bool {
        if !self.ctx.cut_off() {
            self.admin.operator.cut_off_since = None;
            return false;
        }
        let since = *self.admin.operator.cut_off_since.get_or_insert(self.ctx.now);
        let since = self.ctx.quorum.lost_since().map_or(since, |no_quorum| no_quorum.min(since));
        self.ctx.now.saturating_sub(since) > LINKS_BREAK
    }

    /// Begins the leader's part of a command.
    fn begin(&mut self, requester: Requester, command: Command) {
        if !self.ctx.raft.is_leader() {
            return self.answer(requester, Step::Retry);
        }
        // Only members may send commands; a connection alone is not enough.
        if self.ctx.raft.membership().get(&requester.member).is_none() {
            return self.answer(requester, Step::Failed("the command does not come from a member".into()));
        }
        if self.admin.operator.tasks.len() >= COMMANDS_MAX {
            return self
                .answer(requester, Step::Failed("too many commands are under way: try again soon".into()));
        }
        let work = match command {
            Command::Switchover { to } => self.plan_switchover(&to),
            Command::Remove { name, force } => self.plan_removal(&name, force),
            Command::Promote { name } => self.plan_promotion(&name),
            Command::Hold | Command::Release { .. } | Command::Bootstrap => {
                Err(Step::Failed("the member that gets this command carries it out itself".into()))
            }
        };
        match work {
            Ok(work) => {
                self.admin.operator.tasks.push(Task { requester: Some(requester), began: self.ctx.now, work })
            }
            Err(step) => self.answer(requester, step),
        }
    }

    /// The member with this name or id. If several have the name: the only one that is absent (or present), as `absent`
    /// says.
    fn find_member(&self, name: &str, absent: bool) -> Result<MemberInfo, Step> {
        let membership = self.ctx.raft.membership();
        let all: Vec<&MemberInfo> =
            membership.members.iter().filter(|m| m.name == name || m.id.to_string() == name).collect();
        let gone = |m: &&MemberInfo| m.id != self.ctx.me.id && !self.ctx.peers.contains_key(&m.id);
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

    fn plan_switchover(&mut self, to: &str) -> Result<Work, Step> {
        let successor = self.find_member(to, false)?;
        let MemberInfo { id, name, .. } = successor;
        if id == self.ctx.me.id {
            self.leadership.keep();
            let but = self.proxies_avoid(&id);
            return Err(Step::Done(format!("{name} leads already, in term {}{but}", self.ctx.raft.term())));
        }
        if let Some(why) = self.unfit_to_lead(&id) {
            return Err(Step::Failed(format!("{name} {why}")));
        }
        if self.peer_is_held_back(&id) {
            return Err(Step::Failed(format!(
                "entries are kept from the server of {name} (apply.paused, apply.delay, apply.until), so that it \
                 refuses writes and gives up leadership as soon as it can. To let it lead, run there: SET GLOBAL \
                 wsrep_provider_options = 'apply.paused=no; apply.delay=0; apply.until=none'"
            )));
        }
        if self.health_of(&id).is_some_and(|health| health.state == LocalState::Joining) {
            return Err(Step::Failed(format!(
                "{name} is Joining: its server waits for its data, and cannot write before it has them. Wait until `lockstep \
                 status` shows it Synced"
            )));
        }
        if self.admin.operator.tasks.iter().any(|t| matches!(t.work, Work::Switchover { .. })) {
            return Err(Step::Failed("another switchover is under way: try again soon".into()));
        }
        self.ctx.log(Level::Info, format!("switchover: {name} is to lead, by an operator's command"));
        Ok(Work::Switchover { to: id, view: None })
    }

    /// A warning if proxies send nothing to the member. A Desynced member may lead on purpose, but clients then find no
    /// writable server.
    fn proxies_avoid(&self, id: &MemberId) -> String {
        match self.health_of(id).map(|health| health.state) {
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

    /// Begins to move leadership to `successor`, because this member should not lead.
    pub(in crate::member) fn step_down(&mut self, successor: MemberId) {
        if !self.admin.operator.tasks.iter().any(|t| matches!(t.work, Work::Switchover { .. })) {
            let work = Work::Switchover { to: successor, view: None };
            self.admin.operator.tasks.push(Task { requester: None, began: self.ctx.now, work });
        }
    }

    fn plan_removal(&mut self, name: &str, force: bool) -> Result<Work, Step> {
        let member = self.find_member(name, true)?;
        let (id, name) = (member.id, member.name.clone());
        if id == self.ctx.me.id {
            return Err(Step::Failed(format!(
                "{name} leads: let another member lead first (`lockstep switchover --to NAME`)"
            )));
        }
        let membership = self.ctx.raft.membership();
        let rest = membership.without(&id);
        let connected =
            rest.voters().filter(|v| *v == self.ctx.me.id || self.ctx.peers.contains_key(v)).count();
        if connected < rest.majority() {
            return Err(Step::Failed(format!(
                "without {name} {connected} of {} voters would be connected, and {} are needed: remove those that are \
                 not connected first",
                rest.voters().count(),
                rest.majority()
            )));
        }
        if let Some(peer) = self.ctx.peers.get(&id) {
            if !force {
                return Err(Step::Failed(format!(
                    "{name} is connected: stop its server, which takes it out of the voters in good order; --force \
                     removes it anyway"
                )));
            }
            let incarnation = (id, peer.hello.view_uuid);
            self.admin.operator.removed.truncate(REMOVED_MAX - 1);
            self.admin.operator.removed.insert(0, incarnation);
            let text = "an operator has removed this member from the cluster: it refuses everything until its server \
                        is started again, and then joins as a new one";
            self.send_operator(id, OperatorMessage::Leave { text: text.into() });
        }
        self.ctx.log(Level::Info, format!("{name} is removed, by an operator's command"));
        Ok(Work::Remove { id, name })
    }

    fn plan_promotion(&mut self, name: &str) -> Result<Work, Step> {
        let member = self.find_member(name, false)?;
        let (id, name) = (member.id, member.name.clone());
        if member.role.votes() {
            return Err(Step::Done(format!("{name} votes already")));
        }
        let Some(peer) = self.ctx.peers.get(&id) else {
            return Err(Step::Failed(format!("{name} is not connected: start its server first")));
        };
        if peer.leaving() {
            return Err(Step::Failed(format!("{name} is about to leave")));
        }
        if !self.ctx.responds(&id) {
            return Err(unresponsive_voter(&name));
        }
        self.ctx.log(Level::Info, format!("{name} is to vote, by an operator's command"));
        Ok(Work::Promote { id, name })
    }

    fn promotion_step(&mut self, id: MemberId, name: &str) -> Step {
        let votes = |membership: &Membership| membership.get(&id).is_some_and(|m| m.role.votes());
        let membership = self.ctx.raft.membership();
        if votes(&membership) {
            if !votes(&self.ctx.raft.committed_state().membership) {
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
                self.commit_needs(membership.majority())
            ));
        }
        if !self.ctx.raft.is_leader() {
            return Step::Retry;
        }
        let Some(member) = membership.get(&id) else {
            return Step::Failed(format!("{name} is no longer a member"));
        };
        if self.ctx.peers.get(&id).is_none_or(|peer| peer.leaving()) {
            return Step::Failed(format!("{name} has left"));
        }
        if !self.ctx.responds(&id) {
            return unresponsive_voter(name);
        }
        if !self.has_caught_up(&id) {
            return Step::Wait;
        }
        let role = if member.arbitrator { Role::Arbitrator } else { Role::Voter };
        match self
            .ctx
            .raft
            .change_membership(self.ctx.now, membership.with(MemberInfo { role, ..member.clone() }))
        {
            Ok(_) | Err(ChangeError::TooEarly | ChangeError::HandingOver) => Step::Wait,
            Err(error) => Step::Failed(error.to_string()),
        }
    }

    fn task_step(&mut self, mut task: Task) {
        let waited = self.ctx.now.saturating_sub(task.began);
        let late = waited > TIMEOUT;
        let step = match &mut task.work {
            Work::Switchover { to, view } => {
                let (to, mut placed) = (*to, *view);
                let step = self.switchover_step(to, &mut placed, waited);
                *view = placed;
                step
            }
            Work::Remove { id, name } => self.removal_step(*id, name),
            Work::Promote { id, name } => {
                let step = self.promotion_step(*id, name);
                // Fail before the member that was given the command times out.
                let late_catch_up = self.ctx.now.saturating_sub(task.began) > TIMEOUT / 2;
                let waits = matches!(step, Step::Wait) && late_catch_up && !self.has_caught_up(id);
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
            (Step::Wait, _) => self.admin.operator.tasks.push(task),
            (step, Some(requester)) => self.answer(requester, step),
            (Step::Done(text), None) => self.ctx.log(Level::Info, text),
            (Step::Failed(text), None) => self.ctx.log(Level::Warn, text),
            (Step::Retry, None) => {}
        }
    }

    fn switchover_step(&mut self, to: MemberId, view: &mut Option<Listing>, waited: Micros) -> Step {
        let name = self.ctx.name_of(&to);
        let term = self.ctx.raft.term();
        match self.ctx.raft.leader() {
            Some(leader) if leader == to => {
                let listed =
                    view.map_or(String::new(), |view| format!("; view {} lists it first", view.number));
                let streams = match view.map_or(0, |view| view.streams) {
                    0 => String::new(),
                    streams => format!(". {}", rolled_back_text(streams)),
                };
                let writers = match self.ctx.raft.policy().is_weak() {
                    true => format!(
                        ". Under {} it alone takes writes: clients that write elsewhere get error 1180 until they \
                         connect to it",
                        self.ctx.raft.policy().name()
                    ),
                    false => String::new(),
                };
                let but = self.proxies_avoid(&to);
                return Step::Done(format!("{name} leads in term {term}{listed}{streams}{writers}{but}"));
            }
            Some(leader) if leader != self.ctx.me.id => {
                let other = self.ctx.name_of(&leader);
                return Step::Failed(format!("{other} has become the leader meanwhile, in term {term}"));
            }
            None => return Step::Wait,
            Some(_) => {}
        }
        if self.ctx.raft.is_transferring_leadership() || !self.ctx.raft.has_committed_in_term() {
            return Step::Wait;
        }
        let why = match self.unfit_to_lead(&to) {
            Some(why) => Some(why),
            None if view.is_some() => Some("did not take over".into()),
            None if waited > TIMEOUT => Some("does not catch up".into()),
            None => None,
        };
        if let Some(why) = why {
            if view.is_some() {
                // The leader is first in the view.
                let members = self.view_members(self.ctx.me.id);
                self.append_view(members);
            }
            return Step::Failed(format!("{name} {why}: {} stays the leader", self.ctx.me.name));
        }
        if self.ctx.raft.matched(&to) + NEAR_ENOUGH < self.ctx.raft.last_index() {
            return Step::Wait;
        }
        // Servers roll back all streaming transactions at this view: give those about to end the time.
        let busy = self.deliverer.fragment_at().is_some_and(|at| self.ctx.now < at + STREAMS_QUIET);
        if view.is_none() && busy && waited <= STREAMS_TIMEOUT {
            return Step::Wait;
        }
        let streams = self.deliverer.open_streams().max(busy.into());
        let members = self.view_members(to);
        *view = self.append_view(members).map(|number| Listing { number, streams });
        if streams > 0 {
            self.ctx.log(Level::Warn, format!("switchover to {name}: {}", rolled_back_text(streams)));
        }
        match self.ctx.raft.transfer_leadership(self.ctx.now, to) {
            Ok(()) => Step::Wait,
            Err(error) => Step::Failed(error.to_string()),
        }
    }

    fn removal_step(&mut self, id: MemberId, name: &str) -> Step {
        let membership = self.ctx.raft.membership();
        if membership.get(&id).is_none() {
            if self.ctx.raft.committed_state().membership.get(&id).is_some() {
                return Step::Wait;
            }
            let (voters, majority) = (membership.voters().count(), membership.majority());
            return Step::Done(match voters {
                1 => format!("{name} is removed: one voter remains"),
                _ => {
                    format!("{name} is removed: {voters} voters remain, and {}", self.commit_needs(majority))
                }
            });
        }
        if !self.ctx.raft.is_leader() {
            return Step::Retry;
        }
        match self.ctx.raft.change_membership(self.ctx.now, membership.without(&id)) {
            Ok(_) | Err(ChangeError::TooEarly | ChangeError::HandingOver) => Step::Wait,
            Err(error) => Step::Failed(error.to_string()),
        }
    }
}

/// The effect on streaming transactions of a second view with the same members.
fn rolled_back_text(streams: usize) -> String {
    let what = if streams == 1 { "transaction was open: it is" } else { "transactions were open: they are" };
    format!("{streams} streaming {what} rolled back (wsrep_trx_fragment_size)")
}

#[cfg(test)]
#[path = "operator_tests.rs"]
mod tests;
