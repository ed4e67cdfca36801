//! Commit policies: their promises for every acknowledged entry, and the handling of entries that a weak policy loses.
//!
//! The checkers record which members ever had an entry on disk or in memory, the policies in each member's log, and the
//! entries that a leader acknowledged before they were committed. The rules:
//!
//! - An "ok" is sent only if the policy of its entry, or of a later committed policy entry, is met.
//! - A new leader lacks no such entry that it could have had from those who voted for it or told it how their logs end;
//!   nor, where nothing has kept them from answering, from anybody else.
//! - What is lost is in the rescue file of who acknowledged it, comes back nowhere as if nothing had happened, and its
//!   seqno means nothing else.
//! - A database that has what was lost is never gone on with.

use crate::cluster::{Cluster, MACHINES};
use crate::history::{Check, Violation, hold};
use crate::machine::{Fate, Name, slot_of};
use crate::mirror::{Mark, Mirror};
use crate::network::Quality;
use crate::profile::MS;
use crate::rng::Rng;
use crate::server::Server;
use lockstep_core::codec::Reader;
use lockstep_core::members::{MemberInfo, Membership, Role as MemberRole, View, ViewMember};
use lockstep_core::policy::{Policy, PolicyKind};
use lockstep_core::raft::{Role, WriteOp};
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, EntryKind, Index, MemberId, Micros, ProposalId, Seqno, Term, codec};
use lockstep_log::{Replay, read_rescue, rescue_number};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};

/// Up to this loss rate, in ppm, a query repeated four times is answered.
const LOST_AT_MOST: u32 = 5_000;
/// From this rate on, in bytes per millisecond, a query does not queue for long.
const WIDE_ENOUGH: u64 = 50_000;
/// So many elections are remembered.
const ELECTIONS: usize = 8;

/// The policy and membership in force from an entry on.
#[derive(Clone, Debug)]
struct Terms {
    after: Index,
    policy: Policy,
    view: Vec<MemberId>,
}

/// The policies and views of one log, as far back as somebody may ask.
#[derive(Clone, Debug)]
pub(crate) struct Controls(Vec<Terms>);

fn ids(view: &View) -> Vec<MemberId> {
    view.members.iter().map(|m| m.id).collect()
}

impl Controls {
    /// After this state.
    pub(crate) fn after(state: &StateSnapshot) -> Controls {
        Controls(vec![Terms { after: state.index, policy: state.policy, view: ids(&state.view) }])
    }

    /// The next entry.
    pub(crate) fn push(&mut self, entry: &Entry) {
        let mut r = Reader::new(entry.payload());
        let Some(last) = self.0.last() else { return };
        let (mut policy, mut view) = (last.policy, last.view.clone());
        match entry.kind {
            EntryKind::Policy => policy = Policy::decode(&mut r).unwrap_or_default(),
            EntryKind::View => view = View::decode(&mut r).map(|v| ids(&v)).unwrap_or_default(),
            _ => return,
        }
        self.0.push(Terms { after: entry.index, policy, view });
    }

    /// Records a write.
    pub(crate) fn write(&mut self, op: &WriteOp) {
        if let Some(state) = &op.reset {
            *self = Controls::after(state);
        }
        if let Some(from) = op.truncate_from {
            let keep = self.0.iter().filter(|t| t.after < from).count().max(1);
            self.0.truncate(keep);
        }
        op.entries.iter().for_each(|entry| self.push(entry));
    }

    /// The policy of the entry here, and later ones up to `commit`; each with the members that must have it under `all`.
    fn of(&self, index: Index, commit: Index) -> Vec<(Policy, Vec<MemberId>)> {
        let at = self.0.iter().rposition(|t| t.after < index).unwrap_or(0);
        let later = || self.0.iter().skip(at).filter(|t| t.after <= commit || t.after < index);
        let still =
            |from: Index, id: &MemberId| later().filter(|t| t.after >= from).all(|t| t.view.contains(id));
        let terms = later().map(|t| {
            let view = t.view.iter().filter(|id| still(t.after, id)).copied().collect();
            (t.policy, view)
        });
        terms.collect()
    }
}

