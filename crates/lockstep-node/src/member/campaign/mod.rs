//! Engines under faults that a seed draws, and what must be so all the same: the simulator (`lockstep-sim`) has the core
//! alone, here is what a node makes of it. Members crash and come back from what their disks have, lines break, disks,
//! databases and processes stand still, policies change and the lead is handed over, while clients write and read. In the
//! end all faults end, and all members must come to the same database, with all that was acknowledged.

mod faults;
mod judge;
mod server;
mod streams;
mod tests;

use super::connection_state::ConnectionState;
use super::harness::{Lab, STEP};
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

/// Nothing may take longer to be as it should, once they have ended.
const CALM: Micros = 90_000_000;
/// Clients stay at one member for so long.
const CLIENTS_STAY: Micros = 20_000_000;
/// So many writes are under way at most.
const UNDER_WAY: usize = 30;

/// A write that has not been answered.
struct Write {
    at: usize,
    life: u64,
    mark: Mark,
    submission: Submission,
}

/// A read that is to see what was acknowledged before.
struct Read {
    at: usize,
    life: u64,
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
    /// Zones that there are.
    zones: usize,
    answers: usize,
    /// Parts of streaming transactions that were answered.
    parts: usize,
    crashes: usize,
    copies: usize,
    story: Vec<(Micros, String)>,
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
            story: Vec::new(),
        };
        world.tell(format!("{members} members, {zones} zones, learner {learner}, arbitrator {arbitrator}"));
        world
    }

    fn tell(&mut self, text: String) {
        self.story.push((self.lab.now, text));
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
            source: node.engine.me.view_uuid,
            epoch: 0,
            conn: 1,
            trx,
        });
        let submission = Submission::new();
        node.engine.submit(kind, payload, submission.filler());
        let life = node.member.life;
        self.writes.push(Write { at, life, mark, submission });
    }

    fn read(&mut self, at: usize) {
        self.marks += 1;
        let (id, floor) = (self.marks, self.judge.strong);
        let node = &mut self.lab.nodes[at];
        node.engine.causal_read(id);
        let life = node.member.life;
        self.reads.push(Read { at, life, id, floor });
    }

    /// Clients do what they do.
    fn clients(&mut self) {
        let up: Vec<usize> =
            self.up().into_iter().filter(|at| !self.lab.nodes[*at].member.hello.arbitrator).collect();
        if up.is_empty() {
            return;
        }
        if self.writes.len() < UNDER_WAY && self.rng.one_in(4) {
            let leader = up.iter().copied().find(|at| self.lab.nodes[*at].engine.raft.is_leader());
            let at = match leader {
                Some(leader) if !self.rng.one_in(5) => leader,
                _ => *self.rng.pick(&up),
            };
            self.write(at);
        }
        // There are clients at one member for some time, whether it takes their writes or not.
        let at = up[(self.lab.now / CLIENTS_STAY) as usize % up.len()];
        let engine = &mut self.lab.nodes[at].engine;
        if !engine.may_originate() {
            let refused = engine.failback.refused + 1;
            engine.note_refused(refused);
        }
        if self.rng.one_in(100) {
            let at = *self.rng.pick(&up);
            self.read(at);
        }
    }

    /// One step of all.
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
        self.judge.look_at_fallbacks(&self.lab);
        self.heard()?;
        for at in self.up() {
            self.serve(at)?;
        }
        Ok(())
    }

    /// What the threads of servers hear.
    fn heard(&mut self) -> Result<(), String> {
        let mut left = Vec::new();
        for write in std::mem::take(&mut self.writes) {
            let Write { at, life, mark, .. } = write;
            if !self.lab.nodes[at].up || self.lab.nodes[at].member.life != life {
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
                    self.server(at).given(&ordered);
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
                let Read { life, floor, .. } = self.reads.swap_remove(place);
                if seqno < floor && self.lab.nodes[at].member.life == life {
                    return Err(format!(
                        "a read of n{} sees {seqno}, and {floor} was acknowledged before",
                        at + 1
                    ));
                }
            }
        }
        Ok(())
    }

    /// A server's part: places are noted, the next ones finished, copies sent, and an end obeyed.
    fn serve(&mut self, at: usize) -> Result<(), String> {
        for (seqno, placed) in std::mem::take(&mut self.server(at).news) {
            self.judge.placed(seqno, placed).map_err(|e| format!("on n{}: {e}", at + 1))?;
        }
        let count = self.rng.below(8) as usize;
        let now = self.lab.now;
        let node = &mut self.lab.nodes[at];
        if node.frozen {
            return Ok(());
        }
        let arbitrator = node.member.hello.arbitrator;
        let server = node.server.as_mut().expect("each has one");
        server.own = node.engine.me.view_uuid;
        if arbitrator {
            server.pending.clear();
        } else if !node.database_hangs {
            server.finish(count, now);
            node.finished.fetch_max(server.finished, Ordering::AcqRel);
        }
        if let Some(wrong) = server.wrong.take() {
            return Err(format!("n{}: {wrong}", at + 1));
        }
        if let Some((why, text)) = node.engine.server_must_end() {
            self.tell(format!("n{} ends itself: {why:?}: {text}", at + 1));
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
        let patience = self.rng.between(5_000, 300_000);
        let server = self.lab.nodes[at].server.as_mut().expect("each has one");
        let finished = server.finished;
        let Some(donation) = server.donations.iter_mut().find(|d| d.after <= finished) else { return };
        let since = *donation.since.get_or_insert(now);
        if now < since + patience {
            return;
        }
        let (id, joiner) = (donation.id, donation.joiner.clone());
        server.donations.retain(|d| d.id != id);
        // What goes over is the state of when it is sent; the donor's position then.
        let position = server.finished;
        let (database, streams) = (server.database.clone(), server.streams.clone());
        let history = self.lab.nodes[at].engine.raft.tail_state().history;
        let gtid = lockstep_core::Gtid { uuid: history, seqno: position };
        let to = self.lab.nodes.iter().position(|node| node.member.hello.name == joiner);
        let to = to.filter(|to| self.lab.nodes[*to].up && self.server(*to).wants_state);
        if let Some(to) =
            to.filter(|to| matches!(self.lab.nodes[*to].engine.connection, ConnectionState::NeedState { .. }))
        {
            self.copies += 1;
            self.tell(format!("n{} sends its state at {position} to {joiner}", at + 1));
            self.server(to).copied(database, streams, position);
            self.lab.nodes[to].finished.store(position, Ordering::Release);
            self.lab.nodes[to].engine.state_received(Ok(gtid));
        }
        self.lab.nodes[at].engine.donation_done(id, Ok(gtid));
    }

    fn is_well(&self) -> bool {
        let leader = self.lab.nodes.iter().find(|node| node.engine.raft.is_leader());
        let commit = leader.map(|node| node.engine.raft.last_index());
        self.writes.is_empty()
            && self.lab.nodes.iter().all(|node| {
                let state = node.engine.local_state();
                let server = node.server.as_ref().expect("each has one");
                node.up
                    && state == LocalState::Synced
                    && server.pending.is_empty()
                    && Some(node.engine.raft.commit()) == commit
            })
    }

    /// For people: how the members are.
    fn state(&self) -> String {
        let of = |at: usize| {
            let node = &self.lab.nodes[at];
            let (order, server) = (&node.engine.raft, node.server.as_ref().expect("each has one"));
            format!(
                "n{} {:?} (leader {:?}, committed {} of {}, finished {}, {} pending)",
                at + 1,
                if node.up { Some(node.engine.local_state()) } else { None },
                self.lab.leader(at).map(|leader| leader + 1),
                order.commit(),
                order.last_index(),
                server.finished,
                server.pending.len()
            )
        };
        let all: Vec<String> = (0..self.lab.nodes.len()).map(of).collect();
        format!("{}; {} writes are under way", all.join(", "), self.writes.len())
    }

    /// All faults end, and everything must come right.
    fn calm(&mut self) -> Result<(), String> {
        self.tell("all faults end".into());
        let ends = std::mem::take(&mut self.ends);
        ends.into_iter().for_each(|(_, end)| self.end(end));
        let until = self.lab.now + CALM;
        while !self.is_well() {
            if self.lab.now > until {
                return Err(format!("it does not come right: {}", self.state()));
            }
            self.step()?;
        }
        let (answers, until) = (self.answers, self.lab.now + 10_000_000);
        while self.answers == answers || !self.is_well() {
            if self.lab.now > until {
                return Err(format!("nobody can write in the end: {}", self.state()));
            }
            // The lead may change hands just then.
            let leads = |at: &usize| self.lab.nodes[*at].engine.raft.is_leader();
            let leader = (0..self.lab.nodes.len()).find(leads);
            let leader = leader.filter(|at| !self.lab.nodes[*at].member.hello.arbitrator);
            if let Some(leader) = leader.filter(|_| self.writes.is_empty() && self.answers == answers) {
                self.write(leader);
            }
            self.step()?;
        }
        self.compare()
    }

    fn compare(&self) -> Result<(), String> {
        let with_data: Vec<_> = self.lab.nodes.iter().filter(|node| !node.member.hello.arbitrator).collect();
        let database = |at: usize| &with_data[at].server.as_ref().expect("each has one").database;
        let first = database(0);
        for at in 1..with_data.len() {
            if database(at) != first {
                let differs = first.iter().zip(database(at)).find(|(a, b)| a != b);
                return Err(format!(
                    "the databases of {} and {} differ: {} and {} transactions, first at {differs:?}",
                    with_data[0].member.hello.name,
                    with_data[at].member.hello.name,
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
