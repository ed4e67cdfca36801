//! Copies between files in memory, through pipes that break.

use super::pace::Pace;
use super::receiver::{self, Joiner};
use super::sender::{self, Donor};
use super::wire::{Hello, Token};
use super::{CopyError, EXTENT, Image, Progress};
use crate::device::attachments::Attachments;
use crate::device::entry::Entry;
use crate::device::extent_map::{Content, ExtentMap};
use lockstep_core::{Gtid, Seqno, Uuid};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A file in blocks of 4 KiB, of which some are holes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Memory {
    blocks: Vec<Option<Vec<u8>>>,
}

const BLOCK: usize = 4096;

struct File(Mutex<Memory>);

impl File {
    fn new(size: u64) -> File {
        File(Mutex::new(Memory { blocks: vec![None; (size as usize).div_ceil(BLOCK)] }))
    }

    fn put(&self, block: usize, byte: u8) {
        self.0.lock().unwrap().blocks[block] = Some(vec![byte; BLOCK]);
    }

    fn holes(&self) -> Vec<bool> {
        self.0.lock().unwrap().blocks.iter().map(Option::is_none).collect()
    }

    fn content(&self, size: u64) -> Vec<u8> {
        let mut all = vec![0; size as usize];
        self.read(0, &mut all).unwrap();
        all
    }
}

impl Image for File {
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let memory = self.0.lock().unwrap();
        for (at, byte) in into.iter_mut().enumerate() {
            let place = offset as usize + at;
            *byte = memory.blocks[place / BLOCK].as_ref().map_or(0, |block| block[place % BLOCK]);
        }
        Ok(())
    }

    fn extent(&self, offset: u64, length: u64) -> io::Result<(u64, bool)> {
        let memory = self.0.lock().unwrap();
        let first = offset as usize / BLOCK;
        let hole = memory.blocks[first].is_none();
        let same = memory.blocks[first..].iter().take_while(|block| block.is_none() == hole).count();
        Ok((((first + same) * BLOCK) as u64 - offset).min(length)).map(|found| (found, hole))
    }

    fn write(&self, runs: &ExtentMap) -> io::Result<()> {
        let mut memory = self.0.lock().unwrap();
        for run in runs.runs() {
            let mut at = run.offset as usize;
            while at < run.end() as usize {
                let end = ((at / BLOCK + 1) * BLOCK).min(run.end() as usize);
                let block = &mut memory.blocks[at / BLOCK];
                match &run.content {
                    Content::Data(bytes) => {
                        let from = at - run.offset as usize;
                        let block = block.get_or_insert_with(|| vec![0; BLOCK]);
                        block[at % BLOCK..at % BLOCK + (end - at)]
                            .copy_from_slice(&bytes[from..from + end - at]);
                    }
                    Content::Zeroes { .. } => {
                        assert!(at.is_multiple_of(BLOCK), "holes are whole blocks");
                        *block = None;
                    }
                }
                at = end;
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Flow {
    bytes: VecDeque<u8>,
    closed: bool,
    /// Closed once so many more bytes were read.
    cut_after: Option<usize>,
}

/// One direction of a pipe, which takes as many bytes as a socket.
#[derive(Clone, Default)]
struct Half(Arc<(Mutex<Flow>, Condvar)>);

/// The most bytes under way: fewer than in a socket, and enough for the Summaries ahead.
const UNDER_WAY: usize = 20_000;

struct Pipe {
    input: Half,
    output: Half,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        for half in [&self.input, &self.output] {
            half.0.0.lock().unwrap().closed = true;
            half.0.1.notify_all();
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (flow, changed) = &*self.input.0;
        let mut flow = flow.lock().unwrap();
        while flow.bytes.is_empty() && !flow.closed {
            flow = changed.wait(flow).unwrap();
        }
        let mut count = into.len().min(flow.bytes.len());
        if let Some(left) = flow.cut_after {
            count = count.min(left);
            flow.cut_after = Some(left - count);
            flow.closed |= left == count;
        }
        for byte in &mut into[..count] {
            *byte = flow.bytes.pop_front().unwrap();
        }
        changed.notify_all();
        Ok(count)
    }
}

impl Write for Pipe {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let (flow, changed) = &*self.output.0;
        let mut flow = flow.lock().unwrap();
        while flow.bytes.len() >= UNDER_WAY && !flow.closed {
            flow = changed.wait(flow).unwrap();
        }
        if flow.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = from.len().min(UNDER_WAY - flow.bytes.len());
        flow.bytes.extend(&from[..count]);
        changed.notify_all();
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const TOKEN: Token = Token([7; 32]);

fn hello(size: u64, seqno: Seqno) -> Hello {
    let mut attachments = Attachments::default();
    attachments.take(&Uuid([1; 16]), &Entry::Resize { before: 0, size, token: 1 });
    let gtid = Gtid { uuid: Uuid([3; 16]), seqno };
    Hello { token: TOKEN, group: "disk".into(), donor: "n1".into(), gtid, log: Uuid([3; 16]), attachments }
}

struct Sends<F: FnMut(Progress)>(F, Seqno);

impl<F: FnMut(Progress)> Donor for Sends<F> {
    fn progress(&mut self, progress: Progress) -> Result<(), CopyError> {
        (self.0)(progress);
        Ok(())
    }

    fn until(&mut self) -> Seqno {
        self.1
    }
}

#[derive(Default)]
struct Receives {
    begun: bool,
    until: Option<Seqno>,
}

impl Joiner for Receives {
    fn begin(&mut self, _: &Hello) -> Result<(), CopyError> {
        self.begun = true;
        Ok(())
    }

    fn progress(&mut self, progress: Progress) -> Result<(), CopyError> {
        assert!(progress.done <= progress.total);
        Ok(())
    }

    fn end(&mut self, _: &Hello, until: Seqno) -> Result<(), CopyError> {
        self.until = Some(until);
        Ok(())
    }
}

struct Copied {
    sent: Result<Progress, CopyError>,
    received: Result<Progress, CopyError>,
    until: Option<Seqno>,
}

/// Copies. `cuts`: after how many bytes the donor's and the joiner's output ends.
fn copy(
    from: &File,
    to: &File,
    hello: Hello,
    cuts: [Option<usize>; 2],
    each: impl FnMut(Progress) + Send,
) -> Copied {
    let (forth, back) = (Half::default(), Half::default());
    forth.0.0.lock().unwrap().cut_after = cuts[0];
    back.0.0.lock().unwrap().cut_after = cuts[1];
    let mut donor = Pipe { input: back.clone(), output: forth.clone() };
    let mut joiner = Pipe { input: forth, output: back };
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let until = hello.gtid.seqno + 3;
            sender::send(&mut donor, from, hello, Pace::new(0, Instant::now()), &mut Sends(each, until))
        });
        let mut receives = Receives::default();
        let received = receiver::greet(&mut joiner, "disk", &TOKEN)
            .and_then(|hello| receiver::receive(&mut joiner, to, &hello, &mut receives));
        drop(joiner);
        Copied { sent: sender.join().unwrap(), received, until: receives.until }
    })
}

