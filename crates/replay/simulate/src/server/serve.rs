//! What a slot does with a request: it reuses, evaluates the prompt, and answers.

use std::sync::Arc;

use contextpilot_traffic::{Applied, Memory, Run, Tokens, TrafficRequest};

use super::{Phase, SimulatedServer, Slot};
use crate::checkpoints::{self, Batch, Taken};
use crate::content::Content;
use crate::point::Outcome;
use crate::reuse;
use crate::setting::Generation;
use crate::store::PrefixStore;

impl SimulatedServer<'_> {
    /// Serves a job in a slot, and its children in theirs (`launch_slot_with_task`, `pre_decode`): what the slots hold
    /// when it is done. When that is, the turns of the server say.
    pub(super) fn serve(&mut self, nth: usize, job: usize, children: &[usize]) {
        let request = self.request(job);
        let record = &request.record;
        if record.names_adapters && !keeps_for(self.slots[nth].adapters, record.adapters) {
            self.slots[nth].prompt.forget(self.setting.generation);
        }
        self.slots[nth].adapters = record.adapters;
        self.at_work[job] = 1 + children.len();
        if record.prompt >= self.setting.server.slot_context {
            for slot in children.iter().copied().chain([nth]) {
                self.slots[slot].phase = Phase::Answer { left: 0, step: 0 };
            }
            return;
        }
        let reused = self.reuse(nth, job);
        self.spared += u64::from(reused);
        self.slots[nth].phase = Phase::Prompt {
            at: reused,
            loaded: reused,
        };
        let slots = std::iter::once(nth).chain(children.iter().copied());
        for (slot, answer) in slots.zip(self.jobs[job].requests()) {
            if slot != nth {
                self.slots[slot].phase = Phase::Waits { answer };
            }
            self.outcomes[answer] = Some(Outcome {
                slot: slot as u32,
                reused,
                loaded: 0,
                evaluated: record.prompt - reused,
                arrived: self.arrived[job],
                launched: self.now,
                ended: self.now,
            });
        }
        match self.store {
            // What it has of the prompt shows when the batch is evaluated: see `load`.
            Some(_) => self.fresh.push(nth),
            None => self.take_up(nth, reused),
        }
    }

    /// What the prefix store has of the prompts that were taken on since the last batch. By now all of their slots have
    /// let go what they held, so that is stored first, and what leaves the store for it is not there any more.
    pub(super) fn load(&mut self) {
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.sort_unstable();
        let prompts: Vec<(usize, &TrafficRequest, u32)> = fresh
            .iter()
            .filter_map(|&nth| match (self.slots[nth].phase, self.slots[nth].job) {
                (Phase::Prompt { at, .. }, Some(job)) => Some((nth, self.request(job), at)),
                _ => None,
            })
            .collect();
        let is_bounded = self.store.as_ref().is_some_and(PrefixStore::is_bounded);
        let mut rest = &*prompts;
        while !rest.is_empty() {
            let (together, others) = rest.split_at(self.of_one_batch(rest));
            rest = others;
            // Where the engine has no room for the batch, the server empties idle slots, and the batch is tried again.
            let new = together
                .iter()
                .map(|(_, request, at)| u64::from(request.record.prompt - at));
            self.make_room(None, new.sum());
            if is_bounded {
                self.evaluate_together(together);
                continue;
            }
            let Some(store) = &mut self.store else {
                break;
            };
            let loaded = store.evaluate(together);
            for (&(nth, _, at), loaded) in together.iter().zip(loaded) {
                self.note_loaded(nth, at, loaded);
            }
        }
        for nth in fresh.into_iter().filter(|_| !is_bounded) {
            if let Phase::Prompt { at, .. } = self.slots[nth].phase {
                self.take_up(nth, at);
            }
        }
        // What is copied for the store is copied by the same thread.
        self.now = self.now.saturating_add(self.copies());
    }

    /// Evaluates prompts that begin in the same batch, and answers them, where the model's cache cannot go back to any position:
    /// there states are taken and loaded from batch to batch.
    fn evaluate_together(&mut self, prompts: &[(usize, &TrafficRequest, u32)]) {
        let begun = prompts.iter().filter_map(|&(nth, _, at)| {
            let job = self.slots[nth].job?;
            if let Some(store) = &mut self.store {
                // What came back to the slot before is not of this prompt.
                store.take_loaded(nth);
            }
            Some((nth, job, at, self.evaluate_batch(nth, job, at)))
        });
        let begun: Vec<_> = begun.collect();
        for (nth, job, at, mut end) in begun {
            while end < self.request(job).record.prompt {
                end = self.evaluate_batch(nth, job, end);
            }
            let store = self.store.as_mut();
            let loaded = store.map_or(0, |store| store.take_loaded(nth));
            self.note_loaded(nth, at, loaded);
            self.take_up(nth, end);
        }
    }

    /// The prefix store has loaded so many tokens of a slot's prompt, which is evaluated from the position `at` on.
    fn note_loaded(&mut self, nth: usize, at: u32, loaded: u32) {
        self.slots[nth].phase = Phase::Prompt {
            at,
            loaded: at + loaded,
        };
        self.spared += u64::from(loaded);
        let answers = self.slots[nth].job.map(|job| self.jobs[job].requests());
        for answer in answers.into_iter().flatten() {
            if let Some(outcome) = &mut self.outcomes[answer] {
                outcome.loaded = loaded;
                outcome.evaluated -= loaded;
            }
        }
    }

    /// How many of these prompts, at least one, have their first tokens in the same batch.
    fn of_one_batch(&self, prompts: &[(usize, &TrafficRequest, u32)]) -> usize {
        let mut room = u64::from(self.setting.server.batch_size);
        let fits = |(_, request, at): &&(usize, &TrafficRequest, u32)| {
            let is_room = room > 0;
            room = room.saturating_sub(u64::from(request.record.prompt - at));
            is_room
        };
        prompts.iter().take_while(fits).count().max(1)
    }

    /// What a slot holds once it has evaluated its prompt from a position on, and answered.
    fn take_up(&mut self, nth: usize, from: u32) {
        if let Some(job) = self.slots[nth].job {
            self.evaluate(nth, job, from);
        }
        self.make_room(Some(nth), 0);
        self.save_file(nth);
    }

    /// The time that copies for the store took since the last request, microseconds. If there was a store in the
    /// recording, the recorded times have it.
    fn copies(&mut self) -> u64 {
        let setup = self.traffic.setup.as_ref();
        let was_on = setup.is_some_and(|setup| setup.store.is_some());
        match &mut self.store {
            Some(store) if !was_on => store.time(),
            _ => 0,
        }
    }

    /// Returns how many tokens of the prompt the slot reuses. Removes the rest of its content.
    pub(super) fn reuse(&mut self, nth: usize, job: usize) -> u32 {
        let record = &self.request(job).record;
        let prompt = self.content(job, record.prompt);
        let mut past = 0;
        if !record.uncached && !record.embedding {
            past = self.common(&self.slots[nth], &prompt);
            let slot = &mut self.slots[nth];
            let of_all = self.setting.server.cache_reuse;
            let least = record.wished.cache_reuse.unwrap_or(of_all);
            // A window's cache cannot. A recurrent state the server takes to be moved, and goes back to the checkpoint before
            // the end of what it moved, which may be of other tokens: answers are then others.
            let moves =
                !matches!(self.setting.server.memory, Memory::Window(_)) && !self.has_projector;
            if least > 0 && moves {
                let gram = self.traffic.gram.max(1);
                let in_place = past;
                past = reuse::with_chunks(&slot.prompt.content, &prompt, past, (least, gram));
                if let Some(store) = self.store.as_mut().filter(|_| past > in_place) {
                    store.obscure(nth);
                }
            }
            if let Some(at @ 1..) = record.activated_at {
                past = past.min(at - 1);
            }
            let first = self.positions.range(nth).0;
            let held = slot.prompt.content.len();
            let reach = checkpoints::reach(
                &mut slot.prompt.checkpoints,
                (past, record.prompt, held),
                first,
                self.setting,
            );
            past = reach.past;
            if let Some(taken) = reach.restored {
                self.rewind(nth, &taken);
            }
        } else {
            checkpoints::drop_beyond(&mut self.slots[nth].prompt.checkpoints, 0);
        }
        if past == record.prompt && past > 0 {
            past -= 1;
        }
        self.cut(nth, past);
        self.slots[nth].prompt.content = self.content(job, past);
        past
    }

    /// Goes back to a checkpoint.
    fn rewind(&mut self, nth: usize, taken: &Taken) {
        let mut store = self.store.as_mut().filter(|store| store.is_bounded());
        if let Some(store) = &mut store {
            store.about_to_rewind(nth, &mut self.positions);
        }
        self.positions.restore(nth, &taken.kept);
        if let Some(store) = store {
            store.rewound(nth, taken.known.as_ref());
        }
    }

    /// Evaluates the prompt from a position on, batch by batch, and then the answer.
    pub(super) fn evaluate(&mut self, nth: usize, job: usize, from: u32) {
        let request = self.request(job);
        let mut begin = from;
        while begin < request.record.prompt {
            begin = self.evaluate_batch(nth, job, begin);
        }
        self.slots[nth].media.clone_from(&request.record.media);
        self.answer(nth, job);
    }

    /// Evaluates the prompt's part in one batch. Returns where that ends.
    fn evaluate_batch(&mut self, nth: usize, job: usize, begin: u32) -> u32 {
        let request = self.request(job);
        let record = &request.record;
        let checks = !record.embedding
            && self.setting.server.ctx_checkpoints > 0
            && match self.setting.server.memory {
                Memory::Full => false,
                Memory::Window(_) => true,
                Memory::Recurrent => self.setting.generation != Generation::Of2025,
            };
        let marks = if checks {
            self.marks.of_prompt(request)
        } else {
            Vec::new()
        };
        let held = &self.slots[nth].prompt.checkpoints;
        let end = if checks {
            checkpoints::batch_end(begin, record.prompt, self.setting, &marks, held)
        } else {
            record
                .prompt
                .min(begin.saturating_add(self.setting.server.batch_size))
        };
        let evaluated = self.content(job, begin);
        let mut store = self.store.as_mut().filter(|store| store.is_bounded());
        if checks {
            let ends = store.as_ref().and_then(|store| store.ends(nth));
            let (first, last) = ends.unwrap_or_else(|| self.positions.range(nth));
            let batch = Batch {
                task: record.order,
                begin,
                end,
                prompt: record.prompt,
                marked: marks.contains(&begin),
                last_marked: marks.last() == Some(&begin),
                first,
                last,
            };
            let checkpoints = &mut self.slots[nth].prompt.checkpoints;
            checkpoints::note(checkpoints, &batch, (self.setting, self.sizes), || {
                let Some(store) = &mut store else {
                    return Taken {
                        kept: self.positions.keep(nth),
                        known: None,
                    };
                };
                let (kept, known) = store.checkpoint(nth, &mut self.positions);
                let known = known.map(|known| (evaluated, known));
                Taken { kept, known }
            });
        }
        let Some(store) = store else {
            let step = self.setting.server.ubatch_size;
            self.positions.write(nth, (begin, end), step);
            return end;
        };
        let range = (begin, end);
        store.evaluate_batch(nth, request, range, &marks, &mut self.positions);
        end
    }

    /// Sets what the slot holds at the end of the answer, after the context shifts that it takes.
    pub(super) fn answer(&mut self, nth: usize, job: usize) {
        let request = self.request(job);
        let record = &request.record;
        let most = self.setting.server.slot_context.saturating_sub(1);
        let whole = request.tokens.len();
        if whole <= most || !self.setting.server.context_shift {
            let end = whole.min(most);
            self.slots[nth].prompt.content = self.content(job, end);
            let is_bounded = self.store.as_ref().is_some_and(PrefixStore::is_bounded);
            if !is_bounded {
                self.positions.write(nth, (record.prompt, end), 1);
            }
            if let Some(store) = &mut self.store {
                let content = &self.slots[nth].prompt.content;
                store.answered(nth, request, content, &mut self.positions);
            }
            return;
        }
        let keep = match record.keep {
            // It was not shifted, or the recording is of a format that does not say so.
            0 if record.gone == 0 => {
                let wished = u32::try_from(record.wished.keep).unwrap_or(record.prompt);
                wished.saturating_add(u32::from(self.begins_alike))
            }
            keep => keep,
        };
        let full = self.content(job, most);
        if let Some(store) = self.store.as_mut().filter(|store| !store.is_bounded()) {
            // It stores what the slot holds before tokens of that are shifted out.
            store.answered(nth, request, &full, &mut self.positions);
            store.cut(nth, keep.min(most), &mut self.positions);
        }
        let row = Arc::new(shifted(request, most, keep, self.traffic.gram));
        let slot = &mut self.slots[nth];
        if self.setting.generation.clears_checkpoints() {
            slot.prompt.checkpoints.clear();
        }
        slot.prompt.content = Content::new(Arc::clone(&row), row.len());
        self.positions.cut(nth, 0);
        self.positions.write(nth, (0, row.len()), 1);
        if let Some(store) = &mut self.store {
            store.obscure(nth);
        }
    }

    /// `try_clear_idle_slots`: while a shared context is too full for `more` tokens, empties idle slots in the order of
    /// their numbers, but for one.
    pub(super) fn make_room(&mut self, but: Option<usize>, more: u64) {
        if !self.setting.server.kv_unified {
            return;
        }
        let held = |slots: &[Slot]| -> u64 {
            let held = slots.iter().map(|slot| slot.prompt.content.len());
            held.map(u64::from).sum()
        };
        for other in 0..self.slots.len() {
            if held(&self.slots) + more <= u64::from(self.setting.server.context) {
                return;
            }
            if Some(other) != but && self.slots[other].job.is_none() {
                self.erase(other);
            }
        }
    }
}

