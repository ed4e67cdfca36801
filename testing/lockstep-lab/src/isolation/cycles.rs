//! The cycles of the dependency graph, and their names.
//!
//! Each transaction T has a start s(T), which is its snapshot, and a commit c(T). For T that writes, s(T) precedes c(T); a
//! read-only transaction is its start alone. An edge says which of two events came first:
//!
//! | dependency | edge | why |
//! |---|---|---|
//! | ww, wr from T to U | c(T) → s(U) | U's snapshot contains the versions that U read and wrote over |
//! | rw from T to U | s(T) → c(U) | T's snapshot does not contain U |
//! | U began after its own member acknowledged T | c(T) → s(U) | promised for each member |
//! | U began after some member acknowledged T | c(T) → s(U) with `wsrep_sync_wait`, else c(T) → c(U) | promised |
//!
//! The history satisfies the claim if and only if this graph has no cycle. Two adjacent rw edges never lie on a cycle of it,
//! since no edge leads from c(U) to s(U): write skew stays possible.
//!
//! Without snapshot isolation a writing transaction has no single snapshot: edges into it lead to c(U), and its rw edges
//! are left out.
//!
//! The order of real time would take a quadratic number of edges. A chain of *instants*, one for each acknowledgement,
//! takes a linear number: T → its instant → ... → the last instant before U began → U.

use std::collections::HashSet;

use super::dependencies::{Dependencies, Dependency, Kind};
use super::graph::{Budget, Components, Graph, Node};
use super::{Anomaly, Claim, Finding, Id, Transaction};

/// How many edges all searches for witnesses may visit.
const VISITS: u64 = 20_000_000;

/// The edges of a graph: each order includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    /// Only ww, wr and rw.
    Values,
    /// Also the order of the transactions of each member.
    OwnMember,
    /// Also the order of the transactions of all members.
    RealTime,
}

/// The label of an edge.
#[derive(Debug, Clone, Copy)]
enum Label {
    /// An index of the dependencies.
    Dependency(u32),
    /// From s(T) to c(T).
    Snapshot,
    /// From a transaction to the instant of its acknowledgement.
    Acknowledged,
    /// From an instant to the next one.
    Later,
    /// From an instant to a transaction that began after it on the same member, or on any.
    Began(Order),
}

/// One step of a witness.
enum Step {
    Dependency(Dependency),
    After { order: Order, earlier: Id, later: Id },
}

struct Search<'a> {
    history: &'a [Transaction],
    dependencies: &'a [Dependency],
    writes: Vec<bool>,
    claim: Claim,
    /// Dependencies of kind rw that a finding has named.
    explained: Vec<bool>,
    /// Transactions on a cycle of dependencies that a finding has named.
    named: HashSet<Id>,
    budget: Budget,
    findings: &'a mut Vec<Finding>,
}

/// Adds the cycles of a history to the findings.
pub(super) fn find(
    history: &[Transaction],
    dependencies: &Dependencies,
    claim: Claim,
    findings: &mut Vec<Finding>,
) {
    let mut search = Search {
        history,
        dependencies: dependencies.all(),
        writes: history.iter().map(Transaction::writes).collect(),
        claim,
        explained: vec![false; dependencies.all().len()],
        named: HashSet::new(),
        budget: Budget(VISITS),
        findings,
    };
    search.write_cycles();
    search.cycles(Order::Values, claim.snapshot_isolation, false);
    search.stale_reads(false);
    search.cycles(Order::OwnMember, claim.snapshot_isolation, false);
    search.cycles(Order::RealTime, claim.snapshot_isolation, false);
    // Anomalies that the claim allows are reported too.
    if !claim.snapshot_isolation {
        search.cycles(Order::Values, true, true);
    }
    search.stale_reads(true);
    search.write_skews();
}

fn start(id: Id) -> Node {
    2 * id as Node
}

