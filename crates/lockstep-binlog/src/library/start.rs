//! Where a consumer starts.
//!
//! A replica names one GTID per domain. The stream must have had exactly these transactions: domain, server id and seqno
//! are all compared. The server id tells branches apart: after a branch, the stream has other transactions under the
//! seqnos that the old branch went on to use.
//!
//! Holes are legal, because the log has entries without an event group. A start inside a hole goes on with the next group,
//! provided that the group before the hole comes earlier in the replica's own history.
//!
//! In the copy of a primary's binlog, the seqnos of a domain need not ascend: with `gtid_strict_mode=OFF`, a primary that also
//! replicates from others in that domain writes their seqnos between its own. Only those of one server ascend there, so
//! the search compares seqnos of the same server, as MariaDB's does.

use super::scan::Groups;
use super::{Library, LibraryError, Position, StartError};
use crate::event::MAGIC;
use crate::gtid::{Gtid, ReplicaState, StreamState};

/// A consumer's start, and then its place in the stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// Where to read from: the begin of a file's first event, or of an event group, or the end of the stream.
    pub at: Position,
    /// The state of the stream before the next group.
    pub state: StreamState,
    /// Groups that the consumer has already, although they come later: in each of these domains, all up to this GTID.
    pub skip: ReplicaState,
    /// The consumer's state, if the first group of each domain must be the next one for it.
    pub(crate) seamless: Option<ReplicaState>,
    /// See `State::any_order`.
    pub(crate) any_order: bool,
}

impl Start {
    /// Whether the consumer reads the file from its first byte.
    pub fn is_file_start(&self) -> bool {
        self.at.offset == MAGIC.len() as u64
    }

    /// Passes the next group of the stream; whether the consumer has it already.
    ///
    /// # Errors
    /// [`StartError::OtherHistory`] if the consumer has another group in its place, [`StartError::Hole`] if it may lack those
    /// before.
    pub fn pass(&mut self, group: Gtid) -> Result<bool, StartError> {
        if let Some(replica) = &self.seamless
            && self.state.last(group.domain).is_none()
            && replica.get(group.domain).map_or(0, |has| has.seqno).saturating_add(1) < group.seqno
        {
            return Err(StartError::Hole { replica: replica.clone(), first: group });
        }
        let has = match self.skip.get(group.domain) {
            None => false,
            Some(wanted) if group == wanted => {
                self.skip.remove(group.domain);
                true
            }
            Some(wanted) if self.comes_before(group, wanted) => true,
            Some(wanted) => {
                // A hole, unless the seqnos are equal. The wanted server id must own it: it is the one before or after.
                let before = self.state.last(group.domain).map(|before| before.server == wanted.server);
                let is_hole = match self.any_order {
                    // Groups of other servers before it may come later in the replica's history.
                    true => before != Some(false),
                    false => before == Some(true) || group.server == wanted.server,
                };
                if group.seqno == wanted.seqno || !is_hole {
                    return Err(StartError::OtherHistory { gtid: wanted, stream: group });
                }
                self.skip.remove(group.domain);
                false
            }
        };
        self.state.update(group);
        Ok(has)
    }

    /// Whether a group is before the wanted one of its domain, if the stream has both.
    fn comes_before(&self, group: Gtid, wanted: Gtid) -> bool {
        group.seqno < wanted.seqno || (self.any_order && group.server != wanted.server)
    }
}

/// A file's entry, as far as a search needs it.
struct FileView {
    number: u64,
    size: u64,
    before: StreamState,
    header_end: u64,
}

impl Library {
    /// Where a replica with this state starts. An empty state means the first event of the stream.
    ///
    /// # Errors
    /// [`StartError`] if the stream does not go on from that state, or no longer has its next events.
    pub fn position_of(&self, replica: &ReplicaState) -> Result<Start, StartError> {
        let wanted = self.check(replica)?;
        let file = self.file_for(&wanted, replica)?;
        let seamless = self.continues_another().then(|| replica.clone());
        self.find(file, wanted, seamless)
    }

