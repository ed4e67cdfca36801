//! lockstep-log.
