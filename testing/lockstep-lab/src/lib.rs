//! The lab: experiments with real MariaDB servers.
//!
//! A [`Cluster`] is a folder of servers, all of one account, on free ports of loopback. Each is started, stopped, killed
//! and paused like any daemon, and asked in SQL through a [`lockstep_local::Client`]. Nothing here knows anything of
//! Lockstep's insides: the provider is a path, so that Galera's own can run the same experiments.

mod arbitrator;
mod bench;
mod binlog_member;
pub mod block;
mod block_bench;
pub mod block_chaos;
mod block_group;
pub mod block_mariadb;
mod catch_up;
pub mod cdc;
pub mod chaos;
mod cluster;
mod commands;
mod elsewhere;
mod far;
pub mod isolation;
mod machine;
mod member_process;
mod mount;
mod needs;
mod netns;
pub mod parallel_apply;
mod replica;
mod replicated_device;
pub mod semi_sync_wan;
mod servers;
pub mod shootout;
mod slow_disk;
pub mod synchronous;
mod sysbench;
pub mod wan;
mod writers;

pub use bench::Bench;
pub use cluster::{Cluster, ClusterSpec, Place, SETTLE_TIMEOUT};
pub use commands::Tool;
pub use elsewhere::{BUSY, Work};
pub use machine::{children_cpu_time, sync_disks};
pub use replica::WAIT_POINT;
pub use slow_disk::SlowDisk;
pub use sysbench::{Histogram, Load, SYSBENCH_DATABASE, Sysbench};
pub use writers::{Gaps, Writers, Written};
