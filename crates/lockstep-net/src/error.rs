//! Why a connection, a dial or a listener failed: typed, each with one line that says what to do.

use std::fmt;

/// Why one member refuses or ends a connection with another. Travels as a number: see docs/format-wire.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The two are configured with different cluster names.
    WrongCluster,
    /// No protocol version is common to both.
    Version,
    /// Another connection between the two members is kept instead.
    Duplicate,
    /// The member dialed itself.
    Myself,
    /// The member is not allowed in (removed for good, or another one has its identity).
    NotAllowed,
    /// The two have different histories.
    WrongBranch,
    /// Not now; the text says why.
    Busy,
    /// The member is stopping.
    Shutdown,
    /// The hello of the peer, or a message of it, could not be understood.
    Malformed,
    /// Something failed on the side that closes.
    Failure,
    /// The member's address is not in the allow-list.
    NotListed,
    /// A reason of a later version.
    Other(u16),
}

impl Reason {
    /// The number on the wire.
    pub fn code(self) -> u16 {
        match self {
            Self::WrongCluster => 1,
            Self::Version => 2,
            Self::Duplicate => 4,
            Self::Myself => 5,
            Self::NotAllowed => 6,
            Self::WrongBranch => 7,
            Self::Busy => 8,
            Self::Shutdown => 9,
            Self::Malformed => 10,
            Self::Failure => 11,
            Self::NotListed => 12,
            Self::Other(code) => code,
        }
    }

    /// The reason behind a number; one that is not known is kept as [`Reason::Other`].
    pub fn from_code(code: u16) -> Reason {
        match code {
            1 => Self::WrongCluster,
            2 => Self::Version,
            4 => Self::Duplicate,
            5 => Self::Myself,
            6 => Self::NotAllowed,
            7 => Self::WrongBranch,
            8 => Self::Busy,
            9 => Self::Shutdown,
            10 => Self::Malformed,
            11 => Self::Failure,
            12 => Self::NotListed,
            code => Self::Other(code),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::WrongCluster => "wrong cluster name",
            Self::Version => "no common protocol version",
            Self::Duplicate => "duplicate connection",
            Self::Myself => "connection to itself",
            Self::NotAllowed => "not allowed",
            Self::WrongBranch => "different history",
            Self::Busy => "not now",
            Self::Shutdown => "shutting down",
            Self::Malformed => "malformed message",
            Self::Failure => "failure",
            Self::NotListed => "not in the allow-list",
            Self::Other(code) => return write!(f, "reason {code}"),
        };
        f.write_str(text)
    }
}

/// Bytes that the protocol does not allow. The connection is closed: nothing behind them can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProtoError {
    /// The peer's first bytes are not Lockstep's. The text says what they look like.
    NotLockstep(String),
    /// The handshake's length or checksum is wrong, or its fields do not fit.
    BadHello(&'static str),
    /// A frame's header fails its check.
    BadHeader,
    /// A frame's payload fails its checksum.
    BadChecksum,
    /// A frame is longer than the limit, in bytes.
    TooLong {
        /// The length in the frame's header.
        len: u64,
        /// The limit at this point.
        max: u64,
    },
    /// A control frame that is unknown, malformed or out of place.
    BadControl(u8),
}

impl fmt::Display for ProtoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLockstep(what) => write!(f, "not a Lockstep member but {what}"),
            Self::BadHello(what) => write!(f, "malformed handshake: {what}"),
            Self::BadHeader => write!(f, "frame header fails its check: bytes were damaged on the way"),
            Self::BadChecksum => write!(f, "frame fails its checksum: bytes were damaged on the way"),
            Self::TooLong { len, max } => write!(f, "frame of {len} bytes where at most {max} are allowed"),
            Self::BadControl(op) => write!(f, "unexpected control frame {op}"),
        }
    }
}

impl std::error::Error for ProtoError {}

