//! The binlog front end: files and network protocol of classic MariaDB replication.
//!
//! Layers, from the bytes up; each can be used and tested without the ones below it in this list:
//!
//! - [`event`] builds and parses binlog events. It performs no I/O.
//! - [`gtid`] has GTIDs, a replica's GTID state and the state of a stream.
//! - [`library`] is a directory of binlog files with one writer and many readers.
//! - [`archive`] copies a library to a directory or an object store, and restores from there.
//! - [`wire`] serves a library to replicas and tools, as a MariaDB server would; and reads the binlog of another server.
//! - [`ingest`] copies such a binlog to several members by way of their log.
//! - [`stream`] turns the entries of a cluster's log into event groups. Only these two know of a log.
//!
//! **Invariant**: readers see whole event groups only. The writer publishes the end of a group, never a position inside it.

#![warn(missing_docs, unreachable_pub)]
#![forbid(unsafe_code)]

pub mod archive;
pub mod codec;
pub mod event;
#[cfg(test)]
mod fuzz;
pub mod gtid;
pub mod ingest;
pub mod library;
pub mod stream;
pub mod wire;

pub use gtid::{Gtid, ReplicaState, StreamState};
pub use library::{Library, Position, Writer};
