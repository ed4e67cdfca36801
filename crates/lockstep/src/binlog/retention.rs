//! Removes old binlog files, on a thread of its own: the removal of a large file takes time.

use crate::cfg::Size;
use crate::log_member::MessageLog;
use lockstep_binlog::Library;
use lockstep_node::Level;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often old files are looked for.
const EVERY: Duration = Duration::from_secs(5);

/// Which files are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Retention {
    /// The last files are kept that have so many bytes together.
    pub(super) keep: u64,
    /// An older file is kept for a connected consumer, unless that is further behind than this.
    pub(super) keep_connected: u64,
}

impl Retention {
    /// The values of the options `--keep` and `--keep-connected`. The second one defaults to twice the first.
    ///
    /// # Errors
    /// They contradict each other.
    pub(super) fn new(Size(keep): Size, keep_connected: Option<Size>) -> Result<Retention, String> {
        let keep_connected = keep_connected.map_or(keep.saturating_mul(2), |Size(bytes)| bytes);
        if keep_connected < keep {
            return Err("--keep-connected must not be smaller than --keep".into());
        }
        Ok(Retention { keep, keep_connected })
    }
}

/// See the module's documentation. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Purger {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Purger {
    /// Begins. `dropped` counts the consumers that were dropped. The file with the number `needed` stays, and later ones:
    /// a restart needs them.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(
        library: Library,
        retention: Retention,
        log: Arc<MessageLog>,
        dropped: Arc<AtomicU64>,
        needed: Option<Arc<AtomicU64>>,
    ) -> Result<Purger, String> {
        let (stop, stopped) = channel();
        let mut step = Step { library, retention, log, dropped, needed, kept_for: None, failed: None };
        let work = move || {
            while stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                step.run();
            }
        };
        let thread = std::thread::Builder::new().name("ls-purge".into()).spawn(work);
        let thread = thread.map_err(|e| format!("cannot start a thread that removes old files: {e}"))?;
        Ok(Purger { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Purger {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has ended as well.
            let _ = thread.join();
        }
    }
}

/// One look at the files.
struct Step {
    library: Library,
    retention: Retention,
    log: Arc<MessageLog>,
    dropped: Arc<AtomicU64>,
    needed: Option<Arc<AtomicU64>>,
    /// The consumer that the last line about a kept file named.
    kept_for: Option<String>,
    /// The last error.
    failed: Option<String>,
}

impl Step {
    fn run(&mut self) {
        let Some(oldest) = self.library.oldest_of_last(self.retention.keep) else { return };
        let needed = self.needed.as_ref().map_or(oldest, |needed| needed.load(Ordering::SeqCst));
        let oldest = oldest.min(needed);
        let purged = match self.library.purge_to(oldest, self.retention.keep_connected) {
            Ok(purged) => purged,
            Err(error) => {
                let text = format!("cannot remove old binlog files: {error}");
                if self.failed.as_ref() != Some(&text) {
                    self.log.write(Level::Error, &text);
                }
                self.failed = Some(text);
                return;
            }
        };
        self.failed = None;
        for name in &purged.dropped {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            let text = format!(
                "dropped consumer {name}: it is more than {} bytes behind (--keep-connected), and needs binlog files that \
                 are removed now. A replica needs a new copy of the data",
                self.retention.keep_connected
            );
            self.log.write(Level::Warn, &text);
        }
        if let (Some(first), Some(last)) = (purged.removed.first(), purged.removed.last()) {
            let files = if first == last { first.clone() } else { format!("{first} to {last}") };
            self.log.write(Level::Info, &format!("removed binlog files: {files}"));
        }
        let kept_for = purged.kept_for.map(|(file, consumer)| {
            if self.kept_for.as_ref() != Some(&consumer) {
                let text = format!(
                    "consumer {consumer} is slow: {file} is kept for it beyond --keep. It will be dropped when it is more \
                     than {} bytes behind (--keep-connected)",
                    self.retention.keep_connected
                );
                self.log.write(Level::Warn, &text);
            }
            consumer
        });
        self.kept_for = kept_for;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_binlog::event::{Checksum, EventWriter, FormatDescription, GtidEvent, Stamp, gtid_flag};
    use lockstep_binlog::library::{Position, Visibility};
    use lockstep_binlog::{Gtid, StreamState, Writer};

    const STAMP: Stamp = Stamp { timestamp: 7, server_id: 10 };

    /// A library of files with one group each.
    fn library(folder: &std::path::Path, files: u64) -> Writer {
        let format = FormatDescription {
            timestamp: 7,
            server_id: 10,
            version: "10.11.0-MariaDB-lockstep".into(),
            created: 0,
            checksum: Checksum::Crc32,
        };
        let mut writer = Writer::open(folder, "bin", Visibility::Appended).unwrap();
        writer.begin(1, &format, &StreamState::default()).unwrap();
        for seqno in 1..=files {
            let mut events = EventWriter::at(writer.end().unwrap().offset);
            let gtid = Gtid { domain: 1, server: 10, seqno };
            let flags = gtid_flag::TRANSACTIONAL;
            events.gtid(7, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
            events.xid(STAMP, seqno);
            writer.append(&events.finish().unwrap()).unwrap();
            let before = writer.state_at_end().clone();
            writer.cut(seqno + 1, STAMP, &format, &before).unwrap();
        }
        writer
    }

    #[test]
    fn old_files_go_and_slow_consumers_are_named() {
        let folder = std::env::temp_dir().join(format!("lockstep-retention-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let writer = library(&folder, 8);
        let library = writer.library().clone();
        let messages = folder.join("messages");
        let log = Arc::new(MessageLog::open(Some(messages.clone())).unwrap());
        let size = library.files()[0].1;
        let retention = Retention { keep: 3 * size, keep_connected: 1 << 20 };
        let dropped = Arc::new(AtomicU64::new(0));
        let needed = Arc::new(AtomicU64::new(0));
        let mut step = Step {
            library: library.clone(),
            retention,
            log,
            dropped: dropped.clone(),
            needed: Some(needed.clone()),
            kept_for: None,
            failed: None,
        };
        let slow = library.reader("slow", Position { file: 2, offset: 4 }).unwrap();
        step.run();
        assert_eq!(library.files()[0].0, "bin.000001", "no position was saved yet");
        needed.store(6, Ordering::SeqCst);
        step.run();
        step.run();
        assert_eq!(library.files()[0].0, "bin.000002");
        step.retention.keep_connected = size;
        step.run();
        step.run();
        assert!((4..=5).contains(&library.files().len()), "{:?}", library.files());
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
        let lines = std::fs::read_to_string(&messages).unwrap();
        let count = |text: &str| lines.lines().filter(|line| line.contains(text)).count();
        assert_eq!(count("[Note] removed binlog files: bin.000001"), 1, "{lines}");
        assert_eq!(count("consumer slow is slow: bin.000002 is kept"), 1, "{lines}");
        assert_eq!(count("[Warning] dropped consumer slow: "), 1, "{lines}");
        assert_eq!(lines.lines().count(), 4, "{lines}");
        drop(slow);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
