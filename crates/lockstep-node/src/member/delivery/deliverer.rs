//! The deliverer takes entries from the log in order, certifies them, and assembles their pieces. It passes each to the
//! waiting thread or to the front end's appliers.
//!
//! A run begins at or before the database's position. Entries up to the position are certified but not delivered, so
//! that later certification results are the same on every member. The run takes no entries while the front end's queue
//! is full; the log keeps them.

use crate::api::{ApplyOrder, Delivery, FrontEnd, Level, Ordered, StatementResult, ViewInfo, ViewStatus};
use crate::effect::{Effect, ReadFor, ReadRequest};
use crate::member::admin::commits::Commits;
use crate::member::context::Context;
use crate::member::delivery::apply_hold::ApplyHolds;
use crate::member::delivery::lag::LagMeter;
use crate::member::delivery::submissions::{PIECE_BYTES, Submissions};
use crate::member::membership::views_shown::{PositionView, ViewsShown};
use bytes::Bytes;
use lockstep_core::certify::{Certifier, TrimLimits, Verdicts, reaches};
use lockstep_core::codec::Reader;
use lockstep_core::members::View;
use lockstep_core::policy::Writers;
use lockstep_core::raft::{Failpoint, Failpoints, WriteOp};
use lockstep_core::snapshot::{Session, StateSnapshot, TrimMark};
use lockstep_core::writeset::{self, Meta, WriteSet, assemble, flags};
use lockstep_core::{Entry, EntryKind, Gtid, Index, MemberId, Micros, Seqno, ViewUuid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Entries handled in one round: the round must end soon, since acks wait for its end.
const ENTRIES_PER_ROUND: usize = 1024;
/// Bytes handled in one round.
const BYTES_PER_ROUND: usize = 16 << 20;
/// Keys below the trim mark that a round forgets, in less than 0.1 ms.
const FORGET_PER_ROUND: usize = 512;
/// Bytes of old entries read from the log at a time.
const READ_BYTES: usize = 4 << 20;
/// Pieces kept per member: those of the largest write-set. The oldest are dropped first, so that every member keeps the
/// same ones, wherever its run began.
const PIECES_MAX: usize = (2 << 30) / PIECE_BYTES + 1;

/// Pieces received before their write-set.
#[derive(Debug, Default)]
struct Pieces {
    incarnation: u64,
    parts: VecDeque<Bytes>,
}

/// A write-set after assembly of its pieces.
#[allow(clippy::large_enum_variant, reason = "nearly all are the large one, and none is kept")]
enum Assembled {
    Yes(WriteSet),
    /// Its pieces lie before the beginning of this run.
    Before,
    /// Unreadable, or with other pieces than it declares: the same on every member.
    Void,
}

/// Why delivery cannot begin at the database's position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::member) enum StartError {
    /// The log lacks entries after the position.
    BeginsTooLate {
        /// The seqno before the log's first entry.
        first: Seqno,
        /// The database's position.
        position: Seqno,
    },
    /// The log has every entry after the position, but begins above the trim mark from which certification must begin.
    ///
    /// This ends by itself if a snapshot has just replaced the log: the leader chose a snapshot behind which its own
    /// log has the marks, and they arrive with the next entries.
    MarksMissing {
        /// The seqno before the log's first entry.
        first: Seqno,
        /// The database's position.
        position: Seqno,
    },
}

impl StartError {
    /// For people. `data` is what the member keeps.
    pub(in crate::member) fn text(&self, data: &str) -> String {
        match self {
            StartError::BeginsTooLate { first, position } => {
                format!("the log begins at seqno {first}, too late for the {data}'s position {position}")
            }
            StartError::MarksMissing { first, position } => format!(
                "the log begins at seqno {first}, too late to certify what follows the {data}'s position {position}"
            ),
        }
    }
}

