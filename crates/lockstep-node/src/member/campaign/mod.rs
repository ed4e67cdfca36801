//! Random faults on complete nodes, drawn from a seed, with invariants checked all the while; the simulator
//! (`lockstep-sim`) tests the core alone. Members crash and restart from their disks, links break, disks, databases and
//! processes hang, policies change and leadership moves, while clients write and read. Finally all faults end: all
//! members must then reach the same database, with every acknowledged write.

mod faults;
mod judge;
mod server;
mod streams;
mod tests;

use super::harness::{Lab, STEP};
use super::membership::connection_state::ConnectionState;
use crate::api::{LocalState, SubmitOutcome, Tuning};
use crate::submit::Submission;
use faults::End;
use judge::Judge;
use lockstep_core::raft::{Config, Failpoint};
use lockstep_core::writeset::{DataKind, KeyType, Meta, WriteSetBuilder, flags};
use lockstep_core::{EntryKind, Micros, Seqno};
use lockstep_sim::rng::Rng;
use server::Mark;
pub(super) use server::Server;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// After the faults end, all members must be well within this time.
const CALM_TIMEOUT: Micros = 90_000_000;
/// How long clients stay at one member.
const CLIENTS_STAY: Micros = 20_000_000;
/// The maximum of writes under way.
const WRITES_MAX: usize = 30;

/// A write that has not been answered.
struct Write {
    at: usize,
    starts: u64,
    mark: Mark,
    submission: Submission,
}

/// A read that must see all writes acknowledged before it.
struct Read {
    at: usize,
    starts: u64,
    id: u64,
    floor: Seqno,
}

struct World {
    lab: Lab,
    rng: Rng,
    judge: Judge,
    writes: Vec<Write>,
    reads: Vec<Read>,
    streaming: Vec<streams::Client>,
    marks: Mark,
    ends: Vec<(Micros, End)>,
    /// The number of zones.
    zones: usize,
    answers: usize,
    /// Answered parts of streaming transactions.
    parts: usize,
    crashes: usize,
    copies: usize,
    events: Vec<(Micros, String)>,
}

fn small(config: &mut Config) {
    config.cache_bytes = 16 << 10;
    config.max_append_bytes = 8 << 10;
    config.max_inflight_bytes = 64 << 10;
    config.max_unwritten_bytes = 256 << 10;
    config.max_at_risk_bytes = 256 << 10;
}

impl World {
    fn new(seed: u64, failpoint: Option<Failpoint>) -> World {
        let mut rng = Rng::new(seed);
        let mut tuning = Tuning { follow_writer: rng.one_in(2), ..Tuning::default() };
        tuning.disk_timeout = Duration::from_millis(*rng.pick(&[0, 1000, 5000]));
        tuning.relay = rng.one_in(2);
        let mut lab = Lab::empty();
        lab.failpoint = failpoint;
        if rng.one_in(2) {
            tuning.segment_bytes = 32 << 10;
            lab.adjust = small;
        }
        let members = *rng.pick(&[2, 3, 3, 3, 4, 5]);
        let zones = *rng.pick(&[1, 1, 2, 3]);
        let (learner, arbitrator) = (rng.one_in(4), rng.one_in(4));
        for at in 0..members {
            let last = at > 1 && at + 1 == members;
            lab.add(&tuning, |hello| {
                hello.zone = (at % zones) as u8;
                hello.wants_vote = !(last && learner);
                hello.arbitrator = last && !learner && arbitrator;
            });
            lab.nodes[at].server = Some(Box::new(Server::new()));
        }
        let mut world = World {
            lab,
            rng,
            judge: Judge::default(),
            writes: Vec::new(),
            reads: Vec::new(),
            streaming: Vec::new(),
            marks: 0,
            ends: Vec::new(),
            zones,
            answers: 0,
            parts: 0,
            crashes: 0,
            copies: 0,
            events: Vec::new(),
        };
        world.note(format!("{members} members, {zones} zones, learner {learner}, arbitrator {arbitrator}"));
        world
    }

    fn note(&mut self, text: String) {
        self.events.push((self.lab.now, text));
    }

