//! A few nodes in one test, under a fake clock: a network with a delay of a millisecond, and disks and databases that
//! can be made to hang. A member that is cut off keeps running, as if its cables were pulled.

use super::context::Context;
use super::disks::Disk;
use super::{Admission, Member, Micros};
use crate::api::{CommitBarrier, ConnectArgs, Delivery, FrontEnd, StatementResult, Tuning};
use crate::effect::Effect;
use crate::effect::TrimLimits;
use crate::operator::{Answer, Command};
use crate::status::MemberStatus;
use crate::submit::Submission;
use crate::wire::Hello;
use bytes::Bytes;
use lockstep_core::policy::Policy;
use lockstep_core::raft::{Config, Failpoints, Raft};
use lockstep_core::writeset::{DataKind, KeyType, Meta, WriteSetBuilder, flags};
use lockstep_core::{EntryKind, Gtid, Index, MemberId, Seqno, Uuid};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// The delay of a link.
const HOP: Micros = 1_000;
/// The clock's advance per step.
pub(super) const STEP: Micros = 500;
/// The wall clock at the lab's start.
pub(super) const WALL: Micros = 1_000_000_000_000_000;

/// Holds the commits of a server above `limit`.
pub(super) struct Commits {
    limit: AtomicI64,
    finished: Arc<AtomicI64>,
}

impl CommitBarrier for Commits {
    fn close(&self) -> Seqno {
        let at = self.finished.load(Ordering::Acquire);
        self.until(at);
        at
    }

    fn until(&self, seqno: Seqno) {
        self.limit.store(seqno, Ordering::Release);
    }

    fn open(&self) -> bool {
        self.limit.swap(Seqno::MAX, Ordering::AcqRel) != Seqno::MAX
    }
}

/// The identity of a member, across restarts.
pub(super) struct TestSetup {
    pub(super) hello: Hello,
    pub(super) tuning: Tuning,
    /// How often it was started.
    pub(super) starts: u64,
    adjust: fn(&mut Config),
}

impl TestSetup {
    pub(super) fn config(&self) -> Config {
        let TestSetup { hello, tuning, .. } = self;
        let mut config = Config {
            id: hello.id,
            incarnation: self.starts << 20,
            heartbeat: tuning.heartbeat.as_micros() as Micros,
            election_timeout: tuning.election_timeout.as_micros() as Micros,
            disk_timeout: tuning.disk_timeout.as_micros() as Micros,
            segment_bytes: tuning.segment_bytes,
            max_append_bytes: 1 << 20,
            max_inflight_bytes: 16 << 20,
            cache_bytes: 64 << 20,
            max_unwritten_bytes: 256 << 20,
            max_at_risk_bytes: 44 << 20,
            seed: u64::from(hello.id.0[0]) + self.starts - 1,
            failpoints: Failpoints::default(),
        };
        (self.adjust)(&mut config);
        config
    }
}

pub(super) struct Node {
    pub(super) member: Member,
    pub(super) setup: TestSetup,
    /// The process runs.
    pub(super) up: bool,
    pub(super) finished: Arc<AtomicI64>,
    commits: Arc<Commits>,
    /// Frames on their way to this node: due time, sender, kind, payload.
    inbox: VecDeque<(Micros, usize, u8, Bytes)>,
    /// The disk writes nothing.
    pub(super) disk_hangs: bool,
    /// The database finishes nothing.
    pub(super) database_hangs: bool,
    to_finish: Vec<Seqno>,
    /// The process does nothing at all; its connections stay.
    pub(super) frozen: bool,
    /// The highest protocol version that it supports.
    pub(super) version: u16,
    /// Bytes of frames sent, by recipient.
    pub(super) sent: BTreeMap<usize, usize>,
    /// Bytes per millisecond on the link to each other node, if limited.
    pub(super) line: Option<usize>,
    /// Until when such a link is busy.
    line_busy: BTreeMap<usize, Micros>,
    pub(super) views: Vec<Vec<String>>,
    /// Other members' write-sets, as delivered to the appliers.
    pub(super) applied: Vec<(Seqno, Bytes)>,
    /// Those of them that failed certification.
    pub(super) refused: Vec<Seqno>,
    /// Results of statements, as delivered.
    pub(super) results: Vec<StatementResult>,
    /// The last trim limits.
    pub(super) trim: Option<TrimLimits>,
    /// A state transfer that the server requests does not finish.
    pub(super) copy_takes_long: bool,
    /// The disk's contents.
    pub(super) disk: Disk,
}

