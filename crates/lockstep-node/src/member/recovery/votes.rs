//! Inconsistency voting: members whose results differ vote.
//!
//! A member whose server could not apply an entry reports its result to the leader. The leader asks the other members
//! of the view, which answer once they have applied the entry. As soon as the missing answers cannot change the result,
//! the leader appends the outcome to the log. Other members go on meanwhile; the failed one waits at that commit order
//! position. A member with a result other than the outcome is inconsistent and leaves.
//!
//! Every member has all outcomes in its own log. A member that replays an entry finds its outcome there.

use crate::api::Level;
use crate::api::{Delivery, LocalState, VoteReply};
use crate::effect::Effect;
use crate::member::context::ConnectionState;
use crate::member::context::Context;
use crate::member::facts::Standing;
use crate::member::membership::peers::Peer;
use crate::wire::FRAME_NODE;
use crate::wire::NodeMessage;
use lockstep_core::raft::WriteOp;
use lockstep_core::vote::{Opinion, SUCCESS, VoteOutcome, winner};
use lockstep_core::{Entry, EntryKind, Index, MemberId, Micros, Seqno, Term};
use std::collections::{BTreeMap, BTreeSet};

/// How often an opinion is sent or requested again, until there is an outcome.
const REPEAT_INTERVAL: Micros = 200_000;
/// After this long, those that have applied the entry decide without the rest, if they are more than half.
const TIMEOUT: Micros = 10_000_000;
/// A member fails at one position at a time, but may have passed some before their outcome; this bounds them.
const OPEN_MAX: usize = 64;
/// How many votes a leader keeps.
const POLLS_MAX: usize = 256;
/// The longest error text sent to others.
const TEXT_MAX: usize = 512;

/// A failed result of this member without an outcome yet.
struct Open {
    opinion: Opinion,
    text: String,
    /// Receives the outcome.
    reply: VoteReply,
    sent_at: Option<Micros>,
}

/// A vote under way on the leader.
struct Poll {
    opinions: BTreeMap<MemberId, Opinion>,
    began: Micros,
    asked_at: Option<Micros>,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Votes {
    /// Outcomes in the own log, by seqno.
    outcomes: BTreeMap<Seqno, (Index, VoteOutcome)>,
    /// Outcomes up to this index have been acted on.
    examined: Index,
    /// The term of the last entry when the log was opened. Entries of later terms are new.
    opened_in: Term,
    open: BTreeMap<Seqno, Open>,
    /// Outcomes that are failures, and whether this member's result is the same; `false` until it is known.
    failures: BTreeMap<Seqno, bool>,
    polls: BTreeMap<Seqno, Poll>,
    /// Failures found in an earlier incarnation of this process: at most a few at each start.
    judged_before: BTreeSet<Seqno>,
    /// The log was reset in this process: earlier outcomes are unknown.
    reset: bool,
}

impl Votes {
    /// `last` and `last_term`: the end of the log when it was opened, or before damage took its end. This member may have acted
    /// on all outcomes up to it.
    pub(in crate::member) fn new(last: Index, last_term: Term) -> Votes {
        Votes { examined: last, opened_in: last_term, ..Votes::default() }
    }

    /// Remembers an outcome found in the log at start.
    pub(in crate::member) fn remember(&mut self, entry: &Entry) {
        if entry.kind == EntryKind::Outcome
            && let Ok(outcome) = VoteOutcome::from_payload(entry.payload())
        {
            // If there are two, the first counts: members have acted on it.
            self.outcomes.entry(outcome.seqno).or_insert((entry.index, outcome));
        }
    }

    /// Updates the outcomes after a write to the log.
    pub(in crate::member) fn follow(&mut self, op: &WriteOp) {
        if op.reset.is_some() {
            self.outcomes.clear();
            self.reset = true;
        }
        // Replaced entries were not committed, so no member has acted on them.
        if let Some(from) = op.truncate_from {
            self.outcomes.retain(|_, (index, _)| *index < from);
            self.examined = self.examined.min(from - 1);
        }
        for entry in &op.entries {
            if entry.term > self.opened_in {
                self.examined = self.examined.min(entry.index - 1);
            }
            self.remember(entry);
        }
    }

