//! Compares many holders with one run of tokens: the run is followed through the tree only once.

use super::*;

/// The nodes along a run of tokens, as far as the tree has them.
#[derive(Debug)]
pub(crate) struct Path {
    /// Each node on the path with the depth of its last token that agrees.
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

    /// How many tokens a holder has in common with a path.
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
