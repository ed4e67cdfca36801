//! One member: the Raft core and its disk, and what a round of it prints.

use crate::disk::Disk;
use crate::network::Network;
use crate::trace::{self, Trace, id, number};
use lockstep_core::raft::{Config, Failpoints, Output, Raft, Role};
use lockstep_core::{Index, MemberId, Micros};

/// The interval of heartbeats.
const HEARTBEAT: Micros = 100_000;
/// Silence of a leader after which others campaign.
const ELECTION_TIMEOUT: Micros = 600_000;
/// No write of a disk completes for this long: the disk hangs.
const DISK_TIMEOUT: Micros = 5_000_000;

fn config(n: usize, incarnation: u64, max_append_bytes: usize) -> Config {
    Config {
        id: id(n),
        incarnation,
        heartbeat: HEARTBEAT,
        election_timeout: ELECTION_TIMEOUT,
        disk_timeout: DISK_TIMEOUT,
        segment_bytes: 1 << 20,
        max_append_bytes,
        max_inflight_bytes: 4 << 20,
        cache_bytes: 1 << 20,
        max_unwritten_bytes: 256 << 20,
        max_at_risk_bytes: 256 << 20,
        seed: 1,
        failpoints: Failpoints::default(),
    }
}

/// A core that has read its log, and has reported its first state.
fn started(config: Config, disk: &Disk, now: Micros) -> Raft {
    let mut raft = Raft::new(config, disk.restore(), now);
    let first = raft.drain(now);
    assert!(!first.iter().any(|output| matches!(output, Output::Send { .. } | Output::Write(_))));
    raft
}

/// Values that are printed when they change.
#[derive(Clone, PartialEq, Default)]
struct Positions {
    commit: Index,
    deliverable: Index,
    /// Delivered before it is committed, under a weak policy.
    early: Index,
    /// Up to here the policy is met; `None` where commitment is enough.
    policy: Option<Index>,
    fallen_back: bool,
    /// The member's own proposals that it knows to be committed.
    proposals: u64,
}

impl Positions {
    fn of(raft: &Raft) -> Positions {
        Positions {
            commit: raft.commit(),
            deliverable: raft.deliverable(),
            early: raft.early(),
            policy: Some(raft.policy_index()).filter(|index| *index != Index::MAX),
            fallen_back: raft.has_fallen_back(),
            proposals: raft.committed_proposal(),
        }
    }

    /// The values that differ from those before.
    fn changes(&self, before: &Positions) -> Vec<String> {
        let mut changes = Vec::new();
        let mut note = |changed: bool, text: String| changes.extend(changed.then_some(text));
        note(self.commit != before.commit, format!("commit={}", self.commit));
        note(self.deliverable != before.deliverable, format!("deliverable={}", self.deliverable));
        let early = self.early != before.early && self.early > self.deliverable;
        note(early, format!("early={}", self.early));
        let policy = self.policy.map_or("commit".to_string(), |index| index.to_string());
        note(self.policy != before.policy, format!("policy-met={policy}"));
        note(self.fallen_back != before.fallen_back, format!("fallen-back={}", self.fallen_back));
        note(self.proposals != before.proposals, format!("proposals-committed={}", self.proposals));
        changes
    }
}

/// See the module.
pub(crate) struct Member {
    n: usize,
    raft: Raft,
    disk: Disk,
    up: bool,
    incarnation: u64,
    max_append_bytes: usize,
    shown: Positions,
}

impl Member {
    /// Starts a member with the log of this disk.
    pub(crate) fn start(n: usize, disk: Disk, max_append_bytes: usize, now: Micros) -> Member {
        let raft = started(config(n, 1, max_append_bytes), &disk, now);
        let shown = Positions::of(&raft);
        Member { n, raft, disk, up: true, incarnation: 1, max_append_bytes, shown }
    }

    pub(crate) fn raft(&self) -> &Raft {
        &self.raft
    }

