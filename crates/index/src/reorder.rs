//! `/reorder`: orders contexts.

use std::collections::{HashMap, VecDeque};

use contextpilot_order::{
    Batch, Block, Cached, Online, batch, batch_after, batch_sharing, least, online,
};

use serde_json::Value;

use crate::forecast::Question;
use crate::numbering::{Numbers, places};
use crate::query::{Reorder, Wanted};
use crate::{Answer, Index, Mode, Truth};

/// How a request is answered.
#[derive(Debug)]
pub enum Outcome {
    /// At once.
    Answer(Answer),
    /// After some work.
    Work(Box<Work>),
    /// All is done; the answer has to be written ([`Worked::answer`]).
    Worked(Box<Worked>),
}

/// A batch to order, which takes long and needs no state.
#[derive(Debug)]
pub struct Work {
    reorder: Reorder,
    kind: Kind,
    /// The cached prefixes that the batch could continue, in the numbers of the batch.
    cached: Cached,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Stateless,
    /// The first batch of an index.
    Initial,
    Incremental,
}

/// A batch that was ordered by itself.
#[derive(Debug)]
pub struct Worked {
    pub(crate) reorder: Reorder,
    pub(crate) kind: Kind,
    pub(crate) batch: Batch,
    /// For each context, the original positions of its blocks, in the new order.
    pub(crate) places: Vec<Vec<usize>>,
    /// The contexts that were placed already: prompts of the batch itself.
    planned: Cached,
    /// The contexts that are still to be placed, in the order of the schedule.
    left: VecDeque<usize>,
    pub(crate) placed: Vec<Placed>,
    /// Ids of contexts with the same blocks, in a first batch.
    same: HashMap<Vec<Block>, String>,
    started: bool,
    /// A query for the hook before the answer.
    pub(crate) question: Option<Question>,
    /// What the answer says of the state, after all contexts are placed.
    pub(crate) facts: Option<Facts>,
}

/// What an answer says of the state.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) stats: Value,
    pub(crate) truth: Truth,
    pub(crate) warning: Option<String>,
    pub(crate) deduplication: Option<Value>,
}

/// The result for a context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    pub(crate) id: String,
    pub(crate) expected: u64,
    pub(crate) from: Option<String>,
    pub(crate) matched: bool,
}

/// How many contexts are placed before other requests may use the state for a moment.
const SLICE: usize = 16;

/// The most blocks of cached prefixes that a batch is ordered by.
const COPIED: usize = 1 << 16;

impl Work {
    /// Orders the batch by itself.
    #[must_use]
    pub fn run(self) -> Worked {
        let Self {
            reorder,
            kind,
            cached,
        } = self;
        let numbered = &reorder.numbers.contexts;
        let kept = reorder.online.keep_first;
        let batch = match reorder.order {
            Wanted::None => Batch {
                contexts: numbered.clone(),
                groups: vec![(0..numbered.len()).collect()],
                nodes: numbered.len() + 1,
                leaves: numbered.len(),
            },
            Wanted::Auto if kind != Kind::Stateless => {
                let weight = |block| reorder.numbers.weight(block);
                batch_sharing(numbered, kept, &cached, weight)
            }
            _ if kept == 0 => batch_after(numbered, &cached, &reorder.batch),
            _ => {
                let rest: Vec<Vec<Block>> = numbered
                    .iter()
                    .map(|all| all[kept.min(all.len())..].to_vec())
                    .collect();
                let mut batch = batch(&rest, &reorder.batch);
                for (ordered, all) in batch.contexts.iter_mut().zip(numbered) {
                    ordered.splice(0..0, all[..kept.min(all.len())].iter().copied());
                }
                batch
            }
        };
        let both = numbered.iter().zip(&batch.contexts);
        let places = both.map(|(before, after)| places(before, after)).collect();
        Worked {
            placed: vec![Placed::default(); numbered.len()],
            left: batch.schedule().collect(),
            planned: Cached::new(),
            same: HashMap::new(),
            started: false,
            question: None,
            facts: None,
            reorder,
            kind,
            batch,
            places,
        }
    }
}

impl Worked {
    /// A query whose answer makes the forecast more exact ([`Index::answered`]). Only for a single context,
    /// while the hook reports what is cached.
    #[must_use]
    pub fn question(&self) -> Option<&Question> {
        self.question.as_ref()
    }
}

impl Index {
    pub(crate) fn reorder(
        &mut self,
        reorder: Reorder,
        new_id: &mut dyn FnMut() -> String,
    ) -> Result<Outcome, Box<Answer>> {
        let kind = match self.mode {
            _ if reorder.stateless => Kind::Stateless,
            Mode::Stateless => Kind::Stateless,
            Mode::Live if self.built => Kind::Incremental,
            Mode::Live => Kind::Initial,
        };
        if kind != Kind::Stateless {
            let blocks = reorder
                .contexts
                .iter()
                .map(|context| context.keys.len())
                .sum();
            self.make_room(reorder.contexts.len(), blocks)?;
        }
        let alone = reorder.contexts.len() == 1;
        let cached = match kind {
            Kind::Incremental if !alone => self.cached_of(&reorder.numbers),
            _ => Cached::new(),
        };
        let work = Work {
            reorder,
            kind,
            cached,
        };
        if kind == Kind::Incremental && alone {
            // A single context is ordered only by what is cached.
            let mut worked = Work::run(work);
            self.finish(&mut worked, new_id)?;
            return Ok(Outcome::Worked(Box::new(worked)));
        }
        Ok(Outcome::Work(Box::new(work)))
    }

