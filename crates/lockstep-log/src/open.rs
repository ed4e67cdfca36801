//! Recovery at start: which segments belong to the log, where the log ends, and whether that end is a torn
//! write or a loss.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::error::OpenError;
use crate::format::{
    FORMAT_VERSION, HeaderError, ID_FILE, ID_TMP, QUARANTINED, SEGMENT_TMP, SPARE_FILE, SegmentHeader,
    segment_name, segment_number,
};
use crate::id::Slot;
use crate::reader::{Index, LogReader, Segment};
use crate::scan::{
    HeadError, Scanned, Seal, Stop, former_end, may_continue, proof_of_loss, read_header, scan,
};
use crate::{Disk, Identity, Planted, ReadError, Record, Vote};

/// The result of [`crate::Log::open`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// This member's identity, with the incarnation of this run.
    pub identity: Identity,
    /// The last vote.
    pub vote: Vote,
    /// True if the folder held no log: the member id is the one from the options.
    pub created: bool,
    /// The index and term before the first record.
    pub start: (u64, u64),
    /// The index and term of the last record.
    pub last: (u64, u64),
    /// A write that a crash had torn, now cut off. Nothing in it had ever been synced.
    pub cut: Option<Cut>,
    /// The log was damaged below `start`, and begins there now.
    pub trimmed: Option<Trimmed>,
    /// The log was damaged near its end, and ends before the damage now.
    pub shortened: Option<Shortened>,
    /// Index and term of the last entry before damage shortened the log, in this open or an earlier one. `None` if the log
    /// has reached that again, in the order of elections: (term, index).
    pub former_end: Option<(u64, u64)>,
}

/// The part of a log that [`crate::Log::open`] has given up at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortened {
    /// The first damage.
    pub damage: String,
    /// The prefix of the names under which the segments behind the damaged one are quarantined, if there are any. The
    /// damaged segment stays, and ends before the damage.
    pub aside: Option<String>,
}

/// Where a torn write was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The file's name.
    pub file: String,
    /// The log's new end in the file.
    pub offset: u64,
    /// Why the bytes from there on are no valid record.
    pub reason: String,
}

/// The part of a damaged log that [`crate::Log::open`] has given up: all entries up to [`Recovered::start`], which are
/// committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trimmed {
    /// The damage of each file, the oldest file first.
    pub damage: Vec<String>,
    /// The prefix of the names under which the segments below the new beginning are quarantined; `None` if no file was
    /// left of them.
    pub aside: Option<String>,
    /// The names that they had.
    pub files: Vec<String>,
}

/// An item that open passes to the visitor, in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replay {
    /// The snapshot of the replicated state at (index, term), at the head of a segment. The first one is the start of the
    /// log. Each later one equals the state after the records before it.
    Base {
        /// Index before the segment's first record.
        index: u64,
        /// The term of that index.
        term: u64,
        /// The state.
        base: Bytes,
    },
    /// The next record.
    Record(Record),
    /// The log is damaged below the first base, and is about to be trimmed to it: the items before this one, the last,
    /// are all that stays. If the visitor refuses, nothing has changed, and open fails with the damage.
    Trim,
    /// The log is damaged behind the items before this one, the last, and is about to end there: see [`crate::Options`].
    /// If the visitor refuses, nothing has changed, and open fails with the damage.
    Shorten,
}

/// The contents of the files.
pub(crate) struct Image<F> {
    pub(crate) index: Index<F>,
    pub(crate) cut: Option<Cut>,
    /// The offset up to which the last segment was durable when its last record was written.
    pub(crate) synced: u64,
    /// Files of ours that are no part of the log.
    pub(crate) leftovers: Vec<String>,
    /// The highest segment number seen.
    pub(crate) highest: u64,
    /// The damage below `index`, if the log may begin there.
    pub(crate) damage: Option<Damage>,
    /// The damage behind `index`, if the log's former end is proven.
    pub(crate) lost_end: Option<LostEnd>,
}

/// Damage behind the end of an [`Image`].
pub(crate) struct LostEnd {
    /// The first damage.
    pub(crate) error: OpenError,
    /// Index and term of the last entry behind the damage.
    pub(crate) former_end: (u64, u64),
    /// The segments behind the damaged one, newest first.
    pub(crate) files: Vec<String>,
}