/// The machines that had an entry: a bit for each.
#[derive(Clone, Copy, Default, Debug)]
struct Had {
    disk: u32,
    memory: u32,
}

/// Acknowledged, or delivered, before it was committed.
#[derive(Clone, Copy, Debug)]
struct Risky {
    mark: Mark,
    proposal: ProposalId,
    seqno: Seqno,
    slot: usize,
    id: MemberId,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Book {
    had: FxHashMap<(Index, u64), Had>,
    /// By index and hash.
    risky: BTreeMap<(Index, u64), Risky>,
    /// Who voted for a candidate of a term, or told it how its log ends.
    reached: BTreeMap<(usize, Term), u32>,
    leaders: Vec<Term>,
    /// The highest commit index of any member, and the settings there.
    known: Option<(Index, Controls)>,
    /// Bits of slots: the committed members. A new leader queries only these.
    joined: u32,
    /// When the others were taken out last.
    left: BTreeMap<usize, Micros>,
    /// The last elections: term, whom the winner had heard of, its log then.
    elections: VecDeque<(Term, u32, Mirror)>,
    /// Entries acknowledged before commitment, and those of them that were lost.
    pub(crate) early: u64,
    pub(crate) lost: u64,
}

impl Book {
    /// On this machine's disk now.
    pub(crate) fn on_disk(&mut self, slot: usize, index: Index, mark: Mark) {
        self.had.entry((index, mark.hash)).or_default().disk |= 1 << slot;
    }

    /// A member with this log and these members counts everything up to here as committed.
    pub(crate) fn committed(
        &mut self,
        index: Index,
        controls: &Controls,
        membership: &Membership,
        now: Micros,
    ) {
        if self.known.as_ref().is_none_or(|(known, _)| *known < index) {
            let joined = membership.members.iter().fold(0, |bits, member| bits | 1 << slot_of(&member.id));
            let left = self.joined & !joined;
            self.left.extend((0..MACHINES).filter(|slot| left & 1 << slot != 0).map(|slot| (slot, now)));
            self.joined = joined;
            self.known = Some((index, controls.clone()));
        }
    }

    /// In its memory.
    pub(crate) fn in_memory(&mut self, slot: usize, index: Index, mark: Mark) {
        self.had.entry((index, mark.hash)).or_default().memory |= 1 << slot;
    }

    /// A candidate has heard of somebody.
    pub(crate) fn hears(&mut self, candidate: usize, term: Term, other: usize) {
        *self.reached.entry((candidate, term)).or_default() |= 1 << other;
    }

    /// Its connection with somebody is lost.
    pub(crate) fn loses(&mut self, candidate: usize, term: Term, other: usize) {
        if let Some(reached) = self.reached.get_mut(&(candidate, term)) {
            *reached &= !(1 << other);
        }
    }

