//! Whether the binlog of another primary continues a copy.
//!
//! The files are others, so transactions are compared by their GTIDs. In each domain the new primary must have the copy's
//! last transaction, and before it none that the copy does not have. Then the copy is what the new primary has replicated,
//! perhaps without the end. A server that left out transactions before the last one, by a filter or on request, is not noticed.
//!
//! A server whose data differ is refused: one that was never told of an acknowledged transaction, and a former primary
//! that has transactions which were never acknowledged.

use std::fmt;

use bytes::Bytes;

use crate::codec::DecodeError;
use crate::event::{Checksum, FormatDescription, Group, GtidList, flag, kind, split};
use crate::gtid::{Gtid, ReplicaState, StreamState};

/// Why the binlog does not continue the copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuccessorError {
    /// An event is damaged, or none.
    Damaged(DecodeError),
    /// The file's events have no checksums.
    NoChecksums,
    /// A transaction that the copy does not have comes before one that it has.
    NotCopied {
        /// The transaction.
        gtid: Gtid,
        /// The copy's last one of this domain.
        last: Gtid,
    },
}

impl fmt::Display for SuccessorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(why) => write!(f, "an event of its binlog {why}"),
            Self::NoChecksums => f.write_str(
                "its binlog has no checksums: set binlog_checksum=CRC32 there, then FLUSH BINARY LOGS",
            ),
            Self::NotCopied { gtid, last } => write!(
                f,
                "transaction {gtid} comes before {last} there, and this copy does not have it: it was never acknowledged"
            ),
        }
    }
}

impl std::error::Error for SuccessorError {}

/// The result of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Continues {
    /// Not known yet.
    Maybe,
    /// The copy goes on with this file.
    Yes,
    /// Not with this file: the binlog has this transaction before it, and the copy does not have it.
    NotFrom(Gtid),
}

/// Reads a file of another primary from its begin, and those that follow.
#[derive(Debug)]
pub struct SuccessorScan {
    /// All that the copy has.
    copy: StreamState,
    /// The copy's last transactions that have not appeared yet. `None` before the file's Gtid_list.
    missing: Option<ReplicaState>,
    /// The events that begin the first file.
    begin: Vec<Bytes>,
    group: Group,
}

impl SuccessorScan {
    /// Begins a file, for a copy with these transactions.
    pub fn new(copy: StreamState) -> SuccessorScan {
        SuccessorScan { copy, missing: None, begin: Vec::new(), group: Group::default() }
    }

    /// The events that begin the first file: a later connection must read the same ones.
    pub fn begin(&self) -> &[Bytes] {
        &self.begin
    }

    /// The first of the copy's last transactions that has not appeared yet.
    pub fn missing(&self) -> Option<Gtid> {
        match &self.missing {
            None => self.copy.lasts().next(),
            Some(missing) => missing.iter().next(),
        }
    }

    /// Passes the next event as the primary sends it.
    ///
    /// # Errors
    /// [`SuccessorError`]: the primary cannot take over.
    pub fn pass(&mut self, event: &[u8]) -> Result<Continues, SuccessorError> {
        let (header, _) = split(event, Checksum::Crc32).map_err(SuccessorError::Damaged)?;
        let is_in_file = header.end_pos != 0 && header.flags & flag::ARTIFICIAL == 0;
        match header.kind {
            kind::HEARTBEAT => {}
            _ if !is_in_file => {}
            kind::FORMAT_DESCRIPTION => {
                let format = FormatDescription::parse(event).map_err(SuccessorError::Damaged)?;
                if format.checksum == Checksum::None {
                    return Err(SuccessorError::NoChecksums);
                }
                if self.begin.is_empty() {
                    self.begin.push(Bytes::copy_from_slice(event));
                }
                // A server that was killed leaves a group open.
                self.group = Group::default();
            }
            kind::GTID_LIST if self.missing.is_none() => {
                let list = GtidList::parse(event, Checksum::Crc32).map_err(SuccessorError::Damaged)?;
                self.begin.push(Bytes::copy_from_slice(event));
                return Ok(self.begin_with(&list.gtids));
            }
            _ => {
                let begun = self.group.pass(header.kind, event, Checksum::Crc32);
                if let Some(begun) = begun.map_err(SuccessorError::Damaged)? {
                    return self.transaction(begun.gtid);
                }
            }
        }
        Ok(Continues::Maybe)
    }

    /// Takes the GTIDs before the file.
    fn begin_with(&mut self, before: &[Gtid]) -> Continues {
        if let Some(other) = before.iter().find(|gtid| !self.has(**gtid)) {
            return Continues::NotFrom(*other);
        }
        let mut missing = self.copy.to_replica();
        for gtid in before {
            if missing.get(gtid.domain) == Some(*gtid) {
                missing.remove(gtid.domain);
            }
        }
        self.continues(missing)
    }

    fn transaction(&mut self, gtid: Gtid) -> Result<Continues, SuccessorError> {
        let Some(mut missing) = self.missing.take() else { return Ok(Continues::Maybe) };
        let last = missing.get(gtid.domain);
        match last {
            Some(last) if gtid == last => missing.remove(gtid.domain),
            Some(last) if !self.has(gtid) => return Err(SuccessorError::NotCopied { gtid, last }),
            _ => {}
        }
        Ok(self.continues(missing))
    }

    fn continues(&mut self, missing: ReplicaState) -> Continues {
        let is_complete = missing.is_empty();
        self.missing = Some(missing);
        if is_complete { Continues::Yes } else { Continues::Maybe }
    }

