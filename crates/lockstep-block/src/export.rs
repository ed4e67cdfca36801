//! A replicated device as the NBD server sees it.
//!
//! A client attaches to an export by its name, and gets an [`Attachment`] for each of its connections. Rules for both sides:
//!
//! - A read sees every write that was answered before, on any connection of the attachment.
//! - Requests of a connection run at once, and may be answered in any order.
//! - The server passes only requests that lie within the export, and that its [`Description`] permits.
//! - The server drops the futures of requests when it loses the connection. A dropped request may take effect or not. No
//!   part of it may take effect later: by then the client may have connected again and have sent a newer write.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::net::IpAddr;

use bytes::Bytes;

/// Devices that clients attach to by name.
pub trait Export: Send + Sync + 'static {
    /// One connection's share of an attachment.
    type Attachment: Attachment;

    /// The names that a client may list (`NBD_OPT_LIST`).
    fn names(&self) -> Vec<String>;

    /// Size and block sizes, without an attachment (`NBD_OPT_INFO`).
    ///
    /// # Errors
    /// A [`Refusal`] of an unknown name.
    fn describe(&self, name: &str) -> Result<Description, Refusal>;

    /// Begins or joins an attachment. One attachment is one peer: all its connections come from the same address or, through
    /// a Unix socket, from the same user. The server drops this future if the handshake takes too long.
    fn attach(
        &self,
        name: &str,
        peer: &Peer,
    ) -> impl Future<Output = Result<Self::Attachment, Refusal>> + Send;
}

/// One connection's share of an attachment. If it is dropped without [`Attachment::detach`], the connection was lost.
pub trait Attachment: Send + Sync + 'static {
    /// Reads exactly `length` bytes.
    fn read(&self, offset: u64, length: u32) -> impl Future<Output = Result<Bytes, IoError>> + Send;

    /// Writes `data`, an allocation of its own that may be kept. With `fua` the write is durable when it is answered.
    fn write(&self, offset: u64, data: Bytes, fua: bool) -> impl Future<Output = Result<(), IoError>> + Send;

    /// Releases a range, which may then read as anything.
    fn trim(&self, offset: u64, length: u32, fua: bool) -> impl Future<Output = Result<(), IoError>> + Send;

    /// Makes a range read as zeroes. With `may_trim` its space may be released.
    fn write_zeroes(
        &self,
        offset: u64,
        length: u32,
        may_trim: bool,
        fua: bool,
    ) -> impl Future<Output = Result<(), IoError>> + Send;

    /// Makes every request durable that was answered before on any connection of the attachment.
    fn flush(&self) -> impl Future<Output = Result<(), IoError>> + Send;

    /// Extents from `offset` on: at least one, together at most `length` bytes long. Some thousands are enough, since a
    /// client asks for the rest again.
    ///
    /// # Errors
    /// An [`IoError`] if they cannot be read.
    fn block_status(
        &self,
        offset: u64,
        length: u32,
    ) -> impl Future<Output = Result<Vec<Extent>, IoError>> + Send;

    /// The client leaves in order (`NBD_CMD_DISC`). The server closes the connection afterwards.
    fn detach(self) -> impl Future<Output = ()> + Send;
}

/// An export's properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    /// Its size in bytes.
    pub size: u64,
    /// Offsets and lengths of requests are multiples of this power of two.
    pub minimum_block: u32,
    /// Requests of multiples of this power of two are the fastest.
    pub preferred_block: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether [`Attachment::write_zeroes`] is always faster than a write of zeroes.
    pub fast_zeroes: bool,
    /// A text for people, which may be empty.
    pub text: String,
}

impl Description {
    /// A writable export of this size, without a minimum size of requests.
    pub fn new(size: u64) -> Description {
        Description {
            size,
            minimum_block: 1,
            preferred_block: 4096,
            read_only: false,
            fast_zeroes: true,
            text: String::new(),
        }
    }
}

/// A part of the device and its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its length in bytes, not 0.
    pub length: u32,
    /// Whether no space is allocated for it.
    pub hole: bool,
    /// Whether it reads as zeroes.
    pub zero: bool,
}

/// The error of a request, with a text for the log and for the client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum IoError {
    /// The device failed.
    Io(Cow<'static, str>),
    /// There is no space.
    NoSpace(Cow<'static, str>),
    /// The device is being stopped.
    Shutdown(Cow<'static, str>),
    /// The request is not valid.
    Invalid(Cow<'static, str>),
}

impl IoError {
    /// Its text.
    pub fn text(&self) -> &str {
        match self {
            Self::Io(text) | Self::NoSpace(text) | Self::Shutdown(text) | Self::Invalid(text) => text,
        }
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for IoError {}

/// The reason why a client may not attach. The client gets the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Its kind.
    pub kind: RefusalKind,
    /// The cause and the remedy, in one line.
    pub text: String,
}

/// The kind of a [`Refusal`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// No export has this name.
    Unknown,
    /// The export exists, and this client may not attach to it now.
    Policy,
    /// The server or the device is being stopped.
    Shutdown,
}

impl Refusal {
    /// A refusal of this kind.
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Refusal {
        Refusal { kind, text: text.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}

/// The identity of a client's machine or user. Connections of one attachment have the same one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    /// A client's address. An IPv4 address is never in its IPv6 form here.
    Ip(IpAddr),
    /// The user of a client at a Unix socket.
    Uid(u32),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => write!(f, "{ip}"),
            Self::Uid(uid) => write!(f, "uid {uid}"),
        }
    }
}
