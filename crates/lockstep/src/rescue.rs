//! `lockstep log --rescue FILE --sql`: prints transactions that a member acknowledged and the cluster lacks, as SQL. The
//! operator reviews the SQL and runs it on the cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lockstep_node::core::types::{Entry, EntryKind, MemberId, Uuid};
use lockstep_node::core::writeset::{WriteSet, assemble, flags};
use lockstep_rows::{comment, preamble, sql, utc};

/// Converts the entries of a rescue file, in their order, to SQL.
#[derive(Default)]
pub(crate) struct Rescue {
    /// Pieces of large write-sets, by the proposing member and its incarnation.
    pieces: BTreeMap<(MemberId, u64), Vec<Entry>>,
    /// Fragments of transactions that have not ended, by source and transaction number.
    fragments: BTreeMap<(Uuid, u64), Fragments>,
    /// Transactions that cannot be converted, each with the reason.
    refused: Vec<String>,
    transactions: u64,
}

#[derive(Default)]
struct Fragments {
    data: Vec<u8>,
    /// The reason why the transaction cannot be converted.
    error: Option<String>,
}

impl Rescue {
    /// The lines before the first transaction.
    pub(crate) fn head(file: &str) -> String {
        let mut out = comment(&format!("The transactions in {file}, in the order of their commits."));
        for line in [
            "Review them, delete those that the cluster must not apply, and run the rest on one member:",
            "mariadb --database= < FILE. The client stops at the first error; the transactions before it are committed.",
            "Lines that begin with ### describe the BINLOG statement that follows them, with columns by number.",
        ] {
            out += &comment(line);
        }
        out + &preamble()
    }

    /// Adds an entry. Returns SQL if the entry ends a transaction.
    pub(crate) fn add(&mut self, entry: &Entry, origin: Option<&str>) -> Option<String> {
        let incarnation = (entry.proposal.member, entry.proposal.incarnation);
        match entry.kind {
            EntryKind::Piece => {
                self.pieces.entry(incarnation).or_default().push(entry.clone());
                return None;
            }
            EntryKind::WriteSet | EntryKind::TotalOrder => {}
            _ => return None,
        }
        let about = format!(
            "seqno {}, committed on {} about {} UTC",
            entry.seqno,
            origin.unwrap_or("?"),
            utc(entry.time / 1_000_000)
        );
        let data = match WriteSet::parse(&entry.payload()) {
            Err(e) => Err(format!("it is damaged: the write-set {e}")),
            Ok(set) => {
                let own = match set.pieces {
                    Some(_) => self.pieces.remove(&incarnation).unwrap_or_default(),
                    None => Vec::new(),
                };
                self.assemble_transaction(set, &own)?
            }
        };
        self.transactions += 1;
        let mut out = format!("\n{}", comment(&about));
        match data.and_then(|data| sql(&data)) {
            Ok(text) if text.is_empty() => out += &comment("This transaction changes no rows."),
            Ok(text) => out += &text,
            Err(why) => {
                out += &comment(&format!("This transaction cannot be converted to SQL: {why}"));
                let _ = writeln!(
                    out,
                    "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the transaction with seqno {} cannot be converted to SQL: see \
                     the comment in the file; to skip the transaction, delete this line';",
                    entry.seqno
                );
                self.refused.push(format!("seqno {}: {why}", entry.seqno));
            }
        }
        Some(out)
    }

    /// The data of the transaction that a write-set ends. `None` if the write-set ends none, or rolls it back.
    fn assemble_transaction(&mut self, set: WriteSet, pieces: &[Entry]) -> Option<Result<Vec<u8>, String>> {
        let meta = set.meta;
        let transaction = (meta.source, meta.trx);
        if meta.has(flags::ROLLBACK) {
            self.fragments.remove(&transaction);
            return None;
        }
        let mut parts = self.fragments.remove(&transaction).unwrap_or_else(|| Fragments {
            // A statement in total order has no fragments.
            error: (!meta.has(flags::TRX_START | flags::ISOLATION))
                .then(|| "its first fragments are not in this file".to_owned()),
            ..Fragments::default()
        });
        let pieces: Vec<_> = pieces.iter().map(|piece| piece.payload()).collect();
        match assemble(set, &pieces) {
            Ok(set) => parts.data.extend_from_slice(&set.data),
            Err(e) => parts.error = Some(e.to_string()),
        }
        if !meta.has(flags::TRX_END | flags::ISOLATION) {
            self.fragments.insert(transaction, parts);
            return None;
        }
        Some(parts.error.map_or(Ok(parts.data), Err))
    }

