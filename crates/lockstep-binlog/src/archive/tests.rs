//! Archives: crashes at every operation, several archivers, damage, expiry, and exact ends of a restore.

use super::store::{Store, StoreError, Version, When};
use super::*;
use crate::event::{Checksum, EventWriter, FormatDescription, GtidEvent, Query, Stamp, gtid_flag, kind};
use crate::gtid::{Gtid, StreamState};
use crate::library::{Library, Position, Step, Visibility, Writer};
use lockstep_core::Uuid;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lockstep-archive-{}-{count}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A store in memory that survives its archivers. After `budget` operations it fails for ever: before the next one has an
/// effect, or after.
#[derive(Clone, Default)]
struct Memory {
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    done: Arc<AtomicU32>,
    budget: Option<(u32, bool)>,
}

impl Memory {
    fn failing_after(&self, budget: u32, has_effect: bool) -> Memory {
        Memory { objects: self.objects.clone(), done: Arc::default(), budget: Some((budget, has_effect)) }
    }

    fn alive(&self) -> Memory {
        Memory { objects: self.objects.clone(), ..Memory::default() }
    }

    /// Whether the next operation has an effect, and an answer.
    fn next(&self) -> (bool, bool) {
        let done = self.done.fetch_add(1, Ordering::Relaxed);
        match self.budget {
            Some((budget, has_effect)) if done >= budget => (has_effect && done == budget, false),
            _ => (true, true),
        }
    }

    fn keys(&self) -> Vec<String> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }
}

fn dead<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable("killed".into()))
}

impl Store for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn get(&self, key: &str, max: u64) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        if !self.next().1 {
            return dead();
        }
        let found = self.objects.lock().unwrap().get(key).cloned();
        assert!(found.as_ref().is_none_or(|bytes| bytes.len() as u64 <= max));
        Ok(found.map(|bytes| (bytes.clone(), Version(digest(&bytes)))))
    }

    fn put(&self, key: &str, bytes: &[u8], when: &When) -> Result<Version, StoreError> {
        let (has_effect, has_answer) = self.next();
        if has_effect {
            let mut objects = self.objects.lock().unwrap();
            let there = objects.get(key).map(|bytes| Version(digest(bytes)));
            if !when.is_met(there.as_ref()) {
                return Err(StoreError::Conflict);
            }
            objects.insert(key.into(), bytes.to_vec());
        }
        if has_answer { Ok(Version(digest(bytes))) } else { dead() }
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        let (has_effect, has_answer) = self.next();
        if has_effect {
            self.objects.lock().unwrap().remove(key);
        }
        if has_answer { Ok(()) } else { dead() }
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        if !self.next().1 {
            return dead();
        }
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let objects = self.objects.lock().unwrap();
        let below = objects.keys().filter_map(|key| key.strip_prefix(&prefix));
        let mut names: Vec<String> = below.map(|rest| rest.split('/').next().unwrap().to_owned()).collect();
        names.dedup();
        Ok(names)
    }
}

const SERVER: u32 = 10;
/// Seqnos of a file.
const BLOCK: u64 = 20;
/// The last seqno of the stream.
const LAST: u64 = 52;
/// Bytes of a part, so that a file has several.
const PART: u64 = 300;

fn head() -> Head {
    Head { files: "bin".into(), history: Uuid([3; 16]), domain: 1, server: SERVER }
}

/// Whether an entry has no group: a view, or a write-set that failed.
fn is_hole(seqno: u64) -> bool {
    seqno % 7 == 3 || (18..=22).contains(&seqno)
}

/// The time of an entry. Leaders' clocks go back.
fn time(seqno: u64) -> u64 {
    1_000_000 + seqno * 1000 - if seqno % 10 > 6 { 4500 } else { 0 } + if seqno == 24 { 9000 } else { 0 }
}

fn clock(seqno: u64) -> u64 {
    (1..=seqno).map(time).max().unwrap_or(0)
}

fn file_of(seqno: u64) -> u64 {
    (seqno - 1) / BLOCK * 10 + 1
}

/// An instance that writes the stream. `variant`: another one has other bytes.
struct Instance {
    writer: Writer,
    clocks: ClockLog,
    done: u64,
    variant: u8,
}

impl Instance {
    fn open(dir: &Path, position: u64, known: Option<u64>, variant: u8) -> Instance {
        let writer = Writer::open(dir, "bin", Visibility::Appended).unwrap();
        let mut clocks = ClockLog::new(dir, BLOCK);
        clocks.begin(position, known).unwrap();
        Instance { writer, clocks, done: position, variant }
    }

    /// Goes on from the archive's end.
    fn fetched(dir: &Path, store: &Memory) -> Option<Instance> {
        let start = StartPoint::find(store).unwrap()?;
        start.fetch(store, dir).unwrap();
        assert_eq!(start.resume.clock, clock(start.resume.seqno));
        Some(Instance::open(dir, start.resume.seqno, Some(start.resume.clock), 0))
    }

