//! The thread `ls-log`: what touches the disk. It takes all jobs that wait as one batch: the writes leave in
//! one go and share one fsync; then it answers. Nothing on it waits for anything but the disk, except that a sync that
//! no commit needs is deferred. Lone small writes are done by `ls-node`: see [`crate::io::role_swap`].

use crate::effect::{ReadFailure, ReadRequest, SYNC_DEFERRAL, TrimLimits};
use crate::io::log_queue::{LogJob, NoJob, Receiver};
use crate::io::role_swap::{Role, RoleSwap, SWAP_AFTER};
use crate::records;
use crate::rescued::Kept;
use lockstep_core::raft::{Rescue, WriteOp};
use lockstep_core::{Entry, Index};
use lockstep_log::{Disk, Log, ReadError, Record, Vote, WriteError};
use lockstep_net::Coalesce;
use std::any::Any;
use std::time::{Duration, Instant};

/// What `ls-log` answers.
#[derive(Debug)]
pub(crate) enum LogDone {
    Written(u64),
    Read {
        request: ReadRequest,
        result: Result<Vec<Entry>, ReadFailure>,
    },
    /// `early`: entries that are young or wanted are gone, too, because the log was too large.
    Trimmed {
        first: Index,
        early: bool,
    },
    Size(u64),
    /// Entries that the log loses are in a rescue file.
    Rescued(Kept),
    /// The log is lost to this process: it must not acknowledge anything any more.
    Failed(LogFailure),
}

/// Why the log cannot be written any more.
#[derive(Debug)]
pub(crate) struct LogFailure {
    pub(crate) text: String,
    /// An operator can end what the log lacks, so the process waits for that. Other failures end the process.
    pub(crate) waits: bool,
}

impl LogFailure {
    /// The code of the log has panicked on this thread.
    pub(crate) fn panicked(thread: &str, payload: &(dyn Any + Send)) -> LogFailure {
        LogFailure {
            text: format!(
                "an error in the program, in the thread {thread} (report it, with this line): {}",
                panic_text(payload)
            ),
            waits: false,
        }
    }

    /// The log is given a write after its failure, which has been reported.
    fn repeated() -> LogFailure {
        LogFailure { text: "it has failed before".into(), waits: false }
    }
}

impl From<WriteError> for LogFailure {
    fn from(error: WriteError) -> LogFailure {
        LogFailure { waits: error.shortage().is_some(), text: error.to_string() }
    }
}

/// The message of a panic.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a text")
}

/// Gives a write to the log. The entries' bodies are the records' bodies: nothing is encoded here.
pub(crate) fn write_to<D: Disk>(
    log: &mut Log<D>,
    op: &WriteOp,
    commit_hint: Index,
) -> Result<(), WriteError> {
    let WriteOp { ticket: _, rescue: _, reset, truncate_from, roll, entries, vote } = op;
    log.write(lockstep_log::WriteOp {
        reset: reset.as_ref().map(|state| records::reset(state)),
        truncate_from: *truncate_from,
        roll: roll.as_ref().map(|state| state.to_bytes()),
        records: entries.iter().map(records::record),
        vote: vote.map(|vote| Vote {
            term: vote.term,
            voted_for: vote.voted_for.map(|id| id.0),
            commit_hint,
        }),
    })
}

/// The open log, and the state between two batches.
pub(crate) struct Writer<D: Disk> {
    log: Log<D>,
    hint: Index,
    failed: bool,
    coalesce: Coalesce,
}

/// The jobs of `ls-log`, and what it remembers between two batches.
pub(crate) struct LogJobs {
    receiver: Receiver,
    /// Received, and not begun.
    first: Option<LogJob>,
    /// While `ls-node` writes itself at times: how many such writes it had announced at which time.
    checks: Option<(u64, Instant)>,
}

