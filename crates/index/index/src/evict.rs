//! Changes in the state of requests: cached, evicted, answered.

use std::collections::HashSet;

use serde_json::json;

use crate::piece::{Next, Piece, REQUEST};
use crate::requests::Request;
use crate::{Index, IndexAnswer, Timings, Truth};

/// A `POST /evict` that is being answered.
#[derive(Debug)]
pub(crate) struct Eviction {
    ids: std::vec::IntoIter<String>,
    seen: HashSet<String>,
    normalized: Vec<String>,
    nodes: Vec<u64>,
    evicted: Vec<String>,
    missing: Vec<String>,
    turns: usize,
    /// What is left in the index.
    remaining: (usize, usize),
    done: bool,
}

impl Eviction {
    pub(crate) fn new(ids: Vec<String>) -> Self {
        Self {
            ids: ids.into_iter(),
            seen: HashSet::new(),
            normalized: Vec::new(),
            nodes: Vec::new(),
            evicted: Vec::new(),
            missing: Vec::new(),
            turns: 0,
            remaining: (0, 0),
            done: false,
        }
    }

    pub(crate) fn next(&self) -> Next {
        if self.done { Next::Answer } else { Next::State }
    }

    pub(crate) fn is_small(&self) -> bool {
        self.ids.len() <= 16
    }

    pub(crate) fn answer(self) -> IndexAnswer {
        let (nodes, requests) = self.remaining;
        IndexAnswer::ok(json!({
            "status": "success",
            "conversations_cleared": self.turns,
            "normalized_request_ids": self.normalized,
            "removed_count": self.evicted.len(),
            "evicted_node_ids": self.nodes,
            "evicted_request_ids": self.evicted,
            "not_found": self.missing,
            "nodes_remaining": nodes,
            "requests_remaining": requests,
        }))
    }
}

impl Index {
    pub(crate) fn evict_some(&mut self, job: &mut Eviction, piece: &mut Piece) {
        while !piece.is_full() {
            let Some(id) = job.ids.next() else {
                job.remaining = (self.cached.nodes() + 1, self.requests.len());
                job.done = true;
                return;
            };
            piece.done(REQUEST);
            let id = self.normalize(&id).to_owned();
            if id.is_empty() || id.starts_with("HEALTH_CHECK") || !job.seen.insert(id.clone()) {
                continue;
            }
            let (turns, blocks) = self.end_conversation(&id);
            piece.done(turns + blocks);
            job.turns += turns;
            match self.forget(&id) {
                Some(request) => {
                    piece.done(request.blocks.len());
                    job.nodes.push(request.number);
                    job.evicted.push(id.clone());
                }
                None => job.missing.push(id.clone()),
            }
            job.normalized.push(id);
        }
    }

