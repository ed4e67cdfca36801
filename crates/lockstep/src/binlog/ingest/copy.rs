//! From the node's deliveries to the copied files.

use super::super::replace_durably;
use super::first_event;
use super::progress::{Begin, CopyNow};
use crate::log_member::Failure;
use bytes::Bytes;
use lockstep_binlog::ingest::{Chunk, CopyEnd, FileName, Origin, Place, Verdict};
use lockstep_binlog::library::{Position, VerbatimWriter};
use lockstep_binlog::{Gtid as BinlogGtid, Library, StreamState};
use lockstep_node::core::{Gtid, Seqno, Uuid};
use lockstep_node::{Ordered, ViewInfo};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often the files are synced, and the position is saved.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Where the copy goes on after a restart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Saved {
    /// The last entry whose bytes are in the files.
    pub(super) gtid: Gtid,
    /// The copy's end after it.
    pub(super) end: Place,
    /// Which primary of the group that is in the binlog of.
    pub(super) generation: u32,
    /// Which server that is.
    pub(super) origin: Origin,
    /// Whether the copy began later than the group's.
    pub(super) is_partial: bool,
    /// The transactions that the copies of earlier primaries have.
    pub(super) earlier: StreamState,
    /// Those of them that the present primary has, although none of its files names them.
    pub(super) unlogged: Vec<BinlogGtid>,
}

/// The directory of the copy of this primary of the group. Files of the first one are where they always were.
fn dir_of(files: &Path, generation: u32) -> PathBuf {
    match generation {
        0 => files.to_owned(),
        later => files.join(format!("primary-{}", u64::from(later) + 1)),
    }
}

impl Saved {
    fn path(dir: &Path) -> PathBuf {
        dir.join("position")
    }

    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub(super) fn load(dir: &Path) -> Result<Option<Saved>, String> {
        let path = Saved::path(dir);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{} cannot be read: {error}", path.display())),
        };
        let saved = Saved::parse(&text);
        saved.map(Some).ok_or_else(|| format!("{} holds no position: {text:?}", path.display()))
    }

    fn parse(text: &str) -> Option<Saved> {
        let mut words = text.split_whitespace();
        let (uuid, seqno) = words.next()?.split_once(':')?;
        let gtid = Gtid { uuid: Uuid::parse(uuid)?, seqno: seqno.parse().ok().filter(|seqno| *seqno >= 0)? };
        let file = FileName::parse(words.next()?).ok()?;
        let offset = words.next()?.parse().ok()?;
        let end = Place { file, offset };
        let Some(generation) = words.next() else {
            // A version without takeovers has saved it.
            let (origin, earlier) = (Origin::default(), StreamState::default());
            let unlogged = Vec::new();
            return Some(Saved { gtid, end, generation: 0, origin, is_partial: false, earlier, unlogged });
        };
        let generation = generation.parse().ok()?;
        let origin = Origin::new(words.next()?.parse().ok()?);
        let is_partial = match words.next()? {
            "whole" => false,
            "partial" => true,
            _ => return None,
        };
        let mut gtids = || -> Option<Vec<BinlogGtid>> {
            match words.next() {
                None => Some(Vec::new()),
                Some(list) => list.split(',').map(|gtid| gtid.parse().ok()).collect(),
            }
        };
        // The second list is a part of the first one, so that an empty one is never followed by another.
        let (earlier, unlogged) = (StreamState::from_list(&gtids()?), gtids()?);
        words.next().is_none().then_some(Saved {
            gtid,
            end,
            generation,
            origin,
            is_partial,
            earlier,
            unlogged,
        })
    }

    /// Saves it durably.
    fn save(&self, dir: &Path) -> Result<(), String> {
        let path = Saved::path(dir);
        let Saved { gtid, end, generation, origin, is_partial, earlier, unlogged } = self;
        let unlogged: Vec<String> = unlogged.iter().map(BinlogGtid::to_string).collect();
        let (origin, kind) = (origin.number(), if *is_partial { "partial" } else { "whole" });
        let text = format!(
            "{}:{} {} {} {generation} {origin} {kind} {earlier} {}\n",
            gtid.uuid,
            gtid.seqno,
            end.file,
            end.offset,
            unlogged.join(",")
        );
        replace_durably(&path, &text)
            .map_err(|error| format!("{} cannot be written: {error}", path.display()))
    }
}

