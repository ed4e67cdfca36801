//! The outputs of a member's round: effects for its threads, deliveries for the front end, and threads to wake.

use crate::api::{Delivery, Level};
use crate::effect::Effect;
use crate::wire::{FRAME_NODE, NodeMessage};
use lockstep_core::MemberId;
use std::thread::Thread;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct Outbox {
    effects: Vec<Effect>,
    deliveries: Vec<Delivery>,
    /// Threads whose submissions have been ordered, by seqno.
    woken: Vec<Thread>,
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
