//! Start and end of a process, and the log's thread.

use super::{Event, HISTORY, World};
use crate::clock::Name;
use crate::history::{Check, Violation, hold};
use crate::leadership_checks::LeadershipChecks;
use crate::mirror::{Mark, Mirror};
use crate::mutate::{NodeFault, Planted};
use crate::node::{Fate, Input, Process};
use crate::profile::{MS, SECOND};
use lockstep_core::raft::{Config, Failpoints};
use lockstep_core::{Entry, Micros, Uuid};
use lockstep_log::{Fault, MemDisk, Options};
use lockstep_node::simulation::{Setup, SimulatedNode};
use lockstep_node::{ConnectArgs, FollowedLog};
use std::collections::VecDeque;
use std::time::Duration;

/// So many of the last entries are read at each start.
const REREAD: u64 = 64;
/// Bytes of entries in one read.
const READ_BYTES: usize = 256 << 10;
/// How the log names a failure that was reported before.
const CLOSED: &str = "the log is closed since an earlier failure";

impl World {
    /// A process starts: its log is opened, and it connects.
    pub(crate) fn start(&mut self, at: usize) -> Check {
        let now = self.now;
        let failpoints: Failpoints = self.settings.core_failpoint().into();
        let position = self.position(at);
        let node = &mut self.nodes[at];
        node.starting = false;
        if node.process.is_some() || node.fate != Fate::In {
            return Ok(());
        }
        // The kernel keeps the former process until the disk lets it go.
        if node.disk_hangs {
            self.start_later(at, 100 * MS, SECOND);
            return Ok(());
        }
        node.disk_fails = node.disk_full;
        node.told_to_leave = false;
        node.disk.clear_faults();
        let fails = self.trouble && !node.damaged && self.profile.start_fails > 0;
        if fails && self.rng.one_in(self.profile.start_fails) {
            let n = self.rng.between(1, 10);
            node.disk_fails = true;
            match self.rng.below(4) {
                0 => node.disk.fail_sync(n),
                1 => node.disk.fail_op(n, Fault::Io),
                2 => node.disk.fail_op(n, Fault::NoSpace),
                _ => node.disk.fail_op(n, Fault::PowerCut),
            }
        }
        node.disk.set_now_us(node.clock.wall(now));
        node.lives += 1;
        let life = node.lives;
        let (local, wall) = (node.clock.local(now), node.clock.wall(now));
        let mut hello = node.hello.clone();
        hello.id = node.id;
        let profile = &self.profile;
        let config = Config {
            id: node.id,
            incarnation: 0,
            heartbeat: profile.heartbeat,
            election_timeout: profile.election_timeout,
            disk_timeout: node.tuning.disk_timeout.as_micros() as Micros,
            segment_bytes: node.tuning.segment_bytes,
            max_append_bytes: profile.max_append_bytes,
            max_inflight_bytes: profile.max_inflight_bytes,
            cache_bytes: profile.cache_bytes,
            // No more than a few windows, so that it is met where disks are slow.
            max_unwritten_bytes: 2 * profile.max_inflight_bytes,
            max_at_risk_bytes: 2 * profile.max_inflight_bytes,
            seed: self.settings.seed ^ life << 8 ^ at as u64,
            failpoints,
        };
        let options = Options {
            segment_bytes: node.tuning.segment_bytes,
            new_member_id: node.id.0,
            ..Options::default()
        };
        let setup = Setup { hello, tuning: node.tuning.clone(), config, options };
        let (mut started, recovered) = match SimulatedNode::start(&node.disk, setup, local) {
            Ok(started) => started,
            Err(error) => {
                hold!(
                    node.disk_fails || node.damaged,
                    "a log can be opened after a crash",
                    "{}: {error}",
                    Name(at + 1)
                );
                let damaged = node.damaged;
                let seed = self.rng.bits();
                node.disk.crash(seed);
                self.say(at, format_args!("cannot start: {error}"));
                if damaged {
                    self.counters.damaged_logs += 1;
                    // The database is another file, and may be whole.
                    let with_database = self.rng.one_in(2) || !self.has_better(at);
                    self.new_identity(at, with_database);
                } else {
                    self.counters.failed_starts += 1;
                }
                self.start_later(at, 100 * MS, SECOND);
                return Ok(());
            }
        };
        // All of it was read: the damage hit bytes outside of the log, or one of two copies.
        let damaged = std::mem::take(&mut node.damaged);
        node.disk.clear_faults();
        (node.disk_fails, node.disk_failed) = (node.disk_full, false);
        hold!(
            Uuid(recovered.identity.member_id) == node.id,
            "a member keeps its id",
            "{} is now {:?}",
            Name(at + 1),
            recovered.identity
        );
        if let Some(trimmed) = &recovered.trimmed {
            let committed = self.history.as_ref().map_or(0, |history| history.state().index);
            hold!(
                damaged && recovered.start.0 <= committed,
                "only damaged segments of committed entries are given up",
                "{}: damaged is {damaged}, committed is {committed}, {recovered:?}",
                Name(at + 1)
            );
            self.counters.trimmed_logs += 1;
            let text = format!("its log goes on after {}: {}", recovered.start.0, trimmed.damage.join(", "));
            self.say(at, format_args!("{text}"));
        }
        if let Some(shortened) = &recovered.shortened {
            hold!(damaged, "only a damaged log loses its end", "{}: {recovered:?}", Name(at + 1));
            self.counters.shortened_logs += 1;
            let (last, end) = (recovered.last.0, recovered.former_end);
            self.say(
                at,
                format_args!("its log ends at {last}, and had ended at {end:?}: {}", shortened.damage),
            );
        }
        let node = &mut self.nodes[at];
        let certain = !damaged && !life.is_multiple_of(8) && node.book.only_appends();
        let found = read_log(&started, &node.book.durable.mirror, certain)?;
        let vote = (recovered.vote.term, recovered.vote.voted_for.map(Uuid));
        let client_checks = &mut self.client_checks;
        match recovered.former_end.filter(|_| recovered.shortened.is_some()) {
            Some((index, term)) => node.book.shortened(&found, vote, (term, index)),
            None => {
                node.book.opened(&found, vote, |index, mark| client_checks.persisted(at, index, mark.hash))
            }
        }
        .map_err(|v| Violation { what: format!("{} {}", Name(at + 1), v.what), ..v })?;
        started.begin_round(local, wall);
        let args = ConnectArgs {
            cluster: "sim".into(),
            peers: Vec::new(),
            bootstrap: at == 0 && life == 1,
            position,
            log: Uuid::NIL,
            by_donor: false,
            in_doubt: None,
            timeout: Duration::from_secs(360_000),
            waits_for_others: true,
            needs_state: false,
            followed: node.server.followed,
        };
        let incarnation = recovered.identity.incarnation << 20;
        node.server.own_log = Some(FollowedLog { member: node.id, incarnation });
        let view_uuid = Uuid(std::array::from_fn(|n| match n {
            0 => at as u8 + 1,
            1 => life as u8,
            2 => (life >> 8) as u8,
            _ => 0x40,
        }));
        let connected = started.connect(args, view_uuid, HISTORY);
        hold!(connected.is_ok(), "a member can be started", "{}: {connected:?}", Name(at + 1));
        node.server.begin(started.finished());
        let (commit, term) = (started.raft().commit(), started.raft().term());
        let leadership = LeadershipChecks::new(started.raft(), local);
        node.process = Some(Process {
            life,
            node: started,
            inbox: VecDeque::new(),
            woken: false,
            timer_at: Micros::MAX,
            busy: false,
            syncs: false,
            hung: (0, now),
            commit: 0,
            term,
            leads: false,
            writes: Vec::new(),
            reads: Vec::new(),
            refused: 0,
            hinted_at: now,
            leadership,
            synced_to: [None; 2],
        });
        self.counters.starts += 1;
        self.weather += 1;
        self.trace.mix(term ^ found.last() << 32);
        self.say(
            at,
            format_args!(
                "starts at {position}: term {term}, log {}..{}, committed {commit}",
                found.base + 1,
                found.last()
            ),
        );
        self.round(at)
    }

