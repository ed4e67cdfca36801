//! Members of the cluster: peers, joining and leaving, roles, branches.

pub(in crate::member) mod admission;
pub(in crate::member) mod branch;
pub(in crate::member) mod connection_state;
pub(in crate::member) mod disk_progress;
pub(in crate::member) mod join_target;
pub(in crate::member) mod leader_tasks;
pub(in crate::member) mod leave;
pub(in crate::member) mod peers;
pub(in crate::member) mod quorum;
pub(in crate::member) mod sync_state;
pub(in crate::member) mod views_shown;
