//! A miniature server for wsrep providers: it loads *any* provider library by path and treats it as a MariaDB
//! server does, with a key-value store in place of InnoDB. Galera's library and Lockstep's run through the very
//! same tests, so that a test that Galera's passes says something about ours.
//!
//! One process is one member, because a provider library is a process's global state. One JSON object a line drives the
//! binary `lockstep-host` (see [`command`]); [`harness`] starts several of them on loopback and talks to them.
//!
//! The server's assertions are checked on the way (see [`checks`] and [`state`]): the order of callbacks and states, and
//! commits one at a time and in order. Dependent write-sets do not overlap, and no conflict remains that certification
//! should have caught. Tests ask for violations at their end.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the wsrep API's layouts are written down for 64-bit targets");

mod applier;
pub mod bench;
mod callbacks;
pub mod checks;
pub mod client;
pub mod command;
pub mod harness;
pub mod host;
pub mod lean;
pub mod load;
pub mod locks;
mod log;
pub mod provider;
mod sst;
pub mod state;
pub mod store;
mod views;
