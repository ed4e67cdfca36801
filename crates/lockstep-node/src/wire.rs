//! Node messages beside the Raft protocol: introductions, health, and state transfers.

use crate::api::{LocalState, NodeConfig};
use crate::policy_request::PolicyRequest;
use bytes::Bytes;
use lockstep_core::branch::PARENTS_KEPT;
use lockstep_core::codec::{DecodeError, Reader, Writer};
use lockstep_core::members::{MemberInfo, Role};
use lockstep_core::policy::Policy;
use lockstep_core::vote::Opinion;
use lockstep_core::{Gtid, Index, MemberId, Seqno, Term, Uuid, ViewUuid};

/// Kind of a frame that holds a [`lockstep_core::message::Message`].
pub(crate) const FRAME_RAFT: u8 = 1;
/// Kind of a frame that holds a [`NodeMessage`].
pub(crate) const FRAME_NODE: u8 = 2;

/// Kind of a frame that holds another one, compressed: see [`crate::pack`].
pub(crate) const FRAME_PACKED: u8 = 4;

/// Kind of a frame that holds an [`OperatorMessage`].
pub(crate) const FRAME_OPERATOR: u8 = 3;

/// Who connects; travels in the handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its identity in the log.
    pub id: MemberId,
    /// Which life of its process.
    pub incarnation: u64,
    /// Its identity towards its server: fresh at each connect.
    pub view_uuid: ViewUuid,
    /// The history of its log; nil where it has none.
    pub history: Uuid,
    /// Which log of that history ([`lockstep_core::snapshot::StateSnapshot::log_id`]); nil where it has none.
    pub log_id: Uuid,
    /// The branches that its log came from ([`lockstep_core::snapshot::StateSnapshot::parents`]): their histories and logs.
    pub parents: Vec<(Uuid, Uuid)>,
    /// Of each of `parents`, index and term of the last entry that the next branch has of it; empty where it does not say.
    pub forks: Vec<(Index, Term)>,
    /// Where its log ends.
    pub last_index: Index,
    /// `wsrep_node_name`.
    pub name: String,
    /// Where peers reach it.
    pub address: String,
    /// Where clients reach it.
    pub incoming: String,
    /// Where it is.
    pub zone: u8,
    /// Whether it wants to vote.
    pub wants_vote: bool,
    /// Whether it keeps no database.
    pub arbitrator: bool,
}

impl Hello {
    /// The introduction of a member without a log: identity and configuration only.
    pub(crate) fn without_log(config: &NodeConfig, id: MemberId, view_uuid: ViewUuid) -> Hello {
        Hello {
            id,
            incarnation: 0,
            view_uuid,
            history: Uuid::NIL,
            log_id: Uuid::NIL,
            parents: Vec::new(),
            forks: Vec::new(),
            last_index: 0,
            name: config.name.clone(),
            address: config.address.clone(),
            incoming: config.incoming.clone(),
            zone: config.zone,
            wants_vote: config.wants_vote,
            arbitrator: config.arbitrator,
        }
    }

    /// As the handshake's blob.
    pub fn to_bytes(&self) -> Bytes {
        let Hello {
            id,
            incarnation,
            view_uuid,
            history,
            log_id,
            parents,
            forks,
            last_index,
            name,
            address,
            incoming,
            zone,
            wants_vote,
            arbitrator,
        } = self;
        let mut w = Writer::new();
        w.raw(&id.0);
        w.u64(*incarnation);
        w.raw(&view_uuid.0);
        w.raw(&history.0);
        w.u64(*last_index);
        w.str(name);
        w.str(address);
        w.str(incoming);
        w.u8(*zone);
        w.bool(*wants_vote);
        w.bool(*arbitrator);
        w.raw(&log_id.0);
        if !parents.is_empty() {
            w.u8(parents.len() as u8);
            for (history, log_id) in parents {
                w.raw(&history.0);
                w.raw(&log_id.0);
            }
            for (index, term) in forks {
                w.u64(*index);
                w.u64(*term);
            }
        }
        w.into_bytes()
    }

