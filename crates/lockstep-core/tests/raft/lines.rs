//! The network of `net.rs` with time in it: messages take a while, lines carry so many bytes a second and queue the rest,
//! processes stop. 1 leads and is in one zone, 2 beside it; 3 and on are in the other.

use crate::net::*;
use lockstep_core::Micros;
use lockstep_core::codec::Writer;
use lockstep_core::members::Role;
use lockstep_core::message::Message;
use lockstep_core::raft::Config;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const MS: Micros = 1_000;
pub(crate) const SECOND: Micros = 1_000_000;
const STEP: Micros = MS;

/// How messages go from one to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) delay: Micros,
    /// 0: as many as there are.
    pub(crate) bytes_per_ms: u64,
    /// Lines of one cable queue behind each other. 0: a cable of its own.
    pub(crate) cable: usize,
}

impl Line {
    pub(crate) const NEAR: Line = Line { delay: MS, bytes_per_ms: 0, cable: 0 };
    pub(crate) const FAR: Line = Line { delay: 10 * MS, bytes_per_ms: 0, cable: 0 };
}

type Pipe = (usize, usize, usize);

pub(crate) struct Lines {
    pub(crate) net: Net,
    lines: BTreeMap<(usize, usize), Line>,
    /// When a pipe becomes idle.
    free: BTreeMap<Pipe, Micros>,
    on_the_way: BTreeMap<(Micros, u64), (usize, usize, Message)>,
    sent: u64,
    /// It does nothing, and its connections stay.
    pub(crate) frozen: BTreeSet<usize>,
    /// Delay of a process before it reads its input.
    pub(crate) busy: BTreeMap<usize, Micros>,
    /// Bytes of messages that have gone from the leader's zone to the other.
    pub(crate) crossed: u64,
    /// Bytes of proposals that have gone from one to another.
    pub(crate) proposed: BTreeMap<(usize, usize), u64>,
    /// By whom the leader sends to each, each time that this changed.
    pub(crate) relays: Vec<(Micros, BTreeSet<usize>)>,
    /// The most bytes that were ever in a pipe between these.
    pub(crate) most_queued: BTreeMap<(usize, usize), u64>,
}

impl Lines {
    /// All vote: a commit needs one of the other zone.
    pub(crate) fn voters(members: usize, adjust: fn(&mut Config)) -> Lines {
        Lines::of(Net::with(members, adjust), members)
    }

    /// Those of the other zone do not vote.
    pub(crate) fn new(members: usize, adjust: fn(&mut Config)) -> Lines {
        let all = (3..=members).fold(voters(1..=2), |all, n| all.with(member(n, Role::Learner)));
        let mut net = Net::empty();
        for n in 1..=members {
            let disk = DiskImage { bases: vec![genesis(all.clone())], ..DiskImage::default() };
            net.add(n, disk, adjust);
        }
        Lines::of(net, members)
    }

    fn of(mut net: Net, members: usize) -> Lines {
        net.relay();
        net.elect(1);
        let mut lines = BTreeMap::new();
        for from in 1..=members {
            for to in 1..=members {
                let far = (from > 2) != (to > 2);
                lines.insert((from, to), if far { Line::FAR } else { Line::NEAR });
            }
        }
        let mut all = Lines {
            net,
            lines,
            free: BTreeMap::new(),
            on_the_way: BTreeMap::new(),
            sent: 0,
            frozen: BTreeSet::new(),
            busy: BTreeMap::new(),
            crossed: 0,
            proposed: BTreeMap::new(),
            relays: Vec::new(),
            most_queued: BTreeMap::new(),
        };
        all.run(10 * HEARTBEAT);
        all
    }

    pub(crate) fn set(&mut self, from: usize, to: usize, line: Line) {
        self.lines.insert((from, to), line);
    }

    /// All lines from the leader's zone to the other.
    pub(crate) fn set_far(&mut self, line: Line) {
        let far: Vec<_> = self.lines.keys().copied().filter(|(from, to)| *from <= 2 && *to > 2).collect();
        far.into_iter().for_each(|(from, to)| self.set(from, to, line));
    }

