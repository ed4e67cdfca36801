//! What an operator asks for: another leader, a member less, a voter more. Any member takes a command and hands it to the leader,
//! which does it, step by step as the log allows, and answers; each wait is bounded.
//!
//! A switchover places a view first, with the new leader at its head, for proxies write to that one; then leadership
//! goes over, as when a leader leaves. Should that fail, another view puts this member first again.

use super::{Effect, Level, Member, Micros};
use crate::api::LocalState;
use crate::operator::{Answer, Command};
use crate::status::state_comment;
use crate::wire::{FRAME_OPERATOR, Hello, OperatorMessage};
use bytes::Bytes;
use lockstep_core::members::{MemberInfo, Membership, Role};
use lockstep_core::raft::ChangeError;
use lockstep_core::{Index, MemberId, Uuid, ViewUuid};

/// A command is done by then, or is not done.
const PATIENCE: Micros = 10_000_000;
/// A switchover waits for no longer until no streaming transaction is under way: then it rolls back those that are.
const STREAMS_PATIENCE: Micros = 2_000_000;
/// None is where no fragment has come for so long.
const STREAMS_REST: Micros = 500_000;
/// Connections that are renewed take less than this.
const RECONNECT: Micros = 300_000;
/// Links that break and come back are back after so long.
const LINKS_BREAK: Micros = 1_500_000;
/// How long whoever was asked may go on before another leader is asked.
const ASK_ANOTHER: Micros = 2_000_000;
/// An heir that lacks more than this must catch up before anything is kept waiting for it.
const NEAR_ENOUGH: Index = 1000;
/// So many commands at a time.
const COMMANDS: usize = 16;
/// So many removed ones are remembered.
const BARRED: usize = 256;

/// A command that was given to this member.
#[derive(Debug)]
struct Given {
    token: u64,
    command: Command,
    began: Micros,
    /// Who was asked, and when.
    asked: Option<(MemberId, Micros)>,
}

/// Who wants to hear of a [`Task`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asker {
    member: MemberId,
    id: u64,
}

/// What the leader is doing.
#[derive(Debug)]
struct Task {
    /// Nobody: this member has thought of it itself.
    asker: Option<Asker>,
    began: Micros,
    work: Work,
}

/// The view that lists a new leader first.
#[derive(Clone, Copy, Debug)]
struct Listing {
    number: u64,
    /// How many streaming transactions were open, which it ends.
    streams: usize,
}

#[derive(Debug)]
enum Work {
    Switchover { to: MemberId, view: Option<Listing> },
    Remove { id: MemberId, name: String },
    Promote { id: MemberId, name: String },
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Operator {
    given: Vec<Given>,
    tasks: Vec<Task>,
    /// Lives of members that were removed while they were connected: this leader does not let them back.
    barred: Vec<(MemberId, ViewUuid)>,
    /// Since when too few voters are connected, as far as a command that is under way has looked.
    cut_off_since: Option<Micros>,
}

/// How a step of a task ends.
enum Step {
    Wait,
    Done(String),
    Failed(String),
    /// Another leader may be asked.
    Again,
}

/// Its vote would be needed from its first moment on, to agree on that very change, too.
fn would_be_missed(name: &str) -> Step {
    Step::Failed(format!(
        "{name} has not been heard of for some time: as a voter it would be missed for a majority; see to its server first"
    ))
}

impl Member {
    /// A command from the socket, answered by [`Effect::Answer`].
    /// `fresh` names a history, should one begin.
    pub(crate) fn command(&mut self, token: u64, command: Command, fresh: Uuid) {
        let refusal = if !self.connection.is_connected() {
            Some("this member is not connected to a cluster: ask another one")
        } else if self.operator.given.len() >= COMMANDS {
            Some("too many commands are under way: try again soon")
        } else {
            None
        };
        if let Some(text) = refusal {
            let answer = Answer { ok: false, text: text.into(), seconds: 0.0, held: None };
            return self.effects.push(Effect::Answer { token, answer });
        }
        match command {
            Command::Hold => return self.gather(token),
            Command::Release { hold } => return self.release(token, hold),
            Command::Bootstrap => return self.begin_override(token, fresh),
            Command::Switchover { .. } | Command::Remove { .. } | Command::Promote { .. } => {}
        }
        self.operator.given.push(Given { token, command, began: self.now, asked: None });
    }

