//! `grastate.dat` and `gvwstate.dat`, as Galera writes them: tools and operators read both.

use crate::sync::lock;
use lockstep_abi as abi;
use lockstep_node::FollowedLog;
use lockstep_node::core::members::ViewMember;
use lockstep_node::core::{Gtid, SEQNO_UNDEFINED, Uuid, ViewUuid};
use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::UNIX_EPOCH;

const MAX_SIZE: usize = 512;

/// The content of `grastate.dat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Saved {
    /// The database's position; the seqno is −1 while it is unknown, above all while the server runs.
    pub(crate) position: Gtid,
    /// Whether this member was the last to leave.
    pub(crate) safe_to_bootstrap: bool,
    /// The file names no history only because a statement in total order is, or was, in progress.
    pub(crate) in_statement: bool,
    /// The log from which the database was brought to this position; nil if the file does not name it, as one by Galera's
    /// library. A log that was founded on the data of its history assigns seqnos again that the history had assigned before.
    pub(crate) log: Uuid,
    /// See [`Followed`]; `None` if that is not known, as during a state transfer and until this member's log has reached the
    /// transferred state.
    pub(crate) followed: Option<Followed>,
}

/// The log of which the database has got all its entries, and the database that has got them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Followed {
    pub(crate) log: FollowedLog,
    /// A database that was put in place of another one has not followed its log.
    pub(crate) database: DatabaseId,
}

impl Followed {
    fn parse(text: &str) -> Option<Followed> {
        let mut words = text.split_ascii_whitespace();
        let mut word = || words.next();
        let (member, incarnation) = (Uuid::parse(word()?)?, word()?.parse().ok()?);
        let database = DatabaseId::parse(word()?)?;
        let log = FollowedLog { member, incarnation };
        words.next().is_none().then_some(Followed { log, database })
    }
}

/// Identifies the database in a directory, by its file `ibdata1` and its folder `mysql`: by their inodes, and by the times at
/// which they were made. A file system may give a restored file the inode of the one that was deleted before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DatabaseId {
    inodes: [u64; 2],
    /// Nanoseconds since 1970; 0 if the file system does not keep them.
    made: [u64; 2],
}

impl DatabaseId {
    /// Identifies the database in this data directory. A file that is absent counts as zeros.
    pub(crate) fn of(dir: &Path) -> DatabaseId {
        let of = ["ibdata1", "mysql"].map(|name| {
            let Ok(meta) = std::fs::metadata(dir.join(name)) else { return (0, 0) };
            let made = meta.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            (meta.ino(), made.map_or(0, |since| since.as_nanos() as u64))
        });
        DatabaseId { inodes: of.map(|(inode, _)| inode), made: of.map(|(_, made)| made) }
    }

    fn parse(text: &str) -> Option<DatabaseId> {
        let numbers: Result<Vec<u64>, _> = text.split('-').map(str::parse).collect();
        let [first, second, first_made, second_made] = numbers.ok()?[..] else { return None };
        Some(DatabaseId { inodes: [first, second], made: [first_made, second_made] })
    }

    /// The form of earlier versions, which has no times.
    pub(crate) fn without_times(&self) -> String {
        let [first, second] = self.inodes;
        format!("{first}-{second}")
    }
}

impl fmt::Display for DatabaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.made;
        write!(f, "{}-{first}-{second}", self.without_times())
    }
}

/// The comment for [`Saved::in_statement`]. Galera's library and its tools skip it.
const IN_STATEMENT: &str = "# within a statement in total order: see lockstep.ddl.log";

/// The comment for [`Saved::log`].
const OF_LOG: &str = "# lockstep log: ";

/// The comment for [`Saved::followed`].
const FOLLOWED: &str = "# lockstep member: ";

impl Saved {
    fn at(position: Gtid, safe_to_bootstrap: bool) -> Saved {
        Saved { position, safe_to_bootstrap, in_statement: false, log: Uuid::NIL, followed: None }
    }