    /// Forgets old elections. The machines that had an entry are never forgotten: a member that was away for long may still
    /// receive answers for old proposals.
    fn forget(&mut self) {
        let last = self.leaders.last().copied().unwrap_or(0);
        self.reached.retain(|(_, term), _| *term + 8 > last);
    }
}

/// An ack is spoken of no later than this after its member has been taken out.
const AFTERWARDS: Micros = 10_000 * MS;

/// A policy that somebody might choose.
pub(crate) fn any_policy(rng: &mut Rng, members: u64) -> Policy {
    let kind = *rng.pick(&[
        PolicyKind::Async,
        PolicyKind::Semisync,
        PolicyKind::Semisync,
        PolicyKind::Quorum,
        PolicyKind::All,
    ]);
    Policy {
        kind,
        acks: rng.between(0, members.min(3)) as u8,
        zone_acks: if rng.one_in(4) { 1 } else { 0 },
        on_receive: rng.one_in(4),
        timeout: *rng.pick(&[0, 0, 50 * MS, 500 * MS, 3_000 * MS]),
        max_at_risk: *rng.pick(&[1, 5, 100, 10_000]),
    }
}

impl Cluster {
    /// A client of this member hears that its entry is there: is what it was promised?
    pub(crate) fn promise(&self, slot: usize, entry: &Entry, index: Index) -> Check {
        let machine = &self.machines[slot];
        let Some(process) = &machine.process else { return Ok(()) };
        if !self.profile.policies {
            return Ok(());
        }
        let mark = Mark::of(entry);
        let had = self.book.had.get(&(index, mark.hash)).copied().unwrap_or_default();
        let committed = self.history.mark_at(index) == Some(mark);
        let holds = |id: &MemberId| {
            let m = &self.machines[slot_of(id)];
            let old = m.durable.base >= index;
            had.disk & 1 << slot_of(id) != 0 || (old && committed)
        };
        let received = |id: &MemberId| holds(id) || had.memory & 1 << slot_of(id) != 0;
        // A member whose ack counted may have been removed since.
        let lately = |at: &Micros| self.now - at < AFTERWARDS;
        let joined = |id: &MemberId| {
            let slot = slot_of(id);
            self.book.joined & 1 << slot != 0 || self.book.left.get(&slot).is_some_and(lately)
        };
        let holders = (0..MACHINES).map(|slot| self.machines[slot].id).filter(|id| joined(id) && holds(id));
        let mut zones: Vec<u8> =
            holders.map(|id| crate::cluster::member(id, MemberRole::Voter).zone).collect();
        zones.sort_unstable();
        zones.dedup();
        let leads = process.order.role() == Role::Leader && process.order.term() == entry.term;
        let kept = |(policy, view): &(Policy, Vec<MemberId>)| {
            let in_zones = zones.len() > usize::from(policy.zone_acks);
            match policy.kind {
                PolicyKind::Quorum => committed && in_zones,
                PolicyKind::All => committed && in_zones && view.iter().all(holds),
                // Writes of other members fail under it: no promise.
                _ if !leads => committed,
                PolicyKind::Async => true,
                PolicyKind::Semisync => {
                    let others = (0..MACHINES).map(|slot| self.machines[slot].id);
                    let others = others.filter(|id| *id != machine.id && joined(id));
                    let have = others.filter(|id| if policy.on_receive { received(id) } else { holds(id) });
                    let fell_back = policy.timeout > 0 && index <= process.fell_back_to;
                    fell_back || (in_zones && have.count() >= usize::from(policy.acks))
                }
            }
        };
        let policies = process.controls.of(index, process.commit);
        // The announcing leader may have known more, and may be gone by now.
        let known = self.book.known.as_ref().map_or(Vec::new(), |(commit, c)| c.of(index, *commit));
        hold!(
            holds(&machine.id) && policies.iter().chain(&known).any(kept),
            "an acknowledged entry is where its policy promises",
            "{} answers for index {index}: on disk of {:b}, in memory of {:b}, committed: {committed}; promised {:?}",
            Name(slot),
            had.disk,
            had.memory,
            policies
                .iter()
                .map(|(p, view)| (p, view.iter().map(slot_of).collect::<Vec<_>>()))
                .collect::<Vec<_>>()
        );
        Ok(())
    }

    /// A leader delivers what is not committed.
    pub(crate) fn delivers_early(&mut self, slot: usize, entry: &Entry) -> Check {
        let machine = &mut self.machines[slot];
        let Some(process) = &machine.process else { return Ok(()) };
        let (order, mark) = (&process.order, Mark::of(entry));
        let harmless = matches!(entry.kind, EntryKind::Piece | EntryKind::Note | EntryKind::Trim);
        let own = entry.kind == EntryKind::WriteSet && entry.proposal.member == machine.id;
        let risk = entry.seqno - order.committed_state().seqno;
        hold!(
            order.role() == Role::Leader
                && order.term() == entry.term
                && order.term_at(order.commit()) == Some(entry.term)
                && (own || harmless)
                && risk <= order.committed_state().policy.max_at_risk as i64
                && order.committed_state().policy.is_weak(),
            "a leader delivers early what is its own",
            "{} (leads: {}, term {}) delivers {entry:?}, committed is {}",
            Name(slot),
            order.role() == Role::Leader,
            order.term(),
            order.commit()
        );
        if own {
            self.promises_kept(slot, entry.index, mark)?;
        }
        let machine = &mut self.machines[slot];
        machine.early.push_back((entry.index, mark, own.then_some(entry.seqno)));
        if own {
            let (proposal, seqno, id) = (entry.proposal, entry.seqno, machine.id);
            self.book.risky.insert((entry.index, mark.hash), Risky { mark, proposal, seqno, slot, id });
            self.book.early += 1;
        }
        Ok(())
    }

