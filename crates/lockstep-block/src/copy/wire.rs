//! The messages of a copy.
//!
//! A frame is a length (4 bytes), a CRC-32C of the rest (4 bytes), a kind (1 byte) and a body. Numbers are little-endian.

use super::{EXTENT, Sum};
use crate::device::attachments::Attachments;
use bytes::Bytes;
use lockstep_core::codec::{DecodeError, Reader, Writer};
use lockstep_core::{Gtid, Seqno, Uuid};
use std::fmt;
use std::io::{self, Read, Write};

/// The version of requests and messages.
pub const VERSION: u16 = 1;
/// Bytes of a frame before its kind.
const HEAD: usize = 8;
/// The longest kind and body: an extent, its offset and its sum, with room to spare.
pub const FRAME_MAX: usize = EXTENT as usize + 4096;
/// The most hashes in a [`Message::Summary`]: 8 MiB of data.
pub const HASHES_MAX: usize = 128;
/// The most items in a [`Message::Summary`].
pub const ITEMS_MAX: usize = 2 * HASHES_MAX;
/// The longest text.
const TEXT_MAX: usize = 1024;
const REQUEST_MAGIC: &[u8; 8] = b"LSBRESYN";

/// Proves that a donor was asked by this joiner: it passes through the group's own connections only.
#[derive(Clone, Copy)]
pub struct Token(pub [u8; 32]);

impl PartialEq for Token {
    /// In the same time for all values, so that nobody learns a part of it.
    fn eq(&self, other: &Token) -> bool {
        self.0.iter().zip(&other.0).fold(0, |different, (a, b)| different | (a ^ b)) == 0
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// A joiner's request, which passes through the group's connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The group's name.
    pub group: String,
    /// Where the joiner listens: `host:port`.
    pub address: String,
    /// See [`Token`].
    pub token: Token,
    /// Whether the joiner expects TLS, with a certificate of the group.
    pub tls: bool,
}

impl Request {
    /// The request as bytes.
    pub fn encode(&self) -> Bytes {
        let Request { group, address, token, tls } = self;
        let mut w = Writer::new();
        w.raw(REQUEST_MAGIC);
        w.u16(VERSION);
        w.str(group);
        w.str(address);
        w.raw(&token.0);
        w.bool(*tls);
        w.into_bytes()
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`DecodeError`]; with `version` if another version wrote it.
    pub fn decode(bytes: &Bytes) -> Result<Request, DecodeError> {
        let mut r = Reader::new(bytes.clone());
        if r.array::<8>()? != *REQUEST_MAGIC || r.u16()? != VERSION {
            return Err(DecodeError::Invalid("version"));
        }
        let (group, address) = (text(&mut r)?, text(&mut r)?);
        let request = Request { group, address, token: Token(r.array()?), tls: r.bool()? };
        r.end()?;
        Ok(request)
    }
}

/// The donor's first message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Of the request.
    pub token: Token,
    /// The group's name.
    pub group: String,
    /// The donor's name.
    pub donor: String,
    /// Q0: the donor's file has every entry up to this one.
    pub gtid: Gtid,
    /// The log's id.
    pub log: Uuid,
    /// The attachments as of Q0, with the device's size.
    pub attachments: Attachments,
}

/// A part of a joiner's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    /// So many extents that are holes.
    Holes(u32),
    /// An extent with data.
    Hash(Sum),
}

/// A message. The first word says who sends it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Donor: the copy may begin.
    Hello(Hello),
    /// Joiner: it begins.
    Accept,
    /// Joiner: it does not.
    Refuse(String),
    /// Joiner: the extents from this offset on.
    Summary {
        /// The first extent's offset: where the Summary before has ended.
        from: u64,
        /// At most [`ITEMS_MAX`], with at most [`HASHES_MAX`] hashes.
        items: Vec<Item>,
    },
    /// Donor: an extent that differs.
    Data {
        /// Its offset.
        offset: u64,
        /// Its hash.
        sum: Sum,
        /// Its content.
        bytes: Bytes,
    },
    /// Donor: this range is to be a hole.
    Punch {
        /// Its offset.
        offset: u64,
        /// Its length.
        length: u64,
    },
    /// Donor: the joiner's file is equal before this offset.
    Compared {
        /// In the present Summary, or at its end.
        upto: u64,
    },
    /// Donor: all was compared.
    End {
        /// Q1: the donor's file has had no entry after this one.
        until: Seqno,
    },
    /// Joiner: everything is on its disk.
    Done,
}

