//! Causal reads: the index that must be delivered here before a read sees everything acknowledged before it began.
//!
//! It is the leader's last *appended* index, because origins may know of commits before the leader does. The answer is
//! valid only if the leader still was the leader when it received the query. So it sends a message to all voters after
//! the query, and a majority must answer in its term.

use super::config::Config;
use super::failpoints::Failpoint;
use super::local::Local;
use super::output::{Output, Outputs};
use super::quorum::reached_by;
use crate::message::Message;
use crate::types::*;
use std::collections::VecDeque;

/// A query to this member as the leader.
#[derive(Debug)]
struct Asked {
    /// The querying member; `None`: our own server.
    from: Option<MemberId>,
    context: u64,
    index: Index,
    /// The append context that a majority must answer; 0: not sent yet.
    needs: u64,
}

/// **Invariant:** own contexts ascend, in `sent` and `unsent` together.
#[derive(Debug)]
pub(super) struct Reads {
    last_context: u64,
    /// Own reads not sent to the leader yet.
    unsent: Vec<u64>,
    /// Own reads sent to the leader, and when.
    sent: VecDeque<(u64, Micros)>,
    /// The term and leader to which `sent` refers.
    sent_to: (Term, Option<MemberId>),
    /// As a leader: unanswered reads.
    asked: VecDeque<Asked>,
}

impl Reads {
    /// Contexts differ between incarnations, so a late answer to an earlier one is ignored.
    pub(super) fn new(incarnation: u64) -> Reads {
        Reads {
            last_context: incarnation << 32,
            unsent: Vec::new(),
            sent: VecDeque::new(),
            sent_to: (0, None),
            asked: VecDeque::new(),
        }
    }

    /// Sends pending queries again, because they may be lost.
    pub(super) fn ask_again(&mut self) {
        let sent = self.sent.drain(..).map(|(context, _)| context);
        self.unsent.splice(0..0, sent);
    }

    pub(super) fn deadline(&self, config: &Config) -> Micros {
        self.sent.front().map_or(Micros::MAX, |(_, at)| at + config.election_timeout)
    }

    /// Asks which index must be delivered before a read. Returns the context of the answer.
    pub(super) fn ask(&mut self, local: &Local) -> u64 {
        self.last_context += 1;
        let context = self.last_context;
        if local.is_leader() {
            self.asked.push_back(Asked { from: None, context, index: local.log().last(), needs: 0 });
        } else {
            self.unsent.push(context);
        }
        context
    }

    /// Handles a question of another member.
    pub(super) fn on_question(&mut self, local: &Local, out: &mut Outputs, from: MemberId, context: u64) {
        if !local.is_leader() || !local.is_member(&from) {
            out.send(from, Message::ReadIndexReply { term: local.term(), context, index: None });
            return;
        }
        // One member's questions are answered by the last of them.
        let known = self.asked.iter_mut().find(|a| a.from == Some(from) && a.needs == 0);
        let index = local.log().last();
        match known {
            Some(asked) => (asked.context, asked.index) = (asked.context.max(context), index),
            None => self.asked.push_back(Asked { from: Some(from), context, index, needs: 0 }),
        }
    }

    /// Begins a leader's round. Whether it must send a message to all peers: a majority has to answer new questions.
    pub(super) fn begin_round(&mut self, local: &Local) -> bool {
        // Questions from before the election.
        self.ask_again();
        let index = local.log().last();
        let own = self.unsent.drain(..).map(|context| Asked { from: None, context, index, needs: 0 });
        self.asked.extend(own);
        self.asked.iter().any(|asked| asked.needs == 0)
    }

    /// A majority's answers to `context` confirm all questions so far.
    pub(super) fn stamp(&mut self, context: u64) {
        debug_assert!(self.asked.iter().all(|asked| asked.needs <= context), "contexts ascend");
        for asked in self.asked.iter_mut().rev().take_while(|asked| asked.needs == 0) {
            asked.needs = context;
        }
    }

    /// Answers the questions that a majority has confirmed. `heard`: the last context that a peer has answered.
    pub(super) fn confirm(&mut self, local: &Local, out: &mut Outputs, answered: impl Fn(&MemberId) -> u64) {
        if self.asked.is_empty() {
            return;
        }
        let membership = local.membership();
        let of = |id: MemberId| if id == local.id() { u64::MAX } else { answered(&id) };
        let mut answered: Vec<u64> = membership.voters().map(of).collect();
        let majority = match local.is_active(Failpoint::ReadWithoutMajority) {
            true => 1,
            false => membership.majority(),
        };
        let confirmed = reached_by(&mut answered, majority);
        while self.asked.front().is_some_and(|asked| asked.needs != 0 && asked.needs <= confirmed) {
            let Some(Asked { from, context, index, .. }) = self.asked.pop_front() else { break };
            match from {
                None => out.push(Output::ReadReady { context, index }),
                Some(to) => {
                    let message = Message::ReadIndexReply { term: local.term(), context, index: Some(index) };
                    out.send(to, message);
                }
            }
        }
    }

