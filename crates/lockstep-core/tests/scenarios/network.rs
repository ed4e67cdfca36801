//! Messages on their way, and the links that lose them.

use lockstep_core::message::Message;
use std::collections::{BTreeSet, VecDeque};

/// A message on its way.
pub(crate) struct Envelope {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) message: Message,
}

/// See the module. Each link delivers in order.
#[derive(Default)]
pub(crate) struct Network {
    wire: VecDeque<Envelope>,
    cut: BTreeSet<(usize, usize)>,
    down: BTreeSet<usize>,
    /// Members whose processes do not run: messages to them stay on their way.
    stalled: BTreeSet<usize>,
}

impl Network {
    /// Sends a message. Whether it is lost.
    pub(crate) fn post(&mut self, from: usize, to: usize, message: Message) -> bool {
        let lost = self.cut.contains(&(from, to)) || self.down.contains(&to);
        if !lost {
            self.wire.push_back(Envelope { from, to, message });
        }
        lost
    }

    /// Takes the oldest messages that match, at most `count`.
    pub(crate) fn take(&mut self, count: usize, matches: impl Fn(usize, usize) -> bool) -> Vec<Envelope> {
        let mut taken = Vec::new();
        for envelope in std::mem::take(&mut self.wire) {
            let arrives = !self.is_stalled(envelope.to) && matches(envelope.from, envelope.to);
            match taken.len() < count && arrives {
                true => taken.push(envelope),
                false => self.wire.push_back(envelope),
            }
        }
        taken
    }

    /// Whether no message on its way can be delivered.
    pub(crate) fn is_idle(&self) -> bool {
        self.wire.iter().all(|envelope| self.is_stalled(envelope.to))
    }

    pub(crate) fn set_stalled(&mut self, n: usize, stalled: bool) {
        match stalled {
            true => self.stalled.insert(n),
            false => self.stalled.remove(&n),
        };
    }

    pub(crate) fn is_stalled(&self, n: usize) -> bool {
        self.stalled.contains(&n)
    }

    /// Loses all messages of a link, those on their way included.
    pub(crate) fn cut(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
        self.wire.retain(|envelope| (envelope.from, envelope.to) != (from, to));
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cut.contains(&(from, to))
    }

    /// A member is down from now on, or up. The messages from and to it are lost with its connections.
    pub(crate) fn set_down(&mut self, n: usize, down: bool) {
        match down {
            true => self.down.insert(n),
            false => self.down.remove(&n),
        };
        self.wire.retain(|envelope| envelope.from != n && envelope.to != n);
    }
}
