//! Forced bootstrap: an operator lets this member go on without the majority (`pc.bootstrap`, `lockstep bootstrap`).
//! Also what a member does that meets a branch which left its own.
//!
//! The member queries the log tails as a candidate does, on connected learners, too. A member that would not vote for
//! this one has more of the log, or knows a leader; then the command belongs there. Entries that no connected member
//! has are lost to the branch. Only the operator can know that the other members are not running.
//!
//! A member of the old branch may learn of the new one while it is not Primary. If it has committed nothing that the
//! branch lacks, it stops: its next start quarantines its log, and it joins as a new member.

use crate::api::{FrontEnd, Level};
use crate::effect::{Effect, QuarantineRequest, Superseded};
use crate::member::context::ConnectionState;
use crate::member::context::Context;
use crate::operator::Answer;
use crate::wire::Hello;
use lockstep_core::branch::Branch;
use lockstep_core::members::Role;
use lockstep_core::{Gtid, Index, Micros, Term, Uuid};

/// By then, connected members have said whether they would vote for this one.
const TIMEOUT: Micros = 4_000_000;
/// How often members that have not answered are asked again.
const ASK_AGAIN: Micros = 500_000;
/// A member with a log tail beyond the branch's beginning gives up its log after this long without a majority of its
/// own log's members.
const GIVE_UP_LOG_AFTER: Micros = 10_000_000;
/// How often a member logs that it does not give up its log.
const BRANCH_LOG_INTERVAL: Micros = 60_000_000;

/// This member's part in branches.
#[derive(Debug, Default)]
pub(in crate::member) struct Branches {
    /// An operator's forced bootstrap of this member is under way.
    forced: Option<ForcedBootstrap>,
    /// Earliest time to log again that there is a branch for which this member does not give up its log.
    log_at: Micros,
}

/// The outcome of a meeting with a branch that left this member's log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::member) enum Meeting {
    /// This member is Primary, or not connected: the meeting has no consequence.
    None,
    /// This member does not give up its log, and has logged why.
    KeepsLog,
    /// This member gives up its log: it fails with this text, and joins as a new one at its next start.
    GivesUpLog { text: String },
}

impl Branches {
    /// Whether a forced bootstrap is under way.
    pub(in crate::member) fn is_bootstrapping(&self) -> bool {
        self.forced.is_some()
    }
}

/// A forced bootstrap under way.
#[derive(Clone, Copy, Debug)]
struct ForcedBootstrap {
    token: u64,
    began: Micros,
    /// When the other members were last asked for their log tails.
    asked: Micros,
    fresh: Uuid,
}

impl Branches {
    /// Begins a forced bootstrap of this member. `fresh` names the new history. Answered by [`Effect::Answer`].
    pub(in crate::member) fn begin(&mut self, ctx: &mut Context, token: u64, fresh: Uuid) {
        let now = ctx.now();
        if self.forced.is_some() {
            return answer(ctx, token, now, false, "a forced bootstrap is already under way".into());
        }
        self.forced = Some(ForcedBootstrap { token, began: now, asked: now, fresh });
        ctx.raft.query_tails(now);
    }

    /// Advances a forced bootstrap. Returns whether this member may go on alone: all connections are to end, since every
    /// peer must compare logs before it gets anything of the new branch; then [`Branches::start`].
    pub(in crate::member) fn step(&mut self, ctx: &mut Context, leaving: bool) -> bool {
        let now = ctx.now();
        let Some(forced) = &mut self.forced else { return false };
        let ForcedBootstrap { token, began, asked, .. } = *forced;
        if now >= asked + ASK_AGAIN {
            forced.asked = now;
            ctx.raft.query_tails_again(now);
        }
        let late = now.saturating_sub(began) > TIMEOUT;
        match unfit(ctx, leaving, late) {
            None => false,
            Some(Ok(())) => true,
            Some(Err(text)) => {
                self.forced = None;
                answer(ctx, token, began, false, text);
                false
            }
        }
    }

    /// Starts the branch, and answers the command.
    pub(in crate::member) fn start(&mut self, ctx: &mut Context) {
        let Some(ForcedBootstrap { token, began, fresh, .. }) = self.forced.take() else { return };
        match start_branch(ctx, fresh) {
            Ok(text) => answer(ctx, token, began, true, text),
            Err(text) => answer(ctx, token, began, false, text),
        }
    }

