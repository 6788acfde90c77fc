//! A context of the engine with its record, its journal and the store, as `crates/store/kv-engine` sees them.

use std::time::Instant;

use contextpilot_kv_engine::{
    Bounds, Done, Engine, Host, Journal, Part, Record, Refusal, States, Supply, Tails, Wanted,
    is_bounded, last_message,
};
use contextpilot_kv_store::{Conditions, Fingerprint, Run, Session, worth};

use super::bounded::load::BoundedSupply;
use super::context::ContextStore;
use super::engine::Context;
use super::engine::PARTIAL;
use super::evaluate::load::DenseSupply;
use super::figures;
use super::index::StoreIndex;
use super::index::held::with_index;
use super::records::{self, PATIENCE, be_patient, with_record};
use super::{bounded, calls, own_batch, save};
use crate::attach::original::{self, original};
use crate::base::{faults, log};
use crate::capture::{contexts, uncached};

impl Record for ContextStore {
    fn session(&self) -> &Session {
        &self.session
    }

    fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    fn conditions(&self, sequence: i32) -> Conditions {
        self.conditions(sequence)
    }

    fn bounds(&self) -> Option<Bounds> {
        self.bounds
    }

    fn at_a_time(&self) -> usize {
        /// If it is not known how many the engine takes.
        const FEW: usize = 8;
        let most = contexts::batch_of(self.pointer()).map_or(FEW, |batch| batch as usize);
        let at_once = self.bounds.and_then(|bounds| bounds.at_once);
        at_once.unwrap_or(most).min(self.size).max(1)
    }

    fn size(&self) -> usize {
        self.size
    }

    fn tails(&self) -> &Tails {
        &self.tails
    }

    fn tails_mut(&mut self) -> &mut Tails {
        &mut self.tails
    }

    fn tail_of<'a>(&self, part: &'a [u8]) -> Option<&'a [u8]> {
        self.shape()?.tail_of(part)
    }

    fn are_these(&self, conditions: Conditions) -> bool {
        self.are_these(conditions)
    }

    fn has_embeddings(&self) -> bool {
        self.has_embeddings()
    }

    fn may_store(&self) -> bool {
        // Where tokens see those behind them, rows of an image may, too.
        let is_understood = self.layout().is_some() && !self.is_refused();
        is_understood && !self.has_embeddings() && self.is_causal
    }

    /// Says why nothing of a prompt is loaded or kept, if nothing is.
    fn note_evaluated(&self, run: &Run) {
        if self.has_embeddings() {
            // All tokens of such a prompt may have outputs.
            if run.tokens.len() >= worth::LEAST_GAINED {
                figures::note_refusal("embeddings: every token of the batch is needed");
            }
            return;
        }
        let why = self.session.why_unknown(run.sequence);
        if let Some(why) = why.filter(|_| run.leading >= worth::LEAST_GAINED && self.is_proven()) {
            figures::note_refusal(super::change::name_of(why));
        }
    }
}

/// What the store has for a sequence.
enum Found<'a> {
    /// What it has for a context that can go back to any position.
    Dense(DenseSupply<'a>),
    Bounded(BoundedSupply<'a>),
}

macro_rules! either {
    ($found:expr, $name:ident => $what:expr) => {
        match $found {
            Found::Dense($name) => $what,
            Found::Bounded($name) => $what,
        }
    };
}

impl Supply for Found<'_> {
    fn tokens(&self) -> &[i32] {
        either!(self, found => found.tokens())
    }

    fn lengths(&self) -> Vec<usize> {
        either!(self, found => found.lengths())
    }

    fn load(&mut self, tokens: usize) -> Option<usize> {
        either!(self, found => found.load(tokens))
    }

    fn is_aside(&self) -> bool {
        matches!(self, Self::Dense(found) if found.is_aside())
    }

    fn put_back(&mut self) -> bool {
        match self {
            Self::Dense(found) => found.put_back(),
            Self::Bounded(_) => false,
        }
    }

    fn finish(self, done: &Done) {
        either!(self, found => found.finish(done));
    }
}

/// What the store has under one fingerprint.
struct StatesOf<'a> {
    index: &'a StoreIndex,
    fingerprint: Fingerprint,
}

impl States for StatesOf<'_> {
    fn length_of(&self, tokens: &[i32]) -> usize {
        self.index.length_of(&self.fingerprint, tokens)
    }

    fn last_state_in(&self, tokens: &[i32]) -> usize {
        self.index.last_state_in(&self.fingerprint, tokens)
    }
}

