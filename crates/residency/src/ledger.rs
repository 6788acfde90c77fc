//! The ledger: applies events to the radix tree and returns the effects.

use crate::entries::Entry;
use crate::event::{Effect, Event, Place, Reason};
use crate::ids::{BufferId, ContextId, EvaluationId, RequestId, SequenceId, TaskId};
use crate::requests::{Label, Posted, RequestKey, Requests};
use crate::sequence::{Launch, Sequence};
use crate::token::{Position, Token};
use crate::tree::{Holder, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

mod adapters;
mod contexts;
mod evaluate;
mod evict;
mod holdings;
mod idle;
mod memory;
mod query;
mod reach;
mod requests;
mod reusable;
mod shape;
#[cfg(test)]
mod tests;
mod unclaimed;

pub use query::{Contents, Likeness, Saved, Whereabouts};
pub use reusable::CacheEntry;
pub use shape::{Branch, Merged};
pub use unclaimed::Evaluation;
/// Requests that may be live at once. Beyond that, the oldest request is evicted
/// ([`Reason::TooMany`]). Without this bound, equal prompts under ever new ids could grow without
/// end: they share a few tokens, which may never be overwritten.
pub const MOST_LIVE: usize = 1 << 17;
/// Tasks of [`Event::Uncached`] that may wait for a slot. Beyond that, the one with the lowest
/// number is forgotten.
pub const MOST_UNCACHED: usize = 4096;

/// What the engine holds, which requests are cached by that, and which were just evicted.
///
/// Events go in, [effects](Effect) come out. There is no clock, no thread and no I/O. Equal events
/// give equal effects.
#[derive(Debug)]
pub struct Ledger {
    tree: Tree<Label>,
    /// Living contexts, oldest first: the first is the primary.
    contexts: Vec<ContextId>,
    /// Sequences of the primary context. Ordered, so that equal events give equal effects.
    sequences: BTreeMap<SequenceId, Sequence>,
    /// Entries of the host prompt cache.
    buffers: HashMap<BufferId, Holder>,
    requests: Requests,
    /// Tasks not launched yet whose prompts the server will forget ([`Event::Uncached`]).
    uncached: BTreeSet<TaskId>,
    /// Evaluations that are not claimed yet.
    unclaimed: BTreeMap<EvaluationId, unclaimed::Unclaimed>,
    reaches: reach::Reaches,
    adapters: adapters::Adapters,
    /// The batch that is being evaluated: one element for each sequence in it.
    in_flight: Vec<evaluate::InFlight>,
    evaluating: bool,
    /// Whether an event has told of a launch. Not with every server.
    launches: bool,
    /// Events were lost at some time. The engine may load what was saved before that.
    stepped_out: bool,
    /// Events were lost. Sequences without an event since then may hold unknown tokens.
    unheard: bool,
    /// How many contents have got placeholder tokens ([`unseen_token`](crate::unseen_token)).
    unseen: u32,
    /// Labels of lost marks. The vector is kept to spare allocations.
    lost: Vec<Label>,
    /// Tokens of one sequence in a batch. The vector is kept to spare allocations.
    run: Vec<Token>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Self {
        Self {
            tree: Tree::new(),
            contexts: Vec::new(),
            sequences: BTreeMap::new(),
            buffers: HashMap::new(),
            requests: Requests::new(),
            uncached: BTreeSet::new(),
            unclaimed: BTreeMap::new(),
            reaches: reach::Reaches::default(),
            adapters: adapters::Adapters::default(),
            in_flight: Vec::new(),
            evaluating: false,
            launches: false,
            stepped_out: false,
            unheard: false,
            unseen: 0,
            lost: Vec::new(),
            run: Vec::new(),
        }
    }

    /// How many distinct tokens are held, in slots and in host memory.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.tree.tokens()
    }

    /// How many requests are on their way or cached.
    #[must_use]
    pub fn live(&self) -> usize {
        self.requests.len()
    }

    /// The ids of the requests that are on their way or cached, in no order.
    pub fn ids(&self) -> impl Iterator<Item = &RequestId> {
        self.requests.ids()
    }

    /// How many tokens a slot holds from position 0 on without a gap.
    #[must_use]
    pub fn held(&self, sequence: SequenceId) -> u32 {
        self.sequences
            .get(&sequence)
            .map_or(0, |sequence| self.tree.depth(sequence.holder))
    }

    /// The tokens that a slot holds from position 0 on without a gap.
    #[must_use]
    pub fn tokens_in(&self, sequence: SequenceId) -> Vec<Token> {
        self.sequences
            .get(&sequence)
            .map_or_else(Vec::new, |sequence| self.tree.read(sequence.holder, 0))
    }

    /// Whether the ledger knows this buffer as a saved sequence.
    #[must_use]
    pub fn knows(&self, buffer: BufferId) -> bool {
        self.buffers.contains_key(&buffer)
    }

    /// Applies one event and appends its effects to `effects`.
    pub fn apply(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::ContextCreated { context } => self.context_created(context),
            Event::Bounded { context, window } => self.reaches.bound(context, window),
            Event::ContextFreed { context } => self.context_freed(context, effects),
            // Requests without an id are for those who observe.
            Event::Posted { id: None, .. } | Event::Answered { id: None, .. } => {}
            Event::Posted {
                arrival,
                task,
                id: Some(id),
            } => match self.requests.post(arrival, task, &id) {
                Posted::Again => {}
                Posted::New { superseded } => {
                    if let Some(name) = superseded {
                        self.forget(name);
                    }
                    effects.push(Effect::Awaited { id });
                    if let Some(oldest) = self.requests.beyond(MOST_LIVE) {
                        self.give_up(oldest, Reason::TooMany, effects);
                    }
                }
            },
            Event::Answered {
                arrival,
                id: Some(id),
            } => match self.requests.find_arrival(&id, arrival) {
                Some(name) => {
                    if let Some(request) = self.requests.get_mut(name) {
                        request.answered = true;
                    }
                    self.end_if_over(name, effects);
                }
                // Its request was evicted already, or another request with this id took its place.
                None if self.requests.answered_late(arrival) => {}
                // Rejected before it became a task. An older request with this
                // id may well be cached.
                None if self.requests.find(&id).is_none() => effects.push(Effect::Evicted {
                    id,
                    reason: Reason::NeverCached,
                    place: Place::Nowhere,
                }),
                None => {}
            },
            Event::Uncached { task } => {
                self.uncached.insert(task);
                if self.uncached.len() > MOST_UNCACHED {
                    self.uncached.pop_first();
                }
            }
            Event::NamedAdapters { task, scales } => self.adapters.name(task, scales),
            Event::Adapters {
                context,
                adapters,
                compared,
            } => self.apply_adapters(context, adapters, compared, effects),
            Event::Untied { task } => self.untied(task, effects),
            Event::Launched { sequence, task } => self.launched(sequence, task, effects),
            Event::LaunchedUnclaimed {
                sequence,
                evaluation,
                likely,
            } => self.launched_unclaimed(sequence, evaluation, likely, effects),
            Event::Claimed { evaluation, task } => self.claimed(evaluation, task, effects),
            Event::ClaimsClosed { evaluation } => self.close_claims(evaluation),
            Event::Submitted { context, entries } => {
                if self.is_primary(context) {
                    self.submitted(&entries, effects);
                }
            }
            Event::Evaluated { context, failed } => {
                if self.is_primary(context) {
                    self.evaluated(&failed, effects);
                }
            }
            Event::Quiet { elapsed } => self.quiet(elapsed, effects),
            Event::OutOfStep => self.out_of_step(effects),
            Event::Reset => self.reset(effects),
            Event::Freed { buffer } => {
                if let Some(holder) = self.buffers.remove(&buffer) {
                    self.release(holder, Reason::DroppedFromHost, Place::Host, effects);
                }
                self.freed(buffer, effects);
            }
            // To the engine they are there, however they came.
            Event::Loaded { .. } => {}
            Event::Removed { context, .. }
            | Event::Kept { context, .. }
            | Event::Copied { context, .. }
            | Event::Shifted { context, .. }
            | Event::Obscured { context, .. }
            | Event::Cleared { context }
            | Event::Saved { context, .. }
            | Event::Restored { context, .. }
            | Event::Replaced { context, .. }
            | Event::Reaches { context, .. }
            | Event::Checkpointed { context, .. } => {
                if self.is_primary(context) {
                    self.memory(event, effects);
                }
            }
        }
    }

    fn sequence(&mut self, id: SequenceId) -> &mut Sequence {
        let blend = self.first_blend();
        self.sequences.entry(id).or_insert_with(|| Sequence {
            unknown: self.unheard,
            blend,
            ..Sequence::new(self.tree.hold_root())
        })
    }

    fn is_empty(&self, sequence: &Sequence) -> bool {
        self.tree.depth(sequence.holder) == 0 && sequence.tail.is_empty()
    }
}
