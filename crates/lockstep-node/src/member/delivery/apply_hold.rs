//! Apply holds (`apply.paused`, `apply.delay`, `apply.until`) and the permitted parallelism (`apply.order`).
//!
//! Under an apply hold the member goes on receiving, persisting and acknowledging entries; other members notice no
//! difference. Only its delivery stops, before the first entry that the server is not to have yet. Its server may not
//! write meanwhile: a commit would be ordered behind that entry and wait as long. Submissions already under way when
//! the hold is set are delivered first.
//!
//! The server is told Synced once it has everything that the hold permits; otherwise a server started under a hold
//! would refuse its readers. Other members and the status see it as Desynced, and it hands over leadership as soon as
//! it can. Both apply even while no entry is held back: its server refuses writes from then on, so proxies must not
//! send it any.

use crate::api::Level;
use crate::api::{ApplyOrder, Until};
use crate::member::context::Context;
use lockstep_core::writeset::{KeyType, ROOT, WriteSet};
use lockstep_core::{Entry, Micros, Seqno};
use rustc_hash::FxHashMap;

/// How many databases and tables are remembered before finished ones are forgotten.
const DATABASES_MAX: usize = 4096;

/// How often the growth of the log is logged.
const GROWTH_LOG_INTERVAL: Micros = 600_000_000;

/// Entries that other members appended before a given time have usually arrived by this much later. Until then the stop
/// at `apply.until` is not logged, if no entry is held back.
const ARRIVAL_DELAY: Micros = 1_000_000;

/// Why delivery is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    Paused,
    /// Until the own wall clock reaches this time.
    Delay(Micros),
    Until,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct ApplyHolds {
    /// A hold has been set, and own threads still wait for entries before it.
    own_first: bool,
    /// The reason for the hold, and the append time of the first entry held.
    held: Option<(Reason, Micros)>,
    /// `held` of the round before.
    held_before: Option<(Reason, Micros)>,
    /// The hold and the seqno in the last log line about it.
    logged: Option<(Reason, Seqno)>,
    /// When the growth of the log beyond its limit was last logged.
    growth_logged: Option<Micros>,
    /// Since when this member leads under a hold while only the leader's server may write; and when that was last
    /// logged.
    no_writer: Option<(Micros, Option<Micros>)>,
    order: ApplyOrder,
    /// No dependency below this seqno is known.
    floor: Seqno,
    /// The last write-set of each database. Tables and parent rows are recorded as well, which is harmless.
    last: FxHashMap<u64, Seqno>,
}

/// A leader that may not write is replaced within this time, if another member can lead.
const SUCCESSOR_TIMEOUT: Micros = 3_000_000;
/// How often the lack of such a member is logged.
const NO_WRITER_LOG_INTERVAL: Micros = 30_000_000;

impl ApplyHolds {
    pub(in crate::member) fn new(order: ApplyOrder) -> ApplyHolds {
        ApplyHolds { order, ..ApplyHolds::default() }
    }

    /// The highest seqno on which the entry depends: all up to it must have finished before the entry is applied.
    pub(in crate::member) fn depends_on(
        &mut self,
        seqno: Seqno,
        set: &WriteSet,
        depends_on: Seqno,
        finished: Seqno,
    ) -> Seqno {
        match self.order {
            ApplyOrder::Writeset => depends_on,
            ApplyOrder::Serial => seqno - 1,
            ApplyOrder::Schema => {
                if self.last.len() > DATABASES_MAX {
                    self.last.retain(|_, last| *last > finished);
                }
                let mut parent = depends_on.max(self.floor);
                // Each proper prefix of a key's path is a shared key; one of them is the database.
                for key in set.keys().filter(|key| key.kind == KeyType::Shared && key.hash != ROOT) {
                    let last = self.last.entry(key.hash).or_insert(seqno);
                    if *last < seqno {
                        parent = parent.max(std::mem::replace(last, seqno));
                    }
                }
                parent
            }
        }
    }