    /// Whether commands wait for something: rounds come more often then.
    pub(super) fn is_commanded(&self) -> bool {
        !self.operator.given.is_empty() || !self.operator.tasks.is_empty() || self.overriding.is_some()
    }

    /// Whether this connection of a member was ended by a removal.
    pub(super) fn was_removed(&self, hello: &Hello) -> bool {
        self.operator.barred.contains(&(hello.id, hello.view_uuid))
    }

    pub(super) fn operator_message(&mut self, from: MemberId, message: OperatorMessage) {
        match message {
            OperatorMessage::Ask { id, command } => {
                let asker = Asker { member: from, id };
                match Command::parse(&command) {
                    Ok(command) => self.begin(asker, command),
                    Err(text) => self.answer(asker, Step::Failed(text)),
                }
            }
            OperatorMessage::Answer { id, ok, again, text } => {
                let Some(at) = self.operator.given.iter().position(|g| g.token == id) else { return };
                let given = &mut self.operator.given[at];
                if given.asked.is_none_or(|(whom, _)| whom != from) {
                    return;
                }
                if again {
                    given.asked = None;
                } else {
                    self.given_done(at, ok, text);
                }
            }
            OperatorMessage::Leave { text } => {
                if self.raft.leader() == Some(from) {
                    self.log(Level::Error, text.clone());
                    self.give_up(&text);
                }
            }
            about_a_hold => self.on_barrier_message(from, about_a_hold),
        }
    }

    fn given_done(&mut self, at: usize, ok: bool, text: String) {
        let Given { token, began, .. } = self.operator.given.remove(at);
        let seconds = self.now.saturating_sub(began) as f64 / 1e6;
        self.effects.push(Effect::Answer { token, answer: Answer { ok, text, seconds, held: None } });
    }

    pub(super) fn tell_operator(&mut self, to: MemberId, message: OperatorMessage) {
        if to == self.me.id {
            self.operator_message(to, message);
        } else {
            let payload = message.to_bytes();
            self.effects.push(Effect::Send { to, kind: FRAME_OPERATOR, payload });
        }
    }

    fn answer(&mut self, asker: Asker, step: Step) {
        let (ok, again, text) = match step {
            Step::Wait => return,
            Step::Done(text) => (true, false, text),
            Step::Failed(text) => (false, false, text),
            Step::Again => (false, true, String::new()),
        };
        self.tell_operator(asker.member, OperatorMessage::Answer { id: asker.id, ok, again, text });
    }

    /// Everything that is under way goes on.
    pub(super) fn operator_step(&mut self) {
        if !self.is_commanded() {
            self.operator.cut_off_since = None;
            return;
        }
        for task in std::mem::take(&mut self.operator.tasks) {
            self.task_step(task);
        }
        let leader = self.raft.leader().filter(|id| *id == self.me.id || self.peers.contains_key(id));
        // Without a majority nobody will lead soon; but connections may just be renewed.
        let hopeless = self.long_cut_off() && leader.is_none();
        let mut at = 0;
        while at < self.operator.given.len() {
            let Given { token, began, asked, ref command } = self.operator.given[at];
            let waited = self.now.saturating_sub(began);
            if waited > PATIENCE || hopeless && waited > RECONNECT {
                let text = match leader {
                    None => {
                        "no member leads: a majority of the voters is needed (`lockstep status` says who is missing; where those \
                         are gone for good, docs/operating.md, No majority)"
                    }
                    Some(_) => {
                        "the leader has not done it in time, and may yet do it: look at `lockstep status`"
                    }
                };
                self.given_done(at, false, text.into());
                continue;
            }
            at += 1;
            let patient = |(whom, since): (MemberId, Micros)| {
                Some(whom) == leader
                    || self.peers.contains_key(&whom) && self.now.saturating_sub(since) < ASK_ANOTHER
            };
            if let Some(to) = leader.filter(|_| !asked.is_some_and(patient)) {
                let json = serde_json::to_vec(command).unwrap_or_default();
                self.operator.given[at - 1].asked = Some((to, self.now));
                let count = self.operator.given.len();
                self.tell_operator(to, OperatorMessage::Ask { id: token, command: Bytes::from(json) });
                if self.operator.given.len() < count {
                    at -= 1;
                }
            }
        }
    }

