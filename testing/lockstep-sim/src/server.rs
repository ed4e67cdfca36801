//! A member's server: it certifies what is committed with the core's certifier, applies what passes by the core's
//! schedule, several at a time, and commits in the order of seqnos.
//!
//! As a node does it: certification begins at a segment's base at or below the database's position, learns what the
//! trim marks tell, and goes over what the database has without delivering it.

use crate::cluster::{Cluster, Event, Settings};
use crate::history::{Check, Violation, hold};
use crate::judge::{self, Rows};
use crate::machine::{Name, Process};
use crate::mirror::Mark;
use lockstep_core::certify::{Certification, Certifier, CertifyError, reaches};
use lockstep_core::policy::Writers;
use lockstep_core::raft::Failpoint;
use lockstep_core::schedule::Scheduler;
use lockstep_core::snapshot::{StateSnapshot, TrimMark};
use lockstep_core::writeset::WriteSet;
use lockstep_core::{Entry, EntryKind, Index, Seqno};
use std::collections::VecDeque;

/// The position and contents of the database.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    /// The last index whose entry, with all before it, is committed in the database; `None`: no database.
    pub(crate) position: Option<Index>,
    /// The durable position.
    pub(crate) safe: Index,
    /// Committed.
    pub(crate) rows: Rows,
    /// Undo records above `safe`: index, row, old value.
    pub(crate) journal: VecDeque<(Index, u64, Option<u64>)>,
}

impl Server {
    /// A copy of this database.
    pub(crate) fn copy(&self) -> Server {
        Server { safe: self.position.unwrap_or(0), journal: VecDeque::new(), ..self.clone() }
    }

    /// A crash leaves it at this position.
    pub(crate) fn roll_back(&mut self, to: Index) {
        while self.journal.back().is_some_and(|(index, _, _)| *index > to) {
            let Some((_, row, before)) = self.journal.pop_back() else { break };
            match before {
                Some(value) => self.rows.insert(row, value),
                None => self.rows.remove(&row),
            };
        }
        self.position = Some(to);
        self.safe = to;
        self.journal.clear();
    }

    /// All up to the position is on its disk.
    pub(crate) fn flush(&mut self) {
        self.safe = self.position.unwrap_or(0);
        self.journal.clear();
    }

    fn write(&mut self, index: Index, set: &WriteSet) {
        let hash = judge::payload_hash(set);
        for row in judge::changes(set) {
            let before = self.rows.get(&row).copied();
            self.rows.insert(row, judge::written(before, hash));
            self.journal.push_back((index, row, before));
        }
    }
}

/// Delivered, and not committed in the database.
#[derive(Debug)]
struct Pending {
    index: Index,
    seqno: Seqno,
    /// What to apply; `None` where it failed, or is a view.
    set: Option<WriteSet>,
    /// Nothing may be applied beside it.
    alone: bool,
    finished: bool,
}

/// What certifies and applies, from the start of a process, or from the arrival of a database, on.
#[derive(Debug)]
pub(crate) struct Run {
    certifier: Certifier,
    /// The members whose write-sets may pass.
    writers: Writers,
    scheduler: Scheduler,
    /// The last index handed to the server, or its position at the start.
    pub(crate) delivered: Index,
    /// The next index to certify.
    next: Index,
    /// Delivered, not committed, ascending.
    pending: VecDeque<Pending>,
    /// Being applied.
    applying: Vec<Seqno>,
    /// Something will happen to them.
    awaited: bool,
}

impl Run {
    /// Begins for a database at this position. `None`: the log does not reach back far enough yet, or any more.
    fn start(process: &Process, position: Index, seqno: Seqno, settings: &Settings) -> Option<Run> {
        let order = &process.order;
        let committed = order.committed_state();
        let fits =
            |base: &&StateSnapshot| base.seqno <= seqno && base.index <= position && reaches(base, committed);
        let base = order.segment_bases().filter(fits).last()?;
        let too_late = StateSnapshot { index: position, seqno, ..base.clone() };
        let base =
            if settings.core_failpoint() == Some(Failpoint::CertifyFromPosition) { &too_late } else { base };
        let mut certifier = Certifier::new(base);
        certifier.set_failpoints(settings.core_failpoint().into());
        let known = |(index, _): &&(Index, TrimMark)| *index > base.index && *index <= committed.index;
        for (_, mark) in process.marks.iter().filter(known) {
            certifier.learn(mark);
        }
        Some(Run {
            certifier,
            writers: base.writers(),
            scheduler: Scheduler::new(seqno),
            delivered: position,
            next: base.index + 1,
            pending: VecDeque::new(),
            applying: Vec::new(),
            awaited: false,
        })
    }

