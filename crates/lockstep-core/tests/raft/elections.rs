//! Terms, votes, campaigns, handing over.

use crate::lines::*;
use crate::net::*;
use lockstep_core::message::Message;
use lockstep_core::raft::*;

fn vote_replies(net: &Net, from: usize) -> usize {
    let granted = |m: &Message| matches!(m, Message::VoteReply { granted: true, .. });
    net.wire.iter().filter(|(sender, _, m)| *sender == from && granted(m)).count()
}

/// A voter that answers before its vote is on disk, and dies, may vote twice in one term.
#[test]
fn vote_is_durable_before_it_is_answered() {
    let mut net = Net::new(3);
    net.node(2).slow_disk = true;
    net.isolate(3);
    let ask = Message::Vote { term: 5, last_index: 0, last_term: 0, transfer: false };
    net.deliver(1, 2, ask.clone());
    net.drain(2);
    assert_eq!(vote_replies(&net, 2), 0, "nothing is on disk yet");

    // It dies: nobody heard of the vote, so it may be given to another.
    net.crash(2);
    net.restart(2);
    assert_eq!(net.raft(2).term(), 0);
    net.heal();
    net.deliver(3, 2, ask.clone());
    net.drain(2);
    net.sync(2);
    net.drain(2);
    assert_eq!(vote_replies(&net, 2), 1);

    // From here on it is bound, also after another crash.
    net.wire.clear();
    net.crash(2);
    net.restart(2);
    assert_eq!(net.raft(2).term(), 5);
    net.deliver(1, 2, ask.clone());
    net.drain(2);
    net.sync(2);
    net.drain(2);
    assert_eq!(vote_replies(&net, 2), 0, "another asked first");
    net.deliver(3, 2, ask);
    net.drain(2);
    assert_eq!(vote_replies(&net, 2), 1, "the same one is answered alike");
}

#[test]
fn candidate_asks_after_its_own_vote_is_durable() {
    let mut net = Net::new(3);
    net.node(1).slow_disk = true;
    let at = net.raft(1).deadline();
    net.now = at;
    net.raft(1).tick(at);
    net.settle();
    assert_eq!(net.raft(1).role(), Role::Candidate);
    assert_eq!(net.raft(2).term(), 0, "nobody was asked yet");
    net.sync(1);
    net.settle();
    assert_eq!(net.raft(1).role(), Role::Leader);
}

#[test]
fn member_with_live_leader_refuses_vote() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(HEARTBEAT);
    let term = net.raft(1).term();
    let (last_index, last_term) = (net.raft(1).last_index(), term);
    for to in [1, 2] {
        net.deliver(3, to, Message::PreVote { term: term + 1, last_index, last_term });
        net.deliver(3, to, Message::Vote { term: term + 1, last_index, last_term, transfer: false });
    }
    net.settle();
    assert_eq!((net.raft(1).role(), net.raft(1).term()), (Role::Leader, term));
    assert_eq!(net.raft(2).term(), term);
    // A handing over is asked for by the leader itself.
    net.deliver(3, 2, Message::Vote { term: term + 1, last_index, last_term, transfer: true });
    net.settle();
    assert_eq!(net.raft(2).term(), term + 1);
}

/// A member that was cut off comes back with the term it left with.
#[test]
fn returning_member_does_not_disturb_leader() {
    let mut net = Net::new(3);
    net.elect(1);
    let term = net.raft(1).term();
    net.isolate(3);
    net.run(20 * ELECTION);
    assert_eq!(net.raft(3).role(), Role::PreCandidate);
    assert_eq!(net.raft(3).term(), term);
    net.heal();
    net.run(2 * ELECTION);
    assert_eq!((net.raft(1).role(), net.raft(1).term()), (Role::Leader, term));
    assert_eq!(net.raft(3).leader(), Some(id(1)));
}

#[test]
fn leader_steps_down_when_quorum_is_lost() {
    let mut net = Net::new(3);
    net.elect(1);
    net.isolate(1);
    net.run(ELECTION + 2 * HEARTBEAT);
    assert_ne!(net.raft(1).role(), Role::Leader);
    let now = net.now;
    assert!(!net.raft(1).has_quorum(now));
    net.run(4 * ELECTION);
    assert!(matches!(net.leader(), Some(2 | 3)));
}

