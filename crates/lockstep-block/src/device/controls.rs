//! Control entries of this member that are on their way through the log, and the tasks that wait for their outcome.

use crate::export::Peer;
use std::collections::BTreeMap;

/// The outcome of a control entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Outcome {
    /// Whether the state permitted it.
    pub(crate) accepted: bool,
    /// The epoch then.
    pub(crate) epoch: u64,
}

#[derive(Debug)]
struct Control {
    /// Of an attach: the client.
    peer: Option<Peer>,
    /// Nobody waits any more.
    abandoned: bool,
    outcome: Option<Outcome>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Controls {
    next: u64,
    waiting: BTreeMap<u64, Control>,
}

impl Controls {
    /// `seed` must differ from run to run: an earlier process's entry must not be taken for one of this process.
    pub(crate) fn new(seed: u64) -> Controls {
        Controls { next: seed, waiting: BTreeMap::new() }
    }

    /// A token for an entry whose outcome nobody asks for here.
    pub(crate) fn token(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next
    }

    /// A token for an entry that is about to be sent. `peer`: the client, if the entry is an attach.
    pub(crate) fn begin(&mut self, peer: Option<Peer>) -> u64 {
        let token = self.token();
        self.waiting.insert(token, Control { peer, abandoned: false, outcome: None });
        token
    }

    /// The log has decided. Returns the client of an attach of this process, and whether it still waits.
    pub(crate) fn decided(&mut self, token: u64, outcome: Outcome) -> Option<(Peer, bool)> {
        let control = self.waiting.get_mut(&token)?;
        control.outcome.get_or_insert(outcome);
        let (peer, waits) = (control.peer, !control.abandoned);
        if control.abandoned {
            self.waiting.remove(&token);
        }
        peer.map(|peer| (peer, waits))
    }

    /// The outcome, once there is one. It is given once.
    pub(crate) fn take(&mut self, token: u64) -> Option<Outcome> {
        let outcome = self.waiting.get(&token)?.outcome?;
        self.waiting.remove(&token);
        Some(outcome)
    }

    /// Nobody waits for this one any more. An attach may be decided later, and counts then. Returns the outcome, if there is one
    /// already.
    pub(crate) fn abandon(&mut self, token: u64) -> Option<Outcome> {
        let control = self.waiting.get_mut(&token)?;
        control.abandoned = true;
        let outcome = control.outcome;
        if outcome.is_some() || control.peer.is_none() {
            self.waiting.remove(&token);
        }
        outcome
    }

    /// An attach or a promotion was accepted: the attaches that were sent before can only be refused.
    pub(crate) fn forget_abandoned(&mut self) {
        self.waiting.retain(|_, control| !control.abandoned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_is_given_once_and_abandoned_ones_are_forgotten() {
        let mut controls = Controls::new(7);
        let outcome = Outcome { accepted: true, epoch: 3 };
        let (first, second) = (controls.begin(Some(Peer::Uid(1))), controls.begin(None));
        assert_eq!(controls.take(first), None);
        assert_eq!(controls.decided(first, outcome), Some((Peer::Uid(1), true)));
        assert_eq!(controls.take(first), Some(outcome));
        assert_eq!(controls.take(first), None);
        assert_eq!(controls.abandon(second), None);
        assert!(controls.waiting.is_empty(), "nothing is to be done once it is decided");
        assert_eq!(controls.decided(second, outcome), None);
        let (third, fourth) = (controls.begin(Some(Peer::Uid(1))), controls.begin(Some(Peer::Uid(1))));
        controls.abandon(third);
        assert_eq!(
            controls.decided(third, outcome),
            Some((Peer::Uid(1), false)),
            "the attachment begins, and nobody is there"
        );
        controls.abandon(fourth);
        controls.forget_abandoned();
        let fifth = controls.begin(Some(Peer::Uid(1)));
        controls.decided(fifth, outcome);
        assert_eq!(controls.abandon(fifth), Some(outcome), "nobody took it");
        assert!(controls.waiting.is_empty());
        assert_eq!(controls.decided(99, outcome), None, "of another process");
    }
}
