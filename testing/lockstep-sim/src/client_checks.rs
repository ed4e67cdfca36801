//! The promises to clients, checked whenever an entry is delivered or a write is answered: a seqno has one meaning, a
//! write has one seqno, and an acknowledged write is where its policy asks for it.

use crate::history::{Check, History, Violation, hold};
use crate::log_copy::{LogCopy, Rules};
use crate::node::{Fate, Node};
use crate::rescued::Rescued;
use crate::server::{Mark, Meaning};
use lockstep_core::members::Membership;
use lockstep_core::policy::PolicyKind;
use lockstep_core::{Index, MemberId, Seqno};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The machines that ever had an entry, a bit for each.
#[derive(Clone, Copy, Default, Debug)]
struct Had {
    disk: u32,
    memory: u32,
}

/// A write that was acknowledged: by which machine, as which seqno, and whether it may be lost with that machine's data.
#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    at: usize,
    seqno: Seqno,
    weak: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct ClientChecks {
    had: FxHashMap<(Index, u64), Had>,
    /// Members of the last committed membership. Acks of others do not count under `semisync`: the next leader may not know
    /// them.
    joined: BTreeSet<MemberId>,
    /// Members that are no longer in it: up to where everything was committed when they were first missing.
    left: BTreeMap<MemberId, Index>,
    /// By commit index: the memberships in force for the member that was the first to count up to there.
    counted: BTreeMap<Index, Vec<Arc<Membership>>>,
    /// The rules after each committed entry that changed them, in the log's order.
    rules: Vec<Rules>,
    /// The meaning of each seqno, the same on all members.
    meanings: BTreeMap<Seqno, Meaning>,
    /// The seqno of each write that passed.
    seqnos: FxHashMap<Mark, Seqno>,
    /// Verdicts on entries that are not known to be committed.
    open: BTreeMap<Seqno, bool>,
    /// Acknowledged writes.
    answered: BTreeMap<Mark, Acknowledged>,
    /// Writes reported as never to be ordered.
    pub(crate) never: BTreeSet<Mark>,
    /// Causal reads must see everything up to this seqno.
    pub(crate) durable: Seqno,
    /// By members that have fallen back: the index up to which entries need no acks.
    fallen_back: BTreeMap<usize, Index>,
    /// Acknowledged writes that a weak policy has lost.
    pub(crate) lost: u64,
}

impl ClientChecks {
    /// This membership is in force where everything up to `committed` is committed.
    pub(crate) fn joins(&mut self, membership: &Membership, committed: Index) {
        let present: BTreeSet<MemberId> = membership.members.iter().map(|member| member.id).collect();
        self.left.retain(|id, _| !present.contains(id));
        self.left.extend(self.joined.difference(&present).map(|id| (*id, committed)));
        self.joined = present;
    }

    /// Whether the acks of this member may count for the entry at `index` of a log. `has` says whether the log has the
    /// committed entry of an index.
    ///
    /// A member that left and returns counts once its new membership is committed. A leader whose log has the removal
    /// appends the new membership only after it has committed the removal. So for entries after the removal the member is
    /// in none of the leader's memberships, or not in the committed one.
    fn may_count(&self, id: &MemberId, index: Index, has: impl Fn(Index) -> bool) -> bool {
        let left = self.left.get(id);
        self.joined.contains(id) || left.is_some_and(|left| *left >= index || !has(*left))
    }

    /// A member with this log is the first to count entries up to this index as committed, while these memberships are in
    /// force for it.
    pub(crate) fn counts(&mut self, to: Index, log: &LogCopy, memberships: &[Arc<Membership>]) {
        let before = self.counted.last_key_value().map_or(0, |(index, _)| *index);
        self.rules.extend(log.rules(before + 1).1.filter(|rules| rules.after <= to).cloned());
        self.counted.insert(to, memberships.to_vec());
    }

    /// A member has an entry on its disk now.
    pub(crate) fn persisted(&mut self, at: usize, index: Index, hash: u64) {
        self.had.entry((index, hash)).or_default().disk |= 1 << at;
    }

    /// A member has an entry in memory now.
    pub(crate) fn received(&mut self, at: usize, index: Index, hash: u64) {
        self.had.entry((index, hash)).or_default().memory |= 1 << at;
    }

    /// A member's semisync has fallen back, with its disk up to here.
    pub(crate) fn fell_back(&mut self, at: usize, persisted: Index) {
        let upto = self.fallen_back.entry(at).or_default();
        *upto = (*upto).max(persisted);
    }

