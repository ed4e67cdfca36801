//! Inconsistency voting: members whose results differ vote.
//!
//! A member whose server could not apply an entry reports its result to the leader. The leader asks the other members
//! of the view, which answer once they have applied the entry. As soon as the missing answers cannot change the result,
//! the leader appends the outcome to the log. Other members go on meanwhile; the failed one waits at that commit order
//! position. A member with a result other than the outcome is inconsistent and leaves.
//!
//! Every member has all outcomes in its own log. A member that replays an entry finds its outcome there.

use crate::api::{Delivery, LocalState, VoteReply};
use crate::effect::Effect;
use crate::member::membership::connection_state::ConnectionState;
use crate::member::{Level, Member, Micros, NodeMessage};
use crate::wire::FRAME_NODE;
use lockstep_core::raft::WriteOp;
use lockstep_core::vote::{Opinion, SUCCESS, VoteOutcome, winner};
use lockstep_core::{Entry, EntryKind, Index, MemberId, Seqno};
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
    /// `last`: the last index of the log when it was opened. This member has acted on all outcomes up to it.
    pub(in crate::member) fn new(last: Index) -> Votes {
        Votes { examined: last, ..Votes::default() }
    }

    /// Remembers an outcome found in the log at start.
    pub(crate) fn remember(&mut self, entry: &Entry) {
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
        if let Some(from) = op.truncate_from {
            self.outcomes.retain(|_, (index, _)| *index < from);
        }
        for entry in &op.entries {
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
    pub(crate) fn found_before(&mut self, seqno: Seqno) {
        self.judged_before.insert(seqno);
    }

    fn committed_outcome(&self, seqno: Seqno, commit: Index) -> Option<&VoteOutcome> {
        self.outcomes.get(&seqno).filter(|(index, _)| *index <= commit).map(|(_, outcome)| outcome)
    }
}

impl Member {
    /// This member's server could not apply `seqno`. The reply gets whether the other members' results agree, possibly
    /// much later.
    pub(crate) fn vote(&mut self, seqno: Seqno, opinion: Opinion, text: String, reply: VoteReply) {
        if let Some(outcome) = self.recovery.votes.committed_outcome(seqno, self.ctx.raft.deliverable()) {
            let same = outcome.winner == opinion;
            if same {
                self.recovery.votes.failures.insert(seqno, true);
            }
            reply.answer(same);
            return;
        }
        if self.roster.leave.has_begun()
            || self.recovery.votes.open.len() >= OPEN_MAX
            || !self.ctx.connection.is_connected()
        {
            return reply.none();
        }
        let text: String = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
        self.ctx.log(
            Level::Info,
            format!("seqno {seqno} cannot be applied here ({opinion:016x}: {text}): the members vote on it"),
        );
        self.recovery.votes.open.insert(seqno, Open { opinion, text, reply, sent_at: None });
        self.votes_step();
    }

    /// Ends all votes: this member leaves, or has failed.
    pub(in crate::member) fn end_votes(&mut self) {
        for open in std::mem::take(&mut self.recovery.votes.open).into_values() {
            open.reply.none();
        }
        self.recovery.votes.polls.clear();
    }

    /// A member reports its result.
    pub(in crate::member) fn on_opinion(
        &mut self,
        from: MemberId,
        seqno: Seqno,
        opinion: Opinion,
        text: &str,
    ) {
        let known = self.recovery.votes.outcomes.contains_key(&seqno);
        if !self.ctx.raft.is_leader() || known || seqno > self.ctx.raft.tail_state().seqno {
            return;
        }
        let in_view = self.ctx.raft.committed_state().view.position(&from).is_some();
        let polls = &mut self.recovery.votes.polls;
        if !in_view || (polls.len() >= POLLS_MAX && !polls.contains_key(&seqno)) {
            return;
        }
        let fresh = || Poll { opinions: BTreeMap::new(), began: self.ctx.now, asked_at: None };
        let poll = polls.entry(seqno).or_insert_with(fresh);
        // A member's result does not change.
        if poll.opinions.insert(from, opinion).is_none() && opinion != SUCCESS {
            let text: String = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
            let name = self.ctx.name_of(&from);
            self.ctx
                .log(Level::Info, format!("{name} could not apply seqno {seqno} ({opinion:016x}: {text})"));
        }
    }

    /// The leader asks for this member's result. A member that has not applied the entry does not answer, and is asked
    /// again.
    pub(in crate::member) fn on_opinion_request(&mut self, from: MemberId, seqno: Seqno) {
        if self.ctx.raft.leader() != Some(from) || self.ctx.finished() < seqno {
            return;
        }
        if !self.recovery.votes.open.contains_key(&seqno)
            && self.recovery.votes.committed_outcome(seqno, self.ctx.raft.deliverable()).is_none()
        {
            let text = String::new();
            self.tell(from, &NodeMessage::Opinion { seqno, opinion: SUCCESS, text });
        }
    }

    /// At the end of a round: acts on outcomes, sends opinions; the leader asks and decides.
    pub(in crate::member) fn votes_step(&mut self) {
        self.examine_outcomes();
        self.send_opinions();
        if self.recovery.votes.polls.is_empty() {
            return;
        }
        if !self.ctx.raft.is_leader() {
            self.recovery.votes.polls.clear();
            return;
        }
        // Outcomes appended in the last round are in the log now.
        let outcomes = &self.recovery.votes.outcomes;
        self.recovery.votes.polls.retain(|seqno, _| !outcomes.contains_key(seqno));
        for seqno in self.recovery.votes.polls.keys().copied().collect::<Vec<_>>() {
            self.poll(seqno);
        }
    }

    fn send_opinions(&mut self) {
        let (now, leader) = (self.ctx.now, self.ctx.raft.leader());
        let Some(leader) = leader.filter(|_| !self.recovery.votes.open.is_empty()) else { return };
        let due = |open: &Open| open.sent_at.is_none_or(|at| now >= at + REPEAT_INTERVAL);
        let tell: Vec<_> = self
            .recovery
            .votes
            .open
            .iter_mut()
            .filter(|(_, open)| due(open))
            .map(|(seqno, open)| {
                open.sent_at = Some(now);
                NodeMessage::Opinion { seqno: *seqno, opinion: open.opinion, text: open.text.clone() }
            })
            .collect();
        for message in tell {
            self.tell(leader, &message);
        }
    }

    /// The members whose opinion on `seqno` counts: in the view, with the state, connected, and soon to apply it. A
    /// member under an apply hold may take hours, while the failed member blocks its commit order.
    fn electorate(&self, seqno: Seqno) -> Vec<MemberId> {
        let has_state = |id: &MemberId| match *id == self.ctx.me.id {
            true => matches!(self.local_state(), LocalState::Joined | LocalState::Synced | LocalState::Donor),
            false => self.ctx.peers.get(id).and_then(|p| p.health).is_some_and(|h| h.has_state && !h.leaving),
        };
        let held = |id: &MemberId| self.health_of(id).is_some_and(|h| h.held_back && h.finished < seqno);
        let database = |id: &MemberId| self.ctx.raft.membership().get(id).is_some_and(|m| !m.arbitrator);
        let view = &self.ctx.raft.committed_state().view;
        view.members.iter().map(|m| m.id).filter(|id| has_state(id) && database(id) && !held(id)).collect()
    }

    fn poll(&mut self, seqno: Seqno) {
        let (now, me) = (self.ctx.now, self.ctx.me.id);
        if self.ctx.finished() >= seqno && !self.recovery.votes.open.contains_key(&seqno) {
            self.on_opinion(me, seqno, SUCCESS, "");
        }
        let electorate = self.electorate(seqno);
        let enough = self.ctx.tuning.vote_policy;
        let Some(poll) = self.recovery.votes.polls.get_mut(&seqno) else { return };
        let silent: Vec<MemberId> =
            electorate.iter().filter(|id| !poll.opinions.contains_key(*id)).copied().collect();
        let late = now >= poll.began + TIMEOUT && 2 * poll.opinions.len() > electorate.len();
        let missing = if late { 0 } else { silent.len() };
        let Some(winner) = winner(poll.opinions.values().copied(), missing, enough) else {
            if poll.asked_at.is_none_or(|at| now >= at + REPEAT_INTERVAL) {
                poll.asked_at = Some(now);
                let payload = NodeMessage::AskOpinion { seqno }.to_bytes();
                for to in silent.into_iter().filter(|id| *id != me) {
                    self.ctx.out.push(Effect::Send { to, kind: FRAME_NODE, payload: vec![payload.clone()] });
                }
            }
            return;
        };
        let opinions = poll.opinions.iter().map(|(id, opinion)| (*id, *opinion)).collect();
        let outcome = VoteOutcome { seqno, winner, opinions };
        if self.ctx.raft.append_control(now, EntryKind::Outcome, outcome.to_payload()).is_ok() {
            self.recovery.votes.polls.remove(&seqno);
        }
    }

    /// Acts on newly committed outcomes.
    fn examine_outcomes(&mut self) {
        if !matches!(self.ctx.connection, ConnectionState::Running { .. }) {
            return;
        }
        let upto = self.ctx.raft.deliverable();
        if upto > self.recovery.votes.examined {
            let fresh: Vec<VoteOutcome> = self
                .recovery
                .votes
                .outcomes
                .values()
                .filter(|(index, _)| *index > self.recovery.votes.examined && *index <= upto)
                .map(|(_, outcome)| outcome.clone())
                .collect();
            self.recovery.votes.examined = upto;
            for outcome in fresh {
                self.outcome(&outcome);
            }
        }
        // As of the round's beginning: an opinion on a seqno arrives before the seqno finishes, so by now it has been
        // received.
        let finished = self.ctx.finished.at_round();
        while let Some((&seqno, &same)) =
            self.recovery.votes.failures.first_key_value().filter(|(s, _)| **s <= finished)
        {
            self.recovery.votes.failures.remove(&seqno);
            if !same && !self.recovery.votes.judged_before.contains(&seqno) {
                let gtid = self.gtid_text(seqno);
                self.inconsistent(format!(
                    "Vote 0 (success) on {gtid} is inconsistent with group. Leaving cluster. The others could not apply \
                     it: this member's data differed before"
                ));
            }
        }
    }

    fn outcome(&mut self, outcome: &VoteOutcome) {
        let VoteOutcome { seqno, winner, opinions } = outcome;
        let mut said: BTreeMap<Opinion, Vec<String>> = BTreeMap::new();
        for (id, opinion) in opinions {
            said.entry(*opinion).or_default().push(self.ctx.name_of(id));
        }
        let what = |opinion: Opinion| match opinion {
            SUCCESS => "success".to_string(),
            error => format!("{error:016x}"),
        };
        let said: Vec<String> =
            said.iter().map(|(o, names)| format!("{}: {}", what(*o), names.join(", "))).collect();
        let text = format!("vote on seqno {seqno}: {} counts ({})", what(*winner), said.join("; "));
        self.ctx.log(Level::Info, text);
        match self.recovery.votes.open.remove(seqno) {
            Some(open) => {
                let same = open.opinion == *winner;
                if same && *winner != SUCCESS && self.ctx.finished() < *seqno {
                    self.recovery.votes.failures.insert(*seqno, true);
                }
                // No thread waits for the answer any more.
                if !open.reply.answer(same) && !same {
                    let text = self.minority_text(*seqno);
                    self.inconsistent(text);
                }
            }
            // This member's own result may have arrived in this very round, with the outcome already in its log.
            None if *winner != SUCCESS => {
                self.recovery.votes.failures.entry(*seqno).or_insert(false);
            }
            None => {}
        }
    }

    fn gtid_text(&self, seqno: Seqno) -> String {
        format!("{}:{seqno}", self.ctx.raft.tail_state().history)
    }

    /// The error of a member whose failure no majority shares.
    fn minority_text(&self, seqno: Seqno) -> String {
        let gtid = self.gtid_text(seqno);
        format!(
            "Inconsistency detected: Inconsistent by consensus on {gtid}: the other members applied it, this server \
             could not"
        )
    }

    /// This member's data differ from the others'. The front end stops using them and makes this member leave.
    fn inconsistent(&mut self, text: String) {
        self.ctx.log(Level::Error, text.clone());
        self.ctx.deliver(Delivery::Inconsistent(text));
    }
}

#[cfg(test)]
#[path = "votes_tests.rs"]
mod tests;
