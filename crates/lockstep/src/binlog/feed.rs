//! From the node's deliveries to the library of binlog files.
//!
//! Files begin at fixed seqnos, every [`FILE_SEQNOS`], and where the one before has grown to [`FILE_BYTES`]: so every
//! instance has the same files.

use super::disk_space::{DiskSpace, FileError};
use super::replace_durably;
use crate::log_member::Failure;
use lockstep_binlog::archive::{ClockLog, Clocks, Mark, Progress, recovered_end};
use lockstep_binlog::event::{Checksum, FormatDescription, Stamp};
use lockstep_binlog::ingest::FileName;
use lockstep_binlog::stream::{Group, Item, Stream, StreamError, server_id_of};
use lockstep_binlog::{Gtid as BinlogGtid, Library, Position, StreamState, Writer};
use lockstep_node::core::members::View;
use lockstep_node::core::{EntryKind, Gtid, Seqno, Uuid};
use lockstep_node::{Delivery, Ordered, StatementResult, ViewInfo, ViewStatus};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of the files: `lockstep-bin.000001`.
pub(super) const FILES: &str = "lockstep-bin";
/// A file begins after each multiple of this.
pub(super) const FILE_SEQNOS: Seqno = 1 << 16;
/// A file that has this size ends before the next group.
const FILE_BYTES: u64 = 1 << 30;
/// Files of one block of seqnos are numbered within it.
const FILES_OF_BLOCK: u64 = 10_000;
/// The server's version in format descriptions: part of the files, so the same on every instance.
pub(super) const VERSION: &str = "10.11.0-MariaDB-lockstep";
/// Why an instance cannot go on with its files.
const CANNOT_CONTINUE: &str = "the members' logs do not continue the files of this instance: it was away for too long, or the \
                               cluster's history is another one";
/// How often the files are synced, and the position is saved.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Groups are written together up to this size.
const BUFFER_BYTES: usize = 1 << 20;

/// Where an instance goes on: a file beside the library. It has the position, and the place where the synced files ended
/// then. A file of an earlier version has the position only. Then a lost end of the files cannot be told from seqnos without
/// groups, and the library's end counts, as in that version.
#[derive(Clone, Debug)]
pub(super) struct SavedPosition {
    path: PathBuf,
}

impl SavedPosition {
    pub(super) fn in_dir(dir: &Path) -> SavedPosition {
        SavedPosition { path: dir.join("position") }
    }

    /// The position; undefined if there is none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn load(&self) -> Result<Gtid, String> {
        Ok(self.read()?.map_or(Gtid::UNDEFINED, |(position, _)| position))
    }

    /// Where the files ended when the position was saved, if that is known.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn end(&self) -> Result<Option<Position>, String> {
        Ok(self.read()?.and_then(|(_, end)| end))
    }

    fn read(&self) -> Result<Option<(Gtid, Option<Position>)>, String> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{} cannot be read: {error}", self.path.display())),
        };
        let parsed = SavedPosition::parse(&text);
        parsed.map(Some).ok_or_else(|| format!("{} holds no position: {text:?}", self.path.display()))
    }

    fn parse(text: &str) -> Option<(Gtid, Option<Position>)> {
        let mut words = text.split_whitespace();
        let (uuid, seqno) = words.next()?.split_once(':')?;
        let seqno = seqno.parse().ok().filter(|seqno| *seqno >= 0)?;
        let gtid = Gtid { uuid: Uuid::parse(uuid)?, seqno };
        let end = match words.next() {
            None => None,
            Some(file) => {
                let file = FileName::parse(file).ok().filter(|file| file.base() == FILES)?;
                Some(Position { file: file.number(), offset: words.next()?.parse().ok()? })
            }
        };
        words.next().is_none().then_some((gtid, end))
    }

    /// Saves the position, durably, for files whose end is not known.
    pub(super) fn save(&self, position: Gtid) -> Result<(), FileError> {
        self.save_with_end(position, None)
    }

    /// Saves the position and the end of the files, durably. The files must have been synced.
    fn save_with_end(&self, position: Gtid, end: Option<Position>) -> Result<(), FileError> {
        let end = end.map(|end| format!(" {FILES}.{:06} {}", end.file, end.offset)).unwrap_or_default();
        let text = format!("{}:{}{end}\n", position.uuid, position.seqno);
        replace_durably(&self.path, &text)
            .map_err(|error| FileError::io(format!("{} cannot be written", self.path.display()), &error))
    }
}

