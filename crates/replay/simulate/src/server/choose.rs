//! Which slot a request gets, and what is loaded for it from the host prompt cache.

use super::{SimulatedServer, Slot};
use crate::content::Content;
use crate::host::Prompt;
use crate::reuse;
use crate::setting::Generation;

impl SimulatedServer<'_> {
    /// `get_available_slot`. `None`: the request has to wait.
    pub(super) fn choose(&mut self, job: usize) -> Option<usize> {
        let record = &self.request(job).record;
        let prompt = self.content(job, record.prompt);
        let asked = record.id_slot.map(|slot| slot as usize % self.slots.len());
        if asked.is_some_and(|slot| self.slots[slot].job.is_some()) {
            return None;
        }
        let mut chosen = asked;
        let mut replaces = false;
        let threshold = self.setting.server.slot_prompt_similarity;
        // Before mid 2026, a slot that the client asked for is taken without comparing its content.
        let is_taken = match self.setting.generation {
            Generation::Of2025 | Generation::Early2026 => asked.is_some(),
            Generation::Older | Generation::Late2026 => false,
        };
        if threshold != 0.0 && !is_taken {
            let mut best = 0.0;
            for (nth, slot) in self.slots.iter().enumerate() {
                let content = &slot.prompt.content;
                if asked.or(self.forced).is_some_and(|only| only != nth)
                    || slot.job.is_some()
                    || content.is_empty()
                {
                    continue;
                }
                let whole = match self.setting.generation {
                    Generation::Of2025 => content.len(),
                    _ => prompt.len(),
                };
                let common = self.common(slot, &prompt);
                let similarity = common as f32 / whole as f32;
                // Servers of 2025 take the slot with the longest common prefix of those that are similar
                // enough. Later ones take the most similar slot.
                let rank = match self.setting.generation {
                    Generation::Of2025 => common as f32,
                    _ => similarity,
                };
                if rank > best && similarity > threshold {
                    (best, chosen) = (rank, Some(nth));
                }
            }
            if let Some(chosen) = chosen {
                let held = self.slots[chosen].prompt.content.len();
                // An empty slot gives 0/0 here, as in the server: not a number, so it is not replaced.
                replaces = (best * prompt.len() as f32) / (held as f32) < 0.5;
            }
        }
        if chosen.is_none() {
            chosen = self.forced.or_else(|| self.first_idle());
            replaces = chosen.is_some();
        }
        let chosen = chosen?;
        let is_empty = self.slots[chosen].prompt.content.is_empty();
        let keeps_empty = self.setting.generation == Generation::Early2026 && is_empty;
        if replaces && !record.embedding && !keeps_empty {
            self.exchange(chosen, &prompt);
        }
        Some(chosen)
    }

    /// The idle slots, in the order in which they are taken.
    pub(super) fn idle(&self) -> Vec<usize> {
        let mut idle: Vec<usize> = self.all_idle().collect();
        idle.sort_by_key(|&nth| self.turn(nth));
        idle
    }

    /// The one that is taken first.
    pub(super) fn first_idle(&self) -> Option<usize> {
        self.all_idle().min_by_key(|&nth| self.turn(nth))
    }

    fn all_idle(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.slots.len()).filter(|&nth| self.slots[nth].job.is_none())
    }

    /// Idle slots are taken in this order.
    fn turn(&self, nth: usize) -> (bool, i64, isize) {
        let slot = &self.slots[nth];
        let place = nth as isize;
        match self.setting.generation {
            Generation::Of2025 | Generation::Early2026 | Generation::Older => {
                (false, slot.last_used, -place)
            }
            Generation::Late2026 => (!slot.prompt.content.is_empty(), slot.last_used, place),
        }
    }

    /// How many tokens of the prompt a slot could reuse: the common prefix, without parts of media.
    pub(super) fn common(&self, slot: &Slot, prompt: &Content) -> u32 {
        let common = slot.prompt.content.common_prefix(prompt, self.alike);
        reuse::outside_media(common, &slot.media)
    }

    /// Saves a slot's content to the host prompt cache, and loads what serves the prompt better
    /// (`prompt_save`, `prompt_load` and `update`).
    pub(super) fn exchange(&mut self, nth: usize, prompt: &Content) {
        self.save_to_host(nth);
        let Some(host) = &mut self.host else { return };
        let slot = &mut self.slots[nth];
        if let Some((loaded, kept)) = host.load(&slot.prompt.content, prompt, self.alike) {
            slot.prompt = loaded;
            if let Some(store) = &mut self.store {
                let Prompt { content, known, .. } = &slot.prompt;
                store.replaced(nth, content, *known, &mut self.positions);
            }
            self.positions.restore(nth, &kept);
        }
        host.update();
    }

    /// Saves a slot's content to the host prompt cache. Returns whether it was saved.
    fn save_to_host(&mut self, nth: usize) -> bool {
        let Some(host) = &mut self.host else {
            return false;
        };
        let slot = &mut self.slots[nth];
        if let Some(store) = &self.store {
            slot.prompt.known = store.known(nth);
        }
        let is_saved = host.save(&mut slot.prompt, (self.sizes, self.alike), || {
            self.positions.keep(nth)
        });
        if let Some(store) = self.store.as_mut().filter(|_| is_saved) {
            store.saved(nth, &mut self.positions);
        }
        is_saved
    }

    /// Saves the idle slots to the host prompt cache (`--cache-idle-slots`). If slots share the context,
    /// also empties them.
    pub(super) fn save_idle(&mut self) {
        self.save_idle_but(None);
    }

    /// The same, but for one slot that counts as busy although it has no job.
    pub(super) fn save_idle_but(&mut self, working: Option<usize>) {
        if self.host.is_none() || !self.setting.server.cache_idle_slots {
            return;
        }
        for nth in 0..self.slots.len() {
            if self.slots[nth].job.is_some() || working == Some(nth) {
                continue;
            }
            if self.save_to_host(nth) {
                if let Some(host) = &mut self.host {
                    host.update();
                }
            }
            if self.setting.server.kv_unified {
                self.erase(nth);
            }
        }
    }
}
