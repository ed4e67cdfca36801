//! Requests of the transmission phase, without I/O: decoding, and the rules of the protocol for each.
//!
//! The caller reads bytes into [`Decoder::target`] and calls [`Decoder::next`]. Before the decoder allocates a payload, the
//! caller must admit it ([`Decoder::admit`]), so that the caller's limits hold for all memory that a client can take.
//!
//! A payload has an allocation of its own. Only its beginning is copied, as far as it was received with its request's
//! header; the rest is read into its place.

use bytes::{Buf, Bytes, BytesMut};

use super::wire::{
    Errno, Fields, PAYLOAD_MAX, REQUEST, REQUEST_HEADER, Violation, command as code, command_flag as flag,
};
use crate::export::Description;

/// Bytes that are received at once while no payload is expected: some small writes.
pub(crate) const RECEIVE: usize = 32 << 10;

/// A request that is completely received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// The client's number of the request, which goes into the reply.
    pub(crate) cookie: u64,
    pub(crate) command: Command,
}

/// A command, valid for its export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Read {
        offset: u64,
        length: u32,
    },
    Write {
        offset: u64,
        data: Bytes,
        fua: bool,
    },
    Flush,
    Trim {
        offset: u64,
        length: u32,
        fua: bool,
    },
    WriteZeroes {
        offset: u64,
        length: u32,
        may_trim: bool,
        fua: bool,
    },
    BlockStatus {
        offset: u64,
        length: u32,
        one: bool,
    },
    Cache,
    Disconnect,
    /// The request is not valid, and is answered with this error.
    Refused(Rejection),
}

/// The error of a request that is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rejection {
    pub(crate) errno: Errno,
    pub(crate) text: &'static str,
}

/// Result of [`Decoder::next`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// More bytes must be received.
    Receive,
    /// The next request takes so many bytes of memory: see [`Decoder::admit`].
    Admit(u32),
    /// A request, and the bytes of memory with which it was admitted.
    Request(Request, u32),
}

/// The properties of an export and of a connection that decide which requests are valid.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    size: u64,
    minimum_block: u32,
    read_only: bool,
    fast_zeroes: bool,
    structured: bool,
    allocation: bool,
}

/// A request before its payload.
#[derive(Clone, Debug)]
struct Header {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    length: u32,
}

#[derive(Debug)]
enum State {
    /// A header is expected.
    Header,
    /// A header was received, and its memory is not admitted yet.
    Waiting(Header, u32),
    /// The request may go on.
    Admitted(Header, u32),
    /// The payload of a WRITE is being received.
    Payload(Header, BytesMut),
    /// The payload of a WRITE that is refused: so many bytes are still skipped.
    Skip(Header, Rejection, u32),
}

/// Decodes the stream of one connection's requests.
#[derive(Debug)]
pub(crate) struct Decoder {
    rules: Rules,
    input: BytesMut,
    state: State,
}

impl Rules {
    pub(crate) fn new(described: &Description, structured: bool, allocation: bool) -> Rules {
        Rules {
            size: described.size,
            minimum_block: described.minimum_block.max(1),
            read_only: described.read_only,
            fast_zeroes: described.fast_zeroes,
            structured,
            allocation,
        }
    }

