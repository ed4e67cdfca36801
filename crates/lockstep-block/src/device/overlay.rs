//! Writes that are not on the device file yet.
//!
//! Four layers, the newest first:
//!
//! 1. *dirty*: answered to the client, and in no log entry yet;
//! 2. *flying*: in log entries that are submitted and not committed;
//! 3. *committed*: in committed entries, of which only the last write of each byte counts;
//! 4. *writing*: the same, on its way to the file.
//!
//! A read takes each byte from the first layer that has it, else from the file. A copy that is no primary has no dirty and no
//! flying writes.

use super::extent_map::{Content, ExtentMap, Run};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Longer data are kept in copies of this size: a part that is left of a long buffer would keep all of its memory.
const CHUNK: usize = 64 << 10;

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Overlay {
    dirty: ExtentMap,
    flying: ExtentMap,
    committed: ExtentMap,
    writing: Arc<ExtentMap>,
}

/// A part of a read: a range, and its content where it is not in the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where it lies.
    pub range: Range<u64>,
    /// `None`: in the file.
    pub content: Option<Content>,
}

impl Overlay {
    /// The memory that it takes, together with the entries that have the flying writes. Those entries take `entries`, which is
    /// more than the flying writes if a range was written several times.
    pub fn memory(&self, entries: u64) -> u64 {
        self.dirty.memory() + self.flying.memory().max(entries) + self.unwritten()
    }

    /// The memory of dirty writes.
    pub fn dirty(&self) -> u64 {
        self.dirty.memory()
    }

    /// The memory of committed writes that are not on the file.
    pub fn unwritten(&self) -> u64 {
        self.committed.memory() + self.writing.memory()
    }

    /// Whether committed writes wait for [`Overlay::begin_write_back`].
    pub fn has_committed(&self) -> bool {
        !self.committed.is_empty()
    }

    /// A write in parts of which each has memory of its own, and little of it.
    pub fn chunks(run: Run) -> Vec<Run> {
        match &run.content {
            Content::Data(bytes) if bytes.len() > CHUNK => {
                let offsets = (run.offset..).step_by(CHUNK);
                let chunks = offsets.zip(bytes.chunks(CHUNK));
                chunks.map(|(offset, chunk)| Run::data(offset, Bytes::copy_from_slice(chunk))).collect()
            }
            _ => vec![run],
        }
    }

    /// A part of a client's write, of [`Overlay::chunks`].
    pub fn write(&mut self, run: Run) {
        self.dirty.insert(run, 0);
    }

    /// Takes the dirty writes within a range, each of at most 64 KiB of data. The caller passes them to [`Overlay::fly`]
    /// before any read.
    pub fn take_dirty(&mut self, range: &Range<u64>) -> Vec<Run> {
        self.dirty.take(range)
    }

    /// These writes are in the entry of this number.
    pub fn fly(&mut self, runs: &[Run], number: u64) {
        runs.iter().for_each(|run| self.flying.insert(run.clone(), number));
    }

    /// An entry is committed. `own`: its number, if its writes are flying here.
    pub fn commit(&mut self, runs: Vec<Run>, own: Option<u64>) {
        for run in runs {
            if let Some(number) = own {
                self.flying.remove_of(&(run.offset..run.end()), number);
            }
            self.committed.insert(run, 0);
        }
    }

    /// A planted fault: takes writes for committed that are not.
    pub(super) fn commit_flying(&mut self) {
        for run in self.flying.take(&(0..u64::MAX)) {
            self.committed.insert(run, 0);
        }
    }

    /// The attachment has ended: forgets writes that are not committed. Returns them: to free them takes time.
    #[must_use]
    pub fn discard(&mut self) -> [ExtentMap; 2] {
        [std::mem::take(&mut self.dirty), std::mem::take(&mut self.flying)]
    }

    /// Takes all committed writes for the file. The layer stays readable until [`Overlay::end_write_back`].
    pub fn begin_write_back(&mut self) -> Arc<ExtentMap> {
        debug_assert!(self.writing.is_empty(), "one batch at a time");
        self.writing = Arc::new(std::mem::take(&mut self.committed));
        self.writing.clone()
    }

    /// The file has them. Returns them: to free them takes time.
    #[must_use]
    pub fn end_write_back(&mut self) -> Arc<ExtentMap> {
        std::mem::take(&mut self.writing)
    }

    /// As [`Overlay::parts`], without writes that are not committed.
    pub fn committed_parts(&self, range: Range<u64>) -> Vec<Part> {
        let mut parts = Vec::new();
        collect(&[&self.committed, &self.writing], range, usize::MAX, &mut parts);
        parts
    }

    /// The parts of a range, in order.
    pub fn parts(&self, range: Range<u64>) -> Vec<Part> {
        self.first_parts(range, usize::MAX)
    }

    /// As [`Overlay::parts`], but only so many of them.
    pub fn first_parts(&self, range: Range<u64>, most: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        collect(&[&self.dirty, &self.flying, &self.committed, &self.writing], range, most, &mut parts);
        parts
    }
}