    pub(in crate::member) fn forget_below(&mut self, first: Index) {
        self.outcomes.retain(|_, (index, _)| *index >= first);
    }

    /// The database is at `position`: results after it will be found again. `copied`: the state came from another
    /// member, which has acted on the votes in it. A log that was reset, and ends at `last`, counts like that.
    pub(in crate::member) fn begin(&mut self, position: Seqno, last: Index, copied: bool) {
        if copied || std::mem::take(&mut self.reset) {
            self.examined = self.examined.max(last);
        }
        let examined = self.examined;
        let failures = self
            .outcomes
            .iter()
            .filter(|(s, (i, o))| **s > position && *i <= examined && o.winner != SUCCESS);
        self.failures = failures.map(|(seqno, _)| (*seqno, false)).collect();
    }

    /// This member's result for `seqno` was judged before.
    pub(in crate::member) fn found_before(&mut self, seqno: Seqno) {
        self.judged_before.insert(seqno);
    }

    fn committed_outcome(&self, seqno: Seqno, commit: Index) -> Option<&VoteOutcome> {
        self.outcomes.get(&seqno).filter(|(index, _)| *index <= commit).map(|(_, outcome)| outcome)
    }
}

impl Votes {
    /// This member's server could not apply `seqno`. The reply gets whether the other members' results agree, possibly
    /// much later.
    pub(in crate::member) fn vote(
        &mut self,
        ctx: &mut Context,
        own: Standing,
        seqno: Seqno,
        opinion: Opinion,
        text: String,
        reply: VoteReply,
    ) {
        if let Some(outcome) = self.committed_outcome(seqno, ctx.raft.deliverable()) {
            let same = outcome.winner == opinion;
            if same {
                self.failures.insert(seqno, true);
            }
            reply.answer(same);
            return;
        }
        if own.leaving || self.open.len() >= OPEN_MAX || !ctx.connection().is_connected() {
            return reply.none();
        }
        let text: String = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
        ctx.log(
            Level::Info,
            format!("seqno {seqno} cannot be applied here ({opinion:016x}: {text}): the members vote on it"),
        );
        self.open.insert(seqno, Open { opinion, text, reply, sent_at: None });
        self.step(ctx, own);
    }

    /// Ends all votes: this member leaves, or has failed.
    pub(in crate::member) fn end(&mut self) {
        for open in std::mem::take(&mut self.open).into_values() {
            open.reply.none();
        }
        self.polls.clear();
    }

    /// A member reports its result.
    pub(in crate::member) fn on_opinion(
        &mut self,
        ctx: &mut Context,
        from: MemberId,
        seqno: Seqno,
        opinion: Opinion,
        text: &str,
    ) {
        let known = self.outcomes.contains_key(&seqno);
        if !ctx.raft.is_leader() || known || seqno > ctx.raft.tail_state().seqno {
            return;
        }
        let in_view = ctx.raft.committed_state().view.position(&from).is_some();
        let polls = &mut self.polls;
        if !in_view || (polls.len() >= POLLS_MAX && !polls.contains_key(&seqno)) {
            return;
        }
        let fresh = || Poll { opinions: BTreeMap::new(), began: ctx.now(), asked_at: None };
        let poll = polls.entry(seqno).or_insert_with(fresh);
        // A member's result does not change.
        if poll.opinions.insert(from, opinion).is_none() && opinion != SUCCESS {
            let text: String = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
            let name = ctx.name_of(&from);
            ctx.log(Level::Info, format!("{name} could not apply seqno {seqno} ({opinion:016x}: {text})"));
        }
    }

