//! The binlog front end: files and network protocol of classic MariaDB replication.
//!
//! Layers, from the bytes up; each can be used and tested without the ones below it in this list:
//!
//! - [`event`] builds and parses binlog events. It performs no I/O.
//! - [`gtid`] has GTIDs, a replica's GTID state and the state of a stream.
//!
//! The crate knows nothing of the cluster. Its caller turns write-sets into event groups and appends them.
//!

#![warn(missing_docs, unreachable_pub)]
#![forbid(unsafe_code)]

pub mod codec;
pub mod event;
pub mod gtid;

pub use gtid::{Gtid, ReplicaState, StreamState};
