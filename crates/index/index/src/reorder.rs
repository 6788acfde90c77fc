//! `/reorder`: orders contexts.

use std::collections::{HashMap, VecDeque};

use contextpilot_order::{
    Batch, Block, Cached, Online, Tiers, batch, batch_after, batch_sharing, online,
};

use serde_json::Value;

use crate::context::Context;
use crate::deduplicate::{NewTurn, Sum};
use crate::numbering::places;
use crate::piece::{HALF, Next, Piece, REQUEST};
use crate::query::{Reorder, Wanted};
use crate::question::{Question, TRIES};
use crate::{Index, IndexAnswer, Mode, Truth};

/// A `/reorder` that is being answered.
#[derive(Debug)]
pub(crate) struct Reordering {
    pub(crate) reorder: Reorder,
    pub(crate) kind: Kind,
    phase: Phase,
    /// Blocks of the call that the index knows, and their numbers in the call.
    known: HashMap<Block, Block>,
    /// The cached prefixes that the batch could continue, in the numbers of the call.
    pub(crate) cached: Cached,
    /// The batch, ordered by itself.
    pub(crate) batch: Batch,
    /// For each context, the original positions of its blocks, in the new order.
    pub(crate) places: Vec<Vec<usize>>,
    /// The contexts that were placed already: prompts of the batch itself.
    pub(crate) planned: Cached,
    /// The contexts that are still to be placed, in the order of the schedule.
    left: VecDeque<usize>,
    pub(crate) placed: Vec<Placed>,
    /// The blocks of the next one, if they are many and were admitted in a piece before.
    admitted: Option<Vec<Block>>,
    /// Ids of contexts with the same blocks, in a first batch.
    same: HashMap<Vec<Block>, String>,
    /// The ids that were handed out.
    tracked: Vec<String>,
    /// Requests that may make room for it came before this number.
    before: u64,
    sum: Sum,
    refused: Option<IndexAnswer>,
    /// A query for the hook before the answer, and how many may still follow.
    pub(crate) question: Option<Question>,
    pub(crate) asks: usize,
    /// What the prefix store may have counts. If the hook does not confirm it, the order is made without.
    pub(crate) store: bool,
    /// What the answer says of the state, after all contexts are placed.
    pub(crate) facts: Option<Facts>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Stateless,
    /// The first batch of an index.
    Initial,
    Incremental,
}

/// What is next, and from which block or context on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Find out what is cached of the blocks.
    Known(usize),
    Order,
    Place,
    /// Compare with earlier turns.
    Turns(usize),
    /// It is refused: forget what was tracked.
    Undo,
    Done,
}

/// What an answer says of the state.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) stats: Value,
    pub(crate) truth: Truth,
    /// The engine has a prefix store.
    pub(crate) store: bool,
    pub(crate) warning: Option<String>,
    pub(crate) deduplication: Option<Value>,
}

/// The result for a context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    pub(crate) id: String,
    pub(crate) expected: u64,
    /// Of these, tokens that are expected to be loaded from the prefix store.
    pub(crate) stored: u64,
    pub(crate) from: Option<String>,
    pub(crate) matched: bool,
}

/// The most blocks of cached prefixes that a batch is ordered by.
const COPIED: usize = 1 << 15;

impl Reordering {
    pub(crate) fn next(&self) -> Next {
        match self.phase {
            Phase::Order => Next::Alone,
            Phase::Done => Next::Answer,
            _ => Next::State,
        }
    }

    pub(crate) fn is_small(&self) -> bool {
        self.reorder.is_small()
    }

    /// What it is refused for, if it is.
    pub(crate) fn refused(&self) -> Option<IndexAnswer> {
        self.refused.clone()
    }