#[derive(Debug)]
struct Run {
    certifier: Certifier,
    /// The index of the entry before the run's first.
    base: Index,
    /// How many proposals each member's incarnation had made by `base`.
    before: BTreeMap<MemberId, Session>,
    /// The next index to take.
    next: Index,
    /// The seqno of the last entry taken.
    seqno: Seqno,
    pieces: BTreeMap<MemberId, Pieces>,
    /// The members that may write.
    writers: Writers,
    /// Old entries from the log.
    fetched: VecDeque<Entry>,
    /// Whether a read of old entries is in progress.
    reading: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Deliverer {
    run: Option<Run>,
    limits: Limits,
    /// The database's position, or the last seqno delivered after it.
    delivered: Seqno,
    /// Append times and sizes of the delivered entries.
    lag: LagMeter,
    /// A Primary view at the position is due before anything is delivered.
    announce: bool,
    /// The last view up to `delivered`.
    view: Arc<View>,
    /// The trim marks of the own log, by index: certification learns them before its run.
    marks: VecDeque<(Index, TrimMark)>,
    /// The next entry is this member's own and its policy is not met yet, or an apply hold stops it
    /// ([`super::apply_hold`]).
    held: bool,
    /// The log begins after the database's position.
    cut_off: bool,
    /// Streaming transactions delivered in part: their origin's view UUID, and their number there. Those begun before
    /// the position are missing.
    streams: BTreeSet<(ViewUuid, u64)>,
    /// See [`Deliverer::fragment_at`].
    fragment_at: Option<Micros>,
    /// A device's own entries were acknowledged up to here, before they were committed.
    acknowledged: Index,
    /// Failpoints; none in a released program.
    failpoints: Failpoints,
}

/// The components that take part in a delivery.
pub(in crate::member) struct Receivers<'a> {
    pub(in crate::member) submissions: &'a mut Submissions,
    pub(in crate::member) apply_holds: &'a mut ApplyHolds,
    pub(in crate::member) views_shown: &'a mut ViewsShown,
    pub(in crate::member) commits: &'a mut Commits,
    /// This connection is being left.
    pub(in crate::member) leaving: bool,
    /// Only committed entries may be delivered: see [`Deliverer::limit`].
    pub(in crate::member) committed_only: bool,
}

/// How far Raft lets delivery go: see [`lockstep_core::raft::Output::Commit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::member) struct Limits {
    /// Committed, and on the own disk.
    pub(in crate::member) deliverable: Index,
    /// The same, and for a leader under a weak policy more.
    pub(in crate::member) early: Index,
    /// Every entry up to here meets its policy.
    pub(in crate::member) policy_index: Index,
}

impl Deliverer {
    /// With the fault that is planted in Raft, too.
    pub(in crate::member) fn with(failpoints: Failpoints) -> Deliverer {
        Deliverer { failpoints, ..Deliverer::default() }
    }

    /// Raft announces how far delivery may go.
    pub(in crate::member) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The last index that may be delivered to the server. While this member donates or leaves, it delivers committed
    /// entries only: its state must not be ahead of the cluster's.
    fn limit(&self, committed_only: bool) -> Index {
        if committed_only { self.limits.deliverable } else { self.limits.early }
    }

    /// Remembers a trim mark found in the log at start.
    pub(crate) fn remember(&mut self, entry: &Entry) {
        if entry.kind == EntryKind::Trim
            && let Ok(mark) = TrimMark::from_payload(entry.payload())
        {
            self.marks.push_back((entry.index, mark));
        }
    }

    /// Updates the trim marks after a write to the log.
    pub(in crate::member) fn follow(&mut self, op: &WriteOp) {
        if op.reset.is_some() {
            self.marks.clear();
            self.cut_off |= self.run.is_some();
        }
        if let Some(from) = op.truncate_from {
            self.marks.retain(|(index, _)| *index < from);
            self.acknowledged = self.acknowledged.min(from.saturating_sub(1));
        }
        for entry in &op.entries {
            self.remember(entry);
        }
    }

    pub(in crate::member) fn forget_below(&mut self, first: Index) {
        self.marks.retain(|(index, _)| *index >= first);
    }