    /// A peer's branch left this member's.
    pub(in crate::member) fn meet(&mut self, ctx: &mut Context, hello: &Hello) -> Meeting {
        if ctx.connection().is_primary() || !ctx.connection().is_connected() {
            return Meeting::None;
        }
        let tail = ctx.raft.tail_state().clone();
        let fork = hello.fork(tail.history, tail.log_id);
        if let Err(why) = may_give_up_log(ctx, fork) {
            if ctx.now() >= self.log_at {
                self.log_at = ctx.now() + BRANCH_LOG_INTERVAL;
                let text = format!(
                    "{} was made to go on alone by an operator: its branch, history {}, left this member's, {}:{}. {why}",
                    hello.name, hello.history, tail.history, tail.seqno
                );
                ctx.log(Level::Warn, text);
            }
            return Meeting::KeepsLog;
        }
        let text = format!(
            "{} was made to go on alone by an operator: its branch, history {}, left this member's ({}:{}), which \
             stops. At its next start this member, once it has reached that branch again, sets its log aside as \
             lockstep.damaged.*, joins as a new one and {}; {} that only it had are kept in lockstep.rescue.*.log",
            hello.name,
            hello.history,
            tail.history,
            tail.seqno,
            ctx.terms().takes_branch,
            ctx.terms().entries
        );
        ctx.emit(Effect::QuarantineLog(Box::new(QuarantineRequest::Superseded(Superseded {
            member: ctx.me().id,
            own: (tail.history, tail.log_id),
            branch: hello.history,
            fork: fork.map_or(0, |(index, _)| index),
            cluster: ctx.cluster().to_owned(),
            address: hello.address.clone(),
            why: text.clone(),
        }))));
        Meeting::GivesUpLog { text }
    }
}

/// Whether this member may go on alone; `None`: not known yet.
fn unfit(ctx: &Context, leaving: bool, late: bool) -> Option<Result<(), String>> {
    let refuse = |text: &str| Some(Err(text.to_owned()));
    if ctx.me().arbitrator {
        return refuse("an arbitrator has no database: give this command to a member that has one");
    }
    let membership = ctx.raft.membership();
    if !ctx.raft.has_log() || membership.get(&ctx.me().id).is_none() {
        return refuse(
            "this member is not listed in its log (it came back without its own): give this command to a listed \
             member",
        );
    }
    match ctx.connection() {
        ConnectionState::Running { primary: false, .. } => {}
        ConnectionState::Running { primary: true, .. } => {
            return refuse("this member is in a primary component: no forced bootstrap is needed");
        }
        ConnectionState::Connecting { args, .. }
            if !is_position_of_log(ctx, args.position) && ctx.raft.former_end().is_some() =>
        {
            return refuse(&format!(
                "this member's {} is ahead of its damaged log: give this command to a member whose log is whole. If there is \
                 none, stop all members, move their lockstep.* files away, and start the one with the newest data with {}",
                ctx.terms().data,
                ctx.terms().new
            ));
        }
        ConnectionState::Connecting { args, .. } if !is_position_of_log(ctx, args.position) => {
            return refuse(&format!(
                "this member's log cannot complete its {}: give this command to another member",
                ctx.terms().data
            ));
        }
        ConnectionState::Connecting { .. } => {}
        ConnectionState::NeedState { .. } => {
            return refuse(&format!(
                "this member's {} is incomplete: give this command to another one",
                ctx.terms().data
            ));
        }
        ConnectionState::Idle | ConnectionState::Failed(_) => {
            return refuse("this member is not connected to a cluster");
        }
    }
    if leaving {
        return refuse("this member is about to leave");
    }
    if ctx.raft.has_quorum(ctx.now()) || !ctx.cut_off() {
        return match late {
            true => refuse(
                "a majority of the voters is connected: they elect a leader, or their logs say why they do not",
            ),
            false => None,
        };
    }
    let mut unknown = None;
    // Learners, too: a replica may have entries that the voters have lost.
    for id in membership.members.iter().map(|m| m.id).filter(|id| ctx.peers.contains_key(id)) {
        match ctx.raft.would_vote(&id) {
            Some(true) => {}
            Some(false) => {
                let name = ctx.name_of(&id);
                return Some(Err(format!(
                    "{name} has more of the log than this member, or knows a leader: give this command to {name}"
                )));
            }
            None => unknown = Some(id),
        }
    }
    match unknown {
        Some(id) if late => {
            let name = ctx.name_of(&id);
            Some(Err(format!(
                "{name} may have more of the log, but does not answer: stop it, or give this command to it"
            )))
        }
        Some(_) => None,
        None => Some(Ok(())),
    }
}

