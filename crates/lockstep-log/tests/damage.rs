//! Torn tails, damage, files of others and of newer versions, directories that do not serve.

mod common;

use bytes::Bytes;
use common::{collect, options, records, write_sync};
use lockstep_log::{Fault, LogView, MemDisk, OpenError, ReadError, RealDisk, Shortage, Vote, WriteOp};

const SEGMENT_1: &str = "lockstep.0000000000000001.log";
const SEGMENT_2: &str = "lockstep.0000000000000002.log";

fn open_error(disk: &MemDisk) -> OpenError {
    match collect(disk, options()) {
        Ok((_, found)) => panic!("opened: {found:?}"),
        Err(e) => {
            let text = e.to_string();
            assert!(!text.contains('\n') && text.contains(": "), "{text}");
            e
        }
    }
}

/// Ten records in ten synced batches; with the offsets where each begins, and the end.
fn ten_batches() -> (MemDisk, Vec<u64>) {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    let mut at = vec![128];
    for i in 1..=10 {
        write_sync(&mut log, records(i..=i, 1));
        at.push(log.bytes());
    }
    drop(log);
    disk.kill();
    (disk, at)
}

#[test]
fn damage_before_the_last_batch_is_told_from_a_torn_tail() {
    let (disk, at) = ten_batches();
    for offset in at[0]..at[10] {
        let image = disk.fork();
        let which = at.partition_point(|&a| a <= offset) - 1;
        // Padding carries nothing.
        let len = records(1..=10, 1)[which].body.len() as u64;
        if offset >= at[which] + 32 + len {
            continue;
        }
        assert!(image.corrupt(SEGMENT_1, offset, 0x41));
        if which < 9 {
            // A later record says that this one had been synced.
            match open_error(&image) {
                OpenError::Corrupt { file, offset: found, intact_to, .. } => {
                    assert_eq!((file.as_str(), found, intact_to), (SEGMENT_1, at[which], which as u64));
                }
                e => panic!("{e}"),
            }
            // The evidence is not touched by trying.
            assert_eq!(image.contents(SEGMENT_1), {
                let twin = disk.fork();
                twin.corrupt(SEGMENT_1, offset, 0x41);
                twin.contents(SEGMENT_1)
            });
        } else {
            // Nothing but lockstep.id.log could say so of the last one, and here it does not know.
            let (_log, found) = collect(&image, options()).unwrap();
            assert_eq!(found.records, records(1..=9, 1));
            assert_eq!(found.recovered.cut.map(|c| c.offset), Some(at[9]));
        }
    }
}

#[test]
fn after_an_orderly_close_the_last_batch_is_known_too() {
    let (disk, at) = ten_batches();
    collect(&disk, options()).unwrap().0.close().unwrap();
    for offset in at[9]..at[9] + 32 {
        let image = disk.fork();
        image.corrupt(SEGMENT_1, offset, 1);
        assert!(matches!(open_error(&image), OpenError::Corrupt { intact_to: 9, .. }));
    }
    let image = disk.fork();
    let mut short = image.contents(SEGMENT_1).unwrap();
    short.truncate(at[9] as usize);
    image.put(SEGMENT_1, short);
    assert!(matches!(open_error(&image), OpenError::Corrupt { intact_to: 9, .. }));
}

const SECTOR: usize = 512;

/// Five records in one synced batch, then more in another one. The file after the first batch and after the second, and
/// where the first one ends.
fn two_batches(last: u64) -> (MemDisk, [Vec<u8>; 2], usize) {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, records(1..=5, 1));
    let (mut old, end) = (disk.contents(SEGMENT_1).unwrap(), log.bytes() as usize);
    write_sync(&mut log, records(6..=last, 1));
    drop(log);
    disk.kill();
    let new = disk.contents(SEGMENT_1).unwrap();
    old.resize(new.len(), 0);
    assert_ne!(end % SECTOR, 0, "the second batch begins within a sector");
    (disk, [old, new], end)
}

