//! Finds what a new prompt has in common with earlier ones.

use std::collections::HashMap;

use crate::tokens::{Run, Tokens};

/// The most tokens that are remembered. Before a prompt would exceed it, all of them are forgotten.
pub const MOST_TOKENS: usize = 1 << 20;
/// Tokens in a window. Repeated stretches in the middle of prompts are found by windows.
const WINDOW: usize = 8;

/// Part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// This many tokens with new identities. Their numbers continue those of the last new segment.
    New(u32),
    /// Equal to tokens that were recorded before.
    Known(Run),
}

/// Remembers the tokens of earlier prompts, and finds them again in new ones.
#[derive(Debug)]
pub struct History {
    /// The tokens, in the order of their identities. The first one's identity is `base`.
    tokens: Vec<i32>,
    base: u64,
    /// The nodes of a radix tree of all prompts. The first is the root.
    nodes: Vec<Run>,
    /// Children, by their parent and their first token.
    children: HashMap<(u32, i32), u32>,
    /// For the hash of a window, the identity of the window's first token.
    windows: HashMap<u64, u64>,
    limit: usize,
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// An empty one that remembers up to [`MOST_TOKENS`] tokens.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limit(MOST_TOKENS)
    }

    /// An empty one that remembers up to `limit` tokens, and forgets all of them then. A single
    /// prompt that is longer is remembered nevertheless, until the next one comes.
    #[must_use]
    pub fn with_limit(limit: usize) -> Self {
        Self {
            tokens: Vec::new(),
            base: 0,
            nodes: vec![Run {
                first: 0,
                length: 0,
            }],
            children: HashMap::new(),
            windows: HashMap::new(),
            limit,
        }
    }

    /// Splits a prompt into segments, and remembers it. The prompt begins with known segments for as
    /// long as any remembered prompt begins like it.
    pub fn relate(&mut self, prompt: &[i32]) -> Vec<Segment> {
        if self.tokens.len() + prompt.len() > self.limit {
            let next = self.next();
            *self = Self {
                base: next,
                ..Self::with_limit(self.limit)
            };
        }
        let (mut node, mut at, mut segments) = self.follow(prompt);
        let prefix = at;
        // The start of what is new so far.
        let mut new = at;
        while at < prompt.len() {
            let Some((begin, run)) = self.find(prompt, new, at) else {
                at += 1;
                continue;
            };
            node = self.invent(&prompt[new..begin], node, &mut segments);
            node = self.grow(node, run);
            segments.push(Segment::Known(run));
            at = begin + run.length as usize;
            new = at;
        }
        self.invent(&prompt[new..], node, &mut segments);
        self.index(prompt, prefix, &segments);
        join(segments)
    }

    /// Remembers a row of known tokens as if it had been a prompt. Does nothing if some of them are
    /// already forgotten.
    pub(crate) fn graft(&mut self, row: &Tokens) {
        let mut tokens = Vec::with_capacity(row.len() as usize);
        for run in row.runs() {
            let Some(begin) = run.first.checked_sub(self.base) else {
                return;
            };
            let begin = begin as usize;
            let Some(part) = self.tokens.get(begin..begin + run.length as usize) else {
                return;
            };
            tokens.extend(part);
        }
        let (mut node, at, _) = self.follow(&tokens);
        let mut rest = Tokens::new();
        rest.extend(row, at as u32, row.len());
        for run in rest.runs() {
            node = self.grow(node, *run);
        }
    }

    fn next(&self) -> u64 {
        self.base + self.tokens.len() as u64
    }

    fn token(&self, identity: u64) -> Option<i32> {
        let at = usize::try_from(identity.checked_sub(self.base)?).ok()?;
        self.tokens.get(at).copied()
    }

    /// Follows the prompt down the tree, and splits the node in which it differs. Returns the last
    /// node, the length of the known prefix, and its segments.
    fn follow(&mut self, prompt: &[i32]) -> (u32, usize, Vec<Segment>) {
        let (mut node, mut at, mut segments) = (0, 0, Vec::new());
        while let Some(&child) = prompt
            .get(at)
            .and_then(|&token| self.children.get(&(node, token)))
        {
            let run = self.nodes[child as usize];
            let start = (run.first - self.base) as usize;
            let held = &self.tokens[start..start + run.length as usize];
            let pairs = held.iter().zip(&prompt[at..]);
            let common = pairs.take_while(|(a, b)| a == b).count();
            let upper = Run {
                length: common as u32,
                ..run
            };
            segments.push(Segment::Known(upper));
            at += common;
            if common < held.len() {
                let first = prompt[at - common];
                node = self.split(node, first, child, upper);
                break;
            }
            node = child;
        }
        (node, at, segments)
    }

    /// Puts a node for the upper part of `child` between it and its parent.
    fn split(&mut self, parent: u32, first: i32, child: u32, upper: Run) -> u32 {
        let middle = self.nodes.len() as u32;
        self.nodes.push(upper);
        self.children.insert((parent, first), middle);
        let lower = &mut self.nodes[child as usize];
        lower.first += u64::from(upper.length);
        lower.length -= upper.length;
        let identity = lower.first;
        if let Some(token) = self.token(identity) {
            self.children.insert((middle, token), child);
        }
        middle
    }

    /// Adds new tokens to the tree below `node`, and to the segments. Returns their node.
    fn invent(&mut self, tokens: &[i32], node: u32, segments: &mut Vec<Segment>) -> u32 {
        if tokens.is_empty() {
            return node;
        }
        let run = Run {
            first: self.next(),
            length: tokens.len() as u32,
        };
        self.tokens.extend(tokens);
        segments.push(Segment::New(run.length));
        self.grow(node, run)
    }

    fn grow(&mut self, node: u32, run: Run) -> u32 {
        let Some(token) = self.token(run.first) else {
            return node;
        };
        let child = self.nodes.len() as u32;
        self.nodes.push(run);
        self.children.insert((node, token), child);
        child
    }

    /// Finds a remembered stretch that is equal to the prompt at `at`, and extends it in both
    /// directions, but not to before `least`. Returns where it begins in the prompt.
    fn find(&self, prompt: &[i32], least: usize, at: usize) -> Option<(usize, Run)> {
        let hash = window(prompt.get(at..at + WINDOW)?)?;
        let first = *self.windows.get(&hash)?;
        let there = (first - self.base) as usize;
        let ahead = self.tokens[there..].iter().zip(&prompt[at..]);
        let ahead = ahead.take_while(|(a, b)| a == b).count();
        if ahead < WINDOW {
            return None;
        }
        let behind = self.tokens[..there].iter().rev();
        let behind = behind.zip(prompt[least..at].iter().rev());
        let behind = behind.take_while(|(a, b)| a == b).count();
        let run = Run {
            first: first - behind as u64,
            length: (ahead + behind) as u32,
        };
        Some((at - behind, run))
    }

    /// Remembers the windows that lie wholly within a new segment. `prefix`: tokens of the known
    /// prefix.
    fn index(&mut self, prompt: &[i32], prefix: usize, segments: &[Segment]) {
        let new: u64 = segments.iter().map(|segment| new_in(*segment)).sum();
        let mut next = self.next() - new;
        let mut at = 0;
        for segment in segments {
            match *segment {
                Segment::Known(run) => at += run.length as usize,
                Segment::New(length) => {
                    debug_assert!(at >= prefix, "nothing of the shared prefix is new");
                    let length = length as usize;
                    let whole = (length + 1).saturating_sub(WINDOW);
                    for step in 0..whole {
                        if let Some(hash) = window(&prompt[at + step..at + step + WINDOW]) {
                            self.windows.entry(hash).or_insert(next + step as u64);
                        }
                    }
                    next += length as u64;
                    at += length;
                }
            }
        }
    }
}

fn new_in(segment: Segment) -> u64 {
    match segment {
        Segment::New(length) => u64::from(length),
        Segment::Known(_) => 0,
    }
}

/// Joins each segment with the one before it, where it continues that.
fn join(segments: Vec<Segment>) -> Vec<Segment> {
    let mut joined: Vec<Segment> = Vec::with_capacity(segments.len());
    for segment in segments {
        match (joined.last_mut(), segment) {
            (Some(Segment::New(length)), Segment::New(more)) => *length += more,
            (Some(Segment::Known(last)), Segment::Known(run))
                if last.first + u64::from(last.length) == run.first =>
            {
                last.length += run.length;
            }
            _ => joined.push(segment),
        }
    }
    joined
}

/// The hash of a window. `None` for three windows of four, to save memory. The choice depends on the
/// tokens alone, so equal windows are chosen alike.
fn window(tokens: &[i32]) -> Option<u64> {
    let hash = tokens.iter().fold(0_u64, |hash, &token| {
        (hash ^ u64::from(token as u32))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    });
    (hash % 4 == 0).then_some(hash)
}