/// `ls-log` stops checking whether `ls-node` hangs this long after its last own write.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Runs until `Stop` or until `ls-node` is gone; or until `ls-node` hangs in the disk: then returns the node.
pub(crate) fn run<D: Disk, N>(
    swap: &RoleSwap<Writer<D>, N, LogJobs>,
    jobs: LogJobs,
    answer: impl Fn(Vec<LogDone>),
) -> Option<N> {
    serve(swap, jobs, SYNC_DEFERRAL, answer)
}

fn serve<D: Disk, N>(
    swap: &RoleSwap<Writer<D>, N, LogJobs>,
    mut jobs: LogJobs,
    deferral: Duration,
    answer: impl Fn(Vec<LogDone>),
) -> Option<N> {
    loop {
        if jobs.first.is_none() {
            let check_at = jobs.checks.map(|_| Instant::now() + SWAP_AFTER / 2);
            jobs.first = match jobs.receiver.recv(check_at) {
                Ok(job) => Some(job),
                Err(NoJob::Closed) => return None,
                Err(NoJob::Timeout) => {
                    jobs = match swap.check(jobs) {
                        Ok(jobs) => jobs,
                        Err(node) => return Some(node),
                    };
                    jobs.checked(swap.announced(), |announced| swap.stop_checking(announced));
                    continue;
                }
            };
        }
        let mut writer = match swap.take_log(jobs) {
            Role::Node(node) => return Some(node),
            Role::Log(writer, kept) => {
                jobs = kept;
                writer
            }
        };
        let stop = writer.batch(&mut jobs, deferral, &answer);
        swap.put_log(writer);
        if stop {
            return None;
        }
    }
}

/// A batch is synced and answered once it has this many bytes, or once its writes have taken this long. Otherwise a full
/// queue on a slow disk would be one batch without an answer, and the disk would seem to hang.
const BATCH_BYTES: usize = 8 << 20;
const BATCH_TIME: Duration = Duration::from_millis(500);

impl LogJobs {
    pub(crate) fn new(receiver: Receiver) -> LogJobs {
        LogJobs { receiver, first: None, checks: None }
    }

    /// Stops checking, and so sleeps without a timer, once `ls-node` has not written itself for [`CHECK_PERIOD`].
    fn checked(&mut self, announced: u64, stop: impl FnOnce(u64) -> bool) {
        match self.checks {
            Some((before, since)) if before == announced => {
                if since.elapsed() >= CHECK_PERIOD && stop(announced) {
                    self.checks = None;
                }
            }
            _ => self.checks = Some((announced, Instant::now())),
        }
    }
}

impl<D: Disk> Writer<D> {
    pub(crate) fn new(log: Log<D>) -> Writer<D> {
        // A vote is written with it, too, and must not set it back.
        let hint = log.vote().commit_hint;
        Writer { log, hint, failed: false, coalesce: Coalesce::default() }
    }

    /// Writes and syncs `op` at once.
    pub(crate) fn write(&mut self, op: &WriteOp) -> LogDone {
        assert!(op.rescue.is_empty(), "only a batch writes rescue files");
        if self.failed {
            return self.fail(LogFailure::repeated());
        }
        match write_to(&mut self.log, op, self.hint).and_then(|()| self.log.sync()) {
            Ok(()) => LogDone::Written(op.ticket),
            Err(error) => self.fail(error),
        }
    }

    /// The log accepts nothing any more.
    pub(crate) fn fail(&mut self, why: impl Into<LogFailure>) -> LogDone {
        self.failed = true;
        LogDone::Failed(why.into())
    }