    /// Reads it. Fields may be added at the end by later versions.
    ///
    /// # Errors
    /// [`DecodeError`] where it is not one, or a name is longer than 255 bytes.
    pub fn from_bytes(bytes: Bytes) -> Result<Hello, DecodeError> {
        let mut r = Reader::new(bytes);
        let mut hello = Hello {
            id: Uuid(r.array()?),
            incarnation: r.u64()?,
            view_uuid: Uuid(r.array()?),
            history: Uuid(r.array()?),
            log_id: Uuid::NIL,
            parents: Vec::new(),
            forks: Vec::new(),
            last_index: r.u64()?,
            name: r.str()?,
            address: r.str()?,
            incoming: r.str()?,
            zone: r.u8()?,
            wants_vote: r.bool()?,
            arbitrator: r.bool()?,
        };
        if r.remaining() >= 16 {
            hello.log_id = Uuid(r.array()?);
        }
        if r.remaining() > 0 {
            let count = usize::from(r.u8()?);
            for _ in 0..count.min(PARENTS_KEPT) {
                hello.parents.push((Uuid(r.array()?), Uuid(r.array()?)));
            }
            if count <= PARENTS_KEPT && r.remaining() >= 16 * count {
                for _ in 0..count {
                    hello.forks.push((r.u64()?, r.u64()?));
                }
            }
        }
        let longest = hello.name.len().max(hello.address.len()).max(hello.incoming.len());
        // They are shown on terminals and in error logs.
        let control =
            [&hello.name, &hello.address, &hello.incoming].iter().any(|t| t.contains(char::is_control));
        if control || longest > 255 || hello.name.is_empty() || hello.id.is_nil() || hello.view_uuid.is_nil()
        {
            return Err(DecodeError::Invalid("name, address or identity"));
        }
        Ok(hello)
    }

    /// Index and term of the last entry that its log has of this one, which its own came from; `None`: it does not say.
    pub(crate) fn fork(&self, history: Uuid, log_id: Uuid) -> Option<(Index, Term)> {
        let at = self.parents.iter().position(|parent| *parent == (history, log_id))?;
        self.forks.get(at).copied()
    }

    /// Whether both have logs, and these are not one.
    pub(crate) fn is_of_another_log(&self, other: &Hello) -> bool {
        let differ = |a: Uuid, b: Uuid| !a.is_nil() && !b.is_nil() && a != b;
        differ(self.history, other.history) || differ(self.log_id, other.log_id)
    }

    /// As a learner of the membership.
    pub(crate) fn as_member(&self, role: Role) -> MemberInfo {
        MemberInfo {
            id: self.id,
            name: self.name.clone(),
            address: self.address.clone(),
            zone: self.zone,
            role,
            wants_vote: self.wants_vote,
            arbitrator: self.arbitrator,
        }
    }
}

/// The kind of a [`NodeMessage::Health`] of a held-back member; 1 otherwise.
const HELD_BACK: u8 = 10;

/// How a member is, told to all it is connected to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Health {
    /// `wsrep_local_state`.
    pub state: LocalState,
    /// The last seqno finished by its server.
    pub finished: Seqno,
    /// The lowest seqno that certification must look back to for its write-sets under way.
    pub seen: Seqno,
    /// The last seqno delivered to its server.
    pub delivered: Seqno,
    /// It wants to leave in good order.
    pub leaving: bool,
    /// It has the state from which it can go on by the log alone (so that it may vote).
    pub has_state: bool,
    /// Entries are kept from its server, which refuses writes. Said only to members that speak protocol version 5.
    pub held_back: bool,
}

/// Everything beside the order protocol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NodeMessage {
    /// How I am.
    Health(Health),
    /// Where else there are members.
    Peers(Vec<String>),
    /// A joiner to the leader: find me a donor.
    /// `position` ≥ 0: the joiner has the state of that seqno and wants no more than to be told so.
    StateRequest { donor: String, at_least: Seqno, position: Seqno, request: Bytes },
    /// The leader to the donor.
    Donate { joiner: MemberId, at_least: Seqno, position: Seqno, request: Bytes },
    /// The donor (or the leader that finds none) to the joiner. `code` 0: sent up to `gtid`.
    Donated { code: i32, gtid: Gtid, text: String },
    /// To the leader: my result of applying this seqno.
    Opinion { seqno: Seqno, opinion: Opinion, text: String },
    /// The leader asks for that.
    AskOpinion { seqno: Seqno },
    /// To the leader: this should be the policy. To those who do not know the next one.
    Policy(Policy),
    /// To the leader: this should be changed of it. The number is new with each request of a member.
    PolicyRequest { number: u64, request: PolicyRequest },
    /// To the leader: clients that write are turned away here, for under the policy its server alone takes writes.
    WritesRejected,
}

