//! The order of each list's versions, and the anomalies that one list or one transaction shows by itself.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Anomaly, Completion, Finding, Id, Lists, Op, Transaction};

/// The writers of all elements, and the final order of the elements.
pub(super) struct Versions<'a> {
    history: &'a [Transaction],
    last: &'a Lists,
    writer: HashMap<u64, Id>,
    /// The last element that a transaction appended to a list: other transactions may see only this one.
    final_of: HashMap<(Id, u64), u64>,
    /// Whether each transaction took effect.
    committed: Vec<bool>,
}

/// The version of a list that a transaction saw, without its own appends: the first `seen` elements.
pub(super) struct Read {
    pub(super) by: Id,
    pub(super) key: u64,
    pub(super) seen: usize,
}

fn appended(transaction: &Transaction) -> impl Iterator<Item = (u64, u64)> {
    transaction.ops.iter().filter_map(|op| match op {
        Op::Append { key, element } => Some((*key, *element)),
        Op::Read { .. } | Op::Value { .. } => None,
    })
}

impl<'a> Versions<'a> {
    /// Reports what is wrong with the final state.
    pub(super) fn new(
        history: &'a [Transaction],
        last: &'a Lists,
        findings: &mut Vec<Finding>,
    ) -> Versions<'a> {
        let mut writer: HashMap<u64, Id> = HashMap::new();
        let mut final_of: HashMap<(Id, u64), u64> = HashMap::new();
        for (id, transaction) in history.iter().enumerate() {
            for (key, element) in appended(transaction) {
                writer.insert(element, id);
                final_of.insert((id, key), element);
            }
        }
        let mut there: HashSet<u64> = HashSet::new();
        for (key, list) in last {
            for element in list {
                if !there.insert(*element) {
                    let text = format!("{element} is in list {key} more than once");
                    findings.push(Finding::broken(Anomaly::Duplicated, text));
                }
                match writer.get(element) {
                    None => {
                        let text = format!("no transaction wrote {element}, which is in list {key}");
                        findings.push(Finding::broken(Anomaly::Invented, text));
                    }
                    Some(id) if history[*id].completion == Completion::Aborted => {
                        let error = history[*id].error.as_deref().unwrap_or("none");
                        let text = format!("{element} is in list {key}, but T{id} aborted: {error}");
                        findings.push(Finding::broken(Anomaly::AbortedRead, text));
                    }
                    Some(_) => {}
                }
            }
        }
        let committed = history
            .iter()
            .enumerate()
            .map(|(id, transaction)| took_effect(id, transaction, &there, findings))
            .collect();
        Versions { history, last, writer, final_of, committed }
    }

    /// The reads of the transactions that took effect. Reports reads that fit no version.
    pub(super) fn reads(&self, findings: &mut Vec<Finding>) -> Vec<Read> {
        let mut reads = Vec::new();
        for (id, transaction) in self.history.iter().enumerate().filter(|(id, _)| self.committed[*id]) {
            let mut own: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
            for op in &transaction.ops {
                match op {
                    Op::Append { key, element } => own.entry(*key).or_default().push(*element),
                    Op::Read { key, list } => {
                        let own = own.get(key).map_or(&[][..], Vec::as_slice);
                        reads.extend(self.read(id, *key, list, own, findings));
                    }
                    Op::Value { .. } => debug_assert!(false, "registers are checked as lists"),
                }
            }
        }
        reads
    }

    fn read(&self, id: Id, key: u64, list: &[u64], own: &[u64], findings: &mut Vec<Finding>) -> Option<Read> {
        let mut find = |anomaly, text| findings.push(Finding::broken(anomaly, text));
        let Some(seen) = list.strip_suffix(own) else {
            find(Anomaly::Internal, format!("T{id} read list {key} as {list:?} after it appended {own:?}"));
            return None;
        };
        let unique: HashSet<&u64> = list.iter().collect();
        if unique.len() < list.len() {
            find(Anomaly::Duplicated, format!("T{id} read list {key} as {list:?}"));
        }
        let aborted =
            seen.iter().find_map(|e| Some((e, self.writer.get(e).filter(|by| !self.committed[**by])?)));
        if let Some((element, by)) = aborted {
            let text = format!("T{id} read {element} in list {key}, but T{by} aborted");
            find(Anomaly::AbortedRead, text);
            return None;
        }
        let end = self.list(key);
        if !end.starts_with(seen) {
            let text = format!("T{id} read list {key} as {seen:?}, and it is {end:?} in the end");
            find(Anomaly::Reordered, text);
            return None;
        }
        if let Some(latest) = seen.last()
            && let Some(by) = self.writer.get(latest).filter(|by| **by != id)
            && self.final_of.get(&(*by, key)).is_some_and(|element| element != latest)
        {
            let text = format!("T{id} read list {key} up to {latest}, after which T{by} appended more");
            find(Anomaly::IntermediateRead, text);
        }
        Some(Read { by: id, key, seen: seen.len() })
    }

    pub(super) fn lists(&self) -> &'a Lists {
        self.last
    }

    pub(super) fn list(&self, key: u64) -> &'a [u64] {
        self.last.get(&key).map_or(&[], Vec::as_slice)
    }

    pub(super) fn writer(&self, element: u64) -> Option<Id> {
        self.writer.get(&element).copied()
    }
}

/// Whether the transaction took effect; reports a loss.
fn took_effect(id: Id, transaction: &Transaction, there: &HashSet<u64>, findings: &mut Vec<Finding>) -> bool {
    let own = appended(transaction).map(|(_, element)| element);
    let (present, missing): (Vec<u64>, Vec<u64>) = own.partition(|e| there.contains(e));
    match transaction.completion {
        Completion::Committed => {
            for element in &missing {
                let text = format!("T{id} was acknowledged, and its {element} is in no list");
                findings.push(Finding::broken(Anomaly::Lost, text));
            }
            true
        }
        Completion::Aborted => false,
        Completion::Unknown => {
            if !present.is_empty() && !missing.is_empty() {
                let text = format!("{present:?} of T{id} are there, and {missing:?} are not");
                findings.push(Finding::broken(Anomaly::Torn, text));
            }
            !present.is_empty()
        }
    }
}
