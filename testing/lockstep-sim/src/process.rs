//! Life and death of a process, and its log's thread: a device that takes what waits, and is done some time later.

use crate::cluster::{Cluster, Event, MACHINES};
use crate::fallback::Fallback;
use crate::history::{Check, Violation, hold};
use crate::machine::{Campaign, Fate, Input, Name, Process};
use crate::mirror::{Mark, Mirror};
use crate::mutate::NodeFault;
use crate::policy::Controls;
use crate::round::members;
use crate::server::Server;
use bytes::Bytes;
use lockstep_core::placement::WriterShare;
use lockstep_core::raft::{Config, Failpoint, Raft, RestoreBuilder};
use lockstep_core::snapshot::TrimMark;
use lockstep_core::{Entry, EntryKind, Index, MemberId, Micros, Uuid};
use lockstep_log::{Fault, Log, Options, Record, Replay, Reset, Vote, WriteOp};
use std::collections::{BTreeMap, VecDeque};

fn records(entries: &[Entry]) -> Vec<Record> {
    entries.iter().map(|e| Record { index: e.index, term: e.term, body: e.body().clone() }).collect()
}

/// The log's own words for what the core wants written.
fn log_op(op: lockstep_core::raft::WriteOp, hint: Index) -> WriteOp {
    WriteOp {
        reset: op.reset.map(|state| Reset { base: state.to_bytes(), index: state.index, term: state.term }),
        truncate_from: op.truncate_from,
        roll: op.roll.map(|state| state.to_bytes()),
        records: records(&op.entries),
        vote: op.vote.map(|v| Vote {
            term: v.term,
            voted_for: v.voted_for.map(|id| id.0),
            commit_hint: hint,
        }),
    }
}

