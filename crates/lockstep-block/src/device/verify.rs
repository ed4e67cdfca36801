//! The comparison of all copies while clients write.
//!
//! The log orders it. An entry names a range; each copy hashes what the range holds as of that entry, and answers with an entry
//! of hashes. So all copies hash the same state, although none stops. The member that began the comparison compares the answers.
//!
//! A copy hashes what its device file holds, with the committed writes that are not on the file yet. It notes these writes when
//! it takes the entry. The thread that writes to the file hashes before its next batch, so the file has none of the later writes,
//! and deliveries go on meanwhile.
//!
//! A copy that has not caught up gives no answer: after a kill, its file may have parts of entries that it takes again.

use super::entry::{BlockHash, Compared, Difference, Entry, HASH_BLOCK, HASHES_MAX};
use super::extent_map::Content;
use super::file::DeviceFile;
use super::overlay::Part;
use super::replica::{CopyMember, LOOK, Log, NO_SIZE, Replica, State};
use super::resync::Wholeness;
use lockstep_core::{MemberId, Seqno};
use ring::digest::{Context, Digest, SHA256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, MutexGuard};
use std::time::{Duration, Instant};

/// The bytes of one step. A copy notes as many bytes of writes that are not on its file.
pub const STEP: u64 = 16 << 20;
/// How many steps may wait for the thread that hashes. More are not answered: the member that compares asks again.
const STEPS_WAITING: usize = 2;
/// The file is read in such parts.
const READ: usize = 256 << 10;
/// A step is repeated after this part of its time. The part doubles with each try.
const AGAIN_AFTER: u32 = 9;
/// How long a result may take to come out of the log.
const RESULT_WITHIN: Duration = Duration::from_secs(5);
/// Another member's comparison goes on if it made a step in this time.
const OTHER_FOR: Duration = Duration::from_secs(30);

/// How far a comparison has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyProgress {
    /// Bytes that were compared.
    pub done: u64,
    /// All bytes.
    pub total: u64,
    /// The bytes of blocks that differ.
    pub differing: u64,
}

/// The state of comparisons on one member.
#[derive(Debug, Default)]
pub(crate) struct Verification {
    /// The comparison of this member.
    own: Option<Comparison>,
    /// The member of the last step that was another one's, and when it was delivered.
    other: Option<(MemberId, Instant)>,
    /// Steps that wait for the thread that hashes.
    jobs: Vec<Job>,
    /// The last result.
    last: Option<Compared>,
}

#[derive(Debug, Default)]
struct Comparison {
    /// The answers to each try of the present step.
    tries: BTreeMap<u64, BTreeMap<MemberId, Vec<BlockHash>>>,
    /// Its first step was delivered.
    has_begun: bool,
    /// Another member's comparison began before.
    overtaken_by: Option<MemberId>,
}

/// A range to hash.
#[derive(Debug)]
pub(crate) struct Job {
    token: u64,
    parts: Vec<Part>,
}

impl Verification {
    /// The last result.
    pub(crate) fn last(&self) -> Option<&Compared> {
        self.last.as_ref()
    }

