//! Commit policies: the acknowledgements that a commit waits for, and the members that may write.

use crate::codec::{DecodeError, Reader, Writer};
use crate::members::View;
use crate::types::*;
use bytes::Bytes;

/// `commit.policy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum PolicyKind {
    /// A commit waits for the leader's own disk.
    Async = 0,
    /// A commit waits for the leader and [`Policy::acks`] other members.
    Semisync = 1,
    /// A commit waits for a majority of the voters in force.
    #[default]
    Quorum = 2,
    /// A commit waits for every member of the view in force.
    All = 3,
}

impl PolicyKind {
    const ALL: [PolicyKind; 4] =
        [PolicyKind::Async, PolicyKind::Semisync, PolicyKind::Quorum, PolicyKind::All];

    /// The name in options and status.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Async => "async",
            PolicyKind::Semisync => "semisync",
            PolicyKind::Quorum => "quorum",
            PolicyKind::All => "all",
        }
    }

    /// The policy of this name.
    pub fn of_name(name: &str) -> Option<PolicyKind> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The contents of an [`EntryKind::Policy`] entry: the settings that are the same on every member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The members that a commit waits for.
    pub kind: PolicyKind,
    /// `commit.acks`: the number of other members, under semisync.
    pub acks: u8,
    /// `commit.zone_acks`: the number of other zones, in addition. Not under async.
    pub zone_acks: u8,
    /// `commit.ack_on = receive`: under semisync, entries in a member's memory count.
    pub on_receive: bool,
    /// `commit.timeout`, µs: how long semisync waits before it falls back to async; 0: for ever.
    pub timeout: Micros,
    /// `async.max_at_risk`: the most seqnos that may be answered beyond the commit index.
    pub max_at_risk: u64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            kind: PolicyKind::Quorum,
            acks: 1,
            zone_acks: 0,
            on_receive: false,
            timeout: 0,
            max_at_risk: 10_000,
        }
    }
}

/// A bit of the first byte: the settings follow. Without it they are the defaults. Quorum is written without it, as in
/// versions that knew no other policy.
const WITH_SETTINGS: u8 = 0x80;
/// The largest `max_at_risk`, because a new leader leaves out this many seqnos.
const MOST_AT_RISK: u64 = 1 << 32;

impl Policy {
    /// A policy of this kind with default settings.
    pub fn of(kind: PolicyKind) -> Policy {
        Policy { kind, ..Policy::default() }
    }

    /// Its name in options and status.
    pub fn name(self) -> &'static str {
        self.kind.name()
    }

    /// The value of `commit.ack_on`.
    pub fn ack_on(self) -> &'static str {
        if self.on_receive { "receive" } else { "persist" }
    }

    /// Whether the client may hear "ok" before the entry is committed: only the leader may write then.
    pub fn is_weak(self) -> bool {
        matches!(self.kind, PolicyKind::Async | PolicyKind::Semisync)
    }

    /// Whether a commit waits for acknowledgements of semisync: with none asked for, it is async by another name.
    pub fn awaits_acks(self) -> bool {
        self.kind == PolicyKind::Semisync && (self.acks > 0 || self.zone_acks > 0)
    }

    /// Whether being committed is all that it asks for.
    pub fn is_plain(self) -> bool {
        self.kind == PolicyKind::Quorum && self.zone_acks == 0
    }

    /// Writes it.
    pub fn encode(self, w: &mut Writer) {
        let Policy { kind, acks, zone_acks, on_receive, timeout, max_at_risk } = self;
        if self == Policy::of(kind) {
            return w.u8(kind as u8);
        }
        w.u8(kind as u8 | WITH_SETTINGS);
        w.u8(acks);
        w.u8(zone_acks);
        w.bool(on_receive);
        w.u64(timeout);
        w.u64(max_at_risk);
    }

    /// As an entry's payload.
    pub fn to_payload(self) -> Bytes {
        let mut w = Writer::with_capacity(20);
        self.encode(&mut w);
        w.into_bytes()
    }

    /// Reads it.
    ///
    /// # Errors
    /// [`DecodeError::Invalid`] for a policy that this version does not know.
    pub fn decode(r: &mut Reader) -> Result<Policy, DecodeError> {
        let first = r.u8()?;
        let mut kinds = PolicyKind::ALL.into_iter();
        let kind =
            kinds.find(|kind| *kind as u8 == first & !WITH_SETTINGS).ok_or(DecodeError::Invalid("policy"))?;
        if first & WITH_SETTINGS == 0 {
            return Ok(Policy::of(kind));
        }
        let policy = Policy {
            kind,
            acks: r.u8()?,
            zone_acks: r.u8()?,
            on_receive: r.bool()?,
            timeout: r.u64()?,
            max_at_risk: r.u64()?,
        };
        if policy.max_at_risk > MOST_AT_RISK {
            return Err(DecodeError::Invalid("async.max_at_risk"));
        }
        if policy == Policy::of(kind) {
            // One policy, one way to write it.
            return Err(DecodeError::Invalid("policy with the default settings"));
        }
        Ok(policy)
    }
}

