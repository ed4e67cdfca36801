//! Logs become alike, commits are counted, disks are slow.

use crate::net::*;
use lockstep_core::message::Message;
use lockstep_core::raft::*;
use lockstep_core::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The story of figure 8 in the Raft paper: an entry of an older term that a majority holds, and that still loses.
fn figure_eight(adjust: fn(&mut Config)) {
    let mut net = Net::with(5, adjust);
    net.elect(1);
    net.settle();
    // 1 leads, and only 2 receives its entry.
    for n in 3..=5 {
        net.isolate(n);
    }
    net.propose(1, "old");
    net.settle();
    let old = net.raft(1).last_index();
    assert_eq!(net.raft(2).last_index(), old);
    // 5 is elected by 3 and 4, and places another entry there, which nobody receives.
    net.crash(1);
    net.crash(2);
    net.heal();
    net.hold = Some(|from, _, m| from == 5 && matches!(m, Message::Append { .. }));
    net.elect(5);
    assert_eq!(net.raft(5).last_index(), old);
    net.crash(5);
    net.hold = None;
    net.held.clear();
    // 1 leads again; 3 receives the old entry, nobody 1's new one.
    net.restart(1);
    net.restart(2);
    net.hold = Some(|from, _, m| match m {
        Message::Append { entries, term, .. } => from == 1 && entries.iter().any(|e| e.term == *term),
        _ => false,
    });
    net.elect(1);
    net.run(4 * HEARTBEAT);
    assert_eq!(net.raft(3).last_index(), old, "3 has it too: a majority");
    let before = net.raft(1).commit();
    // 5 comes back, is elected by those without 1's new entry, and everybody follows.
    net.crash(1);
    net.crash(2);
    net.hold = None;
    net.restart(5);
    net.elect(5);
    net.run(4 * HEARTBEAT);
    assert!(before < old, "acks for an entry of an older term do not commit it");
    assert_ne!(net.raft(3).term_at(old), net.raft(2).term_at(old));
    net.restart(1);
    net.restart(2);
    net.run(4 * ELECTION);
    assert_eq!(net.raft(1).term_at(old), net.raft(5).term_at(old));
}

#[test]
fn acks_of_older_terms_entries_do_not_commit_them() {
    figure_eight(|config| config.max_append_bytes = 1);
}

/// The switch is a real one: with it, that story ends with two truths.
#[test]
fn committing_across_terms_would_be_found() {
    let faulty = || {
        figure_eight(|config| {
            config.max_append_bytes = 1;
            config.failpoints = Some(Failpoint::CommitAcrossTerms).into();
        });
    };
    assert!(catch_unwind(AssertUnwindSafe(faulty)).is_err());
}

/// The same entry is written, replaced and written again, all before the first write arrives: that arrival says
/// nothing about the log as it will be. (`Net` checks after each arrival that no later write takes anything away that
/// is called persisted.)
#[test]
fn completed_old_write_does_not_ack_replaced_entries() {
    let mut net = Net::new(5);
    net.elect(1);
    net.settle();
    net.node(5).slow_disk = true;
    for n in 2..=4 {
        net.isolate(n);
    }
    net.propose(1, "a");
    net.settle();
    let at = net.raft(5).last_index();
    let first = net.raft(1).term();
    assert_eq!(net.raft(5).term_at(at), Some(first));
    // 2 is elected by 3 and 4; only 5 receives its first entry.
    net.crash(1);
    net.heal();
    net.hold = Some(|from, to, m| from == 2 && to != 5 && matches!(m, Message::Append { .. }));
    net.elect(2);
    assert_eq!(net.raft(5).term_at(at), Some(net.nodes[&2].raft.term()));
    // 1 is elected again, by 3 and 4, and brings the first entry back.
    net.crash(2);
    net.hold = None;
    net.restart(1);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    assert_eq!(net.raft(5).term_at(at), Some(first));
    let writes = net.nodes[&5].writes.len();
    assert!(writes >= 3);
    assert!(net.sync_one(5));
    assert!(net.raft(5).persisted() < at, "this write will be undone by the next");
    net.sync(5);
    assert_eq!(net.raft(5).persisted(), net.nodes[&5].raft.last_index());
    net.settle();
}

