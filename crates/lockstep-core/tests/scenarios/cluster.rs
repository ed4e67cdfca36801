//! Members, a network and a clock.

use crate::checks::Checks;
use crate::disk::Disk;
use crate::member::Member;
use crate::network::{Envelope, Network};
use crate::trace::{self, Trace, id};
use lockstep_core::Micros;
use lockstep_core::members::{MemberInfo, Membership, Role as MemberRole};
use lockstep_core::raft::Raft;
use lockstep_core::raft::Vote;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, EntryHeader, EntryKind, ProposalId, Term, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// More messages in a row than any scenario needs.
const MOST_HOPS: usize = 1_000;

/// A member as the log lists it.
pub(crate) fn member_info(n: usize, role: MemberRole, zone: u8) -> MemberInfo {
    let wants_vote = role != MemberRole::Learner;
    let (name, address) = (format!("n{n}"), format!("n{n}:4567"));
    MemberInfo { id: id(n), name, address, zone, role, wants_vote, arbitrator: false }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Cluster {
    now: Micros,
    members: BTreeMap<usize, Member>,
    network: Network,
    checks: Checks,
    /// Members relay entries inside their zones.
    relays: bool,
    /// The most bytes of entries in one message.
    max_append_bytes: usize,
}

impl Cluster {
    /// Members that know each other from the start, and are connected.
    pub(crate) fn found(&mut self, membership: Membership, max_append_bytes: usize) {
        self.max_append_bytes = max_append_bytes;
        for n in 1..=membership.members.len() {
            let base = StateSnapshot::genesis(Uuid([7; 16]), 0, membership.clone());
            self.insert(n, Disk::with_log(base, Vec::new(), Vote::default()));
        }
        self.numbers().into_iter().for_each(|n| self.connect(n));
    }

    fn insert(&mut self, n: usize, disk: Disk) {
        self.members.insert(n, Member::start(n, disk, self.max_append_bytes, self.now));
    }

    /// A member without a log, which is connected. No effect if it exists.
    pub(crate) fn add(&mut self, n: usize) {
        if !self.members.contains_key(&n) {
            self.insert(n, Disk::default());
            self.connect(n);
        }
    }

    /// Replaces the log of a member that was just founded: notes of these terms.
    pub(crate) fn set_log(&mut self, n: usize, terms: &[Term], term: Term) -> Result<(), String> {
        let base = self.member(n)?.disk().base().ok_or("this member has no log")?.clone();
        let note = |(at, term): (usize, &Term)| {
            let (index, kind, proposal) = (at as u64 + 1, EntryKind::Note, ProposalId::default());
            Entry::new(EntryHeader { index, term: *term, kind, seqno: 0, proposal, time: 0 }, &[])
        };
        let entries = terms.iter().enumerate().map(note).collect();
        self.insert(n, Disk::with_log(base, entries, Vote { term, voted_for: None }));
        self.connect(n);
        Ok(())
    }

    fn numbers(&self) -> Vec<usize> {
        self.members.keys().copied().collect()
    }

    /// A member.
    pub(crate) fn member(&mut self, n: usize) -> Result<&mut Member, String> {
        self.members.get_mut(&n).ok_or_else(|| format!("there is no member {n}"))
    }

    /// All members, ascending.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The live leader of the highest term.
    pub(crate) fn leader(&self) -> Result<usize, String> {
        let leaders = self.members.iter().filter(|(_, member)| member.is_leader());
        let leader = leaders.max_by_key(|(_, member)| member.raft().term());
        leader.map(|(n, _)| *n).ok_or("there is no leader".to_string())
    }

    /// Connects a live member with all live ones that it is not cut off from.
    fn connect(&mut self, n: usize) {
        let others: Vec<usize> = self.numbers().into_iter().filter(|other| *other != n).collect();
        for other in others {
            self.report_up(n, other);
            self.report_up(other, n);
        }
    }

    fn report_up(&mut self, at: usize, other: usize) {
        let both = [at, other].iter().all(|n| self.members[n].is_up());
        if both && !self.network.is_cut(at, other) && !self.network.is_cut(other, at) {
            let (now, relays) = (self.now, self.relays);
            let raft = self.members.get_mut(&at).expect("it exists").raft_mut();
            raft.peer_up(now, id(other));
            raft.set_relaying(relays);
            if relays {
                raft.peer_relays(id(other));
            }
        }
    }

    /// All members relay entries inside their zones.
    pub(crate) fn set_relaying(&mut self) {
        self.relays = true;
        self.numbers().into_iter().for_each(|n| self.connect(n));
    }

    /// Gives a live member an input, and ends its round.
    pub(crate) fn input<T>(
        &mut self,
        n: usize,
        trace: &mut Trace,
        input: impl FnOnce(&mut Raft, Micros) -> T,
    ) -> Result<T, String> {
        let now = self.now;
        let member = self.member(n)?;
        if !member.is_up() {
            return Err(format!("member {n} is down"));
        }
        let result = input(member.raft_mut(), now);
        self.round(n, trace);
        Ok(result)
    }

    fn round(&mut self, n: usize, trace: &mut Trace) {
        if let Some(member) = self.members.get_mut(&n).filter(|member| member.is_up()) {
            member.round(self.now, &mut self.network, trace);
            self.checks.look(n, member.raft());
        }
    }

    fn all_rounds(&mut self, trace: &mut Trace) {
        self.numbers().into_iter().for_each(|n| self.round(n, trace));
    }

    /// Advances the clock, and ticks these members.
    pub(crate) fn tick(&mut self, members: &[usize], time: Micros, trace: &mut Trace) -> Result<(), String> {
        self.now += time;
        members.iter().try_for_each(|n| self.input(*n, trace, Raft::tick))
    }

    /// Advances the clock, and ticks all live members that run.
    pub(crate) fn tick_all(&mut self, time: Micros, trace: &mut Trace) -> Result<(), String> {
        self.tick(&self.live(), time, trace)
    }

    fn live(&self) -> Vec<usize> {
        let runs = |n: &usize| self.members[n].is_up() && !self.network.is_stalled(*n);
        self.numbers().into_iter().filter(runs).collect()
    }

    /// Advances the clock to the election deadline of a member, and ticks it.
    pub(crate) fn campaign(&mut self, n: usize, trace: &mut Trace) -> Result<(), String> {
        let wait = self.member(n)?.raft().deadline().saturating_sub(self.now);
        self.tick(&[n], wait, trace)
    }

    /// Lets time pass: members are ticked at their deadlines, and messages are delivered at once.
    pub(crate) fn run(&mut self, time: Micros, trace: &mut Trace) -> Result<(), String> {
        let end = self.now + time;
        self.deliver_all(trace);
        loop {
            let deadlines = self.live().into_iter().map(|n| (self.members[&n].raft().deadline(), n));
            let next = deadlines.min().filter(|(deadline, _)| *deadline <= end);
            let Some((deadline, n)) = next else { break };
            // A deadline that has passed without effect must not stop the clock.
            self.now = deadline.max(self.now + 1).min(end);
            self.tick(&[n], 0, trace)?;
            self.deliver_all(trace);
            if self.now == end {
                break;
            }
        }
        self.now = end;
        Ok(())
    }

    /// Completes at most `count` writes in flight of a member.
    pub(crate) fn sync(&mut self, n: usize, count: usize, trace: &mut Trace) -> Result<(), String> {
        let now = self.now;
        for _ in 0..count {
            if !self.member(n)?.sync_one(now, trace) {
                break;
            }
        }
        self.round(n, trace);
        Ok(())
    }

    fn deliver_to_members(&mut self, envelopes: Vec<Envelope>, trace: &mut Trace) {
        let now = self.now;
        let mut receivers = BTreeSet::new();
        for Envelope { from, to, message } in envelopes {
            if let Some(member) = self.members.get_mut(&to).filter(|member| member.is_up()) {
                member.raft_mut().step(now, id(from), message);
                receivers.insert(to);
            }
        }
        receivers.into_iter().for_each(|n| self.round(n, trace));
    }

    /// Delivers at most `count` messages of a link.
    pub(crate) fn deliver_link(&mut self, link: (usize, usize), count: usize, trace: &mut Trace) {
        let envelopes = self.network.take(count, |from, to| (from, to) == link);
        self.deliver_to_members(envelopes, trace);
    }

    /// Delivers the messages that are on their way now.
    pub(crate) fn deliver_once(&mut self, trace: &mut Trace) {
        let envelopes = self.network.take(usize::MAX, |_, _| true);
        self.deliver_to_members(envelopes, trace);
    }

    /// Delivers messages until none is on its way.
    pub(crate) fn deliver_all(&mut self, trace: &mut Trace) {
        for _ in 0..MOST_HOPS {
            if self.network.is_idle() {
                return;
            }
            self.deliver_once(trace);
        }
        panic!("members send messages without end");
    }

    /// Loses the messages of matching links that are on their way.
    pub(crate) fn drop(&mut self, matches: impl Fn(usize, usize) -> bool, trace: &mut Trace) {
        for Envelope { from, to, message } in self.network.take(usize::MAX, matches) {
            trace.event(format!("dropped: {from}->{to} {}", trace::message(&message)));
        }
    }

    /// Loses all messages of a link from now on. The connection stays, as where packets are dropped.
    pub(crate) fn cut_link(&mut self, from: usize, to: usize) {
        self.network.cut(from, to);
    }

    /// Loses all messages from and to a member from now on.
    pub(crate) fn cut_off(&mut self, n: usize) {
        for other in self.numbers().into_iter().filter(|other| *other != n) {
            self.network.cut(n, other);
            self.network.cut(other, n);
        }
    }

    /// From now on the process of a member does not run, although its connections stay; or it runs again.
    pub(crate) fn set_stalled(&mut self, n: usize, stalled: bool) {
        self.network.set_stalled(n, stalled);
    }

    pub(crate) fn heal(&mut self) {
        self.network.heal();
    }

    /// The process of a member ends; the others see their connections to it close.
    pub(crate) fn crash(&mut self, n: usize, trace: &mut Trace) -> Result<(), String> {
        let now = self.now;
        self.member(n)?.crash();
        self.network.set_down(n, true);
        for member in self.members.values_mut().filter(|member| member.is_up()) {
            member.raft_mut().peer_down(now, id(n));
        }
        self.all_rounds(trace);
        Ok(())
    }

    /// The process of a member starts again. It is not connected yet.
    pub(crate) fn restart(&mut self, n: usize) -> Result<(), String> {
        let now = self.now;
        self.member(n)?.restart(now);
        self.network.set_down(n, false);
        Ok(())
    }

    /// The connection between two members breaks, with the messages on it, and a new one comes up.
    pub(crate) fn renew_connection(&mut self, a: usize, b: usize, trace: &mut Trace) -> Result<(), String> {
        self.drop(|from, to| (from, to) == (a, b) || (from, to) == (b, a), trace);
        for (at, other) in [(a, b), (b, a)] {
            self.input(at, trace, |raft, now| raft.peer_down(now, id(other)))?;
        }
        for (at, other) in [(a, b), (b, a)] {
            self.report_up(at, other);
            self.round(at, trace);
        }
        Ok(())
    }

    /// Connects a member that was restarted.
    pub(crate) fn reconnect(&mut self, n: usize, trace: &mut Trace) {
        self.connect(n);
        self.all_rounds(trace);
    }
}
