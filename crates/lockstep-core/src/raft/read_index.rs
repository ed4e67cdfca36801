//! Causal reads: which index must be delivered here before a read sees all that was acknowledged before it began?
//!
//! The leader's last *appended* index, for origins may know of commits before the leader does. The answer is good only
//! if the leader still was one when it was asked: it speaks to all voters after the question, and a majority must
//! answer in its term.

use super::failpoints::Failpoint;
use super::*;
use std::collections::VecDeque;

/// A question to us as the leader.
#[derive(Debug)]
struct Asked {
    /// By whom; `None`: our own server.
    from: Option<MemberId>,
    context: u64,
    index: Index,
    /// The append context that a majority must answer; 0 where not sent yet.
    needs: u64,
}

/// **Invariant:** own contexts ascend, in `sent` and `unsent` together.
#[derive(Debug)]
pub(super) struct Reads {
    last_context: u64,
    /// Own reads that were not sent to the leader yet.
    unsent: Vec<u64>,
    /// Own reads that were, and when.
    sent: VecDeque<(u64, Micros)>,
    /// Whom `sent` was sent to.
    reign: (Term, Option<MemberId>),
    /// As a leader: unanswered reads.
    asked: VecDeque<Asked>,
}

impl Reads {
    /// Contexts differ between lives of a process: a late answer to one's predecessor is not an answer.
    pub(super) fn new(incarnation: u64) -> Reads {
        Reads {
            last_context: incarnation << 32,
            unsent: Vec::new(),
            sent: VecDeque::new(),
            reign: (0, None),
            asked: VecDeque::new(),
        }
    }

    /// Sends pending questions again, because they may be lost.
    pub(super) fn ask_again(&mut self) {
        let sent = self.sent.drain(..).map(|(context, _)| context);
        self.unsent.splice(0..0, sent);
    }

    pub(super) fn deadline(&self, config: &Config) -> Micros {
        self.sent.front().map_or(Micros::MAX, |(_, at)| at + config.election_timeout)
    }
}

impl Raft {
    /// Asks which index must be delivered before a read. [`Output::ReadReady`] or [`Output::ReadFailed`] answers with
    /// the context returned here.
    pub fn read_index(&mut self, now: Micros) -> u64 {
        self.advance(now);
        self.reads.last_context += 1;
        let context = self.reads.last_context;
        if self.role == Role::Leader {
            self.reads.asked.push_back(Asked { from: None, context, index: self.log.last(), needs: 0 });
        } else {
            self.reads.unsent.push(context);
        }
        context
    }

    pub(super) fn on_read_index(&mut self, from: MemberId, context: u64) {
        if self.role != Role::Leader || self.log.tail().membership.get(&from).is_none() {
            self.send(from, Message::ReadIndexReply { term: self.term, context, index: None });
            return;
        }
        // One member's questions are answered by the last of them.
        let known = self.reads.asked.iter_mut().find(|a| a.from == Some(from) && a.needs == 0);
        let index = self.log.last();
        match known {
            Some(asked) => (asked.context, asked.index) = (asked.context.max(context), index),
            None => self.reads.asked.push_back(Asked { from: Some(from), context, index, needs: 0 }),
        }
    }

    /// Questions make a round of messages.
    pub(super) fn start_reads(&mut self) {
        // Questions from before our election.
        self.reads.ask_again();
        let index = self.log.last();
        let own = self.reads.unsent.drain(..).map(|context| Asked { from: None, context, index, needs: 0 });
        self.reads.asked.extend(own);
        if self.reads.asked.iter().any(|asked| asked.needs == 0) {
            self.lead.speak = true;
        }
    }

    /// This round's context answers all questions so far.
    pub(super) fn stamp_reads(&mut self) {
        for asked in self.reads.asked.iter_mut().rev().take_while(|asked| asked.needs == 0) {
            asked.needs = self.lead.context;
        }
    }

    pub(super) fn confirm_reads(&mut self) {
        if self.reads.asked.is_empty() {
            return;
        }
        let membership = &self.log.tail().membership;
        let mut heard: Vec<u64> = membership
            .voters()
            .map(|id| match self.peers.get(&id) {
                Some(peer) => peer.context_heard,
                None if id == self.config.id => u64::MAX,
                None => 0,
            })
            .collect();
        let majority = match self.config.failpoints.is_active(Failpoint::ReadWithoutMajority) {
            true => 1,
            false => membership.majority(),
        };
        let confirmed = ack::reached_by(&mut heard, majority);
        while self.reads.asked.front().is_some_and(|asked| asked.needs != 0 && asked.needs <= confirmed) {
            let Some(Asked { from, context, index, .. }) = self.reads.asked.pop_front() else { break };
            match from {
                None => self.outputs.push(Output::ReadReady { context, index }),
                Some(to) => {
                    let message = Message::ReadIndexReply { term: self.term, context, index: Some(index) };
                    self.send(to, message);
                }
            }
        }
    }

    /// We do not lead any more: nobody can be answered.
    pub(super) fn fail_reads(&mut self) {
        let term = self.term;
        for Asked { from, context, .. } in std::mem::take(&mut self.reads.asked) {
            match from {
                None => self.outputs.push(Output::ReadFailed { context }),
                Some(to) => self.send(to, Message::ReadIndexReply { term, context, index: None }),
            }
        }
    }

    /// Another member asks the leader, once for all reads of the round.
    pub(super) fn send_reads(&mut self) {
        if self.reads.reign != (self.term, self.leader) {
            self.reads.reign = (self.term, self.leader);
            self.reads.ask_again();
        }
        let Some(&context) = self.reads.unsent.last() else { return };
        let now = self.now;
        match self.leader {
            Some(leader) => {
                self.reads.sent.extend(self.reads.unsent.drain(..).map(|context| (context, now)));
                self.send(leader, Message::ReadIndex { term: self.term, context });
            }
            None => {
                for context in std::mem::take(&mut self.reads.unsent) {
                    self.outputs.push(Output::ReadFailed { context });
                }
            }
        }
    }

    pub(super) fn on_read_index_reply(
        &mut self,
        from: MemberId,
        term: Term,
        context: u64,
        index: Option<Index>,
    ) {
        // A reply with an index comes from a member that led when it was asked, so it counts even if that has changed.
        // Only questions of this incarnation count.
        let answered = match index {
            Some(_) => true,
            None => self.leader == Some(from) && term >= self.term,
        };
        if !answered {
            return;
        }
        while self.reads.sent.front().is_some_and(|(asked, _)| *asked <= context) {
            let Some((context, _)) = self.reads.sent.pop_front() else { break };
            self.outputs.push(match index {
                Some(index) => Output::ReadReady { context, index },
                None => Output::ReadFailed { context },
            });
        }
    }

    /// Repeats questions that stay unanswered, because messages may be lost. A repetition keeps its number: the answer may be
    /// delayed on a full line, and would match no question if each had a new number.
    pub(super) fn tick_reads(&mut self) {
        let (now, timeout) = (self.now, self.config.election_timeout);
        if self.reads.sent.front().is_none_or(|(_, at)| now < at + timeout) {
            return;
        }
        if let (Some(leader), Some((context, _))) = (self.leader, self.reads.sent.back().copied()) {
            self.reads.sent.iter_mut().for_each(|(_, at)| *at = now);
            self.send(leader, Message::ReadIndex { term: self.term, context });
        } else {
            // Asked anew, or failed, by the next round.
            self.reads.ask_again();
        }
    }
}