/// 40 extents and a half: data, holes, and data that the joiner has, too.
fn files() -> (u64, File, File) {
    let size = 40 * EXTENT + 8192;
    let (from, to) = (File::new(size), File::new(size));
    for block in 0..100 {
        from.put(block, block as u8);
        to.put(block, block as u8);
    }
    // It differs in an extent.
    from.put(20, 200);
    // The joiner lacks these.
    (300..340).for_each(|block| from.put(block, 3));
    from.put(641, 9);
    // The donor has holes there.
    (400..450).for_each(|block| to.put(block, 4));
    (450..460).for_each(|block| to.put(block, 0));
    // The donor has written zeroes.
    from.put(500, 0);
    (size, from, to)
}

#[test]
fn only_what_differs_is_sent_and_holes_stay_holes() {
    let (size, from, to) = files();
    let copied = copy(&from, &to, hello(size, 5), [None; 2], |_| {});
    let (sent, received) = (copied.sent.unwrap(), copied.received.unwrap());
    assert_eq!((sent, copied.until), (received, Some(8)));
    assert_eq!(to.content(size), from.content(size));
    // One extent of the equal part, 18 to 21 of the new part, and the last one.
    assert_eq!((sent.done, sent.total, sent.sent), (size, size, (1 + 4) * EXTENT + 8192));
    let mut expected = from.holes();
    expected[500] = true;
    assert_eq!(to.holes(), expected);
    let again = copy(&from, &to, hello(size, 5), [None; 2], |_| {});
    assert_eq!(again.sent.unwrap().sent, 0, "all is equal now");
}

#[test]
fn device_without_size_is_copied() {
    let copied = copy(&File::new(0), &File::new(0), hello(0, 5), [None; 2], |_| {});
    assert_eq!(copied.received.unwrap(), Progress::default());
    assert_eq!(copied.until, Some(8));
}

#[test]
fn cut_copy_is_never_whole_and_can_be_repeated() {
    let (size, from, to) = files();
    let clean = to.0.lock().unwrap().clone();
    let mut cuts = 0;
    // Each message has another length, so these cuts are before, in and after all kinds of them.
    for (side, step) in [(0, 3011), (1, 97)] {
        for cut in (0..).step_by(step) {
            *to.0.lock().unwrap() = clean.clone();
            let mut which = [None; 2];
            which[side] = Some(cut);
            let copied = copy(&from, &to, hello(size, 5), which, |_| {});
            if copied.sent.is_ok() && copied.received.is_ok() {
                assert_eq!(to.content(size), from.content(size));
                break;
            }
            cuts += 1;
            assert!(copied.until.is_none() || to.content(size) == from.content(size), "cut at {cut}");
            let copied = copy(&from, &to, hello(size, 5), [None; 2], |_| {});
            assert!(copied.received.is_ok());
            assert_eq!(to.content(size), from.content(size));
        }
    }
    assert!(cuts > 30, "{cuts}");
}

