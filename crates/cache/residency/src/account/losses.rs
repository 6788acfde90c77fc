//! Losses of tokens, and who asked for which prompt. Both are numbered, and only the latest are kept.

use super::past::{End, LossId, Nth};
use super::types::{Loss, Taking, Through};
use crate::fact::Asker;
use crate::fact::Reason;
use std::collections::VecDeque;

/// How many losses are remembered, and of how many prompts it is remembered who asked for them.
pub const MOST: usize = 16_384;
/// The most bytes that one loss and one prompt take together, without an id: just after the lists
/// have doubled.
pub const EACH: usize = 2 * (size_of::<Entry>() + size_of::<Prompt>() + size_of::<u64>());

/// A loss as it is stored.
#[derive(Clone, Copy, Debug)]
struct Entry {
    at_unix_ms: u64,
    reason: Reason,
    by: Option<Nth>,
    through: Option<Through>,
}

/// What is known of a prompt.
#[derive(Debug)]
struct Prompt {
    asker: Asker,
    /// Where it ends in the past, once it is recorded.
    end: Option<End>,
    taking: Option<Taking>,
    /// It was given up, and so many before it were that began like this.
    given_up: Option<u32>,
    /// The earlier prompt that it had the most in common with, and how many tokens. 0: there is none.
    from: Nth,
    common: u32,
}

/// A numbered list that drops its oldest entries.
#[derive(Debug)]
struct Numbered<T> {
    entries: VecDeque<T>,
    /// The number of the first of them.
    first: u64,
}

impl<T> Numbered<T> {
    fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            first: 1,
        }
    }

    fn push(&mut self, entry: T) -> u64 {
        if self.entries.len() == MOST {
            self.entries.pop_front();
            self.first += 1;
        }
        self.entries.push_back(entry);
        self.first + self.entries.len() as u64 - 1
    }

    fn get(&self, number: u64) -> Option<&T> {
        let place = number.checked_sub(self.first)?;
        self.entries.get(usize::try_from(place).ok()?)
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let place = number.checked_sub(self.first)?;
        self.entries.get_mut(usize::try_from(place).ok()?)
    }
}

/// What was lost, when, why, and for which prompt.
#[derive(Debug)]
pub(super) struct Losses {
    all: Numbered<Entry>,
    prompts: Numbered<Prompt>,
    /// Losses since the last batch. They may be for a prompt that is not launched yet.
    unclaimed: Vec<LossId>,
}

impl Losses {
    pub(super) fn new() -> Self {
        Self {
            all: Numbered::new(),
            prompts: Numbered::new(),
            unclaimed: Vec::new(),
        }
    }

    /// Numbers a prompt.
    pub(super) fn ask(&mut self, asker: Asker) -> Nth {
        self.prompts.push(Prompt {
            asker,
            end: None,
            taking: None,
            given_up: None,
            from: 0,
            common: 0,
        })
    }

    /// It became known who asked for a prompt.
    pub(super) fn name(&mut self, nth: Nth, asker: Asker) {
        if let Some(prompt) = self.prompts.get_mut(nth) {
            prompt.asker = asker;
        }
    }

    /// Notes where a recorded prompt ends in the past.
    pub(super) fn place(&mut self, nth: Nth, end: End) {
        if let Some(prompt) = self.prompts.get_mut(nth) {
            prompt.end = Some(end);
        }
    }

    /// Notes that a prompt begins with so many tokens of an earlier one and its answer.
    pub(super) fn follow(&mut self, nth: Nth, from: Nth, common: u32) {
        if let Some(prompt) = self.prompts.get_mut(nth) {
            (prompt.from, prompt.common) = (from, common);
        }
    }

