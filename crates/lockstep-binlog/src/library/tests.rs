//! The library: crashes, cuts, holes, histories, purges, readers.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::event::{EventWriter, FormatDescription, GtidEvent, Stamp, gtid_flag, kind};
use crate::gtid::ReplicaState;

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lockstep-library-{}-{count}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn open(&self) -> Writer {
        Writer::open(&self.0, "bin", Visibility::Appended).unwrap()
    }

    fn begun(&self) -> Writer {
        let mut writer = self.open();
        writer.begin(1, &format(), &StreamState::default()).unwrap();
        writer
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const STAMP: Stamp = Stamp { timestamp: 7, server_id: 10 };

fn format() -> FormatDescription {
    FormatDescription {
        timestamp: 5,
        server_id: 10,
        version: "10.11.0-MariaDB-lockstep".into(),
        created: 0,
        checksum: Checksum::Crc32,
    }
}

/// Begins the next file.
fn cut(writer: &mut Writer) -> Position {
    let (next, before) = (writer.end().unwrap().file + 1, writer.state_at_end().clone());
    writer.cut(next, STAMP, &format(), &before).unwrap()
}

fn gtid(server: u32, seqno: u64) -> Gtid {
    Gtid { domain: 1, server, seqno }
}

/// A transaction of three events.
fn group(at: u64, gtid: Gtid) -> Vec<u8> {
    let mut writer = EventWriter::at(at);
    let flags = gtid_flag::TRANSACTIONAL;
    writer.gtid(7, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
    let stamp = Stamp { timestamp: 7, server_id: gtid.server };
    writer.event(stamp, kind::ANNOTATE_ROWS, 0, &[b"INSERT INTO t VALUES (1)"]);
    writer.xid(stamp, gtid.seqno);
    writer.finish().unwrap()
}

fn append(writer: &mut Writer, gtid: Gtid) -> Position {
    let at = writer.end().unwrap().offset;
    writer.append(&group(at, gtid)).unwrap()
}

fn state(text: &str) -> ReplicaState {
    text.parse().unwrap()
}

/// The GTIDs that a replica in this state receives, or why it does not.
fn received(library: &Library, from: &str) -> Result<Vec<String>, String> {
    let mut start = library.position_of(&state(from)).map_err(|e| e.to_string())?;
    let mut reader = library.reader("test", start.at).map_err(|e| e.to_string())?;
    let mut gtids = Vec::new();
    loop {
        match reader.advance().map_err(|e| e.to_string())? {
            Step::Event if reader.event()[4] == kind::GTID => {
                let gtid = GtidEvent::parse(reader.event(), reader.checksum()).unwrap().gtid;
                if !start.pass(gtid).map_err(|e| e.to_string())? {
                    gtids.push(gtid.to_string());
                }
            }
            Step::Event => {}
            Step::FileEnd => reader.next_file().map_err(|e| e.to_string())?,
            Step::End => return Ok(gtids),
        }
    }
}

#[test]
fn reopened_library_goes_on_at_its_end() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    append(&mut writer, gtid(10, 1));
    let end = append(&mut writer, gtid(10, 2));
    drop(writer);
    let mut writer = folder.open();
    assert_eq!(writer.torn(), None);
    assert_eq!(writer.end(), Some(end));
    assert_eq!(writer.state_at_end().to_string(), "1-10-2");
    append(&mut writer, gtid(10, 3));
    assert_eq!(received(writer.library(), "").unwrap(), ["1-10-1", "1-10-2", "1-10-3"]);
}

#[test]
fn replica_behind_new_primarys_files_is_refused() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    let other = Gtid { domain: 7, server: 10, seqno: 1 };
    append(&mut writer, other);
    append(&mut writer, gtid(10, 51));
    append(&mut writer, gtid(10, 52));
    let library = writer.library().clone();
    let rest = |from: &str| received(&library, from);
    assert_eq!(rest("1-10-30").unwrap().len(), 3, "a hole, as far as the files tell");
    library.continue_another(&[]);
    for behind in ["1-10-30", "1-10-49", "7-10-1", ""] {
        let error = rest(behind).unwrap_err();
        assert!(error.contains("the first event of its domain is 1-10-51"), "{behind}: {error}");
    }
    assert_eq!(rest("1-10-50").unwrap(), ["7-10-1", "1-10-51", "1-10-52"]);
    assert_eq!(rest("1-10-51").unwrap(), ["7-10-1", "1-10-52"]);
    // Later files say what was before them.
    cut(&mut writer);
    append(&mut writer, gtid(10, 53));
    assert_eq!(rest("1-10-52,7-10-1").unwrap(), ["1-10-53"]);
    assert!(rest("1-10-30,7-10-1").is_err());
}

