//! One round of a process: inputs in, the core runs, effects out; and the checks of everything that goes by.

use crate::cluster::{Cluster, Event};
use crate::history::{Check, Violation, Witness, hold};
use crate::machine::{Campaign, Flight, Input, Name, slot_of};
use crate::mirror::{Change, Mark};
use lockstep_core::members::Membership;
use lockstep_core::message::{Carried, Message};
use lockstep_core::raft::{Failpoint, Output, Role, WriteOp};
use lockstep_core::snapshot::TrimMark;
use lockstep_core::{Entry, EntryKind, Index, Micros, Term};
use std::sync::Arc;

/// Bytes on the wire, nearly.
pub(crate) fn size(message: &Message) -> usize {
    64 + match message {
        Message::Append { entries, .. }
        | Message::Relay { carried: Carried { entries, .. }, .. }
        | Message::Relayed { carried: Carried { entries, .. }, .. } => entries.iter().map(Entry::size).sum(),
        Message::Propose { proposals, .. } => proposals.iter().map(|p| 8 + p.payload.len()).sum(),
        Message::Snapshot { .. } => 500,
        _ => 0,
    }
}

impl Cluster {
    /// Lets a process handle its inputs.
    pub(crate) fn round(&mut self, slot: usize) -> Check {
        let now = self.now;
        let machine = &mut self.machines[slot];
        let local = machine.clock.local(now);
        let wall = machine.clock.wall(now);
        let Some(process) = &mut machine.process else { return Ok(()) };
        if process.paused_until > now {
            return Ok(());
        }
        let order = &mut process.order;
        let term_before = order.term();
        let mut memberships = vec![process.membership.clone()];
        let mut membership_index = process.membership_index;
        order.set_wall_clock(wall);
        for input in process.inbox.drain(..) {
            match input {
                Input::Message { from, message } => {
                    process.heard[slot_of(&from)] = local;
                    if let Message::PreVoteReply { term, granted: true } = message {
                        *process.pre_votes.entry(term).or_default() |= 1 << slot_of(&from);
                        // A campaign may go on in this round before a newer term ends it.
                        process.pre_votes.retain(|granted, _| *granted >= term_before);
                    }
                    // Replies that arrive after the campaign has ended do not count.
                    if let Message::VoteReply { term, granted: true } | Message::TailReply { term, .. } =
                        message
                        && order.role() == Role::Candidate
                        && order.term() == term
                    {
                        self.book.hears(slot, term, slot_of(&from));
                    }
                    order.step(local, from, message);
                }
                Input::PeerUp(id) => {
                    order.peer_up(local, id);
                    if self.settings.knows_relays(slot) && self.settings.knows_relays(slot_of(&id)) {
                        order.peer_relays(id);
                    }
                }
                Input::PeerDown(id) => {
                    self.book.loses(slot, order.term(), slot_of(&id));
                    order.peer_down(local, id)
                }
                Input::Written(ticket) => order.written(local, ticket),
                Input::Fetched { to, from, entries } => order.fetched(local, to, from, entries),
                Input::Nothing => {}
            }
        }
        order.tick(local);
        self.follow_writer(slot, local)?;
        let Some(process) = &mut self.machines[slot].process else { return Ok(()) };
        let order = &mut process.order;
        let outputs = order.drain(local);
        let terms = (term_before, order.term());
        hold!(
            terms.0 <= terms.1,
            "terms never fall",
            "{} goes from term {} to {}",
            Name(slot),
            terms.0,
            terms.1
        );
        self.trace.mix(terms.1);
        self.may_lead(slot, local)?;
        // First what is written, so that the checks of the rest know the log.
        for output in &outputs {
            if let Output::Write(op) = output {
                self.writes(slot, op, &mut memberships, &mut membership_index)?;
            }
        }
        for output in outputs {
            match output {
                Output::Write(op) => {
                    if let Some(process) = &mut self.machines[slot].process {
                        process.to_write.push_back(op);
                    }
                }
                Output::Send { to, message } => {
                    self.may_say(slot, &message)?;
                    if let Message::VoteReply { term, granted: true } = message {
                        self.history.votes(self.machines[slot].id, term, to)?;
                    }
                    if let Message::TailQuery { term } | Message::Vote { term, .. } = message
                        && let Some(process) = &mut self.machines[slot].process
                        && process.campaign.term < term
                    {
                        // Its own vote has been written since it began, so that was in an earlier round.
                        let membership = process.membership.clone();
                        process.campaign = Campaign { term, weather: self.weather, membership };
                    }
                    if let Message::Vote { term, transfer, .. } = message {
                        let id = self.machines[slot].id;
                        self.history.votes(id, term, id)?;
                        self.may_campaign(slot, term, transfer)?;
                    }
                    self.send(slot, &to, message)?;
                }
                Output::Fetch { to, from, max_bytes } => {
                    self.counters.fetches += 1;
                    let at = now + self.rng.between(50, 5_000);
                    let life = self.life(slot);
                    self.queue.push(at, Event::Fetch { slot, life, to, from, max_bytes });
                }
                Output::Commit { index, .. } => self.committed(slot, index, terms, &memberships)?,
                Output::Soft { role, term, leader } => {
                    self.say(
                        slot,
                        format_args!("is {role:?} of term {term}, leader {:?}", leader.map(|l| slot_of(&l))),
                    );
                    if role == Role::Leader {
                        let machine = &self.machines[slot];
                        if let Some(process) = &machine.process {
                            let memory = process.memory.clone();
                            self.history.leads(machine.id, process.life, term, &memory)?;
                            self.new_leader(slot, term, &memory)?;
                        }
                        self.elected(slot);
                    }
                }
                Output::ReadReady { context, index } => {
                    let machine = &mut self.machines[slot];
                    let floor = machine.process.as_mut().and_then(|p| p.reads.remove(&context));
                    self.counters.reads += 1;
                    hold!(floor.is_some(), "answers have questions", "{} read {context}", Name(slot));
                    let (floor, asked) = floor.unwrap_or_default();
                    self.history.reads(machine.id, floor, index)?;
                    self.may_read(slot, asked)?;
                }
                Output::ReadFailed { context } => {
                    let process = self.machines[slot].process.as_mut();
                    let asked = process.is_some_and(|p| p.reads.remove(&context).is_some());
                    hold!(asked, "answers have questions", "{} read {context} failed", Name(slot));
                }
                Output::Diverged { from } => {
                    self.say(slot, format_args!("has delivered what is cut from {from} on"));
                    if let Some(process) = &mut self.machines[slot].process {
                        process.diverged = true;
                    }
                }
                Output::Membership(membership) => {
                    // Also where a cut log has brought an earlier membership back, which no write of this round shows.
                    memberships.push(membership.clone());
                    self.say(slot, format_args!("members are now {}", members(&membership)));
                }
            }
        }
        self.start_io(slot)?;
        self.after_round(slot)
    }