pub(super) struct Lab {
    pub(super) nodes: Vec<Node>,
    pub(super) now: Micros,
    /// Connected pairs, the smaller first.
    links: BTreeSet<(usize, usize)>,
    /// Pairs whose connection one node has closed; it will be renewed.
    relinks: BTreeSet<(usize, usize)>,
    /// Pairs that cannot be connected.
    pub(super) severed: BTreeSet<(usize, usize)>,
    /// Changes to the default configuration of Raft.
    pub(super) adjust: fn(&mut Config),
    /// Results of causal reads: the node, the read's number, and the seqno it sees.
    pub(super) causal: Vec<(usize, u64, Option<Seqno>)>,
    pub(super) answers: Vec<(usize, u64, Answer)>,
    pub(super) committed_position: BTreeMap<u64, Result<Gtid, String>>,
    pub(super) lines: Vec<(usize, String)>,
    pub(super) events: Vec<(usize, String)>,
    /// Results of policy requests: when, and on which node.
    pub(super) policies: Vec<(Micros, usize, Result<(), String>)>,
    /// Nodes that were told that no state can be had.
    pub(super) failed: Vec<(usize, String)>,
    /// Nodes whose logs are to be quarantined.
    pub(super) quarantined: Vec<usize>,
    /// Dialed addresses, by node.
    pub(super) dials: Vec<(usize, String)>,
    /// The database position of the next new member, and the log with which it got there.
    pub(super) data: (Gtid, Uuid),
    tokens: u64,
    /// How many restarts there were, plus an offset.
    restarts: u8,
}

pub(super) fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

/// The context of a member that leads a cluster of its own, for tests of single components.
pub(super) fn context() -> Context {
    let mut lab = Lab::new(1, &Tuning::default());
    lab.until("it leads", 5_000_000, |lab| lab.nodes[0].member.ctx.connection().is_primary());
    let mut ctx = lab.nodes.remove(0).member.ctx;
    ctx.take_outputs(&mut Vec::new(), &mut Vec::new());
    ctx
}

/// Raft of a member that knows no other one.
pub(super) fn leaderless() -> Raft {
    let mut lab = Lab::empty();
    lab.add(&Tuning::default(), |_| {});
    let config = lab.nodes[0].setup.config();
    Raft::new(config, None, 0)
}

/// The connect arguments of a member with this database position.
pub(super) fn args_at(position: Gtid) -> ConnectArgs {
    ConnectArgs {
        cluster: "test".into(),
        peers: Vec::new(),
        bootstrap: false,
        position,
        log: Uuid::NIL,
        by_donor: false,
        in_doubt: None,
        timeout: Duration::from_secs(3600),
        waits_for_others: false,
        needs_state: false,
        followed: None,
    }
}

impl Lab {
    /// A cluster of this many voters; the first leads.
    pub(super) fn new(members: usize, tuning: &Tuning) -> Lab {
        let mut lab = Lab::empty();
        for at in 0..members {
            lab.add(tuning, |_| {});
            lab.until("it votes", 20_000_000, |lab| {
                lab.nodes[0].member.ctx.raft.membership().voters().count() == at + 1
            });
        }
        lab
    }

    /// A lab without nodes.
    pub(super) fn empty() -> Lab {
        Lab {
            nodes: Vec::new(),
            now: 0,
            links: BTreeSet::new(),
            relinks: BTreeSet::new(),
            severed: BTreeSet::new(),
            adjust: |_| {},
            causal: Vec::new(),
            answers: Vec::new(),
            committed_position: BTreeMap::new(),
            lines: Vec::new(),
            events: Vec::new(),
            policies: Vec::new(),
            failed: Vec::new(),
            quarantined: Vec::new(),
            dials: Vec::new(),
            data: (Gtid::UNDEFINED, Uuid::NIL),
            tokens: 0,
            restarts: 0xd0,
        }
    }

