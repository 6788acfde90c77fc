//! Many holders compared with one row of tokens.

use super::*;

/// The way along some tokens, as far as the tree has them.
#[derive(Debug)]
pub(crate) struct Path {
    /// The nodes on it, each with the depth of the last token in it that agrees.
    nodes: HashMap<Key, u32>,
}

impl<M> Tree<M> {
    /// Follows these tokens from the root.
    pub(crate) fn path(&self, tokens: &[Token]) -> Path {
        let mut nodes = HashMap::from([(ROOT, 0)]);
        let mut node = ROOT;
        let mut depth = 0;
        while let Some(&first) = tokens.get(depth) {
            let Some(&child) = self.edges.get(&(node, first)) else {
                break;
            };
            let run = &self.nodes[child].tokens;
            let pairs = run.iter().zip(&tokens[depth..]);
            let agree = pairs.take_while(|(a, b)| a == b).count();
            depth += agree;
            nodes.insert(child, depth as u32);
            if agree < run.len() {
                break;
            }
            node = child;
        }
        Path { nodes }
    }

    /// How far a holder stands on a path.
    pub(crate) fn common(&self, path: &Path, holder: Holder) -> u32 {
        let Stand {
            mut node, depth, ..
        } = self.holders[holder.0];
        loop {
            if let Some(&agreed) = path.nodes.get(&node) {
                return agreed.min(depth);
            }
            node = self.nodes[node].parent;
        }
    }
}
