//! Histories of append-only lists, and the anomalies in them.
//!
//! Clients append elements, each of them once, to lists, and read lists, several operations to a transaction. The last
//! state of a list is the order in which its elements came. So the writer and the readers of each element are known, and
//! the transactions' dependencies form a graph. *ww* leads from the writer of an element to that of the next; *wr* from
//! the writer of the last element read to the reader. *rw* leads from a reader to the writer of the first element that it
//! has not seen. The promised isolation level decides which cycles are anomalies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// The result of a read.
    Read {
        /// The list.
        key: u64,
        /// Its elements.
        list: Vec<u64>,
    },
}

/// The answer to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// That it committed.
    Committed,
    /// That it did not, and will not.
    Aborted,
    /// Nothing, or something that leaves it open.
    Unknown,
}

/// One transaction as its client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Its operations, in order.
    pub ops: Vec<Op>,
    /// How it ended.
    pub heard: Heard,
    /// The error by which it ended, if it did, for a finding's text.
    pub error: Option<String>,
}

/// The kinds of anomalies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Anomaly {
    /// An acknowledged element is not there.
    Lost,
    /// An element is there twice.
    Duplicated,
    /// An element is there that nobody wrote.
    Invented,
    /// A transaction is there in part.
    Torn,
    /// Something of a transaction that aborted is there, or was read (G1a).
    AbortedRead,
    /// Something that its transaction itself wrote over was read (G1b).
    IntermediateRead,
    /// A read that is no beginning of the list: its elements came in another order, or some were left out.
    Reordered,
    /// A transaction does not see what it wrote itself.
    Internal,
    /// A cycle of writes (G0).
    G0,
    /// A cycle of write and read dependencies (G1c).
    G1c,
    /// A cycle with exactly one anti-dependency: read skew (G-single).
    GSingle,
    /// A cycle with several of those: write skew (G2), which snapshot isolation allows.
    G2,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Anomaly::Lost => "lost element",
            Anomaly::Duplicated => "duplicated element",
            Anomaly::Invented => "invented element",
            Anomaly::Torn => "torn transaction",
            Anomaly::AbortedRead => "aborted read (G1a)",
            Anomaly::IntermediateRead => "intermediate read (G1b)",
            Anomaly::Reordered => "reordered list",
            Anomaly::Internal => "own write not seen",
            Anomaly::G0 => "write cycle (G0)",
            Anomaly::G1c => "circular information flow (G1c)",
            Anomaly::GSingle => "read skew (G-single)",
            Anomaly::G2 => "write skew (G2)",
        })
    }
}

/// One finding, with the evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The kind of anomaly.
    pub anomaly: Anomaly,
    /// The evidence in the history.
    pub text: String,
}

/// The number of a transaction in the history.
type Id = usize;

/// The dependency graph.
#[derive(Default)]
struct Graph {
    /// From, to: ww and wr.
    data: BTreeMap<Id, BTreeSet<Id>>,
    writes: BTreeMap<Id, BTreeSet<Id>>,
    /// From, to: rw.
    anti: BTreeMap<Id, BTreeSet<Id>>,
}

impl Graph {
    fn reaches(&self, from: Id, to: Id, within: &BTreeSet<Id>) -> bool {
        let mut seen = BTreeSet::from([from]);
        let mut next = vec![from];
        while let Some(id) = next.pop() {
            if id == to {
                return true;
            }
            for other in self.data.get(&id).into_iter().flatten() {
                if within.contains(other) && seen.insert(*other) {
                    next.push(*other);
                }
            }
        }
        false
    }
}