impl LostEnd {
    pub(crate) fn text(&self) -> String {
        damage_text(&self.error)
    }
}

/// Damage below the first segment of an [`Image`].
pub(crate) struct Damage {
    /// Of the oldest damaged segment.
    pub(crate) error: OpenError,
    /// As [`Trimmed::damage`].
    pub(crate) texts: Vec<String>,
    /// The segments below the first one, oldest first.
    pub(crate) files: Vec<String>,
}

/// Whether the log is ours, or a running server's that we may only look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Own,
    /// Ours; it may end before damage that has taken its end.
    Shorten,
    Look,
}

pub(crate) fn load<D: Disk>(disk: &D, slot: &Slot, access: Access) -> Result<Image<D::File>, OpenError> {
    let dir = disk.describe();
    let names = disk.list().map_err(|e| OpenError::io(&dir, "list the log directory", e))?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|n| segment_number(n)).collect();
    numbers.sort_unstable();
    let highest = numbers.last().copied().unwrap_or(0);
    let mut leftovers: Vec<String> =
        names.into_iter().filter(|n| n == ID_TMP || n == SEGMENT_TMP || n == SPARE_FILE).collect();
    let below_floor = numbers.partition_point(|n| *n < slot.floor());
    leftovers.extend(numbers.drain(..below_floor).map(segment_name));

    // Damage, the oldest first as far as it is known. The log may begin above all of it.
    let mut damage = Vec::new();
    let mut headers = BTreeMap::new();
    for &number in &numbers {
        match read_head(disk, &dir, number, slot) {
            Ok(head) => {
                headers.insert(number, head);
            }
            Err(error) if error.is_loss() => {
                headers.clear();
                damage.push(error);
            }
            Err(error) => return Err(error),
        }
    }
    let live = chain_of(&headers, slot, &mut damage)?;
    if access == Access::Shorten {
        return match damage.into_iter().next() {
            Some(error) => Err(error),
            None => load_shortened(disk, slot, headers, &live, &numbers, (leftovers, highest)),
        };
    }
    let chain = match read_chain(disk, slot, access, headers, &live, &mut damage) {
        Ok(chain) => chain,
        Err(error) => return Err(damage.into_iter().next().unwrap_or(error)),
    };
    let Chain { index, cut, synced } = chain;

    let first = index.segments.first().map_or(0, Segment::number);
    let last = index.segments.last().map_or(0, Segment::number);
    let texts = damage.iter().map(damage_text).collect();
    let damage = match damage.into_iter().next() {
        // A torn end on a disk that has lost data may be a loss, too.
        Some(error) if access == Access::Own && cut.is_none() && may_begin(&index, slot) => {
            let files = numbers.iter().filter(|n| **n < first).map(|n| segment_name(*n)).collect();
            numbers.retain(|n| *n >= first);
            Some(Damage { error, texts, files })
        }
        Some(error) => return Err(error),
        None => None,
    };
    if access == Access::Own
        && let Err(error) = check_complete(&index, slot, &live, damage.is_some())
    {
        return Err(damage.map_or(error, |damage| damage.error));
    }
    // Void segments behind the last one, and those off the line.
    let is_part = |n: &u64| live.contains(n) && *n <= last;
    leftovers.extend(numbers.into_iter().filter(|n| !is_part(n)).map(segment_name));
    Ok(Image { index, cut, synced, leftovers, highest, damage, lost_end: None })
}

