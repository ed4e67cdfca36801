//! The identity of a connection: the history that seqnos belong to, and this member's UUID in the view.

use lockstep_node::core::{Gtid, SEQNO_UNDEFINED, Seqno, Uuid};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, Ordering};

/// A UUID that any thread may read. It is written only while no transaction is in progress, so that no reader sees half
/// of a change.
#[derive(Default)]
pub(crate) struct AtomicUuid([AtomicU64; 2]);

impl AtomicUuid {
    pub(crate) fn get(&self) -> Uuid {
        let mut raw = [0; 16];
        raw[..8].copy_from_slice(&self.0[0].load(Ordering::Acquire).to_le_bytes());
        raw[8..].copy_from_slice(&self.0[1].load(Ordering::Acquire).to_le_bytes());
        Uuid(raw)
    }

    pub(crate) fn set(&self, uuid: Uuid) {
        let half = |at: usize| u64::from_le_bytes(uuid.0[at..at + 8].try_into().unwrap_or_default());
        self.0[0].store(half(0), Ordering::Release);
        self.0[1].store(half(8), Ordering::Release);
    }
}

/// See the module.
pub(crate) struct Identity {
    /// The history that seqnos belong to; nil before the first view.
    history: AtomicUuid,
    /// This member's view UUID. The server identifies it by this one.
    own: AtomicUuid,
    /// See [`lockstep_core::writeset::Meta::epoch`].
    epoch: AtomicU16,
    /// The connection has no position yet: its first view sets it.
    fresh: AtomicBool,
    /// This process has been connected before.
    been_connected: AtomicBool,
    /// The seqno of the connection's first view.
    connected_at: AtomicI64,
}

impl Default for Identity {
    fn default() -> Identity {
        Identity {
            history: AtomicUuid::default(),
            own: AtomicUuid::default(),
            epoch: AtomicU16::new(0),
            fresh: AtomicBool::new(true),
            been_connected: AtomicBool::new(false),
            connected_at: AtomicI64::new(SEQNO_UNDEFINED),
        }
    }
}

impl Identity {
    pub(crate) fn history(&self) -> Uuid {
        self.history.get()
    }

    /// A Primary view names the history.
    pub(crate) fn set_history(&self, history: Uuid) {
        self.history.set(history);
    }

    /// The GTID of `seqno` in the current history.
    pub(crate) fn at(&self, seqno: Seqno) -> Gtid {
        Gtid { uuid: self.history.get(), seqno }
    }

    /// This member's view UUID.
    pub(crate) fn own(&self) -> Uuid {
        self.own.get()
    }

    pub(crate) fn epoch(&self) -> u16 {
        self.epoch.load(Ordering::Acquire)
    }

    /// A client thread gives up a write-set that may still be ordered. Call it before the transaction's locks are
    /// released: the next transaction to take them must carry the new epoch.
    pub(crate) fn next_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// A connection attempt begins, with a database of this history.
    pub(crate) fn connecting(&self, history: Uuid) {
        self.fresh.store(true, Ordering::SeqCst);
        self.history.set(history);
    }

    /// The connection has been made, as `own`; its first view is at `at`.
    pub(crate) fn connected(&self, own: Uuid, at: Gtid) {
        self.own.set(own);
        self.history.set(at.uuid);
        self.connected_at.store(at.seqno, Ordering::SeqCst);
        self.fresh.store(true, Ordering::SeqCst);
        self.been_connected.store(true, Ordering::SeqCst);
    }

    /// Whether this process has been connected before.
    pub(crate) fn been_connected(&self) -> bool {
        self.been_connected.load(Ordering::SeqCst)
    }

    /// The seqno of the connection's first view.
    pub(crate) fn connected_at(&self) -> Seqno {
        self.connected_at.load(Ordering::SeqCst)
    }

    /// Whether the connection has no position yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh.load(Ordering::SeqCst)
    }

    /// As [`Identity::is_fresh`]; the caller sets the position now.
    pub(crate) fn take_fresh(&self) -> bool {
        self.fresh.swap(false, Ordering::SeqCst)
    }

    /// The position has been set.
    pub(crate) fn position_is_set(&self) {
        self.fresh.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_is_fresh_until_position_is_set() {
        let identity = Identity::default();
        let at = Gtid { uuid: Uuid([7; 16]), seqno: 5 };
        identity.connecting(Uuid([6; 16]));
        assert!(!identity.been_connected() && identity.history() == Uuid([6; 16]));
        identity.connected(Uuid([9; 16]), at);
        assert!(identity.been_connected() && identity.is_fresh());
        assert_eq!((identity.own(), identity.at(5), identity.connected_at()), (Uuid([9; 16]), at, 5));
        assert!(identity.take_fresh() && !identity.take_fresh());
        identity.connecting(at.uuid);
        identity.position_is_set();
        assert!(!identity.is_fresh());
    }
}
