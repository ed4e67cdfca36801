//! The two threads of a node, and the sockets, files and queues that they own. All decisions are in [`crate::member`].

mod disk_full;
mod inbox;
pub(crate) mod links;
pub(crate) mod node;
pub(crate) mod opened;
mod published;
mod runtime;
mod server_signals;
mod shared;
mod start;
mod threads;
mod tls;
pub(crate) mod writer;
