//! A database and the threads of its server: delivered entries are finished in seqno order, some time later.

use crate::apply_order::ApplyOrder;
use crate::streams::{StreamEffect, Streams};
use bytes::Bytes;
use lockstep_core::writeset::WriteSet;
use lockstep_core::{EntryKind, Gtid, Micros, SEQNO_UNDEFINED, Seqno, ViewUuid};
use lockstep_log::MemDisk;
use lockstep_node::simulation::SimulatedNode;
use lockstep_node::{Delivery, FollowedLog, Ordered, ViewStatus};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The number of a write, contained in its write-set.
pub(crate) type Mark = u64;

/// How long finished entries may be lost in a crash: InnoDB flushes once a second.
const FLUSH_INTERVAL: Micros = 1_000_000;

/// The write to which these data belong.
pub(crate) fn mark_of(writeset: &WriteSet) -> Mark {
    let data = writeset.data.first_chunk::<8>();
    data.map_or(0, |bytes| Mark::from_le_bytes(*bytes))
}

/// An entry as delivered to a member's server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    View,
    /// Whether it passes certification.
    Write(Mark, bool),
}

/// An entry that was delivered, or given to the thread that waited for it.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) seqno: Seqno,
    pub(crate) meaning: Meaning,
    /// `None`: a view.
    pub(crate) ordered: Option<Ordered>,
}

/// A state transfer that this member's server has to send.
#[derive(Debug)]
pub(crate) struct Donation {
    pub(crate) id: u64,
    pub(crate) joiner: String,
    /// It begins when this seqno has finished.
    pub(crate) after: Seqno,
    /// When it was first tried.
    pub(crate) since: Option<Micros>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Server {
    /// The committed writes.
    pub(crate) database: BTreeMap<Seqno, Mark>,
    /// Delivered and not finished.
    pub(crate) pending: BTreeMap<Seqno, (Meaning, StreamEffect)>,
    /// Primary views that are not in the log, applied once this seqno has finished.
    views: VecDeque<(Seqno, StreamEffect)>,
    pub(crate) streams: Arc<Streams>,
    /// This member's view UUID.
    pub(crate) own: ViewUuid,
    /// The highest seqno delivered.
    pub(crate) delivered: Seqno,
    pub(crate) finished: Seqno,
    /// Finished entries that may not be on disk, and when they finished.
    unflushed: VecDeque<(Micros, Seqno, Arc<Streams>)>,
    pub(crate) donations: Vec<Donation>,
    /// The server waits for a state transfer.
    pub(crate) wants_state: bool,
    /// The data are to be given up.
    pub(crate) gives_up_data: bool,
    /// The log that this process has opened.
    pub(crate) own_log: Option<FollowedLog>,
    /// The log that the database has followed, as its directory says: durable at once.
    pub(crate) followed: Option<FollowedLog>,
    /// The database has had no entry after this transferred state.
    transferred: Option<Seqno>,
    /// The node cannot go on.
    pub(crate) failed: Option<String>,
    /// A violated invariant, which ends the test.
    pub(crate) violation: Option<String>,
    /// Entries delivered since the last check.
    pub(crate) unchecked: Vec<Delivered>,
    pub(crate) apply_order: ApplyOrder,
}

impl Server {
    pub(crate) fn new() -> Server {
        Server {
            database: BTreeMap::new(),
            pending: BTreeMap::new(),
            views: VecDeque::new(),
            streams: Arc::default(),
            own: ViewUuid::NIL,
            delivered: SEQNO_UNDEFINED,
            finished: SEQNO_UNDEFINED,
            unflushed: VecDeque::new(),
            donations: Vec::new(),
            wants_state: false,
            gives_up_data: false,
            own_log: None,
            followed: None,
            transferred: None,
            failed: None,
            violation: None,
            unchecked: Vec::new(),
            apply_order: ApplyOrder::default(),
        }
    }

    /// Starts at this database position.
    pub(crate) fn begin(&mut self, position: Seqno) {
        self.pending.clear();
        self.views.clear();
        self.unchecked.clear();
        self.apply_order = ApplyOrder::default();
        self.donations.clear();
        (self.delivered, self.finished) = (position, position);
        self.unflushed.clear();
        (self.wants_state, self.gives_up_data) = (false, false);
        self.transferred = None;
        self.failed = None;
    }

    /// The database follows the process's log: it has begun with it, or has had an entry after a transferred state.
    fn follow_own_log(&mut self) {
        if !self.wants_state && self.transferred.is_none_or(|at| self.finished > at) {
            self.followed = self.own_log;
        }
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.views.is_empty() && self.donations.is_empty()
    }

    /// Takes over another member's data.
    pub(crate) fn copied(&mut self, database: BTreeMap<Seqno, Mark>, streams: Arc<Streams>, position: Seqno) {
        // The transferred state includes the last view.
        (self.database, self.streams) = (database, streams);
        self.begin(position);
        self.transferred = Some(position);
    }