fn collect(layers: &[&ExtentMap], range: Range<u64>, most: usize, parts: &mut Vec<Part>) {
    if range.is_empty() || parts.len() >= most {
        return;
    }
    let Some((first, below)) = layers.split_first() else {
        parts.push(Part { range, content: None });
        return;
    };
    let mut at = range.start;
    for run in first.within(range.clone()) {
        collect(below, at..run.offset, most, parts);
        if parts.len() >= most {
            return;
        }
        at = run.end();
        parts.push(Part { range: run.offset..run.end(), content: Some(run.content) });
    }
    collect(below, at..range.end, most, parts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const SIZE: u64 = 48;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u64, u8),
        Trim(u64, u64),
        Fly(u64, u64),
        Commit,
        Discard,
        BeginWriteBack,
        EndWriteBack,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range = || (0..SIZE - 8, 1..8u64);
        let step = prop_oneof![
            6 => (range(), any::<u8>()).prop_map(|((at, len), byte)| Step::Write(at, len, byte)),
            2 => range().prop_map(|(at, len)| Step::Trim(at, len)),
            3 => (0..SIZE, 1..SIZE).prop_map(|(at, len)| Step::Fly(at, len)),
            3 => Just(Step::Commit),
            1 => Just(Step::Discard),
            1 => Just(Step::BeginWriteBack),
            1 => Just(Step::EndWriteBack),
        ];
        proptest::collection::vec(step, 1..120)
    }

    fn apply(disk: &mut [u8], run: &Run) {
        let range = run.offset as usize..run.end() as usize;
        match &run.content {
            Content::Data(bytes) => disk[range].copy_from_slice(bytes),
            Content::Zeroes { .. } => disk[range].fill(0),
        }
    }

    fn read(parts: Vec<Part>, file: &[u8]) -> Vec<u8> {
        let mut disk = file.to_vec();
        let mut at = 0;
        for Part { range, content } in parts {
            assert_eq!(range.start, at, "parts follow one another");
            at = range.end;
            if let Some(content) = content {
                apply(&mut disk, &Run { offset: range.start, length: range.end - range.start, content });
            }
        }
        assert_eq!(at, SIZE);
        disk
    }

    proptest! {
        /// The model: the disk as the client sees it, and as of the committed entries.
        #[test]
        fn reads_see_last_write_and_the_file_committed_ones(steps in steps()) {
            let mut overlay = Overlay::default();
            let mut file = vec![0; SIZE as usize];
            let (mut seen, mut log) = (file.clone(), file.clone());
            let mut flying: VecDeque<(u64, Vec<Run>)> = VecDeque::new();
            let mut writing: Option<(Arc<ExtentMap>, Vec<u8>)> = None;
            let mut number = 0;
            for step in steps {
                match step {
                    Step::Write(at, len, byte) => {
                        let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                        let run = Run::data(at, bytes.into());
                        apply(&mut seen, &run);
                        overlay.write(run);
                    }
                    Step::Trim(at, len) => {
                        let run = Run::zeroes(at, len, true);
                        apply(&mut seen, &run);
                        overlay.write(run);
                    }
                    Step::Fly(at, len) => {
                        number += 1;
                        let runs = overlay.take_dirty(&(at..at + len));
                        overlay.fly(&runs, number);
                        flying.push_back((number, runs));
                    }
                    Step::Commit => {
                        if let Some((number, runs)) = flying.pop_front() {
                            runs.iter().for_each(|run| apply(&mut log, run));
                            overlay.commit(runs, Some(number));
                        }
                    }
                    Step::Discard => {
                        drop(overlay.discard());
                        flying.clear();
                        seen.clone_from(&log);
                    }
                    Step::BeginWriteBack if writing.is_none() => {
                        writing = Some((overlay.begin_write_back(), log.clone()));
                    }
                    Step::EndWriteBack => {
                        if let Some((map, expected)) = writing.take() {
                            map.runs().for_each(|run| apply(&mut file, &run));
                            prop_assert_eq!(&file, &expected, "the file is a prefix of the log");
                            drop(overlay.end_write_back());
                        }
                    }
                    Step::BeginWriteBack => {}
                }
                let parts = overlay.parts(0..SIZE);
                let most = 1 + parts.len() / 2;
                prop_assert_eq!(&overlay.first_parts(0..SIZE, most)[..], &parts[..most]);
                prop_assert_eq!(read(parts, &file), seen.clone());
                prop_assert_eq!(read(overlay.committed_parts(0..SIZE), &file), log.clone());
            }
        }
    }

    #[test]
    fn long_buffer_is_not_kept_for_a_part_of_it() {
        let mut overlay = Overlay::default();
        let chunks = Overlay::chunks(Run::data(0, vec![7; 3 * CHUNK + 5].into()));
        chunks.into_iter().for_each(|run| overlay.write(run));
        let parts = overlay.parts(0..4 * CHUNK as u64);
        assert_eq!(parts.len(), 5, "four chunks, and the file");
        assert!(overlay.memory(0) >= 3 * CHUNK as u64 + 5);
    }
}