    /// Begins a run for a database at `position`. `bases` are the snapshots at which the log's segments begin.
    ///
    /// # Errors
    /// [`StartError`]: the log cannot supply the entries after the position, for good or yet.
    pub(in crate::member) fn start(
        &mut self,
        bases: &[StateSnapshot],
        committed: &StateSnapshot,
        position: Seqno,
    ) -> Result<(), StartError> {
        let latest = bases.iter().rposition(|b| b.seqno <= position && reaches(b, committed));
        // Begin one segment earlier if possible: a write-set after the position may have pieces before it.
        let Some(base) = latest.and_then(|at| bases.get(at.saturating_sub(1))) else {
            let first = bases.first().map_or(0, |b| b.seqno);
            return Err(match bases.iter().any(|base| base.seqno <= position) {
                true => StartError::MarksMissing { first, position },
                false => StartError::BeginsTooLate { first, position },
            });
        };
        let mut certifier = Certifier::new(base);
        certifier.set_failpoints(self.failpoints);
        certifier.skip_to(position);
        for (_, mark) in
            self.marks.iter().filter(|(index, _)| *index > base.index && *index <= committed.index)
        {
            certifier.learn(mark);
        }
        self.run = Some(Run {
            certifier,
            base: base.index,
            before: base.sessions.clone(),
            next: base.index + 1,
            seqno: base.seqno,
            pieces: BTreeMap::new(),
            writers: base.writers(),
            fetched: VecDeque::new(),
            reading: false,
        });
        if self.delivered != position {
            // Streams may have ended in between, in entries that this run does not deliver.
            self.streams.clear();
        }
        self.delivered = position;
        self.view = base.view.clone();
        self.cut_off = false;
        Ok(())
    }

    /// Whether a streaming transaction of the member with this view UUID may be open.
    pub(in crate::member) fn has_streams_of(&self, uuid: &ViewUuid) -> bool {
        self.streams.range((*uuid, 0)..=(*uuid, u64::MAX)).next().is_some()
    }

    /// How many streaming transactions are known to be open.
    pub(in crate::member) fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Records the begin and end of streaming transactions.
    fn follow_stream(&mut self, set: &WriteSet, pass: bool) {
        let Meta { flags, source, trx, .. } = set.meta;
        if flags & (flags::TRX_END | flags::ROLLBACK) != 0 {
            self.streams.remove(&(source, trx));
        } else if flags & flags::TRX_START != 0 && pass {
            self.streams.insert((source, trx));
        }
    }

    /// Forgets the streams that end at this view.
    fn end_streams(&mut self, view: &View) {
        let on = view.whose_streams_go_on(&self.view);
        self.streams.retain(|(source, _)| on.binary_search(source).is_ok());
    }

    pub(in crate::member) fn announce_at_start(&mut self) {
        self.announce = true;
    }

    pub(in crate::member) fn stop(&mut self) {
        self.run = None;
        self.cut_off = false;
    }

    /// Whether the server has been shown a Primary view, and takes deliveries.
    pub(in crate::member) fn is_shown(&self) -> bool {
        self.run.is_some() && !self.announce
    }

    /// Whether there is more to deliver at once.
    pub(in crate::member) fn is_behind(&self, committed_only: bool) -> bool {
        let deliverable = self.limit(committed_only);
        !self.held && self.run.as_ref().is_some_and(|run| run.next <= deliverable && !run.reading)
    }

