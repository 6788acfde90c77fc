//! Live requests with an id: which tasks they posted, and where their prompts end in the tree.

use crate::adapters::Wanted;
use crate::ids::{Arrival, EvaluationId, RequestId, TaskId};
use crate::slab::{Key, Slab};
use crate::token::Token;
use crate::tree::Mark;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Names a request. A name of a request that is gone finds nothing: keys of the slab are used
/// again, serial numbers are not. Names are ordered as the requests came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RequestKey {
    serial: u64,
    key: Key,
}

/// What a mark in the tree stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) request: RequestKey,
    /// Index in [`Request::marks`]. A request has fewer marks than [`MOST_LIVE`](crate::MOST_LIVE).
    nth: u32,
    pub(crate) kind: MarkKind,
}

impl Label {
    pub(crate) fn new(request: RequestKey, nth: usize, kind: MarkKind) -> Self {
        let nth = nth as u32;
        Self { request, nth, kind }
    }

    pub(crate) fn nth(self) -> usize {
        self.nth as usize
    }
}

/// What it means when a mark is lost, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkKind {
    /// At the end of the prompt: the request is not cached any more.
    Whole,
    /// In a bounded context, where nine tenths of the prompt end: the same.
    Enough,
    /// In a bounded context, at the end of the prompt: nothing, while the mark at nine tenths stands.
    End,
}

/// What is kept of a prompt whose mark stands before its end.
#[derive(Clone, Debug)]
pub(crate) struct Remainder {
    /// The mark at the end of the prompt. `None`: no slot or host entry holds the whole prompt.
    pub(crate) end: Option<Mark>,
    /// The tokens of the prompt behind the mark that decides.
    pub(crate) tokens: Arc<[Token]>,
}

/// A prompt of a bounded context, of which a slot or host entry must reach back far enough (its witness).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    pub(crate) request: RequestKey,
    /// Which of the request's prompts.
    pub(crate) nth: u32,
    /// How many tokens it has.
    pub(crate) prompt: u32,
    /// How many of these its witness holds, when that was looked at last. `None`: it was not.
    pub(crate) common: Option<u32>,
}

impl Watched {
    pub(crate) fn nth(&self) -> usize {
        self.nth as usize
    }
}

/// A live request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    serial: u64,
    arrival: Arrival,
    /// If set, this is no request but a stand-in for one: it stands for this evaluation until its
    /// request is known. Its id is empty.
    pub(crate) evaluation: Option<EvaluationId>,
    /// Tasks that were posted and not launched yet. There may be very many.
    queued: BTreeSet<TaskId>,
    /// How many tasks were launched and have not had their prompt evaluated yet.
    pub(crate) running: usize,
    /// At least one task was launched.
    launched: bool,
    /// A task ended without its prompt having been evaluated.
    pub(crate) failed: bool,
    /// The server has answered, or the client is gone.
    pub(crate) answered: bool,
    /// Where its evaluated prompts end. `None`: that mark was lost.
    marks: Vec<Option<Mark>>,
    /// The rest of these prompts, where their marks stand before their ends.
    remainders: Vec<Option<Remainder>>,
    /// Which LoRA adapters it wants.
    pub(crate) adapters: Wanted,
}

impl Request {
    /// Every prompt has been evaluated.
    pub(crate) fn is_complete(&self) -> bool {
        self.queued.is_empty() && self.running == 0 && !self.failed && !self.marks.is_empty()
    }

    pub(crate) fn marks(&self) -> &[Option<Mark>] {
        &self.marks
    }

    /// The mark of a prompt that decides whether it is cached.
    pub(crate) fn mark(&self, nth: usize) -> Option<Mark> {
        self.marks.get(nth).copied().flatten()
    }

    /// The rest of a prompt whose mark stands before its end.
    pub(crate) fn remainder(&self, nth: usize) -> Option<&Remainder> {
        self.remainders.get(nth)?.as_ref()
    }

