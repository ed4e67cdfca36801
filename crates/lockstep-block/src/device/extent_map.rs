//! A map from ranges of bytes to their last writes.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of memory that a run takes beside its data, roughly.
pub(crate) const RUN_BYTES: u64 = 128;

/// The content of a written range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// These bytes.
    Data(Bytes),
    /// Zeroes. `hole`: without taking space.
    Zeroes {
        /// Whether the range is given up.
        hole: bool,
    },
}

impl Content {
    /// The content of a part of a range that has this content.
    fn part(&self, from: u64, to: u64) -> Content {
        match self {
            Content::Data(bytes) => Content::Data(bytes.slice(from as usize..to as usize)),
            Content::Zeroes { hole } => Content::Zeroes { hole: *hole },
        }
    }

    fn data_len(&self) -> u64 {
        match self {
            Content::Data(bytes) => bytes.len() as u64,
            Content::Zeroes { .. } => 0,
        }
    }

    /// Data that keep more than twice their length of memory are copied. Returns how much they keep.
    fn trim(&mut self, kept: u64) -> u64 {
        match self {
            Content::Data(bytes) if (bytes.len() as u64) < kept / 2 => {
                *bytes = Bytes::copy_from_slice(bytes);
                bytes.len() as u64
            }
            _ => kept,
        }
    }
}

/// A range and its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Where it begins.
    pub offset: u64,
    /// Its length; not 0. For [`Content::Data`] the number of the bytes.
    pub length: u64,
    /// Its content.
    pub content: Content,
}

impl Run {
    /// These bytes at this offset.
    pub fn data(offset: u64, bytes: Bytes) -> Run {
        Run { offset, length: bytes.len() as u64, content: Content::Data(bytes) }
    }

    /// Zeroes.
    pub fn zeroes(offset: u64, length: u64, hole: bool) -> Run {
        Run { offset, length, content: Content::Zeroes { hole } }
    }

    /// Its end.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// The part of it within a range that it meets.
    fn within(&self, range: &Range<u64>) -> Run {
        let (from, to) = (self.offset.max(range.start), self.end().min(range.end));
        debug_assert!(from < to);
        let content = self.content.part(from - self.offset, to - self.offset);
        Run { offset: from, length: to - from, content }
    }
}

#[derive(Clone, Debug)]
struct Held {
    length: u64,
    content: Content,
    /// The bytes of memory that the content keeps: those of the run from which it was cut.
    kept: u64,
    /// The number of the log entry that has it, in maps where that counts.
    number: u64,
}

/// See the module's documentation.
///
/// **Invariant**: runs do not overlap, and none is empty. Each keeps at most twice its length of memory, if its data had memory of
/// their own when it was inserted.
#[derive(Clone, Debug, Default)]
pub struct ExtentMap {
    runs: BTreeMap<u64, Held>,
    data_bytes: u64,
}

impl ExtentMap {
    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The memory that it takes, roughly.
    pub fn memory(&self) -> u64 {
        self.data_bytes + self.runs.len() as u64 * RUN_BYTES
    }

    /// A write. It replaces what was written there before. `number`: the log entry that has it.
    pub fn insert(&mut self, run: Run, number: u64) {
        if run.length == 0 {
            return;
        }
        self.carve(&(run.offset..run.end()), |_| true);
        let Run { offset, length, content } = run;
        let kept = content.data_len();
        self.data_bytes += kept;
        self.runs.insert(offset, Held { length, content, kept, number });
    }

    /// Forgets what the log entry of this number wrote within a range.
    pub fn remove_of(&mut self, range: &Range<u64>, number: u64) {
        self.carve(range, |held| held.number == number);
    }

    /// Takes what was written within a range.
    pub fn take(&mut self, range: &Range<u64>) -> Vec<Run> {
        let trimmed = |(mut run, kept): (Run, u64)| {
            run.content.trim(kept);
            run
        };
        self.carve(range, |_| true).into_iter().map(trimmed).collect()
    }

