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

use crate::api::{CommitBarrier, Level};
use crate::effect::Effect;
use crate::member::context::Context;
use crate::operator::{Answer, Held as HeldAnswer, HeldMember};
use crate::wire::OperatorMessage;
use lockstep_core::{MemberId, Micros, SEQNO_UNDEFINED, Seqno};
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

impl Barrier {
    /// Begins the use of the front end's barrier.
    pub(in crate::member) fn set_commits(&mut self, commits: Option<Arc<dyn CommitBarrier>>) {
        self.commits = commits;
    }

    pub(in crate::member) fn is_active(&self) -> bool {
        self.own_wait.is_some() || self.running.is_some()
    }

    /// The command `hold`.
    pub(in crate::member) fn begin(&mut self, ctx: &mut Context, token: u64) {
        if self.running.is_some() || self.own_wait.is_some() {
            return refuse(ctx, token, "another `lockstep verify` is running: try again soon");
        }
        if !ctx.connection().is_primary() {
            return refuse(ctx, token, "this member is not in a primary component");
        }
        let view = ctx.raft.tail_state().view.clone();
        let membership = ctx.raft.membership();
        let mut members = BTreeMap::new();
        for member in &view.members {
            if membership.get(&member.id).is_some_and(|m| m.arbitrator) {
                continue;
            }
            let finished = match member.id == ctx.me().id {
                true => Some(ctx.finished()),
                false => ctx.peers.health_of(&member.id).filter(|h| h.has_state).map(|h| h.finished),
            };
            match finished.map(|finished| ctx.lag_of(finished)) {
                Some(lag) if lag > 0 && ctx.member_is_held_back(&member.id) => {}
                Some(lag) if lag <= LAG_MAX => {
                    members.insert(member.id, (None, false));
                }
                Some(lag) => {
                    let text = format!(
                        "{} is behind by {lag} transactions: verify when it has caught up",
                        member.name
                    );
                    return refuse(ctx, token, &text);
                }
                None => {
                    let text = format!("{} has not got the state yet: verify when it is Synced", member.name);
                    return refuse(ctx, token, &text);
                }
            }
        }
        if members.is_empty() {
            return refuse(ctx, token, &format!("all members are {HELD_BACK}"));
        }
        self.ids += 1;
        let id = ctx.me().incarnation ^ self.ids;
        let ids: Vec<MemberId> = members.keys().copied().collect();
        self.running = Some(RunningBarrier {
            token,
            id,
            began: ctx.now(),
            members,
            seqno: None,
            release: None,
            released: BTreeMap::new(),
        });
        for to in ids {
            ctx.send_operator(to, OperatorMessage::CloseBarrier { id });
        }
    }

    /// The command `release`.
    pub(in crate::member) fn release(&mut self, ctx: &mut Context, token: u64, id: u64) {
        match &mut self.running {
            Some(running) if running.id == id && running.release.is_none() => {
                running.release = Some(token);
                let members = running.members.keys().copied().collect();
                Self::release_members(ctx, id, members);
            }
            _ => refuse(ctx, token, "the barrier has timed out: the members have gone on"),
        }
    }

    fn release_members(ctx: &mut Context, id: u64, members: Vec<MemberId>) {
        for to in members {
            ctx.send_operator(to, OperatorMessage::OpenBarrier { id });
        }
    }

    /// Handles the barrier's messages between members.
    pub(in crate::member) fn on_message(
        &mut self,
        ctx: &mut Context,
        from: MemberId,
        message: OperatorMessage,
    ) {
        match message {
            OperatorMessage::CloseBarrier { id } => {
                let seqno = match (&self.commits, &self.own_wait) {
                    // Only a member may hold others; a connection alone is not enough.
                    (Some(hold), None)
                        if ctx.connection().is_primary() && ctx.raft.membership().get(&from).is_some() =>
                    {
                        let deadline = ctx.now() + HELD_MAX;
                        self.own_wait =
                            Some(OwnWait { by: from, id, until: None, deadline, reported: false });
                        hold.close()
                    }
                    _ => SEQNO_UNDEFINED,
                };
                ctx.send_operator(from, OperatorMessage::BarrierClosed { id, seqno });
            }
            OperatorMessage::BarrierClosed { id, seqno } => {
                if let Some(running) = self.running.as_mut().filter(|g| g.id == id)
                    && let Some(member) = running.members.get_mut(&from)
                {
                    member.0 = Some(seqno);
                }
                self.running_step(ctx);
            }
            OperatorMessage::SetBarrier { id, seqno } => {
                if let (Some(hold), Some(own_wait)) = (&self.commits, self.own_wait.as_mut())
                    && (own_wait.by, own_wait.id) == (from, id)
                {
                    own_wait.until = Some(seqno);
                    hold.until(seqno);
                }
            }
            OperatorMessage::BarrierReached { id } => {
                if let Some(running) = self.running.as_mut().filter(|g| g.id == id)
                    && let Some(member) = running.members.get_mut(&from)
                {
                    member.1 = true;
                }
                self.running_step(ctx);
            }
            OperatorMessage::OpenBarrier { id } => {
                let mine = self.own_wait.take_if(|own_wait| (own_wait.by, own_wait.id) == (from, id));
                let held = match (&self.commits, mine) {
                    (Some(hold), Some(_)) => hold.open(),
                    _ => false,
                };
                ctx.send_operator(from, OperatorMessage::BarrierOpened { id, held });
            }
            OperatorMessage::BarrierOpened { id, held } => {
                if let Some(running) = self.running.as_mut().filter(|g| g.id == id) {
                    running.released.insert(from, held);
                }
                self.running_step(ctx);
            }
            _ => {}
        }
    }