    /// A member has received an entry.
    pub(crate) fn meaning(&mut self, at: usize, seqno: Seqno, meaning: Meaning) -> Check {
        let name = at + 1;
        if let Meaning::Write(mark, pass) = meaning {
            hold!(
                !self.never.contains(&mark),
                "a write reported as not appended gets no seqno",
                "write {mark} has seqno {seqno} on n{name}"
            );
            self.open.insert(seqno, pass);
            if pass {
                let first = *self.seqnos.entry(mark).or_insert(seqno);
                hold!(
                    first == seqno || !self.meanings.contains_key(&first),
                    "a write has one seqno",
                    "write {mark} has seqno {seqno} on n{name}, and had {first}"
                );
            }
        }
        // A member may lack pieces of a failed write-set.
        let meaning = match meaning {
            Meaning::Write(_, false) => Meaning::Write(0, false),
            meaning => meaning,
        };
        if let Some(before) = self.meanings.insert(seqno, meaning) {
            hold!(
                before == meaning,
                "no seqno means two things",
                "{seqno} was {before:?}, and is {meaning:?} on n{name}"
            );
        }
        Ok(())
    }

    /// Compares the verdicts on entries that are committed now with those of the reference implementation.
    pub(crate) fn verdicts(&mut self, history: &History) -> Check {
        while let Some((seqno, pass)) = self.open.first_key_value().map(|(s, p)| (*s, *p)) {
            if seqno > history.seqno() {
                break;
            }
            self.open.pop_first();
            if let Some(expected) = history.verdict(seqno) {
                hold!(
                    expected == pass,
                    "all members certify alike, and by the rules",
                    "{pass} for seqno {seqno}, the rules say {expected}"
                );
            }
        }
        Ok(())
    }

    /// The machines that ever had this entry on disk, a bit for each.
    pub(crate) fn disks_of(&self, index: Index, hash: u64) -> u32 {
        self.had.get(&(index, hash)).map_or(0, |had| had.disk)
    }

    /// A member acknowledges a write to its server's thread.
    pub(crate) fn answered(
        &mut self,
        nodes: &[Node],
        history: Option<&History>,
        at: usize,
        mark: Mark,
        seqno: Seqno,
    ) -> Check {
        let name = at + 1;
        let own = &nodes[at].book.memory;
        let Some((index, entry)) = own.place_of(seqno) else {
            return Err(Violation {
                rule: "an acknowledged entry is in the own log",
                what: format!("n{name} has not got seqno {seqno}"),
            });
        };
        let had = self.had.get(&(index, entry.hash)).copied().unwrap_or_default();
        // The commit index is not enough: another entry may have replaced this one.
        let is_committed = history.and_then(|history| history.mark_at(index)) == Some(entry);
        let (Some(before), _) = own.rules(index) else { return Ok(()) };
        let mut states: Vec<Rules> = vec![before.clone()];
        // During a policy change, a write returns when either policy is met; members that have left the view are not
        // waited for. The leader knows first that a change is committed, announces it, and may have ended since.
        if is_committed {
            let later = self.rules.partition_point(|rules| rules.after < index);
            states.extend_from_slice(&self.rules[later..]);
        }
        // A membership change is in force when it is appended, before it is committed: it applies to earlier entries.
        // Whoever counted the entry first may have a change that this member has yet to receive.
        let counted =
            self.counted.range(index..).next().filter(|_| is_committed).map(|(_, memberships)| memberships);
        let has_it = |node: &&Node| is_committed || node.book.memory.mirror.get(index) == Some(entry);
        let committed = |node: &&Node| node.process.as_ref().map_or(0, |process| process.commit);
        let knows = nodes.iter().filter(has_it).max_by_key(committed);
        let tail = |node: &Node| node.process.as_ref().map(|p| p.node.raft().tail_state().membership.clone());
        let tails = knows.into_iter().chain([&nodes[at]]).filter_map(tail);
        for membership in counted.into_iter().flatten().cloned().chain(tails) {
            let last = states.last().cloned().unwrap_or_else(|| before.clone());
            states.push(Rules { membership, ..last });
        }
        let fallen_back = self.fallen_back.iter().any(|(at, upto)| index <= *upto && had.disk & 1 << at != 0);
        let has_committed = |at: Index| {
            at <= own.mirror.base || own.mirror.get(at) == history.and_then(|history| history.mark_at(at))
        };
        let met = is_any_met(
            &Holders {
                me: nodes[at].id,
                zone: nodes[at].hello.zone,
                on_disk: &|id| has(nodes, id, had.disk),
                in_memory: &|id| has(nodes, id, had.memory),
                joined: &|id| self.may_count(id, index, has_committed),
                fallen_back,
            },
            &states,
        );
        if !met {
            let policies: Vec<_> = states.iter().map(|state| (state.policy, state.view.len())).collect();
            return Err(Violation {
                rule: "an acknowledged entry is where its policy asks for it",
                what: format!(
                    "n{name} has answered index {index} (seqno {seqno}) under {policies:?}: on the disks of {:b}, received \
                     by {:b}",
                    had.disk, had.memory
                ),
            });
        }
        // Any elected leader has the entries of a majority, and those that are committed.
        let voters: Vec<MemberId> = before.membership.voters().collect();
        let durable = is_committed
            || voters.iter().filter(|id| has(nodes, id, had.disk)).count() >= before.membership.majority();
        self.answered.insert(mark, Acknowledged { at, seqno, weak: !durable });
        if durable {
            self.durable = self.durable.max(seqno);
        }
        Ok(())
    }

