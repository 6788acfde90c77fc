//! What slots have held, live or lost, in bounded memory.
//!
//! A radix tree like the ledger's, without holders: contents are *recorded* under the number of the
//! prompt that they belong to, and stay until memory is needed for others. The least recently used
//! go first. Each run knows the last prompt that went through it, where that one goes on, and how
//! the run was last lost from the cache.
//!
//! A hash of the place and first tokens of a run that had to go is kept for a while, so that a
//! prompt that was forgotten is not taken for one that was never seen.

use crate::slab::{Key, Slab};
use crate::token::Token;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

mod forgotten;
mod node;
pub(super) mod repeats;
use forgotten::{Forgotten, Hash};
pub(crate) use node::{LossId, Moment, Nth};
use node::{Lost, NONE, Node, ROOT, RUN};

/// How many tokens of a prompt are known, and the last earlier prompt that begins with these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nearest {
    /// How many tokens both have in common from the beginning.
    pub(crate) common: u32,
    /// How many of these were recorded when the prompt began. The others were evaluated at the same time.
    pub(crate) before: u32,
    /// How many of them were recorded then, or are of prompts that were launched earlier.
    pub(crate) earlier: u32,
    /// The earlier prompt.
    pub(crate) nth: Nth,
    /// What the slot of the earlier prompt held behind these, as far as that is remembered.
    pub(crate) rest: Vec<Token>,
    /// How these were lost, as far as they were recorded when the prompt began: for each run of them, the number of tokens, and
    /// the loss.
    pub(crate) lost: Vec<(usize, Option<LossId>)>,
}

/// Where a recorded prompt ends. If the place is forgotten since, [`Past::read`] finds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    node: Key,
    serial: u64,
    depth: u32,
}

impl End {
    /// How many tokens there are up to it.
    pub(crate) fn depth(self) -> u32 {
        self.depth
    }
}

/// Where a walk along some tokens ended: `inside` tokens of `node` agree.
struct Reached {
    node: Key,
    inside: usize,
    depth: u32,
}

/// The tree of all recorded contents.
#[derive(Debug)]
pub(crate) struct Past {
    nodes: Slab<Node>,
    edges: HashMap<(Key, Token), Key>,
    leaves: BTreeSet<(Nth, Key)>,
    forgotten: Forgotten,
    bytes: usize,
    limit: usize,
    serial: u64,
    now: Moment,
}