    /// Whether everything up to the position has been certified, so that later entries are delivered.
    pub(in crate::member) fn is_running(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.seqno >= self.delivered) && !self.announce
    }

    pub(in crate::member) fn has_started(&self) -> bool {
        self.run.is_some()
    }

    pub(in crate::member) fn seqno(&self) -> Seqno {
        self.run.as_ref().map_or(-1, |run| run.seqno)
    }

    /// The last seqno delivered, or the position.
    pub(crate) fn delivered(&self) -> Seqno {
        self.delivered
    }

    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    pub(in crate::member) fn next_index(&self) -> Index {
        self.run.as_ref().map_or(0, |run| run.next)
    }

    /// How many seqnos certification looks back over; related to `wsrep_cert_interval`.
    pub(crate) fn window(&self) -> u64 {
        self.run.as_ref().map_or(0, |run| run.certifier.window())
    }

    /// When any member's last streaming fragment was taken from the log.
    pub(in crate::member) fn fragment_at(&self) -> Option<Micros> {
        self.fragment_at
    }

    /// How many keys certification knows (`wsrep_cert_index_size`).
    pub(crate) fn keys(&self) -> usize {
        self.run.as_ref().map_or(0, |run| run.certifier.len())
    }

    /// How many seconds ago the oldest delivered entry above `finished` was appended.
    pub(crate) fn age_above(&self, finished: Seqno, wall: Micros) -> Option<f64> {
        self.lag.age(finished, wall)
    }

    /// Approximate size of the entries delivered and not finished.
    fn bytes_above(&self, finished: Seqno) -> u64 {
        self.lag.bytes(finished)
    }

    /// Whether certification holds keys that it no longer needs.
    pub(in crate::member) fn is_to_forget(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.certifier.is_to_forget())
    }

    /// Forgets a limited number of unneeded keys, to keep rounds short.
    pub(in crate::member) fn forget(&mut self) {
        if let Some(run) = &mut self.run {
            run.certifier.forget(FORGET_PER_ROUND);
        }
    }

    pub(in crate::member) fn next_trim(&self, low: Seqno, tail: &StateSnapshot) -> Option<TrimMark> {
        let limits = TrimLimits { min_advance: 1, ..TrimLimits::default() };
        self.run.as_ref()?.certifier.next_trim(low, &limits, tail)
    }

    /// See [`Certifier::verdicts`].
    pub(in crate::member) fn verdicts(&self, after: Seqno, to: Seqno) -> Verdicts {
        self.run.as_ref().map_or(Verdicts::NotYet, |run| run.certifier.verdicts(after, to))
    }

    /// Receives old entries read from the log.
    ///
    /// # Errors
    /// The log does not have them.
    pub(in crate::member) fn fetched(&mut self, from: Index, entries: Vec<Entry>) -> Result<(), String> {
        let Some(run) = &mut self.run else { return Ok(()) };
        run.reading = false;
        if entries.is_empty() && from == run.next {
            return Err(format!("the own log has no entry {from}, which this server needs next"));
        }
        if run.fetched.is_empty() && from == run.next {
            run.fetched.extend(entries);
        }
        Ok(())
    }
}

impl Run {
    fn whole(&mut self, entry: &Entry, set: WriteSet) -> Assembled {
        let Some(about) = set.pieces else { return Assembled::Yes(set) };
        let mut pieces = self.pieces.remove(&entry.proposal.member).unwrap_or_default();
        if pieces.incarnation != entry.proposal.incarnation {
            pieces.parts.clear();
        }
        let Some(from) = pieces.parts.len().checked_sub(about.count as usize) else {
            // Each piece was a proposal of the same incarnation. If that made fewer proposals than `count`, the pieces
            // do not exist: a member that declares pieces it never sent must not cost the others their data.
            let session = self.before.get(&entry.proposal.member);
            let before =
                session.filter(|s| s.incarnation == entry.proposal.incarnation).map_or(0, |s| s.number);
            let may_be = before + pieces.parts.len() as u64 >= u64::from(about.count);
            return if self.base > 0 && may_be { Assembled::Before } else { Assembled::Void };
        };
        match assemble(set, &pieces.parts.make_contiguous()[from..]) {
            Ok(set) => Assembled::Yes(set),
            Err(_) => Assembled::Void,
        }
    }

    fn piece(&mut self, entry: &Entry) {
        let pieces = self.pieces.entry(entry.proposal.member).or_default();
        if pieces.incarnation != entry.proposal.incarnation {
            *pieces = Pieces { incarnation: entry.proposal.incarnation, ..Pieces::default() };
        }
        if pieces.parts.len() >= PIECES_MAX {
            pieces.parts.pop_front();
        }
        pieces.parts.push_back(entry.payload());
    }
}

