//! One round of a process: inputs in, the member decides, effects out; and the checks of everything that goes by.

use super::World;
use crate::clock::Name;
use crate::history::{Check, History, Violation, Witness, hold};
use crate::mirror::Mark;
use crate::node::{Input, Read};
use crate::profile::{MS, SECOND};
use crate::server;
use crate::server::Delivered;
use lockstep_core::codec::Reader;
use lockstep_core::members::Membership;
use lockstep_core::message::Message;
use lockstep_core::placement::REST;
use lockstep_core::raft::{Role, WriteOp};
use lockstep_core::{EntryKind, Index, MemberId, Micros, Term};
use lockstep_node::simulation::{Output, is_raft, raft_message};
use lockstep_node::{LocalState, NodeError, SubmitOutcome};
use std::sync::Arc;

/// No process sleeps longer than this.
const NAP: Micros = 100 * MS;
/// The log is told the commit index this often.
const HINT: Micros = SECOND;
/// A member that was removed says so, and has to be started again.
const REMOVED: &str = "an operator has removed this member";
/// A member whose disk hangs says so, and ends.
const DISK_HANGS: &str = "this member's disk has finished no write";
/// A member notices within this time, beside its timeout, that its disk hangs. One round counts at most a second.
const NOTICE: Micros = 1_500 * MS;
/// Tags of sent messages that are checked: `Vote`, `VoteReply`, `Ack` and `TailQuery`.
const SENT: [u8; 4] = [3, 4, 6, 15];
/// Tags of received messages that are checked: `PreVoteReply`, `VoteReply` and `TailReply`.
const RECEIVED: [u8; 3] = [2, 4, 16];

