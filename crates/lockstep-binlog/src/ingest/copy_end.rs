//! Which chunks continue a copy.

use super::{Chunk, FileName, Origin, Place};

/// A member's decision about a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It takes the bytes behind the first `skip` ones, which it has.
    Take {
        /// The bytes that it has already.
        skip: usize,
    },
    /// It takes all bytes, as the begin of the next file.
    TakeFile,
    /// It takes all bytes, as the begin of the first file of another primary, which has taken over.
    TakeOver,
    /// It has all bytes.
    Known,
    /// Bytes before the chunk are missing. The member that submitted the chunk begins again at the copy's end.
    Gap,
}

/// The end of a copy: a function of the entries up to the present one.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CopyEnd {
    generation: u32,
    origin: Origin,
    place: Option<Place>,
}

impl CopyEnd {
    /// A copy that ends here, in the binlog of this primary of the group.
    pub fn new(generation: u32, origin: Origin, place: Place) -> CopyEnd {
        CopyEnd { generation, origin, place: Some(place) }
    }

    /// The place of the next byte; `None` before the first file.
    pub fn place(&self) -> Option<&Place> {
        self.place.as_ref()
    }

    /// Which primary of the group the end is of: see [`Chunk::generation`].
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Which server the end is of: see [`Origin`].
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Decides about a chunk, and moves the end if it is taken.
    pub fn judge(&mut self, chunk: &Chunk) -> Verdict {
        let verdict = self.verdict(chunk);
        if matches!(verdict, Verdict::Take { .. } | Verdict::TakeFile | Verdict::TakeOver) {
            let Place { file, offset } = &chunk.at;
            (self.generation, self.origin) = (chunk.generation, chunk.origin);
            self.place = Some(Place { file: file.clone(), offset: offset + chunk.data.len() as u64 });
        }
        verdict
    }