    fn group(&self, at: u64, seqno: u64) -> Vec<u8> {
        let gtid = Gtid { domain: 1, server: SERVER, seqno };
        let mut events = EventWriter::at(at);
        let flags = gtid_flag::TRANSACTIONAL;
        events.gtid(7, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
        let stamp = Stamp { timestamp: 7, server_id: SERVER };
        let text = vec![b'a' + self.variant; 10 + (seqno % 5) as usize * 30];
        events.event(stamp, kind::ANNOTATE_ROWS, 0, &[&text]);
        events.xid(stamp, seqno);
        events.finish().unwrap()
    }

    /// Takes the log's entries up to this one.
    fn write_to(&mut self, last: u64) -> Progress {
        for seqno in self.done + 1..=last {
            self.clocks.note(seqno, time(seqno)).unwrap();
            let written = self.writer.state_at_end().last(1).map_or(0, |gtid| gtid.seqno);
            if is_hole(seqno) || seqno <= written {
                continue;
            }
            let (file, end) = (file_of(seqno), self.writer.end());
            let format = FormatDescription {
                timestamp: 5,
                server_id: SERVER,
                version: "10.11.0-MariaDB-lockstep".into(),
                created: 0,
                checksum: Checksum::Crc32,
            };
            let before = match (seqno - 1) / BLOCK * BLOCK {
                0 => StreamState::default(),
                seqno => StreamState::from_list(&[Gtid { domain: 1, server: SERVER, seqno }]),
            };
            match end {
                None => self.writer.begin(file, &format, &before).unwrap(),
                Some(end) if end.file < file => {
                    let stamp = Stamp { timestamp: 5, server_id: SERVER };
                    self.writer.cut(file, stamp, &format, &before).map(drop).unwrap();
                }
                Some(_) => {}
            }
            let group = self.group(self.writer.end().unwrap().offset, seqno);
            self.writer.append(&group).unwrap();
        }
        self.clocks.sync().unwrap();
        self.done = self.done.max(last);
        let resume = self.done.saturating_sub(2).max(1);
        Progress {
            end: self.writer.end().unwrap(),
            complete: Mark { seqno: self.done, clock: self.clocks.at(self.done).unwrap() },
            resume: Mark { seqno: resume, clock: self.clocks.at(resume).unwrap() },
        }
    }

    fn archiver<S: Store>(&self, store: S) -> Result<Archiver<S>, ArchiveError> {
        let clocks = Clocks::new(self.writer.library().dir(), BLOCK);
        let mut archiver = Archiver::open(store, head(), self.writer.library().clone(), clocks)?;
        archiver.set_part_bytes(PART);
        Ok(archiver)
    }

    /// Writes and archives the stream in steps.
    fn archive_all(&mut self, store: &Memory) -> Result<(), ArchiveError> {
        let mut archiver = self.archiver(store.clone())?;
        for last in (self.done.max(1)..LAST).step_by(3).chain([LAST]) {
            let progress = self.write_to(last);
            archiver.advance(&progress)?;
        }
        Ok(())
    }
}

/// The whole stream's files.
fn canonical() -> BTreeMap<u64, Vec<u8>> {
    let folder = Folder::new();
    let mut instance = Instance::open(&folder.0, 0, None, 0);
    instance.write_to(LAST);
    let library = instance.writer.library();
    let names = library.files().into_iter().map(|(name, _)| name);
    names
        .map(|name| (library.number_of(&name).unwrap(), std::fs::read(folder.0.join(&name)).unwrap()))
        .collect()
}

/// Checks that the archive is a whole prefix of the stream, and returns its length in bytes.
fn check(store: &Memory, canonical: &BTreeMap<u64, Vec<u8>>) -> usize {
    let store = store.alive();
    let (mut total, mut ended) = (0, false);
    for (number, bytes) in canonical {
        let Some((manifest, _)) = read_manifest(&store, "bin", *number).unwrap() else {
            ended = true;
            continue;
        };
        assert!(!ended, "file {number} is listed, and one before is missing or not complete");
        let name = file_name("bin", *number);
        let mut joined = Vec::new();
        for part in &manifest.parts {
            joined.extend(read_part(&store, &name, part).unwrap());
            let groups = read_index(&store, &name, part).unwrap();
            assert!(groups.iter().all(|group| group.clock == clock(group.seqno)), "{groups:?}");
        }
        assert!(bytes.starts_with(&joined), "file {number} has other bytes");
        assert_eq!(manifest.complete.clock, clock(manifest.complete.seqno));
        assert_eq!(manifest.resume.clock, clock(manifest.resume.seqno));
        assert_eq!(
            manifest.next.is_some(),
            joined.len() == bytes.len() && number != canonical.keys().last().unwrap()
        );
        ended = manifest.next.is_none();
        total += joined.len();
    }
    total
}

/// The archive has the whole stream, and no object besides.
fn is_complete(store: &Memory, canonical: &BTreeMap<u64, Vec<u8>>) {
    assert_eq!(check(store, canonical), canonical.values().map(Vec::len).sum::<usize>());
    let mut listed = vec![HEAD.to_owned()];
    for number in canonical.keys() {
        let name = file_name("bin", *number);
        let (manifest, _) = read_manifest(&store.alive(), "bin", *number).unwrap().unwrap();
        listed.push(manifest_key(&name));
        listed.extend(manifest.parts.iter().flat_map(|part| [part.key(&name), part.index_key(&name)]));
    }
    listed.sort();
    assert_eq!(store.keys(), listed);
}

#[test]
fn archive_goes_on_after_a_crash_at_each_operation() {
    let canonical = canonical();
    let whole = Memory::default();
    let folder = Folder::new();
    Instance::open(&folder.0, 0, None, 0).archive_all(&whole).unwrap();
    is_complete(&whole, &canonical);
    let operations = whole.done.load(Ordering::Relaxed);
    assert!(operations > 60, "{operations}");
    for at in 0..operations {
        for has_effect in [false, true] {
            let keeps_files = has_effect == (at % 2 == 0);
            let store = Memory::default();
            let (folder, other) = (Folder::new(), Folder::new());
            let mut instance = Instance::open(&folder.0, 0, None, 0);
            // A replaced part that cannot be removed is no error.
            let killed = instance.archive_all(&store.failing_after(at, has_effect));
            assert!(killed.as_ref().is_err_and(ArchiveError::is_transient) || at + 3 > operations);
            check(&store, &canonical);
            if !keeps_files {
                instance = Instance::fetched(&other.0, &store.alive())
                    .unwrap_or_else(|| Instance::open(&other.0, 0, None, 0));
            }
            // Killed once more soon after.
            let again = instance.archive_all(&store.failing_after(at % 9, !has_effect));
            assert!(again.as_ref().is_err_and(ArchiveError::is_transient) || again.is_ok());
            check(&store, &canonical);
            instance.archive_all(&store.alive()).unwrap();
            // The next start removes objects that no manifest lists.
            instance.archive_all(&store.alive()).unwrap();
            is_complete(&store, &canonical);
        }
    }
}

#[test]
fn two_archivers_of_one_target_add_to_one_another() {
    let canonical = canonical();
    let store = Memory::default();
    let folders = [Folder::new(), Folder::new()];
    let mut instances = [0, 1].map(|at| Instance::open(&folders[at].0, 0, None, 0));
    let mut archivers = [0, 1].map(|at| instances[at].archiver(store.clone()).unwrap());
    let mut conflicts = 0;
    for round in 1_u64..120 {
        for at in [0, 1] {
            let last = (round * 5 / 7 + (round * (at as u64 + 3)) % 4).clamp(1, LAST);
            let progress = instances[at].write_to(last);
            match archivers[at].advance(&progress) {
                Ok(_) => {}
                Err(ArchiveError::Store(StoreError::Conflict)) => conflicts += 1,
                Err(error) => panic!("{error}"),
            }
            check(&store, &canonical);
        }
    }
    assert!(conflicts > 3, "{conflicts}");
    is_complete(&store, &canonical);
}

#[test]
fn archive_with_other_bytes_is_refused_and_kept() {
    let store = Memory::default();
    let (folder, other) = (Folder::new(), Folder::new());
    let mut instance = Instance::open(&folder.0, 0, None, 0);
    let progress = instance.write_to(30);
    instance.archiver(store.clone()).unwrap().advance(&progress).unwrap();
    let before = store.objects.lock().unwrap().clone();
    let mut foreign = Instance::open(&other.0, 0, None, 1);
    let progress = foreign.write_to(40);
    let error = foreign.archiver(store.clone()).unwrap().advance(&progress).unwrap_err();
    let text = error.to_string();
    assert!(!error.is_transient() && text.contains("bin.000011 differ") && text.contains("memory"), "{text}");
    assert!(text.contains(&other.0.display().to_string()), "{text}");
    assert_eq!(*store.objects.lock().unwrap(), before);
    let clocks = Clocks::new(&folder.0, BLOCK);
    let head = Head { history: Uuid([4; 16]), ..head() };
    let refused =
        Archiver::open(store.clone(), head, instance.writer.library().clone(), clocks).err().unwrap();
    assert!(refused.to_string().contains("another stream"), "{refused}");
}

#[test]
fn archive_that_is_gone_is_not_begun_again() {
    let (store, folder) = (Memory::default(), Folder::new());
    let mut instance = Instance::open(&folder.0, 0, None, 0);
    let mut archiver = instance.archiver(store.clone()).unwrap();
    let progress = instance.write_to(15);
    archiver.advance(&progress).unwrap();
    store.objects.lock().unwrap().clear();
    let progress = instance.write_to(30);
    let conflict = archiver.advance(&progress).unwrap_err();
    assert!(conflict.is_transient(), "{conflict}");
    let error = archiver.advance(&progress).unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("memory is gone"), "{error}");
    assert!(!store.keys().iter().any(|key| key.ends_with("/manifest")), "{:?}", store.keys());
}

