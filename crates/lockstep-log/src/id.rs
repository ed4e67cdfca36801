//! `lockstep.id.log`: the member's identity and its vote, in two alternating slots.
//!
//! One slot always holds the newest durable state; only the other one, the *scratch* slot, is ever written. After each
//! durable write the same content goes to the scratch slot too, unsynced. So both slots are alike at rest, and one
//! damaged slot does not bring back an older vote.
//!
//! A slot with a former end has another version. Earlier programs refuse it: they would vote by the shortened log.

use std::io;

use crate::error::OpenError;
use crate::format::{FORMAT_VERSION, ID_FILE, ID_TMP, get_id, get_u16, get_u32, get_u64, put};
use crate::{Disk, DiskFile, Identity, MemberId, Vote};

const MAGIC: [u8; 8] = *b"LSTPID\n\0";
/// Distance of the slots: no sector or page holds both.
const SLOT_STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 128;
const FLAG_VOTED: u16 = 1;
/// The version of a slot with a former end.
const FORMER_END_VERSION: u16 = 2;

/// A point in the log that is known to be durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Mark {
    segment: u64,
    offset: u64,
}

/// One slot's content. **Invariants:** the incarnation and the floor only grow; a vote follows the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Raised with each change; the higher one is the newer.
    seq: u64,
    member_id: MemberId,
    incarnation: u64,
    vote: Vote,
    /// The number of the oldest segment that belongs to the log; 0 while there was none. Lower ones are
    /// leftovers of a trim.
    floor: u64,
    /// The log was durable up to here when the slot was written.
    durable: Mark,
    /// Index and term of the last entry before damage took the log's end, until the log reaches that again.
    former_end: Option<(u64, u64)>,
}

