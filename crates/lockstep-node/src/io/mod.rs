//! The two threads of a node, and the sockets, files and queues that they own. All decisions are in [`crate::member`].

mod callers;
mod disk_full;
mod front_end_calls;
mod hung_disk;
mod inbox;
pub(crate) mod links;
pub(crate) mod liveness;
mod log_client;
mod log_queue;
mod log_upkeep;
pub(crate) mod node;
pub(crate) mod opened;
mod pages;
mod published;
mod publisher;
mod role_swap;
mod runtime;
mod server_signals;
mod shared;
mod start;
mod threads;
mod tls;
pub(crate) mod writer;
