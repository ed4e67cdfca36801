//! A small deterministic network of Raft cores. Messages go through the codec. The model of a disk can be slow, and
//! forgets unsynced writes. Every commit of each member is compared with those of the others.

use bytes::Bytes;
use lockstep_core::codec::Writer;
use lockstep_core::members::{MemberInfo, Membership, Role as MemberRole};
use lockstep_core::message::Message;
use lockstep_core::raft::*;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) const HEARTBEAT: Micros = 100_000;
pub(crate) const ELECTION: Micros = 600_000;
/// No write of a disk completes for this long: the disk hangs.
pub(crate) const DISK_TIMEOUT: Micros = 5_000_000;

pub(crate) fn id(n: usize) -> MemberId {
    let mut raw = [0; 16];
    raw[0] = n as u8;
    Uuid(raw)
}

pub(crate) fn number(id: MemberId) -> usize {
    id.0[0] as usize
}

pub(crate) fn member(n: usize, role: MemberRole) -> MemberInfo {
    MemberInfo {
        id: id(n),
        name: format!("n{n}"),
        address: format!("n{n}:4567"),
        // 1 and 2 are beside each other, the others elsewhere.
        zone: (n > 2) as u8,
        role,
        wants_vote: role != MemberRole::Learner,
        arbitrator: false,
    }
}

pub(crate) fn voters(ids: impl IntoIterator<Item = usize>) -> Membership {
    ids.into_iter().fold(Membership::default(), |all, n| all.with(member(n, MemberRole::Voter)))
}

pub(crate) fn genesis(membership: Membership) -> StateSnapshot {
    StateSnapshot::genesis(Uuid([7; 16]), 0, membership)
}

/// The durable state.
#[derive(Clone, Default, Debug)]
pub(crate) struct DiskImage {
    pub(crate) bases: Vec<StateSnapshot>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) vote: Vote,
    pub(crate) commit_hint: Index,
    /// Where the log ended before damage.
    pub(crate) former_end: Option<LogEnd>,
}

impl DiskImage {
    pub(crate) fn base(&self) -> Index {
        self.bases.first().map_or(0, |base| base.index)
    }

    pub(crate) fn last(&self) -> Index {
        self.base() + self.entries.len() as u64
    }

    pub(crate) fn apply(&mut self, op: &WriteOp) {
        if let Some(state) = &op.reset {
            self.bases = vec![StateSnapshot::clone(state)];
            self.entries.clear();
        }
        if let Some(from) = op.truncate_from {
            assert!(from > self.base() && from <= self.last(), "truncates what is there");
            self.entries.truncate((from - self.base() - 1) as usize);
            self.bases.retain(|base| base.index < from);
        }
        if let Some(state) = &op.roll {
            assert_eq!(state.index, self.last(), "a segment begins where the last one ends");
            self.bases.push(StateSnapshot::clone(state));
        }
        for entry in &op.entries {
            assert_eq!(entry.index, self.last() + 1, "entries are dense on disk");
            self.entries.push(entry.clone());
        }
        if let Some(vote) = op.vote {
            assert!(vote.term >= self.vote.term);
            self.vote = vote;
        }
        self.former_end = self.former_end.filter(|former| self.end() < *former);
    }

    /// The last entry.
    pub(crate) fn end(&self) -> LogEnd {
        let base = self.bases.last().map_or(0, |base| base.term);
        LogEnd { term: self.entries.last().map_or(base, |entry| entry.term), index: self.last() }
    }

    /// Damage takes the entries after this index, and the log proves where it had ended.
    pub(crate) fn lose_end(&mut self, last: Index) {
        let end = self.end();
        self.former_end = self.former_end.max(Some(end));
        self.entries.truncate((last - self.base()) as usize);
        self.bases.retain(|base| base.index <= last);
        self.commit_hint = self.commit_hint.min(last);
        self.vote = Vote { term: self.vote.term.max(end.term) + 1, voted_for: None };
    }

    /// Reads it back as a log would.
    pub(crate) fn restore(&self) -> Option<Restored> {
        let mut builder = RestoreBuilder::new(self.commit_hint);
        let mut bases = self.bases.iter().peekable();
        if let Some(first) = bases.next() {
            builder.base(first.to_bytes()).unwrap();
        }
        for entry in &self.entries {
            while bases.peek().is_some_and(|base| base.index < entry.index) {
                builder.base(bases.next().unwrap().to_bytes()).unwrap();
            }
            builder.record(entry.index, entry.term, entry.body().clone()).unwrap();
        }
        for base in bases {
            builder.base(base.to_bytes()).unwrap();
        }
        if let Some(end) = self.former_end {
            builder.ended_at(end);
        }
        builder.finish(self.vote)
    }

