//! A database and the threads of its server: what is delivered is finished in the order of seqnos, some time later.

use super::streams::{Deed, Streams};
use crate::api::{Delivery, Ordered, ViewStatus};
use crate::member::Member;
use bytes::Bytes;
use lockstep_core::{EntryKind, Gtid, Micros, SEQNO_UNDEFINED, Seqno, ViewUuid};
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
pub(in crate::member) struct Server {
    /// What it has committed.
    pub(super) database: BTreeMap<Seqno, Mark>,
    /// Delivered, and not finished.
    pub(super) pending: BTreeMap<Seqno, (Placed, Deed)>,
    /// Primary views that are not the log's, to be gone through when this has finished.
    shown: VecDeque<(Seqno, Deed)>,
    pub(super) streams: Streams,
    /// Who this member is to it.
    pub(super) own: ViewUuid,
    /// The highest that was delivered.
    pub(super) delivered: Seqno,
    pub(super) finished: Seqno,
    /// What it has finished that may not be on its disk, and when.
    unflushed: VecDeque<(Micros, Seqno, Streams)>,
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
            shown: VecDeque::new(),
            streams: Streams::default(),
            own: ViewUuid::NIL,
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
        self.shown.clear();
        self.donations.clear();
        (self.delivered, self.finished) = (position, position);
        self.unflushed.clear();
        (self.wants_state, self.gives_up_data) = (false, false);
        self.failed = None;
    }

    /// A copy of another one's data.
    pub(super) fn copied(&mut self, database: BTreeMap<Seqno, Mark>, streams: Streams, position: Seqno) {
        // The last view is in the copy, too.
        (self.database, self.streams) = (database, streams);
        self.begin(position);
    }

    pub(in crate::member) fn take(&mut self, engine: &mut Member, delivery: Delivery) {
        match delivery {
            Delivery::Ordered(ordered) => self.given(&ordered),
            Delivery::View { info, in_log: true } => {
                self.place(info.gtid.seqno, Placed::View, Deed::of_view(&info));
            }
            Delivery::View { info, .. } if info.status == ViewStatus::Primary => {
                self.shown.push_back((self.delivered, Deed::of_view(&info)));
            }
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
        self.place(ordered.seqno, Placed::Write(mark_of(ordered), ordered.pass), Deed::of(ordered));
    }

    fn place(&mut self, seqno: Seqno, placed: Placed, deed: Deed) {
        if self.pending.insert(seqno, (placed, deed)).is_some() || seqno <= self.finished {
            self.wrong = Some(format!("seqno {seqno} was given twice, or finished already: {placed:?}"));
        }
        self.delivered = self.delivered.max(seqno);
        self.news.push((seqno, placed));
    }

    /// Finishes the next ones, so many at most.
    pub(super) fn finish(&mut self, count: usize, now: Micros) {
        for _ in 0..count {
            self.go_through_shown(self.finished);
            let Some((seqno, (placed, deed))) = self.pending.pop_first() else { break };
            self.unflushed.push_back((now, self.finished, self.streams.clone()));
            self.finished = seqno;
            self.stream(&deed);
            if let Placed::Write(mark, true) = placed {
                self.database.insert(seqno, mark);
            }
        }
        while self.unflushed.get(1).is_some_and(|(at, ..)| at + FLUSHES < now) {
            self.unflushed.pop_front();
        }
    }

    fn go_through_shown(&mut self, upto: Seqno) {
        while let Some((_, view)) = self.shown.pop_front_if(|(after, _)| *after <= upto) {
            self.stream(&view);
        }
    }

    fn stream(&mut self, deed: &Deed) {
        if let Err(text) = self.streams.finish(deed, self.own) {
            self.wrong = Some(format!("at seqno {}: {text}", self.finished));
        }
    }

    /// Where its database may stand after a crash.
    pub(super) fn may_come_back_at(&self) -> Vec<Seqno> {
        let before = self.unflushed.iter().map(|(_, seqno, _)| *seqno).filter(|seqno| *seqno >= 0);
        before.chain([self.finished]).collect()
    }

    /// It is started again, with what its disk had: up to here.
    pub(super) fn roll_back(&mut self, to: Seqno) {
        self.database.split_off(&(to + 1));
        if let Some((.., streams)) = self.unflushed.iter().find(|(_, seqno, _)| *seqno == to) {
            self.streams = streams.clone();
        }
        self.streams.begin();
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
