//! MariaDB servers of this machine: found, configured, started, stopped and asked in SQL.
//!
//! `lockstep up` and the lab use it. Nothing here knows anything of Lockstep's insides: a provider is a path, so that
//! Galera's own can be run in the same way.

mod client;
mod common;
mod config;
mod error;
mod install;
mod ports;
mod process;
mod progress;
mod server;

pub use client::{Answer, Client};
pub use common::{LIBRARY, beside_this_program, seconds, timestamp};
pub use config::{Disk, ServerConfig, SstMethod, Wsrep, host_port};
pub use error::{LocalError, Result};
pub use install::{Account, Installation, command, find_program, is_root, last_lines, prefixed, run_to_end};
pub use ports::{free_ports, has_ipv6, is_free, try_lock};
pub use process::{Ended, Session, Usage, parents_and_times, ticks};
pub use progress::{Step, print, say};
pub use server::{ANSWER_TIMEOUT, START_TIMEOUT, STOP_TIMEOUT, Server};