    /// The last lines, and an error if some transactions could not be printed.
    pub(crate) fn end(self, file: &str) -> (String, Result<(), String>) {
        if self.transactions == 0 {
            let text = format!(
                "{file} holds no complete transaction, so no commit in it was acknowledged to a client. There is nothing to \
                 run on the cluster."
            );
            return (comment(&text), Ok(()));
        }
        let mut out = comment(&format!("The end: {} transactions.", self.transactions));
        if !self.fragments.is_empty() {
            let open = self.fragments.len();
            out += &comment(&format!(
                "{open} more had not ended, so their commits were not acknowledged to clients."
            ));
        }
        let result = match self.refused.as_slice() {
            [] => Ok(()),
            refused => Err(format!(
                "{} of {} transactions cannot be converted to SQL ({})",
                refused.len(),
                self.transactions,
                refused.join("; ")
            )),
        };
        (format!("\n{out}"), result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_node::core::types::{EntryHeader, ProposalId};
    use lockstep_node::core::writeset::{DataKind, Meta, WriteSetBuilder, split};

    /// The log event of a statement: any data that tests can tell apart.
    fn statement(text: &str) -> Vec<u8> {
        let mut event = vec![0u8; 19 + 13 + 1];
        event[4] = 2;
        event.extend(text.as_bytes());
        let len = event.len() as u32;
        event[9..13].copy_from_slice(&len.to_le_bytes());
        event
    }

    fn entries(kind: EntryKind, bits: u32, trx: u64, data: &[u8], max_piece: usize) -> Vec<Entry> {
        let meta = Meta { flags: bits, trx, ..Meta::default() };
        let mut builder = WriteSetBuilder::new();
        builder.append_data(DataKind::Ordered, data).unwrap();
        let split = split(&builder.finish(&meta), max_piece).unwrap();
        let pieces = split.pieces.into_iter().map(|piece| (EntryKind::Piece, piece));
        let proposal = ProposalId {
            member: MemberId::parse("00000000-0000-0000-0000-000000000001").unwrap(),
            ..ProposalId::default()
        };
        let header = |kind| EntryHeader { index: 1, term: 1, kind, seqno: 7, proposal, time: 0 };
        let all = pieces.chain([(kind, split.last)]);
        all.map(|(kind, payload)| Entry::new(header(kind), &payload)).collect()
    }

    fn convert(rescue: &mut Rescue, entries: Vec<Entry>) -> Vec<String> {
        entries.iter().filter_map(|entry| rescue.add(entry, Some("n1"))).collect()
    }

    const WHOLE: u32 = flags::TRX_START | flags::TRX_END;

    #[test]
    fn pieces_and_fragments_are_printed_as_one_transaction() {
        let mut rescue = Rescue::default();
        let data = statement("CREATE TABLE t (a INT)");
        let expected = "\n# seqno 7, committed on n1 about 1970-01-01 00:00:00 UTC\n\
             EXECUTE IMMEDIATE 'CREATE TABLE t (a INT)';\n";
        for max_piece in [1 << 20, 10] {
            let text = convert(&mut rescue, entries(EntryKind::TotalOrder, WHOLE, 1, &data, max_piece));
            assert_eq!(text, [expected]);
        }
        let (first, rest) = data.split_at(11);
        assert!(
            convert(&mut rescue, entries(EntryKind::WriteSet, flags::TRX_START, 2, first, 1 << 20))
                .is_empty()
        );
        // Transaction 3 is rolled back; transaction 4 does not end.
        for (bits, trx) in [(flags::TRX_START, 3), (flags::ROLLBACK, 3), (flags::TRX_START, 4)] {
            assert!(convert(&mut rescue, entries(EntryKind::WriteSet, bits, trx, &data, 1 << 20)).is_empty());
        }
        assert_eq!(
            convert(&mut rescue, entries(EntryKind::WriteSet, flags::TRX_END, 2, rest, 1 << 20)),
            [expected]
        );
        let (text, result) = rescue.end("x.log");
        assert!(text.contains("# The end: 3 transactions.\n# 1 more had not ended"), "{text}");
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn file_with_partial_transactions_prints_nothing() {
        let mut rescue = Rescue::default();
        let mut pieces = entries(EntryKind::WriteSet, WHOLE, 3, &statement("CREATE TABLE t (a INT)"), 10);
        pieces.pop();
        assert!(convert(&mut rescue, pieces).is_empty());
        let (text, result) = rescue.end("x.log");
        assert!(
            text.starts_with("# x.log holds no complete transaction") && text.lines().count() == 1,
            "{text}"
        );
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn incomplete_output_ends_with_error_statement() {
        let mut rescue = Rescue::default();
        let data = statement("CREATE TABLE t (a INT)");
        let fragment = convert(&mut rescue, entries(EntryKind::WriteSet, flags::TRX_END, 2, &data, 1 << 20));
        assert!(fragment[0].contains("its first fragments are not in this file"), "{}", fragment[0]);
        let mut pieces = entries(EntryKind::WriteSet, WHOLE, 3, &data, 10);
        pieces.remove(0);
        let pieces = convert(&mut rescue, pieces);
        let damaged = convert(&mut rescue, entries(EntryKind::WriteSet, WHOLE, 4, &data[..20], 1 << 20));
        for text in [&fragment[0], &pieces[0], &damaged[0]] {
            assert!(text.contains("\nSIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '"), "{text}");
            assert!(!text.contains("EXECUTE"), "{text}");
        }
        assert!(
            rescue
                .end("x.log")
                .1
                .unwrap_err()
                .starts_with("3 of 3 transactions cannot be converted to SQL (seqno 7: ")
        );
    }
}
