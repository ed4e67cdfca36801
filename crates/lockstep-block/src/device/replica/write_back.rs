//! Committed writes on their way to the device file.

use super::super::extent_map::ExtentMap;
use super::super::failpoints::Failpoint;
use super::super::file::{DeviceFile, Position};
use super::super::resync::Wholeness;
use super::super::snapshot::Slot;
use super::{Closes, LOOK, Log, Replica, State};
use lockstep_core::Gtid;
use std::fs::File;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

/// Committed writes go to the device file after this time.
const WRITE_BACK_AFTER: Duration = Duration::from_millis(500);
/// How long to wait before the next try where the device file's disk is full.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// Committed writes on their way to the device file.
#[derive(Debug)]
pub struct Batch {
    runs: Arc<ExtentMap>,
    position: Position,
    /// The image that is begun afterwards.
    snapshot: Option<Arc<File>>,
}

impl Batch {
    /// The position that the device file has afterwards.
    pub fn position(&self) -> &Position {
        &self.position
    }
}

/// To the device file.
impl<L: Log> Replica<L> {
    /// Writes committed entries to the device file until [`Replica::close`]. However it ends, it closes the replica.
    ///
    /// # Errors
    /// The device file cannot be written: a text for people. The member must end; its next start reads the log again.
    pub fn write_back(&self) -> Result<(), String> {
        let _closes = Closes(self);
        loop {
            let mut state = self.answer_jobs(self.lock());
            while !self.is_write_back_due(&mut state) {
                let waited = self.0.work.wait_timeout(state, LOOK);
                state = self.answer_jobs(waited.unwrap_or_else(PoisonError::into_inner).0);
            }
            let closing = state.closing;
            drop(state);
            self.write_back_once()?;
            if closing {
                return Ok(());
            }
        }
    }

    fn is_write_back_due(&self, state: &mut State) -> bool {
        let is_full = state.must_write_back(self.0.config.cache);
        let now = self.now();
        let age = state.unwritten_since.map(|since| now.duration_since(since));
        let is_asked = state.snapshot.as_ref().is_some_and(|slot| slot.waiting().is_some());
        if is_full || is_asked || state.closing || age.is_some_and(|age| age >= WRITE_BACK_AFTER) {
            return true;
        }
        if state.unwritten_since.is_none() && state.delivered > state.written {
            // Only the position has moved.
            state.unwritten_since = Some(now);
        }
        false
    }

    /// Writes all that is committed now.
    ///
    /// # Errors
    /// As [`Replica::write_back`].
    pub fn write_back_once(&self) -> Result<(), String> {
        let Some(batch) = self.begin_write_back(self.lock()) else { return Ok(()) };
        self.until_it_fits(|file| self.write_batch(file, &batch))?;
        self.end_write_back(batch);
        Ok(())
    }

    /// The first step of a write-back, if one is due: takes what is committed. [`Replica::try_write_back`] follows until it
    /// returns true, then [`Replica::end_write_back`].
    pub fn begin_write_back_if_due(&self) -> Option<Batch> {
        let mut state = self.lock();
        state = self.answer_jobs(state);
        if self.is_write_back_due(&mut state) { self.begin_write_back(state) } else { None }
    }

    fn begin_write_back(&self, state: MutexGuard<'_, State>) -> Option<Batch> {
        // First: the file has none of the writes after them.
        let mut state = self.answer_jobs(state);
        state.unwritten_since = None;
        if matches!(state.wholeness, Wholeness::Needed | Wholeness::Copying { .. }) {
            // The saved position stays until a donor has come, and is the receiver's to save from then on.
            return None;
        }
        let gtid = Gtid { uuid: state.history, seqno: state.delivered };
        let whole = state.wholeness.is_whole_at(gtid.seqno);
        let position = Position { gtid, log: state.log_id, attachments: state.attachments.clone(), whole };
        let snapshot = state.snapshot.as_ref().and_then(Slot::waiting);
        if state.delivered == state.written && !state.overlay.has_committed() {
            drop(state);
            if let Some(target) = snapshot {
                self.begin_snapshot(target, &position);
            }
            return None;
        }
        if self.0.failpoints.is_active(Failpoint::UncommittedWritten) {
            state.overlay.commit_flying();
        }
        let runs = state.overlay.begin_write_back();
        let copy = state.snapshot.as_ref().and_then(Slot::copy);
        drop(state);
        if let Some(copy) = copy {
            copy.before_write(&self.0.file, &runs);
        }
        Some(Batch { runs, position, snapshot })
    }

    /// Writes a batch and its position. Also without runs: the file may have grown.
    fn write_batch(&self, file: &DeviceFile, batch: &Batch) -> std::io::Result<()> {
        if self.0.failpoints.is_active(Failpoint::PositionBeforeData) {
            file.save(&batch.position)?;
            return file.write(&batch.runs);
        }
        file.write(&batch.runs)?;
        file.save(&batch.position)
    }

    /// The second step of a write-back. Returns false if the disk is full: try again later.
    ///
    /// # Errors
    /// As [`Replica::write_back`].
    pub fn try_write_back(&self, batch: &Batch) -> Result<bool, String> {
        self.note_result(self.write_batch(&self.0.file, batch))
    }

    /// The last step of a write-back.
    pub fn end_write_back(&self, batch: Batch) {
        let Batch { runs, position, snapshot } = batch;
        drop(runs);
        let mut state = self.lock();
        let written = state.overlay.end_write_back();
        state.written = position.gtid.seqno;
        let has_become_whole = state.wholeness.written(position.gtid.seqno);
        drop(state);
        if has_become_whole {
            self.note_whole();
        }
        self.0.log.finished(position.gtid.seqno);
        self.wake();
        // Its memory is freed here: not under the lock.
        drop(written);
        if let Some(target) = snapshot {
            self.begin_snapshot(target, &position);
        }
    }

    /// Tries again while the disk is full. Every other error is final: after a failed sync, the content of the file is unknown.
    pub(in crate::device) fn until_it_fits(
        &self,
        write: impl Fn(&DeviceFile) -> std::io::Result<()>,
    ) -> Result<(), String> {
        while !self.note_result(write(&self.0.file))? {
            std::thread::sleep(FULL_RETRY);
        }
        Ok(())
    }

    /// The result of a write to the device file. Returns false if the disk is full.
    fn note_result(&self, result: std::io::Result<()>) -> Result<bool, String> {
        let Err(error) = result else {
            let before = self.lock().trouble.take();
            if before.is_some() {
                self.0.log.note(false, "the device file can be written again");
            }
            return Ok(true);
        };
        let is_full =
            matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded);
        let text = format!("cannot write the device file: {error}");
        let is_new = {
            let mut state = self.lock();
            if !is_full || state.closing {
                return Err(text);
            }
            state.trouble.replace(text.clone()).is_none()
        };
        if is_new {
            self.0.log.note(true, &format!("{text}; tries again. Writes wait once block.cache is full"));
        }
        Ok(false)
    }
}
