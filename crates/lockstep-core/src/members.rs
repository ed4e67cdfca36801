//! The members of the group, in two separate lists: the [`Membership`] (voters and learners, the base of majorities)
//! and the [`View`] (the members connected now, as the server sees them).

use crate::codec::{DecodeError, Reader, Writer};
use crate::types::{MemberId, Uuid, ViewUuid};

/// The role of a member in elections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Role {
    /// Does not count for majorities: a member that still receives its state, or a read replica.
    Learner = 0,
    /// Counts for majorities.
    Voter = 1,
    /// A voter without a database.
    Arbitrator = 2,
}

impl Role {
    /// Whether a member with this role counts for majorities.
    pub fn votes(self) -> bool {
        !matches!(self, Role::Learner)
    }
}

/// A member in the membership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberInfo {
    /// Its identity in the log.
    pub id: MemberId,
    /// `wsrep_node_name`. For people; not always unique, because its default is the host's name.
    pub name: String,
    /// The address for peers, `host:port`.
    pub address: String,
    /// The zone (`member.zone`, or Galera's `gmcast.segment`).
    pub zone: u8,
    /// The present role.
    pub role: Role,
    /// Whether it may become a voter once it has the state (`member.vote`, `pc.weight`).
    pub wants_vote: bool,
    /// Whether it has no database.
    pub arbitrator: bool,
}

/// The members of the cluster. The latest membership entry in a log is in force, committed or not.
///
/// **Invariant:** sorted by id, ids unique. Two consecutive memberships differ by at most one voter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Membership {
    /// All members, sorted by id.
    pub members: Vec<MemberInfo>,
}

impl Membership {
    /// The member of this id.
    pub fn get(&self, id: &MemberId) -> Option<&MemberInfo> {
        self.members.binary_search_by(|m| m.id.cmp(id)).ok().map(|at| &self.members[at])
    }

    /// The first member of this name.
    pub fn by_name(&self, name: &str) -> Option<&MemberInfo> {
        self.members.iter().find(|m| m.name == name)
    }

    /// The former identity of a member with this name and address that has lost its log. The identities have one name; if
    /// several members have that name, also one address. If only the address differs, the address may have changed, or the
    /// name was copied to another server.
    pub fn former(&self, name: &str, address: &str) -> Option<&MemberInfo> {
        let mut named = self.members.iter().filter(|m| m.name == name);
        let first = named.next()?;
        match named.next() {
            None => Some(first),
            Some(_) => self.members.iter().find(|m| m.name == name && m.address == address),
        }
    }

    /// Whether this member is a voter.
    pub fn is_voter(&self, id: &MemberId) -> bool {
        self.get(id).is_some_and(|m| m.role.votes())
    }

    /// The ids whose logs count for majorities.
    pub fn voters(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.members.iter().filter(|m| m.role.votes()).map(|m| m.id)
    }

    /// The number of voters of a majority.
    pub fn majority(&self) -> usize {
        self.voters().count() / 2 + 1
    }

    /// This membership with the member added or replaced.
    pub fn with(&self, member: MemberInfo) -> Membership {
        let mut members = self.members.clone();
        match members.binary_search_by(|m| m.id.cmp(&member.id)) {
            Ok(at) => members[at] = member,
            Err(at) => members.insert(at, member),
        }
        Membership { members }
    }

    /// This membership without the member.
    pub fn without(&self, id: &MemberId) -> Membership {
        Membership { members: self.members.iter().filter(|m| m.id != *id).cloned().collect() }
    }

    /// The number of voters that only one of the two memberships has.
    pub fn voters_changed(&self, other: &Membership) -> usize {
        self.voters().filter(|id| !other.is_voter(id)).count()
            + other.voters().filter(|id| !self.is_voter(id)).count()
    }

    /// Writes it.
    pub fn encode(&self, w: &mut Writer) {
        w.u32(self.members.len() as u32);
        for MemberInfo { id, name, address, zone, role, wants_vote, arbitrator } in &self.members {
            w.raw(&id.0);
            w.str(name);
            w.str(address);
            w.u8(*zone);
            w.u8(*role as u8);
            w.bool(*wants_vote);
            w.bool(*arbitrator);
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`DecodeError`] also where ids are not sorted and unique.
    pub fn decode(r: &mut Reader) -> Result<Membership, DecodeError> {
        let n = r.count(28)?;
        let mut members: Vec<MemberInfo> = Vec::with_capacity(n);
        for _ in 0..n {
            let member = MemberInfo {
                id: Uuid(r.array()?),
                name: r.str()?,
                address: r.str()?,
                zone: r.u8()?,
                role: match r.u8()? {
                    0 => Role::Learner,
                    1 => Role::Voter,
                    2 => Role::Arbitrator,
                    _ => return Err(DecodeError::Invalid("role")),
                },
                wants_vote: r.bool()?,
                arbitrator: r.bool()?,
            };
            if members.last().is_some_and(|last| last.id >= member.id) {
                return Err(DecodeError::Invalid("order of members"));
            }
            members.push(member);
        }
        Ok(Membership { members })
    }
}

/// A member in a view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ViewMember {
    /// Its identity in the log.
    pub id: MemberId,
    /// Its identity in views, new at each connect.
    pub view_uuid: ViewUuid,
    /// `wsrep_node_name`.
    pub name: String,
    /// The address for clients (`wsrep_node_incoming_address`).
    pub incoming: String,
}

/// The connected members: the leader first, then by view UUID, that is, by age. An entry with a seqno.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// Counts the views of a history (`wsrep_cluster_conf_id`), from 1.
    pub number: u64,
    /// The leader of the time first.
    pub members: Vec<ViewMember>,
}

impl View {
    /// The place of this member in it.
    pub fn position(&self, id: &MemberId) -> Option<usize> {
        self.members.iter().position(|m| m.id == *id)
    }

    /// Whose streaming transactions go on behind it, ascending, where `before` is the view before it. Every server rolls
    /// back those of members that are not in a view, and all of them where it has the members of the one before
    /// (`close_orphaned_sr_transactions` in wsrep-lib).
    pub fn whose_streams_go_on(&self, before: &View) -> Vec<ViewUuid> {
        let members = self.view_uuids();
        if members == before.view_uuids() { Vec::new() } else { members }
    }

    /// The view UUIDs of its members, ascending.
    fn view_uuids(&self) -> Vec<ViewUuid> {
        let mut uuids: Vec<ViewUuid> = self.members.iter().map(|m| m.view_uuid).collect();
        uuids.sort_unstable();
        uuids
    }

    /// Writes it.
    pub fn encode(&self, w: &mut Writer) {
        w.u64(self.number);
        w.u32(self.members.len() as u32);
        for ViewMember { id, view_uuid, name, incoming } in &self.members {
            w.raw(&id.0);
            w.raw(&view_uuid.0);
            w.str(name);
            w.str(incoming);
        }
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`DecodeError`] where it is not one.
    pub fn decode(r: &mut Reader) -> Result<View, DecodeError> {
        let number = r.u64()?;
        let n = r.count(40)?;
        let mut members = Vec::with_capacity(n);
        for _ in 0..n {
            members.push(ViewMember {
                id: Uuid(r.array()?),
                view_uuid: Uuid(r.array()?),
                name: r.str()?,
                incoming: r.str()?,
            });
        }
        Ok(View { number, members })
    }
}