    /// The next range to hash.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        (!self.jobs.is_empty()).then(|| self.jobs.remove(0))
    }

    fn begin(&mut self, now: Instant) -> Result<(), Busy> {
        if self.own.is_some() {
            return Err(Busy::Here);
        }
        if let Some((member, at)) = self.other
            && now.saturating_duration_since(at) < OTHER_FOR
        {
            return Err(Busy::At(member));
        }
        self.own = Some(Comparison::default());
        Ok(())
    }

    /// A step begins: the answers of the step before count no more.
    fn begin_step(&mut self) {
        if let Some(own) = &mut self.own {
            own.tries.clear();
        }
    }

    /// The present step is tried, perhaps again.
    fn try_step(&mut self, token: u64) {
        if let Some(own) = &mut self.own {
            own.tries.insert(token, BTreeMap::new());
        }
    }

    /// The answers to a try that all of these copies have answered.
    fn complete(&self, copies: &BTreeSet<MemberId>) -> Option<&BTreeMap<MemberId, Vec<BlockHash>>> {
        let tries = &self.own.as_ref()?.tries;
        tries.values().find(|answers| copies.iter().all(|copy| answers.contains_key(copy)))
    }

    /// The copies that have answered no try of the step.
    fn missing(&self, copies: &BTreeSet<MemberId>) -> Vec<MemberId> {
        let Some(own) = &self.own else { return Vec::new() };
        let answered = |copy: &MemberId| own.tries.values().any(|answers| answers.contains_key(copy));
        copies.iter().filter(|copy| !answered(copy)).copied().collect()
    }

    /// A step was delivered. `parts`: the content of this copy; `None`: it gives no answer.
    pub(crate) fn on_step(
        &mut self,
        origin: &MemberId,
        is_own: bool,
        token: u64,
        parts: Option<Vec<Part>>,
        now: Instant,
    ) {
        if let (Some(parts), true) = (parts, self.jobs.len() < STEPS_WAITING) {
            self.jobs.push(Job { token, parts });
        }
        match (&mut self.own, is_own) {
            (Some(own), true) => own.has_begun = true,
            (Some(own), false) if !own.has_begun => own.overtaken_by = Some(*origin),
            _ => {}
        }
        if !is_own {
            self.other = Some((*origin, now));
        }
    }

    /// An answer was delivered.
    pub(crate) fn on_hashes(&mut self, origin: &MemberId, token: u64, blocks: Vec<BlockHash>) {
        if let Some(answers) = self.own.as_mut().and_then(|own| own.tries.get_mut(&token)) {
            answers.insert(*origin, blocks);
        }
    }

    /// A result was delivered.
    pub(crate) fn on_result(&mut self, origin: &MemberId, result: Compared) {
        self.last = Some(result);
        self.other = self.other.filter(|(member, _)| member != origin);
    }
}

enum Busy {
    Here,
    At(MemberId),
}

fn block_hash(digest: &Digest) -> BlockHash {
    let mut hash = BlockHash::default();
    hash.copy_from_slice(digest.as_ref());
    hash
}

/// Hashes a range in blocks. A hole and written zeroes are alike.
struct BlockHasher {
    hasher: Context,
    filled: u64,
    blocks: Vec<BlockHash>,
}

static ZEROES: [u8; READ] = [0; READ];

static ZERO_BLOCK: LazyLock<BlockHash> = LazyLock::new(|| {
    let mut hasher = Context::new(&SHA256);
    for _ in 0..HASH_BLOCK / READ as u64 {
        hasher.update(&ZEROES);
    }
    block_hash(&hasher.finish())
});

impl BlockHasher {
    fn new() -> BlockHasher {
        BlockHasher { hasher: Context::new(&SHA256), filled: 0, blocks: Vec::new() }
    }

    fn data(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = (HASH_BLOCK - self.filled) as usize;
            let (now, rest) = bytes.split_at(bytes.len().min(room));
            self.hasher.update(now);
            self.filled += now.len() as u64;
            bytes = rest;
            if self.filled == HASH_BLOCK {
                self.end_block();
            }
        }
    }

    fn zeroes(&mut self, mut length: u64) {
        while length > 0 {
            if self.filled == 0 && length >= HASH_BLOCK {
                self.blocks.push(*ZERO_BLOCK);
                length -= HASH_BLOCK;
            } else {
                let now = length.min(READ as u64).min(HASH_BLOCK - self.filled);
                self.data(&ZEROES[..now as usize]);
                length -= now;
            }
        }
    }

    fn end_block(&mut self) {
        let hasher = std::mem::replace(&mut self.hasher, Context::new(&SHA256));
        self.blocks.push(block_hash(&hasher.finish()));
        self.filled = 0;
    }

    fn finish(mut self) -> Vec<BlockHash> {
        if self.filled > 0 {
            self.end_block();
        }
        self.blocks
    }
}