#[test]
fn local_files_behind_a_gap_are_refused() {
    let store = Memory::default();
    let (folder, other) = (Folder::new(), Folder::new());
    let mut instance = Instance::open(&folder.0, 0, None, 0);
    let progress = instance.write_to(15);
    instance.archiver(store.clone()).unwrap().advance(&progress).unwrap();
    let mut later = Instance::open(&other.0, 40, Some(clock(40)), 0);
    let progress = later.write_to(50);
    let error = later.archiver(store.clone()).unwrap().advance(&progress).unwrap_err();
    assert!(error.to_string().contains("the transactions in between would be missing"), "{error}");
}

#[test]
fn instance_that_is_behind_the_archive_waits() {
    let store = Memory::default();
    let (folder, other) = (Folder::new(), Folder::new());
    let mut ahead = Instance::open(&folder.0, 0, None, 0);
    let progress = ahead.write_to(46);
    ahead.archiver(store.clone()).unwrap().advance(&progress).unwrap();
    let mut behind = Instance::open(&other.0, 0, None, 0);
    let mut archiver = behind.archiver(store.clone()).unwrap();
    for last in [5, 25, 44] {
        let progress = behind.write_to(last);
        assert_eq!(archiver.advance(&progress).unwrap(), Advance::Behind, "{last}");
    }
    let progress = behind.write_to(LAST);
    assert_eq!(archiver.advance(&progress).unwrap(), Advance::Done);
    is_complete(&store, &canonical());
}