/// See the module's documentation.
pub(super) struct Feed {
    writer: Writer,
    saved: SavedPosition,
    space: Arc<DiskSpace>,
    domain: u32,
    /// `None` until the node has said where the deliveries begin.
    stream: Option<Stream>,
    history: Uuid,
    view: View,
    /// Groups up to this seqno are in the library, or lie before its first file.
    written: Seqno,
    /// Groups that are not in the file yet, for the end of the current one.
    buffer: Vec<u8>,
    synced_at: Instant,
    /// The seqno in the file of the position.
    saved_seqno: Seqno,
    /// The clocks of all entries, for an archive.
    clocks: Option<ClockLog>,
    progress: Option<Progress>,
}

impl Feed {
    pub(super) fn new(writer: Writer, saved: SavedPosition, space: Arc<DiskSpace>, domain: u32) -> Feed {
        Feed {
            writer,
            saved,
            space,
            domain,
            stream: None,
            history: Uuid::NIL,
            view: View::default(),
            written: -1,
            buffer: Vec::new(),
            synced_at: Instant::now(),
            saved_seqno: -1,
            clocks: None,
            progress: None,
        }
    }

    /// Also keeps the clocks of all entries, beside the files. `known`: the clock of the position, if it is known from
    /// elsewhere.
    pub(super) fn keep_clocks(&mut self, known: Option<u64>, position: Gtid) -> Result<(), String> {
        let mut clocks = ClockLog::new(self.writer.library().dir(), FILE_SEQNOS as u64);
        let begun = clocks.begin(position.seqno.max(0) as u64, known);
        begun.map_err(|e| no_clocks(self.writer.library(), &e).into_text())?;
        self.progress = self.recovered(position, clocks.clock());
        self.clocks = Some(clocks);
        Ok(())
    }

    /// How far the files can be archived before the log is read again. On a full disk that is not possible until old files
    /// are archived, and removed.
    fn recovered(&self, position: Gtid, clock: u64) -> Option<Progress> {
        let seqno = u64::try_from(position.seqno).ok()?;
        let library = self.writer.library();
        let mut clocks = Clocks::new(library.dir(), FILE_SEQNOS as u64);
        let gtid = BinlogGtid { domain: self.domain, server: server_id_of(position.uuid), seqno };
        // The archiver reads the same files later, and says what is wrong with them.
        let end = recovered_end(library, &mut clocks, gtid).ok().flatten()?;
        let mark = Mark { seqno, clock };
        Some(Progress { end, complete: mark, resume: mark })
    }

    fn note_clock(&mut self, seqno: Seqno, time: Option<u64>) -> Result<(), String> {
        let (Some(clocks), Some(time)) = (&mut self.clocks, time) else { return Ok(()) };
        let library = self.writer.library();
        self.space
            .retry(|| clocks.note(seqno.max(1) as u64, time).map(drop).map_err(|e| no_clocks(library, &e)))
    }

    /// The reason why this instance cannot go on, and the way out.
    fn cannot_continue(&self) -> Failure {
        let dir = self.writer.library().dir().display();
        Failure::needs_operator(match self.clocks {
            None => format!("{CANNOT_CONTINUE}. Move the directory {dir} away, and start the instance again"),
            Some(_) => format!(
                "{CANNOT_CONTINUE}. The archive cannot go on without a gap: begin another one. Start this instance with an \
                 empty directory (--dir) and a new target (--to), and make a new backup. This instance archives what it has \
                 before it ends, if the target can be written; otherwise binlog files that are not in the archive are in {dir}"
            ),
        })
    }