    /// Records a process's requested write with the checkers.
    fn writes(
        &mut self,
        slot: usize,
        op: &WriteOp,
        memberships: &mut Vec<Arc<Membership>>,
        membership_index: &mut Index,
    ) -> Check {
        let machine = &mut self.machines[slot];
        let id = machine.id;
        let Some(process) = &mut machine.process else { return Ok(()) };
        if self.trace.wanted(self.now) {
            let text = format!(
                "writes #{}{}{}{} {} entries{} up to {}{}",
                op.ticket,
                op.reset.as_ref().map_or(String::new(), |s| format!(" reset after {}/t{}", s.index, s.term)),
                op.truncate_from.map_or(String::new(), |from| format!(" cut from {from}")),
                op.roll.as_ref().map_or(String::new(), |s| format!(" new segment after {}", s.index)),
                op.entries.len(),
                op.entries.first().map_or(String::new(), |e| format!(" from {}/t{}", e.index, e.term)),
                op.entries.last().map_or(process.memory.last(), |e| e.index),
                op.vote.map_or(String::new(), |v| format!(
                    " vote t{} {:?}",
                    v.term,
                    v.voted_for.map(|c| slot_of(&c))
                )),
            );
            self.trace.line(self.now, &Name(slot), format_args!("{text}"));
        }
        if process.order.role() == Role::Candidate && !op.entries.is_empty() {
            self.tail_taken_at = self.now;
        }
        let mut change = Change {
            reset: op.reset.as_ref().map(|state| (state.index, state.term)),
            truncate_from: op.truncate_from,
            marks: Vec::with_capacity(op.entries.len()),
        };
        process.memory.apply(&change);
        if op.reset.is_some() {
            // The database may be older than the log now.
            process.run = None;
            process.marks.clear();
        }
        if let Some(from) = op.truncate_from {
            process.marks.retain(|(index, _)| *index < from);
        }
        process.controls.write(op);
        if let Some(from) = op.truncate_from.or(op.reset.as_ref().map(|state| state.index + 1)) {
            self.counters.bases += u64::from(op.reset.is_some());
            *membership_index = (*membership_index).min(from - 1);
            hold!(
                from > process.commit,
                "a committed entry is never cut",
                "{} cuts its log from {from}, committed is {}",
                Name(slot),
                process.commit
            );
        }
        for entry in &op.entries {
            hold!(
                entry.index == process.memory.last() + 1,
                "logs are dense",
                "{} writes index {} after {}",
                Name(slot),
                entry.index,
                process.memory.last()
            );
            let mark = Mark::of(entry);
            self.trace.mix(mark.hash);
            self.history.places(id, entry, mark, process.memory.last_term())?;
            process.memory.push(mark);
            change.marks.push(mark);
            if entry.kind == EntryKind::Trim
                && let Ok(mark) = TrimMark::from_payload(entry.payload())
            {
                process.marks.push_back((entry.index, mark));
            }
            if self.profile.policies {
                self.book.in_memory(slot, entry.index, mark);
            }
            if entry.kind == EntryKind::Membership {
                let mut r = lockstep_core::codec::Reader::new(entry.payload());
                let next = Membership::decode(&mut r).map_err(|error| Violation {
                    rule: "the log can be folded",
                    what: format!("index {}: {error}", entry.index),
                })?;
                let order = &process.order;
                if self.history.promises() && order.role() == Role::Leader && entry.term == order.term() {
                    let commit = order.commit();
                    let before = memberships.last().map_or(0, |before| next.voters_changed(before));
                    hold!(
                        before <= 1,
                        "one voter at a time",
                        "{} makes the members {}, {before} voters others than before",
                        Name(slot),
                        members(&next)
                    );
                    hold!(
                        *membership_index <= commit && order.term_at(commit) == Some(entry.term),
                        "one membership change at a time",
                        "{} of term {} appends a membership at {}, the one before is at {}, committed is {commit}",
                        Name(slot),
                        entry.term,
                        entry.index,
                        *membership_index
                    );
                }
                *membership_index = entry.index;
                memberships.push(Arc::new(next));
            }
        }
        let vote = op.vote.map(|vote| (vote.term, vote.voted_for));
        machine.in_flight.push_back(Flight { ticket: op.ticket, change, vote });
        Ok(())
    }