/// The hashes of a range that has these parts.
fn hash(file: &DeviceFile, parts: Vec<Part>) -> std::io::Result<Vec<BlockHash>> {
    let mut hasher = BlockHasher::new();
    let mut buffer = vec![0; READ];
    if let (Some(first), Some(last)) = (parts.first(), parts.last()) {
        // The copies on the disks count, not those in memory.
        file.reread(first.range.start..last.range.end)?;
    }
    for Part { range, content } in parts {
        match content {
            Some(Content::Data(bytes)) => hasher.data(&bytes),
            Some(Content::Zeroes { .. }) => hasher.zeroes(range.end - range.start),
            None => {
                let mut at = range.start;
                while at < range.end {
                    let (length, is_hole) = file.extent(at, range.end - at)?;
                    if is_hole {
                        hasher.zeroes(length);
                        at += length;
                    } else {
                        let length = length.min(READ as u64);
                        let buffer = &mut buffer[..length as usize];
                        file.read(at, buffer)?;
                        hasher.data(buffer);
                        at += length;
                    }
                }
            }
        }
    }
    Ok(hasher.finish())
}

/// The ranges in which copies differ, of one step at `offset`.
fn differences(answers: &BTreeMap<MemberId, Vec<BlockHash>>, offset: u64, length: u64) -> Vec<Difference> {
    let mut found: Vec<Difference> = Vec::new();
    for (at, begin) in (offset..offset + length).step_by(HASH_BLOCK as usize).enumerate() {
        let mut alike: BTreeMap<Option<&BlockHash>, Vec<MemberId>> = BTreeMap::new();
        for (member, blocks) in answers {
            alike.entry(blocks.get(at)).or_default().push(*member);
        }
        if alike.len() <= 1 {
            continue;
        }
        let majority = alike.values().position(|members| members.len() * 2 > answers.len());
        let others = alike.values().enumerate().filter(|(at, _)| majority.is_some_and(|found| found != *at));
        let mut members: Vec<MemberId> = others.flat_map(|(_, members)| members.iter().copied()).collect();
        members.sort();
        let block = Difference { offset: begin, length: HASH_BLOCK.min(offset + length - begin), members };
        add(&mut found, block);
    }
    found
}

/// Adds a difference that lies behind all others.
fn add(found: &mut Vec<Difference>, next: Difference) {
    match found.last_mut() {
        Some(last) if last.offset + last.length == next.offset && last.members == next.members => {
            last.length += next.length;
        }
        _ => found.push(next),
    }
}

/// From the log.
impl<L: Log> Replica<L> {
    /// Takes an entry that is a part of a comparison. Returns others.
    pub(super) fn take_verification(
        &self,
        seqno: Seqno,
        origin: &MemberId,
        entry: Entry,
    ) -> Result<(), Entry> {
        let is_own = *origin == self.log().member();
        let mut state = self.lock();
        let mut result = None;
        match entry {
            Entry::Verify { token, offset, length } => {
                let end = (offset + u64::from(length)).min(state.attachments.size());
                let answers = state.caught_up && state.wholeness == Wholeness::Whole && offset < end;
                let parts = answers.then(|| state.overlay.committed_parts(offset..end));
                state.verification.on_step(origin, is_own, token, parts, Instant::now());
            }
            Entry::Hashes { token, blocks } => state.verification.on_hashes(origin, token, blocks),
            Entry::Compared(compared) => {
                result = state.caught_up.then(|| compared.clone());
                state.verification.on_result(origin, compared);
            }
            other => return Err(other),
        }
        self.passed(state, seqno);
        if let Some(compared) = result {
            let (warn, text) = self.result_text(&compared);
            self.log().note(warn, &text);
        }
        Ok(())
    }

    /// Takes an entry that certification has refused, if it is a part of a comparison: those change nothing, so they count
    /// whichever member leads. Returns whether it was one.
    pub fn deliver_refused(&self, seqno: Seqno, origin: &MemberId, payload: &bytes::Bytes) -> bool {
        Entry::decode(payload).is_ok_and(|entry| self.take_verification(seqno, origin, entry).is_ok())
    }

