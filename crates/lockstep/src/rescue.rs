//! `lockstep log --rescue FILE --sql`: transactions that a member had answered ahead of the cluster, as SQL to review and
//! to run on the cluster again.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lockstep_node::core::types::{Entry, EntryKind, MemberId, Uuid};
use lockstep_node::core::writeset::{WriteSet, assemble, flags};
use lockstep_rows::{comment, preamble, sql, utc};

/// Takes the entries of a rescue file in their order, and gives SQL.
#[derive(Default)]
pub(crate) struct Rescue {
    /// Pieces of large write-sets, by the life of the member that made them.
    pieces: BTreeMap<(MemberId, u64), Vec<Entry>>,
    /// Fragments of transactions that have not ended, by their origin and number.
    fragments: BTreeMap<(Uuid, u64), Fragments>,
    /// Transactions that cannot be given.
    refused: Vec<String>,
    transactions: u64,
}

#[derive(Default)]
struct Fragments {
    data: Vec<u8>,
    /// Why it cannot be given.
    trouble: Option<String>,
}

impl Rescue {
    /// The lines before the first transaction.
    pub(crate) fn head(file: &str) -> String {
        let mut out = comment(&format!("What {file} holds, in the order in which it was committed."));
        for line in [
            "Look through it, take out what is not to count, and give the rest to one member of the cluster:",
            "mariadb --database= < FILE. It stops at the first error; what stands before it is committed then.",
            "Lines that begin with ### say what the BINLOG statement behind them does, with columns by number.",
        ] {
            out += &comment(line);
        }
        out + &preamble()
    }