    /// The original id in an id that an engine derived from it: `cmpl-…`, `chatcmpl-…`, `batch-…`, and `…-0-a1b2c3`.
    fn normalize<'a>(&self, id: &'a str) -> &'a str {
        if self.requests.get(id).is_some() {
            return id;
        }
        let id = ["cmpl-", "chatcmpl-", "batch-"]
            .into_iter()
            .find_map(|prefix| id.strip_prefix(prefix))
            .unwrap_or(id);
        let without = |id: &'a str, part: fn(&str) -> bool| {
            let (rest, last) = id.rsplit_once('-')?;
            part(last).then_some(rest)
        };
        let hex = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let own = without(id, hex).and_then(|id| without(id, digits));
        own.filter(|own| self.requests.get(own).is_some())
            .unwrap_or(id)
    }

    /// Changes the source of what is cached. After a guess, nothing counts as cached.
    pub fn set_truth(&mut self, truth: Truth) {
        let before = std::mem::replace(&mut self.truth, truth);
        if before == Truth::Guess && truth != Truth::Guess {
            self.nothing_cached();
        }
        if before != Truth::Guess && truth == Truth::Guess {
            self.heard = self.requests.cached();
        }
    }

    /// The engine has restarted: nothing is cached.
    pub fn nothing_cached(&mut self) {
        self.cached.clear();
        let ids: Vec<String> = self
            .requests
            .cached_ids()
            .map(|(_, id)| id.to_owned())
            .collect();
        for id in ids {
            self.requests.set_cached(&id, false);
        }
    }

    /// The prompt of a request is cached, and has so many tokens. Unknown ids are ignored.
    pub fn cached(&mut self, id: &str, tokens: u64) {
        if let Some(number) = self.requests.set_cached(id, true) {
            if let Some(request) = self.requests.get(id) {
                self.cached.insert(number, &request.blocks);
            }
        }
        self.requests.set_tokens(id, tokens);
    }

    /// The content of a slot was copied to host memory: so many tokens, with the prompts of these
    /// requests. llama-server loads it for a prompt that has at least a quarter of it. A prefix store, which has it
    /// from then on, loads any part of it.
    pub fn moved_to_host(&mut self, ids: &[String], tokens: u64) {
        if self.has_store() {
            return;
        }
        for id in ids {
            let Some(request) = self.requests.get(id) else {
                continue;
            };
            let quarter = tokens.div_ceil(4);
            let from = self
                .predictor
                .shortest(&request.blocks, quarter, &self.blocks);
            self.cached.usable_from(request.number, from);
        }
    }

    /// It was loaded into a slot.
    pub fn restored(&mut self, ids: &[String]) {
        for id in ids {
            if let Some(request) = self.requests.get(id) {
                self.cached.usable_from(request.number, 0);
            }
        }
    }

    /// The prompt of a request is no longer cached, and nothing is kept of it. Of one that the engine had, call
    /// [`left_engine`](Self::left_engine) instead.
    pub fn evicted(&mut self, id: &str) {
        self.end_conversation(id);
        self.forget(id);
    }

    /// Whether a request is tracked.
    #[must_use]
    pub fn tracks(&self, id: &str) -> bool {
        self.requests.get(id).is_some()
    }

    /// Whether the engine has answered a request that is tracked.
    #[must_use]
    pub fn is_answered(&self, id: &str) -> bool {
        self.requests
            .get(id)
            .is_some_and(|request| request.answered)
    }

    /// All tracked requests, to ask the hook for the state of each.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        self.requests.ids().map(str::to_owned).collect()
    }

    /// The requests that count as cached.
    #[must_use]
    pub fn cached_ids(&self) -> Vec<String> {
        self.requests
            .cached_ids()
            .map(|(_, id)| id.to_owned())
            .collect()
    }

    /// The engine has answered a request, with the number of reused tokens. With a prefix store, which loads tokens that
    /// the engine does not count as reused, call [`finished`](Self::finished) and then [`compare`](Self::compare).
    pub fn completed(&mut self, id: &str, timings: Timings) {
        self.finished(id, timings.prompt);
        self.compare(id, timings.reused);
    }

    /// The engine has answered a request, whose whole prompt has so many tokens.
    pub fn finished(&mut self, id: &str, prompt: Option<u64>) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        request.answered = true;
        if let Some(prompt) = prompt.filter(|_| !request.blocks.is_empty()) {
            self.predictor
                .note_prompt(prompt, &request.blocks, &self.blocks);
        }
        if self.truth == Truth::Guess {
            self.cached(id, prompt.unwrap_or(0));
        }
    }

    /// So many tokens of a request that was answered were reused or loaded. Compares that with the forecast, once.
    pub fn compare(&mut self, id: &str, reused: u64) {
        let Some(request) = self.requests.get_mut(id) else {
            return;
        };
        let Some(expected) = request.expected.take() else {
            return;
        };
        self.errors.note(expected.tokens, reused);
        if expected.whole {
            let length = expected.blocks.min(request.blocks.len());
            let beginning = &request.blocks[..length];
            self.predictor.learn(beginning, reused, &self.blocks);
        }
    }

    /// Stops tracking a request, and frees its memory.
    pub(crate) fn forget(&mut self, id: &str) -> Option<Request> {
        let request = self.take(id)?;
        self.blocks.release_all(&request.blocks, &self.frequency);
        Some(request)
    }

    /// Stops tracking a request, whose blocks stay in use.
    pub(crate) fn take(&mut self, id: &str) -> Option<Request> {
        let request = self.requests.remove(id)?;
        self.cached.remove(request.number);
        self.counters.evictions += 1;
        Some(request)
    }
}