    /// A member that has replied to a later leader's tail query acknowledges no entry of an older term.
    fn promises_kept(&self, slot: usize, index: Index, mark: Mark) -> Check {
        let disk = self.book.had.get(&(index, mark.hash)).map_or(0, |had| had.disk) & !(1 << slot);
        for (term, reached, log) in &self.book.elections {
            if *term <= mark.term || index <= log.base || log.get(index) == Some(mark) {
                continue;
            }
            hold!(
                disk & reached == 0,
                "who has said how its log ends takes no more",
                "{} answers for index {index} of term {}, which is on disk of {disk:b}; of these {:b} had promised \
                 themselves to term {term}",
                Name(slot),
                mark.term,
                disk & reached
            );
        }
        Ok(())
    }

    /// Whether this member's database has what its log has lost: then it must not go on with it.
    pub(crate) fn database_is_lost(&mut self, slot: usize) -> Result<bool, Violation> {
        let machine = &mut self.machines[slot];
        let Some(process) = &machine.process else { return Ok(false) };
        let delivered = process.run.as_ref().map_or(0, |run| run.delivered);
        let position = machine.server.position.unwrap_or(0).max(delivered);
        machine.early.retain(|(index, ..)| *index <= position);
        while let Some((index, mark, seqno)) = machine.early.front().copied() {
            let known = process.memory.get(index);
            let gone = if index <= process.memory.base {
                self.history.mark_at(index).is_some_and(|fixed| fixed != mark)
            } else {
                known != Some(mark)
            };
            if !gone {
                if index > process.commit {
                    return Ok(process.diverged);
                }
                machine.early.pop_front();
                continue;
            }
            if machine.early.iter().all(|(.., seqno)| seqno.is_none()) {
                // The server has seen none of it: it is as if it had not been looked at.
                machine.early.clear();
                if process.diverged {
                    break;
                }
                machine.server.position = machine.server.position.map(|at| at.min(index - 1));
                machine.server.safe = machine.server.safe.min(index - 1);
                let Some(process) = &mut machine.process else { return Ok(false) };
                let Some(mut run) = process.run.take() else { return Ok(false) };
                if run.is_idle() {
                    // It begins anew, where the database stands.
                    return Ok(false);
                }
                let goes_on = run.cut(process, index - 1, &self.settings).is_some();
                process.run = goes_on.then_some(run);
                return Ok(!goes_on);
            }
            hold!(
                process.diverged || process.life != machine.early_life || self.settings.mutation.is_some(),
                "who has delivered what is lost is told",
                "{} has index {index} (seqno {seqno:?}) in its database, its log {known:?}",
                Name(slot)
            );
            return Ok(true);
        }
        // The core has let it be delivered: a node does not ask whether it was.
        Ok(machine.process.as_ref().is_some_and(|process| process.diverged))
    }

    /// The process ends; its database will come from another member.
    pub(crate) fn give_up_database(&mut self, slot: usize) {
        self.say(slot, format_args!("has a database that the cluster does not have: it ends"));
        self.machines[slot].server = Server::default();
        self.machines[slot].early.clear();
        self.stop(slot, false);
        let after = self.rng.between(self.profile.restart.0, self.profile.restart.1);
        self.start_later(slot, after);
    }

