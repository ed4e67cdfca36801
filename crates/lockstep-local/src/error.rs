//! The errors of the lab. Each text says what to do next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error of the lab.
#[derive(Debug)]
pub enum LocalError {
    /// A program, user or library that the lab needs is not on this machine.
    Missing {
        /// The missing thing.
        what: String,
        /// The remedy.
        hint: String,
    },
    /// An operation on a file, process or socket failed.
    Io {
        /// The operation.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A program that the lab ran ended with a failure.
    Command {
        /// The command, as one line.
        command: String,
        /// The end of what it printed.
        output: String,
    },
    /// A server ended while it was expected to run.
    Exited {
        /// The server's name.
        server: String,
        /// How it ended.
        status: String,
        /// The end of its error log.
        log: String,
    },
    /// Something did not happen in time.
    Timeout {
        /// The server's name.
        server: String,
        /// The awaited state, and the state seen instead.
        what: String,
        /// The end of its error log.
        log: String,
    },
    /// The server answered a statement with an error.
    Sql {
        /// The server's error number, such as 1213.
        code: u16,
        /// The five characters of SQLSTATE.
        state: String,
        /// The server's message.
        message: String,
        /// The statement, shortened.
        statement: String,
    },
    /// The server said something that this client does not understand.
    Protocol(String),
    /// A value asked for is not there or is of another kind.
    Value(String),
}

impl LocalError {
    /// The number of the SQL error, if it is one.
    pub fn sql_code(&self) -> Option<u16> {
        match self {
            LocalError::Sql { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Wraps an I/O error with the operation.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> LocalError {
        let what = what.into();
        move |source| LocalError::Io { what, source }
    }

    /// Wraps an I/O error with the operation and the path.
    pub fn path(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LocalError {
        let path: PathBuf = path.to_owned();
        move |source| LocalError::Io { what: format!("{verb} {}", path.display()), source }
    }
}

impl fmt::Display for LocalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalError::Missing { what, hint } => write!(f, "{what} is missing: {hint}"),
            LocalError::Io { what, source } => write!(f, "cannot {what}: {source}"),
            LocalError::Command { command, output } => write!(f, "`{command}` failed; it said:\n{output}"),
            LocalError::Exited { server, status, log } => {
                write!(f, "server {server} ended ({status}); its error log says:\n{log}")
            }
            LocalError::Timeout { server, what, log } => {
                write!(f, "server {server}: {what}; its error log says:\n{log}")
            }
            LocalError::Sql { code, state, message, statement } => {
                write!(f, "ERROR {code} ({state}): {message} [{statement}]")
            }
            LocalError::Protocol(what) => write!(f, "unexpected answer of the server: {what}"),
            LocalError::Value(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for LocalError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LocalError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, LocalError>;