    /// The leader asks for this member's result. A member that has not applied the entry does not answer, and is asked
    /// again.
    pub(in crate::member) fn on_opinion_request(&mut self, ctx: &mut Context, from: MemberId, seqno: Seqno) {
        if ctx.raft.leader() != Some(from) || ctx.finished() < seqno {
            return;
        }
        if !self.open.contains_key(&seqno) && self.committed_outcome(seqno, ctx.raft.deliverable()).is_none()
        {
            let text = String::new();
            ctx.send(from, &NodeMessage::Opinion { seqno, opinion: SUCCESS, text });
        }
    }

    /// At the end of a round: acts on outcomes, sends opinions; the leader asks and decides.
    pub(in crate::member) fn step(&mut self, ctx: &mut Context, own: Standing) {
        self.examine_outcomes(ctx);
        self.send_opinions(ctx);
        if self.polls.is_empty() {
            return;
        }
        if !ctx.raft.is_leader() {
            self.polls.clear();
            return;
        }
        // Outcomes appended in the last round are in the log now.
        let outcomes = &self.outcomes;
        self.polls.retain(|seqno, _| !outcomes.contains_key(seqno));
        for seqno in self.polls.keys().copied().collect::<Vec<_>>() {
            self.poll(ctx, own, seqno);
        }
    }

    fn send_opinions(&mut self, ctx: &mut Context) {
        let (now, leader) = (ctx.now(), ctx.raft.leader());
        let Some(leader) = leader.filter(|_| !self.open.is_empty()) else { return };
        let due = |open: &Open| open.sent_at.is_none_or(|at| now >= at + REPEAT_INTERVAL);
        let unsent: Vec<_> = self
            .open
            .iter_mut()
            .filter(|(_, open)| due(open))
            .map(|(seqno, open)| {
                open.sent_at = Some(now);
                (*seqno, open.opinion, open.text.clone())
            })
            .collect();
        for (seqno, opinion, text) in unsent {
            if leader == ctx.me().id {
                self.on_opinion(ctx, leader, seqno, opinion, &text);
            } else {
                ctx.send(leader, &NodeMessage::Opinion { seqno, opinion, text });
            }
        }
    }

    fn poll(&mut self, ctx: &mut Context, own: Standing, seqno: Seqno) {
        let (now, me) = (ctx.now(), ctx.me().id);
        if ctx.finished() >= seqno && !self.open.contains_key(&seqno) {
            self.on_opinion(ctx, me, seqno, SUCCESS, "");
        }
        let electorate = electorate(ctx, own, seqno);
        let enough = ctx.tuning().vote_policy;
        let Some(poll) = self.polls.get_mut(&seqno) else { return };
        let silent: Vec<MemberId> =
            electorate.iter().filter(|id| !poll.opinions.contains_key(*id)).copied().collect();
        let late = now >= poll.began + TIMEOUT && 2 * poll.opinions.len() > electorate.len();
        let missing = if late { 0 } else { silent.len() };
        let Some(winner) = winner(poll.opinions.values().copied(), missing, enough) else {
            if poll.asked_at.is_none_or(|at| now >= at + REPEAT_INTERVAL) {
                poll.asked_at = Some(now);
                let payload = NodeMessage::AskOpinion { seqno }.to_bytes();
                for to in silent.into_iter().filter(|id| *id != me) {
                    ctx.emit(Effect::Send { to, kind: FRAME_NODE, payload: vec![payload.clone()] });
                }
            }
            return;
        };
        let opinions = poll.opinions.iter().map(|(id, opinion)| (*id, *opinion)).collect();
        let outcome = VoteOutcome { seqno, winner, opinions };
        if ctx.raft.append_control(now, EntryKind::Outcome, outcome.to_payload()).is_ok() {
            self.polls.remove(&seqno);
        }
    }

