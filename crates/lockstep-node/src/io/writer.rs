//! The thread `ls-log`: what touches the disk. It takes all jobs that wait as one batch: the writes leave in
//! one go and share one fsync; then it answers. Nothing on it waits for anything but the disk.

use crate::effect::{ReadFor, TrimLimits};
use crate::records;
use lockstep_core::raft::{Rescue, WriteOp};
use lockstep_core::{Entry, Index};
use lockstep_log::{Disk, Log, Record, Vote, WriteError};
use lockstep_net::Coalesce;
use std::sync::mpsc::Receiver;

/// A job from `ls-node`.
pub(crate) enum LogJob {
    Write {
        op: Box<WriteOp>,
        /// More is on its way, from threads that may be waiting for the processor.
        gather: bool,
    },
    Read {
        whom: ReadFor,
        from: Index,
        max_bytes: usize,
    },
    /// Whole segments may go.
    Trim(TrimLimits),
    /// The log is committed up to here: remembered on the disk.
    Hint(Index),
    Stop,
}

/// What it answers.
#[derive(Debug)]
pub(crate) enum LogDone {
    Written(u64),
    Read {
        whom: ReadFor,
        from: Index,
        entries: Vec<Entry>,
    },
    /// `early`: entries that are young or wanted are gone, too, because the log was too large.
    Trimmed {
        first: Index,
        early: bool,
    },
    Size(u64),
    /// Entries that the log loses are in a rescue file: a line about it.
    Rescued {
        /// The line.
        text: String,
        /// How many transactions.
        transactions: u64,
    },
    /// The log is lost to this process: it must not acknowledge anything any more.
    Failed(String),
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
    gather: Coalesce,
}

/// Runs until `Stop`, or until `ls-node` is gone.
pub(crate) fn run<D: Disk>(mut writer: Writer<D>, jobs: &Receiver<LogJob>, answer: impl Fn(Vec<LogDone>)) {
    while let Ok(first) = jobs.recv() {
        if writer.batch(first, jobs, &answer) {
            return;
        }
    }
}

impl<D: Disk> Writer<D> {
    pub(crate) fn new(log: Log<D>) -> Writer<D> {
        // A vote is written with it, too, and must not set it back.
        let hint = log.vote().commit_hint;
        Writer { log, hint, failed: false, gather: Coalesce::default() }
    }

    /// The first job and all that have come meanwhile. Whether it is the last batch.
    fn batch(&mut self, first: LogJob, jobs: &Receiver<LogJob>, answer: &impl Fn(Vec<LogDone>)) -> bool {
        let mut done = Vec::new();
        let mut reads = Vec::new();
        let mut ticket = None;
        let mut stop = false;
        let (mut may_yield, mut company) = (true, false);
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                LogJob::Write { op, gather } if !self.failed => {
                    company |= gather;
                    let number = op.ticket;
                    // Before the log loses what is rescued.
                    for rescue in &op.rescue {
                        match keep(&mut self.log, rescue) {
                            Ok(rescued) => done.push(rescued),
                            Err(error) => {
                                self.failed = true;
                                done.push(LogDone::Failed(error));
                            }
                        }
                    }
                    if self.failed {
                        next = jobs.try_recv().ok();
                        continue;
                    }
                    match write_to(&mut self.log, &op, self.hint) {
                        Ok(()) => ticket = Some(number),
                        Err(error) => {
                            self.failed = true;
                            done.push(LogDone::Failed(error.to_string()));
                        }
                    }
                }
                LogJob::Write { .. } => {}
                LogJob::Read { whom, from, max_bytes } => {
                    reads.push((whom, from, max_bytes));
                }
                LogJob::Trim(limits) => trim(&mut self.log, limits, &mut done),
                LogJob::Hint(index) => {
                    self.hint = index;
                    if !self.failed
                        && let Err(error) = self.log.note_committed(index)
                    {
                        self.failed = true;
                        done.push(LogDone::Failed(error.to_string()));
                    }
                }
                LogJob::Stop => stop = true,
            }
            next = jobs.try_recv().ok().or_else(|| {
                // Where the processors are busy, those who run next bring more for this sync; where they are not,
                // this returns at once.
                (company && std::mem::take(&mut may_yield) && self.gather.gather()).then_some(())?;
                jobs.try_recv().ok()
            });
        }
        if let Some(number) = ticket.filter(|_| !self.failed) {
            match self.log.sync() {
                Ok(()) => done.push(LogDone::Written(number)),
                Err(error) => {
                    self.failed = true;
                    done.push(LogDone::Failed(error.to_string()));
                }
            }
        }
        // Answer the writes before the reads: commits wait for them.
        if !done.is_empty() {
            answer(std::mem::take(&mut done));
        }
        for (whom, from, max_bytes) in reads {
            let entries = read(&self.log, from, max_bytes);
            done.push(LogDone::Read { whom, from, entries });
        }
        if !done.is_empty() {
            answer(done);
        }
        stop
    }
}