/// Reads the `live` segments up to the first damage, and behind it as far as that proves the log's former end: see
/// [`former_end`]. The seal of a damaged segment names the last record before the next one.
///
/// The owner loses the records behind the damage, and may have acknowledged them. So the former end must not be below the true
/// one:
///
/// - It is not below the durable position in `lockstep.id.log`.
/// - The damage begins below that position, so it has met blocks that were durable for a while. A disk that loses its latest
///   writes may have lost the last batch, too, and nothing would tell.
/// - A crash may leave void segments behind the damage. Then the end found is the one before the truncation. It is too high,
///   never too low.
fn load_shortened<D: Disk>(
    disk: &D,
    slot: &Slot,
    mut headers: BTreeMap<u64, Head<D::File>>,
    live: &[u64],
    numbers: &[u64],
    (mut leftovers, highest): (Vec<String>, u64),
) -> Result<Image<D::File>, OpenError> {
    let io = |e: io::Error| OpenError::io(&disk.describe(), "read the log", e);
    let (mut index, mut synced) = (Index { segments: Vec::new() }, 0);
    let (mut lost, mut end) = (None, None);
    // The last record known, also behind damage.
    let mut last = (0, 0);
    for (i, number) in live.iter().enumerate() {
        let Some((header, salt, file)) = headers.remove(number) else { continue };
        let is_behind = lost.is_some();
        if let Some(error) = lost.take_if(|_| !may_continue(last, (header.prev_index, header.prev_term))) {
            return Err(error);
        }
        let seal = seal_by(live.get(i + 1).and_then(|next| headers.get(next)));
        let mut segment = Segment::new(header, salt, Arc::new(file));
        let scanned = scan(&mut segment, seal).map_err(io)?;
        let is_last = seal.is_none() || scanned.reopened;
        if is_last {
            let kept = if is_behind { index.last().0 } else { segment.last.0 };
            let known = slot.durable_bytes(*number);
            end = former_end(&segment, kept).map_err(io)?.filter(|(_, offset)| *offset >= known);
        }
        let is_whole = match is_last {
            true => end.is_some_and(|(_, offset)| offset == segment.end),
            false => scanned.stop == Stop::Sealed,
        };
        if !is_behind && !is_whole {
            let error = corrupt(&segment, text(&scanned).to_string());
            // With a former end there was an earlier open, which has checked this and lowered the durable position.
            let is_older = slot.former_end().is_some() || slot.is_durable_beyond(*number, segment.end);
            if !is_older && disk.planted() != Some(Planted::YoungDamageProves) {
                return Err(error);
            }
            lost = Some(error);
        }
        last = segment.last;
        if !is_behind {
            synced = scanned.synced;
            index.push(segment);
        }
        if is_last {
            break;
        }
    }
    check_complete(&index, slot, live, false)?;
    let kept_to = index.segments.last().map_or(0, Segment::number);
    let mut behind: Vec<u64> = live.iter().copied().filter(|n| *n > kept_to).collect();
    behind.reverse();
    let lost_end = match (lost, end) {
        (Some(error), Some((end, _))) if slot.vote().commit_hint <= end.0 => {
            let files = behind.drain(..).map(segment_name).collect();
            Some(LostEnd { error, former_end: end, files })
        }
        (Some(error), _) => return Err(error),
        (None, _) => None,
    };
    let is_part = |n: &u64| live.contains(n) && !behind.contains(n);
    leftovers.extend(numbers.iter().filter(|n| !is_part(n)).map(|n| segment_name(*n)));
    Ok(Image { index, cut: None, synced, leftovers, highest, damage: None, lost_end })
}

/// The next segment's word on where this one ends.
fn seal_by<F>(next: Option<&Head<F>>) -> Option<Seal> {
    next.map(|(h, _, _)| Seal { end: h.prev_end, chain: h.prev_chain, last: (h.prev_index, h.prev_term) })
}

fn corrupt<F>(segment: &Segment<F>, reason: String) -> OpenError {
    OpenError::Corrupt { file: segment.name(), offset: segment.end, intact_to: segment.last.0, reason }
}

