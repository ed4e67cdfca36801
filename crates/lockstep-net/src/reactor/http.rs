//! One connection of the status service.

use std::io::{self, ErrorKind, IoSlice, Read};
use std::time::{Duration, Instant};

use bytes::Bytes;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};

use super::listen::send_vectored;
use crate::proto::Output;
use crate::status::{Method, Parser, Progress, response_head};

/// A socket of either kind.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(crate) fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(s) => s,
            Self::Unix(s) => s,
        }
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.read(buf),
            Self::Unix(s) => s.read(buf),
        }
    }

    fn write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => send_vectored(s, slices),
            Self::Unix(s) => send_vectored(s, slices),
        }
    }

    /// Whether the client has closed its end altogether: nothing can be sent to it. One that only shut down its sending side
    /// still listens.
    fn has_hung_up(&self) -> bool {
        matches!(self, Self::Unix(s) if send_vectored(s, &[]).is_err_and(|e| e.kind() == ErrorKind::BrokenPipe))
    }

    fn shutdown_write(&self) {
        let _ = match self {
            Self::Tcp(s) => s.shutdown(std::net::Shutdown::Write),
            Self::Unix(s) => s.shutdown(std::net::Shutdown::Write),
        };
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// The request arrives.
    Reading,
    /// The caller has it.
    Waiting,
    /// The answer leaves.
    Writing,
    /// The answer has left; the client's end is awaited, so that the kernel does not throw the answer away.
    Draining,
    Dead,
}

#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) stream: Stream,
    pub(crate) local: bool,
    parser: Parser,
    stage: Stage,
    output: Output,
    head_only: bool,
    readable: bool,
    writable: bool,
    timeout: Duration,
    deadline: Instant,
    /// When even a reader that takes a little now and then is dropped.
    limit: Option<Instant>,
    /// Bytes that came behind the request.
    surplus: usize,
}

/// The longest time for an answer to leave, in timeouts.
const WRITE_LIMIT: u32 = 12;
/// Bytes behind a request that are read and thrown away before the client is dropped.
const SURPLUS_MAX: usize = 64 * 1024;

impl Http {
    pub(crate) fn new(stream: Stream, timeout: Duration, now: Instant) -> Http {
        let local = matches!(stream, Stream::Unix(_));
        Http {
            stream,
            local,
            parser: Parser::new(local),
            stage: Stage::Reading,
            output: Output::default(),
            head_only: false,
            readable: true,
            writable: true,
            timeout,
            deadline: now + timeout,
            limit: None,
            surplus: 0,
        }
    }

    /// Handles an event of the socket.
    pub(crate) fn event(&mut self, readable: bool, writable: bool, gone: bool) {
        self.readable |= readable;
        self.writable |= writable;
        if gone && self.stage != Stage::Reading {
            // The client can no longer read the answer. (While reading, the rest of the request may still be in the socket.)
            self.stage = Stage::Dead;
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.stage == Stage::Dead
    }

    /// Whether the request has not arrived yet.
    pub(crate) fn is_reading(&self) -> bool {
        self.stage == Stage::Reading
    }

    /// When [`Http::tick`] is due. A command may take long: while the caller works on it there is none.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        matches!(self.stage, Stage::Reading | Stage::Writing | Stage::Draining).then_some(self.deadline)
    }

    pub(crate) fn tick(&mut self, now: Instant) {
        if self.next_timeout().is_some_and(|t| now >= t) {
            if self.stage == Stage::Reading && !self.parser.is_empty() {
                self.respond(
                    408,
                    "text/plain",
                    &Bytes::from_static(b"request did not arrive in time\n"),
                    now,
                );
                self.write(now);
            } else {
                self.stage = Stage::Dead;
            }
        }
    }

    /// Reads what is there. A complete request, if there is one now.
    pub(crate) fn read(&mut self, now: Instant) -> Option<Request> {
        let mut buf = [0u8; 8 * 1024];
        while self.readable && !matches!(self.stage, Stage::Dead | Stage::Waiting) {
            let n = match self.stream.read(&mut buf) {
                Ok(0) => {
                    self.readable = false;
                    // Half a request, or the end behind the answer. A client that only shut down its sending side
                    // after a whole request gets its answer: that end is read in a later stage.
                    if matches!(self.stage, Stage::Reading | Stage::Draining) {
                        self.stage = Stage::Dead;
                    }
                    break;
                }
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.stage = Stage::Dead;
                    break;
                }
            };
            if self.stage != Stage::Reading {
                self.surplus += n;
                if self.surplus > SURPLUS_MAX {
                    self.stage = Stage::Dead;
                }
                continue;
            }
            match self.parser.push(&buf[..n]) {
                Progress::More => {}
                Progress::Bad(status, text) => {
                    self.respond(status, "text/plain", &Bytes::from(text + "\n"), now);
                }
                // The client that sent this command has hung up, and may have sent another one since: this process may have
                // been stopped for hours.
                Progress::Done(parsed) if parsed.method == Method::Post && self.stream.has_hung_up() => {
                    self.stage = Stage::Dead;
                }
                Progress::Done(parsed) => {
                    self.stage = Stage::Waiting;
                    self.head_only = parsed.head_only;
                    return Some(Request {
                        method: parsed.method,
                        path: parsed.path,
                        query: parsed.query,
                        body: parsed.body,
                    });
                }
            }
        }
        None
    }

    /// Queues the answer.
    pub(crate) fn respond(&mut self, status: u16, content_type: &str, body: &Bytes, now: Instant) {
        if !matches!(self.stage, Stage::Reading | Stage::Waiting) {
            return;
        }
        self.output.push_slice(response_head(status, content_type, body.len()).as_bytes());
        if !self.head_only {
            self.output.push(body);
        }
        self.stage = Stage::Writing;
        self.deadline = now + self.timeout;
        self.limit = Some(now + self.timeout * WRITE_LIMIT);
    }

    /// Writes what the socket takes. A reader that takes nothing for the timeout is dropped.
    pub(crate) fn write(&mut self, now: Instant) {
        while self.stage == Stage::Writing && self.writable {
            let mut slices = [IoSlice::new(&[]); 16];
            let n = self.output.slices(&mut slices);
            match self.stream.write_vectored(&slices[..n]) {
                Ok(n) => {
                    self.output.written(n);
                    self.deadline = now + self.timeout;
                    if let Some(limit) = self.limit {
                        self.deadline = self.deadline.min(limit);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.stage = Stage::Dead,
            }
            if self.stage == Stage::Writing && self.output.is_empty() {
                self.stage = Stage::Draining;
                self.stream.shutdown_write();
                // A client that has sent all it wants to send has usually closed, or is about to.
                self.readable = true;
                self.read(now);
            }
        }
    }
}

/// A request, but for whom to answer.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) body: Bytes,
}