/// See the module's documentation.
pub(super) struct Copy {
    files: PathBuf,
    /// `None` before the first file.
    writer: Option<VerbatimWriter>,
    end: CopyEnd,
    /// The transactions that the copies of earlier primaries have.
    earlier: StreamState,
    /// Those of them that the present primary has, although none of its files names them.
    unlogged: Vec<BinlogGtid>,
    /// Whether the present primary's files have all the others, too.
    reaches_earlier: bool,
    history: Uuid,
    /// Whether all entries of the log were taken, from the first one on: then the group has no copy if this member has none.
    is_whole: bool,
    /// Whether the copy began later: this member does not know whether the others took that file, nor what was before.
    is_partial: bool,
    /// The last entry that was taken.
    done: Seqno,
    saved_seqno: Seqno,
    /// The number of the file of the saved position; 0 if that is none of the present primary's.
    saved_file: Arc<AtomicU64>,
    synced_at: Instant,
}

impl Copy {
    /// Opens the files of this directory, as of the saved position.
    ///
    /// # Errors
    /// A text for people.
    pub(super) fn open(files: &Path, saved: Option<&Saved>) -> Result<Copy, String> {
        let mut copy = Copy {
            files: files.to_owned(),
            writer: None,
            end: CopyEnd::default(),
            earlier: StreamState::default(),
            unlogged: Vec::new(),
            reaches_earlier: false,
            history: Uuid::NIL,
            is_whole: false,
            is_partial: false,
            done: -1,
            saved_seqno: -1,
            saved_file: Arc::default(),
            synced_at: Instant::now(),
        };
        if let Some(Saved { gtid, end, generation, origin, is_partial, earlier, unlogged }) = saved {
            let at = Position { file: end.file.number(), offset: end.offset };
            let dir = dir_of(files, *generation);
            let writer = VerbatimWriter::open(&dir, end.file.base(), Some(at));
            let mut writer = writer.map_err(|e| e.to_string())?;
            if *generation > 0 {
                writer.continue_another(unlogged);
            }
            copy.writer = Some(writer);
            copy.end = CopyEnd::new(*generation, *origin, end.clone());
            copy.earlier.clone_from(earlier);
            copy.unlogged.clone_from(unlogged);
            copy.is_partial = *is_partial;
            (copy.history, copy.done, copy.saved_seqno) = (gtid.uuid, gtid.seqno, gtid.seqno);
            copy.saved_file.store(at.file, Ordering::SeqCst);
        }
        Ok(copy)
    }

    /// Takes a view: its history must be the copy's.
    ///
    /// # Errors
    /// A text for people.
    pub(super) fn on_view(&mut self, info: &ViewInfo, is_delivered: bool) -> Result<(), Failure> {
        let uuid = info.gtid.uuid;
        if self.history.is_nil() {
            self.history = uuid;
        }
        if uuid != self.history {
            return Err(Failure::needs_operator(format!(
                "the log's history is {uuid} now, and was {}: a branch was founded (lockstep bootstrap), or another cluster \
                 has this name. Start this member with an empty directory",
                self.history
            )));
        }
        if is_delivered {
            // The first entry of a log is a view.
            self.is_whole |= self.done < 0 && info.gtid.seqno <= 1;
            self.done = self.done.max(info.gtid.seqno);
        }
        Ok(())
    }

