//! The contents of rescue files: transactions that a leader had answered ahead of the others, and lost.

use std::path::{Path, PathBuf};
use std::process::Command;

use lockstep_local::{LocalError, Result, run_to_end};

use super::transactions;

/// What one transaction of the load did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rescued {
    /// Client and number of an inserted row.
    pub(super) row: Option<(u64, u64)>,
    /// Client and number of a transfer.
    pub(super) transfer: Option<(u64, u64)>,
    /// Elements appended to lists or written to registers.
    pub(super) elements: Vec<u64>,
}

/// The rescue files of a data directory.
pub(super) fn files(datadir: &Path) -> Vec<PathBuf> {
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("lockstep.rescue.") && name.ends_with(".log")
    };
    let entries = std::fs::read_dir(datadir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_one).collect();
    files.sort();
    files
}

/// The contents of one file.
pub(super) fn read(lockstep: &Path, file: &Path) -> Result<Vec<Rescued>> {
    parse(&run_to_end(Command::new(lockstep).args(["log", "--sql", "--rescue"]).arg(file))?)
}

/// The end of a text; of a long one the beginning and the end are shown.
fn end_of(value: &str) -> &str {
    let end = value.rsplit_once("' ... '").map_or(value, |(_, end)| end);
    end.trim_start_matches('\'').split('\'').next().unwrap_or_default()
}

/// From the comments of `lockstep log --sql`: its text is made for people, and says all columns.
fn parse(text: &str) -> Result<Vec<Rescued>> {
    let mut all: Vec<Rescued> = Vec::new();
    let mut table = String::new();
    let mut is_after = false;
    let mut columns: Vec<u64> = Vec::new();
    let number = |text: &str| -> Result<u64> {
        text.parse().map_err(|_| LocalError::Value(format!("a rescue file holds `{text}` for a number")))
    };
    for line in text.lines() {
        if line.starts_with("# seqno ") {
            all.push(Rescued::default());
            continue;
        }
        let Some(said) = line.strip_prefix("### ") else { continue };
        if let Some(name) = ["INSERT INTO ", "UPDATE "].iter().find_map(|verb| said.strip_prefix(verb)) {
            table = name.replace('`', "");
            is_after = false;
        } else if said == "SET" {
            is_after = true;
            columns.clear();
        } else if let Some((column, value)) =
            said.trim_start().strip_prefix('@').and_then(|s| s.split_once('='))
            && is_after
            && let Some(last) = all.last_mut()
        {
            match (table.as_str(), column) {
                ("chaos.inserts", "1") | ("chaos.journal", "2") => columns = vec![number(value)?],
                ("chaos.inserts", "2") => last.row = columns.first().copied().zip(Some(number(value)?)),
                ("chaos.journal", "3") => last.transfer = columns.first().copied().zip(Some(number(value)?)),
                ("chaos.lists", "2") => {
                    last.elements.extend(transactions::elements(end_of(value))?.last());
                }
                ("chaos.written", "1") => last.elements.push(number(value)?),
                _ => {}
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rescued_load_transactions_are_found() {
        let text = "# What x holds\nSET NAMES utf8mb4;\n\n# seqno 7, committed on n1 about x\nBEGIN;\n\
            ### INSERT INTO `chaos`.`inserts`\n### SET\n###   @1=3\n###   @2=17\nBINLOG '\nabc\n';\nCOMMIT;\n\n\
            # seqno 8, committed on n1 about x\nBEGIN;\n### UPDATE `chaos`.`bank`\n### WHERE\n###   @1=3\n###   @2=1000\n\
            ### SET\n###   @1=3\n###   @2=999\n### INSERT INTO `chaos`.`journal`\n### SET\n###   @1=5\n###   @2=1\n\
            ###   @3=9\n###   @4=3\nCOMMIT;\n\n# seqno 9, committed on n1 about x\nBEGIN;\n### UPDATE `chaos`.`lists`\n\
            ### WHERE\n###   @1=3\n###   @2=',1'\n### SET\n###   @1=3\n###   @2=',1,22'\n### UPDATE `chaos`.`lists`\n\
            ### WHERE\n###   @1=4\n###   @2=''\n### SET\n###   @1=4\n###   @2=',23'\n### UPDATE `chaos`.`lists`\n\
            ### WHERE\n###   @1=5\n###   @2=',300000123,300' ... '000456,300000789' (270 bytes)\n### SET\n###   @1=5\n\
            ###   @2=',300000123,300' ... '6,300000789,300000790' (280 bytes)\nCOMMIT;\n\n\
            # seqno 10, committed on n1 about x\nBEGIN;\n### UPDATE `chaos`.`registers`\n### WHERE\n###   @1=3\n\
            ###   @2=0\n###   @3=0\n### SET\n###   @1=3\n###   @2=24\n###   @3=1\n### INSERT INTO `chaos`.`written`\n\
            ### SET\n###   @1=24\n###   @2=3\n###   @3=1\nCOMMIT;\n";
        let all = parse(text).unwrap();
        let one = |row, transfer, elements: &[u64]| Rescued { row, transfer, elements: elements.to_vec() };
        assert_eq!(
            all,
            [
                one(Some((3, 17)), None, &[]),
                one(None, Some((1, 9)), &[]),
                one(None, None, &[22, 23, 300_000_790]),
                one(None, None, &[24])
            ]
        );
    }
}
