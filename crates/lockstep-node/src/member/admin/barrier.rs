//! A barrier: all members stop at one seqno for a moment, so that equal snapshots of their databases can be taken
//! (`lockstep verify`).
//!
//! The member that runs the command asks all members, including itself, to begin no further commit. Each replies with
//! the last seqno it has begun to commit. The highest of these is the barrier's seqno: one member has reached it, so it
//! is in the log and all will get there. Each member then continues up to that seqno, reports when its server has
//! finished it, and waits for the release. On a timeout it continues by itself and says so at the release, so that the
//! snapshots do not count as equal.
//!
//! Only the beginning of commits waits, for some milliseconds: execution, ordering and applying go on.
//!
//! Members that lag because of `apply.delay` and the like are left out: they would not arrive in time, and they differ
//! by design.

use crate::api::CommitBarrier;
use crate::member::{Level, Member, Micros};
use crate::operator::{Answer, Held as HeldAnswer, HeldMember};
use crate::wire::OperatorMessage;
use lockstep_core::{MemberId, SEQNO_UNDEFINED, Seqno};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long a member waits at the barrier at most.
const HELD_MAX: Micros = 2_500_000;
/// If not all members have arrived after this time, the attempt fails.
const ARRIVAL_TIMEOUT: Micros = 1_500_000;
/// The command is refused if a member lags by more.
const LAG_MAX: i64 = 1000;

/// Why a member with an apply hold lags.
const HELD_BACK: &str = "held back by apply.paused, apply.delay or apply.until";

/// This member's own wait at a barrier.
#[derive(Debug)]
struct OwnWait {
    by: MemberId,
    id: u64,
    until: Option<Seqno>,
    deadline: Micros,
    reported: bool,
}

/// A barrier that this member runs.
#[derive(Debug)]
struct RunningBarrier {
    token: u64,
    id: u64,
    began: Micros,
    /// Per member: the last seqno it has begun to commit, once reported, and whether it has arrived at `seqno`.
    members: BTreeMap<MemberId, (Option<Seqno>, bool)>,
    seqno: Option<Seqno>,
    /// The token of the release command, and per member whether it was still held at the release.
    release: Option<u64>,
    released: BTreeMap<MemberId, bool>,
}

/// See the module's documentation.
#[derive(Default)]
pub(in crate::member) struct Barrier {
    /// Holds the front end's commits during a barrier.
    commits: Option<Arc<dyn CommitBarrier>>,
    own_wait: Option<OwnWait>,
    running: Option<RunningBarrier>,
    ids: u64,
}

impl Member {
    /// Begins the use of the front end's barrier.
    pub(crate) fn set_commit_barrier(&mut self, commits: Option<Arc<dyn CommitBarrier>>) {
        self.admin.barrier.commits = commits;
    }

    pub(in crate::member) fn is_at_barrier(&self) -> bool {
        self.admin.barrier.own_wait.is_some() || self.admin.barrier.running.is_some()
    }

    fn answer_command(&mut self, token: u64, ok: bool, text: &str, began: Micros, held: Option<HeldAnswer>) {
        let seconds = self.ctx.now.saturating_sub(began) as f64 / 1e6;
        let answer = Answer { ok, text: text.into(), seconds, held };
        self.ctx.out.push(crate::effect::Effect::Answer { token, answer });
    }

    /// The command `hold`.
    pub(in crate::member) fn begin_barrier(&mut self, token: u64) {
        if self.admin.barrier.running.is_some() || self.admin.barrier.own_wait.is_some() {
            return self.answer_command(
                token,
                false,
                "another `lockstep verify` is running: try again soon",
                self.ctx.now,
                None,
            );
        }
        if !self.ctx.connection.is_primary() {
            return self.answer_command(
                token,
                false,
                "this member is not in a primary component",
                self.ctx.now,
                None,
            );
        }
        let view = self.ctx.raft.tail_state().view.clone();
        let membership = self.ctx.raft.membership();
        let mut members = BTreeMap::new();
        for member in &view.members {
            if membership.get(&member.id).is_some_and(|m| m.arbitrator) {
                continue;
            }
            let finished = match member.id == self.ctx.me.id {
                true => Some(self.ctx.finished()),
                false => self
                    .ctx
                    .peers
                    .get(&member.id)
                    .and_then(|p| p.health)
                    .filter(|h| h.has_state)
                    .map(|h| h.finished),
            };
            match finished.map(|finished| self.ctx.lag_of(finished)) {
                Some(lag) if lag > 0 && self.member_is_held_back(&member.id) => {}
                Some(lag) if lag <= LAG_MAX => {
                    members.insert(member.id, (None, false));
                }
                Some(lag) => {
                    let text = format!(
                        "{} is behind by {lag} transactions: verify when it has caught up",
                        member.name
                    );
                    return self.answer_command(token, false, &text, self.ctx.now, None);
                }
                None => {
                    let text = format!("{} has not got the state yet: verify when it is Synced", member.name);
                    return self.answer_command(token, false, &text, self.ctx.now, None);
                }
            }
        }
        if members.is_empty() {
            return self.answer_command(
                token,
                false,
                &format!("all members are {HELD_BACK}"),
                self.ctx.now,
                None,
            );
        }
        self.admin.barrier.ids += 1;
        let id = self.ctx.me.incarnation ^ self.admin.barrier.ids;
        let ids: Vec<MemberId> = members.keys().copied().collect();
        self.admin.barrier.running = Some(RunningBarrier {
            token,
            id,
            began: self.ctx.now,
            members,
            seqno: None,
            release: None,
            released: BTreeMap::new(),
        });
        for to in ids {
            self.send_operator(to, OperatorMessage::Hold { id });
        }
    }