#[test]
fn transaction_before_all_files_counts_as_copied() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    append(&mut writer, gtid(10, 51));
    let (last, next) = ("7-4-5".parse().unwrap(), Gtid { domain: 7, server: 10, seqno: 6 });
    let library = writer.library().clone();
    let rest = |from: &str| received(&library, from);
    assert_eq!(rest("1-10-51,7-4-4").unwrap().len(), 0, "the stream does not have this domain");
    library.continue_another(&[last]);
    assert_eq!(library.state_at_end().to_string(), "1-10-51,7-4-5");
    let refused = |from: &str, why: &str| {
        let error = rest(from).unwrap_err();
        assert!(error.contains(why), "{from}: {error}");
    };
    for behind in ["1-10-51,7-4-4", "1-10-51"] {
        refused(behind, "the events up to GTID 7-4-5 were purged");
    }
    refused("1-10-51,7-4-6", "this stream ends at 7-4-5");
    refused("1-10-51,7-5-5", "another history");
    assert_eq!(rest("1-10-51,7-4-5").unwrap().len(), 0);
    assert_eq!(rest("1-10-50,7-4-5").unwrap(), ["1-10-51"]);
    // The domain goes on.
    append(&mut writer, next);
    assert_eq!(library.state_at_end().to_replica().to_string(), "1-10-51,7-10-6");
    assert_eq!(rest("1-10-51,7-4-5").unwrap(), ["7-10-6"]);
    refused("1-10-51,7-4-6", "another history");
    assert_eq!(rest("1-10-51,7-10-6").unwrap().len(), 0);
}

#[test]
fn second_writer_is_refused() {
    let folder = Folder::new();
    let writer = folder.begun();
    let second = Writer::open(&folder.0, "bin", Visibility::Appended);
    assert!(matches!(second, Err(LibraryError::Locked { .. })));
    drop(writer);
    folder.open();
}

#[test]
fn torn_end_is_cut_at_the_last_whole_group() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    let whole = append(&mut writer, gtid(10, 1)).offset as usize;
    append(&mut writer, gtid(10, 2));
    drop(writer);
    let path = folder.0.join("bin.000001");
    let bytes = std::fs::read(&path).unwrap();
    for cut in whole..bytes.len() {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        let writer = folder.open();
        assert_eq!(writer.end().unwrap().offset as usize, whole);
        assert_eq!(writer.torn().map_or(0, |torn| torn.bytes) as usize, cut - whole);
        assert_eq!(writer.state_at_end().to_string(), "1-10-1");
        assert_eq!(std::fs::metadata(&path).unwrap().len() as usize, whole);
    }
    // A page that never reached the disk.
    let mut holed = bytes.clone();
    holed[whole + 30..whole + 60].fill(0);
    std::fs::write(&path, &holed).unwrap();
    let mut writer = folder.open();
    assert_eq!(writer.torn().unwrap().file, "bin.000001");
    append(&mut writer, gtid(10, 2));
    drop(writer);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn library_that_ends_before_its_synced_place_is_left_as_it_is() {
    let folder = Folder::new();
    let open = |synced| Writer::open_synced(&folder.0, "bin", Visibility::Appended, Some(synced));
    let mut writer = folder.begun();
    let first = append(&mut writer, gtid(10, 1));
    let second = append(&mut writer, gtid(10, 2));
    drop(writer);
    let path = folder.0.join("bin.000001");
    let bytes = std::fs::read(&path).unwrap();
    let refused = |synced, bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let error = open(synced).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "the file is as it was");
        assert!(matches!(error, LibraryError::Lost { .. }), "{error}");
        error.to_string()
    };
    let mut rotten = bytes.clone();
    rotten[first.offset as usize + 40] ^= 1;
    let error = refused(second, &rotten);
    let end = format!("end with byte {} of bin.000001", first.offset);
    assert!(error.contains(&end) && error.contains(&format!("up to byte {}", second.offset)), "{error}");
    refused(second, &bytes[..first.offset as usize]);
    refused(Position { file: 2, offset: 4 }, &bytes);
    // Bytes behind the place may be torn.
    std::fs::write(&path, &rotten).unwrap();
    assert_eq!(open(first).unwrap().end(), Some(first));
    std::fs::remove_file(&path).unwrap();
    let error = open(first).unwrap_err().to_string();
    assert!(error.contains("there are no binlog files"), "{error}");
}