impl Deliverer {
    /// The log begins after the front end's position. A database needs a state transfer. An arbitrator begins where its
    /// log does, once it can certify from there.
    ///
    /// The leader chose the snapshot so that its own log has the trim marks that certification needs ([`reaches`]).
    /// They follow the snapshot, in entries that come later.
    fn on_cut_off(&mut self, ctx: &mut Context) -> Result<(), String> {
        if ctx.front_end() != FrontEnd::Nothing {
            return Err("this member was so far behind that the others' logs begin after what it has".into());
        }
        let bases: Vec<StateSnapshot> = ctx.raft.segment_bases().cloned().collect();
        let committed = ctx.raft.committed_state();
        // Also before the run: the leader's trim marks wait for the finished seqno.
        ctx.raise_finished(committed.seqno);
        match self.start(&bases, committed, committed.seqno) {
            Ok(()) => self.announce = true,
            // The run of the replaced log has ended in any case.
            Err(StartError::MarksMissing { .. }) => self.run = None,
            Err(error @ StartError::BeginsTooLate { .. }) => return Err(error.text(ctx.terms().data)),
        }
        Ok(())
    }

    /// Takes entries from the log and delivers them, as many as a round may.
    ///
    /// # Errors
    /// Why the database needs a state transfer.
    pub(in crate::member) fn step(
        &mut self,
        ctx: &mut Context,
        to: &mut Receivers<'_>,
    ) -> Result<(), String> {
        if self.cut_off {
            return self.on_cut_off(ctx);
        }
        // After a non-Primary view nothing is delivered before the next Primary one.
        if !ctx.connection().is_primary() {
            return Ok(());
        }
        self.held = false;
        to.apply_holds.begin_round();
        let (limit, policy_index) = (self.limit(to.committed_only), self.limits.policy_index);
        let (mut bytes, mut at_end) = (0, false);
        for _ in 0..ENTRIES_PER_ROUND {
            if bytes > BYTES_PER_ROUND {
                break;
            }
            if self.announce && self.run.as_ref().is_some_and(|run| run.seqno >= self.delivered) {
                self.announce = false;
                self.show_position(ctx, to.views_shown);
            }
            let Some(run) = &mut self.run else { return Ok(()) };
            let next = run.next;
            if next > limit {
                at_end = true;
                break;
            }
            let entry = match ctx.raft.entry(next) {
                Some(entry) => {
                    run.fetched.clear();
                    entry.clone()
                }
                None => match run.fetched.pop_front() {
                    // Only an entry that is still in the log: this one may have been read before a truncation.
                    Some(entry) if entry.index == next && ctx.raft.term_at(next) == Some(entry.term) => entry,
                    _ => {
                        if !run.reading {
                            run.reading = true;
                            run.fetched.clear();
                            let whom = ReadFor::Deliverer;
                            let request = ReadRequest { whom, from: next, max_bytes: READ_BYTES };
                            ctx.emit(Effect::Read(request));
                        }
                        break;
                    }
                },
            };
            // Checked on the entry itself, wherever it was read: Raft may no longer hold it in memory.
            if (next > policy_index && self.is_waited_for(ctx, to.submissions, &entry))
                || self.is_held_back(ctx, to, &entry)
            {
                (self.held, at_end) = (true, true);
                if let Some(run) = self.run.as_mut().filter(|_| ctx.raft.entry(next).is_none()) {
                    run.fetched.push_front(entry);
                }
                break;
            }
            bytes += entry.size();
            self.take_entry(ctx, to, entry)?;
        }
        if ctx.front_end() == FrontEnd::Device {
            self.acknowledge_early(ctx, to.submissions);
        }
        if !at_end {
            to.apply_holds.keep(ctx);
        }
        to.apply_holds.report(ctx, self.delivered, to.views_shown.has_primary(), at_end);
        Ok(())
    }

