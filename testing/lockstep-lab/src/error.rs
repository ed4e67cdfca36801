//! The errors of the lab. Each text says what to do next.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error of the lab.
#[derive(Debug)]
pub enum LabError {
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

impl LabError {
    /// The number of the SQL error, if it is one.
    pub fn sql_code(&self) -> Option<u16> {
        match self {
            LabError::Sql { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Wraps an I/O error with the operation.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> LabError {
        let what = what.into();
        move |source| LabError::Io { what, source }
    }

    /// Wraps an I/O error with the operation and the path.
    pub(crate) fn path(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LabError {
        let path: PathBuf = path.to_owned();
        move |source| LabError::Io { what: format!("{verb} {}", path.display()), source }
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabError::Missing { what, hint } => write!(f, "{what} is missing: {hint}"),
            LabError::Io { what, source } => write!(f, "cannot {what}: {source}"),
            LabError::Command { command, output } => write!(f, "`{command}` failed; it said:\n{output}"),
            LabError::Exited { server, status, log } => {
                write!(f, "server {server} ended ({status}); its error log says:\n{log}")
            }
            LabError::Timeout { server, what, log } => {
                write!(f, "server {server}: {what}; its error log says:\n{log}")
            }
            LabError::Sql { code, state, message, statement } => {
                write!(f, "ERROR {code} ({state}): {message} [{statement}]")
            }
            LabError::Protocol(what) => write!(f, "unexpected answer of the server: {what}"),
            LabError::Value(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            LabError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// What the lab's functions return.
pub type Result<T> = std::result::Result<T, LabError>;
