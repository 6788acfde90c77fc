//! The tier of prompts that have left the engine, and that the prefix store may have.
//!
//! With a prefix store (docs/store.md) a prompt that was evicted is not gone: the engine loads it, which takes a small part
//! of the time of evaluating it. So the index keeps its documents, and orders others by them. For all others it is as
//! evicted as ever: it is not tracked, not listed, and cannot be evicted again.
//!
//! The index does not hear what the store drops. Instead it asks the hook before it relies on a prompt of this tier
//! ([`Question`](crate::Question)), and forgets what is not there any more. An eviction says nothing of the store: just then
//! the server often has it, to load the next prompt.
//!
//! Another process of the server has the same store, but its hook knows none of the prompts before: it cannot be asked about
//! these. They still say in which order documents were stored, and any other order is worth nothing for sure. So contexts
//! are ordered by them, and nothing is claimed of them. Once such a prompt was sent again, the new process knows it.
//!
//! Of equal prompts the last is remembered, and of all of them those that were used last. What clients have asked the store to
//! keep (`cache_control`) leaves it last, so the index forgets it last, and of equal prefixes prefers it. The hook says until
//! when, with the account of a request and whenever it is asked.

use contextpilot_order::{Block, Tiers};

use crate::question::{Found, Question};
use crate::requests::Request;
use crate::tier::StoredTier;
use crate::{Index, Truth};

/// How many prompts are kept at most. The hook does not remember more.
const MOST: usize = 10_000;

/// What the store has may be a few tokens less than the index expects of some documents: so many are no document.
const NEAR: u64 = 16;

impl Index {
    /// Whether the engine has a prefix store. Without one nothing is kept of prompts that leave the engine.
    pub fn set_store(&mut self, there: bool) {
        if there {
            self.stored.get_or_insert_default();
        } else {
            self.forget_stored();
            self.stored = None;
        }
    }

    /// Whether the engine has a prefix store.
    #[must_use]
    pub fn has_store(&self) -> bool {
        self.stored.is_some()
    }

    /// The server is another process. Its prefix store has what the earlier one left there, but its hook knows none of
    /// the prompts.
    pub fn other_process(&mut self) {
        let prompts = self.stored.iter_mut();
        for prompt in prompts.flat_map(|tier| tier.prompts.values_mut()) {
            prompt.is_earlier = true;
        }
    }

    /// The prompt of a request was in the engine of a process that has ended. The prefix store may have it, if there is
    /// one.
    pub fn left_with_process(&mut self, id: &str) {
        let number = self.requests.get(id).map(|request| request.number);
        self.left_engine(id);
        let prompts = self.stored.as_mut().map(|tier| &mut tier.prompts);
        if let Some(prompt) = number.and_then(|number| prompts?.get_mut(&number)) {
            prompt.is_earlier = true;
        }
    }

    fn forget_stored(&mut self) {
        while self.drop_stored().is_some() {}
    }

    /// The prompt of a request has left the engine. The prefix store may have it, if there is one.
    pub fn left_engine(&mut self, id: &str) {
        self.end_conversation(id);
        let Some(request) = self.take(id) else {
            return;
        };
        let has_blocks = !request.blocks.is_empty();
        if self.stored.is_none() || !has_blocks {
            self.blocks.release_all(&request.blocks, &self.frequency);
            return;
        }
        self.keep_stored(id, request);
    }

    fn keep_stored(&mut self, id: &str, request: Request) {
        let mut kept_until = request.kept_until;
        let equal = self.stored.as_ref();
        if let Some(equal) = equal.and_then(|tier| tier.equal(&request.blocks)) {
            let known = self.stored().and_then(|tier| tier.prompts.get(&equal));
            kept_until = kept_until.max(known.map_or(0, |prompt| prompt.kept_until));
            self.lose_stored(equal);
        }
        if let Some(tier) = &mut self.stored {
            tier.add(request.number, id.to_owned(), request.blocks, kept_until);
        }
        while self.stored().map_or(0, StoredTier::len) > MOST {
            self.drop_stored();
        }
    }

    /// The hook has said what the prefix store keeps of a request's prompt on request: so many tokens, until this time in
    /// milliseconds since 1970.
    pub fn kept_until(&mut self, id: &str, kept: Option<(u64, u64)>) {
        if let Some(request) = self.requests.get(id) {
            let until = self.all_kept(&request.blocks, kept);
            if let Some(request) = self.requests.get_mut(id) {
                request.kept_until = until;
            }
            return;
        }
        // It may have left the engine meanwhile.
        let mut prompts = self.stored.iter().flat_map(|tier| &tier.prompts);
        let found = kept
            .and_then(|_| prompts.find(|(_, prompt)| prompt.id == id))
            .map(|(number, prompt)| (*number, self.all_kept(&prompt.blocks, kept)));
        if let (Some(tier), Some((number, until))) = (&mut self.stored, found) {
            tier.keep(number, until);
        }
    }