fn start_branch(ctx: &mut Context, fresh: Uuid) -> Result<String, String> {
    let before = ctx.raft.tail_state().clone();
    let lost: Vec<String> =
        before.membership.voters().filter(|id| *id != ctx.me().id).map(|id| ctx.name_of(&id)).collect();
    let mut founder = ctx.me().as_member(Role::Voter);
    founder.wants_vote = true;
    let branch = Branch { history: fresh, log_id: fresh, founder };
    ctx.raft.branch(ctx.now(), &branch).map_err(|error| error.to_string())?;
    ctx.leaves_behind(&before.membership);
    // Only the own disk is waited for. But the log now has no other members, so the connect's timeout would apply,
    // and may have passed.
    ctx.lift_connect_timeout();
    let text = format!(
        "this member goes on alone, by an operator's order: a new branch of the data begins, history {fresh}, \
         after {}:{}. {} that {} committed without this member are not in it. They must not be Primary beside it: \
         stop them if in doubt. A member that is started again joins this branch, and {}",
        before.history,
        before.seqno,
        if ctx.front_end() == FrontEnd::Device { "Writes" } else { "Transactions" },
        lost.join(", "),
        ctx.terms().takes_branch
    );
    ctx.log(Level::Warn, text.clone());
    Ok(text)
}

/// Whether a database at this position can go on with the own log. A branch founded by this member continues from
/// its parent.
fn is_position_of_log(ctx: &Context, position: Gtid) -> bool {
    let tail = ctx.raft.tail_state();
    let position = in_present_history(ctx, position);
    position.is_defined() && position.uuid == tail.history && position.seqno <= tail.seqno
}

/// Translates the position into the log's present history: the founder of a branch may have a database from before
/// it. Other members' databases may have gone on with the old branch.
pub(in crate::member) fn in_present_history(ctx: &Context, position: Gtid) -> Gtid {
    translated(&own_forks(ctx), ctx.raft.tail_state().history, position)
}

/// The last positions that this member's own branches share with the branches before them.
pub(crate) fn own_forks(ctx: &Context) -> Vec<Gtid> {
    let parents = ctx.raft.tail_state().parents.iter().filter(|p| p.founder == ctx.me().id);
    parents.map(|p| Gtid { uuid: p.history, seqno: p.seqno }).collect()
}

/// Translates a position before one of these forks into the present history.
pub(crate) fn translated(forks: &[Gtid], history: Uuid, position: Gtid) -> Gtid {
    let mut last = position;
    for fork in forks {
        if fork.uuid == last.uuid && last.seqno <= fork.seqno {
            last.uuid = history;
        }
    }
    last
}

/// The histories that this member's database may have: its log's, and those before its own branches.
pub(in crate::member) fn own_histories(ctx: &Context) -> Vec<Uuid> {
    let tail = ctx.raft.tail_state();
    let founded = tail.parents.iter().filter(|p| p.founder == ctx.me().id).map(|p| p.history);
    std::iter::once(tail.history).chain(founded).collect()
}

/// Whether this member may give up its log for a branch that left it after the entry `fork`, and if not, why not.
///
/// Let `last` be the log's end and compare (term, index) as elections do. If `last <= fork`, the branch has
/// everything that this member committed. If `commit > fork`, only the operator can decide which of the two counts.
/// Otherwise members that are not reachable now may have committed the entries beyond the fork: this member waits
/// for them first.
fn may_give_up_log(ctx: &Context, fork: Option<(Index, Term)>) -> Result<(), String> {
    let (index, term) = fork.unwrap_or_default();
    let committed = ctx.raft.commit();
    if committed > index {
        return Err(format!(
            "this member has committed up to index {committed} of its log, beyond the branch's beginning after \
             {index}, and gives that up at an operator's order only. If this member's data are right, stop the \
             members of the branch, and a majority of the others goes on. If the branch's data are right, stop \
             this {}, move its lockstep.* files away (keep them: they hold what the branch lacks), and start it: \
             it joins the branch by state transfer",
            ctx.terms().process
        ));
    }
    if (ctx.raft.tail_state().term, ctx.raft.last_index()) <= (term, index) {
        return Ok(());
    }
    let waited = ctx.majority_unseen_for();
    if waited < GIVE_UP_LOG_AFTER {
        return Err(format!(
            "this member's log goes on to index {}, beyond the branch's beginning after {index}; it gives up its \
             log after {} s without a majority of the log's own members",
            ctx.raft.last_index(),
            GIVE_UP_LOG_AFTER / 1_000_000
        ));
    }
    Ok(())
}

fn answer(ctx: &mut Context, token: u64, began: Micros, ok: bool, text: String) {
    let seconds = ctx.now().saturating_sub(began) as f64 / 1e6;
    ctx.emit(Effect::Answer { token, answer: Answer { ok, text, seconds, held: None } });
}

#[cfg(test)]
#[path = "branch_tests.rs"]
mod tests;
