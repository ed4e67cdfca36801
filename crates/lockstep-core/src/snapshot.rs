//! Snapshot of the replicated state: the result of applying all entries of the log in order.
//!
//! Every segment of the log begins with such a state. So a log without its beginning (trimmed, or received from the
//! middle on) still knows its members, sessions and seqno.

use crate::branch::{Branch, PARENTS_KEPT, Parent};
use crate::codec::{DecodeError, Reader, Writer};
use crate::members::{Membership, View};
use crate::policy::{Policy, Writers};
use crate::types::*;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How far certification may forget; the payload of an [`EntryKind::Trim`] entry.
///
/// A write-set whose last seen seqno is below `trim` fails certification on every member. The entry holds verdicts for
/// members that start in the middle of the log: they cannot compute verdicts that depend on earlier entries. With them,
/// their certification index is exact (see `certify`).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrimMark {
    /// Write-sets with a lower *last seen* fail.
    pub trim: Seqno,
    /// This mark and those before it hold the verdicts on all seqnos up to this one.
    pub verdicts_to: Seqno,
    /// The seqnos above the previous mark's `verdicts_to`, up to this one's, that failed; ascending.
    pub failed: Vec<Seqno>,
}

impl TrimMark {
    /// As an entry's payload.
    pub fn to_payload(&self) -> Bytes {
        let mut w = Writer::with_capacity(20 + self.failed.len() * 8);
        w.i64(self.trim);
        w.i64(self.verdicts_to);
        w.u32(self.failed.len() as u32);
        for seqno in &self.failed {
            w.i64(*seqno);
        }
        w.into_bytes()
    }

    /// Reads an entry's payload.
    ///
    /// # Errors
    /// [`DecodeError`] where it is not one.
    pub fn from_payload(payload: Bytes) -> Result<TrimMark, DecodeError> {
        let mut r = Reader::new(payload);
        let trim = r.i64()?;
        let verdicts_to = r.i64()?;
        let n = r.count(8)?;
        let mut failed = Vec::with_capacity(n);
        for _ in 0..n {
            failed.push(r.i64()?);
        }
        r.end()?;
        Ok(TrimMark { trim, verdicts_to, failed })
    }
}

/// Of the blob: 2 since there is [`StateSnapshot::log_id`], 3 since there is [`StateSnapshot::leader`], 4 where there are
/// [`StateSnapshot::parents`].
const VERSION: u16 = 4;

/// Sessions beyond this many are forgotten where their member is no longer one.
const SESSIONS_KEPT: usize = 1024;

/// The last proposal of a member that the log holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// The incarnation of its process to which the number belongs.
    pub incarnation: u64,
    /// The highest number; all below it are in the log too.
    pub number: u64,
}

/// The replicated state after an entry of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StateSnapshot {
    /// The last entry's index; 0 before the first.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// Its seqno: that of the last entry up to it that took one.
    pub seqno: Seqno,
    /// Which history this is.
    pub history: Uuid,
    /// The log id, drawn when the log was founded. A database can come to a log twice under one history: back from
    /// Galera's library, or out of a backup. The entries of two such logs at one index are unrelated. Nil in a log that is
    /// older than this field.
    pub log_id: Uuid,
    /// The latest membership entry.
    pub membership: Arc<Membership>,
    /// Where that entry is.
    pub membership_index: Index,
    /// The latest view entry.
    pub view: Arc<View>,
    /// The seqno of that entry.
    pub view_seqno: Seqno,
    /// The latest policy entry.
    pub policy: Policy,
    /// The latest trim mark.
    pub trim: Seqno,
    /// The trim mark before it. Certification must start from a log that begins at or below this one.
    pub trim_previous: Seqno,
    /// Trim marks hold all verdicts up to this seqno.
    pub verdicts_to: Seqno,
    /// The last proposal of each member, to detect duplicates.
    pub sessions: BTreeMap<MemberId, Session>,
    /// The leader of the last entry's term; nil if the log does not say.
    pub leader: MemberId,
    /// The branches that this one came from, the last one last; no more than [`PARENTS_KEPT`].
    pub parents: Vec<Parent>,
}

impl StateSnapshot {
    /// The state before the first entry of a new history that begins at `base` (0, or where another system's ended),
    /// with this first membership in force.
    pub fn genesis(history: Uuid, base: Seqno, membership: Membership) -> StateSnapshot {
        StateSnapshot {
            index: 0,
            term: 0,
            seqno: base,
            history,
            log_id: Uuid::NIL,
            membership: Arc::new(membership),
            membership_index: 0,
            view: Arc::new(View::default()),
            view_seqno: base,
            policy: Policy::default(),
            trim: base,
            trim_previous: base,
            verdicts_to: base,
            sessions: BTreeMap::new(),
            leader: Uuid::NIL,
            parents: Vec::new(),
        }
    }

