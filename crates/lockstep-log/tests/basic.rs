//! The log's everyday life, on the fake disk and on a real one.

mod common;

use bytes::Bytes;
use common::{collect, options, record, records, write_sync};
use lockstep_log::{
    Disk, LogView, MemDisk, OpenError, ReadError, RealDisk, Replay, Reset, Vote, WriteError, WriteOp,
};

fn everyday<D: Disk>(disk: D) {
    let (mut log, found) = collect(&disk, options()).unwrap();
    assert!(found.recovered.created);
    assert_eq!(found.recovered.identity.incarnation, 1);
    assert_eq!((log.first_index(), log.last_index()), (1, 0));
    write_sync(&mut log, records(1..=5, 1));
    log.write(WriteOp {
        vote: Some(Vote { term: 3, voted_for: Some([7; 16]), commit_hint: 4 }),
        ..WriteOp::default()
    })
    .unwrap();
    log.sync().unwrap();
    assert_eq!(log.read(2, usize::MAX).unwrap(), records(2..=5, 1));
    assert_eq!(log.read(2, 0).unwrap(), records(2..=2, 1));
    assert_eq!(log.read(6, 100).unwrap(), vec![]);

    // The tail is replaced, then a segment is begun.
    log.write(WriteOp { truncate_from: Some(4), records: records(4..=6, 2), ..WriteOp::default() }).unwrap();
    log.write(WriteOp {
        roll: Some(Bytes::from_static(b"state at 6")),
        records: records(7..=9, 3),
        ..WriteOp::default()
    })
    .unwrap();
    log.sync().unwrap();
    let want: Vec<_> =
        records(1..=3, 1).into_iter().chain(records(4..=6, 2)).chain(records(7..=9, 3)).collect();
    assert_eq!(log.read(1, usize::MAX).unwrap(), want);
    assert_eq!(log.segments().len(), 2);
    assert_eq!(log.segments()[1].base, Bytes::from_static(b"state at 6"));
    drop(log);

    let (mut log, found) = collect(&disk, options()).unwrap();
    assert!(!found.recovered.created);
    assert_eq!(found.recovered.identity.incarnation, 2);
    assert_eq!(found.recovered.vote, Vote { term: 3, voted_for: Some([7; 16]), commit_hint: 4 });
    assert_eq!(found.recovered.cut, None);
    assert_eq!(found.records, want);
    assert_eq!(found.bases, vec![(0, 0, Bytes::new()), (6, 2, Bytes::from_static(b"state at 6"))]);

    // A cut that reaches back into an earlier segment makes the later one void.
    log.write(WriteOp { truncate_from: Some(6), records: records(6..=7, 4), ..WriteOp::default() }).unwrap();
    log.sync().unwrap();
    assert_eq!(log.segments().len(), 1);
    log.write(WriteOp { roll: Some(Bytes::from_static(b"seven")), ..WriteOp::default() }).unwrap();
    write_sync(&mut log, records(8..=8, 4));
    assert_eq!(log.trim_to(7).unwrap(), 0);
    assert_eq!(log.trim_to(8).unwrap(), 1);
    assert_eq!((log.first_index(), log.last_index(), log.last_term()), (8, 8, 4));
    assert_eq!(log.read(7, 1), Err(ReadError::Trimmed { first: 8 }));
    drop(log);
    let (mut log, found) = collect(&disk, options()).unwrap();
    assert_eq!(found.records, records(8..=8, 4));
    assert_eq!((found.recovered.start, found.recovered.last), ((7, 4), (8, 4)));

    log.write(WriteOp {
        reset: Some(Reset { base: Bytes::from_static(b"far"), index: 100, term: 9 }),
        records: records(101..=102, 9),
        ..WriteOp::default()
    })
    .unwrap();
    log.sync().unwrap();
    log.close().unwrap();
    let (_log, found) = collect(&disk, options()).unwrap();
    assert_eq!(found.records, records(101..=102, 9));
    assert_eq!(found.bases, vec![(100, 9, Bytes::from_static(b"far"))]);
}

#[test]
fn everyday_in_memory() {
    everyday(MemDisk::new());
}

#[test]
fn everyday_on_disk() {
    let dir = common::TempDir::new("everyday");
    everyday(RealDisk::new(dir.path()).unwrap());
}

