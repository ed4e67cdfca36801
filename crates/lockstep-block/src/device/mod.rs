//! The data path of a replicated device.
//!
//! - [`entry`]: the log entries of a device.
//! - [`extent_map`], [`overlay`]: writes that are not on the device file yet.
//! - [`attachments`]: the writer, as the log has it.
//! - [`file`]: the device file, and the position that it has.
//! - [`storage`]: the disk under it.
//! - [`environment`]: time and threads.
//! - [`replica`]: all of them on one member, between the log, the clients and the device file.
//! - [`resync`]: its part in a copy from another member.
//! - [`verify`]: the comparison of all copies.
//! - [`snapshot`]: an image of the device at one position.
//! - [`promotion`]: when a member may take over by itself.
//!
//! A write goes to memory and is answered. A flush makes log entries of all dirty writes, and is answered when the log has them
//! as durably as the commit policy asks. Only committed entries reach the device file, in the background. So every copy is a
//! prefix of the log, and a copy that was killed goes on from its saved position.

pub mod attachments;
mod controls;
pub mod entry;
pub mod environment;
pub mod extent_map;
mod failpoints;
pub mod file;
#[cfg(test)]
mod fuzz;
pub mod overlay;
pub mod promotion;
pub mod replica;
pub mod resync;
mod session;
pub mod snapshot;
pub mod storage;
#[cfg(test)]
mod tests;
pub mod verify;

pub use failpoints::{Failpoint, Failpoints};
pub use replica::{
    Batch, Config, CopyMember, Log, NotSent, NotTaken, Notice, NoticeCall, Refused, Replica,
    ReplicaAttachment, ReplicaStatus, SessionStatus,
};