    /// Everything that was delivered is committed in the database.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// The log is cut after `keep`, and the server has seen nothing beyond it: certification is repeated up to there.
    /// `None`: impossible.
    pub(crate) fn cut(&mut self, process: &Process, keep: Index, settings: &Settings) -> Option<()> {
        let seqno = self.pending.back().map_or(self.scheduler.low_water(), |last| last.seqno);
        let fresh = Run::start(process, keep, seqno, settings)?;
        (self.certifier, self.writers) = (fresh.certifier, fresh.writers);
        (self.next, self.delivered) = (fresh.next, keep);
        Some(())
    }

    /// Up to here all is committed in the database.
    fn finished(&self) -> Index {
        self.pending.front().map_or(self.delivered, |first| first.index - 1)
    }

    /// All seqnos up to this one have finished: the `last_seen` of write-sets that begin now.
    pub(crate) fn seen(&self) -> Seqno {
        self.scheduler.low_water()
    }

    /// The trim mark that a leader would make.
    pub(crate) fn next_trim(&self, low: Seqno, window: u64, tail: &StateSnapshot) -> Option<TrimMark> {
        let limits = lockstep_core::certify::TrimLimits { min_advance: 1, max_window: window };
        self.certifier.next_trim(low, &limits, tail)
    }

    /// The verdict on the next entry; `None` where it has none.
    fn certify(&mut self, entry: &Entry) -> Result<Option<(Certification, Option<WriteSet>)>, CertifyError> {
        self.writers.follow(entry);
        Ok(match entry.kind {
            EntryKind::WriteSet | EntryKind::TotalOrder => {
                let set = WriteSet::parse(&entry.payload()).ok();
                let outcome = self.certifier.judge(&self.writers, entry, set.as_ref())?;
                Some((outcome, set))
            }
            EntryKind::View => Some((self.certifier.barrier(entry.seqno)?, None)),
            EntryKind::Trim => {
                let mark = TrimMark::from_payload(entry.payload())
                    .map_err(|_| CertifyError::Mark("cannot be read"))?;
                self.certifier.trim(&mark)?;
                None
            }
            _ => None,
        })
    }
}

impl Cluster {
    /// Hands to the server what is committed and on the own disk; under a weak policy a leader hands on its own before.
    pub(crate) fn deliver(&mut self, slot: usize) -> Check {
        let machine = &mut self.machines[slot];
        let Some(process) = &mut machine.process else { return Ok(()) };
        let base = process.memory.base;
        let Some(position) = machine.server.position.filter(|at| *at >= base) else {
            // The log does not reach back to the database: it must come from another member.
            if process.commit > 0 && !process.transfer_asked {
                process.transfer_asked = true;
                let life = process.life;
                let at = self.now + self.rng.between(1_000, 300_000);
                self.queue.push(at, Event::Transferred { slot, life });
            }
            return Ok(());
        };
        if process.run.is_none() {
            let seqno = if position == 0 { Some(0) } else { self.history.seqno_at(position) };
            process.run = seqno.and_then(|seqno| Run::start(process, position, seqno, &self.settings));
        }
        let deliverable = process.order.deliverable();
        let to = process.order.early().max(deliverable);
        let policy_index = process.order.policy_index();
        if process.order.has_fallen_back() {
            process.fell_back_to = process.order.last_index();
        }
        let (incarnation, id) = (process.incarnation, machine.id);
        let Some(mut next) = process.run.as_ref().map(|run| run.next) else { return Ok(()) };
        if next > to {
            return Ok(());
        }
        // Mostly from memory, as a node would; from the disk now and then, and where it must.
        let from_disk = self.rng.one_in(256);
        let mut read: VecDeque<Entry> = VecDeque::new();
        while next <= to {
            let Some(process) = &mut self.machines[slot].process else { return Ok(()) };
            let cached =
                if from_disk || !read.is_empty() { None } else { process.order.entry(next).cloned() };
            let entry = match cached {
                Some(entry) => entry,
                None => {
                    if read.is_empty() {
                        match read_some(process, next) {
                            Ok(entries) => read = entries,
                            Err(_) if self.machines[slot].disk_fails => break,
                            Err(violation) => return Err(violation),
                        }
                    }
                    let Some(entry) = read.pop_front() else { break };
                    entry
                }
            };
            // Its client waits until its policy is met.
            let own = entry.proposal.member == id && entry.proposal.incarnation == incarnation;
            if own && next > policy_index {
                break;
            }
            self.take(slot, entry, next <= deliverable)?;
            next += 1;
        }
        let Some(process) = &self.machines[slot].process else { return Ok(()) };
        self.history.folds(self.machines[slot].id, process.order.committed_state())?;
        self.say(slot, format_args!("delivers up to {to}"));
        self.server_commits(slot);
        self.await_server(slot);
        Ok(())
    }

