//! Leader placement: if one member proposes nearly everything, the leader transfers leadership to it. Its proposals then
//! need no round trip to another leader.
//!
//! During a transfer nothing is appended for some round trips, so it must pay off. The same member must propose nearly
//! everything in several windows in a row. A new leader waits before its first transfer, and the wait doubles each time
//! it has to transfer leadership again soon after it came back.
//!
//! Once in a window the leader reads the number of write-sets of each member from the log's counters. The size of a
//! write-set does not matter: even one in a thousand pieces is one commit, and a transfer saves it one round trip.

use crate::raft::{Failpoint, Raft};
use crate::types::*;
use std::collections::BTreeMap;

/// The writer must be the same for this number of windows in a row.
pub const WINDOWS: u32 = 5;
/// The writer's least share of all proposals, in percent.
pub const SHARE: u64 = 90;
/// The writer's least number of proposals in each window. It is low, because a commit may take a long round trip.
const LEAST: u64 = 3;
/// A leader transfers leadership only after this number of windows in its role.
pub const REST: u64 = 10;
/// The same after an operator's command made it the leader.
pub const REST_AFTER_COMMAND: u64 = 60;
/// The longest wait, in windows.
const REST_MOST: u64 = 600;
/// A transfer within this many waits after the last one was too early, so the wait doubles.
const SOON: u64 = 8;
/// A writer that lacks more entries than this has not caught up.
const NEAR_ENOUGH: Index = 64;

/// Measures which member writes. Each member has one, and it counts only while that member leads.
#[derive(Clone, Debug)]
pub struct WriterShare {
    /// The length of a window, µs.
    window: Micros,
    /// The last term in which this member led.
    term: Term,
    /// A window has begun. False while this member does not lead, and if only the leader may write.
    counts: bool,
    /// The beginning of the present window, and the numbers of that time.
    since: Micros,
    written: BTreeMap<MemberId, u64>,
    /// The member that has written nearly everything, for how many windows in a row, and its share of the last, in percent.
    writer: Option<(MemberId, u32, u64)>,
    rest: Micros,
    rests_until: Micros,
    moved_at: Option<Micros>,
}

impl WriterShare {
    /// Measures in windows of this length, µs.
    pub fn new(window: Micros) -> WriterShare {
        WriterShare {
            window,
            term: 0,
            counts: false,
            since: 0,
            written: BTreeMap::new(),
            writer: None,
            rest: REST * window,
            rests_until: 0,
            moved_at: None,
        }
    }

    /// Forgets the present window.
    fn forget(&mut self) {
        self.counts = false;
        self.writer = None;
        self.written.clear();
    }

    /// The member to which this leader should transfer leadership, and its share of all proposals in percent. The caller
    /// checks whether that member's server is fit.
    pub fn look(&mut self, raft: &Raft, now: Micros) -> Option<(MemberId, u64)> {
        let weak = raft.policy().is_weak();
        if !raft.has_committed_in_term() {
            self.forget();
            return None;
        }
        if self.term != raft.term() {
            self.term = raft.term();
            self.forget();
            // If a view lists this member first before its term, an operator's command made it the leader. Under a weak
            // policy every leader begins with such a view.
            let first = raft.tail_state().view.members.first();
            let commanded = !weak && first.is_some_and(|first| first.id == raft.id());
            let rest = if commanded { self.rest.max(REST_AFTER_COMMAND * self.window) } else { self.rest };
            self.rests_until = now + rest;
        }
        if weak {
            self.forget();
            return None;
        }
        if !self.counts {
            self.counts = true;
            self.begin(raft, now);
        } else if now >= self.since + self.window {
            self.count(raft);
            self.begin(raft, now);
        }
        let (writer, windows, share) = self.writer?;
        let rested = now >= self.rests_until || raft.failpoints().is_active(Failpoint::FollowsAtOnce);
        let due = windows >= WINDOWS && rested;
        (due && may_follow(raft, &writer, now)).then_some((writer, share))
    }

    /// Leadership has been handed over to the writer.
    pub fn moved(&mut self, now: Micros) {
        let soon = self.moved_at.is_some_and(|at| now < at + SOON * self.rest);
        self.rest = if soon { (2 * self.rest).min(REST_MOST * self.window) } else { REST * self.window };
        self.moved_at = Some(now);
        self.rests_until = now + self.rest;
        self.writer = None;
    }

    fn begin(&mut self, raft: &Raft, now: Micros) {
        self.since = now;
        self.written.clone_from(raft.written_by());
    }

    /// A window ends.
    fn count(&mut self, raft: &Raft) {
        let (mut all, mut most) = (0, (0, None));
        for (id, written) in raft.written_by() {
            let count = written.saturating_sub(self.written.get(id).copied().unwrap_or(0));
            all += count;
            if count > most.0 {
                most = (count, Some(*id));
            }
        }
        let nearly_all = most.0 >= LEAST && most.0 * 100 >= all * SHARE;
        let now = most.1.filter(|id| nearly_all && *id != raft.id());
        self.writer = now.map(|id| {
            let before =
                self.writer.filter(|(writer, ..)| *writer == id).map_or(0, |(_, windows, _)| windows);
            (id, before.saturating_add(1), most.0 * 100 / all)
        });
    }
}

/// Whether it can lead at once, as far as Raft knows.
fn may_follow(raft: &Raft, id: &MemberId, now: Micros) -> bool {
    let membership = raft.membership();
    let settled = raft.tail_state().membership_index <= raft.commit() && !raft.is_transferring_leadership();
    let voter = membership.get(id).is_some_and(|member| member.role.votes() && !member.arbitrator);
    let near = raft.matched(id) + NEAR_ENOUGH >= raft.last_index();
    let timeout = raft.election_timeout() / 2 + 2 * raft.rtt(id).unwrap_or(0);
    let responsive = raft.last_answer(id).is_some_and(|at| now.saturating_sub(at) < timeout);
    settled && voter && near && responsive
}
