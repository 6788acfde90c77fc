//! The ledger a second time, as simple as possible: no tree, no marks, only lists of tokens.
//!
//! A slot has a list, and so have the content that the slot has just left, each host buffer and each
//! prompt. A prompt is cached while the list of a slot or buffer begins with it. Everything else
//! follows from the crate's README and from the docs of its events. It is slow, and meant to be
//! obviously right.
//!
//! Used by the unit tests, by integration tests (here and in crates/fleet/kv-events) and by the fuzz target.

use adapters::{Applied, Set, Wants};
use contextpilot_residency::{
    Arrival, BufferId, ContextId, EvaluationId, Event, Fact, Place, Reason, RequestId, Saved,
    Scale, SequenceId, TaskId, Token, Whereabouts,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

mod adapters;
mod agree;
mod engine;
mod events;
mod media;
#[allow(dead_code, reason = "for the tests of crates/fleet/kv-events")]
mod reusable;
mod unclaimed;

pub(crate) use agree::Pair;
pub(crate) use events::{Bytes, Choices, Generator, Random};

/// The number of a request, in the order in which requests came.
type Serial = usize;

#[derive(Default)]
pub(crate) struct Naive {
    contexts: Vec<ContextId>,
    slots: BTreeMap<SequenceId, NaiveSlot>,
    buffers: BTreeMap<usize, Vec<Token>>,
    /// The content that is about to replace that of a slot.
    arriving: Option<(SequenceId, Vec<Token>)>,
    requests: BTreeMap<Serial, Request>,
    tasks: BTreeMap<TaskId, Serial>,
    /// Tasks not launched yet whose prompts the server will forget ([`Event::Uncached`]).
    uncached: BTreeSet<TaskId>,
    /// The adapters that tasks name. Only tasks that were not launched yet.
    named: BTreeMap<TaskId, Vec<(i32, Scale)>>,
    /// The adapters that are applied, by context; `None`: not known.
    applied: BTreeMap<usize, Option<Applied>>,
    /// The adapters that were applied last for a task that names none.
    unnamed: Option<Set>,
    /// Evaluations that tasks may still claim.
    evaluations: BTreeMap<EvaluationId, unclaimed::Unclaimed>,
    /// Requests that were removed before they were answered: the answer must not count as a rejection.
    gone: BTreeSet<Arrival>,
    /// The batch that is being evaluated: one element for each slot in it.
    batch: Option<Vec<InBatch>>,
    /// The last serial number.
    posted: Serial,
    /// Whether an event has told of a launch. Not with every server.
    launches: bool,
    /// Events were lost at some time.
    stepped_out: bool,
    /// Events were lost. Slots without an event since then may hold unknown tokens.
    unheard: bool,
    /// How many contents have got placeholder tokens ([`unseen_token`]).
    ///
    /// [`unseen_token`]: contextpilot_residency::unseen_token
    unseen: u32,
    facts: Vec<Fact>,
}

#[derive(Default)]
struct NaiveSlot {
    /// The tokens at positions 0, 1, 2… up to the first gap.
    tokens: Vec<Token>,
    /// The tokens beyond that gap, by position.
    beyond: BTreeMap<i64, Token>,
    /// The content that the slot has left. The same tokens may be evaluated again.
    left: Option<Left>,
    /// The task that the slot works on, until its prompt has been evaluated.
    launch: Option<Launch>,
    /// The slot may hold tokens that are not known.
    unknown: bool,
    /// The server will forget what is written now: the number that its placeholder tokens get.
    forgotten: Option<u32>,
    /// The adapters that the slot worked under last; `None`: not known.
    set: Option<Set>,
    /// The next batch decides under which adapters the slot goes on.
    unsettled: bool,
}

/// Content that a slot has left.
struct Left {
    tokens: Vec<Token>,
    /// Tokens of it were moved, or cut out of the middle.
    shifted: bool,
}

/// A task on a slot.
struct Launch {
    /// The request; `None`: it has no id.
    request: Option<Serial>,
    /// The task asks for the output of every prompt token, so an output does not mean that the prompt
    /// is complete.
    every_output: bool,
    /// Index of the task's prompt in [`Request::prompts`], once it was evaluated.
    prompt: Option<usize>,
    /// Tokens of the prompt were submitted. Kept only where adapters are applied.
    submitted: bool,
    /// The task ended before a batch, and the slot already has the adapters that the task left.
    set_settled: bool,
    /// The task names adapters.
    names: bool,
    /// The adapters that it names, until it is known which adapters the server has.
    named: Option<Vec<(i32, Scale)>>,
}

struct Request {
    id: RequestId,
    arrival: Arrival,
    /// If set, this is no request but a stand-in for the one whose evaluation this is, until that
    /// request is known.
    evaluation: Option<EvaluationId>,
    /// Tasks that were posted and not launched yet.
    waiting: Vec<TaskId>,
    /// How many tasks were launched and have not had their prompt evaluated yet.
    running: usize,
    /// At least one task was launched.
    launched: bool,
    /// A task ended without its prompt having been evaluated.
    failed: bool,
    answered: bool,
    /// The evaluated prompts.
    prompts: Vec<Vec<Token>>,
    /// Which LoRA adapters it wants.
    wants: Wants,
}

impl Request {
    fn begin(&mut self, task: TaskId) {
        self.waiting.retain(|&waiting| waiting != task);
        self.running += 1;
        self.launched = true;
    }

    fn complete(&self) -> bool {
        self.waiting.is_empty() && self.running == 0 && !self.failed && !self.prompts.is_empty()
    }
}

/// What a batch does to a slot.
struct InBatch {
    slot: SequenceId,
    entries: usize,
    outputs: usize,
    /// The last entry asks for its output: the prompt ends with this batch, or this is generation.
    ends: bool,
    /// It is not known what the slot holds before some entry.
    unclear: bool,
}

impl NaiveSlot {
    fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.beyond.is_empty()
    }
}