    /// Acknowledges a device's own entries that meet a weak policy before they are committed. They are delivered later.
    ///
    /// It acknowledges no entry that certification will refuse, because its member had seen less than the trim mark. That
    /// happens to entries that wait long for a leader.
    fn acknowledge_early(&mut self, ctx: &Context, submissions: &mut Submissions) {
        let Some(certified) = self.run.as_ref().map(|run| run.certifier.trim_mark()) else { return };
        let after = ctx.raft.committed_state().seqno;
        for index in self.acknowledged.max(self.limits.deliverable) + 1..=self.limits.early {
            let Some(entry) = ctx.raft.entry(index) else { return };
            self.acknowledged = index;
            // The mark before the entry may not be certified yet.
            let mark = self.marks.iter().rev().find(|(at, _)| *at < index).map(|(_, mark)| mark.trim);
            let is_below = |seen: Seqno| seen < mark.map_or(certified, |mark| mark.max(certified));
            let id = entry.proposal;
            if id.member == ctx.me().id
                && id.incarnation == ctx.me().incarnation
                && !writeset::last_seen(&entry.payload()).is_some_and(is_below)
                && let Some(submission) = submissions.take(id.number)
            {
                submission.acknowledge(after);
            }
        }
    }

    /// Whether an apply hold keeps the entry from the server.
    fn is_held_back(&self, ctx: &Context, to: &mut Receivers<'_>, entry: &Entry) -> bool {
        let (has_primary, own_pending) = (to.views_shown.has_primary(), !to.submissions.is_empty());
        to.apply_holds.holds_back(ctx, entry, self.delivered, has_primary, own_pending)
    }

