//! What could be reused with room for everything, and what a cache of each size reuses that lets go of what was used
//! longest ago (LRU): all sizes in one pass.
//!
//! Of each block it is known how many others were used since (its *stack distance*, Mattson 1970). A cache has it if it has
//! room for these. A request uses its blocks at once, and within a request what comes first stays longest, so no block stays
//! without those before it. Blocks that were used last by the same request therefore need one sum between them.

use crate::request::NONE;
use crate::trace::Trace;

/// What was reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Tokens of all prompts.
    pub tokens: u64,
    /// Of these, reused.
    pub reused_tokens: u64,
    /// Blocks of all prompts.
    pub blocks: u64,
    /// Of these, reused.
    pub reused_blocks: u64,
}

impl Reuse {
    /// The share of tokens that is reused.
    #[must_use]
    pub fn of_tokens(&self) -> f64 {
        share(self.reused_tokens, self.tokens)
    }

    /// The share of blocks that is reused.
    #[must_use]
    pub fn of_blocks(&self) -> f64 {
        share(self.reused_blocks, self.blocks)
    }

    pub(crate) fn request(&mut self, tokens: u64, blocks: u32) {
        self.tokens += tokens;
        self.blocks += u64::from(blocks);
    }

    pub(crate) fn reuse(&mut self, tokens: u64, blocks: u32) {
        self.reused_tokens += tokens;
        self.reused_blocks += u64::from(blocks);
    }
}

fn share(part: u64, all: u64) -> f64 {
    match all {
        0 => 0.0,
        all => part as f64 / all as f64,
    }
}

/// How many requests only warm the cache, of so many: they count in no figure.
#[must_use]
pub fn warm_up(share: f64, requests: usize) -> usize {
    ((share.clamp(0.0, 1.0) * requests as f64).floor() as usize).min(requests)
}

/// What is reused with room for everything. The first `warm_up` requests are not counted.
#[must_use]
pub fn ceiling(trace: &Trace, warm_up: usize) -> Reuse {
    let tree = &trace.tree;
    let mut seen = vec![false; tree.len()];
    let mut path = Vec::new();
    let mut reuse = Reuse::default();
    for (number, request) in trace.requests.iter().enumerate() {
        tree.path(request.end, &mut path);
        let known = path.iter().take_while(|node| seen[**node as usize]).last();
        if number >= warm_up {
            let blocks = known.map_or(0, |node| tree.depth(*node));
            reuse.request(trace.counted(request), tree.depth(request.end));
            reuse.reuse(trace.tokens(request, blocks), blocks);
        }
        path.iter().for_each(|node| seen[*node as usize] = true);
    }
    trace.adjust(&mut reuse, warm_up);
    reuse
}

/// What LRU caches with room for so many blocks reuse. `rooms`: in order. A request that is larger than a cache leaves its
/// first blocks there, as many as have room.
#[must_use]
pub fn curve(trace: &Trace, rooms: &[u64], warm_up: usize) -> Vec<Reuse> {
    let tree = &trace.tree;
    let scaled: Vec<u64> = rooms.iter().map(|room| scaled(*room, trace.rate)).collect();
    let mut last = vec![NONE; tree.len()];
    let mut used = Sums::new(trace.requests.len());
    let mut points = vec![Reuse::default(); rooms.len()];
    let mut path = Vec::new();
    for (number, request) in trace.requests.iter().enumerate() {
        tree.path(request.end, &mut path);
        let blocks = tree.depth(request.end);
        if number >= warm_up {
            for point in &mut points {
                point.request(trace.counted(request), blocks);
            }
        }
        let (mut nth, mut depth) = (0, 0);
        while nth < path.len() {
            let time = last[path[nth] as usize];
            let group = path[nth..]
                .iter()
                .take_while(|node| last[**node as usize] == time);
            let (nodes, length) = group.fold((0, 0), |(nodes, length), node| {
                (nodes + 1, length + tree.length(*node))
            });
            nth += nodes;
            if time == NONE {
                break;
            }
            // Used later: those of others, and of this path those that were taken out just now.
            let later = used.after(time as usize) + u64::from(depth);
            if number >= warm_up {
                for (point, room) in points.iter_mut().zip(&scaled).rev() {
                    let fit = room.saturating_sub(later).min(u64::from(length)) as u32;
                    if fit == 0 {
                        break;
                    }
                    let tokens = trace.tokens(request, depth + fit) - trace.tokens(request, depth);
                    point.reuse(tokens, fit);
                }
            }
            used.take(time as usize, u64::from(length));
            depth += length;
        }
        used.add(number, u64::from(blocks));
        path.iter()
            .for_each(|node| last[*node as usize] = number as u32);
    }
    points
        .iter_mut()
        .for_each(|point| trace.adjust(point, warm_up));
    points
}

/// The room of what is sampled.
pub(crate) fn scaled(room: u64, rate: f64) -> u64 {
    if rate < 1.0 {
        (room as f64 * rate).round() as u64
    } else {
        room
    }
}

/// Blocks by the request that used them last, and sums over them (Fenwick 1994).
struct Sums {
    sums: Vec<u64>,
    all: u64,
}

impl Sums {
    fn new(length: usize) -> Self {
        Self {
            sums: vec![0; length + 1],
            all: 0,
        }
    }

    fn add(&mut self, at: usize, blocks: u64) {
        self.all += blocks;
        self.each(at, |sum| *sum += blocks);
    }

    fn take(&mut self, at: usize, blocks: u64) {
        self.all -= blocks;
        self.each(at, |sum| *sum -= blocks);
    }

    fn each(&mut self, at: usize, change: impl Fn(&mut u64)) {
        let mut at = at + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            change(sum);
            at += at & at.wrapping_neg();
        }
    }

    /// The sum of all behind `at`.
    fn after(&self, at: usize) -> u64 {
        let (mut at, mut until) = (at + 1, 0);
        while at > 0 {
            until += self.sums[at];
            at &= at - 1;
        }
        self.all - until
    }
}

impl Trace {
    /// What is reused of a sample says what is reused of all once it is known which blocks are in it. A block that is in every
    /// prompt is sampled or not, and both is wrong: what is sampled too little or too much counts as reused in any cache
    /// (SHARDS's adjustment).
    pub(crate) fn adjust(&self, reuse: &mut Reuse, warm_up: usize) {
        if self.rate >= 1.0 {
            return;
        }
        let counted = &self.requests[warm_up.min(self.requests.len())..];
        let (mut tokens, mut blocks) = (0_u64, 0_u64);
        for request in counted {
            tokens += u64::from(request.input);
            blocks += u64::from(request.input.div_ceil(self.block));
        }
        let corrected = |reused: &mut u64, sampled: &mut u64, all: u64| {
            let expected = (all as f64 * self.rate).round() as i128;
            let found = i128::from(*reused) + expected - i128::from(*sampled);
            *reused = found.clamp(0, expected) as u64;
            *sampled = expected as u64;
        };
        corrected(&mut reuse.reused_tokens, &mut reuse.tokens, tokens);
        corrected(&mut reuse.reused_blocks, &mut reuse.blocks, blocks);
    }
}
