//! Consecutive bytes of a binlog file, as the payload of a log entry.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::{DecodeError, Reader};
use crate::event::{Checksum, MAGIC, kind, split};
use crate::gtid::Gtid;

/// The most bytes of a file in one chunk. Submissions of this size are ordered as they were submitted.
pub const CHUNK_MAX: usize = 512 << 10;
/// The first bytes of a chunk.
const CHUNK_MAGIC: [u8; 4] = *b"LSBC";
/// The format's version.
const VERSION: u8 = 1;
/// Set if the chunk is the first one of a file that follows another one.
const HAS_AFTER: u8 = 1;
/// Set if the chunk says which server it was copied from. Older versions did not.
const HAS_ORIGIN: u8 = 2;
/// Set if the chunk names transactions that no file of its server has.
const HAS_UNLOGGED: u8 = 4;
/// The most of them: one for each domain.
pub(super) const UNLOGGED_MAX: usize = 4096;
/// The longest name of a file without its number.
const BASE_MAX: usize = 255;

/// The name of a binlog file: `mariadb-bin.000007`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileName {
    base: String,
    number: u64,
}

impl FileName {
    /// The name of this file number.
    ///
    /// # Errors
    /// [`DecodeError`] if the base is empty, too long, or has characters that no file of a server has.
    pub fn new(base: &str, number: u64) -> Result<FileName, DecodeError> {
        let is_plain = |c: char| !c.is_control() && c != '/' && c != '\\';
        if base.is_empty() || base.len() > BASE_MAX || base.starts_with('.') || !base.chars().all(is_plain) {
            return Err(DecodeError::Invalid("file name"));
        }
        Ok(FileName { base: base.to_owned(), number })
    }

    /// Parses a name with its number.
    ///
    /// # Errors
    /// [`DecodeError`] if it is no name of a binlog file.
    pub fn parse(name: &str) -> Result<FileName, DecodeError> {
        let wrong = DecodeError::Invalid("file name");
        let (base, digits) = name.rsplit_once('.').ok_or(wrong)?;
        if digits.len() < 6 || digits.len() > 18 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(wrong);
        }
        let name = FileName::new(base, digits.parse().map_err(|_| wrong)?)?;
        if name.to_string().rsplit_once('.').is_some_and(|(_, d)| d == digits) {
            Ok(name)
        } else {
            Err(wrong)
        }
    }

    /// The name without its number.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.base, self.number)
    }
}

/// A place in the primary's binlog.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The file.
    pub file: FileName,
    /// The byte in it.
    pub offset: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.offset)
    }
}

/// Which server's binlog a copy is of, as the format description of the file tells with which that copy began.
///
/// Two leaders with different addresses may submit different servers' binlogs under one generation. Then this number tells
/// the chunks apart. It is 0 in a group that began with a version without it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Origin(u64);

impl Origin {
    /// The origin with this number.
    pub fn new(number: u64) -> Origin {
        Origin(number)
    }

    /// Of the first event of the file with which the copy begins.
    ///
    /// # Errors
    /// [`DecodeError`] if the event is no format description with a checksum.
    pub fn of(format_description: &[u8]) -> Result<Origin, DecodeError> {
        let (header, _) = split(format_description, Checksum::Crc32)?;
        if header.kind != kind::FORMAT_DESCRIPTION {
            return Err(DecodeError::Invalid("type: no format description"));
        }
        let checksum = format_description.last_chunk().ok_or(DecodeError::Short)?;
        // Two servers have different ids. The checksum tells two installations with the same id apart.
        let number = u64::from(header.server_id) << 32 | u64::from(u32::from_le_bytes(*checksum));
        Ok(Origin(number.max(1)))
    }

    /// The number; 0 if it is not known.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Whether it is known.
    pub fn is_known(self) -> bool {
        self.0 != 0
    }
}

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Which primary of the group it is of: 0 for the first one, one more for each that took over.
    pub generation: u32,
    /// Which server it was copied from: see [`Origin`].
    pub origin: Origin,
    /// The place of its first byte. A file's first chunk begins behind the file's magic bytes.
    pub at: Place,
    /// In a file's first chunk: number and end of the file before it, of the primary before if this is another one's first
    /// file. `None`: the copy begins with this file.
    pub after: Option<(u64, u64)>,
    /// In the first chunk of a file of another primary: transactions of the copy so far that this primary has, although its
    /// binlog does not name them. Each is the copy's last one of a domain.
    pub unlogged: Vec<Gtid>,
    /// The bytes.
    pub data: Bytes,
}