    /// Whether the copy has this transaction: seqnos of one server id ascend.
    fn has(&self, gtid: Gtid) -> bool {
        self.copy.seqno_of(gtid.domain, gtid.server).is_some_and(|last| gtid.seqno <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{EventWriter, GtidEvent, Header, Stamp, gtid_flag, heartbeat};

    fn gtid(text: &str) -> Gtid {
        text.parse().unwrap()
    }

    fn gtids(text: &str) -> Vec<Gtid> {
        text.split_whitespace().map(gtid).collect()
    }

    /// The events of a file with these transactions.
    fn file(before: &str, transactions: &str, checksum: Checksum) -> Vec<Vec<u8>> {
        let stamp = Stamp { timestamp: 7, server_id: 12 };
        let mut writer = EventWriter::at(4);
        writer.format_description(&FormatDescription {
            timestamp: 1,
            server_id: 12,
            version: "10.11".into(),
            created: 1,
            checksum,
        });
        writer.gtid_list(stamp, &gtids(before));
        for gtid in gtids(transactions) {
            let flags = gtid_flag::TRANSACTIONAL;
            writer.gtid(7, &GtidEvent { gtid, flags, commit_id: None, extra: vec![0; 6] });
            writer.event(stamp, kind::TABLE_MAP, 0, &[&[7; 30]]);
            writer.xid(stamp, gtid.seqno);
        }
        let bytes = writer.finish().unwrap();
        let (mut rest, mut events) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let (event, after) = rest.split_at(Header::parse(rest).unwrap().length as usize);
            events.push(event.to_vec());
            rest = after;
        }
        events
    }

    fn scan(copy: &str, files: &[Vec<Vec<u8>>]) -> (SuccessorScan, Result<Continues, SuccessorError>) {
        let mut scan = SuccessorScan::new(StreamState::from_list(&gtids(copy)));
        scan.pass(&heartbeat(12, "bin.000001", 4, Checksum::Crc32)).unwrap();
        for event in files.iter().flatten() {
            match scan.pass(event) {
                Ok(Continues::Maybe) => {}
                end => return (scan, end),
            }
        }
        (scan, Ok(Continues::Maybe))
    }

    fn result(copy: &str, before: &str, transactions: &str) -> Result<Continues, SuccessorError> {
        scan(copy, &[file(before, transactions, Checksum::Crc32)]).1
    }

    #[test]
    fn copys_last_transactions_must_be_there() {
        assert_eq!(result("0-1-9", "0-1-5", "0-1-6 0-1-9 0-2-10"), Ok(Continues::Yes));
        assert_eq!(result("0-1-9", "0-1-9", ""), Ok(Continues::Yes));
        assert_eq!(result("0-1-9", "", "0-1-8 0-1-9"), Ok(Continues::Yes));
        assert_eq!(result("0-1-9 3-4-5", "0-1-9", "0-2-10 3-4-5"), Ok(Continues::Yes));
        // A copy without a transaction.
        assert_eq!(result("", "", "0-2-1"), Ok(Continues::Yes));
        let (missing, end) = scan("0-1-9 3-4-5", &[file("0-1-5", "0-1-9", Checksum::Crc32)]);
        assert_eq!((end, missing.missing()), (Ok(Continues::Maybe), Some(gtid("3-4-5"))));
        assert_eq!(
            SuccessorScan::new(StreamState::from_list(&gtids("0-1-9"))).missing(),
            Some(gtid("0-1-9"))
        );
    }

    #[test]
    fn last_transaction_may_be_in_a_later_file() {
        let mut first = file("0-1-5", "0-1-6", Checksum::Crc32);
        // The server was killed in the middle of a transaction.
        first.pop();
        let second = file("0-1-5", "0-1-6 0-1-9", Checksum::Crc32);
        let (scan, result) = scan("0-1-9", &[first.clone(), second]);
        assert_eq!(result, Ok(Continues::Yes));
        assert_eq!(scan.begin(), &first[..2]);
    }

    #[test]
    fn transactions_before_the_file_must_be_in_the_copy() {
        for (copy, before, other) in
            [("0-1-9", "0-1-10", "0-1-10"), ("0-1-9", "0-3-1 0-1-9", "0-3-1"), ("", "0-1-1", "0-1-1")]
        {
            assert_eq!(result(copy, before, ""), Ok(Continues::NotFrom(gtid(other))), "{copy} {before}");
        }
    }

    #[test]
    fn transaction_that_was_never_acknowledged_is_refused() {
        // A former primary with transactions 10 and 11, which then became a replica of its successor.
        let refused = result("0-1-9 0-2-10", "0-1-5", "0-1-9 0-1-10 0-1-11 0-2-10").unwrap_err();
        assert_eq!(refused, SuccessorError::NotCopied { gtid: gtid("0-1-10"), last: gtid("0-2-10") });
        assert!(refused.to_string().contains("0-1-10 comes before 0-2-10"), "{refused}");
        // Behind all that was acknowledged it is the new primary's own.
        assert_eq!(result("0-1-9", "0-1-5", "0-1-9 0-1-10"), Ok(Continues::Yes));
        // Another domain.
        assert_eq!(result("0-1-9", "0-1-5", "7-7-7 0-1-9"), Ok(Continues::Yes));
    }

    #[test]
    fn damaged_events_and_missing_checksums_are_refused() {
        let mut events = file("0-1-5", "0-1-9", Checksum::Crc32);
        events[2][30] ^= 1;
        assert!(matches!(scan("0-1-9", &[events]).1, Err(SuccessorError::Damaged(_))));
        let mut events = file("0-1-5", "", Checksum::Crc32);
        let algorithm = events[0].len() - 5;
        events[0][algorithm] = 0;
        crate::event::tests::repair(&mut events[0]);
        assert_eq!(scan("0-1-9", &[events]).1, Err(SuccessorError::NoChecksums));
    }
}