    /// Nobody disturbs the others by an election that a majority would not support.
    fn may_campaign(&self, slot: usize, term: Term, transfer: bool) -> Check {
        let machine = &self.machines[slot];
        let Some(process) = machine.process.as_ref().filter(|_| self.history.promises() && !transfer) else {
            return Ok(());
        };
        let granted = |id: &lockstep_core::MemberId| {
            *id == machine.id || process.pre_votes.get(&term).is_some_and(|who| who >> slot_of(id) & 1 == 1)
        };
        let membership = &process.campaign.membership;
        let count = membership.voters().filter(granted).count();
        // One that is taken out by an entry that may not hold campaigns, too; its own vote does not count then.
        hold!(
            count >= membership.majority(),
            "whoever campaigns has asked",
            "{} campaigns in term {term}; {count} of {} support it",
            Name(slot),
            members(membership)
        );
        Ok(())
    }

    /// A leader that has not heard a majority for an election timeout does not believe that it leads; for some of them,
    /// where its last terms of office ended so.
    fn may_lead(&mut self, slot: usize, local: Micros) -> Check {
        let timeout = self.profile.election_timeout;
        let promises = self.history.promises();
        let machine = &mut self.machines[slot];
        let id = machine.id;
        let Some(process) = &mut machine.process else { return Ok(()) };
        if process.order.role() != Role::Leader {
            process.leads_since = Micros::MAX;
            return Ok(());
        }
        process.leads_since = process.leads_since.min(local);
        // A commit ends a longer quorum timeout; the leader checks its quorum again with its next heartbeat.
        let quorum_timeout = process.order.quorum_timeout().min(16 * timeout);
        if quorum_timeout >= process.quorum_timeout.0
            || local.saturating_sub(process.quorum_timeout.1) >= timeout
        {
            process.quorum_timeout = (quorum_timeout, Micros::MAX);
        } else {
            // A process that was stopped meanwhile has had no heartbeat: the time counts from when it shows the shorter one.
            process.quorum_timeout.1 = process.quorum_timeout.1.min(local);
        }
        let quorum_timeout = process.quorum_timeout.0;
        let membership = &process.order.tail_state().membership;
        let alive = |other: &lockstep_core::MemberId| {
            *other == id || local.saturating_sub(process.heard[slot_of(other)]) < quorum_timeout
        };
        // A new voter gets some time.
        let settled = local.saturating_sub(process.leads_since) >= 2 * quorum_timeout
            && process.order.tail_state().membership_index <= process.order.commit();
        hold!(
            !promises || !settled || membership.voters().filter(alive).count() >= membership.majority(),
            "a leader hears a majority",
            "{} leads {} and has not heard a majority of them",
            Name(slot),
            members(membership)
        );
        Ok(())
    }

