//! The states of a member's connection, from "not connected" to "Synced", and the transitions between them.

use super::Context;
use crate::api::ConnectArgs;
use lockstep_core::{Gtid, Micros};

/// How often a member logs that it waits for a primary component.
const LOG_INTERVAL: Micros = 10_000_000;

/// The state of this member's connection to the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionState {
    /// Not connected.
    Idle,
    /// Looking for a primary component.
    Connecting {
        /// The arguments of the connect.
        args: ConnectArgs,
        /// The front end had a position when it connected. That of the arguments may have been taken away since.
        had_position: bool,
        /// When the connect times out.
        until: Micros,
        /// When to log the wait next.
        log_at: Micros,
    },
    /// In the log; the database needs a state transfer.
    NeedState {
        /// Whether the last view was Primary.
        primary: bool,
    },
    /// In the log; entries are delivered.
    Running {
        /// Whether the last view was Primary.
        primary: bool,
        /// Whether the server has been told that it caught up.
        synced: bool,
    },
    /// The member cannot go on.
    Failed(String),
}

impl ConnectionState {
    pub(crate) fn is_connected(&self) -> bool {
        !matches!(self, ConnectionState::Idle | ConnectionState::Failed(_))
    }

    pub(crate) fn is_primary(&self) -> bool {
        matches!(self, ConnectionState::Running { primary: true, .. })
    }

    pub(in crate::member) fn is_failed(&self) -> bool {
        matches!(self, ConnectionState::Failed(_))
    }
}

/// The transitions.
impl Context {
    /// A connect begins. `had_position`: see [`ConnectionState::Connecting`].
    pub(in crate::member) fn begin_connecting(&mut self, args: ConnectArgs, had_position: bool) {
        let until = self.now + args.timeout.as_micros() as Micros;
        self.note_majority_seen();
        self.peers.forget_gone();
        self.connection =
            ConnectionState::Connecting { args, had_position, until, log_at: self.now + LOG_INTERVAL };
    }

    /// The wait for a primary component has been logged. `position`: the database's, in the present history.
    pub(in crate::member) fn connect_wait_logged(&mut self, position: Gtid) {
        if let ConnectionState::Connecting { args, log_at, .. } = &mut self.connection {
            args.position = position;
            *log_at = self.now + LOG_INTERVAL;
        }
    }

    /// The connect must not time out any more.
    pub(in crate::member) fn lift_connect_timeout(&mut self) {
        if let ConnectionState::Connecting { until, .. } = &mut self.connection {
            *until = Micros::MAX;
        }
    }

    /// This member is in a primary component; its database needs a state transfer.
    pub(in crate::member) fn need_state(&mut self) {
        self.connection = ConnectionState::NeedState { primary: true };
    }

    /// Entries are delivered from now on: the log reaches back to the database's position, or the state has been
    /// transferred, perhaps after the majority was lost.
    pub(in crate::member) fn begin_running(&mut self) {
        let primary = !matches!(self.connection, ConnectionState::NeedState { primary: false });
        self.connection = ConnectionState::Running { primary, synced: false };
    }

    /// The majority is lost.
    pub(in crate::member) fn lost_primary(&mut self) {
        self.set_primary(false);
    }

    /// The majority is back.
    pub(in crate::member) fn back_to_primary(&mut self) {
        self.became_primary();
        self.set_primary(true);
    }

    fn set_primary(&mut self, is_primary: bool) {
        match &mut self.connection {
            ConnectionState::NeedState { primary } => *primary = is_primary,
            ConnectionState::Running { primary, synced } => (*primary, *synced) = (is_primary, false),
            _ => {}
        }
    }

    /// The server has been told that it caught up.
    pub(in crate::member) fn became_synced(&mut self) {
        self.set_synced(true);
    }

    /// The server is to be told again once it has caught up.
    pub(in crate::member) fn not_synced(&mut self) {
        self.set_synced(false);
    }

    fn set_synced(&mut self, is_synced: bool) {
        if let ConnectionState::Running { synced, .. } = &mut self.connection {
            *synced = is_synced;
        }
    }

    /// The connect has failed, or this member has left.
    pub(in crate::member) fn disconnected(&mut self) {
        self.connection = ConnectionState::Idle;
    }

    /// This member cannot go on.
    pub(in crate::member) fn failed(&mut self, text: String) {
        self.connection = ConnectionState::Failed(text);
    }
}