    fn up(&self) -> Vec<usize> {
        (0..self.lab.nodes.len()).filter(|at| self.lab.nodes[*at].up).collect()
    }

    fn server(&mut self, at: usize) -> &mut Server {
        self.lab.nodes[at].server.as_mut().expect("each has one")
    }

    fn write(&mut self, at: usize) {
        self.marks += 1;
        let mark = self.marks;
        let size = match self.rng.below(200) {
            0 => 2_500_000,
            1..20 => 5_000,
            _ => 100,
        };
        let mut data = mark.to_le_bytes().to_vec();
        data.resize(size, 7);
        let mut builder = WriteSetBuilder::new();
        let key = self.rng.below(40).to_le_bytes();
        builder.append_key(&[b"t", &key], KeyType::Exclusive).unwrap();
        builder.append_data(DataKind::Ordered, &data).unwrap();
        let kind = if self.rng.one_in(30) { EntryKind::TotalOrder } else { EntryKind::WriteSet };
        let (flags, trx) = match kind == EntryKind::WriteSet && self.rng.one_in(4) {
            true => self.part(at, mark),
            false => (flags::TRX_START | flags::TRX_END, mark),
        };
        let node = &mut self.lab.nodes[at];
        let payload = builder.finish(&Meta {
            flags,
            last_seen: node.finished.load(Ordering::Acquire),
            source: node.member.ctx.me.view_uuid,
            epoch: 0,
            conn: 1,
            trx,
        });
        let submission = Submission::new();
        node.member.submit(kind, payload, submission.filler());
        let starts = node.setup.starts;
        self.writes.push(Write { at, starts, mark, submission });
    }

    fn read(&mut self, at: usize) {
        self.marks += 1;
        let (id, floor) = (self.marks, self.judge.durable);
        let node = &mut self.lab.nodes[at];
        node.member.causal_read(id);
        let starts = node.setup.starts;
        self.reads.push(Read { at, starts, id, floor });
    }

    /// Runs the clients.
    fn clients(&mut self) {
        let up: Vec<usize> =
            self.up().into_iter().filter(|at| !self.lab.nodes[*at].setup.hello.arbitrator).collect();
        if up.is_empty() {
            return;
        }
        if self.writes.len() < WRITES_MAX && self.rng.one_in(4) {
            let leader = up.iter().copied().find(|at| self.lab.nodes[*at].member.ctx.raft.is_leader());
            let at = match leader {
                Some(leader) if !self.rng.one_in(5) => leader,
                _ => *self.rng.pick(&up),
            };
            self.write(at);
        }
        // Clients stay at one member for some time, whether or not it accepts their writes.
        let at = up[(self.lab.now / CLIENTS_STAY) as usize % up.len()];
        let member = &mut self.lab.nodes[at].member;
        if !member.may_originate() {
            let refused = member.refused_writes() + 1;
            member.note_refused(refused);
        }
        if self.rng.one_in(100) {
            let at = *self.rng.pick(&up);
            self.read(at);
        }
    }

    /// One step of the world.
    fn step(&mut self) -> Result<(), String> {
        for (at, end) in std::mem::take(&mut self.ends) {
            if at <= self.lab.now { self.end(end) } else { self.ends.push((at, end)) }
        }
        if self.lab.now.is_multiple_of(20 * STEP) {
            for a in 0..self.lab.nodes.len() {
                (0..a).for_each(|b| self.lab.link(b, a));
            }
        }
        self.lab.step();
        self.judge.record_fallbacks(&self.lab);
        self.take_results()?;
        for at in self.up() {
            self.serve(at)?;
        }
        Ok(())
    }

