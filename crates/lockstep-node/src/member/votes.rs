//! Members whose results differ vote.
//!
//! A member whose server could not apply an entry tells the leader what it has found; the leader asks the others of the
//! view, who answer once they have applied it, too, and places the outcome in the log as soon as what is missing cannot
//! turn it. The others go on meanwhile; the one that failed waits in its place in commit order. Whoever has found
//! something else than the outcome is not like the others, and leaves.
//!
//! Every member knows all outcomes in its own log, so that one that replays an entry on which there was a vote finds the
//! outcome there, and needs nobody.

use super::connection_state::ConnectionState;
use super::{Effect, Level, Member, Micros, NodeMessage};
use crate::api::{Delivery, LocalState, VoteReply};
use crate::wire::FRAME_NODE;
use lockstep_core::raft::WriteOp;
use lockstep_core::vote::{Opinion, SUCCESS, VoteOutcome, winner};
use lockstep_core::{Entry, EntryKind, Index, MemberId, Seqno};
use std::collections::{BTreeMap, BTreeSet};

/// How often an opinion is told again, and asked for again, until there is an outcome.
const REPEAT: Micros = 200_000;
/// Those that have applied the entry decide among themselves after so long, if they are more than half.
const PATIENCE: Micros = 10_000_000;
/// A member fails at one place at a time, but may have gone on from some before their outcome; no more than these.
const OPEN_MAX: usize = 64;
/// Votes under way that a leader keeps.
const POLLS_MAX: usize = 256;
/// Longest text of an error that is told to others.
const TEXT_MAX: usize = 512;

/// A result of this member that is not success, and on which there is no outcome.
struct Open {
    opinion: Opinion,
    text: String,
    /// Who waits for the outcome.
    reply: VoteReply,
    told_at: Option<Micros>,
}

/// A leader's.
struct Poll {
    opinions: BTreeMap<MemberId, Opinion>,
    began: Micros,
    asked_at: Option<Micros>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Votes {
    /// Those in the own log, by seqno.
    outcomes: BTreeMap<Seqno, (Index, VoteOutcome)>,
    /// Up to here they have been looked at.
    seen: Index,
    open: BTreeMap<Seqno, Open>,
    /// Outcomes that are not success, and what this member has found: nothing yet, or the same.
    odd: BTreeMap<Seqno, bool>,
    polls: BTreeMap<Seqno, Poll>,
    /// What was found in an earlier life of this process: at most a few at each start.
    before: BTreeSet<Seqno>,
    /// The log has begun anew in this process: what it held before is not known.
    anew: bool,
}

impl Votes {
    /// `last`: where the log ended when it was opened. On what it held, this member has acted.
    pub(super) fn new(last: Index) -> Votes {
        Votes { seen: last, ..Votes::default() }
    }

    /// An entry that the log held at start.
    pub(crate) fn remember(&mut self, entry: &Entry) {
        if entry.kind == EntryKind::Outcome
            && let Ok(outcome) = VoteOutcome::from_payload(entry.payload.clone())
        {
            // Should there be two, the first counts: members have acted by it.
            self.outcomes.entry(outcome.seqno).or_insert((entry.index, outcome));
        }
    }

    /// Follows what happens to the log.
    pub(super) fn follow(&mut self, op: &WriteOp) {
        if op.reset.is_some() {
            self.outcomes.clear();
            self.anew = true;
        }
        if let Some(from) = op.truncate_from {
            self.outcomes.retain(|_, (index, _)| *index < from);
        }
        for entry in &op.entries {
            self.remember(entry);
        }
    }

    pub(super) fn forget_below(&mut self, first: Index) {
        self.outcomes.retain(|_, (index, _)| *index >= first);
    }

    /// The database stands at `position`: what comes after it is found anew. `copied`: it came from another member, who
    /// has acted by the votes on what is in it; so it is where the log, which ends at `last`, has begun anew.
    pub(super) fn begin(&mut self, position: Seqno, last: Index, copied: bool) {
        if copied || std::mem::take(&mut self.anew) {
            self.seen = self.seen.max(last);
        }
        let seen = self.seen;
        let odd =
            self.outcomes.iter().filter(|(s, (i, o))| **s > position && *i <= seen && o.winner != SUCCESS);
        self.odd = odd.map(|(seqno, _)| (*seqno, false)).collect();
    }

    /// What this member had found of it was judged before.
    pub(crate) fn found_before(&mut self, seqno: Seqno) {
        self.before.insert(seqno);
    }

