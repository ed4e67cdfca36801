//! Node messages beside the Raft protocol: introductions, health, and state transfers.

use crate::api::{FrontEnd, LocalState, NodeConfig};
use crate::policy_request::PolicyRequest;
use bytes::Bytes;
use lockstep_core::branch::PARENTS_KEPT;
use lockstep_core::codec::{DecodeError, Reader, Writer};
use lockstep_core::members::{MemberInfo, Role, ViewMember};
use lockstep_core::policy::Policy;
use lockstep_core::raft::Durable;
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

/// A member's introduction, sent in the handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Its identity in the log.
    pub id: MemberId,
    /// How often the member has opened its log.
    pub incarnation: u64,
    /// The member's identity in the views of servers; new at each connect.
    pub view_uuid: ViewUuid,
    /// The history of the member's log; nil without a log.
    pub history: Uuid,
    /// The log id ([`lockstep_core::snapshot::StateSnapshot::log_id`]); nil without a log.
    pub log_id: Uuid,
    /// History and log id of the branches before the log's own ([`lockstep_core::snapshot::StateSnapshot::parents`]).
    pub parents: Vec<(Uuid, Uuid)>,
    /// For each of `parents`: index and term of the last entry that the next branch shares with it. Empty from older
    /// members.
    pub forks: Vec<(Index, Term)>,
    /// The last index of the log.
    pub last_index: Index,
    /// `wsrep_node_name`.
    pub name: String,
    /// The address for peers.
    pub address: String,
    /// The address for clients.
    pub incoming: String,
    /// The zone (`zone`).
    pub zone: u8,
    /// Whether the member may become a voter.
    pub wants_vote: bool,
    /// Whether the member is an arbitrator, without a database.
    pub arbitrator: bool,
    /// Whether the member may be chosen to copy its state.
    pub donates: bool,
    /// Whether the member keeps a copy of a device: its entries are nothing to a database, and a database's nothing to it.
    pub device: bool,
}

/// The introduction's flag of a member that never copies its state.
const DOES_NOT_DONATE: u8 = 1;
/// The introduction's flag of a member with a copy of a device. Older builds ignore it.
const DEVICE: u8 = 2;

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
            arbitrator: !config.front_end.keeps_data(),
            donates: config.donates,
            device: config.front_end == FrontEnd::Device,
        }
    }

    /// Encodes the introduction for the handshake.
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
            donates,
            device,
        } = self;
        debug_assert!(
            forks.is_empty() || forks.len() == parents.len(),
            "the reader takes as many forks as parents"
        );
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
        let flags = if *donates { 0 } else { DOES_NOT_DONATE } | if *device { DEVICE } else { 0 };
        if !parents.is_empty() || flags != 0 {
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
        if flags != 0 {
            w.u8(flags);
        }
        w.into_bytes()
    }

    /// Decodes an introduction. Later versions may add fields at the end.
    ///
    /// # Errors
    /// [`DecodeError`] if the bytes are no introduction, or a name is longer than 255 bytes.
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
            donates: true,
            device: false,
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
            if count <= PARENTS_KEPT && r.remaining() > 0 {
                let flags = r.u8()?;
                hello.donates = flags & DOES_NOT_DONATE == 0;
                hello.device = flags & DEVICE != 0;
            }
        }
        let longest = hello.name.len().max(hello.address.len()).max(hello.incoming.len());
        // No control characters: terminals and error logs show these texts.
        let control =
            [&hello.name, &hello.address, &hello.incoming].iter().any(|t| t.contains(char::is_control));
        if control || longest > 255 || hello.name.is_empty() || hello.id.is_nil() || hello.view_uuid.is_nil()
        {
            return Err(DecodeError::Invalid("name, address or identity"));
        }
        Ok(hello)
    }

    /// Index and term of the last entry that the member's log shares with this earlier branch; `None` if unknown.
    pub(crate) fn fork(&self, history: Uuid, log_id: Uuid) -> Option<(Index, Term)> {
        let at = self.parents.iter().position(|parent| *parent == (history, log_id))?;
        self.forks.get(at).copied()
    }

    /// Whether both members have logs, and the logs differ.
    pub(crate) fn is_of_another_log(&self, other: &Hello) -> bool {
        let differ = |a: Uuid, b: Uuid| !a.is_nil() && !b.is_nil() && a != b;
        differ(self.history, other.history) || differ(self.log_id, other.log_id)
    }

    /// The membership's entry of this member, in this role.
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

    /// The member as a view lists it.
    pub(crate) fn as_view_member(&self) -> ViewMember {
        ViewMember {
            id: self.id,
            view_uuid: self.view_uuid,
            name: self.name.clone(),
            incoming: self.incoming.clone(),
        }
    }
}