    /// Whether a proposal is the next of its session (else it is old, or comes after a gap).
    pub fn is_next(&self, proposal: &ProposalId) -> bool {
        match self.sessions.get(&proposal.member) {
            Some(s) if s.incarnation == proposal.incarnation => {
                proposal.number.checked_sub(1) == Some(s.number)
            }
            Some(s) if s.incarnation > proposal.incarnation => false,
            _ => proposal.number == 1,
        }
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// [`DecodeError`] if a control entry cannot be decoded, or the entry is not the next one. The log is damaged or of a
    /// newer version, so later entries cannot be trusted.
    pub fn apply(&mut self, entry: &Entry) -> Result<(), DecodeError> {
        if entry.index.checked_sub(1) != Some(self.index) || entry.term < self.term {
            return Err(DecodeError::Invalid("place in the log"));
        }
        let step = entry.kind.takes_seqno() as i64;
        let skips = entry.kind == EntryKind::View && entry.seqno > self.seqno;
        if Some(entry.seqno) != self.seqno.checked_add(step) && !skips {
            return Err(DecodeError::Invalid("seqno"));
        }
        // Everything that can fail comes before anything that changes: a refused entry leaves no trace.
        match entry.kind {
            EntryKind::Membership => {
                let mut r = Reader::new(entry.payload());
                let membership = Membership::decode(&mut r)?;
                r.end()?;
                // A removed member may return in the same incarnation with the same numbers. So its session is kept
                // until there are too many sessions.
                if self.sessions.len() > SESSIONS_KEPT {
                    self.sessions.retain(|id, _| membership.get(id).is_some());
                }
                self.membership = Arc::new(membership);
                self.membership_index = entry.index;
            }
            EntryKind::View => {
                let mut r = Reader::new(entry.payload());
                let view = View::decode(&mut r)?;
                r.end()?;
                self.view = Arc::new(view);
                self.view_seqno = entry.seqno;
            }
            EntryKind::Branch => {
                let branch = Branch::from_payload(entry.payload())?;
                self.parents.push(Parent {
                    history: self.history,
                    log_id: self.log_id,
                    index: self.index,
                    term: self.term,
                    seqno: self.seqno,
                    founder: branch.founder.id,
                });
                if self.parents.len() > PARENTS_KEPT {
                    self.parents.remove(0);
                }
                (self.history, self.log_id) = (branch.history, branch.log_id);
                self.membership = Arc::new(branch.membership());
                self.membership_index = entry.index;
            }
            EntryKind::Policy => {
                let mut r = Reader::new(entry.payload());
                let policy = Policy::decode(&mut r)?;
                r.end()?;
                self.policy = policy;
            }
            EntryKind::Trim => {
                let mark = TrimMark::from_payload(entry.payload())?;
                self.trim_previous = self.trim;
                self.trim = mark.trim.max(self.trim);
                self.verdicts_to = mark.verdicts_to.max(self.verdicts_to);
            }
            EntryKind::Noop
            | EntryKind::WriteSet
            | EntryKind::TotalOrder
            | EntryKind::Piece
            | EntryKind::Note
            | EntryKind::Outcome => {}
        }
        if !entry.proposal.member.is_nil() {
            let ProposalId { member, incarnation, number } = entry.proposal;
            self.sessions.insert(member, Session { incarnation, number });
        }
        if entry.term != self.term {
            let mut writers = self.writers();
            writers.follow(entry);
            self.leader = writers.leader();
        }
        self.index = entry.index;
        self.term = entry.term;
        self.seqno = entry.seqno;
        Ok(())
    }

    /// The members that may write after this state.
    pub fn writers(&self) -> Writers {
        Writers::new(self.policy, self.term, self.leader)
    }

    /// As a blob, for the head of a segment and for a joiner.
    pub fn to_bytes(&self) -> Bytes {
        let StateSnapshot {
            index,
            term,
            seqno,
            history,
            log_id,
            membership,
            membership_index,
            view,
            view_seqno,
            policy,
            trim,
            trim_previous,
            verdicts_to,
            sessions,
            leader,
            parents,
        } = self;
        let mut w = Writer::with_capacity(512);
        // A log that has never branched is read by the version before.
        w.u16(if parents.is_empty() { VERSION - 1 } else { VERSION });
        w.u64(*index);
        w.u64(*term);
        w.i64(*seqno);
        w.raw(&history.0);
        membership.encode(&mut w);
        w.u64(*membership_index);
        view.encode(&mut w);
        w.i64(*view_seqno);
        policy.encode(&mut w);
        w.i64(*trim);
        w.i64(*trim_previous);
        w.i64(*verdicts_to);
        w.u32(sessions.len() as u32);
        for (member, Session { incarnation, number }) in sessions {
            w.raw(&member.0);
            w.u64(*incarnation);
            w.u64(*number);
        }
        w.raw(&log_id.0);
        w.raw(&leader.0);
        if !parents.is_empty() {
            w.u32(parents.len() as u32);
            parents.iter().for_each(|parent| parent.encode(&mut w));
        }
        w.into_bytes()
    }

    /// Reads [`StateSnapshot::to_bytes`].
    ///
    /// # Errors
    /// [`DecodeError`] where it is not one, or of a newer version.
    pub fn from_bytes(bytes: Bytes) -> Result<StateSnapshot, DecodeError> {
        let mut r = Reader::new(bytes);
        let version = r.u16()?;
        if !(1..=VERSION).contains(&version) {
            return Err(DecodeError::Invalid("version of a log state"));
        }
        let mut state = StateSnapshot {
            index: r.u64()?,
            term: r.u64()?,
            seqno: r.i64()?,
            history: Uuid(r.array()?),
            log_id: Uuid::NIL,
            membership: Arc::new(Membership::decode(&mut r)?),
            membership_index: r.u64()?,
            view: Arc::new(View::decode(&mut r)?),
            view_seqno: r.i64()?,
            policy: Policy::decode(&mut r)?,
            trim: r.i64()?,
            trim_previous: r.i64()?,
            verdicts_to: r.i64()?,
            sessions: BTreeMap::new(),
            leader: Uuid::NIL,
            parents: Vec::new(),
        };
        for _ in 0..r.count(32)? {
            let member = Uuid(r.array()?);
            state.sessions.insert(member, Session { incarnation: r.u64()?, number: r.u64()? });
        }
        if version >= 2 {
            state.log_id = Uuid(r.array()?);
        }
        if version >= 3 {
            state.leader = Uuid(r.array()?);
        }
        if version >= 4 {
            for _ in 0..r.count(72)? {
                state.parents.push(Parent::decode(&mut r)?);
            }
            if state.parents.is_empty() || state.parents.len() > PARENTS_KEPT {
                return Err(DecodeError::Invalid("number of branches"));
            }
        }
        r.end()?;
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::{MemberInfo, Role};

    #[test]
    fn snapshot_round_trips_and_older_versions_are_read() {
        let mut state = StateSnapshot::genesis(Uuid([7; 16]), 40, Membership::default());
        state.log_id = Uuid([8; 16]);
        state.leader = Uuid([9; 16]);
        state.sessions.insert(Uuid([1; 16]), Session { incarnation: 2, number: 3 });
        let blob = state.to_bytes();
        assert_eq!(StateSnapshot::from_bytes(blob.clone()), Ok(state.clone()));

        let mut old = blob[..blob.len() - 16].to_vec();
        old[0] = 2;
        state.leader = Uuid::NIL;
        assert_eq!(StateSnapshot::from_bytes(old.clone().into()), Ok(state.clone()));
        let mut old = blob[..blob.len() - 32].to_vec();
        old[0] = 1;
        state.log_id = Uuid::NIL;
        assert_eq!(StateSnapshot::from_bytes(old.clone().into()), Ok(state));
        old[0] = 5;
        assert!(StateSnapshot::from_bytes(old.into()).is_err());
        assert!(StateSnapshot::from_bytes(blob.slice(..blob.len() - 1)).is_err());
    }

    #[test]
    fn branch_has_new_ids_one_voter_and_its_fork_point() {
        let member = |byte: u8| MemberInfo {
            id: Uuid([byte; 16]),
            name: format!("n{byte}"),
            address: String::new(),
            zone: 0,
            role: Role::Voter,
            wants_vote: true,
            arbitrator: false,
        };
        let membership = Membership { members: vec![member(1), member(2), member(3)] };
        let mut state = StateSnapshot::genesis(Uuid([7; 16]), 40, membership);
        state.log_id = Uuid([8; 16]);
        let branch = Branch { history: Uuid([9; 16]), log_id: Uuid([10; 16]), founder: member(2) };
        assert_eq!(Branch::from_payload(branch.to_payload()), Ok(branch.clone()));
        for n in 1..=10u64 {
            let (kind, proposal) = (EntryKind::Branch, ProposalId::default());
            let header = EntryHeader { index: n, term: 3, kind, seqno: 40, proposal, time: 0 };
            state.apply(&Entry::new(header, &branch.to_payload())).unwrap();
            assert_eq!(StateSnapshot::from_bytes(state.to_bytes()), Ok(state.clone()));
            if n == 1 {
                let parent = Parent {
                    history: Uuid([7; 16]),
                    log_id: Uuid([8; 16]),
                    index: 0,
                    term: 0,
                    seqno: 40,
                    founder: Uuid([2; 16]),
                };
                assert_eq!(state.parents, [parent]);
            }
        }
        assert_eq!(state.parents.len(), PARENTS_KEPT);
        assert_eq!((state.history, state.log_id), (branch.history, branch.log_id));
        assert_eq!(state.membership.voters().collect::<Vec<_>>(), [Uuid([2; 16])]);
        assert_eq!(state.membership_index, 10);
        let short = branch.to_payload();
        assert!(Branch::from_payload(short.slice(..short.len() - 1)).is_err());
    }
}