    /// Takes an entry. Returns whether it was a chunk whose predecessor is missing.
    ///
    /// # Errors
    /// A text for people.
    pub(super) fn on_ordered(&mut self, ordered: &Ordered) -> Result<bool, String> {
        if !ordered.pass {
            self.done = ordered.seqno;
            return Ok(true);
        }
        let chunk = Chunk::decode(&ordered.writeset.data).map_err(|why| {
            format!(
                "the entry at seqno {} {why}. A group of `lockstep binlog ingest` must have no other members",
                ordered.seqno
            )
        })?;
        let verdict = self.take(&chunk)?;
        // Only now: a position behind an entry that failed would leave it out after a restart.
        self.done = ordered.seqno;
        Ok(verdict == Verdict::Gap)
    }

    fn take(&mut self, chunk: &Chunk) -> Result<Verdict, String> {
        let before = self.end.generation();
        let verdict = self.end.judge(chunk);
        if verdict == Verdict::Gap && self.is_partial && chunk.generation > before {
            return Err("another primary has taken over, and this copy does not end where the others' do: it began with a \
                 file of a primary that the group had left. Start this member with an empty directory"
                .into());
        }
        let dir = dir_of(&self.files, self.end.generation());
        let fails = |error: lockstep_binlog::library::LibraryError| error.to_string();
        match verdict {
            Verdict::Known | Verdict::Gap => {}
            Verdict::Take { skip } => {
                let writer = self.writer.as_mut().ok_or("the copy has an end, and no file")?;
                writer.append(&chunk.data[skip..]).map_err(fails)?;
            }
            Verdict::TakeFile => {
                if self.writer.is_none() {
                    // Files of a process that was killed before it saved a position are removed.
                    let mut writer = VerbatimWriter::open(&dir, chunk.at.file.base(), None).map_err(fails)?;
                    if self.end.generation() > 0 {
                        self.unlogged.clone_from(&chunk.unlogged);
                        writer.continue_another(&self.unlogged);
                    }
                    self.is_partial = !self.is_whole;
                    self.writer = Some(writer);
                }
                self.begin_file(chunk)?;
            }
            Verdict::TakeOver => {
                (self.earlier, self.reaches_earlier) = (self.transactions(), false);
                self.unlogged.clone_from(&chunk.unlogged);
                self.saved_file.store(0, Ordering::SeqCst);
                // The copy ends where the others' do. The first primary's Gtid_list names all that was before.
                self.is_partial &= before > 0;
                if let Some(writer) = &mut self.writer {
                    writer.sync().map_err(fails)?;
                }
                // As above. The files of the primary before stay: a restart may begin with them.
                let mut writer = VerbatimWriter::open(&dir, chunk.at.file.base(), None).map_err(fails)?;
                writer.continue_another(&self.unlogged);
                self.writer = Some(writer);
                self.begin_file(chunk)?;
            }
        }
        Ok(verdict)
    }

    fn begin_file(&mut self, chunk: &Chunk) -> Result<(), String> {
        let writer = self.writer.as_mut().ok_or("the copy has no file")?;
        let begun = writer.begin_file(chunk.at.file.number());
        begun.and_then(|()| writer.append(&chunk.data)).map_err(|error| error.to_string())
    }

    /// The number of the file of the saved position, as it changes: that one must stay.
    pub(super) fn saved_file(&self) -> Arc<AtomicU64> {
        self.saved_file.clone()
    }

    /// The copy's end.
    pub(super) fn end(&self) -> &CopyEnd {
        &self.end
    }

    /// All transactions of the copy, those of earlier primaries included.
    fn transactions(&self) -> StreamState {
        let mut all = self.earlier.clone();
        let now = self.writer.as_ref().map(|writer| writer.library().state_at_end()).unwrap_or_default();
        // Another primary's file may begin before the end of the copy so far.
        let is_new = |all: &StreamState, gtid: &BinlogGtid| {
            all.seqno_of(gtid.domain, gtid.server).is_none_or(|last| last < gtid.seqno)
        };
        now.to_list().into_iter().for_each(|gtid| {
            if is_new(&all, &gtid) {
                all.update(gtid);
            }
        });
        all
    }

    /// The last entry that was taken.
    pub(super) fn done(&self) -> Seqno {
        self.done
    }