    /// A member leads.
    pub(crate) fn new_leader(&mut self, slot: usize, term: Term, log: &Mirror) -> Check {
        let reached = self.book.reached.get(&(slot, term)).copied().unwrap_or(0);
        for ((index, _), risky) in &self.book.risky {
            let between = self.book.leaders.iter().any(|t| *t > risky.mark.term && *t < term);
            if between || risky.mark.term >= term || *index <= log.base || log.get(*index) == Some(risky.mark)
            {
                continue;
            }
            for other in (0..MACHINES).filter(|other| reached & 1 << other != 0) {
                hold!(
                    self.machines[other].durable.get(*index) != Some(risky.mark),
                    "the heir takes what it can reach",
                    "{} leads term {term} without index {index} of term {}, which {} acknowledged and {} has",
                    Name(slot),
                    risky.mark.term,
                    Name(risky.slot),
                    Name(other)
                );
            }
        }
        self.has_asked(slot, term, log)?;
        self.book.elections.push_back((term, reached, log.clone()));
        if self.book.elections.len() > ELECTIONS {
            self.book.elections.pop_front();
        }
        if self.book.leaders.last().is_none_or(|last| *last < term) {
            self.book.leaders.push(term);
        }
        Ok(())
    }

    /// Where nothing has happened since the campaign began, and messages are hardly ever lost, a new leader has heard of
    /// each member that it is connected with: what such a one has, it does not lack.
    fn has_asked(&self, slot: usize, term: Term, log: &Mirror) -> Check {
        let Quality { loss, bytes_per_ms, .. } = self.profile.between_zones.unwrap_or(self.profile.quality);
        let Some(process) = &self.machines[slot].process else { return Ok(()) };
        let campaign = &process.campaign;
        let disturbed = (campaign.term, campaign.weather) != (term, self.weather);
        if disturbed || loss > LOST_AT_MOST || bytes_per_ms < WIDE_ENOUGH {
            return Ok(());
        }
        let quick = |slot: usize| self.machines[slot].speed == self.profile.disk;
        let clean = |from, to| {
            // Messages of a slow time have arrived before the campaign.
            self.net.passes(from, to)
                && self.net.quality(from, to) == self.profile.quality_of(from, to)
                && self.net.last_arrival(from, to) + 2 * self.profile.election_timeout < self.now
        };
        let membership = &process.order.tail_state().membership;
        for ((index, _), risky) in &self.book.risky {
            let between = self.book.leaders.iter().any(|t| *t > risky.mark.term && *t < term);
            let older = between || risky.mark.term >= term || *index <= log.base;
            if older || log.get(*index) == Some(risky.mark) {
                continue;
            }
            for (other, machine) in self.machines.iter().enumerate() {
                let could = other != slot
                    && machine.durable.get(*index) == Some(risky.mark)
                    && membership.get(&machine.id).is_some()
                    && process.order.is_up(&machine.id)
                    && machine.awake(self.now)
                    && clean(slot, other)
                    && clean(other, slot)
                    && quick(slot)
                    && quick(other);
                hold!(
                    !could,
                    "the heir asks whom it can reach",
                    "{} leads term {term} without index {index} of term {}, which {} acknowledged; {} has it, and \
                     nothing kept it from saying so",
                    Name(slot),
                    risky.mark.term,
                    Name(risky.slot),
                    Name(other)
                );
            }
        }
        Ok(())
    }

    /// In a healthy cluster: every entry acknowledged early is committed, or lost with evidence.
    pub(crate) fn settle_accounts(&mut self) -> Check {
        let committed = self.history.committed();
        let mut rescued: BTreeMap<usize, Vec<(Index, Mark)>> = BTreeMap::new();
        let mut open = BTreeMap::new();
        for ((index, hash), risky) in std::mem::take(&mut self.book.risky) {
            if index > committed {
                open.insert((index, hash), risky);
                continue;
            }
            if self.history.mark_at(index) == Some(risky.mark) {
                continue;
            }
            let other = self.history.index_of(&risky.proposal);
            hold!(
                other.is_none(),
                "what was lost does not come back as if it were new",
                "{:?}, acknowledged at index {index}, is committed at {other:?}",
                risky.proposal
            );
            hold!(
                !self.history.has_seqno(risky.seqno),
                "no seqno means two things",
                "{} gave seqno {} to index {index} of term {}, which is lost; it is another's now",
                Name(risky.slot),
                risky.seqno,
                risky.mark.term
            );
            self.book.lost += 1;
            let machine = &self.machines[risky.slot];
            if machine.id != risky.id || machine.fate == Fate::Lost {
                continue;
            }
            if machine.durable.get(index) == Some(risky.mark) {
                open.insert((index, hash), risky);
                continue;
            }
            let kept = match rescued.entry(risky.slot) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => new.insert(rescue_files(&machine.disk)?),
            };
            hold!(
                kept.contains(&(index, risky.mark)),
                "what is lost is in a rescue file",
                "{} had acknowledged index {index} of term {}; its rescue files hold {} entries",
                Name(risky.slot),
                risky.mark.term,
                kept.len()
            );
        }
        self.book.risky = open;
        self.book.forget();
        Ok(())
    }

