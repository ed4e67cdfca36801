//! A database and the threads of its server: what is delivered is finished in the order of seqnos, some time later.

use crate::api::{Delivery, Ordered};
use crate::engine::Engine;
use bytes::Bytes;
use lockstep_core::{EntryKind, Gtid, Micros, SEQNO_UNDEFINED, Seqno};
use std::collections::{BTreeMap, VecDeque};

/// Which write a write-set is of.
pub(super) type Mark = u64;

/// So much of what a server has finished its database may lose in a crash: InnoDB flushes once a second.
const FLUSHES: Micros = 1_000_000;

/// The write that these data are of.
pub(super) fn mark_of(ordered: &Ordered) -> Mark {
    let data = ordered.writeset.data.first_chunk::<8>();
    data.map_or(0, |bytes| Mark::from_le_bytes(*bytes))
}

/// A place in the log, as a member's server was given it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed {
    View,
    /// Whether it passes.
    Write(Mark, bool),
}

/// A state that this member's server is to send.
#[derive(Debug)]
pub(super) struct Donation {
    pub(super) id: u64,
    pub(super) joiner: String,
    /// Not before this has finished.
    pub(super) after: Seqno,
    /// When it was asked for.
    pub(super) since: Option<Micros>,
}

/// See the module.
#[derive(Debug)]
pub(in crate::engine) struct Server {
    /// What it has committed.
    pub(super) database: BTreeMap<Seqno, Mark>,
    /// Delivered, and not finished.
    pub(super) pending: BTreeMap<Seqno, Placed>,
    /// The highest that was delivered.
    pub(super) delivered: Seqno,
    pub(super) finished: Seqno,
    /// What it has finished that may not be on its disk, and when.
    unflushed: VecDeque<(Micros, Seqno)>,
    pub(super) donations: Vec<Donation>,
    /// It waits for a copy of the data.
    pub(super) wants_state: bool,
    /// Its data are to be given up.
    pub(super) gives_up_data: bool,
    /// Its node cannot go on.
    pub(super) failed: Option<String>,
    /// What is wrong, which ends the test.
    pub(super) wrong: Option<String>,
    /// Places that were given since anybody looked.
    pub(super) news: Vec<(Seqno, Placed)>,
}

impl Server {
    pub(super) fn new() -> Server {
        Server {
            database: BTreeMap::new(),
            pending: BTreeMap::new(),
            delivered: SEQNO_UNDEFINED,
            finished: SEQNO_UNDEFINED,
            unflushed: VecDeque::new(),
            donations: Vec::new(),
            wants_state: false,
            gives_up_data: false,
            failed: None,
            wrong: None,
            news: Vec::new(),
        }
    }

    /// It begins where its database stands.
    pub(super) fn begin(&mut self, position: Seqno) {
        self.pending.clear();
        self.donations.clear();
        (self.delivered, self.finished) = (position, position);
        self.unflushed.clear();
        (self.wants_state, self.gives_up_data) = (false, false);
        self.failed = None;
    }

    /// A copy of another one's data.
    pub(super) fn copied(&mut self, database: BTreeMap<Seqno, Mark>, position: Seqno) {
        self.begin(position);
        self.database = database;
    }

    pub(in crate::engine) fn take(&mut self, engine: &mut Engine, delivery: Delivery) {
        match delivery {
            Delivery::Ordered(ordered) => self.given(&ordered),
            Delivery::View { info, in_log: true } => self.place(info.gtid.seqno, Placed::View),
            Delivery::StateNeeded { bypass: false } => {
                self.wants_state = true;
                engine.request_state(Bytes::from_static(b"all of it"), String::new());
            }
            Delivery::StateNeeded { bypass: true } => self.wrong = Some("nobody asked for a word".into()),
            Delivery::Donate { id, joiner, .. } => {
                self.donations.push(Donation { id, joiner, after: self.delivered, since: None });
            }
            Delivery::StateFailed(_) => self.gives_up_data = true,
            Delivery::Failed(text) => self.failed = Some(text),
            Delivery::Inconsistent(text) => self.wrong = Some(text),
            Delivery::View { .. } | Delivery::Connected(_) | Delivery::Synced | Delivery::Closed => {}
        }
    }

    /// A place, to the appliers or to the own thread that waits for it.
    pub(super) fn given(&mut self, ordered: &Ordered) {
        assert!(matches!(ordered.kind, EntryKind::WriteSet | EntryKind::TotalOrder));
        self.place(ordered.seqno, Placed::Write(mark_of(ordered), ordered.pass));
    }

    fn place(&mut self, seqno: Seqno, placed: Placed) {
        if self.pending.insert(seqno, placed).is_some() || seqno <= self.finished {
            self.wrong = Some(format!("seqno {seqno} was given twice, or finished already: {placed:?}"));
        }
        self.delivered = self.delivered.max(seqno);
        self.news.push((seqno, placed));
    }

    /// Finishes the next ones, so many at most.
    pub(super) fn finish(&mut self, count: usize, now: Micros) {
        for _ in 0..count {
            let Some((seqno, placed)) = self.pending.pop_first() else { break };
            self.unflushed.push_back((now, self.finished));
            self.finished = seqno;
            if let Placed::Write(mark, true) = placed {
                self.database.insert(seqno, mark);
            }
        }
        while self.unflushed.get(1).is_some_and(|(at, _)| at + FLUSHES < now) {
            self.unflushed.pop_front();
        }
    }

    /// Where its database may stand after a crash.
    pub(super) fn may_come_back_at(&self) -> Vec<Seqno> {
        let before = self.unflushed.iter().map(|(_, seqno)| *seqno).filter(|seqno| *seqno >= 0);
        before.chain([self.finished]).collect()
    }

    /// It is started again, with what its disk had: up to here.
    pub(super) fn roll_back(&mut self, to: Seqno) {
        self.database.split_off(&(to + 1));
        self.begin(to);
    }

    /// Where it is as it starts, unless its data are to be given up.
    pub(super) fn position(&self, history: lockstep_core::Uuid) -> Gtid {
        match self.gives_up_data || self.finished < 0 {
            true => Gtid::UNDEFINED,
            false => Gtid { uuid: history, seqno: self.finished },
        }
    }
}
