//! From the cluster's log to the event groups of the binlog stream.
//!
//! The stream is a function of the committed log alone: instances that read the same log write the same bytes, whenever
//! they joined.
//!
//! - A GTID is domain – server id – seqno. The server id is derived from the history ([`server_id_of`]), so that a branch
//!   of the history has GTIDs of its own.
//! - A write-set that passed certification becomes a transaction. One that failed, or changed nothing, leaves a hole.
//! - The fragments of a streaming transaction wait for its end.
//! - A statement in total order waits for its result ([`Stream::on_result`]), and everything after it waits too.
//! - Transactions that may be applied in parallel share a commit id ([`commit_groups`]).

mod commit_groups;
mod group;
mod source_events;

pub use group::Group;
pub(crate) use source_events::first_words;

use crate::event::gtid_flag;
use crate::gtid::Gtid;
use bytes::Bytes;
use commit_groups::CommitGroups;
use group::Body;
use lockstep_core::writeset::{WriteSet, flags};
use lockstep_core::{Seqno, Uuid, ViewUuid};
use source_events::{Source, SourceError, SourceEvent, source_events};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// The bytes of open streaming transactions that are kept in memory, all together.
pub const STREAMS_MAX: usize = 2 << 30;
/// The bytes of entries that may wait for a statement's result.
pub const WAITING_MAX: usize = 1 << 30;

/// The server id of the events of this history. All instances derive the same one. Two histories of one cluster have the
/// same one with a probability of 2⁻³¹.
pub fn server_id_of(history: Uuid) -> u32 {
    let id = crc32fast::hash(&history.0) & 0x7fff_ffff;
    // 0 and 1 are the ids that servers have by default.
    if id < 2 { id + 2 } else { id }
}

/// Why the stream cannot go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamError {
    /// An entry's data are no events.
    Source(Seqno, SourceError),
    /// A streaming transaction began before the first entry of this instance.
    BeganBefore(Seqno),
    /// The open streaming transactions are too large.
    StreamsTooLarge(Seqno),
    /// The result of this statement is missing.
    NoResult(Seqno),
    /// An event group is too large for a binlog's positions.
    GroupTooLarge(Seqno),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamError::Source(seqno, error) => write!(f, "the entry at seqno {seqno} {error}"),
            StreamError::BeganBefore(seqno) => write!(
                f,
                "the streaming transaction that ends at seqno {seqno} began before the first entry of this stream"
            ),
            StreamError::StreamsTooLarge(seqno) => write!(
                f,
                "the open streaming transactions take more than {} MiB at seqno {seqno}",
                STREAMS_MAX >> 20
            ),
            StreamError::NoResult(seqno) => write!(
                f,
                "the result of the statement at seqno {seqno} is not in the log, and {} MiB of entries wait for it",
                WAITING_MAX >> 20
            ),
            StreamError::GroupTooLarge(seqno) => {
                write!(f, "the transaction at seqno {seqno} is larger than a binlog file may be")
            }
        }
    }
}

impl std::error::Error for StreamError {}

/// A committed entry, in the order of the log.
#[derive(Clone, Debug)]
pub enum Item {
    /// A transaction's write-set, or a fragment of one.
    WriteSet {
        /// Its seqno.
        seqno: Seqno,
        /// Whether it passed certification.
        pass: bool,
        /// The write-set, complete.
        writeset: WriteSet,
    },
    /// A statement in total order.
    Statement {
        /// Its seqno.
        seqno: Seqno,
        /// False if its origin was not allowed to write: no server executes it.
        pass: bool,
        /// The statement's events.
        data: Bytes,
    },
    /// A view: the streaming transactions of members that it does not go on with are rolled back.
    View {
        /// Its seqno.
        seqno: Seqno,
        /// The view UUIDs of the members whose streaming transactions go on.
        go_on: BTreeSet<ViewUuid>,
    },
}

impl Item {
    /// Its seqno.
    pub fn seqno(&self) -> Seqno {
        match self {
            Item::WriteSet { seqno, .. } | Item::Statement { seqno, .. } | Item::View { seqno, .. } => *seqno,
        }
    }

    /// About the bytes that it takes.
    fn len(&self) -> usize {
        match self {
            Item::WriteSet { writeset, .. } => writeset.data.len() + writeset.key_bytes(),
            Item::Statement { data, .. } => data.len(),
            Item::View { .. } => 0,
        }
    }
}

/// The fragments of an open streaming transaction.
#[derive(Debug)]
struct Open {
    /// The seqno of the first fragment.
    first: Seqno,
    data: Vec<Bytes>,
}