    /// Until when all of these blocks are kept, if so many tokens are. 0: not all of them are.
    fn all_kept(&self, blocks: &[Block], kept: Option<(u64, u64)>) -> u64 {
        is_kept(self.predictor.tokens(blocks, &self.blocks), kept)
    }

    /// What the store has kept until now is like the others. In milliseconds since 1970.
    pub(crate) fn expire(&mut self, now: u64) {
        if let Some(tier) = &mut self.stored {
            tier.expire(now);
        }
    }

    /// Forgets a prompt that has left the engine.
    pub(crate) fn lose_stored(&mut self, number: u64) -> Option<()> {
        let blocks = self.stored.as_mut()?.remove(number)?;
        self.blocks.release_all(&blocks, &self.frequency);
        Some(())
    }

    /// Forgets the one that was used longest ago, of those that the store keeps on request only if there are no others.
    /// `None`: there is none.
    pub(crate) fn drop_stored(&mut self) -> Option<()> {
        let oldest = self.stored.as_ref()?.oldest()?;
        self.lose_stored(oldest)
    }

    /// Whether a prompt was stored by an earlier process of the server, if at all.
    pub(crate) fn is_earlier(&self, prompt: Option<u64>) -> bool {
        let prompt = prompt.and_then(|number| self.stored()?.prompts.get(&number));
        prompt.is_some_and(|prompt| prompt.is_earlier)
    }

    pub(crate) fn stored(&self) -> Option<&StoredTier> {
        self.stored.as_ref()
    }

    /// What is cached. `store`: with what the store may have.
    pub(crate) fn tiers(&self, store: bool) -> Tiers<'_> {
        let store = store && self.truth == Truth::Engine;
        match self.stored.as_ref().filter(|_| store) {
            Some(tier) => Tiers::with_store(&self.cached, &tier.kept.cached, &tier.others.cached),
            None => Tiers::from(&self.cached),
        }
    }

    /// The same for many contexts, which are ordered without asking the hook.
    pub(crate) fn tiers_of_batch(&self) -> Tiers<'_> {
        self.tiers(!self.is_store_silent())
    }

    /// Whether the last answers of the hook did not say what the store has.
    pub(crate) fn is_store_silent(&self) -> bool {
        self.stored().is_some_and(|tier| tier.silent)
    }

    /// Whether the hook's answers say what the store has.
    pub(crate) fn store_speaks(&mut self, speaks: bool) {
        if let Some(tier) = &mut self.stored {
            tier.silent = !speaks;
        }
    }

    /// The hook does not remember a prompt of this tier. If the store keeps it, it is there nevertheless, and can be loaded.
    pub(crate) fn hook_forgot(&mut self, number: u64) {
        let tier = self.stored.as_mut();
        let prompt = tier.and_then(|tier| tier.prompts.get_mut(&number));
        if let Some(prompt) = prompt.filter(|prompt| prompt.kept_until > 0) {
            prompt.is_earlier = true;
        } else {
            self.lose_stored(number);
        }
    }

    /// The hook has said how many of the first tokens of a prompt of this tier are to be had. Returns whether these are
    /// fewer than was thought.
    pub(crate) fn learn_stored(&mut self, number: u64, question: &Question, found: Found) -> bool {
        let there = found.all();
        let Some(tier) = &mut self.stored else {
            return false;
        };
        let Some(prompt) = tier.prompts.get(&number) else {
            return true;
        };
        let known = &prompt.blocks[..question.blocks.min(prompt.blocks.len())];
        let fits = |length: &usize| {
            let tokens = self.predictor.tokens(&known[..*length], &self.blocks);
            tokens <= there.saturating_add(NEAR)
        };
        let length = if there >= question.common {
            known.len()
        } else {
            (1..=known.len()).rev().find(fits).unwrap_or(0)
        };
        if length == known.len() {
            let until = is_kept(question.common, found.kept);
            // Other prompts with its beginning may be kept for longer.
            let until = if known.len() == prompt.blocks.len() {
                until
            } else {
                until.min(prompt.kept_until)
            };
            tier.keep(number, until);
            tier.touch(number);
            return false;
        }
        if length == 0 {
            self.lose_stored(number);
        } else {
            let lost = tier.shorten(number, length);
            self.blocks.release_all(&lost, &self.frequency);
        }
        true
    }
}

/// Until when so many tokens are kept, if the hook says this of their prompt. 0: not all of them are.
fn is_kept(tokens: u64, kept: Option<(u64, u64)>) -> u64 {
    let all = kept.filter(|(those, _)| those.saturating_add(NEAR) >= tokens);
    all.map_or(0, |(_, until)| until)
}