/// All that is wrong with a history. `last` are the lists in the end, when nothing is under way any more.
pub fn check(history: &[Transaction], last: &BTreeMap<u64, Vec<u64>>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |anomaly, text: String| findings.push(Finding { anomaly, text });
    let mut writer: HashMap<u64, Id> = HashMap::new();
    // The last element that a transaction appended to a list: other transactions may see only this one.
    let mut final_of: HashMap<(Id, u64), u64> = HashMap::new();
    for (id, transaction) in history.iter().enumerate() {
        for op in &transaction.ops {
            if let Op::Append { key, element } = op {
                writer.insert(*element, id);
                final_of.insert((id, *key), *element);
            }
        }
    }
    let mut there: BTreeSet<u64> = BTreeSet::new();
    for (key, list) in last {
        for element in list {
            if !there.insert(*element) {
                find(Anomaly::Duplicated, format!("{element} is in list {key} more than once"));
            }
            match writer.get(element) {
                None => find(Anomaly::Invented, format!("{element} in list {key} was written by nobody")),
                Some(id) if history[*id].heard == Heard::Aborted => {
                    find(Anomaly::AbortedRead, {
                        let error = history[*id].error.as_deref().unwrap_or("none");
                        format!("{element} in list {key} is of a transaction that aborted: {error}")
                    });
                }
                Some(_) => {}
            }
        }
    }
    let mut committed: Vec<bool> = Vec::with_capacity(history.len());
    for transaction in history {
        let mut own = transaction.ops.iter().filter_map(|op| match op {
            Op::Append { element, .. } => Some(element),
            Op::Read { .. } => None,
        });
        let (present, missing): (Vec<&u64>, Vec<&u64>) = own.by_ref().partition(|e| there.contains(e));
        match transaction.heard {
            Heard::Committed => {
                for element in &missing {
                    find(Anomaly::Lost, format!("{element} was acknowledged, and is nowhere"));
                }
            }
            Heard::Unknown if !present.is_empty() && !missing.is_empty() => {
                find(
                    Anomaly::Torn,
                    format!("{present:?} are there, {missing:?} of the same transaction are not"),
                );
            }
            _ => {}
        }
        committed.push(match transaction.heard {
            Heard::Committed => true,
            Heard::Aborted => false,
            Heard::Unknown => !present.is_empty(),
        });
    }
    let graph = build(history, last, &committed, &writer, &final_of, &mut find);
    cycles(&graph, &mut find);
    findings
}

fn build(
    history: &[Transaction],
    last: &BTreeMap<u64, Vec<u64>>,
    committed: &[bool],
    writer: &HashMap<u64, Id>,
    final_of: &HashMap<(Id, u64), u64>,
    find: &mut impl FnMut(Anomaly, String),
) -> Graph {
    let mut graph = Graph::default();
    for list in last.values() {
        for pair in list.windows(2) {
            if let (Some(a), Some(b)) = (writer.get(&pair[0]), writer.get(&pair[1]))
                && a != b
            {
                graph.writes.entry(*a).or_default().insert(*b);
                graph.data.entry(*a).or_default().insert(*b);
            }
        }
    }
    let nothing = Vec::new();
    for (id, transaction) in history.iter().enumerate().filter(|(id, _)| committed[*id]) {
        let mut own: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for op in &transaction.ops {
            let (key, list) = match op {
                Op::Append { key, element } => {
                    own.entry(*key).or_default().push(*element);
                    continue;
                }
                Op::Read { key, list } => (key, list),
            };
            let mine = own.get(key).unwrap_or(&nothing);
            let Some(seen) = list.strip_suffix(mine.as_slice()) else {
                find(Anomaly::Internal, format!("list {key} read as {list:?} after an own {mine:?}"));
                continue;
            };
            let unique: BTreeSet<&u64> = list.iter().collect();
            if unique.len() < list.len() {
                find(Anomaly::Duplicated, format!("list {key} read as {list:?}"));
            }
            if let Some(aborted) = seen.iter().find(|e| writer.get(e).is_some_and(|id| !committed[*id])) {
                find(Anomaly::AbortedRead, format!("list {key} was read with {aborted}, which aborted"));
                continue;
            }
            let end = last.get(key).unwrap_or(&nothing);
            if !end.starts_with(seen) {
                find(Anomaly::Reordered, format!("list {key} read as {seen:?}, and is {end:?} in the end"));
                continue;
            }
            if let Some(latest) = seen.last()
                && let Some(by) = writer.get(latest).filter(|by| **by != id)
            {
                if final_of.get(&(*by, *key)).is_some_and(|element| element != latest) {
                    let text =
                        format!("list {key} was read up to {latest}, which its writer itself wrote over");
                    find(Anomaly::IntermediateRead, text);
                }
                graph.data.entry(*by).or_default().insert(id);
            }
            if let Some(by) = end.get(seen.len()).and_then(|next| writer.get(next)).filter(|by| **by != id) {
                graph.anti.entry(id).or_default().insert(*by);
            }
        }
    }
    graph
}

