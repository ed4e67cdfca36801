//! The status service: just enough of HTTP/1.0 for `curl`, Prometheus and the `lockstep` command.
//!
//! One request per connection, answered and closed. The caller knows what the paths mean. This module decides that a
//! request over TCP can only read (`GET`, `HEAD`), and how large and slow it may be.

mod request;

pub use self::request::{BODY_MAX, HEAD_MAX};
pub(crate) use self::request::{Parser, Progress};

use bytes::Bytes;

use crate::conn_id::ConnId;

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Read. `HEAD` arrives as this too; its body is left out of the answer here.
    Get,
    /// A command, on the Unix socket only.
    Post,
}

/// A request of the status service, complete and within its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusRequest {
    /// The connection to answer, with [`crate::Reactor::respond`].
    pub conn: ConnId,
    /// Read or command.
    pub method: Method,
    /// Path without the query: `/status`.
    pub path: String,
    /// The text after `?`, not decoded; empty without one.
    pub query: String,
    /// The body of a command.
    pub body: Bytes,
    /// Received on the Unix socket, whose file mode decides which users may send commands.
    pub local: bool,
}

/// The bytes of an answer's head.
pub(crate) fn response_head(status: u16, content_type: &str, len: usize) -> String {
    let reason = match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    };
    // The type comes from the caller's own code; a line end in it would still be a header of its own.
    let content_type: String = content_type.chars().filter(|c| !c.is_control()).collect();
    format!(
        "HTTP/1.0 {status} {reason}\r\nContent-Type: {content_type}\r\nContent-Length: {len}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
}