    /// The process ends. `power`: the machine loses what was not synced, else what the process wrote stays.
    pub(crate) fn stop(&mut self, at: usize, power: bool) {
        let (seed, half, nth) = (self.rng.bits(), self.rng.one_in(2), self.rng.between(1, 5));
        let node = &mut self.nodes[at];
        let Some(mut process) = node.process.take() else { return };
        self.weather += 1;
        if process.busy && half {
            node.disk.fail_op(nth, Fault::PowerCut);
            let _ = process.node.end_batch(false);
        }
        if power {
            node.disk.crash(seed);
        } else {
            node.disk.kill();
            node.disk.clear_faults();
        }
        drop(process);
        let positions = node.server.possible_positions();
        let to = if power { *self.rng.pick(&positions) } else { node.server.finished };
        let gives_up = node.server.gives_up_data;
        node.server.roll_back(to);
        node.server.gives_up_data = gives_up;
        node.paused_until = 0;
        self.say(
            at,
            format_args!("{}; its database is at {to}", if power { "loses power" } else { "is killed" }),
        );
        self.hang_up_all(at, if power { 2 * SECOND } else { 50 * MS });
    }

    pub(crate) fn start_later(&mut self, at: usize, low: Micros, high: Micros) {
        if self.nodes[at].fate == Fate::In && !self.nodes[at].starting && self.nodes[at].process.is_none() {
            self.nodes[at].starting = true;
            let after = self.rng.between(low, high.max(low));
            self.queue.push(self.now + after, Event::Start { at });
        }
    }