/// Whether a log may begin with the first segment *S* of `index`, although older segments are damaged or missing. The
/// chain from *S* to the end is intact, and has passed all checks of an end.
///
/// It may if `lockstep.id.log` was written while *S* was part of the log, with a commit hint that the chain covers:
/// `base <= hint <= last`.
///
/// - **Nothing is lost.** The entries below *S* are committed, so no election and no recovery of a tail needs them from
///   this member. The entries that it has acknowledged, and may have to prove, lie in the chain or in the base of *S*.
/// - ***S* is not void.** A truncation to index *t* reopens an older segment *k*, and makes the later ones void by a
///   mark in *k* that the damage may hide. `Log::truncate` keeps in *k* every later segment whose base is at *t* or
///   below, so each void one has a base above *t*, and loses the entry at its base. The mark of the slot names *S* or a
///   later segment, and void segments are removed, durably, before a segment with a higher number is made. So *S* was
///   part of the log when the slot was written, its entry at the base was committed by then, and a committed entry is
///   not truncated later. (Beyond that, no owner goes on with a truncated log while void segments are there: both
///   `Log::truncate` and `Log::open` remove them before they return.)
/// - **It was not replaced.** A reset begins with the highest number, and raises the floor above *S* before it returns.
/// - **The end is there.** What the hint covers had been synced, so an end below it is damaged, too.
fn may_begin<F>(index: &Index<F>, slot: &Slot) -> bool {
    let is_live = index.segments.first().is_some_and(|s| slot.durable_segment() >= s.number());
    is_live && (index.start().0..=index.last().0).contains(&slot.vote().commit_hint)
}

/// A segment's header, its salt, and its file.
type Head<F> = (SegmentHeader, u32, F);

fn read_head<D: Disk>(disk: &D, dir: &str, number: u64, slot: &Slot) -> Result<Head<D::File>, OpenError> {
    let name = segment_name(number);
    let file = disk.open(&name, false).map_err(|e| OpenError::io(dir, format!("open {name}"), e))?;
    let (header, salt) = read_header(&file).map_err(|e| header_error(dir, &name, e))?;
    let expected = slot.identity().member_id;
    if header.member_id != expected {
        return Err(OpenError::OtherMember { file: name, found: header.member_id, expected });
    }
    if header.number != number {
        let reason = format!("it is segment {} under another name", header.number);
        return Err(OpenError::Corrupt { file: name, offset: 0, intact_to: 0, reason });
    }
    Ok((header, salt, file))
}

/// The intact segments up to the end of the log.
struct Chain<F> {
    index: Index<F>,
    cut: Option<Cut>,
    synced: u64,
}

/// Reads the records of the `live` segments. If one but the last is damaged, the chain begins again behind it.
fn read_chain<D: Disk>(
    disk: &D,
    slot: &Slot,
    access: Access,
    mut headers: BTreeMap<u64, Head<D::File>>,
    live: &[u64],
    damage: &mut Vec<OpenError>,
) -> Result<Chain<D::File>, OpenError> {
    let dir = disk.describe();
    let mut chain = Chain { index: Index { segments: Vec::new() }, cut: None, synced: 0 };
    for (i, number) in live.iter().enumerate() {
        let Some((header, salt, file)) = headers.remove(number) else { continue };
        let seal = seal_by(live.get(i + 1).and_then(|next| headers.get(next)));
        let mut segment = Segment::new(header, salt, Arc::new(file));
        let name = segment.name();
        let io = |e: io::Error| OpenError::io(&dir, format!("read {name}"), e);
        let scanned = scan(&mut segment, seal).map_err(io)?;
        chain.synced = scanned.synced;
        if seal.is_some() && !scanned.reopened {
            let reason = match scanned.stop {
                Stop::Sealed => {
                    chain.index.push(segment);
                    continue;
                }
                Stop::Broken(reason) => reason,
                Stop::Clean => "records are missing",
            };
            damage.push(corrupt(&segment, reason.to_string()));
            chain.index.segments.clear();
            continue;
        }
        // This is the last segment of the log: a broken record may be a torn write.
        if access == Access::Own && disk.planted() != Some(Planted::AnyEndIsTorn) {
            if let Some(at) = proof_of_loss(&segment).map_err(io)? {
                let reason = format!("{}, but the record at byte {at} was written later", text(&scanned));
                return Err(corrupt(&segment, reason));
            }
            let known = slot.durable_bytes(segment.number());
            if segment.end < known {
                let reason = format!("{}, but lockstep.id.log knows {known} bytes", text(&scanned));
                return Err(corrupt(&segment, reason));
            }
        }
        if let Stop::Broken(reason) = scanned.stop {
            chain.cut = Some(Cut { file: name.clone(), offset: segment.end, reason: reason.to_string() });
        }
        chain.index.push(segment);
        break;
    }
    Ok(chain)
}

