//! The forecast: how many tokens the engine is expected to reuse, or to load from the prefix store.

use contextpilot_order::{Block, Online};

use crate::numbering::places;
use crate::question::{Found, Question};
use crate::reorder::Reordering;
use crate::requests::Expected;
use crate::{Index, Truth};

impl Index {
    pub(crate) fn expected(&self, ordered: &Online) -> Expected {
        let beginning = &ordered.blocks[..ordered.cached];
        let tokens = match ordered.cached {
            0 if self.tiers(true).is_empty() => 0,
            _ => self.predictor.tokens(beginning, &self.blocks),
        };
        Expected {
            blocks: ordered.cached,
            tokens,
            whole: true,
        }
    }

    /// The query for the prompt of these blocks: the request with the longest common prefix that
    /// is cached anywhere, whether the engine would reuse it or not. `store`: or that the prefix store may have.
    pub(crate) fn question(&self, blocks: &[Block], store: bool) -> Option<Question> {
        let longest = self.tiers(store).longest(blocks);
        let (length, prompt) = if self.is_earlier(longest.1) {
            self.tiers(false).longest(blocks)
        } else {
            longest
        };
        let id = match prompt {
            Some(prompt) => self.id_of(prompt)?,
            // Only the template is in common.
            None => self.requests.cached_ids().next_back()?.1,
        };
        Some(Question {
            id: id.to_owned(),
            common: self.predictor.tokens(&blocks[..length], &self.blocks),
            tokens: self.predictor.prompt(blocks, &self.blocks),
            blocks: length,
            stored: prompt.filter(|prompt| self.requests.id(*prompt).is_none()),
        })
    }

    /// The id of a request by its number, whether its prompt has left the engine or not.
    pub(crate) fn id_of(&self, number: u64) -> Option<&str> {
        let stored = || self.stored()?.id(number);
        self.requests.id(number).or_else(stored)
    }

    /// The forecast for a context in its order, and what to ask the hook of it.
    pub(crate) fn foresee(
        &mut self,
        job: &mut Reordering,
        at: usize,
        given: &[Block],
        ordered: &Online,
    ) {
        let alone = job.reorder.contexts.len() == 1;
        if alone && self.truth == Truth::Engine {
            job.question = self.question(&ordered.blocks, job.store);
        }
        let expected = self.expected(ordered);
        let (held, holder) = if self.has_store() {
            self.held(job, ordered)
        } else {
            (expected.tokens, ordered.prompt)
        };
        let held = held.min(expected.tokens);
        // Of what an earlier process may have stored nothing is claimed, and nothing is learned.
        let (expected, prompt, known) = if self.is_earlier(ordered.prompt) {
            (held, holder.filter(|_| held > 0), None)
        } else {
            (expected.tokens, ordered.prompt, Some(expected))
        };
        let from = prompt
            .and_then(|prompt| self.id_of(prompt))
            .map(str::to_owned);
        let matched = self.is_match(job, at, ordered);
        let placed = &mut job.placed[at];
        self.counters.matches = self.counters.matches.saturating_sub(placed.matched.into());
        self.counters.matches += u64::from(matched);
        if let Some(request) = self.requests.get_mut(&placed.id) {
            request.expected = known;
        }
        placed.expected = expected;
        placed.stored = expected - held;
        placed.from = from;
        placed.matched = matched;
        job.places[at] = places(given, &ordered.blocks);
    }

    /// Whether a context begins with what was cached before the call. What other contexts of the batch will leave in
    /// the cache is no match: it is part of the forecast only.
    fn is_match(&self, job: &Reordering, at: usize, ordered: &Online) -> bool {
        if job.is_single() {
            return ordered.cached > 0;
        }
        let tiers = self.tiers_of_batch();
        let weight = |block| self.predictor.weight(block, &self.blocks);
        let least = tiers.least(&ordered.blocks, weight);
        let before = job.cached.longest(&job.batch.contexts[at]).0;
        tiers
            .beginning_of(&ordered.blocks[..before], weight, least)
            .0
            > 0
    }

    /// How many tokens of a context the engine itself is expected to reuse, and of which prompt.
    fn held(&self, job: &Reordering, ordered: &Online) -> (u64, Option<u64>) {
        let (length, prompt) = self.longest(self.tiers(false), &job.planned, &ordered.blocks);
        let beginning = &ordered.blocks[..length.min(ordered.cached)];
        (self.predictor.tokens(beginning, &self.blocks), prompt)
    }

    /// The hook has answered. If it has less of the prompt than was thought, the context is ordered anew, and another
    /// question may follow.
    pub(crate) fn hook_answered(&mut self, job: &mut Reordering, found: Found) {
        let Some(question) = job.question.take() else {
            return;
        };
        if self.has_store() && job.store && !self.is_confirmed(&question, found) {
            job.asks = job.asks.saturating_sub(1);
            let is_silent = found.tokens > 0 && found.loaded.is_none();
            job.store = job.asks > 0 && !(is_silent && self.is_store_silent());
            if is_silent && !job.store {
                self.store_speaks(false);
            }
            if self.order_again(job) {
                return;
            }
        }
        if found.tokens == 0 {
            return;
        }
        let expected = question.expected(found.all());
        for placed in &mut job.placed {
            let compared = self.requests.get_mut(&placed.id);
            if let Some(before) = compared.and_then(|request| request.expected.as_mut()) {
                *before = expected;
            }
            placed.expected = found.all();
            placed.stored = found.loaded.unwrap_or(0);
            if placed.expected == 0 || expected.blocks == 0 {
                placed.from = None;
            } else if expected.whole {
                placed.from = Some(question.id.clone());
            }
        }
    }

    /// Whether the hook has what was thought, as far as the prefix store is concerned.
    fn is_confirmed(&mut self, question: &Question, found: Found) -> bool {
        match (question.stored, found.loaded) {
            (Some(number), _) if found.tokens == 0 => {
                self.hook_forgot(number);
                false
            }
            (None, _) if found.tokens == 0 => true,
            // The store is being read or written, or it has nothing for this server.
            (_, None) => false,
            (number, Some(_)) => {
                self.store_speaks(true);
                let short = |number| self.learn_stored(number, question, found);
                !number.is_some_and(short)
            }
        }
    }

    /// Orders a single context by what is known by now. Returns false if its order stays as it is.
    fn order_again(&mut self, job: &mut Reordering) -> bool {
        let [context] = &job.reorder.contexts[..] else {
            return false;
        };
        // The documents in their order were compared with those of earlier turns.
        if job.reorder.deduplicate || job.placed.len() != 1 {
            return false;
        }
        let given = context.keys.iter().map(|key| self.blocks.known(*key));
        let given: Option<Vec<Block>> = given.collect();
        let id = job.placed[0].id.clone();
        // Others may have taken its room since.
        let (Some(given), true) = (given, self.tracks(&id)) else {
            return false;
        };
        let ordered = self.ordered(job, 0, &given);
        self.foresee(job, 0, &given, &ordered);
        self.requests.reorder(&id, ordered.blocks);
        true
    }
}