    /// The runs within a range, cut to it, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Run> + '_ {
        let before = self.runs.range(..range.start).next_back();
        let before = before.filter(|(offset, held)| *offset + held.length > range.start);
        let runs = before.into_iter().chain(self.runs.range(range.clone()));
        runs.map(move |(offset, held)| {
            let run = Run { offset: *offset, length: held.length, content: held.content.clone() };
            run.within(&range)
        })
    }

    /// All runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.within(0..u64::MAX)
    }

    /// Removes what lies within a range, where `is_meant` holds. Returns it in order, each part with the memory that it keeps.
    fn carve(&mut self, range: &Range<u64>, is_meant: impl Fn(&Held) -> bool) -> Vec<(Run, u64)> {
        if range.is_empty() {
            return Vec::new();
        }
        let before = self.runs.range(..range.start).next_back();
        let before = before.filter(|(offset, held)| *offset + held.length > range.start);
        let met = before.into_iter().chain(self.runs.range(range.clone()));
        let met: Vec<u64> = met.filter(|(_, held)| is_meant(held)).map(|(offset, _)| *offset).collect();
        let mut carved = Vec::with_capacity(met.len());
        for offset in met {
            let Some(Held { length, content, kept, number }) = self.runs.remove(&offset) else { continue };
            self.data_bytes -= content.data_len();
            let run = Run { offset, length, content };
            for part in
                [offset..range.start, range.end..run.end()].into_iter().filter(|part| !part.is_empty())
            {
                let Run { offset, length, mut content } = run.within(&part);
                let kept = content.trim(kept);
                self.data_bytes += content.data_len();
                self.runs.insert(offset, Held { length, content, kept, number });
            }
            carved.push((run.within(range), kept));
        }
        carved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 64;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u64, u8, u64),
        Zero(u64, u64, bool, u64),
        RemoveOf(u64, u64, u64),
        Take(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range = || (0..SIZE, 1..16u64);
        let step = prop_oneof![
            4 => (range(), any::<u8>(), 0..4u64).prop_map(|((at, len), byte, number)| Step::Write(at, len, byte, number)),
            2 => (range(), any::<bool>(), 0..4u64).prop_map(|((at, len), hole, number)| Step::Zero(at, len, hole, number)),
            1 => (range(), 0..4u64).prop_map(|((at, len), number)| Step::RemoveOf(at, len, number)),
            1 => range().prop_map(|(at, len)| Step::Take(at, len)),
        ];
        proptest::collection::vec(step, 1..60)
    }

    /// One byte of the model: its content, and the number.
    type Cell = Option<(Option<u8>, bool, u64)>;

    fn cells(run: &Run, number: u64) -> Vec<(u64, Cell)> {
        let cell = |at: u64| match &run.content {
            Content::Data(bytes) => (Some(bytes[(at - run.offset) as usize]), false, number),
            Content::Zeroes { hole } => (None, *hole, number),
        };
        (run.offset..run.end()).map(|at| (at, Some(cell(at)))).collect()
    }

    proptest! {
        #[test]
        fn map_holds_last_write_of_each_byte(steps in steps()) {
            let mut map = ExtentMap::default();
            let mut model: Vec<Cell> = vec![None; (SIZE + 16) as usize];
            for step in steps {
                match step {
                    Step::Write(at, len, byte, number) => {
                        let bytes: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                        let run = Run::data(at, bytes.into());
                        cells(&run, number).into_iter().for_each(|(at, cell)| model[at as usize] = cell);
                        map.insert(run, number);
                    }
                    Step::Zero(at, len, hole, number) => {
                        let run = Run::zeroes(at, len, hole);
                        cells(&run, number).into_iter().for_each(|(at, cell)| model[at as usize] = cell);
                        map.insert(run, number);
                    }
                    Step::RemoveOf(at, len, number) => {
                        for cell in &mut model[at as usize..(at + len) as usize] {
                            *cell = cell.filter(|cell| cell.2 != number);
                        }
                        map.remove_of(&(at..at + len), number);
                    }
                    Step::Take(at, len) => {
                        for run in map.take(&(at..at + len)) {
                            for at in run.offset..run.end() {
                                prop_assert!(model[at as usize].take().is_some());
                            }
                        }
                        prop_assert!(model[at as usize..(at + len) as usize].iter().all(Option::is_none));
                    }
                }
                let mut seen: Vec<Cell> = vec![None; model.len()];
                let mut bytes = 0;
                for (offset, held) in &map.runs {
                    let run = Run { offset: *offset, length: held.length, content: held.content.clone() };
                    bytes += run.content.data_len();
                    prop_assert!(run.length > 0);
                    for (at, cell) in cells(&run, held.number) {
                        prop_assert!(seen[at as usize].is_none(), "runs do not overlap");
                        seen[at as usize] = cell;
                    }
                }
                prop_assert_eq!(bytes, map.data_bytes);
                prop_assert_eq!(&seen, &model);
            }
        }
    }

    /// The data of a run that are left are of this buffer.
    fn is_of(map: &ExtentMap, offset: u64, buffer: &Bytes) -> bool {
        let Some(Run { content: Content::Data(bytes), .. }) = map.within(offset..offset + 1).next() else {
            panic!("no data at {offset}")
        };
        buffer.as_ptr_range().contains(&bytes.as_ptr())
    }

    #[test]
    fn small_rest_of_a_run_does_not_keep_its_buffer() {
        let buffer = Bytes::from(vec![7; 64 << 10]);
        let mut map = ExtentMap::default();
        map.insert(Run::data(0, buffer.clone()), 0);
        map.insert(Run::zeroes(40 << 10, 24 << 10, true), 0);
        assert!(is_of(&map, 0, &buffer), "more than half of it is left");
        // Again and again a little less than half of the rest.
        for end in [30 << 10, 20 << 10, 12 << 10, 8 << 10, 4 << 10] {
            map.insert(Run::zeroes(end, 64 << 10, true), 0);
        }
        assert!(!is_of(&map, 0, &buffer) && buffer.is_unique());
        assert_eq!(map.within(0..4096).collect::<Vec<_>>(), [Run::data(0, buffer.slice(..4096))]);
        for held in map.runs.values() {
            assert!(held.kept <= 2 * held.content.data_len(), "{} for {}", held.kept, held.length);
        }
    }

    #[test]
    fn taken_part_of_a_run_does_not_keep_its_buffer() {
        let buffer = Bytes::from(vec![7; 64 << 10]);
        let mut map = ExtentMap::default();
        map.insert(Run::data(0, buffer.clone()), 0);
        let taken = map.take(&(0..4096));
        map.remove_of(&(0..64 << 10), 0);
        assert!(buffer.is_unique());
        assert_eq!(taken, [Run::data(0, buffer.slice(..4096))]);
    }

    #[test]
    fn part_of_a_run_is_cut_to_the_range() {
        let mut map = ExtentMap::default();
        map.insert(Run::data(10, Bytes::from_static(b"abcdef")), 0);
        let found: Vec<Run> = map.within(12..14).collect();
        assert_eq!(found, [Run::data(12, Bytes::from_static(b"cd"))]);
        assert_eq!(map.within(0..10).count() + map.within(16..20).count(), 0);
    }
}
