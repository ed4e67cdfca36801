//! The writes that are kept in rescue files.

use crate::history::{Check, Violation};
use crate::server::{Mark, mark_of};
use bytes::Bytes;
use lockstep_core::writeset::{AssembleError, WriteSet, assemble};
use lockstep_core::{Entry, EntryKind, MemberId, Seqno};
use lockstep_log::{MemDisk, Replay, read_rescue, rescue_number};
use std::collections::{BTreeMap, BTreeSet};

/// See the module's documentation.
#[derive(Clone, Default, Debug)]
pub(crate) struct Rescued {
    /// On which machine, with which seqno.
    writes: BTreeSet<(usize, Seqno, Mark)>,
    /// Write-sets whose pieces lie before the file's first entry: they are in the log, which has not lost them.
    pieces_in_log: BTreeSet<(usize, Seqno)>,
}

impl Rescued {
    /// Adds the writes in the rescue files on this machine's disk.
    pub(crate) fn read(&mut self, disk: &MemDisk, at: usize) -> Check {
        for name in disk.names().into_iter().filter(|name| rescue_number(name).is_some()) {
            let mut pieces = BTreeMap::new();
            let mut visitor = |replay: Replay| {
                if let Replay::Record(record) = replay {
                    let entry = Entry::decode_body(record.index, record.term, record.body);
                    self.add(at, &entry.map_err(|error| error.to_string())?, &mut pieces);
                }
                Ok(())
            };
            read_rescue(disk, &name, &mut visitor).map_err(|error| Violation {
                rule: "a rescue file can be read",
                what: format!("{name}: {error}"),
            })?;
        }
        Ok(())
    }

    fn add(&mut self, at: usize, entry: &Entry, pieces: &mut BTreeMap<(MemberId, u64), Vec<Bytes>>) {
        let own = (entry.proposal.member, entry.proposal.incarnation);
        if entry.kind == EntryKind::Piece {
            return pieces.entry(own).or_default().push(entry.payload());
        }
        let Ok(set) = WriteSet::parse(&entry.payload()) else { return };
        let pieces = if set.pieces.is_some() { pieces.remove(&own).unwrap_or_default() } else { Vec::new() };
        match assemble(set, &pieces) {
            Ok(set) => {
                self.writes.insert((at, entry.seqno, mark_of(&set)));
            }
            Err(AssembleError::Count { .. }) => {
                self.pieces_in_log.insert((at, entry.seqno));
            }
            Err(_) => {}
        }
    }

    /// Whether this machine has the write in a rescue file.
    pub(crate) fn has(&self, at: usize, seqno: Seqno, mark: Mark) -> bool {
        self.writes.contains(&(at, seqno, mark)) || self.pieces_in_log.contains(&(at, seqno))
    }

    /// Whether any machine has the write in a rescue file.
    pub(crate) fn has_any(&self, seqno: Seqno, mark: Mark) -> bool {
        self.writes.iter().any(|(_, s, m)| (*s, *m) == (seqno, mark))
            || self.pieces_in_log.iter().any(|(_, s)| *s == seqno)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.pieces_in_log.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_core::writeset::{DataKind, Meta, WriteSetBuilder, flags, split};
    use lockstep_core::{EntryHeader, ProposalId};

    fn entry(kind: EntryKind, payload: &[u8]) -> Entry {
        let proposal = ProposalId::default();
        Entry::new(EntryHeader { index: 1, term: 1, kind, seqno: 7, proposal, time: 0 }, payload)
    }

    #[test]
    fn write_set_in_pieces_is_rescued_with_its_pieces_or_without() {
        let mut builder = WriteSetBuilder::new();
        builder.append_data(DataKind::Ordered, &[5; 40]).unwrap();
        let meta = Meta { flags: flags::TRX_START | flags::TRX_END, ..Meta::default() };
        let split = split(&builder.finish(&meta), 16).unwrap();
        let mark = Mark::from_le_bytes([5; 8]);
        let last = entry(EntryKind::WriteSet, &split.last);
        let (mut rescued, mut pieces) = (Rescued::default(), BTreeMap::new());
        rescued.add(0, &last, &mut pieces);
        assert!(rescued.writes.is_empty() && rescued.has(0, last.seqno, mark), "its pieces are in the log");
        for piece in split.pieces {
            rescued.add(1, &entry(EntryKind::Piece, &piece), &mut pieces);
        }
        rescued.add(1, &last, &mut pieces);
        assert!(rescued.has(1, last.seqno, mark) && !rescued.has(1, last.seqno, mark + 1));
        assert!(!rescued.has(2, last.seqno, mark), "on another machine");
        assert!(rescued.has_any(last.seqno, mark) && !rescued.has_any(last.seqno + 1, mark));
    }
}