    /// At the end all databases are equal, and hold every acknowledged write that is not in a rescue file of the member that
    /// acknowledged it. If damage has taken the end of that member's log, another member had all that it had, so the rescue file
    /// is that one's.
    pub(crate) fn compare(&mut self, nodes: &[Node], rescued: &Rescued) -> Check {
        let with_data: Vec<&Node> =
            nodes.iter().filter(|node| node.fate == Fate::In && !node.hello.arbitrator).collect();
        let Some(first) = with_data.first().map(|node| &node.server.database) else { return Ok(()) };
        for node in &with_data[1..] {
            let other = &node.server.database;
            hold!(
                other == first,
                "all databases are equal",
                "{} and {}: {} and {} transactions, first at {:?}",
                with_data[0].hello.name,
                node.hello.name,
                first.len(),
                other.len(),
                first.iter().zip(other).find(|(a, b)| a != b)
            );
        }
        for (mark, Acknowledged { at, seqno, weak }) in std::mem::take(&mut self.answered) {
            let there = first.get(&seqno) == Some(&mark);
            hold!(
                there
                    || weak
                        && (rescued.has(at, seqno, mark)
                            || nodes[at].lost_end && rescued.has_any(seqno, mark)),
                "acknowledged is in the database, or lost as its policy allows and in a rescue file",
                "write {mark}, acknowledged by n{} as seqno {seqno} (weak: {weak})",
                at + 1
            );
            self.lost += u64::from(!there);
        }
        Ok(())
    }
}

/// Whether a member is one of the machines in this set.
fn has(nodes: &[Node], id: &MemberId, set: u32) -> bool {
    nodes.iter().position(|node| node.has_been(id)).is_some_and(|at| set & 1 << at != 0)
}

/// The members that have an acknowledged entry.
struct Holders<'a> {
    /// The member that acknowledged it.
    me: MemberId,
    /// That member's zone.
    zone: u8,
    on_disk: &'a dyn Fn(&MemberId) -> bool,
    in_memory: &'a dyn Fn(&MemberId) -> bool,
    /// See [`ClientChecks::may_count`].
    joined: &'a dyn Fn(&MemberId) -> bool,
    /// Whether semisync has fallen back for this entry.
    fallen_back: bool,
}

/// Whether one of these rules is met for the entry. The first were in force for it; the others came later.
///
/// The leader judges the policy and the view of each rule by the membership that is in force at that moment. A member that
/// joins later therefore counts for the zones of an earlier rule, although it is in no view of that time.
fn is_any_met(holders: &Holders<'_>, states: &[Rules]) -> bool {
    (0..states.len()).any(|from| {
        let rest = &states[from..];
        rest.iter().any(|now| is_met(holders, rest, &now.membership))
    })
}

