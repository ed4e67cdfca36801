//! lockstep-lab.
