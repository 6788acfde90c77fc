//! The prompts that have left the engine, by when they were used and until when the prefix store keeps them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use contextpilot_order::{Block, Cached};

/// A prompt that has left the engine.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) id: String,
    /// Those of its documents that the store may have.
    pub(crate) blocks: Vec<Block>,
    /// When it was used last, as a number that ascends.
    used: u64,
    /// The hook does not remember it, as an earlier process of the server had it: nothing can be asked about it.
    pub(crate) is_earlier: bool,
    /// Until when the store keeps all of these, in milliseconds since 1970. 0: like others.
    pub(crate) kept_until: u64,
}

/// Prompts that the store is as sure to have as each other.
#[derive(Debug, Default)]
pub(crate) struct PromptGroup {
    pub(crate) cached: Cached,
    /// The least recently used first.
    by_use: BTreeMap<u64, u64>,
}

/// All of them, by the numbers that they had as requests.
#[derive(Debug, Default)]
pub(crate) struct StoredTier {
    pub(crate) prompts: HashMap<u64, Prompt>,
    pub(crate) kept: PromptGroup,
    pub(crate) others: PromptGroup,
    /// The kept ones, by the time until which they are.
    ends: BTreeSet<(u64, u64)>,
    uses: u64,
    /// In all of them.
    blocks: usize,
    /// The last answers of the hook did not say what the store has: it may have nothing for this server.
    pub(crate) silent: bool,
}

impl StoredTier {
    pub(crate) fn len(&self) -> usize {
        self.prompts.len()
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn id(&self, number: u64) -> Option<&str> {
        self.prompts.get(&number).map(|prompt| prompt.id.as_str())
    }

    /// How many of them the store keeps on request.
    pub(crate) fn kept(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn add(&mut self, number: u64, id: String, blocks: Vec<Block>, kept_until: u64) {
        self.blocks += blocks.len();
        self.uses += 1;
        let prompt = Prompt {
            id,
            blocks,
            used: self.uses,
            is_earlier: false,
            kept_until,
        };
        self.put(number, prompt);
    }

    fn put(&mut self, number: u64, prompt: Prompt) {
        let group = match prompt.kept_until {
            0 => &mut self.others,
            until => {
                self.ends.insert((until, number));
                &mut self.kept
            }
        };
        group.cached.insert(number, &prompt.blocks);
        group.by_use.insert(prompt.used, number);
        self.prompts.insert(number, prompt);
    }

    fn take(&mut self, number: u64) -> Option<Prompt> {
        let prompt = self.prompts.remove(&number)?;
        let group = match prompt.kept_until {
            0 => &mut self.others,
            until => {
                self.ends.remove(&(until, number));
                &mut self.kept
            }
        };
        group.cached.remove(number);
        group.by_use.remove(&prompt.used);
        Some(prompt)
    }

    /// Changes a prompt.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Prompt)) {
        if let Some(mut prompt) = self.take(number) {
            change(&mut prompt);
            self.put(number, prompt);
        }
    }

    /// It was used now.
    pub(crate) fn touch(&mut self, number: u64) {
        self.uses += 1;
        let uses = self.uses;
        self.change(number, |prompt| prompt.used = uses);
    }

    /// The store keeps it until then; 0: no longer.
    pub(crate) fn keep(&mut self, number: u64, until: u64) {
        let known = self.prompts.get(&number).map(|prompt| prompt.kept_until);
        if known.is_some_and(|known| known != until) {
            self.change(number, |prompt| prompt.kept_until = until);
        }
    }

    /// What was kept until now is like the others.
    pub(crate) fn expire(&mut self, now: u64) {
        while let Some((_, number)) = self.ends.first().filter(|(until, _)| *until <= now) {
            self.keep(*number, 0);
        }
    }

    /// The last one with exactly these blocks.
    pub(crate) fn equal(&self, blocks: &[Block]) -> Option<u64> {
        let kept = self.kept.cached.prompt_of(blocks);
        kept.or_else(|| self.others.cached.prompt_of(blocks))
    }

    /// Returns its blocks.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Vec<Block>> {
        let prompt = self.take(number)?;
        self.blocks -= prompt.blocks.len();
        Some(prompt.blocks)
    }

    /// Keeps only the first `length` of its blocks. Returns the others.
    pub(crate) fn shorten(&mut self, number: u64, length: usize) -> Vec<Block> {
        let mut lost = Vec::new();
        self.change(number, |prompt| {
            lost = prompt.blocks.split_off(length.min(prompt.blocks.len()));
        });
        self.blocks -= lost.len();
        lost
    }

    /// The one that is forgotten first.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let mut groups = [&self.others, &self.kept].into_iter();
        groups.find_map(|group| group.by_use.values().next().copied())
    }
}