    pub(crate) fn trim(&mut self, first: Index) {
        while self.bases.get(1).is_some_and(|base| base.index < first) {
            let next = self.bases[1].index;
            self.entries.drain(..(next - self.bases[0].index) as usize);
            self.bases.remove(0);
        }
    }
}

pub(crate) struct Node {
    pub(crate) raft: Raft,
    pub(crate) up: bool,
    pub(crate) disk: DiskImage,
    pub(crate) writes: VecDeque<WriteOp>,
    /// Writes stay in flight until `sync` is called.
    pub(crate) slow_disk: bool,
    pub(crate) incarnation: u64,
    pub(crate) outputs: Vec<Output>,
    /// Entries written to rescue files.
    pub(crate) rescued: Vec<Rescue>,
    /// Checked up to here.
    pub(crate) seen_commit: Index,
    pub(crate) config: fn(&mut Config),
}

pub(crate) struct Net {
    pub(crate) now: Micros,
    pub(crate) nodes: BTreeMap<usize, Node>,
    pub(crate) wire: VecDeque<(usize, usize, Message)>,
    /// Directed links that lose everything.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Keeps messages back that match, until taken out by the test.
    pub(crate) hold: Option<fn(usize, usize, &Message) -> bool>,
    pub(crate) held: Vec<(usize, usize, Message)>,
    /// What anybody ever called committed.
    pub(crate) committed: BTreeMap<Index, Entry>,
    pub(crate) leaders: BTreeMap<Term, usize>,
    /// Leaders send one copy to each zone: [`Net::relay`].
    pub(crate) relays: bool,
    /// How many appends came by a relay.
    pub(crate) relayed: usize,
}

fn config(n: usize, incarnation: u64) -> Config {
    Config {
        id: id(n),
        incarnation,
        heartbeat: HEARTBEAT,
        election_timeout: ELECTION,
        disk_timeout: DISK_TIMEOUT,
        segment_bytes: 1 << 20,
        max_append_bytes: 1 << 20,
        max_inflight_bytes: 4 << 20,
        cache_bytes: 1 << 20,
        max_unwritten_bytes: 256 << 20,
        max_at_risk_bytes: 256 << 20,
        seed: 1,
        failpoints: Failpoints::default(),
    }
}

impl Net {
    /// Voters 1..=n that know each other from the start.
    pub(crate) fn new(n: usize) -> Net {
        Net::with(n, |_| {})
    }

    pub(crate) fn with(n: usize, adjust: fn(&mut Config)) -> Net {
        let mut net = Net::empty();
        for at in 1..=n {
            let disk = DiskImage { bases: vec![genesis(voters(1..=n))], ..DiskImage::default() };
            net.add(at, disk, adjust);
        }
        net
    }

    pub(crate) fn empty() -> Net {
        Net {
            now: 1_000_000,
            nodes: BTreeMap::new(),
            wire: VecDeque::new(),
            cut: BTreeSet::new(),
            hold: None,
            held: Vec::new(),
            committed: BTreeMap::new(),
            leaders: BTreeMap::new(),
            relays: false,
            relayed: 0,
        }
    }

    /// From now on leaders send one copy to each zone, and all understand it.
    pub(crate) fn relay(&mut self) {
        self.relays = true;
        let ids: Vec<usize> = self.nodes.keys().copied().collect();
        ids.into_iter().for_each(|n| self.set_relay(n));
    }

    fn set_relay(&mut self, n: usize) {
        if self.relays {
            let others: Vec<usize> = self.nodes.keys().copied().filter(|other| *other != n).collect();
            let raft = self.raft(n);
            raft.set_relaying(true);
            others.into_iter().for_each(|other| raft.peer_relays(id(other)));
        }
    }

    pub(crate) fn add(&mut self, n: usize, disk: DiskImage, adjust: fn(&mut Config)) {
        let mut config = config(n, 1);
        adjust(&mut config);
        let raft = Raft::new(config, disk.restore(), self.now);
        self.nodes.insert(
            n,
            Node {
                raft,
                up: true,
                disk,
                writes: VecDeque::new(),
                slow_disk: false,
                incarnation: 1,
                rescued: Vec::new(),
                outputs: Vec::new(),
                seen_commit: 0,
                config: adjust,
            },
        );
    }

