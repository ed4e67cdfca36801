use crate::api::{SubmitOutcome, Tuning, Vote, VoteReply};
use crate::member::harness::Lab;
use crate::reply::Reply;
use lockstep_core::Seqno;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The error that the servers report.
const ERROR: u64 = 1051;

fn fails(lab: &mut Lab, at: usize, seqno: Seqno) -> Arc<Reply<Vote>> {
    let reply = Reply::new();
    lab.nodes[at].member.vote(seqno, ERROR, "no such table".into(), VoteReply(reply.clone()));
    reply
}

/// The others have decided, and this member's log has the outcome, when its own server reports the same error. The
/// report arrives in the round that would have examined the outcome.
#[test]
fn failure_reported_in_round_of_outcome_agrees() {
    for reported in [true, false] {
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

        // As if the outcome had not been examined yet.
        let member = &mut lab.nodes[0].member;
        let (index, _) = member.recovery.votes.outcomes[&seqno];
        member.recovery.votes.examined = index - 1;
        member.recovery.votes.failures.clear();
        if reported {
            let own = fails(&mut lab, 0, seqno);
            assert_eq!(own.wait(Duration::ZERO), Some(Vote::Agreed));
        }
        let member = &mut lab.nodes[0].member;
        let own = member.standing();
        member.recovery.votes.step(&mut member.ctx, own);
        lab.nodes[0].finished.store(seqno, Ordering::Release);
        lab.run(100_000);
        assert_eq!(lab.logged("is inconsistent with group"), !reported);
    }
}