    pub(crate) fn take(&mut self, member: &mut SimulatedNode<MemDisk>, delivery: Delivery) {
        match delivery {
            Delivery::Ordered(ordered) => self.delivered_entry(ordered),
            Delivery::View { info, in_log: true } => {
                self.place(info.gtid.seqno, Meaning::View, StreamEffect::of_view(&info), None);
            }
            Delivery::View { info, .. } if info.status == ViewStatus::Primary => {
                self.views.push_back((self.delivered, StreamEffect::of_view(&info)));
            }
            Delivery::StateNeeded { bypass: false } => {
                (self.wants_state, self.followed) = (true, None);
                member.request_state(Bytes::from_static(b"all of it"));
            }
            Delivery::StateNeeded { bypass: true } => self.violation = Some("nobody asked for a word".into()),
            Delivery::Donate { id, joiner, .. } => {
                self.donations.push(Donation { id, joiner, after: self.delivered, since: None });
            }
            Delivery::StateFailed(_) => self.gives_up_data = true,
            Delivery::Failed(text) => self.failed = Some(text),
            Delivery::Inconsistent(text) => self.violation = Some(text),
            Delivery::Result(_) => {
                self.violation = Some("a server was told the result of a statement".into())
            }
            Delivery::View { .. } | Delivery::Connected(_) | Delivery::Synced | Delivery::Closed => {}
        }
    }

    /// An entry for the appliers, or for the thread that waits for it.
    pub(crate) fn delivered_entry(&mut self, ordered: Ordered) {
        assert!(matches!(ordered.kind, EntryKind::WriteSet | EntryKind::TotalOrder));
        let (meaning, effect) =
            (Meaning::Write(mark_of(&ordered.writeset), ordered.pass), StreamEffect::of(&ordered));
        self.place(ordered.seqno, meaning, effect, Some(ordered));
    }

    fn place(&mut self, seqno: Seqno, meaning: Meaning, effect: StreamEffect, ordered: Option<Ordered>) {
        if self.pending.insert(seqno, (meaning, effect)).is_some() || seqno <= self.finished {
            self.violation = Some(format!("seqno {seqno} was given twice, or finished already: {meaning:?}"));
        }
        self.delivered = self.delivered.max(seqno);
        self.unchecked.push(Delivered { seqno, meaning, ordered });
    }

    /// Finishes up to `count` entries.
    pub(crate) fn finish(&mut self, count: usize, now: Micros) {
        for _ in 0..count {
            self.apply_views(self.finished);
            let Some((seqno, (meaning, effect))) = self.pending.pop_first() else { break };
            self.unflushed.push_back((now, self.finished, self.streams.clone()));
            self.finished = seqno;
            self.follow_own_log();
            self.stream(&effect);
            if let Meaning::Write(mark, true) = meaning {
                self.database.insert(seqno, mark);
            }
        }
        while self.unflushed.get(1).is_some_and(|(at, ..)| at + FLUSH_INTERVAL < now) {
            self.unflushed.pop_front();
        }
    }

    fn apply_views(&mut self, upto: Seqno) {
        let done = self.views.partition_point(|(after, _)| *after <= upto);
        for (_, view) in self.views.drain(..done).collect::<Vec<_>>() {
            self.follow_own_log();
            self.stream(&view);
        }
    }

    fn stream(&mut self, effect: &StreamEffect) {
        // Most entries have none, and each unflushed one shares the streams before it.
        if matches!(effect, StreamEffect::None) {
            return;
        }
        if let Err(text) = Arc::make_mut(&mut self.streams).finish(effect, self.own) {
            self.violation = Some(format!("at seqno {}: {text}", self.finished));
        }
    }

    /// The possible database positions after a crash.
    pub(crate) fn possible_positions(&self) -> Vec<Seqno> {
        let before = self.unflushed.iter().map(|(_, seqno, _)| *seqno).filter(|seqno| *seqno >= 0);
        before.chain([self.finished]).collect()
    }

    /// The crash loses everything after this position.
    pub(crate) fn roll_back(&mut self, to: Seqno) {
        self.database.split_off(&(to + 1));
        if let Some((.., streams)) = self.unflushed.iter().find(|(_, seqno, _)| *seqno == to) {
            self.streams = streams.clone();
        }
        Arc::make_mut(&mut self.streams).begin();
        self.begin(to);
    }

    /// The position at start; undefined if the data are to be given up.
    pub(crate) fn position(&self, history: lockstep_core::Uuid) -> Gtid {
        match self.gives_up_data || self.finished < 0 {
            true => Gtid::UNDEFINED,
            false => Gtid { uuid: history, seqno: self.finished },
        }
    }
}
