//! Whether the binlog of another primary continues a copy.
//!
//! The files are others, so transactions are compared by their GTIDs, each domain for itself: a parallel replica orders
//! domains differently. In each domain the new primary must have the copy's last transaction, and before it none that the
//! copy does not have. Then the copy is what the new primary has replicated, perhaps without the end. A server that left out
//! transactions before the last one, by a filter or on request, is not noticed.
//!
//! A server that was built from a backup has a domain in no binlog file if nothing was written there since. As a stock primary
//! does for its replicas, [`SuccessorScan::end`] then believes its `gtid_slave_pos`, if that is the copy's last transaction.
//!
//! A server whose data differ is refused: one that was never told of an acknowledged transaction, and a former primary
//! that has transactions which were never acknowledged.

use std::fmt;

use bytes::Bytes;

use super::chunk::UNLOGGED_MAX;
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
    /// Its binlog ends without the copy's last transaction of a domain.
    Missing {
        /// The transaction.
        last: Gtid,
        /// The last one of this domain in its binlog that the copy has.
        logged: Option<Gtid>,
        /// The last one of this domain that the server has applied as a replica.
        applied: Option<Gtid>,
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
            Self::Missing { last, logged, applied } => {
                let text = |gtid: &Option<Gtid>| gtid.map_or("nothing".to_owned(), |gtid| gtid.to_string());
                write!(
                    f,
                    "in domain {} this copy ends with {last}, its binlog with {}, and its gtid_slave_pos with {}. Promote a \
                     server that has {last}, and that has had log_slave_updates=ON",
                    last.domain,
                    text(logged),
                    text(applied)
                )
            }
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
    /// The last transactions that the server has applied as a replica: its `gtid_slave_pos` before the first event.
    applied: ReplicaState,
    /// In each domain, the last transaction that the binlog names and the copy has.
    logged: ReplicaState,
    /// In domains of which `logged` has none: the first transaction that the copy does not have. It may be the server's own
    /// after all that the copy has.
    own: ReplicaState,
    /// The events that begin the first file.
    begin: Vec<Bytes>,
    group: Group,
}

impl SuccessorScan {
    /// Begins a file, for a copy with these transactions. `applied` is the server's `gtid_slave_pos`, read before.
    pub fn new(copy: StreamState, applied: ReplicaState) -> SuccessorScan {
        SuccessorScan {
            copy,
            missing: None,
            applied,
            logged: ReplicaState::default(),
            own: ReplicaState::default(),
            begin: Vec::new(),
            group: Group::default(),
        }
    }

    /// The events that begin the first file: a later connection must read the same ones.
    pub fn begin(&self) -> &[Bytes] {
        &self.begin
    }

    /// The binlog has ended. Returns those of the copy's last transactions that the server has, although its binlog names
    /// none of their domains that the copy has.
    ///
    /// # Errors
    /// [`SuccessorError`]: the primary cannot take over.
    pub fn end(&self) -> Result<Vec<Gtid>, SuccessorError> {
        // Each file has a Gtid_list.
        let missing = self.missing.as_ref().ok_or(SuccessorError::Damaged(DecodeError::Short))?;
        let mut unlogged = Vec::new();
        for last in missing.iter() {
            if !self.may_be_unlogged(last) || unlogged.len() == UNLOGGED_MAX {
                return Err(self.lacks(last));
            }
            unlogged.push(last);
        }
        Ok(unlogged)
    }

    /// The server has not shown that it has this transaction.
    fn lacks(&self, last: Gtid) -> SuccessorError {
        let (logged, applied) = (self.logged.get(last.domain), self.applied.get(last.domain));
        SuccessorError::Missing { last, logged, applied }
    }