    /// For an input; a round is to follow.
    pub(crate) fn raft_mut(&mut self) -> &mut Raft {
        &mut self.raft
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(crate) fn disk_mut(&mut self) -> &mut Disk {
        &mut self.disk
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.up && self.raft.role() == Role::Leader
    }

    /// Ends a round: sends messages, begins writes, and completes them unless the disk is slow.
    pub(crate) fn round(&mut self, now: Micros, network: &mut Network, trace: &mut Trace) {
        loop {
            for output in self.raft.drain(now) {
                self.perform(output, now, network, trace);
            }
            self.show(trace);
            if self.disk.is_slow() || !self.sync_one(now, trace) {
                return;
            }
        }
    }

    fn perform(&mut self, output: Output, now: Micros, network: &mut Network, trace: &mut Trace) {
        let n = self.n;
        match output {
            Output::Send { to, message } => {
                let to = number(to);
                let text = format!("{n}->{to} {}", trace::message(&message));
                let lost = network.post(n, to, message);
                trace.event(if lost { text + " (lost)" } else { text });
            }
            Output::Write(op) => {
                trace.event(format!("{n} writes {}", trace::write(&op)));
                self.disk.begin(op);
            }
            Output::Fetch { to, from, max_bytes } => {
                let entries = self.disk.read(from, max_bytes);
                self.raft.fetched(now, to, from, entries);
                for output in self.raft.drain(now) {
                    self.perform(output, now, network, trace);
                }
            }
            Output::Soft { role, term, leader } => {
                let leader = leader.filter(|leader| *leader != id(n));
                let of = leader.map_or(String::new(), |leader| format!(" of {}", number(leader)));
                trace.change(format!("{n} is {role:?}{of} in term {term}"));
            }
            Output::ReadReady { context, index } => {
                trace.change(format!("{n} read #{} may be served from index {index}", trace::read(context)));
            }
            Output::ReadFailed { context } => {
                trace.change(format!("{n} read #{} failed", trace::read(context)));
            }
            Output::DisksHang { disks } => {
                let of = |(id, time): &(MemberId, Micros)| format!("{} for {} ms", number(*id), time / 1_000);
                let disks: Vec<String> = disks.iter().map(of).collect();
                trace.change(format!("{n} stops leading: disks hang: {}", disks.join(", ")));
            }
            Output::Diverged { from, kept: _ } => {
                trace.change(format!("{n} has diverged: it delivered entries from {from} on that are lost"));
            }
            Output::Membership(membership) => {
                trace.change(format!("{n} has membership {}", trace::membership(&membership)));
            }
            // Shown with the other positions.
            Output::Commit { .. } => {}
        }
    }

    fn show(&mut self, trace: &mut Trace) {
        let positions = Positions::of(&self.raft);
        let changes = positions.changes(&self.shown);
        if !changes.is_empty() {
            trace.change(format!("{} {}", self.n, changes.join(" ")));
        }
        self.shown = positions;
    }

    /// Completes the oldest write. Whether there was one. A round is to follow.
    pub(crate) fn sync_one(&mut self, now: Micros, trace: &mut Trace) -> bool {
        let Some(ticket) = self.disk.complete() else { return false };
        trace.event(format!("{} synced #{ticket}", self.n));
        self.raft.written(now, ticket);
        self.disk.set_commit_hint(self.raft.deliverable());
        true
    }

    /// The process ends.
    pub(crate) fn crash(&mut self) {
        self.up = false;
        self.disk.crash();
    }

    /// The process starts again, and reads its log.
    pub(crate) fn restart(&mut self, now: Micros) {
        self.up = true;
        self.incarnation += 1;
        let config = config(self.n, self.incarnation, self.max_append_bytes);
        self.raft = started(config, &self.disk, now);
        self.shown = Positions::of(&self.raft);
    }

    /// `1 Leader term=2 last=4/2 commit=4 persisted=4 deliverable=4`.
    pub(crate) fn status(&self) -> String {
        if !self.up {
            return format!("{} is down", self.n);
        }
        let raft = &self.raft;
        let last = raft.last_index();
        let last_term = raft.term_at(last).unwrap_or(0);
        let Positions { commit, deliverable, early, .. } = Positions::of(raft);
        let of = raft.leader().filter(|leader| *leader != id(self.n));
        let of = of.map_or(String::new(), |leader| format!(" of {}", number(leader)));
        let early = if early > deliverable { format!(" early={early}") } else { String::new() };
        format!(
            "{} {:?}{of} term={} last={last}/{last_term} commit={commit} persisted={} deliverable={deliverable}{early}",
            self.n,
            raft.role(),
            raft.term(),
            raft.persisted()
        )
    }
}