    /// Hashes the ranges that wait, and answers. On the thread that writes to the device file, between two batches. The lock is
    /// not held meanwhile.
    pub(super) fn answer_jobs<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some(job) = state.verification.next_job() {
            drop(state);
            self.answer(job);
            state = self.lock();
        }
        state
    }

    fn answer(&self, job: Job) {
        let Job { token, parts } = job;
        let blocks = match hash(self.file(), parts) {
            Ok(blocks) => blocks,
            Err(error) => {
                self.log().note(true, &format!("cannot read the device file for a comparison: {error}"));
                Vec::new()
            }
        };
        // A lost answer is asked for again.
        let _ = self.log().submit(Entry::Hashes { token, blocks }.encode(), Box::new(|_| {}));
    }

    /// A result for people, and whether copies differ.
    pub fn result_text(&self, result: &Compared) -> (bool, String) {
        let Compared { bytes, copies, differing, differences, .. } = result;
        if differences.is_empty() {
            return (false, format!("{bytes} bytes compared on {copies} copies, all alike"));
        }
        let mut text = format!(
            "{bytes} bytes compared on {copies} copies: they differ in blocks of 1 MiB, {differing} bytes in all"
        );
        for Difference { offset, length, members } in differences {
            let names: Vec<String> = members.iter().map(|member| self.log().name_of(member)).collect();
            let who = match &names[..] {
                [] => "the copies differ".to_owned(),
                [name] => format!("{name} differs from the others"),
                names => format!("{} differ from the others", names.join(", ")),
            };
            text.push_str(&format!("\nbytes {offset} to {}: {who}", offset + length - 1));
        }
        let listed: u64 = differences.iter().map(|difference| difference.length).sum();
        if listed < *differing {
            text.push_str("\nand more behind these");
        }
        (true, text)
    }
}

/// Ends the comparison of this member.
struct Ends<'a, L: Log>(&'a Replica<L>);

impl<L: Log> Drop for Ends<'_, L> {
    fn drop(&mut self) {
        self.0.lock().verification.own = None;
    }
}

