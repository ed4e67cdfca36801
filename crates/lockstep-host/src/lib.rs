//! lockstep-host.
