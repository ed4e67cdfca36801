//! What the tests share.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod model;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lockstep_log::{Disk, Fault, Log, MemDisk, OpenError, Options, Record, Recovered, Replay, WriteOp};

pub const MEMBER: [u8; 16] = *b"member-under-tst";

pub fn options() -> Options {
    Options { segment_bytes: 16 << 10, new_member_id: MEMBER, recycle: true, may_shorten: false }
}

/// A record whose body depends on its place, and is of irregular length.
pub fn record(index: u64, term: u64) -> Record {
    let len = (index * 37 + term * 11) % 90;
    let body: Vec<u8> = (0..len).map(|i| (index * 7 + term * 3 + i) as u8).collect();
    Record { index, term, body: Bytes::from(body) }
}

pub fn records(range: RangeInclusive<u64>, term: u64) -> Vec<Record> {
    range.map(|i| record(i, term)).collect()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub recovered: Recovered,
    pub bases: Vec<(u64, u64, Bytes)>,
    pub records: Vec<Record>,
}

pub fn collect<D: Disk>(disk: &D, options: Options) -> Result<(Log<D>, Found), OpenError> {
    let mut bases = Vec::new();
    let mut records = Vec::new();
    let (log, recovered) = Log::open(disk.clone(), options, &mut |item| {
        match item {
            Replay::Base { index, term, base } => bases.push((index, term, base)),
            Replay::Record(r) => records.push(r),
            Replay::Trim | Replay::Shorten => {}
        }
        Ok(())
    })?;
    Ok((log, Found { recovered, bases, records }))
}

/// Possible contents of the disk after this fault at operation `n`, each with its seed.
pub fn images(disk: &MemDisk, fault: Fault, n: u64) -> impl Iterator<Item = (u64, MemDisk)> {
    (0..24).map(move |seed| {
        let image = disk.fork();
        image.set_sector_bytes(if seed % 2 == 0 { 512 } else { 24 });
        match fault == Fault::PowerCut {
            true => image.crash(seed * 7919 + n),
            false => image.kill(),
        }
        (seed, image)
    })
}

pub fn write_sync<D: Disk>(log: &mut Log<D>, records: Vec<Record>) {
    log.write(WriteOp { records, ..WriteOp::default() }).unwrap();
    log.sync().unwrap();
}

/// A directory of its own that goes with the test.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("lockstep-log-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