    /// An input for a process's next round.
    pub(crate) fn input(&mut self, at: usize, input: Input) {
        if let Some(process) = &mut self.nodes[at].process {
            process.inbox.push_back(input);
        }
        let batching = if self.profile.batching > 0 { self.rng.below(self.profile.batching) } else { 0 };
        self.wake(at, batching);
    }

    /// A round of this process is due.
    pub(crate) fn wake(&mut self, at: usize, after: Micros) {
        let paused = self.nodes[at].paused_until;
        if let Some(process) = &mut self.nodes[at].process
            && !process.woken
        {
            process.woken = true;
            let life = process.life;
            self.queue.push((self.now + after).max(paused), Event::Round { at, life });
        }
    }

    /// The log cannot be written: the process ends.
    fn log_failed(&mut self, at: usize, error: &str) -> Check {
        let node = &self.nodes[at];
        // A segment that cannot be removed closes the log; the core learns of it with its next write.
        let closed_before = node.disk_failed && error.starts_with(CLOSED);
        hold!(
            node.disk_fails || closed_before,
            "the log takes what the core gives",
            "{}: {error}",
            Name(at + 1)
        );
        self.say(at, format_args!("its log fails: {error}"));
        self.stop(at, true);
        self.start_later(at, 10 * MS, SECOND);
        Ok(())
    }

    /// The log's thread, if it is idle, takes all jobs.
    pub(crate) fn start_io(&mut self, at: usize) -> Check {
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else { return Ok(()) };
        if process.busy || !process.node.has_jobs() {
            return Ok(());
        }
        process.busy = true;
        let life = process.life;
        match process.node.begin_batch() {
            Err(error) => self.log_failed(at, &error),
            Ok(syncs) => {
                process.syncs = syncs;
                let takes = if syncs { node.speed.sync + self.rng.below(node.speed.jitter + 1) } else { 50 };
                self.counters.syncs += u64::from(syncs);
                self.queue.push(self.now + takes, Event::Synced { at, life });
                Ok(())
            }
        }
    }

    /// The log's thread is done with a batch.
    pub(crate) fn synced(&mut self, at: usize) -> Check {
        let ignored = self.settings.mutation == Some(Planted::Node(NodeFault::FailedSyncIgnored));
        let node = &mut self.nodes[at];
        let Some(process) = &mut node.process else { return Ok(()) };
        if node.disk_hangs {
            let life = process.life;
            self.queue.push(self.now + 5 * MS, Event::Synced { at, life });
            return Ok(());
        }
        (process.busy, process.syncs) = (false, false);
        let answers = match process.node.end_batch(ignored) {
            Err(error) => return self.log_failed(at, &error),
            Ok(answers) => answers,
        };
        let client_checks = &mut self.client_checks;
        for answer in answers {
            if let Some(first) = answer.trimmed() {
                node.book.trimmed(first);
            }
            if let Some(ticket) = answer.written() {
                process.synced_to = [process.synced_to[1], process.node.log_end()];
                node.book.synced(ticket, |index, mark| client_checks.persisted(at, index, mark.hash));
            }
            process.inbox.push_back(Input::Log(answer));
        }
        self.wake(at, 0);
        self.start_io(at)
    }
}

/// The content of an open log, of which everything up to `known` is certain. In one start of eight, and where anything else is
/// there than expected, all of it is read.
fn read_log(node: &SimulatedNode<MemDisk>, known: &Mirror, certain: bool) -> Result<Mirror, Violation> {
    let wrong = |what: String| Violation { rule: "the log gives back what it took", what };
    let log = node.log();
    let base = log.first_index().max(1) - 1;
    let reused = known.last().saturating_sub(REREAD);
    let mut found = Mirror::after(base, node.raft().term_at(base).unwrap_or(0));
    if certain && (known.base..reused).contains(&base) && log.last_index() > reused {
        found = known.clone();
        found.trim_to(base + 1);
        found.truncate_from(reused + 1);
    }
    while found.last() < log.last_index() {
        let from = found.last() + 1;
        let records = log.read(from, READ_BYTES).map_err(|e| wrong(format!("index {from}: {e}")))?;
        if records.is_empty() {
            return Err(wrong(format!("nothing at index {from}")));
        }
        for record in records {
            let entry = Entry::decode_body(record.index, record.term, record.body);
            found.push(Mark::of(&entry.map_err(|e| wrong(format!("index {}: {e}", record.index)))?));
        }
    }
    Ok(found)
}
