//! The invariants of the core, asserted at the end of each round.
//!
//! Tests and the simulator check them; builds for users do not, because some take time linear in the log's cache. A run with
//! an active failpoint is exempt: it breaks them on purpose.

use super::*;

/// Whether this build checks invariants.
const CHECKED: bool = cfg!(debug_assertions) || FAILPOINTS;

impl Raft {
    /// Asserts the invariants of the core and its parts.
    ///
    /// # Panics
    /// If one of them does not hold.
    #[inline]
    pub(super) fn assert_invariants(&self) {
        if !CHECKED || !self.config.failpoints.none_active() {
            return;
        }
        self.log.assert_invariants();
        self.disk.assert_invariants(self.log.last());
        self.outbox.assert_invariants();
        let (commit, last) = (self.commit(), self.log.last());
        assert!(
            commit <= self.log.matched() && self.log.matched() <= last,
            "commit {commit} <= matched {} <= last {last}",
            self.log.matched()
        );
        assert!(self.deliverable() <= commit, "deliverable {} <= commit {commit}", self.deliverable());
        assert!(
            self.log.tail().term <= self.term,
            "last entry's term {} <= term {}",
            self.log.tail().term,
            self.term
        );
        if self.role == Role::Leader {
            assert_eq!(self.log.matched(), last, "a leader's log is the term's log");
            assert_eq!(self.leader, Some(self.config.id), "a leader knows itself as the leader");
            for (id, peer) in &self.peers {
                assert!(*id != self.config.id, "a leader is not its own peer");
                assert!(
                    peer.matched <= peer.received,
                    "matched {} <= received {}",
                    peer.matched,
                    peer.received
                );
                assert!(peer.received <= last, "received {} of {id} <= last {last}", peer.received);
            }
        } else {
            assert!(self.peers.is_empty(), "only a leader has peers");
        }
    }
}