/// An append writes the last synced block once more. Each sector of it is either as before or as after.
#[test]
fn append_torn_between_sectors_keeps_synced_records() {
    let (disk, [old, new], end) = two_batches(60);
    let (first, last) = (end / SECTOR, new.len().div_ceil(SECTOR));
    let sectors = (last - first).min(8);
    assert!(sectors > 2);
    for written in 0..1 << sectors {
        let mut mixed = old.clone();
        for at in (first..last).filter(|at| written >> (at - first).min(sectors - 1) & 1 == 1) {
            let range = at * SECTOR..((at + 1) * SECTOR).min(new.len());
            mixed[range.clone()].copy_from_slice(&new[range]);
        }
        let image = disk.fork();
        image.put(SEGMENT_1, mixed);
        let (_log, found) = collect(&image, options()).unwrap();
        let count = found.records.len() as u64;
        assert!(count >= 5 && found.records == records(1..=count, 1), "{written:b}: {count}");
    }
}

/// The sector in which an append began comes back as garbage, with synced records in it.
#[test]
fn sector_garbled_by_append_is_damage_if_more_follows() {
    let garbled = |mut file: Vec<u8>, end: usize| {
        let sector = end / SECTOR * SECTOR;
        let upto = (sector + SECTOR).min(file.len());
        file[sector..upto].fill(0xa5);
        file
    };
    let (disk, [_, new], end) = two_batches(60);
    let image = disk.fork();
    image.put(SEGMENT_1, garbled(new, end));
    assert!(matches!(open_error(&image), OpenError::Corrupt { .. }));
    // An append within that sector leaves no witness: only the sector's promise to be whole keeps these records.
    let (disk, [_, new], end) = two_batches(6);
    let image = disk.fork();
    image.put(SEGMENT_1, garbled(new, end));
    let (_log, found) = collect(&image, options()).unwrap();
    assert!(found.records.len() < 5 && found.recovered.cut.is_some());
}

#[test]
fn torn_batch_is_cut_and_stays_cut() {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, records(1..=3, 1));
    let end = log.bytes();
    // One batch of several records, of which a crash loses the first.
    write_sync(&mut log, records(4..=9, 1));
    drop(log);
    let mut torn = disk.contents(SEGMENT_1).unwrap();
    torn[end as usize..end as usize + 32].fill(0);
    disk.kill();
    disk.put(SEGMENT_1, torn);
    let (mut log, found) = collect(&disk, options()).unwrap();
    assert_eq!(found.records, records(1..=3, 1));
    // The very same record again: the torn rest behind it must not continue it.
    write_sync(&mut log, records(4..=4, 1));
    drop(log);
    disk.kill();
    let (_log, found) = collect(&disk, options()).unwrap();
    assert_eq!(found.records, records(1..=4, 1));
}

/// A batch that is written out in two parts, with one sync at the end, may lose the first part alone.
#[test]
fn parts_of_one_batch_prove_nothing_about_each_other() {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, records(1..=3, 1));
    let end = log.bytes() as usize;
    log.write(WriteOp { records: records(4..=6, 1), ..WriteOp::default() }).unwrap();
    // Looking up the term of record 5 writes the buffered records out.
    log.write(WriteOp { truncate_from: Some(6), records: records(6..=9, 2), ..WriteOp::default() }).unwrap();
    log.sync().unwrap();
    drop(log);
    disk.kill();
    let mut torn = disk.contents(SEGMENT_1).unwrap();
    torn[end..end + 32].fill(0);
    disk.put(SEGMENT_1, torn);
    let (_log, found) = collect(&disk, options()).unwrap();
    assert_eq!(found.records, records(1..=3, 1));
}

/// Even where a torn record lies exactly behind a new one and has the next index, it continues another
/// chain.
#[test]
fn stale_torn_record_with_fitting_index_is_rejected() {
    let record = |index, len: usize| lockstep_log::Record {
        index,
        term: 1,
        body: Bytes::from(vec![index as u8; len]),
    };
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, vec![record(1, 0)]);
    let end = log.bytes() as usize;
    write_sync(&mut log, vec![record(2, 40), record(3, 16)]);
    drop(log);
    let mut torn = disk.contents(SEGMENT_1).unwrap();
    torn[end..end + 72].fill(0);
    disk.kill();
    disk.put(SEGMENT_1, torn);
    let (mut log, _) = collect(&disk, options()).unwrap();
    // The mark of the new run (40 bytes) and a shorter record fill the hole.
    write_sync(&mut log, vec![record(2, 0)]);
    assert_eq!(log.bytes() as usize, end + 72);
    drop(log);
    disk.kill();
    let (_log, found) = collect(&disk, options()).unwrap();
    assert_eq!(found.records, vec![record(1, 0), record(2, 0)]);
}

