//! Disk notes: the log keeps evidence of the members' durable state.
//!
//! A process forgets at its end what it knew of the others' disks. So the leader writes it to the log, in an entry of kind
//! note: at most once a second, and only if something was committed or acknowledged since. A note states facts about disks.
//! So it counts even if it is not committed, and members read the notes of their own logs as they are written.
//!
//! Members of older versions ignore notes.

use crate::member::context::Context;
use crate::member::membership::peers::EVIDENCE_SINCE;
use crate::wire::{Hello, Sighting};
use bytes::Bytes;
use lockstep_core::codec::{DecodeError, Reader, Writer};
use lockstep_core::raft::{Durable, WriteOp};
use lockstep_core::{Entry, EntryKind, Index, MemberId, Micros, ProposalId, Uuid};
use std::collections::BTreeMap;

/// The least time between two notes.
const PERIOD: Micros = 1_000_000;
/// The version of a note's payload.
const VERSION: u8 = 1;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(in crate::member) struct DiskNotes {
    /// The content of the last note.
    noted: BTreeMap<MemberId, Sighting>,
    /// Its index.
    last: Index,
    /// When this leader last wrote a note.
    written_at: Micros,
}

impl DiskNotes {
    /// The noted evidence of a member's disk.
    pub(in crate::member) fn of(&self, id: &MemberId) -> Option<Sighting> {
        self.noted.get(id).copied()
    }

    /// Reads the notes among entries of the own log.
    pub(in crate::member) fn follow(&mut self, op: &WriteOp) {
        op.entries.iter().for_each(|entry| self.remember(entry));
    }

    /// Reads an entry of the own log, if it is a note.
    pub(in crate::member) fn remember(&mut self, entry: &Entry) {
        if entry.kind == EntryKind::Note
            && entry.proposal == ProposalId::default()
            && let Ok(noted) = decode(entry.payload().clone())
        {
            (self.noted, self.last) = (noted, entry.index);
        }
    }

    /// Notes a last index for a member.
    #[cfg(test)]
    pub(in crate::member) fn set_for_test(&mut self, id: MemberId, last_index: Index) {
        self.noted.entry(id).or_default().durable.last_index = last_index;
    }

    /// Appends a note, if it is due.
    pub(in crate::member) fn append(&mut self, ctx: &mut Context) {
        let all_know = ctx.peers.values().all(|peer| peer.supports(EVIDENCE_SINCE));
        if ctx.now() < self.written_at + PERIOD || !all_know || ctx.peers.is_empty() {
            return;
        }
        let noted = self.present(ctx);
        // Members may have acknowledged the entries before the last note after it was written.
        let is_late = |id: &MemberId, now: &Sighting| {
            let before = self.noted.get(id).map_or(0, |noted| noted.durable.last_index);
            before.saturating_add(1) < self.last && before < now.durable.last_index
        };
        if ctx.raft.commit() <= self.last && !noted.iter().any(|(id, now)| is_late(id, now)) {
            return;
        }
        if ctx.raft.append_control(ctx.now(), EntryKind::Note, encode(&noted)).is_ok() {
            self.written_at = ctx.now();
        }
    }

    /// The best evidence of each member's disk.
    fn present(&self, ctx: &mut Context) -> BTreeMap<MemberId, Sighting> {
        let last_index = ctx.raft.persisted().min(ctx.raft.commit());
        let last_term = ctx.raft.term_at(last_index).unwrap_or(0);
        let own = Durable { term: 0, last_term, last_index };
        let &Hello { id: me, view_uuid, incarnation, .. } = ctx.me();
        let mut present = BTreeMap::from([(me, Sighting { view_uuid, incarnation, durable: own })]);
        for id in ctx.raft.membership().members.iter().map(|m| m.id).filter(|id| *id != me) {
            let seen = ctx.peers.introduced(&id).map(|(view_uuid, incarnation)| Sighting {
                view_uuid,
                incarnation,
                durable: ctx.raft.witnessed(&id),
            });
            // Evidence is kept as one process gave it: facts of a later process must not be ascribed to an earlier one.
            let noted = self.of(&id);
            let is_better = |seen: &Sighting| {
                noted.is_none_or(|noted| {
                    seen.view_uuid == noted.view_uuid && !seen.durable.is_behind(&noted.durable)
                        || seen.durable.last_index > noted.durable.last_index
                })
            };
            if let Some(sighting) = seen.filter(is_better).or(noted) {
                present.insert(id, sighting);
            }
        }
        present
    }
}

fn encode(noted: &BTreeMap<MemberId, Sighting>) -> Bytes {
    let mut w = Writer::new();
    w.u8(VERSION);
    w.u32(noted.len() as u32);
    for (id, sighting) in noted {
        w.raw(&id.0);
        sighting.encode(&mut w);
    }
    w.into_bytes()
}

fn decode(payload: Bytes) -> Result<BTreeMap<MemberId, Sighting>, DecodeError> {
    let mut r = Reader::new(payload);
    if r.u8()? != VERSION {
        return Err(DecodeError::Invalid("version of a disk note"));
    }
    let count = r.count(64)?;
    let noted = (0..count).map(|_| Ok((Uuid(r.array()?), Sighting::decode(&mut r)?))).collect();
    r.end()?;
    noted
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::EntryHeader;

    fn sighting() -> Sighting {
        let durable = Durable { term: 3, last_term: 2, last_index: 9 };
        Sighting { view_uuid: Uuid([5; 16]), incarnation: 7 << 20, durable }
    }

    fn note(index: Index, member: MemberId, payload: Bytes) -> Entry {
        let proposal = ProposalId { member, ..ProposalId::default() };
        let header = EntryHeader { index, term: 1, kind: EntryKind::Note, seqno: 0, proposal, time: 0 };
        Entry::new(header, &payload)
    }

    #[test]
    fn note_round_trips_and_truncated_note_is_refused() {
        let noted = BTreeMap::from([(Uuid([1; 16]), sighting()), (Uuid([2; 16]), Sighting::default())]);
        let bytes = encode(&noted);
        assert_eq!(decode(bytes.clone()), Ok(noted));
        assert!((0..bytes.len()).all(|cut| decode(bytes.slice(..cut)).is_err()));
    }

    #[test]
    fn last_note_of_leader_counts() {
        let (id, mut notes) = (Uuid([1; 16]), DiskNotes::default());
        notes.remember(&note(4, MemberId::NIL, encode(&BTreeMap::from([(id, Sighting::default())]))));
        notes.remember(&note(7, MemberId::NIL, encode(&BTreeMap::from([(id, sighting())]))));
        assert_eq!((notes.of(&id), notes.last), (Some(sighting()), 7));
        notes.remember(&note(8, id, encode(&BTreeMap::new())));
        notes.remember(&note(9, MemberId::NIL, Bytes::from_static(b"a later version")));
        assert_eq!(
            notes.of(&id),
            Some(sighting()),
            "neither is a note of a leader that this version can read"
        );
    }
}
