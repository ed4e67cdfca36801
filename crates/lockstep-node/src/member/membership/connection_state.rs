//! The states of a member's connection, from "not connected" to "Synced".

use crate::api::ConnectArgs;
use lockstep_core::Micros;

/// The state of this member's connection to the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionState {
    /// Not connected.
    Idle,
    /// Looking for a primary component.
    Connecting {
        /// The arguments of the connect.
        args: ConnectArgs,
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

    /// The server is to be told again once it has caught up.
    pub(in crate::member) fn not_synced(&mut self) {
        if let ConnectionState::Running { synced, .. } = self {
            *synced = false;
        }
    }

    pub(crate) fn is_primary(&self) -> bool {
        matches!(self, ConnectionState::Running { primary: true, .. })
    }
}