    /// Handles the results of writes and reads.
    fn take_results(&mut self) -> Result<(), String> {
        let mut left = Vec::new();
        for write in std::mem::take(&mut self.writes) {
            let Write { at, starts, mark, .. } = write;
            if !self.lab.nodes[at].up || self.lab.nodes[at].setup.starts != starts {
                continue;
            }
            match write.submission.wait_for(Duration::ZERO) {
                None => left.push(write),
                Some(SubmitOutcome::NotSent) => {
                    self.judge.never.insert(mark);
                    self.part_done(mark, None);
                }
                Some(SubmitOutcome::Unknown) => self.part_done(mark, None),
                Some(SubmitOutcome::TooLarge) => return Err(format!("write {mark} is too large")),
                Some(SubmitOutcome::Ordered(ordered)) => {
                    if server::mark_of(&ordered) != mark {
                        return Err(format!("write {mark} of n{} was given another's place", at + 1));
                    }
                    self.server(at).delivered_entry(&ordered);
                    self.part_done(mark, Some(ordered.seqno).filter(|_| ordered.pass));
                    if ordered.pass {
                        self.answers += 1;
                        self.judge.answered(&self.lab, at, mark, ordered.seqno)?;
                    }
                }
            }
        }
        self.writes = left;
        for (at, id, seqno) in std::mem::take(&mut self.lab.causal) {
            let read = self.reads.iter().position(|read| read.at == at && read.id == id);
            if let (Some(place), Some(seqno)) = (read, seqno) {
                let Read { starts, floor, .. } = self.reads.swap_remove(place);
                if seqno < floor && self.lab.nodes[at].setup.starts == starts {
                    return Err(format!(
                        "a read of n{} sees {seqno}, and {floor} was acknowledged before",
                        at + 1
                    ));
                }
            }
        }
        Ok(())
    }

    /// A server's work: checks what it received, finishes entries, donates its state, and ends if told to.
    fn serve(&mut self, at: usize) -> Result<(), String> {
        for (seqno, meaning) in std::mem::take(&mut self.server(at).unchecked) {
            self.judge.meaning(seqno, meaning).map_err(|e| format!("on n{}: {e}", at + 1))?;
        }
        let count = self.rng.below(8) as usize;
        let now = self.lab.now;
        let node = &mut self.lab.nodes[at];
        if node.frozen {
            return Ok(());
        }
        let arbitrator = node.setup.hello.arbitrator;
        let server = node.server.as_mut().expect("each has one");
        server.own = node.member.ctx.me.view_uuid;
        if arbitrator {
            server.pending.clear();
        } else if !node.database_hangs {
            server.finish(count, now);
            node.finished.fetch_max(server.finished, Ordering::AcqRel);
        }
        if let Some(violation) = server.violation.take() {
            return Err(format!("n{}: {violation}", at + 1));
        }
        if let Some((why, text)) = node.member.server_must_end() {
            self.note(format!("n{} ends itself: {why:?}: {text}", at + 1));
            self.crash(at, 10_000, 1_000_000);
        } else if let Some(text) = self.server(at).failed.take() {
            if !self.server(at).gives_up_data {
                return Err(format!("n{} has failed: {text}", at + 1));
            }
        } else {
            self.donate(at);
        }
        Ok(())
    }

    fn donate(&mut self, at: usize) {
        let now = self.lab.now;
        let delay = self.rng.between(5_000, 300_000);
        let server = self.lab.nodes[at].server.as_mut().expect("each has one");
        let finished = server.finished;
        let Some(donation) = server.donations.iter_mut().find(|d| d.after <= finished) else { return };
        let since = *donation.since.get_or_insert(now);
        if now < since + delay {
            return;
        }
        let (id, joiner) = (donation.id, donation.joiner.clone());
        server.donations.retain(|d| d.id != id);
        // The transferred state is that of the time of sending; so is its position.
        let position = server.finished;
        let (database, streams) = (server.database.clone(), server.streams.clone());
        let history = self.lab.nodes[at].member.ctx.raft.tail_state().history;
        let gtid = lockstep_core::Gtid { uuid: history, seqno: position };
        let to = self.lab.nodes.iter().position(|node| node.setup.hello.name == joiner);
        let to = to.filter(|to| self.lab.nodes[*to].up && self.server(*to).wants_state);
        if let Some(to) = to.filter(|to| {
            matches!(self.lab.nodes[*to].member.ctx.connection, ConnectionState::NeedState { .. })
        }) {
            self.copies += 1;
            self.note(format!("n{} sends its state at {position} to {joiner}", at + 1));
            self.server(to).copied(database, streams, position);
            self.lab.nodes[to].finished.store(position, Ordering::Release);
            self.lab.nodes[to].member.state_received(Ok(gtid));
        }
        self.lab.nodes[at].member.donation_done(id, Ok(gtid));
    }