impl Slot {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let Slot { seq, member_id, incarnation, vote, floor, durable, former_end } = self;
        let mut b = [0; SLOT_BYTES];
        put(&mut b, 0, &MAGIC);
        let version = if former_end.is_some() { FORMER_END_VERSION } else { FORMAT_VERSION };
        put(&mut b, 8, &version.to_le_bytes());
        let flags = if vote.voted_for.is_some() { FLAG_VOTED } else { 0 };
        put(&mut b, 10, &flags.to_le_bytes());
        put(&mut b, 16, &seq.to_le_bytes());
        put(&mut b, 24, member_id);
        put(&mut b, 40, &incarnation.to_le_bytes());
        put(&mut b, 48, &vote.term.to_le_bytes());
        put(&mut b, 56, &vote.voted_for.unwrap_or_default());
        put(&mut b, 72, &vote.commit_hint.to_le_bytes());
        put(&mut b, 80, &floor.to_le_bytes());
        put(&mut b, 88, &durable.segment.to_le_bytes());
        put(&mut b, 96, &durable.offset.to_le_bytes());
        let (index, term) = former_end.unwrap_or_default();
        put(&mut b, 104, &index.to_le_bytes());
        put(&mut b, 112, &term.to_le_bytes());
        let crc = crc32c::crc32c(&b[..124]);
        put(&mut b, 124, &crc.to_le_bytes());
        b
    }

    /// `Ok(None)`: damaged or never written. `Err`: of a newer version.
    fn decode(b: &[u8]) -> Result<Option<Slot>, u16> {
        if b.len() < SLOT_BYTES || b[..8] != MAGIC {
            return Ok(None);
        }
        let version = get_u16(b, 8);
        if version > FORMER_END_VERSION {
            return Err(version);
        }
        if crc32c::crc32c(&b[..124]) != get_u32(b, 124) {
            return Ok(None);
        }
        let voted = get_u16(b, 10) & FLAG_VOTED != 0;
        Ok(Some(Slot {
            seq: get_u64(b, 16),
            member_id: get_id(b, 24),
            incarnation: get_u64(b, 40),
            vote: Vote {
                term: get_u64(b, 48),
                voted_for: voted.then(|| get_id(b, 56)),
                commit_hint: get_u64(b, 72),
            },
            floor: get_u64(b, 80),
            durable: Mark { segment: get_u64(b, 88), offset: get_u64(b, 96) },
            former_end: (version == FORMER_END_VERSION).then(|| (get_u64(b, 104), get_u64(b, 112))),
        }))
    }

    /// Damage has taken the log's end, `end` as (index, term), and leaves the entries up to `last`.
    ///
    /// The member enters a new term: a leader of this term counts acks of entries that are lost, and would not send them
    /// again.
    pub(crate) fn lost_end(&mut self, end: (u64, u64), last: u64) {
        let (index, term) = self.former_end.filter(|before| in_order(*before) > in_order(end)).unwrap_or(end);
        self.former_end = Some((index, term));
        let term = self.vote.term.max(term).saturating_add(1);
        self.vote = Vote { term, voted_for: None, commit_hint: self.vote.commit_hint.min(last) };
    }

    /// The log ends at `last`, as (index, term). Forgets the former end if the log has reached it; returns whether it has.
    pub(crate) fn reached(&mut self, last: (u64, u64)) -> bool {
        self.former_end.take_if(|end| in_order(last) >= in_order(*end)).is_some()
    }

    /// The owner has opened the log, so a new incarnation begins. `first`: the number of the oldest segment, if there is one.
    pub(crate) fn opened(&mut self, first: Option<u64>) {
        let floor = first.unwrap_or(self.floor);
        assert!(floor >= self.floor, "the log begins with {floor}, which was trimmed");
        self.incarnation += 1;
        self.floor = floor;
    }

    /// From here on the log begins with the segment `number`. Segments with lower numbers are leftovers.
    pub(crate) fn begins_with(&mut self, number: u64) {
        assert!(number > self.floor, "the floor goes from {} to {number}", self.floor);
        self.floor = number;
    }

    /// The segment `number`, the log's last one, is durable up to `offset`.
    pub(crate) fn synced(&mut self, number: u64, offset: u64) {
        self.durable = Mark { segment: number, offset };
    }

    /// The member votes. Returns whether the vote must be durable before anybody learns of it: it differs from the one
    /// before in more than its hint.
    pub(crate) fn cast(&mut self, vote: Vote) -> bool {
        let before = std::mem::replace(&mut self.vote, vote);
        !is_same_promise(&before, &vote)
    }

    /// The entries up to `index` are committed.
    pub(crate) fn committed(&mut self, index: u64) {
        self.vote.commit_hint = index;
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity { member_id: self.member_id, incarnation: self.incarnation }
    }

    pub(crate) fn vote(&self) -> Vote {
        self.vote
    }

    /// The number of the oldest segment that belongs to the log; 0 while there was none.
    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// Index and term of the last entry before damage took the log's end, until the log reaches that again.
    pub(crate) fn former_end(&self) -> Option<(u64, u64)> {
        self.former_end
    }

    /// The segment that was the log's last one when the slot was written.
    pub(crate) fn durable_segment(&self) -> u64 {
        self.durable.segment
    }

    /// The bytes of the segment `number` that were durable when the slot was written, if it was the last one; else 0.
    pub(crate) fn durable_bytes(&self, number: u64) -> u64 {
        if self.durable.segment == number { self.durable.offset } else { 0 }
    }

    /// Whether the log was durable beyond byte `offset` of the segment `number`.
    pub(crate) fn is_durable_beyond(&self, number: u64, offset: u64) -> bool {
        self.durable > Mark { segment: number, offset }
    }
}

/// Whether two votes differ in the hint at most.
fn is_same_promise(a: &Vote, b: &Vote) -> bool {
    (a.term, a.voted_for) == (b.term, b.voted_for)
}

/// Ends of logs compare as in elections: by the term, then by the index.
fn in_order((index, term): (u64, u64)) -> (u64, u64) {
    (term, index)
}

/// The open file.
pub(crate) struct IdFile<F> {
    file: F,
    /// The content of the next write.
    slot: Slot,
    /// The slot that may be overwritten: never the only one that holds the newest durable state.
    scratch: u64,
    /// The vote of the newest durable slot.
    promised: Vote,
}