#[test]
fn blocks_that_change_meanwhile_are_old_or_new() {
    let (size, from, to) = files();
    let before = from.content(size);
    let mut next = 0;
    let copied = copy(&from, &to, hello(size, 5), [None; 2], |_| {
        from.put(next * 7 % 640, 77);
        next += 1;
    });
    assert!(copied.received.is_ok());
    let (found, after) = (to.content(size), from.content(size));
    for at in 0..size as usize {
        assert!(found[at] == before[at] || found[at] == after[at], "byte {at}");
    }
}

#[test]
fn donor_without_token_is_refused() {
    let (size, from, to) = files();
    let other = Hello { token: Token([8; 32]), ..hello(size, 5) };
    let copied = copy(&from, &to, other, [None; 2], |_| {});
    assert!(matches!(&copied.sent, Err(CopyError::Refused(text)) if text.contains("token")));
    assert!(copied.received.is_err());
    let other = Hello { group: "other".into(), ..hello(size, 5) };
    assert!(copy(&from, &to, other, [None; 2], |_| {}).received.is_err());
}

#[test]
fn rate_is_kept() {
    let (size, from, to) = (16 * EXTENT, File::new(16 * EXTENT), File::new(16 * EXTENT));
    (0..16 * 16).for_each(|block| from.put(block, 1));
    let (forth, back) = (Half::default(), Half::default());
    let mut donor = Pipe { input: back.clone(), output: forth.clone() };
    let mut joiner = Pipe { input: forth, output: back };
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // 1 MiB at 2 MiB/s.
            let pace = Pace::new(2 << 20, Instant::now());
            sender::send(&mut donor, &from, hello(size, 5), pace, &mut Sends(|_| {}, 8)).unwrap();
        });
        let hello = receiver::greet(&mut joiner, "disk", &TOKEN).unwrap();
        receiver::receive(&mut joiner, &to, &hello, &mut Receives::default()).unwrap();
    });
    assert!(began.elapsed() >= Duration::from_millis(390), "{:?}", began.elapsed());
}

/// Takes anything, and answers with these bytes.
struct Script<'a>(&'a [u8]);

impl Read for Script<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Script<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The result of a joiner with these bytes of a donor. Its file keeps its size, also if the donor names another one.
pub(crate) fn joiner_of(input: &[u8]) -> String {
    let size = 3 * EXTENT;
    let file = File::new(size);
    file.put(17, 5);
    let mut stream = Script(input);
    let mut receives = Receives::default();
    let result = receiver::greet(&mut stream, "disk", &TOKEN).and_then(|mut hello| {
        hello.attachments = self::hello(size, 5).attachments;
        receiver::receive(&mut stream, &file, &hello, &mut receives)
    });
    assert!(receives.begun || receives.until.is_none());
    assert_eq!(receives.until.is_some(), result.is_ok());
    format!("{:?}", result.map_err(|error| error.to_string()))
}

/// The result of a donor with these bytes of a joiner.
pub(crate) fn donor_of(input: &[u8]) -> String {
    let size = 3 * EXTENT;
    let file = File::new(size);
    file.put(17, 5);
    let pace = Pace::new(0, Instant::now());
    let result = sender::send(&mut Script(input), &file, hello(size, 5), pace, &mut Sends(|_| {}, 8));
    format!("{:?}", result.map_err(|error| error.to_string()))
}

/// The bytes of a donor, and of a joiner, in a copy that succeeds with [`joiner_of`] and [`donor_of`].
pub(crate) fn both_sides() -> [Vec<u8>; 2] {
    use super::wire::{Item, Message};
    let size = 3 * EXTENT;
    let mut bytes = vec![0; EXTENT as usize];
    bytes[4096..8192].fill(6);
    let donor = [
        Message::Hello(hello(size, 5)),
        Message::Data { offset: 0, sum: super::sum(&bytes), bytes: bytes.into() },
        Message::Compared { upto: EXTENT },
        Message::Punch { offset: EXTENT, length: EXTENT },
        Message::Compared { upto: size },
        Message::End { until: 8 },
    ];
    let items = vec![Item::Holes(1), Item::Hash([4; 32]), Item::Holes(1)];
    let joiner = [Message::Accept, Message::Summary { from: 0, items }, Message::Done];
    let bytes = |messages: &[Message]| messages.iter().flat_map(Message::encode).collect();
    [bytes(&donor), bytes(&joiner)]
}

#[test]
fn scripts_of_both_sides_succeed() {
    let [donor, joiner] = both_sides();
    assert!(joiner_of(&donor).starts_with("Ok"), "{}", joiner_of(&donor));
    assert!(donor_of(&joiner).starts_with("Ok"), "{}", donor_of(&joiner));
}
