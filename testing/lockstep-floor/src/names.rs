//! What whoever starts a server with this provider says in its environment. The lab has this file among its own modules, for
//! a library that a server loads can be asked for nothing.

/// The real provider's file.
pub(crate) const REAL: &str = "LOCKSTEP_FLOOR_OF";

/// How long a tick is, in microseconds; none: nobody waits.
pub(crate) const TICK: &str = "LOCKSTEP_FLOOR_TICK";