    fn take_entry(&mut self, ctx: &mut Context, to: &mut Receivers<'_>, entry: Entry) -> Result<(), String> {
        let Some(run) = &mut self.run else { return Ok(()) };
        run.next = entry.index + 1;
        run.writers.follow(&entry);
        let seqno = entry.seqno;
        let failure = |error: &dyn std::fmt::Display| {
            format!("entry {} (seqno {seqno}) cannot be certified: {error}", entry.index)
        };
        match entry.kind {
            EntryKind::WriteSet | EntryKind::TotalOrder => {
                // The write-set has all keys: the certification result does not depend on pieces.
                let parsed = WriteSet::parse(&entry.payload()).ok();
                let whole = flags::TRX_START | flags::TRX_END;
                if entry.kind == EntryKind::WriteSet
                    && parsed.as_ref().is_some_and(|set| set.meta.flags & whole != whole)
                {
                    self.fragment_at = Some(ctx.now());
                }
                let outcome =
                    run.certifier.judge(&run.writers, &entry, parsed.as_ref()).map_err(|e| failure(&e))?;
                run.seqno = seqno;
                if ctx.front_end() == FrontEnd::Nothing {
                    self.delivered = self.delivered.max(seqno);
                    ctx.raise_finished(seqno);
                    return Ok(());
                }
                if seqno <= self.delivered {
                    if parsed.is_some_and(|set| set.pieces.is_some()) {
                        run.pieces.remove(&entry.proposal.member);
                    }
                    return Ok(());
                }
                let whole = match parsed.map_or(Assembled::Void, |set| run.whole(&entry, set)) {
                    Assembled::Yes(set) => Some(set),
                    Assembled::Void => None,
                    // A failed write-set needs no pieces.
                    Assembled::Before if !outcome.pass => None,
                    Assembled::Before => return self.begin_earlier(ctx, seqno),
                };
                if let Some(set) = &whole {
                    self.follow_stream(set, outcome.pass);
                }
                self.delivered = seqno;
                let finished = || ctx.finished();
                self.lag.delivered(entry.seqno, entry.time, ctx.wall(), entry.size() as u64, finished);
                if whole.is_none() {
                    let text =
                        format!("the write-set at seqno {seqno} cannot be read: it fails on every member");
                    ctx.log(Level::Error, text);
                }
                let (pass, writeset) =
                    (outcome.pass && whole.is_some(), whole.unwrap_or_else(WriteSet::void));
                let ordered = Ordered {
                    seqno,
                    kind: entry.kind,
                    pass,
                    depends_on: to.apply_holds.depends_on(
                        seqno,
                        &writeset,
                        outcome.depends_on,
                        ctx.finished(),
                    ),
                    serial: ctx.tuning().apply_order == ApplyOrder::Serial,
                    origin: entry.proposal.member,
                    time: entry.time,
                    writeset,
                };
                self.hand_over(ctx, to, &entry, ordered);
            }
            EntryKind::View => {
                let mut r = Reader::new(entry.payload());
                let view = View::decode(&mut r).map_err(|e| failure(&e))?;
                let without_me = !view.members.iter().any(|m| m.view_uuid == ctx.me().view_uuid);
                if to.leaving && without_me && seqno > self.delivered {
                    // The view without this member: it takes later entries from the log when it is back.
                    self.stop();
                    return Ok(());
                }
                run.certifier.barrier(seqno).map_err(|e| failure(&e))?;
                let before = std::mem::replace(&mut run.seqno, seqno);
                if before < self.delivered && self.delivered < seqno {
                    return Err(format!(
                        "this member's {} is at seqno {}, which the cluster does not have: it went on from {before} to \
                         {seqno} when another member took over",
                        ctx.terms().data,
                        self.delivered
                    ));
                }
                // A view that is read again has already ended its streams.
                if seqno > self.delivered {
                    self.end_streams(&view);
                }
                self.view = Arc::new(view);
                if seqno <= self.delivered {
                    return Ok(());
                }
                self.delivered = seqno;
                let finished = || ctx.finished();
                self.lag.delivered(entry.seqno, entry.time, ctx.wall(), entry.size() as u64, finished);
                let view = self.view.clone();
                let my_index = view.members.iter().position(|m| m.view_uuid == ctx.me().view_uuid);
                let info = ViewInfo {
                    gtid: Gtid { uuid: ctx.raft.tail_state().history, seqno },
                    before,
                    number: view.number as i64,
                    status: ViewStatus::Primary,
                    members: view.members.clone(),
                    my_index,
                    time: Some(entry.time),
                };
                to.views_shown.primary_seen();
                if ctx.front_end() == FrontEnd::Nothing {
                    ctx.raise_finished(seqno);
                }
                ctx.deliver(Delivery::View { info, in_log: true });
            }
            EntryKind::Trim => {
                let mark = TrimMark::from_payload(entry.payload()).map_err(|e| failure(&e))?;
                run.certifier.trim(&mark).map_err(|e| failure(&e))?;
            }
            EntryKind::Piece if ctx.front_end() == FrontEnd::Nothing => {}
            EntryKind::Piece => run.piece(&entry),
            EntryKind::Note => {
                if matches!(ctx.front_end(), FrontEnd::Reader { .. })
                    && let Some(result) = StatementResult::of(&entry)
                {
                    ctx.deliver(Delivery::Result(result));
                }
            }
            EntryKind::Noop
            | EntryKind::Membership
            | EntryKind::Policy
            | EntryKind::Outcome
            | EntryKind::Branch => {}
        }
        Ok(())
    }

    /// Whether a local thread waits for this entry and may learn that it passed certification. A refused entry promises
    /// nothing: it needs no policy to be met, and neither do the entries after it for its sake.
    fn is_waited_for(&self, ctx: &Context, submissions: &Submissions, entry: &Entry) -> bool {
        let id = entry.proposal;
        id.member == ctx.me().id
            && id.incarnation == ctx.me().incarnation
            && submissions.awaits(id.number)
            && !self.is_refused(entry)
    }

    /// Whether certification will refuse the next entry because its origin may not write.
    fn is_refused(&self, entry: &Entry) -> bool {
        let Some(run) = &self.run else { return false };
        let mut writers = run.writers.clone();
        writers.follow(entry);
        !writers.may_write(&entry.proposal.member) && !writeset::has_flags(&entry.payload(), flags::ROLLBACK)
    }

    /// The log was truncated below entries taken early, none of which the server has seen: certification runs again.
    pub(in crate::member) fn was_cut(&mut self, ctx: &Context) -> Result<(), String> {
        let bases: Vec<StateSnapshot> = ctx.raft.segment_bases().cloned().collect();
        let (delivered, view) = (self.delivered, self.view.clone());
        self.start(&bases, ctx.raft.committed_state(), delivered)
            .map_err(|error| error.text(ctx.terms().data))?;
        self.view = view;
        Ok(())
    }