#[test]
fn acks_of_an_older_term_are_worth_nothing() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.isolate(3);
    // 1's entry reaches 2; the ack of 2 is late.
    net.hold = Some(|from, _, m| from == 2 && matches!(m, Message::Ack { .. }));
    net.propose(1, "first");
    net.settle();
    let late = std::mem::take(&mut net.held);
    assert!(!late.is_empty());
    let at = net.raft(1).last_index();
    let commit = net.raft(1).commit();
    // 2 forgets nothing, but 3 leads and replaces the entry everywhere.
    net.crash(1);
    net.crash(2);
    net.hold = None;
    net.heal();
    let disk = &mut net.node(2).disk;
    disk.entries.truncate((at - 1) as usize);
    net.restart(2);
    net.elect(3);
    net.settle();
    // 1 is back, leads again with entries of its own at higher places; 2 and 3 are silent.
    net.restart(1);
    net.run(HEARTBEAT);
    let now = net.now;
    net.raft(3).transfer_leadership(now, id(1)).unwrap();
    net.settle();
    assert_eq!(net.leader(), Some(1));
    net.isolate(1);
    net.propose(1, "second");
    net.settle();
    let commit_now = net.raft(1).commit();
    assert!(commit_now > commit);
    net.cut.clear();
    for (from, to, message) in late {
        net.deliver(from, to, message);
    }
    net.isolate(1);
    net.settle();
    assert_eq!(net.raft(1).commit(), commit_now);
}

/// Both followers have persisted it: it is committed, independent of the leader's disk. But the leader delivers only
/// entries on its own disk.
#[test]
fn leader_with_slow_disk_commits_by_followers() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.node(1).slow_disk = true;
    net.propose(1, "x");
    net.settle();
    let last = net.raft(1).last_index();
    assert_eq!(net.raft(1).commit(), last);
    assert_eq!(net.raft(1).deliverable(), last - 1);
    assert_eq!(net.raft(3).deliverable(), last);
    net.sync(1);
    net.settle();
    assert_eq!(net.raft(1).deliverable(), last);
}

#[test]
fn nothing_is_acknowledged_before_it_is_on_disk() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.node(2).slow_disk = true;
    net.node(3).slow_disk = true;
    net.propose(1, "x");
    net.run(4 * HEARTBEAT);
    let last = net.raft(1).last_index();
    assert_eq!(net.raft(1).commit(), last - 1);
    let peers = net.raft(1).progress();
    assert!(peers.iter().all(|peer| peer.received == last && peer.matched == last - 1), "{peers:?}");
    assert_eq!(net.raft(1).role(), Role::Leader, "heartbeats are answered all the same");
    net.sync(3);
    net.settle();
    assert_eq!(net.raft(1).commit(), last);
}

/// The failpoint takes effect: an entry that one crash can take away is called committed.
#[test]
fn acknowledging_before_the_disk_would_be_found() {
    let mut net = Net::with(3, |config| config.failpoints = Some(Failpoint::AckBeforeFsync).into());
    net.elect(1);
    net.settle();
    for n in 1..=3 {
        net.node(n).slow_disk = true;
    }
    net.propose(1, "x");
    net.run(HEARTBEAT);
    let last = net.raft(1).last_index();
    assert_eq!(net.raft(1).commit(), last);
    assert!(net.nodes.values().all(|node| node.disk.last() < last));
}

/// The origin hears the other voter's ack and counts its own disk: that is a majority; it does not wait for the
/// leader to say so.
#[test]
fn origin_counts_acks_itself() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    let before = net.raft(2).commit();
    net.propose(2, "mine");
    // The leader's disk and all that it says after the entry itself are slow.
    net.node(1).slow_disk = true;
    net.drain(2);
    let mut messages: Vec<_> = net.wire.drain(..).collect();
    assert_eq!(messages.len(), 1, "one message to the leader: {messages:?}");
    let (from, to, message) = messages.pop().unwrap();
    net.deliver(from, to, message);
    net.drain(1);
    for (from, to, message) in net.wire.drain(..).collect::<Vec<_>>() {
        net.deliver(from, to, message);
    }
    net.drain(3);
    net.drain(3);
    net.drain(2);
    net.drain(2);
    let acks: Vec<_> = net.wire.drain(..).filter(|(from, to, _)| (*from, *to) == (3, 2)).collect();
    assert_eq!(acks.len(), 1, "3 tells the origin too");
    assert_eq!(net.raft(2).commit(), before, "own disk alone is not a majority");
    for (from, to, message) in acks {
        net.deliver(from, to, message);
    }
    net.drain(2);
    assert_eq!(net.raft(2).deliverable(), before + 1);
    assert_eq!(net.raft(2).outstanding().0, 0);
    assert_eq!(net.raft(1).commit(), before, "the leader does not know yet");
}

/// The leader's own ack counts for an origin as well, when the third voter is far away.
#[test]
fn origin_counts_leaders_disk() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.isolate(3);
    net.hold = Some(|from, to, m| (from, to) == (2, 1) && matches!(m, Message::Ack { .. }));
    net.propose(2, "mine");
    net.settle();
    let last = net.raft(2).last_index();
    assert_eq!(net.raft(2).commit(), last);
    assert_eq!(net.raft(1).commit(), last - 1, "the origin's ack has not arrived");
}