/// Whether the first rules' policy is met for the entry under this membership; the other rules came after the first.
fn is_met(holders: &Holders<'_>, states: &[Rules], membership: &Membership) -> bool {
    let Some((state, later)) = states.split_first() else { return false };
    let policy = state.policy;
    let Holders { me, zone, on_disk, in_memory, joined, fallen_back } = *holders;
    let received = |id: &MemberId| on_disk(id) || policy.on_receive && in_memory(id);
    let others = || membership.members.iter().filter(|member| member.id != me);
    let zones = |has: &dyn Fn(&MemberId) -> bool| {
        let zones: BTreeSet<u8> = others().filter(|m| m.zone != zone && has(&m.id)).map(|m| m.zone).collect();
        zones.len() >= usize::from(policy.zone_acks)
    };
    match policy.kind {
        PolicyKind::Async => on_disk(&me),
        PolicyKind::Semisync if fallen_back && policy.timeout > 0 => on_disk(&me),
        PolicyKind::Semisync => {
            let counts = |id: &MemberId| joined(id) && received(id);
            let acks = others().filter(|member| counts(&member.id)).count();
            on_disk(&me) && acks >= usize::from(policy.acks) && zones(&counts)
        }
        PolicyKind::Quorum => {
            let count = membership.voters().filter(|id| on_disk(id)).count();
            count >= membership.majority() && zones(&on_disk)
        }
        PolicyKind::All => {
            let later = || later.iter().filter(|state| state.policy.kind == PolicyKind::All);
            let stays = |id: &MemberId| later().all(|state| state.view.contains(id));
            state.view.iter().filter(|id| stays(id)).all(on_disk) && zones(&on_disk)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::Uuid;
    use lockstep_core::members::{MemberInfo, Role};
    use lockstep_core::policy::Policy;

    fn id(number: u8) -> MemberId {
        Uuid([number; 16])
    }

    /// Rules of `all` with `zone_acks = 1`: the members of the view, and the members with their zones.
    fn all(after: Index, view: &[u8], members: &[(u8, u8)]) -> Rules {
        let member = |(number, zone): &(u8, u8)| MemberInfo {
            id: id(*number),
            name: format!("n{number}"),
            address: String::new(),
            zone: *zone,
            role: Role::Voter,
            wants_vote: true,
            arbitrator: false,
        };
        Rules {
            after,
            policy: Policy { kind: PolicyKind::All, zone_acks: 1, ..Policy::default() },
            view: view.iter().map(|number| id(*number)).collect(),
            membership: Membership { members: members.iter().map(member).collect() }.into(),
        }
    }

    /// Whether n1 in zone 0 may acknowledge an entry on the disks of these members.
    fn may_answer(disks: &[u8], states: &[Rules]) -> bool {
        let holders = Holders {
            me: id(1),
            zone: 0,
            on_disk: &|member| disks.iter().any(|number| id(*number) == *member),
            in_memory: &|_| false,
            joined: &|_| false,
            fallen_back: false,
        };
        is_any_met(&holders, states)
    }

    #[test]
    fn zone_of_member_that_joined_later_counts() {
        // n4 joins with a view and does not have the entry yet. n3 joins after it and has it.
        let states = [
            all(1, &[1, 2], &[(1, 0), (2, 0)]),
            all(5, &[1, 2, 4], &[(1, 0), (2, 0), (4, 1)]),
            all(6, &[1, 2, 4], &[(1, 0), (2, 0), (3, 1), (4, 1)]),
        ];
        assert!(may_answer(&[1, 2, 3], &states));
        assert!(!may_answer(&[1, 2], &states), "no other zone has it");
        assert!(!may_answer(&[1, 3], &states), "n2 of the view lacks it");
        assert!(!may_answer(&[1, 2, 3], &states[..2]), "n3 is no member");
    }

    #[test]
    fn returning_member_counts_once_its_membership_is_committed() {
        let membership = |numbers: &[u8]| {
            let members: Vec<(u8, u8)> = numbers.iter().map(|number| (*number, 0)).collect();
            all(1, &[], &members).membership
        };
        let (has, lacks) = (|_| true, |_| false);
        let mut checks = ClientChecks::default();
        checks.joins(&membership(&[1, 2]), 5);
        assert!(checks.may_count(&id(2), 20, has) && !checks.may_count(&id(3), 20, has));
        checks.joins(&membership(&[1]), 9);
        assert!(checks.may_count(&id(2), 9, has), "it counted when the removal was not in the log yet");
        assert!(!checks.may_count(&id(2), 10, has), "the log has the removal");
        assert!(checks.may_count(&id(2), 10, lacks), "the leader does not know of the removal");
        checks.joins(&membership(&[1, 2]), 12);
        assert!(checks.may_count(&id(2), 10, has));
    }

    #[test]
    fn all_does_not_wait_for_member_that_left_the_view() {
        let members = [(1, 0), (2, 0), (3, 1)];
        let states = [all(1, &[1, 2, 3], &members), all(5, &[1, 3], &members)];
        assert!(may_answer(&[1, 3], &states));
        assert!(!may_answer(&[1, 3], &states[..1]), "n2 is still in the view");
    }

    #[test]
    fn earlier_membership_does_not_count_for_later_rules() {
        // n3 leaves the membership with the view: its disk makes no zone for the entries after that.
        let states = [all(1, &[1, 2], &[(1, 0), (2, 0), (3, 1)]), all(5, &[1], &[(1, 0), (2, 0)])];
        assert!(!may_answer(&[1, 3], &states[1..]));
        assert!(may_answer(&[1, 2, 3], &states));
    }
}