    /// Whether an apply hold keeps entries from the server of this member, or another one.
    fn member_is_held_back(&self, id: &MemberId) -> bool {
        if *id == self.ctx.me.id { self.ctx.is_held_back() } else { self.peer_is_held_back(id) }
    }

    /// The command `release`.
    pub(in crate::member) fn release(&mut self, token: u64, id: u64) {
        match &mut self.admin.barrier.running {
            Some(running) if running.id == id && running.release.is_none() => {
                running.release = Some(token);
                let members = running.members.keys().copied().collect();
                self.release_members(id, members);
            }
            _ => self.answer_command(
                token,
                false,
                "the barrier has timed out: the members have gone on",
                self.ctx.now,
                None,
            ),
        }
    }

    fn release_members(&mut self, id: u64, members: Vec<MemberId>) {
        for to in members {
            self.send_operator(to, OperatorMessage::Release { id });
        }
    }

    /// Handles the barrier's messages between members.
    pub(in crate::member) fn on_barrier_message(&mut self, from: MemberId, message: OperatorMessage) {
        match message {
            OperatorMessage::Hold { id } => {
                let seqno = match (&self.admin.barrier.commits, &self.admin.barrier.own_wait) {
                    // Only a member may hold others; a connection alone is not enough.
                    (Some(hold), None)
                        if self.ctx.connection.is_primary()
                            && self.ctx.raft.membership().get(&from).is_some() =>
                    {
                        let deadline = self.ctx.now + HELD_MAX;
                        self.admin.barrier.own_wait =
                            Some(OwnWait { by: from, id, until: None, deadline, reported: false });
                        hold.close()
                    }
                    _ => SEQNO_UNDEFINED,
                };
                self.send_operator(from, OperatorMessage::Held { id, seqno });
            }
            OperatorMessage::Held { id, seqno } => {
                if let Some(running) = self.admin.barrier.running.as_mut().filter(|g| g.id == id)
                    && let Some(member) = running.members.get_mut(&from)
                {
                    member.0 = Some(seqno);
                }
                self.running_barrier_step();
            }
            OperatorMessage::HoldAt { id, seqno } => {
                if let (Some(hold), Some(own_wait)) =
                    (&self.admin.barrier.commits, self.admin.barrier.own_wait.as_mut())
                    && (own_wait.by, own_wait.id) == (from, id)
                {
                    own_wait.until = Some(seqno);
                    hold.until(seqno);
                }
            }
            OperatorMessage::Standing { id } => {
                if let Some(running) = self.admin.barrier.running.as_mut().filter(|g| g.id == id)
                    && let Some(member) = running.members.get_mut(&from)
                {
                    member.1 = true;
                }
                self.running_barrier_step();
            }
            OperatorMessage::Release { id } => {
                let mine =
                    self.admin.barrier.own_wait.take_if(|own_wait| (own_wait.by, own_wait.id) == (from, id));
                let held = match (&self.admin.barrier.commits, mine) {
                    (Some(hold), Some(_)) => hold.open(),
                    _ => false,
                };
                self.send_operator(from, OperatorMessage::Released { id, held });
            }
            OperatorMessage::Released { id, held } => {
                if let Some(running) = self.admin.barrier.running.as_mut().filter(|g| g.id == id) {
                    running.released.insert(from, held);
                }
                self.running_barrier_step();
            }
            _ => {}
        }
    }