#[test]
fn operations_that_make_no_sense_change_nothing() {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, records(1..=3, 5));
    let bad = [
        WriteOp { records: records(5..=5, 5), ..WriteOp::default() },
        WriteOp { records: records(4..=4, 4), ..WriteOp::default() },
        WriteOp { truncate_from: Some(0), ..WriteOp::default() },
        WriteOp { truncate_from: Some(2), records: records(3..=3, 5), ..WriteOp::default() },
    ];
    for op in bad {
        assert!(matches!(log.write(op), Err(WriteError::Invalid(_))));
    }
    // Beyond the end there is nothing to drop.
    log.write(WriteOp { truncate_from: Some(9), records: records(4..=4, 5), ..WriteOp::default() }).unwrap();
    log.sync().unwrap();
    assert_eq!(log.read(1, usize::MAX).unwrap(), records(1..=4, 5));
}

#[test]
fn two_owners_are_refused() {
    let dir = common::TempDir::new("lock");
    let disk = RealDisk::new(dir.path()).unwrap();
    let (log, _) = collect(&disk, options()).unwrap();
    let second = RealDisk::new(dir.path()).unwrap();
    assert!(matches!(collect(&second, options()), Err(OpenError::Locked { .. })));
    drop(log);
    collect(&second, options()).unwrap();
}

#[test]
fn view_reads_log_while_it_is_written() {
    let dir = common::TempDir::new("view");
    let disk = RealDisk::new(dir.path()).unwrap();
    let (mut log, _) = collect(&disk, options()).unwrap();
    write_sync(&mut log, records(1..=20, 1));
    log.write(WriteOp {
        roll: Some(Bytes::from_static(b"b")),
        records: records(21..=30, 2),
        ..WriteOp::default()
    })
    .unwrap();
    log.sync().unwrap();
    let view = LogView::open(dir.path()).unwrap();
    let mut seen = Vec::new();
    view.visit(&mut |item| {
        if let Replay::Record(r) = item {
            seen.push(r);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(seen.len(), 30);
    assert_eq!((view.first_index(), view.last_index()), (1, 30));
    assert_eq!(view.identity(), log.identity());
    // The owner goes on.
    write_sync(&mut log, records(31..=31, 2));
    assert_eq!(LogView::open(dir.path()).unwrap().last_index(), 31);
}

#[test]
fn readers_on_other_threads_follow_the_writer() {
    let dir = common::TempDir::new("threads");
    let disk = RealDisk::new(dir.path()).unwrap();
    let (mut log, _) = collect(&disk, options()).unwrap();
    let reader = log.reader();
    const LAST: u64 = 3000;
    let thread = std::thread::spawn(move || {
        let mut next = 1;
        while next <= LAST {
            let got = reader.read(next, 4000).unwrap();
            for r in got {
                assert_eq!(r, record(next, 1));
                next += 1;
            }
        }
    });
    let mut next = 1;
    while next <= LAST {
        let to = (next + 99).min(LAST);
        if log.wants_roll(100 * 60) {
            log.write(WriteOp { roll: Some(Bytes::new()), ..WriteOp::default() }).unwrap();
        }
        write_sync(&mut log, records(next..=to, 1));
        next = to + 1;
    }
    thread.join().unwrap();
    assert!(log.segments().len() > 1);
}

#[test]
fn long_records_and_sparse_lookups() {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    let big = |i: u64| lockstep_log::Record {
        index: i,
        term: 1,
        body: Bytes::from(vec![i as u8; (i as usize * 7919) % 200_000]),
    };
    for i in 1..=40 {
        write_sync(&mut log, vec![big(i)]);
    }
    for from in 1..=40 {
        let got = log.read(from, 300_000).unwrap();
        assert!(!got.is_empty());
        let total: usize = got.iter().map(|r| r.body.len()).sum();
        assert!(got.len() == 1 || total <= 300_000);
        for (k, r) in got.iter().enumerate() {
            assert_eq!(*r, big(from + k as u64));
        }
    }
}

/// Opening looks at each byte a few times, however many segments there are: small ones are not read again with each of
/// those before them.
#[test]
fn opening_reads_small_segments_no_more_often_than_large_ones() {
    let disk = MemDisk::new();
    let (mut log, _) = collect(&disk, options()).unwrap();
    for segment in 0..100 {
        log.write(WriteOp { roll: Some(Bytes::from_static(b"state")), ..WriteOp::default() }).unwrap();
        write_sync(&mut log, records(20 * segment + 1..=20 * segment + 20, 1));
    }
    log.close().unwrap();
    let size: usize = disk.names().iter().map(|name| disk.contents(name).unwrap().len()).sum();
    let before = disk.bytes_read();
    let (_log, found) = collect(&disk, options()).unwrap();
    assert_eq!(found.records.len(), 2000);
    let read = disk.bytes_read() - before;
    assert!(read <= 3 * size as u64, "{read} bytes read of {size}");
}