/// An operator's command, forwarded from the member that received it to the one that executes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OperatorMessage {
    /// To the leader: do this. The command is JSON, as it was given.
    Ask { id: u64, command: Bytes },
    /// Back again. `again`: not done, and another leader may be asked.
    Answer { id: u64, ok: bool, again: bool, text: String },
    /// From the leader: you are no member any more; leave, and do not come back in this life.
    Leave { text: String },
    /// Begin no further commit.
    Hold { id: u64 },
    /// The last that has begun; −1: it cannot be now.
    Held { id: u64, seqno: Seqno },
    /// Go on up to here, and stand.
    HoldAt { id: u64, seqno: Seqno },
    /// The server has finished that.
    Standing { id: u64 },
    /// Go on.
    Release { id: u64 },
    /// It had stood until then.
    Released { id: u64, held: bool },
}

impl OperatorMessage {
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut w = Writer::new();
        match self {
            OperatorMessage::Ask { id, command } => {
                w.u8(1);
                w.u64(*id);
                w.bytes(command);
            }
            OperatorMessage::Answer { id, ok, again, text } => {
                w.u8(2);
                w.u64(*id);
                w.bool(*ok);
                w.bool(*again);
                w.str(text);
            }
            OperatorMessage::Leave { text } => {
                w.u8(3);
                w.str(text);
            }
            OperatorMessage::Hold { id } => {
                w.u8(4);
                w.u64(*id);
            }
            OperatorMessage::Held { id, seqno } => {
                w.u8(5);
                w.u64(*id);
                w.i64(*seqno);
            }
            OperatorMessage::HoldAt { id, seqno } => {
                w.u8(6);
                w.u64(*id);
                w.i64(*seqno);
            }
            OperatorMessage::Standing { id } => {
                w.u8(7);
                w.u64(*id);
            }
            OperatorMessage::Release { id } => {
                w.u8(8);
                w.u64(*id);
            }
            OperatorMessage::Released { id, held } => {
                w.u8(9);
                w.u64(*id);
                w.bool(*held);
            }
        }
        w.into_bytes()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Result<OperatorMessage, DecodeError> {
        let mut r = Reader::new(bytes);
        let message = match r.u8()? {
            1 => OperatorMessage::Ask { id: r.u64()?, command: r.bytes()? },
            2 => OperatorMessage::Answer { id: r.u64()?, ok: r.bool()?, again: r.bool()?, text: r.str()? },
            3 => OperatorMessage::Leave { text: r.str()? },
            4 => OperatorMessage::Hold { id: r.u64()? },
            5 => OperatorMessage::Held { id: r.u64()?, seqno: r.i64()? },
            6 => OperatorMessage::HoldAt { id: r.u64()?, seqno: r.i64()? },
            7 => OperatorMessage::Standing { id: r.u64()? },
            8 => OperatorMessage::Release { id: r.u64()? },
            9 => OperatorMessage::Released { id: r.u64()?, held: r.bool()? },
            _ => return Err(DecodeError::Invalid("kind of an operator's message")),
        };
        r.end()?;
        Ok(message)
    }
}

fn state_from(raw: u8) -> Result<LocalState, DecodeError> {
    Ok(match raw {
        0 => LocalState::Initialized,
        1 => LocalState::Joining,
        2 => LocalState::Donor,
        3 => LocalState::Joined,
        4 => LocalState::Synced,
        5 => LocalState::Error,
        _ => return Err(DecodeError::Invalid("member state")),
    })
}

