//! Tracked requests.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use contextpilot_order::Block;

/// A request whose id was handed out.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) number: u64,
    /// In the order in which they were answered.
    pub(crate) blocks: Vec<Block>,
    pub(crate) cached: bool,
    /// The engine has answered it.
    pub(crate) answered: bool,
    /// Its tokens, as its client or the engine said.
    pub(crate) tokens: u64,
    pub(crate) expected: Option<Expected>,
    /// Until when the prefix store keeps all of its blocks, in milliseconds since 1970. 0: like others.
    pub(crate) kept_until: u64,
}

/// The forecast in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Blocks of the prefix.
    pub(crate) blocks: usize,
    /// Tokens of the whole prefix.
    pub(crate) tokens: u64,
    /// All of these blocks are expected to be reused, so the reused tokens say how many tokens they
    /// have.
    pub(crate) whole: bool,
}

/// All of them, by id and in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    by_id: HashMap<String, Request>,
    ids: BTreeMap<u64, String>,
    /// Those that are not known to be cached.
    waiting: BTreeSet<u64>,
    next: u64,
    /// Clients say how many tokens a request has, so that their sum may be beyond 64 bits.
    tokens: u128,
    /// In all of them.
    blocks: usize,
}

impl Requests {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn cached(&self) -> usize {
        self.by_id.len() - self.waiting.len()
    }

    /// The number that the next one gets. Numbers ascend.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// How many blocks all of them have.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// The tokens of all requests.
    pub(crate) fn tokens(&self) -> u64 {
        u64::try_from(self.tokens).unwrap_or(u64::MAX)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.values().map(String::as_str)
    }

    /// Those from a number on.
    pub(crate) fn ids_from(&self, number: u64) -> impl Iterator<Item = (u64, &str)> {
        let ids = self.ids.range(number..);
        ids.map(|(number, id)| (*number, id.as_str()))
    }

    pub(crate) fn cached_ids(&self) -> impl DoubleEndedIterator<Item = (u64, &str)> {
        self.ids
            .iter()
            .filter(|(number, _)| !self.waiting.contains(number))
            .map(|(number, id)| (*number, id.as_str()))
    }

    pub(crate) fn id(&self, number: u64) -> Option<&str> {
        self.ids.get(&number).map(String::as_str)
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Request> {
        self.by_id.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &str) -> Option<&mut Request> {
        self.by_id.get_mut(id)
    }

    /// A new one, not known to be cached.
    pub(crate) fn add(&mut self, id: String, blocks: Vec<Block>, tokens: u64) -> u64 {
        let number = self.next;
        self.next += 1;
        self.tokens += u128::from(tokens);
        self.blocks += blocks.len();
        self.waiting.insert(number);
        self.ids.insert(number, id.clone());
        let request = Request {
            number,
            blocks,
            cached: false,
            answered: false,
            tokens,
            expected: None,
            kept_until: 0,
        };
        self.by_id.insert(id, request);
        number
    }

    /// Its number, if its state has changed.
    pub(crate) fn set_cached(&mut self, id: &str, cached: bool) -> Option<u64> {
        let request = self.by_id.get_mut(id)?;
        if request.cached == cached {
            return None;
        }
        request.cached = cached;
        if cached {
            self.waiting.remove(&request.number);
        } else {
            self.waiting.insert(request.number);
        }
        Some(request.number)
    }

    pub(crate) fn set_tokens(&mut self, id: &str, tokens: u64) {
        if let Some(request) = self.by_id.get_mut(id) {
            self.tokens = self.tokens - u128::from(request.tokens) + u128::from(tokens);
            request.tokens = tokens;
        }
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<Request> {
        let request = self.by_id.remove(id)?;
        self.ids.remove(&request.number);
        self.waiting.remove(&request.number);
        self.tokens -= u128::from(request.tokens);
        self.blocks -= request.blocks.len();
        Some(request)
    }

    /// The order in which the blocks of a request are answered has changed.
    pub(crate) fn reorder(&mut self, id: &str, blocks: Vec<Block>) {
        if let Some(request) = self.by_id.get_mut(id) {
            debug_assert_eq!(request.blocks.len(), blocks.len());
            request.blocks = blocks;
        }
    }

    /// The oldest that is not known to be cached, if it came before this number.
    pub(crate) fn oldest_waiting(&self, before: u64) -> Option<String> {
        let number = self.waiting.first().filter(|number| **number < before)?;
        self.ids.get(number).cloned()
    }

    /// The oldest of all, if it came before this number.
    pub(crate) fn oldest(&self, before: u64) -> Option<String> {
        let (number, id) = self.ids.first_key_value()?;
        (*number < before).then(|| id.clone())
    }
}
