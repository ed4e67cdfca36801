//! The server's side of MySQL's client/server protocol, as far as replication needs it.
//!
//! | module | contents |
//! |---|---|
//! | [`packet`] | packets and their sequence numbers; no I/O |
//! | [`handshake`] | greeting, reply, `mysql_native_password`; no I/O |
//! | [`command`] | commands of clients; no I/O |
//! | [`reply`] | OK, ERR, EOF and text result sets; no I/O |
//! | [`statement`] | recognises the statements that replicas and tools send; no I/O |
//! | [`session`] | answers them; no I/O |
//! | [`dump`] | the stream of events for one consumer |
//! | [`accounts`] | the accounts that may sign in |
//! | [`consumers`] | the connections, and how far each consumer is |
//! | [`server`] | listens; one thread for each connection |
//! | [`sql_client`] | a client of another server, for its accounts and for statements |
//! | [`source`] | reads another server's binlog, as a replica |
//! | [`tls`] | certificate and key, and a connection's encryption |
//!
//! `transport` puts packets and encryption together over one socket.

pub mod accounts;
pub mod command;
pub mod consumers;
pub mod dump;
pub mod handshake;
pub mod packet;
pub mod reply;
pub mod server;
pub mod session;
pub mod source;
pub mod sql_client;
pub mod statement;
pub mod tls;
mod transport;

pub use accounts::Accounts;
pub use consumers::{Consumer, Consumers};
pub use lockstep_net::tls::acceptor::{AcceptorError as TlsError, AcceptorFiles as TlsFiles, TlsAcceptor};
pub use server::{Server, ServerConfig};
