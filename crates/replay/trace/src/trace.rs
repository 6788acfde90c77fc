//! A trace: requests in the order in which they came, each the end of a chain of blocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::request::{NONE, Request};
use crate::session;
use crate::tree::{TooLarge, Tree};

/// How long a token of an answer takes where a trace does not say how long answers took, microseconds. Only the order of
/// sessions that run side by side depends on it.
pub(crate) const TOKEN: u64 = 20_000;

/// A request as it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRequest {
    /// Microseconds, of any clock that all requests have or since its session began, as [`Clock`] says.
    pub at: u64,
    /// Its session, if the trace knows sessions.
    pub session: Option<u32>,
    /// Tokens of the prompt.
    pub input: u32,
    /// Tokens of the answer.
    pub output: u32,
    /// One id for each block. The last block may be partly filled, and what is behind it is never reused.
    pub ids: Vec<u64>,
    /// How long the answer took, microseconds, if that is known.
    pub took: Option<u64>,
    /// It came when an answer of its session was there: how many requests of that session before it, and how long after,
    /// milliseconds.
    pub after: Option<(u32, u32)>,
}

/// What times are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The same for all: a request comes at its time.
    #[default]
    Trace,
    /// Since the session began. When sessions began is not known. So many users each have one session after the other.
    Session {
        /// How many.
        users: u32,
    },
}

/// What is sampled: of all blocks, those whose hash is below a bound (SHARDS). A cache of a hundredth of the room behaves with
/// a hundredth of the blocks as a whole one with all.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    below: u64,
    rate: f64,
}

impl Sample {
    /// A share of all blocks. `None`: it is not in (0, 1].
    #[must_use]
    pub fn at_rate(rate: f64) -> Option<Self> {
        let is_share = rate > 0.0 && rate <= 1.0;
        is_share.then_some(Self {
            below: if rate < 1.0 {
                (rate * u64::MAX as f64) as u64
            } else {
                u64::MAX
            },
            rate,
        })
    }
}

/// A trace.
#[derive(Debug)]
pub struct Trace {
    /// Tokens in a block.
    pub block: u32,
    /// The chains of all requests.
    pub tree: Tree,
    /// In the order in which they came.
    pub requests: Vec<Request>,
    /// How many sessions there are.
    pub sessions: u32,
    /// The trace says which request belongs to which session. Otherwise that follows from what they have in common.
    pub has_sessions: bool,
    /// What share of the blocks is here; 1: all.
    pub rate: f64,
}

/// Makes a trace of its requests.
#[derive(Debug)]
pub struct Builder {
    block: u32,
    tree: Tree,
    requests: Vec<Request>,
    /// How long each answer took, if sessions are put side by side: microseconds.
    took: Vec<u64>,
    clock: Clock,
    sample: Option<Sample>,
    has_sessions: bool,
    /// The first and the last request of each session.
    spans: Vec<(u32, u32)>,
    chain: Vec<u64>,
}