#[test]
fn any_damage_to_a_sealed_segment_is_found() {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, records(1..=3, 1));
    let end = log.bytes();
    let op = WriteOp {
        roll: Some(Bytes::from_static(b"the base")),
        records: records(4..=5, 1),
        ..WriteOp::default()
    };
    log.write(op).unwrap();
    log.sync().unwrap();
    drop(log);
    disk.kill();
    for offset in 0..end {
        let image = disk.fork();
        image.corrupt(SEGMENT_1, offset, 0x10);
        match collect(&image, options()) {
            Ok((_, found)) => assert_eq!(found.records, records(1..=5, 1), "byte {offset} is padding"),
            Err(OpenError::Corrupt { file, .. }) => assert_eq!(file, SEGMENT_1),
            Err(OpenError::NewerFormat { .. }) => assert!((8..10).contains(&offset)),
            Err(e) => panic!("byte {offset}: {e}"),
        }
    }
    for offset in 0..136 {
        let image = disk.fork();
        image.corrupt(SEGMENT_2, offset, 0x10);
        let e = open_error(&image);
        assert!(matches!(e, OpenError::Corrupt { .. } | OpenError::NewerFormat { .. }), "byte {offset}: {e}");
    }
    // Missing files.
    for gone in [SEGMENT_1, SEGMENT_2] {
        let image = disk.fork();
        lockstep_log::Disk::remove(&image, gone).unwrap();
        let e = open_error(&image);
        assert!(matches!(&e, OpenError::MissingSegment { file, .. } if file == gone), "{e}");
        assert!(e.is_damage());
    }
}

#[test]
fn damage_to_one_slot_of_the_id_file_loses_no_vote() {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    let vote = Vote { term: 8, voted_for: Some([3; 16]), commit_hint: 0 };
    for term in 1..=8 {
        log.write(WriteOp { vote: Some(Vote { term, ..vote }), ..WriteOp::default() }).unwrap();
        log.sync().unwrap();
    }
    drop(log);
    disk.kill();
    for slot in [0, 4096] {
        for byte in 0..128 {
            let image = disk.fork();
            image.corrupt("lockstep.id.log", slot + byte, 4);
            match collect(&image, options()) {
                Ok((_, found)) => assert_eq!(found.recovered.vote, vote),
                Err(OpenError::NewerFormat { file, .. }) => {
                    assert!(file == "lockstep.id.log" && (8..10).contains(&byte));
                }
                Err(e) => panic!("slot {slot}, byte {byte}: {e}"),
            }
        }
    }
    let image = disk.fork();
    image.corrupt("lockstep.id.log", 20, 4);
    image.corrupt("lockstep.id.log", 4096 + 20, 4);
    assert!(matches!(open_error(&image), OpenError::IdentityDamaged { .. }));
    let image = disk.fork();
    image.put("lockstep.id.log", Vec::new());
    assert!(matches!(open_error(&image), OpenError::IdentityDamaged { .. }));
}

#[test]
fn segments_without_an_id_and_of_another_member() {
    let (disk, _) = ten_batches();
    let image = disk.fork();
    lockstep_log::Disk::remove(&image, "lockstep.id.log").unwrap();
    assert!(matches!(open_error(&image), OpenError::IdentityMissing { .. }));

    let other = MemDisk::new();
    let theirs = lockstep_log::Options { new_member_id: [0xee; 16], ..options() };
    let (mut log, _) = collect(&other, theirs).unwrap();
    write_sync(&mut log, records(1..=2, 1));
    drop(log);
    disk.put(SEGMENT_1, other.contents(SEGMENT_1).unwrap());
    match open_error(&disk) {
        OpenError::OtherMember { found, expected, .. } => {
            assert_eq!((found, expected), ([0xee; 16], common::MEMBER))
        }
        e => panic!("{e}"),
    }
}

fn quarantined_files(disk: &MemDisk) -> Vec<String> {
    let mut names = lockstep_log::Disk::list(disk).unwrap();
    names.retain(|name| name.starts_with("lockstep.damaged."));
    names.sort();
    names
}

