//! The possible contents of the device: for each sector the writes since the last common state of all copies, and how
//! certain each is.
//!
//! The model knows nothing of epochs, logs or members. Its inputs are the client's requests and the answers to them.

use super::sector::{self, Content, SECTOR};

/// How many wrong sectors of one check are described.
const DESCRIBED: usize = 5;

/// The writes that may be missing in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// No answered write: the server has lived through it.
    Nothing,
    /// Writes that no answered flush covers: the server is gone.
    Unflushed,
    /// The flushes after some point, all of them: the protocol promises a prefix only.
    Suffix,
}

/// The state of a sector after one write.
#[derive(Debug, Clone, Copy)]
struct Version {
    /// The number of the write; 0: the sector as it was at first.
    write: u64,
    /// The write made the sector zero.
    zero: bool,
    answered: bool,
    /// How many flushes had been answered when the write was sent.
    after: u32,
    /// The number of the first answered flush that covers the write.
    covered: Option<u32>,
}

impl Version {
    fn is(self, content: &Content) -> bool {
        match content {
            Content::Zero => self.zero,
            Content::Write(write) => !self.zero && self.write == *write,
            Content::Wrong(_) => false,
        }
    }

    fn text(self) -> String {
        let what = if self.zero { "zeroes of write" } else { "write" };
        format!("{what} {}", self.write)
    }
}

/// A write that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Write {
    /// Its number.
    pub(crate) number: u64,
    /// Its first sector.
    pub(crate) first: u32,
    /// How many sectors it has.
    pub(crate) count: u32,
}

impl Write {
    fn sectors(self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Wrong sectors, a line each; the last line counts the sectors that are left out.
    pub(crate) violations: Vec<String>,
    /// How many answered flushes are lost.
    pub(crate) lost_flushes: u32,
}

/// The model of all sectors.
#[derive(Debug)]
pub(crate) struct Model {
    salt: u32,
    /// Of each sector, oldest first. The first one is on all copies.
    sectors: Vec<Vec<Version>>,
    writes: u64,
    /// Answered flushes, and writes with FUA.
    flushes: u32,
    /// Answered writes that no flush covers.
    open: Vec<Write>,
}

impl Model {
    /// That of a new device with this many sectors.
    pub(crate) fn new(sectors: u32, salt: u32) -> Model {
        let first = Version { write: 0, zero: true, answered: true, after: 0, covered: Some(0) };
        Model { salt, sectors: vec![vec![first]; sectors as usize], writes: 0, flushes: 0, open: Vec::new() }
    }

    /// How many sectors there are.
    pub(crate) fn sectors(&self) -> u32 {
        self.sectors.len() as u32
    }

    /// The mark of this run in each sector.
    pub(crate) fn salt(&self) -> u32 {
        self.salt
    }

    /// A write is about to be sent. Returns it with its bytes, which are none if it makes the sectors zero.
    pub(crate) fn write(&mut self, first: u32, count: u32, zero: bool) -> (Write, Vec<u8>) {
        self.writes += 1;
        let write = Write { number: self.writes, first, count };
        let version =
            Version { write: self.writes, zero, answered: false, after: self.flushes, covered: None };
        self.sectors[write.sectors()].iter_mut().for_each(|sector| sector.push(version));
        let mut bytes = vec![0; if zero { 0 } else { count as usize * SECTOR }];
        for (at, chunk) in bytes.chunks_mut(SECTOR).enumerate() {
            sector::fill(chunk, self.salt, first + at as u32, write.number);
        }
        (write, bytes)
    }

    fn change(&mut self, write: Write, change: impl Fn(&mut Version)) {
        for sector in &mut self.sectors[write.sectors()] {
            sector.iter_mut().filter(|version| version.write == write.number).for_each(&change);
        }
    }

    /// The write was answered; `durable`: by its own flag it needs no flush.
    pub(crate) fn answered(&mut self, write: Write, durable: bool) {
        self.change(write, |version| version.answered = true);
        if durable {
            self.flushed(&[write]);
        } else {
            self.open.push(write);
        }
    }

    /// A flush is about to be sent. Returns the writes that it covers.
    pub(crate) fn flush(&mut self) -> Vec<Write> {
        std::mem::take(&mut self.open)
    }

    /// The flush of these writes was answered.
    pub(crate) fn flushed(&mut self, writes: &[Write]) {
        self.flushes += 1;
        let number = self.flushes;
        for write in writes {
            self.change(*write, |version| version.covered = version.covered.or(Some(number)));
        }
    }

