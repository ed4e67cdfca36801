//! Rescue files: lost tails of logs that a weak policy may have acknowledged.
//!
//! `lockstep.rescue.<n>.log` is built like a segment: a header with the snapshot of the replicated state before the first
//! record, then the records. It is no part of a log. [`crate::Log::open`] ignores it, and no code of ours removes it.

use std::sync::Arc;

use crate::error::{OpenError, WriteError};
use crate::format::{Kind, Link, SegmentHeader, encode_record};
use crate::open::Replay;
use crate::reader::{Index, LogReader, Segment, Shared};
use crate::scan::{HeadError, Stop, read_header, scan};
use crate::{Disk, DiskFile, Log, Record, Reset};

const PREFIX: &str = "lockstep.rescue.";
const TMP: &str = "lockstep.rescue.new.log";

/// The number in a rescue file's name.
pub fn rescue_number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(".log")?;
    digits.parse().ok().filter(|n: &u64| n.to_string() == digits)
}

impl<D: Disk> Log<D> {
    /// Writes records, dense, that follow `base`, to a rescue file of their own, and has it on the disk before it
    /// returns. The log itself stays as it is. Returns the file's name.
    ///
    /// # Errors
    /// As [`Log::write`]: where the disk fails, the log is closed.
    pub fn rescue(&mut self, base: Reset, records: &[Record]) -> Result<String, WriteError> {
        self.check_open()?;
        let result = self.write_rescue(base, records);
        if let Err(error) = &result {
            self.poison(error);
        }
        result
    }

    fn write_rescue(&mut self, base: Reset, records: &[Record]) -> Result<String, WriteError> {
        for (r, index) in records.iter().zip(base.index + 1..) {
            assert_eq!(r.index, index, "rescued records are dense");
        }
        let terms = records.iter().map(|r| r.term);
        assert!(std::iter::once(base.term).chain(terms).is_sorted(), "terms ascend");
        let member_id = self.identity().member_id;
        let incarnation = self.identity().incarnation;
        let disk = self.disk();
        let make = || {
            let names = disk.list()?;
            let number = names.iter().filter_map(|n| rescue_number(n)).max().unwrap_or(0) + 1;
            let name = format!("{PREFIX}{number}.log");
            let header = SegmentHeader {
                member_id,
                number,
                incarnation,
                prev_index: base.index,
                prev_term: base.term,
                prev_number: 0,
                prev_end: 0,
                prev_chain: 0,
                created_us: disk.now_us(),
                base: base.base.clone(),
            };
            let (mut bytes, salt) = header.encode();
            let mut chain = salt;
            for r in records {
                chain = encode_record(&mut bytes, Link { salt, chain, synced: 0 }, Kind::Entry, r);
            }
            if names.iter().any(|n| n == TMP) {
                disk.remove(TMP)?;
            }
            let file = disk.create(TMP)?;
            file.write_at(&bytes, 0)?;
            file.sync_data()?;
            disk.rename(TMP, &name)?;
            disk.sync_dir()?;
            Ok(name)
        };
        make().map_err(|e: std::io::Error| WriteError::io("write a rescue file", &e))
    }
}

/// Shows a visitor what a rescue file holds: its base, then its records.
///
/// # Errors
/// [`OpenError`] where the file cannot be read, or is damaged; the visitor has then seen what precedes the damage.
pub fn read_rescue<D: Disk>(
    disk: &D,
    name: &str,
    visitor: &mut dyn FnMut(Replay) -> Result<(), String>,
) -> Result<(), OpenError> {
    let dir = disk.describe();
    let io = |e| OpenError::io(&dir, format!("read {name}"), e);
    let corrupt = |offset, intact_to, reason: &str| OpenError::Corrupt {
        file: name.to_owned(),
        offset,
        intact_to,
        reason: reason.to_owned(),
    };
    let file = disk.open(name, false).map_err(io)?;
    let (header, salt) = read_header(&file).map_err(|e| match e {
        HeadError::Io(e) => io(e),
        _ => corrupt(0, 0, "its header is damaged, or it is no rescue file"),
    })?;
    let mut segment = Segment::new(header, salt, Arc::new(file));
    let scanned = scan(&mut segment, None).map_err(io)?;
    let (end, last) = (segment.end, segment.last.0);
    let shared = Arc::new(Shared::new(Index { segments: vec![segment] }));
    let reader: LogReader<D> = LogReader { shared };
    crate::open::replay(&reader, &dir, visitor)?;
    match scanned.stop {
        Stop::Broken(reason) => Err(corrupt(end, last, reason)),
        Stop::Sealed | Stop::Clean => Ok(()),
    }
}