#[test]
fn damaged_header_is_an_error() {
    let folder = Folder::new();
    drop(folder.begun());
    let path = folder.0.join("bin.000001");
    let bytes = std::fs::read(&path).unwrap();
    for cut in 0..bytes.len() {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        assert!(Writer::open(&folder.0, "bin", Visibility::Appended).is_err(), "{cut}");
        assert!(Library::open_read_only(&folder.0, "bin").is_err(), "{cut}");
    }
}

#[test]
fn cut_that_a_crash_interrupted_is_repeated_byte_for_byte() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    append(&mut writer, gtid(10, 1));
    cut(&mut writer);
    append(&mut writer, gtid(10, 2));
    drop(writer);
    let (first, second) = (folder.0.join("bin.000001"), folder.0.join("bin.000002"));
    let (first_bytes, second_bytes) = (std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
    std::fs::rename(&second, folder.0.join("bin.new")).unwrap();
    let mut writer = folder.open();
    assert!(writer.torn().unwrap().why.contains("Rotate"));
    assert!(!folder.0.join("bin.new").exists());
    assert_eq!(writer.library().files().len(), 1);
    cut(&mut writer);
    append(&mut writer, gtid(10, 2));
    assert_eq!(std::fs::read(&first).unwrap(), first_bytes);
    assert_eq!(std::fs::read(&second).unwrap(), second_bytes);
}

#[test]
fn cut_file_begins_with_the_state_before_it() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    append(&mut writer, gtid(10, 1));
    append(&mut writer, gtid(11, 2));
    let at = cut(&mut writer);
    assert_eq!(at.file, 2);
    let before = writer.library().position_in("bin.000002", 4).unwrap().state;
    assert_eq!(before.to_string(), "1-10-1,1-11-2");
    append(&mut writer, gtid(11, 3));
    assert_eq!(received(writer.library(), "1-10-1").unwrap(), ["1-11-2", "1-11-3"]);
    assert_eq!(received(writer.library(), "1-11-2").unwrap(), ["1-11-3"]);
    drop(writer);
    let library = Library::open_read_only(&folder.0, "bin").unwrap();
    assert_eq!(library.state_at_end().to_string(), "1-10-1,1-11-3");
}

#[test]
fn malformed_groups_are_refused_and_change_nothing() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    let at = writer.end().unwrap().offset;
    let good = group(at, gtid(10, 5));
    let mut damaged = good.clone();
    damaged[60] ^= 1;
    let mut refused: Vec<Vec<u8>> =
        vec![Vec::new(), group(at + 1, gtid(10, 5)), good[42..].to_vec(), damaged];
    refused.extend((1..good.len()).map(|cut| good[..cut].to_vec()));
    for bytes in refused {
        assert!(matches!(writer.append(&bytes), Err(LibraryError::Refused(_))));
        assert_eq!(writer.end().unwrap().offset, at);
    }
    writer.append(&good).unwrap();
    for again in [5, 4] {
        let at = writer.end().unwrap().offset;
        let error = writer.append(&group(at, gtid(12, again))).unwrap_err().to_string();
        assert!(error.contains("the stream is at 1-10-5 already"), "{error}");
    }
}