impl Builder {
    /// `block`: tokens in a block.
    #[must_use]
    pub fn new(block: u32, clock: Clock, sample: Option<Sample>) -> Self {
        Self {
            block: block.max(1),
            tree: Tree::new(),
            requests: Vec::new(),
            took: Vec::new(),
            clock,
            sample: sample.filter(|sample| sample.rate < 1.0),
            has_sessions: false,
            spans: Vec::new(),
            chain: Vec::new(),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Adds a request. Requests of one session come in their order. Blocks beyond the prompt's tokens are left out: returns
    /// how many.
    ///
    /// # Errors
    /// There are too many requests or blocks.
    pub fn push(&mut self, new: &NewRequest) -> Result<usize, TooLarge> {
        let number = u32::try_from(self.requests.len()).map_err(|_| TooLarge)?;
        if number == NONE {
            return Err(TooLarge);
        }
        let most = new.input.div_ceil(self.block) as usize;
        let ids = &new.ids[..new.ids.len().min(most)];
        let full = self
            .block
            .saturating_mul(ids.len().saturating_sub(1) as u32);
        let mut last = (new.input - full).min(self.block) * u32::from(!ids.is_empty());
        let end = match self.sample {
            None => self.tree.insert(ids)?,
            Some(sample) => {
                last = self.choose(ids, last, sample);
                self.tree.insert(&self.chain)?
            }
        };
        let session = new.session.unwrap_or(0);
        self.has_sessions |= new.session.is_some();
        let mut after = NONE;
        if let Some(back) = new.after.map(|(back, _)| back.max(1)) {
            after = number.checked_sub(back).unwrap_or(NONE);
        }
        if new.session.is_some() {
            let wanted = session as usize + 1;
            if self.spans.len() < wanted {
                self.spans.resize(wanted, (NONE, NONE));
            }
            let span = &mut self.spans[session as usize];
            span.0 = span.0.min(number);
            span.1 = number;
        }
        if matches!(self.clock, Clock::Session { .. }) {
            let took = u64::from(new.output).saturating_mul(TOKEN);
            self.took.push(new.took.unwrap_or(took));
        }
        self.requests.push(Request {
            at: new.at,
            end,
            input: new.input,
            last,
            output: new.output,
            session,
            after,
            pause: new.after.map_or(0, |(_, pause)| pause),
        });
        Ok(new.ids.len() - ids.len())
    }

    /// Of a chain those blocks that are sampled. A block is sampled by all ids of the chain up to it, since an id may mean
    /// something else behind others. Returns how many tokens the last of them has.
    fn choose(&mut self, ids: &[u64], last: u32, sample: Sample) -> u32 {
        self.chain.clear();
        let (mut link, mut last_tokens) = (0, 0);
        for (nth, id) in ids.iter().enumerate() {
            link = mixed(link ^ mixed(*id));
            if link <= sample.below {
                self.chain.push(link);
                last_tokens = if nth + 1 == ids.len() {
                    last
                } else {
                    self.block
                };
            }
        }
        last_tokens
    }

    /// All requests, in the order in which they come.
    #[must_use]
    pub fn finish(mut self) -> Trace {
        if let Clock::Session { users } = self.clock {
            self.put_side_by_side(users.max(1));
        }
        self.sort();
        if self.clock == Clock::Trace {
            let begin = self.requests.first().map_or(0, |first| first.at);
            for request in &mut self.requests {
                request.at -= begin;
            }
        }
        let sessions = if self.has_sessions {
            self.spans.len() as u32
        } else {
            session::infer(&self.tree, &mut self.requests, self.block)
        };
        self.requests.shrink_to_fit();
        Trace {
            block: self.block,
            tree: self.tree,
            requests: self.requests,
            sessions,
            has_sessions: self.has_sessions,
            rate: self.sample.map_or(1.0, |sample| sample.rate),
        }
    }

    /// Each user begins a session when the one before is over.
    fn put_side_by_side(&mut self, users: u32) {
        let mut ends = vec![0_u64; self.spans.len()];
        let mut last = vec![NONE; self.spans.len()];
        for (number, (request, took)) in self.requests.iter().zip(&self.took).enumerate() {
            let session = request.session as usize;
            let end = request.at.saturating_add(*took);
            if last[session] == NONE || end >= ends[session] {
                (ends[session], last[session]) = (end, number as u32);
            }
        }
        let mut begins = vec![0; self.spans.len()];
        let mut before = vec![NONE; self.spans.len()];
        let mut free: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
        for session in 0..self.spans.len() {
            if last[session] == NONE {
                continue;
            }
            if free.len() >= users as usize {
                if let Some(Reverse((time, request))) = free.pop() {
                    (begins[session], before[session]) = (time, request);
                }
            }
            let end = ends[session].saturating_add(begins[session]);
            free.push(Reverse((end, last[session])));
        }
        for request in &mut self.requests {
            let session = request.session as usize;
            if request.after == NONE && before[session] != NONE {
                request.after = before[session];
                request.pause = u32::try_from(request.at / 1000).unwrap_or(u32::MAX);
            }
            request.at = request.at.saturating_add(begins[session]);
        }
    }

    fn sort(&mut self) {
        if self.requests.is_sorted_by_key(|request| request.at) {
            return;
        }
        let mut order: Vec<u32> = (0..self.requests.len() as u32).collect();
        order.sort_by_key(|number| self.requests[*number as usize].at);
        let mut places = vec![0; order.len()];
        for (place, number) in order.iter().enumerate() {
            places[*number as usize] = place as u32;
        }
        self.requests.sort_by_key(|request| request.at);
        for (number, request) in self.requests.iter_mut().enumerate() {
            if let Some(place) = places.get(request.after as usize) {
                // A request that comes first waits for none.
                request.after = if (*place as usize) < number {
                    *place
                } else {
                    NONE
                };
            }
        }
    }
}

impl Trace {
    /// The blocks of the largest request. `None`: there is no request.
    #[must_use]
    pub fn largest(&self) -> Option<u32> {
        let ends = self.requests.iter().map(|request| request.end);
        ends.map(|end| self.tree.depth(end)).max()
    }

    /// The tokens of the first `blocks` blocks of a request.
    #[must_use]
    pub fn tokens(&self, request: &Request, blocks: u32) -> u64 {
        let all = self.tree.depth(request.end);
        let full = |blocks: u32| u64::from(blocks) * u64::from(self.block);
        if blocks < all {
            full(blocks)
        } else if all == 0 {
            0
        } else {
            full(all - 1) + u64::from(request.last)
        }
    }
}

impl Trace {
    /// The tokens that count of a request: all, or those of what is sampled.
    pub(crate) fn counted(&self, request: &Request) -> u64 {
        if self.rate < 1.0 {
            self.tokens(request, u32::MAX)
        } else {
            u64::from(request.input)
        }
    }
}

/// Every bit of the result depends on all of these (the finalizer of SplitMix64).
pub(crate) fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
