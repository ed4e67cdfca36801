//! The bytes of a segment: its header and its records. `docs/format-disk.md` is the reference.

use bytes::Bytes;

use crate::{MemberId, Record};

/// The format version that this software writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;
/// The longest body of a record, in bytes.
pub const MAX_RECORD_BYTES: usize = (1 << 28) - 1;
/// The longest base blob of a segment, in bytes.
pub const MAX_BASE_BYTES: usize = 1 << 28;

const SEGMENT_MAGIC: [u8; 8] = *b"LSTPSEG\n";
/// Fixed part of a segment's header; the base blob follows.
pub(crate) const SEGMENT_HEADER: usize = 128;
/// Header of a record.
pub(crate) const RECORD_HEADER: usize = 32;
/// Records start at multiples of this.
pub(crate) const ALIGN: u64 = 8;

const FLAG_RESET: u16 = 1;

/// Ends in `.log` like the segments: the state-transfer scripts empty a data directory but for certain names, and
/// `*.log` is one that all of them spare.
pub(crate) const ID_FILE: &str = "lockstep.id.log";
pub(crate) const ID_TMP: &str = "lockstep.id.log.new";
pub(crate) const SEGMENT_TMP: &str = "lockstep.new.log";
pub(crate) const SPARE_FILE: &str = "lockstep.spare.log";
/// The prefix of the names of quarantined files; a number follows.
pub(crate) const QUARANTINED: &str = "lockstep.damaged.";

/// The name of segment `number`: 16 hexadecimal digits, so that names sort as numbers do.
pub(crate) fn segment_name(number: u64) -> String {
    format!("lockstep.{number:016x}.log")
}

/// The number in a segment's name; `None` for every other file.
pub(crate) fn segment_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("lockstep.")?.strip_suffix(".log")?;
    let plain = digits.len() == 16 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if plain { u64::from_str_radix(digits, 16).ok() } else { None }
}

pub(crate) const fn align_up(n: u64) -> u64 {
    n.next_multiple_of(ALIGN)
}

/// Little-endian fields at fixed places; callers pass slices that are long enough.
pub(crate) fn get_u16(b: &[u8], at: usize) -> u16 {
    let mut x = [0; 2];
    x.copy_from_slice(&b[at..at + 2]);
    u16::from_le_bytes(x)
}

pub(crate) fn get_u32(b: &[u8], at: usize) -> u32 {
    let mut x = [0; 4];
    x.copy_from_slice(&b[at..at + 4]);
    u32::from_le_bytes(x)
}

pub(crate) fn get_u64(b: &[u8], at: usize) -> u64 {
    let mut x = [0; 8];
    x.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(x)
}

pub(crate) fn get_id(b: &[u8], at: usize) -> MemberId {
    let mut x = [0; 16];
    x.copy_from_slice(&b[at..at + 16]);
    x
}

pub(crate) fn put(b: &mut [u8], at: usize, x: &[u8]) {
    b[at..at + x.len()].copy_from_slice(x);
}

/// The head of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) member_id: MemberId,
    /// Never used twice by one incarnation, so (member, incarnation, number) names one life of the file.
    pub(crate) number: u64,
    pub(crate) incarnation: u64,
    /// Index and term of the record before the first one here.
    pub(crate) prev_index: u64,
    pub(crate) prev_term: u64,
    /// The segment before: its number (0: none, the log starts here), where it ends, and its chain there.
    pub(crate) prev_number: u64,
    pub(crate) prev_end: u64,
    pub(crate) prev_chain: u32,
    pub(crate) created_us: u64,
    pub(crate) base: Bytes,
}

/// Why bytes are not a segment's header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    Magic,
    Newer(u16),
    Checksum,
    Length,
}

impl SegmentHeader {
    /// Offset of the first record.
    pub(crate) fn body_start(&self) -> u64 {
        align_up((SEGMENT_HEADER + self.base.len()) as u64)
    }

    /// Header, base and padding, and the header's CRC, which is the segment's salt and first chain value.
    pub(crate) fn encode(&self) -> (Vec<u8>, u32) {
        let SegmentHeader {
            member_id,
            number,
            incarnation,
            prev_index,
            prev_term,
            prev_number,
            prev_end,
            prev_chain,
            created_us,
            base,
        } = self;
        let mut b = vec![0u8; self.body_start() as usize];
        put(&mut b, 0, &SEGMENT_MAGIC);
        put(&mut b, 8, &FORMAT_VERSION.to_le_bytes());
        let flags = if *prev_number == 0 { FLAG_RESET } else { 0 };
        put(&mut b, 10, &flags.to_le_bytes());
        put(&mut b, 12, &(base.len() as u32).to_le_bytes());
        put(&mut b, 16, member_id);
        put(&mut b, 32, &number.to_le_bytes());
        put(&mut b, 40, &incarnation.to_le_bytes());
        put(&mut b, 48, &prev_index.to_le_bytes());
        put(&mut b, 56, &prev_term.to_le_bytes());
        put(&mut b, 64, &prev_number.to_le_bytes());
        put(&mut b, 72, &prev_end.to_le_bytes());
        put(&mut b, 80, &prev_chain.to_le_bytes());
        put(&mut b, 84, &crc32c::crc32c(base).to_le_bytes());
        put(&mut b, 88, &created_us.to_le_bytes());
        let crc = crc32c::crc32c(&b[..124]);
        put(&mut b, 124, &crc.to_le_bytes());
        put(&mut b, SEGMENT_HEADER, base);
        (b, crc)
    }