#[test]
fn expired_files_are_removed_oldest_first_at_each_crash() {
    let canonical = canonical();
    for at in 0..80 {
        let store = Memory::default();
        let folder = Folder::new();
        let mut instance = Instance::open(&folder.0, 0, None, 0);
        instance.archive_all(&store).unwrap();
        // The second file's last group is as old as the limit.
        let limit = clock(40);
        let killed = instance.archiver(store.failing_after(at, at % 2 == 0)).and_then(|a| a.expire(limit));
        let archiver = instance.archiver(store.clone()).unwrap();
        if let Ok(expired) = killed {
            assert_eq!(expired.removed, ["bin.000001"]);
        }
        archiver.expire(limit).unwrap();
        assert!(store.keys().iter().all(|key| !key.starts_with("bin.000001/")), "{at}: {:?}", store.keys());
        let mut rest = canonical.clone();
        rest.remove(&1);
        is_complete(&store, &rest);
        // The last file stays, however old it is.
        assert_eq!(archiver.expire(u64::MAX).unwrap().removed, ["bin.000011"]);
    }
}

/// The seqnos in restored files, with the bytes of their groups as in the stream.
fn seqnos(dir: &Path) -> Vec<u64> {
    let library = Library::open_read_only(dir, "bin").unwrap();
    let Some(first) = library.files().first().and_then(|(name, _)| library.number_of(name)) else {
        return Vec::new();
    };
    let mut reader = library.reader("test", Position { file: first, offset: 4 }).unwrap();
    let mut seqnos = Vec::new();
    loop {
        match reader.advance().unwrap() {
            Step::Event if reader.event()[4] == kind::GTID => {
                seqnos.push(GtidEvent::parse(reader.event(), Checksum::Crc32).unwrap().gtid.seqno);
            }
            Step::Event => {}
            Step::FileEnd => reader.next_file().unwrap(),
            Step::End => return seqnos,
        }
    }
}

fn archived() -> Memory {
    let (store, folder) = (Memory::default(), Folder::new());
    Instance::open(&folder.0, 0, None, 0).archive_all(&store).unwrap();
    store
}

fn restored(store: &Memory, after: u64, to: Target) -> Result<(Vec<u64>, Restored), String> {
    let folder = Folder::new();
    let result = restore(store, after, to, &folder.0, &mut |_| ()).map_err(|e| e.to_string())?;
    Ok((seqnos(&folder.0), result))
}

#[test]
fn restore_ends_exactly_at_gtid_or_time() {
    let store = archived();
    let groups =
        |after: u64, last: u64| -> Vec<u64> { (after + 1..=last).filter(|s| !is_hole(*s)).collect() };
    for after in [0, 1, 19, 20, 21, 30, 51] {
        for to in after..=LAST {
            let (found, result) = restored(&store, after, Target::Seqno(to)).unwrap();
            assert_eq!(found, groups(after, to), "after {after} to {to}");
            assert_eq!(result.groups as usize, found.len());
            assert_eq!(result.last.map(|last| last.seqno), found.last().copied());
            assert_eq!(
                result.next.map(|n| n.seqno),
                (to + 1..=LAST).find(|s| !is_hole(*s)).filter(|_| result.next.is_some())
            );
        }
    }
    // As `apply.until` does: an entry whose time is later ends it, also one without a group.
    for micros in (999_000..clock(LAST)).step_by(500) {
        let last = (1..=LAST).find(|seqno| time(*seqno) > micros).unwrap() - 1;
        let (found, _) = restored(&store, 0, Target::Time(micros)).unwrap();
        assert_eq!(found, groups(0, last), "{micros}");
    }
    assert_eq!(restored(&store, 4, Target::Latest).unwrap().0, groups(4, LAST));
}