/// The kind of a [`NodeMessage::Health`] of a held-back member; 1 otherwise.
const HELD_BACK: u8 = 10;

/// A member's state, which it sends to all connected members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Health {
    /// `wsrep_local_state`.
    pub state: LocalState,
    /// The last seqno finished by its server.
    pub finished: Seqno,
    /// The lowest *last seen* of the member's write-sets in progress: certification must keep later keys.
    pub lowest_seen: Seqno,
    /// The last seqno delivered to its server.
    pub delivered: Seqno,
    /// The member is about to leave.
    pub leaving: bool,
    /// The member's database is complete, so the log alone brings it up to date. Only such a member may vote.
    pub has_state: bool,
    /// An apply hold is in force, and the server refuses writes. Sent only to members with protocol version 5.
    pub held_back: bool,
}

/// A member's durable state, as another member knew it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Sighting {
    /// The member's view UUID at that time.
    pub(crate) view_uuid: ViewUuid,
    /// The member's incarnation at that time.
    pub(crate) incarnation: u64,
    /// The part of its durable state that it had shown.
    pub(crate) durable: Durable,
}

impl Sighting {
    pub(crate) fn encode(&self, w: &mut Writer) {
        w.raw(&self.view_uuid.0);
        w.u64(self.incarnation);
        put_durable(w, &self.durable);
    }

    pub(crate) fn decode(r: &mut Reader) -> Result<Sighting, DecodeError> {
        Ok(Sighting { view_uuid: Uuid(r.array()?), incarnation: r.u64()?, durable: durable_from(r)? })
    }
}

/// Evidence of a member's durable state before it connected: see `member/membership/reverted_log.rs`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Evidence {
    /// The recipient's earlier state.
    pub(crate) sighting: Sighting,
    /// The reporter's own term and log.
    pub(crate) reporter: Durable,
    /// The reporter and the recipient are the only voters.
    pub(crate) only_two_vote: bool,
    /// The reporter leads or follows a leader, and a majority of the voters works without the recipient.
    pub(crate) goes_on: bool,
}

fn put_durable(w: &mut Writer, durable: &Durable) {
    let Durable { term, last_term, last_index } = durable;
    w.u64(*term);
    w.u64(*last_term);
    w.u64(*last_index);
}

fn durable_from(r: &mut Reader) -> Result<Durable, DecodeError> {
    Ok(Durable { term: r.u64()?, last_term: r.u64()?, last_index: r.u64()? })
}

