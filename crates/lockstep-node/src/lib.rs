//! lockstep-node.