#[test]
fn several_groups_are_appended_at_once() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    let at = writer.end().unwrap().offset;
    let mut both = group(at, gtid(10, 1));
    both.extend(group(at + both.len() as u64, gtid(10, 2)));
    writer.append(&both).unwrap();
    assert_eq!(received(writer.library(), "1-10-1").unwrap(), ["1-10-2"]);
}

#[test]
fn hole_is_a_legal_start() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    for seqno in [1, 2, 7, 8] {
        append(&mut writer, gtid(10, seqno));
    }
    for from in [2, 3, 6] {
        assert_eq!(received(writer.library(), &format!("1-10-{from}")).unwrap(), ["1-10-7", "1-10-8"]);
    }
    // A hole that begins a branch belongs to it.
    append(&mut writer, gtid(11, 10));
    assert_eq!(received(writer.library(), "1-11-9").unwrap(), ["1-11-10"]);
}

#[test]
fn start_beyond_the_end_names_both_sides() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    append(&mut writer, gtid(10, 4));
    let error = received(writer.library(), "1-10-5").unwrap_err();
    assert_eq!(error, "the replica is at GTID 1-10-5, but this stream ends at 1-10-4");
    assert!(received(writer.library(), "1-10-4").unwrap().is_empty());
    writer.note_complete_to(gtid(10, 6));
    assert!(received(writer.library(), "1-10-6").unwrap().is_empty());
    assert!(received(writer.library(), "1-10-7").is_err());
    append(&mut writer, gtid(10, 9));
    assert_eq!(received(writer.library(), "1-10-6").unwrap(), ["1-10-9"]);
}

#[test]
fn replica_of_another_history_is_refused() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    for (server, seqno) in [(10, 1), (10, 2), (11, 4), (11, 5)] {
        append(&mut writer, gtid(server, seqno));
    }
    // Past the end of the branch that was left; the new branch under old numbers; a stranger.
    for from in ["1-10-3", "1-10-4", "1-10-5", "1-10-9", "1-11-2", "1-11-1", "1-12-4", "1-12-9"] {
        let error = received(writer.library(), from).unwrap_err();
        assert!(error.contains(from) && error.contains("another history"), "{from}: {error}");
    }
    assert_eq!(received(writer.library(), "1-10-2").unwrap(), ["1-11-4", "1-11-5"]);
    assert_eq!(received(writer.library(), "1-11-4").unwrap(), ["1-11-5"]);
    cut(&mut writer);
    append(&mut writer, gtid(11, 6));
    assert!(received(writer.library(), "1-10-5").unwrap_err().contains("another history"));
    assert!(received(writer.library(), "1-12-5").unwrap_err().contains("another history"));
}

#[test]
fn domains_of_other_sources_are_left_out_unless_alone() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    append(&mut writer, gtid(10, 1));
    append(&mut writer, gtid(10, 2));
    assert_eq!(received(writer.library(), "0-1-100,1-10-1").unwrap(), ["1-10-2"]);
    let error = received(writer.library(), "0-1-100").unwrap_err();
    assert_eq!(
        error,
        "the replica is at GTID 0-1-100, but this stream is at 1-10-2 and has none of those domains"
    );
}

#[test]
fn two_domains_are_skipped_each_to_its_own_gtid() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    let other = |seqno| Gtid { domain: 2, server: 20, seqno };
    for next in [gtid(10, 1), other(1), gtid(10, 2), other(2), gtid(10, 3)] {
        append(&mut writer, next);
    }
    assert_eq!(received(writer.library(), "1-10-3,2-20-1").unwrap(), ["2-20-2"]);
    assert_eq!(received(writer.library(), "1-10-1,2-20-2").unwrap(), ["1-10-2", "1-10-3"]);
    assert_eq!(received(writer.library(), "2-20-2").unwrap(), ["1-10-1", "1-10-2", "1-10-3"]);
}