impl<F: DiskFile> IdFile<F> {
    /// Makes the file, under another name first, so that it exists whole or not at all.
    pub(crate) fn create<D: Disk<File = F>>(disk: &D, member_id: MemberId) -> io::Result<()> {
        let slot = Slot {
            seq: 1,
            member_id,
            incarnation: 0,
            vote: Vote::default(),
            floor: 0,
            durable: Mark::default(),
            former_end: None,
        };
        if disk.list()?.iter().any(|n| n == ID_TMP) {
            disk.remove(ID_TMP)?;
        }
        let file = disk.create(ID_TMP)?;
        let mut both = vec![0; SLOT_STRIDE as usize + SLOT_BYTES];
        put(&mut both, 0, &slot.encode());
        put(&mut both, SLOT_STRIDE as usize, &slot.encode());
        // The rest of the second slot's page, so that the file never changes its size again.
        both.resize(2 * SLOT_STRIDE as usize, 0);
        file.write_at(&both, 0)?;
        file.sync_data()?;
        disk.rename(ID_TMP, ID_FILE)?;
        disk.sync_dir()
    }

    /// Reads the file and takes the newest intact slot.
    pub(crate) fn open<D: Disk<File = F>>(disk: &D, write: bool) -> Result<IdFile<F>, OpenError> {
        let dir = disk.describe();
        let io = |e: io::Error| OpenError::io(&dir, "open lockstep.id.log", e);
        let file = disk.open(ID_FILE, write).map_err(io)?;
        let mut best: Option<(Slot, u64)> = None;
        for which in 0..2 {
            let mut b = [0; SLOT_BYTES];
            let n = file.read_at(&mut b, which * SLOT_STRIDE).map_err(io)?;
            let slot = Slot::decode(&b[..n]).map_err(|found| OpenError::NewerFormat {
                file: ID_FILE.to_string(),
                found,
                supported: FORMER_END_VERSION,
            })?;
            if let Some(s) = slot.filter(|s| best.is_none_or(|(b, _)| s.seq > b.seq)) {
                best = Some((s, which));
            }
        }
        let (slot, which) = best.ok_or_else(|| OpenError::IdentityDamaged { dir: dir.clone() })?;
        if write {
            // A killed process may have left this slot in the kernel's memory only. It must be on disk
            // before the other one, which may be all that is, is written over.
            file.write_at(&slot.encode(), which * SLOT_STRIDE).map_err(io)?;
            file.sync_data().map_err(io)?;
        }
        Ok(IdFile { file, slot, scratch: 1 - which, promised: slot.vote })
    }

    /// The newest content, written or not.
    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Changes the content of the next write: see [`IdFile::commit`].
    pub(crate) fn slot_mut(&mut self) -> &mut Slot {
        &mut self.slot
    }

    /// Makes the slot durable.
    pub(crate) fn commit(&mut self) -> io::Result<()> {
        assert!(
            self.slot.vote.may_follow(&self.promised),
            "the vote {:?} would replace {:?}",
            self.slot.vote,
            self.promised
        );
        self.slot.seq += 1;
        let bytes = self.slot.encode();
        self.file.write_at(&bytes, self.scratch * SLOT_STRIDE)?;
        self.file.sync_data()?;
        self.promised = self.slot.vote;
        self.scratch = 1 - self.scratch;
        self.file.write_at(&bytes, self.scratch * SLOT_STRIDE)
    }

    /// Writes the slot without making it durable: only for hints. The vote must be unchanged.
    pub(crate) fn commit_lazily(&mut self) -> io::Result<()> {
        let (vote, promised) = (&self.slot.vote, &self.promised);
        assert!(is_same_promise(vote, promised), "{vote:?} is not synced, but {promised:?} is");
        self.slot.seq += 1;
        self.file.write_at(&self.slot.encode(), self.scratch * SLOT_STRIDE)
    }
}
