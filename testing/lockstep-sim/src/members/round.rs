//! One round of a process: inputs in, the member decides, effects out; and the checks of everything that goes by.

use super::node::Input;
use super::{World, server};
use crate::history::{Check, History, Violation, Witness, hold};
use crate::machine::Name;
use crate::mirror::Mark;
use crate::profile::{MS, SECOND};
use lockstep_core::codec::Reader;
use lockstep_core::members::Membership;
use lockstep_core::message::Message;
use lockstep_core::raft::{Role, WriteOp};
use lockstep_core::{EntryKind, Index, MemberId, Micros, Term};
use lockstep_node::SubmitOutcome;
use lockstep_node::simulation::{Output, raft_message};
use std::sync::Arc;

/// No process sleeps longer than this.
const NAP: Micros = 100 * MS;
/// The log is told the commit index this often.
const HINT: Micros = SECOND;
/// Tags of messages that are checked: `Vote`, `VoteReply` and `Ack`.
const CHECKED: [u8; 3] = [3, 4, 6];

impl World {
    pub(super) fn round(&mut self, at: usize) -> Check {
        let now = self.now;
        let node = &mut self.nodes[at];
        if node.paused_until > now {
            return Ok(());
        }
        let (local, wall) = (node.clock.local(now), node.clock.wall(now));
        let Some(process) = &mut node.process else { return Ok(()) };
        process.woken = false;
        let (life, id, term_before) = (process.life, node.id, process.node.raft().term());
        let mut memberships = vec![process.node.raft().tail_state().membership.clone()];
        process.node.begin_round(local, wall);
        while let Some(input) = process.inbox.pop_front() {
            match input {
                Input::Frame { from, kind, payload } => process.node.frame(from, kind, payload),
                Input::Log(answered) => process.node.log_answered(answered),
            }
        }
        if process.hinted_at + HINT <= now {
            process.hinted_at = now;
            process.node.hint();
        }
        process.node.refuse_writes(process.refused);
        let (mut outputs, mut deliveries) = (Vec::new(), Vec::new());
        process.node.end_round(&mut outputs, &mut deliveries);
        for delivery in deliveries {
            node.server.take(&mut process.node, delivery);
        }
        let raft = process.node.raft();
        let (term, commit, leads) = (raft.term(), raft.commit(), raft.role() == Role::Leader);
        memberships.push(raft.tail_state().membership.clone());
        if raft.has_fallen_back() {
            self.judge.fell_back(at, raft.persisted());
        }
        self.trace.mix(term ^ commit << 32);
        hold!(
            term >= term_before,
            "terms never fall",
            "{} goes from term {term_before} to {term}",
            Name(at + 1)
        );
        for output in &outputs {
            if let Output::Write(op) = output {
                self.write_begins(at, op, &mut memberships)?;
            }
        }
        self.leads_and_commits(at, id, life, (term_before, term), leads, commit, &memberships)?;
        for output in outputs {
            match output {
                Output::Send { to, kind, payload } => {
                    if let Some(message) = raft_message(kind, &payload, |tag| CHECKED.contains(&tag)) {
                        self.may_say(at, &to, &message)?;
                    }
                    self.send(at, &to, kind, payload);
                }
                Output::Drop(peer) => {
                    if let Some(peer) = self.place_of(&peer) {
                        self.hang_up(at, peer, 10 * MS);
                    }
                }
                Output::Connected(result) => {
                    hold!(result.is_ok(), "a member joins", "{}: {result:?}", Name(at + 1));
                }
                Output::Left => self.hang_up_all(at, 10 * MS),
                Output::Log(level, text) => self.say(at, format_args!("{level:?}: {text}")),
                Output::Causal { id, seqno } => self.read_answered(at, id, seqno)?,
                Output::Answer { token, answer } => {
                    self.say(at, format_args!("answers command {token}: {answer:?}"));
                }
                Output::SetAside => {
                    return Err(Violation {
                        rule: "there is one branch",
                        what: format!("{} sets its log aside", Name(at + 1)),
                    });
                }
                Output::Write(_) => {}
            }
        }
        self.start_io(at)?;
        self.writes_answered(at)?;
        self.after_round(at, life)
    }

