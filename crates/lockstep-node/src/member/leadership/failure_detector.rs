//! Failure detection: the length of a leader timeout, and whether this member itself hangs.
//!
//! A leader may answer the network and still be useless, because its disk or database hangs: its log writes do not end,
//! or its server finishes nothing. Other members cannot see that, so the leader checks itself and hands over leadership
//! while it can. Slowness is no reason. Leadership moves only if nothing at all has ended for long and another member
//! has made progress where this one has not. It does not move for a backup's lock, since the server is Desynced then,
//! nor for a long DDL statement, which delays all databases alike.

use crate::api::Tuning;
use crate::member::leadership::leader_slowness::LeaderSlowness;
use lockstep_core::{MemberId, Micros, Seqno};
use std::time::Duration;

/// An election timeout is at least this many round trips.
const ROUND_TRIPS: Micros = 10;
/// No measurement makes it longer than this.
const TIMEOUT_MAX: Micros = 6_000_000;
/// The leader timeout is at least this many times the usual silence beyond a heartbeat,
const SILENCE_FACTOR: Micros = 10;
/// but at most this many election timeouts. A randomized timeout ends by twice that, before a member takes itself to be
/// cut off.
const TIMEOUTS_MAX: Micros = 2;
/// The most that the time between two checks of the database counts: if this process did not run, the database did not
/// either.
const INTERVAL_MAX: Micros = 1_000_000;
/// When to retry if no member took over.
const RETRY_AFTER: Micros = 5_000_000;

/// The round trips of this member's connections, as far as they are measured.
#[derive(Clone, Debug, Default)]
pub(in crate::member) struct Network {
    /// To the other voters.
    pub(in crate::member) voters: Vec<Micros>,
    /// How many other voters complete a majority.
    pub(in crate::member) others_needed: usize,
    pub(in crate::member) leader: Option<Micros>,
    pub(in crate::member) farthest: Option<Micros>,
}

/// Raft's timeouts, µs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::member) struct Timing {
    pub(in crate::member) heartbeat: Micros,
    pub(in crate::member) election_timeout: Micros,
    pub(in crate::member) leader_timeout: Micros,
    pub(in crate::member) longest_rtt: Micros,
}

/// A hang of the disk or the database, and its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::member) enum Hang {
    Disk(Micros),
    Database(Micros),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct FailureDetector {
    /// The seqno that the database had finished at the last check, and when that last advanced or nothing was pending.
    finished: Seqno,
    moved_at: Micros,
    /// When the database was last checked.
    checked_at: Micros,
    tried_at: Option<Micros>,
    /// The leader that `slowness` describes, perhaps this member, and when it was last in contact.
    leader: Option<(MemberId, Micros)>,
    slowness: LeaderSlowness,
}

fn micros(time: Duration) -> Micros {
    time.as_micros() as Micros
}

impl FailureDetector {
    /// Adapts the election timeout to the round trips that an election needs: to the leader, and to the nearest other
    /// voters that complete a majority. A distant member lengthens nobody's timeout.
    pub(in crate::member) fn timing(&mut self, now: Micros, tuning: &Tuning, network: &Network) -> Timing {
        let mut rtts = network.voters.clone();
        rtts.sort_unstable();
        let last = rtts.len().checked_sub(1);
        let nearest = network.others_needed.checked_sub(1).and_then(|at| rtts.get(at.min(last?)));
        let rtt = nearest.copied().max(network.leader).unwrap_or(0);
        let election_timeout = micros(tuning.election_timeout).max((ROUND_TRIPS * rtt).min(TIMEOUT_MAX));
        let heartbeat = micros(tuning.heartbeat);
        let slowness = self.slowness.usual_silence(now).saturating_sub(heartbeat);
        Timing {
            heartbeat,
            election_timeout,
            leader_timeout: (SILENCE_FACTOR * slowness).min(TIMEOUTS_MAX * election_timeout),
            longest_rtt: network.farthest.unwrap_or(0).min(TIMEOUT_MAX),
        }
    }

    /// Records the silence before a contact of the leader. A leader acts at each heartbeat, so its own idle time counts
    /// the same way.
    pub(in crate::member) fn leader_contact(&mut self, now: Micros, leader: MemberId) {
        match self.leader {
            Some((known, at)) if known == leader => self.slowness.record(now, now.saturating_sub(at)),
            _ => self.slowness = LeaderSlowness::default(),
        }
        self.leader = Some((leader, now));
    }

    /// Notes whether the database makes progress. `may_stand`: it has finished all, or may stand still.
    pub(in crate::member) fn note_database(&mut self, now: Micros, finished: Seqno, may_stand: bool) {
        let interval = now.saturating_sub(std::mem::replace(&mut self.checked_at, now));
        self.moved_at += interval.saturating_sub(INTERVAL_MAX);
        if finished != self.finished || may_stand {
            self.finished = finished;
            self.moved_at = now;
        }
    }

    /// The hang that has lasted longer than its timeout; a timeout of 0 disables the check. `disk_for`: how long the disk
    /// has finished no write.
    pub(in crate::member) fn hang(&self, now: Micros, tuning: &Tuning, disk_for: Micros) -> Option<Hang> {
        let (disk, apply) = (micros(tuning.disk_timeout), micros(tuning.apply_timeout));
        let apply_for = now.saturating_sub(self.moved_at);
        if disk > 0 && disk_for > disk {
            Some(Hang::Disk(disk_for))
        } else if apply > 0 && apply_for > apply {
            Some(Hang::Database(apply_for))
        } else {
            None
        }
    }

    /// A hand-over begins.
    pub(in crate::member) fn tried(&mut self, now: Micros) {
        self.tried_at = Some(now);
    }

    /// Whether a hand-over began so recently that it may still succeed.
    pub(in crate::member) fn tried_of_late(&self, now: Micros) -> bool {
        self.tried_at.is_some_and(|at| now < at + RETRY_AFTER)
    }
}

#[cfg(test)]
#[path = "failure_detector_tests.rs"]
mod tests;