    /// Where a reader of the primary goes on.
    ///
    /// # Errors
    /// The last event cannot be read.
    pub(super) fn begin(&self) -> Result<Begin, String> {
        let (Some(end), Some(writer)) = (self.end.place(), &self.writer) else {
            return Ok(if self.is_whole { Begin::Oldest } else { Begin::Unknown });
        };
        let (at, length, group) = writer.last_event().ok_or("the copy's last file is incomplete")?;
        let path = writer.library().dir().join(end.file.to_string());
        let mut event = vec![0; length as usize];
        let read = std::fs::File::open(&path).and_then(|file| file.read_exact_at(&mut event, at.offset));
        read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Ok(Begin::Copy(Box::new(CopyNow {
            generation: self.end.generation(),
            origin: self.end.origin(),
            is_partial: self.is_partial,
            server_id: first_event(writer.library())?.server_id,
            end: end.clone(),
            last: (Place { file: end.file.clone(), offset: at.offset }, Bytes::from(event)),
            group,
            unlogged: self.unlogged.clone(),
            transactions: self.transactions(),
        })))
    }

    /// Whether a sync is due.
    pub(super) fn is_sync_due(&self) -> bool {
        self.synced_at.elapsed() >= SYNC_EVERY
    }

    /// Syncs the files and saves the position, unless the copy ends in the middle of an event. Returns the seqno up to
    /// which this member no longer needs the log, if it has changed.
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn sync(&mut self) -> Result<Option<Seqno>, String> {
        let (Some(writer), Some(end)) = (&mut self.writer, self.end.place()) else { return Ok(None) };
        // In the middle of an event the next entry is tried, and not the next second.
        if self.done == self.saved_seqno || !writer.is_between_events() {
            return Ok(None);
        }
        writer.sync().map_err(|e| e.to_string())?;
        let number = end.file.number();
        let gtid = Gtid { uuid: self.history, seqno: self.done };
        let (generation, origin) = (self.end.generation(), self.end.origin());
        let (earlier, unlogged) = (self.earlier.clone(), self.unlogged.clone());
        let is_partial = self.is_partial;
        let saved = Saved { gtid, end: end.clone(), generation, origin, is_partial, earlier, unlogged };
        saved.save(&self.files)?;
        self.saved_file.store(number, Ordering::SeqCst);
        (self.saved_seqno, self.synced_at) = (self.done, Instant::now());
        Ok(Some(self.done))
    }