    /// These as a view shows them.
    pub(crate) fn view_of<'a>(&self, number: u64, members: impl Iterator<Item = &'a MemberInfo>) -> View {
        let shown = members.map(|m| ViewMember {
            id: m.id,
            view_uuid: self.machines[slot_of(&m.id)].view_uuid(),
            name: m.name.clone(),
            incoming: m.address.clone(),
        });
        View { number, members: shown.collect() }
    }

    /// The leader's tasks: under `all` it removes absent members from the view. In a calm world, an unsatisfiable setting is
    /// taken back.
    pub(crate) fn mind_policy(&mut self, calm: bool) -> Check {
        if !self.profile.policies {
            return Ok(());
        }
        let Some(slot) = self.leader() else { return Ok(()) };
        let Some(process) = &self.machines[slot].process else { return Ok(()) };
        let order = &process.order;
        let policy = order.policy();
        if !order.has_committed_in_term() {
            return Ok(());
        }
        let members = &process.membership.members;
        let others = members.iter().filter(|m| !self.is_gone(&m.id)).count().saturating_sub(1);
        let living = members.iter().filter(|m| !self.is_gone(&m.id));
        let mut zones: Vec<u8> = living.map(|m| m.zone).collect();
        zones.sort_unstable();
        zones.dedup();
        let unmeetable = usize::from(policy.zone_acks) >= zones.len()
            || (policy.kind == PolicyKind::Semisync && usize::from(policy.acks) > others);
        let there = |m: &&MemberInfo| !self.is_gone(&m.id) && self.machines[slot_of(&m.id)].process.is_some();
        let view = self.view_of(order.tail_state().view.number + 1, members.iter().filter(there));
        let absent = ids(&order.tail_state().view).iter().any(|id| view.position(id).is_none());
        let (kind, payload) = if calm && unmeetable && policy != Policy::default() {
            (EntryKind::Policy, Policy::default().to_payload())
        } else if policy.kind == PolicyKind::All && absent {
            let mut w = codec::Writer::new();
            view.encode(&mut w);
            (EntryKind::View, w.into_bytes())
        } else {
            return Ok(());
        };
        let local = self.machines[slot].clock.local(self.now);
        if let Some(process) = &mut self.machines[slot].process {
            let answer = process.order.append_control(local, kind, payload);
            self.say(slot, format_args!("minds the policy with a {kind:?} entry: {answer:?}"));
        }
        self.round(slot)
    }
}

/// All entries in the rescue files of a disk.
fn rescue_files(disk: &lockstep_log::MemDisk) -> Result<Vec<(Index, Mark)>, Violation> {
    let mut kept = Vec::new();
    for name in disk.names().into_iter().filter(|name| rescue_number(name).is_some()) {
        let mut visitor = |replay: Replay| {
            if let Replay::Record(record) = replay {
                let entry =
                    Entry::decode_body(record.index, record.term, record.body).map_err(|e| e.to_string())?;
                kept.push((entry.index, Mark::of(&entry)));
            }
            Ok(())
        };
        read_rescue(disk, &name, &mut visitor).map_err(|error| Violation {
            rule: "a rescue file can be read",
            what: format!("{name}: {error}"),
        })?;
    }
    Ok(kept)
}