    /// Whether too few voters have been connected for longer than links take that break and come back.
    fn long_cut_off(&mut self) -> bool {
        if !self.cut_off() {
            self.operator.cut_off_since = None;
            return false;
        }
        let since = *self.operator.cut_off_since.get_or_insert(self.now);
        let since = self.no_quorum_since.map_or(since, |no_quorum| no_quorum.min(since));
        self.now.saturating_sub(since) > LINKS_BREAK
    }

    /// The leader's part.
    fn begin(&mut self, asker: Asker, command: Command) {
        if !self.raft.is_leader() {
            return self.answer(asker, Step::Again);
        }
        // Whoever has the socket of a member may command; a connection alone makes none.
        if self.raft.membership().get(&asker.member).is_none() {
            return self.answer(asker, Step::Failed("it does not come from a member".into()));
        }
        if self.operator.tasks.len() >= COMMANDS {
            return self
                .answer(asker, Step::Failed("too many commands are under way: try again soon".into()));
        }
        let work = match command {
            Command::Switchover { to } => self.plan_switchover(&to),
            Command::Remove { name, force } => self.plan_removal(&name, force),
            Command::Promote { name } => self.plan_promotion(&name),
            Command::Hold | Command::Release { .. } | Command::Bootstrap => {
                Err(Step::Failed("this is done by the member that is asked".into()))
            }
        };
        match work {
            Ok(work) => self.operator.tasks.push(Task { asker: Some(asker), began: self.now, work }),
            Err(step) => self.answer(asker, step),
        }
    }

    /// The member of this name, or id. Of several of one name the one that is not connected, where it is one.
    fn find_member(&self, name: &str, absent: bool) -> Result<MemberInfo, Step> {
        let membership = self.raft.membership();
        let all: Vec<&MemberInfo> =
            membership.members.iter().filter(|m| m.name == name || m.id.to_string() == name).collect();
        let gone = |m: &&MemberInfo| m.id != self.me.id && !self.peers.contains_key(&m.id);
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
        let heir = self.find_member(to, false)?;
        let MemberInfo { id, name, .. } = heir;
        if id == self.me.id {
            self.keep_leadership();
            let but = self.proxies_avoid(&id);
            return Err(Step::Done(format!("{name} leads already, in term {}{but}", self.raft.term())));
        }
        if let Some(why) = self.unfit_to_lead(&id) {
            return Err(Step::Failed(format!("{name} {why}")));
        }
        if self.is_kept_from(&id) {
            return Err(Step::Failed(format!(
                "entries are kept from the server of {name} (apply.paused, apply.delay, apply.until), so that it refuses \
                 writes and leads no longer than it must. Before it is to lead, there: SET GLOBAL wsrep_provider_options = \
                 'apply.paused=no; apply.delay=0; apply.until=none'"
            )));
        }
        if self.health_of(&id).is_some_and(|health| health.state == LocalState::Joining) {
            return Err(Step::Failed(format!(
                "{name} is Joining: its server waits for its data, and cannot write before it has them. Wait until `lockstep \
                 status` shows it Synced"
            )));
        }
        if self.operator.tasks.iter().any(|t| matches!(t.work, Work::Switchover { .. })) {
            return Err(Step::Failed("another switchover is under way: try again soon".into()));
        }
        self.log(Level::Info, format!("switchover: {name} is to lead, by an operator's command"));
        Ok(Work::Switchover { to: id, view: None })
    }

