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
    /// Whole segments below may go, down to this many bytes and not younger than this (µs since 1970).
    Trim {
        below: Index,
        keep_bytes: u64,
        older_than: u64,
    },
    /// Remember this commit index with the next write of the vote file.
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
    Trimmed {
        first: Index,
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
                LogJob::Trim { below, keep_bytes, older_than } => {
                    trim(&mut log, below, keep_bytes, older_than, &mut done);
                }
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

fn trim<D: Disk>(log: &mut Log<D>, below: Index, keep_bytes: u64, older_than: u64, done: &mut Vec<LogDone>) {
    let mut cut = None;
    let segments = log.segments();
    let mut bytes: u64 = segments.iter().map(|s| s.bytes).sum();
    done.push(LogDone::Size(bytes));
    for pair in segments.windows(2) {
        if bytes <= keep_bytes || pair[1].first_index > below || pair[1].created_us > older_than {
            break;
        }
        bytes -= pair[0].bytes;
        cut = Some(pair[1].first_index);
    }
    if let Some(index) = cut
        && log.trim_to(index).is_ok()
    {
        done.push(LogDone::Trimmed { first: log.first_index() });
        done.push(LogDone::Size(bytes));
    }
}