#[test]
fn restore_beyond_the_archive_is_refused() {
    let store = archived();
    let beyond = restored(&store, 0, Target::Seqno(LAST + 1)).unwrap_err();
    assert!(beyond.contains("complete up to GTID 1-10-52") && beyond.contains("1-10-53"), "{beyond}");
    let later = restored(&store, 0, Target::Time(clock(LAST))).unwrap_err();
    assert!(later.contains("nobody can tell"), "{later}");
    for key in store.keys().iter().filter(|key| key.starts_with("bin.000001/")) {
        store.delete(key).unwrap();
    }
    let old = restored(&store, 19, Target::Latest).unwrap_err();
    assert!(old.contains("begins after GTID 1-10-20") && old.contains("newer backup"), "{old}");
    assert_eq!(restored(&store, 20, Target::Seqno(25)).unwrap().0, [23, 25]);
    let empty = restored(&Memory::default(), 0, Target::Latest).unwrap_err();
    assert!(empty.contains("there is no archive in memory"), "{empty}");
}

#[test]
fn restore_refuses_damaged_and_missing_objects() {
    let whole = archived();
    for key in whole.keys() {
        for is_removed in [false, true] {
            let store = Memory {
                objects: Arc::new(Mutex::new(whole.objects.lock().unwrap().clone())),
                ..Memory::default()
            };
            match is_removed {
                true => store.delete(&key).unwrap(),
                false => {
                    let mut objects = store.objects.lock().unwrap();
                    let bytes = objects.get_mut(&key).unwrap();
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                }
            }
            let refused = restored(&store, 0, Target::Latest);
            // Without its manifest the last file, or the first, cannot be missed.
            let is_end = key == "bin.000021/manifest" && is_removed;
            match refused {
                Err(text) => assert!(!is_end, "{key}: {text}"),
                Ok((found, _)) => assert!(is_end && found.last() == Some(&40), "{key} {found:?}"),
            }
        }
    }
}

#[test]
fn failing_statement_is_restored_for_clients_that_stop() {
    let (store, folder, out) = (Memory::default(), Folder::new(), Folder::new());
    let mut instance = Instance::open(&folder.0, 0, None, 0);
    instance.write_to(1);
    let stamp = Stamp { timestamp: 9, server_id: SERVER };
    let mut events = EventWriter::at(instance.writer.end().unwrap().offset);
    let gtid = Gtid { domain: 1, server: SERVER, seqno: 2 };
    let flags = gtid_flag::STANDALONE | gtid_flag::DDL;
    events.gtid(9, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
    let query = Query {
        thread_id: 1,
        exec_time: 0,
        error_code: 1051,
        status_vars: &[],
        database: b"test",
        sql: b"DROP TABLE a, b",
    };
    events.query(stamp, 0, &query).unwrap();
    instance.writer.append(&events.finish().unwrap()).unwrap();
    let progress = instance.write_to(4);
    instance.archiver(store.clone()).unwrap().advance(&progress).unwrap();
    let result = restore(&store, 0, Target::Latest, &out.0, &mut |_| ()).unwrap();
    assert_eq!(result.failed, [(2, 1051)]);
    let bytes = std::fs::read(out.0.join("bin.000001")).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("DECLARE CONTINUE HANDLER FOR 1051 BEGIN END; DROP TABLE a, b\n; END"), "{text}");
    assert_eq!(seqnos(&out.0), [1, 2, 4]);
    let again = restore(&store, 0, Target::Latest, &out.0, &mut |_| ()).unwrap_err();
    assert!(again.to_string().contains("name an empty directory"), "{again}");
}