    /// Whether the server may have applied this transaction before its binlog began.
    fn may_be_unlogged(&self, last: Gtid) -> bool {
        self.logged.get(last.domain).is_none() && self.applied.get(last.domain) == Some(last)
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
            self.logged.set(*gtid);
            if missing.get(gtid.domain) == Some(*gtid) {
                missing.remove(gtid.domain);
            }
        }
        self.continues(missing)
    }

    fn transaction(&mut self, gtid: Gtid) -> Result<Continues, SuccessorError> {
        let Some(mut missing) = self.missing.take() else { return Ok(Continues::Maybe) };
        if let Some(last) = missing.get(gtid.domain) {
            let own = self.own.get(gtid.domain);
            if self.has(gtid) {
                if let Some(gtid) = own {
                    return Err(SuccessorError::NotCopied { gtid, last });
                }
                self.logged.set(gtid);
            } else if own.is_none() {
                // A replica counts on behind the last transaction.
                if self.logged.get(last.domain).is_some() || gtid.seqno <= last.seqno {
                    return Err(SuccessorError::NotCopied { gtid, last });
                }
                if !self.may_be_unlogged(last) {
                    return Err(self.lacks(last));
                }
                self.own.set(gtid);
            }
            if gtid == last {
                missing.remove(gtid.domain);
            }
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
        scan_applied(copy, "", files)
    }

    /// As [`scan`], of a server with this `gtid_slave_pos`.
    fn scan_applied(
        copy: &str,
        applied: &str,
        files: &[Vec<Vec<u8>>],
    ) -> (SuccessorScan, Result<Continues, SuccessorError>) {
        let copy = StreamState::from_list(&gtids(copy));
        let mut scan = SuccessorScan::new(copy, applied.parse().unwrap());
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
        let (missing, result) = scan("0-1-9 3-4-5", &[file("0-1-5", "0-1-9", Checksum::Crc32)]);
        assert_eq!(result, Ok(Continues::Maybe));
        let (last, logged, applied) = (gtid("3-4-5"), None, None);
        assert_eq!(missing.end(), Err(SuccessorError::Missing { last, logged, applied }));
        // Not even a Gtid_list.
        let (empty, _) = scan("0-1-9", &[]);
        assert_eq!(empty.end(), Err(SuccessorError::Damaged(DecodeError::Short)));
    }

    #[test]
    fn order_between_domains_is_free() {
        let copy = "0-1-7 3-1-4 0-1-8 3-1-5 0-1-9";
        for transactions in [
            "0-1-7 0-1-8 0-1-9 3-1-4 3-1-5",
            "3-1-4 3-1-5 0-1-7 0-1-8 0-1-9",
            "3-1-4 0-1-7 0-1-8 3-1-5 0-1-9 0-2-10",
            // Own ones of one domain before the last copied one of the other.
            "0-1-7 0-1-8 0-1-9 0-2-10 3-1-4 3-1-5 3-2-6",
        ] {
            assert_eq!(result(copy, "0-1-6 3-1-3", transactions), Ok(Continues::Yes), "{transactions}");
        }
        // The file's begin is after a part of one domain, and before all of the other.
        assert_eq!(result(copy, "0-1-9", "3-1-4 3-1-5"), Ok(Continues::Yes));
        // Within a domain, nothing of its own may come before.
        let refused = result(copy, "0-1-6 3-1-3", "0-1-7 0-1-8 0-1-9 3-1-4 3-2-6 3-1-5").unwrap_err();
        assert_eq!(refused, SuccessorError::NotCopied { gtid: gtid("3-2-6"), last: gtid("3-1-5") });
        // One domain is missing at its end.
        let (scan, result) = scan(copy, &[file("0-1-6 3-1-3", "3-1-4 0-1-7 0-1-8 0-1-9", Checksum::Crc32)]);
        assert_eq!(result, Ok(Continues::Maybe));
        let refused = scan.end().unwrap_err().to_string();
        let expected = "in domain 3 this copy ends with 3-1-5, its binlog with 3-1-4, and its gtid_slave_pos with nothing.";
        assert!(refused.starts_with(expected), "{refused}");
    }

    #[test]
    fn domain_of_a_backup_counts_if_nothing_was_logged_since() {
        let end = |applied: &str, before: &str, transactions: &str| {
            let files = [file(before, transactions, Checksum::Crc32)];
            let (scan, result) = scan_applied("0-1-9 3-4-5", applied, &files);
            result.and_then(|continues| match continues {
                Continues::Maybe => scan.end(),
                other => panic!("{other:?}"),
            })
        };
        let unlogged = |gtid: &str| Ok(gtids(gtid));
        assert_eq!(end("0-1-9,3-4-5", "", "0-1-8 0-1-9"), unlogged("3-4-5"));
        assert_eq!(end("0-1-9,3-4-5", "", ""), unlogged("0-1-9 3-4-5"));
        // It has written already.
        assert_eq!(end("0-1-9,3-4-5", "", "3-2-6 0-1-9 0-2-10 3-2-7"), unlogged("3-4-5"));
        let (last, three) = (gtid("3-4-5"), |text: &str| Some(gtid(text)));
        for (applied, transactions, logged) in [
            // It is behind, ahead, or has another history.
            ("3-4-4", "0-1-9", None),
            ("3-4-6", "0-1-9", None),
            ("3-7-5", "0-1-9", None),
            ("0-1-9", "0-1-9", None),
            // It has logged one of them, and not the last one: log_slave_updates was off for a while.
            ("3-4-5", "3-4-4 0-1-9", three("3-4-4")),
        ] {
            let applied_gtid = applied.parse::<ReplicaState>().unwrap().get(3);
            let missing = SuccessorError::Missing { last, logged, applied: applied_gtid };
            assert_eq!(end(applied, "", transactions), Err(missing), "{applied} {transactions}");
        }
        // It has written behind the copy's end, and neither its binlog nor its position has that.
        let missing = SuccessorError::Missing { last, logged: None, applied: None };
        assert_eq!(end("0-1-9", "", "3-2-6 0-1-9"), Err(missing));
        // Its list names one before the last.
        let missing = SuccessorError::Missing { last, logged: three("3-4-4"), applied: three("3-4-5") };
        assert_eq!(end("3-4-5", "3-4-4", "0-1-9"), Err(missing));
        // Own ones before others of the copy, or with a number that the copy has passed.
        let own = |gtid| Err(SuccessorError::NotCopied { gtid, last });
        assert_eq!(end("3-4-5", "", "3-2-6 3-4-4 0-1-9"), own(gtid("3-2-6")));
        assert_eq!(end("3-4-5", "", "3-2-6 3-2-7 3-4-5 0-1-9"), own(gtid("3-2-6")));
        assert_eq!(end("3-4-5", "", "3-2-4 0-1-9"), own(gtid("3-2-4")));
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