    fn is_healthy(&self) -> bool {
        let leader = self.lab.nodes.iter().find(|node| node.member.ctx.raft.is_leader());
        let commit = leader.map(|node| node.member.ctx.raft.last_index());
        self.writes.is_empty()
            && self.lab.nodes.iter().all(|node| {
                let state = node.member.local_state();
                let server = node.server.as_ref().expect("each has one");
                node.up
                    && state == LocalState::Synced
                    && server.pending.is_empty()
                    && Some(node.member.ctx.raft.commit()) == commit
            })
    }

    /// The state of the members, for messages.
    fn state(&self) -> String {
        let of = |at: usize| {
            let node = &self.lab.nodes[at];
            let (raft, server) = (&node.member.ctx.raft, node.server.as_ref().expect("each has one"));
            format!(
                "n{} {:?} (leader {:?}, committed {} of {}, finished {}, {} pending)",
                at + 1,
                if node.up { Some(node.member.local_state()) } else { None },
                self.lab.leader(at).map(|leader| leader + 1),
                raft.commit(),
                raft.last_index(),
                server.finished,
                server.pending.len()
            )
        };
        let all: Vec<String> = (0..self.lab.nodes.len()).map(of).collect();
        format!("{}; {} writes are under way", all.join(", "), self.writes.len())
    }

    /// Ends all faults; all members must become well.
    fn end_faults(&mut self) -> Result<(), String> {
        self.note("all faults end".into());
        let ends = std::mem::take(&mut self.ends);
        ends.into_iter().for_each(|(_, end)| self.end(end));
        let until = self.lab.now + CALM_TIMEOUT;
        while !self.is_healthy() {
            if self.lab.now > until {
                return Err(format!("it does not come right: {}", self.state()));
            }
            self.step()?;
        }
        let (answers, until) = (self.answers, self.lab.now + 10_000_000);
        while self.answers == answers || !self.is_healthy() {
            if self.lab.now > until {
                return Err(format!("nobody can write in the end: {}", self.state()));
            }
            // Leadership may move at that moment.
            let leads = |at: &usize| self.lab.nodes[*at].member.ctx.raft.is_leader();
            let leader = (0..self.lab.nodes.len()).find(leads);
            let leader = leader.filter(|at| !self.lab.nodes[*at].setup.hello.arbitrator);
            if let Some(leader) = leader.filter(|_| self.writes.is_empty() && self.answers == answers) {
                self.write(leader);
            }
            self.step()?;
        }
        self.compare()
    }

    fn compare(&self) -> Result<(), String> {
        let with_data: Vec<_> = self.lab.nodes.iter().filter(|node| !node.setup.hello.arbitrator).collect();
        let database = |at: usize| &with_data[at].server.as_ref().expect("each has one").database;
        let first = database(0);
        for at in 1..with_data.len() {
            if database(at) != first {
                let differs = first.iter().zip(database(at)).find(|(a, b)| a != b);
                return Err(format!(
                    "the databases of {} and {} differ: {} and {} transactions, first at {differs:?}",
                    with_data[0].setup.hello.name,
                    with_data[at].setup.hello.name,
                    first.len(),
                    database(at).len()
                ));
            }
        }
        let rescued =
            |seqno: Seqno| self.lab.nodes.iter().any(|n| n.disk.rescued.iter().any(|e| e.seqno == seqno));
        for (mark, (seqno, weak)) in &self.judge.answered {
            if first.get(seqno) != Some(mark) && !(*weak && rescued(*seqno)) {
                let how = if *weak { "neither there nor in a rescue file" } else { "lost" };
                return Err(format!("write {mark} was acknowledged as seqno {seqno}, and is {how}"));
            }
        }
        Ok(())
    }
}
