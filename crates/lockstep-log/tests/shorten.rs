//! Damage near the log's end: the log ends before it if it proves its former end, and the identity file knows that end until
//! the log has reached it again.

mod common;

use bytes::Bytes;
use common::{Found, MEMBER, collect, images, options, record, records, write_sync};
use lockstep_log::{Fault, Log, MemDisk, OpenError, Options, Record, Vote, WriteOp};
use proptest::prelude::*;

const ID_FILE: &str = "lockstep.id.log";
/// Headers of segments and of records.
const HEADER: u64 = 128;
const RECORD: u64 = 32;

fn segment(number: u64) -> String {
    format!("lockstep.{number:016x}.log")
}

/// The offset of record `index` in the first segment of [`log`].
fn offset(index: u64) -> u64 {
    // The first segment of a new log has no base, and no mark of its first writer.
    HEADER + (1..index).map(|i| (RECORD + record(i, 1).body.len() as u64).next_multiple_of(8)).sum::<u64>()
}

/// A segment of `last` records in batches of five, and a vote in term 3.
fn log(last: u64) -> MemDisk {
    log_with_vote(last, 3)
}

fn log_with_vote(last: u64, term: u64) -> MemDisk {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    for first in (1..=last).step_by(5) {
        write_sync(&mut log, records(first..=last.min(first + 4), 1));
    }
    vote(&mut log, term);
    drop(log);
    disk.kill();
    disk
}

/// A vote in this term. It saves the log's durable position, too.
fn vote(log: &mut Log<MemDisk>, term: u64) {
    let vote = Vote { term, voted_for: Some([7; 16]), commit_hint: 9 };
    log.write(WriteOp { vote: Some(vote), ..WriteOp::default() }).unwrap();
    log.sync().unwrap();
}

/// Two segments of ten records each in batches of five.
fn two_segments() -> MemDisk {
    let disk = log_with_vote(10, 2);
    let (mut log, _) = collect(&disk, options()).unwrap();
    for first in [11, 16] {
        let roll = (first == 11).then(|| Bytes::from_static(b"the base"));
        log.write(WriteOp { roll, records: records(first..=first + 4, 1), ..WriteOp::default() }).unwrap();
        log.sync().unwrap();
    }
    vote(&mut log, 3);
    drop(log);
    disk.kill();
    disk
}

/// Opens the log, shortened if need be.
fn open(disk: &MemDisk) -> Result<(Log<MemDisk>, Found), OpenError> {
    match collect(disk, options()) {
        Err(error) if error.is_loss() => {
            let (mut log, found) = collect(disk, Options { may_shorten: true, ..options() })?;
            if found.recovered.shortened.is_some() {
                log.go_on_shortened(Bytes::from_static(b"the base after damage"))?;
            }
            Ok((log, found))
        }
        opened => opened,
    }
}

fn is_lost(disk: &MemDisk) {
    let names = disk.names();
    let error = open(disk).map(|(_, found)| found).expect_err("the end is not proven");
    assert!(error.is_loss(), "{error}");
    assert_eq!(disk.names(), names);
}

/// Checks that the log ends with `kept` of the records up to `last`, and that it can be refilled.
fn is_shortened(disk: &MemDisk, kept: u64, last: u64) {
    let (log, found) = open(disk).unwrap();
    let recovered = &found.recovered;
    assert_eq!(found.records, records(1..=kept, 1));
    assert!(recovered.shortened.is_some() && recovered.former_end == Some((last, 1)), "{recovered:?}");
    assert_eq!(
        (recovered.identity.member_id, recovered.vote.term, recovered.vote.voted_for),
        (MEMBER, 4, None)
    );
    assert_eq!(recovered.vote.commit_hint, kept.min(9));
    drop(log);
    disk.kill();
    // It is known at each later open.
    for _ in 0..2 {
        let (_log, found) = collect(disk, options()).unwrap();
        assert_eq!((&found.recovered.shortened, found.recovered.former_end), (&None, Some((last, 1))));
        assert_eq!((found.recovered.vote.term, found.records.len() as u64), (4, kept));
        disk.kill();
    }
    assert_eq!(id_versions(disk)[0], 2, "earlier programs refuse it");
    let (mut log, _) = collect(disk, options()).unwrap();
    write_sync(&mut log, records(kept + 1..=last - 1, 1));
    assert_eq!(id_versions(disk)[0], 2);
    write_sync(&mut log, records(last..=last + 1, 1));
    assert_eq!(id_versions(disk), [1, 1], "earlier programs may go on");
    drop(log);
    disk.kill();
    let (_log, found) = collect(disk, options()).unwrap();
    assert_eq!((found.recovered.former_end, found.records), (None, records(1..=last + 1, 1)));
}