    /// All marks that it has in the tree.
    pub(crate) fn all_marks(&self) -> impl Iterator<Item = Mark> {
        let ends = self
            .remainders
            .iter()
            .flatten()
            .filter_map(|remainder| remainder.end);
        self.marks.iter().flatten().copied().chain(ends)
    }

    /// A mark was lost.
    pub(crate) fn lose_mark(&mut self, nth: usize, kind: MarkKind) {
        match kind {
            MarkKind::Whole | MarkKind::Enough => {
                if let Some(mark) = self.marks.get_mut(nth) {
                    *mark = None;
                }
            }
            MarkKind::End => {
                if let Some(Some(remainder)) = self.remainders.get_mut(nth) {
                    remainder.end = None;
                }
            }
        }
    }

    /// Sets the marks of a prompt. Returns those that it had.
    pub(crate) fn replace_marks(
        &mut self,
        nth: usize,
        mark: Mark,
        remainder: Option<Remainder>,
    ) -> [Option<Mark>; 2] {
        if remainder.is_some() && self.remainders.len() <= nth {
            self.remainders.resize(nth + 1, None);
        }
        let before = match self.remainders.get_mut(nth) {
            Some(place) => std::mem::replace(place, remainder),
            None => None,
        };
        let end = before.and_then(|before| before.end);
        let place = self.marks.get_mut(nth);
        [place.and_then(|place| place.replace(mark)), end]
    }

    /// Prompts that take memory here: those that wait, and those that have been evaluated. The few others are
    /// at work in a slot.
    fn prompts(&self) -> usize {
        self.queued.len() + self.marks.len()
    }
}

/// All live requests.
#[derive(Debug)]
pub(crate) struct Requests {
    requests: Slab<Request>,
    by_id: HashMap<RequestId, Key>,
    /// All requests and stand-ins, in the order in which they came.
    by_age: BTreeSet<RequestKey>,
    by_task: HashMap<TaskId, RequestKey>,
    /// Tasks not launched yet whose prompts the server will forget
    /// ([`Event::Uncached`](crate::Event::Uncached)).
    uncached: BTreeSet<TaskId>,
    /// Requests that are not complete. Ordered, so that equal events give equal facts.
    incomplete: BTreeSet<RequestKey>,
    /// Arrivals whose requests were removed before they were answered: the answer must not count as
    /// a rejection.
    unanswered: HashSet<Arrival>,
    /// The last serial number.
    posted: u64,
    /// How many requests want particular adapters.
    wanting: usize,
    /// [`Request::prompts`] of all requests. One request may have any number.
    prompts: usize,
}

/// What became of a task that was posted.
pub(crate) enum Posted {
    /// The task belongs to a request that is known already.
    Again,
    /// The task is the first one of a new request.
    New {
        /// An older request with the same id.
        superseded: Option<RequestKey>,
    },
}

/// Tasks of [`Event::Uncached`](crate::Event::Uncached) that may wait for a slot. Beyond that, the one
/// with the lowest number is forgotten.
pub const MOST_UNCACHED: usize = 4096;

