//! Damage to old segments: the log goes on without them where all that they held is committed.

mod common;

use std::collections::BTreeSet;

use bytes::Bytes;
use common::{MEMBER, collect, images, options, records, write_sync};
use lockstep_log::{Disk, Fault, Log, LogView, MemDisk, OpenError, Record, Replay, Vote, WriteOp};
use proptest::prelude::*;

/// A place in the first record of a segment.
const IN_FIRST_RECORD: u64 = 160;

fn segment(number: u64) -> String {
    format!("lockstep.{number:016x}.log")
}

fn quarantined(set: u64, number: u64) -> String {
    format!("lockstep.damaged.{set}.{number:016x}.log")
}

fn vote(term: u64, commit_hint: u64) -> Vote {
    Vote { term, voted_for: Some([term as u8; 16]), commit_hint }
}

/// Four segments of ten records in two synced batches each, and a vote with this commit hint.
fn four_segments(commit_hint: u64) -> MemDisk {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    for before in [0, 10, 20, 30] {
        let roll = (before > 0).then(|| Bytes::from_static(b"the base"));
        log.write(WriteOp { roll, records: records(before + 1..=before + 5, 1), ..WriteOp::default() })
            .unwrap();
        log.sync().unwrap();
        write_sync(&mut log, records(before + 6..=before + 10, 1));
    }
    log.write(WriteOp { vote: Some(vote(3, commit_hint)), ..WriteOp::default() }).unwrap();
    log.sync().unwrap();
    drop(log);
    disk.kill();
    disk
}

/// Checks that the log opens without the segments below number `first`, and once more without any further change.
fn opens_from(disk: &MemDisk, first: u64) {
    let before: Vec<_> =
        (1..first).filter_map(|n| Some((quarantined(1, n), disk.contents(&segment(n))?))).collect();
    let (log, found) = collect(disk, options()).unwrap();
    drop(log);
    let start = (first - 1) * 10;
    let recovered = &found.recovered;
    assert_eq!((recovered.start, recovered.last), ((start, 1), (40, 1)));
    assert_eq!(found.records, records(start + 1..=40, 1));
    assert_eq!((recovered.identity.member_id, recovered.vote.term), (MEMBER, 3));
    assert_eq!(recovered.vote.voted_for, Some([3; 16]));
    let trimmed = recovered.trimmed.as_ref().expect("it was trimmed");
    assert!(!trimmed.damage.is_empty());
    assert_eq!(trimmed.files.len(), before.len());
    assert_eq!(trimmed.aside.is_some(), !before.is_empty());
    for (name, contents) in before {
        assert_eq!(disk.contents(&name), Some(contents), "the evidence {name}");
    }
    disk.kill();
    let names = disk.names();
    let (mut log, again) = collect(disk, options()).unwrap();
    assert_eq!((again.recovered.trimmed, again.records), (None, found.records));
    assert_eq!(again.recovered.identity.incarnation, recovered.identity.incarnation + 1);
    assert_eq!(disk.names(), names);
    write_sync(&mut log, records(41..=45, 1));
    log.close().unwrap();
}

/// Checks that the log does not open, and that no file has another name or other contents.
fn is_lost(disk: &MemDisk) -> String {
    let files = || -> Vec<_> {
        let segments = disk.names().into_iter().filter(|name| name != "lockstep.id.log");
        segments.map(|name| (name.clone(), disk.contents(&name))).collect()
    };
    let before = files();
    let error = match collect(disk, options()) {
        Ok((_, found)) => panic!("opened: {found:?}"),
        Err(error) => error,
    };
    assert!(error.is_loss(), "{error}");
    assert_eq!(files(), before);
    error.to_string()
}

#[test]
fn damaged_old_record_trims_log_to_next_segment() {
    for number in 1..4 {
        let disk = four_segments(35);
        disk.corrupt(&segment(number), IN_FIRST_RECORD, 1);
        opens_from(&disk, number + 1);
    }
}

#[test]
fn every_kind_of_damage_to_old_segment_trims_log() {
    let kinds: [fn(&MemDisk); 6] = [
        |disk| assert!(disk.corrupt(&segment(2), 20, 1)),
        // The base begins at byte 128.
        |disk| assert!(disk.corrupt(&segment(2), 130, 1)),
        |disk| disk.remove(&segment(2)).unwrap(),
        |disk| disk.put(&segment(2), Vec::new()),
        |disk| disk.put(&segment(2), disk.contents(&segment(1)).unwrap()),
        |disk| {
            let mut contents = disk.contents(&segment(2)).unwrap();
            contents.truncate(400);
            disk.put(&segment(2), contents);
        },
    ];
    for harm in kinds {
        let disk = four_segments(35);
        harm(&disk);
        opens_from(&disk, 3);
    }
}

#[test]
fn missing_oldest_segments_trim_log() {
    for missing in 1..4 {
        let disk = four_segments(35);
        (1..=missing).for_each(|number| disk.remove(&segment(number)).unwrap());
        opens_from(&disk, missing + 1);
    }
}