    /// A leader that answers its own server has heard of a majority since it was asked.
    fn may_read(&self, slot: usize, asked: Micros) -> Check {
        let machine = &self.machines[slot];
        let leads = |p: &&crate::machine::Process| p.order.role() == Role::Leader && p.leads_since < asked;
        let Some(process) = machine.process.as_ref().filter(|_| self.history.promises()).filter(leads) else {
            return Ok(());
        };
        let membership = &process.order.tail_state().membership;
        let heard = |id: &lockstep_core::MemberId| *id == machine.id || process.heard[slot_of(id)] >= asked;
        hold!(
            membership.voters().filter(heard).count() >= membership.majority(),
            "a read asks a majority",
            "{} answers a read and has heard nobody since it was asked",
            Name(slot)
        );
        Ok(())
    }

    /// What members owe each other: nothing is said that the disk does not bear out.
    fn may_say(&mut self, slot: usize, message: &Message) -> Check {
        if !self.history.promises() {
            return Ok(());
        }
        let machine = &self.machines[slot];
        let on_disk = machine.durable.last();
        match message {
            Message::VoteReply { term, granted: true } => {
                hold!(
                    machine.durable_vote.0 == *term && machine.durable_vote.1.is_some(),
                    "a vote is on disk before it is told",
                    "{} grants its vote in term {term}, on disk is {:?}",
                    Name(slot),
                    machine.durable_vote
                );
            }
            Message::Ack { persisted, .. }
            | Message::Append { persisted, .. }
            | Message::Relay { carried: Carried { persisted, .. }, .. } => {
                hold!(
                    *persisted <= on_disk,
                    "an ack is on disk before it is told",
                    "{} says that it has persisted {persisted}, on disk is {on_disk}",
                    Name(slot)
                );
            }
            _ => {}
        }
        if let (Message::Ack { term, received, .. }, Some(process)) = (message, &machine.process) {
            self.history.acks(machine.id, *term, *received, &process.memory)?;
        }
        Ok(())
    }

