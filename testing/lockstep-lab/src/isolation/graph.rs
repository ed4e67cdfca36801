//! A directed graph: its strongly connected components, and shortest paths within them.

use std::collections::{HashMap, VecDeque};

/// A node's number.
pub(super) type Node = u32;

/// Nodes from 0, and labelled edges.
pub(super) struct Graph<L> {
    edges: Vec<Vec<Edge<L>>>,
}

#[derive(Clone, Copy)]
struct Edge<L> {
    to: Node,
    label: L,
    /// Whether the edge counts for the length of a path.
    counts: bool,
}

/// The number of the strongly connected component of each node.
pub(super) struct Components {
    of: Vec<u32>,
    sizes: Vec<u32>,
}

impl Components {
    /// The component of a node.
    pub(super) fn of(&self, node: Node) -> u32 {
        self.of[node as usize]
    }

    /// How many nodes are in a component.
    pub(super) fn size(&self, component: u32) -> u32 {
        self.sizes[component as usize]
    }

    /// Whether a cycle through both nodes exists.
    pub(super) fn are_joined(&self, a: Node, b: Node) -> bool {
        a != b && self.of(a) == self.of(b)
    }
}

/// Bounds the work of all searches together.
pub(super) struct Budget(pub(super) u64);

impl<L: Copy> Graph<L> {
    pub(super) fn new(nodes: usize) -> Graph<L> {
        Graph { edges: (0..nodes).map(|_| Vec::new()).collect() }
    }

    /// A new node.
    pub(super) fn add_node(&mut self) -> Node {
        self.edges.push(Vec::new());
        (self.edges.len() - 1) as Node
    }

    pub(super) fn add(&mut self, from: Node, to: Node, label: L) {
        self.edges[from as usize].push(Edge { to, label, counts: true });
    }

    /// An edge that makes a path no longer.
    pub(super) fn add_free(&mut self, from: Node, to: Node, label: L) {
        self.edges[from as usize].push(Edge { to, label, counts: false });
    }

    pub(super) fn nodes(&self) -> std::ops::Range<Node> {
        0..self.edges.len() as Node
    }

    /// The labels and ends of a node's edges.
    pub(super) fn edges(&self, from: Node) -> impl Iterator<Item = (Node, L)> {
        self.edges[from as usize].iter().map(|edge| (edge.to, edge.label))
    }

    /// The strongly connected components (Tarjan's algorithm without recursion), over the edges that `follows` admits.
    pub(super) fn components(&self, follows: impl Fn(L) -> bool) -> Components {
        const NONE: u32 = u32::MAX;
        let count = self.edges.len();
        let mut index = vec![NONE; count];
        let mut low = vec![NONE; count];
        let mut of = vec![NONE; count];
        let mut sizes = Vec::new();
        let mut stack: Vec<Node> = Vec::new();
        let mut next = 0;
        // A node and the position of its next edge.
        let mut work: Vec<(Node, usize)> = Vec::new();
        for root in self.nodes() {
            if index[root as usize] != NONE {
                continue;
            }
            work.push((root, 0));
            while let Some((node, at)) = work.last_mut() {
                let here = *node as usize;
                if *at == 0 {
                    (index[here], low[here]) = (next, next);
                    next += 1;
                    stack.push(*node);
                }
                if let Some(edge) = self.edges[here].get(*at) {
                    *at += 1;
                    let to = edge.to as usize;
                    if follows(edge.label) && index[to] == NONE {
                        work.push((edge.to, 0));
                    } else if follows(edge.label) && of[to] == NONE {
                        // On the stack: a back edge.
                        low[here] = low[here].min(index[to]);
                    }
                    continue;
                }
                work.pop();
                if let Some((parent, _)) = work.last() {
                    let parent = *parent as usize;
                    low[parent] = low[parent].min(low[here]);
                }
                if low[here] == index[here] {
                    let component = sizes.len() as u32;
                    let mut size = 0;
                    while let Some(member) = stack.pop() {
                        of[member as usize] = component;
                        size += 1;
                        if member as usize == here {
                            break;
                        }
                    }
                    sizes.push(size);
                }
            }
        }
        Components { of, sizes }
    }