    /// The files for replicas, and which primary of the group they are of. `None` before the first file, and while another
    /// primary's files do not yet reach the end of the copy before: a replica may be further.
    pub(super) fn library(&mut self) -> Option<(u32, &Library)> {
        let library = self.writer.as_ref()?.library();
        library.end()?;
        if !self.reaches_earlier {
            let state = library.state_at_end();
            let has = |gtid: BinlogGtid| {
                state.seqno_of(gtid.domain, gtid.server).is_some_and(|last| gtid.seqno <= last)
            };
            self.reaches_earlier = self.earlier.lasts().all(has);
        }
        self.reaches_earlier.then_some((self.end.generation(), library))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_binlog::event::{Checksum, EventWriter, FormatDescription, GtidEvent, Stamp, gtid_flag};

    /// A file's first chunk: its header, and one transaction.
    fn first_chunk(generation: u32, number: u64, after: Option<(u64, u64)>) -> Chunk {
        let mut events = EventWriter::at(4);
        let stamp = Stamp { timestamp: 7, server_id: 10 };
        events.format_description(&FormatDescription {
            timestamp: 7,
            server_id: 10,
            version: "10.11".into(),
            created: 0,
            checksum: Checksum::Crc32,
        });
        events.gtid_list(stamp, &[]);
        let (gtid, flags) = (BinlogGtid { domain: 0, server: 10, seqno: number }, gtid_flag::TRANSACTIONAL);
        events.gtid(7, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
        events.xid(stamp, number);
        let at = Place { file: FileName::new("bin", number).unwrap(), offset: 4 };
        let data = events.finish().unwrap().into();
        let (origin, unlogged) = (Origin::new(u64::from(generation) + 1), Vec::new());
        Chunk { generation, origin, at, after, unlogged, data }
    }

    fn end_of(copy: &Copy) -> Option<(u64, u64)> {
        copy.end.place().map(|end| (end.file.number(), end.offset))
    }

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("lockstep-ingest-copy-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn sync_within_an_event_is_due_again_at_once() {
        let dir = directory("sync");
        let mut copy = Copy::open(&dir, None).unwrap();
        copy.take(&first_chunk(0, 5, None)).unwrap();
        copy.done = 3;
        assert_eq!(copy.sync(), Ok(Some(3)));
        assert_eq!(copy.saved_file().load(Ordering::SeqCst), 5);
        // The begin of a longer event.
        let at = copy.end.place().unwrap().clone();
        let mut event = first_chunk(0, 5, None).data.slice(..25).to_vec();
        event[13..17].copy_from_slice(&(at.offset as u32 + 999).to_le_bytes());
        event[9..13].copy_from_slice(&999u32.to_le_bytes());
        copy.take(&Chunk { at, data: event.into(), ..first_chunk(0, 5, None) }).unwrap();
        copy.done = 4;
        copy.synced_at = Instant::now().checked_sub(2 * SYNC_EVERY).unwrap();
        assert_eq!(copy.sync(), Ok(None));
        assert!(copy.is_sync_due());
        drop(copy);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn copy_that_began_later_knows_it_until_a_takeover() {
        let dir = directory("partial");
        let mut copy = Copy::open(&dir, None).unwrap();
        copy.take(&first_chunk(0, 5, Some((4, 99)))).unwrap();
        copy.done = 3;
        assert!(copy.is_partial);
        copy.sync().unwrap();
        assert!(Saved::load(&dir).unwrap().unwrap().is_partial);
        // The others end elsewhere.
        let end = end_of(&copy).map(|(number, offset)| (number + 1, offset));
        let wrong = copy.take(&first_chunk(1, 2, end)).unwrap_err();
        assert!(wrong.contains("empty directory"), "{wrong}");
        // They end at the same place.
        let end = end_of(&copy);
        assert_eq!(copy.take(&first_chunk(1, 2, end)), Ok(Verdict::TakeOver));
        assert!(!copy.is_partial);
        assert_eq!(copy.saved_file().load(Ordering::SeqCst), 0, "the new primary's files are not saved yet");
        drop(copy);
        // A later primary's list need not name what was before.
        let dir_later = directory("later");
        let mut copy = Copy::open(&dir_later, None).unwrap();
        copy.take(&first_chunk(1, 5, Some((4, 99)))).unwrap();
        let end = end_of(&copy);
        assert_eq!(copy.take(&first_chunk(2, 2, end)), Ok(Verdict::TakeOver));
        assert!(copy.is_partial);
        drop(copy);
        // A copy from the log's begin.
        let dir_whole = directory("whole");
        let mut copy = Copy::open(&dir_whole, None).unwrap();
        copy.is_whole = true;
        copy.take(&first_chunk(0, 5, None)).unwrap();
        assert!(!copy.is_partial);
        assert_eq!(copy.take(&first_chunk(1, 2, None)), Ok(Verdict::Gap));
        drop(copy);
        for dir in [dir, dir_later, dir_whole] {
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn transaction_in_no_file_is_known_after_a_takeover() {
        let (dir, dir_behind) = (directory("unlogged"), directory("behind"));
        let begun = |dir: &Path| {
            let mut copy = Copy::open(dir, None).unwrap();
            copy.is_whole = true;
            copy.take(&first_chunk(0, 5, None)).unwrap();
            copy
        };
        let (mut copy, mut behind) = (begun(&dir), begun(&dir_behind));
        let end = end_of(&copy);
        behind.take(&first_chunk(1, 1, end)).unwrap();
        assert!(behind.library().is_none(), "a replica may be further than the new primary's files");
        drop(behind);
        // The new primary was built from a backup that has all of the copy.
        let has: BinlogGtid = "0-10-5".parse().unwrap();
        let mut events = EventWriter::at(4);
        events.format_description(&FormatDescription {
            timestamp: 7,
            server_id: 11,
            version: "10.11".into(),
            created: 0,
            checksum: Checksum::Crc32,
        });
        events.gtid_list(Stamp { timestamp: 7, server_id: 11 }, &[]);
        let data = events.finish().unwrap().into();
        let backup = Chunk { unlogged: vec![has], data, ..first_chunk(1, 1, end) };
        assert_eq!(copy.take(&backup), Ok(Verdict::TakeOver));
        let check = |copy: &mut Copy| {
            let (generation, library) = copy.library().expect("it is served");
            let replica = |state: &str| library.position_of(&state.parse().unwrap()).map(|start| start.state);
            assert_eq!((generation, replica("0-10-5").unwrap().to_string()), (1, "0-10-5".into()));
            let behind = replica("0-10-4").unwrap_err().to_string();
            assert!(behind.contains("the events up to GTID 0-10-5 were purged"), "{behind}");
            assert_eq!(copy.transactions().to_string(), "0-10-5");
        };
        check(&mut copy);
        // Also after a restart.
        copy.done = 3;
        copy.sync().unwrap();
        drop(copy);
        let mut copy = Copy::open(&dir, Saved::load(&dir).unwrap().as_ref()).unwrap();
        check(&mut copy);
        let Begin::Copy(now) = copy.begin().unwrap() else { panic!("there is a copy") };
        assert_eq!(now.unlogged, [has]);
        drop(copy);
        for dir in [dir, dir_behind] {
            std::fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn saved_position_round_trips_and_other_text_is_refused() {
        let dir = std::env::temp_dir().join(format!("lockstep-ingest-saved-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(Saved::load(&dir), Ok(None));
        let uuid = Uuid([7; 16]);
        let end = Place { file: FileName::parse("mariadb-bin.000003").unwrap(), offset: 4711 };
        let gtid = Gtid { uuid, seqno: 12 };
        let origin = Origin::new(u64::MAX);
        let saved = Saved {
            gtid,
            end,
            generation: 0,
            origin,
            is_partial: false,
            earlier: StreamState::default(),
            unlogged: Vec::new(),
        };
        let earlier: Vec<BinlogGtid> = ["0-1-9", "0-2-3", "5-1-1"].map(|gtid| gtid.parse().unwrap()).into();
        let later = Saved {
            generation: 2,
            is_partial: true,
            earlier: StreamState::from_list(&earlier),
            ..saved.clone()
        };
        let unlogged = Saved { unlogged: vec![earlier[2], earlier[0]], ..later.clone() };
        let empty = Saved { generation: 1, ..saved.clone() };
        for saved in [saved, later, unlogged, empty] {
            saved.save(&dir).unwrap();
            assert_eq!(Saved::load(&dir), Ok(Some(saved)));
        }
        // Saved by a version without takeovers.
        std::fs::write(dir.join("position"), format!("{uuid}:12 mariadb-bin.000003 4711\n")).unwrap();
        let old = Saved::load(&dir).unwrap().unwrap();
        assert_eq!((old.generation, old.origin, old.end.offset), (0, Origin::default(), 4711));
        for text in [
            "",
            "x",
            "x:1 mariadb-bin.000003 4",
            &format!("{uuid}:-1 bin.000001 4"),
            &format!("{uuid}:1 bin 4"),
            &format!("{uuid}:1 bin.000001 4 x"),
            &format!("{uuid}:1 bin.000001 4 1 5 whole 0-1"),
            &format!("{uuid}:1 bin.000001 4 1 5 whole 0-1-1 x"),
            &format!("{uuid}:1 bin.000001 4 1 5 whole 0-1-1 0-1-1 x"),
            &format!("{uuid}:1 bin.000001 4 1 5 0-1-1"),
            &format!("{uuid}:1 bin.000001 4 1"),
        ] {
            std::fs::write(dir.join("position"), text).unwrap();
            assert!(Saved::load(&dir).is_err(), "{text}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