/// It voted in a higher term (its candidate died): the leader must learn of it, or the member would be lost for ever.
#[test]
fn member_with_higher_term_rejoins() {
    let mut net = Net::new(3);
    net.elect(1);
    let term = net.raft(1).term();
    net.isolate(3);
    net.run(2 * ELECTION);
    net.deliver(2, 3, Message::TimeoutNow { term });
    net.heal();
    net.deliver(2, 3, Message::Vote { term: term + 7, last_index: 0, last_term: 0, transfer: true });
    net.settle();
    assert_eq!(net.raft(3).term(), term + 7);
    net.run(6 * ELECTION);
    let leader = net.leader().unwrap();
    assert!(net.raft(leader).term() > term + 7);
    net.propose(3, "back");
    net.settle();
    assert_eq!(net.texts(), ["back"]);
}

#[test]
fn candidate_with_shorter_log_is_not_elected() {
    let mut net = Net::new(3);
    net.elect(1);
    net.isolate(3);
    net.propose(1, "two have it");
    net.settle();
    net.crash(1);
    net.heal();
    net.run(5 * ELECTION);
    assert_eq!(net.leader(), Some(2));
}

#[test]
fn leadership_goes_to_a_peer_that_lags_once_it_has_caught_up() {
    let mut net = Net::new(3);
    net.elect(1);
    net.isolate(3);
    for n in 0..20 {
        net.propose(1, &format!("{n}"));
        net.settle();
    }
    net.heal();
    let now = net.now;
    let term = net.raft(1).term();
    net.raft(1).transfer_leadership(now, id(3)).unwrap();
    net.propose(2, "meanwhile");
    assert!(net.raft(1).append_control(now, lockstep_core::EntryKind::Noop, bytes::Bytes::new()).is_err());
    net.run(2 * HEARTBEAT);
    assert_eq!(net.leader(), Some(3));
    assert_eq!(net.raft(3).term(), term + 1, "one campaign, no waiting");
    net.run(ELECTION);
    assert_eq!(net.texts().len(), 21);
}

#[test]
fn transfer_to_dead_member_is_aborted() {
    let mut net = Net::new(3);
    net.elect(1);
    net.crash(3);
    let now = net.now;
    net.raft(1).transfer_leadership(now, id(3)).unwrap();
    assert_eq!(net.raft(1).transfer_leadership(now, id(2)), Err(TransferError::Busy));
    assert_eq!(net.raft(1).transfer_leadership(now, id(1)), Err(TransferError::Ourselves));
    net.propose(1, "own");
    net.propose(2, "other");
    net.run(HEARTBEAT);
    assert_eq!(net.texts().len(), 0, "nothing is appended meanwhile");
    net.run(2 * ELECTION);
    assert_eq!(net.raft(1).role(), Role::Leader);
    assert_eq!(net.texts().len(), 2);
}

#[test]
fn broken_connection_hastens_campaign() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(HEARTBEAT);
    net.crash(1);
    let now = net.now;
    for n in 2..=3 {
        net.raft(n).peer_down(now, id(1));
    }
    net.run(ELECTION);
    assert!(matches!(net.leader(), Some(2 | 3)));
    // Where only one of them lost it, the other keeps the leader.
    let mut net = Net::new(3);
    net.elect(1);
    net.run(HEARTBEAT);
    let term = net.raft(1).term();
    let now = net.now;
    net.cut.insert((1, 2));
    net.cut.insert((2, 1));
    net.raft(2).peer_down(now, id(1));
    assert!(net.raft(2).has_quorum(now), "a broken connection alone is no loss of the majority");
    net.run(3 * ELECTION);
    assert_eq!((net.leader(), net.raft(1).term()), (Some(1), term));
}

#[test]
fn sole_voter_leads_at_once_after_restart() {
    let mut net = Net::new(1);
    net.elect(1);
    net.propose(1, "x");
    net.settle();
    net.crash(1);
    net.restart(1);
    let now = net.now;
    net.raft(1).tick(now);
    net.settle();
    assert_eq!(net.raft(1).role(), Role::Leader);
    assert_eq!(net.delivered(1), ["x"]);
}