/// The most bytes that one live request with one prompt takes in these tables, without the bytes of
/// its id: just after the tables have doubled. A further prompt of it takes less, and counts as much.
pub const LIVE_BYTES: usize = {
    let mark = 2 * size_of::<(Label, [Key; 4])>();
    let slab = 2 * size_of::<Request>() + mark;
    // A bounded context may keep a second mark, and what it needs to check both.
    let bounded = mark + size_of::<Option<Remainder>>() + 16 + 2 * size_of::<Watched>();
    let by_id = (size_of::<(RequestId, Key)>() + 1) * 16 / 7;
    let by_age = 2 * size_of::<RequestKey>();
    let by_task = (size_of::<(TaskId, RequestKey)>() + 1) * 16 / 7;
    // The prompt waits or has a mark. A node of the set has room for eleven tasks, which is more than the
    // smallest list of marks.
    let allocation = 11 * size_of::<TaskId>() + size_of::<[usize; 2]>() + 16;
    slab + bounded + by_id + by_age + by_task + allocation
};

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            requests: Slab::new(),
            by_id: HashMap::new(),
            by_age: BTreeSet::new(),
            by_task: HashMap::new(),
            uncached: BTreeSet::new(),
            incomplete: BTreeSet::new(),
            unanswered: HashSet::new(),
            posted: 0,
            wanting: 0,
            prompts: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn get(&self, name: RequestKey) -> Option<&Request> {
        // A stale key may name a hole or a newcomer.
        self.requests
            .get(name.key)
            .filter(|request| request.serial == name.serial)
    }

    pub(crate) fn get_mut(&mut self, name: RequestKey) -> Option<&mut Request> {
        self.requests
            .get_mut(name.key)
            .filter(|request| request.serial == name.serial)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &RequestId> {
        self.by_id.keys()
    }

    /// All requests and stand-ins, in the order in which they came.
    pub(crate) fn live(&self) -> Vec<RequestKey> {
        self.by_age.iter().copied().collect()
    }

    /// The oldest request, if there are more than `most` requests or prompts of them.
    pub(crate) fn beyond(&self, most: usize) -> Option<RequestKey> {
        (self.len().max(self.prompts) > most)
            .then(|| self.by_age.first().copied())
            .flatten()
    }

    /// The live request with this id.
    pub(crate) fn find(&self, id: &str) -> Option<RequestKey> {
        let &key = self.by_id.get(id)?;
        let serial = self.requests[key].serial;
        Some(RequestKey { serial, key })
    }

    /// The live request of this arrival.
    pub(crate) fn find_arrival(&self, id: &str, arrival: Arrival) -> Option<RequestKey> {
        self.find(id)
            .filter(|name| self.requests[name.key].arrival == arrival)
    }

    /// Notes that a request posted a task. If that supersedes an older request with the same id,
    /// the caller must remove the older one: it still has its marks in the tree.
    pub(crate) fn post(&mut self, arrival: Arrival, task: TaskId, id: &RequestId) -> Posted {
        if let Some(name) = self.find_arrival(id, arrival) {
            let is_new = self.requests[name.key].queued.insert(task);
            self.prompts += usize::from(is_new);
            self.by_task.insert(task, name);
            self.incomplete.insert(name);
            return Posted::Again;
        }
        let superseded = self.find(id);
        self.unanswered.remove(&arrival);
        self.posted += 1;
        self.prompts += 1;
        let serial = self.posted;
        let key = self.requests.insert(Request {
            id: id.clone(),
            serial,
            arrival,
            evaluation: None,
            queued: BTreeSet::from([task]),
            running: 0,
            launched: false,
            failed: false,
            answered: false,
            marks: Vec::new(),
            remainders: Vec::new(),
            adapters: Wanted::Any,
        });
        let name = RequestKey { serial, key };
        self.by_id.insert(id.clone(), key);
        self.by_age.insert(name);
        self.by_task.insert(task, name);
        self.incomplete.insert(name);
        Posted::New { superseded }
    }

    /// Adds a stand-in for the request, yet unknown, that an evaluation belongs to.
    pub(crate) fn stand_in(&mut self, evaluation: EvaluationId) -> RequestKey {
        self.posted += 1;
        let serial = self.posted;
        let key = self.requests.insert(Request {
            id: RequestId::from(""),
            serial,
            arrival: Arrival(u64::MAX),
            evaluation: Some(evaluation),
            queued: BTreeSet::new(),
            running: 1,
            launched: true,
            failed: false,
            answered: false,
            marks: Vec::new(),
            remainders: Vec::new(),
            adapters: Wanted::Any,
        });
        let name = RequestKey { serial, key };
        self.by_age.insert(name);
        name
    }

    /// The server will forget the prompt of a task.
    pub(crate) fn uncached(&mut self, task: TaskId) {
        self.uncached.insert(task);
        if self.uncached.len() > MOST_UNCACHED {
            self.uncached.pop_first();
        }
    }

    /// Whether the server will forget the prompt of a task that is launched now.
    pub(crate) fn take_uncached(&mut self, task: TaskId) -> bool {
        self.uncached.remove(&task)
    }

    /// Notes that a task was launched. Returns its request.
    pub(crate) fn launch(&mut self, task: TaskId) -> Option<RequestKey> {
        let name = self.by_task.remove(&task)?;
        let request = self.get_mut(name)?;
        let was_queued = request.queued.remove(&task);
        if request.queued.is_empty() {
            // An empty set may keep a node.
            request.queued = BTreeSet::new();
        }
        request.running += 1;
        request.launched = true;
        self.prompts -= usize::from(was_queued);
        Some(name)
    }

    /// Adds the marks of a prompt to a live request.
    pub(crate) fn push_mark(&mut self, name: RequestKey, mark: Mark, remainder: Option<Remainder>) {
        if let Some(request) = self.get_mut(name) {
            let nth = request.marks.len();
            request.marks.push(None);
            request.replace_marks(nth, mark, remainder);
            self.prompts += 1;
        }
    }

    /// Notes which adapters a request wants. Returns whether it wanted others before.
    pub(crate) fn want(&mut self, name: RequestKey, wanted: Wanted) -> bool {
        let Some(request) = self.get_mut(name) else {
            return false;
        };
        let before = std::mem::replace(&mut request.adapters, wanted);
        self.wanting -= usize::from(before != Wanted::Any);
        self.wanting += usize::from(wanted != Wanted::Any);
        before != wanted
    }

    /// Whether any request wants particular adapters.
    pub(crate) fn want_adapters(&self) -> bool {
        self.wanting > 0
    }

    /// Notes that one prompt of a request has been evaluated. Returns whether it was the last one.
    pub(crate) fn settle(&mut self, name: RequestKey) -> bool {
        let Some(request) = self.get_mut(name) else {
            return false;
        };
        request.running = request.running.saturating_sub(1);
        let complete = request.is_complete();
        if complete {
            self.incomplete.remove(&name);
        }
        complete
    }

    /// Whether a request can no longer become cached: it is answered, and a task of it failed or
    /// none was ever launched.
    pub(crate) fn is_over(&self, name: RequestKey) -> bool {
        self.get(name).is_some_and(|request| {
            request.answered && !request.is_complete() && (request.failed || !request.launched)
        })
    }

    /// Notes that an arrival without a live request is answered. Returns whether it had a live
    /// request before.
    pub(crate) fn answered_late(&mut self, arrival: Arrival) -> bool {
        self.unanswered.remove(&arrival)
    }

    /// Forgets all requests, but not which removed ones are still to be answered.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            uncached: std::mem::take(&mut self.uncached),
            unanswered: std::mem::take(&mut self.unanswered),
            posted: self.posted,
            ..Self::new()
        };
    }

    /// Requests that are answered and not complete.
    pub(crate) fn answered_incomplete(&self) -> impl Iterator<Item = RequestKey> {
        let names = self.incomplete.iter().copied();
        names.filter(|&name| self.get(name).is_some_and(|request| request.answered))
    }

    /// Removes a request. Its [marks](Request::marks) stay in the tree.
    pub(crate) fn remove(&mut self, name: RequestKey) -> Option<Request> {
        self.get(name)?;
        let request = self.requests.remove(name.key);
        self.prompts -= request.prompts();
        self.wanting -= usize::from(request.adapters != Wanted::Any);
        if self.by_id.get(&request.id) == Some(&name.key) {
            self.by_id.remove(&request.id);
        }
        for task in &request.queued {
            // A task number that was used again belongs to a newer request.
            if self.by_task.get(task) == Some(&name) {
                self.by_task.remove(task);
            }
        }
        self.by_age.remove(&name);
        self.incomplete.remove(&name);
        if !request.answered && request.evaluation.is_none() {
            self.unanswered.insert(request.arrival);
        }
        Some(request)
    }
}