/// The messages between nodes beside Raft's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum NodeMessage {
    /// The sender's state.
    Health(Health),
    /// Addresses of other members.
    Peers(Vec<String>),
    /// Joiner to leader: requests a donor. With `position` ≥ 0 the joiner has the state of that seqno, and requests only
    /// a confirmation.
    StateRequest { donor: String, at_least: Seqno, position: Seqno, request: Bytes },
    /// Leader to donor: send the joiner your state.
    Donate { joiner: MemberId, at_least: Seqno, position: Seqno, request: Bytes },
    /// Donor to joiner, or the leader if it finds no donor. `code` 0: the state up to `gtid` has been sent.
    Donated { code: i32, gtid: Gtid, text: String },
    /// To the leader: the sender's result of applying this seqno.
    Opinion { seqno: Seqno, opinion: Opinion, text: String },
    /// From the leader: requests the [`NodeMessage::Opinion`] on this seqno.
    AskOpinion { seqno: Seqno },
    /// To the leader: requests this policy. For leaders that do not know [`NodeMessage::PolicyRequest`].
    Policy(Policy),
    /// To the leader: requests a change of the policy. Each request of a member has its own number.
    PolicyRequest { number: u64, request: PolicyRequest },
    /// To the leader: this member rejects writes of clients, because under the policy only the leader accepts them.
    WritesRejected,
    /// From the leader: requests the [`NodeMessage::Verdicts`] on the seqnos above `after`, up to `to`.
    AskVerdicts { after: Seqno, to: Seqno },
    /// To the leader: the hash of the sender's own verdicts; `None` if it does not know all of them.
    Verdicts { after: Seqno, to: Seqno, hash: Option<u64> },
    /// To a member that connects: evidence of its durable state.
    Evidence(Evidence),
}