/// The leader of the term that begins with this entry, if it is the first of its term: a no-op names its leader, a view
/// lists it first. `None` if unknown (older versions did not record it).
fn leader_of_term(entry: &Entry) -> Option<MemberId> {
    match entry.kind {
        EntryKind::Noop => entry.payload()[..].try_into().ok().map(Uuid),
        EntryKind::View => {
            View::decode(&mut Reader::new(entry.payload())).ok()?.members.first().map(|m| m.id)
        }
        _ => None,
    }
}

/// The members whose write-sets may pass: under a weak policy only the leader's, on every member.
///
/// It is computed from the log alone, so all members judge alike.
#[derive(Clone, Debug)]
pub struct Writers {
    policy: Policy,
    term: Term,
    leader: MemberId,
}

impl Writers {
    /// After an entry of `term` by the leader `leader` (nil if unknown), while `policy` is in force.
    pub fn new(policy: Policy, term: Term, leader: MemberId) -> Writers {
        Writers { policy, term, leader }
    }

    /// The policy in force for the next entry.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Goes on to this entry: to be called for every one, in order, before [`Writers::may_write`].
    pub fn follow(&mut self, entry: &Entry) {
        if entry.term != self.term {
            self.term = entry.term;
            self.leader = leader_of_term(entry).unwrap_or(Uuid::NIL);
        }
        if entry.kind == EntryKind::Policy
            && let Ok(policy) = Policy::decode(&mut Reader::new(entry.payload()))
        {
            self.policy = policy;
        }
    }

    /// Whether a write-set or statement of this origin may pass.
    pub fn may_write(&self, origin: &MemberId) -> bool {
        !self.policy.is_weak() || *origin == self.leader
    }

    /// The leader of the last entry's term; nil if unknown.
    pub fn leader(&self) -> MemberId {
        self.leader
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: Bytes) -> Result<Policy, DecodeError> {
        let mut r = Reader::new(bytes);
        let policy = Policy::decode(&mut r)?;
        r.end()?;
        Ok(policy)
    }

    #[test]
    fn policy_round_trips_and_quorum_keeps_its_byte() {
        assert_eq!(Policy::default().to_payload()[..], [2]);
        for kind in PolicyKind::ALL {
            assert_eq!(PolicyKind::of_name(kind.name()), Some(kind));
            let policy =
                Policy { kind, acks: 2, zone_acks: 1, on_receive: true, timeout: 7_000_000, max_at_risk: 5 };
            assert_eq!(read(policy.to_payload()), Ok(policy));
            assert_eq!(read(Policy::of(kind).to_payload()), Ok(Policy::of(kind)));
        }
        assert!(read(Bytes::from_static(&[4])).is_err());
        assert!(read(Bytes::from_static(&[0x81, 1])).is_err());
        let long = [&[0x82, 1, 0, 0][..], &[0; 8], &10_000u64.to_le_bytes()].concat();
        assert!(read(long.clone().into()).is_err(), "the defaults, written the long way");
        let other = [&[0x82, 2][..], &long[2..]].concat();
        assert_eq!(read(other.into()), Ok(Policy { acks: 2, ..Policy::default() }));
        let many = Policy { max_at_risk: u64::MAX, ..Policy::default() };
        assert!(read(many.to_payload()).is_err());
    }

    #[test]
    fn only_leader_of_term_may_write_under_weak_policy() {
        let (a, b) = (Uuid([1; 16]), Uuid([2; 16]));
        let entry = |term, kind, payload: Bytes| {
            let proposal = ProposalId::default();
            Entry::new(EntryHeader { index: 1, term, kind, seqno: 0, proposal, time: 0 }, &payload)
        };
        let noop = |term, id: MemberId| entry(term, EntryKind::Noop, Bytes::copy_from_slice(&id.0));
        let mut writers = Writers::new(Policy::default(), 0, Uuid::NIL);
        writers.follow(&noop(1, a));
        assert!(writers.may_write(&a) && writers.may_write(&b), "anybody under quorum");
        writers.follow(&entry(1, EntryKind::Policy, Policy::of(PolicyKind::Async).to_payload()));
        assert!(writers.may_write(&a) && !writers.may_write(&b));
        writers.follow(&noop(2, b));
        assert!(!writers.may_write(&a) && writers.may_write(&b));
        let mut w = Writer::new();
        let member =
            |id| crate::members::ViewMember { id, view_uuid: id, name: "n".into(), incoming: String::new() };
        View { number: 3, members: vec![member(a), member(b)] }.encode(&mut w);
        writers.follow(&entry(3, EntryKind::View, w.into_bytes()));
        assert!(writers.may_write(&a) && !writers.may_write(&b), "a view lists its leader first");
        writers.follow(&entry(4, EntryKind::Noop, Bytes::new()));
        assert!(!writers.may_write(&a) && !writers.may_write(&b), "nobody knows: nobody writes");
        writers.follow(&entry(4, EntryKind::Policy, Policy::default().to_payload()));
        assert!(writers.may_write(&a) && writers.may_write(&b));
    }
}
