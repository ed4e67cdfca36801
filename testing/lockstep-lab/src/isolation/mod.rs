//! A checker for isolation anomalies, after Elle (Kingsbury and Alvaro, 2020) and Adya's definitions.
//!
//! Clients append unique elements to lists, and read lists, several operations to a transaction. The final state of a list
//! is the order of its versions. So the writer and the readers of each version are known, and the transactions'
//! dependencies form a graph:
//!
//! - *ww* leads from the writer of a version to the writer of the next one;
//! - *wr* leads from the writer of the last version read to its reader;
//! - *rw* leads from a reader to the writer of the first version that it has not seen.
//!
//! Each transaction has two nodes, its start (its snapshot) and its commit. A cycle in that graph is a history that no
//! order of snapshots and commits explains: snapshot isolation does not hold. Edges for real time find stale reads. A
//! [`Claim`] says which anomalies break a promise; the others are reported as allowed.
//!
//! Registers are checked as lists of their versions ([`registers::as_lists`]).

mod cycles;
mod dependencies;
pub mod edn;
mod graph;
pub mod registers;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::BTreeMap;
use std::fmt;

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// An element, unique in the history, was put at the list's end.
    Append {
        /// The list.
        key: u64,
        /// The element.
        element: u64,
    },
    /// The result of a read of a list.
    Read {
        /// The list.
        key: u64,
        /// Its elements.
        list: Vec<u64>,
    },
    /// The result of a read of a register.
    Value {
        /// The register.
        key: u64,
        /// How many writes it has had.
        version: u64,
        /// Its value, the last of those writes; `None` if there was no write.
        element: Option<u64>,
    },
}

/// How a transaction ended, as its client knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// It was acknowledged.
    Committed,
    /// It did not commit, and will not.
    Aborted,
    /// The client received no answer, or one that leaves it open.
    Unknown,
}

/// One transaction as its client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Its operations, in order.
    pub ops: Vec<Op>,
    /// How it ended.
    pub completion: Completion,
    /// The error that ended it, if there was one.
    pub error: Option<String>,
    /// The client; its transactions follow each other.
    pub client: u64,
    /// The member that it ran on, counted from 0.
    pub member: usize,
    /// Whether it ran with `wsrep_sync_wait`.
    pub sync_wait: bool,
    /// When its first statement was sent, in µs.
    pub invoked: u64,
    /// When the client received the last answer, or gave up, in µs.
    pub completed: u64,
}

impl Transaction {
    fn writes(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::Append { .. }))
    }

    /// When the transaction was acknowledged.
    fn acknowledged(&self) -> Option<u64> {
        (self.completion == Completion::Committed).then_some(self.completed)
    }
}

/// The final elements of each list.
pub type Lists = BTreeMap<u64, Vec<u64>>;

/// The promise that a history is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    snapshot_isolation: bool,
}

impl Claim {
    /// Snapshot isolation for all transactions. A transaction's snapshot contains all that its own member acknowledged
    /// before it began, and with `wsrep_sync_wait` all that any member acknowledged before.
    pub fn snapshot_isolation() -> Claim {
        Claim { snapshot_isolation: true }
    }

    /// MariaDB's REPEATABLE READ without `innodb_snapshot_isolation`: the same snapshots, but for read-only transactions
    /// only. The reads of writing transactions may miss versions that these transactions then build on.
    pub fn repeatable_read() -> Claim {
        Claim { snapshot_isolation: false }
    }
}

/// The kinds of anomalies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Anomaly {
    /// An acknowledged element is not in the final state.
    Lost,
    /// An element is in a list twice.
    Duplicated,
    /// An element was written by no transaction.
    Invented,
    /// A part of a transaction is in the final state, and another part is not.
    Torn,
    /// An element of an aborted transaction was read, or is in the final state (G1a).
    AbortedRead,
    /// A version was read that its writer itself wrote over (G1b).
    IntermediateRead,
    /// A read is no prefix of the final list.
    Reordered,
    /// A transaction does not see its own write.
    Internal,
    /// A cycle of ww (G0).
    G0,
    /// A cycle of ww and wr (G1c).
    G1c,
    /// A transaction overwrites a version that it has not seen, of a list that it has read (P4).
    LostUpdate,
    /// A read sees one write of a transaction and misses another one.
    FracturedRead,
    /// Any other cycle with exactly one rw (G-single).
    GSingle,
    /// A cycle with several rw of which no two are adjacent (G-nonadjacent).
    GNonadjacent,
    /// A read misses a write that was acknowledged before it began.
    StaleRead,
    /// Any other cycle that needs real time.
    RealTime,
    /// A cycle with adjacent rw (G2-item): write skew, which snapshot isolation allows.
    G2,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Anomaly::Lost => "lost write",
            Anomaly::Duplicated => "duplicated write",
            Anomaly::Invented => "invented write",
            Anomaly::Torn => "torn transaction",
            Anomaly::AbortedRead => "aborted read (G1a)",
            Anomaly::IntermediateRead => "intermediate read (G1b)",
            Anomaly::Reordered => "incompatible order",
            Anomaly::Internal => "own write not seen (internal)",
            Anomaly::G0 => "write cycle (G0)",
            Anomaly::G1c => "circular information flow (G1c)",
            Anomaly::LostUpdate => "lost update (P4)",
            Anomaly::FracturedRead => "fractured read",
            Anomaly::GSingle => "read skew (G-single)",
            Anomaly::GNonadjacent => "G-nonadjacent",
            Anomaly::StaleRead => "stale read",
            Anomaly::RealTime => "cycle in real time",
            Anomaly::G2 => "write skew (G2-item)",
        })
    }
}

/// One finding, with the evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of anomaly.
    pub anomaly: Anomaly,
    /// Whether the claim does not exclude it.
    pub allowed: bool,
    /// The evidence in the history. `T5` is the transaction with index 5.
    pub text: String,
}

impl Finding {
    fn broken(anomaly: Anomaly, text: String) -> Finding {
        Finding { anomaly, allowed: false, text }
    }
}

/// The index of a transaction in the history.
type Id = usize;

/// All anomalies of a history of lists. `last` are the lists in the end, when no transaction is under way any more.
pub fn check(history: &[Transaction], last: &Lists, claim: Claim) -> Vec<Finding> {
    let mut findings = Vec::new();
    let versions = versions::Versions::new(history, last, &mut findings);
    let reads = versions.reads(&mut findings);
    let dependencies = dependencies::Dependencies::new(&versions, &reads);
    cycles::find(history, &dependencies, claim, &mut findings);
    findings
}
