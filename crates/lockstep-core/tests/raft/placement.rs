//! Leadership follows the writer.

use crate::net::*;
use lockstep_core::members::{View, ViewMember};
use lockstep_core::placement::{REST, REST_AFTER_COMMAND, WINDOWS, WriterShare};
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::Role;
use lockstep_core::*;
use std::collections::BTreeMap;

const WINDOW: Micros = 1_000_000;

struct Watched {
    net: Net,
    follows: BTreeMap<usize, WriterShare>,
    proposed: usize,
    /// When, from whom, to whom.
    moves: Vec<(Micros, usize, usize)>,
}

impl Watched {
    fn new(n: usize) -> Watched {
        let mut net = Net::new(n);
        net.elect(1);
        let follows = (1..=n).map(|at| (at, WriterShare::new(WINDOW))).collect();
        Watched { net, follows, proposed: 0, moves: Vec::new() }
    }

    fn windows(&mut self, count: u64, writers: &[usize]) {
        for _ in 0..count * 10 {
            for at in writers {
                self.proposed += 1;
                self.net.propose(*at, &format!("t{}", self.proposed));
            }
            self.net.run(WINDOW / 10);
            for (at, follow) in &mut self.follows {
                let raft = &mut self.net.nodes.get_mut(at).unwrap().raft;
                if let Some((to, share)) = follow.look(raft, self.net.now) {
                    assert!(share >= 90);
                    raft.transfer_leadership(self.net.now, to).unwrap();
                    follow.moved(self.net.now);
                    self.moves.push((self.net.now, *at, number(to)));
                }
            }
        }
    }

    fn leader(&self) -> usize {
        self.net.leader().unwrap()
    }

    fn all_is_there_once(&mut self) {
        self.net.run(2 * WINDOW);
        let mut texts = self.net.texts();
        assert_eq!(texts.len(), self.proposed);
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), self.proposed);
    }
}

#[test]
fn leadership_moves_to_main_writer_without_loss() {
    let mut w = Watched::new(3);
    w.windows(REST - 1, &[2]);
    assert_eq!(w.leader(), 1, "whoever leads rests first");
    w.windows(2, &[2]);
    assert_eq!(w.leader(), 2);
    w.windows(30, &[2]);
    assert_eq!(w.moves.len(), 1, "it writes where it leads");
    w.all_is_there_once();
}

#[test]
fn several_writers_or_short_burst_do_not_move_leader() {
    let mut w = Watched::new(3);
    w.windows(20, &[2, 3]);
    w.windows(20, &[1, 2]);
    // Seven of eight are not nearly everything.
    w.windows(20, &[2, 2, 2, 2, 2, 2, 2, 3]);
    for _ in 0..5 {
        w.windows(u64::from(WINDOWS) - 1, &[2]);
        w.windows(1, &[1]);
    }
    // Too little to be worth it.
    for _ in 0..20 {
        w.net.propose(2, &format!("rare{}", w.net.now));
        w.windows(1, &[]);
        w.proposed += 1;
    }
    assert_eq!(w.moves, []);
    w.all_is_there_once();
}

#[test]
fn large_write_set_in_pieces_counts_as_one_commit() {
    let mut w = Watched::new(3);
    for _ in 0..20 {
        // Its last part is what counts.
        let now = w.net.now;
        for _ in 0..30 {
            w.net.raft(2).propose(now, EntryKind::Piece, bytes::Bytes::from_static(b"piece"));
        }
        w.windows(1, &[]);
    }
    w.net.propose(2, "the last part");
    w.proposed += 1;
    w.windows(2, &[]);
    assert_eq!(w.moves, []);
    // One that writes beside it is the writer.
    for _ in 0..REST {
        let now = w.net.now;
        for _ in 0..30 {
            w.net.raft(2).propose(now, EntryKind::Piece, bytes::Bytes::from_static(b"piece"));
        }
        w.windows(1, &[3]);
    }
    assert_eq!(w.leader(), 3);
    w.all_is_there_once();
}

#[test]
fn intermittent_writer_moves_leader_less_often() {
    let mut w = Watched::new(3);
    w.windows(REST, &[2]);
    for _ in 0..100 {
        let other = 3 - w.leader();
        w.windows(u64::from(WINDOWS) + 1, &[other]);
    }
    let gaps: Vec<u64> = w.moves.windows(2).map(|pair| (pair[1].0 - pair[0].0) / WINDOW).collect();
    assert!(gaps.len() >= 4, "{gaps:?}");
    assert!(gaps.iter().all(|gap| *gap >= REST - 1), "{gaps:?}");
    let (first, last) = (gaps[0], gaps[gaps.len() - 1]);
    assert!(last >= 4 * first, "{gaps:?}");
    w.all_is_there_once();
}

#[test]
fn leadership_stays_longer_after_operator_command() {
    let mut w = Watched::new(3);
    let view = View {
        number: 1,
        members: vec![ViewMember {
            id: id(3),
            view_uuid: Uuid([9; 16]),
            name: "n3".into(),
            incoming: String::new(),
        }],
    };
    let mut bytes = lockstep_core::codec::Writer::new();
    view.encode(&mut bytes);
    let now = w.net.now;
    w.net.raft(1).append_control(now, EntryKind::View, bytes.into_bytes()).unwrap();
    w.net.raft(1).transfer_leadership(now, id(3)).unwrap();
    w.net.run(WINDOW);
    assert_eq!(w.leader(), 3);
    w.windows(REST_AFTER_COMMAND - 2, &[2]);
    assert_eq!(w.moves, []);
    w.windows(3, &[2]);
    assert_eq!(w.leader(), 2);
}

#[test]
fn writer_unable_to_lead_gets_no_leadership() {
    // Far behind: its disk takes nothing.
    let mut w = Watched::new(3);
    w.net.node(2).slow_disk = true;
    w.windows(3 * REST, &[2]);
    assert_eq!(w.moves, []);
    w.net.node(2).slow_disk = false;
    w.net.sync(2);
    w.windows(2, &[2]);
    assert_eq!(w.leader(), 2);

    // A learner.
    let mut w = Watched::new(3);
    let fewer = w.net.raft(1).membership().with(member(2, lockstep_core::members::Role::Learner));
    let now = w.net.now;
    w.net.raft(1).change_membership(now, fewer).unwrap();
    w.windows(3 * REST, &[2]);
    assert_eq!((w.moves.len(), w.leader()), (0, 1));

    // Under a weak policy only the leader may write: rejected writes do not attract leadership.
    let mut w = Watched::new(3);
    let policy = Policy { kind: PolicyKind::Semisync, ..Policy::default() };
    let mut bytes = lockstep_core::codec::Writer::new();
    policy.encode(&mut bytes);
    let now = w.net.now;
    w.net.raft(1).append_control(now, EntryKind::Policy, bytes.into_bytes()).unwrap();
    w.windows(3 * REST, &[2]);
    assert_eq!(w.moves, []);
    assert_eq!(w.net.raft(1).role(), Role::Leader);
}
