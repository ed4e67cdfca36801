//! lockstep-net.
