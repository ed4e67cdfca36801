//! What is kept from this member's server for a time (`apply.paused`, `apply.delay`, `apply.until`), and what it may
//! apply in parallel (`apply.order`).
//!
//! The member goes on receiving, keeping and acknowledging: for the others it is as good as any. Only its own feed
//! stands at a gate, in front of the first entry that its server is not to have yet. Its server may not write
//! meanwhile, for a commit has its place behind that entry and would wait as long. What threads of it wait for when the
//! gate is to shut goes through first.
//!
//! To its server it is Synced once it has everything that it is to have (else a server that is started so would refuse
//! its readers). To everybody who looks it is Desynced, and it leads no longer than it must, as soon as anything is to be
//! kept back, also while nothing comes that could be: its server refuses writes from then on, and who refuses them must
//! not be where a proxy sends them.

use super::{Level, Member, Micros};
use crate::api::{ApplyHold, ApplyOrder, Until};
use lockstep_core::writeset::{KeyType, ROOT, WriteSet};
use lockstep_core::{Entry, Seqno};
use rustc_hash::FxHashMap;

/// So many databases and tables are known before those whose last write-set has finished are forgotten.
const KNOWN: usize = 4096;

/// How often it is said that the log grows.
const SAY_GROWS_EVERY: Micros = 600_000_000;

/// What others placed before a time that is over is here by then, most often: so long nothing is said of where the server
/// stands, while nothing stands at the gate.
const ON_THE_WAY: Micros = 1_000_000;

/// Why the gate is shut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Why {
    Paused,
    /// Until the own wall clock says this.
    Young(Micros),
    Until,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ApplyHolds {
    /// The gate is to shut, and own threads still wait for what is in front of it.
    own_first: bool,
    /// Shut in front of an entry that was placed at this time.
    shut: Option<(Why, Micros)>,
    /// The same in the round before.
    stood: Option<(Why, Micros)>,
    /// What has been said of the gate, and of which seqno.
    told: Option<(Why, Seqno)>,
    /// When it was last said that the log grows beyond its limit for what is kept from the server.
    said_grows: Option<Micros>,
    /// Since when this member, from whose server entries are kept, leads where only the leader's server writes; and when
    /// that was last said.
    nobody_writes: Option<(Micros, Option<Micros>)>,
    order: ApplyOrder,
    /// What is not known of the order goes back to here.
    floor: Seqno,
    /// The last write-set of each database (and of each table, and parent row, which does no harm).
    last: FxHashMap<u64, Seqno>,
}

/// A leader that may not write has another lead instead within this time, if there is one.
const SOMEBODY_SOON: Micros = 3_000_000;
/// How often it is said that there is none.
const SAY_NOBODY: Micros = 30_000_000;

impl ApplyHolds {
    pub(super) fn new(order: ApplyOrder) -> ApplyHolds {
        ApplyHolds { order, ..ApplyHolds::default() }
    }

