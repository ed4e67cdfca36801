//! The rescue files that a member finds at its start: transactions it may have acknowledged, and the cluster lacks.

use crate::api::{Level, Logger};
use crate::records;
use crate::terms::Terms;
use lockstep_core::{Entry, EntryKind, Seqno};
use lockstep_log::{Disk, Replay, read_rescue, rescue_number};

/// Whether an entry of this kind is a transaction or statement of a client.
pub(crate) fn is_transaction(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::WriteSet | EntryKind::TotalOrder)
}

/// A rescue file that was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    /// Its name.
    pub(crate) name: String,
    /// The seqnos of the first and the last transaction in it, if there is one.
    pub(crate) seqnos: Option<(Seqno, Seqno)>,
    /// How many transactions.
    pub(crate) transactions: u64,
}

impl Kept {
    /// Of a file with these entries.
    pub(crate) fn new(name: String, entries: &[Entry]) -> Kept {
        // Views and the like between them are no transactions, but have seqnos.
        let seqnos: Vec<_> =
            entries.iter().filter(|entry| is_transaction(entry.kind)).map(|entry| entry.seqno).collect();
        let ends = seqnos.first().copied().zip(seqnos.last().copied());
        Kept { name, seqnos: ends, transactions: seqnos.len() as u64 }
    }

    /// A line for the error log.
    pub(crate) fn line(&self, terms: &Terms) -> String {
        let Kept { name, seqnos, transactions } = self;
        match seqnos {
            Some((first, last)) => format!(
                "{transactions} {} (seqnos {first} to {last}) that the cluster does not have were perhaps acknowledged to their \
                 clients under a weak commit.policy: they are kept in {name}; {}",
                terms.counted, terms.rescue
            ),
            None => format!(
                "parts of {} that the cluster does not have are kept in {name}: nobody was told that they are committed; move \
                 the file away",
                terms.entries
            ),
        }
    }
}

/// Counts of rescue files and their transactions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rescued {
    /// The files' names, oldest first.
    pub(crate) files: Vec<String>,
    /// The transactions in those that can be read.
    pub(crate) transactions: u64,
    /// The errors of files that cannot be read.
    pub(crate) troubles: Vec<String>,
}

impl Rescued {
    /// Looks through a log folder.
    pub(crate) fn find<D: Disk>(disk: &D) -> std::io::Result<Rescued> {
        let mut found = Rescued::default();
        let mut numbered: Vec<(u64, String)> =
            disk.list()?.into_iter().filter_map(|name| Some((rescue_number(&name)?, name))).collect();
        numbered.sort_unstable();
        for (_, name) in numbered {
            let mut count = |replay: Replay| {
                if let Replay::Record(record) = replay {
                    let index = record.index;
                    let entry = records::entry(record).map_err(|error| format!("entry {index} {error}"))?;
                    found.transactions += u64::from(is_transaction(entry.kind));
                }
                Ok(())
            };
            if let Err(error) = read_rescue(disk, &name, &mut count) {
                found.troubles.push(error.to_string());
            }
            found.files.push(name);
        }
        Ok(found)
    }

    /// Counts the files at a member's start, and logs them.
    pub(crate) fn of_start<D: Disk>(disk: &D, logger: &Logger, terms: &Terms) -> Rescued {
        let found = Rescued::find(disk).unwrap_or_else(|error| {
            logger(Level::Warn, &format!("rescue files cannot be looked for: {error}"));
            Rescued::default()
        });
        if let Some(line) = found.line(terms) {
            logger(Level::Warn, &line);
        }
        found
    }

