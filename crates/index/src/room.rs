//! Makes room for requests and blocks.

use contextpilot_order::Block;

use crate::context::Context;
use crate::{Answer, Index};

impl Index {
    /// Numbers for the blocks of a context.
    pub(crate) fn intern(&mut self, context: &Context) -> Vec<Block> {
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

    pub(crate) fn guess_no_more_than(&mut self) {
        while self.requests.cached() > self.limits.guessed {
            let Some(oldest) = self.requests.oldest() else {
                break;
            };
            self.evicted(&oldest);
        }
    }

    /// Makes room for requests and blocks.
    ///
    /// # Errors
    /// 429: everything that is kept is cached.
    pub(crate) fn make_room(&mut self, requests: usize, blocks: usize) -> Result<(), Box<Answer>> {
        while self.requests.len() + requests > self.limits.requests {
            let Some(oldest) = self.requests.oldest_waiting() else {
                let limit = self.limits.requests;
                return Err(full("requests", limit, "--max-requests"));
            };
            self.evicted(&oldest);
        }
        if !self
            .blocks
            .make_room(blocks, self.limits.blocks, &mut self.frequency)
        {
            return Err(full("blocks", self.limits.blocks, "--max-blocks"));
        }
        Ok(())
    }
}

fn full(what: &str, limit: usize, option: &str) -> Box<Answer> {
    let why = format!(
        "{limit} {what} are tracked, and no more are allowed: evict some (POST /evict), start \
         anew (POST /reset), or start the index with a larger {option}"
    );
    Box::new(Answer::error(429, &why))
}