#[test]
fn two_damaged_segments_trim_log_above_both() {
    let disk = four_segments(35);
    disk.corrupt(&segment(1), IN_FIRST_RECORD, 1);
    disk.corrupt(&segment(3), IN_FIRST_RECORD, 1);
    let (_log, found) = collect(&disk.fork(), options()).unwrap();
    let damage = found.recovered.trimmed.unwrap().damage;
    assert!(damage.len() == 2 && damage[0].contains("1.log") && damage[1].contains("3.log"), "{damage:?}");
    opens_from(&disk, 4);
}

#[test]
fn damage_to_last_segment_loses_log() {
    let disk = four_segments(40);
    disk.corrupt(&segment(4), IN_FIRST_RECORD, 1);
    let text = is_lost(&disk);
    assert!(text.contains(&segment(4)) && text.contains("intact up to index 30"), "{text}");
    // The error names the oldest place, up to which the log is intact.
    disk.corrupt(&segment(2), IN_FIRST_RECORD, 1);
    let text = is_lost(&disk);
    assert!(text.contains(&segment(2)) && text.contains("intact up to index 10"), "{text}");
    for harm in [20, 130] {
        let disk = four_segments(40);
        disk.corrupt(&segment(4), harm, 1);
        is_lost(&disk);
    }
    let disk = four_segments(40);
    disk.corrupt(&segment(2), IN_FIRST_RECORD, 1);
    disk.remove(&segment(4)).unwrap();
    is_lost(&disk);
}

#[test]
fn base_above_commit_hint_loses_log() {
    for (commit_hint, is_committed) in [(0, false), (19, false), (20, true)] {
        let disk = four_segments(commit_hint);
        disk.corrupt(&segment(2), IN_FIRST_RECORD, 1);
        if is_committed { opens_from(&disk, 3) } else { drop(is_lost(&disk)) }
    }
}

/// A crash may have torn the end; or the disk has lost it, as it has lost other parts.
#[test]
fn torn_end_of_damaged_log_loses_log() {
    for commit_hint in [41, 40] {
        let disk = four_segments(commit_hint);
        let (mut log, _) = collect(&disk, options()).unwrap();
        let end = log.segments()[3].bytes;
        write_sync(&mut log, records(41..=45, 1));
        drop(log);
        disk.kill();
        disk.corrupt(&segment(2), IN_FIRST_RECORD, 1);
        disk.corrupt(&segment(4), end, 0xff);
        is_lost(&disk);
    }
}

#[test]
fn visitor_that_refuses_trim_keeps_damaged_log() {
    let disk = four_segments(35);
    disk.corrupt(&segment(2), IN_FIRST_RECORD, 1);
    let names = disk.names();
    let mut items = 0;
    let error = Log::open(disk.clone(), options(), &mut |item| {
        items += 1;
        if item == Replay::Trim { Err("certification begins below".into()) } else { Ok(()) }
    });
    let error = error.err().expect("it is refused");
    assert!(matches!(&error, OpenError::Corrupt { intact_to: 10, .. }), "{error}");
    assert_eq!((items, disk.names()), (2 + 20 + 1, names));
    disk.kill();
    opens_from(&disk, 3);
}

#[test]
fn view_of_damaged_log_changes_nothing() {
    let disk = four_segments(35);
    disk.corrupt(&segment(2), IN_FIRST_RECORD, 1);
    let ops = disk.ops();
    assert!(matches!(LogView::open_on(disk.clone()), Err(OpenError::Corrupt { intact_to: 10, .. })));
    assert_eq!(disk.ops(), ops);
}

#[test]
fn unreadable_disk_is_no_damage() {
    let disk = four_segments(35);
    disk.corrupt(&segment(2), IN_FIRST_RECORD, 1);
    let names = disk.names();
    disk.fail_reads();
    let error = collect(&disk, options()).map(|_| ()).unwrap_err();
    assert!(!error.is_damage(), "{error}");
    assert_eq!(disk.names(), names);
}

#[test]
fn quarantined_sets_of_repeated_damage_are_bounded() {
    let disk = four_segments(35);
    for number in 1..4 {
        disk.corrupt(&segment(number), IN_FIRST_RECORD, 1);
        drop(collect(&disk, options()).unwrap());
    }
    let mut names = disk.names();
    names.retain(|name| name.starts_with("lockstep.damaged."));
    assert_eq!(names, [quarantined(2, 2), quarantined(3, 3)]);
}

/// The power goes at each operation of the open that trims, or the operation fails.
#[test]
fn crash_during_trim_keeps_log_and_evidence() {
    for fault in [Fault::PowerCut, Fault::Io, Fault::NoSpace] {
        let mut n = 0;
        loop {
            n += 1;
            let disk = four_segments(35);
            disk.corrupt(&segment(3), IN_FIRST_RECORD, 1);
            let evidence = disk.contents(&segment(3));
            disk.fail_op(n, fault);
            let opened = collect(&disk, options()).is_ok();
            disk.clear_faults();
            for (seed, image) in images(&disk, fault, n) {
                for _ in 0..2 {
                    let (_log, found) = collect(&image, options()).unwrap();
                    assert_eq!(found.records, records(31..=40, 1), "{fault:?} {n} {seed}");
                    assert_eq!(found.recovered.identity.member_id, MEMBER);
                    assert_eq!(found.recovered.vote.term, 3);
                    image.kill();
                }
                let names = image.names();
                let copies = names.iter().filter(|name| image.contents(name) == evidence);
                let copies: Vec<_> = copies.collect();
                assert!(
                    matches!(&copies[..], [name] if name.starts_with("lockstep.damaged.")),
                    "{fault:?} {n} {seed}: {names:?}"
                );
                assert!(!names.contains(&segment(1)) && !names.contains(&segment(2)), "{names:?}");
            }
            if opened {
                break;
            }
        }
        assert!(n > 8, "{fault:?} at {n} operations");
    }
}

