//! The deterministic heart of Lockstep: no thread, clock, socket or file.
//!
//! Inputs (time, messages, proposals, "this is on disk now") go in; effects (send, write, deliver) come out.
//! The same code runs inside mariadbd, in the arbitrator and in the simulator.
//!
//! **Invariant:** nothing in this crate reads a clock, opens a file or a socket, starts a thread, or iterates a
//! randomly seeded hash map. **Invariant:** nothing here knows what a payload means, but for [`writeset`], which
//! knows the keys.

pub mod branch;
pub mod certify;
pub mod codec;
pub mod members;
pub mod message;
pub mod placement;
pub mod policy;
pub mod raft;
pub mod snapshot;
pub mod types;
pub mod vote;
pub mod writeset;

pub use types::*;