    /// Whether sectors that were just read hold the last write, with none of them in flight.
    pub(crate) fn check_read(&self, first: u32, bytes: &[u8]) -> Option<String> {
        bytes.chunks(SECTOR).enumerate().find_map(|(at, chunk)| {
            let number = first + at as u32;
            let last = self.sectors[number as usize].last()?;
            let content = sector::read(chunk, self.salt, number);
            (!last.is(&content))
                .then(|| format!("a read of sector {number} gave {content:?}, not {}", last.text()))
        })
    }

    /// Compares an image with the possible contents.
    pub(crate) fn check(&self, image: &[u8], loss: Loss) -> Checked {
        let contents: Vec<Content> = (0..self.sectors())
            .map(|number| {
                let at = number as usize * SECTOR;
                image.get(at..at + SECTOR).map_or_else(
                    || Content::Wrong("the image is too short".into()),
                    |bytes| sector::read(bytes, self.salt, number),
                )
            })
            .collect();
        // The last flush that something in the image came after: everything that it covers must be there.
        let reached = self.sectors.iter().zip(&contents).filter_map(|(versions, content)| {
            versions.iter().find(|version| version.is(content)).map(|version| version.after)
        });
        let reached = reached.max().unwrap_or(0);
        let mut wrong = Vec::new();
        let mut first_lost = None;
        for (number, (versions, content)) in self.sectors.iter().zip(&contents).enumerate() {
            let Some(found) = versions.iter().rposition(|version| version.is(content)) else {
                let text = match content {
                    Content::Wrong(text) => text.clone(),
                    Content::Zero => "it is zero, which it has not been since all copies were equal".into(),
                    Content::Write(write) => format!(
                        "it holds write {write}, which is older than the state that all copies had, or was lost before"
                    ),
                };
                wrong.push(format!("sector {number}: {text}; the last is {}", self.last(number)));
                continue;
            };
            let least = |needed: &dyn Fn(&Version) -> bool| versions.iter().rposition(needed).unwrap_or(0);
            let needed = match loss {
                Loss::Nothing => least(&|version| version.answered),
                Loss::Unflushed => least(&|version| version.covered.is_some()),
                Loss::Suffix => least(&|version| version.covered.is_some_and(|flush| flush <= reached)),
            };
            if found < needed {
                let why = match loss {
                    Loss::Nothing => "was answered".to_owned(),
                    Loss::Unflushed => "was flushed".to_owned(),
                    Loss::Suffix => format!("precedes what was written after flush {reached}"),
                };
                wrong.push(format!(
                    "sector {number}: it holds {}, and {} {why}",
                    versions[found].text(),
                    versions[needed].text()
                ));
            }
            let lost = versions[found + 1..].iter().filter_map(|version| version.covered).min();
            first_lost = [first_lost, lost].into_iter().flatten().min();
        }
        let more = wrong.len().saturating_sub(DESCRIBED);
        wrong.truncate(DESCRIBED);
        if more > 0 {
            wrong.push(format!("and {more} more wrong sectors"));
        }
        let lost_flushes = first_lost.map_or(0, |first| self.flushes + 1 - first);
        Checked { violations: wrong, lost_flushes }
    }

    fn last(&self, number: usize) -> String {
        self.sectors[number].last().map_or_else(String::new, |version| version.text())
    }

    /// The image was read, and flushed since: it is the truth from now on. A wrong sector counts as its last write, so that
    /// it is reported again until it is overwritten.
    pub(crate) fn adopt(&mut self, image: &[u8]) {
        for (number, versions) in self.sectors.iter_mut().enumerate() {
            let at = number * SECTOR;
            let content = sector::read(&image[at..at + SECTOR], self.salt, number as u32);
            let found = versions.iter().rev().find(|version| version.is(&content)).or(versions.last());
            if let Some(found) = found.copied() {
                *versions = vec![Version { answered: true, covered: Some(0), after: 0, ..found }];
            }
        }
        self.flushes = 0;
        self.open.clear();
    }

