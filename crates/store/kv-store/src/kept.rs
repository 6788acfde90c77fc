//! Chunks that are kept for a while on request: they leave last.
//!
//! What is asked for is a prompt, up to the chunk that it ends in. All that this chunk continues stays with it, as ever. What
//! is kept may take a share of the budget, and no more is promised: so who keeps everything takes nothing from others below
//! what is left of it.

use std::collections::BTreeMap;

use crate::Name;
use crate::slab::Key;

/// What is kept may take one part of the budget in so many.
pub const KEPT_SHARE: u64 = 4;

/// Prompts that are kept at the same time.
pub const MOST_KEPT: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The chunks in which kept prompts end, and until when they are kept.
    ends: BTreeMap<Name, u64>,
    /// All chunks that are kept, and until when: how many of these prompts they are a part of.
    chunks: BTreeMap<(Key, u64), u32>,
    weight: Weight,
}

/// What a chunk takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weight {
    pub(crate) bytes: u64,
    pub(crate) tokens: usize,
}

impl Kept {
    /// What all takes that is kept.
    pub(crate) fn weight(&self) -> Weight {
        self.weight
    }

    pub(crate) fn has(&self, key: Key) -> bool {
        self.chunk_until(key).is_some()
    }

    /// Until when a chunk is kept, for the prompt that asks for the longest.
    pub(crate) fn chunk_until(&self, key: Key) -> Option<u64> {
        let all = self.chunks.range((key, 0)..=(key, u64::MAX));
        all.last().map(|((_, until), _)| *until)
    }

    pub(crate) fn until(&self, end: &Name) -> Option<u64> {
        self.ends.get(end).copied()
    }

    pub(crate) fn ends(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.ends.iter().map(|(name, until)| (name, *until))
    }

    /// The prompts that need not be kept any more.
    pub(crate) fn over(&self, now: u64) -> Vec<Name> {
        let over = self.ends.iter().filter(|(_, until)| **until <= now);
        over.map(|(name, _)| *name).collect()
    }

    /// Keeps a prompt, whose chunks these are. False if that is too much.
    pub(crate) fn add(
        &mut self,
        end: Name,
        until: u64,
        path: &[(Key, Weight)],
        most_bytes: u64,
    ) -> bool {
        if let Some(before) = self.ends.insert(end, until) {
            self.enter(path, until);
            self.leave(path, before);
            return true;
        }
        let mut all = self.weight;
        for (_, weight) in path.iter().filter(|(key, _)| !self.has(*key)) {
            all.bytes = all.bytes.saturating_add(weight.bytes);
            all.tokens += weight.tokens;
        }
        if self.ends.len() > MOST_KEPT || all.bytes > most_bytes {
            self.ends.remove(&end);
            return false;
        }
        self.enter(path, until);
        true
    }

    /// Keeps a prompt no longer, whose chunks these are.
    pub(crate) fn remove(&mut self, end: &Name, path: &[(Key, Weight)]) {
        if let Some(until) = self.ends.remove(end) {
            self.leave(path, until);
        }
    }

    fn enter(&mut self, path: &[(Key, Weight)], until: u64) {
        for (key, weight) in path {
            if !self.has(*key) {
                self.weight.bytes = self.weight.bytes.saturating_add(weight.bytes);
                self.weight.tokens += weight.tokens;
            }
            *self.chunks.entry((*key, until)).or_default() += 1;
        }
    }

    fn leave(&mut self, path: &[(Key, Weight)], until: u64) {
        for (key, weight) in path {
            let Some(count) = self.chunks.get_mut(&(*key, until)) else {
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.chunks.remove(&(*key, until));
            }
            if !self.has(*key) {
                self.weight.bytes = self.weight.bytes.saturating_sub(weight.bytes);
                self.weight.tokens = self.weight.tokens.saturating_sub(weight.tokens);
            }
        }
    }
}