    /// Adds a member.
    pub(super) fn add(&mut self, tuning: &Tuning, change: impl FnOnce(&mut Hello)) {
        let at = self.nodes.len();
        let byte = at as u8 + 1;
        let id = Uuid([byte; 16]);
        let mut me = Hello {
            id,
            incarnation: 1 << 20,
            view_uuid: Uuid([byte | 0x40; 16]),
            history: Uuid::NIL,
            log_id: Uuid::NIL,
            parents: Vec::new(),
            forks: Vec::new(),
            last_index: 0,
            name: format!("n{}", at + 1),
            address: format!("10.0.0.{byte}:4567"),
            incoming: format!("10.0.0.{byte}:3306"),
            zone: 0,
            wants_vote: true,
            arbitrator: false,
            donates: true,
            device: false,
        };
        change(&mut me);
        let view_uuid = me.view_uuid;
        let (position, log) = self.data;
        let finished = Arc::new(AtomicI64::new(position.seqno));
        let setup = TestSetup { hello: me.clone(), tuning: tuning.clone(), starts: 1, adjust: self.adjust };
        let raft = Raft::new(setup.config(), None, self.now);
        let mut member = Member::new(raft, me, tuning.clone(), finished.clone(), self.now);
        let commits = Arc::new(Commits { limit: AtomicI64::new(Seqno::MAX), finished: finished.clone() });
        if !member.ctx.me().arbitrator {
            member.set_commit_barrier(Some(commits.clone()));
        }
        // A copy with data founds no group, so a test founds its log by another front end.
        if member.ctx.me().device && !position.is_defined() {
            member.set_front_end(FrontEnd::Device);
        }
        member.at(self.now, WALL + self.now);
        let args = ConnectArgs { bootstrap: at == 0, log, ..args_at(position) };
        member.connect(args, view_uuid, Uuid([0x77; 16])).unwrap();
        self.nodes.push(Node {
            member,
            setup,
            up: true,
            finished,
            commits,
            inbox: VecDeque::new(),
            disk_hangs: false,
            database_hangs: false,
            to_finish: Vec::new(),
            frozen: false,
            version: lockstep_net::VERSIONS.1,
            sent: BTreeMap::new(),
            line: None,
            line_busy: BTreeMap::new(),
            views: Vec::new(),
            applied: Vec::new(),
            refused: Vec::new(),
            results: Vec::new(),
            trim: None,
            disk: Disk::default(),
            copy_takes_long: false,
        });
        for other in 0..at {
            self.link(at, other);
        }
    }

    /// Restarts a member's server; its log stays.
    pub(super) fn restart(&mut self, at: usize, change: impl FnOnce(&mut ConnectArgs)) {
        let linked: Vec<usize> =
            (0..self.nodes.len()).filter(|other| self.links.contains(&pair(at, *other))).collect();
        for other in &linked {
            self.unlink(at, *other);
        }
        let mut args = args_at(Gtid::UNDEFINED);
        change(&mut args);
        let node = &mut self.nodes[at];
        node.finished.store(args.position.seqno, Ordering::Release);
        node.to_finish.clear();
        node.member.ctx.disconnected();
        node.member.delivery.deliverer.stop();
        self.restarts += 1;
        let mut view_uuid = Uuid([at as u8 | 0xc0; 16]);
        view_uuid.0[0] = self.restarts;
        node.member.connect(args, view_uuid, Uuid([0x78; 16])).unwrap();
        for other in linked {
            self.link(at, other);
        }
    }

    /// The member's process ends.
    pub(super) fn stop(&mut self, at: usize) {
        self.cut(at, true);
        self.nodes[at].up = false;
    }

    /// A new process of the member begins with this disk. `starts`: how often its log was opened, as the disk says.
    pub(super) fn boot(&mut self, at: usize, disk: Disk, starts: u64) {
        self.boot_at(at, disk, starts, Gtid::UNDEFINED);
    }

    /// The same, with a database at this position.
    pub(super) fn boot_at(&mut self, at: usize, disk: Disk, starts: u64, position: Gtid) {
        self.boot_with(at, disk, starts, args_at(position));
    }

    /// The same, with these arguments.
    pub(super) fn boot_with(&mut self, at: usize, disk: Disk, starts: u64, args: ConnectArgs) {
        let position = args.position;
        self.stop(at);
        self.restarts += 1;
        let mut view_uuid = Uuid([at as u8 | 0xc0; 16]);
        view_uuid.0[0] = self.restarts;
        let (now, node) = (self.now, &mut self.nodes[at]);
        node.setup.starts = starts;
        let raft = Raft::new(node.setup.config(), disk.restored(), now);
        let me = Hello { incarnation: starts << 20, view_uuid, ..node.setup.hello.clone() };
        node.finished = Arc::new(AtomicI64::new(position.seqno));
        node.commits =
            Arc::new(Commits { limit: AtomicI64::new(Seqno::MAX), finished: node.finished.clone() });
        node.member = Member::new(raft, me, node.setup.tuning.clone(), node.finished.clone(), now);
        disk.entries().for_each(|entry| node.member.remember(entry));
        node.member.set_commit_barrier(Some(node.commits.clone()));
        node.member.at(now, WALL + now);
        node.member.connect(args, view_uuid, Uuid([0x78; 16])).unwrap();
        node.disk = disk;
        node.inbox.clear();
        node.to_finish.clear();
        node.up = true;
        self.cut(at, false);
    }

