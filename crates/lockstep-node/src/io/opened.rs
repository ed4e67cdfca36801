//! Opening the log at a start.

use lockstep_core::raft::{LogEnd, RestoreBuilder};
use lockstep_core::{Entry, EntryKind, Uuid};
use lockstep_log::{Disk, Log, OpenError, Options, Recovered, Replay};

/// Kinds of entries of the own log that the engine knows from the start on.
pub(crate) const KEPT_AT_START: [u8; 2] = [EntryKind::Trim as u8, EntryKind::Outcome as u8];

/// The open log, and its recovered contents.
pub(crate) struct Opened<D: Disk> {
    pub(crate) log: Log<D>,
    pub(crate) recovered: Recovered,
    pub(crate) builder: RestoreBuilder,
    /// Its trim marks, outcomes, and last disk note.
    pub(crate) marks: Vec<Entry>,
}

impl<D: Disk> Opened<D> {
    /// Opens the log. If damage has taken its end, and the former end is proven, the log ends before the damage.
    pub(crate) fn new(disk: &D, options: Options) -> Result<Opened<D>, OpenError> {
        match Self::open(disk, options.clone()) {
            Err(damage) if damage.is_loss() => {
                match Self::open(disk, Options { may_shorten: true, ..options }) {
                    Err(error) if error.is_loss() => Err(damage),
                    opened => opened,
                }
            }
            opened => opened,
        }
    }

    fn open(disk: &D, options: Options) -> Result<Opened<D>, OpenError> {
        let own = lockstep_log::peek_identity(disk)?.map(|identity| Uuid(identity.member_id));
        let hint = lockstep_log::peek_vote(disk)?;
        let mut builder = RestoreBuilder::new(hint.map_or(0, |vote| vote.commit_hint));
        let (mut marks, mut note) = (Vec::new(), None);
        let mut visit = |replay: Replay| match replay {
            Replay::Base { base, .. } => {
                if base.is_empty() {
                    return Ok(());
                }
                let trouble = |e| format!("the state at the head of a segment {e}");
                builder.base(base).map_err(trouble)
            }
            Replay::Record(record) => {
                let (index, term, body) = (record.index, record.term, record.body);
                let trouble = |e| format!("entry {index} {e}");
                if body.first().is_some_and(|kind| KEPT_AT_START.contains(kind)) {
                    marks.push(Entry::decode_body(index, term, body.clone()).map_err(trouble)?);
                }
                if body.first() == Some(&(EntryKind::Note as u8)) {
                    let entry = Entry::decode_body(index, term, body.clone()).map_err(trouble)?;
                    // Members write notes as well, of other things than disks.
                    note = Some(entry).filter(|entry| entry.proposal.member.is_nil()).or(note.take());
                }
                builder.record(index, term, body).map_err(trouble)
            }
            // As log retention, which removes no segment that certification needs: neither this member nor one that
            // gets its log from here could certify from the first base on.
            Replay::Trim if builder.reaches_back() => Ok(()),
            Replay::Trim => Err("certification begins below it".to_owned()),
            Replay::Shorten => {
                let membership = builder.last().map(|state| &state.membership);
                match membership.is_some_and(|m| m.voters().any(|id| Some(id) != own)) {
                    true => Ok(()),
                    false => Err("no other voter is known, which would have the lost entries".to_owned()),
                }
            }
        };
        let (mut log, recovered) = Log::open(disk.clone(), options, &mut visit)?;
        if recovered.shortened.is_some()
            && let Some(base) = builder.last().map(|state| state.to_bytes())
        {
            log.go_on_shortened(base.clone())?;
            let trouble = |e| OpenError::Refused(format!("the state at the log's end {e}"));
            builder.base(base).map_err(trouble)?;
        }
        if let Some((index, term)) = recovered.former_end {
            builder.ended_at(LogEnd { term, index });
        }
        marks.extend(note);
        Ok(Opened { log, recovered, builder, marks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records;
    use lockstep_core::members::Membership;
    use lockstep_core::snapshot::StateSnapshot;
    use lockstep_core::{EntryHeader, MemberId, ProposalId, Uuid};
    use lockstep_log::{MemDisk, WriteOp};

    #[test]
    fn last_disk_note_is_kept_though_notes_of_members_follow() {
        let disk = MemDisk::new();
        let options = Options { new_member_id: [1; 16], ..Options::default() };
        let (mut log, _) = Log::open(disk.clone(), options.clone(), &mut |_| Ok(())).unwrap();
        let state = StateSnapshot::genesis(Uuid([2; 16]), 0, Membership::default());
        log.write(WriteOp { reset: Some(records::reset(&state)), ..WriteOp::default() }).unwrap();
        let note = |index, member: MemberId| {
            let proposal = ProposalId { member, number: index, ..ProposalId::default() };
            let header = EntryHeader { index, term: 1, kind: EntryKind::Note, seqno: 0, proposal, time: 0 };
            records::record(&Entry::new(header, &bytes::Bytes::from_static(b"note")))
        };
        let notes = vec![note(1, MemberId::NIL), note(2, MemberId::NIL), note(3, Uuid([7; 16]))];
        log.write(WriteOp { records: notes, ..WriteOp::default() }).unwrap();
        log.sync().unwrap();
        log.close().unwrap();
        let opened = Opened::new(&disk, options).unwrap();
        assert_eq!(opened.marks.iter().map(|entry| entry.index).collect::<Vec<_>>(), [2]);
    }
}
