//! The best that any eviction could do with so much room, had it known the future (Belady 1966).
//!
//! Of all blocks that may leave, the one leaves that is used again last; a block that is used later than all of them is not
//! kept at all. A request that uses a block uses those before it, so a block's next use is never before that of its parents, and
//! of blocks with the same next use the deepest leaves. So no block ever stays without its parents, and the order is that of the
//! optimum without this condition: no other keeps more blocks for those who want them. A block is the unit of room. (That the
//! last one of a prompt may have fewer tokens does not count.)

use std::collections::BinaryHeap;

use crate::curve::{Reuse, scaled};
use crate::request::NONE;
use crate::trace::Trace;
use crate::tree::Node;

/// The next use of each node of each request's path.
#[derive(Debug)]
pub struct Future {
    /// By request, and by depth of its path.
    next: Vec<u32>,
    /// Where those of each request begin.
    begins: Vec<usize>,
}

impl Future {
    /// Reads a trace backwards.
    #[must_use]
    pub fn new(trace: &Trace) -> Self {
        let tree = &trace.tree;
        let mut path = Vec::new();
        let mut begins = Vec::with_capacity(trace.requests.len());
        let mut all = 0;
        for request in &trace.requests {
            begins.push(all);
            let mut node = request.end;
            while node != crate::tree::ROOT {
                all += 1;
                node = tree.parent(node);
            }
        }
        let mut next = vec![NONE; all];
        let mut seen = vec![NONE; tree.len()];
        for (number, request) in trace.requests.iter().enumerate().rev() {
            tree.path(request.end, &mut path);
            for (nth, node) in path.iter().enumerate() {
                let use_of = &mut seen[*node as usize];
                next[begins[number] + nth] = std::mem::replace(use_of, number as u32);
            }
        }
        Self { next, begins }
    }
}

/// What is reused at best with room for so many blocks. The first `warm_up` requests are not counted.
#[must_use]
pub fn best(trace: &Trace, future: &Future, room: u64, warm_up: usize) -> Reuse {
    let tree = &trace.tree;
    let room = scaled(room, trace.rate);
    let mut reuse = Reuse::default();
    // Blocks of each node that are there, from its first on, and when the node is used next.
    let mut there = vec![0_u32; tree.len()];
    let mut next = vec![NONE; tree.len()];
    // The first of these is used last.
    let mut order: BinaryHeap<(u32, u32, Node)> = BinaryHeap::new();
    let mut taken = 0_u64;
    let mut path = Vec::new();
    for (number, request) in trace.requests.iter().enumerate() {
        tree.path(request.end, &mut path);
        let mut found = 0;
        let mut missing = path.len();
        for (nth, node) in path.iter().enumerate() {
            found += there[*node as usize];
            if there[*node as usize] < tree.length(*node) {
                missing = nth;
                break;
            }
        }
        if number >= warm_up {
            reuse.request(trace.counted(request), tree.depth(request.end));
            reuse.reuse(trace.tokens(request, found), found);
        }
        for (nth, node) in path.iter().enumerate() {
            let at = *node as usize;
            next[at] = future.next[future.begins[number] + nth];
            if there[at] > 0 {
                order.push((next[at], tree.depth(*node), *node));
            }
        }
        for node in &path[missing..] {
            let at = *node as usize;
            if next[at] == NONE {
                break;
            }
            let wanted = u64::from(tree.length(*node) - there[at]);
            while room - taken < wanted {
                let Some(&(use_of, _, other)) = order.peek() else {
                    break;
                };
                let blocks = there[other as usize];
                if next[other as usize] != use_of || blocks == 0 {
                    order.pop();
                    continue;
                }
                // With an equal next use both are of one path, and the one that is there is the shallower.
                if use_of <= next[at] {
                    break;
                }
                let gone = (wanted - (room - taken)).min(u64::from(blocks));
                there[other as usize] -= gone as u32;
                taken -= gone;
            }
            let come = wanted.min(room - taken);
            if come > 0 {
                if there[at] == 0 {
                    order.push((next[at], tree.depth(*node), *node));
                }
                there[at] += come as u32;
                taken += come;
            }
            if come < wanted {
                break;
            }
        }
    }
    trace.adjust(&mut reuse, warm_up);
    reuse
}