/// Why a connection that was up is down. Nothing more comes from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownReason {
    /// The peer closed it without a word: its process ended, or was killed.
    Closed,
    /// The peer refused us in the handshake.
    Rejected(Reason, String),
    /// The peer said why it closes.
    Goodbye(Reason, String),
    /// The socket failed (reset, unreachable, timed out in the kernel).
    Io(String),
    /// The peer was silent for too long.
    Silent,
    /// The peer did not finish the handshake in time.
    HandshakeTimeout,
    /// The peer broke the protocol.
    Proto(ProtoError),
    /// The encryption failed.
    Tls(String),
    /// More was queued for the peer than [`crate::proto::ProtoConfig::send_queue_max`]: it does not take what it is sent.
    Overflow,
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the peer closed the connection"),
            Self::Rejected(reason, text) if text.is_empty() => write!(f, "refused by the peer: {reason}"),
            Self::Rejected(reason, text) => write!(f, "refused by the peer: {reason}: {text}"),
            Self::Goodbye(reason, text) if text.is_empty() => write!(f, "the peer left: {reason}"),
            Self::Goodbye(reason, text) => write!(f, "the peer left: {reason}: {text}"),
            Self::Io(text) => write!(f, "connection lost: {text}"),
            Self::Silent => write!(f, "the peer has been silent for too long"),
            Self::HandshakeTimeout => write!(f, "the peer did not finish the handshake in time"),
            Self::Proto(e) => write!(f, "{e}"),
            Self::Tls(text) => write!(f, "encrypted connection lost: {text}"),
            Self::Overflow => write!(f, "the peer does not read its messages: its queue is full"),
        }
    }
}

/// Why dialing an address failed before the peer introduced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DialError {
    /// The name could not be resolved.
    Resolve(String),
    /// TCP could not connect (refused, unreachable, ...).
    Connect(String),
    /// No answer to the attempt to connect.
    ConnectTimeout,
    /// Connected, but nothing was said in time: perhaps a frozen process, or a program that waits for its client.
    NoHello,
    /// Connected, but closed before a word was said.
    ClosedEarly(String),
    /// Something else answers there. The text says what it looks like.
    NotLockstep(String),
    /// The member there belongs to another cluster.
    WrongCluster {
        /// Our cluster name.
        ours: String,
        /// Theirs.
        theirs: String,
    },
    /// The member there speaks no protocol version that we speak.
    Version {
        /// Our lowest and highest.
        ours: (u16, u16),
        /// Theirs.
        theirs: (u16, u16),
    },
    /// The handshake was damaged.
    Handshake(ProtoError),
    /// The address asks for TLS, and this member has no certificate.
    NoTls,
    /// The other side speaks TLS and this member does not. The text describes the other side.
    Encrypts(&'static str),
    /// The other side does not encrypt. The text describes the other side.
    NotEncrypted(String),
    /// The TLS handshake failed.
    Tls(String),
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resolve(e) => write!(f, "cannot resolve the host name: {e}"),
            Self::Connect(e) => write!(f, "cannot connect: {e}"),
            Self::ConnectTimeout => write!(f, "cannot connect: no answer"),
            Self::NoHello => write!(
                f,
                "connected, but received nothing: a frozen member, or not a Lockstep member (check the port)"
            ),
            Self::ClosedEarly(e) => write!(
                f,
                "connected, but the peer closed the connection before the handshake ({e}): a member that is stopping, \
                 or not a Lockstep member (check the port)"
            ),
            Self::NotLockstep(what) => {
                write!(
                    f,
                    "the program at this address is {what}, not a Lockstep member: check address and port"
                )
            }
            Self::WrongCluster { ours, theirs } => write!(
                f,
                "the member there belongs to cluster '{theirs}', this one to '{ours}': check wsrep_cluster_name and \
                 the address"
            ),
            Self::Version { ours, theirs } => write!(
                f,
                "the member there speaks protocol versions {} to {}, this one {} to {}: upgrade the older one",
                theirs.0, theirs.1, ours.0, ours.1
            ),
            Self::Handshake(e) => write!(f, "{e}"),
            Self::NoTls => {
                write!(f, "ssl:// needs a certificate: set socket.ssl_cert and socket.ssl_key, or use tcp://")
            }
            Self::Encrypts(what) => write!(
                f,
                "the program at this address is {what}, and this member has no socket.ssl: if it is a member, set \
                 socket.ssl_key, socket.ssl_cert and socket.ssl_ca here, too; if not, check address and port"
            ),
            Self::NotEncrypted(what) => write!(
                f,
                "{what}, while this one has socket.ssl on: all members need it (for a rolling change: socket.dynamic)"
            ),
            Self::Tls(text) => write!(f, "{text}"),
        }
    }
}