fn cycles(graph: &Graph, find: &mut impl FnMut(Anomaly, String)) {
    let edges = |maps: &[&BTreeMap<Id, BTreeSet<Id>>]| -> BTreeMap<Id, BTreeSet<Id>> {
        let mut all: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
        for (from, to) in maps.iter().flat_map(|map| map.iter()) {
            all.entry(*from).or_default().extend(to);
        }
        all
    };
    let name = |component: &BTreeSet<Id>| {
        let some: Vec<String> = component.iter().take(8).map(|id| format!("T{id}")).collect();
        format!("{} transactions: {}", component.len(), some.join(", "))
    };
    for component in components(&graph.writes) {
        find(Anomaly::G0, name(&component));
    }
    let data = components(&graph.data);
    for component in &data {
        // One that writes alone close is told already.
        let by_writes = components(&graph.writes).iter().any(|c| c.is_subset(component));
        if !by_writes {
            find(Anomaly::G1c, name(component));
        }
    }
    for component in components(&edges(&[&graph.data, &graph.anti])) {
        let inside = |ids: &BTreeSet<Id>| ids.is_subset(&component);
        if data.iter().any(inside) {
            continue;
        }
        let single = component.iter().find_map(|from| {
            let ends = graph.anti.get(from).into_iter().flatten();
            ends.filter(|to| component.contains(to))
                .find(|to| graph.reaches(**to, *from, &component))
                .map(|to| (from, to))
        });
        match single {
            Some((from, to)) => {
                let text = format!(
                    "T{from} did not see what T{to} wrote, and what T{from} saw or wrote came after it ({})",
                    name(&component)
                );
                find(Anomaly::GSingle, text);
            }
            None => find(Anomaly::G2, name(&component)),
        }
    }
}

