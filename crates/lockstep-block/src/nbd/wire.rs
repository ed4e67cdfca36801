//! Numbers of the protocol, and a bounded reader of option data. All integers are big-endian.

/// The first word of a server's greeting.
pub(crate) const GREETING: u64 = 0x4e42_444d_4147_4943;
/// The second word of the greeting, and the first of each option.
pub(crate) const OPTION: u64 = 0x4948_4156_454f_5054;
/// The first word of a reply to an option.
pub(crate) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// The first word of a request.
pub(crate) const REQUEST: u32 = 0x2560_9513;
/// The first word of a simple reply.
pub(crate) const SIMPLE_REPLY: u32 = 0x6744_6698;
/// The first word of a structured reply's chunk.
pub(crate) const CHUNK: u32 = 0x668e_33ef;

/// The longest name or text.
pub(crate) const STRING_MAX: usize = 4096;
/// The longest option data that is read. Longer data is skipped.
pub(crate) const OPTION_MAX: usize = 64 << 10;
/// The longest payload of a READ or WRITE, which clients assume where the server names none.
pub(crate) const PAYLOAD_MAX: u32 = 32 << 20;
/// Bytes of an option before its data.
pub(crate) const OPTION_HEADER: usize = 16;
/// Bytes of a request before its payload.
pub(crate) const REQUEST_HEADER: usize = 28;
/// Zeroes behind the reply to `NBD_OPT_EXPORT_NAME`, unless the client declines them.
pub(crate) const EXPORT_PADDING: usize = 124;
/// The context of holes and zeroes.
pub(crate) const BASE_ALLOCATION: &str = "base:allocation";
/// The number of that context in replies.
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;

/// Flags of the handshake, the same bits from both sides.
pub(crate) mod handshake_flag {
    pub(crate) const FIXED_NEWSTYLE: u16 = 1;
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
}

/// Flags of an export.
pub(crate) mod export_flag {
    pub(crate) const HAS_FLAGS: u16 = 1;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options of the handshake.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub(crate) const UNSUPPORTED: u32 = ERROR | 1;
    pub(crate) const POLICY: u32 = ERROR | 2;
    pub(crate) const INVALID: u32 = ERROR | 3;
    pub(crate) const TLS_REQUIRED: u32 = ERROR | 5;
    pub(crate) const UNKNOWN: u32 = ERROR | 6;
    pub(crate) const SHUTDOWN: u32 = ERROR | 7;
    pub(crate) const BLOCK_SIZE_REQUIRED: u32 = ERROR | 8;
    pub(crate) const TOO_BIG: u32 = ERROR | 9;
}

/// Kinds of information about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Commands.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISCONNECT: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQUEST_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Types and flags of a structured reply's chunks.
pub(crate) mod chunk {
    pub(crate) const DONE: u16 = 1;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = (1 << 15) | 1;
}

/// Flags of extents in the context `base:allocation`.
pub(crate) mod extent_flag {
    pub(crate) const HOLE: u32 = 1;
    pub(crate) const ZERO: u32 = 1 << 1;
}

/// Errors of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Errno {
    NotPermitted = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    Shutdown = 108,
}

/// A reader of integers and strings. `None`: the input ends too early, or is not a string.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    /// A string behind its length.
    pub(crate) fn string(&mut self) -> Option<&'a str> {
        let length = self.u32()? as usize;
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        string(taken)
    }
}

/// The protocol's strings: UTF-8 without NUL, of limited length.
pub(crate) fn string(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > STRING_MAX || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// The start of a text that a client accepts as a string.
pub(crate) fn shortened(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text[..end];
    text.find('\0').map_or(text, |nul| &text[..nul])
}

/// A client that breaks a rule of the protocol in a way that cannot be answered. The connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation(pub(crate) &'static str);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Violation {}