    /// The first job and all that have come meanwhile. Whether it is the last batch.
    fn batch(&mut self, jobs: &mut LogJobs, deferral: Duration, answer: &impl Fn(Vec<LogDone>)) -> bool {
        let mut done = Vec::new();
        let mut reads = Vec::new();
        let mut ticket = None;
        let mut stop = false;
        let (mut may_yield, mut coalesces) = (true, false);
        let (mut bytes, mut busy) = (0, Duration::ZERO);
        // Until when the sync may be deferred.
        let mut sync_at = Some(Instant::now() + deferral);
        let mut next = jobs.first.take();
        while let Some(job) = next {
            match job {
                LogJob::Write { op, may_defer, coalesce } if !self.failed => {
                    coalesces |= coalesce;
                    sync_at = sync_at.filter(|_| may_defer);
                    let number = op.ticket;
                    bytes += op.entries.iter().map(Entry::size).sum::<usize>();
                    // Before the log loses what is rescued.
                    for rescue in &op.rescue {
                        match keep(&mut self.log, rescue) {
                            Ok(rescued) => done.push(rescued),
                            Err(error) => {
                                done.push(self.fail(error));
                            }
                        }
                    }
                    if self.failed {
                        next = jobs.receiver.try_recv();
                        continue;
                    }
                    let began = Instant::now();
                    let written = write_to(&mut self.log, &op, self.hint);
                    busy += began.elapsed();
                    match written {
                        Ok(()) => ticket = Some(number),
                        Err(error) => {
                            done.push(self.fail(error));
                        }
                    }
                }
                LogJob::Write { .. } => {}
                LogJob::SyncNow => sync_at = None,
                LogJob::Read(request) => {
                    sync_at = None;
                    reads.push(request);
                }
                // A failed log is not touched any more: its state in memory may not match its files.
                LogJob::Trim(_) if self.failed => {}
                LogJob::Trim(limits) => trim(&mut self.log, limits, &mut done),
                LogJob::Hint(index) => {
                    self.hint = index;
                    if !self.failed
                        && let Err(error) = self.log.note_committed(index)
                    {
                        done.push(self.fail(error));
                    }
                }
                LogJob::Check => jobs.checks = jobs.checks.or(Some((0, Instant::now()))),
                LogJob::Stop => {
                    sync_at = None;
                    stop = true;
                }
            }
            if bytes >= BATCH_BYTES || busy >= BATCH_TIME {
                break;
            }
            next = match sync_at.filter(|_| ticket.is_some() && !self.failed) {
                Some(until) => jobs.receiver.recv_urgent(until).ok(),
                None => jobs.receiver.try_recv().or_else(|| {
                    // On busy processors the next threads queue more work for this sync. On idle ones this returns at
                    // once.
                    (coalesces && std::mem::take(&mut may_yield) && self.coalesce.yield_now())
                        .then_some(())?;
                    jobs.receiver.try_recv()
                }),
            };
        }
        if let Some(number) = ticket.filter(|_| !self.failed) {
            match self.log.sync() {
                Ok(()) => done.push(LogDone::Written(number)),
                Err(error) => {
                    done.push(self.fail(error));
                }
            }
        }
        // Answer the writes before the reads: commits wait for them.
        if !done.is_empty() {
            answer(std::mem::take(&mut done));
        }
        done.extend(reads.into_iter().map(|request| read(&self.log, request)));
        if !done.is_empty() {
            answer(done);
        }
        stop
    }
}

/// Writes a rescue file.
pub(crate) fn keep<D: Disk>(log: &mut Log<D>, rescue: &Rescue) -> Result<LogDone, WriteError> {
    let Rescue { base, entries } = rescue;
    let records: Vec<Record> = entries.iter().map(records::record).collect();
    let name = log.rescue(records::reset(base), &records)?;
    Ok(LogDone::Rescued(Kept::new(name, entries)))
}

/// Reads old entries: none only if the log does not have them.
pub(crate) fn read<D: Disk>(log: &Log<D>, request: ReadRequest) -> LogDone {
    let records = match log.read(request.from, request.max_bytes) {
        Err(ReadError::Trimmed { .. }) => Ok(Vec::new()),
        Err(error) => {
            Err(ReadFailure { text: error.to_string(), damaged: matches!(error, ReadError::Corrupt { .. }) })
        }
        Ok(records) => Ok(records),
    };
    let entry = |record: Record| {
        let index = record.index;
        records::entry(record)
            .map_err(|error| ReadFailure { text: format!("entry {index} {error}"), damaged: true })
    };
    LogDone::Read { request, result: records.and_then(|records| records.into_iter().map(entry).collect()) }
}

