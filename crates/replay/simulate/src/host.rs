//! The host prompt cache (`server_prompt_cache`).

use std::collections::VecDeque;

use crate::alike::Alike;
use crate::checkpoints::{Checkpoint, Evaluated};
use crate::content::Content;
use crate::setting::{Generation, Setting};
use crate::sizes::Sizes;
use crate::window::Kept;

/// The tokens and checkpoints of a slot, or of an entry of the host prompt cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prompt {
    pub(crate) content: Content,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// What the prefix store knows of the tokens. Only of meaning in an entry.
    pub(crate) known: Option<Evaluated>,
}

impl Prompt {
    /// Forgets the tokens, and in later generations the checkpoints (`prompt_clear`).
    pub(crate) fn forget(&mut self, generation: Generation) {
        self.content.clear();
        if generation.clears_checkpoints() {
            self.checkpoints.clear();
        }
    }
}

/// An entry.
#[derive(Debug)]
struct State {
    /// Of two entries the later one has the greater number.
    number: u64,
    prompt: Prompt,
    /// The positions that are saved.
    kept: Kept,
    bytes: u64,
}

#[derive(Debug)]
pub(crate) struct HostCache {
    /// Oldest first.
    states: VecDeque<State>,
    bytes: u64,
    tokens: u64,
    /// 0: no limit.
    limit_bytes: u64,
    limit_tokens: u64,
    /// Entries that stay whatever the limits. If this is not 0, limits are applied after saving only.
    least: usize,
    /// How many entries there ever were.
    saved: u64,
    /// The most bytes that it ever held, and the most tokens.
    pub(crate) peak: u64,
    most_tokens: u64,
}

impl HostCache {
    pub(crate) fn with_limit_of(setting: &Setting) -> Option<Self> {
        (setting.cache_ram() != 0).then(|| Self {
            states: VecDeque::new(),
            bytes: 0,
            tokens: 0,
            limit_bytes: u64::try_from(setting.cache_ram()).unwrap_or(0) << 20,
            limit_tokens: u64::from(setting.server.context),
            least: usize::from(setting.generation == Generation::Early2026),
            saved: 0,
            peak: 0,
            most_tokens: 0,
        })
    }

    /// `alloc`, as `prompt_save` calls it. `keep`: returns the positions that the context has. Returns
    /// whether the prompt was saved.
    pub(crate) fn save(
        &mut self,
        prompt: &mut Prompt,
        (sizes, alike): (&Sizes, &Alike),
        keep: impl FnOnce() -> Kept,
    ) -> bool {
        let content = &prompt.content;
        if content.is_empty() || content.in_host.is_some_and(|number| self.has(number)) {
            return false;
        }
        let mut contained = Vec::new();
        for (nth, state) in self.states.iter().enumerate() {
            let held = &state.prompt.content;
            let common = held.common_prefix(content, alike);
            if common == content.len() {
                prompt.content.in_host = Some(state.number);
                return false;
            }
            if common == held.len() {
                contained.push(nth);
            }
        }
        let checkpoints = prompt.checkpoints.iter();
        let bytes = sizes.state(content.len()) + checkpoints.map(|c| c.bytes).sum::<u64>();
        let limits = self.limit_bytes > 0 && self.least == 0;
        if limits && bytes > self.limit_bytes {
            return false;
        }
        for nth in contained.into_iter().rev() {
            self.remove(nth);
        }
        while limits && !self.states.is_empty() && self.bytes + bytes > self.limit_bytes {
            self.remove(0);
        }
        self.bytes += bytes;
        self.tokens += u64::from(content.len());
        self.peak = self.peak.max(self.bytes);
        self.most_tokens = self.most_tokens.max(self.tokens);
        self.saved += 1;
        prompt.content.in_host = Some(self.saved);
        self.states.push_back(State {
            number: self.saved,
            prompt: prompt.clone(),
            kept: keep(),
            bytes,
        });
        true
    }

    /// `load`: takes out the entry that serves a prompt best, if that serves it better than the slot's
    /// own content (`held`).
    pub(crate) fn load(
        &mut self,
        held: &Content,
        prompt: &Content,
        alike: &Alike,
    ) -> Option<(Prompt, Kept)> {
        let share = |part: u32, of: u32| part as f32 / of as f32;
        let common = held.common_prefix(prompt, alike);
        let mut keep = match held.len() {
            0 => -1.0,
            length => share(common, length),
        };
        let mut similarity = share(common, prompt.len());
        let mut best = None;
        for (nth, state) in self.states.iter().enumerate() {
            let common = state.prompt.content.common_prefix(prompt, alike);
            let kept = share(common, state.prompt.content.len());
            let similar = share(common, prompt.len());
            if kept >= 0.25 && keep < kept && similarity < similar {
                (keep, similarity, best) = (kept, similar, Some(nth));
            }
        }
        self.remove(best?).map(|state| (state.prompt, state.kept))
    }