    /// The next entry, certified; delivered if the database does not have it.
    fn take(&mut self, slot: usize, entry: Entry, committed: bool) -> Check {
        let machine = &mut self.machines[slot];
        let id = machine.id;
        let Some(process) = &mut machine.process else { return Ok(()) };
        let Some(run) = &mut process.run else { return Ok(()) };
        let index = entry.index;
        let certified = run.certify(&entry).map_err(|error| Violation {
            rule: "committed entries can be certified",
            what: format!("{} at index {index}: {error}", Name(slot)),
        })?;
        run.next = index + 1;
        if let Some((outcome, set)) = &certified
            && self.trace.wanted(self.now)
        {
            let seen = set.as_ref().map_or(-1, |set| set.meta.last_seen);
            let verdict = match outcome.failure {
                None => format!("passes, after {}", outcome.depends_on),
                Some(failure) => format!("fails: it {failure} ({:?})", outcome.conflict),
            };
            let text = format!(
                "{:?} seqno {} at {index}, which had seen {seen}: {verdict}",
                entry.kind, entry.seqno
            );
            self.trace.line(self.now, &Name(slot), format_args!("{text}"));
        }
        if committed && matches!(entry.kind, EntryKind::WriteSet | EntryKind::TotalOrder) {
            let pass = certified.as_ref().is_some_and(|(outcome, _)| outcome.pass);
            self.history.certifies(id, &entry, pass)?;
        }
        if index <= run.delivered {
            return Ok(());
        }
        hold!(
            index == run.delivered + 1,
            "deliveries are dense",
            "{} delivers {index} after {}",
            Name(slot),
            run.delivered
        );
        run.delivered = index;
        let own = entry.proposal.member == id && entry.proposal.incarnation == process.incarnation;
        if committed {
            self.history.delivers(id, &entry)?;
        } else {
            machine.early_life = process.life;
            self.delivers_early(slot, &entry)?;
        }
        let mark = Mark::of(&entry);
        if self.history.promises() {
            let durable = &self.machines[slot].durable;
            hold!(
                durable.get(index) == Some(mark),
                "delivered is on the own disk",
                "{} delivers index {index}, on disk is {:?}",
                Name(slot),
                durable.get(index)
            );
        }
        // For a note nobody waits.
        if own && (committed || entry.kind == EntryKind::WriteSet) {
            self.promise(slot, &entry, index)?;
            if self.history.mark_at(index) == Some(mark) {
                self.history.acknowledges(entry.proposal, index)?;
            } else {
                self.history.acknowledges_early(entry.proposal)?;
            }
        }
        let Some(run) = self.machines[slot].process.as_mut().and_then(|p| p.run.as_mut()) else {
            return Ok(());
        };
        if let Some((outcome, set)) = certified {
            let seqno = entry.seqno;
            hold!(
                outcome.depends_on < seqno && run.scheduler.push(seqno, outcome.depends_on),
                "the schedule takes what is delivered",
                "{} at seqno {seqno}, which depends on {}",
                Name(slot),
                outcome.depends_on
            );
            let alone = set.as_ref().is_none_or(|set| judge::is_alone(entry.kind, set));
            let set = set.filter(|_| outcome.pass);
            let alone = alone && (set.is_some() || entry.kind == EntryKind::View);
            run.pending.push_back(Pending { index, seqno, set, alone, finished: false });
        }
        Ok(())
    }