/// The strongly connected components of more than one member (Tarjan's, without recursion).
fn components(edges: &BTreeMap<Id, BTreeSet<Id>>) -> Vec<BTreeSet<Id>> {
    #[derive(Clone, Copy)]
    struct Node {
        index: usize,
        low: usize,
        on_stack: bool,
    }
    let mut nodes: HashMap<Id, Node> = HashMap::new();
    let mut stack: Vec<Id> = Vec::new();
    let mut found = Vec::new();
    let none = BTreeSet::new();
    let targets = |id: &Id| edges.get(id).unwrap_or(&none);
    for root in edges.keys() {
        if nodes.contains_key(root) {
            continue;
        }
        let fresh = |nodes: &HashMap<Id, Node>| Node { index: nodes.len(), low: nodes.len(), on_stack: true };
        let node = fresh(&nodes);
        nodes.insert(*root, node);
        stack.push(*root);
        let mut work = vec![(*root, targets(root).iter())];
        while let Some((id, rest)) = work.last_mut() {
            let id = *id;
            if let Some(to) = rest.next() {
                match nodes.get(to).copied() {
                    None => {
                        let node = fresh(&nodes);
                        nodes.insert(*to, node);
                        stack.push(*to);
                        work.push((*to, targets(to).iter()));
                    }
                    Some(other) if other.on_stack => {
                        if let Some(node) = nodes.get_mut(&id) {
                            node.low = node.low.min(other.index);
                        }
                    }
                    Some(_) => {}
                }
                continue;
            }
            work.pop();
            let node = nodes[&id];
            if let Some((parent, _)) = work.last()
                && let Some(parent) = nodes.get_mut(parent)
            {
                parent.low = parent.low.min(node.low);
            }
            if node.low == node.index {
                let mut component = BTreeSet::new();
                while let Some(member) = stack.pop() {
                    if let Some(node) = nodes.get_mut(&member) {
                        node.on_stack = false;
                    }
                    component.insert(member);
                    if member == id {
                        break;
                    }
                }
                if component.len() > 1 {
                    found.push(component);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(key: u64, element: u64) -> Op {
        Op::Append { key, element }
    }

    fn read(key: u64, list: &[u64]) -> Op {
        Op::Read { key, list: list.to_vec() }
    }

    fn done(ops: &[Op]) -> Transaction {
        Transaction { ops: ops.to_vec(), heard: Heard::Committed, error: None }
    }

    fn ended(heard: Heard, ops: &[Op]) -> Transaction {
        Transaction { ops: ops.to_vec(), heard, error: None }
    }

    /// The anomalies found, without their texts.
    fn found(history: &[Transaction], last: &[(u64, &[u64])]) -> Vec<Anomaly> {
        let last = last.iter().map(|(key, list)| (*key, list.to_vec())).collect();
        check(history, &last).into_iter().map(|f| f.anomaly).collect()
    }

    #[test]
    fn serial_history_has_no_anomaly() {
        let history = [
            done(&[append(1, 10), append(2, 20)]),
            done(&[read(1, &[10]), append(1, 11), read(1, &[10, 11])]),
            ended(Heard::Aborted, &[read(1, &[10]), append(1, 12)]),
            ended(Heard::Unknown, &[append(2, 21)]),
            ended(Heard::Unknown, &[append(2, 22)]),
            done(&[read(1, &[10, 11]), read(2, &[20, 21])]),
        ];
        assert_eq!(found(&history, &[(1, &[10, 11]), (2, &[20, 21])]), []);
    }

    #[test]
    fn elements_are_lost_doubled_invented_and_torn() {
        let history = [done(&[append(1, 10)]), ended(Heard::Unknown, &[append(1, 11), append(2, 20)])];
        assert_eq!(found(&history, &[(1, &[]), (2, &[])]), [Anomaly::Lost]);
        assert_eq!(found(&history, &[(1, &[10, 10])]), [Anomaly::Duplicated]);
        assert_eq!(found(&history, &[(1, &[10, 99])]), [Anomaly::Invented]);
        assert_eq!(found(&history, &[(1, &[10, 11])]), [Anomaly::Torn]);
    }

    #[test]
    fn aborted_write_is_not_visible() {
        let aborted = ended(Heard::Aborted, &[append(1, 11)]);
        assert_eq!(
            found(&[done(&[append(1, 10)]), aborted.clone()], &[(1, &[10, 11])]),
            [Anomaly::AbortedRead]
        );
        let reader = done(&[read(1, &[10, 11])]);
        assert_eq!(found(&[done(&[append(1, 10)]), aborted, reader], &[(1, &[10])]), [Anomaly::AbortedRead]);
    }

    #[test]
    fn half_a_transaction_is_not_read() {
        let history = [done(&[append(1, 10), append(1, 11)]), done(&[read(1, &[10])])];
        // The reader saw 10 and not 11, of one transaction: that is a cycle as well.
        let found = found(&history, &[(1, &[10, 11])]);
        assert_eq!(found, [Anomaly::IntermediateRead, Anomaly::GSingle]);
    }

    #[test]
    fn lists_do_not_change_their_order() {
        let writers = [done(&[append(1, 10)]), done(&[append(1, 11)])];
        for wrong in [&[11, 10][..], &[11]] {
            let mut history = writers.to_vec();
            history.push(done(&[read(1, wrong)]));
            assert_eq!(found(&history, &[(1, &[10, 11])]), [Anomaly::Reordered], "{wrong:?}");
        }
        let mut history = writers.to_vec();
        history.push(done(&[read(1, &[10, 10])]));
        assert_eq!(found(&history, &[(1, &[10, 11])]), [Anomaly::Duplicated, Anomaly::Reordered]);
    }

    #[test]
    fn transaction_reads_its_own_writes() {
        let history = [done(&[append(1, 10), read(1, &[])])];
        assert_eq!(found(&history, &[(1, &[10])]), [Anomaly::Internal]);
    }

    #[test]
    fn writes_in_a_circle() {
        let history = [done(&[append(1, 10), append(2, 20)]), done(&[append(1, 11), append(2, 21)])];
        assert_eq!(found(&history, &[(1, &[10, 11]), (2, &[21, 20])]), [Anomaly::G0]);
    }

    #[test]
    fn information_in_a_circle() {
        let history = [done(&[append(1, 10), read(2, &[20])]), done(&[append(2, 20), read(1, &[10])])];
        assert_eq!(found(&history, &[(1, &[10]), (2, &[20])]), [Anomaly::G1c]);
    }

    #[test]
    fn skewed_reads_and_skewed_writes_are_told_apart() {
        // It sees list 2 before the other transaction and list 1 after it.
        let skew = [done(&[append(1, 10), append(2, 20)]), done(&[read(1, &[10]), read(2, &[])])];
        assert_eq!(found(&skew, &[(1, &[10]), (2, &[20])]), [Anomaly::GSingle]);
        // It reads, and writes behind somebody whom the read did not see.
        let late = [done(&[append(1, 10)]), done(&[read(1, &[]), append(1, 11)])];
        assert_eq!(found(&late, &[(1, &[10, 11])]), [Anomaly::GSingle]);
        let write = [done(&[read(1, &[]), append(2, 20)]), done(&[read(2, &[]), append(1, 10)])];
        assert_eq!(found(&write, &[(1, &[10]), (2, &[20])]), [Anomaly::G2]);
    }

    #[test]
    fn long_circles_are_found() {
        const N: u64 = 5000;
        let mut history: Vec<Transaction> =
            (0..N).map(|n| done(&[append(n, n), read((n + 1) % N, &[(n + 1) % N])])).collect();
        let lists: Vec<(u64, Vec<u64>)> = (0..N).map(|n| (n, vec![n])).collect();
        let last: Vec<(u64, &[u64])> = lists.iter().map(|(k, l)| (*k, l.as_slice())).collect();
        assert_eq!(found(&history, &last), [Anomaly::G1c]);
        history[0].ops.pop();
        assert_eq!(found(&history, &last), []);
    }
}