    /// Compares the state with the stream's end. Returns the domains that the stream has.
    ///
    /// A replica of several sources names the domains of all of them. Domains that the stream does not have are left out,
    /// unless there is no other.
    fn check(&self, replica: &ReplicaState) -> Result<ReplicaState, StartError> {
        let state = self.lock();
        let mut wanted = ReplicaState::default();
        for gtid in replica.iter() {
            let covered = state.covered.get(&gtid.domain).copied();
            let Some(last) = state.stream.last(gtid.domain).or(covered) else { continue };
            wanted.set(gtid);
            if covered.is_some_and(|covered| covered.server == gtid.server && gtid.seqno <= covered.seqno) {
                // Whether an earlier branch has that seqno is found out by the search.
                if state.stream.last(gtid.domain).is_none_or(|last| gtid.seqno > last.seqno) {
                    continue;
                }
            }
            match state.stream.seqno_of(gtid.domain, gtid.server) {
                Some(seqno) if gtid.seqno <= seqno => {}
                _ if gtid.seqno > last.seqno && gtid.server == last.server => {
                    return Err(StartError::BeyondEnd { gtid, last });
                }
                Some(seqno) => return Err(StartError::OtherHistory { gtid, stream: Gtid { seqno, ..gtid } }),
                None => return Err(StartError::OtherHistory { gtid, stream: last }),
            }
        }
        if wanted.is_empty() && !replica.is_empty() {
            let (replica, stream) = (replica.clone(), state.stream.clone());
            return Err(StartError::OtherDomains { replica, stream });
        }
        Ok(wanted)
    }

    /// The last file before which the replica has everything.
    fn file_for(&self, wanted: &ReplicaState, replica: &ReplicaState) -> Result<FileView, StartError> {
        let state = self.lock();
        let Some(oldest) = state.files.front() else { return Err(StartError::Empty) };
        let file =
            state.files.iter().rev().find(|file| has_all_before(wanted, &file.before, state.any_order));
        match file {
            Some(file) => Ok(FileView {
                number: file.number,
                size: file.size,
                before: file.before.clone(),
                header_end: file.header_end,
            }),
            None => Err(StartError::Purged { replica: replica.clone(), begin: oldest.before.clone() }),
        }
    }

    /// Finds the first group of a file that the replica does not have. From then on it skips what `Start::skip` names.
    fn find(
        &self,
        file: FileView,
        wanted: ReplicaState,
        seamless: Option<ReplicaState>,
    ) -> Result<Start, StartError> {
        let mut skip = wanted;
        // A domain whose last group before the file is the replica's last one needs no search.
        for last in file.before.lasts() {
            if skip.get(last.domain) == Some(last) {
                skip.remove(last.domain);
            }
        }
        let path = self.path(file.number);
        let checksum = self.lock().file(file.number).map(|f| f.checksum);
        let checksum = checksum.ok_or_else(|| {
            StartError::Library(LibraryError::Purged {
                file: self.file_name(file.number),
                oldest: self.file_name(file.number + 1),
            })
        })?;
        let first = Position { file: file.number, offset: MAGIC.len() as u64 };
        let (offset, state) = self.mark_before(&file, &skip);
        // The whole file is read if its first group is missing.
        let mut any = offset > file.header_end;
        let any_order = self.lock().any_order;
        let mut start = Start { at: first, state, skip, seamless, any_order };
        let mut groups = Groups::new(&path, offset, file.size, checksum)?;
        while let Some((found, gtid)) = groups.next()? {
            let Some(gtid) = gtid.map(|g| g.gtid) else { continue };
            let before = start.state.clone();
            let has = start.pass(gtid)?;
            if !has {
                let at = if any { Position { file: file.number, offset: found.offset } } else { first };
                return Ok(Start { at, state: before, ..start });
            }
            any = true;
        }
        // The replica has all of this file. Domains that are left go on in a later file, or end in a hole.
        if any {
            start.at.offset = file.size;
        }
        Ok(start)
    }