#[test]
fn damaged_log_is_quarantined_and_new_one_begins() {
    let (disk, at) = ten_batches();
    disk.corrupt(SEGMENT_1, at[4] + 40, 1);
    assert!(open_error(&disk).is_loss());
    let (id, segment) = (disk.contents("lockstep.id.log"), disk.contents(SEGMENT_1));
    assert_eq!(lockstep_log::quarantine(&disk).unwrap(), "lockstep.damaged.1");
    let names = ["lockstep.damaged.1.0000000000000001.log", "lockstep.damaged.1.id.log"];
    assert_eq!(quarantined_files(&disk), names);
    assert_eq!((disk.contents(names[0]), disk.contents(names[1])), (segment, id), "the evidence");
    let anew = lockstep_log::Options { new_member_id: [9; 16], ..options() };
    let (log, found) = collect(&disk, anew).unwrap();
    assert!(found.recovered.created && found.records.is_empty());
    assert_eq!(found.recovered.identity.member_id, [9; 16]);
    assert!(matches!(lockstep_log::quarantine(&disk), Err(OpenError::Locked { .. })), "not while it is open");
    drop(log);
    // A disk that goes on losing things does not fill up with what it lost.
    for set in 2..5 {
        assert_eq!(lockstep_log::quarantine(&disk).unwrap(), format!("lockstep.damaged.{set}"));
        drop(collect(&disk, options()).unwrap());
    }
    assert!(
        quarantined_files(&disk)
            .iter()
            .all(|name| name.contains(".damaged.3.") || name.contains(".damaged.4."))
    );
}

#[test]
fn partly_quarantined_log_has_no_owner() {
    let (disk, at) = ten_batches();
    disk.corrupt(SEGMENT_1, at[4] + 40, 1);
    for operation in 1..20 {
        let image = disk.fork();
        image.fail_op(operation, Fault::PowerCut);
        if lockstep_log::quarantine(&image).is_ok() {
            assert!(operation > 2, "it did not fail");
            return;
        }
        image.crash(operation);
        match collect(&image, options()) {
            Err(error) => assert!(error.is_loss(), "{error}"),
            Ok((_, found)) => assert!(found.recovered.created),
        }
        lockstep_log::quarantine(&image).unwrap();
        assert!(collect(&image, options()).unwrap().1.recovered.created);
    }
    panic!("it never ended well");
}

/// Raises the version in a header and makes its checksum right again.
fn newer(disk: &MemDisk, file: &str, header_at: usize, version: u8) {
    let mut b = disk.contents(file).unwrap();
    b[header_at + 8] = version;
    let crc = crc32c::crc32c(&b[header_at..header_at + 124]);
    b[header_at + 124..header_at + 128].copy_from_slice(&crc.to_le_bytes());
    disk.put(file, b);
}

#[test]
fn files_of_a_newer_version_are_left_alone() {
    let (disk, _) = ten_batches();
    // The id file has a second version: with a former end.
    for (file, at, known) in [(SEGMENT_1, 0, 1), ("lockstep.id.log", 0, 2), ("lockstep.id.log", 4096, 2)] {
        let image = disk.fork();
        newer(&image, file, at, known as u8 + 1);
        let before = image.contents(file);
        match open_error(&image) {
            e @ OpenError::NewerFormat { found, supported, .. } => {
                assert_eq!((found, supported), (known + 1, known));
                assert!(!e.is_damage());
            }
            e => panic!("{e}"),
        }
        assert_eq!(image.contents(file), before);
    }
}

#[test]
fn record_damaged_while_open_is_not_returned() {
    let (disk, at) = ten_batches();
    let (log, _) = collect(&disk, options()).unwrap();
    disk.corrupt(SEGMENT_1, at[4] + 33, 0x80);
    assert_eq!(
        log.read(1, usize::MAX).unwrap_err(),
        ReadError::Corrupt { file: SEGMENT_1.to_string(), offset: at[4], index: 5 }
    );
    assert_eq!(log.read(6, usize::MAX).unwrap(), records(6..=10, 1));
}

