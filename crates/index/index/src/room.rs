//! Makes room for requests and blocks.

use std::collections::HashSet;

use contextpilot_order::Block;
use foldhash::fast::RandomState;

use crate::block::Key;
use crate::context::Context;
use crate::tier::StoredTier;
use crate::{Index, IndexAnswer, Truth};

/// Bytes of a known block, with its place in every table.
const BLOCK: usize = 220;
/// Bytes of a block of a request: its number, and a node of the tree once the request is cached.
const IN_REQUEST: usize = 124;
/// Bytes of a request without its blocks.
const REQUEST: usize = 700;
/// The same for turns, whose blocks are in no tree.
const IN_TURN: usize = 4;
const TURN: usize = 400;

impl Index {
    /// Whether so many more requests could be tracked, if all made room that may.
    ///
    /// # Errors
    /// 429: they could not.
    pub(crate) fn could_hold(&self, requests: usize) -> Result<(), Box<IndexAnswer>> {
        let limit = self.limits.requests;
        let held = match self.truth {
            Truth::Guess => 0,
            Truth::Learning | Truth::Engine => self.requests.cached(),
        };
        if held + requests > limit {
            Err(full("requests", limit, "--max-requests"))
        } else {
            Ok(())
        }
    }

    /// Numbers for the blocks of a context, of which a request will be tracked; for a turn, `requests` is 0.
    /// Of those that are tracked and not known to be cached, the ones before number `before` make room.
    ///
    /// # Errors
    /// 429: everything else that is kept is cached. Nothing is changed then.
    pub(crate) fn admit(
        &mut self,
        context: &Context,
        requests: usize,
        before: u64,
    ) -> Result<Vec<Block>, Box<IndexAnswer>> {
        let (mut known, mut new) = (Vec::new(), HashSet::<Key, RandomState>::default());
        for key in &context.keys {
            match self.blocks.known(*key) {
                Some(block) => known.push(block),
                None => drop(new.insert(*key)),
            }
        }
        // Those that are known are not to make room.
        self.blocks.use_all(&known);
        let room = self.make_room(requests, context.keys.len(), new.len(), before);
        let blocks = room.map(|()| self.intern(context));
        self.blocks.release_all(&known, &self.frequency);
        blocks
    }

    /// Numbers for the blocks of a context.
    fn intern(&mut self, context: &Context) -> Vec<Block> {
        let mut blocks = Vec::with_capacity(context.keys.len());
        for (key, value) in context.keys.iter().zip(&context.values) {
            let bytes = value.as_str().map_or(0, str::len);
            let known = self.blocks.known(*key);
            let block = known.unwrap_or_else(|| self.blocks.block(*key, bytes));
            if known.is_none() {
                self.wish(block, value);
            }
            blocks.push(block);
        }
        blocks
    }

    /// Hands out an id.
    pub(crate) fn track(
        &mut self,
        blocks: Vec<Block>,
        tokens: u64,
        new_id: &mut dyn FnMut() -> String,
    ) -> String {
        let mut id = new_id();
        while self.requests.get(&id).is_some() {
            id = new_id();
        }
        self.blocks.use_all(&blocks);
        self.requests.add(id.clone(), blocks, tokens);
        id
    }

    /// Forgets requests beyond those that may count as cached: what the engine had when it was heard last, which may
    /// be back in a moment, and so many more.
    pub(crate) fn guess_no_more_than(&mut self) {
        const AT_ONCE: usize = 64;
        for _ in 0..AT_ONCE {
            if self.requests.cached() <= self.limits.guessed + self.heard {
                break;
            }
            let Some(oldest) = self.requests.oldest(u64::MAX) else {
                break;
            };
            self.evicted(&oldest);
        }
    }

    /// Bytes of all that is kept, about.
    pub(crate) fn kept(&self) -> usize {
        self.blocks.len() * BLOCK
            + self.requests.len() * REQUEST
            + self.requests.blocks() * IN_REQUEST
            + self.stored().map_or(0, StoredTier::len) * REQUEST
            + self.stored().map_or(0, StoredTier::blocks) * IN_REQUEST
            + self.turns.len() * TURN
            + self.turns.blocks() * IN_TURN
    }

    /// Makes room for so many requests with so many blocks in all, of which some are new.
    pub(crate) fn make_room(
        &mut self,
        requests: usize,
        blocks: usize,
        new: usize,
        before: u64,
    ) -> Result<(), Box<IndexAnswer>> {
        let limits = self.limits;
        while self.requests.len() + self.stored().map_or(0, StoredTier::len) + requests
            > limits.requests
        {
            self.drop_stored()
                .or_else(|| self.drop_waiting(before))
                .ok_or_else(|| full("requests", limits.requests, "--max-requests"))?;
        }
        while self.blocks.len() + new > limits.blocks {
            self.drop_any(requests, before)
                .ok_or_else(|| full("documents", limits.blocks, "--max-blocks"))?;
        }
        let more = match requests {
            0 => TURN + blocks * IN_TURN,
            _ => REQUEST + blocks * IN_REQUEST,
        } + new * BLOCK;
        while self.kept() + more > limits.kept {
            self.drop_any(requests, before)
                .ok_or_else(|| full("MiB", limits.kept >> 20, "--max-kept"))?;
        }
        Ok(())
    }

    /// Forgets what is missed least: a block, a prompt that has left the engine, or else something of the kind that
    /// comes, so that many turns do not drive out requests, nor many requests turns.
    fn drop_any(&mut self, requests: usize, before: u64) -> Option<()> {
        let least = self.drop_rarest().or_else(|| self.drop_stored());
        least.or_else(|| match requests {
            0 => self.drop_turn().or_else(|| self.drop_waiting(before)),
            _ => self.drop_waiting(before).or_else(|| self.drop_turn()),
        })
    }

    /// Forgets the rarest block that is in no request. `None` if there is none; so below.
    fn drop_rarest(&mut self) -> Option<()> {
        let block = self.blocks.forget_rarest()?;
        self.frequency.drop_block(block);
        Some(())
    }

    /// Forgets the oldest request that is not known to be cached; or, if that is a guess, the oldest.
    fn drop_waiting(&mut self, before: u64) -> Option<()> {
        let guessed = || {
            self.requests
                .oldest(before)
                .filter(|_| self.truth == Truth::Guess)
        };
        let oldest = self.requests.oldest_waiting(before).or_else(guessed)?;
        self.evicted(&oldest);
        Some(())
    }

    /// Forgets the oldest turn.
    fn drop_turn(&mut self) -> Option<()> {
        let oldest = self.turns.oldest()?;
        self.end_turn(&oldest);
        Some(())
    }
}

fn full(what: &str, limit: usize, option: &str) -> Box<IndexAnswer> {
    let why = format!(
        "{limit} {what} are kept, and no more are allowed: evict some requests (POST /evict), start \
         anew (POST /reset), or start the index with a larger {option}"
    );
    Box::new(IndexAnswer::error(429, &why))
}