/// Appends follow one another closely: a follower without own proposals learns of a commit with the next append or after
/// a moment, an origin at once.
#[test]
fn commit_news_waits_for_next_append_under_load() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    net.propose(1, "w");
    net.quiet();
    net.now += 300;
    net.propose(1, "x");
    net.quiet();
    let x = net.raft(1).commit();
    assert_eq!(x, net.raft(1).last_index());
    assert_eq!([net.raft(2).commit(), net.raft(3).commit()], [x - 1; 2], "the next append may bring it");
    net.now += 300;
    net.propose(1, "y");
    net.quiet();
    assert_eq!([net.raft(2).commit(), net.raft(3).commit()], [x; 2], "the next entry brought it");
    let now = net.now;
    assert!((1..=1_000).contains(&(net.raft(1).deadline() - now)));
    net.settle();
    assert_eq!([net.raft(2).commit(), net.raft(3).commit()], [x + 1; 2], "nothing came that could bring it");
    net.propose(2, "z");
    net.quiet();
    assert_eq!(net.raft(2).commit(), x + 2);
    assert_eq!(net.raft(2).outstanding().0, 0);
}

/// Appends are far apart: the next one cannot bring the commit index within the time that it may wait.
#[test]
fn commit_news_of_lone_entry_leaves_at_once() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    for _ in 0..3 {
        net.propose(1, "x");
        net.quiet();
        let last = net.raft(1).last_index();
        assert_eq!([1, 2, 3].map(|n| net.raft(n).commit()), [last; 3], "without a heartbeat");
        net.now += 5_000;
    }
}

#[test]
fn round_makes_one_write_and_one_message_per_peer() {
    let mut net = Net::new(3);
    net.elect(1);
    net.run(2 * HEARTBEAT);
    for n in 0..50 {
        net.propose(1, &format!("{n}"));
        net.propose(2, &format!("{n}"));
    }
    net.drain(2);
    let sent: Vec<_> = net.wire.drain(..).collect();
    assert_eq!(sent.len(), 1);
    for (from, to, message) in sent {
        net.deliver(from, to, message);
    }
    net.node(1).slow_disk = true;
    net.drain(1);
    assert_eq!(net.nodes[&1].writes.len(), 1);
    assert_eq!(net.nodes[&1].writes[0].entries.len(), 100);
    assert_eq!(net.wire.len(), 2);
    net.node(1).slow_disk = false;
    net.sync(1);
    net.settle();
    assert_eq!(net.texts().len(), 100);
}

/// Its entries are no longer in the leader's memory, but in its log.
#[test]
fn lagging_peer_is_fed_from_log() {
    let mut net = Net::with(3, |config| {
        config.cache_bytes = 500;
        config.max_append_bytes = 300;
        config.max_inflight_bytes = 700;
    });
    net.elect(1);
    net.isolate(3);
    for n in 0..100 {
        net.propose(1, &format!("{n}"));
        net.settle();
    }
    assert!(net.raft(1).entry(2).is_none(), "the memory is bounded");
    net.heal();
    net.run(ELECTION);
    assert_eq!(net.delivered(3).len(), 100);
    assert_eq!(net.delivered(3), net.delivered(1));
    let now = net.now;
    assert!(net.raft(3).has_quorum(now));
}

fn trim(net: &mut Net, n: usize, first: Index) {
    let node = net.node(n);
    node.disk.trim(first);
    node.raft.log_trimmed(first);
    assert_eq!(node.raft.first_index(), node.disk.base() + 1);
}

#[test]
fn peer_behind_log_start_gets_snapshot() {
    let mut net = Net::with(3, |config| {
        config.segment_bytes = 500;
        config.cache_bytes = 0;
    });
    net.elect(1);
    net.isolate(3);
    for n in 0..100 {
        net.propose(1, &format!("{n}"));
        net.settle();
    }
    assert!(net.nodes[&1].disk.bases.len() > 5, "the log is in segments");
    let commit = net.raft(1).commit();
    trim(&mut net, 1, commit / 2);
    let base = net.raft(1).first_index() - 1;
    assert!(base > 10);
    net.heal();
    net.run(2 * ELECTION);
    assert_eq!(net.raft(3).first_index() - 1, base);
    assert_eq!(net.raft(3).commit(), net.nodes[&1].raft.commit());
    assert_eq!(net.nodes[&3].raft.tail_state(), net.nodes[&1].raft.tail_state());
    net.propose(3, "in again");
    net.settle();
    assert_eq!(net.raft(1).committed_state().seqno, 101);
    assert_eq!(net.raft(3).committed_state().seqno, 101);
    // And it survives a restart.
    net.crash(3);
    net.restart(3);
    assert_eq!(net.raft(3).first_index() - 1, base);
    net.run(ELECTION);
    assert_eq!(net.raft(3).commit(), net.nodes[&1].raft.commit());
}