    fn agreed(&self, seqno: Seqno, commit: Index) -> Option<&VoteOutcome> {
        self.outcomes.get(&seqno).filter(|(index, _)| *index <= commit).map(|(_, outcome)| outcome)
    }
}

impl Member {
    /// This member's server could not apply `seqno`. The reply is filled with whether the others could not either; it
    /// may come much later.
    pub(crate) fn vote(&mut self, seqno: Seqno, opinion: Opinion, text: String, reply: VoteReply) {
        if let Some(outcome) = self.votes.agreed(seqno, self.raft.deliverable()) {
            let same = outcome.winner == opinion;
            if same {
                self.votes.odd.insert(seqno, true);
            }
            reply.answer(same);
            return;
        }
        if self.leaving || self.votes.open.len() >= OPEN_MAX || !self.connection.is_connected() {
            return reply.none();
        }
        let text: String = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
        self.log(
            Level::Info,
            format!("seqno {seqno} cannot be applied here ({opinion:016x}: {text}): the members vote on it"),
        );
        self.votes.open.insert(seqno, Open { opinion, text, reply, told_at: None });
        self.votes_step();
    }

    /// Nobody waits any more: this member leaves, or has failed.
    pub(super) fn end_votes(&mut self) {
        for open in std::mem::take(&mut self.votes.open).into_values() {
            open.reply.none();
        }
        self.votes.polls.clear();
    }

    /// A member tells what it has found.
    pub(super) fn told_opinion(&mut self, from: MemberId, seqno: Seqno, opinion: Opinion, text: &str) {
        let known = self.votes.outcomes.contains_key(&seqno);
        if !self.raft.is_leader() || known || seqno > self.raft.tail_state().seqno {
            return;
        }
        let in_view = self.raft.committed_state().view.position(&from).is_some();
        let polls = &mut self.votes.polls;
        if !in_view || (polls.len() >= POLLS_MAX && !polls.contains_key(&seqno)) {
            return;
        }
        let fresh = || Poll { opinions: BTreeMap::new(), began: self.now, asked_at: None };
        let poll = polls.entry(seqno).or_insert_with(fresh);
        // What a member has found does not change.
        if poll.opinions.insert(from, opinion).is_none() && opinion != SUCCESS {
            let text: String = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
            let name = self.name_of(&from);
            self.log(Level::Info, format!("{name} could not apply seqno {seqno} ({opinion:016x}: {text})"));
        }
    }

    /// The leader wants to know what this member has found. Who has not applied it says nothing, and is asked again.
    pub(super) fn asked_opinion(&mut self, from: MemberId, seqno: Seqno) {
        if self.raft.leader() != Some(from) || self.finished() < seqno {
            return;
        }
        if !self.votes.open.contains_key(&seqno)
            && self.votes.agreed(seqno, self.raft.deliverable()).is_none()
        {
            let text = String::new();
            self.tell(from, &NodeMessage::Opinion { seqno, opinion: SUCCESS, text });
        }
    }

    /// The end of a round: outcomes act, opinions are told, a leader asks and decides.
    pub(super) fn votes_step(&mut self) {
        self.look_at_outcomes();
        self.tell_opinions();
        if self.votes.polls.is_empty() {
            return;
        }
        if !self.raft.is_leader() {
            self.votes.polls.clear();
            return;
        }
        // What was placed in the last round is in the log now.
        let outcomes = &self.votes.outcomes;
        self.votes.polls.retain(|seqno, _| !outcomes.contains_key(seqno));
        for seqno in self.votes.polls.keys().copied().collect::<Vec<_>>() {
            self.poll(seqno);
        }
    }

    fn tell_opinions(&mut self) {
        let (now, leader) = (self.now, self.raft.leader());
        let Some(leader) = leader.filter(|_| !self.votes.open.is_empty()) else { return };
        let due = |open: &Open| open.told_at.is_none_or(|at| now >= at + REPEAT);
        let tell: Vec<_> = self
            .votes
            .open
            .iter_mut()
            .filter(|(_, open)| due(open))
            .map(|(seqno, open)| {
                open.told_at = Some(now);
                NodeMessage::Opinion { seqno: *seqno, opinion: open.opinion, text: open.text.clone() }
            })
            .collect();
        for message in tell {
            self.tell(leader, &message);
        }
    }

    /// Those whose opinion on `seqno` is waited for: who is in the view, has the state, is there, and comes to it soon. From
    /// whom entries are kept may come to it in an hour, and nobody is to wait so long, in commit order at that.
    fn electorate(&self, seqno: Seqno) -> Vec<MemberId> {
        let has_state = |id: &MemberId| match *id == self.me.id {
            true => matches!(self.local_state(), LocalState::Joined | LocalState::Synced | LocalState::Donor),
            false => self.peers.get(id).and_then(|p| p.health).is_some_and(|h| h.has_state && !h.leaving),
        };
        let held = |id: &MemberId| self.health_of(id).is_some_and(|h| h.held_back && h.finished < seqno);
        let database = |id: &MemberId| self.raft.membership().get(id).is_some_and(|m| !m.arbitrator);
        let view = &self.raft.committed_state().view;
        view.members.iter().map(|m| m.id).filter(|id| has_state(id) && database(id) && !held(id)).collect()
    }