pub(crate) fn trim<D: Disk>(log: &mut Log<D>, limits: TrimLimits, done: &mut Vec<LogDone>) {
    let segments: Vec<Segment> =
        log.segments().iter().map(|s| (s.first_index, s.created_us, s.bytes)).collect();
    let before: u64 = segments.iter().map(|(_, _, bytes)| bytes).sum();
    done.push(LogDone::Size(before));
    if let Some((first, bytes, early)) = cut(&segments, limits)
        && log.trim_to(first).is_ok()
    {
        done.push(LogDone::Trimmed { first: log.first_index(), early });
        done.push(LogDone::Size(bytes));
    }
}

/// First index, when it was made, bytes.
type Segment = (Index, u64, u64);

/// Where the log may begin, the bytes that stay, and whether something goes that is young or wanted.
fn cut(segments: &[Segment], limits: TrimLimits) -> Option<(Index, u64, bool)> {
    let mut bytes: u64 = segments.iter().map(|(_, _, bytes)| bytes).sum();
    let (mut cut, mut early) = (None, false);
    for pair in segments.windows(2) {
        // The entries of a segment are older than the start of the next one.
        let (first, made, _) = pair[1];
        let asked_for = made > limits.older_than || first > limits.wanted.min(limits.flushed);
        if bytes <= limits.keep_bytes || first > limits.below || (asked_for && bytes <= limits.max_bytes) {
            break;
        }
        bytes -= pair[0].2;
        early |= asked_for;
        cut = Some(first);
    }
    cut.map(|first| (first, bytes, early))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::ReadFor;
    use crate::io::log_client::{Direct, Wrote};
    use crate::io::log_queue;
    use crate::testing::write_op;
    use lockstep_core::snapshot::StateSnapshot;
    use lockstep_log::{DiskFile, MemDisk, Options};
    use std::io;
    use std::sync::{Arc, Mutex, mpsc};

    type Swap = RoleSwap<Writer<MemDisk>, (), LogJobs>;

    fn start(deferral: Duration) -> (log_queue::Sender, mpsc::Receiver<u64>) {
        start_with(deferral, Vec::new())
    }

    /// The jobs are queued before the thread starts.
    fn start_with(deferral: Duration, queued: Vec<LogJob>) -> (log_queue::Sender, mpsc::Receiver<u64>) {
        let (log, _) = Log::open(MemDisk::new(), Options::default(), &mut |_| Ok(())).unwrap();
        let (jobs, work) = log_queue::channel();
        for job in queued {
            jobs.send(job).unwrap();
        }
        let (sender, received) = mpsc::channel();
        let answer = move |done: Vec<LogDone>| {
            for done in done {
                if let LogDone::Written(ticket) = done {
                    sender.send(ticket).unwrap();
                }
            }
        };
        let swap = Swap::new(Writer::new(log));
        std::thread::spawn(move || serve(&swap, LogJobs::new(work), deferral, answer));
        (jobs, received)
    }

    fn write(ticket: u64, may_defer: bool) -> LogJob {
        LogJob::Write { op: Box::new(write_op(ticket, 0)), may_defer, coalesce: false }
    }

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn deferred_sync_happens_later() {
        let (jobs, received) = start(SHORT);
        let began = Instant::now();
        jobs.send(write(1, true)).unwrap();
        assert_eq!(received.recv_timeout(LONG), Ok(1));
        assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    }

    /// While a slow disk takes a long queue, each answer shows that it works.
    #[test]
    fn long_queue_is_answered_in_batches() {
        let large = |ticket| LogJob::Write {
            op: Box::new(write_op(ticket, BATCH_BYTES / 2)),
            may_defer: false,
            coalesce: false,
        };
        let (_jobs, received) = start_with(SHORT, (1..=5).map(large).collect());
        let answers: Vec<u64> = (0..3).map(|_| received.recv_timeout(LONG).unwrap()).collect();
        assert_eq!(answers, [2, 4, 5]);
    }

    #[test]
    fn urgent_job_ends_deferral() {
        // Would not end by itself while this test runs.
        let (jobs, received) = start(10 * LONG);
        jobs.send(write(1, true)).unwrap();
        assert!(received.recv_timeout(SHORT).is_err());
        jobs.send(write(2, false)).unwrap();
        assert_eq!(received.recv_timeout(LONG), Ok(2), "one sync for both");
        jobs.send(write(3, true)).unwrap();
        jobs.send(write(4, true)).unwrap();
        assert!(received.recv_timeout(SHORT).is_err());
        jobs.send(LogJob::SyncNow).unwrap();
        assert_eq!(received.recv_timeout(LONG), Ok(4));
        jobs.send(write(5, true)).unwrap();
        jobs.send(LogJob::Stop).unwrap();
        assert_eq!(received.recv_timeout(LONG), Ok(5), "the last ones are not forgotten");
    }

    /// A writer on this disk until it is told to stop, with its jobs and what it answers.
    fn on(
        disk: &MemDisk,
    ) -> (log_queue::Sender, mpsc::Receiver<LogDone>, std::thread::JoinHandle<Option<()>>) {
        let (log, _) = Log::open(disk.clone(), Options::default(), &mut |_| Ok(())).unwrap();
        let (jobs, work) = log_queue::channel();
        let (sender, received) = mpsc::channel();
        let answer = move |done: Vec<LogDone>| done.into_iter().for_each(|done| sender.send(done).unwrap());
        let swap = Swap::new(Writer::new(log));
        (jobs, received, std::thread::spawn(move || run(&swap, LogJobs::new(work), answer)))
    }

    /// Without the hint every entry since the last election would count as perhaps uncommitted at the next start. Such
    /// entries stay in memory, and a branch may replace them or write them to a rescue file.
    #[test]
    fn commit_hint_is_durable_and_never_goes_back() {
        let hint = |disk: &MemDisk| lockstep_log::peek_vote(disk).unwrap().map_or(0, |vote| vote.commit_hint);
        let disk = MemDisk::new();
        for (index, last) in [(1, 1), (2, 1)] {
            let (jobs, received, thread) = on(&disk);
            let mut op = write(index, false);
            if let (2, LogJob::Write { op, .. }) = (index, &mut op) {
                op.vote = Some(lockstep_core::raft::Vote { term: 7, voted_for: None });
            }
            jobs.send(op).unwrap();
            assert!(matches!(received.recv_timeout(LONG), Ok(LogDone::Written(_))));
            if index == 1 {
                jobs.send(LogJob::Hint(last)).unwrap();
            }
            jobs.send(LogJob::Stop).unwrap();
            thread.join().unwrap();
            disk.crash(index);
            assert_eq!(hint(&disk), last, "after {index}");
        }
    }

    #[test]
    fn failed_sync_is_reported_once_and_stops_acks() {
        for sync in [true, false] {
            let disk = MemDisk::new();
            let (jobs, received, thread) = on(&disk);
            jobs.send(write(1, false)).unwrap();
            assert!(matches!(received.recv_timeout(LONG), Ok(LogDone::Written(1))));
            match sync {
                true => disk.fail_sync(1),
                false => disk.fail_op(1, lockstep_log::Fault::NoSpace),
            }
            jobs.send(write(2, false)).unwrap();
            match received.recv_timeout(LONG) {
                Ok(LogDone::Failed(failure)) => assert_eq!(failure.waits, !sync, "{}", failure.text),
                other => panic!("{other:?}"),
            }
            // The disk does it again; what it dropped it does not say.
            disk.clear_faults();
            jobs.send(write(3, false)).unwrap();
            jobs.send(LogJob::Stop).unwrap();
            thread.join().unwrap();
            assert!(received.recv_timeout(LONG).is_err(), "no word after it");
        }
    }

    #[test]
    fn read_tells_missing_entries_from_failures() {
        let disk = MemDisk::new();
        let (mut log, _) = Log::open(disk.clone(), Options::default(), &mut |_| Ok(())).unwrap();
        for ticket in 1..=2 {
            write_to(&mut log, &write_op(ticket, 100), 0).unwrap();
        }
        log.sync().unwrap();
        let read_from = |log: &Log<MemDisk>, from| {
            let request = ReadRequest { whom: ReadFor::Deliverer, from, max_bytes: 1 << 20 };
            match read(log, request) {
                LogDone::Read { request: of, result } if of == request => result.map(|found| found.len()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([1, 2, 3].map(|from| read_from(&log, from)), [Ok(2), Ok(1), Ok(0)]);
        disk.fail_reads();
        let failure = read_from(&log, 1).unwrap_err();
        assert!(!failure.damaged && failure.text.contains("injected I/O error"), "{failure:?}");
        disk.clear_faults();
        let (segment, end) = log.end().unwrap();
        disk.corrupt(&format!("lockstep.{segment:016x}.log"), end - 50, 1);
        let failure = read_from(&log, 1).unwrap_err();
        assert!(failure.damaged && failure.text.contains("is corrupt"), "{failure:?}");
    }

    #[test]
    fn failed_log_is_not_trimmed() {
        let all = TrimLimits {
            below: Index::MAX,
            wanted: Index::MAX,
            flushed: Index::MAX,
            keep_bytes: 0,
            older_than: u64::MAX,
            max_bytes: 0,
        };
        for fails in [false, true] {
            let disk = MemDisk::new();
            let (jobs, received, thread) = on(&disk);
            for ticket in 1..=3 {
                let mut job = write(ticket, false);
                let LogJob::Write { op, .. } = &mut job else { unreachable!() };
                let uuid = lockstep_core::Uuid([1; 16]);
                let base = StateSnapshot::genesis(uuid, 0, lockstep_core::members::Membership::default());
                let base = StateSnapshot { index: ticket - 1, term: u64::from(ticket > 1), ..base };
                op.roll = (ticket > 1).then(|| Box::new(base));
                jobs.send(job).unwrap();
                assert!(matches!(received.recv_timeout(LONG), Ok(LogDone::Written(_))));
            }
            if fails {
                disk.fail_sync(1);
                jobs.send(write(4, false)).unwrap();
                assert!(matches!(received.recv_timeout(LONG), Ok(LogDone::Failed(_))));
                disk.clear_faults();
            }
            jobs.send(LogJob::Trim(all)).unwrap();
            jobs.send(LogJob::Stop).unwrap();
            thread.join().unwrap();
            let trimmed = received.try_iter().any(|done| matches!(done, LogDone::Trimmed { .. }));
            assert_eq!(trimmed, !fails);
        }
    }

    /// A disk whose syncs hang while somebody holds the lock.
    #[derive(Clone)]
    struct Hangs(MemDisk, Arc<Mutex<()>>);

    struct HangsFile(<MemDisk as Disk>::File, Arc<Mutex<()>>);

    impl Disk for Hangs {
        type File = HangsFile;
        type Lock = <MemDisk as Disk>::Lock;

        fn describe(&self) -> String {
            self.0.describe()
        }
        fn now_us(&self) -> u64 {
            self.0.now_us()
        }
        fn lock(&self) -> io::Result<Option<Self::Lock>> {
            self.0.lock()
        }
        fn list(&self) -> io::Result<Vec<String>> {
            self.0.list()
        }
        fn create(&self, name: &str) -> io::Result<HangsFile> {
            Ok(HangsFile(self.0.create(name)?, self.1.clone()))
        }
        fn open(&self, name: &str, write: bool) -> io::Result<HangsFile> {
            Ok(HangsFile(self.0.open(name, write)?, self.1.clone()))
        }
        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.0.rename(from, to)
        }
        fn remove(&self, name: &str) -> io::Result<()> {
            self.0.remove(name)
        }
        fn sync_dir(&self) -> io::Result<()> {
            self.0.sync_dir()
        }
    }

    impl DiskFile for HangsFile {
        fn size(&self) -> io::Result<u64> {
            self.0.size()
        }
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.0.read_at(buf, offset)
        }
        fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
            self.0.write_at(data, offset)
        }
        fn allocate(&self, size: u64) -> io::Result<()> {
            self.0.allocate(size)
        }
        fn sync_data(&self) -> io::Result<()> {
            let _free = self.1.lock().unwrap();
            self.0.sync_data()
        }
    }

    fn op(job: LogJob) -> Box<WriteOp> {
        match job {
            LogJob::Write { op, .. } => op,
            _ => unreachable!(),
        }
    }

    #[test]
    fn hanging_write_swaps_roles_and_loses_nothing() {
        let disk = Hangs(MemDisk::new(), Arc::default());
        let (log, _) = Log::open(disk.clone(), Options::default(), &mut |_| Ok(())).unwrap();
        let swap = RoleSwap::new(Writer::new(log));
        let (jobs, work) = log_queue::channel();
        let (sender, received) = mpsc::channel();
        let answer = |done: Vec<LogDone>| done.into_iter().for_each(|done| sender.send(done).unwrap());
        let direct: &dyn Direct<u32> = &swap;
        std::thread::scope(|scope| {
            let log_thread = scope.spawn(|| serve(&swap, LogJobs::new(work), SHORT, answer));
            jobs.send(write(1, false)).unwrap();
            assert!(matches!(received.recv_timeout(LONG), Ok(LogDone::Written(1))));
            // `ls-log` answers before it puts the log back.
            let mut second = op(write(2, false));
            assert!(direct.announce());
            jobs.send(LogJob::Check).unwrap();
            let done = loop {
                match direct.write(7, second) {
                    Wrote::Busy(7, op) => second = op,
                    Wrote::Done(7, done) => break done,
                    _ => unreachable!(),
                }
            };
            assert!(matches!(done, LogDone::Written(2)), "by this thread itself");
            let hang = disk.1.lock().unwrap();
            if direct.announce() {
                jobs.send(LogJob::Check).unwrap();
            }
            let node_thread = scope.spawn(|| {
                loop {
                    match direct.write(7, op(write(3, false))) {
                        Wrote::Busy(..) => {}
                        wrote => break wrote,
                    }
                }
            });
            assert_eq!(log_thread.join().unwrap(), Some(7), "it takes over the node");
            jobs.send(write(4, false)).unwrap();
            assert!(matches!(direct.write(8, op(write(5, false))), Wrote::Busy(8, _)));
            assert!(!node_thread.is_finished());
            drop(hang);
            let Wrote::Swapped(LogDone::Written(3), Some(left)) = node_thread.join().unwrap() else {
                panic!("it has to do the work of ls-log")
            };
            jobs.send(LogJob::Stop).unwrap();
            assert_eq!(serve(&swap, left, SHORT, answer), None);
            assert!(matches!(received.recv_timeout(LONG), Ok(LogDone::Written(4))));
        });
        drop(swap);
        let (log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).unwrap();
        let indexes: Vec<Index> = log.read(1, 1 << 20).unwrap().iter().map(|record| record.index).collect();
        assert_eq!(indexes, [1, 2, 3, 4]);
    }

    #[test]
    fn failed_direct_write_fails_all_later_ones() {
        let disk = MemDisk::new();
        let (log, _) = Log::open(disk.clone(), Options::default(), &mut |_| Ok(())).unwrap();
        let swap = RoleSwap::<_, u32, LogJobs>::new(Writer::new(log));
        disk.fail_sync(1);
        assert!(swap.announce());
        assert!(matches!(Direct::write(&swap, 7, op(write(1, false))), Wrote::Done(7, LogDone::Failed(_))));
        disk.clear_faults();
        assert!(matches!(Direct::write(&swap, 7, op(write(2, false))), Wrote::Done(7, LogDone::Failed(_))));
        let (jobs, work) = log_queue::channel();
        jobs.send(write(3, false)).unwrap();
        jobs.send(LogJob::Stop).unwrap();
        let answer = |done: Vec<LogDone>| assert!(done.is_empty(), "{done:?}");
        assert_eq!(serve(&swap, LogJobs::new(work), SHORT, answer), None);
    }

    #[test]
    fn panic_of_the_log_names_thread_and_remedy() {
        let disk = MemDisk::new();
        let (log, _) = Log::open(disk, Options::default(), &mut |_| Ok(())).unwrap();
        let swap = RoleSwap::<_, u32, LogJobs>::new(Writer::new(log));
        let mut wrong = write_op(1, 10);
        let base = StateSnapshot::genesis(lockstep_core::Uuid([1; 16]), 0, Default::default());
        wrong.rescue.push(Rescue { base: Box::new(base), entries: Vec::new() });
        assert!(swap.announce());
        let Wrote::Done(7, LogDone::Failed(LogFailure { text, waits })) =
            Direct::write(&swap, 7, Box::new(wrong))
        else {
            panic!("only a batch writes rescue files")
        };
        let start = "an error in the program, in the thread ls-node (report it, with this line): ";
        assert_eq!(text.strip_prefix(start), Some("only a batch writes rescue files"), "{text}");
        assert!(!waits, "no operator can end it");
    }

    #[test]
    fn checks_outlast_direct_writes_by_a_moment() {
        let (_jobs, work) = log_queue::channel();
        let mut jobs = LogJobs::new(work);
        let long_ago = Instant::now().checked_sub(2 * CHECK_PERIOD).unwrap();
        for (before, idle, continues) in [(4, true, true), (5, false, true), (5, true, false)] {
            jobs.checks = Some((before, long_ago));
            jobs.checked(5, |_| idle);
            assert_eq!(jobs.checks.is_some(), continues, "{before} {idle}");
        }
    }

    #[test]
    fn trim_keeps_size_and_young_entries_up_to_limit() {
        // Four segments of 100 bytes, made at 10, 20, 30 and 40.
        let segments: Vec<Segment> = (0..4).map(|n| (1 + n * 50, 10 + n * 10, 100)).collect();
        let limits = TrimLimits {
            below: 1000,
            wanted: Index::MAX,
            flushed: Index::MAX,
            keep_bytes: 150,
            older_than: 100,
            max_bytes: 1000,
        };
        assert_eq!(cut(&segments, limits), Some((151, 100, false)), "down to log.size");
        assert_eq!(cut(&segments, TrimLimits { keep_bytes: 400, ..limits }), None);
        assert_eq!(cut(&segments, TrimLimits { older_than: 25, ..limits }), Some((51, 300, false)));
        let full = TrimLimits { older_than: 25, max_bytes: 250, ..limits };
        assert_eq!(cut(&segments, full), Some((101, 200, true)), "beyond log.max_size the young go, too");
        assert_eq!(
            cut(&segments, TrimLimits { below: 60, ..full }),
            Some((51, 300, false)),
            "but no needed one"
        );
        let lags = TrimLimits { wanted: 60, ..limits };
        assert_eq!(cut(&segments, TrimLimits { flushed: 60, ..limits }), cut(&segments, lags));
        assert_eq!(cut(&segments, lags), Some((51, 300, false)), "what a connected member has not got stays");
        assert_eq!(
            cut(&segments, TrimLimits { max_bytes: 250, ..lags }),
            Some((101, 200, true)),
            "up to log.max_size"
        );
        assert_eq!(cut(&segments, TrimLimits { below: 60, max_bytes: 250, ..lags }), Some((51, 300, false)));
        assert_eq!(cut(&segments[..1], TrimLimits { keep_bytes: 0, max_bytes: 0, ..limits }), None);
    }
}
