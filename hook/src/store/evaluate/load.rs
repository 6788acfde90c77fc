//! Loads what the store has of a prompt into the context.

use std::time::{Duration, Instant};

use contextpilot_kv_engine::{Done, Engine as _, Supply, Wanted};
use contextpilot_kv_store::{Run, media, worth};

use crate::store::engine::Context;
use crate::store::figures::{self, FIGURES};
use crate::store::flow::{self, Prepared};
use crate::store::index::Offer;
use crate::store::index::held::with_index;
use crate::store::records::with_record;
use crate::store::{elsewhere, hidden, save};

/// What the store has of a prompt, for a sequence that holds a beginning of it.
pub(in crate::store) struct DenseSupply<'a> {
    context: Context<'a>,
    run: &'a Run,
    held: usize,
    offer: Offer,
    /// The state of all tokens of the offer.
    prepared: Option<Prepared>,
    buffer: Vec<u8>,
    /// What the engine has now, where that cannot be evaluated again.
    aside: Option<Vec<u8>>,
    start: Instant,
    waited: Duration,
    /// When loading began, behind the search.
    began: Instant,
    failed: usize,
    is_direct: bool,
}

impl<'a> DenseSupply<'a> {
    pub(in crate::store) fn find(
        context: Context<'a>,
        wanted: &Wanted<'_>,
        run: &'a Run,
    ) -> Option<Self> {
        let held = wanted.held;
        let start = Instant::now();
        if let Some(sequence) = better_than_stored(context, run, held) {
            save::share(context, sequence);
        }
        let waited = elsewhere::bring(context, run, held);
        let (offer, prepared) = search(context, run, held, true)?;
        let mut found = Self {
            context,
            run,
            held,
            offer,
            prepared: Some(prepared),
            buffer: Vec::new(),
            aside: None,
            start,
            waited,
            began: start,
            failed: 0,
            is_direct: false,
        };
        // The rows of media are gone, and before an image text is not evaluated in batches like the server's, and maybe not
        // as text is: should the engine refuse what is loaded, it gets back what it has now.
        if media::is_any_row(&found.offer.tokens[..held]) || media::is_any_row(&run.tokens) {
            // Copying that takes time, too.
            let all = found.offer.tokens.len();
            let ratio = with_record(context, |record| record.rates.worth_loading()).unwrap_or(0);
            if all.saturating_sub(held) * ratio < all + held {
                return None;
            }
            let mut state = Vec::new();
            if !context.save(run.sequence, &mut state) {
                return None;
            }
            found.aside = Some(state);
        }
        found.began = Instant::now();
        Some(found)
    }

    /// Gives the engine the state that is in the buffer, of all tokens of the offer.
    fn load_all(&mut self) -> Option<usize> {
        let is_taken = self.context.load(self.run.sequence, &self.buffer);
        is_taken.then_some(self.offer.tokens.len())
    }
}

impl Supply for DenseSupply<'_> {
    fn tokens(&self) -> &[i32] {
        &self.offer.tokens
    }

    fn lengths(&self) -> Vec<usize> {
        self.offer.lengths(self.held)
    }

    fn load(&mut self, tokens: usize) -> Option<usize> {
        let (context, sequence) = (self.context, self.run.sequence);
        match self.prepared.take() {
            Some(Prepared::Outline(outline)) => {
                let length = self.offer.tokens.len();
                let is_loaded = flow::load(context, sequence, outline);
                if is_loaded && context.holds(sequence, &self.offer.tokens) {
                    self.is_direct = true;
                    return Some(length);
                }
                // What is left out of it cannot be brought: it is put together.
                self.failed += 1;
                self.began = Instant::now();
                let (offer, prepared) = search(context, self.run, self.held, false)?;
                let Prepared::Composed(state) = prepared else {
                    return None;
                };
                (self.offer, self.buffer) = (offer, state);
                self.load_all()
            }
            Some(Prepared::Composed(state)) => {
                self.buffer = state;
                self.load_all()
            }
            None => {
                let is_composed = tokens <= self.offer.tokens.len()
                    && compose(context, &self.offer, tokens, sequence, &mut self.buffer);
                (is_composed && context.load(sequence, &self.buffer)).then_some(tokens)
            }
        }
    }

    fn is_aside(&self) -> bool {
        self.aside.is_some()
    }

    fn put_back(&mut self) -> bool {
        let state = self.aside.as_ref();
        state.is_some_and(|state| self.context.put_back(self.run.sequence, state))
    }

    fn finish(self, done: &Done) {
        let took = self.start.elapsed().saturating_sub(self.waited);
        let loaded = done.loaded.filter(|loaded| *loaded > self.held);
        with_record(self.context, |record| {
            record.keep_buffer(self.buffer);
            if let Some(loaded) = loaded {
                record.rates.loaded(loaded, self.began.elapsed());
            }
        });
        figures::add(&FIGURES.failed_loads, self.failed + done.failed_loads);
        figures::add(&FIGURES.direct_loads, usize::from(self.is_direct));
        figures::add(&FIGURES.loads, usize::from(loaded.is_some()));
        figures::add_time(&FIGURES.load_nanos, took);
    }
}

