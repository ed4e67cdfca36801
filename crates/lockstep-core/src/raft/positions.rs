//! The known positions of all members' logs, as a commit policy counts them.

use super::acks::Acks;
use super::failpoints::Failpoint;
use super::local::Local;
use super::quorum::reached_by;
use super::replication::Replication;
use crate::members::{MemberInfo, Membership};
use crate::policy::Policy;
use crate::types::*;

/// The persisted and received indices of all members.
#[derive(Clone, Copy, Debug)]
pub(super) struct Positions<'a> {
    local: &'a Local,
    acks: &'a Acks,
    replication: &'a Replication,
}

impl<'a> Positions<'a> {
    pub(super) fn new(local: &'a Local, acks: &'a Acks, replication: &'a Replication) -> Positions<'a> {
        Positions { local, acks, replication }
    }

    pub(super) fn local(self) -> &'a Local {
        self.local
    }

    /// The last index that a member is known to have persisted, equal to our log.
    pub(super) fn persisted_by(self, id: &MemberId) -> Index {
        self.acks.persisted_by(self.local, id)
    }

    /// The index that another member has acknowledged, as this policy means it.
    pub(super) fn acked_by(self, id: &MemberId, policy: &Policy) -> Index {
        let on_receive = policy.on_receive || self.local.is_active(Failpoint::ReceivedIsPersisted);
        match self.replication.received(id) {
            Some(received) if on_receive => received.min(self.local.log().matched()),
            _ => self.persisted_by(id),
        }
    }

    /// The members that have not persisted `index`.
    pub(super) fn not_persisted_by(self, index: Index) -> impl Iterator<Item = &'a MemberInfo> {
        let members = self.local.membership().members.iter();
        members.filter(move |member| self.persisted_by(&member.id) < index)
    }

    /// The members that have not acknowledged `index`, as the policy in force means it.
    pub(super) fn unacknowledged_by(self, index: Index) -> impl Iterator<Item = &'a MemberInfo> {
        let log = self.local.log();
        let policy = &log.tail().policy;
        // Other zones' disks are asked for in any case.
        let in_memory = log.acks_on_receive() && policy.zone_acks == 0;
        let acked = move |id: &MemberId| match *id == self.local.id() || !in_memory {
            true => self.persisted_by(id),
            false => self.acked_by(id, policy),
        };
        self.local.membership().members.iter().filter(move |member| acked(&member.id) < index)
    }

    /// The members whose acks count under policies that a majority does not meet by itself: those that every possible next
    /// leader queries. The next leader's log has all committed entries, and perhaps not the uncommitted ones. Our commit
    /// index may lag, so a later membership may be committed already. Therefore a member counts if it is in the committed
    /// membership and in every later one of the log.
    fn counted(self) -> impl Iterator<Item = &'a MemberInfo> {
        let log = self.local.log();
        let anybody = self.local.is_active(Failpoint::AnyMembersAcksCount);
        let known = &log.committed().membership;
        let changed = log.tail().membership_index > log.commit();
        let open: Vec<Membership> = if changed { log.open_memberships().collect() } else { Vec::new() };
        self.local.membership().members.iter().filter(move |member| {
            let is_known = |membership: &Membership| membership.get(&member.id).is_some();
            anybody || (is_known(known) && open.iter().all(is_known))
        })
    }

    /// The index acknowledged by each other member, in the sense of this policy.
    pub(super) fn acked_by_others(self, policy: &Policy) -> impl Iterator<Item = Index> {
        let id = self.local.id();
        self.counted().filter(move |m| m.id != id).map(move |m| self.acked_by(&m.id, policy))
    }

    /// The index acknowledged by `commit.acks` other members.
    pub(super) fn acked(self, policy: &Policy) -> Index {
        if policy.acks == 0 || self.local.is_active(Failpoint::NoAcksAwaited) {
            return Index::MAX;
        }
        let mut acked: Vec<Index> = self.acked_by_others(policy).collect();
        reached_by(&mut acked, usize::from(policy.acks))
    }

    /// The index persisted in `zones` zones beside one more; [`Index::MAX`] if `zones` is 0.
    pub(super) fn in_zones(self, zones: u8) -> Index {
        if zones == 0 || self.local.is_active(Failpoint::NoZonesAwaited) {
            return Index::MAX;
        }
        let mut by_zone: Vec<(u8, Index)> = Vec::new();
        for member in self.counted() {
            let index = self.persisted_by(&member.id);
            match by_zone.iter_mut().find(|(zone, _)| *zone == member.zone) {
                Some((_, most)) => *most = (*most).max(index),
                None => by_zone.push((member.zone, index)),
            }
        }
        let mut persisted: Vec<Index> = by_zone.into_iter().map(|(_, index)| index).collect();
        reached_by(&mut persisted, usize::from(zones) + 1)
    }
}