    pub(crate) fn node(&mut self, n: usize) -> &mut Node {
        self.nodes.get_mut(&n).unwrap()
    }

    pub(crate) fn raft(&mut self, n: usize) -> &mut Raft {
        &mut self.node(n).raft
    }

    /// Ends a round of this node.
    pub(crate) fn drain(&mut self, n: usize) -> bool {
        let now = self.now;
        let node = self.nodes.get_mut(&n).unwrap();
        if !node.up {
            return false;
        }
        let outputs = node.raft.drain(now);
        let any = !outputs.is_empty();
        let mut fetches = Vec::new();
        for output in outputs {
            match output {
                Output::Send { to, message } => {
                    let mut w = Writer::new();
                    message.encode(&mut w);
                    let copy = Message::decode(w.into_bytes()).expect("what is written can be read");
                    assert_eq!(copy, message);
                    let item = (n, number(to), copy);
                    match self.hold {
                        Some(matches) if matches(item.0, item.1, &item.2) => self.held.push(item),
                        _ => self.wire.push_back(item),
                    }
                }
                Output::Write(op) => {
                    node.rescued.extend(op.rescue.iter().cloned());
                    node.writes.push_back(op)
                }
                Output::Fetch { to, from, max_bytes } => fetches.push((to, from, max_bytes)),
                Output::Soft { role: Role::Leader, term, .. } => {
                    let first = *self.leaders.entry(term).or_insert(n);
                    assert_eq!(first, n, "two leaders in term {term}");
                    node.outputs.push(output);
                }
                _ => node.outputs.push(output),
            }
        }
        let node = self.nodes.get_mut(&n).unwrap();
        let commit = node.raft.commit();
        for index in node.seen_commit + 1..=commit {
            // Snapshots are checked elsewhere.
            let Some(entry) = node.raft.entry(index) else { continue };
            match self.committed.get(&index) {
                Some(known) => assert_eq!(known, entry, "member {n} committed another entry"),
                None => {
                    self.committed.insert(index, entry.clone());
                }
            }
        }
        node.seen_commit = node.seen_commit.max(commit);
        for (to, from, max_bytes) in fetches {
            self.fetch(n, to, from, max_bytes);
        }
        if !self.nodes[&n].slow_disk {
            self.sync(n);
        }
        any
    }

    fn fetch(&mut self, n: usize, to: MemberId, from: Index, max_bytes: usize) {
        let now = self.now;
        let node = self.nodes.get_mut(&n).unwrap();
        // The log is read behind all writes so far.
        let mut disk = node.disk.clone();
        node.writes.iter().for_each(|op| disk.apply(op));
        let mut entries = Vec::new();
        let mut bytes = 0;
        if from > disk.base() {
            for entry in disk.entries.iter().filter(|e| e.index >= from) {
                bytes += entry.size();
                if !entries.is_empty() && bytes > max_bytes {
                    break;
                }
                entries.push(entry.clone());
            }
        }
        node.raft.fetched(now, to, from, entries);
    }

    /// All writes of this node arrive.
    pub(crate) fn sync(&mut self, n: usize) {
        while self.sync_one(n) {}
    }

    /// The oldest write of this node arrives.
    pub(crate) fn sync_one(&mut self, n: usize) -> bool {
        let now = self.now;
        let node = self.nodes.get_mut(&n).unwrap();
        let Some(op) = node.writes.pop_front() else { return false };
        node.disk.apply(&op);
        node.raft.written(now, op.ticket);
        node.disk.commit_hint = node.raft.deliverable();
        // Persisted entries exist, equal the core's entries, and no later write removes them.
        let persisted = node.raft.persisted();
        let known = node.raft.first_index()..=persisted;
        for entry in node.disk.entries.iter().filter(|e| known.contains(&e.index)) {
            assert_eq!(node.raft.term_at(entry.index), Some(entry.term), "member {n} at {}", entry.index);
        }
        assert!(persisted <= node.disk.last());
        for op in &node.writes {
            assert!(
                op.truncate_from.is_none_or(|from| from > persisted),
                "member {n} gives up what it vouched for"
            );
        }
        true
    }

    /// Delivers one message.
    pub(crate) fn deliver(&mut self, from: usize, to: usize, message: Message) {
        if self.cut.contains(&(from, to)) {
            return;
        }
        let now = self.now;
        if let Some(node) = self.nodes.get_mut(&to)
            && node.up
        {
            self.relayed += matches!(message, Message::Relayed { .. }) as usize;
            node.raft.step(now, id(from), message);
        }
    }