impl Chunk {
    /// Whether this is the first chunk of a file.
    pub fn begins_file(&self) -> bool {
        self.at.offset == MAGIC.len() as u64
    }

    /// The payload.
    pub fn encode(&self) -> Bytes {
        let Chunk { generation, origin, at: Place { file, offset }, after, unlogged, data } = self;
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let has_origin = *generation > 0 || origin.is_known();
        let mut out = BytesMut::with_capacity(64 + file.base.len() + data.len());
        out.put_slice(&CHUNK_MAGIC);
        out.put_u8(VERSION);
        let has_unlogged = !unlogged.is_empty();
        out.put_u8(
            flag(after.is_some(), HAS_AFTER)
                | flag(has_origin, HAS_ORIGIN)
                | flag(has_unlogged, HAS_UNLOGGED),
        );
        if has_origin {
            out.put_u32_le(*generation);
            out.put_u64_le(origin.0);
        }
        out.put_u8(file.base.len() as u8);
        out.put_slice(file.base.as_bytes());
        out.put_u64_le(file.number);
        out.put_u64_le(*offset);
        if let Some((number, end)) = after {
            out.put_u64_le(*number);
            out.put_u64_le(*end);
        }
        if has_unlogged {
            out.put_u16_le(unlogged.len() as u16);
        }
        for Gtid { domain, server, seqno } in unlogged {
            out.put_u32_le(*domain);
            out.put_u32_le(*server);
            out.put_u64_le(*seqno);
        }
        out.put_slice(data);
        out.freeze()
    }