#[test]
fn empty_state_reads_from_the_first_file_until_it_is_purged() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    assert!(received(writer.library(), "").unwrap().is_empty());
    assert!(received(writer.library(), "1-10-1").unwrap_err().contains("no event yet"));
    for seqno in 1..=3 {
        append(&mut writer, gtid(10, seqno));
        cut(&mut writer);
    }
    assert_eq!(received(writer.library(), "").unwrap().len(), 3);
    let purged = writer.library().purge_to(3, 0).unwrap();
    assert_eq!(purged.removed, ["bin.000001", "bin.000002"]);
    assert!(!folder.0.join("bin.000002").exists());
    let error = received(writer.library(), "").unwrap_err();
    assert!(error.contains("the events up to GTID 1-10-2 were purged"), "{error}");
    assert!(received(writer.library(), "1-10-1").unwrap_err().contains("purged"));
    assert_eq!(received(writer.library(), "1-10-2").unwrap(), ["1-10-3"]);
    assert_eq!(writer.library().state_at_begin().unwrap().to_string(), "1-10-2");
    let error = writer.library().position_in("bin.000001", 4).unwrap_err().to_string();
    assert!(error.contains("bin.000003 to bin.000004"), "{error}");
}

#[test]
fn purge_keeps_files_of_readers_below_the_cap() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    for seqno in 1..=4 {
        append(&mut writer, gtid(10, seqno));
        cut(&mut writer);
    }
    let library = writer.library().clone();
    let mut slow = library.reader("slow", Position { file: 1, offset: 4 }).unwrap();
    let mut near = library.reader("near", Position { file: 4, offset: 4 }).unwrap();
    let kept = library.purge_to(5, 1 << 20).unwrap();
    assert_eq!(kept.removed, Vec::<String>::new());
    assert_eq!(kept.kept_for, Some(("bin.000001".into(), "slow".into())));
    // The reader is some 2 KiB behind.
    let purged = library.purge_to(5, 1000).unwrap();
    assert_eq!(purged.dropped, ["slow"]);
    assert_eq!(purged.kept_for, Some(("bin.000004".into(), "near".into())));
    assert_eq!(purged.removed.len(), 3);
    assert_eq!(near.advance().unwrap(), Step::Event);
    let error = loop {
        match slow.advance() {
            Ok(Step::FileEnd) => slow.next_file().unwrap(),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LibraryError::Purged { .. }), "{error}");
    drop((slow, near));
    assert_eq!(library.purge_to(99, 0).unwrap().removed, ["bin.000004"]);
    assert_eq!(library.files().len(), 1);
}

#[test]
fn reader_dropped_within_a_file_stops_there() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    for seqno in 1..=20_000 {
        append(&mut writer, gtid(10, seqno));
    }
    cut(&mut writer);
    let library = writer.library().clone();
    let mut slow = library.reader("slow", Position { file: 1, offset: 4 }).unwrap();
    assert_eq!(slow.advance().unwrap(), Step::Event);
    assert_eq!(library.purge_to(2, 1000).unwrap().dropped, ["slow"]);
    let mut events = 0;
    let error = loop {
        match slow.advance() {
            Ok(_) => events += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LibraryError::Purged { .. }), "{error}");
    assert!(events < 10_000, "{events} events were read from a removed file");
}

#[test]
fn oldest_of_last_files_has_enough_bytes_behind_it() {
    let folder = Folder::new();
    let mut writer = folder.open();
    assert_eq!(writer.library().oldest_of_last(0), None);
    writer.begin(1, &format(), &StreamState::default()).unwrap();
    for seqno in 1..=3 {
        append(&mut writer, gtid(10, seqno));
        cut(&mut writer);
    }
    let library = writer.library();
    let sizes: Vec<u64> = library.files().into_iter().map(|(_, size)| size).collect();
    let last = |count: usize| sizes.iter().rev().take(count).sum::<u64>();
    for (bytes, oldest) in [(0, 4), (last(1), 4), (last(1) + 1, 3), (last(3), 2), (last(4) + 1, 1)] {
        assert_eq!(library.oldest_of_last(bytes), Some(oldest), "{bytes}");
    }
}