    fn parse(text: &str) -> Saved {
        let mut saved = Saved::at(Gtid::UNDEFINED, true);
        for line in text.lines() {
            saved.in_statement |= line.trim_end() == IN_STATEMENT;
            if let Some(log) = line.strip_prefix(OF_LOG) {
                saved.log = Uuid::parse(log.trim()).unwrap_or(Uuid::NIL);
                continue;
            }
            if let Some(followed) = line.strip_prefix(FOLLOWED) {
                saved.followed = Followed::parse(followed);
                continue;
            }
            let Some((key, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            match key.trim() {
                "uuid" => saved.position.uuid = Uuid::parse(value).unwrap_or(Uuid::NIL),
                "seqno" => saved.position.seqno = value.parse().unwrap_or(SEQNO_UNDEFINED),
                "safe_to_bootstrap" => saved.safe_to_bootstrap = value != "0",
                _ => {}
            }
        }
        saved
    }

    fn text(&self) -> String {
        let mut text = format!(
            "# GALERA saved state\nversion: 2.1\nuuid:    {}\nseqno:   {}\nsafe_to_bootstrap: {}\n",
            self.position.uuid, self.position.seqno, self.safe_to_bootstrap as u8
        );
        if !self.log.is_nil() {
            let _ = writeln!(text, "{OF_LOG}{}", self.log);
        }
        if let Some(Followed { log, database }) = self.followed {
            let _ = writeln!(text, "{FOLLOWED}{} {} {database}", log.member, log.incarnation);
        }
        if self.in_statement {
            text = text + IN_STATEMENT + "\n";
        }
        text
    }
}

/// The content parsed from a text, and the text written for it.
#[cfg(test)]
pub(crate) fn read_back(text: &str) -> (Saved, String) {
    let saved = Saved::parse(text);
    (saved, saved.text())
}

struct Inner {
    file: File,
    saved: Saved,
    /// The number of statements in total order in progress: the state of the database is uncertain.
    unsafe_marks: usize,
    /// A statement in progress has no mark in the DDL journal.
    unmarked: bool,
    /// A state transfer has begun and has not succeeded. It may begin several times and ends once.
    transfer: bool,
    /// The database differs from the cluster's, until a state transfer.
    corrupt: bool,
    /// The seqno is written when the process ends.
    at_end: bool,
    /// The content of the file; `None` if a write has failed since.
    written: Option<Saved>,
    written_len: usize,
}

/// `grastate.dat`. Written in place, padded with blanks, synced.
pub(crate) struct StateFile {
    path: PathBuf,
    inner: Mutex<Inner>,
    /// [`process_ends`] writes it once more.
    has_exit_handler: AtomicBool,
}

/// The file to write when the process ends. An earlier write could claim too much: a server leaves long before it closes
/// InnoDB. If InnoDB does not flush at each commit and the machine fails in between, the database is behind that seqno.
static LAST: Mutex<Option<Arc<StateFile>>> = Mutex::new(None);

/// Called by `exit`, after InnoDB has been closed; not called if the process is killed or aborts.
pub(crate) extern "C" fn process_ends() {
    let _ = crate::guard::guarded(|| {
        // Without waiting: threads that hold locks may no longer exist.
        if let Ok(mut last) = LAST.try_lock()
            && let Some(file) = last.take()
        {
            let _ = file.end();
        }
    });
}

/// Makes `file` the one that is written when the process ends.
pub(crate) fn write_at_exit(file: &Arc<StateFile>) {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    // SAFETY: the function is `extern "C"`, does not unwind, and is never unmapped (`-z nodelete`).
    let registered = *REGISTERED.get_or_init(|| unsafe { libc::atexit(process_ends) } == 0);
    file.has_exit_handler.store(registered, Ordering::Release);
    *lock(&LAST) = Some(file.clone());
}

/// The remedy for a file that cannot be opened, to append to the error; may be empty.
pub(crate) fn remedy(error: &io::Error, path: &Path) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => format!(
            ": a server that ran as another account may have created it; change its owner (chown mysql: {})",
            path.display()
        ),
        _ => String::new(),
    }
}

