//! What must be so, whatever happens: looked at whenever something is given a place, or answered.

use super::server::{Mark, Placed};
use crate::member::harness::Lab;
use lockstep_core::policy::PolicyKind;
use lockstep_core::snapshot::StateSnapshot;
use lockstep_core::{Entry, EntryKind, Index, MemberId, Seqno, Term};
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// What each seqno is, to all.
    places: BTreeMap<Seqno, Placed>,
    /// Acknowledged: the write, its seqno, and whether that may be lost with the member that did so.
    pub(super) answered: BTreeMap<Mark, (Seqno, bool)>,
    /// Told that they have no place and never will.
    pub(super) never: BTreeSet<Mark>,
    /// Up to here a read must see.
    pub(super) strong: Seqno,
    /// By members that have fallen back: up to where what they had then need not be acknowledged.
    fallen: BTreeMap<usize, Index>,
}

impl Judge {
    /// Semisync may have fallen back.
    pub(super) fn look_at_fallbacks(&mut self, lab: &Lab) {
        for (at, node) in lab.nodes.iter().enumerate().filter(|(_, node)| node.engine.raft.has_fallen_back())
        {
            let upto = self.fallen.entry(at).or_default();
            *upto = (*upto).max(node.engine.raft.persisted());
        }
    }

    /// A member has been given a place. No seqno ever means two things.
    pub(super) fn placed(&mut self, seqno: Seqno, placed: Placed) -> Result<(), String> {
        if let Placed::Write(mark, _) = placed
            && self.never.contains(&mark)
        {
            return Err(format!("write {mark}, which never would, has seqno {seqno}"));
        }
        // Of what fails a member may have no pieces.
        let placed = match placed {
            Placed::Write(_, false) => Placed::Write(0, false),
            placed => placed,
        };
        match self.places.insert(seqno, placed) {
            Some(before) if before != placed => {
                Err(format!("seqno {seqno} was {before:?}, and is {placed:?} now"))
            }
            _ => Ok(()),
        }
    }

    /// A member tells a thread of its server that its write is committed.
    pub(super) fn answered(&mut self, lab: &Lab, at: usize, mark: Mark, seqno: Seqno) -> Result<(), String> {
        let log = &lab.nodes[at].disk.log;
        let writes = |entry: &&Entry| matches!(entry.kind, EntryKind::WriteSet | EntryKind::TotalOrder);
        let entry = log.entries.values().rev().filter(writes).find(|entry| entry.seqno == seqno);
        let Some(entry) = entry else { return Err(format!("n{} has not got seqno {seqno} itself", at + 1)) };
        let (index, term) = (entry.index, entry.term);
        let Some(before) = log.state_before(index) else { return Err(format!("n{} has no base", at + 1)) };
        // Those from before a change return when either policy is met; who has left the view is waited for no more.
        // What is committed the leader knows first, and says.
        let knows = lab.nodes.iter().max_by_key(|node| node.engine.raft.commit()).expect("there are some");
        let committed = knows.engine.raft.commit().max(index);
        let mut states = vec![before.clone()];
        let mut state = before.clone();
        for (_, entry) in knows.disk.log.entries.range(index..=committed) {
            if state.apply(entry).is_err() {
                // Its log begins later.
                break;
            }
            if matches!(entry.kind, EntryKind::Policy | EntryKind::View | EntryKind::Membership) {
                states.push(state.clone());
            }
        }
        // A change of the voters is in force where it is placed, before it is committed: it counts for what came before.
        for node in [knows, &lab.nodes[at]] {
            let membership = node.engine.raft.tail_state().membership.clone();
            states.push(StateSnapshot { membership, ..state.clone() });
        }
        let had = |at: &usize| lab.nodes[*at].disk.persisted.contains(&(index, term));
        let fallen = self.fallen.iter().any(|(at, upto)| index <= *upto && had(at));
        let met = |from: usize| is_met(lab, at, index, term, &states[from..], fallen);
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
        // Whom a majority elects has what a majority has.
        let voters: Vec<MemberId> = before.membership.voters().collect();
        let with = voters.iter().filter(|id| lab.has(id, index, term, false)).count();
        let strong = with >= before.membership.majority();
        self.answered.insert(mark, (seqno, !strong));
        if strong {
            self.strong = self.strong.max(seqno);
        }
        Ok(())
    }
}

fn have(lab: &Lab, index: Index, term: Term, received: bool) -> Vec<usize> {
    (0..lab.nodes.len()).filter(|at| lab.has(&lab.id(*at), index, term, received)).map(|at| at + 1).collect()
}

impl Lab {
    /// Whether a member has, or had, an entry on its disk, or received it at least.
    fn has(&self, id: &MemberId, index: Index, term: Term, received: bool) -> bool {
        let disk = &self.nodes[self.place(id)].disk;
        disk.persisted.contains(&(index, term)) || received && disk.received.contains(&(index, term))
    }
}

/// Whether the first of these states asks for no more; the others came after it.
fn is_met(lab: &Lab, at: usize, index: Index, term: Term, states: &[StateSnapshot], fallen: bool) -> bool {
    let Some((state, later)) = states.split_first() else { return false };
    let policy = state.policy;
    let me = lab.id(at);
    let on_disk = |id: &MemberId| lab.has(id, index, term, false);
    let in_hand = |id: &MemberId| lab.has(id, index, term, policy.on_receive);
    let others = || state.membership.members.iter().filter(|member| member.id != me);
    let zone = lab.nodes[at].member.hello.zone;
    let zones = |has: &dyn Fn(&MemberId) -> bool| {
        let zones: BTreeSet<u8> = others().filter(|m| m.zone != zone && has(&m.id)).map(|m| m.zone).collect();
        zones.len() >= usize::from(policy.zone_acks)
    };
    match policy.kind {
        PolicyKind::Async => on_disk(&me),
        PolicyKind::Semisync if fallen && policy.timeout > 0 => on_disk(&me),
        PolicyKind::Semisync => {
            let acks = others().filter(|member| in_hand(&member.id)).count();
            on_disk(&me) && acks >= usize::from(policy.acks) && zones(&in_hand)
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