    /// Takes a delivery.
    ///
    /// # Errors
    /// Why the stream cannot go on, for people.
    pub(super) fn on_delivery(&mut self, delivery: Delivery) -> Result<(), Failure> {
        match delivery {
            Delivery::View { info, in_log } if info.status == ViewStatus::Primary => {
                self.on_view(info, in_log)
            }
            Delivery::Ordered(ordered) => self.on_ordered(ordered),
            Delivery::Result(StatementResult { seqno, error }) => {
                let Some(stream) = &mut self.stream else { return Ok(()) };
                let groups = stream.on_result(seqno, error).map_err(|e| e.to_string())?;
                Ok(self.write(groups)?)
            }
            Delivery::StateNeeded { .. } => Err(self.cannot_continue()),
            _ => Ok(()),
        }
    }

    fn on_view(&mut self, info: ViewInfo, in_log: bool) -> Result<(), Failure> {
        if in_log && self.stream.is_some() {
            self.note_clock(info.gtid.seqno, info.time)?;
        }
        let view = View { number: info.number as u64, members: info.members };
        let Some(stream) = &mut self.stream else {
            self.view = view;
            return self.begin(info.gtid);
        };
        if info.gtid.uuid != self.history {
            return Err(Failure::needs_operator(format!(
                "the cluster's history is {} now, and was {}: a branch was founded (lockstep bootstrap). Start this \
                 instance with an empty directory",
                info.gtid.uuid, self.history
            )));
        }
        if !in_log {
            return Ok(());
        }
        let go_on = view.whose_streams_go_on(&self.view).into_iter().collect();
        self.view = view;
        let item = Item::View { seqno: info.gtid.seqno, go_on };
        let groups = stream.on_item(item).map_err(|e| e.to_string())?;
        Ok(self.write(groups)?)
    }

    /// The deliveries begin after this position, which is a border of files if there are no files yet.
    fn begin(&mut self, position: Gtid) -> Result<(), Failure> {
        self.history = position.uuid;
        self.written = match self.last_in_library(server_id_of(position.uuid))? {
            // Behind the last group there may be entries without one, up to the saved position: the files end no earlier
            // than when it was saved (`open_files`).
            Some(last) if last < position.seqno && self.saved.load()? == position => position.seqno,
            Some(last) if last < position.seqno => return Err(self.cannot_continue()),
            Some(last) => last,
            None => position.seqno,
        };
        self.stream = Some(Stream::new(self.domain, position.uuid, position.seqno, self.written));
        Ok(())
    }

    /// The last seqno in the library's files, if there is any.
    fn last_in_library(&self, server_id: u32) -> Result<Option<Seqno>, Failure> {
        let state = self.writer.state_at_end();
        match (state.last(self.domain), self.writer.end()) {
            (Some(last), _) if last.server != server_id => Err(Failure::needs_operator(format!(
                "the files in this directory end with {last}, and events of this cluster's history have the server id \
                 {server_id}: they belong to another history. Start this instance with an empty directory"
            ))),
            (Some(last), _) => Ok(Some(last.seqno as Seqno)),
            (None, Some(_)) if state.to_list().is_empty() => Ok(Some(0)),
            (None, Some(_)) => Err(Failure::needs_operator(format!(
                "the files in this directory have GTIDs of other domains than {}: {:?}",
                self.domain,
                state.to_list()
            ))),
            (None, None) => Ok(None),
        }
    }

    fn on_ordered(&mut self, ordered: Ordered) -> Result<(), Failure> {
        self.note_clock(ordered.seqno, Some(ordered.time))?;
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let Ordered { seqno, kind, pass, writeset, .. } = ordered;
        let item = match kind {
            EntryKind::TotalOrder => Item::Statement { seqno, pass, data: writeset.data },
            _ => Item::WriteSet { seqno, pass, writeset },
        };
        let groups = stream.on_item(item).map_err(|error| match error {
            StreamError::BeganBefore(seqno) => began_before(seqno, self.writer.library()),
            error => Failure::from(error.to_string()),
        })?;
        Ok(self.write(groups)?)
    }