impl Cluster {
    /// A process starts: the log is opened and read, the core begins where it ends.
    pub(crate) fn start(&mut self, slot: usize) -> Check {
        let settings = self.settings;
        let machine = &mut self.machines[slot];
        machine.starting = false;
        if machine.fate != Fate::Used || machine.process.is_some() {
            return Ok(());
        }
        machine.disk_fails = machine.disk_full;
        machine.disk.clear_faults();
        machine.disk.set_now_us(machine.clock.wall(self.now));
        let options = Options {
            segment_bytes: self.profile.segment_bytes,
            new_member_id: machine.id.0,
            ..Options::default()
        };
        let fails = self.trouble && !machine.damaged && self.profile.start_fails > 0;
        if fails && self.rng.one_in(self.profile.start_fails) {
            let n = self.rng.between(1, 10);
            machine.disk_fails = true;
            match self.rng.below(4) {
                0 => machine.disk.fail_sync(n),
                1 => machine.disk.fail_op(n, Fault::Io),
                2 => machine.disk.fail_op(n, Fault::NoSpace),
                _ => machine.disk.fail_op(n, Fault::PowerCut),
            }
        }
        // As a node does it: the hint first, then everything in one pass.
        let hint = match lockstep_log::peek_vote(&machine.disk) {
            Ok(hint) => hint,
            Err(error) => return self.cannot_start(slot, &error),
        };
        let mut builder = RestoreBuilder::new(hint.map_or(0, |vote| vote.commit_hint));
        let mut found: Option<Mirror> = None;
        let mut marks = VecDeque::new();
        let mut visitor = |replay: Replay| -> Result<(), String> {
            match replay {
                Replay::Base { index, term, base } => {
                    found.get_or_insert_with(|| Mirror::after(index, term));
                    builder.base(base)
                }
                Replay::Record(Record { index, term, body }) => {
                    let entry = Entry::decode_body(index, term, body.clone()).map_err(|e| e.to_string())?;
                    found.get_or_insert_default().push(Mark::of(&entry));
                    if entry.kind == EntryKind::Trim
                        && let Ok(mark) = TrimMark::from_payload(entry.payload())
                    {
                        marks.push_back((index, mark));
                    }
                    builder.record(index, term, body)
                }
            }
            .map_err(|e| e.to_string())
        };
        let (log, recovered) = match Log::open(machine.disk.clone(), options, &mut visitor) {
            Ok(opened) => opened,
            Err(error) => return self.cannot_start(slot, &error),
        };
        machine.disk.clear_faults();
        machine.disk_fails = machine.disk_full;
        // All of it was read: the damage hit bytes outside of the log, or one of two copies.
        machine.damaged = false;
        hold!(
            Uuid(recovered.identity.member_id) == machine.id,
            "a member keeps its id",
            "{} is now {:?}",
            Name(slot),
            recovered.identity
        );
        let vote = (recovered.vote.term, recovered.vote.voted_for.map(Uuid));
        let found = found.unwrap_or_default();
        check_recovered(slot, machine, &found, vote)?;
        if self.profile.policies {
            for index in found.base + 1..=found.last() {
                if let Some(mark) = found.get(index) {
                    self.book.on_disk(slot, index, mark);
                }
            }
        }
        machine.durable = found.clone();
        machine.durable_vote = vote;
        machine.in_flight.clear();

        let restored = builder.finish(lockstep_core::raft::Vote { term: vote.0, voted_for: vote.1 });
        machine.lives += 1;
        let local = machine.clock.local(self.now);
        let config = Config {
            id: machine.id,
            incarnation: recovered.identity.incarnation,
            heartbeat: self.profile.heartbeat,
            election_timeout: self.profile.election_timeout,
            segment_bytes: self.profile.segment_bytes,
            max_append_bytes: self.profile.max_append_bytes,
            max_inflight_bytes: self.profile.max_inflight_bytes,
            cache_bytes: self.profile.cache_bytes,
            // No more than a few windows, so that it is met where disks are slow.
            max_unwritten_bytes: 2 * self.profile.max_inflight_bytes,
            max_at_risk_bytes: 2 * self.profile.max_inflight_bytes,
            seed: settings.seed,
            failpoints: settings.core_failpoint().into(),
        };
        let mut order = Raft::new(config, restored, local);
        order.set_relaying(settings.relays());
        // One member of four has longer timeouts for a slow leader, and as a leader: members need not agree on them.
        if (settings.seed / 4 + slot as u64).is_multiple_of(4) {
            order.set_leader_timeout(2 * self.profile.election_timeout);
        }
        let founds = slot == 0 && !order.has_log() && self.history.committed() == 0;
        if founds {
            order.bootstrap(local, self.history.state().clone());
        }
        let server = &mut machine.server;
        if founds {
            *server = Server::default();
            server.position = Some(0);
        } else if let Some(position) = server.position {
            // Databases with relaxed flushing come back with less than they had delivered.
            let at = self.rng.between(server.safe.min(position), position);
            server.roll_back(at);
        }
        let position =
            server.position.and_then(|at| if at == 0 { Some(0) } else { self.history.seqno_at(at) });
        order.set_position(position);
        let commit = order.commit();
        let mut controls = Controls::after(order.committed_state());
        (commit + 1..=order.last_index()).filter_map(|at| order.entry(at)).for_each(|e| controls.push(e));
        let membership = order.tail_state().membership.clone();
        let membership_index = order.tail_state().membership_index;
        let window = self.writers.as_ref().map_or(crate::profile::SECOND, |writers| writers.window());
        let hasty = settings.core_failpoint() == Some(Failpoint::FollowsAtOnce);
        let follow = WriterShare::new(if hasty { window / 4 } else { window });
        let process = Process {
            life: machine.lives,
            incarnation: recovered.identity.incarnation,
            order,
            log,
            memory: found,
            to_write: VecDeque::new(),
            syncing: None,
            inbox: Vec::new(),
            woken: false,
            timer_at: Micros::MAX,
            paused_until: 0,
            synced_to: [None; 2],
            commit: 0,
            reads: BTreeMap::new(),
            proposed: 0,
            vote,
            was_member: false,
            diverged: false,
            fell_back_to: 0,
            fallback: Fallback::default(),
            controls,
            membership: membership.clone(),
            membership_index,
            marks,
            run: None,
            follow,
            stream: None,
            heard: [local; MACHINES],
            campaign: Campaign::default(),
            pre_votes: Default::default(),
            slow_sync: None,
            leads_since: Micros::MAX,
            quorum_timeout: (0, 0),
            transfer_asked: false,
        };
        let (term, last) = (process.order.term(), process.memory.last());
        machine.process = Some(process);
        self.counters.starts += 1;
        self.trace.mix(term ^ last << 32);
        self.say(
            slot,
            format_args!(
                "starts: life {}, term {term}, log {}..{last}, committed {commit}, vote {:?}, members {}",
                recovered.identity.incarnation,
                self.machines[slot].durable.base + 1,
                vote.1.map(|id| crate::machine::slot_of(&id)),
                members(&membership)
            ),
        );
        self.committed(slot, commit, (term, term), &[membership])?;
        if let Some(process) = &self.machines[slot].process {
            self.history.folds(self.machines[slot].id, process.order.committed_state())?;
        }
        self.notice(slot, true);
        self.round(slot)
    }

