use super::*;
use std::collections::HashSet;

impl<M> Tree<M> {
    /// Checks the invariants of the tree.
    ///
    /// # Panics
    /// If one of them does not hold.
    pub(crate) fn check(&self) {
        let mut seen = HashSet::new();
        let mut holders = 0;
        let mut marks = 0;
        let mut tokens = 0;
        let mut edges = 0;
        let mut rest = vec![ROOT];
        while let Some(key) = rest.pop() {
            assert!(seen.insert(key), "node {key} has two parents");
            let node = &self.nodes[key];
            tokens += node.tokens.len();
            assert!(node.tokens.len() <= RUN);
            if key == ROOT {
                assert!(node.tokens.is_empty() && node.depth == 0 && node.marks == NONE);
            } else {
                assert!(!node.tokens.is_empty(), "node {key} is empty");
                assert_eq!(self.start(key), self.nodes[node.parent].depth);
                assert_eq!(self.edges.get(&(node.parent, node.tokens[0])), Some(&key));
                edges += 1;
            }

            let mut deepest = self.start(key);
            let mut previous = NONE;
            let mut holder = node.holders;
            while holder != NONE {
                let stand = &self.holders[holder];
                assert_eq!((stand.node, stand.previous), (key, previous));
                assert!(stand.depth <= node.depth);
                assert!(stand.depth > self.start(key) || key == ROOT);
                deepest = deepest.max(stand.depth);
                holders += 1;
                previous = holder;
                holder = stand.next;
            }

            let mut previous = NONE;
            let mut mark = node.marks;
            while mark != NONE {
                let flag = &self.marks[mark];
                assert_eq!((flag.node, flag.previous), (key, previous));
                marks += 1;
                previous = mark;
                mark = flag.next;
            }

            let mut children = 0;
            let mut previous = NONE;
            let mut child = node.first_child;
            while child != NONE {
                let below = &self.nodes[child];
                assert_eq!((below.parent, below.previous_sibling), (key, previous));
                rest.push(child);
                children += 1;
                previous = child;
                child = below.next_sibling;
            }
            if children == 0 {
                assert_eq!(deepest, node.depth, "nobody holds the end of node {key}");
            }
            if children == 1 && key != ROOT && node.marks == NONE {
                let length = node.tokens.len() + self.nodes[node.first_child].tokens.len();
                assert!(length > RUN, "node {key} could be joined with its child");
            }
        }
        assert_eq!(tokens, self.tokens);
        assert_eq!(seen.len(), self.nodes.len());
        assert_eq!(edges, self.edges.len());
        assert_eq!(holders, self.holders.len());
        assert_eq!(marks, self.marks.len());
    }
}