    fn check(&self, header: &Header) -> Result<(), (Errno, &'static str)> {
        use Errno::{Invalid, NoSpace, NotPermitted};
        let mut allowed = flag::FUA;
        match header.kind {
            code::READ if self.structured => allowed |= flag::DF,
            code::WRITE_ZEROES if self.fast_zeroes => allowed |= flag::NO_HOLE | flag::FAST_ZERO,
            code::WRITE_ZEROES => allowed |= flag::NO_HOLE,
            code::BLOCK_STATUS if self.allocation => allowed |= flag::REQUEST_ONE,
            code::BLOCK_STATUS => return Err((Invalid, "no context was selected for this export")),
            code::FLUSH | code::DISCONNECT | code::READ | code::WRITE | code::TRIM | code::CACHE => {}
            _ => return Err((Invalid, "the command is unknown")),
        }
        if header.flags & !allowed != 0 {
            return Err((Invalid, "the command does not have these flags"));
        }
        if matches!(header.kind, code::FLUSH | code::DISCONNECT) {
            let empty = header.offset == 0 && header.length == 0;
            return if empty || header.kind == code::DISCONNECT {
                Ok(())
            } else {
                Err((Invalid, "a flush has no offset or length"))
            };
        }
        let writes = matches!(header.kind, code::WRITE | code::WRITE_ZEROES);
        if self.read_only && (writes || header.kind == code::TRIM) {
            return Err((NotPermitted, "the export is read-only"));
        }
        if header.length == 0 {
            return Err((Invalid, "the length is 0"));
        }
        if matches!(header.kind, code::READ | code::WRITE) && header.length > PAYLOAD_MAX {
            return Err((Invalid, "the length is above the limit of 32 MiB"));
        }
        if header.offset.checked_add(u64::from(header.length)).is_none_or(|end| end > self.size) {
            return Err((if writes { NoSpace } else { Invalid }, "the range ends beyond the export"));
        }
        let unit = u64::from(self.minimum_block);
        if !header.offset.is_multiple_of(unit) || !u64::from(header.length).is_multiple_of(unit) {
            return Err((Invalid, "offset or length is not a multiple of the minimum block size"));
        }
        Ok(())
    }
}

impl Header {
    fn decode(bytes: &[u8]) -> Option<Result<Header, Violation>> {
        let mut fields = Fields::new(bytes);
        let magic = fields.u32()?;
        let header = Header {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            length: fields.u32()?,
        };
        let valid = magic == REQUEST;
        Some(if valid {
            Ok(header)
        } else {
            Err(Violation("a request does not begin with its magic number"))
        })
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The request without a payload that this header is.
    fn into_request(self) -> Request {
        let (offset, length, fua) = (self.offset, self.length, self.has(flag::FUA));
        let command = match self.kind {
            code::READ => Command::Read { offset, length },
            code::FLUSH => Command::Flush,
            code::TRIM => Command::Trim { offset, length, fua },
            code::WRITE_ZEROES => {
                Command::WriteZeroes { offset, length, may_trim: !self.has(flag::NO_HOLE), fua }
            }
            code::BLOCK_STATUS => Command::BlockStatus { offset, length, one: self.has(flag::REQUEST_ONE) },
            code::CACHE => Command::Cache,
            _ => Command::Disconnect,
        };
        Request { cookie: self.cookie, command }
    }
}

impl Decoder {
    /// A decoder that begins with bytes which were received with the handshake.
    pub(crate) fn new(rules: Rules, input: BytesMut) -> Decoder {
        Decoder { rules, input, state: State::Header }
    }

    /// Where the next bytes are to be appended, and how many at most.
    pub(crate) fn target(&mut self) -> (&mut BytesMut, usize) {
        if let State::Payload(header, payload) = &mut self.state {
            let missing = header.length as usize - payload.len();
            return (payload, missing);
        }
        if self.input.capacity() - self.input.len() < RECEIVE / 2 {
            // Payloads are copied out of this buffer, so that it is never shared and is used again.
            self.input.reserve(RECEIVE);
        }
        let most = (self.input.capacity() - self.input.len()).min(RECEIVE);
        (&mut self.input, most)
    }

    /// Whether a part of a request was received.
    pub(crate) fn is_inside_request(&self) -> bool {
        !self.input.is_empty() || !matches!(self.state, State::Header)
    }

    /// Allows the request of the last [`Next::Admit`] to take its memory.
    pub(crate) fn admit(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Header) {
            State::Waiting(header, cost) => State::Admitted(header, cost),
            other => other,
        };
    }