/// The comparison.
impl<L: Log> Replica<L> {
    /// Compares all copies that are connected, while clients write. Returns the result, and the names of the members whose copies
    /// were left out. `rate`: the most bytes in a second; 0: any number. `progress` is told about once in a second, and ends the
    /// comparison by returning `false`. The result goes into the log.
    ///
    /// # Errors
    /// The copies could not be compared: a text for people.
    pub async fn verify(
        &self,
        rate: Option<u64>,
        mut progress: impl FnMut(VerifyProgress) -> bool + Send,
    ) -> Result<(Compared, Vec<String>), String> {
        self.until_caught_up().await?;
        let total = self.lock().attachments.size();
        if total == 0 {
            return Err(NO_SIZE.into());
        }
        // The result of another member's comparison may be on its way.
        let until = Instant::now() + RESULT_WITHIN;
        loop {
            let begun = self.lock().verification.begin(Instant::now());
            match begun {
                Ok(()) => break,
                Err(Busy::Here) => return Err(ONE_AT_A_TIME.into()),
                Err(Busy::At(member)) if Instant::now() >= until => {
                    return Err(format!(
                        "{ONE_AT_A_TIME}; the other one runs on {}",
                        self.log().name_of(&member)
                    ));
                }
                Err(Busy::At(_)) => tokio::time::sleep(LOOK).await,
            }
        }
        let _ends = Ends(self);
        let (copies, left_out) = self.copies()?;
        let began = Instant::now();
        let mut result = Compared {
            clock: 0,
            bytes: total,
            copies: copies.len() as u32,
            differing: 0,
            differences: Vec::new(),
        };
        let mut offset = 0;
        while offset < total {
            let length = STEP.min(total - offset);
            let (done, differing) = (offset, result.differing);
            let mut go_on = || progress(VerifyProgress { done, total, differing });
            let answers = self.step(offset, length, &copies, &mut go_on).await?;
            for difference in differences(&answers, offset, length) {
                result.differing += difference.length;
                add(&mut result.differences, difference);
            }
            result.differences.truncate(HASHES_MAX);
            offset += length;
            let due = rate
                .filter(|rate| *rate > 0)
                .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(offset as f64 / rate as f64));
            let mut waits = true;
            while waits {
                let now = VerifyProgress { done: offset, total, differing: result.differing };
                if !progress(now) {
                    return Err(CANCELLED.into());
                }
                let rest = due.saturating_sub(began.elapsed());
                waits = !rest.is_zero() && offset < total;
                if waits {
                    tokio::time::sleep(rest.min(Duration::from_secs(1))).await;
                }
            }
        }
        result.clock = self.clock();
        self.publish(&result).await;
        Ok((result, left_out))
    }

    /// Puts a result into the log, for the logs and the status of all members. If that takes too long, this member's caller has
    /// it all the same.
    async fn publish(&self, result: &Compared) {
        let payload = Entry::Compared(result.clone()).encode();
        let (until, mut sent) = (Instant::now() + RESULT_WITHIN, None::<Instant>);
        self.until(|| {
            {
                let state = self.lock();
                if state.closing || state.verification.last() == Some(result) {
                    return Some(());
                }
            }
            if sent.is_none_or(|at| at.elapsed() >= RESULT_WITHIN / 3) {
                let submitted = self.log().submit(payload.clone(), Box::new(|_| {}));
                sent = submitted.ok().map(|()| Instant::now());
            }
            (Instant::now() >= until).then_some(())
        })
        .await;
    }

    /// The copies that can be compared, and the names of the others' members.
    fn copies(&self) -> Result<(BTreeSet<MemberId>, Vec<String>), String> {
        let members = self.log().copies();
        let names = |ready: bool| {
            let those = members.iter().filter(|member| member.ready == ready);
            those.map(|CopyMember { name, .. }| name.clone()).collect::<Vec<_>>()
        };
        let left_out = names(false);
        let ready: BTreeSet<MemberId> =
            members.iter().filter(|copy| copy.ready).map(|copy| copy.member).collect();
        if !left_out.is_empty() {
            let left_out = left_out.join(", ");
            let text = format!("these copies are not connected, or lag, and are not compared: {left_out}");
            self.log().note(true, &text);
        }
        match ready.len() {
            0 | 1 => Err(format!(
                "there is nothing to compare with: copies that are connected and have caught up: {}; others: {}. See `lockstep \
                 status`",
                names(true).join(", "),
                if left_out.is_empty() { "none".to_owned() } else { left_out.join(", ") }
            )),
            _ => Ok((ready, left_out)),
        }
    }

    /// The hashes of a range on all copies, as of one entry.
    async fn step(
        &self,
        offset: u64,
        length: u64,
        copies: &BTreeSet<MemberId>,
        go_on: &mut (dyn FnMut() -> bool + Send),
    ) -> Result<BTreeMap<MemberId, Vec<BlockHash>>, String> {
        let began = Instant::now();
        let mut again_after = self.log().compared_within() / AGAIN_AFTER;
        let (mut tried, mut asked) = (None::<Instant>, Instant::now());
        self.lock().verification.begin_step();
        self.until(|| {
            let mut to_send = None;
            {
                let mut state = self.lock();
                if let Some(member) = state.verification.own.as_ref().and_then(|own| own.overtaken_by) {
                    drop(state);
                    let name = self.log().name_of(&member);
                    return Some(Err(format!("{ONE_AT_A_TIME}; the other one runs on {name}")));
                }
                if let Some(answers) = state.verification.complete(copies) {
                    let unread = answers.iter().find(|(_, blocks)| blocks.is_empty());
                    let answers = match unread {
                        None => Ok(answers.clone()),
                        Some((member, _)) => Err(*member),
                    };
                    drop(state);
                    return Some(answers.map_err(|member| {
                        let name = self.log().name_of(&member);
                        format!(
                            "{name} cannot read bytes {offset} to {} of its device file: see its log",
                            offset + length - 1
                        )
                    }));
                }
                if state.closing {
                    return Some(Err("this member ends".into()));
                }
                if began.elapsed() >= self.log().compared_within() {
                    let missing = state.verification.missing(copies);
                    drop(state);
                    let names: Vec<String> =
                        missing.iter().map(|member| self.log().name_of(member)).collect();
                    return Some(Err(match names.is_empty() {
                        true => "the copies have not answered in time: see `lockstep status`, and try again"
                            .to_owned(),
                        false => format!(
                            "{} did not answer within {} s: is it connected, has it caught up, and is its version the same? See \
                             `lockstep status`",
                            names.join(", "),
                            began.elapsed().as_secs()
                        ),
                    }));
                }
                if tried.is_none_or(|at| at.elapsed() >= again_after) {
                    let token = state.controls.token();
                    state.verification.try_step(token);
                    to_send = Some(Entry::Verify { token, offset, length: length as u32 });
                }
            }
            // Without a majority it is not sent, and tried again soon.
            if let Some(entry) = to_send
                && self.log().submit(entry.encode(), Box::new(|_| {})).is_ok()
            {
                if tried.is_some() {
                    again_after *= 2;
                }
                tried = Some(Instant::now());
            }
            if asked.elapsed() >= Duration::from_secs(1) {
                asked = Instant::now();
                if !go_on() {
                    return Some(Err(CANCELLED.into()));
                }
            }
            None
        })
        .await
    }
}