/// Appends a statement that failed with this error to the instance's files.
fn write_failed(instance: &mut Instance, seqno: u64, code: u16, status_vars: &[u8], sql: &str) {
    let mut events = EventWriter::at(instance.writer.end().unwrap().offset);
    let gtid = Gtid { domain: 1, server: SERVER, seqno };
    let flags = gtid_flag::STANDALONE | gtid_flag::DDL;
    events.gtid(9, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
    let (database, sql) = (b"test", sql.as_bytes());
    let query = Query { thread_id: 1, exec_time: 0, error_code: code, status_vars, database, sql };
    events.query(Stamp { timestamp: 9, server_id: SERVER }, 0, &query).unwrap();
    instance.writer.append(&events.finish().unwrap()).unwrap();
}

#[test]
fn failed_statement_that_cannot_expect_its_error_is_left_out() {
    let (store, folder, out) = (Memory::default(), Folder::new(), Folder::new());
    let mut instance = Instance::open(&folder.0, 0, None, 0);
    instance.write_to(1);
    let replace = "/* x */ create or  replace PROCEDURE a() SELECT 1";
    write_failed(&mut instance, 2, 1305, &[], replace);
    let progress = instance.write_to(5);
    instance.archiver(store.clone()).unwrap().advance(&progress).unwrap();
    // The last one, in a part of its own: nothing is written after it.
    let oracle = [0, 0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0];
    write_failed(&mut instance, 6, 1051, &oracle, "DROP TABLE a, b");
    let progress = instance.write_to(6);
    instance.archiver(store.clone()).unwrap().advance(&progress).unwrap();
    let result = restore(&store, 0, Target::Latest, &out.0, &mut |_| ()).unwrap();
    let by_hand: Vec<(u64, u16, &str)> =
        result.by_hand.iter().map(|s| (s.seqno, s.code, s.statement.as_str())).collect();
    assert_eq!(by_hand, [(2, 1305, replace), (6, 1051, "DROP TABLE a, b")]);
    assert_eq!((result.groups, result.failed), (3, vec![]));
    assert_eq!(seqnos(&out.0), [1, 4, 5]);
}

#[test]
fn restored_files_are_numbered_from_one() {
    let (store, out) = (archived(), Folder::new());
    let result = restore(&store, 4, Target::Latest, &out.0, &mut |_| ()).unwrap();
    assert_eq!(result.files, ["bin.000001", "bin.000002", "bin.000003"]);
    assert_eq!(seqnos(&out.0), (5..=LAST).filter(|seqno| !is_hole(*seqno)).collect::<Vec<_>>());
}

#[test]
fn data_behind_the_target_or_the_archive_are_refused() {
    let store = archived();
    let older = |after: u64, micros: u64| restored(&store, after, Target::Time(micros)).unwrap_err();
    // Within a file, behind parts that are not read, in a hole after a file's end, and in the next file.
    for after in [15, 20, 21, 39, 40, 41, 51] {
        let group = (1..=after).rev().find(|seqno| !is_hole(*seqno)).unwrap();
        for micros in [time(1), clock(group) - 1] {
            let text = older(after, micros);
            assert!(text.contains(&format!("1-10-{after} already, with GTID 1-10-")), "{after}: {text}");
        }
        let (found, _) = restored(&store, after, Target::Time(clock(group))).unwrap();
        assert!(found.iter().all(|seqno| *seqno > after && clock(*seqno) == clock(group)), "{after}");
    }
    let text = restored(&store, 30, Target::Seqno(29)).unwrap_err();
    assert!(text.contains("the data are at GTID 1-10-30 already, after GTID 1-10-29"), "{text}");
    for to in [Target::Latest, Target::Seqno(LAST + 1), Target::Time(time(1))] {
        let text = restored(&store, LAST + 1, to).unwrap_err();
        assert!(text.contains("1-10-52") || text.contains("1-10-53 already"), "{text}");
    }
    assert!(restored(&store, LAST, Target::Latest).unwrap().0.is_empty());
    // The file with the last group before the data is gone: nothing tells its time.
    for key in store.keys().iter().filter(|key| key.starts_with("bin.000001/")) {
        store.delete(key).unwrap();
    }
    let text = older(20, time(1));
    assert!(text.contains("does not have the time of GTID 1-10-20"), "{text}");
    assert_eq!(restored(&store, 20, Target::Time(clock(23))).unwrap().0, [23]);
}

/// An archive that grows while it is read: before each index that is read.
struct Living {
    memory: Memory,
    source: Mutex<(Instance, Archiver<Memory>, u64)>,
    step: u64,
}

impl Store for Living {
    fn name(&self) -> String {
        self.memory.name()
    }

    fn get(&self, key: &str, max: u64) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        if key.ends_with(".index") {
            let mut source = self.source.lock().unwrap();
            let (instance, archiver, last) = &mut *source;
            *last = (*last + self.step).min(LAST);
            let progress = instance.write_to(*last);
            archiver.advance(&progress).unwrap();
        }
        self.memory.get(key, max)
    }

    fn put(&self, _: &str, _: &[u8], _: &When) -> Result<Version, StoreError> {
        dead()
    }

    fn delete(&self, _: &str) -> Result<(), StoreError> {
        dead()
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        self.memory.list(folder)
    }
}

#[test]
fn archive_that_grows_is_restored() {
    let mut grown = 0;
    for (begin, step) in (1..40).flat_map(|begin| [1, 2, 5].map(|step| (begin, step))) {
        let (memory, folder, out) = (Memory::default(), Folder::new(), Folder::new());
        let mut instance = Instance::open(&folder.0, 0, None, 0);
        let mut archiver = instance.archiver(memory.clone()).unwrap();
        let progress = instance.write_to(begin);
        archiver.advance(&progress).unwrap();
        let living = Living { memory, source: Mutex::new((instance, archiver, begin)), step };
        let result = restore(&living, 0, Target::Latest, &out.0, &mut |_| ()).unwrap();
        let found = seqnos(&out.0);
        let last = *found.last().unwrap();
        // The last part was replaced before it was read, unless it was full.
        grown += u32::from(last > begin);
        assert!((last + 1..=begin).all(is_hole), "{begin} {step}: {found:?}");
        assert_eq!(found, (1..=last).filter(|seqno| !is_hole(*seqno)).collect::<Vec<_>>());
        assert_eq!(result.groups as usize, found.len());
    }
    assert!(grown > 50, "{grown}");
}

