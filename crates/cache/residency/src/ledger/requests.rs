//! Requests on their way: a task is launched in a slot, and the request gets a mark where its prompt
//! ends once the prompt has been evaluated.

use super::{Ledger, MOST_LIVE};
use crate::adapters::Named;
use crate::fact::{Fact, Place, Reason};
use crate::ids::{Arrival, RequestId, SequenceId, TaskId};
use crate::requests::{Label, MarkKind, Posted, Remainder, RequestKey};
use crate::sequence::Launch;
use crate::tree::{Holder, Mark};

impl Ledger {
    pub(super) fn posted(
        &mut self,
        arrival: Arrival,
        task: TaskId,
        id: Option<RequestId>,
        facts: &mut Vec<Fact>,
    ) {
        if let Some(jobs) = &mut self.jobs {
            jobs.posted(arrival, task, id.as_ref(), facts);
        }
        let Some(id) = id else { return };
        if let Posted::New { superseded } = self.requests.post(arrival, task, &id) {
            if let Some(name) = superseded {
                self.forget(name);
            }
            facts.push(Fact::Awaited { id });
        }
        self.stay_within_bounds(facts);
    }

    /// Gives up the oldest requests while there are too many of them, or of their prompts.
    fn stay_within_bounds(&mut self, facts: &mut Vec<Fact>) {
        while let Some(oldest) = self.requests.beyond(MOST_LIVE) {
            self.give_up(oldest, Reason::TooMany, facts);
            if self.requests.get(oldest).is_some() {
                // It could not be removed: better one too many than a loop without an end.
                return;
            }
        }
    }

    pub(super) fn answered(
        &mut self,
        arrival: Arrival,
        id: Option<RequestId>,
        facts: &mut Vec<Fact>,
    ) {
        if let Some(jobs) = &mut self.jobs {
            jobs.answered(arrival, id.as_ref(), facts);
        }
        let Some(id) = id else { return };
        match self.requests.find_arrival(&id, arrival) {
            Some(name) => {
                if let Some(request) = self.requests.get_mut(name) {
                    request.answered = true;
                }
                self.end_if_over(name, facts);
            }
            // Its request was evicted already, or another request with this id took its place.
            None if self.requests.answered_late(arrival) => {}
            // Rejected before it became a task. An older request with this
            // id may well be cached.
            None if self.requests.find(&id).is_none() => facts.push(Fact::Evicted {
                id,
                reason: Reason::NeverCached,
                place: Place::Nowhere,
                by: None,
            }),
            None => {}
        }
    }

    pub(super) fn launched(&mut self, id: SequenceId, task: TaskId, facts: &mut Vec<Fact>) {
        if let Some(jobs) = &mut self.jobs {
            jobs.launched(id, task, None, facts);
        }
        self.launches = true;
        let mut request = self.requests.launch(task);
        let forgotten = self
            .requests
            .take_uncached(task)
            .then(|| self.gap.next_unseen());
        if forgotten.is_some() {
            if let Some(name) = request.take() {
                self.end(name, Reason::NeverCached, Place::Nowhere, facts);
            }
        }
        let named = self.adapters.take_named(task);
        self.begin(id, request, forgotten, named, facts);
    }

    /// A slot took a task. `request`: its request, if that has an id and may be cached.
    pub(super) fn begin(
        &mut self,
        id: SequenceId,
        request: Option<RequestKey>,
        forgotten: Option<u32>,
        named: Option<Named>,
        facts: &mut Vec<Fact>,
    ) {
        self.reaches.launched(id);
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
        self.adapt_to_launch(id, named, before.as_ref(), facts);
        self.abandon(before, facts);
    }

    /// A task lost its slot before its prompt was evaluated.
    pub(super) fn abandon(&mut self, launch: Option<Launch>, facts: &mut Vec<Fact>) {
        let Some(launch) = launch else { return };
        let Some(name) = launch.request else { return };
        if launch.mark.is_none() {
            self.fail(name, facts);
        }
    }

