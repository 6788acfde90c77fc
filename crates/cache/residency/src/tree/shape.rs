//! The shape of the tree: its tokens in parts, without the tokens themselves. For people to look at.

use super::*;

/// A run of tokens without a branch inside, and without a holder, a mark or a cut before its end.
#[derive(Debug)]
pub(crate) struct Part<'a, M> {
    /// The part that this one follows: an index into the same list. `None`: it begins at the root.
    pub(crate) parent: Option<usize>,
    /// Depth of its first token.
    pub(crate) from: u32,
    /// Depth of its last token, plus one.
    pub(crate) to: u32,
    /// The labels of the marks at its end.
    pub(crate) labels: Vec<&'a M>,
}

/// The parts of a tree. A parent comes before its children.
#[derive(Debug)]
pub(crate) struct Parts<'a, M> {
    pub(crate) all: Vec<Part<'a, M>>,
    /// The last part of each node that was visited, and the depth of that node's end.
    by_node: HashMap<Key, usize>,
}

impl<M> Tree<M> {
    /// Follows these tokens from the root, as far as the tree has them.
    pub(crate) fn spot(&self, tokens: &[Token]) -> Spot {
        let mut spot = Spot {
            node: ROOT,
            depth: 0,
        };
        let mut above = ROOT;
        while let Some(&first) = tokens.get(spot.depth as usize) {
            let Some(&child) = self.edges.get(&(above, first)) else {
                break;
            };
            let run = &self.nodes[child].tokens;
            let pairs = run.iter().zip(&tokens[spot.depth as usize..]);
            let agree = pairs.take_while(|(a, b)| a == b).count();
            spot = Spot {
                node: child,
                depth: spot.depth + agree as u32,
            };
            if agree < run.len() {
                break;
            }
            above = child;
        }
        spot
    }

    /// The parts of the tree, also cut at `cuts`. Visits `most` nodes at most: what is below the others is
    /// left out.
    pub(crate) fn parts(&self, cuts: &[Spot], most: usize) -> Parts<'_, M> {
        let mut inside: HashMap<Key, Vec<u32>> = HashMap::new();
        for cut in cuts {
            inside.entry(cut.node).or_default().push(cut.depth);
        }
        let mut parts = Parts {
            all: Vec::new(),
            by_node: HashMap::new(),
        };
        // Each node with the part before it, and whether that one may go on.
        let mut waiting: Vec<(Key, Option<usize>, bool)> = Vec::new();
        self.push_children(ROOT, None, false, &mut waiting);
        while let Some((key, mut parent, mut goes_on)) = waiting.pop() {
            if parts.by_node.len() >= most {
                break;
            }
            let node = &self.nodes[key];
            let mut ends = inside.remove(&key).unwrap_or_default();
            ends.extend(self.depths_in(node));
            // Only a mark, a holder or a cut at the end of the node ends the last part there.
            let ends_whole = node.marks != NONE || ends.contains(&node.depth);
            ends.push(node.depth);
            ends.sort_unstable();
            ends.dedup();
            let mut from = self.start(key);
            for to in ends.into_iter().filter(|&to| to > from).collect::<Vec<_>>() {
                match parent.filter(|_| goes_on) {
                    Some(open) => parts.all[open].to = to,
                    None => {
                        parts.all.push(Part {
                            parent,
                            from,
                            to,
                            labels: Vec::new(),
                        });
                        parent = Some(parts.all.len() - 1);
                    }
                }
                goes_on = false;
                from = to;
            }
            let Some(last) = parent else { continue };
            parts.by_node.insert(key, last);
            parts.all[last].labels.extend(self.labels_at(node));
            let goes_on = !ends_whole && node.only_child(&self.nodes).is_some();
            self.push_children(key, parent, goes_on, &mut waiting);
        }
        parts
    }

    /// The part that ends at a spot. The parts were cut there. `None`: it is the root, or was left out.
    pub(crate) fn part_at<N>(&self, parts: &Parts<'_, N>, spot: Spot) -> Option<usize> {
        if spot.node == ROOT {
            return None;
        }
        let mut part = *parts.by_node.get(&spot.node)?;
        while parts.all[part].to > spot.depth {
            part = parts.all[part].parent?;
        }
        Some(part)
    }

    /// Where a holder stands.
    pub(crate) fn spot_of(&self, holder: Holder) -> Spot {
        let Stand { node, depth, .. } = self.holders[holder.0];
        Spot { node, depth }
    }

    fn push_children(
        &self,
        key: Key,
        part: Option<usize>,
        goes_on: bool,
        waiting: &mut Vec<(Key, Option<usize>, bool)>,
    ) {
        let mut child = self.nodes[key].first_child;
        while child != NONE {
            waiting.push((child, part, goes_on));
            child = self.nodes[child].next_sibling;
        }
    }

    /// Where holders stand in a node.
    fn depths_in(&self, node: &Node) -> Vec<u32> {
        let mut depths = Vec::new();
        let mut holder = node.holders;
        while holder != NONE {
            depths.push(self.holders[holder].depth);
            holder = self.holders[holder].next;
        }
        depths
    }
}