impl Search<'_> {
    fn commit(&self, id: Id) -> Node {
        start(id) + Node::from(self.writes[id])
    }

    /// The transaction of a node, unless it is an instant.
    fn transaction(&self, node: Node) -> Option<Id> {
        let id = node as usize / 2;
        (id < self.history.len()).then_some(id)
    }

    fn kind(&self, label: Label) -> Option<Kind> {
        match label {
            Label::Dependency(at) => Some(self.dependencies[at as usize].kind),
            _ => None,
        }
    }

    fn is_rw(&self, label: Label) -> bool {
        self.kind(label) == Some(Kind::Rw)
    }

    /// `strict`: every transaction has one snapshot.
    fn graph(&self, order: Order, strict: bool) -> Graph<Label> {
        let mut graph = Graph::new(2 * self.history.len());
        for (id, _) in self.writes.iter().enumerate().filter(|(_, writes)| **writes) {
            graph.add_free(start(id), self.commit(id), Label::Snapshot);
        }
        for (at, dependency) in self.dependencies.iter().enumerate() {
            let Dependency { from, to, kind, .. } = *dependency;
            let label = Label::Dependency(at as u32);
            match kind {
                Kind::Rw if strict || !self.writes[from] => graph.add(start(from), self.commit(to), label),
                Kind::Rw => {}
                Kind::Ww | Kind::Wr if strict => graph.add(self.commit(from), start(to), label),
                Kind::Ww | Kind::Wr => graph.add(self.commit(from), self.commit(to), label),
            }
        }
        if order >= Order::OwnMember {
            let members: HashSet<usize> = self.history.iter().map(|t| t.member).collect();
            for member in members {
                self.add_instants(&mut graph, Order::OwnMember, |t| t.member == member);
            }
        }
        if order >= Order::RealTime {
            self.add_instants(&mut graph, Order::RealTime, |_| true);
        }
        graph
    }

    /// Orders the transactions of some members by time.
    fn add_instants(&self, graph: &mut Graph<Label>, order: Order, is_there: impl Fn(&Transaction) -> bool) {
        let there = || self.history.iter().enumerate().filter(|(_, t)| is_there(t));
        let mut acknowledged: Vec<(u64, Id)> =
            there().filter_map(|(id, t)| Some((t.acknowledged()?, id))).collect();
        acknowledged.sort_unstable();
        let instants: Vec<Node> = acknowledged.iter().map(|_| graph.add_node()).collect();
        for pair in instants.windows(2) {
            graph.add_free(pair[0], pair[1], Label::Later);
        }
        for ((_, id), instant) in acknowledged.iter().zip(&instants) {
            graph.add(self.commit(*id), *instant, Label::Acknowledged);
        }
        for (id, transaction) in there() {
            let to = match order {
                Order::RealTime if !transaction.sync_wait => self.commit(id),
                _ => start(id),
            };
            // A read-only transaction without wsrep_sync_wait may be older than other members' transactions.
            let is_promised = order == Order::OwnMember || transaction.sync_wait || self.writes[id];
            let before = acknowledged.partition_point(|(time, _)| *time < transaction.invoked);
            if let Some(last) = before.checked_sub(1).map(|at| instants[at])
                && is_promised
            {
                graph.add_free(last, to, Label::Began(order));
            }
        }
    }

    /// Cycles of ww alone (G0).
    fn write_cycles(&mut self) {
        let graph = self.graph(Order::Values, self.claim.snapshot_isolation);
        let is_write = |search: &Self, label| match label {
            Label::Dependency(_) => search.kind(label) == Some(Kind::Ww),
            _ => true,
        };
        let components = graph.components(|label| is_write(self, label));
        self.one_each(&graph, &components, is_write);
    }

    /// Reports a cycle of each component of which no transaction was reported before.
    fn one_each(
        &mut self,
        graph: &Graph<Label>,
        components: &Components,
        follows: impl Fn(&Self, Label) -> bool,
    ) {
        let mut named: HashSet<u32> = HashSet::new();
        for id in &self.named {
            named.insert(components.of(start(*id)));
            named.insert(components.of(self.commit(*id)));
        }
        for node in graph.nodes() {
            let component = components.of(node);
            if components.size(component) < 2 || self.transaction(node).is_none() || !named.insert(component)
            {
                continue;
            }
            let mut shortest: Option<Vec<(Node, Label)>> = None;
            for (to, label) in graph.edges(node) {
                if components.of(to) != component || !follows(self, label) {
                    continue;
                }
                let mut budget = Budget(self.budget.0);
                let path = graph.path(to, node, components, |label| follows(self, label), &mut budget);
                self.budget = budget;
                if let Some(mut path) = path
                    && shortest.as_ref().is_none_or(|known| path.len() + 1 < known.len())
                {
                    path.insert(0, (node, label));
                    shortest = Some(path);
                }
            }
            match shortest {
                Some(cycle) => self.report(&cycle, false),
                None => {
                    let text = format!("{} nodes: not searched for a witness", components.size(component));
                    self.findings.push(Finding::broken(Anomaly::G1c, text));
                }
            }
        }
    }

    /// All cycles of this order.
    fn cycles(&mut self, order: Order, strict: bool, allowed: bool) {
        let graph = self.graph(order, strict);
        let is_data = |search: &Self, label| !search.is_rw(label);
        if !allowed {
            let data = graph.components(|label| is_data(self, label));
            self.one_each(&graph, &data, is_data);
        }
        // First the cycles with one rw. A cycle with several may be due to one of those, and does not count then.
        for several in [false, true] {
            let is_open = |search: &Self, label| match label {
                Label::Dependency(at) => !search.explained[at as usize],
                _ => true,
            };
            let follows = |search: &Self, label| !search.is_rw(label) || (several && is_open(search, label));
            let whole = graph.components(|label| is_open(self, label));
            for at in 0..self.dependencies.len() {
                let Dependency { from, to, kind, .. } = self.dependencies[at];
                let is_there = kind == Kind::Rw && (strict || !self.writes[from]);
                if !is_there || self.explained[at] || !whole.are_joined(start(from), self.commit(to)) {
                    continue;
                }
                let mut budget = Budget(self.budget.0);
                let (first, last) = (self.commit(to), start(from));
                let path = graph.path(first, last, &whole, |label| follows(self, label), &mut budget);
                self.budget = budget;
                if let Some(mut cycle) = path {
                    cycle.insert(0, (last, Label::Dependency(at as u32)));
                    self.report(&cycle, allowed);
                } else if self.budget.0 == 0 {
                    self.explained[at] = true;
                    let text = format!("{}; the rest was not searched", self.say(&self.dependencies[at]));
                    let anomaly = if order == Order::Values { Anomaly::GSingle } else { Anomaly::RealTime };
                    self.findings.push(Finding { anomaly, allowed, text });
                }
            }
        }
    }

    /// Reads that miss a write acknowledged before they began.
    fn stale_reads(&mut self, allowed: bool) {
        for at in 0..self.dependencies.len() {
            let dependency = self.dependencies[at];
            let Dependency { from, to, kind, .. } = dependency;
            let (reader, writer) = (&self.history[from], &self.history[to]);
            let is_stale = writer.acknowledged().is_some_and(|time| time < reader.invoked);
            let order = if reader.member == writer.member { Order::OwnMember } else { Order::RealTime };
            let is_promised = reader.sync_wait || order == Order::OwnMember;
            if kind != Kind::Rw || !is_stale || self.explained[at] || is_promised == allowed {
                continue;
            }
            self.explained[at] |= !allowed;
            let steps = [Step::Dependency(dependency), Step::After { order, earlier: to, later: from }];
            self.findings.push(Finding { anomaly: Anomaly::StaleRead, allowed, text: self.text(&steps) });
        }
    }

    /// Cycles with adjacent rw, which snapshot isolation allows.
    fn write_skews(&mut self) {
        let mut graph = Graph::new(self.history.len());
        for (at, dependency) in self.dependencies.iter().enumerate() {
            graph.add(dependency.from as Node, dependency.to as Node, Label::Dependency(at as u32));
        }
        let components = graph.components(|_| true);
        let mut named: HashSet<u32> = self.named.iter().map(|id| components.of(*id as Node)).collect();
        for (at, dependency) in self.dependencies.iter().enumerate() {
            let (from, to) = (dependency.from as Node, dependency.to as Node);
            if dependency.kind != Kind::Rw
                || !components.are_joined(from, to)
                || !named.insert(components.of(from))
            {
                continue;
            }
            let mut steps = vec![Step::Dependency(self.dependencies[at])];
            let path = graph.path(to, from, &components, |_| true, &mut self.budget).unwrap_or_default();
            steps.extend(path.into_iter().filter_map(|(_, label)| match label {
                Label::Dependency(at) => Some(Step::Dependency(self.dependencies[at as usize])),
                _ => None,
            }));
            self.findings.push(Finding { anomaly: Anomaly::G2, allowed: true, text: self.text(&steps) });
        }
    }

    /// A cycle, as nodes and the labels of the edges from them.
    fn report(&mut self, cycle: &[(Node, Label)], allowed: bool) {
        for (_, label) in cycle {
            if let Label::Dependency(at) = label
                && self.is_rw(*label)
            {
                self.explained[*at as usize] = true;
            }
        }
        let steps = self.steps(cycle);
        let anomaly = name(&steps);
        if !matches!(anomaly, Anomaly::StaleRead | Anomaly::RealTime) {
            self.named.extend(steps.iter().filter_map(|step| match step {
                Step::Dependency(dependency) => Some(dependency.from),
                Step::After { .. } => None,
            }));
        }
        self.findings.push(Finding { anomaly, allowed, text: self.text(&steps) });
    }

    fn steps(&self, cycle: &[(Node, Label)]) -> Vec<Step> {
        // A cycle may begin among the instants: begin with a transaction.
        let first = cycle.iter().position(|(node, _)| self.transaction(*node).is_some()).unwrap_or(0);
        let (before, after) = cycle.split_at(first);
        let rotated: Vec<_> = after.iter().chain(before).copied().collect();
        let mut steps = Vec::new();
        let mut earlier = None;
        for (at, (node, label)) in rotated.iter().enumerate() {
            match label {
                Label::Dependency(at) => {
                    let next = self.dependencies[*at as usize];
                    // Writes of one list in a row are one step.
                    match steps.last_mut() {
                        Some(Step::Dependency(last))
                            if (last.kind, last.key, last.to) == (Kind::Ww, next.key, next.from)
                                && next.kind == Kind::Ww =>
                        {
                            (last.to, last.element) = (next.to, next.element);
                        }
                        _ => steps.push(Step::Dependency(next)),
                    }
                }
                Label::Snapshot | Label::Later => {}
                Label::Acknowledged => earlier = self.transaction(*node),
                Label::Began(order) => {
                    let later = self.transaction(rotated[(at + 1) % rotated.len()].0);
                    if let (Some(earlier), Some(later)) = (earlier, later) {
                        steps.push(Step::After { order: *order, earlier, later });
                    }
                }
            }
        }
        steps
    }

    fn text(&self, steps: &[Step]) -> String {
        let said: Vec<String> = steps
            .iter()
            .map(|step| match step {
                Step::Dependency(dependency) => self.say(dependency),
                Step::After { order: Order::OwnMember, earlier, later } => format!(
                    "{} began after that member had acknowledged {}",
                    self.who(*later),
                    self.who(*earlier)
                ),
                Step::After { earlier, later, .. } => {
                    let wait = if self.history[*later].sync_wait { " with wsrep_sync_wait" } else { "" };
                    let (earlier, later) = (self.who(*earlier), self.who(*later));
                    format!("{later} began{wait} after {earlier} was acknowledged")
                }
            })
            .collect();
        said.join("; ")
    }

    fn say(&self, dependency: &Dependency) -> String {
        let Dependency { from, to, kind, key, element } = *dependency;
        let (from, to) = (self.who(from), self.who(to));
        match kind {
            Kind::Ww => format!("{to} wrote {element} to {key} after {from}"),
            Kind::Wr => format!("{to} read {element} in {key}, which {from} wrote"),
            Kind::Rw => format!("{from} read {key} without {element}, which {to} wrote"),
        }
    }

    fn who(&self, id: Id) -> String {
        format!("T{id} (n{})", self.history[id].member + 1)
    }
}