    pub(in crate::member) fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// A leader's task: logs that only this server may write, that it refuses to, and that no other member is fit to
    /// lead.
    pub(in crate::member) fn check_for_writer(&mut self, ctx: &mut Context) {
        if !ctx.has_held_server() || !ctx.raft.policy().is_weak() {
            self.no_writer = None;
            return;
        }
        let now = ctx.now();
        let (since, last_logged) = self.no_writer.get_or_insert((now, None));
        if now < *since + SUCCESSOR_TIMEOUT || last_logged.is_some_and(|at| now < at + NO_WRITER_LOG_INTERVAL)
        {
            return;
        }
        *last_logged = Some(now);
        let policy = ctx.raft.policy().kind.name();
        ctx.log(
            Level::Warn,
            format!(
                "nobody may write: under commit.policy = {policy} only the leader's server does, which is this one; entries \
                 are kept from it (apply.paused, apply.delay, apply.until), and no other voter is Synced to lead instead. \
                 Here SET GLOBAL wsrep_provider_options = 'apply.paused=no; apply.delay=0; apply.until=none', or \
                 'commit.policy=quorum', under which every member writes; or `lockstep promote` a replica that has caught up"
            ),
        );
    }

    /// Whether the hold lasts until an option is changed; `apply.delay` alone ends by itself.
    pub(in crate::member) fn is_indefinite(&self, ctx: &Context, delivered: Seqno) -> bool {
        ctx.tuning().apply_hold.paused
            || matches!(self.held, Some((Reason::Until, _)))
            || ctx.connection().is_primary() && matches!(would_hold(ctx, delivered), Some(Reason::Until))
    }

    /// Takes over changed options.
    pub(in crate::member) fn adopt_options(&mut self, ctx: &mut Context, delivered: Seqno) {
        if self.order != ctx.tuning().apply_order {
            self.order = ctx.tuning().apply_order;
            ctx.log(Level::Info, format!("apply.order is {} from now on", self.order.name()));
            self.floor = delivered;
            self.last.clear();
        }
        // Submissions made before the hold go first; a hold in force stays closed.
        self.own_first = ctx.is_held_back() && !self.is_holding();
    }

    /// Whether the next entry is held. `delivered`: the last seqno delivered. `has_primary`: the server has seen a
    /// Primary view. `own_pending`: own threads still wait for entries.
    pub(in crate::member) fn holds_back(
        &mut self,
        ctx: &Context,
        entry: &Entry,
        delivered: Seqno,
        has_primary: bool,
        own_pending: bool,
    ) -> bool {
        self.own_first &= own_pending;
        if !ctx.has_held_server() || self.own_first {
            return false;
        }
        // Not held: entries without a seqno, entries that the database has, and a founder's first view, without which
        // its server never starts up.
        if entry.seqno <= delivered || !has_primary {
            return false;
        }
        let Some(why) = hold_reason(ctx, entry.seqno, entry.time) else { return false };
        self.held = Some((why, entry.time));
        true
    }

    /// At the beginning of a delivery round.
    pub(in crate::member) fn begin_round(&mut self) {
        self.held_before = self.held.take();
    }

    /// At the end of a round that did not reach the held entry: entries are still being read, or were too many for one
    /// round. The hold stays as it was, or the member would be Synced for moments.
    pub(in crate::member) fn keep(&mut self, ctx: &Context) {
        if ctx.is_held_back() {
            self.held = self.held_before;
        }
    }

    /// Logs the hold at the end of a delivery round; `at_end`: no entry is left to deliver. Lasting holds are logged
    /// even while no entry is held; `apply.delay` only that it is in force. `seqno`: the last one delivered.
    pub(in crate::member) fn report(
        &mut self,
        ctx: &mut Context,
        seqno: Seqno,
        has_primary: bool,
        at_end: bool,
    ) {
        let idle = at_end && has_primary && ctx.has_held_server() && !self.own_first;
        let held = self.held.map(|(why, _)| why);
        let why = held.or_else(|| would_hold(ctx, seqno).filter(|_| idle && !may_still_arrive(ctx)));
        let known = match (why, self.logged) {
            (None, logged) => logged.is_none() || ctx.is_held_back(),
            (Some(Reason::Until), Some((Reason::Until, at))) => at == seqno,
            (Some(why), Some((logged, _))) => std::mem::discriminant(&why) == std::mem::discriminant(&logged),
            (Some(_), None) => false,
        };
        if known {
            return;
        }
        self.logged = why.map(|why| (why, seqno));
        let (level, text) = match why {
            None => (
                Level::Info,
                format!("the apply hold is over: the server gets all entries after seqno {seqno}"),
            ),
            Some(Reason::Paused) => (
                Level::Info,
                format!(
                    "apply.paused: the server stops at seqno {seqno}; entries are still received, persisted and \
                     acknowledged"
                ),
            ),
            Some(Reason::Delay(_)) => (
                Level::Info,
                format!(
                    "apply.delay: the server gets entries when they are {} s old",
                    ctx.tuning().apply_hold.delay.as_secs_f64()
                ),
            ),
            Some(Reason::Until) => match ctx.tuning().apply_hold.until {
                Some(Until::Gtid(gtid)) if gtid.uuid != ctx.raft.tail_state().history => (
                    Level::Warn,
                    format!(
                        "apply.until is a position in another history ({}) and cannot be found in this one ({}): the \
                         server stops at seqno {seqno}",
                        gtid.uuid,
                        ctx.raft.tail_state().history
                    ),
                ),
                _ => (
                    Level::Info,
                    format!(
                        "apply.until: the server stops at seqno {seqno}, and gets no more until apply.until is \
                         changed"
                    ),
                ),
            },
        };
        ctx.log(level, text);
    }

