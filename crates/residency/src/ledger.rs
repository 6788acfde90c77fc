//! The ledger: applies events to the tree and says what follows.

use crate::event::{
    BufferId, ContextId, Effect, Entry, EvaluationId, Event, Place, Position, Reason, RequestId,
    SequenceId, TaskId, Token,
};
use crate::requests::{Label, Posted, RequestKey, Requests};
use crate::sequence::{Launch, Sequence};
use crate::tree::{Holder, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

mod adapters;
mod evaluate;
mod holdings;
mod memory;
mod query;
mod reach;
mod reusable;
#[cfg(test)]
mod tests;
mod unclaimed;

pub(crate) use adapters::{Named, Wanted};
pub use query::{Contents, Likeness, Saved, Whereabouts};
pub use reusable::Keeper;
pub use unclaimed::Evaluation;

/// After this silence, a sequence that was emptied and has no task stays empty.
/// The server empties a slot and gives it a task within one pass of its queue.
const EMPTIED: Duration = Duration::from_millis(10);
/// After this silence, no slot is at work: the server submits the next batch of
/// a task as soon as the last one is done.
const IDLE: Duration = Duration::from_millis(100);
/// After this silence, a task of which nothing else is known is not at work any
/// more. Longer, because the encoding of an image is silent too.
const ABANDONED: Duration = Duration::from_secs(1);
/// Requests that are live at once. Many equal prompts can stand in a few tokens, and nothing that the
/// engine does would ever end their number. Beyond that, the oldest is given up.
pub const MOST_LIVE: usize = 1 << 17;
/// Tasks that are not to be cached and wait for a slot: beyond that the oldest was given up.
pub const MOST_UNCACHED: usize = 4096;

/// What the engine holds, which requests that means, and what it has just lost.
///
/// Events go in, [effects](Effect) come out; there is no clock, no thread and no
/// I/O, and equal events give equal effects.
#[derive(Debug)]
pub struct Ledger {
    tree: Tree<Label>,
    /// Living contexts, oldest first: the first is the primary.
    contexts: Vec<ContextId>,
    /// Of the primary context. Ordered, so that equal events give equal effects.
    sequences: BTreeMap<SequenceId, Sequence>,
    buffers: HashMap<BufferId, Holder>,
    requests: Requests,
    /// Tasks not launched yet whose prompts the server will forget.
    uncached: BTreeSet<TaskId>,
    /// Evaluations that are not claimed yet.
    unclaimed: BTreeMap<EvaluationId, unclaimed::Unclaimed>,
    reaches: reach::Reaches,
    adapters: adapters::Adapters,
    /// The batch that is being evaluated.
    flights: Vec<evaluate::Flight>,
    evaluating: bool,
    /// Whether tasks can be seen to be launched. Not with every server.
    launches: bool,
    /// It was out of step before: the engine may bring back what was saved before that.
    stepped_out: bool,
    /// Sequences of which nothing was heard since may hold something.
    unheard: bool,
    /// How many contents were found that had been written unseen.
    unseen: u32,
    /// Labels of lost marks, kept to spare allocations.
    lost: Vec<Label>,
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
            flights: Vec::new(),
            evaluating: false,
            launches: false,
            stepped_out: false,
            unheard: false,
            unseen: 0,
            lost: Vec::new(),
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

    /// How many tokens a slot holds, from its beginning without a gap.
    #[must_use]
    pub fn held(&self, sequence: SequenceId) -> u32 {
        self.sequences
            .get(&sequence)
            .map_or(0, |sequence| self.tree.depth(sequence.holder))
    }

    /// The tokens that a slot holds, from its beginning without a gap.
    #[must_use]
    pub fn tokens_in(&self, sequence: SequenceId) -> Vec<Token> {
        self.sequences
            .get(&sequence)
            .map_or_else(Vec::new, |sequence| self.tree.read(sequence.holder, 0))
    }

    /// Whether a buffer holds a saved sequence.
    #[must_use]
    pub fn knows(&self, buffer: BufferId) -> bool {
        self.buffers.contains_key(&buffer)
    }

    /// Takes one event and appends what follows from it to `effects`.
    pub fn apply(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::ContextCreated { context } => self.context_created(context),
            Event::Bounded { context, window } => self.reaches.bound(context, window),
            Event::ContextFreed { context } => self.context_freed(context, effects),
            Event::Posted { arrival, task, id } => match self.requests.post(arrival, task, &id) {
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
            Event::Answered { arrival, id } => match self.requests.find_arrival(&id, arrival) {
                Some(name) => {
                    if let Some(request) = self.requests.get_mut(name) {
                        request.answered = true;
                    }
                    self.end_if_over(name, effects);
                }
                // Evicted already, or another request with this id took its place.
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

    // ---- contexts ------------------------------------------------------

    fn context_created(&mut self, context: ContextId) {
        if !self.contexts.contains(&context) {
            self.contexts.push(context);
        }
    }

    fn context_freed(&mut self, context: ContextId, effects: &mut Vec<Effect>) {
        let primary = self.contexts.first() == Some(&context);
        self.contexts.retain(|&other| other != context);
        self.reaches.forget_context(context);
        self.adapters.forget_context(context);
        if primary {
            self.empty_all(Reason::ContextFreed, effects);
            self.flights.clear();
            self.evaluating = false;
            self.unheard = false;
            self.reaches.clear();
            // No slot outlives its context, nor does a task at work on it.
            for (_, mut sequence) in std::mem::take(&mut self.sequences) {
                self.abandon(sequence.launch.take(), effects);
                self.release(
                    sequence.holder,
                    Reason::ContextFreed,
                    Place::Nowhere,
                    effects,
                );
            }
            // The server makes a new host cache for its next context. It drops the
            // old one only then, but nothing finds an entry of it before that.
            let mut buffers: Vec<_> = self.buffers.drain().collect();
            buffers.sort_unstable_by_key(|&(buffer, _)| buffer);
            for (_, holder) in buffers {
                self.release(holder, Reason::ContextFreed, Place::Host, effects);
            }
        }
    }

    /// Whether the server's slots are sequences of this context. A context that
    /// was never announced counts as the oldest if there is no other.
    fn is_primary(&mut self, context: ContextId) -> bool {
        if self.contexts.is_empty() {
            self.contexts.push(context);
        }
        self.contexts.first() == Some(&context)
    }

    // ---- requests ------------------------------------------------------

    fn launched(&mut self, id: SequenceId, task: TaskId, effects: &mut Vec<Effect>) {
        self.launches = true;
        let mut request = self.requests.launch(task);
        let forgotten = self.uncached.remove(&task).then(|| self.next_unseen());
        if forgotten.is_some() {
            if let Some(name) = request.take() {
                self.end(name, Reason::NeverCached, Place::Nowhere, effects);
            }
        }
        let named = self.adapters.take_named(task);
        self.begin(id, request, forgotten, named, effects);
    }

    /// A slot is at work for a request, if for one with an id.
    fn begin(
        &mut self,
        id: SequenceId,
        request: Option<RequestKey>,
        forgotten: Option<u32>,
        named: Option<Named>,
        effects: &mut Vec<Effect>,
    ) {
        let sequence = self.sequence(id);
        sequence.forgotten = forgotten;
        let before = sequence.launch.replace(Launch {
            request,
            every_output: false,
            mark: None,
            submitted: false,
            blend_settled: false,
            names_adapters: false,
            named: None,
        });
        self.adapt_to_launch(id, named, before.as_ref(), effects);
        self.abandon(before, effects);
    }

    /// The number of another content that is like no other.
    fn next_unseen(&mut self) -> u32 {
        self.unseen = self.unseen.wrapping_add(1);
        self.unseen
    }

    /// A task lost its slot before its prompt was evaluated.
    fn abandon(&mut self, launch: Option<Launch>, effects: &mut Vec<Effect>) {
        let Some(launch) = launch else { return };
        let Some(name) = launch.request else { return };
        if launch.mark.is_none() {
            self.fail(name, effects);
        }
    }

    /// A prompt of a request was launched and will not be evaluated.
    fn fail(&mut self, name: RequestKey, effects: &mut Vec<Effect>) {
        if let Some(request) = self.requests.get_mut(name) {
            request.running = request.running.saturating_sub(1);
            request.failed = true;
            if let Some(evaluation) = request.evaluation {
                self.fail_unclaimed(evaluation, effects);
                return;
            }
        }
        self.end_if_over(name, effects);
    }

    fn end_if_over(&mut self, name: RequestKey, effects: &mut Vec<Effect>) {
        if self.requests.is_over(name) {
            self.end(name, Reason::NeverCached, Place::Nowhere, effects);
        }
    }

    /// The prompt of a launch has been evaluated and stands where the sequence stands.
    fn settle(&mut self, id: SequenceId, effects: &mut Vec<Effect>) {
        let Some(sequence) = self.sequences.get_mut(&id) else {
            return;
        };
        let Some(launch) = sequence.launch.as_mut() else {
            return;
        };
        let holder = sequence.holder;
        let depth = self.tree.depth(holder);
        let name = launch.request;
        let marked = launch.mark;
        let every_output = launch.every_output;
        let named = launch.named.take();
        if !every_output {
            sequence.launch = None;
        }
        let Some(name) = name else { return };
        if depth == 0 || self.requests.get(name).is_none() {
            return;
        }
        let end = self.reusable(id, name, named);
        match marked {
            // An embedding task goes on: the prompt ends further down.
            Some(nth) => self.move_mark(name, nth, holder, end),
            None => self.set_mark(id, name, holder, end),
        }
        if end == 0 || !self.is_wholly_served(name) {
            // Nothing of it would be found again.
            self.end(name, Reason::NeverCached, Place::Nowhere, effects);
            return;
        }
        if marked.is_some() {
            return;
        }
        let complete = self.requests.settle(name);
        let Some(request) = self.requests.get(name) else {
            return;
        };
        if let Some(evaluation) = request.evaluation {
            self.settle_unclaimed(evaluation, id, depth, effects);
        } else if complete {
            effects.push(Effect::Cached {
                id: request.id.clone(),
                sequence: id,
                tokens: depth,
            });
        }
    }

    /// Marks where a prompt of a request ends, in a slot.
    fn set_mark(&mut self, id: SequenceId, name: RequestKey, holder: Holder, end: u32) {
        let Some(request) = self.requests.get_mut(name) else {
            return;
        };
        let nth = request.marks.len();
        let label = Label { request: name, nth };
        request.marks.push(Some(self.tree.mark(holder, end, label)));
        // Where some of it is never used again, the rest is what a way back must lead to.
        let depth = self.tree.depth(holder);
        self.watch(id, label, if end + 1 < depth { end } else { depth });
        let sequence = self.sequences.get_mut(&id);
        // None: the launch is over with this.
        if let Some(launch) = sequence.and_then(|sequence| sequence.launch.as_mut()) {
            launch.mark = Some(nth);
        }
    }

    fn move_mark(&mut self, name: RequestKey, nth: usize, holder: Holder, end: u32) {
        let request = self.requests.get_mut(name);
        let mark = request.and_then(|request| request.marks.get_mut(nth));
        if let Some(mark) = mark {
            if let Some(before) = mark.take() {
                let label = self.tree.unmark(before);
                *mark = Some(self.tree.mark(holder, end, label));
            }
        }
    }

    /// Takes a request out of the ledger without a word.
    fn forget(&mut self, name: RequestKey) -> Option<RequestId> {
        let request = self.requests.remove(name)?;
        for mark in request.marks.into_iter().flatten() {
            self.tree.unmark(mark);
        }
        Some(request.id)
    }

    /// A request is no longer cached.
    fn end(&mut self, name: RequestKey, reason: Reason, place: Place, effects: &mut Vec<Effect>) {
        let request = self.requests.get(name);
        if let Some(evaluation) = request.and_then(|request| request.evaluation) {
            self.lose_unclaimed(evaluation, reason, place, effects);
        } else if let Some(id) = self.forget(name) {
            effects.push(Effect::Evicted { id, reason, place });
        }
    }

    // ---- losing --------------------------------------------------------

    /// Takes a holder away for good.
    fn release(&mut self, holder: Holder, reason: Reason, place: Place, effects: &mut Vec<Effect>) {
        let above = self.wanting_above(holder);
        self.tree.release(holder, &mut self.lost);
        self.evict_lost(reason, place, effects);
        self.review_wanting(&above, reason, place, effects);
    }

    fn evict_lost(&mut self, reason: Reason, place: Place, effects: &mut Vec<Effect>) {
        if self.lost.is_empty() {
            return;
        }
        let mut lost = std::mem::take(&mut self.lost);
        // Lost marks are gone from the tree already: they must not be unmarked.
        for label in &lost {
            if let Some(request) = self.requests.get_mut(label.request) {
                request.marks[label.nth] = None;
            }
        }
        for label in &lost {
            self.end(label.request, reason, place, effects);
        }
        lost.clear();
        self.lost = lost;
    }

    // ---- silence and confusion -----------------------------------------

    fn quiet(&mut self, elapsed: Duration, effects: &mut Vec<Effect>) {
        if elapsed < EMPTIED {
            return;
        }
        let idle = elapsed >= IDLE && !self.evaluating;
        let decided: Vec<(SequenceId, Reason)> = self
            .sequences
            .iter()
            .filter(|(_, sequence)| sequence.ghost.is_some() || self.has_unsettled_blend(sequence))
            .filter_map(|(&id, sequence)| {
                let emptied = self.is_empty(sequence);
                let certain = match &sequence.launch {
                    None => emptied || idle,
                    // An embedding task, done: the server empties its slot.
                    Some(launch) if launch.mark.is_some() && emptied => true,
                    Some(launch) => match launch.request {
                        None => idle && elapsed >= ABANDONED,
                        Some(name) => {
                            idle && self.requests.get(name).is_none_or(|request| {
                                let unclaimed = request.evaluation.is_some();
                                request.answered || (unclaimed && elapsed >= ABANDONED)
                            })
                        }
                    },
                };
                let reason = if emptied {
                    Reason::Cleared
                } else {
                    Reason::Overwritten
                };
                certain.then_some((id, reason))
            })
            .collect();
        for (id, reason) in decided {
            self.release_ghost(id, reason, effects);
            self.settle_blend(id, effects);
        }
        self.review_changed(effects);
        if idle {
            for name in self.requests.answered_incomplete().collect::<Vec<_>>() {
                self.end(name, Reason::NeverCached, Place::Nowhere, effects);
            }
        }
    }

    fn reset(&mut self, effects: &mut Vec<Effect>) {
        for name in self.requests.live() {
            let request = self.requests.get(name);
            if request.is_some_and(|request| request.evaluation.is_none()) {
                self.give_up(name, Reason::Reset, effects);
            }
        }
    }

    /// A request may still be cached, and is tracked no more.
    fn give_up(&mut self, name: RequestKey, reason: Reason, effects: &mut Vec<Effect>) {
        let request = self.requests.get(name);
        let found = request.and_then(|request| self.whereabouts(&request.id));
        let place = found.unwrap_or_default().place();
        self.end(name, reason, place, effects);
    }

    fn out_of_step(&mut self, effects: &mut Vec<Effect>) {
        for name in self.requests.live() {
            self.end(name, Reason::OutOfStep, Place::Nowhere, effects);
        }
        self.requests.clear();
        self.reaches.clear();
        self.adapters.lose_step();
        *self = Self {
            contexts: std::mem::take(&mut self.contexts),
            requests: std::mem::replace(&mut self.requests, Requests::new()),
            uncached: std::mem::take(&mut self.uncached),
            reaches: std::mem::take(&mut self.reaches),
            adapters: std::mem::take(&mut self.adapters),
            stepped_out: true,
            unheard: true,
            unseen: self.unseen,
            ..Self::new()
        };
    }

    // ---- sequences -----------------------------------------------------

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

    /// Decides an undecided branch: it is lost.
    fn release_ghost(&mut self, id: SequenceId, reason: Reason, effects: &mut Vec<Effect>) {
        let ghost = self
            .sequences
            .get_mut(&id)
            .and_then(|sequence| sequence.ghost.take());
        if let Some(ghost) = ghost {
            let reason = if ghost.shifted {
                Reason::Shifted
            } else {
                reason
            };
            self.release(ghost.holder, reason, Place::Slot(id), effects);
        }
    }
}