impl Naive {
    pub(crate) fn apply(&mut self, event: &Event) -> Vec<Fact> {
        match *event {
            Event::ContextCreated { context } => {
                if !self.contexts.contains(&context) {
                    self.contexts.push(context);
                }
            }
            Event::ContextFreed { context } => self.free(context),
            Event::Posted {
                arrival,
                task,
                id: Some(ref id),
            } => self.post(arrival, task, id),
            Event::Answered {
                arrival,
                id: Some(ref id),
            } => self.answer(arrival, id),
            Event::Posted { id: None, .. } | Event::Answered { id: None, .. } => {}
            Event::Uncached { task } => drop(self.uncached.insert(task)),
            Event::NamedAdapters { task, ref scales } => self.name_adapters(task, scales),
            Event::Adapters {
                context,
                ref adapters,
                compared,
            } => self.apply_adapters(context, adapters, compared),
            Event::Untied { task } => self.untied(task),
            Event::Launched { sequence, task } => self.launch(sequence, task),
            Event::LaunchedUnclaimed {
                sequence,
                evaluation,
                likely,
            } => self.launch_unclaimed(sequence, evaluation, likely),
            Event::Claimed { evaluation, task } => self.claim(evaluation, task),
            Event::ClaimsClosed { evaluation } => self.close_claims(evaluation),
            Event::Freed { buffer } => {
                self.buffers.remove(&buffer.0);
                self.lose(Reason::DroppedFromHost, Place::Host);
            }
            Event::Quiet { elapsed } => self.quiet(elapsed),
            Event::OutOfStep => self.out_of_step(),
            Event::Reset => self.reset(),
            // To the engine they are there, however they came.
            Event::Loaded { .. } => {}
            ref other => {
                if self.is_primary(other) {
                    self.engine(other);
                }
            }
        }
        std::mem::take(&mut self.facts)
    }

    fn slot(&mut self, id: SequenceId) -> &mut NaiveSlot {
        let unknown = self.unheard;
        let set = self.first_set();
        self.slots.entry(id).or_insert_with(|| NaiveSlot {
            unknown,
            set,
            ..NaiveSlot::default()
        })
    }

