//! The server's side of the NBD protocol.
//!
//! | module | contents |
//! |---|---|
//! | `wire` | numbers of the protocol, strings; no I/O |
//! | `handshake` | options and their replies; no I/O |
//! | `request` | decodes requests and checks them; no I/O |
//! | `reply` | encodes replies, and queues them; no I/O |
//! | `connection` | the transmission phase over any stream |
//! | [`places`] | sockets and lock files |
//! | [`server`] | accepts; one task for each connection |
//! | [`status`] | the list of connections |
//! | [`tls`] | certificate and key |
//!
//! Supported: the fixed newstyle handshake with `EXPORT_NAME`, `ABORT`, `LIST`, `STARTTLS`, `INFO`, `GO`, `STRUCTURED_REPLY`,
//! `LIST_META_CONTEXT` and `SET_META_CONTEXT` (`base:allocation`); the commands `READ`, `WRITE`, `FLUSH`, `TRIM`,
//! `WRITE_ZEROES`, `BLOCK_STATUS`, `CACHE` and `DISC` with all their flags. Extended headers and resizing are not.
//!
//! # Why own code
//!
//! Rust's published servers do not do this job (November 2026). `nbd` 0.3.1 blocks, answers one request at a time, and has no
//! structured replies, TLS, trim or zeroes. `nbd-async` 0.6.0 drives the kernel's device in user space: it is the client's
//! side. `tokio-nbd` 0.3.0 has the licence GPL-2.0-or-later, which this project's binaries cannot take. `vhost-user` crates
//! serve virtual machines only. TLS, sockets and the set of futures are libraries' (`tokio-rustls`, `tokio`,
//! `futures-util`).

mod connection;
pub(crate) mod handshake;
#[cfg(test)]
pub(crate) mod memory;
pub mod places;
pub(crate) mod reply;
pub(crate) mod request;
pub mod server;
pub mod status;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

pub use lockstep_net::tls::acceptor::{AcceptorError as TlsError, AcceptorFiles as TlsFiles, TlsAcceptor};
pub use places::{Listen, Places};
pub use server::{Server, ServerConfig};
pub use status::{ConnectionStatus, Connections, Log};