/// Truncates to index 16, in the second segment, and appends up to `last` there. Whether the disk has not failed.
fn truncate(disk: &MemDisk, last: u64) -> bool {
    let Ok((mut log, _)) = collect(disk, options()) else { return false };
    let op = WriteOp { truncate_from: Some(17), records: records(17..=last, 2), ..WriteOp::default() };
    log.write(op).and_then(|()| log.sync()).is_ok()
}

/// The second segment is reopened, which makes the third and the fourth void, and the power goes meanwhile. Damage may hide
/// that, but it must not bring void segments back as the log.
#[test]
fn damage_that_hides_truncation_revives_no_void_segment() {
    let mut voids_found = 0;
    for n in 1..40 {
        let disk = four_segments(16);
        disk.fail_op(n, Fault::PowerCut);
        let done = truncate(&disk, 22);
        for seed in 0..24 {
            let image = disk.fork();
            image.crash(seed * 7919 + n);
            let intact = image.fork();
            let (_log, expected) = collect(&intact, options()).unwrap();
            voids_found += u64::from(image.names().len() > intact.names().len());
            // Below the reopened segment: the same log without its beginning.
            let below = image.fork();
            below.corrupt(&segment(1), IN_FIRST_RECORD, 1);
            if expected.recovered.cut.is_some() {
                is_lost(&below);
            } else {
                let (_log, found) = collect(&below, options()).unwrap();
                assert_eq!(found.recovered.start, (10, 1));
                assert_eq!(found.records, expected.records[10..], "{n} {seed}");
            }
            // In it: a void segment's base is above the commit hint.
            let within = image.fork();
            within.corrupt(&segment(2), IN_FIRST_RECORD, 1);
            is_lost(&within);
            let header = image.fork();
            header.corrupt(&segment(2), 20, 1);
            is_lost(&header);
        }
        if done {
            assert!(n > 8 && voids_found > 20, "{n} operations, {voids_found} times void segments");
            return;
        }
    }
    panic!("it never ended well");
}

/// No crash leaves this: the log has gone on beyond the bases of void segments that are there all the same.
#[test]
fn void_segment_below_commit_hint_is_not_revived() {
    let disk = four_segments(16);
    let void = [3, 4].map(|number| (segment(number), disk.contents(&segment(number)).unwrap()));
    assert!(truncate(&disk, 45));
    disk.kill();
    let (mut log, _) = collect(&disk, options()).unwrap();
    log.note_committed(45).unwrap();
    drop(log);
    disk.kill();
    for (name, contents) in void {
        assert_eq!(disk.contents(&name), None);
        disk.put(&name, contents);
    }
    let intact = disk.fork();
    let (_log, found) = collect(&intact, options()).unwrap();
    let line: Vec<Record> = records(1..=16, 1).into_iter().chain(records(17..=45, 2)).collect();
    assert_eq!(found.records, line);
    disk.corrupt(&segment(2), IN_FIRST_RECORD, 1);
    is_lost(&disk);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any damage gives a loss, or a part of the log that lacks committed entries only.
    #[test]
    fn damaged_segments_never_give_false_records(
        hits in prop::collection::vec((1..5u64, 0..700u64, 1..=255u8), 1..4),
        gone in prop::option::of(1..5u64),
        commit_hint in 0..=40u64,
    ) {
        let disk = four_segments(commit_hint);
        let mut hit = BTreeSet::new();
        for (number, offset, xor) in hits {
            disk.corrupt(&segment(number), offset, xor);
            hit.insert(number);
        }
        if let Some(number) = gone {
            disk.remove(&segment(number)).unwrap();
            hit.insert(number);
        }
        match collect(&disk, options()) {
            Ok((_, found)) => {
                let (start, last) = (found.recovered.start.0, found.recovered.last.0);
                prop_assert_eq!(found.records, records(start + 1..=last, 1));
                prop_assert!(start <= commit_hint && start % 10 == 0);
                prop_assert!(last == 40 || hit.contains(&4));
                prop_assert!(start == 0 || last >= commit_hint);
                prop_assert_eq!(found.recovered.trimmed.is_some(), start > 0);
                prop_assert_eq!(found.recovered.vote, vote(3, commit_hint));
            }
            // A higher version in a header is left alone.
            Err(OpenError::NewerFormat { .. }) => {}
            Err(error) => prop_assert!(error.is_loss(), "{}", error),
        }
    }
}