impl Open {
    fn len(&self) -> usize {
        self.data.iter().map(Bytes::len).sum()
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Stream {
    domain: u32,
    server_id: u32,
    /// Entries that wait for the result of the first one, a statement.
    waiting: VecDeque<Item>,
    waiting_bytes: usize,
    results: BTreeMap<Seqno, Option<String>>,
    open: BTreeMap<(ViewUuid, u64), Open>,
    open_bytes: usize,
    commit_groups: CommitGroups,
    /// The last entry that has become a group or a hole.
    done: Seqno,
    /// Groups up to here are in the files, or no part of them.
    written: Seqno,
}

impl Stream {
    /// A stream of this history's entries after `position`. The caller does not need the groups up to `written`: their
    /// fragments may be missing.
    pub fn new(domain: u32, history: Uuid, position: Seqno, written: Seqno) -> Stream {
        Stream {
            domain,
            server_id: server_id_of(history),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            results: BTreeMap::new(),
            open: BTreeMap::new(),
            open_bytes: 0,
            commit_groups: CommitGroups::default(),
            done: position,
            written,
        }
    }

    /// The server id of its events.
    pub fn server_id(&self) -> u32 {
        self.server_id
    }

    /// The domain of its GTIDs.
    pub fn domain(&self) -> u32 {
        self.domain
    }

    /// The last entry that has become a group or a hole.
    pub fn done(&self) -> Seqno {
        self.done
    }

    /// The position from which a new process must read the log to write the same: before the first fragment of the oldest
    /// open streaming transaction, and before the block of the next commit id. At most [`Stream::done`].
    pub fn resume_position(&self) -> Seqno {
        let oldest = self.open.values().map(|open| open.first - 1).min();
        oldest.unwrap_or(self.done).min(commit_groups::begin_of_block(self.done + 1) - 1)
    }

    /// The statement whose result the stream waits for.
    pub fn waits_for(&self) -> Option<Seqno> {
        self.waiting.front().map(Item::seqno)
    }

    /// Takes the next entry of the log. Returns the groups that are complete now, in order.
    ///
    /// # Errors
    /// [`StreamError`]; the stream cannot be used any more.
    pub fn on_item(&mut self, item: Item) -> Result<Vec<Group>, StreamError> {
        self.waiting_bytes += item.len();
        self.waiting.push_back(item);
        let groups = self.advance()?;
        match self.waits_for() {
            Some(seqno) if self.waiting_bytes > WAITING_MAX => Err(StreamError::NoResult(seqno)),
            _ => Ok(groups),
        }
    }

    /// Takes the result of a statement: its error, or `None` if it succeeded. The first result of a statement counts.
    /// Returns the groups that are complete now, in order.
    ///
    /// # Errors
    /// As [`Stream::on_item`].
    pub fn on_result(&mut self, seqno: Seqno, error: Option<String>) -> Result<Vec<Group>, StreamError> {
        // A result follows its statement in the log.
        let last = self.waiting.back().map_or(self.done, Item::seqno);
        if seqno > self.done && seqno <= last {
            self.results.entry(seqno).or_insert(error);
        }
        self.advance()
    }

    fn advance(&mut self) -> Result<Vec<Group>, StreamError> {
        let mut groups = Vec::new();
        while let Some(item) = self.waiting.pop_front() {
            let seqno = item.seqno();
            debug_assert!(seqno > self.done, "entries ascend");
            if let Item::Statement { pass: true, .. } = item
                && !self.results.contains_key(&seqno)
            {
                self.waiting.push_front(item);
                break;
            }
            self.waiting_bytes -= item.len();
            groups.extend(self.take(item)?);
            self.done = seqno;
        }
        self.results.retain(|seqno, _| *seqno > self.done);
        Ok(groups)
    }

    fn take(&mut self, item: Item) -> Result<Option<Group>, StreamError> {
        match item {
            Item::WriteSet { seqno, pass, writeset } => self.take_writeset(seqno, pass, writeset),
            Item::Statement { seqno, pass: true, data } => {
                let error = self.results.remove(&seqno).flatten();
                self.take_statement(seqno, &data, error.as_deref())
            }
            Item::Statement { .. } => Ok(None),
            Item::View { go_on, .. } => {
                self.open.retain(|(source, _), _| go_on.contains(source));
                self.open_bytes = self.open.values().map(Open::len).sum();
                Ok(None)
            }
        }
    }

    /// Ends a streaming transaction. Returns its fragments' data.
    fn close(&mut self, key: &(ViewUuid, u64)) -> Vec<Bytes> {
        let Some(open) = self.open.remove(key) else { return Vec::new() };
        self.open_bytes -= open.len();
        open.data
    }

    fn take_writeset(
        &mut self,
        seqno: Seqno,
        pass: bool,
        writeset: WriteSet,
    ) -> Result<Option<Group>, StreamError> {
        let meta = writeset.meta;
        let key = (meta.source, meta.trx);
        let (begins, ends) = (meta.has(flags::TRX_START), meta.has(flags::TRX_END));
        if meta.has(flags::ROLLBACK) || !pass && !begins {
            // A fragment that failed certification rolls its transaction back.
            self.close(&key);
            return Ok(None);
        }
        if !pass {
            return Ok(None);
        }
        if begins && !ends {
            self.open.insert(key, Open { first: seqno, data: Vec::new() });
        }
        let is_streaming = !begins;
        if is_streaming && !self.open.contains_key(&key) {
            // It began before the position. Its group is in the files already, or it has none here.
            if ends && seqno > self.written {
                return Err(StreamError::BeganBefore(seqno));
            }
            if ends {
                self.commit_groups.alone(seqno);
            }
            return Ok(None);
        }
        if !ends {
            self.open_bytes += writeset.data.len();
            if let Some(open) = self.open.get_mut(&key) {
                open.data.push(writeset.data);
            }
            return match self.open_bytes > STREAMS_MAX {
                true => Err(StreamError::StreamsTooLarge(seqno)),
                false => Ok(None),
            };
        }
        let mut data = self.close(&key);
        data.push(writeset.data.clone());
        let mut events = Vec::new();
        for part in &data {
            events
                .extend(source_events(part, Source::Transaction).map_err(|e| StreamError::Source(seqno, e))?);
        }
        if events.is_empty() {
            return Ok(None);
        }
        let is_ddl = events.iter().any(SourceEvent::changes_schema);
        // The keys of a streaming transaction are in all of its fragments.
        let is_alone = is_ddl || is_streaming || meta.has(flags::PA_UNSAFE);
        let commit_id = match is_alone {
            true => self.commit_groups.alone(seqno),
            false => self.commit_groups.join(seqno, &writeset.keys().collect::<Vec<_>>()),
        };
        let flags = match (is_ddl, is_alone) {
            (true, _) => gtid_flag::DDL,
            (false, true) => gtid_flag::TRANSACTIONAL,
            (false, false) => gtid_flag::TRANSACTIONAL | gtid_flag::ALLOW_PARALLEL,
        };
        self.group(seqno, flags, commit_id, Body::Transaction(events)).map(Some)
    }

    fn take_statement(
        &mut self,
        seqno: Seqno,
        data: &[u8],
        error: Option<&str>,
    ) -> Result<Option<Group>, StreamError> {
        let mut events = source_events(data, Source::Statement).map_err(|e| StreamError::Source(seqno, e))?;
        let commit_id = self.commit_groups.alone(seqno);
        if events.iter().any(SourceEvent::is_for_one_server) {
            return Ok(None);
        }
        if let Some(error) = error {
            let code = error_code(error);
            let has_effect = events.iter().any(SourceEvent::may_have_effect_in_part);
            match (code, has_effect) {
                (Some(code), true) => events.iter_mut().for_each(|event| event.set_error_code(code)),
                _ => return Ok(None),
            }
        }
        if events.is_empty() {
            return Ok(None);
        }
        // `CREATE TABLE ... LIKE` of a temporary table has two statements.
        let group = match events.len() {
            1 => {
                self.group(seqno, gtid_flag::STANDALONE | gtid_flag::DDL, commit_id, Body::Statement(events))
            }
            _ => self.group(seqno, gtid_flag::DDL, commit_id, Body::Transaction(events)),
        };
        group.map(Some)
    }

    fn group(&self, seqno: Seqno, flags: u8, commit_id: u64, body: Body) -> Result<Group, StreamError> {
        let gtid = Gtid { domain: self.domain, server: self.server_id, seqno: seqno as u64 };
        let group = Group::new(gtid, flags, commit_id, body);
        match group.encoded_len() > group::LEN_MAX {
            true => Err(StreamError::GroupTooLarge(seqno)),
            false => Ok(group),
        }
    }
}

/// The number in a server's error text: `..., Error_code: 1051;`.
fn error_code(text: &str) -> Option<u16> {
    // Warnings may precede the error.
    let (_, rest) = text.rsplit_once("Error_code: ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok().filter(|code| *code != 0)
}

#[cfg(test)]
mod tests;