impl DialError {
    /// Whether a program answers at the address that this member cannot talk with. Then retries fail until an operator acts.
    pub fn is_for_a_person(&self) -> bool {
        match self {
            Self::NotLockstep(_) | Self::WrongCluster { .. } | Self::Version { .. } => true,
            Self::NoTls | Self::Encrypts(_) | Self::NotEncrypted(_) | Self::Tls(_) => true,
            Self::Resolve(_) | Self::Connect(_) | Self::ConnectTimeout => false,
            Self::NoHello | Self::ClosedEarly(_) | Self::Handshake(_) => false,
        }
    }
}

impl std::error::Error for DialError {}

/// Why an encrypted connection failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TlsFailure {
    /// Not a member, but something that could be named.
    Other(String),
    /// A peer that does not encrypt.
    Plain(String),
    /// Certificates, versions, damage.
    Tls(String),
}

impl TlsFailure {
    /// Before the peer introduced itself.
    pub(crate) fn dial(self) -> DialError {
        match self {
            Self::Other(what) => DialError::NotLockstep(what),
            Self::Plain(what) => DialError::NotEncrypted(what),
            Self::Tls(text) => DialError::Tls(text),
        }
    }

    /// After.
    pub(crate) fn down(self) -> DownReason {
        match self {
            Self::Other(text) | Self::Plain(text) | Self::Tls(text) => DownReason::Tls(text),
        }
    }
}

/// Why a listener could not be opened. The text names the address.
#[derive(Debug)]
pub enum ListenError {
    /// Another process has the port.
    InUse(String),
    /// The address is not one of this machine's.
    NotLocal(String),
    /// The name could not be resolved.
    Resolve(String, String),
    /// The path of the Unix socket does not fit into the kernel's structure.
    PathTooLong(String, usize),
    /// The file at the path of the Unix socket is not a socket, and is left untouched.
    NotASocket(String),
    /// The address asks for TLS, and this member has no certificate.
    Tls(String),
    /// Anything else.
    Io(String, std::io::Error),
}

/// Longest path of a Unix socket: `sun_path` less its terminating NUL.
pub(crate) const SUN_PATH_MAX: usize = 107;

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(a) => {
                write!(
                    f,
                    "cannot listen on {a}: another process uses it; stop that one or choose another address"
                )
            }
            Self::NotLocal(a) => write!(f, "cannot listen on {a}: not an address of this machine"),
            Self::Resolve(a, e) => write!(f, "cannot listen on {a}: cannot resolve the host name: {e}"),
            Self::PathTooLong(p, len) => write!(
                f,
                "cannot make the socket '{p}': a socket's path has at most {SUN_PATH_MAX} bytes, this one {len}; \
                 choose a shorter directory"
            ),
            Self::NotASocket(p) => {
                write!(
                    f,
                    "cannot make the socket '{p}': a file that is not a socket is in its place; remove it"
                )
            }
            Self::Tls(a) => {
                write!(
                    f,
                    "cannot listen on {a}: ssl:// needs a certificate, set socket.ssl_cert and socket.ssl_key; or use \
                     tcp://"
                )
            }
            Self::Io(a, e) => write!(f, "cannot listen on {a}: {e}"),
        }
    }
}

impl std::error::Error for ListenError {}

/// Why a frame was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    /// The connection is closed, closing, or was not accepted yet.
    NotConnected,
    /// The frame is longer than the peer takes.
    TooLong {
        /// Bytes of the frame's payload.
        len: usize,
        /// The peer's limit.
        max: usize,
    },
    /// The peer's queue is over its bound: the connection is being closed.
    Overflow,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected => write!(f, "not connected"),
            Self::TooLong { len, max } => write!(f, "message of {len} bytes, the peer takes {max}"),
            Self::Overflow => write!(f, "the peer's queue is full"),
        }
    }
}

impl std::error::Error for SendError {}