/// A base goes to where certification can begin: not above the trim marks.
#[test]
fn chosen_snapshot_lies_below_trim_mark() {
    let mut net = Net::with(2, |config| config.segment_bytes = 500);
    net.elect(1);
    let mark = |net: &mut Net, seqno: Seqno| {
        let mark = lockstep_core::snapshot::TrimMark { trim: seqno, verdicts_to: seqno, failed: Vec::new() };
        let now = net.now;
        net.raft(1).append_control(now, EntryKind::Trim, mark.to_payload()).unwrap();
        net.settle();
    };
    for n in 0..100 {
        net.propose(1, &format!("{n}"));
        net.settle();
        match n {
            40 => mark(&mut net, 30),
            80 => mark(&mut net, 60),
            _ => {}
        }
    }
    // Without a position: at or below the mark before the last one.
    let join = |net: &mut Net, n: usize, position: Option<Seqno>| {
        net.add(n, DiskImage::default(), |_| {});
        net.raft(n).set_position(position);
        let all = net.raft(1).tail_state().membership.clone();
        let now = net.now;
        let with = all.with(member(n, members::Role::Learner));
        net.raft(1).change_membership(now, with).unwrap();
        net.run(ELECTION);
        assert_eq!(net.raft(n).commit(), net.nodes[&1].raft.commit());
        let base = net.raft(n).segment_bases().next().unwrap();
        (base.index, base.seqno)
    };
    let (_, without) = join(&mut net, 3, None);
    assert!((20..=30).contains(&without), "{without}");
    // A database at 90 must see all from mark 30 on at least, one at 45 all from the mark before.
    let (_, at_90) = join(&mut net, 4, Some(90));
    assert!((20..=30).contains(&at_90), "{at_90}");
    let (index, at_45) = join(&mut net, 5, Some(45));
    assert_eq!((index, at_45), (0, 0));
}

#[test]
fn segments_are_rolled_and_read_back() {
    let mut net = Net::with(3, |config| config.segment_bytes = 300);
    net.elect(1);
    for n in 0..40 {
        net.propose(2, &format!("{n}"));
        net.settle();
    }
    for n in 1..=3 {
        let held: Vec<_> = net.raft(n).segment_bases().cloned().collect();
        assert!(held.len() > 5);
        assert_eq!(held, net.nodes[&n].disk.bases);
        let tail = net.raft(n).tail_state().clone();
        net.crash(n);
        net.restart(n);
        assert_eq!(*net.raft(n).tail_state(), tail);
        assert!(net.raft(n).segment_bases().eq(held.iter()));
    }
    net.run(4 * ELECTION);
    assert_eq!(net.texts().len(), 40);
}

/// A truncation reaches back over the beginnings of segments.
#[test]
fn uncommitted_segments_are_given_up() {
    let mut net = Net::with(3, |config| config.segment_bytes = 300);
    net.elect(1);
    net.settle();
    net.isolate(1);
    for n in 0..40 {
        net.propose(1, &format!("lost {n}"));
        net.drain(1);
    }
    assert!(net.raft(1).segment_bases().count() > 5);
    net.run(4 * ELECTION);
    let leader = net.leader().unwrap();
    assert_ne!(leader, 1);
    net.propose(leader, "kept");
    net.settle();
    assert_eq!(net.texts(), ["kept"]);
    net.heal();
    net.run(2 * ELECTION);
    assert_eq!(net.delivered(1).len(), 41, "what was lost is proposed again");
    assert_eq!(net.delivered(1)[0], "kept");
    let held: Vec<_> = net.raft(1).segment_bases().cloned().collect();
    assert_eq!(held, net.nodes[&1].disk.bases);
}

#[test]
fn restart_with_old_commit_hint_loses_nothing() {
    for hint in 0..=6 {
        let mut net = Net::new(3);
        net.elect(1);
        for n in 0..5 {
            net.propose(1, &format!("{n}"));
            net.settle();
        }
        for n in 1..=3 {
            net.crash(n);
            net.node(n).disk.commit_hint = hint;
            net.restart(n);
            let commit = net.raft(n).commit();
            assert_eq!(commit, hint.min(6));
            assert_eq!(net.raft(n).last_index(), 6);
        }
        net.run(4 * ELECTION);
        assert_eq!(net.delivered(2), net.texts());
        assert_eq!(net.texts().len(), 5);
    }
}

/// The vote file's write was lost, the entry's was not.
#[test]
fn whoever_has_an_entry_of_a_term_has_seen_the_term() {
    let mut net = Net::new(3);
    net.elect(1);
    net.settle();
    net.crash(2);
    net.node(2).disk.vote = Vote::default();
    net.restart(2);
    assert_eq!(net.raft(2).term(), net.nodes[&1].raft.term());
}