#[test]
fn full_disk_error_names_the_cause() {
    let disk = MemDisk::new();
    disk.set_capacity(Some(10_000));
    let (mut log, _) = collect(&disk, options()).unwrap();
    let e = log.write(WriteOp { records: records(1..=1, 1), ..WriteOp::default() }).unwrap_err();
    assert_eq!(e.shortage(), Some(Shortage::Space), "{e}");
    assert!(e.to_string().contains("disk is full"));
    drop(log);

    let disk = MemDisk::new();
    disk.fail_op(2, Fault::NoSpace);
    assert!(matches!(open_error(&disk), OpenError::NoSpace { .. }));
    disk.kill();
    collect(&disk, options()).unwrap();
}

#[test]
fn full_disk_keeps_synced_records() {
    let disk = MemDisk::new();
    disk.set_capacity(Some(60_000));
    let (mut log, _) = collect(&disk, options()).unwrap();
    let mut synced = 0;
    loop {
        let next = synced + 1..=synced + 20;
        if log.write(WriteOp { records: records(next.clone(), 1), ..WriteOp::default() }).is_err()
            || log.sync().is_err()
        {
            break;
        }
        synced = *next.end();
    }
    assert!(synced > 100);
    drop(log);
    disk.crash(5);
    let (mut log, found) = collect(&disk, options()).unwrap();
    assert!(found.recovered.last.0 >= synced);
    assert_eq!(found.records, records(1..=found.recovered.last.0, 1));
    disk.set_capacity(None);
    let last = found.recovered.last.0;
    write_sync(&mut log, records(last + 1..=last + 20, 1));
}

#[test]
fn directories_that_do_not_serve() {
    match RealDisk::new("/nonexistent/lockstep") {
        Err(e @ OpenError::Io { .. }) => assert!(e.to_string().contains("/nonexistent/lockstep")),
        other => panic!("{other:?}"),
    }
    let dir = common::TempDir::new("notdir");
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert!(RealDisk::new(&file).is_err());

    // Not writable: procfs refuses even root.
    let disk = RealDisk::new("/proc/self/fdinfo").unwrap();
    match collect(&disk, options()) {
        Err(e) => assert!(e.to_string().contains("/fdinfo") && !e.is_damage(), "{e}"),
        Ok(_) => panic!("a log in /proc"),
    }
    // Nothing to look at.
    assert!(LogView::open(dir.path()).is_err());
}

#[test]
fn files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = common::TempDir::new("mode");
    let (mut log, _) = collect(&RealDisk::new(dir.path()).unwrap(), options()).unwrap();
    write_sync(&mut log, records(1..=1, 1));
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, [SEGMENT_1, "lockstep.id.log"]);
}

#[test]
fn log_can_move_between_threads() {
    fn sendable<T: Send>() {}
    fn shareable<T: Send + Sync + Clone>() {}
    sendable::<lockstep_log::Log<RealDisk>>();
    sendable::<lockstep_log::Log<MemDisk>>();
    shareable::<lockstep_log::LogReader<RealDisk>>();
}

mod garbage {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        /// Under any damage to the files: no panic, no invented record, no endless loop.
        #[test]
        fn damaged_files_never_give_false_records(
            hits in prop::collection::vec((0..2usize, 0..2000u64, 1..=255u8), 1..8),
            cut in prop::option::of((0..2usize, 0..2000usize)),
        ) {
            let (disk, _) = ten_batches();
            let names = [SEGMENT_1, "lockstep.id.log"];
            for (which, offset, xor) in hits {
                disk.corrupt(names[which], offset, xor);
            }
            if let Some((which, at)) = cut {
                let mut b = disk.contents(names[which]).unwrap();
                b.truncate(at);
                disk.put(names[which], b);
            }
            if let Ok((_, found)) = collect(&disk, options()) {
                prop_assert_eq!(&found.records[..], &records(1..=10, 1)[..found.records.len()]);
            }
            if let Ok(view) = LogView::open_on(disk) {
                let got = view.read(view.first_index(), usize::MAX).unwrap();
                prop_assert_eq!(&got[..], &records(1..=10, 1)[..got.len()]);
            }
        }

        #[test]
        fn random_files_are_refused(a in prop::collection::vec(any::<u8>(), 0..600), b in prop::collection::vec(any::<u8>(), 0..600)) {
            let (disk, _) = ten_batches();
            let image = disk.fork();
            image.put("lockstep.id.log", a);
            prop_assert!(collect(&image, options()).is_err());
            disk.put(SEGMENT_1, b);
            prop_assert!(collect(&disk, options()).is_err());
        }
    }
}