    /// Of an entry's parents, the highest: all up to it must have finished before it may be applied.
    fn depends_on(&mut self, seqno: Seqno, set: &WriteSet, depends_on: Seqno, finished: Seqno) -> Seqno {
        match self.order {
            ApplyOrder::Writeset => depends_on,
            ApplyOrder::Serial => seqno - 1,
            ApplyOrder::Schema => {
                if self.last.len() > KNOWN {
                    self.last.retain(|_, last| *last > finished);
                }
                let mut parent = depends_on.max(self.floor);
                // Each proper prefix of a key's path is a shared key: one of them is the database.
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

    pub(super) fn is_shut(&self) -> bool {
        self.shut.is_some()
    }
}

impl Member {
    fn gate(&self) -> ApplyHold {
        self.tuning.apply_hold
    }

    /// Whether anything is kept from this member's server, now or later.
    pub(crate) fn is_held_back(&self) -> bool {
        self.gate().is_set()
    }

    /// The same, where there is a server.
    pub(super) fn has_held_server(&self) -> bool {
        self.is_held_back() && !self.me.arbitrator
    }

    /// A leader's duty: where its server alone may write, and refuses to, and nobody is fit to lead instead, that is said.
    pub(super) fn look_whether_somebody_writes(&mut self) {
        if !self.has_held_server() || !self.raft.policy().is_weak() {
            self.apply_holds.nobody_writes = None;
            return;
        }
        let now = self.now;
        let (since, said) = self.apply_holds.nobody_writes.get_or_insert((now, None));
        if now < *since + SOMEBODY_SOON || said.is_some_and(|at| now < at + SAY_NOBODY) {
            return;
        }
        *said = Some(now);
        let policy = self.raft.policy().kind.name();
        self.log(
            Level::Warn,
            format!(
                "nobody may write: under commit.policy = {policy} only the leader's server does, which is this one; entries \
                 are kept from it (apply.paused, apply.delay, apply.until), and no other voter is Synced to lead instead. \
                 Here SET GLOBAL wsrep_provider_options = 'apply.paused=no; apply.delay=0; apply.until=none', or \
                 'commit.policy=quorum', under which every member writes; or `lockstep promote` a replica that has caught up"
            ),
        );
    }

    /// Whether the server stands where somebody wants it to, until they say otherwise: no delay ends that.
    pub(crate) fn stands_for_good(&self) -> bool {
        self.gate().paused
            || matches!(self.apply_holds.shut, Some((Why::Until, _)))
            || self.connection.is_primary() && matches!(self.would_shut(), Some(Why::Until))
    }

    /// Why the gate would shut in front of an entry that were placed now, if it would.
    fn would_shut(&self) -> Option<Why> {
        self.why_shut(self.deliverer.delivered() + 1, self.wall())
    }

    /// Why the gate is shut in front of this seqno, placed at this time, if it is.
    fn why_shut(&self, seqno: Seqno, time: Micros) -> Option<Why> {
        let gate = self.gate();
        let behind = match gate.until {
            None => false,
            Some(Until::Seqno(end)) => seqno > end,
            Some(Until::Gtid(end)) => end.uuid != self.raft.tail_state().history || seqno > end.seqno,
            Some(Until::Time(end)) => time > end,
        };
        let due = time.saturating_add(gate.delay.as_micros() as Micros);
        if gate.paused {
            Some(Why::Paused)
        } else if behind {
            Some(Why::Until)
        } else {
            (!gate.delay.is_zero() && due > self.wall()).then_some(Why::Young(due))
        }
    }

    /// The options may have changed.
    pub(super) fn set_applying(&mut self) {
        if self.apply_holds.order != self.tuning.apply_order {
            self.apply_holds.order = self.tuning.apply_order;
            self.log(Level::Info, format!("apply.order is {} from now on", self.apply_holds.order.name()));
            self.apply_holds.floor = self.deliverer.delivered();
            self.apply_holds.last.clear();
        }
        // What waits in front of a gate that stood open goes first; a shut one does not open for another reason.
        self.apply_holds.own_first = self.is_held_back() && !self.apply_holds.is_shut();
    }

    /// Whether the gate is shut in front of this entry, the next one.
    pub(super) fn stands_before(&mut self, entry: &Entry) -> bool {
        self.apply_holds.own_first &= !self.slots.is_empty() || !self.large.is_empty();
        if !self.has_held_server() || self.apply_holds.own_first {
            return false;
        }
        // What takes no seqno, and what the database has; and the first view of all, a founder's own, without which its
        // server never gets on its feet.
        if entry.seqno <= self.deliverer.delivered() || !self.shown {
            return false;
        }
        let Some(why) = self.why_shut(entry.seqno, entry.time) else { return false };
        self.apply_holds.shut = Some((why, entry.time));
        true
    }

    /// A round of the feed begins.
    pub(super) fn open_gate(&mut self) {
        self.apply_holds.stood = self.apply_holds.shut.take();
    }

    /// It ends, and has not come to where the gate is: entries are being read from the log, or were too many for one
    /// round. Nothing has changed, or the member would be Synced for a moment, again and again.
    pub(super) fn not_at_gate_yet(&mut self) {
        if self.is_held_back() {
            self.apply_holds.shut = self.apply_holds.stood;
        }
    }

    /// Whether the time of `apply.until` is over so recently that entries from before it may come yet, which the server
    /// is to have.
    fn may_be_on_the_way(&self) -> bool {
        let wall = self.wall();
        matches!(self.gate().until, Some(Until::Time(end)) if wall > end && wall <= end.saturating_add(ON_THE_WAY))
            && !self.gate().paused
    }

    /// A round of the feed has ended, `at_end`: with all that there is. What stands for good is said, also while there is
    /// nothing that could stand; of a delay, that it is in force.
    pub(super) fn tell_of_gate(&mut self, at_end: bool) {
        let idle = at_end && self.shown && self.has_held_server() && !self.apply_holds.own_first;
        let shut = self.apply_holds.shut.map(|(why, _)| why);
        let why = shut.or_else(|| self.would_shut().filter(|_| idle && !self.may_be_on_the_way()));
        let seqno = self.deliverer.delivered();
        let known = match (why, self.apply_holds.told) {
            (None, told) => told.is_none() || self.is_held_back(),
            (Some(Why::Until), Some((Why::Until, at))) => at == seqno,
            (Some(why), Some((told, _))) => std::mem::discriminant(&why) == std::mem::discriminant(&told),
            (Some(_), None) => false,
        };
        if known {
            return;
        }
        self.apply_holds.told = why.map(|why| (why, seqno));
        let (level, text) = match why {
            None => (Level::Info, format!("nothing is kept from the server any more, from seqno {seqno} on")),
            Some(Why::Paused) => (
                Level::Info,
                format!(
                    "apply.paused: the server stands at seqno {seqno}; entries are received, kept and acknowledged all \
                     the same"
                ),
            ),
            Some(Why::Young(_)) => (
                Level::Info,
                format!(
                    "apply.delay: the server gets entries when they are {} s old",
                    self.gate().delay.as_secs_f64()
                ),
            ),
            Some(Why::Until) => match self.gate().until {
                Some(Until::Gtid(gtid)) if gtid.uuid != self.raft.tail_state().history => (
                    Level::Warn,
                    format!(
                        "apply.until is of another history ({}), so that nobody can say where it is in this one ({}): \
                         the server stands at seqno {seqno}",
                        gtid.uuid,
                        self.raft.tail_state().history
                    ),
                ),
                _ => (
                    Level::Info,
                    format!(
                        "apply.until: the server stands at seqno {seqno}, and gets no more until apply.until is changed"
                    ),
                ),
            },
        };
        self.log(level, text);
    }

    /// Whether a write-set of this member's server can have its place soon: one that comes once the gate is shut would
    /// wait as long as the entries before it.
    pub(super) fn takes_own(&self) -> bool {
        !self.is_held_back() || self.apply_holds.own_first
    }

    /// When the gate is due to open. Where it is due already, something else is waited for: the majority, or room in the
    /// queue of deliveries.
    pub(super) fn gate_due(&self) -> Option<Micros> {
        match self.apply_holds.shut {
            Some((Why::Young(due), _)) if due > self.wall() => {
                Some(self.now.saturating_add(due - self.wall()))
            }
            _ => None,
        }
    }

    /// So many bytes are in the log now. What this member's server has not got stays in it without bound.
    pub(crate) fn log_takes(&mut self, bytes: u64) {
        let limit = self.tuning.log_max_bytes;
        let said = self.apply_holds.said_grows.is_some_and(|at| self.now < at + SAY_GROWS_EVERY);
        if bytes <= limit || said || !self.apply_holds.is_shut() {
            return;
        }
        self.apply_holds.said_grows = Some(self.now);
        let text = format!(
            "the log takes {} MiB, more than log.max_size ({} MiB), for it holds all that is kept from this member's server \
             (apply.paused, apply.delay, apply.until), and goes on growing: let the server have it before the disk is full",
            bytes >> 20,
            limit >> 20
        );
        self.log(Level::Warn, text);
    }

    /// How long ago the entry at the gate was placed in the log, in seconds.
    pub(crate) fn age_at_gate(&self) -> Option<f64> {
        let placed = self.apply_holds.shut?.1;
        Some(self.wall().saturating_sub(placed) as f64 / 1e6)
    }

    /// Of an entry that goes to the appliers.
    pub(super) fn parent(&mut self, seqno: Seqno, set: &WriteSet, depends_on: Seqno) -> Seqno {
        let finished = self.finished();
        self.apply_holds.depends_on(seqno, set, depends_on, finished)
    }
}

#[cfg(test)]
#[path = "apply_hold_tests.rs"]
mod tests;
