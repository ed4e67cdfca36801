//! The kinds of work for the clients of a run.

use std::fmt;
use std::str::FromStr;

/// The clients' work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// Inserts, a bank, causal reads, lists and registers.
    Mixed,
    /// Transactions that append to lists and read them.
    ListAppend,
    /// Transactions that write registers and read them.
    Register,
}

const ALL: [Workload; 3] = [Workload::Mixed, Workload::ListAppend, Workload::Register];

/// How many clients of each kind there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Clients {
    pub(super) inserts: usize,
    pub(super) banks: usize,
    pub(super) lists: usize,
    pub(super) registers: usize,
}

impl Workload {
    /// Its name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Mixed => "mixed",
            Workload::ListAppend => "list-append",
            Workload::Register => "register",
        }
    }

    /// The clients of a run. One client always inserts: its answers measure the outages.
    pub(super) fn clients(self, inserts: usize) -> Clients {
        match self {
            Workload::Mixed => Clients { inserts, banks: 3, lists: 4, registers: 2 },
            Workload::ListAppend => Clients { inserts: 1, banks: 0, lists: 8, registers: 0 },
            Workload::Register => Clients { inserts: 1, banks: 0, lists: 0, registers: 8 },
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        ALL.into_iter().find(|workload| workload.name() == text).ok_or_else(|| {
            let names = ALL.map(Workload::name).join(", ");
            format!("there is no workload `{text}`: {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_have_names_of_their_own() {
        for workload in ALL {
            assert_eq!(workload.name().parse(), Ok(workload));
        }
        assert!("append".parse::<Workload>().unwrap_err().contains("list-append"));
    }
}