    /// Parses a payload.
    ///
    /// # Errors
    /// [`DecodeError`] if it is no chunk, or one of a newer version.
    pub fn decode(payload: &Bytes) -> Result<Chunk, DecodeError> {
        let mut r = Reader::new(payload);
        if r.take(CHUNK_MAGIC.len())? != CHUNK_MAGIC {
            return Err(DecodeError::Invalid("begin: no part of a binlog"));
        }
        if r.u8()? != VERSION {
            return Err(DecodeError::Invalid("version: this program is too old"));
        }
        let flags = r.u8()?;
        if flags & !(HAS_AFTER | HAS_ORIGIN | HAS_UNLOGGED) != 0 {
            return Err(DecodeError::Invalid("flag: this program is too old"));
        }
        let (generation, origin) =
            if flags & HAS_ORIGIN != 0 { (r.u32()?, Origin(r.u64()?)) } else { (0, Origin::default()) };
        if flags & HAS_ORIGIN != 0 && !origin.is_known() {
            return Err(DecodeError::Invalid("origin"));
        }
        let len = usize::from(r.u8()?);
        let base = std::str::from_utf8(r.take(len)?).map_err(|_| DecodeError::Invalid("file name"))?;
        let file = FileName::new(base, r.u64()?)?;
        let offset = r.u64()?;
        let after = if flags & HAS_AFTER != 0 { Some((r.u64()?, r.u64()?)) } else { None };
        let mut unlogged = Vec::new();
        if flags & HAS_UNLOGGED != 0 {
            let count = usize::from(r.u16()?);
            if count == 0 || count > UNLOGGED_MAX {
                return Err(DecodeError::Invalid("number of transactions"));
            }
            for _ in 0..count {
                unlogged.push(Gtid { domain: r.u32()?, server: r.u32()?, seqno: r.u64()? });
            }
        }
        let data = payload.slice(payload.len() - r.remaining()..);
        if data.is_empty() || data.len() > CHUNK_MAX {
            return Err(DecodeError::Invalid("length"));
        }
        if offset < MAGIC.len() as u64 || offset.checked_add(data.len() as u64).is_none() {
            return Err(DecodeError::Invalid("offset"));
        }
        let chunk = Chunk { generation, origin, at: Place { file, offset }, after, unlogged, data };
        if chunk.after.is_some() && !chunk.begins_file() {
            return Err(DecodeError::Invalid("predecessor: only a file's first part has one"));
        }
        if !chunk.unlogged.is_empty() && (chunk.generation == 0 || !chunk.begins_file()) {
            return Err(DecodeError::Invalid("list: only the first part of another primary's file has one"));
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventWriter, FormatDescription};

    #[test]
    fn file_name_round_trips_and_others_are_refused() {
        for name in ["mariadb-bin.000001", "a.b.123456", "x.1234567"] {
            assert_eq!(FileName::parse(name).unwrap().to_string(), name);
        }
        for name in ["", "bin", "bin.1", ".000001", "bin.0000001", "a/b.000001", "bin.00000x", "..000001"] {
            assert!(FileName::parse(name).is_err(), "{name}");
        }
    }

    #[test]
    fn chunk_round_trips_and_truncated_one_is_refused() {
        let file = FileName::parse("mariadb-bin.000007").unwrap();
        for (generation, origin, offset, after) in [
            (0, 0, 4, None),
            (0, 0, 4, Some((6, 900))),
            (0, 0, 77, None),
            (0, 5, 77, None),
            (1, 5, 4, Some((6, 900))),
            (u32::MAX, u64::MAX, 77, None),
        ] {
            let data = Bytes::from_static(b"events");
            let at = Place { file: file.clone(), offset };
            let unlogged: Vec<Gtid> = match (generation, after) {
                (1, Some(_)) => {
                    ["3-4-5", "4294967295-1-18446744073709551615"].map(|g| g.parse().unwrap()).into()
                }
                _ => Vec::new(),
            };
            let chunk = Chunk { generation, origin: Origin(origin), at, after, unlogged, data };
            let payload = chunk.encode();
            assert_eq!(Chunk::decode(&payload), Ok(chunk));
            for cut in 0..=payload.len() - b"events".len() {
                assert!(Chunk::decode(&payload.slice(..cut)).is_err(), "{cut}");
            }
        }
        let at = Place { file, offset: 77 };
        let origin = Origin::default();
        let (unlogged, data) = (Vec::new(), Bytes::from_static(b"e"));
        let wrong = Chunk { generation: 0, origin, at, after: Some((6, 9)), unlogged, data };
        assert!(Chunk::decode(&wrong.encode()).is_err(), "a predecessor in the middle of a file");
        let wrong = Chunk { generation: 1, after: None, ..wrong };
        assert!(Chunk::decode(&wrong.encode()).is_err(), "another primary without an origin");
        let unlogged = vec![Gtid { domain: 3, server: 4, seqno: 5 }];
        let wrong = Chunk { origin: Origin(5), unlogged, ..wrong };
        assert!(Chunk::decode(&wrong.encode()).is_err(), "a list in the middle of a file");
        let at = Place { offset: 4, ..wrong.at.clone() };
        let wrong = Chunk { generation: 0, at: at.clone(), ..wrong };
        assert!(Chunk::decode(&wrong.encode()).is_err(), "a list of the first primary");
        let many = vec![wrong.unlogged[0]; UNLOGGED_MAX + 1];
        let wrong = Chunk { generation: 1, unlogged: many, ..wrong };
        assert!(Chunk::decode(&wrong.encode()).is_err(), "a long list");
    }

    #[test]
    fn chunk_of_a_version_without_origins_is_read() {
        let old = b"LSBC\x01\x01\x03bin\x07\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x63\0\0\0\0\0\0\0events";
        let chunk = Chunk::decode(&Bytes::from_static(old)).unwrap();
        assert_eq!((chunk.generation, chunk.origin, chunk.after), (0, Origin::default(), Some((6, 99))));
        assert_eq!(chunk.encode(), Bytes::from_static(old));
    }

    #[test]
    fn origins_of_two_servers_and_of_two_installations_differ() {
        let origin = |server_id, timestamp| {
            let mut writer = EventWriter::at(4);
            let version = "10.11".into();
            let checksum = Checksum::Crc32;
            let format = FormatDescription { timestamp, server_id, version, created: 1, checksum };
            writer.format_description(&format);
            Origin::of(&writer.finish().unwrap()).unwrap()
        };
        assert_eq!(origin(10, 7), origin(10, 7));
        assert_ne!(origin(10, 7), origin(11, 7));
        assert_ne!(origin(10, 7), origin(10, 8));
        assert!(Origin::of(b"none").is_err());
    }
}