#[test]
fn last_manifest_stays_if_the_next_file_has_none() {
    let (store, folder) = (archived(), Folder::new());
    store.delete("bin.000021/manifest").unwrap();
    let archiver = Instance::open(&folder.0, 0, None, 0).archiver(store.clone()).unwrap();
    assert_eq!(archiver.expire(u64::MAX).unwrap().removed, ["bin.000001"]);
    assert!(read_manifest(&store, "bin", 11).unwrap().is_some());
}

#[test]
fn first_file_that_begins_at_a_border_is_the_resume_position() {
    let (store, folder) = (Memory::default(), Folder::new());
    let mut instance = Instance::open(&folder.0, 20, Some(clock(20)), 0);
    let progress = instance.write_to(30);
    let unknown = Progress { complete: Mark::default(), resume: Mark::default(), ..progress };
    instance.archiver(store.clone()).unwrap().advance(&unknown).unwrap();
    let start = StartPoint::find(&store).unwrap().unwrap();
    assert_eq!(start.resume, Mark { seqno: 20, clock: clock(20) });
    let (manifest, _) = read_manifest(&store, "bin", 11).unwrap().unwrap();
    assert_eq!(manifest.complete, Mark { seqno: 30, clock: clock(30) });
    // A progress whose clock is not known, or behind the groups.
    let progress = instance.write_to(31);
    let unknown = Progress { complete: Mark { seqno: 33, clock: 0 }, ..progress };
    instance.archiver(store.clone()).unwrap().advance(&unknown).unwrap();
    let (manifest, _) = read_manifest(&store, "bin", 11).unwrap().unwrap();
    assert_eq!(manifest.complete.seqno, 33);
    assert!(manifest.complete.clock >= manifest.last_group().unwrap().clock);
}

#[test]
fn files_are_archived_up_to_the_last_known_clock_after_a_crash() {
    let folder = Folder::new();
    let mut instance = Instance::open(&folder.0, 0, None, 0);
    let at_30 = instance.write_to(30);
    let at_45 = instance.write_to(45);
    let library = instance.writer.library().clone();
    let gtid = |seqno: u64| Gtid { domain: 1, server: SERVER, seqno };
    let end = |seqno: u64| {
        recovered_end(&library, &mut Clocks::new(&folder.0, BLOCK), gtid(seqno)).unwrap().unwrap()
    };
    for seqno in [0, 1, 19, 20, 30, 44, 45] {
        assert_eq!(end(seqno), at_45.end, "{seqno}");
    }
    // The clocks after 30 were not written.
    std::fs::remove_file(folder.0.join("clocks.000002")).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(folder.0.join("clocks.000001")).unwrap();
    file.set_len(10 * 12).unwrap();
    for seqno in [0, 20, 25, 30] {
        assert_eq!(end(seqno), at_30.end, "{seqno}");
    }
    std::fs::remove_file(folder.0.join("clocks.000000")).unwrap();
    let begin = end(0);
    assert_eq!(begin.file, 1);
    let store = Memory::default();
    let progress = Progress { end: begin, complete: Mark::default(), resume: Mark::default() };
    assert_eq!(instance.archiver(store.clone()).unwrap().advance(&progress).unwrap(), Advance::Done);
    let (manifest, _) = read_manifest(&store, "bin", 1).unwrap().unwrap();
    assert_eq!((manifest.end(), manifest.last_group()), (begin.offset, None));
}

#[test]
fn clocks_are_kept_while_they_cannot_be_written() {
    let folder = Folder::new();
    let dir = folder.0.join("later");
    let mut log = ClockLog::new(&dir, BLOCK);
    log.begin(0, None).unwrap();
    for seqno in 1..=20 {
        log.note(seqno, time(seqno)).unwrap();
    }
    // The directory is missing, as if its disk were full.
    for _ in 0..3 {
        assert!(log.note(21, time(21)).is_err());
        assert!(log.sync().is_err());
    }
    std::fs::create_dir(&dir).unwrap();
    for seqno in 21..=25 {
        assert_eq!(log.note(seqno, time(seqno)).unwrap(), clock(seqno));
    }
    log.sync().unwrap();
    let mut clocks = Clocks::new(&dir, BLOCK);
    assert!((1..=25).all(|seqno| clocks.get(seqno).unwrap() == Some(clock(seqno))));
}