impl Past {
    /// Remembers as much as fits in `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let mut nodes = Slab::new();
        nodes.insert(Node {
            parent: NONE,
            next: NONE,
            children: 0,
            start: 0,
            tokens: Vec::new(),
            latest: 0,
            before: Hash::default(),
            first: 0,
            since: 0,
            lost: None,
            serial: 0,
        });
        Self {
            nodes,
            edges: HashMap::new(),
            leaves: BTreeSet::new(),
            forgotten: Forgotten::default(),
            bytes: 0,
            limit,
            serial: 0,
            now: 0,
        }
    }

    /// Prompts begin. What is recorded from now on is not in their past.
    pub(crate) fn begin(&mut self) -> Moment {
        self.now += 1;
        self.now - 1
    }

    /// Records tokens that a slot holds, or is about to lose, under the number of their prompt.
    pub(crate) fn record(&mut self, tokens: &[Token], nth: Nth) -> End {
        let mut at = ROOT;
        let mut done = 0;
        while let Some(&first) = tokens.get(done) {
            let child = match self.edges.get(&(at, first)) {
                Some(&child) => {
                    let agree = common(&self.nodes[child].tokens, &tokens[done..]);
                    self.split(child, agree)
                }
                None => self.append(at, &tokens[done..], nth),
            };
            if child != at {
                self.nodes[at].next = child;
            }
            self.touch(child, nth);
            done = self.nodes[child].end() as usize;
            at = child;
        }
        self.nodes[at].next = NONE;
        let end = End {
            node: at,
            serial: self.nodes[at].serial,
            depth: done as u32,
        };
        self.shrink();
        end
    }

    /// The tokens that were recorded up to an end; `None`: some of them are forgotten.
    pub(crate) fn read(&self, end: End) -> Option<Vec<Token>> {
        let mut key = end.node;
        let node = self.nodes.get(key)?;
        if node.serial != end.serial || node.end() < end.depth {
            return None;
        }
        let mut parts: Vec<&[Token]> = Vec::new();
        while key != ROOT {
            let node = &self.nodes[key];
            let length = (end.depth.max(node.start) - node.start) as usize;
            parts.push(&node.tokens[..length.min(node.tokens.len())]);
            key = node.parent;
        }
        parts.reverse();
        Some(parts.concat())
    }

    /// The last copy of these tokens, from depth `from` on, is gone.
    pub(crate) fn lose(&mut self, tokens: &[Token], from: u32, loss: LossId) {
        let mut at = ROOT;
        let mut done = 0;
        while let Some(&first) = tokens.get(done) {
            let Some(&child) = self.edges.get(&(at, first)) else {
                break;
            };
            let run = &self.nodes[child].tokens;
            let agree = common(run, &tokens[done..]);
            if agree == 0 {
                break;
            }
            let all = agree == run.len();
            // The loss may begin inside this run. The tokens before it are still cached.
            let above = (from as usize).saturating_sub(done);
            let cut = if above > 0 && above < agree {
                above
            } else {
                agree
            };
            let part = self.split(child, cut);
            done += cut;
            if done as u32 > from {
                self.nodes[part].lost = Some(Lost { loss, until: None });
            }
            at = part;
            if !all && cut == agree {
                break;
            }
        }
        self.shrink();
    }

    /// How the tokens `[from, to)` of a prompt that began at that moment were last lost: for each run of them, the loss and the
    /// range of tokens. Those that were not lost, or are not remembered, are left out.
    pub(crate) fn losses(
        &self,
        tokens: &[Token],
        (from, to): (u32, u32),
        begun: Moment,
    ) -> Vec<(LossId, Range<u32>)> {
        let Reached {
            node: mut key,
            depth,
            ..
        } = self.walk(&tokens[..to as usize]);
        let mut losses = Vec::new();
        while key != ROOT && self.nodes[key].end() > from {
            let node = &self.nodes[key];
            let inside = node.start.max(from)..node.end().min(depth);
            if let Some(loss) = node.lost_for(begun).filter(|_| !inside.is_empty()) {
                losses.push((loss, inside));
            }
            key = node.parent;
        }
        losses.reverse();
        losses
    }

    /// The prompt with the longest common beginning with the tokens of prompt `nth`, which began at that moment; of several, the
    /// latest. `None`: not even the first token is known, but of prompts that were launched later and evaluated at the same time.
    pub(crate) fn nearest(&self, tokens: &[Token], nth: Nth, begun: Moment) -> Option<Nearest> {
        let Reached {
            node,
            inside,
            depth,
        } = self.walk(tokens);
        let is_earlier = |node: &Node| node.since <= begun || node.first < nth;
        let earlier = self.end_of(node, is_earlier).min(depth);
        if earlier == 0 {
            return None;
        }
        let before = self.end_of(node, |node| node.since <= begun).min(depth);
        let here = &self.nodes[node];
        let mut rest = Vec::new();
        let mut lost = Vec::new();
        let (mut next, mut at) = (node, inside);
        while next != NONE {
            let node = &self.nodes[next];
            let tokens = &node.tokens[at..];
            rest.extend_from_slice(tokens);
            if node.since <= begun {
                lost.push((tokens.len(), node.lost_for(begun)));
            }
            (next, at) = (node.next, 0);
        }
        Some(Nearest {
            common: depth,
            before,
            earlier,
            nth: here.latest,
            rest,
            lost,
        })
    }

    /// Where the last run on the way to a node ends of which this is true. It is true of all before that.
    fn end_of(&self, mut key: Key, is_true: impl Fn(&Node) -> bool) -> u32 {
        while key != ROOT && !is_true(&self.nodes[key]) {
            key = self.nodes[key].parent;
        }
        self.nodes[key].end()
    }

    /// Whether a run was forgotten that may have held the next of these tokens, behind those that are
    /// known, or behind those that were known when the prompt began.
    pub(crate) fn has_forgotten(&self, tokens: &[Token], begun: Moment) -> bool {
        let reached = self.walk(tokens);
        let before = self.end_of(reached.node, |node| node.since <= begun);
        let is_behind = |reached: &Reached| {
            let node = &self.nodes[reached.node];
            let here = node.before.after(&node.tokens[..reached.inside]);
            self.forgotten
                .knows(here, &tokens[reached.depth as usize..])
        };
        is_behind(&reached)
            || before < reached.depth && is_behind(&self.walk(&tokens[..before as usize]))
    }

    fn walk(&self, tokens: &[Token]) -> Reached {
        let mut reached = Reached {
            node: ROOT,
            inside: 0,
            depth: 0,
        };
        while let Some(first) = tokens.get(reached.depth as usize) {
            let Some(&child) = self.edges.get(&(reached.node, *first)) else {
                break;
            };
            let run = &self.nodes[child].tokens;
            let inside = common(run, &tokens[reached.depth as usize..]);
            reached = Reached {
                node: child,
                inside,
                depth: reached.depth + inside as u32,
            };
            if inside < run.len() {
                break;
            }
        }
        reached
    }

    fn touch(&mut self, node: Key, nth: Nth) {
        let here = &mut self.nodes[node];
        if here.children == 0 {
            self.leaves.remove(&(here.latest, node));
            self.leaves.insert((nth, node));
        }
        here.latest = nth;
        here.first = here.first.min(nth);
        // A slot holds this run now. A prompt that is evaluated at the same time may still find it lost.
        if let Some(lost) = &mut here.lost {
            lost.until.get_or_insert(self.now);
        }
    }

    /// Appends tokens to a node's run, or adds a child with them. Not all of them may fit. Returns the
    /// node that has the first of them.
    fn append(&mut self, at: Key, tokens: &[Token], nth: Nth) -> Key {
        let here = &mut self.nodes[at];
        let room = RUN - here.tokens.len();
        let is_alike = here.lost.is_none() && here.first == nth && here.since == self.now;
        if at != ROOT && here.children == 0 && is_alike && room > 0 {
            let added = &tokens[..room.min(tokens.len())];
            self.bytes -= here.bytes();
            let length = here.tokens.len() + added.len();
            if length > here.tokens.capacity() {
                let capacity = length.next_power_of_two().min(RUN).max(length);
                here.tokens.reserve_exact(capacity - here.tokens.len());
            }
            here.tokens.extend_from_slice(added);
            self.bytes += here.bytes();
            return at;
        }
        self.serial += 1;
        let node = Node {
            serial: self.serial,
            parent: at,
            next: NONE,
            children: 0,
            start: here.end(),
            tokens: tokens[..RUN.min(tokens.len())].to_vec(),
            latest: nth,
            first: nth,
            since: self.now,
            before: here.before.after(&here.tokens),
            lost: None,
        };
        here.children += 1;
        if here.children == 1 {
            let latest = here.latest;
            self.leaves.remove(&(latest, at));
        }
        self.bytes += node.bytes();
        let key = self.nodes.insert(node);
        self.edges.insert((at, tokens[0]), key);
        self.leaves.insert((nth, key));
        key
    }

    /// Splits a node's run after `length` tokens. Returns the upper part, a new node; the lower part
    /// keeps its key. Does nothing if the run is not longer than that.
    fn split(&mut self, node: Key, length: usize) -> Key {
        let lower = &mut self.nodes[node];
        if length >= lower.tokens.len() {
            return node;
        }
        self.bytes -= lower.bytes();
        let tokens: Vec<Token> = lower.tokens.drain(..length).collect();
        lower.tokens.shrink_to_fit();
        self.serial += 1;
        let upper = Node {
            serial: self.serial,
            parent: lower.parent,
            next: node,
            children: 1,
            start: lower.start,
            latest: lower.latest,
            first: lower.first,
            since: lower.since,
            before: lower.before,
            lost: lower.lost,
            tokens,
        };
        lower.start += length as u32;
        lower.before = upper.before.after(&upper.tokens);
        self.bytes += lower.bytes() + upper.bytes();
        let (parent, first, second) = (upper.parent, upper.tokens[0], lower.tokens[0]);
        let key = self.nodes.insert(upper);
        self.nodes[node].parent = key;
        self.edges.insert((parent, first), key);
        self.edges.insert((key, second), node);
        if self.nodes[parent].next == node {
            self.nodes[parent].next = key;
        }
        key
    }

    /// Forgets the least recently used runs until the rest fits in the limit.
    fn shrink(&mut self) {
        while self.bytes > self.limit {
            let Some((_, key)) = self.leaves.pop_first() else {
                return;
            };
            let node = self.nodes.remove(key);
            self.bytes -= node.bytes();
            self.edges.remove(&(node.parent, node.tokens[0]));
            self.forgotten.note(node.before, &node.tokens);
            let parent = &mut self.nodes[node.parent];
            parent.children -= 1;
            if parent.next == key {
                parent.next = NONE;
            }
            if parent.children == 0 && node.parent != ROOT {
                self.leaves.insert((parent.latest, node.parent));
            }
        }
    }
}

/// How many tokens two runs have in common.
pub(crate) fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