    /// Who passes on to others, as the leader has it.
    pub(crate) fn relays_now(&self) -> BTreeSet<usize> {
        let progress = self.net.nodes[&1].raft.progress();
        progress.iter().filter_map(|peer| peer.via).map(number).collect()
    }

    /// How often another relay was taken since the beginning of the test.
    pub(crate) fn changes(&self) -> usize {
        self.relays.len().saturating_sub(1)
    }

    pub(crate) fn run(&mut self, time: Micros) {
        let end = self.net.now + time;
        while self.net.now < end {
            self.step();
        }
    }

    #[track_caller]
    pub(crate) fn until(&mut self, limit: Micros, so: impl Fn(&Lines) -> bool) -> Micros {
        let begin = self.net.now;
        while !so(self) {
            assert!(self.net.now < begin + limit, "not within {limit} µs");
            self.step();
        }
        self.net.now - begin
    }

    /// Up to where this member has it in memory.
    pub(crate) fn has(&self, n: usize) -> u64 {
        self.net.nodes[&n].raft.last_index()
    }

    fn step(&mut self) {
        self.net.now += STEP;
        let now = self.net.now;
        let mut due = BTreeSet::new();
        let mut later = Vec::new();
        while let Some(entry) = self.on_the_way.first_entry()
            && entry.key().0 <= now
        {
            let (_, (from, to, message)) = entry.remove_entry();
            if self.frozen.contains(&to) {
                later.push((from, to, message));
            } else {
                due.insert(to);
                self.net.deliver(from, to, message);
            }
        }
        for (from, to, message) in later {
            self.sent += 1;
            self.on_the_way.insert((now + STEP, self.sent), (from, to, message));
        }
        for (n, node) in self.net.nodes.iter_mut().filter(|(n, _)| !self.frozen.contains(n)) {
            if node.raft.deadline() <= now {
                node.raft.tick(now);
                due.insert(*n);
            }
        }
        due.insert(1);
        while !due.is_empty() {
            due.retain(|n| self.net.drain(*n));
        }
        self.leave();
        let relays = self.relays_now();
        if !relays.is_empty() && self.relays.last().is_none_or(|(_, last)| *last != relays) {
            self.relays.push((now, relays));
        }
    }

    /// Puts the messages on their lines.
    fn leave(&mut self) {
        let now = self.net.now;
        for (from, to, message) in std::mem::take(&mut self.net.wire) {
            let mut w = Writer::new();
            message.encode(&mut w);
            let bytes = w.into_bytes().len() as u64 + 30;
            if matches!(message, Message::Propose { .. }) {
                *self.proposed.entry((from, to)).or_default() += bytes;
            }
            let line = self.lines[&(from, to)];
            let far = |n: usize| usize::from(n > 2);
            if far(from) == 0 && far(to) == 1 {
                self.crossed += bytes;
            }
            let pipe = if line.cable == 0 { (0, from, to) } else { (line.cable, far(from), far(to)) };
            let free = self.free.entry(pipe).or_default();
            *free = (*free).max(now);
            if let Some(takes) = (bytes * MS).checked_div(line.bytes_per_ms) {
                *free += takes;
                let queued = (*free - now) * line.bytes_per_ms / MS;
                let most = self.most_queued.entry((from, to)).or_default();
                *most = (*most).max(queued);
                self.net.raft(from).set_queued(id(to), queued as usize);
            }
            let busy = self.busy.get(&to).copied().unwrap_or(0);
            self.sent += 1;
            self.on_the_way.insert((*free + line.delay + busy, self.sent), (from, to, message));
        }
    }

    /// 1 proposes so many bytes each `every`, for so long.
    pub(crate) fn write(&mut self, bytes: usize, every: Micros, time: Micros) {
        let end = self.net.now + time;
        let text = "x".repeat(bytes);
        while self.net.now < end {
            self.net.propose(1, &text);
            self.run(every);
        }
    }
}