    /// The leader steps down: its questions fail.
    pub(super) fn fail(&mut self, local: &Local, out: &mut Outputs) {
        let term = local.term();
        for Asked { from, context, .. } in std::mem::take(&mut self.asked) {
            match from {
                None => out.push(Output::ReadFailed { context }),
                Some(to) => out.send(to, Message::ReadIndexReply { term, context, index: None }),
            }
        }
    }

    /// A follower asks the leader, once for all reads of the round.
    pub(super) fn send(&mut self, local: &Local, out: &mut Outputs) {
        if self.sent_to != (local.term(), local.leader()) {
            self.sent_to = (local.term(), local.leader());
            self.ask_again();
        }
        let Some(&context) = self.unsent.last() else { return };
        match local.leader() {
            Some(leader) => {
                self.sent.extend(self.unsent.drain(..).map(|context| (context, local.now())));
                out.send(leader, Message::ReadIndex { term: local.term(), context });
            }
            None => {
                for context in std::mem::take(&mut self.unsent) {
                    out.push(Output::ReadFailed { context });
                }
            }
        }
    }

    /// Handles the leader's answer to all questions up to `context`.
    pub(super) fn on_reply(
        &mut self,
        local: &Local,
        out: &mut Outputs,
        from: MemberId,
        term: Term,
        context: u64,
        index: Option<Index>,
    ) {
        // A reply with an index comes from a member that led when it was asked, so it counts even if that has changed.
        // Only questions of this incarnation count.
        let answered = match index {
            Some(_) => true,
            None => local.leader() == Some(from) && term >= local.term(),
        };
        if !answered {
            return;
        }
        while self.sent.front().is_some_and(|(asked, _)| *asked <= context) {
            let Some((context, _)) = self.sent.pop_front() else { break };
            out.push(match index {
                Some(index) => Output::ReadReady { context, index },
                None => Output::ReadFailed { context },
            });
        }
    }

    /// Repeats questions that stay unanswered, because messages may be lost. A repetition keeps its number: the answer may
    /// be delayed on a full line, and would match no question if each had a new number.
    pub(super) fn tick(&mut self, local: &Local, out: &mut Outputs) {
        let (now, timeout) = (local.now(), local.config().election_timeout);
        if self.sent.front().is_none_or(|(_, at)| now < at + timeout) {
            return;
        }
        if let (Some(leader), Some((context, _))) = (local.leader(), self.sent.back().copied()) {
            self.sent.iter_mut().for_each(|(_, at)| *at = now);
            out.send(leader, Message::ReadIndex { term: local.term(), context });
        } else {
            // Asked anew, or failed, by the next round.
            self.ask_again();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{follower, leader, member};
    use super::*;

    #[test]
    fn read_waits_for_majority_that_answers_its_context() {
        let (local, mut out, mut reads) = (leader(3), Outputs::new(), Reads::new(1));
        let context = reads.ask(&local);
        assert!(reads.begin_round(&local), "a new question makes a round of messages");
        reads.stamp(7);
        reads.confirm(&local, &mut out, |_| 6);
        assert!(out.take().is_empty(), "answers to an earlier context do not count");
        reads.confirm(&local, &mut out, |id| if *id == member(2) { 7 } else { 0 });
        assert_eq!(out.take(), [Output::ReadReady { context, index: local.log().last() }]);
    }

    #[test]
    fn reads_of_deposed_leader_fail() {
        let (local, mut out, mut reads) = (leader(3), Outputs::new(), Reads::new(1));
        let context = reads.ask(&local);
        reads.on_question(&local, &mut out, member(2), 9);
        reads.fail(&local, &mut out);
        let reply = Message::ReadIndexReply { term: local.term(), context: 9, index: None };
        let refused = Output::Send { to: member(2), message: reply };
        assert_eq!(out.take(), [Output::ReadFailed { context }, refused]);
    }

    #[test]
    fn follower_sends_one_question_for_all_reads() {
        let (local, mut out, mut reads) = (follower(3, Some(member(2))), Outputs::new(), Reads::new(1));
        let contexts = [reads.ask(&local), reads.ask(&local)];
        reads.send(&local, &mut out);
        let message = Message::ReadIndex { term: local.term(), context: contexts[1] };
        assert_eq!(out.take(), [Output::Send { to: member(2), message }]);
        reads.on_reply(&local, &mut out, member(2), local.term(), contexts[1], Some(4));
        assert_eq!(out.take(), contexts.map(|context| Output::ReadReady { context, index: 4 }));
    }

    #[test]
    fn read_without_leader_fails_at_once() {
        let (local, mut out, mut reads) = (follower(3, None), Outputs::new(), Reads::new(1));
        let context = reads.ask(&local);
        reads.send(&local, &mut out);
        assert_eq!(out.take(), [Output::ReadFailed { context }]);
    }
}