    // ---- queries -------------------------------------------------------

    pub(crate) fn held(&self, slot: SequenceId) -> u32 {
        self.slots.get(&slot).map_or(0, |s| s.tokens.len() as u32)
    }

    pub(crate) fn knows(&self, buffer: BufferId) -> bool {
        self.buffers.contains_key(&buffer.0)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &RequestId> {
        self.named_requests().map(|request| &request.id)
    }

    fn named_requests(&self) -> impl Iterator<Item = &Request> {
        let all = self.requests.values();
        all.filter(|request| request.evaluation.is_none())
    }

    /// Saved sequences and their tokens.
    pub(crate) fn saved(&self) -> Saved {
        Saved {
            buffers: self.buffers.len(),
            tokens: self.buffers.values().map(|list| list.len() as u64).sum(),
        }
    }

    /// The ids of the requests whose prompts a slot holds, one for each prompt.
    pub(crate) fn requests_in(&self, slot: SequenceId) -> Vec<&RequestId> {
        let held = self.content(slot);
        let Some(here) = self.slots.get(&slot) else {
            return Vec::new();
        };
        let requests = self.named_requests();
        let suiting = requests.filter(|request| here.suits(&request.wants));
        let prompts = suiting.flat_map(|r| r.prompts.iter().map(move |p| (&r.id, p)));
        prompts
            .filter(|(_, prompt)| !held.is_empty() && held.starts_with(prompt))
            .map(|(id, _)| id)
            .collect()
    }

    pub(crate) fn whereabouts(&self, id: &RequestId) -> Option<Whereabouts> {
        let request = &self.requests[&self.find(id)?];
        let Some(prompt) = request.prompts.first() else {
            return Some(Whereabouts::default());
        };
        let slots = self.slots.iter();
        Some(Whereabouts {
            sequences: slots
                .filter(|(_, slot)| slot.suits(&request.wants))
                .filter(|(_, slot)| slot.tokens.starts_with(prompt))
                .map(|(&id, _)| id)
                .collect(),
            host: self.buffers.values().any(|list| list.starts_with(prompt)),
        })
    }

    /// The number of nodes of the trie of all lists.
    pub(crate) fn tokens(&self) -> usize {
        let mut lists: Vec<&[Token]> = self.lists().collect();
        lists.sort_unstable();
        let mut before: &[Token] = &[];
        let mut count = 0;
        for list in lists {
            let common = before.iter().zip(list).take_while(|(a, b)| a == b).count();
            count += list.len() - common;
            before = list;
        }
        count
    }

    /// The tokens of a slot up to the first gap, for generators.
    pub(crate) fn content(&self, slot: SequenceId) -> &[Token] {
        self.slots.get(&slot).map_or(&[], |s| &s.tokens)
    }

    /// The tokens that a slot has left and may write again, for generators.
    pub(crate) fn left(&self, slot: SequenceId) -> Option<&[Token]> {
        let left = self.slots.get(&slot)?.left.as_ref()?;
        Some(&left.tokens)
    }

    fn lists(&self) -> impl Iterator<Item = &[Token]> {
        let slots = self.slots.values();
        slots
            .flat_map(|s| [Some(&s.tokens), s.left.as_ref().map(|left| &left.tokens)])
            .flatten()
            .chain(self.buffers.values())
            .chain(self.arriving.as_ref().map(|(_, tokens)| tokens))
            .map(Vec::as_slice)
    }

    // ---- evictions -----------------------------------------------------

    /// Evicts every request that has a prompt which is no longer cached.
    fn lose(&mut self, reason: Reason, place: Place) {
        let lost: Vec<Serial> = self
            .requests
            .iter()
            .filter(|(_, request)| {
                let prompts = &mut request.prompts.iter();
                prompts.any(|prompt| !self.is_found(request, prompt))
            })
            .map(|(&serial, _)| serial)
            .collect();
        for serial in lost {
            self.end(serial, reason, place);
        }
    }

    /// Removes a request without a report.
    fn forget(&mut self, serial: Serial) -> Option<Request> {
        let request = self.requests.remove(&serial)?;
        self.tasks.retain(|_, &mut owner| owner != serial);
        if !request.answered && request.evaluation.is_none() {
            self.gone.insert(request.arrival);
        }
        Some(request)
    }

    /// Removes a request and reports it as evicted.
    fn end(&mut self, serial: Serial, reason: Reason, place: Place) {
        match self.forget(serial) {
            Some(Request {
                evaluation: Some(evaluation),
                ..
            }) => self.lose_unclaimed(evaluation, reason, place),
            Some(Request { id, .. }) => {
                self.facts.push(Fact::Evicted {
                    id,
                    reason,
                    place,
                    by: None,
                });
            }
            None => {}
        }
    }

    /// What a slot has left will not be written again: it is dropped.
    fn decide(&mut self, id: SequenceId, reason: Reason) {
        let slot = self.slot(id);
        if let Some(left) = slot.left.take() {
            let reason = if left.shifted {
                Reason::Shifted
            } else {
                reason
            };
            self.lose(reason, Place::Slot(id));
        }
    }

    fn clear(&mut self, id: SequenceId, reason: Reason) {
        self.decide(id, reason);
        let slot = self.slot(id);
        slot.tokens.clear();
        slot.beyond.clear();
        slot.unknown = false;
        self.lose(reason, Place::Slot(id));
    }

    /// Nothing is claimed of a slot until it is written from its first position again.
    fn obscure(&mut self, id: SequenceId) {
        self.clear(id, Reason::OutOfStep);
    }

    // ---- requests ------------------------------------------------------

    fn post(&mut self, arrival: Arrival, task: TaskId, id: &RequestId) {
        let known = self.find(id);
        if let Some(serial) = known.filter(|s| self.requests[s].arrival == arrival) {
            let request = self.requests.get_mut(&serial).expect("found");
            request.waiting.push(task);
            self.tasks.insert(task, serial);
            return;
        }
        if let Some(serial) = known {
            self.forget(serial);
        }
        self.gone.remove(&arrival);
        self.posted += 1;
        self.requests.insert(
            self.posted,
            Request {
                id: id.clone(),
                arrival,
                evaluation: None,
                waiting: vec![task],
                running: 0,
                launched: false,
                failed: false,
                answered: false,
                prompts: Vec::new(),
                wants: Wants::Anything,
            },
        );
        self.tasks.insert(task, self.posted);
        self.facts.push(Fact::Awaited { id: id.clone() });
    }

    fn find(&self, id: &RequestId) -> Option<Serial> {
        let mut all = self.requests.iter();
        let named = |request: &Request| request.evaluation.is_none() && request.id == *id;
        all.find(|(_, request)| named(request)).map(|(&s, _)| s)
    }

    fn answer(&mut self, arrival: Arrival, id: &RequestId) {
        match self.find(id) {
            Some(serial) if self.requests[&serial].arrival == arrival => {
                self.requests.get_mut(&serial).expect("found").answered = true;
                self.end_if_over(serial);
            }
            // Another request has this id by now, so nothing is reported.
            Some(_) => {
                self.gone.remove(&arrival);
            }
            None => {
                if !self.gone.remove(&arrival) {
                    self.facts.push(Fact::Evicted {
                        id: id.clone(),
                        reason: Reason::NeverCached,
                        place: Place::Nowhere,
                        by: None,
                    });
                }
            }
        }
    }

    fn end_if_over(&mut self, serial: Serial) {
        if self.requests.get(&serial).is_some_and(|request| {
            request.answered && !request.complete() && (request.failed || !request.launched)
        }) {
            self.end(serial, Reason::NeverCached, Place::Nowhere);
        }
    }

    fn launch(&mut self, id: SequenceId, task: TaskId) {
        self.launches = true;
        let mut request = self.tasks.remove(&task);
        let forgotten = self.uncached.remove(&task);
        if forgotten {
            self.unseen += 1;
            if let Some(serial) = request.take() {
                self.end(serial, Reason::NeverCached, Place::Nowhere);
            }
        }
        let number = forgotten.then_some(self.unseen);
        if let Some(posted) = request.and_then(|serial| self.requests.get_mut(&serial)) {
            posted.begin(task);
        }
        let named = self.named.remove(&task);
        self.occupy(id, request, number, named);
    }

    fn occupy(
        &mut self,
        id: SequenceId,
        request: Option<Serial>,
        number: Option<u32>,
        named: Option<Vec<(i32, Scale)>>,
    ) {
        let slot = self.slot(id);
        slot.forgotten = number;
        let before = slot.launch.replace(Launch {
            request,
            every_output: false,
            prompt: None,
            submitted: false,
            set_settled: false,
            names: false,
            named: None,
        });
        self.launch_with(id, named, before.as_ref());
        self.abandon(before);
    }

    fn abandon(&mut self, launch: Option<Launch>) {
        let Some(Launch {
            request: Some(serial),
            prompt: None,
            ..
        }) = launch
        else {
            return;
        };
        self.fail(serial);
    }

    fn fail(&mut self, serial: Serial) {
        let Some(request) = self.requests.get_mut(&serial) else {
            return;
        };
        request.running = request.running.saturating_sub(1);
        request.failed = true;
        match request.evaluation {
            Some(evaluation) => self.fail_unclaimed(evaluation),
            None => self.end_if_over(serial),
        }
    }

    /// The slot holds the whole prompt of its task.
    fn settle(&mut self, id: SequenceId) {
        let Some(slot) = self.slots.get(&id) else {
            return;
        };
        let Some(launch) = &slot.launch else {
            return;
        };
        let known = launch.request.filter(|s| self.requests.contains_key(s));
        if let (Some(serial), false) = (known, slot.tokens.is_empty()) {
            self.note_prompt(id, serial);
        }
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.launch.take_if(|launch| !launch.every_output);
        }
    }

