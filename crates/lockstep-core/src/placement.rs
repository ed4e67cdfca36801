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

/// So many windows in a row the writer must be the same.
pub const WINDOWS: u32 = 5;
/// Of a hundred proposals it makes at least so many.
pub const SHARE: u64 = 90;
/// And at least so many in each window: a commit may take a long round trip.
const LEAST: u64 = 3;
/// A leader moves leadership only after so many windows in office.
pub const REST: u64 = 10;
/// After an operator has put it there, so many.
pub const REST_AFTER_COMMAND: u64 = 60;
/// The longest wait, in windows.
const REST_MOST: u64 = 600;
/// Whoever moves it again within so many of its rests has moved it too soon.
const SOON: u64 = 8;
/// A writer that lacks more entries than this has not caught up.
const NEAR_ENOUGH: Index = 64;

/// Watches who writes. One for each member; it counts only while that member leads.
#[derive(Clone, Debug)]
pub struct WriterShare {
    /// One window, µs.
    window: Micros,
    /// The last term in which this member has been seen to lead.
    term: Term,
    /// A window is counted; not while it does not lead, nor where nobody else may write.
    counts: bool,
    /// The present window began then, with these numbers.
    since: Micros,
    written: BTreeMap<MemberId, u64>,
    /// The member that has written nearly everything, for how many windows in a row, and its share of the last, in percent.
    writer: Option<(MemberId, u32, u64)>,
    rest: Micros,
    rests_until: Micros,
    moved_at: Option<Micros>,
}

impl WriterShare {
    /// With windows of this length, µs.
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

    /// Counts anew from now on.
    fn forget(&mut self) {
        self.counts = false;
        self.writer = None;
        self.written.clear();
    }

    /// Whom this member, as the leader, should let lead instead, and that one's share of all proposals in percent. The
    /// caller knows what the order does not: whether its server is fit.
    pub fn look(&mut self, order: &Raft, now: Micros) -> Option<(MemberId, u64)> {
        let weak = order.policy().is_weak();
        if !order.has_committed_in_term() {
            self.forget();
            return None;
        }
        if self.term != order.term() {
            self.term = order.term();
            self.forget();
            // A view that lists it first already when it comes to lead was made by a command to that end; but under a weak
            // policy every leader begins with one.
            let first = order.tail_state().view.members.first();
            let commanded = !weak && first.is_some_and(|first| first.id == order.id());
            let rest = if commanded { self.rest.max(REST_AFTER_COMMAND * self.window) } else { self.rest };
            self.rests_until = now + rest;
        }
        if weak {
            self.forget();
            return None;
        }
        if !self.counts {
            self.counts = true;
            self.begin(order, now);
        } else if now >= self.since + self.window {
            self.count(order);
            self.begin(order, now);
        }
        let (writer, windows, share) = self.writer?;
        let rested = now >= self.rests_until || order.failpoints().is_active(Failpoint::FollowsAtOnce);
        let due = windows >= WINDOWS && rested;
        (due && may_follow(order, &writer, now)).then_some((writer, share))
    }

    /// Leadership has been handed over to the writer.
    pub fn moved(&mut self, now: Micros) {
        let soon = self.moved_at.is_some_and(|at| now < at + SOON * self.rest);
        self.rest = if soon { (2 * self.rest).min(REST_MOST * self.window) } else { REST * self.window };
        self.moved_at = Some(now);
        self.rests_until = now + self.rest;
        self.writer = None;
    }

    fn begin(&mut self, order: &Raft, now: Micros) {
        self.since = now;
        self.written.clone_from(order.written_by());
    }

    /// A window ends.
    fn count(&mut self, order: &Raft) {
        let (mut all, mut most) = (0, (0, None));
        for (id, written) in order.written_by() {
            let count = written.saturating_sub(self.written.get(id).copied().unwrap_or(0));
            all += count;
            if count > most.0 {
                most = (count, Some(*id));
            }
        }
        let nearly_all = most.0 >= LEAST && most.0 * 100 >= all * SHARE;
        let now = most.1.filter(|id| nearly_all && *id != order.id());
        self.writer = now.map(|id| {
            let before =
                self.writer.filter(|(writer, ..)| *writer == id).map_or(0, |(_, windows, _)| windows);
            (id, before.saturating_add(1), most.0 * 100 / all)
        });
    }
}

/// Whether it can lead at once, as far as the order knows.
fn may_follow(order: &Raft, id: &MemberId, now: Micros) -> bool {
    let membership = order.membership();
    let settled =
        order.tail_state().membership_index <= order.commit() && !order.is_transferring_leadership();
    let voter = membership.get(id).is_some_and(|member| member.role.votes() && !member.arbitrator);
    let near = order.matched(id) + NEAR_ENOUGH >= order.last_index();
    let timeout = order.election_timeout() / 2 + 2 * order.rtt(id).unwrap_or(0);
    let responsive = order.last_answer(id).is_some_and(|at| now.saturating_sub(at) < timeout);
    settled && voter && near && responsive
}