    fn verdict(&self, chunk: &Chunk) -> Verdict {
        let begin = chunk.at.offset;
        let Some(end) = &self.place else {
            return if chunk.begins_file() { Verdict::TakeFile } else { Verdict::Gap };
        };
        let (own, other): (&FileName, &FileName) = (&end.file, &chunk.at.file);
        if chunk.generation != self.generation {
            // Only from the end of all that the primary before has left. A late chunk of that one is of no use any more.
            let follows = self.generation.checked_add(1) == Some(chunk.generation)
                && chunk.begins_file()
                && chunk.after == Some((own.number(), end.offset));
            return if follows { Verdict::TakeOver } else { Verdict::Gap };
        }
        // Another leader has read another server: its places say nothing about this copy.
        if own.base() != other.base() || chunk.origin != self.origin {
            return Verdict::Gap;
        }
        if other.number() > own.number() {
            let follows = chunk.after == Some((own.number(), end.offset));
            return if follows { Verdict::TakeFile } else { Verdict::Gap };
        }
        if other.number() < own.number() || begin + chunk.data.len() as u64 <= end.offset {
            return Verdict::Known;
        }
        match end.offset.checked_sub(begin) {
            Some(skip) => Verdict::Take { skip: skip as usize },
            None => Verdict::Gap,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn chunk(number: u64, offset: u64, len: usize, after: Option<(u64, u64)>) -> Chunk {
        let file = FileName::new("bin", number).unwrap();
        let origin = Origin::new(1);
        let (unlogged, data) = (Vec::new(), vec![7; len].into());
        Chunk { generation: 0, origin, at: Place { file, offset }, after, unlogged, data }
    }

    fn judged(chunks: &[Chunk]) -> (Vec<Verdict>, String) {
        let mut end = CopyEnd::default();
        let verdicts = chunks.iter().map(|chunk| end.judge(chunk)).collect();
        (verdicts, end.place().map(Place::to_string).unwrap_or_default())
    }

    #[test]
    fn copy_begins_with_a_file() {
        let (verdicts, end) =
            judged(&[chunk(3, 100, 10, None), chunk(3, 4, 10, None), chunk(3, 14, 5, None)]);
        assert_eq!(verdicts, [Verdict::Gap, Verdict::TakeFile, Verdict::Take { skip: 0 }]);
        assert_eq!(end, "bin.000003:19");
    }

    #[test]
    fn overlapping_chunk_is_taken_from_the_end_on() {
        let (verdicts, end) = judged(&[
            chunk(1, 4, 96, None),
            chunk(1, 50, 50, None),
            chunk(1, 50, 60, None),
            chunk(1, 111, 1, None),
        ]);
        assert_eq!(verdicts[1..], [Verdict::Known, Verdict::Take { skip: 50 }, Verdict::Gap]);
        assert_eq!(end, "bin.000001:110");
    }

    #[test]
    fn next_file_is_taken_only_at_the_end_of_its_predecessor() {
        let (verdicts, end) = judged(&[
            chunk(1, 4, 96, None),
            chunk(2, 4, 10, Some((1, 99))),
            chunk(2, 4, 10, None),
            chunk(2, 14, 10, None),
            chunk(2, 4, 10, Some((1, 100))),
            chunk(1, 100, 10, None),
        ]);
        assert_eq!(verdicts[1..4], [Verdict::Gap; 3]);
        assert_eq!(verdicts[4..], [Verdict::TakeFile, Verdict::Known]);
        assert_eq!(end, "bin.000002:14");
    }

    #[test]
    fn chunk_of_other_base_name_is_a_gap() {
        let mut end = CopyEnd::default();
        end.judge(&chunk(1, 4, 96, None));
        let file = FileName::new("other", 2).unwrap();
        let at = Place { file, offset: 4 };
        let data = Bytes::from_static(b"x");
        let other = Chunk { at, after: Some((1, 100)), data, ..chunk(2, 4, 1, None) };
        assert_eq!(end.judge(&other), Verdict::Gap);
    }

    #[test]
    fn another_primary_takes_over_only_at_the_copys_end() {
        let of = |generation: u32, number: u64, offset: u64, len: usize, after: Option<(u64, u64)>| Chunk {
            generation,
            ..chunk(number, offset, len, after)
        };
        let mut end = CopyEnd::default();
        end.judge(&chunk(7, 4, 96, None));
        let before = end.clone();
        for wrong in [
            of(1, 2, 4, 10, None),
            of(1, 2, 4, 10, Some((7, 99))),
            of(1, 2, 4, 10, Some((6, 100))),
            of(1, 2, 14, 10, None),
            of(2, 2, 4, 10, Some((7, 100))),
        ] {
            assert_eq!(end.judge(&wrong), Verdict::Gap, "{wrong:?}");
            assert_eq!(end, before);
        }
        let first = of(1, 2, 4, 196, Some((7, 100)));
        assert_eq!(end.judge(&first), Verdict::TakeOver);
        assert_eq!((end.generation(), end.place().unwrap().to_string().as_str()), (1, "bin.000002:200"));
        // Another leader proposes the same once more. Chunks of the former primary have any places.
        for late in
            [first, chunk(7, 100, 10, None), chunk(2, 150, 100, None), chunk(3, 4, 10, Some((2, 200)))]
        {
            let known = late.generation == 1;
            assert_eq!(end.judge(&late), if known { Verdict::Known } else { Verdict::Gap }, "{late:?}");
        }
        assert_eq!(end.judge(&of(1, 2, 200, 10, None)), Verdict::Take { skip: 0 });
    }

    #[test]
    fn chunks_of_another_server_in_the_same_generation_are_gaps() {
        let of = |origin: u64, number: u64, offset: u64, len: usize, after: Option<(u64, u64)>| {
            let origin = Origin::new(origin);
            Chunk { generation: 1, origin, ..chunk(number, offset, len, after) }
        };
        // Two leaders have submitted another server each, from the same end of the copy.
        for number in [5, 9, 12] {
            let mut end = CopyEnd::default();
            end.judge(&chunk(7, 4, 96, None));
            assert_eq!(end.judge(&of(2, 9, 4, 196, Some((7, 100)))), Verdict::TakeOver);
            let before = end.clone();
            for other in [
                of(3, number, 4, 96, Some((7, 100))),
                of(3, number, 100, 50, None),
                of(3, number, 200, 50, None),
                of(3, number + 1, 4, 96, Some((number, 200))),
            ] {
                assert_eq!(end.judge(&other), Verdict::Gap, "{other:?}");
                assert_eq!(end, before);
            }
            assert_eq!(end.judge(&of(2, 9, 200, 10, None)), Verdict::Take { skip: 0 });
        }
        // The same at the begin of an empty group.
        let mut end = CopyEnd::default();
        let first = |origin| Chunk { origin: Origin::new(origin), ..chunk(1, 4, 96, None) };
        assert_eq!(end.judge(&first(2)), Verdict::TakeFile);
        assert_eq!(end.judge(&first(3)), Verdict::Gap);
        assert_eq!(end.judge(&first(2)), Verdict::Known);
    }

    /// Two leaders submit overlapping parts of the same files, some of them lost, in any order.
    #[test]
    fn taken_bytes_are_those_of_the_files_without_a_hole() {
        let content = |number: u64, at: u64| (number * 31 + at * 7) as u8;
        let ends = [0u64, 40, 25, 60];
        let mut random = 88172645463325252u64;
        let mut next = |bound: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % bound
        };
        let mut finished = 0;
        for _ in 0..300 {
            let (mut end, mut copy) = (CopyEnd::default(), vec![Vec::new(); ends.len()]);
            for _ in 0..400 {
                let number = 1 + next(3);
                let file_end = ends[number as usize];
                let offset = if next(3) == 0 { 4 } else { 4 + next(file_end - 4) };
                let len = 1 + next((file_end - offset).min(20));
                let after =
                    (number > 1 && offset == 4).then(|| (number - 1, ends[number as usize - 1] + next(2)));
                // The true content, and another one only where the predecessor is wrong: nothing of that is taken.
                let mut chunk = chunk(number, offset, len as usize, after);
                chunk.data = (offset..offset + len).map(|at| content(number, at)).collect();
                let file = &mut copy[number as usize];
                match end.judge(&chunk) {
                    Verdict::Take { skip } => file.extend_from_slice(&chunk.data[skip..]),
                    Verdict::TakeFile | Verdict::TakeOver => file.extend_from_slice(&chunk.data),
                    Verdict::Known | Verdict::Gap => {}
                }
            }
            let last = end.place().map_or(0, |place| place.file.number());
            for number in 1..=3 {
                let file = &copy[number as usize];
                let expected: Vec<u8> = (4..4 + file.len() as u64).map(|at| content(number, at)).collect();
                assert!(*file == expected, "file {number}");
                let is_between =
                    number < last && copy[..=number as usize].iter().any(|file| !file.is_empty());
                assert!(!is_between || file.len() as u64 + 4 == ends[number as usize], "file {number}");
            }
            finished += usize::from(last == 3);
        }
        assert!(finished > 100, "{finished}");
    }
}
