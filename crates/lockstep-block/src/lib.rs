//! The block front end: a replicated block device, served over the NBD protocol.
//!
//! - [`export`] is the boundary: a device as the NBD server sees it.
//! - [`nbd`] is the protocol and its server. It knows nothing of a log.
//! - [`device`] is the data path: from a client's writes to the log, and from the log to the device file.
//! - [`copy`] copies a device from another member, by checksums.
//!
//! **Invariant**: [`nbd`] reaches a device only through the traits of [`export`].

#![warn(missing_docs, unreachable_pub)]
#![forbid(unsafe_code)]

pub mod copy;
pub mod device;
pub mod export;
#[cfg(test)]
mod fuzz;
pub mod nbd;

pub use export::{Attachment, Description, Export, Extent, IoError, Peer, Refusal, RefusalKind};
