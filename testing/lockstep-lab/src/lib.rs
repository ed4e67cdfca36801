//! The lab: experiments with real MariaDB servers.
//!
//! A [`Cluster`] is a folder of servers, all of one account, on ports of loopback that were free; each is started,
//! stopped, killed and paused like any daemon, and asked in SQL through a [`Client`] of our own. Nothing here knows
//! anything of Lockstep's insides: the provider is a path, so that Galera's own can run the same experiments.

mod arbitrator;
mod bench;
mod catch_up;
pub mod chaos;
mod client;
mod cluster;
mod config;
mod elsewhere;
mod error;
mod far;
mod install;
mod mount;
mod needs;
mod netns;
pub mod parallel_apply;
mod ports;
mod process;
mod replica;
pub mod semi_sync_wan;
mod server;
pub mod shootout;
mod signals;
mod slow_disk;
pub mod synchronous;
mod sysbench;
pub mod wan;
mod writers;

pub use bench::Bench;
pub use client::{Answer, Client};
pub use cluster::{Cluster, ClusterSpec, Place, SETTLE_TIMEOUT};
pub use config::{ServerConfig, SstMethod, Wsrep, host_port};
pub use elsewhere::{BUSY, Work};
pub use error::{LabError, Result};
pub use install::{Account, Installation, is_root};
pub use ports::{free_ports, has_ipv6, is_free, try_lock};
pub use process::{Usage, children_cpu_time, sync_disks};
pub use replica::WAIT_POINT;
pub use server::{ANSWER_TIMEOUT, START_TIMEOUT, STOP_TIMEOUT, Server};
pub use signals::{Signal, Signals};
pub use slow_disk::SlowDisk;
pub use sysbench::{Histogram, Load, SYSBENCH_DATABASE, Sysbench};
pub use writers::{Gaps, Writers, Written};