    fn poll(&mut self, seqno: Seqno) {
        let (now, me) = (self.now, self.me.id);
        if self.finished() >= seqno && !self.votes.open.contains_key(&seqno) {
            self.told_opinion(me, seqno, SUCCESS, "");
        }
        let electorate = self.electorate(seqno);
        let enough = self.tuning.vote_policy;
        let Some(poll) = self.votes.polls.get_mut(&seqno) else { return };
        let silent: Vec<MemberId> =
            electorate.iter().filter(|id| !poll.opinions.contains_key(*id)).copied().collect();
        let late = now >= poll.began + PATIENCE && 2 * poll.opinions.len() > electorate.len();
        let missing = if late { 0 } else { silent.len() };
        let Some(winner) = winner(poll.opinions.values().copied(), missing, enough) else {
            if poll.asked_at.is_none_or(|at| now >= at + REPEAT) {
                poll.asked_at = Some(now);
                let payload = NodeMessage::AskOpinion { seqno }.to_bytes();
                for to in silent.into_iter().filter(|id| *id != me) {
                    self.effects.push(Effect::Send { to, kind: FRAME_NODE, payload: payload.clone() });
                }
            }
            return;
        };
        let opinions = poll.opinions.iter().map(|(id, opinion)| (*id, *opinion)).collect();
        let outcome = VoteOutcome { seqno, winner, opinions };
        if self.raft.append_control(now, EntryKind::Outcome, outcome.to_payload()).is_ok() {
            self.votes.polls.remove(&seqno);
        }
    }

    /// Acts by what is committed and was not looked at before.
    fn look_at_outcomes(&mut self) {
        if !matches!(self.connection, ConnectionState::Running { .. }) {
            return;
        }
        let upto = self.raft.deliverable();
        if upto > self.votes.seen {
            let fresh: Vec<VoteOutcome> = self
                .votes
                .outcomes
                .values()
                .filter(|(index, _)| *index > self.votes.seen && *index <= upto)
                .map(|(_, outcome)| outcome.clone())
                .collect();
            self.votes.seen = upto;
            for outcome in fresh {
                self.outcome(&outcome);
            }
        }
        // Of the round's beginning: what was said of a seqno before it finished has been heard by now.
        let finished = self.finished_before;
        while let Some((&seqno, &same)) = self.votes.odd.first_key_value().filter(|(s, _)| **s <= finished) {
            self.votes.odd.remove(&seqno);
            if !same && !self.votes.before.contains(&seqno) {
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
            said.entry(*opinion).or_default().push(self.name_of(id));
        }
        let what = |opinion: Opinion| match opinion {
            SUCCESS => "success".to_string(),
            error => format!("{error:016x}"),
        };
        let said: Vec<String> =
            said.iter().map(|(o, names)| format!("{}: {}", what(*o), names.join(", "))).collect();
        let text = format!("vote on seqno {seqno}: {} counts ({})", what(*winner), said.join("; "));
        self.log(Level::Info, text);
        match self.votes.open.remove(seqno) {
            Some(open) => {
                let same = open.opinion == *winner;
                if same && *winner != SUCCESS && self.finished() < *seqno {
                    self.votes.odd.insert(*seqno, true);
                }
                // Where nobody waits for it any more.
                if !open.reply.answer(same) && !same {
                    let text = self.minority(*seqno);
                    self.inconsistent(text);
                }
            }
            // What this member has found may have been heard in this very round, when the outcome was in its log already.
            None if *winner != SUCCESS => {
                self.votes.odd.entry(*seqno).or_insert(false);
            }
            None => {}
        }
    }

    fn gtid_text(&self, seqno: Seqno) -> String {
        format!("{}:{seqno}", self.raft.tail_state().history)
    }

    /// What a member says that is alone with its failure.
    fn minority(&self, seqno: Seqno) -> String {
        let gtid = self.gtid_text(seqno);
        format!(
            "Inconsistency detected: Inconsistent by consensus on {gtid}: what this server cannot do, the others did"
        )
    }

    /// This member's data are not the others'. The front end stops using them, and has this member leave.
    fn inconsistent(&mut self, text: String) {
        self.log(Level::Error, text.clone());
        self.deliver(Delivery::Inconsistent(text));
    }
}

#[cfg(test)]
#[path = "votes_tests.rs"]
mod tests;