    /// A log that cannot be opened: after a disk error it is retried; after damage the member returns under a new id.
    fn cannot_start(&mut self, slot: usize, error: &dyn std::fmt::Display) -> Check {
        let machine = &mut self.machines[slot];
        hold!(
            machine.disk_fails || machine.damaged,
            "a log can be opened after a crash",
            "{}: {error}",
            Name(slot)
        );
        let damaged = machine.damaged;
        let seed = self.rng.bits();
        self.machines[slot].disk.crash(seed);
        self.say(slot, format_args!("cannot start: {error}"));
        if damaged {
            self.counters.damaged_logs += 1;
            // The database is another file, and may be whole.
            let with_database = self.rng.one_in(2) || !self.has_better(slot);
            self.new_identity(slot, with_database);
        } else {
            self.counters.failed_starts += 1;
        }
        let after = self.rng.between(self.profile.restart.0, self.profile.restart.1);
        self.start_later(slot, after);
        Ok(())
    }

    /// The process ends. `power`: the machine loses its power and all that was not fsynced, else what the process
    /// had written stays in the kernel's memory. Either way the middle of a write may be where it ended.
    pub(crate) fn stop(&mut self, slot: usize, power: bool) {
        let seed = self.rng.bits();
        let half_written = self.rng.one_in(2);
        let at = self.rng.between(1, 5);
        let machine = &mut self.machines[slot];
        let Some(mut process) = machine.process.take() else { return };
        if process.syncing.is_some() && half_written {
            machine.disk.fail_op(at, Fault::PowerCut);
            // The result is lost with the process: its writes may or may not be durable.
            let _ = process.log.sync();
        }
        if power {
            machine.disk.crash(seed);
        } else {
            machine.disk.kill();
            machine.disk.clear_faults();
        }
        drop(process);
        self.say(slot, format_args!("{}", if power { "loses power" } else { "is killed" }));
        self.notice(slot, false);
    }

    /// Has a stopped process started again.
    pub(crate) fn start_later(&mut self, slot: usize, after: Micros) {
        let machine = &mut self.machines[slot];
        if machine.fate == Fate::Used && machine.process.is_none() && !machine.starting {
            machine.starting = true;
            self.queue.push(self.now + after, Event::Start { slot });
        }
    }

    /// An error of the log: expected where its disk was made to fail; the process then ends.
    pub(crate) fn log_failed(&mut self, slot: usize, error: &dyn std::fmt::Display) -> Check {
        hold!(self.machines[slot].disk_fails, "the log takes what the core gives", "{}: {error}", Name(slot));
        self.say(slot, format_args!("stops: {error}"));
        // Of a failed write nobody knows what the disk holds: the machine is taken down with it.
        self.stop(slot, true);
        let after = self.rng.between(self.profile.restart.0, self.profile.restart.1);
        self.start_later(slot, after);
        Ok(())
    }

    /// The log's thread, if it is idle, takes all that waits.
    pub(crate) fn start_io(&mut self, slot: usize) -> Check {
        let hint_now = self.rng.one_in(8);
        let machine = &mut self.machines[slot];
        let Some(process) = &mut machine.process else { return Ok(()) };
        if process.syncing.is_some() || process.to_write.is_empty() {
            return Ok(());
        }
        // Only what the own disk holds may be told committed at the next start.
        let hint = process.order.deliverable();
        let mut ticket = 0;
        let mut failed = None;
        while let Some(op) = process.to_write.pop_front() {
            ticket = op.ticket;
            if let Some(vote) = &op.vote {
                process.vote = (vote.term, vote.voted_for);
            }
            let rescued = op.rescue.iter().try_for_each(|rescue| {
                let base = &rescue.base;
                let reset = Reset { base: base.to_bytes(), index: base.index, term: base.term };
                process.log.rescue(reset, &records(&rescue.entries)).map(|_| ())
            });
            if let Err(error) = rescued {
                failed = Some(error);
                break;
            }
            let mut op = log_op(op, hint);
            if op.vote.is_none() && hint_now && process.to_write.is_empty() {
                let (term, voted_for) = process.vote;
                op.vote = Some(Vote { term, voted_for: voted_for.map(|id| id.0), commit_hint: hint });
            }
            if let Err(error) = process.log.write(op) {
                failed = Some(error);
                break;
            }
        }
        if let Some(error) = failed {
            return self.log_failed(slot, &error);
        }
        process.syncing = Some(ticket);
        let life = process.life;
        let speed = machine.speed;
        let at = self.now + speed.sync + self.rng.below(speed.jitter + 1);
        self.counters.syncs += 1;
        self.queue.push(at, Event::Synced { slot, life, ticket });
        Ok(())
    }