/// The damage without what to do about it.
fn damage_text(error: &OpenError) -> String {
    match error {
        OpenError::Corrupt { file, offset, reason, .. } => {
            format!("{file} is corrupt at byte {offset} ({reason})")
        }
        OpenError::MissingSegment { file, reason } => format!("{file} is missing ({reason})"),
        error => error.to_string(),
    }
}

fn text(scanned: &Scanned) -> &'static str {
    match scanned.stop {
        Stop::Broken(reason) => reason,
        Stop::Clean | Stop::Sealed => "the records end",
    }
}

fn header_error(dir: &str, name: &str, error: HeadError) -> OpenError {
    let reason = match error {
        HeadError::Io(e) => return OpenError::io(dir, format!("read {name}"), e),
        HeadError::Header(HeaderError::Newer(found)) => {
            return OpenError::NewerFormat { file: name.to_string(), found, supported: FORMAT_VERSION };
        }
        HeadError::Header(HeaderError::Magic) => "no segment header",
        HeadError::Header(HeaderError::Checksum) => "wrong checksum of the header",
        HeadError::Header(HeaderError::Length) => "impossible numbers in the header",
        HeadError::Base => "wrong checksum of the base",
    };
    OpenError::Corrupt { file: name.to_string(), offset: 0, intact_to: 0, reason: reason.to_string() }
}

/// The segments of the log, oldest first: from the highest number back, each names the one before. They begin above the
/// damage, if there is any: a missing one joins it.
fn chain_of<F>(
    headers: &BTreeMap<u64, Head<F>>,
    slot: &Slot,
    damage: &mut Vec<OpenError>,
) -> Result<Vec<u64>, OpenError> {
    let mut live = Vec::new();
    let mut at = headers.keys().next_back().copied();
    while let Some(number) = at {
        live.push(number);
        let prev = headers.get(&number).map_or(0, |(h, _, _)| h.prev_number);
        if prev == 0 || prev < slot.floor() || number == slot.floor() {
            break;
        }
        let missing = || OpenError::MissingSegment {
            file: segment_name(prev),
            reason: format!("{} continues it", segment_name(number)),
        };
        if prev >= number {
            return Err(missing());
        }
        if !headers.contains_key(&prev) {
            // One with a damaged header is reported already.
            if damage.is_empty() {
                damage.push(missing());
            }
            break;
        }
        at = Some(prev);
    }
    live.reverse();
    debug_assert!(live.is_sorted(), "segments are in order");
    Ok(live)
}

/// Fails unless the log reaches as far as `lockstep.id.log` says. `trimmed`: it begins above the floor, for a known
/// reason.
fn check_complete<F>(index: &Index<F>, slot: &Slot, live: &[u64], trimmed: bool) -> Result<(), OpenError> {
    let missing = |number, reason: &str| {
        Err(OpenError::MissingSegment { file: segment_name(number), reason: reason.to_string() })
    };
    let first = index.segments.first().map_or(0, Segment::number);
    let started_over = index.segments.first().is_some_and(|s| s.header.prev_number == 0);
    let floor = slot.floor();
    if floor != 0 && first != floor && !(first > floor && (started_over || trimmed)) {
        return missing(floor, "lockstep.id.log says that the log begins with it");
    }
    let highest = live.last().copied().unwrap_or(0);
    if slot.durable_segment() > highest {
        return missing(slot.durable_segment(), "lockstep.id.log says that it had been written");
    }
    Ok(())
}

/// Why a record was not shown.
enum Unshown {
    Unread(ReadError),
    Refused(String),
}

impl From<ReadError> for Unshown {
    fn from(error: ReadError) -> Unshown {
        Unshown::Unread(error)
    }
}

