//! The invariants, checked whenever an entry is ordered or a write is answered.

use super::server::{Mark, Meaning};
use crate::member::harness::Lab;
use lockstep_core::policy::PolicyKind;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, EntryKind, Index, MemberId, Seqno, Term};
use std::collections::{BTreeMap, BTreeSet};

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The meaning of each seqno, the same on all members.
    meanings: BTreeMap<Seqno, Meaning>,
    /// Acknowledged writes: their seqnos, and whether they may be lost with the member that acknowledged them.
    pub(super) answered: BTreeMap<Mark, (Seqno, bool)>,
    /// Writes reported as never to be ordered.
    pub(super) never: BTreeSet<Mark>,
    /// Causal reads must see everything up to this seqno.
    pub(super) durable: Seqno,
    /// By members that have fallen back: the index up to which entries need no acks.
    fallen_back: BTreeMap<usize, Index>,
}

impl Judge {
    /// Records the fallbacks of semisync.
    pub(super) fn record_fallbacks(&mut self, lab: &Lab) {
        for (at, node) in
            lab.nodes.iter().enumerate().filter(|(_, node)| node.member.ctx.raft.has_fallen_back())
        {
            let upto = self.fallen_back.entry(at).or_default();
            *upto = (*upto).max(node.member.ctx.raft.persisted());
        }
    }

    /// A member has received an entry. Invariant: a seqno has one meaning.
    pub(super) fn meaning(&mut self, seqno: Seqno, meaning: Meaning) -> Result<(), String> {
        if let Meaning::Write(mark, _) = meaning
            && self.never.contains(&mark)
        {
            return Err(format!("write {mark}, which never would, has seqno {seqno}"));
        }
        // A member may lack pieces of a failed write-set.
        let meaning = match meaning {
            Meaning::Write(_, false) => Meaning::Write(0, false),
            meaning => meaning,
        };
        match self.meanings.insert(seqno, meaning) {
            Some(before) if before != meaning => {
                Err(format!("seqno {seqno} was {before:?}, and is {meaning:?} now"))
            }
            _ => Ok(()),
        }
    }

    /// A member acknowledges a write to its server's thread.
    pub(super) fn answered(&mut self, lab: &Lab, at: usize, mark: Mark, seqno: Seqno) -> Result<(), String> {
        let log = &lab.nodes[at].disk.log;
        let writes = |entry: &&Entry| matches!(entry.kind, EntryKind::WriteSet | EntryKind::TotalOrder);
        let entry = log.entries.values().rev().filter(writes).find(|entry| entry.seqno == seqno);
        let Some(entry) = entry else { return Err(format!("n{} has not got seqno {seqno} itself", at + 1)) };
        let (index, term) = (entry.index, entry.term);
        let Some(before) = log.state_before(index) else { return Err(format!("n{} has no base", at + 1)) };
        // During a policy change, a write returns when either policy is met; members that have left the view are not
        // waited for. The leader knows the commit index first, and announces it.
        let knows =
            lab.nodes.iter().max_by_key(|node| node.member.ctx.raft.commit()).expect("there are some");
        let committed = knows.member.ctx.raft.commit().max(index);
        let mut states = vec![before.clone()];
        let mut state = before.clone();
        for (_, entry) in knows.disk.log.entries.range(index..=committed) {
            if state.apply(entry).is_err() {
                // This member's log begins later.
                break;
            }
            if matches!(entry.kind, EntryKind::Policy | EntryKind::View | EntryKind::Membership) {
                states.push(state.clone());
            }
        }
        // A membership change is in force when it is appended, before it is committed: it applies to earlier entries.
        for node in [knows, &lab.nodes[at]] {
            let membership = node.member.ctx.raft.tail_state().membership.clone();
            states.push(StateSnapshot { membership, ..state.clone() });
        }
        let had = |at: &usize| lab.nodes[*at].disk.persisted.contains(&(index, term));
        let fallen_back = self.fallen_back.iter().any(|(at, upto)| index <= *upto && had(at));
        let met = |from: usize| is_met(lab, at, index, term, &states[from..], fallen_back);
        if !(0..states.len()).any(met) {
            let policies: Vec<_> =
                states.iter().map(|state| (state.policy, state.view.members.len())).collect();
            return Err(format!(
                "n{} has answered index {index} of term {term} (seqno {seqno}), which is not where {policies:?} asks for it: \
                 persisted by {:?}, received by {:?}",
                at + 1,
                have(lab, index, term, false),
                have(lab, index, term, true),
            ));
        }
        // Any elected leader has what a majority has.
        let voters: Vec<MemberId> = before.membership.voters().collect();
        let with = voters.iter().filter(|id| lab.has(id, index, term, false)).count();
        let durable = with >= before.membership.majority();
        self.answered.insert(mark, (seqno, !durable));
        if durable {
            self.durable = self.durable.max(seqno);
        }
        Ok(())
    }
}

fn have(lab: &Lab, index: Index, term: Term, received: bool) -> Vec<usize> {
    (0..lab.nodes.len()).filter(|at| lab.has(&lab.id(*at), index, term, received)).map(|at| at + 1).collect()
}

impl Lab {
    /// Whether a member ever had the entry on its disk; with `received`, at least in memory.
    fn has(&self, id: &MemberId, index: Index, term: Term, received: bool) -> bool {
        let disk = &self.nodes[self.index_of(id)].disk;
        disk.persisted.contains(&(index, term)) || received && disk.received.contains(&(index, term))
    }
}

/// Whether the first state's policy is met for the entry; the other states came after it.
fn is_met(
    lab: &Lab,
    at: usize,
    index: Index,
    term: Term,
    states: &[StateSnapshot],
    fallen_back: bool,
) -> bool {
    let Some((state, later)) = states.split_first() else { return false };
    let policy = state.policy;
    let me = lab.id(at);
    let on_disk = |id: &MemberId| lab.has(id, index, term, false);
    let received = |id: &MemberId| lab.has(id, index, term, policy.on_receive);
    let others = || state.membership.members.iter().filter(|member| member.id != me);
    let zone = lab.nodes[at].setup.hello.zone;
    let zones = |has: &dyn Fn(&MemberId) -> bool| {
        let zones: BTreeSet<u8> = others().filter(|m| m.zone != zone && has(&m.id)).map(|m| m.zone).collect();
        zones.len() >= usize::from(policy.zone_acks)
    };
    match policy.kind {
        PolicyKind::Async => on_disk(&me),
        PolicyKind::Semisync if fallen_back && policy.timeout > 0 => on_disk(&me),
        PolicyKind::Semisync => {
            let acks = others().filter(|member| received(&member.id)).count();
            on_disk(&me) && acks >= usize::from(policy.acks) && zones(&received)
        }
        PolicyKind::Quorum => {
            let count = state.membership.voters().filter(|id| on_disk(id)).count();
            count >= state.membership.majority() && zones(&on_disk)
        }
        PolicyKind::All => {
            let later = || later.iter().filter(|state| state.policy.kind == PolicyKind::All);
            let stays = |id: &MemberId| later().all(|state| state.view.position(id).is_some());
            state.view.members.iter().filter(|m| stays(&m.id)).all(|m| on_disk(&m.id)) && zones(&on_disk)
        }
    }
}