    /// One entry: its transaction as SQL, where it ends one.
    pub(crate) fn take(&mut self, entry: &Entry, origin: Option<&str>) -> Option<String> {
        let life = (entry.proposal.member, entry.proposal.incarnation);
        match entry.kind {
            EntryKind::Piece => {
                self.pieces.entry(life).or_default().push(entry.clone());
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
        let given = match WriteSet::parse(&entry.payload) {
            Err(e) => Err(format!("it is damaged: it {e}")),
            Ok(set) => {
                let own = match set.pieces {
                    Some(_) => self.pieces.remove(&life).unwrap_or_default(),
                    None => Vec::new(),
                };
                self.whole(set, &own)?
            }
        };
        self.transactions += 1;
        let mut out = format!("\n{}", comment(&about));
        match given.and_then(|data| sql(&data)) {
            Ok(text) if text.is_empty() => out += &comment("It changes nothing."),
            Ok(text) => out += &text,
            Err(why) => {
                out += &comment(&format!("This one cannot be given as SQL: {why}"));
                let _ = writeln!(
                    out,
                    "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the transaction with seqno {} cannot be given as SQL: see the \
                     comment in the file, and take this line out to go on without it';",
                    entry.seqno
                );
                self.refused.push(format!("seqno {}: {why}", entry.seqno));
            }
        }
        Some(out)
    }

    /// The data of the transaction that a write-set ends; `None` where it does not end one, or where it is rolled back.
    fn whole(&mut self, set: WriteSet, pieces: &[Entry]) -> Option<Result<Vec<u8>, String>> {
        let meta = set.meta;
        let transaction = (meta.source, meta.trx);
        if meta.has(flags::ROLLBACK) {
            self.fragments.remove(&transaction);
            return None;
        }
        let mut parts = self.fragments.remove(&transaction).unwrap_or_else(|| Fragments {
            // A statement in total order is whole in any case.
            trouble: (!meta.has(flags::TRX_START | flags::ISOLATION))
                .then(|| "its first fragments are not in this file".to_owned()),
            ..Fragments::default()
        });
        let pieces: Vec<_> = pieces.iter().map(|piece| piece.payload.clone()).collect();
        match assemble(set, &pieces) {
            Ok(set) => parts.data.extend_from_slice(&set.data),
            Err(e) => parts.trouble = Some(e.to_string()),
        }
        if !meta.has(flags::TRX_END | flags::ISOLATION) {
            self.fragments.insert(transaction, parts);
            return None;
        }
        Some(parts.trouble.map_or(Ok(parts.data), Err))
    }

    /// The last lines, and an error if some transactions could not be printed.
    pub(crate) fn end(self, file: &str) -> (String, Result<(), String>) {
        if self.transactions == 0 {
            let text = format!(
                "{file} holds no transaction that anybody was told is committed, at most parts of some: there is nothing to \
                 give to the cluster."
            );
            return (comment(&text), Ok(()));
        }
        let mut out = comment(&format!("The end: {} transactions.", self.transactions));
        if !self.fragments.is_empty() {
            let open = self.fragments.len();
            out +=
                &comment(&format!("{open} more had not ended, so nobody was told that they are committed."));
        }
        let result = match self.refused.as_slice() {
            [] => Ok(()),
            refused => Err(format!(
                "{} of {} transactions cannot be given as SQL ({})",
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
    use lockstep_node::core::types::ProposalId;
    use lockstep_node::core::writeset::{DataKind, Meta, WriteSetBuilder, split};

    /// A statement in a log: it stands for any data that can be told from others.
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
        let entry = |(kind, payload)| Entry { index: 1, term: 1, kind, seqno: 7, proposal, time: 0, payload };
        pieces.chain([(kind, split.last)]).map(entry).collect()
    }

    fn given(rescue: &mut Rescue, entries: Vec<Entry>) -> Vec<String> {
        entries.iter().filter_map(|entry| rescue.take(entry, Some("n1"))).collect()
    }

    const WHOLE: u32 = flags::TRX_START | flags::TRX_END;

    #[test]
    fn pieces_and_fragments_are_printed_as_one_transaction() {
        let mut rescue = Rescue::default();
        let data = statement("CREATE TABLE t (a INT)");
        let expected = "\n# seqno 7, committed on n1 about 1970-01-01 00:00:00 UTC\n\
             EXECUTE IMMEDIATE 'CREATE TABLE t (a INT)';\n";
        for max_piece in [1 << 20, 10] {
            let text = given(&mut rescue, entries(EntryKind::TotalOrder, WHOLE, 1, &data, max_piece));
            assert_eq!(text, [expected]);
        }
        let (first, rest) = data.split_at(11);
        assert!(
            given(&mut rescue, entries(EntryKind::WriteSet, flags::TRX_START, 2, first, 1 << 20)).is_empty()
        );
        // Another one that is rolled back, and one that does not end.
        for (bits, trx) in [(flags::TRX_START, 3), (flags::ROLLBACK, 3), (flags::TRX_START, 4)] {
            assert!(given(&mut rescue, entries(EntryKind::WriteSet, bits, trx, &data, 1 << 20)).is_empty());
        }
        assert_eq!(
            given(&mut rescue, entries(EntryKind::WriteSet, flags::TRX_END, 2, rest, 1 << 20)),
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
        assert!(given(&mut rescue, pieces).is_empty());
        let (text, result) = rescue.end("x.log");
        assert!(text.starts_with("# x.log holds no transaction") && text.lines().count() == 1, "{text}");
        assert_eq!(result, Ok(()));
    }

    #[test]
    fn incomplete_output_ends_with_error_statement() {
        let mut rescue = Rescue::default();
        let data = statement("CREATE TABLE t (a INT)");
        let fragment = given(&mut rescue, entries(EntryKind::WriteSet, flags::TRX_END, 2, &data, 1 << 20));
        assert!(fragment[0].contains("its first fragments are not in this file"), "{}", fragment[0]);
        let mut pieces = entries(EntryKind::WriteSet, WHOLE, 3, &data, 10);
        pieces.remove(0);
        let pieces = given(&mut rescue, pieces);
        let damaged = given(&mut rescue, entries(EntryKind::WriteSet, WHOLE, 4, &data[..20], 1 << 20));
        for text in [&fragment[0], &pieces[0], &damaged[0]] {
            assert!(text.contains("\nSIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = '"), "{text}");
            assert!(!text.contains("EXECUTE"), "{text}");
        }
        assert!(
            rescue
                .end("x.log")
                .1
                .unwrap_err()
                .starts_with("3 of 3 transactions cannot be given as SQL (seqno 7: ")
        );
    }
}