    /// The log's thread has called fsync, and it has returned.
    pub(crate) fn synced(&mut self, slot: usize, life: u64, ticket: u64) -> Check {
        let ignored = self.settings.node_fault(NodeFault::FailedSyncIgnored);
        let Some(process) = self.living(slot, life) else { return Ok(()) };
        if let Err(error) = process.log.sync() {
            if ignored {
                process.syncing = None;
                return self.input(slot, Input::Written(ticket));
            }
            return self.log_failed(slot, &error);
        }
        process.syncing = None;
        let policies = self.profile.policies;
        let Some(process) = self.living(slot, life) else { return Ok(()) };
        let end = process.log.end();
        if process.synced_to[1] != end {
            process.synced_to = [process.synced_to[1], end];
        }
        let machine = &mut self.machines[slot];
        while machine.in_flight.front().is_some_and(|flight| flight.ticket <= ticket) {
            if let Some(flight) = machine.in_flight.pop_front() {
                machine.durable.apply(&flight.change);
                let last = machine.durable.last();
                for (back, mark) in flight.change.marks.iter().rev().enumerate() {
                    if policies {
                        self.book.on_disk(slot, last - back as u64, *mark);
                    }
                }
                if let Some(vote) = flight.vote {
                    machine.durable_vote = vote;
                }
            }
        }
        self.say(slot, format_args!("has #{ticket} on disk, up to {}", self.machines[slot].durable.last()));
        self.start_io(slot)?;
        if self.life(slot) != life {
            return Ok(());
        }
        self.input(slot, Input::Written(ticket))
    }

    /// Old entries are read for a peer that lags.
    pub(crate) fn fetch(
        &mut self,
        slot: usize,
        life: u64,
        to: MemberId,
        from: Index,
        max_bytes: usize,
    ) -> Check {
        let Some(process) = self.living(slot, life) else { return Ok(()) };
        let mut entries = Vec::new();
        if let Ok(records) = process.log.read(from, max_bytes) {
            for record in records {
                let body: Bytes = record.body;
                let entry = Entry::decode_body(record.index, record.term, body).map_err(|e| Violation {
                    rule: "the log gives back what it took",
                    what: format!("index {}: {e}", record.index),
                })?;
                entries.push(entry);
            }
        }
        self.say(
            slot,
            format_args!(
                "reads {} entries from {from} for {}",
                entries.len(),
                Name(crate::machine::slot_of(&to))
            ),
        );
        self.input(slot, Input::Fetched { to, from, entries })
    }

