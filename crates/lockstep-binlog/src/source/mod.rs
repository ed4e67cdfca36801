//! A connection to a primary, as a replica has one: it signs in, asks, and receives the primary's binlog.
//!
//! Only what a reader of a binlog needs: text protocol, `mysql_native_password`, and the semi-synchronous acknowledgement,
//! which no crate for MySQL clients has. See `sql/slave.cc` and `sql/semisync_slave.cc` of MariaDB.

mod connection;
mod events;
mod greeting;

pub use connection::{Connection, Credentials, DumpRequest};
pub use events::{Acknowledger, Events, Received};

use std::fmt;
use std::io;

use crate::codec::DecodeError;

/// Why a primary cannot be read.
#[derive(Debug)]
pub enum SourceError {
    /// The network or the primary is not there, or does not answer in time.
    Io(io::Error),
    /// The primary refuses with this error.
    Server {
        /// MariaDB's number of the error.
        code: u16,
        /// Its text.
        text: String,
    },
    /// The account needs a method that this client does not have.
    Method(String),
    /// The primary has sent something that the protocol does not have at this place.
    Protocol(&'static str, DecodeError),
}

impl From<io::Error> for SourceError {
    fn from(error: io::Error) -> SourceError {
        SourceError::Io(error)
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                f.write_str("the primary has closed the connection")
            }
            SourceError::Io(error) => error.fmt(f),
            SourceError::Server { code, text } => write!(f, "the primary refuses: error {code}: {text}"),
            SourceError::Method(method) => write!(
                f,
                "the account signs in by {method}, and only mysql_native_password is known here: \
                 ALTER USER … IDENTIFIED VIA mysql_native_password"
            ),
            SourceError::Protocol(what, why) => write!(f, "the primary's {what} {why}"),
        }
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SourceError::Io(error) => Some(error),
            SourceError::Protocol(_, why) => Some(why),
            _ => None,
        }
    }
}

/// The error in a payload, if it is one.
fn server_error(payload: &[u8]) -> Option<SourceError> {
    let (code, text) = match payload {
        [0xff, a, b, b'#', rest @ ..] => (u16::from_le_bytes([*a, *b]), rest.get(5..).unwrap_or_default()),
        [0xff, a, b, rest @ ..] => (u16::from_le_bytes([*a, *b]), rest),
        _ => return None,
    };
    let text = String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).take(512).collect();
    Some(SourceError::Server { code, text })
}

/// Parses arbitrary bytes as each packet of a primary.
#[cfg(test)]
pub(crate) fn fuzzed(input: &[u8]) -> (bool, bool, bool, bool) {
    (
        greeting::scramble_of(input).is_ok(),
        greeting::answer_to_switch(input, "secret").is_ok(),
        events::parse(input.to_vec(), true).is_ok(),
        connection::row(input, 3).is_ok(),
    )
}