impl StateFile {
    /// Opens or creates the file. The text in the result is a warning: another process has it locked.
    pub(crate) fn open(dir: &Path) -> io::Result<(StateFile, Option<String>)> {
        let path = dir.join("grastate.dat");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o660)
            .custom_flags(libc::O_CLOEXEC)
            .open(&path)?;
        let mut text = Vec::new();
        Read::by_ref(&mut file).take(1 << 16).read_to_end(&mut text)?;
        // SAFETY: an all-zero `flock` is a valid one.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        range.l_type = libc::F_WRLCK as _;
        range.l_whence = libc::SEEK_SET as _;
        // SAFETY: the descriptor is open and `range` is a `flock`.
        let warning = match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &range) } {
            0 => None,
            _ => Some(format!(
                "cannot lock {}: {}; another process may be running on this directory",
                path.display(),
                io::Error::last_os_error()
            )),
        };
        let saved = Saved::parse(&String::from_utf8_lossy(&text));
        let inner = Inner {
            file,
            saved,
            unsafe_marks: 0,
            unmarked: false,
            transfer: false,
            corrupt: false,
            at_end: false,
            written: Some(saved),
            written_len: text.len(),
        };
        let has_exit_handler = AtomicBool::new(false);
        Ok((StateFile { path, inner: Mutex::new(inner), has_exit_handler }, warning))
    }

    /// The content, including what will be written only when the state is certain.
    pub(crate) fn get(&self) -> Saved {
        lock(&self.inner).saved
    }

    /// Sets [`Saved::log`] for the next write.
    pub(crate) fn of_log(&self, log: Uuid) {
        lock(&self.inner).saved.log = log;
    }

    /// Sets [`Saved::followed`] for the next write. No effect while the database is overwritten, or differs.
    pub(crate) fn set_followed(&self, followed: Followed) {
        let mut inner = lock(&self.inner);
        if !inner.transfer && !inner.corrupt {
            inner.saved.followed = Some(followed);
        }
    }

    /// Writes what was set for the next write.
    pub(crate) fn rewrite(&self) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        self.write(&mut inner)
    }

    /// Sets the position. Written at once, or when the last unsafe mark is removed.
    pub(crate) fn set(&self, position: Gtid, safe_to_bootstrap: bool) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        if inner.corrupt {
            return Ok(());
        }
        let Saved { log, followed, .. } = inner.saved;
        inner.saved = Saved { log, followed, ..Saved::at(position, safe_to_bootstrap) };
        inner.at_end = false;
        match inner.unsafe_marks {
            0 => self.write(&mut inner),
            _ => Ok(()),
        }
    }

    /// As [`StateFile::set`], but the seqno is written only when the process ends in good order.
    pub(crate) fn set_at_end(&self, position: Gtid, safe_to_bootstrap: bool) -> io::Result<()> {
        if !self.has_exit_handler.load(Ordering::Acquire) {
            return self.set(position, safe_to_bootstrap);
        }
        let mut inner = lock(&self.inner);
        if inner.corrupt {
            return Ok(());
        }
        let Saved { log, followed, .. } = inner.saved;
        inner.saved = Saved { log, followed, ..Saved::at(position, safe_to_bootstrap) };
        inner.at_end = true;
        self.write(&mut inner)
    }

    /// The process ends.
    fn end(&self) -> io::Result<()> {
        match self.inner.try_lock() {
            Ok(mut inner) if inner.at_end => {
                inner.at_end = false;
                self.write(&mut inner)
            }
            _ => Ok(()),
        }
    }

    /// The state of the database is uncertain until [`StateFile::mark_safe`] has been called as often. `marked`: the DDL
    /// journal tells what to do after a crash.
    pub(crate) fn mark_unsafe(&self, marked: bool) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        inner.unsafe_marks += 1;
        inner.unmarked |= !marked;
        match marked && inner.unsafe_marks > 1 {
            true => Ok(()),
            false => self.write(&mut inner),
        }
    }

    /// Undoes one [`StateFile::mark_unsafe`].
    pub(crate) fn mark_safe(&self) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        inner.unsafe_marks = inner.unsafe_marks.saturating_sub(1);
        match inner.unsafe_marks {
            0 => {
                inner.unmarked = false;
                self.write(&mut inner)
            }
            _ => Ok(()),
        }
    }

    /// The database is overwritten from now until [`StateFile::mark_restored`].
    pub(crate) fn transfer_begins(&self) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        inner.transfer = true;
        inner.saved.followed = None;
        self.write(&mut inner)
    }

    /// The database differs from the cluster's.
    pub(crate) fn mark_corrupt(&self) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        inner.corrupt = true;
        inner.saved.position = Gtid::UNDEFINED;
        inner.saved.in_statement = false;
        inner.saved.followed = None;
        self.write(&mut inner)
    }

    /// The whole state has been transferred.
    pub(crate) fn mark_restored(&self) {
        let mut inner = lock(&self.inner);
        inner.corrupt = false;
        inner.transfer = false;
    }

    fn write(&self, inner: &mut Inner) -> io::Result<()> {
        let mut now = inner.saved;
        if inner.unsafe_marks > 0 || inner.transfer || inner.corrupt {
            now.position = Gtid::UNDEFINED;
        }
        now.in_statement = (now.in_statement || inner.unsafe_marks > 0)
            && !(inner.unmarked || inner.transfer || inner.corrupt);
        if inner.at_end {
            now.position.seqno = SEQNO_UNDEFINED;
        }
        if Some(now) == inner.written && inner.written_len <= MAX_SIZE && inner.written_len > 0 {
            return Ok(());
        }
        let mut text = now.text();
        let len = text.len();
        // Padded to the former length, so that the file never holds a shorter text than a complete one.
        while text.len() < inner.written_len.min(MAX_SIZE) {
            text.push(' ');
        }
        // After a failure nobody knows what the file has.
        inner.written = None;
        let result = (|| {
            inner.file.seek(SeekFrom::Start(0))?;
            inner.file.write_all(text.as_bytes())?;
            if inner.written_len > MAX_SIZE {
                inner.file.set_len(text.len() as u64)?;
            }
            inner.file.sync_all()
        })();
        result.map_err(|error: io::Error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", self.path.display()))
        })?;
        inner.written = Some(now);
        inner.written_len = len.max(inner.written_len.min(MAX_SIZE));
        Ok(())
    }
}

