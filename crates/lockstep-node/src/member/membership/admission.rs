//! The answer to a peer that introduces itself.

/// Whether to accept a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// Accepted.
    Welcome,
    /// Accepted in place of a connection to an earlier incarnation of the same member.
    Replaces,
    /// The connection is to this process itself: the own address is in the list.
    Ourselves,
    /// The peer's log is of a branch that left this member's.
    Superseded(String),
    /// The peer's log is of a branch that this member's has left.
    Outdated(String),
    /// The peer's log is of another history, or another log of the same history.
    OtherLog(String),
    /// This member has no log yet, and is connected to a peer with another log.
    Beside(String),
    /// The peer's data are of another kind: a database's beside a device's.
    OtherKind(String),
    /// The same identity is connected from elsewhere.
    SameIdentity(String),
}
