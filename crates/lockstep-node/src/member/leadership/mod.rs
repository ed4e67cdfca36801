//! The choice of the leader: failure detection, placement, failback.

pub(in crate::member) mod failback;
pub(in crate::member) mod failure_detector;
pub(in crate::member) mod leader_slowness;
pub(in crate::member) mod placement;