/// Writes the last Primary view to `gvwstate.dat`.
pub(crate) fn write_view(
    dir: &Path,
    own: ViewUuid,
    number: i64,
    zone: u8,
    members: &[ViewMember],
) -> io::Result<()> {
    let mut text = format!("my_uuid: {own}\n#vwbeg\n");
    let first = members.first().map_or(Uuid::NIL, |member| member.view_uuid);
    let _ = writeln!(text, "view_id: 3 {first} {number}\nbootstrap: 0");
    for member in members {
        let _ = writeln!(text, "member: {} {zone}", member.view_uuid);
    }
    text.push_str("#vwend\n");
    let (path, draft) = (dir.join("gvwstate.dat"), dir.join("gvwstate.dat.tmp"));
    std::fs::write(&draft, text)?;
    std::fs::rename(&draft, &path)
}

/// Removes `gvwstate.dat`: this member has left in good order.
pub(crate) fn remove_view(dir: &Path) -> io::Result<()> {
    match std::fs::remove_file(dir.join("gvwstate.dat")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The core's UUID as the server's.
pub(crate) fn uuid_out(uuid: Uuid) -> abi::Uuid {
    abi::Uuid { data: uuid.0 }
}

/// The server's UUID as the core's.
pub(crate) fn uuid_in(uuid: abi::Uuid) -> Uuid {
    Uuid(uuid.data)
}

/// The core's GTID as the server's.
pub(crate) fn gtid_out(gtid: Gtid) -> abi::Gtid {
    abi::Gtid { uuid: uuid_out(gtid.uuid), seqno: gtid.seqno }
}

/// The server's GTID as the core's.
pub(crate) fn gtid_in(gtid: abi::Gtid) -> Gtid {
    Gtid { uuid: uuid_in(gtid.uuid), seqno: gtid.seqno }
}

/// A data directory of a test, which is removed with this.
#[cfg(test)]
pub(crate) struct TestDir(pub(crate) PathBuf);

#[cfg(test)]
impl TestDir {
    pub(crate) fn new(name: &str) -> TestDir {
        let path = std::env::temp_dir().join(format!("lockstep-wsrep-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        TestDir(path)
    }

    /// The content of `grastate.dat`.
    fn read(&self) -> Saved {
        Saved::parse(&std::fs::read_to_string(self.0.join("grastate.dat")).unwrap())
    }
}

#[cfg(test)]
impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seqno: i64) -> Gtid {
        Gtid { uuid: Uuid([0xab; 16]), seqno }
    }

    #[test]
    fn permission_error_names_chown_command() {
        let of = |kind| remedy(&io::Error::from(kind), Path::new("/data/lockstep.ddl.log"));
        assert!(of(io::ErrorKind::PermissionDenied).contains("chown mysql: /data/lockstep.ddl.log"));
        assert_eq!(of(io::ErrorKind::IsADirectory), "");
    }

    #[test]
    fn missing_file_is_undefined_state_safe_to_bootstrap() {
        let dir = TestDir::new("missing");
        let (file, warning) = StateFile::open(&dir.0).unwrap();
        assert_eq!(warning, None);
        assert_eq!(file.get(), Saved::at(Gtid::UNDEFINED, true));
    }

    #[test]
    fn log_is_named_until_galera_writes_file() {
        let dir = TestDir::new("log");
        let (file, _) = StateFile::open(&dir.0).unwrap();
        let log = Uuid([0xcd; 16]);
        file.of_log(log);
        file.set(at(SEQNO_UNDEFINED), false).unwrap();
        assert_eq!(dir.read(), Saved { log, ..Saved::at(at(SEQNO_UNDEFINED), false) });
        // The longest possible text fits.
        let database = DatabaseId { inodes: [u64::MAX; 2], made: [u64::MAX; 2] };
        let followed = Followed { log: FollowedLog { member: log, incarnation: u64::MAX }, database };
        let longest =
            Saved { log, in_statement: true, followed: Some(followed), ..Saved::at(at(i64::MAX), true) };
        assert!(longest.text().len() <= MAX_SIZE, "{}", longest.text().len());
        assert_eq!(Saved::parse(&longest.text()), longest);
        let galeras = "# GALERA saved state\nversion: 2.1\nuuid:    abababab-abab-abab-abab-abababababab\nseqno:   9\n\
                       safe_to_bootstrap: 1\n";
        assert_eq!(Saved::parse(galeras), Saved::at(at(9), true));
    }

    #[test]
    fn file_of_galera_is_parsed() {
        let dir = TestDir::new("galera");
        let text = "# GALERA saved state\nversion: 2.1\nuuid:    6f5a5d44-0c09-11ee-be56-0242ac120002\n\
                    seqno:   1234\nsafe_to_bootstrap: 0\n      ";
        std::fs::write(dir.0.join("grastate.dat"), text).unwrap();
        let saved = StateFile::open(&dir.0).unwrap().0.get();
        assert_eq!(saved.position.to_string(), "6f5a5d44-0c09-11ee-be56-0242ac120002:1234");
        assert!(!saved.safe_to_bootstrap);
    }

    #[test]
    fn position_is_read_back_and_file_stays_small() {
        let dir = TestDir::new("set");
        std::fs::write(dir.0.join("grastate.dat"), "x".repeat(1000)).unwrap();
        let (file, _) = StateFile::open(&dir.0).unwrap();
        for seqno in [9_000_000_000, -1, 7] {
            file.set(at(seqno), seqno == 7).unwrap();
            assert_eq!(dir.read(), Saved::at(at(seqno), seqno == 7));
            assert!(std::fs::metadata(dir.0.join("grastate.dat")).unwrap().len() <= MAX_SIZE as u64);
        }
        drop(file);
        assert_eq!(StateFile::open(&dir.0).unwrap().0.get().position, at(7));
    }

    #[test]
    fn file_names_no_state_while_unsafe() {
        let dir = TestDir::new("unsafe");
        let (file, _) = StateFile::open(&dir.0).unwrap();
        file.set(at(5), false).unwrap();
        file.mark_unsafe(true).unwrap();
        file.mark_unsafe(true).unwrap();
        assert_eq!(dir.read().position, Gtid::UNDEFINED);
        assert!(
            dir.read().in_statement && std::fs::metadata(dir.0.join("grastate.dat")).unwrap().len() <= 256
        );
        file.set(at(6), true).unwrap();
        file.mark_safe().unwrap();
        assert_eq!(dir.read().position, Gtid::UNDEFINED, "one is still under way");
        file.mark_safe().unwrap();
        assert_eq!(dir.read(), Saved::at(at(6), true));
        // A statement without a mark in the journal.
        file.mark_unsafe(true).unwrap();
        file.mark_unsafe(false).unwrap();
        assert_eq!(dir.read(), Saved::at(Gtid::UNDEFINED, true));
        file.mark_safe().unwrap();
        assert!(!dir.read().in_statement);
        file.mark_safe().unwrap();
        file.mark_unsafe(true).unwrap();
        assert!(dir.read().in_statement, "that one is over");
    }

    #[test]
    fn seqno_of_member_that_left_is_written_at_exit() {
        let dir = TestDir::new("end");
        let file = Arc::new(StateFile::open(&dir.0).unwrap().0);
        let running = Saved::at(at(SEQNO_UNDEFINED), true);
        file.set_at_end(at(4), true).unwrap();
        assert_eq!(dir.read().position, at(4), "no exit handler");
        write_at_exit(&file);
        file.set_at_end(at(5), true).unwrap();
        assert_eq!((dir.read(), file.get().position), (running, at(5)));
        // It connects again: the position that it left at is outdated.
        file.set(at(SEQNO_UNDEFINED), true).unwrap();
        file.end().unwrap();
        assert_eq!(dir.read(), running);
        file.set_at_end(at(6), true).unwrap();
        {
            let _held = lock(&file.inner);
            process_ends();
        }
        assert_eq!(dir.read(), running, "does not wait for a lock");
        write_at_exit(&file);
        process_ends();
        assert_eq!(dir.read(), Saved::at(at(6), true));
        file.set_at_end(at(7), true).unwrap();
        file.mark_corrupt().unwrap();
        file.end().unwrap();
        assert_eq!(dir.read().position, Gtid::UNDEFINED);
    }

    #[test]
    fn repeated_state_transfer_ends_once() {
        let dir = TestDir::new("transfer");
        let (file, _) = StateFile::open(&dir.0).unwrap();
        file.set(at(5), false).unwrap();
        file.transfer_begins().unwrap();
        // The first one failed, and the server asks again in the same process.
        file.transfer_begins().unwrap();
        file.set(at(6), false).unwrap();
        assert_eq!(dir.read().position, Gtid::UNDEFINED);
        file.mark_unsafe(true).unwrap();
        assert!(!dir.read().in_statement, "the journal does not cover a transfer");
        file.mark_restored();
        file.set(at(7), false).unwrap();
        assert_eq!(dir.read().position, Gtid::UNDEFINED, "a statement is still under way");
        file.mark_safe().unwrap();
        assert_eq!(dir.read().position, at(7));
    }

    #[test]
    fn corrupt_state_is_undefined_until_restored() {
        let dir = TestDir::new("corrupt");
        let (file, _) = StateFile::open(&dir.0).unwrap();
        file.set(at(5), false).unwrap();
        file.mark_corrupt().unwrap();
        file.set(at(6), false).unwrap();
        file.mark_unsafe(true).unwrap();
        assert!(!dir.read().in_statement);
        file.mark_safe().unwrap();
        assert_eq!(dir.read().position, Gtid::UNDEFINED);
        file.mark_restored();
        file.set(at(7), false).unwrap();
        assert_eq!(dir.read().position, at(7));
    }

    #[test]
    fn content_is_written_again_after_a_failure() {
        let dir = TestDir::new("failed-write");
        let (file, _) = StateFile::open(&dir.0).unwrap();
        file.set(at(7), false).unwrap();
        let read_only = File::open(dir.0.join("grastate.dat")).unwrap();
        let writable = std::mem::replace(&mut lock(&file.inner).file, read_only);
        let error = file.transfer_begins().unwrap_err().to_string();
        assert!(error.contains("cannot write") && error.contains("grastate.dat"), "{error}");
        lock(&file.inner).file = writable;
        std::fs::write(dir.0.join("grastate.dat"), "").unwrap();
        file.mark_restored();
        file.set(at(7), false).unwrap();
        assert_eq!(dir.read().position, at(7));
    }

    #[test]
    fn followed_log_is_kept_until_database_is_replaced() {
        let followed = |n| Followed {
            log: FollowedLog { member: Uuid([n; 16]), incarnation: 3 << 20 },
            database: DatabaseId { inodes: [11, 12], made: [13, 14] },
        };
        let dir = TestDir::new("followed");
        let (file, _) = StateFile::open(&dir.0).unwrap();
        file.set_followed(followed(1));
        file.set(at(SEQNO_UNDEFINED), false).unwrap();
        file.mark_unsafe(true).unwrap();
        assert_eq!(dir.read().followed, Some(followed(1)), "it stays in a statement");
        file.mark_safe().unwrap();
        file.transfer_begins().unwrap();
        file.set_followed(followed(2));
        file.mark_restored();
        file.set(at(SEQNO_UNDEFINED), false).unwrap();
        assert_eq!(dir.read().followed, None, "the log has not reached the state");
        file.set_followed(followed(2));
        file.rewrite().unwrap();
        assert_eq!(
            dir.read(),
            Saved { followed: Some(followed(2)), ..Saved::at(at(SEQNO_UNDEFINED), false) }
        );
        file.mark_corrupt().unwrap();
        file.set_followed(followed(2));
        file.rewrite().unwrap();
        assert_eq!(dir.read().followed, None);
        let id = "01010101-0101-0101-0101-010101010101";
        // The last one is of a version that did not write the times.
        for text in ["", "x 1 2-3-4-5", "1 2-3-4-5", &format!("{id} 1 2"), &format!("{id} 1 2-3")] {
            assert_eq!(Followed::parse(text), None, "{text}");
        }
    }

    #[test]
    fn view_file_lists_members() {
        let dir = TestDir::new("view");
        let member = |n: u8| ViewMember {
            id: Uuid([n; 16]),
            view_uuid: Uuid([n + 100; 16]),
            name: format!("n{n}"),
            incoming: String::new(),
        };
        write_view(&dir.0, Uuid([101; 16]), 4, 0, &[member(1), member(2)]).unwrap();
        let text = std::fs::read_to_string(dir.0.join("gvwstate.dat")).unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with("member: ")).count(), 2);
        assert!(text.starts_with("my_uuid: 65656565-"));
        assert!(text.contains("\n#vwbeg\nview_id: 3 65656565-") && text.ends_with("#vwend\n"));
        remove_view(&dir.0).unwrap();
        remove_view(&dir.0).unwrap();
        assert!(!dir.0.join("gvwstate.dat").exists());
    }
}