    /// `update`: drops the oldest entries until the limits are kept.
    pub(crate) fn update(&mut self) {
        while self.limit_bytes > 0 && self.bytes > self.limit_bytes && self.drop_oldest() {}
        let per_token = (self.bytes as f32 / self.tokens.max(1) as f32).max(1.0);
        let fitting = (self.limit_bytes as f32 / per_token) as u64;
        let limit = match self.limit_bytes {
            0 => self.limit_tokens,
            _ => self.limit_tokens.max(fitting),
        };
        while limit > 0 && self.tokens > limit && self.drop_oldest() {}
    }

    /// With a limit of so many bytes, and no less, it would hold the same: what is larger than the limit it has is not held
    /// with a smaller one, either. A token counts as a byte at least, and the server divides roughly.
    pub(crate) fn needs(&self) -> u64 {
        let most = self.peak.max(self.most_tokens);
        most + (most >> 16) + 1
    }

    /// Drops all entries.
    pub(crate) fn clear(&mut self) {
        self.states.clear();
        (self.bytes, self.tokens) = (0, 0);
    }

    /// Returns false if there is no entry that may be dropped.
    fn drop_oldest(&mut self) -> bool {
        self.states.len() > self.least && self.remove(0).is_some()
    }

    fn has(&self, number: u64) -> bool {
        let found = self
            .states
            .binary_search_by_key(&number, |state| state.number);
        found.is_ok()
    }

    fn remove(&mut self, nth: usize) -> Option<State> {
        let state = self.states.remove(nth)?;
        self.bytes -= state.bytes;
        self.tokens -= u64::from(state.prompt.content.len());
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use contextpilot_traffic::{SizeKind, SizeSample};

    use super::*;
    use crate::made::row;

    /// Of these runs, each of a token and how many follow.
    fn prompt(runs: &[(u64, u32)]) -> Prompt {
        let row = row(runs);
        let length = row.len();
        Prompt {
            content: Content::new(Arc::new(row), length),
            ..Prompt::default()
        }
    }

    /// Of a byte a token.
    fn sizes() -> Sizes {
        Sizes::new(&[SizeSample {
            kind: SizeKind::State,
            tokens: 1,
            bytes: 1,
        }])
    }

    fn saved(cache: &mut HostCache, runs: &[(u64, u32)]) -> bool {
        cache.save(
            &mut prompt(runs),
            (&sizes(), &Alike::default()),
            Kept::default,
        )
    }

    fn lengths(cache: &HostCache) -> Vec<u32> {
        let states = cache.states.iter();
        states.map(|state| state.prompt.content.len()).collect()
    }

    fn cache(limit_bytes: u64) -> HostCache {
        HostCache {
            states: VecDeque::new(),
            bytes: 0,
            tokens: 0,
            limit_bytes,
            limit_tokens: 0,
            least: 0,
            saved: 0,
            peak: 0,
            most_tokens: 0,
        }
    }

    /// What the server's `alloc` does: entries that the new one begins with are removed, wherever they are, and what is the
    /// beginning of an entry is not saved.
    #[test]
    fn an_entry_takes_the_place_of_those_that_it_begins_with() {
        let mut cache = cache(1000);
        for runs in [
            &[(0, 10)][..],
            &[(500, 30)],
            &[(0, 20)],
            &[(0, 5), (900, 5)],
        ] {
            assert!(saved(&mut cache, runs));
        }
        assert_eq!(lengths(&cache), [30, 20, 10]);
        assert!(!saved(&mut cache, &[(500, 30)]), "it is there");
        assert!(!saved(&mut cache, &[(0, 15)]), "it is part of one");
        assert!(saved(&mut cache, &[(0, 40)]));
        assert_eq!(lengths(&cache), [30, 10, 40]);
        assert_eq!((cache.bytes, cache.tokens), (80, 80));
    }

    /// A slot's content is in the cache for as long as nothing has left it.
    #[test]
    fn what_was_saved_is_saved_again_once_it_has_left() {
        let mut cache = cache(1000);
        let mut slot = prompt(&[(0, 10)]);
        let save = |cache: &mut HostCache, slot: &mut Prompt| {
            cache.save(slot, (&sizes(), &Alike::default()), Kept::default)
        };
        assert!(save(&mut cache, &mut slot));
        assert!(!save(&mut cache, &mut slot), "it is there");
        assert!(saved(&mut cache, &[(0, 20)]));
        assert!(!save(&mut cache, &mut slot), "another one begins with it");
        let asked = prompt(&[(0, 20)]).content;
        let taken = cache.load(&Content::default(), &asked, &Alike::default());
        assert!(taken.is_some());
        assert!(save(&mut cache, &mut slot));
        cache.clear();
        assert!(save(&mut cache, &mut slot));
    }

    /// What makes room is what is contained, before the oldest is dropped.
    #[test]
    fn what_is_contained_makes_room_first() {
        let mut cache = cache(100);
        assert!(saved(&mut cache, &[(500, 40)]));
        assert!(saved(&mut cache, &[(0, 50)]));
        assert!(saved(&mut cache, &[(0, 60)]));
        assert_eq!(lengths(&cache), [40, 60]);
        // Too large: nothing is removed for it.
        assert!(!saved(&mut cache, &[(0, 101)]));
        assert_eq!(lengths(&cache), [40, 60]);
    }
}
