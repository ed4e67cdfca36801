//! The two threads of a node, and the sockets, files and queues that they own. All decisions are in [`crate::member`].

mod disk_full;
mod links;
pub(crate) mod node;
pub(crate) mod runtime;
mod threads;
pub(crate) mod writer;