#[test]
fn temporary_names_of_two_archivers_differ() {
    let folder = Folder::new();
    let stores = [(); 2].map(|()| DirStore::open(&folder.0, true).unwrap());
    let path = folder.0.join("a.part");
    let names = [&stores[0], &stores[1], &stores[0]].map(|store| store.temporary(&path));
    assert!(names[0] != names[1] && names[0] != names[2]);
    // A failed put leaves none behind.
    std::fs::create_dir_all(folder.0.join("a/x.part/y")).unwrap();
    assert!(stores[0].put("a/x.part", b"x", &When::Always).is_err());
    assert_eq!(stores[0].list("a").unwrap(), ["x.part"]);
}

#[test]
fn directory_replaces_an_object_only_if_it_is_unchanged() {
    let folder = Folder::new();
    let store = DirStore::open(&folder.0.join("deep/archive"), true).unwrap();
    assert!(DirStore::open(&folder.0.join("missing"), false).is_err());
    assert_eq!(store.get("a/manifest", 10).unwrap(), None);
    let first = store.put("a/manifest", b"one", &When::Absent).unwrap();
    assert_eq!(store.put("a/manifest", b"two", &When::Absent), Err(StoreError::Conflict));
    let second = store.put("a/manifest", b"two", &When::Is(first.clone())).unwrap();
    assert_eq!(store.put("a/manifest", b"three", &When::Is(first)), Err(StoreError::Conflict));
    assert_eq!(store.get("a/manifest", 3).unwrap(), Some((b"two".to_vec(), second)));
    assert!(store.get("a/manifest", 2).is_err());
    store.put("a/x.part", b"x", &When::Always).unwrap();
    let mut names = store.list("a").unwrap();
    names.sort();
    assert_eq!(names, ["manifest", "x.part"]);
    assert!(store.list("").unwrap().contains(&"a".to_owned()));
    assert_eq!(store.list("b").unwrap(), Vec::<String>::new());
    for key in ["a/manifest", "a/x.part", "a/x.part"] {
        store.delete(key).unwrap();
    }
    assert!(!store.list("").unwrap().contains(&"a".to_owned()), "an empty folder goes away");
}

#[test]
fn archive_in_a_directory_is_the_binlog_in_parts() {
    let (folder, target, out) = (Folder::new(), Folder::new(), Folder::new());
    let store = DirStore::open(&target.0, true).unwrap();
    let mut instance = Instance::open(&folder.0, 0, None, 0);
    let mut archiver = instance.archiver(store).unwrap();
    for last in (1..=LAST).step_by(4).chain([LAST]) {
        let progress = instance.write_to(last);
        assert_eq!(archiver.advance(&progress).unwrap(), Advance::Done);
    }
    for (number, bytes) in canonical() {
        let dir = target.0.join(file_name("bin", number));
        let mut parts: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
        parts.retain(|path| path.extension().is_some_and(|e| e == "part"));
        parts.sort();
        assert_eq!(parts.iter().flat_map(|path| std::fs::read(path).unwrap()).collect::<Vec<u8>>(), bytes);
    }
    restore(archiver.store(), 0, Target::Latest, &out.0, &mut |_| ()).unwrap();
    for (at, bytes) in (1..).zip(canonical().values()) {
        assert_eq!(std::fs::read(out.0.join(file_name("bin", at))).unwrap().len(), bytes.len());
    }
}

#[test]
fn clocks_are_the_same_after_a_second_reading() {
    let folder = Folder::new();
    let mut log = ClockLog::new(&folder.0, BLOCK);
    log.begin(0, None).unwrap();
    for seqno in 1..=45 {
        assert_eq!(log.note(seqno, time(seqno)).unwrap(), clock(seqno));
    }
    log.sync().unwrap();
    // The entries after 24 are read again. The time of 24 is ahead of theirs.
    let mut log = ClockLog::new(&folder.0, BLOCK);
    log.begin(24, None).unwrap();
    for seqno in 25..=50 {
        assert_eq!(log.note(seqno, time(seqno)).unwrap(), clock(seqno));
    }
    log.sync().unwrap();
    let mut clocks = Clocks::new(&folder.0, BLOCK);
    for seqno in 1..=50 {
        assert_eq!(clocks.get(seqno).unwrap(), Some(clock(seqno)), "{seqno}");
    }
    assert_eq!(clocks.get(51).unwrap(), None);
    assert_eq!(log.at(53).unwrap(), clock(50));
    clocks.remove_before(41).unwrap();
    assert_eq!(Clocks::new(&folder.0, BLOCK).get(40).unwrap(), None);
    assert_eq!(Clocks::new(&folder.0, BLOCK).get(41).unwrap(), Some(clock(41)));
}

#[test]
fn clock_is_shown_in_utc() {
    assert_eq!(clock_text(1_900_000_000_500_000), "2030-03-17 17:46:40.500000 UTC");
    assert_eq!(clock_text(951_782_400_000_001), "2000-02-29 00:00:00.000001 UTC");
}