    /// The next request.
    pub(crate) fn next(&mut self) -> Result<Next, Violation> {
        loop {
            match std::mem::replace(&mut self.state, State::Header) {
                State::Header => {
                    let Some(header) = Header::decode(&self.input) else { return Ok(Next::Receive) };
                    let header = header?;
                    self.input.advance(REQUEST_HEADER);
                    if let Err((errno, text)) = self.rules.check(&header) {
                        let refused = Rejection { errno, text };
                        let left = if header.kind == code::WRITE { header.length } else { 0 };
                        self.state = State::Skip(header, refused, left);
                    } else if matches!(header.kind, code::READ | code::WRITE) {
                        let cost = header.length;
                        self.state = State::Waiting(header, cost);
                    } else {
                        return Ok(Next::Request(header.into_request(), 0));
                    }
                }
                State::Waiting(header, cost) => {
                    self.state = State::Waiting(header, cost);
                    return Ok(Next::Admit(cost));
                }
                State::Admitted(header, cost) => {
                    if header.kind != code::WRITE {
                        return Ok(Next::Request(header.into_request(), cost));
                    }
                    let payload = BytesMut::with_capacity(header.length as usize);
                    self.state = State::Payload(header, payload);
                }
                State::Payload(header, mut payload) => {
                    let missing = header.length as usize - payload.len();
                    let present = missing.min(self.input.len());
                    payload.extend_from_slice(&self.input[..present]);
                    self.input.advance(present);
                    if present < missing {
                        self.state = State::Payload(header, payload);
                        return Ok(Next::Receive);
                    }
                    let (cost, fua) = (header.length, header.has(flag::FUA));
                    let command = Command::Write { offset: header.offset, data: payload.freeze(), fua };
                    return Ok(Next::Request(Request { cookie: header.cookie, command }, cost));
                }
                State::Skip(header, refused, left) => {
                    let skipped = self.input.len().min(left as usize);
                    self.input.advance(skipped);
                    let left = left - skipped as u32;
                    if left > 0 {
                        self.state = State::Skip(header, refused, left);
                        return Ok(Next::Receive);
                    }
                    let command = Command::Refused(refused);
                    return Ok(Next::Request(Request { cookie: header.cookie, command }, 0));
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 20;

    pub(crate) fn request(flags: u16, kind: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        let mut out = REQUEST.to_be_bytes().to_vec();
        out.extend(flags.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(offset.to_be_bytes());
        out.extend(length.to_be_bytes());
        out
    }

    pub(crate) fn rules() -> Rules {
        Rules::new(&Description::new(SIZE), true, true)
    }

    /// All requests in these bytes, received in parts of this size.
    pub(crate) fn decode(rules: Rules, mut bytes: &[u8], part: usize) -> Result<Vec<Request>, Violation> {
        let mut decoder = Decoder::new(rules, BytesMut::new());
        let mut requests = Vec::new();
        loop {
            match decoder.next()? {
                Next::Admit(_) => decoder.admit(),
                Next::Request(request, _) => requests.push(request),
                Next::Receive if bytes.is_empty() => return Ok(requests),
                Next::Receive => {
                    let (buffer, most) = decoder.target();
                    assert!(most > 0, "there is always room for more bytes");
                    let taken = part.min(most).min(bytes.len());
                    buffer.extend_from_slice(&bytes[..taken]);
                    bytes = &bytes[taken..];
                }
            }
        }
    }

    fn one(rules: &Rules, bytes: &[u8]) -> Command {
        let mut requests = decode(rules.clone(), bytes, 1 << 20).unwrap();
        assert_eq!(requests.len(), 1);
        requests.remove(0).command
    }

    fn errno(rules: &Rules, flags: u16, kind: u16, offset: u64, length: u32) -> Option<Errno> {
        let mut bytes = request(flags, kind, 1, offset, length);
        if kind == code::WRITE {
            bytes.resize(bytes.len() + length as usize, 0);
        }
        match one(rules, &bytes) {
            Command::Refused(refused) => Some(refused.errno),
            _ => None,
        }
    }

    #[test]
    fn commands_are_decoded_with_their_flags() {
        let rules = rules();
        let case = |flags, kind, offset, length| one(&rules, &request(flags, kind, 7, offset, length));
        assert_eq!(case(flag::DF, code::READ, 512, 512), Command::Read { offset: 512, length: 512 });
        assert_eq!(case(0, code::FLUSH, 0, 0), Command::Flush);
        assert_eq!(case(flag::FUA, code::FLUSH, 0, 0), Command::Flush);
        assert_eq!(case(0, code::DISCONNECT, 0, 0), Command::Disconnect);
        assert_eq!(case(0, code::CACHE, 0, 512), Command::Cache);
        let trim = Command::Trim { offset: 0, length: 9, fua: true };
        assert_eq!(case(flag::FUA, code::TRIM, 0, 9), trim);
        let zeroes = |may_trim, fua| Command::WriteZeroes { offset: 0, length: 9, may_trim, fua };
        assert_eq!(case(0, code::WRITE_ZEROES, 0, 9), zeroes(true, false));
        let all = flag::FUA | flag::NO_HOLE | flag::FAST_ZERO;
        assert_eq!(case(all, code::WRITE_ZEROES, 0, 9), zeroes(false, true));
        let status = |one| Command::BlockStatus { offset: 0, length: 9, one };
        assert_eq!(case(flag::REQUEST_ONE, code::BLOCK_STATUS, 0, 9), status(true));
        assert_eq!(case(0, code::BLOCK_STATUS, 0, 9), status(false));
        let write = [&request(flag::FUA, code::WRITE, 7, 3, 4)[..], b"data"].concat();
        let expected = Command::Write { offset: 3, data: Bytes::from_static(b"data"), fua: true };
        assert_eq!(one(&rules, &write), expected);
    }

    #[test]
    fn ranges_beyond_the_end_are_refused() {
        let rules = rules();
        for kind in [code::READ, code::TRIM, code::BLOCK_STATUS, code::CACHE] {
            assert_eq!(errno(&rules, 0, kind, SIZE - 1, 1), None);
            assert_eq!(errno(&rules, 0, kind, SIZE - 1, 2), Some(Errno::Invalid));
            assert_eq!(errno(&rules, 0, kind, u64::MAX, 2), Some(Errno::Invalid));
            assert_eq!(errno(&rules, 0, kind, 0, 0), Some(Errno::Invalid), "no length");
        }
        for kind in [code::WRITE, code::WRITE_ZEROES] {
            assert_eq!(errno(&rules, 0, kind, SIZE - 1, 1), None);
            assert_eq!(errno(&rules, 0, kind, SIZE - 1, 2), Some(Errno::NoSpace));
            assert_eq!(errno(&rules, 0, kind, u64::MAX, 2), Some(Errno::NoSpace));
        }
        assert_eq!(errno(&rules, 0, code::READ, 0, PAYLOAD_MAX + 1), Some(Errno::Invalid));
        assert_eq!(errno(&rules, 0, code::FLUSH, 1, 0), Some(Errno::Invalid));
        assert_eq!(errno(&rules, 0, code::FLUSH, 0, 1), Some(Errno::Invalid));
    }

    #[test]
    fn flags_of_other_commands_and_unknown_commands_are_refused() {
        let rules = rules();
        for (flags, kind) in [
            (flag::DF, code::WRITE),
            (flag::NO_HOLE, code::TRIM),
            (flag::REQUEST_ONE, code::READ),
            (flag::FAST_ZERO, code::WRITE),
            (1 << 5, code::WRITE),
            (1 << 15, code::READ),
            (0, 8),
            (0, u16::MAX),
        ] {
            assert_eq!(errno(&rules, flags, kind, 0, 512), Some(Errno::Invalid), "{flags} {kind}");
        }
        let simple = Rules::new(&Description::new(SIZE), false, false);
        assert_eq!(errno(&simple, flag::DF, code::READ, 0, 512), Some(Errno::Invalid));
        assert_eq!(errno(&simple, 0, code::BLOCK_STATUS, 0, 512), Some(Errno::Invalid));
        let slow = Rules::new(&Description { fast_zeroes: false, ..Description::new(SIZE) }, true, true);
        assert_eq!(errno(&slow, flag::FAST_ZERO, code::WRITE_ZEROES, 0, 512), Some(Errno::Invalid));
    }

    #[test]
    fn read_only_and_unaligned_requests_are_refused() {
        let description = Description { read_only: true, minimum_block: 512, ..Description::new(SIZE) };
        let rules = Rules::new(&description, true, true);
        for kind in [code::WRITE, code::TRIM, code::WRITE_ZEROES] {
            assert_eq!(errno(&rules, 0, kind, 0, 512), Some(Errno::NotPermitted));
        }
        assert_eq!(errno(&rules, 0, code::READ, 0, 512), None);
        assert_eq!(errno(&rules, 0, code::READ, 1, 512), Some(Errno::Invalid));
        assert_eq!(errno(&rules, 0, code::READ, 512, 511), Some(Errno::Invalid));
    }

    #[test]
    fn refused_write_is_skipped_without_memory() {
        let mut bytes = request(0, code::WRITE, 1, 0, PAYLOAD_MAX + 1);
        bytes.resize(bytes.len() + PAYLOAD_MAX as usize + 1, 7);
        bytes.extend(request(0, code::FLUSH, 2, 0, 0));
        let requests = decode(rules(), &bytes, 100_000).unwrap();
        assert_eq!(requests.len(), 2);
        assert!(matches!(requests[0].command, Command::Refused(Rejection { errno: Errno::Invalid, .. })));
        assert_eq!(requests[1], Request { cookie: 2, command: Command::Flush });
    }

    #[test]
    fn payload_takes_no_memory_before_it_is_admitted() {
        let mut decoder = Decoder::new(rules(), request(0, code::WRITE, 1, 0, 4096)[..].into());
        assert_eq!(decoder.next(), Ok(Next::Admit(4096)));
        assert_eq!(decoder.next(), Ok(Next::Admit(4096)));
        assert!(decoder.is_inside_request());
        decoder.admit();
        assert_eq!(decoder.next(), Ok(Next::Receive));
        let (payload, missing) = decoder.target();
        assert_eq!((payload.capacity(), missing), (4096, 4096));
        payload.extend_from_slice(&[1; 4096]);
        assert!(matches!(decoder.next(), Ok(Next::Request(_, 4096))));
        assert!(!decoder.is_inside_request());
    }

    #[test]
    fn wrong_magic_is_a_violation() {
        let mut bytes = request(0, code::FLUSH, 1, 0, 0);
        bytes[0] ^= 1;
        assert!(decode(rules(), &bytes, 28).is_err());
    }

    fn any_request() -> impl Strategy<Value = Vec<u8>> {
        let kind = prop_oneof![9 => 0u16..9, 1 => any::<u16>()];
        let flags = prop_oneof![3 => Just(0), 2 => 0u16..64, 1 => any::<u16>()];
        let offset = prop_oneof![5 => 0..SIZE, 1 => any::<u64>()];
        let length = prop_oneof![5 => 0u32..3000, 1 => Just(SIZE as u32)];
        (flags, kind, any::<u64>(), offset, length).prop_map(|(flags, kind, cookie, offset, length)| {
            let mut bytes = request(flags, kind, cookie, offset, length);
            if kind == code::WRITE {
                bytes.resize(bytes.len() + length as usize, cookie as u8);
            }
            bytes
        })
    }

    proptest! {
        #[test]
        fn result_does_not_depend_on_the_size_of_parts(
            requests in proptest::collection::vec(any_request(), 0..20),
            part in 1usize..5000,
        ) {
            let bytes = requests.concat();
            let whole = decode(rules(), &bytes, usize::MAX).unwrap();
            prop_assert_eq!(whole.len(), requests.len());
            prop_assert_eq!(decode(rules(), &bytes, part).unwrap(), whole);
        }
    }
}
