//! The outputs of a member's round: effects for its threads, deliveries for the front end, and threads to wake.

use crate::api::{Delivery, Level};
use crate::effect::Effect;
use crate::wire::{FRAME_NODE, FRAME_OPERATOR, FRAME_RAFT, NodeMessage, OperatorMessage};
use lockstep_core::MemberId;
use lockstep_core::codec::Writer;
use lockstep_core::message::Message;
use std::collections::VecDeque;
use std::thread::Thread;

/// A message of this member to itself. The router dispatches it like one from a peer, once the component that sent it
/// has returned.
#[derive(Debug)]
pub(in crate::member) enum OwnMessage {
    Node(NodeMessage),
    Operator(OperatorMessage),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct Outbox {
    effects: Vec<Effect>,
    deliveries: Vec<Delivery>,
    /// Threads whose submissions have been ordered, by seqno.
    woken: Vec<Thread>,
    own: VecDeque<OwnMessage>,
}

impl Outbox {
    /// Adds an effect. Effects are carried out in the order of their addition.
    pub(in crate::member) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(in crate::member) fn extend(&mut self, effects: impl IntoIterator<Item = Effect>) {
        self.effects.extend(effects);
    }

    /// Writes a line to the error log.
    pub(in crate::member) fn log(&mut self, level: Level, text: impl Into<String>) {
        self.effects.push(Effect::Log(level, text.into()));
    }

    /// Sends a message to a peer.
    pub(in crate::member) fn send(&mut self, to: MemberId, message: &NodeMessage) {
        self.effects.push(Effect::Send { to, kind: FRAME_NODE, payload: vec![message.to_bytes()] });
    }

    /// Sends a message of Raft to a peer.
    pub(in crate::member) fn send_raft(&mut self, to: MemberId, message: &Message) {
        let mut w = Writer::with_capacity(message.copied_size());
        message.encode(&mut w);
        self.effects.push(Effect::Send { to, kind: FRAME_RAFT, payload: w.into_parts() });
    }

    /// Sends a message about an operator's command to a peer.
    pub(in crate::member) fn send_operator(&mut self, to: MemberId, message: &OperatorMessage) {
        self.effects.push(Effect::Send { to, kind: FRAME_OPERATOR, payload: vec![message.to_bytes()] });
    }

    /// Sends a message to this member itself.
    pub(in crate::member) fn send_own(&mut self, message: OwnMessage) {
        self.own.push_back(message);
    }

    /// The next message of this member to itself.
    pub(in crate::member) fn take_own(&mut self) -> Option<OwnMessage> {
        self.own.pop_front()
    }

    /// Hands a delivery to the front end.
    pub(in crate::member) fn deliver(&mut self, delivery: Delivery) {
        self.deliveries.push(delivery);
    }

    /// The thread is woken at the end of the round: see [`Outbox::wake`].
    pub(in crate::member) fn wake_later(&mut self, thread: Option<Thread>) {
        self.woken.extend(thread);
    }

    /// Wakes the threads whose submissions have been ordered, in commit order.
    pub(in crate::member) fn wake(&mut self) {
        for thread in self.woken.drain(..) {
            thread.unpark();
        }
    }

    /// Moves the effects and deliveries since the last call to the caller's lists.
    pub(in crate::member) fn take(&mut self, effects: &mut Vec<Effect>, deliveries: &mut Vec<Delivery>) {
        effects.append(&mut self.effects);
        deliveries.append(&mut self.deliveries);
    }
}

/// If the member goes down in the middle of a round, threads with a result are still woken.
impl Drop for Outbox {
    fn drop(&mut self) {
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::harness::context;
    use lockstep_core::Uuid;

    #[test]
    fn message_to_own_id_stays_inside() {
        let mut ctx = context();
        let (own, other) = (ctx.me().id, Uuid([9; 16]));
        ctx.send(own, &NodeMessage::AskOpinion { seqno: 1 });
        ctx.send_operator(own, OperatorMessage::OpenBarrier { id: 2 });
        ctx.send(other, &NodeMessage::AskOpinion { seqno: 3 });
        let mut effects = Vec::new();
        ctx.take_outputs(&mut effects, &mut Vec::new());
        assert!(matches!(effects[..], [Effect::Send { to, .. }] if to == other));
        let first = ctx.take_own();
        assert!(matches!(first, Some(OwnMessage::Node(NodeMessage::AskOpinion { seqno: 1 }))));
        let second = ctx.take_own();
        assert!(matches!(second, Some(OwnMessage::Operator(OperatorMessage::OpenBarrier { id: 2 }))));
        assert!(ctx.take_own().is_none());
    }
}