/// The connection breaks and is there again soon: nobody notices.
#[test]
fn short_disconnect_keeps_leader() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(HEARTBEAT);
    let term = net.raft(1).term();
    for _ in 0..10 {
        let now = net.now;
        net.cut.insert((1, 2));
        net.cut.insert((2, 1));
        net.raft(1).peer_down(now, id(2));
        net.raft(2).peer_down(now, id(1));
        net.propose(2, "x");
        net.run(4 * HEARTBEAT);
        assert!({
            let now = net.now;
            net.raft(2).has_quorum(now)
        });
        net.heal();
        let now = net.now;
        net.raft(1).peer_up(now, id(2));
        net.raft(2).peer_up(now, id(1));
        net.run(HEARTBEAT);
        assert_eq!((net.raft(2).role(), net.raft(2).leader()), (Role::Follower, Some(id(1))));
        assert_eq!(net.raft(2).outstanding().0, 0);
    }
    assert_eq!(net.raft(1).term(), term);
    assert_eq!(net.texts().len(), 10);
}

/// Something large goes over the line before the answers. Its sender sends it again to each new leader, so a leader that
/// was as impatient each time would never hear of them.
#[test]
fn leader_deposed_by_silence_waits_longer_next_term() {
    let mut net = Net::new(3);
    net.elect(1);
    let mut terms = Vec::new();
    for _ in 0..3 {
        net.hold = Some(|_, to, m| {
            to == 1 && !matches!(m, Message::VoteReply { .. } | Message::PreVoteReply { .. })
        });
        net.elect(1);
        let began = net.now;
        while net.raft(1).role() == Role::Leader {
            net.run(HEARTBEAT / 2);
        }
        terms.push((net.now - began) / ELECTION);
    }
    assert!(terms[1] >= 2 && terms[2] >= 4, "{terms:?}");
    // Once something is committed all is as before.
    net.hold = None;
    net.held.clear();
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.hold = Some(|_, to, _| to == 1);
    let began = net.now;
    while net.raft(1).role() == Role::Leader {
        net.run(HEARTBEAT / 2);
    }
    assert!(net.now - began <= 2 * ELECTION);
}

/// A leader without a majority's acks stays in office for ten seconds at most, and 2 MiB take 42 s on the lines to the
/// voter that lags behind. The next leader has another line to it, and gets no further with one large message.
#[test]
fn voter_needed_for_majority_catches_up_on_narrow_lines() {
    for cached in [true, false] {
        let mut lines = Lines::voters(
            4,
            match cached {
                true => |config| (config.max_append_bytes, config.cache_bytes) = (4 << 20, 64 << 20),
                false => |config| (config.max_append_bytes, config.cache_bytes) = (4 << 20, 0),
            },
        );
        lines.net.isolate(3);
        for _ in 0..256 {
            lines.net.propose(1, &"x".repeat(8 << 10));
        }
        lines.run(2 * SECOND);
        assert_eq!(lines.has(1), lines.has(2));
        for from in [1, 2] {
            lines.set(from, 3, Line { bytes_per_ms: 50, ..Line::FAR });
        }
        lines.net.heal();
        // Nothing is committed without 3.
        lines.frozen.insert(4);
        lines.net.propose(1, "last");
        lines.until(100 * SECOND, |lines| lines.net.nodes[&3].raft.commit() > 256);
    }
}

/// The line to a needed voter was interrupted again and again, and each term ended in silence. Once the line stays, the voter
/// lacks 8 MiB: at 64 KiB in each round trip of 0.2 s the cluster would commit nothing for 26 s.
#[test]
fn catch_up_after_vain_terms_widens_with_acks() {
    let mut lines = Lines::voters(3, |config| {
        (config.max_inflight_bytes, config.cache_bytes) = (16 << 20, 64 << 20);
    });
    lines.net.isolate(3);
    for _ in 0..1024 {
        lines.net.propose(1, &"x".repeat(8 << 10));
    }
    lines.run(2 * SECOND);
    lines.frozen.insert(2);
    for (from, to) in [(1, 3), (3, 1)] {
        lines.set(from, to, Line { delay: 100 * MS, ..Line::FAR });
    }
    let leads = |lines: &Lines| lines.net.nodes[&1].raft.role() == Role::Leader;
    lines.until(20 * SECOND, |lines| !leads(lines));
    for _ in 0..3 {
        lines.net.heal();
        lines.until(60 * SECOND, leads);
        lines.net.isolate(3);
        lines.until(60 * SECOND, |lines| !leads(lines));
    }
    lines.net.heal();
    lines.until(60 * SECOND, leads);
    lines.until(8 * SECOND, |lines| lines.net.nodes[&3].raft.commit() > 1024);
}