    /// A task of a request was launched, and its prompt will not be evaluated.
    pub(super) fn fail(&mut self, name: RequestKey, facts: &mut Vec<Fact>) {
        if let Some(request) = self.requests.get_mut(name) {
            request.running = request.running.saturating_sub(1);
            request.failed = true;
            if let Some(evaluation) = request.evaluation {
                self.fail_unclaimed(evaluation, facts);
                return;
            }
        }
        self.end_if_over(name, facts);
    }

    pub(super) fn end_if_over(&mut self, name: RequestKey, facts: &mut Vec<Fact>) {
        if self.requests.is_over(name) {
            self.end(name, Reason::NeverCached, Place::Nowhere, facts);
        }
    }

    /// The prompt of a slot's task has been evaluated. It ends where the sequence ends now.
    pub(super) fn mark_cached(&mut self, id: SequenceId, facts: &mut Vec<Fact>) {
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
        let is_known = name.is_some_and(|name| self.requests.get(name).is_some());
        // An embedding task goes on, and its prompt may have been removed before this batch ended.
        let named = if depth > 0 && is_known {
            launch.named.take()
        } else {
            None
        };
        if !every_output {
            sequence.launch = None;
        }
        let Some(name) = name.filter(|_| depth > 0 && is_known) else {
            return;
        };
        let end = self.reusable(id, name, named);
        match marked {
            // The prompt of an embedding task went on in another batch: its end moved.
            Some(nth) => self.move_mark(id, name, nth, holder, end),
            None => self.set_mark(id, name, holder, end),
        }
        if end == 0 || !self.is_wholly_served(name) {
            // The server would reuse nothing of this prompt.
            self.end(name, Reason::NeverCached, Place::Nowhere, facts);
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
            self.settle_unclaimed(evaluation, id, depth, facts);
        } else if complete {
            facts.push(Fact::Cached {
                id: request.id.clone(),
                sequence: id,
                tokens: depth,
            });
        }
    }

    /// Marks where a prompt of a request ends, in a slot.
    fn set_mark(&mut self, id: SequenceId, name: RequestKey, holder: Holder, end: u32) {
        let Some(request) = self.requests.get(name) else {
            return;
        };
        let nth = request.marks().len();
        let (mark, remainder) = self.mark_prompt(name, nth, holder, end);
        self.requests.push_mark(name, mark, remainder);
        self.watch(id, name, nth, self.prompt_up_to(holder, end));
        let sequence = self.sequences.get_mut(&id);
        // Only an embedding task still has its launch.
        if let Some(launch) = sequence.and_then(|sequence| sequence.launch.as_mut()) {
            launch.mark = Some(nth);
        }
    }

    /// The prompt of an embedding task goes on to here.
    fn move_mark(
        &mut self,
        id: SequenceId,
        name: RequestKey,
        nth: usize,
        holder: Holder,
        end: u32,
    ) {
        let request = self.requests.get(name);
        if request.and_then(|request| request.mark(nth)).is_none() {
            return;
        }
        let (mark, remainder) = self.mark_prompt(name, nth, holder, end);
        let request = self.requests.get_mut(name);
        let before = request.map(|request| request.replace_marks(nth, mark, remainder));
        for mark in before.into_iter().flatten().flatten() {
            self.tree.unmark(mark);
        }
        self.watch(id, name, nth, self.prompt_up_to(holder, end));
    }

    /// How many tokens the server compares of a prompt that a slot holds, and that it can reuse up to `end`. Those
    /// behind do not matter: it always evaluates one token more.
    fn prompt_up_to(&self, holder: Holder, end: u32) -> u32 {
        (end + 1).min(self.tree.depth(holder))
    }

    /// Sets the marks of a prompt that a slot holds.
    fn mark_prompt(
        &mut self,
        request: RequestKey,
        nth: usize,
        holder: Holder,
        end: u32,
    ) -> (Mark, Option<Remainder>) {
        let label = |kind| Label::new(request, nth, kind);
        let prompt = self.prompt_up_to(holder, end);
        let Some((enough, tokens)) = self.remainder_of(holder, prompt) else {
            return (self.tree.mark(holder, end, label(MarkKind::Whole)), None);
        };
        let mark = self.tree.mark(holder, enough, label(MarkKind::Enough));
        let end = Some(self.tree.mark(holder, end, label(MarkKind::End)));
        (mark, Some(Remainder { end, tokens }))
    }
}