    /// Adds groups that the library does not have yet.
    fn write(&mut self, groups: Vec<Group>) -> Result<(), String> {
        for group in groups {
            let seqno = group.gtid().seqno as Seqno;
            if seqno > self.written {
                self.open_file_for(&group)?;
                let end = self.writer.end().map_or(0, |end| end.offset) + self.buffer.len() as u64;
                self.buffer.extend(group.encode(end).map_err(|e| e.to_string())?);
                self.written = seqno;
            }
            if self.buffer.len() >= BUFFER_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Begins the file in which this group belongs, unless it is the current one.
    fn open_file_for(&mut self, group: &Group) -> Result<(), String> {
        let block = (group.gtid().seqno - 1) / FILE_SEQNOS as u64;
        let first = block * FILES_OF_BLOCK + 1;
        let next = match self.writer.end() {
            None => first,
            Some(end) if end.file < first => first,
            Some(end) if end.offset + self.buffer.len() as u64 >= FILE_BYTES => end.file + 1,
            Some(_) => return Ok(()),
        };
        if next >= first + FILES_OF_BLOCK {
            return Err(format!("more than {FILES_OF_BLOCK} GiB of events in {FILE_SEQNOS} transactions"));
        }
        self.flush()?;
        let server_id = self.stream.as_ref().map_or(0, Stream::server_id);
        let timestamp = group.timestamp();
        // Holes count as present, so that an instance that begins here writes the same. The first file of a log that has
        // lost nothing begins after the position with which the history began.
        let border = match next == first {
            true => block * FILE_SEQNOS as u64,
            false => group.gtid().seqno - 1,
        };
        let before = match self.writer.end() {
            None => border.max(self.written.max(0) as u64),
            Some(_) => border,
        };
        let before = match before {
            0 => StreamState::default(),
            seqno => StreamState::from_list(&[BinlogGtid { domain: self.domain, server: server_id, seqno }]),
        };
        let format = FormatDescription {
            timestamp,
            server_id,
            version: VERSION.into(),
            created: 0,
            checksum: Checksum::Crc32,
        };
        let stamp = Stamp { timestamp, server_id };
        let writer = &mut self.writer;
        self.space.retry(|| match writer.end() {
            None => writer.begin(next, &format, &before),
            Some(_) => writer.cut(next, stamp, &format, &before).map(|_| ()),
        })
    }

    /// Writes what is buffered, so that consumers see it.
    fn flush(&mut self) -> Result<(), String> {
        if !self.buffer.is_empty() {
            self.space.retry(|| self.writer.append(&self.buffer))?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Nothing more is there at the moment: shows consumers what was written, and syncs it if that is due. Returns the
    /// seqno up to which this instance no longer needs the log, if it has changed.
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn on_idle(&mut self) -> Result<Option<Seqno>, String> {
        self.flush()?;
        // A replica may start behind the last group. The entries from there up to here have no group.
        if let Some(stream) = self.stream.as_ref().filter(|stream| stream.done() > self.written) {
            let (domain, server, seqno) = (stream.domain(), stream.server_id(), stream.done() as u64);
            self.writer.note_complete_to(BinlogGtid { domain, server, seqno });
        }
        match self.synced_at.elapsed() >= SYNC_EVERY {
            true => self.sync(),
            false => Ok(None),
        }
    }

    /// Whether a sync is due, although more is there.
    pub(super) fn is_sync_due(&self) -> bool {
        self.synced_at.elapsed() >= SYNC_EVERY
    }

    /// Syncs the files and saves the position. As [`Feed::on_idle`].
    ///
    /// # Errors
    /// The files cannot be written.
    pub(super) fn sync(&mut self) -> Result<Option<Seqno>, String> {
        self.flush()?;
        self.synced_at = Instant::now();
        self.sync_clocks()?;
        let Some(stream) = &self.stream else { return Ok(None) };
        let seqno = stream.resume_position();
        if seqno == self.saved_seqno {
            return Ok(None);
        }
        self.space.retry(|| self.writer.sync())?;
        let (position, end) = (Gtid { uuid: self.history, seqno }, self.writer.end());
        self.space.retry(|| self.saved.save_with_end(position, end))?;
        self.saved_seqno = seqno;
        Ok(Some(seqno))
    }

    /// Makes the clocks durable: before the position, as entries before that one are not delivered again.
    fn sync_clocks(&mut self) -> Result<(), String> {
        let (Some(clocks), Some(stream)) = (&mut self.clocks, &self.stream) else { return Ok(()) };
        let library = self.writer.library();
        self.space.retry(|| clocks.sync().map_err(|e| no_clocks(library, &e)))?;
        let mark = |seqno: Seqno, clocks: &ClockLog| -> std::io::Result<Mark> {
            Ok(Mark { seqno: seqno.max(0) as u64, clock: clocks.at(seqno.max(0) as u64)? })
        };
        let marks = mark(stream.done(), clocks)
            .and_then(|complete| Ok((complete, mark(stream.resume_position(), clocks)?)));
        let (complete, resume) = marks.map_err(|e| no_clocks(library, &e).into_text())?;
        self.progress = self.writer.end().map(|end| Progress { end, complete, resume });
        Ok(())
    }

    /// How far the files are complete, as of the last sync; before the first one, as of the start. `None` without files or
    /// clocks.
    pub(super) fn progress(&self) -> Option<Progress> {
        self.progress
    }

    /// The history of the stream, once it has begun.
    pub(super) fn history(&self) -> Option<Uuid> {
        self.stream.as_ref().map(|_| self.history)
    }

    /// The server id of the stream's events, once it has begun.
    pub(super) fn server_id(&self) -> Option<u32> {
        self.stream.as_ref().map(Stream::server_id)
    }

    /// The files.
    pub(super) fn library(&self) -> &Library {
        self.writer.library()
    }

    /// The statement whose result is missing.
    pub(super) fn waits_for(&self) -> Option<Seqno> {
        self.stream.as_ref().and_then(Stream::waits_for)
    }
}

fn no_clocks(library: &Library, error: &std::io::Error) -> FileError {
    FileError::io(format!("the clocks in {} cannot be used", library.dir().display()), error)
}

/// The failure of an instance that began while a streaming transaction was open, and the way out.
fn began_before(seqno: Seqno, library: &Library) -> Failure {
    let border = (seqno / FILE_SEQNOS + 1) * FILE_SEQNOS;
    Failure::needs_operator(format!(
        "{}. An instance with an empty directory begins after a multiple of {FILE_SEQNOS}, and this transaction was open there. \
         Wait until the cluster has committed seqno {border} (wsrep_last_committed), move the directory {} away, and start this \
         instance again",
        StreamError::BeganBefore(seqno),
        library.dir().display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_begun_within_transaction_names_next_border() {
        let dir = std::env::temp_dir().join(format!("lockstep-binlog-within-{}", std::process::id()));
        let library = Writer::open(&dir, FILES, lockstep_binlog::library::Visibility::Appended)
            .unwrap()
            .library()
            .clone();
        let failure = format!("{:?}", began_before(90_000, &library));
        assert!(failure.contains("needs_operator: true") && failure.contains("seqno 131072"), "{failure}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn saved_position_round_trips_with_and_without_an_end() {
        let dir = std::env::temp_dir().join(format!("lockstep-binlog-saved-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let saved = SavedPosition::in_dir(&dir);
        assert_eq!((saved.load(), saved.end()), (Ok(Gtid::UNDEFINED), Ok(None)));
        let gtid = Gtid { uuid: Uuid([7; 16]), seqno: 12 };
        for end in [None, Some(Position { file: 1_270_001, offset: 4711 })] {
            saved.save_with_end(gtid, end).unwrap();
            assert_eq!((saved.load(), saved.end()), (Ok(gtid), Ok(end)));
        }
        // As earlier versions wrote it.
        let uuid = gtid.uuid;
        std::fs::write(dir.join("position"), format!("{uuid}:12\n")).unwrap();
        assert_eq!((saved.load(), saved.end()), (Ok(gtid), Ok(None)));
        let file = format!("{FILES}.000001");
        for text in [
            String::new(),
            "x:1".into(),
            format!("{uuid}:-1"),
            format!("{uuid}:1 {file}"),
            format!("{uuid}:1 {file} x"),
            format!("{uuid}:1 {file} 4 5"),
            format!("{uuid}:1 other.000001 4"),
        ] {
            std::fs::write(dir.join("position"), &text).unwrap();
            assert!(saved.load().is_err() && saved.end().is_err(), "{text}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