    /// Restarts the run at the log's beginning: the pieces of the write-set at this seqno lie before the run.
    fn begin_earlier(&mut self, ctx: &Context, seqno: Seqno) -> Result<(), String> {
        let bases: Vec<StateSnapshot> = ctx.raft.segment_bases().take(1).cloned().collect();
        let began = self.run.as_ref().map_or(0, |run| run.base);
        if bases.first().is_none_or(|first| first.index >= began) {
            return Err(format!("the pieces of the write-set at seqno {seqno} lie before this member's log"));
        }
        let (delivered, view) = (self.delivered, self.view.clone());
        self.start(&bases, ctx.raft.committed_state(), delivered)
            .map_err(|error| error.text(ctx.terms().data))?;
        self.view = view;
        Ok(())
    }

    /// Approximate size of the own log that the server has not finished; `None` if its position in the log is unknown.
    pub(in crate::member) fn bytes_behind(&self, ctx: &Context) -> Option<u64> {
        let ahead = || ctx.raft.bytes_from(self.next_index());
        self.is_running().then(|| self.bytes_above(ctx.finished()) + ahead())
    }

    /// Hands the entry to the thread that waits for it, else to the appliers.
    fn hand_over(&self, ctx: &mut Context, to: &mut Receivers<'_>, entry: &Entry, ordered: Ordered) {
        let own = entry.proposal.member == ctx.me().id && entry.proposal.incarnation == ctx.me().incarnation;
        if own && self.failpoints.is_active(Failpoint::SubmissionOverlooked) {
            return;
        }
        // A fragment of a streaming transaction commits nothing yet.
        let commits = ordered.pass && ordered.writeset.meta.flags & flags::TRX_END != 0;
        let ordered = match own.then(|| to.submissions.take(entry.proposal.number)).flatten() {
            None => ordered,
            Some(submission) => match submission.order(ordered) {
                Ok(thread) => {
                    if commits && let Some(run) = &self.run {
                        to.commits.acknowledged(ctx, entry, run.writers.policy());
                    }
                    ctx.wake_later(thread);
                    return;
                }
                Err(ordered) => *ordered,
            },
        };
        ctx.deliver(Delivery::Ordered(ordered));
    }

    /// Shows a Primary view at exactly the delivered position: see `ViewsShown::position`.
    pub(in crate::member) fn show_position(&self, ctx: &mut Context, views_shown: &mut ViewsShown) {
        let view = self.view.clone();
        let own = ctx.own_view_member();
        let PositionView { members, my_index, settle } =
            views_shown.position(&view, own, |uuid| self.has_streams_of(uuid));
        let info = ViewInfo {
            gtid: Gtid { uuid: ctx.raft.tail_state().history, seqno: self.delivered() },
            before: self.delivered(),
            number: view.number as i64,
            status: ViewStatus::Primary,
            members,
            my_index: Some(my_index),
            time: None,
        };
        let settled = settle.then(|| ViewInfo { members: view.members.clone(), ..info.clone() });
        ctx.deliver(Delivery::View { info, in_log: false });
        if let Some(info) = settled {
            ctx.deliver(Delivery::View { info, in_log: false });
        }
    }

    /// The non-Primary view: this member, and those of the last view that respond.
    pub(crate) fn view_without_quorum(&self, ctx: &Context) -> ViewInfo {
        let mut members = vec![ctx.own_view_member()];
        let last = &self.view;
        members.extend(last.members.iter().filter(|m| ctx.responds(&m.id)).cloned());
        ViewInfo {
            gtid: Gtid { uuid: ctx.raft.tail_state().history, seqno: self.delivered() },
            before: self.delivered(),
            number: -1,
            status: ViewStatus::NonPrimary,
            members,
            my_index: Some(0),
            time: None,
        }
    }
}