    /// Acts on newly committed outcomes.
    fn examine_outcomes(&mut self, ctx: &mut Context) {
        if !matches!(ctx.connection(), ConnectionState::Running { .. }) {
            return;
        }
        let upto = ctx.raft.deliverable();
        if upto > self.examined {
            let fresh: Vec<VoteOutcome> = self
                .outcomes
                .values()
                .filter(|(index, _)| *index > self.examined && *index <= upto)
                .map(|(_, outcome)| outcome.clone())
                .collect();
            self.examined = upto;
            for outcome in fresh {
                self.outcome(ctx, &outcome);
            }
        }
        // As of the round's beginning: an opinion on a seqno arrives before the seqno finishes, so by now it has been
        // received.
        let finished = ctx.finished_at_round();
        while let Some((&seqno, &same)) = self.failures.first_key_value().filter(|(s, _)| **s <= finished) {
            self.failures.remove(&seqno);
            if !same && !self.judged_before.contains(&seqno) {
                let gtid = gtid_text(ctx, seqno);
                inconsistent(
                    ctx,
                    format!(
                        "Vote 0 (success) on {gtid} is inconsistent with group. Leaving cluster. The others could not apply \
                     it: this member's data differed before"
                    ),
                );
            }
        }
    }

    fn outcome(&mut self, ctx: &mut Context, outcome: &VoteOutcome) {
        let VoteOutcome { seqno, winner, opinions } = outcome;
        let mut said: BTreeMap<Opinion, Vec<String>> = BTreeMap::new();
        for (id, opinion) in opinions {
            said.entry(*opinion).or_default().push(ctx.name_of(id));
        }
        let what = |opinion: Opinion| match opinion {
            SUCCESS => "success".to_string(),
            error => format!("{error:016x}"),
        };
        let said: Vec<String> =
            said.iter().map(|(o, names)| format!("{}: {}", what(*o), names.join(", "))).collect();
        let text = format!("vote on seqno {seqno}: {} counts ({})", what(*winner), said.join("; "));
        ctx.log(Level::Info, text);
        match self.open.remove(seqno) {
            Some(open) => {
                let same = open.opinion == *winner;
                if same && *winner != SUCCESS && ctx.finished() < *seqno {
                    self.failures.insert(*seqno, true);
                }
                // No thread waits for the answer any more.
                if !open.reply.answer(same) && !same {
                    let text = minority_text(ctx, *seqno);
                    inconsistent(ctx, text);
                }
            }
            // This member's own result may have arrived in this very round, with the outcome already in its log.
            None if *winner != SUCCESS => {
                self.failures.entry(*seqno).or_insert(false);
            }
            None => {}
        }
    }
}

/// The members whose opinion on `seqno` counts: in the view, with the state, connected, and soon to apply it. A
/// member under an apply hold may take hours, while the failed member blocks its commit order.
fn electorate(ctx: &Context, own: Standing, seqno: Seqno) -> Vec<MemberId> {
    let has_state = |id: &MemberId| match *id == ctx.me().id {
        true => matches!(own.state, LocalState::Joined | LocalState::Synced | LocalState::Donor),
        false => ctx.peers.get(id).is_some_and(Peer::is_ready),
    };
    let held = |id: &MemberId| match *id == ctx.me().id {
        true => ctx.has_held_server() && ctx.finished() < seqno,
        false => ctx.peers.health_of(id).is_some_and(|h| h.held_back && h.finished < seqno),
    };
    let database = |id: &MemberId| ctx.raft.membership().get(id).is_some_and(|m| !m.arbitrator);
    let view = &ctx.raft.committed_state().view;
    view.members.iter().map(|m| m.id).filter(|id| has_state(id) && database(id) && !held(id)).collect()
}

fn gtid_text(ctx: &Context, seqno: Seqno) -> String {
    format!("{}:{seqno}", ctx.raft.tail_state().history)
}

/// The error of a member whose failure no majority shares.
fn minority_text(ctx: &Context, seqno: Seqno) -> String {
    let gtid = gtid_text(ctx, seqno);
    format!(
        "Inconsistency detected: Inconsistent by consensus on {gtid}: the other members applied it, this server \
         could not"
    )
}

/// This member's data differ from the others'. The front end stops using them and makes this member leave.
fn inconsistent(ctx: &mut Context, text: String) {
    ctx.log(Level::Error, text.clone());
    ctx.deliver(Delivery::Inconsistent(text));
}

#[cfg(test)]
#[path = "votes_tests.rs"]
mod tests;