/// Of both slots, the newer one first.
fn id_versions(disk: &MemDisk) -> [u8; 2] {
    let contents = disk.contents(ID_FILE).unwrap();
    let seq = |at: usize| u64::from_le_bytes(contents[at + 16..at + 24].try_into().unwrap());
    let (newer, older) = if seq(0) >= seq(4096) { (0, 4096) } else { (4096, 0) };
    [contents[newer + 8], contents[older + 8]]
}

#[test]
fn hole_with_records_behind_it_shortens_log() {
    for hit in [2, 5, 6, 12] {
        let disk = log(20);
        assert!(disk.corrupt(&segment(1), offset(hit) + RECORD, 1));
        is_shortened(&disk, hit - 1, 20);
    }
}

/// A disk that loses its latest writes may have lost the last batch whole, and the log cannot tell.
#[test]
fn hole_behind_saved_durable_position_loses_log() {
    for (hit, saved) in [(11, false), (13, false), (17, false), (11, true), (17, true)] {
        let disk = MemDisk::new();
        let (mut log, _) = collect(&disk, options()).unwrap();
        for first in (1..=25).step_by(5) {
            write_sync(&mut log, records(first..=first + 4, 1));
            if first == 6 {
                vote(&mut log, if saved { 2 } else { 3 });
            }
        }
        if saved {
            vote(&mut log, 3);
        }
        drop(log);
        disk.kill();
        assert!(disk.corrupt(&segment(1), offset(hit) + RECORD, 1));
        match saved {
            true => is_shortened(&disk, hit - 1, 25),
            false => is_lost(&disk),
        }
    }
}

#[test]
fn lost_write_shortens_log() {
    let disk = log(20);
    disk.overwrite(&segment(1), offset(7), &vec![0; (offset(10) - offset(7)) as usize]);
    is_shortened(&disk, 6, 20);
}

#[test]
fn two_holes_shorten_log_at_first() {
    let disk = log(30);
    disk.corrupt(&segment(1), offset(7) + 4, 1);
    disk.corrupt(&segment(1), offset(18) + 4, 1);
    is_shortened(&disk, 6, 30);
}

#[test]
fn term_that_begins_behind_hole_is_followed() {
    let disk = log(15);
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, records(16..=20, 2));
    drop(log);
    disk.kill();
    disk.corrupt(&segment(1), offset(7), 1);
    let (_log, found) = open(&disk).unwrap();
    assert_eq!((found.records, found.recovered.former_end), (records(1..=6, 1), Some((20, 2))));
}

/// Another leader may have truncated what is before the hole.
#[test]
fn hole_between_two_terms_loses_log() {
    let disk = log(15);
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, records(16..=20, 2));
    drop(log);
    disk.kill();
    disk.overwrite(&segment(1), offset(15), &[0xff; 200]);
    is_lost(&disk);
}

#[test]
fn truncation_of_kept_records_loses_log() {
    let truncated = |from: u64| {
        let disk = log(15);
        let (mut log, _) = collect(&disk, options()).unwrap();
        let op = WriteOp { truncate_from: Some(from), records: records(from..=20, 2), ..WriteOp::default() };
        log.write(op).unwrap();
        log.sync().unwrap();
        write_sync(&mut log, records(21..=22, 2));
        drop(log);
        disk.kill();
        disk.corrupt(&segment(1), offset(12), 1);
        disk
    };
    let (_log, found) = open(&truncated(13)).unwrap();
    assert_eq!((found.records, found.recovered.former_end), (records(1..=11, 1), Some((22, 2))));
    is_lost(&truncated(10));
}

#[test]
fn first_record_of_all_is_no_proof() {
    let disk = log(20);
    disk.corrupt(&segment(1), offset(1), 1);
    is_lost(&disk);
}

#[test]
fn damage_to_last_batch_loses_log() {
    // One of its records follows, but nothing that was written after it had been synced.
    for hit in [16, 19, 20] {
        let disk = log(20);
        disk.corrupt(&segment(1), offset(hit), 1);
        let (_log, found) = match open(&disk) {
            Ok(opened) => opened,
            Err(error) => {
                assert!(error.is_loss(), "{error}");
                continue;
            }
        };
        panic!("{found:?}");
    }
}