impl NodeMessage {
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut w = Writer::new();
        match self {
            NodeMessage::Health(Health {
                state,
                finished,
                seen,
                delivered,
                leaving,
                has_state,
                held_back,
            }) => {
                w.u8(if *held_back { HELD_BACK } else { 1 });
                w.u8(*state as u8);
                w.i64(*finished);
                w.i64(*seen);
                w.i64(*delivered);
                w.bool(*leaving);
                w.bool(*has_state);
            }
            NodeMessage::Peers(addresses) => {
                w.u8(2);
                w.u32(addresses.len() as u32);
                for address in addresses {
                    w.str(address);
                }
            }
            NodeMessage::StateRequest { donor, at_least, position, request } => {
                w.u8(3);
                w.str(donor);
                w.i64(*at_least);
                w.i64(*position);
                w.bytes(request);
            }
            NodeMessage::Donate { joiner, at_least, position, request } => {
                w.u8(4);
                w.raw(&joiner.0);
                w.i64(*at_least);
                w.i64(*position);
                w.bytes(request);
            }
            NodeMessage::Donated { code, gtid, text } => {
                w.u8(5);
                w.u32(*code as u32);
                w.raw(&gtid.uuid.0);
                w.i64(gtid.seqno);
                w.str(text);
            }
            NodeMessage::Opinion { seqno, opinion, text } => {
                w.u8(6);
                w.i64(*seqno);
                w.u64(*opinion);
                w.str(text);
            }
            NodeMessage::AskOpinion { seqno } => {
                w.u8(7);
                w.i64(*seqno);
            }
            NodeMessage::Policy(policy) => {
                w.u8(8);
                policy.encode(&mut w);
            }
            NodeMessage::PolicyRequest { number, request } => {
                w.u8(9);
                w.u64(*number);
                request.encode(&mut w);
            }
            NodeMessage::WritesRejected => w.u8(11),
        }
        w.into_bytes()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Result<NodeMessage, DecodeError> {
        let mut r = Reader::new(bytes);
        let message = match r.u8()? {
            kind @ (1 | HELD_BACK) => NodeMessage::Health(Health {
                state: state_from(r.u8()?)?,
                finished: r.i64()?,
                seen: r.i64()?,
                delivered: r.i64()?,
                leaving: r.bool()?,
                has_state: r.bool()?,
                held_back: kind == HELD_BACK,
            }),
            2 => {
                let n = r.count(4)?;
                NodeMessage::Peers((0..n).map(|_| r.str()).collect::<Result<_, _>>()?)
            }
            3 => NodeMessage::StateRequest {
                donor: r.str()?,
                at_least: r.i64()?,
                position: r.i64()?,
                request: r.bytes()?,
            },
            4 => NodeMessage::Donate {
                joiner: Uuid(r.array()?),
                at_least: r.i64()?,
                position: r.i64()?,
                request: r.bytes()?,
            },
            5 => NodeMessage::Donated {
                code: r.u32()? as i32,
                gtid: Gtid { uuid: Uuid(r.array()?), seqno: r.i64()? },
                text: r.str()?,
            },
            6 => NodeMessage::Opinion { seqno: r.i64()?, opinion: r.u64()?, text: r.str()? },
            7 => NodeMessage::AskOpinion { seqno: r.i64()? },
            8 => NodeMessage::Policy(Policy::decode(&mut r)?),
            9 => NodeMessage::PolicyRequest { number: r.u64()?, request: PolicyRequest::decode(&mut r)? },
            11 => NodeMessage::WritesRejected,
            _ => return Err(DecodeError::Invalid("kind of a node message")),
        };
        r.end()?;
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_truncated_ones_are_refused() {
        let id = Uuid([7; 16]);
        let messages = [
            NodeMessage::Health(Health {
                state: LocalState::Donor,
                finished: 5,
                seen: 4,
                delivered: 9,
                leaving: true,
                has_state: false,
                held_back: true,
            }),
            NodeMessage::Peers(vec!["a:1".into(), "[::1]:2".into()]),
            NodeMessage::StateRequest {
                donor: "n1,".into(),
                at_least: 3,
                position: -1,
                request: Bytes::from_static(b"rsync"),
            },
            NodeMessage::Donate {
                joiner: id,
                at_least: 3,
                position: 7,
                request: Bytes::from_static(b"rsync"),
            },
            NodeMessage::Donated { code: -110, gtid: Gtid { uuid: id, seqno: 4 }, text: "no donor".into() },
            NodeMessage::Opinion { seqno: 7, opinion: 9, text: "no such table".into() },
            NodeMessage::AskOpinion { seqno: 7 },
            NodeMessage::Policy(Policy { acks: 2, ..Policy::default() }),
            NodeMessage::PolicyRequest { number: 7, request: PolicyRequest::of(|policy| policy.acks = 2) },
            NodeMessage::WritesRejected,
        ];
        for message in messages {
            let bytes = message.to_bytes();
            assert_eq!(NodeMessage::from_bytes(bytes.clone()), Ok(message));
            for cut in 0..bytes.len() {
                assert!(NodeMessage::from_bytes(bytes.slice(..cut)).is_err());
            }
        }
        let messages = [
            OperatorMessage::Ask { id: 7, command: Bytes::from_static(b"{}") },
            OperatorMessage::Answer { id: 7, ok: true, again: false, text: "done".into() },
            OperatorMessage::Leave { text: "removed".into() },
            OperatorMessage::Hold { id: 1 },
            OperatorMessage::Held { id: 1, seqno: -1 },
            OperatorMessage::HoldAt { id: 1, seqno: 5 },
            OperatorMessage::Standing { id: 1 },
            OperatorMessage::Release { id: 1 },
            OperatorMessage::Released { id: 1, held: true },
        ];
        for message in messages {
            let bytes = message.to_bytes();
            assert_eq!(OperatorMessage::from_bytes(bytes.clone()), Ok(message));
            for cut in 0..bytes.len() {
                assert!(OperatorMessage::from_bytes(bytes.slice(..cut)).is_err());
            }
        }
    }
}
