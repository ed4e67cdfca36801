//! Whether this member counts as Synced: the notices to its server, and the reasons to be Desynced for others.

use lockstep_core::Seqno;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct SyncState {
    /// How many users' and donations' reasons there are to be Desynced. They outlast a connection: the server still
    /// wants to be Desynced when it connects again.
    desyncs: u32,
    /// The server has been told that it is synced, and has not seen a loss of the majority since.
    notified: bool,
    /// More than `apply.lag_limit` behind, and not caught up since.
    lagging: bool,
    /// The seqno of the view with which this connection began. A member below it has not caught up.
    connected_seqno: Seqno,
}

impl SyncState {
    /// A connection has begun with the view at this seqno.
    pub(in crate::member) fn connected(&mut self, view_seqno: Seqno) {
        self.connected_seqno = view_seqno;
    }

    /// This member has left.
    pub(in crate::member) fn left(&mut self) {
        self.notified = false;
        self.lagging = false;
    }

    /// The server wants to be Desynced.
    pub(in crate::member) fn desync(&mut self) {
        self.desyncs += 1;
    }

    /// One reason to be Desynced ends. Returns whether it was the last.
    pub(in crate::member) fn resync(&mut self) -> bool {
        self.desyncs = self.desyncs.saturating_sub(1);
        self.desyncs == 0
    }

    /// Whether the server wants to be Desynced.
    pub(in crate::member) fn is_desynced_by_server(&self) -> bool {
        self.desyncs > 0
    }

    pub(in crate::member) fn is_lagging(&self) -> bool {
        self.lagging
    }

    pub(in crate::member) fn set_lagging(&mut self, lagging: bool) {
        self.lagging = lagging;
    }

    /// Whether the server may be told that it is synced. One that is Desynced by choice must still be told once: until
    /// then it refuses all queries.
    pub(in crate::member) fn may_notify(&self) -> bool {
        self.desyncs == 0 || !self.notified
    }

    /// The server is told that it is synced. Returns whether that is the first time.
    pub(in crate::member) fn notify(&mut self) -> bool {
        !std::mem::replace(&mut self.notified, true)
    }

    /// The server sees a loss of the majority.
    pub(in crate::member) fn majority_lost(&mut self) {
        self.notified = false;
    }

    /// Whether this seqno is that of the connection's first view, or later.
    pub(in crate::member) fn reaches_connect(&self, delivered: Seqno) -> bool {
        delivered >= self.connected_seqno
    }

    #[cfg(test)]
    pub(in crate::member) fn is_notified(&self) -> bool {
        self.notified
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn desynced_server_is_notified_once() {
        let mut sync = SyncState::default();
        sync.desync();
        assert!(sync.may_notify() && sync.notify());
        assert!(!sync.may_notify());
        sync.desync();
        assert!(!sync.resync() && !sync.may_notify());
        assert!(sync.resync() && sync.may_notify() && !sync.notify());
        sync.majority_lost();
        assert!(sync.notify());
    }
}