#[test]
fn torn_end_behind_hole_loses_log() {
    let disk = log(20);
    let (mut log, _) = collect(&disk, options()).unwrap();
    log.write(WriteOp { records: records(21..=24, 1), ..WriteOp::default() }).unwrap();
    log.sync().unwrap();
    drop(log);
    disk.kill();
    let end = disk.contents(&segment(1)).unwrap().iter().rposition(|b| *b != 0).unwrap() as u64;
    for back in [1, 40, 150, 250] {
        let disk = disk.fork();
        disk.corrupt(&segment(1), end - back, 0xff);
        let torn = disk.fork();
        disk.corrupt(&segment(1), offset(7), 1);
        is_lost(&disk);
        // Only the header of a record is gone.
        torn.corrupt(&segment(1), offset(7), 1);
        is_lost(&torn);
    }
}

/// Bytes of this segment in another place, as they are when a write went astray.
#[test]
fn misplaced_records_give_no_lower_end() {
    let whole = log(40);
    let contents = whole.contents(&segment(1)).unwrap();
    let end = offset(41);
    let mut shortened = 0;
    for from in (2..38).step_by(3) {
        let copy = &contents[offset(from) as usize..offset(from + 3) as usize];
        for to in (2..41).step_by(2).map(offset).chain([end, end + 512, end + 4096]) {
            let disk = whole.fork();
            disk.overwrite(&segment(1), to, copy);
            disk.corrupt(&segment(1), offset(6), 1);
            match open(&disk) {
                Ok((_, found)) => {
                    assert_eq!(found.recovered.former_end, Some((40, 1)), "{from} at {to}");
                    let kept = found.records.len() as u64;
                    assert!(kept <= 5 && found.records == records(1..=kept, 1));
                    assert!(to < offset(40), "{from} at {to}: it may have been the end");
                    shortened += 1;
                }
                Err(error) => assert!(error.is_loss(), "{error}"),
            }
        }
    }
    assert!(shortened > 100, "{shortened}");
}

#[test]
fn hole_at_boundary_of_segments_shortens_log() {
    // The last record of the first segment, and the first one of the second: its header has a base of eight bytes.
    let second = HEADER + 8;
    let disk = two_segments();
    disk.corrupt(&segment(1), offset(10), 1);
    disk.corrupt(&segment(2), second, 1);
    let (log, found) = open(&disk).unwrap();
    drop(log);
    assert_eq!((found.records, found.recovered.former_end), (records(1..=9, 1), Some((20, 1))));
    assert_eq!(found.recovered.shortened.unwrap().aside.as_deref(), Some("lockstep.damaged.1"));
    assert!(disk.names().contains(&"lockstep.damaged.1.0000000000000002.log".to_owned()));
    disk.kill();
    let (log, found) = open(&disk).unwrap();
    assert_eq!((found.recovered.last, log.segments().len()), ((9, 1), 2));
    drop(log);

    let disk = two_segments();
    disk.corrupt(&segment(2), second, 1);
    is_shortened(&disk, 10, 20);

    let disk = two_segments();
    disk.corrupt(&segment(1), offset(10), 1);
    disk.corrupt(&segment(2), 20, 1);
    is_lost(&disk);
}

#[test]
fn end_below_commit_hint_or_durable_offset_loses_log() {
    let disk = log(20);
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, records(21..=25, 1));
    let end = log.segments()[0].bytes;
    log.close().unwrap();
    // The last batch is lost, too.
    let mut contents = disk.contents(&segment(1)).unwrap();
    let last = (end - 400).next_multiple_of(8) as usize;
    contents[last..].fill(0);
    disk.put(&segment(1), contents);
    disk.corrupt(&segment(1), offset(7), 1);
    is_lost(&disk);
}

/// A leader's log may lack the records before the hole.
#[test]
fn truncation_reaches_damaged_segment() {
    let disk = log(40);
    disk.corrupt(&segment(1), offset(12), 1);
    let (mut log, _) = open(&disk).unwrap();
    let op = WriteOp { truncate_from: Some(10), records: records(10..=11, 5), ..WriteOp::default() };
    log.write(op).unwrap();
    log.sync().unwrap();
    drop(log);
    disk.kill();
    let (_log, found) = collect(&disk, options()).unwrap();
    let line: Vec<Record> = records(1..=9, 1).into_iter().chain(records(10..=11, 5)).collect();
    assert_eq!((found.records, found.recovered.former_end), (line, None));
}

