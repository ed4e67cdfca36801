//! A model of the log: the states that recovery may report after a crash.
//!
//! The model keeps the last state known to be durable and all later ones. Each step that is atomic on disk (a record, a
//! mark, a reset, a trim) makes a state. Recovery must report one of them.

use bytes::Bytes;
use lockstep_log::{Log, MemDisk, Record, Reset, Vote, WriteError, WriteOp};

use super::{Found, collect, options};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub start: (u64, u64),
    pub records: Vec<Record>,
}

impl State {
    pub fn last(&self) -> (u64, u64) {
        self.records.last().map_or(self.start, |r| (r.index, r.term))
    }
}

/// An action of a test that is valid in any state of the log.
#[derive(Clone, Debug)]
pub enum Step {
    /// Append so many records, of `grow` bytes each beyond the usual, raising the term by so much.
    Append {
        count: u64,
        raise: u64,
        grow: usize,
    },
    /// Drop so many records (at most) and append.
    Replace {
        back: u64,
        count: u64,
    },
    /// Begin a segment, then append.
    Roll {
        count: u64,
    },
    /// Drop, begin a segment, append.
    ReplaceAndRoll {
        back: u64,
        count: u64,
    },
    /// Trim to somewhere in the log (in 1/8 of it).
    Trim {
        eighths: u64,
    },
    /// Start over so far ahead.
    Reset {
        ahead: u64,
        count: u64,
    },
    /// Vote in a later term.
    Vote {
        raise: u64,
        whom: u8,
    },
    /// Bring the commit hint up to date.
    Hint,
    Sync,
    /// Close and open again.
    Reopen,
}

pub struct Bench {
    pub disk: MemDisk,
    pub log: Option<Log<MemDisk>>,
    /// Possible states after a crash: the first is durable, the last is the present.
    pub states: Vec<State>,
    /// Likewise for votes (term and whom).
    pub votes: Vec<(u64, Option<[u8; 16]>)>,
    /// The incarnation that the next successful open must exceed.
    pub incarnation: u64,
    salt: u64,
}

impl Bench {
    pub fn new() -> Bench {
        let empty = State { start: (0, 0), records: Vec::new() };
        Bench {
            disk: MemDisk::new(),
            log: None,
            states: vec![empty],
            votes: vec![(0, None)],
            incarnation: 0,
            salt: 0,
        }
    }

    pub fn fork(&self) -> Bench {
        assert!(self.log.is_none());
        Bench {
            disk: self.disk.fork(),
            log: None,
            states: self.states.clone(),
            votes: self.votes.clone(),
            incarnation: self.incarnation,
            salt: self.salt,
        }
    }

    pub fn now(&self) -> State {
        self.states.last().unwrap().clone()
    }

    /// Opens, checks what is found against the model, and takes it as the new durable state.
    /// False if opening failed; it may only fail if a fault was asked for.
    pub fn open(&mut self, fault_expected: bool) -> bool {
        self.log = None;
        let (log, found) = match collect(&self.disk, options()) {
            Ok(x) => x,
            Err(e) => {
                assert!(fault_expected && !e.is_damage(), "open failed: {e}");
                return false;
            }
        };
        let Found { recovered, bases, records } = found;
        let state = State { start: recovered.start, records };
        assert!(
            self.states.contains(&state),
            "recovered {:?}..{:?}, which is none of {:?}",
            state.start,
            state.last(),
            self.states.iter().map(|s| (s.start, s.last())).collect::<Vec<_>>()
        );
        assert_eq!(recovered.last, state.last());
        // A base says where it was taken; those of live segments must lie on the line of the log.
        for (index, term, base) in &bases {
            if *index > 0 {
                assert_eq!(*base, base_at(*index, *term));
            }
            let on_line = (*index, *term) == state.start
                || state.records.iter().any(|r| (r.index, r.term) == (*index, *term));
            assert!(on_line, "base at {index}/{term} is not on the log's line");
        }
        let vote = (recovered.vote.term, recovered.vote.voted_for);
        assert!(self.votes.contains(&vote), "recovered vote {vote:?}, not one of {:?}", self.votes);
        assert!(recovered.identity.incarnation > self.incarnation);
        assert_eq!(recovered.identity.member_id, super::MEMBER);
        self.incarnation = recovered.identity.incarnation;
        self.states = vec![state];
        self.votes = vec![vote];
        self.log = Some(log);
        true
    }

