//! Another Raft as an oracle. The crate `raft` 0.7 and our core go through the same elections, proposals, partitions,
//! restarts and transfers. They must hold the same logs and commit the same entries.
//!
//! Entries are the leader's own notes, not proposals: ours are repeated after a change of leader, the oracle's are not.
//! Time plays no part: only the leader of the majority sends heartbeats, and members campaign only on command.

use crate::net::*;
use bytes::Bytes;
use lockstep_core::EntryKind;
use lockstep_core::raft::Role;
use raft::storage::MemStorage;
use raft::{GetEntriesContext, RawNode, StateRole};
use std::collections::{BTreeMap, BTreeSet};

const MEMBERS: usize = 5;

struct Witness {
    nodes: BTreeMap<usize, RawNode<MemStorage>>,
    stores: BTreeMap<usize, MemStorage>,
}

fn open(n: usize, store: &MemStorage) -> RawNode<MemStorage> {
    let config = raft::Config { id: n as u64, pre_vote: true, ..raft::Config::default() };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    RawNode::new(&config, store.clone(), &logger).unwrap()
}

impl Witness {
    fn new() -> Witness {
        let voters: Vec<u64> = (1..=MEMBERS as u64).collect();
        let stores: BTreeMap<usize, MemStorage> = (1..=MEMBERS)
            .map(|n| (n, MemStorage::new_with_conf_state((voters.clone(), Vec::new()))))
            .collect();
        let nodes = stores.iter().map(|(n, store)| (*n, open(*n, store))).collect();
        Witness { nodes, stores }
    }

    fn node(&mut self, n: usize) -> &mut RawNode<MemStorage> {
        self.nodes.get_mut(&n).unwrap()
    }

    fn restart(&mut self, n: usize) {
        self.nodes.insert(n, open(n, &self.stores[&n]));
    }

    fn settle(&mut self, cut: &BTreeSet<(usize, usize)>) {
        loop {
            let mut messages = Vec::new();
            for (n, node) in &mut self.nodes {
                while node.has_ready() {
                    let store = &self.stores[n];
                    let mut ready = node.ready();
                    messages.extend(ready.take_messages());
                    ready.take_committed_entries();
                    store.wl().append(ready.entries()).unwrap();
                    if let Some(hard) = ready.hs() {
                        store.wl().set_hardstate(hard.clone());
                    }
                    messages.extend(ready.take_persisted_messages());
                    let mut light = node.advance(ready);
                    messages.extend(light.take_messages());
                    if let Some(commit) = light.commit_index() {
                        store.wl().mut_hard_state().set_commit(commit);
                    }
                    light.take_committed_entries();
                    node.advance_apply();
                }
            }
            if messages.is_empty() {
                return;
            }
            for message in messages {
                let (from, to) = (message.from as usize, message.to as usize);
                if !cut.contains(&(from, to)) {
                    let _ = self.node(to).step(message);
                }
            }
        }
    }

    fn log(&self, n: usize) -> Vec<(u64, u64, Vec<u8>)> {
        let log = &self.nodes[&n].raft.raft_log;
        let entries = log.entries(1, None, GetEntriesContext::empty(false)).unwrap_or_default();
        entries.into_iter().map(|e| (e.index, e.term, e.data.to_vec())).collect()
    }

    fn leads(&self, n: usize) -> bool {
        self.nodes[&n].raft.state == StateRole::Leader
    }
}