#[test]
fn second_damage_keeps_higher_end() {
    let disk = log(40);
    disk.corrupt(&segment(1), offset(32), 1);
    let (mut log, found) = open(&disk).unwrap();
    assert_eq!(found.recovered.former_end, Some((40, 1)));
    for index in 32..=36 {
        write_sync(&mut log, records(index..=index, 1));
    }
    drop(log);
    disk.kill();
    disk.corrupt(&segment(1), offset(7), 1);
    let (_log, found) = open(&disk).unwrap();
    assert_eq!((found.recovered.last, found.recovered.former_end), ((6, 1), Some((40, 1))));
    assert_eq!(found.recovered.vote.term, 5);
}

#[test]
fn owner_that_refuses_keeps_files() {
    let disk = log(20);
    disk.corrupt(&segment(1), offset(7), 1);
    let before = (disk.names(), disk.contents(&segment(1)));
    let options = Options { may_shorten: true, ..options() };
    let refused = Log::open(disk.clone(), options, &mut |item| match item {
        lockstep_log::Replay::Shorten => Err("alone".into()),
        _ => Ok(()),
    });
    assert!(matches!(refused.err(), Some(OpenError::Corrupt { intact_to: 6, .. })));
    assert_eq!((disk.names(), disk.contents(&segment(1))), before);
}

/// The power goes at each operation of the open that shortens, or the operation fails.
#[test]
fn crash_while_log_is_shortened_keeps_former_end() {
    let damaged = [
        || {
            let disk = log(20);
            disk.corrupt(&segment(1), offset(7), 1);
            (disk, 6)
        },
        || {
            let disk = two_segments();
            disk.corrupt(&segment(1), offset(10), 1);
            (disk, 9)
        },
    ];
    for damaged in damaged {
        for fault in [Fault::PowerCut, Fault::Io, Fault::NoSpace] {
            let mut n = 0;
            loop {
                n += 1;
                let (disk, kept) = damaged();
                disk.fail_op(n, fault);
                let opened = open(&disk);
                if let Err(error) = &opened {
                    assert!(!error.is_loss(), "{fault:?} {n}: {error}");
                }
                let opened = opened.is_ok();
                disk.clear_faults();
                for (seed, image) in images(&disk, fault, n) {
                    for _ in 0..2 {
                        let (mut log, found) = open(&image).unwrap();
                        assert_eq!(found.records, records(1..=kept, 1), "{fault:?} {n} {seed}");
                        assert_eq!(found.recovered.former_end, Some((20, 1)), "{fault:?} {n} {seed}");
                        assert!(found.recovered.vote.term > 3 || found.recovered.shortened.is_none());
                        log.sync().unwrap();
                        image.kill();
                    }
                }
                if opened {
                    break;
                }
            }
            assert!(n > 8, "{fault:?} at {n} operations");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any damage before the last batches gives a loss, or a prefix with a former end that is not below the true one.
    #[test]
    fn damaged_log_never_gives_lower_end(
        hits in prop::collection::vec((0..4u8, 1..3u64, 0..900u64, 1..=255u8, 1..300usize), 1..4),
    ) {
        let disk = two_segments();
        let (mut log, _) = collect(&disk, options()).unwrap();
        write_sync(&mut log, records(21..=25, 1));
        write_sync(&mut log, records(26..=30, 1));
        let limit = log.segments()[1].bytes - 700;
        drop(log);
        disk.kill();
        for (kind, number, at, xor, length) in hits {
            let size = disk.contents(&segment(number)).unwrap().len() as u64;
            let most = if number == 2 { limit } else { size };
            let at = at % most;
            let length = length.min((most - at) as usize);
            match kind {
                0 => drop(disk.corrupt(&segment(number), at, xor)),
                1 => disk.overwrite(&segment(number), at, &vec![0; length]),
                2 => disk.overwrite(&segment(number), at, &vec![xor; length]),
                _ => {
                    let from = disk.contents(&segment(number)).unwrap();
                    let start = ((usize::from(xor) * 8) % (from.len() - length).max(1)) & !7;
                    disk.overwrite(&segment(number), at & !7, &from[start..start + length]);
                }
            }
        }
        match open(&disk) {
            Ok((_, found)) => {
                let kept = found.records.len() as u64;
                let start = found.recovered.start.0;
                prop_assert_eq!(&found.records, &records(start + 1..=start + kept, 1));
                let end = found.recovered.former_end.unwrap_or(found.recovered.last);
                prop_assert_eq!(end, (30, 1));
            }
            Err(OpenError::NewerFormat { .. }) => {}
            Err(error) => prop_assert!(error.is_loss(), "{}", error),
        }
    }
}