    /// Whether the token at this place of a prompt was generated for one before it, so that it had come back.
    pub(super) fn came_back(&self, mut nth: Nth, at: u32) -> bool {
        /// Turns of a conversation that are followed.
        const MOST: usize = 1000;
        for _ in 0..MOST {
            let prompt = self.prompts.get(nth);
            let Some(prompt) = prompt.filter(|prompt| at < prompt.common) else {
                return false;
            };
            if self.end(prompt.from).is_some_and(|end| end.depth() <= at) {
                return true;
            }
            nth = prompt.from;
        }
        false
    }

    /// Notes how a prompt came into its slot.
    pub(super) fn take(&mut self, nth: Nth, taking: Option<Taking>) {
        if let Some(prompt) = self.prompts.get_mut(nth) {
            prompt.taking = taking;
        }
    }

    /// Notes that a prompt was given up, after so many others.
    pub(super) fn give_up(&mut self, nth: Nth, attempts: u32) {
        if let Some(prompt) = self.prompts.get_mut(nth) {
            prompt.given_up = Some(attempts);
        }
    }

    /// How many prompts were given up one after the other, up to this one.
    pub(super) fn attempts(&self, nth: Nth) -> u32 {
        let given_up = self.prompts.get(nth).and_then(|prompt| prompt.given_up);
        given_up.map_or(0, |before| before.saturating_add(1))
    }

    pub(super) fn asker(&self, nth: Nth) -> Option<Asker> {
        self.prompts.get(nth).map(|prompt| prompt.asker.clone())
    }

    /// The number of the last prompt.
    pub(super) fn last(&self) -> Nth {
        self.prompts.first + self.prompts.entries.len() as u64 - 1
    }

    pub(super) fn end(&self, nth: Nth) -> Option<End> {
        self.prompts.get(nth)?.end
    }

    pub(super) fn note(&mut self, at_unix_ms: u64, reason: Reason, by: Option<Nth>) -> LossId {
        self.note_entry(at_unix_ms, reason, by, None)
    }

    /// Notes a loss for no prompt.
    pub(super) fn note_through(
        &mut self,
        at_unix_ms: u64,
        reason: Reason,
        through: Through,
    ) -> LossId {
        self.note_entry(at_unix_ms, reason, None, Some(through))
    }

    fn note_entry(
        &mut self,
        at_unix_ms: u64,
        reason: Reason,
        by: Option<Nth>,
        through: Option<Through>,
    ) -> LossId {
        self.all.push(Entry {
            at_unix_ms,
            reason,
            by,
            through,
        })
    }

    /// Notes a loss whose prompt may be launched next: the server makes room in a slot before it
    /// launches the prompt there.
    pub(super) fn note_unclaimed(&mut self, at_unix_ms: u64, reason: Reason) -> LossId {
        let id = self.note(at_unix_ms, reason, None);
        if self.unclaimed.len() < MOST {
            self.unclaimed.push(id);
        }
        id
    }

    /// A prompt was launched: what was lost since the last batch was lost for it.
    pub(super) fn claim(&mut self, nth: Nth) {
        for id in std::mem::take(&mut self.unclaimed) {
            if let Some(entry) = self.all.get_mut(id) {
                entry.by = Some(nth);
            }
        }
    }

    pub(super) fn unclaim(&mut self) {
        self.unclaimed.clear();
    }

    /// A loss of so many tokens.
    pub(super) fn get(&self, id: LossId, tokens: u32) -> Option<Loss> {
        let entry = self.all.get(id)?;
        Some(Loss {
            at_unix_ms: entry.at_unix_ms,
            reason: entry.reason,
            by: entry.by.and_then(|nth| self.asker(nth)),
            through: entry.through,
            tokens,
            taking: entry.by.and_then(|nth| self.prompts.get(nth)?.taking),
        })
    }

    /// Whether a prompt took the place of these tokens. What was cleared between two batches counts as
    /// lost for the next prompt, too, but a client may have erased it.
    pub(super) fn is_overwritten_by(&self, id: LossId, nth: Nth) -> bool {
        let entry = self.all.get(id);
        entry.is_some_and(|entry| entry.by == Some(nth) && entry.reason != Reason::Cleared)
    }
}