    /// A shortest path within one component, as nodes and the labels of the edges from them. `None` if there is none, or
    /// the budget is spent.
    pub(super) fn path(
        &self,
        from: Node,
        to: Node,
        within: &Components,
        follows: impl Fn(L) -> bool,
        budget: &mut Budget,
    ) -> Option<Vec<(Node, L)>> {
        if within.of(from) != within.of(to) {
            return None;
        }
        // 0-1 breadth-first search: free edges go to the front of the queue.
        let mut distance: HashMap<Node, u32> = HashMap::from([(from, 0)]);
        let mut before: HashMap<Node, (Node, L)> = HashMap::new();
        let mut queue = VecDeque::from([(from, 0)]);
        while let Some((node, length)) = queue.pop_front() {
            if node == to {
                let mut path = Vec::new();
                let mut at = to;
                while let Some((earlier, label)) = before.get(&at).filter(|_| at != from) {
                    path.push((*earlier, *label));
                    at = *earlier;
                }
                path.reverse();
                return Some(path);
            }
            if distance.get(&node).is_some_and(|known| *known < length) {
                continue;
            }
            for edge in &self.edges[node as usize] {
                budget.0 = budget.0.checked_sub(1)?;
                if within.of(edge.to) != within.of(from) || !follows(edge.label) {
                    continue;
                }
                let length = length + u32::from(edge.counts);
                if distance.get(&edge.to).is_some_and(|known| *known <= length) {
                    continue;
                }
                distance.insert(edge.to, length);
                before.insert(edge.to, (node, edge.label));
                match edge.counts {
                    true => queue.push_back((edge.to, length)),
                    false => queue.push_front((edge.to, length)),
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(nodes: usize, edges: &[(Node, Node)]) -> Graph<char> {
        let mut graph = Graph::new(nodes);
        for (from, to) in edges {
            graph.add(*from, *to, 'a');
        }
        graph
    }

    #[test]
    fn components_join_nodes_on_a_cycle_only() {
        let graph = graph(6, &[(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 3)]);
        let components = graph.components(|_| true);
        let of = |node| components.of(node);
        assert!(of(0) == of(1) && of(1) == of(2) && of(3) == of(4));
        assert!(of(0) != of(3) && of(5) != of(0) && of(5) != of(3));
        assert_eq!((components.size(of(0)), components.size(of(3)), components.size(of(5))), (3, 2, 1));
        assert!(!components.are_joined(5, 5) && components.are_joined(0, 2));
    }

    #[test]
    fn components_ignore_edges_that_are_not_followed() {
        let mut graph = graph(2, &[(0, 1)]);
        graph.add(1, 0, 'b');
        assert!(graph.components(|_| true).are_joined(0, 1));
        assert!(!graph.components(|label| label == 'a').are_joined(0, 1));
    }

    #[test]
    fn path_is_the_shortest_one_in_counted_edges() {
        // 0-1-2-3 takes three edges, 0-4-5-6-3 one and free ones.
        let mut graph = graph(7, &[(0, 1), (1, 2), (2, 3), (0, 4), (3, 0)]);
        for (from, to) in [(4, 5), (5, 6), (6, 3)] {
            graph.add_free(from, to, 'f');
        }
        let components = graph.components(|_| true);
        let mut budget = Budget(1000);
        let path = graph.path(0, 3, &components, |_| true, &mut budget).unwrap();
        assert_eq!(path, [(0, 'a'), (4, 'f'), (5, 'f'), (6, 'f')]);
        let path = graph.path(0, 3, &components, |label| label == 'a', &mut budget).unwrap();
        assert_eq!(path.len(), 3);
        assert!(graph.path(0, 3, &components, |_| true, &mut Budget(1)).is_none());
    }
}
