//! The cluster's committed position, whichever members wrote: `GET /agreed`, for clients that wait until members have
//! reached it.
//!
//! A member's own commit index does not say that: an entry may be committed elsewhere before this member learns of it.
//! So the query works like a causal read. It is answered once the own log is committed up to the read index; the server
//! need not have the entries.

use lockstep_core::raft::Raft;
use lockstep_core::{Gtid, Index, Micros};

/// When a query is answered at the latest: the HTTP request waits for 5 s.
const TIMEOUT: Micros = 3_000_000;
/// How many queries may be under way.
const QUERIES_MAX: usize = 64;

/// A query under way.
#[derive(Debug)]
struct PositionQuery {
    token: u64,
    /// The context of the question; `None` until a leader is known to ask.
    context: Option<u64>,
    index: Option<Index>,
    deadline: Micros,
}

/// See the module.
#[derive(Debug, Default)]
pub(in crate::member) struct PositionQueries {
    queries: Vec<PositionQuery>,
}

impl PositionQueries {
    /// Begins a query. `primary`: this member is in a primary component.
    ///
    /// # Errors
    /// The refusal.
    pub(in crate::member) fn begin(
        &mut self,
        raft: &mut Raft,
        now: Micros,
        primary: bool,
        token: u64,
    ) -> Result<(), &'static str> {
        if !primary {
            return Err("this member is not in a primary component: it cannot learn the committed position");
        }
        if self.queries.len() >= QUERIES_MAX {
            return Err("too many queries at a time: try again soon");
        }
        let (context, deadline) = (Some(raft.read_index(now)), now + TIMEOUT);
        self.queries.push(PositionQuery { token, context, index: None, deadline });
        Ok(())
    }

    /// The leader's answer: an index that must be committed here, or `None` if there was no leader to answer.
    pub(in crate::member) fn answered(
        &mut self,
        raft: &mut Raft,
        now: Micros,
        context: u64,
        index: Option<Index>,
    ) {
        for query in self.queries.iter_mut().filter(|query| query.context == Some(context)) {
            query.index = index;
            if index.is_none() {
                query.context = None;
            }
        }
        self.ask_again(raft, now);
    }

    /// Asks the leader about the queries whose question failed, as soon as there is one.
    pub(in crate::member) fn ask_again(&mut self, raft: &mut Raft, now: Micros) {
        if raft.leader().is_none() {
            return;
        }
        for query in self.queries.iter_mut().filter(|query| query.context.is_none()) {
            query.context = Some(raft.read_index(now));
        }
    }

    /// Removes the queries that have a result, and returns their tokens and results.
    pub(in crate::member) fn take_results(
        &mut self,
        raft: &Raft,
        now: Micros,
        primary: bool,
    ) -> Vec<(u64, Result<Gtid, String>)> {
        let mut results = Vec::new();
        if self.queries.is_empty() {
            return results;
        }
        let state = raft.committed_state();
        let gtid = Gtid { uuid: state.history, seqno: state.seqno };
        self.queries.retain(|query| {
            let result = match query.index {
                Some(index) if index <= raft.commit() => Ok(gtid),
                _ if !primary => Err("the majority is lost".to_owned()),
                _ if now < query.deadline => return true,
                None => {
                    Err("no leader has answered: `lockstep status` shows the connected members".to_owned())
                }
                Some(_) => Err("the entries of the leader's log are not committed yet".to_owned()),
            };
            results.push((query.token, result));
            false
        });
        results
    }
}

#[cfg(test)]
mod tests {
    use crate::api::{ApplyHold, Tuning};
    use crate::member::harness::Lab;

    #[test]
    fn committed_position_query_on_stale_member_is_current() {
        let mut lab = Lab::new(3, &Tuning::default());
        let seqno = |lab: &Lab, at: usize| lab.nodes[at].member.ctx.raft.committed_state().seqno;
        // A follower writes and knows of the commit first; n3 and the leader do not yet.
        for asked in [2, 0, 1] {
            let before = seqno(&lab, asked);
            let _write = lab.write(1);
            lab.until("n2 knows", 100_000, |lab| seqno(lab, 1) > before);
            let due = seqno(&lab, 1);
            let token = lab.query_committed_position(asked);
            assert_eq!(lab.committed_position(token).map(|gtid| gtid.seqno), Ok(due), "n{}", asked + 1);
        }
        // The server may be held back meanwhile.
        let paused = ApplyHold { paused: true, ..ApplyHold::default() };
        lab.nodes[2].member.set_tuning(Tuning { apply_hold: paused, ..Tuning::default() });
        lab.run(50_000);
        let _write = lab.write(0);
        lab.until("n1 knows", 100_000, |lab| seqno(lab, 0) > seqno(lab, 2));
        let (due, token) = (seqno(&lab, 0), lab.query_committed_position(2));
        assert_eq!(lab.committed_position(token).map(|gtid| gtid.seqno), Ok(due));
    }

    #[test]
    fn committed_position_query_without_leader_fails() {
        let mut lab = Lab::new(3, &Tuning::default());
        // n3 does not know yet that it is alone.
        lab.nodes[0].frozen = true;
        lab.nodes[1].frozen = true;
        let token = lab.query_committed_position(2);
        let began = lab.now;
        assert!(lab.committed_position(token).is_err());
        assert!(lab.now - began <= super::TIMEOUT + 300_000, "{} us", lab.now - began);
        lab.cut(2, true);
        lab.run(500_000);
        let (began, token) = (lab.now, lab.query_committed_position(2));
        assert!(lab.committed_position(token).unwrap_err().contains("primary"));
        assert!(lab.now - began < 10_000);
    }
}
