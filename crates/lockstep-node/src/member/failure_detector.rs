//! Failure detection: how long a silence is one, and whether this member itself is fit to lead.
//!
//! A leader that answers the network may be of no use all the same, because its disk or its database hangs: its log's
//! writes do not end, or its server finishes nothing. Others see nothing of that, so it looks at itself, and lets another
//! member lead while it still can. Being slow is no reason: only when nothing at all has ended for long, and another
//! member has done what this one has not. A backup's lock (the server is desynced then) or a long DDL statement, which
//! keeps all databases alike, moves nothing.

use super::leader_slowness::LeaderSlowness;
use super::{Level, Member, Micros};
use lockstep_core::{MemberId, Seqno};
use std::collections::VecDeque;

/// An election timeout is at least so many round trips.
const ROUND_TRIPS: Micros = 10;
/// And no measurement makes it longer than this.
const LONGEST: Micros = 6_000_000;
/// Nobody campaigns before so many times what the leader's words are usually late by have passed in silence,
const TURNS: Micros = 10;
/// but so many election timeouts are enough; to twice that, as ever, which is before a member takes itself for cut off.
const CROWDED: Micros = 2;
/// If nobody took over, it is tried again after so long.
const TRY_AGAIN: Micros = 5_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FailureDetector {
    /// Writes that the disk has not finished: ticket, and since when.
    writes: VecDeque<(u64, Micros)>,
    /// What the database had finished when it was last looked at, and when that had last moved, or nothing waited.
    finished: Seqno,
    moved_at: Micros,
    tried_at: Option<Micros>,
    /// The leader that `late` is about, perhaps this member, and when it spoke last.
    leader: Option<(MemberId, Micros)>,
    late: LeaderSlowness,
}

impl Member {
    /// The shortest of the latest round trips to a peer.
    pub(crate) fn measured(&mut self, id: MemberId, rtt: Micros) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.rtt = Some(rtt);
        }
    }

    /// The way to a peer, once it is measured. What the order measures is how soon a message is answered: it counts the
    /// time in which a member was away or started, too.
    pub(crate) fn way_to(&self, id: &MemberId) -> Option<Micros> {
        self.peers.get(id)?.rtt
    }

    /// The election timeout follows the way to those on whom an election depends: the leader, and the nearest others
    /// that make a majority. A member far away from all of them makes nobody wait longer.
    pub(super) fn adapt_timing(&mut self) {
        let micros = |time: std::time::Duration| time.as_micros() as Micros;
        let membership = self.raft.membership();
        let mut ways: Vec<Micros> = membership
            .voters()
            .filter(|id| *id != self.me.id)
            .filter_map(|id| self.peers.get(&id)?.rtt)
            .collect();
        ways.sort_unstable();
        let others =
            membership.majority() - usize::from(membership.is_voter(&self.me.id)).min(membership.majority());
        let nearest = others.checked_sub(1).and_then(|at| ways.get(at.min(ways.len().checked_sub(1)?)));
        let leader = self.raft.leader().and_then(|id| self.peers.get(&id)?.rtt);
        let way = nearest.copied().max(leader).unwrap_or(0);
        let timeout = micros(self.tuning.election_timeout).max((ROUND_TRIPS * way).min(LONGEST));
        self.raft.set_timing(micros(self.tuning.heartbeat), timeout);
        let late =
            self.failure_detector.late.usual_silence(self.now).saturating_sub(micros(self.tuning.heartbeat));
        self.raft.set_leader_timeout((TURNS * late).min(CROWDED * timeout));
        let farthest = self.peers.values().filter_map(|peer| peer.rtt).max();
        self.raft.set_longest_rtt(farthest.unwrap_or(0).min(LONGEST));
    }

    /// A message of the order has come, or this member has its turn: of the leader, who does something at each heartbeat,
    /// how long it had done nothing counts.
    pub(super) fn on_leader_contact(&mut self, from: MemberId) {
        if self.raft.leader() != Some(from) {
            return;
        }
        let (now, watch) = (self.now, &mut self.failure_detector);
        match watch.leader {
            Some((leader, at)) if leader == from => watch.late.heard(now, now.saturating_sub(at)),
            _ => watch.late = LeaderSlowness::default(),
        }
        watch.leader = Some((from, now));
    }

    /// A write of the log leaves for the disk.
    pub(super) fn disk_asked(&mut self, ticket: u64) {
        self.failure_detector.writes.push_back((ticket, self.now));
    }

    /// All writes up to this one are done.
    pub(super) fn disk_answered(&mut self, ticket: u64) {
        while self.failure_detector.writes.front().is_some_and(|(first, _)| *first <= ticket) {
            self.failure_detector.writes.pop_front();
        }
    }

    /// Looks whether the database gets on.
    pub(super) fn check_database(&mut self) {
        let finished = self.finished();
        // Desynced by the user, for a backup for one: it is meant to stand still. Donors stand still, too.
        let may_stand = self.desyncs > 0
            || !self.donations.is_empty()
            || !self.deliverer.is_running()
            || self.apply_holds.is_shut();
        if finished != self.failure_detector.finished || finished >= self.deliverer.delivered() || may_stand {
            self.failure_detector.finished = finished;
            self.failure_detector.moved_at = self.now;
        }
    }

    /// A leader's look at itself.
    pub(super) fn check_own_fitness(&mut self) {
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
            || self.failure_detector.tried_at.is_some_and(|at| self.now < at + TRY_AGAIN)
        {
            return;
        }
        let Some(heir) = self.successor(ahead) else { return };
        self.failure_detector.tried_at = Some(self.now);
        let text =
            format!("{why}: it answers the others, but should not lead; {} is to", self.name_of(&heir));
        self.log(Level::Warn, text);
        self.step_down(heir);
    }

    /// Who should lead instead of this member: of those that can, and whose own disk moves, or whose database is ahead of
    /// this one's.
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
