//! A verbatim copy of a primary's binlog files, as entries of a log that several members keep.
//!
//! The member that leads reads the primary's binlog as a replica does, and submits it to the log in [`Chunk`]s. Every
//! member takes the chunks in the log's order. Two leaders may submit the same bytes when leadership moves, or the second
//! one may submit bytes whose predecessors never became entries. So each member decides about each chunk with
//! [`CopyEnd::judge`]: it takes what continues its copy, and nothing else. The decision depends on the log alone, so that all copies
//! are equal.
//!
//! **Invariant**: the bytes of a binlog file do not change once they were written. A primary that lost the end of a file
//! begins another one. The reader of the primary compares the last event before it goes on, and refuses another content.
//!
//! After a promotion another server is the primary, with other files. [`SuccessorScan`] looks whether its binlog has all that
//! the copy has, before anything else. Then the copy goes on with the file of that binlog in which the copy's last transaction
//! is. Such bytes have a higher [`Chunk::generation`], and the first chunk names the copy's end, so that all members change at
//! the same entry of the log.

mod chunk;
mod copy_end;
mod follower;
mod successor;

pub use chunk::{CHUNK_MAX, Chunk, FileName, Origin, Place};
pub use copy_end::{CopyEnd, Verdict};
pub use follower::{FollowError, Follower};
pub use successor::{Continues, SuccessorError, SuccessorScan};