/// A disk of 1 MiB in memory; `None` where this user may not mount.
fn small_disk(folder: &Folder) -> Option<impl Drop> {
    struct Mounted(PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
        }
    }
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&folder.0)
        .output();
    mount.is_ok_and(|output| output.status.success()).then(|| Mounted(folder.0.clone()))
}

#[test]
fn full_disk_leaves_the_library_as_it_was() {
    let folder = Folder::new();
    let Some(_disk) = small_disk(&folder) else {
        eprintln!("NOT TESTED: this user may not mount a file system");
        return;
    };
    let filler = folder.0.join("filler");
    let mut seqno = 0;
    let mut next = || {
        seqno += 1;
        gtid(10, seqno)
    };
    let mut writer = folder.begun();
    append(&mut writer, next());
    let fill = || {
        let mut file = std::fs::File::create(&filler).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 512]).is_ok() {}
    };
    fill();
    // Groups until the file's last page is full, then a cut.
    let end = loop {
        let end = writer.end().unwrap();
        let after = Gtid { seqno: writer.state_at_end().last(1).unwrap().seqno + 1, ..gtid(10, 0) };
        match writer.append(&group(end.offset, after)) {
            Ok(_) => drop(next()),
            Err(error) => {
                assert!(error.is_disk_full(), "{error}");
                break end;
            }
        }
    };
    assert_eq!((writer.end(), writer.library().end()), (Some(end), Some(end)));
    let before = writer.state_at_end().clone();
    for _ in 0..2 {
        let error = writer.cut(2, STAMP, &format(), &before).unwrap_err();
        assert!(error.is_disk_full(), "{error}");
        assert_eq!((writer.end(), writer.library().end()), (Some(end), Some(end)));
    }
    std::fs::remove_file(&filler).unwrap();
    append(&mut writer, next());
    cut(&mut writer);
    append(&mut writer, next());
    let count = writer.state_at_end().last(1).unwrap().seqno as usize;
    assert_eq!(received(writer.library(), "").unwrap().len(), count);
    drop(writer);
    let writer = folder.open();
    assert_eq!(writer.torn(), None);
    assert_eq!(received(writer.library(), "").unwrap().len(), count);
}

#[test]
fn position_in_file_must_be_an_event() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    let begin = writer.end().unwrap().offset;
    let end = append(&mut writer, gtid(10, 1)).offset;
    let library = writer.library();
    let state_at = |offset| library.position_in("bin.000001", offset).map(|start| start.state.to_string());
    assert_eq!(state_at(4).unwrap(), "");
    assert_eq!(state_at(begin).unwrap(), "");
    assert_eq!(state_at(end).unwrap(), "1-10-1");
    assert_eq!(library.position_in("", 4).unwrap().at.file, 1);
    for wrong in [0, 3, 5, begin + 1, end - 1, end + 1, u64::from(u32::MAX)] {
        assert!(matches!(state_at(wrong), Err(StartError::NoEvent { .. })), "{wrong}");
    }
    for wrong in ["bin.000002", "bin.1", "other.000001", "../bin.000001", "bin.0000001"] {
        assert!(matches!(library.position_in(wrong, 4), Err(StartError::NoFile { .. })), "{wrong}");
    }
}

#[test]
fn missing_file_in_between_is_an_error() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    for seqno in 1..=2 {
        append(&mut writer, gtid(10, seqno));
        cut(&mut writer);
    }
    drop(writer);
    std::fs::remove_file(folder.0.join("bin.000002")).unwrap();
    let error = Writer::open(&folder.0, "bin", Visibility::Appended).unwrap_err().to_string();
    assert_eq!(error, "bin.000002 is missing, but bin.000003 exists");
}

#[test]
fn unsynced_groups_are_hidden_if_configured() {
    let folder = Folder::new();
    let mut writer = Writer::open(&folder.0, "bin", Visibility::Synced).unwrap();
    writer.begin(1, &format(), &StreamState::default()).unwrap();
    append(&mut writer, gtid(10, 1));
    assert!(received(writer.library(), "").unwrap().is_empty());
    assert!(writer.library().state_at_end().is_empty());
    writer.sync().unwrap();
    assert_eq!(received(writer.library(), "").unwrap(), ["1-10-1"]);
    append(&mut writer, gtid(10, 2));
    cut(&mut writer);
    assert_eq!(received(writer.library(), "").unwrap(), ["1-10-1", "1-10-2"]);
}

