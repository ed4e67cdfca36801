//! Waits while the disk of the binlog files is full. Consumers that are behind go on reading meanwhile.

use crate::log_member::MessageLog;
use lockstep_binlog::library::{LibraryError, is_disk_full};
use lockstep_node::Level;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often an operation is tried again.
const TRY_EVERY: Duration = Duration::from_secs(1);
/// How often the error log has a line meanwhile.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Why an operation on the files failed.
#[derive(Debug)]
pub(super) struct FileError {
    is_full: bool,
    text: String,
}

impl FileError {
    /// An error of the system, with a text that names the operation and the file.
    pub(super) fn io(text: String, error: &std::io::Error) -> FileError {
        FileError { is_full: is_disk_full(error), text: format!("{text}: {error}") }
    }
}

impl FileError {
    /// The text for people.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

impl From<LibraryError> for FileError {
    fn from(error: LibraryError) -> FileError {
        FileError { is_full: error.is_disk_full(), text: error.to_string() }
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct DiskSpace {
    dir: PathBuf,
    /// The consequence of a full disk, and the way out.
    effect: &'static str,
    log: Arc<MessageLog>,
    full: Mutex<Option<Full>>,
}

#[derive(Debug)]
struct Full {
    since: Instant,
    said: Instant,
}

impl DiskSpace {
    /// `effect`: the consequence of a full disk, and the way out, as the end of a sentence.
    pub(super) fn new(dir: PathBuf, log: Arc<MessageLog>, effect: &'static str) -> DiskSpace {
        DiskSpace { dir, effect, log, full: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Full>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when the disk has been full, if it is.
    pub(super) fn full_since(&self) -> Option<Instant> {
        self.lock().as_ref().map(|full| full.since)
    }

    /// Does an operation, again and again while the disk is full. A failed operation must leave the files as they were.
    ///
    /// # Errors
    /// Another error.
    pub(super) fn retry<T, E: Into<FileError>>(
        &self,
        mut operation: impl FnMut() -> Result<T, E>,
    ) -> Result<T, String> {
        loop {
            let FileError { is_full, text } = match operation() {
                Ok(done) => {
                    self.on_room();
                    return Ok(done);
                }
                Err(error) => error.into(),
            };
            if !is_full {
                return Err(text);
            }
            self.on_full(&text);
            std::thread::sleep(TRY_EVERY);
        }
    }

    fn on_full(&self, why: &str) {
        let now = Instant::now();
        let mut full = self.lock();
        let said = full.as_ref().is_some_and(|full| full.said.elapsed() < SAY_EVERY);
        let since = full.as_ref().map_or(now, |full| full.since);
        if said {
            return;
        }
        *full = Some(Full { since, said: now });
        drop(full);
        let text = format!(
            "the disk of {} is full ({why}): the binlog files wait for space, {}",
            self.dir.display(),
            self.effect
        );
        self.log.write(Level::Error, &text);
    }

    fn on_room(&self) {
        if self.lock().take().is_some() {
            let text = format!("the disk of {} has space again: the binlog files go on", self.dir.display());
            self.log.write(Level::Info, &text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_is_repeated_only_while_the_disk_is_full() {
        let path = std::env::temp_dir().join(format!("lockstep-disk-space-{}", std::process::id()));
        let log = Arc::new(MessageLog::open(Some(path.clone())).unwrap());
        let space = DiskSpace::new("/binlog".into(), log, "and consumers, too");
        let fails = |kind: std::io::ErrorKind| FileError::io("cannot write x".into(), &kind.into());
        let mut left = 2;
        let done = space.retry(|| {
            assert_eq!(space.full_since().is_some(), left < 2);
            left -= 1;
            if left >= 0 { Err(fails(std::io::ErrorKind::StorageFull)) } else { Ok(7) }
        });
        assert_eq!((done, space.full_since()), (Ok(7), None));
        let failed = space.retry(|| Err::<(), _>(fails(std::io::ErrorKind::PermissionDenied)));
        assert!(failed.unwrap_err().starts_with("cannot write x: "));
        let lines = std::fs::read_to_string(&path).unwrap();
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(lines.contains("the disk of /binlog is full (cannot write x"), "{lines}");
        assert!(lines.contains("the disk of /binlog has space again"), "{lines}");
        std::fs::remove_file(&path).unwrap();
    }
}
