use super::Votes;
use crate::api::{SubmitOutcome, Tuning, Vote, VoteReply};
use crate::member::harness::Lab;
use crate::reply::Reply;
use crate::testing::write_op;
use lockstep_core::{Entry, EntryHeader, Seqno};
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

/// The log as opened ends with entries that are not committed. Outcomes at their indices may come with other entries.
#[test]
fn outcomes_of_entries_that_replace_open_ones_are_examined() {
    let op = |truncate_from, index, term| {
        let mut op = write_op(index, 100);
        op.entries[0] = Entry::new(EntryHeader { term, ..*op.entries[0] }, &[]);
        op.truncate_from = truncate_from;
        op
    };
    let mut votes = Votes::new(5_000, 5);
    votes.follow(&op(None, 5_001, 5));
    assert_eq!(votes.examined, 5_000);
    votes.follow(&op(Some(4_001), 4_001, 6));
    assert_eq!(votes.examined, 4_000);
    // Damage has taken the end, so nothing is truncated.
    let mut votes = Votes::new(5_000, 5);
    votes.follow(&op(None, 101, 5));
    assert_eq!(votes.examined, 5_000, "the lost entry, again");
    votes.follow(&op(None, 102, 6));
    assert_eq!(votes.examined, 101);
}
