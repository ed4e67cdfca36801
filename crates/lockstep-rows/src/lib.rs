//! lockstep-rows.
