//! The ledger: applies events to the radix tree, and says what has happened.

use crate::batch::Batch;
use crate::contexts::Contexts;
use crate::evaluations::Evaluations;
use crate::event::Event;
use crate::fact::{Fact, Place, Reason};
use crate::gap::Gap;
use crate::ids::{BufferId, RequestId, SequenceId};
use crate::jobs::Jobs;
use crate::requests::{Label, Requests};
use crate::sequence::Sequence;
use crate::token::Token;
use crate::tree::{Holder, Tree};
use checkpoints::Window;
use std::collections::{BTreeMap, HashMap};

mod adapters;
mod checkpoints;
mod contexts;
mod evaluate;
mod evict;
mod holdings;
mod idle;
mod in_force;
mod memory;
pub(crate) mod query;
mod reach;
mod reaches;
mod requests;
mod reusable;
pub(crate) mod shape;
pub(crate) mod tails;
#[cfg(test)]
mod tests;
mod unclaimed;
pub(crate) mod upcoming;

/// Requests that may be live at once. Beyond that, the oldest request is evicted
/// ([`Reason::TooMany`]). Without this bound, equal prompts under ever new ids could grow without
/// end: they share a few tokens, which may never be overwritten.
pub const MOST_LIVE: usize = 1 << 17;

/// What the engine holds, which requests are cached by that, and which were just evicted.
///
/// Events go in, [facts](Fact) come out. There is no clock, no thread and no I/O. Equal events
/// give equal facts.
#[derive(Debug)]
pub struct Ledger {
    tree: Tree<Label>,
    contexts: Contexts,
    /// Sequences of the primary context. Ordered, so that equal events give equal facts.
    sequences: BTreeMap<SequenceId, Sequence>,
    /// Entries of the host prompt cache.
    buffers: HashMap<BufferId, Holder>,
    requests: Requests,
    /// Evaluations that are not claimed yet.
    evaluations: Evaluations,
    reaches: reaches::Reaches,
    adapters: in_force::Adapters,
    /// `None`: there is no observer.
    jobs: Option<Jobs>,
    batch: Batch,
    gap: Gap,
    /// Whether an event has told of a launch. Not with every server.
    launches: bool,
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
            contexts: Contexts::default(),
            sequences: BTreeMap::new(),
            buffers: HashMap::new(),
            requests: Requests::new(),
            evaluations: Evaluations::default(),
            reaches: reaches::Reaches::default(),
            adapters: in_force::Adapters::default(),
            jobs: None,
            batch: Batch::default(),
            gap: Gap::default(),
            launches: false,
            lost: Vec::new(),
            run: Vec::new(),
        }
    }

    /// An empty ledger that also tells who works on what: see [`Fact`].
    #[must_use]
    pub fn observed() -> Self {
        Self {
            jobs: Some(Jobs::default()),
            ..Self::new()
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

    /// Applies one event and appends to `facts` what has happened.
    pub fn apply(&mut self, event: Event, facts: &mut Vec<Fact>) {
        match event {
            Event::ContextCreated { context } => self.contexts.created(context),
            Event::Bounded { context, window } => {
                self.reaches.bound(context, Window::of_bounded(window));
                self.tell(facts, || Fact::Bounded { context, window });
            }
            Event::WholeWindows { context, window } => {
                self.reaches.bound(context, Window::whole(window));
                self.tell(facts, || Fact::WholeWindows { context, window });
            }
            Event::Rewinds { context, rules } => self.reaches.rewind_by(context, rules),
            Event::ContextFreed { context } => self.context_freed(context, facts),
            Event::Posted { arrival, task, id } => self.posted(arrival, task, id, facts),
            Event::Answered { arrival, id } => self.answered(arrival, id, facts),
            Event::Uncached { task } => {
                self.requests.uncached(task);
                self.tell(facts, || Fact::Uncached { task });
            }
            Event::NamedAdapters { task, scales } => {
                self.tell(facts, || Fact::NamedAdapters {
                    task,
                    scales: scales.clone(),
                });
                self.adapters.name(task, scales);
            }
            Event::Adapters {
                context,
                adapters,
                compared,
            } => {
                self.tell(facts, || Fact::Adapters {
                    adapters: adapters.clone(),
                    primary: self.counts_as_primary(context),
                    compared,
                });
                self.apply_adapters(context, adapters, compared, facts);
            }
            Event::Untied { task } => self.untied(task, facts),
            Event::Launched { sequence, task } => self.launched(sequence, task, facts),
            Event::LaunchedUnclaimed {
                sequence,
                evaluation,
                likely,
            } => self.launched_unclaimed(sequence, evaluation, likely, facts),
            Event::Claimed { evaluation, task } => self.claimed(evaluation, task, facts),
            Event::ClaimsClosed { evaluation } => self.close_claims(evaluation, facts),
            Event::Submitted { context, entries } => {
                if self.contexts.is_primary(context) {
                    self.submitted(&entries, facts);
                }
            }
            Event::Evaluated {
                context, failed, ..
            } => {
                if self.contexts.is_primary(context) {
                    self.evaluated(&failed, facts);
                }
            }
            // To the engine they are there, however they came.
            Event::Loaded {
                context,
                sequence,
                entries,
                ..
            } => {
                let is_primary = self.counts_as_primary(context);
                if let Some(jobs) = self.jobs.as_mut().filter(|_| is_primary) {
                    jobs.loaded(sequence, entries);
                }
            }
            Event::Quiet { elapsed } => {
                if let Some(jobs) = &mut self.jobs {
                    jobs.quiet(facts);
                }
                self.quiet(elapsed, facts);
                self.tell(facts, || Fact::Quiet { elapsed });
            }
            Event::OutOfStep => self.out_of_step(facts),
            Event::Reset => self.reset(facts),
            Event::Freed { buffer } => {
                if let Some(holder) = self.buffers.remove(&buffer) {
                    self.release(holder, Reason::DroppedFromHost, Place::Host, facts);
                }
                self.freed(buffer, facts);
                self.tell_freed(buffer, facts);
            }
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
            | Event::Checkpointed { context, .. }
            | Event::CheckpointLoaded { context, .. } => {
                if self.contexts.is_primary(context) {
                    self.memory(event, facts)
                } else {
                    self.memory_of_others(&event, facts)
                }
            }
        }
    }

    /// Appends a fact that only matters to an observer.
    fn tell(&self, facts: &mut Vec<Fact>, fact: impl FnOnce() -> Fact) {
        if self.jobs.is_some() {
            facts.push(fact());
        }
    }

    fn sequence(&mut self, id: SequenceId) -> &mut Sequence {
        let blend = self.first_blend();
        self.sequences.entry(id).or_insert_with(|| Sequence {
            unknown: self.gap.unheard,
            blend,
            ..Sequence::new(self.tree.hold_root())
        })
    }

    fn is_empty(&self, sequence: &Sequence) -> bool {
        self.tree.depth(sequence.holder) == 0 && sequence.tail.is_empty()
    }
}