    /// Orders the batch by itself, which takes long and needs no state.
    pub(crate) fn order(&mut self) {
        let Self {
            reorder,
            kind,
            cached,
            ..
        } = &*self;
        let numbered = &reorder.numbers.contexts;
        let kept = reorder.online.keep_first;
        let batch = match reorder.order {
            // A single context is ordered only by what is cached, when it is placed.
            Wanted::Auto | Wanted::Clustered if self.is_single() => as_given(numbered),
            Wanted::None => as_given(numbered),
            Wanted::Auto if *kind != Kind::Stateless => {
                let weight = |block| reorder.numbers.weight(block);
                batch_sharing(numbered, kept, cached, weight)
            }
            _ if kept == 0 => batch_after(numbered, cached, &reorder.batch),
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
        self.placed = vec![Placed::default(); numbered.len()];
        self.places = places;
        self.left = batch.schedule().collect();
        self.batch = batch;
        self.phase = match self.kind {
            Kind::Stateless => Phase::Done,
            _ => Phase::Place,
        };
    }

    /// One context in an index that has ordered some before.
    pub(crate) fn is_single(&self) -> bool {
        self.kind == Kind::Incremental && self.reorder.contexts.len() == 1
    }

    fn refuse(&mut self, answer: IndexAnswer) {
        self.refused = Some(answer);
        self.phase = Phase::Undo;
    }
}

fn as_given(contexts: &[Vec<Block>]) -> Batch {
    Batch {
        contexts: contexts.to_vec(),
        groups: vec![(0..contexts.len()).collect()],
        nodes: contexts.len() + 1,
        leaves: contexts.len(),
    }
}

impl Index {
    /// Begins with a `/reorder`.
    ///
    /// # Errors
    /// 429: more is cached than leaves room for it.
    pub(crate) fn reorder(&self, reorder: Reorder) -> Result<Reordering, Box<IndexAnswer>> {
        let kind = match self.mode {
            _ if reorder.stateless => Kind::Stateless,
            Mode::Stateless => Kind::Stateless,
            Mode::Live if self.built => Kind::Incremental,
            Mode::Live => Kind::Initial,
        };
        let contexts = reorder.contexts.len();
        if kind != Kind::Stateless {
            self.could_hold(contexts)?;
        }
        Ok(Reordering {
            phase: match kind {
                Kind::Incremental if contexts > 1 => Phase::Known(0),
                _ => Phase::Order,
            },
            reorder,
            kind,
            known: HashMap::new(),
            cached: Cached::new(),
            batch: Batch::default(),
            places: Vec::new(),
            planned: Cached::new(),
            left: VecDeque::new(),
            placed: Vec::new(),
            admitted: None,
            same: HashMap::new(),
            tracked: Vec::new(),
            before: self.requests.next_number(),
            sum: Sum::default(),
            refused: None,
            question: None,
            asks: TRIES,
            store: true,
            facts: None,
        })
    }

    pub(crate) fn reorder_some(
        &mut self,
        job: &mut Reordering,
        piece: &mut Piece,
        new_id: &mut dyn FnMut() -> String,
    ) {
        match job.phase {
            Phase::Known(from) => self.look_up(job, from, piece),
            Phase::Place => {
                (self.initialized, self.built) = (true, true);
                self.place_some(job, piece, new_id);
            }
            Phase::Turns(from) => self.turns_of(job, from, piece),
            Phase::Undo => {
                self.undo_some(&mut job.tracked, piece);
                if job.tracked.is_empty() {
                    self.counters.refused += 1;
                    job.phase = Phase::Done;
                }
            }
            Phase::Order | Phase::Done => {}
        }
    }

    /// The blocks that are known and, after the last one, the cached prefixes that the batch could continue. Blocks
    /// may be forgotten meanwhile, and others have their numbers: then the order is not as good as it could be.
    fn look_up(&self, job: &mut Reordering, from: usize, piece: &Piece) {
        let keys = job.reorder.numbers.keys.iter().enumerate();
        let mut to = from;
        for (number, key) in keys.skip(from).take(piece.left()) {
            let known = self.blocks.known(*key);
            job.known
                .extend(known.map(|block| (block, number as Block)));
            to = number + 1;
        }
        job.phase = Phase::Known(to);
        if to == job.reorder.numbers.keys.len() {
            let known = std::mem::take(&mut job.known);
            job.cached = self.tiers_of_batch().renumbered(&known, COPIED);
            job.phase = Phase::Order;
        }
    }

    fn place_some(
        &mut self,
        job: &mut Reordering,
        piece: &mut Piece,
        new_id: &mut dyn FnMut() -> String,
    ) {
        while !piece.is_full() {
            let Some(at) = job.left.pop_front() else {
                job.phase = if job.reorder.deduplicate {
                    Phase::Turns(0)
                } else {
                    self.end_reorder(job)
                };
                return;
            };
            let blocks = job.places[at].len();
            if blocks > HALF && job.admitted.is_none() {
                // So many blocks are a piece of work by themselves.
                match self.admit(&job.reorder.contexts[at], 1, job.before) {
                    Ok(blocks) => job.admitted = Some(blocks),
                    Err(answer) => return job.refuse(*answer),
                }
                job.left.push_front(at);
                return;
            }
            piece.done(REQUEST + blocks);
            if let Err(answer) = self.place(job, at, new_id) {
                job.refuse(*answer);
                return;
            }
        }
    }