const ONE_AT_A_TIME: &str =
    "the copies are being compared already: one comparison at a time, wait for its end";
const CANCELLED: &str = "the comparison was cancelled";

#[cfg(test)]
mod tests {
    use super::super::storage::tests::TestStorage;
    use super::*;
    use bytes::Bytes;
    use lockstep_core::Uuid;
    use ring::digest::digest;

    fn id(at: u8) -> MemberId {
        Uuid([at; 16])
    }

    fn hash_of(bytes: &[u8]) -> Vec<BlockHash> {
        bytes.chunks(HASH_BLOCK as usize).map(|block| block_hash(&digest(&SHA256, block))).collect()
    }

    #[test]
    fn hashes_do_not_depend_on_holes_or_layers() {
        let dir = std::env::temp_dir().join(format!("lockstep-hashes-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let (file, _) = DeviceFile::open(&dir).unwrap();
        let size = 3 * HASH_BLOCK + 4096;
        file.grow(size).unwrap();
        let mut expected = vec![0; size as usize];
        let whole = |content: Option<Content>| vec![Part { range: 0..size, content }];
        assert_eq!(hash(&file, whole(None)).unwrap(), hash_of(&expected), "a hole");
        assert_eq!(hash(&file, whole(Some(Content::Zeroes { hole: false }))).unwrap(), hash_of(&expected));
        expected[(HASH_BLOCK - 100) as usize..][..5000].fill(7);
        let data = Bytes::from(vec![7; 5000]);
        let (from, to) = (HASH_BLOCK - 100, HASH_BLOCK + 4900);
        let parts = vec![
            Part { range: 0..from, content: None },
            Part { range: from..to, content: Some(Content::Data(data.clone())) },
            Part { range: to..size, content: None },
        ];
        assert_eq!(hash(&file, parts).unwrap(), hash_of(&expected), "in memory");
        let mut runs = super::super::extent_map::ExtentMap::default();
        runs.insert(super::super::extent_map::Run::data(from, data), 0);
        runs.insert(super::super::extent_map::Run::zeroes(2 * HASH_BLOCK, 4096, false), 0);
        file.write(&runs).unwrap();
        assert_eq!(hash(&file, whole(None)).unwrap(), hash_of(&expected), "on the file");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn range_is_read_from_the_disk_before_it_is_hashed() {
        let dir = std::env::temp_dir().join(format!("lockstep-hashes-disk-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let storage = TestStorage::open(&dir, u64::MAX);
        let reread = storage.reread.clone();
        let (file, _) = DeviceFile::over(Box::new(storage)).unwrap();
        file.grow(3 * HASH_BLOCK).unwrap();
        let written = Some(Content::Zeroes { hole: true });
        let parts = vec![
            Part { range: HASH_BLOCK..2 * HASH_BLOCK, content: None },
            Part { range: 2 * HASH_BLOCK..3 * HASH_BLOCK, content: written },
        ];
        hash(&file, parts).unwrap();
        assert_eq!(reread.lock().unwrap()[..], vec![HASH_BLOCK..3 * HASH_BLOCK]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn members_outside_a_majority_are_named() {
        let answers = |blocks: [&[u8]; 3]| {
            let copies = blocks.iter().enumerate();
            copies.map(|(at, blocks)| (id(at as u8 + 1), blocks.iter().map(|b| [*b; 32]).collect())).collect()
        };
        let length = 2 * HASH_BLOCK + 512;
        assert_eq!(differences(&answers([&[1, 2, 3], &[1, 2, 3], &[1, 2, 3]]), 0, length), []);
        let found = differences(&answers([&[1, 2, 3], &[1, 9, 9], &[1, 2, 3]]), HASH_BLOCK, length);
        let expected = Difference { offset: 2 * HASH_BLOCK, length: HASH_BLOCK + 512, members: vec![id(2)] };
        assert_eq!(found, [expected], "adjacent blocks are one range");
        let found = differences(&answers([&[1, 2, 3], &[1, 2, 4], &[1, 2, 5]]), 0, length);
        assert_eq!(found, [Difference { offset: 2 * HASH_BLOCK, length: 512, members: Vec::new() }]);
        let two: BTreeMap<_, _> = answers([&[1, 2, 3], &[1, 2, 4], &[]]).into_iter().take(2).collect();
        assert_eq!(differences(&two, 0, length)[0].members, [], "nobody knows which of two is right");
    }

    #[test]
    fn later_one_of_two_comparisons_gives_way() {
        let now = Instant::now();
        let mut state = Verification::default();
        assert!(state.begin(now).is_ok());
        assert!(matches!(state.begin(now), Err(Busy::Here)));
        state.on_step(&id(2), false, 1, None, now);
        assert_eq!(state.own.as_ref().unwrap().overtaken_by, Some(id(2)));
        let mut first = Verification::default();
        assert!(first.begin(now).is_ok());
        first.on_step(&id(1), true, 1, None, now);
        first.on_step(&id(2), false, 2, None, now);
        assert_eq!(first.own.as_ref().unwrap().overtaken_by, None);
        let mut third = Verification::default();
        third.on_step(&id(2), false, 2, None, now);
        assert!(matches!(third.begin(now), Err(Busy::At(member)) if member == id(2)));
        assert!(third.begin(now + OTHER_FOR).is_ok(), "the other one has ended without a result");
    }

    #[test]
    fn answers_of_an_earlier_try_count_and_of_another_step_do_not() {
        let mut state = Verification::default();
        assert!(state.begin(Instant::now()).is_ok());
        let copies = BTreeSet::from([id(1), id(2)]);
        state.begin_step();
        state.try_step(1);
        state.on_hashes(&id(1), 1, vec![[1; 32]]);
        state.try_step(2);
        state.on_hashes(&id(2), 2, vec![[1; 32]]);
        assert!(state.complete(&copies).is_none(), "of two positions");
        assert_eq!(state.missing(&copies), []);
        state.on_hashes(&id(2), 1, vec![[2; 32]]);
        assert_eq!(state.complete(&copies).unwrap().len(), 2);
        state.begin_step();
        assert!(state.complete(&copies).is_none(), "before its first try");
        state.try_step(3);
        state.on_hashes(&id(2), 1, vec![[2; 32]]);
        assert!(state.complete(&copies).is_none());
        assert_eq!(state.missing(&copies), [id(1), id(2)]);
    }

    #[test]
    fn steps_beyond_the_limit_are_not_kept() {
        let mut state = Verification::default();
        for token in 0..10 {
            state.on_step(&id(2), false, token, Some(Vec::new()), Instant::now());
        }
        assert_eq!(std::iter::from_fn(|| state.next_job()).count(), STEPS_WAITING);
    }
}