    /// Delivers and drains until nobody has anything to say, not even a leader that keeps the news of a commit for a
    /// moment.
    pub(crate) fn settle(&mut self) {
        self.quiet();
        let soon = self.now + 1_000;
        let waits = |node: &Node, now: Micros| {
            node.up && node.raft.role() == Role::Leader && (now + 1..=soon).contains(&node.raft.deadline())
        };
        if self.nodes.values().any(|node| waits(node, self.now)) {
            for node in self.nodes.values_mut().filter(|node| waits(node, self.now)) {
                node.raft.tick(soon);
            }
            self.now = soon;
            self.quiet();
        }
    }

    /// As [`Net::settle`], but no time passes.
    pub(crate) fn quiet(&mut self) {
        for _ in 0..10_000 {
            let ids: Vec<usize> = self.nodes.keys().copied().collect();
            let mut any = false;
            for n in ids {
                any |= self.drain(n);
            }
            let messages: Vec<_> = self.wire.drain(..).collect();
            any |= !messages.is_empty();
            for (from, to, message) in messages {
                self.deliver(from, to, message);
            }
            if !any {
                return;
            }
        }
        panic!("endless chatter");
    }

    /// Lets time pass, in steps of a quarter of a heartbeat.
    pub(crate) fn run(&mut self, time: Micros) {
        self.settle();
        let end = self.now + time;
        while self.now < end {
            self.now += HEARTBEAT / 4;
            let now = self.now;
            for node in self.nodes.values_mut().filter(|node| node.up) {
                if node.raft.deadline() <= now {
                    node.raft.tick(now);
                }
            }
            self.settle();
        }
    }

    /// Makes this member campaign now, independent of its timers: the others have lost their leader.
    pub(crate) fn elect(&mut self, n: usize) {
        self.settle();
        for _ in 0..50 {
            if self.raft(n).role() == Role::Leader {
                return;
            }
            // Only its own clock reaches a deadline.
            self.now += HEARTBEAT;
            let now = self.now.max(self.raft(n).deadline());
            self.now = now;
            self.raft(n).tick(now);
            self.settle();
        }
        panic!("{n} cannot be elected");
    }

    pub(crate) fn leader(&self) -> Option<usize> {
        let leading = self.nodes.iter().filter(|(_, node)| node.up && node.raft.role() == Role::Leader);
        leading.max_by_key(|(_, node)| node.raft.term()).map(|(n, _)| *n)
    }

    pub(crate) fn propose(&mut self, n: usize, text: &str) -> u64 {
        let now = self.now;
        self.raft(n).propose(now, EntryKind::WriteSet, Bytes::copy_from_slice(text.as_bytes()))
    }

    pub(crate) fn isolate(&mut self, n: usize) {
        let others: Vec<usize> = self.nodes.keys().copied().filter(|other| *other != n).collect();
        for other in others {
            self.cut.insert((n, other));
            self.cut.insert((other, n));
        }
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }

    /// The process dies: unsynced writes are lost.
    pub(crate) fn crash(&mut self, n: usize) {
        let node = self.node(n);
        node.up = false;
        node.writes.clear();
    }

    pub(crate) fn restart(&mut self, n: usize) {
        let now = self.now;
        let node = self.node(n);
        node.up = true;
        node.incarnation += 1;
        let mut config = config(n, node.incarnation);
        (node.config)(&mut config);
        node.raft = Raft::new(config, node.disk.restore(), now);
        node.seen_commit = 0;
        self.set_relay(n);
    }

    /// The texts of the write-sets that are known to be committed.
    pub(crate) fn texts(&self) -> Vec<String> {
        let sets = self.committed.values().filter(|e| e.kind == EntryKind::WriteSet);
        sets.map(|e| String::from_utf8_lossy(&e.payload()).into_owned()).collect()
    }

    /// The entries that this member would deliver.
    pub(crate) fn delivered(&self, n: usize) -> Vec<String> {
        let node = &self.nodes[&n];
        let to = node.raft.deliverable();
        let entries = (1..=to).filter_map(|at| {
            node.raft.entry(at).cloned().or_else(|| node.disk.entries.iter().find(|e| e.index == at).cloned())
        });
        entries
            .filter(|e| e.kind == EntryKind::WriteSet)
            .map(|e| String::from_utf8_lossy(&e.payload()).into_owned())
            .collect()
    }
}
