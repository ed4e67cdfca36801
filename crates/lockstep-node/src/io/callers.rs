//! The callers that wait for the member: threads of the front end, and clients of the status service.

use crate::api::NodeError;
use crate::operator::Answer;
use crate::reply::Reply;
use lockstep_core::Seqno;
use lockstep_net::ConnId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The caller that gave a command.
pub(crate) enum Commander {
    Client(ConnId),
    Thread(Arc<Reply<Answer>>),
}

#[derive(Default)]
pub(crate) struct Callers {
    connecting: Option<Arc<Reply<Result<(), NodeError>>>>,
    leaving: Vec<Arc<Reply<()>>>,
    causal_reads: BTreeMap<u64, Arc<Reply<Option<Seqno>>>>,
    policy_changes: Vec<Arc<Reply<Result<(), String>>>>,
    /// By token, like the next.
    commands: BTreeMap<u64, Commander>,
    /// Clients that asked for the committed position.
    positions: BTreeMap<u64, ConnId>,
    last_token: u64,
}

impl Callers {
    pub(crate) fn begin_to_connect(&mut self, reply: Arc<Reply<Result<(), NodeError>>>) {
        self.connecting = Some(reply);
    }

    pub(crate) fn connected(&mut self, result: Result<(), NodeError>) {
        if let Some(reply) = self.connecting.take() {
            reply.set(result);
        }
    }

    pub(crate) fn begin_to_leave(&mut self, reply: Arc<Reply<()>>) {
        self.leaving.push(reply);
    }

    pub(crate) fn left(&mut self) {
        for reply in self.leaving.drain(..) {
            reply.set(());
        }
    }

    pub(crate) fn begin_causal_read(&mut self, id: u64, reply: Arc<Reply<Option<Seqno>>>) {
        let before = self.causal_reads.insert(id, reply);
        debug_assert!(before.is_none(), "causal read {id} waits twice");
    }

    pub(crate) fn cancel_causal_read(&mut self, id: u64) {
        self.causal_reads.remove(&id);
    }

    pub(crate) fn finish_causal_read(&mut self, id: u64, seqno: Option<Seqno>) {
        if let Some(reply) = self.causal_reads.remove(&id) {
            reply.set(seqno);
        }
    }

    pub(crate) fn request_policy(&mut self, reply: Arc<Reply<Result<(), String>>>) {
        self.policy_changes.push(reply);
    }

    pub(crate) fn policy_changed(&mut self, result: &Result<(), String>) {
        for reply in self.policy_changes.drain(..) {
            reply.set(result.clone());
        }
    }

    /// Returns the command's token.
    pub(crate) fn begin_command(&mut self, commander: Commander) -> u64 {
        self.last_token += 1;
        self.commands.insert(self.last_token, commander);
        self.last_token
    }

    /// Answers a thread; returns the connection of a client, which is to be answered by the reactor.
    pub(crate) fn command_answered(&mut self, token: u64, answer: &Answer) -> Option<ConnId> {
        match self.commands.remove(&token)? {
            Commander::Client(conn) => Some(conn),
            Commander::Thread(reply) => {
                reply.set(answer.clone());
                None
            }
        }
    }

    /// Returns the query's token.
    pub(crate) fn begin_position_query(&mut self, conn: ConnId) -> u64 {
        self.last_token += 1;
        self.positions.insert(self.last_token, conn);
        self.last_token
    }

    /// The client to answer.
    pub(crate) fn position_answered(&mut self, token: u64) -> Option<ConnId> {
        self.positions.remove(&token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn command_answer_reaches_its_thread_only() {
        let mut callers = Callers::default();
        let (first, second) = (Reply::new(), Reply::new());
        let token = callers.begin_command(Commander::Thread(first.clone()));
        let other = callers.begin_command(Commander::Thread(second.clone()));
        assert_ne!(token, other);
        let answer = Answer { ok: true, text: "done".into(), seconds: 0.0, held: None };
        assert!(callers.command_answered(token, &answer).is_none());
        assert_eq!(first.wait(Duration::ZERO).map(|a| a.text), Some("done".into()));
        assert!(second.wait(Duration::ZERO).is_none());
    }

    #[test]
    fn cancelled_causal_read_gets_no_answer() {
        let mut callers = Callers::default();
        let reply = Reply::new();
        callers.begin_causal_read(1, reply.clone());
        callers.cancel_causal_read(1);
        callers.finish_causal_read(1, Some(5));
        assert_eq!(reply.wait(Duration::ZERO), None);
    }

    #[test]
    fn leave_answers_all_waiting_threads() {
        let mut callers = Callers::default();
        let replies = [Reply::new(), Reply::new()];
        for reply in &replies {
            callers.begin_to_leave(reply.clone());
        }
        callers.left();
        assert!(replies.iter().all(|reply| reply.wait(Duration::ZERO).is_some()));
    }
}
