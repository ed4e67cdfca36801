//! Connections between members: a sans-IO protocol and the one reactor that drives it.
//!
//! Layers, from the wire up; each can be used and tested without the one above it:
//!
//! - [`addr`] parses addresses as people write them (`gcomm://h1:4567,h2?gmcast.segment=1`, `tcp://[::1]:4567`).
//! - [`proto`] has the handshake, framing and pings, without socket and clock.
//! - [`reactor`] has the sockets, timers, dials and name resolution, on the caller's single thread.
//! - [`tls`] encrypts between a socket and a connection, if configured.
//! - [`status`] parses the HTTP/1.0 requests of the status service, which the same reactor serves.
//!
//! A payload is opaque here, and so is the `hello` blob by which members introduce themselves. Whom to trust and which
//! of two connections to keep is the caller's decision, taken in answer to [`Event::PeerUp`].
//!
//! # Two connections between the same two members
//!
//! Members that dial each other at the same moment end up with two connections. Both sides must drop the same one,
//! without a message about it. The caller applies this rule to the two hello blobs:
//!
//! 1. A connection from a newer incarnation of the member replaces the older ones: the process behind those is gone.
//! 2. Same incarnation, dialed by the same side: the newer connection replaces the older one. Its dialer knew that the
//!    old one was dead, else it would not have dialed.
//! 3. Same incarnation, one dialed by each side: keep the one dialed by the member with the smaller id, reject the other
//!    with [`Reason::Duplicate`].
//!
//! After a rejection as `Duplicate` a kept address is not dialed again for a while; [`Reactor::keep_via`] says for how
//! long: as long as the other connection lives.

#![warn(missing_docs, unreachable_pub)]
#![forbid(unsafe_code)]

pub mod addr;
mod coalesce;
mod conn_id;
mod error;
#[cfg(test)]
mod fuzz;
pub mod proto;
pub mod reactor;
pub mod status;
pub mod tls;

pub use addr::{Address, ClusterAddress, Host};
pub use bytes::Bytes;
pub use coalesce::Coalesce;
pub use conn_id::ConnId;
pub use error::{DialError, DownReason, ListenError, ProtoError, Reason, SendError};
pub use proto::VERSIONS;
pub use reactor::{Config, ConnStats, Event, PeerHello, Reactor, Waker};
pub use status::{Method, StatusRequest};
pub use tls::{TlsConfig, TlsError, TlsFiles, TlsIdentity, TlsStream};