impl World {
    pub(crate) fn round(&mut self, at: usize) -> Check {
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
        process.leadership.round_begins(process.node.raft(), local);
        process.node.begin_round(local, wall);
        while let Some(input) = process.inbox.pop_front() {
            match input {
                Input::Frame { from, kind, payload } => {
                    if is_raft(kind) {
                        process.leadership.hears(from, local);
                    }
                    match raft_message(kind, &payload, |tag| RECEIVED.contains(&tag)) {
                        Some(Message::PreVoteReply { term, granted: true }) => {
                            process.leadership.pre_vote(from, term, term_before);
                        }
                        Some(Message::VoteReply { term, granted: true }) => {
                            process.leadership.reaches(process.node.raft(), from, term, Index::MAX);
                        }
                        Some(Message::TailReply { term, last_index, .. }) => {
                            process.leadership.reaches(process.node.raft(), from, term, last_index);
                        }
                        _ => {}
                    }
                    process.node.frame(from, kind, payload);
                }
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
        let membership = &raft.tail_state().membership;
        if !memberships.last().is_some_and(|before| Arc::ptr_eq(before, membership)) {
            memberships.push(membership.clone());
        }
        if raft.has_fallen_back() {
            self.client_checks.fell_back(at, raft.persisted());
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
        // Taken out for the check, which also changes the world around it.
        if let Some(mut history) = self.history.take() {
            let terms = (term_before, term);
            let checked = self.check_commits(&mut history, at, id, life, terms, leads, commit, &memberships);
            self.history = Some(history);
            checked?;
        }
        let (mut left, mut gives_up_log) = (false, false);
        for output in outputs {
            match output {
                Output::Send { to, kind, payload } => {
                    if let Some(message) = raft_message(kind, &payload, |tag| SENT.contains(&tag)) {
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
                    let removed = matches!(&result, Err(NodeError::Log(text)) if text.starts_with(REMOVED));
                    let may_fail = removed || self.nodes[at].rewound;
                    hold!(result.is_ok() || may_fail, "a member joins", "{}: {result:?}", Name(at + 1));
                    left |= removed;
                }
                Output::Left => left = true,
                Output::Log(level, text) => {
                    self.say(at, format_args!("{level:?}: {text}"));
                    self.logged(at, life, &text)?;
                }
                Output::Causal { id, seqno } => self.read_answered(at, id, seqno)?,
                Output::Answer { token, answer } => {
                    self.say(at, format_args!("answers command {token}: {answer:?}"));
                }
                Output::QuarantineLog if self.nodes[at].rewound => gives_up_log = true,
                Output::QuarantineLog => {
                    return Err(Violation {
                        rule: "there is one branch",
                        what: format!("{} sets its log aside", Name(at + 1)),
                    });
                }
                Output::Write(_) => {}
            }
        }
        if gives_up_log {
            self.gives_up_log(at);
            return Ok(());
        }
        self.hangs(at)?;
        self.start_io(at)?;
        self.writes_answered(at)?;
        self.delivered(at)?;
        let election_timeout = self.settings.promises.then_some(self.profile.election_timeout);
        if let Some(process) = self.nodes[at].living(life) {
            let raft = process.node.raft();
            let fell = process.leadership.round_ends(&Name(at + 1), raft, local, election_timeout)?;
            self.counters.fallbacks += u64::from(fell);
        }
        if left && self.nodes[at].life() == life {
            self.say(at, format_args!("has left"));
            self.stop(at, false);
            self.start_later(at, 10 * MS, 2 * SECOND);
            return Ok(());
        }
        self.after_round(at, life)
    }

    /// A member whose disk hangs in a sync is not Synced for longer than its timeout.
    fn hangs(&mut self, at: usize) -> Check {
        let (now, node) = (self.now, &mut self.nodes[at]);
        let timeout = node.tuning.disk_timeout.as_micros() as Micros;
        let Some(process) = &mut node.process else { return Ok(()) };
        let (hung, counted_at) = process.hung;
        // As the member itself: a pause of its process does not count as a standstill.
        let more = (now - counted_at).min(SECOND);
        process.hung = (if node.disk_hangs && process.syncs { hung + more } else { 0 }, now);
        let for_long = timeout > 0 && process.hung.0 > timeout + timeout / 10 + NOTICE;
        hold!(
            !for_long || process.node.local_state() != LocalState::Synced,
            "a member with a hung disk is not Synced",
            "{}: {} ms",
            Name(at + 1),
            process.hung.0 / MS
        );
        Ok(())
    }

    /// Lines of the error log that show a broken rule.
    fn logged(&mut self, at: usize, life: u64, text: &str) -> Check {
        hold!(
            !text.contains("cannot be certified"),
            "committed entries can be certified",
            "{}: {text}",
            Name(at + 1)
        );
        if text.ends_with("it is to lead (leader.follow_writer)") {
            self.counters.follows += 1;
            let now = self.now;
            let local = self.nodes[at].clock.local(now);
            if let Some(process) = self.nodes[at].living(life) {
                let led_for = process.leadership.led_for(local);
                hold!(
                    led_for >= REST * SECOND,
                    "a leader rests before it moves leadership",
                    "{} has led for {led_for} us",
                    Name(at + 1)
                );
            }
        }
        Ok(())
    }

    /// Checks what the server was given in this round.
    fn delivered(&mut self, at: usize) -> Check {
        let node = &mut self.nodes[at];
        let mut unchecked = std::mem::take(&mut node.server.unchecked);
        // The threads that waited for their entries were answered after the rest of the round.
        unchecked.sort_by_key(|delivered| delivered.seqno);
        let Some(process) = &node.process else { return Ok(()) };
        let raft = process.node.raft();
        let name = Name(at + 1);
        for Delivered { seqno, meaning, ordered } in unchecked {
            self.client_checks.meaning(at, seqno, meaning)?;
            let Some(ordered) = ordered else {
                node.server.apply_order.view(seqno);
                continue;
            };
            node.server.apply_order.check(&name, &ordered)?;
            let Some((index, mark)) = node.book.memory.place_of(seqno) else { continue };
            let durable = node.book.durable.mirror.get(index);
            hold!(
                !self.settings.promises || durable == Some(mark) || index <= node.book.durable.mirror.base,
                "delivered is on the own disk",
                "{name} delivers index {index}, on disk is {durable:?}"
            );
            if index <= raft.commit() || !self.settings.promises {
                continue;
            }
            let policy = raft.committed_state().policy;
            hold!(
                raft.role() == Role::Leader
                    && raft.term() == mark.term
                    && raft.term_at(raft.commit()) == Some(mark.term)
                    && ordered.origin == node.id
                    && seqno - raft.committed_state().seqno <= policy.max_at_risk as i64
                    && policy.is_weak(),
                "a leader delivers early what is its own",
                "{name} ({:?} of term {}) delivers index {index} of term {} by {:?}, committed is {}: {policy:?}",
                raft.role(),
                raft.term(),
                mark.term,
                ordered.origin,
                raft.commit()
            );
            hold!(
                process.leadership.may_deliver_early(raft),
                "a leader delivers early once a majority answers after its stall",
                "{name} delivers index {index} of term {}, committed is {}, and has heard no majority since its stall",
                mark.term,
                raft.commit()
            );
        }
        Ok(())
    }

    /// Records a requested write with the checkers.
    fn write_begins(&mut self, at: usize, op: &WriteOp, memberships: &mut Vec<Arc<Membership>>) -> Check {
        if let Some(genesis) = op.reset.as_ref().filter(|_| self.history.is_none()) {
            self.history = Some(History::new((**genesis).clone(), self.settings.promises));
        }
        self.counters.snapshots += u64::from(op.reset.as_ref().is_some_and(|state| state.index > 0));
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
        if let (Some(process), Some(from)) = (&mut node.process, op.truncate_from) {
            process.leadership.cut(from);
        }
        for (entry, mark) in op.entries.iter().zip(marks) {
            self.trace.mix(mark.hash);
            self.client_checks.received(at, entry.index, mark.hash);
            if let (Some(history), Some(before)) = (&mut self.history, prev_term) {
                history.places(id, entry, mark, before)?;
            }
            prev_term = Some(entry.term);
            if entry.kind == EntryKind::Membership
                && let Ok(next) = Membership::decode(&mut Reader::new(entry.payload()))
            {
                let (name, promises) = (Name(at + 1), self.settings.promises);
                let before = node.book.memory.rules(entry.index).0.map(|rules| &*rules.membership);
                if let (Some(process), Some(before), true) = (&node.process, before, promises) {
                    let (raft, links, local) = (process.node.raft(), &self.links, node.clock.local(self.now));
                    process.leadership.may_change(&name, raft, entry, before, &next)?;
                    let connected = |id: &MemberId| *id == node.id || links.has_peer(at, id);
                    let long = node.tuning.evict_timeout.as_micros() as Micros;
                    process
                        .leadership
                        .may_demote(&name, raft, entry, before, &next, connected, local, long)?;
                }
                if let Some(process) = &mut node.process {
                    process.leadership.changes(entry.index);
                }
                memberships.push(Arc::new(next));
            }
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments, reason = "what the member was before and after its round")]
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
            self.counters.arbitrators_led += u64::from(node.hello.arbitrator);
            history.leads(id, life, terms.1, &node.book.memory.mirror)?;
            self.new_leader(at, terms.1)?;
            self.elected(at);
        }
        let node = &self.nodes[at];
        let Some(process) = &node.process else { return Ok(()) };
        let before = process.commit;
        hold!(commit >= before, "the commit index never falls", "{}: {before} to {commit}", Name(at + 1));
        if commit > before {
            let witness = Witness { id, terms, memberships, log: &node.book.memory.mirror };
            let on_disk = |membership: &Membership, index: Index, term: Term| {
                let holds = |id: &MemberId| self.nodes.iter().any(|node| node.counts(id, index, term));
                membership.voters().filter(holds).count()
            };
            if commit > history.committed() {
                self.client_checks.counts(commit, &self.nodes[at].book.memory, memberships);
            }
            history.commits(&witness, before, commit, on_disk)?;
            if self.counters.events.is_multiple_of(8) {
                history.folds(id, process.node.raft().committed_state())?;
            }
            if memberships.len() > 1 || history.state().membership_index >= before {
                self.client_checks.joins(&history.state().membership, history.committed());
            }
            self.client_checks.verdicts(history)?;
        }
        if let Some(process) = &mut self.nodes[at].process {
            (process.commit, process.term, process.leads) = (commit, terms.1, leads);
        }
        Ok(())
    }

    /// A message may only announce state that is on the disk.
    fn may_say(&mut self, at: usize, to: &MemberId, message: &Message) -> Check {
        let node = &mut self.nodes[at];
        let Some(history) = &mut self.history else { return Ok(()) };
        match message {
            Message::Vote { term, transfer, .. } => {
                let name = Name(at + 1);
                if let Some(process) = &mut node.process {
                    process.leadership.campaigns(*term, self.weather);
                    if !transfer && history.promises() {
                        process.leadership.may_campaign(&name, *term)?;
                    }
                }
                history.votes(node.id, *term, node.id)?;
            }
            Message::TailQuery { term } => {
                if let Some(process) = &mut node.process {
                    process.leadership.campaigns(*term, self.weather);
                }
            }
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
                    self.client_checks.never.insert(mark);
                    self.part_done(mark, None);
                }
                SubmitOutcome::Unknown => self.part_done(mark, None),
                SubmitOutcome::TooLarge => {
                    return Err(Violation { rule: "writes fit", what: format!("write {mark} is too large") });
                }
                SubmitOutcome::Ordered(ordered) => {
                    hold!(
                        server::mark_of(&ordered.writeset) == mark,
                        "an answer is the own one",
                        "write {mark} of {} was given another's place",
                        Name(at + 1)
                    );
                    let (seqno, pass) = (ordered.seqno, ordered.pass);
                    self.nodes[at].server.delivered_entry(ordered);
                    self.part_done(mark, Some(seqno).filter(|_| pass));
                    if pass {
                        self.answers += 1;
                        self.client_checks.answered(&self.nodes, self.history.as_ref(), at, mark, seqno)?;
                        self.early(at, seqno)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// A write is acknowledged, perhaps before it is committed.
    fn early(&mut self, at: usize, seqno: i64) -> Check {
        let node = &self.nodes[at];
        let commit = node.process.as_ref().map_or(0, |process| process.commit);
        let place = node.book.memory.place_of(seqno).filter(|(index, _)| *index > commit);
        let Some((index, mark)) = place.filter(|_| self.settings.promises) else { return Ok(()) };
        self.counters.early += 1;
        self.at_risk.acknowledged(at, index, mark, self.client_checks.disks_of(index, mark.hash))
    }

    fn read_answered(&mut self, at: usize, id: u64, seqno: Option<i64>) -> Check {
        let Some(process) = &mut self.nodes[at].process else { return Ok(()) };
        let Some(place) = process.reads.iter().position(|read| read.id == id) else { return Ok(()) };
        let Read { floor, asked, .. } = process.reads.swap_remove(place);
        if let Some(seqno) = seqno {
            self.counters.reads += 1;
            if self.settings.promises {
                process.leadership.may_read(&Name(at + 1), process.node.raft(), asked)?;
            }
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
        if !node.server.is_idle() && !node.serving {
            node.serving = true;
            let after = self.rng.between(100, self.profile.apply.max(MS));
            self.queue.push(now + after, super::Event::Serve { at });
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
        if failed.as_ref().is_some_and(|text| text.starts_with(DISK_HANGS)) {
            // It ends itself in a moment.
            self.counters.hung_disks += 1;
            return Ok(());
        }
        let removed = failed.as_ref().is_some_and(|text| text.starts_with(REMOVED));
        if removed && self.nodes[at].removal_asked {
            self.restart_removed(at);
            return Ok(());
        }
        if let Some(text) = failed.filter(|_| !self.nodes[at].server.gives_up_data) {
            return Err(Violation { rule: "no member fails", what: format!("{}: {text}", Name(at + 1)) });
        }
        Ok(())
    }
}