/// `lora_should_clear_cache`: whether a slot keeps its content for a request with the adapters `next`.
/// `slot`: the adapters of the slot's last request.
pub(super) fn keeps_for(slot: Applied, next: Applied) -> bool {
    slot == next || (next.invoked && (slot.invoked || !slot.enabled))
}

/// What context shifts leave of a request's tokens: whenever the slot is full (`most` tokens), the first
/// `keep` stay (`n_keep`), and half of the others are discarded, or as many as it says (`n_discard`). `gram`: how many tokens decide about an
/// identity.
fn shifted(request: &TrafficRequest, most: u32, keep: u32, gram: u32) -> Tokens {
    let tokens = &*request.tokens;
    let keep = keep.min((most + 1).saturating_sub(4));
    let mut row = Tokens::new();
    let (mut at, mut gone) = (0, 0);
    while at < tokens.len() {
        if row.len() >= most {
            let discard = match request.record.wished.discard {
                0 => (row.len() - keep) / 2,
                wished => wished.min(row.len() - keep),
            };
            let discard = discard.max(1);
            gone += discard;
            row = joined(&row, keep, &Tokens::new(), keep + discard);
        }
        let next = tokens.len().min(at + (most - row.len()).max(1));
        row.extend(tokens, at, next);
        at = next;
    }
    // The first tokens after the kept ones have other tokens before them than they had.
    let moved = gram.saturating_sub(1).min(row.len().saturating_sub(keep));
    if gone == 0 || moved == 0 {
        return row;
    }
    let record = &request.record;
    let as_recorded = (record.keep, record.gone) == (keep, gone);
    if as_recorded && request.junction.len() == moved {
        return joined(&row, keep, &request.junction, keep + moved);
    }
    // It is not recorded what they are equal to: take them for tokens that no prompt has.
    let mut unique = Tokens::new();
    unique.push(Run {
        first: UNIQUE + record.order * u64::from(gram),
        length: moved,
    });
    joined(&row, keep, &unique, keep + moved)
}