    /// Handles timeouts, arrival and lost connections.
    pub(in crate::member) fn barrier_step(&mut self) {
        if let Some(own_wait) = &self.admin.barrier.own_wait {
            let (by, id) = (own_wait.by, own_wait.id);
            let here = by == self.ctx.me.id || self.ctx.peers.contains_key(&by);
            if self.ctx.now >= own_wait.deadline || !here || !self.ctx.connection.is_primary() {
                self.admin.barrier.own_wait = None;
                if let Some(hold) = &self.admin.barrier.commits {
                    hold.open();
                }
                self.ctx.log(
                    Level::Warn,
                    "the barrier of `lockstep verify` has timed out: commits go on".to_string(),
                );
            } else if !own_wait.reported && own_wait.until.is_some_and(|seqno| self.ctx.finished() >= seqno) {
                if let Some(own_wait) = &mut self.admin.barrier.own_wait {
                    own_wait.reported = true;
                }
                self.send_operator(by, OperatorMessage::Standing { id });
            }
        }
        self.running_barrier_step();
    }

    fn running_barrier_step(&mut self) {
        let Some(running) = &mut self.admin.barrier.running else { return };
        let (token, id, began) = (running.token, running.id, running.began);
        let late = self.ctx.now.saturating_sub(began) > ARRIVAL_TIMEOUT;
        if let Some(release) = running.release {
            let all = running.released.len() == running.members.len();
            if all || self.ctx.now.saturating_sub(began) > HELD_MAX + ARRIVAL_TIMEOUT {
                let held = all && running.released.values().all(|held| *held);
                self.admin.barrier.running = None;
                let text = match held {
                    true => "all members were held until now",
                    false => {
                        "not all members were held until now: the data read may be of different seqnos; try \
                         again"
                    }
                };
                self.answer_command(release, held, text, began, None);
            }
            return;
        }
        // The hold command has been answered: the members' own timeouts end the barrier.
        if token == 0 {
            if self.ctx.now.saturating_sub(began) > HELD_MAX + ARRIVAL_TIMEOUT {
                self.admin.barrier.running = None;
            }
            return;
        }
        if let Some((who, _)) = running.members.iter().find(|(_, m)| m.0.is_some_and(|seqno| seqno < 0)) {
            let who = *who;
            return self.fail_barrier(format!(
                "{} cannot hold its commits now: try again soon",
                self.ctx.name_of(&who)
            ));
        }
        let reported_seqnos: Option<Vec<Seqno>> = running.members.values().map(|m| m.0).collect();
        if let (Some(reported_seqnos), None) = (reported_seqnos, running.seqno) {
            let seqno = reported_seqnos.into_iter().max().unwrap_or(SEQNO_UNDEFINED);
            running.seqno = Some(seqno);
            let members: Vec<MemberId> = running.members.keys().copied().collect();
            for to in members {
                self.send_operator(to, OperatorMessage::HoldAt { id, seqno });
            }
            return;
        }
        if let Some(seqno) = running.seqno.filter(|_| running.members.values().all(|m| m.1)) {
            running.token = 0;
            let state = self.ctx.raft.tail_state();
            let view = state.view.clone();
            let here = |id: &MemberId| {
                self.admin.barrier.running.as_ref().is_some_and(|g| g.members.contains_key(id))
            };
            let members = view
                .members
                .iter()
                .filter(|m| here(&m.id))
                .map(|m| HeldMember {
                    name: m.name.clone(),
                    id: m.id.to_string(),
                    incoming: m.incoming.clone(),
                })
                .collect();
            let held = HeldAnswer { id, history: state.history.to_string(), seqno, members };
            return self.answer_command(
                token,
                true,
                &format!("all members are held at seqno {seqno}"),
                began,
                Some(held),
            );
        }
        if late {
            let waiting = |m: &(Option<Seqno>, bool)| m.0.is_none() || !m.1;
            let who: Vec<MemberId> =
                running.members.iter().filter(|(_, m)| waiting(m)).map(|(id, _)| *id).collect();
            // Members under an apply hold lacked nothing when the barrier began, and do now.
            let (held_back, slow): (Vec<_>, Vec<_>) = who.iter().partition(|id| self.member_is_held_back(id));
            let names =
                |of: &[&MemberId]| of.iter().map(|id| self.ctx.name_of(id)).collect::<Vec<_>>().join(", ");
            let mut why = Vec::new();
            if !slow.is_empty() {
                let who = names(&slow);
                why.push(format!(
                    "{who} did not reach the barrier in time (a long statement, a lock, a slow member?): try again"
                ));
            }
            if !held_back.is_empty() {
                let who = names(&held_back);
                why.push(format!(
                    "{who} did not reach the barrier in time, {HELD_BACK}: try again, and it is left out"
                ));
            }
            self.fail_barrier(why.join("; "));
        }
    }

    fn fail_barrier(&mut self, text: String) {
        // Taken first: this member's own answer arrives at once.
        if let Some(RunningBarrier { id, token, began, members, .. }) = self.admin.barrier.running.take() {
            self.release_members(id, members.into_keys().collect());
            self.answer_command(token, false, &text, began, None);
        }
    }
}

#[cfg(test)]
#[path = "barrier_tests.rs"]
mod tests;