    /// Reads the fixed part; the base is still to be read: its length and CRC come back beside the
    /// header's own CRC.
    pub(crate) fn decode(b: &[u8]) -> Result<(SegmentHeader, usize, u32, u32), HeaderError> {
        if b.len() < SEGMENT_HEADER || b[..8] != SEGMENT_MAGIC {
            return Err(HeaderError::Magic);
        }
        let version = get_u16(b, 8);
        if version > FORMAT_VERSION {
            return Err(HeaderError::Newer(version));
        }
        let crc = get_u32(b, 124);
        if crc32c::crc32c(&b[..124]) != crc || version == 0 {
            return Err(HeaderError::Checksum);
        }
        let base_len = get_u32(b, 12) as usize;
        // No value in a damaged file may overflow indices or numbers.
        let sane = [get_u64(b, 32), get_u64(b, 40), get_u64(b, 48)].iter().all(|&n| n < 1 << 62);
        if base_len > MAX_BASE_BYTES || !sane {
            return Err(HeaderError::Length);
        }
        let header = SegmentHeader {
            member_id: get_id(b, 16),
            number: get_u64(b, 32),
            incarnation: get_u64(b, 40),
            prev_index: get_u64(b, 48),
            prev_term: get_u64(b, 56),
            prev_number: get_u64(b, 64),
            prev_end: get_u64(b, 72),
            prev_chain: get_u32(b, 80),
            created_us: get_u64(b, 88),
            base: Bytes::new(),
        };
        Ok((header, base_len, get_u32(b, 84), crc))
    }
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An entry of the log.
    Entry,
    /// Everything behind `index` is void from here on. The payload is the writer's incarnation.
    Truncate,
    /// A process opened the log and goes on here. The payload is its incarnation.
    Open,
}

/// The head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) crc: u32,
    pub(crate) kind: Kind,
    pub(crate) len: usize,
    /// Entry: its index. Marks: the last live index after them.
    pub(crate) index: u64,
    pub(crate) term: u64,
    /// CRC of the record before (the segment header's for the first one).
    pub(crate) chain: u32,
    /// Everything in this segment before this offset was durable when the record was written out.
    pub(crate) synced: u64,
}

impl RecordHeader {
    /// Bytes that the record takes in the file.
    pub(crate) fn span(&self) -> u64 {
        span(self.len)
    }

    /// Reads a header; `None` where no writer ever wrote such a thing (zeros above all).
    pub(crate) fn decode(b: &[u8]) -> Option<RecordHeader> {
        let word = get_u32(b, 4);
        let kind = match word >> 28 {
            1 => Kind::Entry,
            2 => Kind::Truncate,
            3 => Kind::Open,
            _ => return None,
        };
        Some(RecordHeader {
            crc: get_u32(b, 0),
            kind,
            len: (word & 0x0fff_ffff) as usize,
            index: get_u64(b, 8),
            term: get_u64(b, 16),
            chain: get_u32(b, 24),
            synced: u64::from(get_u32(b, 28)) * ALIGN,
        })
    }

    /// Whether `record` (header and payload) carries its own checksum, in the segment of that salt.
    pub(crate) fn verify(&self, record: &[u8], salt: u32) -> bool {
        record.len() == RECORD_HEADER + self.len && checksum(salt, &record[4..]) == self.crc
    }
}

/// Bytes that a record with a payload of `len` takes in the file.
pub(crate) const fn span(len: usize) -> u64 {
    align_up((RECORD_HEADER + len) as u64)
}

fn checksum(salt: u32, rest: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), rest)
}

/// The two checks that bind a record to its place in a segment.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// CRC of the segment's header.
    pub(crate) salt: u32,
    /// CRC of the record before.
    pub(crate) chain: u32,
    /// Everything in the segment before this offset is durable.
    pub(crate) synced: u64,
}

/// Appends a record to `buf`, padded; returns its CRC, the next chain value.
pub(crate) fn encode_record(buf: &mut Vec<u8>, link: Link, kind: Kind, record: &Record) -> u32 {
    let Record { index, term, body } = record;
    assert!(body.len() <= MAX_RECORD_BYTES, "a record has {} bytes", body.len());
    assert!(link.synced.is_multiple_of(ALIGN), "synced {} is between records", link.synced);
    let kind: u32 = match kind {
        Kind::Entry => 1,
        Kind::Truncate => 2,
        Kind::Open => 3,
    };
    let start = buf.len();
    let mut h = [0u8; RECORD_HEADER];
    put(&mut h, 4, &((kind << 28) | body.len() as u32).to_le_bytes());
    put(&mut h, 8, &index.to_le_bytes());
    put(&mut h, 16, &term.to_le_bytes());
    put(&mut h, 24, &link.chain.to_le_bytes());
    // Saturates at 32 GiB: an older position than the true one only proves less to recovery.
    let synced = u32::try_from(link.synced / ALIGN).unwrap_or(u32::MAX);
    put(&mut h, 28, &synced.to_le_bytes());
    buf.extend_from_slice(&h);
    buf.extend_from_slice(body);
    let crc = checksum(link.salt, &buf[start + 4..]);
    put(buf, start, &crc.to_le_bytes());
    buf.resize(start + span(body.len()) as usize, 0);
    crc
}

const _: () = assert!(span(0) == RECORD_HEADER as u64);
const _: () = assert!((SEGMENT_HEADER as u64).is_multiple_of(ALIGN));
const _: () = assert!(MAX_RECORD_BYTES < 1 << 28);