    /// The part of a member that waits at a barrier: handles arrival, timeout, and the loss of the barrier's leader.
    pub(in crate::member) fn own_wait_step(&mut self, ctx: &mut Context) {
        if let Some(own_wait) = &self.own_wait {
            let (by, id) = (own_wait.by, own_wait.id);
            let here = by == ctx.me().id || ctx.peers.contains_key(&by);
            if ctx.now() >= own_wait.deadline || !here || !ctx.connection().is_primary() {
                self.own_wait = None;
                if let Some(hold) = &self.commits {
                    hold.open();
                }
                ctx.log(
                    Level::Warn,
                    "the barrier of `lockstep verify` has timed out: commits go on".to_string(),
                );
            } else if !own_wait.reported && own_wait.until.is_some_and(|seqno| ctx.finished() >= seqno) {
                if let Some(own_wait) = &mut self.own_wait {
                    own_wait.reported = true;
                }
                ctx.send_operator(by, OperatorMessage::BarrierReached { id });
            }
        }
    }

    /// The part of the member that runs a barrier: handles reports and timeouts.
    pub(in crate::member) fn running_step(&mut self, ctx: &mut Context) {
        let Some(running) = &mut self.running else { return };
        let (token, id, began) = (running.token, running.id, running.began);
        let late = ctx.now().saturating_sub(began) > ARRIVAL_TIMEOUT;
        if let Some(release) = running.release {
            let all = running.released.len() == running.members.len();
            if all || ctx.now().saturating_sub(began) > HELD_MAX + ARRIVAL_TIMEOUT {
                let held = all && running.released.values().all(|held| *held);
                self.running = None;
                let text = match held {
                    true => "all members were held until now",
                    false => {
                        "not all members were held until now: the data read may be of different seqnos; try \
                         again"
                    }
                };
                answer(ctx, release, held, text, began, None);
            }
            return;
        }
        // The hold command has been answered: the members' own timeouts end the barrier.
        if token == 0 {
            if ctx.now().saturating_sub(began) > HELD_MAX + ARRIVAL_TIMEOUT {
                self.running = None;
            }
            return;
        }
        if let Some((who, _)) = running.members.iter().find(|(_, m)| m.0.is_some_and(|seqno| seqno < 0)) {
            let who = *who;
            let text = format!("{} cannot hold its commits now: try again soon", ctx.name_of(&who));
            return self.fail(ctx, &text);
        }
        let reported_seqnos: Option<Vec<Seqno>> = running.members.values().map(|m| m.0).collect();
        if let (Some(reported_seqnos), None) = (reported_seqnos, running.seqno) {
            let seqno = reported_seqnos.into_iter().max().unwrap_or(SEQNO_UNDEFINED);
            running.seqno = Some(seqno);
            let members: Vec<MemberId> = running.members.keys().copied().collect();
            for to in members {
                ctx.send_operator(to, OperatorMessage::SetBarrier { id, seqno });
            }
            return;
        }
        if let Some(seqno) = running.seqno.filter(|_| running.members.values().all(|m| m.1)) {
            running.token = 0;
            let state = ctx.raft.tail_state();
            let view = state.view.clone();
            let here = |id: &MemberId| self.running.as_ref().is_some_and(|g| g.members.contains_key(id));
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
            return answer(
                ctx,
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
            let (held_back, slow): (Vec<_>, Vec<_>) = who.iter().partition(|id| ctx.member_is_held_back(id));
            let names = |of: &[&MemberId]| of.iter().map(|id| ctx.name_of(id)).collect::<Vec<_>>().join(", ");
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
            self.fail(ctx, &why.join("; "));
        }
    }

    fn fail(&mut self, ctx: &mut Context, text: &str) {
        if let Some(RunningBarrier { id, token, began, members, .. }) = self.running.take() {
            Self::release_members(ctx, id, members.into_keys().collect());
            answer(ctx, token, false, text, began, None);
        }
    }
}

/// Answers a command that was just given.
fn refuse(ctx: &mut Context, token: u64, text: &str) {
    let now = ctx.now();
    answer(ctx, token, false, text, now, None);
}

fn answer(ctx: &mut Context, token: u64, ok: bool, text: &str, began: Micros, held: Option<HeldAnswer>) {
    let seconds = ctx.now().saturating_sub(began) as f64 / 1e6;
    let answer = Answer { ok, text: text.into(), seconds, held };
    ctx.emit(Effect::Answer { token, answer });
}

#[cfg(test)]
#[path = "barrier_tests.rs"]
mod tests;
