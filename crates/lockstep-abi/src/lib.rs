//! lockstep-abi.