    /// A process counts everything up to `index` as committed.
    pub(crate) fn committed(
        &mut self,
        slot: usize,
        index: Index,
        terms: (Term, Term),
        memberships: &[Arc<Membership>],
    ) -> Check {
        let machines = &self.machines;
        let machine = &machines[slot];
        let Some(process) = &machine.process else { return Ok(()) };
        hold!(
            index >= process.commit,
            "the commit index never falls",
            "{} goes from {} to {index}",
            Name(slot),
            process.commit
        );
        let witness = Witness { id: machine.id, terms, memberships, log: &process.memory };
        let on_disk = |membership: &Membership, index: Index, term: Term| {
            let holds = |id: &lockstep_core::MemberId| {
                machines[slot_of(id)].durable_of(id).and_then(|log| log.term_at(index)) == Some(term)
            };
            membership.voters().filter(holds).count()
        };
        self.history.commits(&witness, process.commit, index, on_disk)?;
        self.trace.mix(index);
        self.say(slot, format_args!("commits {index}"));
        if let Some(process) = &mut self.machines[slot].process {
            process.commit = index;
            if self.profile.policies {
                let membership = &process.order.committed_state().membership;
                self.book.committed(index, &process.controls, membership, self.now);
            }
        }
        Ok(())
    }

    /// Delivers, acknowledges, sets the timer, and stops a process that is no longer a member.
    pub(crate) fn after_round(&mut self, slot: usize) -> Check {
        if self.database_is_lost(slot)? {
            self.give_up_database(slot);
            return Ok(());
        }
        self.may_fall_back(slot)?;
        self.deliver(slot)?;
        let now = self.now;
        let machine = &mut self.machines[slot];
        let id = machine.id;
        let clock = machine.clock;
        let Some(process) = &mut machine.process else { return Ok(()) };
        // With that fault planted an election can end within a round, after its write.
        let unwritten = self.settings.core_failpoint() == Some(Failpoint::VoteNotPersisted)
            && process.order.last_index() > process.memory.last();
        hold!(
            (unwritten || process.order.last_index() == process.memory.last())
                && process.order.commit() == process.commit
                && (!self.history.promises() || process.order.persisted() <= machine.durable.last()),
            "the core knows its log",
            "{}: ends at {} (told to write: {}), committed {} (told: {}), persisted {} (on disk: {})",
            Name(slot),
            process.order.last_index(),
            process.memory.last(),
            process.order.commit(),
            process.commit,
            process.order.persisted(),
            machine.durable.last()
        );
        process.membership = process.order.tail_state().membership.clone();
        process.membership_index = process.order.tail_state().membership_index;
        let listed = process.membership.get(&id).is_some();
        process.was_member |= listed;
        if process.was_member && !listed && process.membership_index <= process.commit {
            // A node that has been removed stops; some stay around, as those do that never hear of it.
            process.was_member = false;
            if self.rng.one_in(2) {
                self.say(slot, format_args!("is no longer a member and stops"));
                self.stop(slot, false);
                return Ok(());
            }
        }
        let Some(process) = &mut self.machines[slot].process else { return Ok(()) };
        let at = clock.global(process.order.deadline()).max(now + 50);
        if at < process.timer_at {
            process.timer_at = at;
            let life = process.life;
            self.queue.push(at, Event::Timer { slot, life, at });
        }
        Ok(())
    }
}

/// A membership in one short line.
pub(crate) fn members(membership: &Membership) -> String {
    let list: Vec<_> = membership
        .members
        .iter()
        .map(|m| format!("n{}{}", slot_of(&m.id), if m.role.votes() { "" } else { "(learner)" }))
        .collect();
    list.join(" ")
}