    /// Whether a sector was written by at least one write.
    pub(crate) fn is_written(&self, number: u32) -> bool {
        self.sectors[number as usize].last().is_some_and(|version| !version.zero)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device as a plain array of bytes.
    struct Device {
        model: Model,
        image: Vec<u8>,
    }

    impl Device {
        fn new() -> Device {
            Device { model: Model::new(8, 77), image: vec![0; 8 * SECTOR] }
        }

        /// Writes; `kept`: into the image, too.
        fn write(&mut self, first: u32, count: u32, kept: bool) -> Write {
            let (write, bytes) = self.model.write(first, count, false);
            if kept {
                let at = first as usize * SECTOR;
                self.image[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            write
        }

        fn answered(&mut self, first: u32, count: u32, kept: bool) {
            let write = self.write(first, count, kept);
            self.model.answered(write, false);
        }

        fn flush(&mut self) {
            let writes = self.model.flush();
            self.model.flushed(&writes);
        }

        fn is_right(&self, loss: Loss) -> bool {
            self.model.check(&self.image, loss).violations.is_empty()
        }
    }

    #[test]
    fn flushed_write_must_be_there_and_a_later_one_may() {
        let mut device = Device::new();
        device.answered(0, 4, true);
        device.flush();
        device.answered(0, 2, false);
        let unanswered = device.write(3, 1, true);
        assert!(device.is_right(Loss::Unflushed), "the second write may be lost");
        assert!(!device.is_right(Loss::Nothing), "the second write was answered");
        device.flush();
        assert!(!device.is_right(Loss::Unflushed), "the second write was flushed");
        device.model.answered(unanswered, false);
        assert!(device.is_right(Loss::Suffix));
        assert_eq!(device.model.check(&device.image, Loss::Suffix).lost_flushes, 1);
    }

    #[test]
    fn durable_write_needs_no_flush() {
        let mut device = Device::new();
        let write = device.write(1, 1, false);
        device.model.answered(write, true);
        assert!(!device.is_right(Loss::Unflushed));
        assert!(device.is_right(Loss::Suffix));
    }

    #[test]
    fn suffix_may_be_lost_but_no_hole_may_be_left() {
        let mut device = Device::new();
        device.answered(0, 1, true);
        device.flush();
        device.answered(1, 1, false);
        device.flush();
        assert!(device.is_right(Loss::Suffix), "the last flush is lost");
        device.answered(2, 1, true);
        assert!(!device.is_right(Loss::Suffix), "a later write is there without the flush before it");
        assert!(!device.is_right(Loss::Unflushed));
    }

    #[test]
    fn planted_corruptions_are_all_found() {
        let mut device = Device::new();
        device.answered(0, 8, true);
        device.flush();
        let old = device.image.clone();
        device.answered(0, 8, true);
        device.flush();
        assert!(device.is_right(Loss::Nothing));
        let sound = device.image.clone();
        for (at, byte) in sound.iter().enumerate() {
            device.image[at] = byte ^ 0x10;
            assert!(!device.is_right(Loss::Suffix), "byte {at}");
            device.image[at] = *byte;
        }
        device.image[..SECTOR].copy_from_slice(&sound[SECTOR..2 * SECTOR]);
        let found = device.model.check(&device.image, Loss::Suffix).violations;
        assert!(found.len() == 1 && found[0].contains("holds sector 1"), "{found:?}");
        device.image[..SECTOR].copy_from_slice(&old[..SECTOR]);
        assert!(!device.is_right(Loss::Unflushed), "an older write");
        device.image[..SECTOR].fill(0);
        assert!(!device.is_right(Loss::Unflushed), "zeroes");
        device.image.copy_from_slice(&sound);
        device.image.truncate(SECTOR * 7 + 100);
        assert!(!device.is_right(Loss::Unflushed), "too short");
    }

    #[test]
    fn lost_write_must_not_come_back() {
        let mut device = Device::new();
        device.answered(0, 1, true);
        device.flush();
        let kept = device.image.clone();
        device.answered(0, 1, true);
        let lost = std::mem::replace(&mut device.image, kept);
        assert!(device.is_right(Loss::Unflushed));
        device.model.adopt(&device.image.clone());
        device.image = lost;
        assert!(!device.is_right(Loss::Unflushed), "the image was read without it");
    }

    #[test]
    fn zeroes_are_a_write_like_any_other() {
        let mut device = Device::new();
        device.answered(0, 2, true);
        device.flush();
        let (write, bytes) = device.model.write(0, 1, true);
        assert!(bytes.is_empty());
        device.model.answered(write, false);
        assert!(device.is_right(Loss::Unflushed));
        device.flush();
        assert!(!device.is_right(Loss::Unflushed));
        device.image[..SECTOR].fill(0);
        assert!(device.is_right(Loss::Nothing));
        assert!(device.model.check_read(0, &device.image[..2 * SECTOR]).is_none());
        assert!(device.model.check_read(0, &device.image[SECTOR..2 * SECTOR]).is_some());
    }
}