    /// A line for the error log, if there are rescue files.
    pub(crate) fn line(&self, terms: &Terms) -> Option<String> {
        let Rescued { files, transactions, troubles } = self;
        if files.is_empty() {
            return None;
        }
        let names = files.join(", ");
        let mut line = match transactions {
            0 if troubles.is_empty() => format!(
                "parts of {} that the cluster does not have are kept in {names}: nobody was told that they are committed; \
                 move the files away",
                terms.entries
            ),
            _ => format!(
                "{transactions} {} that the cluster does not have were perhaps acknowledged to their clients: they are kept in \
                 {names}; {}",
                terms.counted, terms.rescue
            ),
        };
        for trouble in troubles {
            line += "; not all can be read: ";
            line += trouble;
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::FrontEnd;
    use lockstep_core::members::Membership;
    use lockstep_core::snapshot::StateSnapshot;
    use lockstep_core::{EntryHeader, ProposalId};
    use lockstep_log::{Log, MemDisk, Options, Record, Reset};

    #[test]
    fn rescue_files_are_counted_at_start() {
        let disk = MemDisk::new();
        let terms = Terms::of(FrontEnd::Database);
        assert_eq!(Rescued::find(&disk).unwrap(), Rescued::default());
        assert_eq!(Rescued::default().line(terms), None);
        let options = Options { new_member_id: [7; 16], ..Options::default() };
        let (mut log, _) = Log::open(disk.clone(), options, &mut |_| Ok(())).unwrap();
        let kinds = [EntryKind::WriteSet, EntryKind::Noop, EntryKind::TotalOrder];
        let record = |(at, kind): (usize, &EntryKind)| {
            let index = at as u64 + 1;
            let proposal = ProposalId::default();
            let header = EntryHeader { index, term: 1, kind: *kind, seqno: 1, proposal, time: 0 };
            records::record(&Entry::new(header, b"row"))
        };
        let records: Vec<Record> = kinds.iter().enumerate().map(record).collect();
        let base = StateSnapshot::genesis(lockstep_core::Uuid([1; 16]), 0, Membership::default()).to_bytes();
        for _ in 0..2 {
            log.rescue(Reset { base: base.clone(), index: 0, term: 0 }, &records).unwrap();
        }
        let found = Rescued::find(&disk).unwrap();
        assert_eq!(found.files, ["lockstep.rescue.1.log", "lockstep.rescue.2.log"]);
        assert_eq!((found.transactions, found.troubles.len()), (4, 0));
        assert!(found.line(terms).is_some_and(|line| line.starts_with("4 transactions")));
        let line = found.line(Terms::of(FrontEnd::Device)).unwrap();
        assert!(line.starts_with("4 entries of the device that") && !line.contains("transaction"), "{line}");
        let parts = Rescued { transactions: 0, ..found };
        assert!(parts.line(terms).is_some_and(|line| line.starts_with("parts of transactions")));
        let line = parts.line(Terms::of(FrontEnd::Device));
        assert!(line.is_some_and(|line| line.starts_with("parts of writes")));
    }

    #[test]
    fn line_of_a_written_file_counts_transactions_only() {
        let kept = |kinds: &[EntryKind]| {
            let entry = |(at, kind): (usize, &EntryKind)| {
                let (index, seqno, proposal) = (at as u64 + 1, at as i64 + 11, ProposalId::default());
                Entry::new(EntryHeader { index, term: 1, kind: *kind, seqno, proposal, time: 0 }, &[])
            };
            let entries: Vec<Entry> = kinds.iter().enumerate().map(entry).collect();
            Kept::new("lockstep.rescue.1.log".into(), &entries)
        };
        let (database, device) = (Terms::of(FrontEnd::Database), Terms::of(FrontEnd::Device));
        let two = kept(&[EntryKind::View, EntryKind::WriteSet, EntryKind::TotalOrder, EntryKind::View]);
        assert_eq!(two.transactions, 2);
        let line = two.line(database);
        assert!(
            line.starts_with("2 transactions (seqnos 12 to 13) that") && line.contains("enter again"),
            "{line}"
        );
        let line = two.line(device);
        assert!(line.starts_with("2 entries of the device (seqnos 12 to 13) that"), "{line}");
        assert!(!line.contains("transaction") && !line.contains("enter again"), "{line}");
        let none = kept(&[EntryKind::Piece]);
        assert_eq!(none.transactions, 0);
        assert!(none.line(database).starts_with("parts of transactions"));
        assert!(none.line(device).starts_with("parts of writes"));
    }
}
