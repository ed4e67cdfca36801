//! The thread `ls-log`: everything that touches the disk. It takes all jobs that wait as one batch: the writes leave in
//! one go and share one fsync; then it answers. Nothing on it waits for anything but the disk.

use crate::engine::ReadFor;
use lockstep_core::order::WriteOp;
use lockstep_core::{Entry, Index};
use lockstep_log::{Disk, Log, Record, Reset, Vote};
use std::sync::mpsc::Receiver;

/// What `ls-node` asks for.
pub(crate) enum LogJob {
    Write(Box<WriteOp>),
    Read {
        whom: ReadFor,
        from: Index,
        max_bytes: usize,
    },
    /// Whole segments may go.
    Trim(TrimLimits),
    /// Remember this commit index with the next write of the vote file.
    Hint(Index),
    Stop,
}

/// What of the log must stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TrimLimits {
    /// What begins at this index or later, in any case.
    pub(crate) below: Index,
    /// So many bytes (`log.size`).
    pub(crate) keep_bytes: u64,
    /// What is younger than this, µs since 1970 (`log.keep_min`),
    pub(crate) older_than: u64,
    /// unless the log is larger than this (`log.max_size`).
    pub(crate) max_bytes: u64,
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
    /// `early`: entries younger than they should be are gone, too, because the log was too large.
    Trimmed {
        first: Index,
        early: bool,
    },
    Size(u64),
    /// The log is lost to this process: it must not acknowledge anything any more.
    Failed(String),
}

/// As the log wants it.
pub(crate) fn to_log(op: WriteOp, commit_hint: Index) -> lockstep_log::WriteOp {
    let WriteOp { ticket: _, reset, truncate_from, roll, entries, vote } = op;
    lockstep_log::WriteOp {
        reset: reset.map(|state| Reset { base: state.to_bytes(), index: state.index, term: state.term }),
        truncate_from,
        roll: roll.map(|state| state.to_bytes()),
        records: entries
            .iter()
            .map(|entry| Record { index: entry.index, term: entry.term, body: entry.body() })
            .collect(),
        vote: vote.map(|vote| Vote {
            term: vote.term,
            voted_for: vote.voted_for.map(|id| id.0),
            commit_hint,
        }),
    }
}

/// Runs until `Stop`, or until nobody asks any more.
pub(crate) fn run<D: Disk>(mut log: Log<D>, jobs: Receiver<LogJob>, answer: impl Fn(Vec<LogDone>)) {
    let mut hint = 0;
    let mut failed = false;
    while let Ok(first) = jobs.recv() {
        let mut done = Vec::new();
        let mut reads = Vec::new();
        let mut ticket = None;
        let mut stop = false;
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                LogJob::Write(op) if !failed => {
                    let number = op.ticket;
                    match log.write(to_log(*op, hint)) {
                        Ok(()) => ticket = Some(number),
                        Err(error) => {
                            failed = true;
                            done.push(LogDone::Failed(error.to_string()));
                        }
                    }
                }
                LogJob::Write(_) => {}
                LogJob::Read { whom, from, max_bytes } => reads.push((whom, from, max_bytes)),
                LogJob::Trim(limits) => trim(&mut log, limits, &mut done),
                LogJob::Hint(index) => hint = index,
                LogJob::Stop => stop = true,
            }
            next = jobs.try_recv().ok();
        }
        if let Some(number) = ticket.filter(|_| !failed) {
            match log.sync() {
                Ok(()) => done.push(LogDone::Written(number)),
                Err(error) => {
                    failed = true;
                    done.push(LogDone::Failed(error.to_string()));
                }
            }
        }
        // Answer the writes before the reads: commits wait for them.
        if !done.is_empty() {
            answer(std::mem::take(&mut done));
        }
        for (whom, from, max_bytes) in reads {
            let entries = read(&log, from, max_bytes);
            done.push(LogDone::Read { whom, from, entries });
        }
        if !done.is_empty() {
            answer(done);
        }
        if stop {
            break;
        }
    }
}

fn read<D: Disk>(log: &Log<D>, from: Index, max_bytes: usize) -> Vec<Entry> {
    let Ok(records) = log.read(from, max_bytes) else { return Vec::new() };
    records.into_iter().map_while(|r| Entry::decode_body(r.index, r.term, r.body).ok()).collect()
}

fn trim<D: Disk>(log: &mut Log<D>, limits: TrimLimits, done: &mut Vec<LogDone>) {
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

/// Where the log may begin, the bytes that stay, and whether something goes that is younger than it should be.
fn cut(segments: &[Segment], limits: TrimLimits) -> Option<(Index, u64, bool)> {
    let mut bytes: u64 = segments.iter().map(|(_, _, bytes)| bytes).sum();
    let (mut cut, mut early) = (None, false);
    for pair in segments.windows(2) {
        // What stands in a segment is older than the next one.
        let (first, made, _) = pair[1];
        let young = made > limits.older_than;
        if bytes <= limits.keep_bytes || first > limits.below || (young && bytes <= limits.max_bytes) {
            break;
        }
        bytes -= pair[0].2;
        early |= young;
        cut = Some(first);
    }
    cut.map(|first| (first, bytes, early))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_keeps_its_size_and_the_young_up_to_its_greatest_size() {
        // Four segments of 100 bytes, made at 10, 20, 30 and 40.
        let segments: Vec<Segment> = (0..4).map(|n| (1 + n * 50, 10 + n * 10, 100)).collect();
        let limits = TrimLimits { below: 1000, keep_bytes: 150, older_than: 100, max_bytes: 1000 };
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
        assert_eq!(cut(&segments[..1], TrimLimits { keep_bytes: 0, max_bytes: 0, ..limits }), None);
    }
}