/// Another sequence of the context that holds more of what is wanted than the store has, and enough more to be
/// worth copying it out and in. (A server with several free slots may take the one that does not hold the
/// prompt, and so it does if the other one was just given away.)
fn better_than_stored(context: Context<'_>, run: &Run, held: usize) -> Option<i32> {
    let better = with_index(context, |index, record| {
        let index = index.as_mut()?;
        let conditions = record.conditions(run.sequence);
        let wanted = record.session.wanted(run);
        let (sequence, shared) = record.session.sharing(run, &wanted, conditions)?;
        if shared < held + worth::LEAST_GAINED {
            return None;
        }
        let fingerprint = record.fingerprint(conditions)?;
        let stored = index.length_of(&fingerprint, &wanted).max(held);
        let all = record.session.believed(sequence)?.len();
        worth::sharing(all, shared, stored, record.rates.worth_saving()).then_some(sequence)
    });
    better.flatten()
}

/// What is worth loading, and its state. `may_flow`: it need not be put together.
fn search(
    context: Context<'_>,
    run: &Run,
    held: usize,
    may_flow: bool,
) -> Option<(Offer, Prepared)> {
    // A chunk that is gone or damaged leaves the store: then there may be less.
    const ATTEMPTS: usize = 4;
    let found = with_index(context, |index, record| {
        let index = index.as_mut()?;
        let conditions = record.conditions(run.sequence);
        let fingerprint = record.fingerprint(conditions)?;
        let layout = record.layout().cloned()?;
        index.settle();
        let wanted = record.session.wanted(run);
        let room = record.room(held);
        // If the prompt ends in this batch, nothing of it is left to be loaded.
        let goes_on = run.leading == run.tokens.len();
        for _ in 0..ATTEMPTS {
            let more = room.saturating_sub(wanted.len().saturating_sub(held));
            let mut offer = index.offer(&fingerprint, &wanted, if goes_on { more } else { 0 });
            let length = hidden::length(index, record, conditions, &offer.tokens)?;
            if length < offer.tokens.len() {
                offer.cut(length);
            }
            let gained = offer.wanted.saturating_sub(held);
            let all = offer.tokens.len();
            let is_worth_it = worth::loading(held, all, record.rates.worth_loading());
            if gained < worth::LEAST_GAINED || gained > room || !is_worth_it {
                return None;
            }
            index.note_origin(fingerprint, || record.origin(conditions));
            let region = index.region_for(may_flow && record.flows, &layout, &offer);
            if let Some(region) = region {
                match index.outline(&offer, &layout, run.sequence, region) {
                    Some(outline) => return Some((offer, Prepared::Outline(outline))),
                    None => continue,
                }
            }
            let mut state = index.buffer(&mut record.buffer, layout.state_size(all));
            if index.compose(&offer, all, &layout, run.sequence, &mut state) {
                return Some((offer, Prepared::Composed(state)));
            }
            record.buffer = state;
        }
        None
    });
    found.flatten()
}

fn compose(
    context: Context<'_>,
    offer: &Offer,
    length: usize,
    sequence: i32,
    state: &mut Vec<u8>,
) -> bool {
    let composed = with_index(context, |index, record| {
        let index = index.as_mut()?;
        let layout = record.layout().cloned()?;
        Some(index.compose(offer, length, &layout, sequence, state))
    });
    composed.flatten() == Some(true)
}
