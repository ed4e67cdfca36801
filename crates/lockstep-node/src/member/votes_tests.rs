use super::super::harness::Lab;
use crate::api::{SubmitOutcome, Tuning, Vote, VoteReply};
use crate::reply::Reply;
use lockstep_core::Seqno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the servers have found.
const ERROR: u64 = 1051;

fn fails(lab: &mut Lab, at: usize, seqno: Seqno) -> Arc<Reply<Vote>> {
    let reply = Reply::new();
    lab.nodes[at].engine.vote(seqno, ERROR, "no such table".into(), VoteReply(reply.clone()));
    reply
}

/// The others have decided, and this member's log says so, when its server finds the same. That is heard in the round that
/// would have looked at the outcome.
#[test]
fn a_failure_that_is_heard_in_the_round_of_its_outcome_is_the_same_as_the_others() {
    for heard in [true, false] {
        let mut lab = Lab::new(3, &Tuning::default());
        lab.until("there is a leader", 5_000_000, |lab| (0..3).all(|at| lab.leader(at).is_some()));
        let write = lab.write(0);
        lab.run(200_000);
        let Some(SubmitOutcome::Ordered(ordered)) = write.wait_for(Duration::ZERO) else {
            panic!("not ordered")
        };
        let seqno = ordered.seqno;
        lab.nodes[0].finished.store(seqno - 1, Ordering::Release);
        let others = [fails(&mut lab, 1, seqno), fails(&mut lab, 2, seqno)];
        lab.run(500_000);
        assert!(others.iter().all(|reply| reply.wait(Duration::ZERO) == Some(Vote::Agreed)));

        // As if it had not looked at it yet.
        let engine = &mut lab.nodes[0].engine;
        let (index, _) = engine.votes.outcomes[&seqno];
        engine.votes.seen = index - 1;
        engine.votes.odd.clear();
        if heard {
            let own = fails(&mut lab, 0, seqno);
            assert_eq!(own.wait(Duration::ZERO), Some(Vote::Agreed));
        }
        lab.nodes[0].engine.votes_step();
        lab.nodes[0].finished.store(seqno, Ordering::Release);
        lab.run(100_000);
        assert_eq!(lab.said("is inconsistent with group"), !heard);
    }
}