impl Host for Context<'_> {
    type Record = ContextStore;

    fn record<R>(&self, work: impl FnOnce(&mut ContextStore) -> R) -> Option<R> {
        with_record(*self, work)
    }

    fn record_before<R>(
        &self,
        part: &Part,
        work: impl FnOnce(&mut ContextStore) -> R,
    ) -> Option<R> {
        with_index(*self, |index, record| {
            if part.follows {
                save::expect(index.as_ref(), record, &part.run);
            }
            work(record)
        })
    }

    fn goes_on(&self) -> bool {
        calls::goes_on(*self)
    }

    fn journal<R>(&self, work: impl FnOnce(&mut Journal) -> R) -> Option<R> {
        let mut journal = records::find(*self)?.journal()?;
        Some(work(&mut journal))
    }

    fn find<'a>(&'a self, wanted: &Wanted<'a>) -> Option<impl Supply + 'a> {
        match wanted.run {
            Some(run) if !is_bounded(self) => {
                DenseSupply::find(*self, wanted, run).map(Found::Dense)
            }
            run => {
                let better = run.and_then(|run| {
                    bounded::load::better_than_last_state(*self, run, wanted.tokens)
                });
                if let Some(other) = better {
                    save::share(*self, other);
                }
                BoundedSupply::find(*self, *wanted).map(Found::Bounded)
            }
        }
    }

    fn is_uncached(&self, sequence: i32) -> bool {
        uncached::is(sequence)
    }

    fn may_wait(&self, run: &Run) -> bool {
        bounded::may_wait(*self, run)
    }

    fn at_once(&self) -> Option<usize> {
        contexts::at_once_in(self.pointer()).map(|count| count as usize)
    }

    fn with_states<R>(
        &self,
        sequence: i32,
        work: impl FnOnce(&ContextStore, &dyn States) -> Option<R>,
    ) -> Option<R> {
        let found = with_index(*self, |index, record| {
            let index = index.as_ref()?;
            if record.shape().is_none() || record.has_embeddings() {
                return None;
            }
            let fingerprint = record.fingerprint(record.conditions(sequence))?;
            work(record, &StatesOf { index, fingerprint })
        });
        found.flatten()
    }

    fn last_message(&self, run: &Run) -> Option<usize> {
        last_message(&run.tokens[..run.leading], self.is_control()?)
    }

    fn evaluate_of_batch(
        &self,
        sequence: i32,
        from: usize,
        tokens: &[i32],
        most: usize,
    ) -> Result<(), Refusal> {
        let start = Instant::now();
        self.evaluate(sequence, from, tokens, most)?;
        let took = start.elapsed();
        with_record(*self, |record| record.rates.evaluated(tokens.len(), took));
        Ok(())
    }

    fn about_to_reach(&self) {
        // Even if a generated token is what asks for it: evaluating takes longer.
        be_patient(*self, PATIENCE);
    }

    fn note_refused_state(&self, tokens: usize) {
        log::line(format_args!(
            "Prefix store: the engine refused a state, {tokens} tokens are evaluated again"
        ));
    }
}

impl Engine for Context<'_> {
    fn cut(&self, sequence: i32, from: usize) {
        let context = self.pointer();
        let from = i32::try_from(from).unwrap_or(i32::MAX);
        if original::llama_memory_seq_rm().is_some() {
            if let Some(memory) = contexts::memory_of(context) {
                original!(llama_memory_seq_rm(memory, sequence, from, -1));
            }
        } else if original::llama_kv_self_seq_rm().is_some() {
            original!(llama_kv_self_seq_rm(context, sequence, from, -1));
        } else {
            original!(llama_kv_cache_seq_rm(context, sequence, from, -1));
        }
    }

    fn length(&self, sequence: i32) -> Option<usize> {
        // SAFETY: the context is in use by this thread, and not at work.
        let last = unsafe { contexts::last_position(self.pointer(), sequence) }?;
        usize::try_from(last + 1).ok()
    }

    fn first(&self, sequence: i32) -> Option<usize> {
        // SAFETY: the context is in use by this thread, and not at work.
        let first = unsafe { contexts::first_in_engine(self.pointer(), sequence) }?;
        usize::try_from(first).ok()
    }

    fn save(&self, sequence: i32, state: &mut Vec<u8>) -> bool {
        let Some(size) = self.state_size(sequence) else {
            return false;
        };
        state.clear();
        state.reserve(size);
        // SAFETY: there is room for so many bytes.
        let written = unsafe { self.write(state.as_mut_ptr(), size, sequence) };
        if written == 0 || written > size {
            return false;
        }
        // SAFETY: the engine has written so many bytes, and there is room for them.
        unsafe { state.set_len(written) };
        true
    }

    fn part_size(&self, sequence: i32) -> Option<usize> {
        // The host has called a function of the engine that takes the context.
        original::llama_state_seq_get_size_ext()?;
        let context = self.pointer();
        Some(original!(llama_state_seq_get_size_ext(
            context, sequence, PARTIAL
        )))
    }

    fn save_part(&self, sequence: i32, state: &mut Vec<u8>) -> bool {
        let Some(size) = self.part_size(sequence) else {
            return false;
        };
        state.clear();
        state.resize(size, 0);
        let context = self.pointer();
        original::llama_state_seq_get_data_ext().is_some()
            && original!(llama_state_seq_get_data_ext(
                context,
                state.as_mut_ptr(),
                size,
                sequence,
                PARTIAL
            )) == size
    }

    fn load(&self, sequence: i32, state: &[u8]) -> bool {
        let size = faults::at_load(state.len());
        self.read(sequence, &state[..size]) == state.len()
    }

    fn evaluate(
        &self,
        sequence: i32,
        from: usize,
        tokens: &[i32],
        most: usize,
    ) -> Result<(), Refusal> {
        Refusal::of_code(own_batch::evaluate_tokens(
            *self, sequence, from, tokens, most,
        ))
    }
}