/// Shows the visitor the log from its first base on.
pub(crate) fn replay<D: Disk>(
    reader: &LogReader<D>,
    dir: &str,
    visitor: &mut dyn FnMut(Replay) -> Result<(), String>,
) -> Result<(), OpenError> {
    for segment in reader.segments() {
        let base = Replay::Base {
            index: segment.first_index - 1,
            term: segment.prev_term,
            base: segment.base.clone(),
        };
        visitor(base).map_err(OpenError::Refused)?;
        debug_assert!(segment.first_index <= segment.last_index + 1);
        let shown = reader.visit(segment.first_index, segment.last_index, |record| {
            visitor(Replay::Record(record)).map_err(Unshown::Refused)
        });
        shown.map_err(|unshown| match unshown {
            Unshown::Refused(why) => OpenError::Refused(why),
            Unshown::Unread(error) => read_error(dir, error),
        })?;
    }
    Ok(())
}

fn read_error(dir: &str, error: ReadError) -> OpenError {
    match error {
        ReadError::Corrupt { file, offset, index } => OpenError::Corrupt {
            file,
            offset,
            intact_to: index.saturating_sub(1),
            reason: "it changed while it was read".to_string(),
        },
        ReadError::Io { .. } | ReadError::Trimmed { .. } => {
            OpenError::io(dir, "read the log", io::Error::other(error.to_string()))
        }
    }
}

/// The number of quarantined sets of files that are kept.
const SETS_KEPT: u64 = 2;

/// Quarantines a damaged log: renames all its files, durably. So the evidence stays, and the next [`crate::Log::open`]
/// begins a new log under a new member id. Of earlier quarantined sets only the last one is kept. Returns the prefix of the
/// new names.
///
/// # Errors
/// [`OpenError`]: another process has the log open, or the disk has failed. A further call continues.
pub fn quarantine<D: Disk>(disk: &D) -> Result<String, OpenError> {
    let dir = disk.describe();
    let io = |e| OpenError::io(&dir, "set the damaged log aside", e);
    let _lock = disk.lock().map_err(io)?.ok_or_else(|| OpenError::Locked { dir: dir.clone() })?;
    let names = disk.list().map_err(io)?;
    // The id goes first: after a crash the remaining files belong to no member.
    let mut files: Vec<&String> =
        names.iter().filter(|n| **n == ID_FILE || segment_number(n).is_some()).collect();
    files.sort_by_key(|name| **name != ID_FILE);
    let prefix = set_aside(disk, files).map_err(io)?;
    for name in names.iter().filter(|n| [ID_TMP, SEGMENT_TMP, SPARE_FILE].contains(&n.as_str())) {
        disk.remove(name).map_err(io)?;
    }
    disk.sync_dir().map_err(io)?;
    Ok(prefix)
}

/// Renames the files to a new quarantined set, durably and in this order, and removes old sets of the same kind: of whole
/// logs, which have an identity, or of segments, the last [`SETS_KEPT`] stay. Returns the prefix of the new names.
pub(crate) fn set_aside<'a, D: Disk>(
    disk: &D,
    files: impl IntoIterator<Item = &'a String>,
) -> io::Result<String> {
    let names = disk.list()?;
    let set_of = |name: &str| name.strip_prefix(QUARANTINED)?.split('.').next()?.parse::<u64>().ok();
    let number = names.iter().filter_map(|name| set_of(name)).max().unwrap_or(0) + 1;
    let prefix = format!("{QUARANTINED}{number}");
    let is_whole = |set: u64| names.contains(&format!("{QUARANTINED}{set}.id.log"));
    let mut is_new_whole = false;
    for name in files {
        is_new_whole |= name == ID_FILE;
        let rest = name.strip_prefix("lockstep.").unwrap_or(name);
        disk.rename(name, &format!("{prefix}.{rest}"))?;
        disk.sync_dir()?;
    }
    let mut sets: Vec<u64> = names.iter().filter_map(|name| set_of(name)).collect();
    sets.retain(|set| is_whole(*set) == is_new_whole);
    sets.sort_unstable();
    sets.dedup();
    // The new set is one of those that stay.
    sets.truncate((sets.len() + 1).saturating_sub(SETS_KEPT as usize));
    for name in names.iter().filter(|name| set_of(name).is_some_and(|set| sets.contains(&set))) {
        disk.remove(name)?;
    }
    disk.sync_dir()?;
    Ok(prefix)
}