/// An operator's command, forwarded from the member that received it to the one that executes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OperatorMessage {
    /// To the leader: execute this command, in JSON.
    Ask { id: u64, command: Bytes },
    /// The answer. `again`: the command was not executed, and another leader may be asked.
    Answer { id: u64, ok: bool, again: bool, text: String },
    /// From the leader to a connected member whose removal is committed, repeatedly: the receiver leaves, and stays out
    /// until its process restarts.
    Leave { text: String },
    /// Barrier: begin no further commit.
    CloseBarrier { id: u64 },
    /// Barrier: the last seqno whose commit has begun; −1 if the member cannot take part now.
    BarrierClosed { id: u64, seqno: Seqno },
    /// Barrier: commit up to this seqno, and stop.
    SetBarrier { id: u64, seqno: Seqno },
    /// Barrier: the server has finished that seqno.
    BarrierReached { id: u64 },
    /// Barrier: continue.
    OpenBarrier { id: u64 },
    /// Barrier: opened. `held`: it had held all commits until then.
    BarrierOpened { id: u64, held: bool },
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
            OperatorMessage::CloseBarrier { id } => {
                w.u8(4);
                w.u64(*id);
            }
            OperatorMessage::BarrierClosed { id, seqno } => {
                w.u8(5);
                w.u64(*id);
                w.i64(*seqno);
            }
            OperatorMessage::SetBarrier { id, seqno } => {
                w.u8(6);
                w.u64(*id);
                w.i64(*seqno);
            }
            OperatorMessage::BarrierReached { id } => {
                w.u8(7);
                w.u64(*id);
            }
            OperatorMessage::OpenBarrier { id } => {
                w.u8(8);
                w.u64(*id);
            }
            OperatorMessage::BarrierOpened { id, held } => {
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
            4 => OperatorMessage::CloseBarrier { id: r.u64()? },
            5 => OperatorMessage::BarrierClosed { id: r.u64()?, seqno: r.i64()? },
            6 => OperatorMessage::SetBarrier { id: r.u64()?, seqno: r.i64()? },
            7 => OperatorMessage::BarrierReached { id: r.u64()? },
            8 => OperatorMessage::OpenBarrier { id: r.u64()? },
            9 => OperatorMessage::BarrierOpened { id: r.u64()?, held: r.bool()? },
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
                lowest_seen,
                delivered,
                leaving,
                has_state,
                held_back,
            }) => {
                w.u8(if *held_back { HELD_BACK } else { 1 });
                w.u8(*state as u8);
                w.i64(*finished);
                w.i64(*lowest_seen);
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
            NodeMessage::AskVerdicts { after, to } => {
                w.u8(12);
                w.i64(*after);
                w.i64(*to);
            }
            NodeMessage::Verdicts { after, to, hash } => {
                w.u8(13);
                w.i64(*after);
                w.i64(*to);
                // A hash is never 0.
                w.u64(hash.unwrap_or(0));
            }
            NodeMessage::Evidence(Evidence { sighting, reporter, only_two_vote, goes_on }) => {
                w.u8(14);
                sighting.encode(&mut w);
                put_durable(&mut w, reporter);
                w.bool(*only_two_vote);
                w.bool(*goes_on);
            }
        }
        w.into_bytes()
    }

    pub(crate) fn from_bytes(bytes: Bytes) -> Result<NodeMessage, DecodeError> {
        let mut r = Reader::new(bytes);
        let message = match r.u8()? {
            kind @ (1 | HELD_BACK) => NodeMessage::Health(Health {
                state: state_from(r.u8()?)?,
                finished: r.i64()?,
                lowest_seen: r.i64()?,
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
            12 => NodeMessage::AskVerdicts { after: r.i64()?, to: r.i64()? },
            13 => NodeMessage::Verdicts {
                after: r.i64()?,
                to: r.i64()?,
                hash: Some(r.u64()?).filter(|hash| *hash != 0),
            },
            14 => NodeMessage::Evidence(Evidence {
                sighting: Sighting::decode(&mut r)?,
                reporter: durable_from(&mut r)?,
                only_two_vote: r.bool()?,
                goes_on: r.bool()?,
            }),
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
    fn introduction_says_whether_member_donates() {
        let id = |byte| Uuid([byte; 16]);
        let plain = Hello {
            id: id(1),
            incarnation: 1,
            view_uuid: id(2),
            history: id(3),
            log_id: id(4),
            parents: Vec::new(),
            forks: Vec::new(),
            last_index: 9,
            name: "n1".into(),
            address: "10.0.0.1:4567".into(),
            incoming: String::new(),
            zone: 0,
            wants_vote: true,
            arbitrator: false,
            donates: true,
            device: false,
        };
        let branched = Hello { parents: vec![(id(5), id(6))], forks: vec![(7, 8)], ..plain.clone() };
        for hello in [plain, branched] {
            assert_eq!(Hello::from_bytes(hello.to_bytes()).as_ref(), Ok(&hello));
            let stateless = Hello { donates: false, ..hello.clone() };
            assert_eq!(Hello::from_bytes(stateless.to_bytes()).as_ref(), Ok(&stateless));
            let device = Hello { device: true, ..hello.clone() };
            assert_eq!(Hello::from_bytes(device.to_bytes()).as_ref(), Ok(&device));
            assert!(device.to_bytes().starts_with(&hello.to_bytes()));
            // All that older builds read comes first.
            assert!(stateless.to_bytes().starts_with(&hello.to_bytes()));
        }
    }

    #[test]
    fn messages_round_trip_and_truncated_ones_are_refused() {
        let id = Uuid([7; 16]);
        let messages = [
            NodeMessage::Health(Health {
                state: LocalState::Donor,
                finished: 5,
                lowest_seen: 4,
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
            NodeMessage::AskVerdicts { after: 4, to: 9 },
            NodeMessage::Verdicts { after: 4, to: 9, hash: Some(7) },
            NodeMessage::Verdicts { after: 4, to: 9, hash: None },
            NodeMessage::Evidence(Evidence {
                sighting: Sighting {
                    view_uuid: id,
                    incarnation: 3 << 20,
                    durable: Durable { term: 1, last_term: 2, last_index: 3 },
                },
                reporter: Durable { term: 4, last_term: 5, last_index: 6 },
                only_two_vote: true,
                goes_on: false,
            }),
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
            OperatorMessage::CloseBarrier { id: 1 },
            OperatorMessage::BarrierClosed { id: 1, seqno: -1 },
            OperatorMessage::SetBarrier { id: 1, seqno: 5 },
            OperatorMessage::BarrierReached { id: 1 },
            OperatorMessage::OpenBarrier { id: 1 },
            OperatorMessage::BarrierOpened { id: 1, held: true },
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