/// Identities from here on are not in any recording.
const UNIQUE: u64 = 1 << 62;

/// The first `keep` tokens of a row, then those of `middle`, then the row's tokens from `rest` on.
fn joined(row: &Tokens, keep: u32, middle: &Tokens, rest: u32) -> Tokens {
    let mut whole = Tokens::new();
    whole.extend(row, 0, keep);
    whole.extend(middle, 0, middle.len());
    whole.extend(row, rest, row.len());
    whole
}

#[cfg(test)]
mod tests {
    use contextpilot_traffic::{RequestRecord, Setup};

    use super::*;
    use crate::made::{recorded, request, row, traffic};
    use crate::simulate;

    /// What the second of two requests reuses.
    fn reused(setup: Setup, again: TrafficRequest) -> Option<u32> {
        let traffic = traffic(setup, vec![request(0, row(&[(0, 100)])), again]);
        simulate(&traffic, &recorded(&traffic)).outcomes[1].map(|outcome| outcome.reused)
    }

    /// The same but for what stood behind its first tokens.
    #[test]
    fn tokens_are_moved_if_that_is_wanted_and_the_model_can() {
        let reused = |cache_reuse, memory| {
            let setup = Setup {
                cache_reuse,
                memory,
                parallel: 1,
                slot_prompt_similarity: 0.0,
                ..Setup::default()
            };
            reused(setup, request(1, row(&[(0, 5), (40, 60)])))
        };
        assert_eq!(reused(32, Memory::Full), Some(64));
        assert_eq!(reused(0, Memory::Full), Some(5));
        assert_eq!(reused(32, Memory::Recurrent), Some(0));
    }