#[test]
fn waiting_reader_wakes_when_the_stream_grows() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    let library = writer.library().clone();
    let reader = std::thread::spawn(move || {
        let mut reader = library.reader("test", Position { file: 1, offset: 4 }).unwrap();
        let mut seen = 0;
        while seen < 100 {
            match reader.advance().unwrap() {
                Step::Event => seen += u32::from(reader.event()[4] == kind::XID),
                Step::FileEnd => reader.next_file().unwrap(),
                Step::End => reader.wait(Duration::from_secs(60), || false),
            }
        }
    });
    for seqno in 1..=100 {
        append(&mut writer, gtid(10, seqno));
        if seqno % 30 == 0 {
            cut(&mut writer);
        }
    }
    reader.join().unwrap();
    let reader = writer.library().reader("test", writer.end().unwrap()).unwrap();
    reader.wait(Duration::from_millis(1), || false);
    writer.library().close();
    reader.wait(Duration::from_secs(600), || false);
}

#[test]
fn searches_from_marks_find_the_same_starts() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    // 3 MiB, so that there are marks.
    for seqno in (1..=150).map(|n| 2 * n) {
        let at = writer.end().unwrap().offset;
        let mut events = EventWriter::at(at);
        let event = GtidEvent { gtid: gtid(10, seqno), flags: 0, commit_id: None, extra: vec![0; 6] };
        events.gtid(7, &event);
        events.event(STAMP, kind::ANNOTATE_ROWS, 0, &[&[b'x'; 20_000]]);
        events.xid(STAMP, seqno);
        writer.append(&events.finish().unwrap()).unwrap();
    }
    let with_marks = writer.library().clone();
    assert!(with_marks.lock().files[0].marks.len() >= 2);
    for from in [0, 1, 2, 99, 150, 151, 299, 300] {
        let from = if from == 0 { String::new() } else { format!("1-10-{from}") };
        let marked = with_marks.position_of(&state(&from)).unwrap();
        let marks = std::mem::take(&mut with_marks.lock().files[0].marks);
        assert_eq!(with_marks.position_of(&state(&from)).unwrap(), marked, "{from}");
        with_marks.lock().files[0].marks = marks;
        let found = with_marks.position_in("bin.000001", marked.at.offset).unwrap();
        assert_eq!(found.state, marked.state);
    }
    drop(writer);
    assert!(folder.open().library().lock().files[0].marks.len() >= 2);
}

#[test]
fn reader_goes_on_over_numbers_that_were_left_out() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    append(&mut writer, gtid(10, 1));
    let before = StreamState::from_list(&[gtid(10, 500)]);
    writer.cut(7, STAMP, &format(), &before).unwrap();
    append(&mut writer, gtid(10, 502));
    assert_eq!(received(writer.library(), "1-10-1").unwrap(), ["1-10-502"]);
    assert_eq!(received(writer.library(), "1-10-500").unwrap(), ["1-10-502"], "a hole");
    drop(writer);
    let writer = folder.open();
    assert_eq!(writer.end().unwrap().file, 7);
    assert_eq!(received(writer.library(), "1-10-1").unwrap(), ["1-10-502"]);
    drop(writer);
    std::fs::rename(folder.0.join("bin.000007"), folder.0.join("bin.000008")).unwrap();
    let missing = Writer::open(&folder.0, "bin", Visibility::Appended).unwrap_err();
    assert!(matches!(missing, LibraryError::Missing { .. }), "{missing}");
}

#[test]
fn cut_to_file_that_exists_is_refused() {
    let folder = Folder::new();
    let mut writer = folder.begun();
    append(&mut writer, gtid(10, 1));
    let before = writer.state_at_end().clone();
    let refused = writer.cut(1, STAMP, &format(), &before).unwrap_err();
    assert!(matches!(refused, LibraryError::Refused(_)), "{refused}");
    append(&mut writer, gtid(10, 2));
}
