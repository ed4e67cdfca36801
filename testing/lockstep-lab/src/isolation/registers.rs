//! Registers as lists. Each register counts its writes, and a journal keeps the value and the number of each write in the
//! write's own transaction. So the versions of a register are a list of its values, and a read of it is a prefix.

use std::collections::BTreeMap;

use super::{Anomaly, Completion, Finding, Lists, Op, Transaction};

/// A row of the journal: a write that took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Write {
    /// The register.
    pub key: u64,
    /// The number of the write, from 1.
    pub version: u64,
    /// The value.
    pub element: u64,
}

/// The final versions of all registers, from the journal and from the registers' last values. Reports writes that overwrote
/// another write without seeing it, and writes that are missing.
pub fn versions(journal: &[Write], last: &BTreeMap<u64, Write>, findings: &mut Vec<Finding>) -> Lists {
    let mut journal = journal.to_vec();
    journal.sort_unstable();
    for pair in
        journal.windows(2).filter(|pair| (pair[0].key, pair[0].version) == (pair[1].key, pair[1].version))
    {
        let text = format!(
            "{} and {} were both written to register {} as version {}",
            pair[0].element, pair[1].element, pair[0].key, pair[0].version
        );
        findings.push(Finding::broken(Anomaly::LostUpdate, text));
    }
    let mut lists = Lists::new();
    for write in &journal {
        let list = lists.entry(write.key).or_default();
        list.push(write.element);
        if write.version > list.len() as u64 {
            let text =
                format!("a write before version {} of register {} is missing", write.version, write.key);
            findings.push(Finding::broken(Anomaly::Lost, text));
        }
    }
    for (key, register) in last {
        let end = lists.get(key).map_or(&[][..], Vec::as_slice);
        let is_same = match register.version {
            0 => end.is_empty(),
            version => end.len() as u64 == version && end.last() == Some(&register.element),
        };
        if !is_same {
            let text = format!(
                "register {key} is {} in version {}, and its journal says {end:?}",
                register.element, register.version
            );
            findings.push(Finding::broken(Anomaly::Torn, text));
        }
    }
    lists
}

/// The history with each read of a register replaced by the read of a list. A value that is not the one of its version
/// ends a list that is no prefix.
pub fn as_lists(history: &[Transaction], last: &Lists) -> Vec<Transaction> {
    let as_list = |op: &Op| match op {
        Op::Value { key, version, element } => {
            let end = last.get(key).map_or(&[][..], Vec::as_slice);
            let before = (*version as usize).saturating_sub(1).min(end.len());
            let list = end[..before].iter().copied().chain(*element).collect();
            Op::Read { key: *key, list }
        }
        other => other.clone(),
    };
    history
        .iter()
        .map(|transaction| Transaction {
            // The reads of an aborted transaction are not checked, and its versions are others' by now.
            ops: match transaction.completion {
                Completion::Aborted => {
                    transaction.ops.iter().filter(|op| matches!(op, Op::Append { .. })).cloned().collect()
                }
                _ => transaction.ops.iter().map(as_list).collect(),
            },
            ..transaction.clone()
        })
        .collect()
}