    #[test]
    fn neither_an_embedding_nor_a_prompt_that_wants_no_cache_reuses_anything() {
        let reused = |change: fn(&mut RequestRecord)| {
            let mut again = request(1, row(&[(0, 100)]));
            change(&mut again.record);
            reused(Setup::default(), again)
        };
        assert_eq!(reused(|_| {}), Some(99));
        assert_eq!(reused(|record| record.embedding = true), Some(0));
        assert_eq!(reused(|record| record.uncached = true), Some(0));
    }

    #[test]
    fn a_slot_is_kept_for_the_same_adapters_and_for_some_that_tokens_invoke() {
        let applied = |hash, enabled, invoked| Applied {
            hash,
            enabled,
            invoked,
        };
        let (none, usual, other) = (
            applied(0, false, false),
            applied(1, true, false),
            applied(2, true, false),
        );
        let invoked = applied(3, true, true);
        assert!(keeps_for(none, none) && keeps_for(usual, usual));
        assert!(!keeps_for(usual, other) && !keeps_for(none, usual) && !keeps_for(usual, none));
        assert!(keeps_for(none, invoked) && keeps_for(applied(4, true, true), invoked));
        assert!(!keeps_for(usual, invoked));
    }

    /// Of which tokens the moved ones depend is not recorded: no other prompt has their identities.
    #[test]
    fn what_a_context_shift_moves_is_like_nothing_else() {
        let shifted = |order, gram| shifted(&request(order, row(&[(0, 40)])), 20, 4, gram);
        let identities = [3, 5].map(|order| shifted(order, 3).at(4));
        let lengths = [1, 3].map(|gram| shifted(3, gram).len());
        assert_eq!(lengths[0], lengths[1]);
        assert_eq!(identities, [9, 15].map(|nth| Some(UNIQUE + nth)));
    }
}