    /// Changes the policy, and returns once it is in force on all members.
    pub(super) fn set_policy(&mut self, change: impl FnOnce(&mut Policy)) {
        let mut policy = self.nodes[0].member.ctx.raft.policy();
        change(&mut policy);
        self.nodes[0].member.request_policy(|wanted| *wanted = policy);
        self.until("the policy is in force", 5_000_000, |lab| {
            lab.nodes.iter().all(|node| node.member.ctx.raft.committed_state().policy == policy)
        });
    }

    /// Cuts a member off, or reconnects it.
    pub(super) fn cut(&mut self, at: usize, cut: bool) {
        self.relinks.retain(|(a, b)| ![a, b].contains(&&at));
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            if cut { self.unlink(at, other) } else { self.link(at, other) }
        }
    }

    /// Whether two nodes are connected.
    pub(super) fn linked(&self, a: usize, b: usize) -> bool {
        self.links.contains(&pair(a, b))
    }

    /// Connects two nodes, if both accept.
    pub(super) fn link(&mut self, a: usize, b: usize) {
        let can = !self.severed.contains(&pair(a, b)) && self.nodes[a].up && self.nodes[b].up;
        if self.links.contains(&pair(a, b)) || !can {
            return;
        }
        let hello = |lab: &Lab, n: usize| lab.nodes[n].member.introduction();
        let (ha, hb) = (hello(self, a), hello(self, b));
        for (n, other) in [(a, &hb), (b, &ha)] {
            let member = &mut self.nodes[n].member;
            if matches!(member.admit(other), Admission::Superseded(_)) {
                member.met_branch(other);
            }
        }
        let welcome = |lab: &Lab, n: usize, other: &Hello| {
            let member = &lab.nodes[n].member;
            member.ctx.connection().is_connected() && member.admit(other) == Admission::Welcome
        };
        if welcome(self, a, &hb) && welcome(self, b, &ha) {
            self.links.insert(pair(a, b));
            self.nodes[a].member.peer_up(hb);
            self.nodes[b].member.peer_up(ha);
            let version = self.nodes[a].version.min(self.nodes[b].version);
            let (ia, ib) = (self.id(a), self.id(b));
            self.nodes[a].member.on_peer_version(ib, version);
            self.nodes[b].member.on_peer_version(ia, version);
        }
    }

    /// Renews the connection between two nodes.
    pub(super) fn relink(&mut self, a: usize, b: usize) {
        self.unlink(a, b);
        self.link(a, b);
    }

    /// The members in this node's status.
    pub(super) fn members(&self, at: usize) -> Vec<MemberStatus> {
        self.nodes[at].member.members_status()
    }

    pub(super) fn unlink(&mut self, a: usize, b: usize) {
        if self.links.remove(&pair(a, b)) {
            let (ia, ib) = (self.id(a), self.id(b));
            self.nodes[a].inbox.retain(|(_, from, ..)| *from != b);
            self.nodes[b].inbox.retain(|(_, from, ..)| *from != a);
            self.nodes[a].member.peer_down(ib, "cut");
            self.nodes[b].member.peer_down(ia, "cut");
        }
    }

    pub(super) fn id(&self, at: usize) -> MemberId {
        self.nodes[at].member.ctx.me().id
    }

    pub(super) fn index_of(&self, id: &MemberId) -> usize {
        (0..self.nodes.len()).find(|at| self.id(*at) == *id).expect("a member of the lab")
    }

    /// The leader, as this member knows it.
    pub(super) fn leader(&self, at: usize) -> Option<usize> {
        self.nodes[at].member.ctx.raft.leader().map(|id| self.index_of(&id))
    }

    /// The names of the voters, as this member knows them.
    pub(super) fn voters(&self, at: usize) -> Vec<String> {
        let membership = self.nodes[at].member.ctx.raft.membership();
        membership.members.iter().filter(|m| m.role.votes()).map(|m| m.name.clone()).collect()
    }

    /// Whether any member has logged a line with this text.
    pub(super) fn logged(&self, text: &str) -> bool {
        self.lines.iter().any(|(_, line)| line.contains(text))
    }

    /// Submits a write-set on a member.
    pub(super) fn write(&mut self, at: usize) -> Submission {
        self.write_bytes(at, b"row")
    }

    /// The same, with these data.
    pub(super) fn write_bytes(&mut self, at: usize, data: &[u8]) -> Submission {
        self.write_flagged(at, data, flags::TRX_START | flags::TRX_END)
    }

    /// Submits the first fragment of a streaming transaction.
    pub(super) fn write_fragment(&mut self, at: usize) -> Submission {
        self.write_flagged(at, b"row", flags::TRX_START)
    }

    pub(super) fn write_flagged(&mut self, at: usize, data: &[u8], flags: u32) -> Submission {
        let last_seen = self.nodes[at].member.delivery.deliverer.delivered();
        self.write_seen(at, data, flags, last_seen)
    }

    /// Submits a write-set whose origin has seen nothing after this seqno.
    pub(super) fn write_seen(&mut self, at: usize, data: &[u8], flags: u32, last_seen: Seqno) -> Submission {
        let mut builder = WriteSetBuilder::new();
        let key = self.now.to_le_bytes();
        builder.append_key(&[b"t", &key], KeyType::Exclusive).unwrap();
        builder.append_data(DataKind::Ordered, data).unwrap();
        let member = &mut self.nodes[at].member;
        let payload = builder.finish(&Meta {
            flags,
            last_seen,
            source: member.ctx.me().view_uuid,
            epoch: 0,
            conn: 1,
            trx: 1,
        });
        let submission = Submission::new();
        member.submit(EntryKind::WriteSet, payload, submission.filler());
        submission
    }

    /// Writes on the first two members until they need not keep what a third one lacks after `last`, and trims their logs.
    pub(super) fn outlive_log_of_third(&mut self, last: Index) {
        // Certification may forget what is older than 15 s; the log continues from the mark before the last.
        for n in 0..160 {
            self.write(n % 2);
            self.run(500_000);
        }
        for at in 0..2 {
            let first = self.nodes[at].trim.expect("segments may go").below;
            assert!(first > last + 1, "n3 lacks entries before {first}");
            self.nodes[at].member.log_trimmed(first, false);
        }
    }

    /// Gives a command to a member; returns its token.
    pub(super) fn command(&mut self, at: usize, command: Command) -> u64 {
        self.tokens += 1;
        let fresh = Uuid([0x80 | at as u8; 16]);
        self.nodes[at].member.command(self.tokens, command, fresh);
        self.tokens
    }

    /// The answer to a command; it must come within the time limit.
    pub(super) fn answer(&mut self, token: u64) -> Answer {
        self.until("a command is answered", 15_000_000, |lab| lab.answers.iter().any(|a| a.1 == token));
        self.answers.iter().find(|a| a.1 == token).map(|a| a.2.clone()).expect("it is there")
    }

    /// Queries a member for the committed position; returns the query's token.
    pub(super) fn query_committed_position(&mut self, at: usize) -> u64 {
        self.tokens += 1;
        self.nodes[at].member.query_committed_position(self.tokens);
        self.tokens
    }

    /// The answer; it must come within the time limit.
    pub(super) fn committed_position(&mut self, token: u64) -> Result<Gtid, String> {
        self.until("a question is answered", 5_000_000, |lab| lab.committed_position.contains_key(&token));
        self.committed_position[&token].clone()
    }

    /// Runs until the condition holds.
    #[track_caller]
    pub(super) fn until(&mut self, what: &str, limit: Micros, so: impl Fn(&Lab) -> bool) {
        let end = self.now + limit;
        while !so(self) {
            assert!(self.now < end, "not within {limit} µs: {what}\n{:#?}", self.lines);
            self.step();
        }
    }

    /// Runs for this long.
    pub(super) fn run(&mut self, time: Micros) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    pub(super) fn step(&mut self) {
        self.now += STEP;
        for (a, b) in self.relinks.clone() {
            self.link(a, b);
            if self.links.contains(&(a, b)) {
                self.relinks.remove(&(a, b));
            }
        }
        for at in 0..self.nodes.len() {
            if self.nodes[at].up && !self.nodes[at].frozen {
                self.round(at);
            }
        }
    }

    fn round(&mut self, at: usize) {
        let now = self.now;
        let ids: Vec<MemberId> = (0..self.nodes.len()).map(|n| self.id(n)).collect();
        let node = &mut self.nodes[at];
        node.member.at(now, WALL + now);
        while node.inbox.front().is_some_and(|(due, ..)| *due <= now)
            && let Some((_, from, kind, payload)) = node.inbox.pop_front()
        {
            node.member.frame(ids[from], kind, payload);
        }
        if !node.disk_hangs {
            if let Some(ticket) = node.disk.sync() {
                node.member.written(ticket);
            }
            for (request, result) in node.disk.read() {
                node.member.read(request, result);
            }
        }
        if !node.database_hangs {
            let limit = node.commits.limit.load(Ordering::Acquire);
            node.to_finish.retain(|seqno| {
                let held = *seqno > limit;
                if !held {
                    node.finished.fetch_max(*seqno, Ordering::AcqRel);
                }
                held
            });
        }
        node.member.round(true);
        let (mut effects, mut deliveries) = (Vec::new(), Vec::new());
        node.member.take(&mut effects, &mut deliveries);
        node.member.wake();
        for delivery in deliveries {
            self.deliver(at, delivery);
        }
        for effect in effects {
            self.effect(at, effect);
        }
    }

    fn deliver(&mut self, at: usize, delivery: Delivery) {
        let node = &mut self.nodes[at];
        match delivery {
            Delivery::StateNeeded { bypass: true } => {
                node.member.request_state(Bytes::from_static(b"word"), String::new());
            }
            Delivery::StateFailed(text) => self.failed.push((at, text)),
            Delivery::StateNeeded { .. } if node.copy_takes_long => {}
            Delivery::StateNeeded { .. } => {
                let state = node.member.ctx.raft.committed_state();
                let gtid = Gtid { uuid: state.history, seqno: state.seqno };
                node.finished.store(gtid.seqno, Ordering::Release);
                node.member.state_received(Ok(gtid));
            }
            Delivery::View { info, in_log } => {
                if in_log {
                    node.to_finish.push(info.gtid.seqno);
                }
                node.views.push(info.members.iter().map(|m| m.name.clone()).collect());
            }
            Delivery::Ordered(ordered) => {
                node.to_finish.push(ordered.seqno);
                if !ordered.pass {
                    node.refused.push(ordered.seqno);
                }
                node.applied.push((ordered.seqno, ordered.writeset.data));
            }
            Delivery::Result(result) => node.results.push(result),
            _ => {}
        }
    }

    fn effect(&mut self, at: usize, effect: Effect) {
        match effect {
            Effect::Send { to, kind, payload } => {
                let payload = Bytes::from(payload.concat());
                let to = self.index_of(&to);
                *self.nodes[at].sent.entry(to).or_default() += payload.len();
                if self.links.contains(&pair(at, to)) {
                    let node = &mut self.nodes[at];
                    let mut leaves = self.now;
                    if let Some(line) = node.line {
                        let busy = node.line_busy.entry(to).or_default();
                        leaves = leaves.max(*busy) + (payload.len() * 1_000 / line) as Micros;
                        *busy = leaves;
                    }
                    let inbox = &mut self.nodes[to].inbox;
                    let place = inbox.partition_point(|(due, ..)| *due <= leaves + HOP);
                    inbox.insert(place, (leaves + HOP, at, kind, payload));
                }
            }
            Effect::Write { .. } | Effect::Read(_) => self.disk_effect(at, effect),
            Effect::Drop(id) => {
                let other = self.index_of(&id);
                self.unlink(at, other);
                self.relinks.insert(pair(at, other));
            }
            Effect::QuarantineLog(_) => self.quarantined.push(at),
            Effect::Left => self.cut(at, true),
            Effect::Dial(address) => self.dials.push((at, address)),
            Effect::Log(_, line) => self.lines.push((at, line)),
            Effect::Answer { token, answer } => self.answers.push((at, token, answer)),
            Effect::CommittedPosition { token, result } => {
                drop(self.committed_position.insert(token, result))
            }
            Effect::TrimLog(limits) => self.nodes[at].trim = Some(limits),
            Effect::PolicyChanged(result) => self.policies.push((self.now, at, result)),
            Effect::Event(text) => self.events.push((at, text)),
            Effect::Causal { id, seqno } => self.causal.push((at, id, seqno)),
            Effect::PolicyNow(_) | Effect::Connected(_) | Effect::Progress { .. } => {}
        }
    }
}
