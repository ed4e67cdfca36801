//! Members of the cluster: peers, joining and leaving, roles, branches.

pub(in crate::member) mod admission;
pub(crate) mod branch;
#[cfg(test)]
mod damaged_log_tests;
pub(in crate::member) mod disk_notes;
pub(in crate::member) mod disk_progress;
pub(in crate::member) mod health;
pub(in crate::member) mod join_target;
pub(in crate::member) mod leader_tasks;
pub(in crate::member) mod leave;
pub(in crate::member) mod own_disk;
pub(in crate::member) mod peers;
pub(in crate::member) mod quorum;
pub(in crate::member) mod reverted_log;
#[cfg(test)]
mod reverted_log_tests;
pub(in crate::member) mod sync_state;
pub(in crate::member) mod views_shown;
pub(in crate::member) mod wait_text;
#[cfg(test)]
mod whole_log_tests;

use branch::Branches;
use disk_notes::DiskNotes;
use health::HealthReports;
use leader_tasks::LeaderTasks;
use leave::Leave;
use own_disk::OwnDisk;
use reverted_log::RevertedLog;
use sync_state::SyncState;
use views_shown::ViewsShown;

/// The components of this folder, beside the peers. Each keeps its fields to itself. They are open because
/// the router lends several to one call.
#[derive(Default)]
pub(in crate::member) struct Roster {
    /// This member's leave.
    pub(in crate::member) leave: Leave,
    /// Forced bootstraps and branches.
    pub(in crate::member) branches: Branches,
    /// A leader's tasks.
    pub(in crate::member) leader_tasks: LeaderTasks,
    /// Whether this member is Synced.
    pub(in crate::member) sync: SyncState,
    /// Whether this member's disk hangs.
    pub(in crate::member) own_disk: OwnDisk,
    /// Whether this member's disk went back in time.
    pub(in crate::member) reverted_log: RevertedLog,
    /// Evidence of the members' disks in the log.
    pub(in crate::member) disk_notes: DiskNotes,
    /// When this member reports its health.
    pub(in crate::member) health_reports: HealthReports,
    /// The views that the server has seen.
    pub(in crate::member) views_shown: ViewsShown,
}