    /// It may be wanted: a member leads as well while it is desynced. But those who wonder where writes go are told.
    fn proxies_avoid(&self, id: &MemberId) -> String {
        match self.health_of(id).map(|health| health.state) {
            None | Some(LocalState::Synced) => String::new(),
            Some(LocalState::Donor) => {
                ". But it is Donor/Desynced (wsrep_desync=ON there, or it gives a copy of its data): \
                                        proxies send nothing to it for as long"
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

    /// Leadership goes to another member, because this one has found that it should not lead.
    pub(super) fn step_down(&mut self, heir: MemberId) {
        if !self.operator.tasks.iter().any(|t| matches!(t.work, Work::Switchover { .. })) {
            let work = Work::Switchover { to: heir, view: None };
            self.operator.tasks.push(Task { asker: None, began: self.now, work });
        }
    }

    /// Whether entries are kept from a member's server, as far as it has said: whoever else can lead is to lead instead.
    pub(super) fn is_kept_from(&self, id: &MemberId) -> bool {
        self.peers.get(id).and_then(|peer| peer.health).is_some_and(|health| health.held_back)
    }

    /// Why a member should not be made the leader, if so.
    pub(super) fn unfit_to_lead(&self, id: &MemberId) -> Option<String> {
        let membership = self.raft.membership();
        let member = membership.get(id)?;
        if member.arbitrator {
            return Some("is an arbitrator: it leads only for a moment, and of itself".into());
        }
        let Some(peer) = self.peers.get(id) else {
            return Some("is not connected".into());
        };
        if !member.role.votes() {
            return Some(match member.wants_vote {
                true => "does not vote yet: wait until `lockstep status` shows it as a voter".into(),
                false => "does not vote (member.vote=no, pc.weight=0), so it cannot lead".into(),
            });
        }
        if peer.leaving() {
            return Some("is about to leave".into());
        }
        (!self.responds(id)).then(|| "has not been heard of for some time".into())
    }

    fn plan_removal(&mut self, name: &str, force: bool) -> Result<Work, Step> {
        let member = self.find_member(name, true)?;
        let (id, name) = (member.id, member.name.clone());
        if id == self.me.id {
            return Err(Step::Failed(format!(
                "{name} leads: let another member lead first (`lockstep switchover --to NAME`)"
            )));
        }
        let membership = self.raft.membership();
        let rest = membership.without(&id);
        let connected = rest.voters().filter(|v| *v == self.me.id || self.peers.contains_key(v)).count();
        if connected < rest.majority() {
            return Err(Step::Failed(format!(
                "without {name} {connected} of {} voters would be connected, and {} be needed: remove those that are \
                 not connected first",
                rest.voters().count(),
                rest.majority()
            )));
        }
        if let Some(peer) = self.peers.get(&id) {
            if !force {
                return Err(Step::Failed(format!(
                    "{name} is connected: stop its server, which takes it out of the voters in good order; --force \
                     removes it all the same"
                )));
            }
            let life = (id, peer.hello.view_uuid);
            self.operator.barred.truncate(BARRED - 1);
            self.operator.barred.insert(0, life);
            let text = "an operator has removed this member from the cluster: it refuses everything until its server \
                        is started again, and then joins as a new one";
            self.tell_operator(id, OperatorMessage::Leave { text: text.into() });
        }
        self.log(Level::Info, format!("{name} is removed, by an operator's command"));
        Ok(Work::Remove { id, name })
    }

    fn plan_promotion(&mut self, name: &str) -> Result<Work, Step> {
        let member = self.find_member(name, false)?;
        let (id, name) = (member.id, member.name.clone());
        if member.role.votes() {
            return Err(Step::Done(format!("{name} votes already")));
        }
        let Some(peer) = self.peers.get(&id) else {
            return Err(Step::Failed(format!("{name} is not connected: start its server first")));
        };
        if peer.leaving() {
            return Err(Step::Failed(format!("{name} is about to leave")));
        }
        if !self.responds(&id) {
            return Err(would_be_missed(&name));
        }
        self.log(Level::Info, format!("{name} is to vote, by an operator's command"));
        Ok(Work::Promote { id, name })
    }

    fn promotion_step(&mut self, id: MemberId, name: &str) -> Step {
        let votes = |membership: &Membership| membership.get(&id).is_some_and(|m| m.role.votes());
        let membership = self.raft.membership();
        if votes(&membership) {
            if !votes(&self.raft.committed_state().membership) {
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
        if !self.raft.is_leader() {
            return Step::Again;
        }
        let Some(member) = membership.get(&id) else {
            return Step::Failed(format!("{name} is no member any more"));
        };
        if self.peers.get(&id).is_none_or(|peer| peer.leaving()) {
            return Step::Failed(format!("{name} has left"));
        }
        if !self.responds(&id) {
            return would_be_missed(name);
        }
        if !self.has_caught_up(&id) {
            return Step::Wait;
        }
        let role = if member.arbitrator { Role::Arbitrator } else { Role::Voter };
        match self.raft.change_membership(self.now, membership.with(MemberInfo { role, ..member.clone() })) {
            Ok(_) | Err(ChangeError::TooEarly | ChangeError::HandingOver) => Step::Wait,
            Err(error) => Step::Failed(error.to_string()),
        }
    }

    fn task_step(&mut self, mut task: Task) {
        let waited = self.now.saturating_sub(task.began);
        let late = waited > PATIENCE;
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
                // Before whoever was given the command loses patience.
                let tired = self.now.saturating_sub(task.began) > PATIENCE / 2;
                let waits = matches!(step, Step::Wait) && tired && !self.has_caught_up(id);
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
        match (step, task.asker) {
            (Step::Wait, _) => self.operator.tasks.push(task),
            (step, Some(asker)) => self.answer(asker, step),
            (Step::Done(text), None) => self.log(Level::Info, text),
            (Step::Failed(text), None) => self.log(Level::Warn, text),
            (Step::Again, None) => {}
        }
    }

    fn switchover_step(&mut self, to: MemberId, view: &mut Option<Listing>, waited: Micros) -> Step {
        let name = self.name_of(&to);
        let term = self.raft.term();
        match self.raft.leader() {
            Some(leader) if leader == to => {
                let listed =
                    view.map_or(String::new(), |view| format!("; view {} lists it first", view.number));
                let streams = match view.map_or(0, |view| view.streams) {
                    0 => String::new(),
                    streams => format!(". {}", rolled_back(streams)),
                };
                let writers = match self.raft.policy().is_weak() {
                    true => format!(
                        ". Under {} it alone takes writes: clients that write elsewhere get error 1180 until they go there",
                        self.raft.policy().name()
                    ),
                    false => String::new(),
                };
                let but = self.proxies_avoid(&to);
                return Step::Done(format!("{name} leads in term {term}{listed}{streams}{writers}{but}"));
            }
            Some(leader) if leader != self.me.id => {
                let other = self.name_of(&leader);
                return Step::Failed(format!("{other} has come to lead meanwhile, in term {term}"));
            }
            None => return Step::Wait,
            Some(_) => {}
        }
        if self.raft.is_transferring_leadership() || !self.raft.has_committed_in_term() {
            return Step::Wait;
        }
        let why = match self.unfit_to_lead(&to) {
            Some(why) => Some(why),
            None if view.is_some() => Some("did not take over".into()),
            None if waited > PATIENCE => Some("does not catch up".into()),
            None => None,
        };
        if let Some(why) = why {
            if view.is_some() {
                // Whoever leads is first.
                let members = self.who_is_there(self.me.id);
                self.place_view(members);
            }
            return Step::Failed(format!("{name} {why}: {} goes on leading", self.me.name));
        }
        if self.raft.matched(&to) + NEAR_ENOUGH < self.raft.last_index() {
            return Step::Wait;
        }
        // Servers roll all streaming transactions back at this view: those that are about to end are let end.
        let busy = self.deliverer.fragment_at().is_some_and(|at| self.now < at + STREAMS_REST);
        if view.is_none() && busy && waited <= STREAMS_PATIENCE {
            return Step::Wait;
        }
        let streams = self.deliverer.open_streams().max(busy.into());
        let members = self.who_is_there(to);
        *view = self.place_view(members).map(|number| Listing { number, streams });
        if streams > 0 {
            self.log(Level::Warn, format!("switchover to {name}: {}", rolled_back(streams)));
        }
        match self.raft.transfer_leadership(self.now, to) {
            Ok(()) => Step::Wait,
            Err(error) => Step::Failed(error.to_string()),
        }
    }

    fn removal_step(&mut self, id: MemberId, name: &str) -> Step {
        let membership = self.raft.membership();
        if membership.get(&id).is_none() {
            if self.raft.committed_state().membership.get(&id).is_some() {
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
        if !self.raft.is_leader() {
            return Step::Again;
        }
        match self.raft.change_membership(self.now, membership.without(&id)) {
            Ok(_) | Err(ChangeError::TooEarly | ChangeError::HandingOver) => Step::Wait,
            Err(error) => Step::Failed(error.to_string()),
        }
    }
}

/// What a view with the members of the one before makes of streaming transactions.
fn rolled_back(streams: usize) -> String {
    let what = if streams == 1 { "transaction was open: it is" } else { "transactions were open: they are" };
    format!("{streams} streaming {what} rolled back (wsrep_trx_fragment_size)")
}

#[cfg(test)]
#[path = "operator_tests.rs"]
mod tests;