impl Message {
    /// The message with its frame.
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::new();
        match self {
            Message::Hello(Hello { token, group, donor, gtid, log, attachments }) => {
                w.u8(1);
                w.u16(VERSION);
                w.raw(&token.0);
                w.str(group);
                w.str(donor);
                w.raw(&gtid.uuid.0);
                w.i64(gtid.seqno);
                w.raw(&log.0);
                attachments.encode(&mut w);
            }
            Message::Accept => w.u8(2),
            Message::Refuse(text) => {
                w.u8(3);
                w.str(text);
            }
            Message::Summary { from, items } => {
                w.u8(4);
                w.u64(*from);
                w.u32(items.len() as u32);
                for item in items {
                    match item {
                        Item::Holes(count) => {
                            w.u8(0);
                            w.u32(*count);
                        }
                        Item::Hash(sum) => {
                            w.u8(1);
                            w.raw(sum);
                        }
                    }
                }
            }
            Message::Data { offset, sum, bytes } => {
                w.u8(5);
                w.u64(*offset);
                w.raw(sum);
                w.raw(bytes);
            }
            Message::Punch { offset, length } => {
                w.u8(6);
                w.u64(*offset);
                w.u64(*length);
            }
            Message::Compared { upto } => {
                w.u8(7);
                w.u64(*upto);
            }
            Message::End { until } => {
                w.u8(8);
                w.i64(*until);
            }
            Message::Done => w.u8(9),
        }
        let body = w.into_bytes();
        let mut frame = Writer::with_capacity(HEAD + body.len());
        frame.u32(body.len() as u32);
        frame.u32(crc32c::crc32c(&body));
        frame.raw(&body);
        frame.into_bytes()
    }

    /// Reads a kind and its body.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn decode(body: Bytes) -> Result<Message, DecodeError> {
        let mut r = Reader::new(body);
        let message = match r.u8()? {
            1 => {
                if r.u16()? != VERSION {
                    return Err(DecodeError::Invalid("version"));
                }
                Message::Hello(Hello {
                    token: Token(r.array()?),
                    group: text(&mut r)?,
                    donor: text(&mut r)?,
                    gtid: Gtid { uuid: Uuid(r.array()?), seqno: r.i64()? },
                    log: Uuid(r.array()?),
                    attachments: Attachments::decode(&mut r)?,
                })
            }
            2 => Message::Accept,
            3 => Message::Refuse(text(&mut r)?),
            4 => {
                let from = r.u64()?;
                let count = r.count(5)?;
                if count == 0 || count > ITEMS_MAX {
                    return Err(DecodeError::Invalid("number of items"));
                }
                let items = (0..count).map(|_| item(&mut r)).collect::<Result<Vec<_>, _>>()?;
                let hashes = items.iter().filter(|item| matches!(item, Item::Hash(_))).count();
                if hashes > HASHES_MAX {
                    return Err(DecodeError::Invalid("number of hashes"));
                }
                Message::Summary { from, items }
            }
            5 => {
                let (offset, sum) = (r.u64()?, r.array()?);
                let bytes = r.take(r.remaining())?;
                if bytes.is_empty() || bytes.len() as u64 > EXTENT {
                    return Err(DecodeError::Invalid("length of an extent"));
                }
                Message::Data { offset, sum, bytes }
            }
            6 => Message::Punch { offset: r.u64()?, length: r.u64()? },
            7 => Message::Compared { upto: r.u64()? },
            8 => Message::End { until: r.i64()? },
            9 => Message::Done,
            _ => return Err(DecodeError::Invalid("kind")),
        };
        r.end()?;
        Ok(message)
    }

    /// Its name, for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Message::Hello(_) => "Hello",
            Message::Accept => "Accept",
            Message::Refuse(_) => "Refuse",
            Message::Summary { .. } => "Summary",
            Message::Data { .. } => "Data",
            Message::Punch { .. } => "Punch",
            Message::Compared { .. } => "Compared",
            Message::End { .. } => "End",
            Message::Done => "Done",
        }
    }
}