    /// The last mark before which the replica has everything.
    fn mark_before(&self, file: &FileView, skip: &ReplicaState) -> (u64, StreamState) {
        let state = self.lock();
        let marks = state.file(file.number).map(|f| f.marks.as_slice()).unwrap_or_default();
        let mark = marks.iter().rev().find(|mark| {
            mark.offset <= file.size
                && mark.state.lasts().all(|last| {
                    // Either the domain has no group between the file's begin and the mark, or the replica has them.
                    file.before.last(last.domain) == Some(last)
                        || skip
                            .get(last.domain)
                            .is_some_and(|wanted| is_beyond(wanted, &mark.state, last, state.any_order))
                })
        });
        match mark {
            Some(mark) => (mark.offset, mark.state.clone()),
            None => (file.header_end, file.before.clone()),
        }
    }

    /// Where a consumer starts that names a file and a position in it. An empty name means the oldest file.
    ///
    /// # Errors
    /// [`StartError`] if there is no such file, or no event begins at that position.
    pub fn position_in(&self, name: &str, offset: u64) -> Result<Start, StartError> {
        let file = {
            let state = self.lock();
            let file = match (name.is_empty(), self.number_of(name)) {
                (true, _) => state.files.front(),
                (false, Some(number)) => state.file(number),
                (false, None) => None,
            };
            match (file, state.files.front(), state.files.back()) {
                (Some(file), ..) => FileView {
                    number: file.number,
                    size: file.size,
                    before: file.before.clone(),
                    header_end: file.header_end,
                },
                (None, None, _) if name.is_empty() => return Err(StartError::Empty),
                (None, oldest, newest) => {
                    let range =
                        oldest.zip(newest).map(|(a, b)| (self.file_name(a.number), self.file_name(b.number)));
                    return Err(StartError::NoFile { file: name.chars().take(256).collect(), range });
                }
            }
        };
        let at = Position { file: file.number, offset };
        let skip = ReplicaState::default();
        if offset == MAGIC.len() as u64 {
            return Ok(Start { at, state: file.before, skip, seamless: None, any_order: false });
        }
        let state = self.state_at(&file, offset)?;
        Ok(Start { at, state, skip, seamless: None, any_order: false })
    }

    /// The state of the stream before an event of a file.
    fn state_at(&self, file: &FileView, offset: u64) -> Result<StreamState, StartError> {
        let none = || StartError::NoEvent { file: self.file_name(file.number), offset, end: file.size };
        if offset < MAGIC.len() as u64 || offset > file.size {
            return Err(none());
        }
        let (begin, mut state, checksum) = {
            let library = self.lock();
            let entry = library.file(file.number).ok_or_else(none)?;
            let mark = entry.marks.iter().rev().find(|mark| mark.offset <= offset);
            let (begin, state) = match mark {
                Some(mark) => (mark.offset, mark.state.clone()),
                None => (MAGIC.len() as u64, file.before.clone()),
            };
            (begin, state, entry.checksum)
        };
        if begin == offset {
            return Ok(state);
        }
        let mut groups = Groups::new(&self.path(file.number), begin, file.size, checksum)?;
        while let Some((found, gtid)) = groups.next()? {
            if let Some(gtid) = gtid {
                state.update(gtid.gtid);
            }
            if found.end() == offset {
                return Ok(state);
            }
            if found.end() > offset {
                break;
            }
        }
        Err(none())
    }
}

/// Whether a replica at `wanted` has everything of the stream before a file.
fn has_all_before(wanted: &ReplicaState, before: &StreamState, any_order: bool) -> bool {
    let has = |last: Gtid| {
        wanted
            .get(last.domain)
            .is_some_and(|wanted| wanted == last || is_beyond(wanted, before, last, any_order))
    };
    before.lasts().all(has)
}

/// Whether a group comes after this state of the stream. `last` is the last one of its domain there.
fn is_beyond(wanted: Gtid, state: &StreamState, last: Gtid, any_order: bool) -> bool {
    match any_order {
        true => state.seqno_of(wanted.domain, wanted.server).is_none_or(|seqno| seqno < wanted.seqno),
        false => wanted.seqno > last.seqno,
    }
}