struct Pair {
    ours: Net,
    theirs: Witness,
    /// Which side of the partition each member is on.
    side: BTreeMap<usize, u64>,
    story: Vec<String>,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            ours: Net::new(MEMBERS),
            theirs: Witness::new(),
            side: (1..=MEMBERS).map(|n| (n, 0)).collect(),
            story: Vec::new(),
        }
    }

    fn reach(&self, n: usize) -> Vec<usize> {
        self.side.iter().filter(|(_, side)| **side == self.side[&n]).map(|(n, _)| *n).collect()
    }

    /// The leader of the newest term.
    fn leader(&self) -> Option<usize> {
        self.ours.leader()
    }

    fn has_majority(&self, n: usize) -> bool {
        self.reach(n).len() > MEMBERS / 2
    }

    fn settle(&mut self) {
        self.ours.settle();
        self.theirs.settle(&self.ours.cut);
    }

    /// The leader sends a heartbeat, and a second one with the new commit index.
    fn beat(&mut self) {
        for _ in 0..4 {
            self.ours.now += HEARTBEAT;
            // A leader without a majority is not ticked, but its process runs: this is no stall.
            (1..=MEMBERS).for_each(|n| {
                self.ours.drain(n);
            });
            let Some(leader) = self.leader().filter(|n| self.has_majority(*n)) else { continue };
            let now = self.ours.now;
            self.ours.raft(leader).tick(now);
            if self.theirs.leads(leader) {
                self.theirs.node(leader).ping();
            }
            self.settle();
        }
    }

    fn campaign(&mut self, n: usize) {
        if self
            .reach(n)
            .iter()
            .any(|m| self.ours.nodes[m].raft.role() == Role::Leader || self.theirs.leads(*m))
        {
            return;
        }
        // Ours does not give up while too few have answered, and asks those who can be reached later; the witness
        // must be told to. So only where it will be decided now.
        let end = |n: usize| {
            let raft = &self.ours.nodes[&n].raft;
            (raft.tail_state().term, raft.last_index())
        };
        let group = self.reach(n);
        let wins = group.iter().filter(|m| end(**m) <= end(n)).count() > MEMBERS / 2;
        if !wins && group.len() < MEMBERS {
            return;
        }
        while self.ours.raft(n).deadline() > self.ours.now {
            self.beat();
        }
        let now = self.ours.now;
        self.ours.raft(n).tick(now);
        self.theirs.node(n).campaign().unwrap();
        self.settle();
    }

    fn propose(&mut self, n: usize, text: String) {
        if self.ours.nodes[&n].raft.role() != Role::Leader {
            return;
        }
        let now = self.ours.now;
        let payload = Bytes::from(text.clone().into_bytes());
        self.ours.raft(n).append_control(now, EntryKind::Note, payload).unwrap();
        self.theirs.node(n).propose(Vec::new(), text.into_bytes()).unwrap();
        self.settle();
    }

    fn transfer(&mut self, to: usize) {
        let Some(leader) = self.leader().filter(|n| self.has_majority(*n)) else { return };
        if leader == to || self.side[&leader] != self.side[&to] {
            return;
        }
        let now = self.ours.now;
        self.ours.raft(leader).transfer_leadership(now, id(to)).unwrap();
        self.theirs.node(leader).transfer_leader(to as u64);
        self.settle();
    }

    fn divide(&mut self, sides: BTreeMap<usize, u64>) {
        self.side = sides;
        self.ours.cut.clear();
        let now = self.ours.now;
        for a in 1..=MEMBERS {
            for b in (1..=MEMBERS).filter(|b| *b != a) {
                let apart = self.side[&a] != self.side[&b];
                if apart {
                    self.ours.cut.insert((a, b));
                    self.ours.raft(a).peer_down(now, id(b));
                } else {
                    // Also where it was never gone: a leader that could not speak to a majority did not speak at all.
                    self.ours.raft(a).peer_up(now, id(b));
                }
            }
        }
        // Our leader sends to every reachable peer, even without a majority.
        for n in 1..=MEMBERS {
            if self.theirs.leads(n) {
                self.theirs.node(n).ping();
            }
        }
        self.settle();
        self.beat();
    }

    fn restart(&mut self, n: usize) {
        self.ours.crash(n);
        self.ours.restart(n);
        self.theirs.restart(n);
        self.settle();
        self.beat();
    }

    fn compare(&mut self) {
        for n in 1..=MEMBERS {
            let node = &self.ours.nodes[&n];
            let ours: Vec<_> = node.disk.entries.iter().map(|e| (e.index, e.term, contents(e))).collect();
            assert_eq!(ours, self.theirs.log(n), "the log of {n} after {:#?}", self.story);
            assert_eq!(node.raft.role() == Role::Leader, self.theirs.leads(n), "{n} after {:#?}", self.story);
        }
        let Some(leader) = self.leader().filter(|n| self.has_majority(*n)) else { return };
        for n in self.reach(leader) {
            let theirs = self.theirs.nodes[&n].raft.raft_log.committed;
            assert_eq!(self.ours.nodes[&n].raft.commit(), theirs, "member {n} after {:#?}", self.story);
        }
    }
}

/// Runs random steps on both.
fn run(seed: u64) -> (u64, u64) {
    let mut state = seed;
    let mut below = move |n: u64| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)) % n
    };
    let mut pair = Pair::new();
    for step in 0..60 {
        let n = 1 + below(MEMBERS as u64) as usize;
        match below(10) {
            0..=3 => {
                pair.story.push(format!("{n} proposes"));
                pair.propose(n, format!("{step}"));
            }
            4..=6 => {
                pair.story.push(format!("{n} campaigns"));
                pair.campaign(n);
            }
            7 => {
                let sides: BTreeMap<usize, u64> = (1..=MEMBERS).map(|n| (n, below(2))).collect();
                pair.story.push(format!("divided: {sides:?}"));
                pair.divide(sides);
            }
            8 => {
                pair.story.push(format!("{n} is handed the leadership"));
                pair.transfer(n);
            }
            _ => {
                pair.story.push(format!("{n} restarts"));
                pair.restart(n);
            }
        }
        pair.beat();
        pair.compare();
    }
    let node = &pair.ours.nodes[&1].raft;
    (node.term(), node.commit())
}

#[test]
fn another_raft_agrees() {
    let (mut terms, mut commits) = (0, 0);
    for seed in 1..=200 {
        let (term, commit) = run(seed);
        terms += term;
        commits += commit;
    }
    assert!(terms > 400 && commits > 1000, "{terms} terms and {commits} entries: too quiet to mean much");
}

/// A no-op names its leader, which the other one's does not.
fn contents(entry: &lockstep_core::Entry) -> Vec<u8> {
    match entry.kind {
        lockstep_core::EntryKind::Noop => Vec::new(),
        _ => entry.payload().to_vec(),
    }
}