    /// Records a requested write with the checkers.
    fn write_begins(&mut self, at: usize, op: &WriteOp, memberships: &mut Vec<Arc<Membership>>) -> Check {
        if let Some(genesis) = op.reset.as_ref().filter(|_| self.history.is_none()) {
            self.history = Some(History::of_members((**genesis).clone(), self.settings.promises));
        }
        let node = &mut self.nodes[at];
        let (id, commit) = (node.id, node.process.as_ref().map_or(0, |process| process.commit));
        let mut prev_term = match (&op.reset, op.truncate_from) {
            (Some(state), None) => Some(state.term),
            (_, Some(from)) => node.book.memory.mirror.term_at(from - 1),
            _ => Some(node.book.memory.mirror.last_term()),
        };
        let marks: Vec<Mark> = op.entries.iter().map(Mark::of).collect();
        node.book
            .write(op, marks.clone(), commit)
            .map_err(|v| Violation { what: format!("{} {}", Name(at + 1), v.what), ..v })?;
        for (entry, mark) in op.entries.iter().zip(marks) {
            self.trace.mix(mark.hash);
            self.judge.received(at, entry.index, mark.hash);
            if let (Some(history), Some(before)) = (&mut self.history, prev_term) {
                history.places(id, entry, mark, before)?;
            }
            prev_term = Some(entry.term);
            if entry.kind == EntryKind::Membership
                && let Ok(next) = Membership::decode(&mut Reader::new(entry.payload()))
            {
                memberships.push(Arc::new(next));
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "what the member was before and after its round")]
    fn leads_and_commits(
        &mut self,
        at: usize,
        id: MemberId,
        life: u64,
        terms: (Term, Term),
        leads: bool,
        commit: Index,
        memberships: &[Arc<Membership>],
    ) -> Check {
        let Some(mut history) = self.history.take() else { return Ok(()) };
        let checked = self.check_commits(&mut history, at, id, life, terms, leads, commit, memberships);
        self.history = Some(history);
        checked
    }

    #[allow(clippy::too_many_arguments, reason = "as its caller")]
    fn check_commits(
        &mut self,
        history: &mut History,
        at: usize,
        id: MemberId,
        life: u64,
        terms: (Term, Term),
        leads: bool,
        commit: Index,
        memberships: &[Arc<Membership>],
    ) -> Check {
        let node = &self.nodes[at];
        let Some(process) = &node.process else { return Ok(()) };
        if leads && (!process.leads || process.term != terms.1) {
            self.say(at, format_args!("leads term {}", terms.1));
            history.leads(id, life, terms.1, &node.book.memory.mirror)?;
        }
        let before = process.commit;
        hold!(commit >= before, "the commit index never falls", "{}: {before} to {commit}", Name(at + 1));
        if commit > before {
            let witness = Witness { id, terms, memberships, log: &node.book.memory.mirror };
            let on_disk = |membership: &Membership, index: Index, term: Term| {
                let holds = |id: &MemberId| {
                    let durable =
                        self.nodes.iter().find(|node| node.id == *id).map(|node| &node.book.durable);
                    durable.and_then(|log| log.mirror.term_at(index)) == Some(term)
                };
                membership.voters().filter(holds).count()
            };
            history.commits(&witness, before, commit, on_disk)?;
            if self.counters.events.is_multiple_of(8) {
                history.folds(id, process.node.raft().committed_state())?;
            }
            self.judge.verdicts(history)?;
        }
        if let Some(process) = &mut self.nodes[at].process {
            (process.commit, process.term, process.leads) = (commit, terms.1, leads);
        }
        Ok(())
    }

    /// What is said must be on the disk.
    fn may_say(&mut self, at: usize, to: &MemberId, message: &Message) -> Check {
        let node = &self.nodes[at];
        let Some(history) = &mut self.history else { return Ok(()) };
        match message {
            Message::Vote { term, .. } => history.votes(node.id, *term, node.id)?,
            Message::VoteReply { term, granted: true } => {
                hold!(
                    !history.promises() || node.book.durable_vote == (*term, Some(*to)),
                    "a vote is on disk before it is told",
                    "{} grants its vote in term {term}, on disk is {:?}",
                    Name(at + 1),
                    node.book.durable_vote
                );
                history.votes(node.id, *term, *to)?;
            }
            Message::Ack { term, persisted, received, .. } if history.promises() => {
                let on_disk = node.book.durable.mirror.last();
                hold!(
                    *persisted <= on_disk,
                    "an ack is on disk before it is told",
                    "{} says that it has persisted {persisted}, on disk is {on_disk}",
                    Name(at + 1)
                );
                history.acks(node.id, *term, *received, &node.book.memory.mirror)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Handles the results of writes.
    fn writes_answered(&mut self, at: usize) -> Check {
        let Some(process) = &mut self.nodes[at].process else { return Ok(()) };
        let mut answered = Vec::new();
        process.writes.retain(|write| match write.submission.try_take() {
            None => true,
            Some(outcome) => {
                answered.push((write.mark, outcome));
                false
            }
        });
        for (mark, outcome) in answered {
            match outcome {
                SubmitOutcome::NotSent => {
                    self.judge.never.insert(mark);
                    self.part_done(mark, None);
                }
                SubmitOutcome::Unknown => self.part_done(mark, None),
                SubmitOutcome::TooLarge => {
                    return Err(Violation { rule: "writes fit", what: format!("write {mark} is too large") });
                }
                SubmitOutcome::Ordered(ordered) => {
                    hold!(
                        server::mark_of(&ordered) == mark,
                        "an answer is the own one",
                        "write {mark} of {} was given another's place",
                        Name(at + 1)
                    );
                    self.nodes[at].server.delivered_entry(&ordered);
                    self.part_done(mark, Some(ordered.seqno).filter(|_| ordered.pass));
                    if ordered.pass {
                        self.answers += 1;
                        self.judge.answered(&self.nodes, at, mark, ordered.seqno)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn read_answered(&mut self, at: usize, id: u64, seqno: Option<i64>) -> Check {
        let Some(process) = &mut self.nodes[at].process else { return Ok(()) };
        let Some(place) = process.reads.iter().position(|(read, _)| *read == id) else { return Ok(()) };
        let (_, floor) = process.reads.swap_remove(place);
        if let Some(seqno) = seqno {
            self.counters.reads += 1;
            hold!(
                seqno >= floor,
                "reads see what was acknowledged",
                "a read of {} sees {seqno}, and {floor} was acknowledged before",
                Name(at + 1)
            );
        }
        Ok(())
    }

    /// The server takes what was delivered, and the timer is set.
    fn after_round(&mut self, at: usize, life: u64) -> Check {
        let now = self.now;
        let node = &mut self.nodes[at];
        let unchecked = std::mem::take(&mut node.server.unchecked);
        if !node.server.is_idle() && !node.serving {
            node.serving = true;
            let after = self.rng.between(100, self.profile.apply.max(MS));
            self.queue.push(now + after, super::Event::Serve { at });
        }
        for (seqno, meaning) in unchecked {
            self.judge.meaning(at, seqno, meaning)?;
        }
        let node = &mut self.nodes[at];
        let clock = node.clock;
        let local = clock.local(now);
        let Some(process) = node.living(life) else { return Ok(()) };
        if let Some((why, text)) = process.node.server_must_end() {
            self.say(at, format_args!("ends itself: {why:?}: {text}"));
            self.stop(at, false);
            self.start_later(at, 10 * MS, SECOND);
            return Ok(());
        }
        let due = clock.global(process.node.deadline().min(local + NAP)).max(now + 50);
        if due < process.timer_at || process.timer_at <= now {
            process.timer_at = due;
            self.queue.push(due, super::Event::Timer { at, life, due });
        }
        if let Some(text) = self.nodes[at].server.violation.take() {
            return Err(Violation {
                rule: "the server's view is sound",
                what: format!("{}: {text}", Name(at + 1)),
            });
        }
        let failed = self.nodes[at].server.failed.take();
        if let Some(text) = failed.filter(|_| !self.nodes[at].server.gives_up_data) {
            return Err(Violation { rule: "no member fails", what: format!("{}: {text}", Name(at + 1)) });
        }
        Ok(())
    }
}