fn name(steps: &[Step]) -> Anomaly {
    let kind = |step: &Step| match step {
        Step::Dependency(dependency) => Some(dependency.kind),
        Step::After { .. } => None,
    };
    let count = |wanted: Option<Kind>| steps.iter().filter(|step| kind(step) == wanted).count();
    let unseen = steps.iter().find_map(|step| match step {
        Step::Dependency(dependency) if dependency.kind == Kind::Rw => Some(dependency.key),
        _ => None,
    });
    let is_own_key = |step: &Step| match step {
        Step::Dependency(dependency) => Some(dependency.key) == unseen,
        Step::After { .. } => false,
    };
    match (count(Some(Kind::Rw)), count(None)) {
        (1, 1) if steps.len() == 2 => Anomaly::StaleRead,
        (_, 1..) => Anomaly::RealTime,
        (0, 0) if count(Some(Kind::Ww)) == steps.len() => Anomaly::G0,
        (0, 0) => Anomaly::G1c,
        (1, 0) if count(Some(Kind::Wr)) == 0 && steps.iter().all(is_own_key) => Anomaly::LostUpdate,
        (1, 0) if steps.len() == 2 && count(Some(Kind::Wr)) == 1 => Anomaly::FracturedRead,
        (1, 0) => Anomaly::GSingle,
        _ => Anomaly::GNonadjacent,
    }
}