    fn turns_of(&mut self, job: &mut Reordering, from: usize, piece: &mut Piece) {
        for at in from..job.placed.len() {
            if piece.is_full() {
                job.phase = Phase::Turns(at);
                return;
            }
            let given = &job.reorder.contexts[at];
            let places = job.places[at].iter();
            let context = Context {
                values: places
                    .clone()
                    .map(|place| given.values[*place].clone())
                    .collect(),
                keys: places.map(|place| given.keys[*place]).collect(),
            };
            let blocks = match self.admit(&context, 0, job.before) {
                Ok(blocks) => blocks,
                Err(answer) => return job.refuse(*answer),
            };
            let turn = NewTurn {
                id: &job.placed[at].id,
                context: &context,
                blocks: &blocks,
                parent: job.reorder.parents.get(at).cloned().flatten(),
                hint: job.reorder.hint.as_deref(),
            };
            self.turn(turn, &mut job.sum, piece);
        }
        job.phase = self.end_reorder(job);
    }

    fn end_reorder(&self, job: &mut Reordering) -> Phase {
        let sum = std::mem::take(&mut job.sum);
        job.facts = Some(Facts {
            stats: self.index_stats(),
            truth: self.truth,
            store: self.has_store(),
            warning: self.warning.clone(),
            deduplication: job.reorder.deduplicate.then(|| sum.member()),
        });
        Phase::Done
    }

    /// Gives a context its final order, and an id.
    fn place(
        &mut self,
        job: &mut Reordering,
        at: usize,
        new_id: &mut dyn FnMut() -> String,
    ) -> Result<(), Box<IndexAnswer>> {
        let given = self.admitted(job, at)?;
        let ordered = self.ordered(job, at, &given);
        self.frequency.note(&given);
        self.counters.contexts += 1;
        self.counters.searches += u64::from(job.kind == Kind::Incremental);

        let mut key = ordered.blocks.clone();
        key.sort_unstable();
        let known = job
            .same
            .get(&key)
            .filter(|_| job.kind == Kind::Initial && !key.is_empty());
        let id = match known {
            Some(id) => id.clone(),
            None => {
                let id = self.track(ordered.blocks.clone(), job.reorder.tokens, new_id);
                job.same.insert(key, id.clone());
                job.tracked.push(id.clone());
                id
            }
        };
        job.placed[at].id.clone_from(&id);
        self.foresee(job, at, &given, &ordered);
        if let Some(request) = self.requests.get(&id) {
            job.planned.insert(request.number, &ordered.blocks);
        }
        if self.truth == Truth::Guess {
            self.cached(&id, job.reorder.tokens);
            self.guess_no_more_than();
        }
        Ok(())
    }

    /// The order of a context.
    pub(crate) fn ordered(&self, job: &Reordering, at: usize, given: &[Block]) -> Online {
        let weight = |block| self.predictor.weight(block, &self.blocks);
        match job.reorder.order {
            Wanted::Auto | Wanted::Clustered if job.is_single() => {
                let (tiers, options) = (self.tiers(job.store), &job.reorder.online);
                online(given, tiers, &self.frequency, weight, options)
            }
            _ => {
                let blocks: Vec<Block> = job.places[at].iter().map(|place| given[*place]).collect();
                let tiers = match job.reorder.contexts.len() {
                    1 => self.tiers(job.store),
                    _ => self.tiers_of_batch(),
                };
                let (cached, prompt) = self.longest(tiers, &job.planned, &blocks);
                Online {
                    blocks,
                    cached,
                    prompt,
                }
            }
        }
    }

    /// The blocks of a context, for which there is room. They may be admitted already; if others have taken their room
    /// or their numbers since, they are admitted again.
    fn admitted(
        &mut self,
        job: &mut Reordering,
        at: usize,
    ) -> Result<Vec<Block>, Box<IndexAnswer>> {
        let context = &job.reorder.contexts[at];
        if let Some(blocks) = job.admitted.take() {
            self.make_room(1, blocks.len(), 0, job.before)?;
            let mut both = context.keys.iter().zip(&blocks);
            if both.all(|(key, block)| self.blocks.known(*key) == Some(*block)) {
                return Ok(blocks);
            }
        }
        self.admit(context, 1, job.before)
    }

    pub(crate) fn longest(
        &self,
        tiers: Tiers<'_>,
        planned: &Cached,
        blocks: &[Block],
    ) -> (usize, Option<u64>) {
        let weight = |block| self.predictor.weight(block, &self.blocks);
        let least = tiers.least(blocks, weight);
        let now = tiers.beginning_of(blocks, weight, least);
        let then = planned.beginning_of(blocks, weight, least);
        let (length, prompt) = if now.0 > then.0 { now } else { then };
        (length, prompt.filter(|_| length > 0))
    }
}