    fn note_prompt(&mut self, id: SequenceId, serial: Serial) {
        let length = self.usable(id, serial);
        let slot = self.slots.get_mut(&id).expect("it has a task");
        let launch = slot.launch.as_mut().expect("it has a task");
        let request = self.requests.get_mut(&serial).expect("it is known");
        let prompt = slot.tokens[..length].to_vec();
        let tokens = slot.tokens.len() as u32;
        let first = launch.prompt.is_none();
        if let Some(nth) = launch.prompt {
            request.prompts[nth] = prompt;
        } else {
            launch.prompt = Some(request.prompts.len());
            request.prompts.push(prompt);
        }
        if length == 0 || !self.is_found_whole(serial) {
            self.end(serial, Reason::NeverCached, Place::Nowhere);
        } else if first {
            self.settle_prompt(serial, (id, tokens));
        }
    }

    /// A prompt of a request has been evaluated. `at`: the slot, and the length of the prompt in tokens.
    fn settle_prompt(&mut self, serial: Serial, at: (SequenceId, u32)) {
        let Some(request) = self.requests.get_mut(&serial) else {
            return;
        };
        request.running = request.running.saturating_sub(1);
        if let Some(evaluation) = request.evaluation {
            self.settle_unclaimed(evaluation, at);
        } else if request.complete() {
            let (sequence, tokens) = at;
            self.facts.push(Fact::Cached {
                id: request.id.clone(),
                sequence,
                tokens,
            });
        }
    }

