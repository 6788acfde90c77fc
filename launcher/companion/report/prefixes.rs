//! The tree of all prompts of a recording.

use std::collections::HashMap;
use std::sync::Arc;

use contextpilot_traffic::Tokens;
use serde_json::Value;

use super::line::Branch;

/// So many requests are named at each place, at most. Others are counted.
const MOST_NAMED: usize = 32;

/// A radix tree of prompts, and which requests they are of.
pub(super) struct Prefixes {
    nodes: Vec<Node>,
    /// Children, by their parent and the identity of their first token.
    children: HashMap<(Option<usize>, u64), usize>,
}

/// The tokens `[from, to)` of a row.
#[derive(Clone)]
struct Node {
    parent: Option<usize>,
    row: Arc<Tokens>,
    from: u32,
    to: u32,
    /// The last request that went through here.
    latest: u64,
    /// The requests whose prompts end here.
    ends: Vec<u64>,
    /// The slots that hold all of it at the end.
    slots: Vec<u32>,
}

/// What a prompt has in common with earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Nearest {
    /// How many tokens.
    pub(super) common: u32,
    /// The latest earlier request that has as many. `None`: there is none.
    pub(super) request: Option<u64>,
    /// That request goes on behind them.
    pub(super) goes_on: bool,
}

impl Prefixes {
    pub(super) fn new() -> Self {
        Self {
            nodes: Vec::new(),
            children: HashMap::new(),
        }
    }

    /// Adds the first `length` tokens of a request's row. Says what earlier ones had of them.
    pub(super) fn insert(&mut self, row: &Arc<Tokens>, length: u32, request: u64) -> Nearest {
        let length = length.min(row.len());
        let mut nearest = Nearest::default();
        let (mut node, mut at) = (None, 0);
        while let Some((child, common)) = self.step(node, row, at, length) {
            let held = self.nodes[child].to - self.nodes[child].from;
            at += common;
            nearest = Nearest {
                common: at,
                request: Some(self.nodes[child].latest),
                goes_on: common < held || self.goes_on_behind(child),
            };
            let here = if common < held {
                self.split(child, common)
            } else {
                child
            };
            self.nodes[here].latest = request;
            node = Some(here);
        }
        if let Some(identity) = row.at(at).filter(|_| at < length) {
            self.children.insert((node, identity), self.nodes.len());
            self.nodes.push(Node {
                parent: node,
                row: Arc::clone(row),
                from: at,
                to: length,
                latest: request,
                ends: Vec::new(),
                slots: Vec::new(),
            });
            node = Some(self.nodes.len() - 1);
        }
        if let Some(node) = node {
            self.nodes[node].ends.push(request);
        }
        nearest
    }

    fn goes_on_behind(&self, node: usize) -> bool {
        let last = &self.nodes[node];
        // Only of the latest request it matters, and its prompt may end here.
        !last.ends.contains(&last.latest)
    }

    /// A slot holds this row at the end.
    pub(super) fn hold(&mut self, row: &Arc<Tokens>, slot: u32) {
        let (mut node, mut at) = (None, 0);
        while let Some((child, common)) = self.step(node, row, at, row.len()) {
            let held = self.nodes[child].to - self.nodes[child].from;
            let here = if common < held {
                self.split(child, common)
            } else {
                child
            };
            self.nodes[here].slots.push(slot);
            node = Some(here);
            at += common;
        }
    }

    /// How many distinct tokens slots hold at the end, of those that are in prompts.
    pub(super) fn held(&self) -> u64 {
        let held = self.nodes.iter().filter(|node| !node.slots.is_empty());
        held.map(|node| u64::from(node.to - node.from)).sum()
    }

    /// The branches, as the control endpoint's `/tree` has them. A branch comes after the one that it follows.
    /// `none`: what is merged behind each.
    pub(super) fn branches<'a>(&'a self, none: &'a Value) -> Vec<Branch<'a>> {
        let mut order = Vec::new();
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut waiting = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            match node.parent {
                Some(parent) => children[parent].push(place),
                None => waiting.push(place),
            }
        }
        waiting.reverse();
        let mut number = vec![0; self.nodes.len()];
        while let Some(place) = waiting.pop() {
            number[place] = order.len();
            order.push(place);
            waiting.extend(children[place].iter().rev());
        }
        let branch = |&place: &usize| {
            let node = &self.nodes[place];
            let named = node.ends.len().saturating_sub(MOST_NAMED);
            Branch {
                from: node.from,
                host: 0,
                merged: none,
                parent: node.parent.map(|parent| number[parent]),
                requests: &node.ends[named..],
                requests_total: node.ends.len(),
                slots: &node.slots,
                to: node.to,
            }
        };
        order.iter().map(branch).collect()
    }

    /// The child whose tokens begin as those of the row at `at`, and how many it has in common with them.
    fn step(
        &self,
        node: Option<usize>,
        row: &Tokens,
        at: u32,
        length: u32,
    ) -> Option<(usize, u32)> {
        let identity = row.at(at).filter(|_| at < length)?;
        let &child = self.children.get(&(node, identity))?;
        let held = &self.nodes[child];
        let alike = held.row.matching(held.from, row, at);
        Some((child, alike.min(held.to - held.from).min(length - at)))
    }

    /// Puts a node for the first `length` tokens of `child` between it and its parent.
    fn split(&mut self, child: usize, length: u32) -> usize {
        let middle = self.nodes.len();
        let lower = &mut self.nodes[child];
        let upper = Node {
            to: lower.from + length,
            ends: Vec::new(),
            ..lower.clone()
        };
        lower.from = upper.to;
        lower.parent = Some(middle);
        let parent = upper.parent;
        let firsts = [upper.from, upper.to].map(|at| upper.row.at(at).unwrap_or(0));
        self.children.insert((parent, firsts[0]), middle);
        self.children.insert((Some(middle), firsts[1]), child);
        self.nodes.push(upper);
        middle
    }
}