fn text(r: &mut Reader) -> Result<String, DecodeError> {
    let text = r.str()?;
    if text.len() > TEXT_MAX { Err(DecodeError::Invalid("length of a text")) } else { Ok(text) }
}

fn item(r: &mut Reader) -> Result<Item, DecodeError> {
    match r.u8()? {
        0 => match r.u32()? {
            0 => Err(DecodeError::Invalid("number of holes")),
            count => Ok(Item::Holes(count)),
        },
        1 => Ok(Item::Hash(r.array()?)),
        _ => Err(DecodeError::Invalid("kind of an item")),
    }
}

/// Sends a message.
///
/// # Errors
/// As of the stream.
pub fn send(stream: &mut impl Write, message: &Message) -> io::Result<()> {
    stream.write_all(&message.encode())
}

/// Receives a message. Memory is taken for bytes that have arrived only.
///
/// # Errors
/// As of the stream; `InvalidData` for a frame that is none.
pub fn receive(stream: &mut impl Read) -> io::Result<Message> {
    let mut head = [0; HEAD];
    stream.read_exact(&mut head)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let length = word(0) as usize;
    if length == 0 || length > FRAME_MAX {
        return Err(invalid(format!("a frame of {length} bytes, and {FRAME_MAX} is the most")));
    }
    let mut body = Vec::new();
    stream.by_ref().take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if crc32c::crc32c(&body) != word(4) {
        return Err(invalid("a frame with a wrong checksum".into()));
    }
    Message::decode(body.into()).map_err(|error| invalid(format!("a message that {error}")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::device::entry::Entry;

    pub(crate) fn request() -> Request {
        Request { group: "disk".into(), address: "192.0.2.1:4568".into(), token: Token([7; 32]), tls: true }
    }

    pub(crate) fn samples() -> Vec<Message> {
        let mut attachments = Attachments::default();
        attachments.take(&Uuid([1; 16]), &Entry::Resize { before: 0, size: 1 << 20, token: 1 });
        let hello = Hello {
            token: Token([7; 32]),
            group: "disk".into(),
            donor: "n1".into(),
            gtid: Gtid { uuid: Uuid([3; 16]), seqno: 9 },
            log: Uuid([4; 16]),
            attachments,
        };
        vec![
            Message::Hello(hello),
            Message::Accept,
            Message::Refuse("a transfer runs".into()),
            Message::Summary { from: 65536, items: vec![Item::Holes(3), Item::Hash([5; 32])] },
            Message::Data { offset: 65536, sum: [6; 32], bytes: Bytes::from_static(b"data") },
            Message::Punch { offset: 0, length: 65536 },
            Message::Compared { upto: 131_072 },
            Message::End { until: 12 },
            Message::Done,
        ]
    }

    #[test]
    fn messages_and_requests_survive() {
        for message in samples() {
            assert_eq!(receive(&mut &message.encode()[..]).unwrap(), message);
        }
        assert_eq!(Request::decode(&request().encode()), Ok(request()));
    }

    #[test]
    fn damaged_frame_is_refused() {
        let frame = Message::Punch { offset: 0, length: 65536 }.encode();
        for at in 0..frame.len() {
            let mut damaged = frame.to_vec();
            damaged[at] ^= 1;
            assert!(receive(&mut &damaged[..]).is_err(), "byte {at}");
            assert!(receive(&mut &frame[..at]).is_err(), "cut at {at}");
        }
        let long = [(FRAME_MAX as u32 + 1).to_le_bytes(), [0; 4]].concat();
        assert!(receive(&mut &long[..]).unwrap_err().to_string().contains("is the most"));
    }

    #[test]
    fn token_does_not_appear_in_messages_for_people() {
        assert!(!format!("{:?}", request()).contains('7'));
    }
}
