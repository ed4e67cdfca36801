//! The log's files, mutated: opening says what is wrong, or gives a log that can be opened again and gone on with.

mod common;

use bytes::Bytes;
use common::{collect, options, records, write_sync};
use lockstep_fuzz::{Target, outcome};
use lockstep_log::{LogView, MemDisk, WriteOp};

const ID: &str = "lockstep.id.log";
const SEGMENTS: [&str; 2] = ["lockstep.0000000000000001.log", "lockstep.0000000000000002.log"];
/// Distance between the slots of the identity file; the input omits the bytes between them.
const STRIDE: usize = 4096;
const SLOT: usize = 128;

/// The input: both slots of the identity file, the length of the first segment, both segments.
fn pack(disk: &MemDisk) -> Vec<u8> {
    let id = disk.contents(ID).unwrap();
    let trimmed = |name: &str| {
        let mut bytes = disk.contents(name).unwrap_or_default();
        while bytes.len() > 8 && bytes.ends_with(&[0; 8]) {
            bytes.truncate(bytes.len() - 8);
        }
        bytes
    };
    let first = trimmed(SEGMENTS[0]);
    let mut out = id[..SLOT].to_vec();
    out.extend_from_slice(&id[STRIDE..STRIDE + SLOT]);
    out.extend_from_slice(&(first.len() as u32).to_le_bytes());
    out.extend_from_slice(&first);
    out.extend_from_slice(&trimmed(SEGMENTS[1]));
    out
}

fn split(input: &[u8]) -> Option<[&[u8]; 4]> {
    let (one, rest) = input.split_at_checked(SLOT)?;
    let (two, rest) = rest.split_at_checked(SLOT)?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (first, second) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some([one, two, first, second])
}

fn unpack(input: &[u8]) -> Option<MemDisk> {
    let [one, two, first, second] = split(input)?;
    let mut id = one.to_vec();
    id.resize(STRIDE, 0);
    id.extend_from_slice(two);
    let disk = MemDisk::new();
    disk.put(ID, id);
    disk.put(SEGMENTS[0], first.to_vec());
    if !second.is_empty() {
        disk.put(SEGMENTS[1], second.to_vec());
    }
    Some(disk)
}

fn u32_at(b: &[u8], at: usize) -> usize {
    b.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)
}

fn put(b: &mut [u8], at: usize, value: u32) {
    b[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// The checksums of a header, of its base, of the records behind it, and their chain: docs/format-disk.md.
fn repair_segment(segment: &mut [u8]) {
    if segment.len() < SLOT {
        return;
    }
    let base = u32_at(segment, 12);
    if let Some(base) = segment.get(SLOT..SLOT.saturating_add(base)) {
        let crc = crc32c::crc32c(base);
        put(segment, 84, crc);
    }
    let salt = crc32c::crc32c(&segment[..124]);
    put(segment, 124, salt);
    let mut chain = salt;
    let mut at = (SLOT + base).next_multiple_of(8);
    while at + 32 <= segment.len() {
        let len = u32_at(segment, at + 4) & 0x0fff_ffff;
        if at + 32 + len > segment.len() {
            break;
        }
        put(segment, at + 24, chain);
        chain = crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &segment[at + 4..at + 32 + len]);
        put(segment, at, chain);
        at = (at + 32 + len).next_multiple_of(8);
    }
}

fn repair(input: &mut [u8]) {
    let Some([_, _, first, _]) = split(input) else { return };
    let middle = 2 * SLOT + 4 + first.len();
    for at in [0, SLOT] {
        let crc = crc32c::crc32c(&input[at..at + 124]);
        put(&mut input[at..], 124, crc);
    }
    let (head, second) = input.split_at_mut(middle);
    repair_segment(&mut head[2 * SLOT + 4..]);
    repair_segment(second);
}

fn test(input: &[u8]) -> u64 {
    let Some(disk) = unpack(input) else { return 0 };
    // A tool looks, and changes nothing.
    let looked = LogView::open_on(disk.fork()).map(|view| view.visit(&mut |_| Ok(())).is_ok());
    let opened = collect(&disk, options());
    let (mut log, found) = match opened {
        Ok(opened) => opened,
        Err(e) => {
            let text = e.to_string();
            assert!(!text.contains('\n'), "{text}");
            return outcome(&format_args!("{text} {}", looked.is_ok()));
        }
    };
    let many = |n: usize| "x".repeat(n.min(20));
    let (records, bases) = (many(found.records.len()), many(found.bases.len()));
    let shape =
        format!("{records} {bases} {}", found.recovered.cut.as_ref().map_or("whole", |cut| &cut.reason));
    // The recovered log accepts appends and recovers to the same records again.
    let (last, term) = (log.last_index(), log.last_term());
    assert_eq!(found.records.last().map_or(last, |r| r.index), last);
    let base = Bytes::from_static(b"a base");
    let roll = found.bases.is_empty().then_some(base);
    let more = vec![lockstep_log::Record { index: last + 1, term, body: Bytes::from_static(b"one more") }];
    let mut due = found.records.clone();
    due.extend(more.iter().cloned());
    if log.write(WriteOp { roll, records: more, ..WriteOp::default() }).is_err() || log.sync().is_err() {
        return outcome(&format_args!("{shape} not written"));
    }
    drop(log);
    disk.kill();
    let (_, again) = collect(&disk, options()).expect("what could be opened and written can be opened again");
    assert_eq!(again.records, due);
    outcome(&format_args!("{shape}"))
}

#[test]
fn fuzz_files() {
    let story = |n: u64| {
        let disk = MemDisk::new();
        let (mut log, _) = collect(&disk, options()).unwrap();
        let base =
            |text: &'static [u8]| WriteOp { roll: Some(Bytes::from_static(text)), ..WriteOp::default() };
        log.write(base(b"the first base")).unwrap();
        write_sync(&mut log, records(1..=4, 1));
        if n > 0 {
            log.write(WriteOp { truncate_from: Some(3), ..WriteOp::default() }).unwrap();
            write_sync(&mut log, records(3..=5, 2));
        }
        if n > 1 {
            log.write(base(b"the second base")).unwrap();
            write_sync(&mut log, records(6..=8, 3));
        }
        drop(log);
        disk.kill();
        pack(&disk)
    };
    let seeds: Vec<Vec<u8>> = (0..3).map(story).collect();
    for seed in &seeds {
        // The checksums here are computed as there, else nothing would get past them.
        let mut repaired = seed.clone();
        repair(&mut repaired);
        assert!(*seed == repaired);
        assert!(collect(&unpack(seed).unwrap(), options()).is_ok());
    }
    let mut target = Target::new("files", env!("CARGO_MANIFEST_DIR"), seeds, &test);
    target.repair = Some(&repair);
    // Segments are made at their full size.
    target.memory = (1 << 20, 256);
    target.run();
}