    // ---- silence, reset, lost events and contexts ----------------------

    fn quiet(&mut self, elapsed: Duration) {
        let idle = elapsed >= Duration::from_millis(100) && self.batch.is_none();
        let mut decided = Vec::new();
        for (&id, slot) in &self.slots {
            if slot.left.is_none() && !self.is_unsettled(slot) {
                continue;
            }
            let certain = match &slot.launch {
                None
                | Some(Launch {
                    prompt: Some(_), ..
                }) if slot.is_empty() => elapsed >= Duration::from_millis(10),
                None => idle,
                Some(Launch { request: None, .. }) => idle && elapsed >= Duration::from_secs(1),
                Some(Launch {
                    request: Some(serial),
                    ..
                }) => {
                    let over = |request: &Request| match request.evaluation {
                        Some(_) => elapsed >= Duration::from_secs(1),
                        None => request.answered,
                    };
                    idle && self.requests.get(serial).is_none_or(over)
                }
            };
            if certain {
                let reason = if slot.is_empty() {
                    Reason::Cleared
                } else {
                    Reason::Overwritten
                };
                decided.push((id, reason));
            }
        }
        for (id, reason) in decided {
            self.decide(id, reason);
            self.settle_set(id);
        }
        if idle {
            let over: Vec<Serial> = self
                .requests
                .iter()
                .filter(|(_, request)| request.answered && !request.complete())
                .map(|(&serial, _)| serial)
                .collect();
            for serial in over {
                self.end(serial, Reason::NeverCached, Place::Nowhere);
            }
        }
    }