    /// Performs a step; an error closes the log, as it would the server.
    pub fn step(&mut self, step: &Step) -> Result<(), WriteError> {
        self.salt += 1;
        let salt = self.salt;
        let before = self.now();
        let mut log = self.log.take().expect("the log is open");
        let mut op = WriteOp::default();
        let mut line = Line { states: vec![before.clone()], salt };
        match *step {
            Step::Append { count, raise, grow } => op.records = line.append(count, raise, grow),
            Step::Replace { back, count } => {
                op.truncate_from = Some(line.truncate(back));
                op.records = line.append(count, 1, 0);
            }
            Step::Roll { count } => {
                op.roll = Some(line.roll());
                op.records = line.append(count, 0, 3);
            }
            Step::ReplaceAndRoll { back, count } => {
                op.truncate_from = Some(line.truncate(back));
                op.roll = Some(line.roll());
                op.records = line.append(count, 1, 0);
            }
            Step::Reset { ahead, count } => {
                let (index, term) = before.last();
                let (index, term) = (index + ahead, term + 1);
                op.reset = Some(Reset { base: base_at(index, term), index, term });
                line.states.push(State { start: (index, term), records: Vec::new() });
                op.records = line.append(count, 0, 0);
            }
            Step::Trim { eighths } => {
                let to = before.start.0 + 1 + (before.last().0 - before.start.0) * eighths / 8;
                // The last segment that begins at or before `to` is the first one to stay.

                let first = log.segments().iter().map(|s| s.first_index).filter(|&f| f <= to).max();
                let first = first.unwrap_or(before.start.0 + 1);
                let result = log.trim_to(to);
                if result.is_ok() {
                    assert_eq!(log.first_index(), first);
                }
                let gone = before.records.iter().filter(|r| r.index < first);
                let start = gone.last().map_or(before.start, |r| (r.index, r.term));
                self.trim(start, result.is_err());
                return self.put_back(log, result.map(|_| ()));
            }
            Step::Vote { raise, whom } => {
                let term = self.votes.last().unwrap().0 + raise;
                let whom = (whom % 4 != 0).then_some([whom; 16]);
                op.vote = Some(Vote { term, voted_for: whom, commit_hint: before.last().0 });
                self.votes.push((term, whom));
            }
            Step::Hint => {
                let (term, voted_for) = *self.votes.last().unwrap();
                op.vote = Some(Vote { term, voted_for, commit_hint: before.last().0 });
            }
            Step::Sync => {
                let result = log.sync();
                if result.is_ok() {
                    self.states.drain(..self.states.len() - 1);
                    self.votes.drain(..self.votes.len() - 1);
                    assert_eq!(log.read(before.start.0 + 1, usize::MAX).unwrap(), before.records);
                }
                return self.put_back(log, result);
            }
            Step::Reopen => {
                drop(log);
                self.disk.kill();
                // The present state is found: nothing that was written out is lost by a kill, but what
                // was still in the log's buffer is.
                self.open(true);
                return Ok(());
            }
        }
        line.states.remove(0);
        self.states.extend(line.states);
        let result = log.write(op);
        assert!(!matches!(result, Err(WriteError::Invalid(_))), "{result:?}");
        self.put_back(log, result)
    }

    fn put_back(&mut self, log: Log<MemDisk>, result: Result<(), WriteError>) -> Result<(), WriteError> {
        if result.is_ok() {
            self.log = Some(log);
        }
        result
    }

    /// Every possible state may now be found in its trimmed form; if the trim succeeded, only so.
    fn trim(&mut self, start: (u64, u64), both: bool) {
        let mut trimmed = self.states.clone();
        for s in &mut trimmed {
            if s.start.0 < start.0 && s.last().0 >= start.0 {
                s.records.retain(|r| r.index > start.0);
                s.start = start;
            }
        }
        if both {
            trimmed.extend(std::mem::take(&mut self.states));
        }
        self.states = trimmed;
    }
}

/// Builds the states that an operation passes through.
struct Line {
    states: Vec<State>,
    salt: u64,
}

impl Line {
    fn now(&self) -> State {
        self.states.last().unwrap().clone()
    }

    fn append(&mut self, count: u64, raise: u64, grow: usize) -> Vec<Record> {
        let mut out = Vec::new();
        let mut s = self.now();
        let (mut index, mut term) = s.last();
        term = (term + raise).max(1);
        for _ in 0..count {
            index += 1;
            let len = ((index * 37 + self.salt * 13) % 90) as usize + grow;
            let body: Vec<u8> = (0..len).map(|i| (index + self.salt * 3 + i as u64) as u8).collect();
            let r = Record { index, term, body: Bytes::from(body) };
            s.records.push(r.clone());
            self.states.push(s.clone());
            out.push(r);
        }
        out
    }

    fn truncate(&mut self, back: u64) -> u64 {
        let mut s = self.now();
        let keep = s.records.len() - (back as usize).min(s.records.len());
        s.records.truncate(keep);
        let from = s.last().0 + 1;
        self.states.push(s);
        from
    }

    fn roll(&mut self) -> Bytes {
        let (index, term) = self.now().last();
        base_at(index, term)
    }
}

pub fn base_at(index: u64, term: u64) -> Bytes {
    Bytes::from(format!("state at {index}/{term}").repeat(1 + (index % 5) as usize))
}