    /// A database arrives: a copy of another member's, from somewhere above the own log's beginning.
    pub(crate) fn transferred(&mut self, slot: usize, life: u64) -> Check {
        let Some(process) = self.living(slot, life) else { return Ok(()) };
        process.transfer_asked = false;
        let base = process.memory.base;
        if self.machines[slot].server.position.is_some_and(|at| at >= base) {
            return self.round(slot);
        }
        let mut donors: Vec<usize> = (0..MACHINES)
            // Nobody donates what is not committed.
            .filter(|slot| {
                let m = &self.machines[*slot];
                m.server.position.is_some_and(|at| {
                    at >= base && m.process.as_ref().map_or(m.early.is_empty(), |p| at <= p.commit)
                })
            })
            .collect();
        // Where all who are left have lost theirs, an operator copies that of one who was removed or does not run.
        if donors.iter().any(|slot| self.machines[*slot].process.is_some()) {
            donors.retain(|slot| self.machines[*slot].process.is_some());
        }
        let committed = self.history.committed();
        // Or of one who has a database newer than what its own log says is committed, for it was taken out since.
        if donors.is_empty() && !self.trouble {
            let has_one = |slot: &usize| {
                let m = &self.machines[*slot];
                m.early.is_empty() && m.server.position.is_some_and(|at| (base..=committed).contains(&at))
            };
            donors = (0..MACHINES).filter(has_one).collect();
        }
        // What weak policies lose may leave nobody with a database: then there is a backup somewhere.
        let backup = donors.is_empty()
            && self.profile.policies
            && !self.trouble
            && (base..=self.machines[slot].durable.last()).contains(&committed);
        if backup {
            let rows = self.history.judge().rows().clone();
            self.machines[slot].server =
                Server { position: Some(committed), safe: committed, rows, ..Server::default() };
            self.machines[slot].early.clear();
            self.say(slot, format_args!("takes a backup that stands at {committed}"));
            let seqno = self.history.seqno_at(committed);
            if let Some(process) = self.living(slot, life) {
                process.run = None;
                process.order.set_position(seqno);
            }
            return self.round(slot);
        }
        if donors.is_empty() {
            let at = self.now + 500_000;
            if let Some(process) = self.living(slot, life) {
                process.transfer_asked = true;
            }
            self.queue.push(at, Event::Transferred { slot, life });
            return Ok(());
        }
        let donor = *self.rng.pick(&donors);
        let copy = self.machines[donor].server.copy();
        let at = copy.position.unwrap_or(0);
        self.machines[slot].server = copy;
        self.machines[slot].early.clear();
        self.counters.transfers += 1;
        self.say(slot, format_args!("takes {}'s database, which stands at {at}", Name(donor)));
        let seqno = if at == 0 { Some(0) } else { self.history.seqno_at(at) };
        if let Some(process) = self.living(slot, life) {
            process.run = None;
            process.order.set_position(seqno);
        }
        self.round(slot)
    }
}

/// Checks a log after a crash: all durable entries, then any prefix of those in flight.
fn check_recovered(
    slot: usize,
    machine: &crate::machine::Machine,
    found: &Mirror,
    vote: (u64, Option<MemberId>),
) -> Check {
    let votes = machine.in_flight.iter().filter_map(|flight| flight.vote);
    let possible: Vec<_> = std::iter::once(machine.durable_vote).chain(votes).collect();
    hold!(
        possible.contains(&vote),
        "the log keeps votes",
        "{} finds the vote {vote:?}, possible are {possible:?}",
        Name(slot)
    );
    let same = |found: &Mirror, expected: &Mirror| same(found, expected, machine.trimming);
    let mut expected = machine.durable.clone();
    if same(found, &expected) {
        return Ok(());
    }
    for flight in &machine.in_flight {
        if let Some((base, term)) = flight.change.reset {
            expected = Mirror::after(base, term);
            if same(found, &expected) {
                return Ok(());
            }
        }
        if let Some(from) = flight.change.truncate_from {
            expected.truncate_from(from);
            if same(found, &expected) {
                return Ok(());
            }
        }
        for mark in &flight.change.marks {
            expected.push(*mark);
            if same(found, &expected) {
                return Ok(());
            }
        }
    }
    Err(Violation {
        rule: "the log keeps what was fsynced",
        what: format!(
            "{} finds its log {}..{} (last term {}); on disk was {}..{} (last term {}), then on the way: {:?}",
            Name(slot),
            found.base + 1,
            found.last(),
            found.last_term(),
            machine.durable.base + 1,
            machine.durable.last(),
            machine.durable.last_term(),
            machine
                .in_flight
                .iter()
                .map(|f| (f.ticket, f.change.reset, f.change.truncate_from, f.change.marks.len()))
                .collect::<Vec<_>>()
        ),
    })
}

/// Whether two logs are the same where both reach. A trim may come back after a crash, so they need not begin alike.
fn same(found: &Mirror, expected: &Mirror, trimming: Index) -> bool {
    let first = found.base.max(expected.base);
    (found.base <= expected.base || found.base < trimming)
        && found.last() == expected.last()
        && found.last_term() == expected.last_term()
        && (first + 1..=found.last()).rev().all(|index| found.get(index) == expected.get(index))
}