    fn reset(&mut self) {
        let requests = self.requests.iter();
        let named = requests.filter(|(_, request)| request.evaluation.is_none());
        for serial in named.map(|(&serial, _)| serial).collect::<Vec<_>>() {
            let id = self.requests[&serial].id.clone();
            let place = self.whereabouts(&id).unwrap_or_default().place();
            self.end(serial, Reason::Reset, place);
        }
    }

    fn out_of_step(&mut self) {
        for serial in self.requests.keys().copied().collect::<Vec<_>>() {
            self.end(serial, Reason::OutOfStep, Place::Nowhere);
        }
        let applied = std::mem::take(&mut self.applied).into_keys();
        *self = Self {
            applied: applied.map(|context| (context, None)).collect(),
            named: std::mem::take(&mut self.named),
            contexts: std::mem::take(&mut self.contexts),
            gone: std::mem::take(&mut self.gone),
            uncached: std::mem::take(&mut self.uncached),
            facts: std::mem::take(&mut self.facts),
            posted: self.posted,
            stepped_out: true,
            unheard: true,
            unseen: self.unseen,
            ..Self::default()
        };
    }

    fn free(&mut self, context: ContextId) {
        let primary = self.contexts.first() == Some(&context);
        self.contexts.retain(|&other| other != context);
        self.applied.remove(&context.0);
        if !primary {
            return;
        }
        for id in self.ids_of_slots() {
            self.clear(id, Reason::ContextFreed);
        }
        for (_, slot) in std::mem::take(&mut self.slots) {
            self.abandon(slot.launch);
        }
        while self.buffers.pop_first().is_some() {
            self.lose(Reason::ContextFreed, Place::Host);
        }
        self.batch = None;
        self.unheard = false;
    }

    /// Whether an event of the engine is about the primary context.
    fn is_primary(&mut self, event: &Event) -> bool {
        let context = match *event {
            Event::Submitted { context, .. }
            | Event::Evaluated { context, .. }
            | Event::Removed { context, .. }
            | Event::Kept { context, .. }
            | Event::Copied { context, .. }
            | Event::Shifted { context, .. }
            | Event::Obscured { context, .. }
            | Event::Cleared { context }
            | Event::Saved { context, .. }
            | Event::Restored { context, .. }
            | Event::Replaced { context, .. } => context,
            _ => unreachable!("not an event of the engine"),
        };
        if self.contexts.is_empty() {
            self.contexts.push(context);
        }
        self.contexts[0] == context
    }

    fn ids_of_slots(&self) -> Vec<SequenceId> {
        self.slots.keys().copied().collect()
    }

    /// The slots that an event is about: all if `id` is negative. Without slots that had no event yet.
    fn named(&self, id: SequenceId) -> Vec<SequenceId> {
        let mut all = self.ids_of_slots();
        all.retain(|&slot| id < 0 || slot == id);
        all
    }
}