    /// Continues with an ordered batch. Returns true if it is done and can be answered
    /// ([`Worked::answer`]). If not, release the state for a moment, and call this
    /// again.
    ///
    /// # Errors
    /// 429: there is no room.
    pub fn finish(
        &mut self,
        worked: &mut Worked,
        new_id: &mut dyn FnMut() -> String,
    ) -> Result<bool, Box<Answer>> {
        if worked.kind == Kind::Stateless {
            return Ok(true);
        }
        if !worked.started {
            worked.started = true;
            (self.initialized, self.built) = (true, true);
        }
        for _ in 0..SLICE {
            let Some(at) = worked.left.pop_front() else {
                break;
            };
            self.place(worked, at, new_id)?;
        }
        if worked.left.is_empty() {
            worked.facts = Some(self.facts(worked));
        }
        Ok(worked.left.is_empty())
    }

    /// The engine's hook has answered [`Worked::question`]: so many tokens would be reused.
    pub fn answered(&mut self, worked: &mut Worked, reused: u64) {
        let Some(question) = worked.question.take() else {
            return;
        };
        let expected = question.expected(reused);
        for placed in &mut worked.placed {
            if let Some(request) = self.requests.get_mut(&placed.id) {
                request.expected = Some(expected);
            }
            placed.expected = reused;
            if reused == 0 || expected.blocks == 0 {
                placed.from = None;
            } else if expected.whole {
                placed.from = Some(question.id.clone());
            }
        }
    }

    /// The cached prefixes that contexts could continue, in the numbers of their call.
    fn cached_of(&self, numbers: &Numbers) -> Cached {
        let known = numbers.keys.iter().enumerate().filter_map(|(number, key)| {
            let block = self.blocks.known(*key)?;
            Some((block, number as Block))
        });
        self.cached.renumbered(&known.collect(), COPIED)
    }

    /// Gives a context its final order, and an id.
    fn place(
        &mut self,
        worked: &mut Worked,
        at: usize,
        new_id: &mut dyn FnMut() -> String,
    ) -> Result<(), Box<Answer>> {
        let given = self.intern(&worked.reorder.contexts[at]);
        let by_tree: Vec<Block> = worked.places[at]
            .iter()
            .map(|place| given[*place])
            .collect();
        let alone = worked.reorder.contexts.len() == 1;
        let ordered = match (worked.kind, worked.reorder.order) {
            (Kind::Incremental, Wanted::Auto | Wanted::Clustered) if alone => {
                let weight = |block| self.predictor.weight(block, &self.blocks);
                let options = &worked.reorder.online;
                online(&given, &self.cached, &self.frequency, weight, options)
            }
            _ => {
                let (cached, prompt) = self.longest(&worked.planned, &by_tree);
                Online {
                    blocks: by_tree,
                    cached,
                    prompt,
                }
            }
        };
        if alone && self.truth == Truth::Engine {
            worked.question = self.question(&ordered.blocks);
        }
        let expected = self.expected(&ordered);
        let from = ordered
            .prompt
            .and_then(|prompt| self.requests.id(prompt))
            .map(str::to_owned);
        self.frequency.note(&given);
        self.counters.contexts += 1;
        self.counters.searches += u64::from(worked.kind == Kind::Incremental);
        self.counters.matches += u64::from(ordered.cached > 0);

        let mut key = ordered.blocks.clone();
        key.sort_unstable();
        let known = worked
            .same
            .get(&key)
            .filter(|_| worked.kind == Kind::Initial && !key.is_empty());
        let id = match known {
            Some(id) => id.clone(),
            None => {
                let id = self.track(ordered.blocks.clone(), worked.reorder.tokens, new_id);
                worked.same.insert(key, id.clone());
                id
            }
        };
        if let Some(request) = self.requests.get_mut(&id) {
            request.expected = Some(expected);
            worked.planned.insert(request.number, &ordered.blocks);
        }
        if self.truth == Truth::Guess {
            self.cached(&id, worked.reorder.tokens);
            self.guess_no_more_than();
        }
        worked.places[at] = places(&given, &ordered.blocks);
        worked.placed[at] = Placed {
            id,
            expected: expected.tokens,
            from,
            matched: ordered.cached > 0,
        };
        Ok(())
    }

    fn longest(&self, planned: &Cached, blocks: &[Block]) -> (usize, Option<u64>) {
        let weight = |block| self.predictor.weight(block, &self.blocks);
        let least = least(blocks, weight);
        let now = self.cached.beginning_of(blocks, weight, least);
        let then = planned.beginning_of(blocks, weight, least);
        let (length, prompt) = if now.0 > then.0 { now } else { then };
        (length, prompt.filter(|_| length > 0))
    }
}