/// Writes a rescue file, and says what is in it.
pub(crate) fn keep<D: Disk>(log: &mut Log<D>, rescue: &Rescue) -> Result<LogDone, String> {
    let Rescue { base, entries } = rescue;
    let records: Vec<Record> = entries.iter().map(records::record).collect();
    let name = log.rescue(records::reset(base), &records).map_err(|e| e.to_string())?;
    let seqnos: Vec<_> =
        entries.iter().filter(|e| crate::rescued::is_transaction(e.kind)).map(|e| e.seqno).collect();
    // Views and the like between them are no transactions, but have seqnos.
    let text = match (seqnos.first(), seqnos.last()) {
        (Some(first), Some(last)) => format!(
            "{} transactions (seqnos {first} to {last}) that the cluster does not have were perhaps acknowledged to \
             their clients under a weak commit.policy: they are kept in {name}; look at them with lockstep log --rescue",
            seqnos.len()
        ),
        _ => format!(
            "parts of a transaction that the cluster does not have are kept in {name}: nobody was told that it is committed"
        ),
    };
    Ok(LogDone::Rescued { text, transactions: seqnos.len() as u64 })
}

pub(crate) fn read<D: Disk>(log: &Log<D>, from: Index, max_bytes: usize) -> Vec<Entry> {
    let Ok(records) = log.read(from, max_bytes) else { return Vec::new() };
    records.into_iter().map_while(|record| records::entry(record).ok()).collect()
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
    use lockstep_core::snapshot::StateSnapshot;
    use lockstep_core::{EntryHeader, EntryKind, ProposalId};
    use lockstep_log::{MemDisk, Options};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn rescue_file_line_counts_transactions_only() {
        let (mut log, _) = Log::open(MemDisk::new(), Options::default(), &mut |_| Ok(())).unwrap();
        let mut line = |kinds: &[EntryKind]| {
            let entry = |(at, kind): (usize, &EntryKind)| {
                let (index, seqno, proposal) = (at as u64 + 1, at as i64 + 11, ProposalId::default());
                Entry::new(EntryHeader { index, term: 1, kind: *kind, seqno, proposal, time: 0 }, &[])
            };
            let entries: Vec<Entry> = kinds.iter().enumerate().map(entry).collect();
            let uuid = lockstep_core::Uuid([1; 16]);
            let base =
                Box::new(StateSnapshot::genesis(uuid, 10, lockstep_core::members::Membership::default()));
            match keep(&mut log, &Rescue { base, entries }) {
                Ok(LogDone::Rescued { text, transactions }) => (text, transactions),
                _ => panic!("nothing is kept"),
            }
        };
        let (text, n) = line(&[EntryKind::View, EntryKind::WriteSet, EntryKind::TotalOrder, EntryKind::View]);
        assert!(text.starts_with("2 transactions (seqnos 12 to 13) that"), "{text}");
        assert_eq!(n, 2);
        let (text, n) = line(&[EntryKind::Piece]);
        assert!(text.starts_with("parts of a transaction") && n == 0, "{text}");
    }

    fn write(ticket: u64) -> LogJob {
        let (kind, proposal) = (EntryKind::Noop, ProposalId::default());
        let header = EntryHeader { index: ticket, term: 1, kind, seqno: 0, proposal, time: 0 };
        let entry = Entry::new(header, &[]);
        let op = WriteOp {
            ticket,
            rescue: Vec::new(),
            reset: None,
            truncate_from: None,
            roll: None,
            entries: vec![entry],
            vote: None,
        };
        LogJob::Write { op: Box::new(op), gather: false }
    }

    const LONG: Duration = Duration::from_secs(20);

    /// A writer on this disk until it is told to stop, with its jobs and what it answers.
    fn on(disk: &MemDisk) -> (mpsc::Sender<LogJob>, mpsc::Receiver<LogDone>, std::thread::JoinHandle<()>) {
        let (log, _) = Log::open(disk.clone(), Options::default(), &mut |_| Ok(())).unwrap();
        let (jobs, work) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let answer = move |done: Vec<LogDone>| done.into_iter().for_each(|done| tell.send(done).unwrap());
        (jobs, told, std::thread::spawn(move || run(Writer::new(log), &work, answer)))
    }

    /// Without it everything since the last election would count as perhaps uncommitted at the next start: kept in memory,
    /// given up to a branch after a while, or kept as a rescue.
    #[test]
    fn commit_hint_is_durable_and_never_goes_back() {
        let hint = |disk: &MemDisk| lockstep_log::peek_vote(disk).unwrap().map_or(0, |vote| vote.commit_hint);
        let disk = MemDisk::new();
        for (index, last) in [(1, 1), (2, 1)] {
            let (jobs, told, thread) = on(&disk);
            let mut op = write(index);
            if let (2, LogJob::Write { op, .. }) = (index, &mut op) {
                op.vote = Some(lockstep_core::raft::Vote { term: 7, voted_for: None });
            }
            jobs.send(op).unwrap();
            assert!(matches!(told.recv_timeout(LONG), Ok(LogDone::Written(_))));
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
            let (jobs, told, thread) = on(&disk);
            jobs.send(write(1)).unwrap();
            assert!(matches!(told.recv_timeout(LONG), Ok(LogDone::Written(1))));
            match sync {
                true => disk.fail_sync(1),
                false => disk.fail_op(1, lockstep_log::Fault::NoSpace),
            }
            jobs.send(write(2)).unwrap();
            match told.recv_timeout(LONG) {
                Ok(LogDone::Failed(text)) => assert!(sync || text.contains("the disk is full"), "{text}"),
                other => panic!("{other:?}"),
            }
            // The disk does it again; what it dropped it does not say.
            disk.clear_faults();
            jobs.send(write(3)).unwrap();
            jobs.send(LogJob::Stop).unwrap();
            thread.join().unwrap();
            assert!(told.recv_timeout(LONG).is_err(), "no word after it");
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