    /// Commits applied write-sets in the order of seqnos.
    fn server_commits(&mut self, slot: usize) {
        let machine = &mut self.machines[slot];
        let Some(process) = &mut machine.process else { return };
        let Some(run) = &mut process.run else { return };
        while run.pending.front().is_some_and(|first| first.finished) {
            if let Some(Pending { index, set: Some(set), .. }) = run.pending.pop_front() {
                machine.server.write(index, &set);
            }
        }
        let at = run.finished();
        if machine.server.position < Some(at) {
            machine.server.position = Some(at);
            if self.rng.one_in(8) {
                machine.server.flush();
            }
        }
        let seqno = run.seen();
        process.order.set_finished(seqno);
        process.order.set_position(Some(seqno));
    }

    fn await_server(&mut self, slot: usize) {
        let now = self.now;
        let Some(process) = &mut self.machines[slot].process else { return };
        let life = process.life;
        if let Some(run) = &mut process.run
            && !run.awaited
            && !run.pending.is_empty()
        {
            run.awaited = true;
            let at = now + self.rng.between(20, self.profile.apply);
            self.queue.push(at, Event::Apply { slot, life });
        }
    }

    /// Advances the appliers: some begin scheduled write-sets, some finish.
    pub(crate) fn apply(&mut self, slot: usize) -> Check {
        let steps = self.rng.between(1, 2 * self.profile.appliers as u64);
        for _ in 0..steps {
            let Some(process) = &mut self.machines[slot].process else { return Ok(()) };
            let Some(run) = &mut process.run else { return Ok(()) };
            run.awaited = false;
            while run.applying.len() < self.profile.appliers
                && let Some(seqno) = run.scheduler.next_ready()
            {
                begins(slot, run, seqno)?;
                run.applying.push(seqno);
            }
            if run.applying.is_empty() {
                break;
            }
            let seqno = run.applying.swap_remove(self.rng.below(run.applying.len() as u64) as usize);
            run.scheduler.finished(seqno);
            if let Ok(at) = run.pending.binary_search_by_key(&seqno, |p| p.seqno) {
                run.pending[at].finished = true;
            }
        }
        self.server_commits(slot);
        self.await_server(slot);
        Ok(())
    }
}

/// Everything that this entry meets, of all before it, must have finished.
fn begins(slot: usize, run: &Run, seqno: Seqno) -> Check {
    let Ok(at) = run.pending.binary_search_by_key(&seqno, |p| p.seqno) else { return Ok(()) };
    let this = &run.pending[at];
    let meets = |earlier: &Pending| match (&earlier.set, &this.set) {
        _ if earlier.alone || this.alone => true,
        (Some(earlier), Some(this)) => judge::meet(earlier, this),
        _ => false,
    };
    let broken = run.pending.range(..at).find(|earlier| !earlier.finished && meets(earlier));
    hold!(
        broken.is_none(),
        "what meets is applied in order",
        "{} begins to apply seqno {seqno} before {:?} has finished",
        Name(slot),
        broken.map(|b| b.seqno)
    );
    Ok(())
}

/// Reads entries from the disk, at least one.
fn read_some(process: &Process, index: Index) -> Result<VecDeque<Entry>, Violation> {
    let wrong = |what: String| Violation { rule: "the log gives back what it took", what };
    let records = process.log.read(index, 64 << 10).map_err(|e| wrong(format!("index {index}: {e}")))?;
    if records.is_empty() {
        return Err(wrong(format!("index {index}: nothing")));
    }
    let entries = records.into_iter().map(|r| Entry::decode_body(r.index, r.term, r.body));
    entries.collect::<Result<_, _>>().map_err(|e| wrong(format!("from index {index}: {e}")))
}