    /// Whether a write-set of this server can be delivered soon: one submitted under a hold would wait as long as the
    /// entries before it.
    pub(in crate::member) fn accepts_own_writes(&self, ctx: &Context) -> bool {
        !ctx.is_held_back() || self.own_first
    }

    /// When the hold ends. If that is past, delivery waits for something else: the majority, or room in the queue.
    pub(in crate::member) fn ends_at(&self, ctx: &Context) -> Option<Micros> {
        match self.held {
            Some((Reason::Delay(due), _)) if due > ctx.wall() => {
                Some(ctx.now().saturating_add(due - ctx.wall()))
            }
            _ => None,
        }
    }

    /// Records the size of the log, which grows without bound under a hold.
    pub(in crate::member) fn note_log_size(&mut self, ctx: &mut Context, bytes: u64) {
        let limit = ctx.tuning().log_max_bytes;
        let last_logged = self.growth_logged.is_some_and(|at| ctx.now() < at + GROWTH_LOG_INTERVAL);
        if bytes <= limit || last_logged || !self.is_holding() {
            return;
        }
        self.growth_logged = Some(ctx.now());
        let text = format!(
            "the log takes {} MiB, more than log.max_size ({} MiB), and keeps growing: it holds all entries that this \
             member's server may not have yet (apply.paused, apply.delay, apply.until). Lift the hold before the disk \
             is full",
            bytes >> 20,
            limit >> 20
        );
        ctx.log(Level::Warn, text);
    }

    /// How many seconds ago the first held entry was appended.
    pub(crate) fn age_of_held_entry(&self, ctx: &Context) -> Option<f64> {
        let appended = self.held?.1;
        Some(ctx.wall().saturating_sub(appended) as f64 / 1e6)
    }
}

/// Why an entry appended now would be held, if so.
fn would_hold(ctx: &Context, delivered: Seqno) -> Option<Reason> {
    hold_reason(ctx, delivered + 1, ctx.wall())
}

/// Why an entry with this seqno and append time is held, if so.
fn hold_reason(ctx: &Context, seqno: Seqno, time: Micros) -> Option<Reason> {
    let apply_hold = ctx.tuning().apply_hold;
    let behind = match apply_hold.until {
        None => false,
        Some(Until::Seqno(end)) => seqno > end,
        Some(Until::Gtid(end)) => end.uuid != ctx.raft.tail_state().history || seqno > end.seqno,
        Some(Until::Time(end)) => time > end,
    };
    let due = time.saturating_add(apply_hold.delay.as_micros() as Micros);
    if apply_hold.paused {
        Some(Reason::Paused)
    } else if behind {
        Some(Reason::Until)
    } else {
        (!apply_hold.delay.is_zero() && due > ctx.wall()).then_some(Reason::Delay(due))
    }
}

/// Whether the time of `apply.until` passed so recently that entries from before it may still arrive.
fn may_still_arrive(ctx: &Context) -> bool {
    let wall = ctx.wall();
    matches!(ctx.tuning().apply_hold.until, Some(Until::Time(end)) if wall > end && wall <= end.saturating_add(ARRIVAL_DELAY))
        && !ctx.tuning().apply_hold.paused
}

#[cfg(test)]
#[path = "apply_hold_tests.rs"]
mod tests;
