//! Failure detection: the length of a leader timeout, and whether this member itself is fit to lead.
//!
//! A leader may answer the network and still be useless, because its disk or database hangs: its log writes do not end,
//! or its server finishes nothing. Other members cannot see that, so the leader checks itself and hands over leadership
//! while it can. Slowness is no reason. Leadership moves only if nothing at all has ended for long and another member
//! has made progress where this one has not. It does not move for a backup's lock, since the server is Desynced then,
//! nor for a long DDL statement, which delays all databases alike.

use crate::member::leadership::leader_slowness::LeaderSlowness;
use crate::member::{Level, Member, Micros};
use lockstep_core::{MemberId, Seqno};
use std::collections::VecDeque;

/// An election timeout is at least this many round trips.
const ROUND_TRIPS: Micros = 10;
/// No measurement makes it longer than this.
const TIMEOUT_MAX: Micros = 6_000_000;
/// The leader timeout is at least this many times the usual silence beyond a heartbeat,
const SILENCE_FACTOR: Micros = 10;
/// but at most this many election timeouts. A randomized timeout ends by twice that, before a member takes itself to be
/// cut off.
const TIMEOUTS_MAX: Micros = 2;
/// When to retry if no member took over.
const RETRY_AFTER: Micros = 5_000_000;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct FailureDetector {
    /// Writes that the disk has not finished: ticket, and since when.
    writes: VecDeque<(u64, Micros)>,
    /// The seqno that the database had finished at the last check, and when that last advanced or nothing was pending.
    finished: Seqno,
    moved_at: Micros,
    tried_at: Option<Micros>,
    /// The leader that `slowness` describes, perhaps this member, and when it was last in contact.
    leader: Option<(MemberId, Micros)>,
    slowness: LeaderSlowness,
}

impl Member {
    /// The shortest of the latest round trips to a peer.
    pub(crate) fn on_rtt(&mut self, id: MemberId, rtt: Micros) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.rtt = Some(rtt);
        }
    }

    /// The round trip to a peer, once measured. Raft's own measure is the time to an answer, which includes the time in
    /// which a member was away or starting.
    pub(crate) fn rtt_to(&self, id: &MemberId) -> Option<Micros> {
        self.peers.get(id)?.rtt
    }

    /// Adapts the election timeout to the round trips that an election needs: to the leader, and to the nearest other
    /// voters that complete a majority. A distant member lengthens nobody's timeout.
    pub(in crate::member) fn adapt_timing(&mut self) {
        let micros = |time: std::time::Duration| time.as_micros() as Micros;
        let membership = self.raft.membership();
        let mut rtts: Vec<Micros> = membership
            .voters()
            .filter(|id| *id != self.me.id)
            .filter_map(|id| self.peers.get(&id)?.rtt)
            .collect();
        rtts.sort_unstable();
        let others =
            membership.majority() - usize::from(membership.is_voter(&self.me.id)).min(membership.majority());
        let nearest = others.checked_sub(1).and_then(|at| rtts.get(at.min(rtts.len().checked_sub(1)?)));
        let leader = self.raft.leader().and_then(|id| self.peers.get(&id)?.rtt);
        let rtt = nearest.copied().max(leader).unwrap_or(0);
        let timeout = micros(self.tuning.election_timeout).max((ROUND_TRIPS * rtt).min(TIMEOUT_MAX));
        self.raft.set_timing(micros(self.tuning.heartbeat), timeout);
        let slowness = self
            .failure_detector
            .slowness
            .usual_silence(self.now)
            .saturating_sub(micros(self.tuning.heartbeat));
        self.raft.set_leader_timeout((SILENCE_FACTOR * slowness).min(TIMEOUTS_MAX * timeout));
        let farthest = self.peers.values().filter_map(|peer| peer.rtt).max();
        self.raft.set_longest_rtt(farthest.unwrap_or(0).min(TIMEOUT_MAX));
    }

    /// A Raft message has arrived, or a round of this member began; if it is the leader's, records the silence before
    /// it. A leader acts at each heartbeat, so its own idle time counts the same way.
    pub(in crate::member) fn on_leader_contact(&mut self, from: MemberId) {
        if self.raft.leader() != Some(from) {
            return;
        }
        let (now, detector) = (self.now, &mut self.failure_detector);
        match detector.leader {
            Some((leader, at)) if leader == from => detector.slowness.record(now, now.saturating_sub(at)),
            _ => detector.slowness = LeaderSlowness::default(),
        }
        detector.leader = Some((from, now));
    }

    /// A log write goes to the disk.
    pub(in crate::member) fn disk_write_begun(&mut self, ticket: u64) {
        self.failure_detector.writes.push_back((ticket, self.now));
    }

    /// All writes up to this one are done.
    pub(in crate::member) fn disk_write_done(&mut self, ticket: u64) {
        while self.failure_detector.writes.front().is_some_and(|(first, _)| *first <= ticket) {
            self.failure_detector.writes.pop_front();
        }
    }

    /// Checks whether the database makes progress.
    pub(in crate::member) fn check_database(&mut self) {
        let finished = self.finished();
        // Desynced by the user, for example for a backup, or donating: the database may stand still.
        let may_stand = self.desyncs > 0
            || !self.donations.is_empty()
            || !self.deliverer.is_running()
            || self.apply_holds.is_holding();
        if finished != self.failure_detector.finished || finished >= self.deliverer.delivered() || may_stand {
            self.failure_detector.finished = finished;
            self.failure_detector.moved_at = self.now;
        }
    }

    /// A leader's check of itself.
    pub(in crate::member) fn check_own_fitness(&mut self) {
        let micros = |time: std::time::Duration| time.as_micros() as Micros;
        let (disk, apply) = (micros(self.tuning.disk_timeout), micros(self.tuning.apply_timeout));
        let disk_since = self.failure_detector.writes.front().map_or(self.now, |(_, since)| *since);
        let disk_for = self.now.saturating_sub(disk_since);
        let apply_for = self.now.saturating_sub(self.failure_detector.moved_at);
        let (why, ahead): (String, bool) = if disk > 0 && disk_for > disk {
            (
                format!(
                    "this member's disk has not finished a write of the log for {} s",
                    disk_for / 1_000_000
                ),
                false,
            )
        } else if apply > 0 && apply_for > apply {
            (format!("this member's database has finished nothing for {} s", apply_for / 1_000_000), true)
        } else {
            return;
        };
        if self.raft.is_transferring_leadership()
            || self.failure_detector.tried_at.is_some_and(|at| self.now < at + RETRY_AFTER)
        {
            return;
        }
        let Some(successor) = self.successor(ahead) else { return };
        self.failure_detector.tried_at = Some(self.now);
        let text = format!("{why}: handing over leadership to {}", self.name_of(&successor));
        self.log(Level::Warn, text);
        self.step_down(successor);
    }

    /// The member that should lead instead: fit to lead, and its disk has advanced, or its database is ahead of this
    /// one's.
    fn successor(&self, database_ahead: bool) -> Option<MemberId> {
        let (finished, persisted) = (self.finished(), self.raft.persisted());
        let fit = |id: &MemberId| {
            let Some(health) = self.peers.get(id).and_then(|peer| peer.health) else { return false };
            self.unfit_to_lead(id).is_none()
                && match database_ahead {
                    true => health.finished > finished,
                    false => self.raft.matched(id) > persisted,
                }
        };
        self.best_successor(fit)
    }
}

#[cfg(test)]
#[path = "failure_detector_tests.rs"]
mod tests;
