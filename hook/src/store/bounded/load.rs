//! What the store has of a prompt for a context that cannot go back to any position.

use std::ops::Range;
use std::time::{Duration, Instant};

use contextpilot_kv_engine::{Done, Engine as _, Supply, Wanted};
use contextpilot_kv_store::{Run, media, worth};
use contextpilot_residency::Event;

use crate::base::guard;
use crate::capture::{contexts, usage};
use crate::channel::push;
use crate::store::context::ContextStore;
use crate::store::engine::Context;
use crate::store::figures::{self, FIGURES};
use crate::store::flow::{self, Prepared};
use crate::store::hidden;
use crate::store::index::StoreIndex;
use crate::store::index::bounded::BoundedOffer;
use crate::store::index::held::with_index;
use crate::store::records::{self, with_record};
use crate::store::working::Busy;

/// The last state that lies within what is wanted.
pub(in crate::store) struct BoundedSupply<'a> {
    context: Context<'a>,
    wanted: Wanted<'a>,
    position: usize,
    prepared: Option<Prepared>,
    buffer: Vec<u8>,
    start: Instant,
    took: Duration,
    failed: usize,
    is_direct: bool,
    _busy: Busy,
}

impl<'a> BoundedSupply<'a> {
    /// `None`: there is none, or it is not worth it.
    pub(in crate::store) fn find(context: Context<'a>, wanted: Wanted<'a>) -> Option<Self> {
        let busy = Busy::begin();
        let start = Instant::now();
        let (position, prepared) = search_state(context, &wanted, wanted.held, true)?;
        Some(Self {
            context,
            wanted,
            position,
            prepared: Some(prepared),
            buffer: Vec::new(),
            start,
            took: Duration::ZERO,
            failed: 0,
            is_direct: false,
            _busy: busy,
        })
    }

    fn load_prepared(&mut self) -> Option<usize> {
        let (context, sequence) = (self.context, self.wanted.sequence);
        let state = match self.prepared.take()? {
            Prepared::Composed(state) => state,
            Prepared::Outline(outline) => {
                let is_taken = flow::load(context, sequence, outline);
                if is_taken && context.holds(sequence, &self.wanted.tokens[..self.position]) {
                    self.is_direct = true;
                    return Some(self.position);
                }
                // What is left out of it cannot be brought: it is put together.
                self.failed += 1;
                context.cut(sequence, 0);
                self.start = Instant::now();
                let (position, prepared) = search_state(context, &self.wanted, 0, false)?;
                let Prepared::Composed(state) = prepared else {
                    return None;
                };
                self.position = position;
                state
            }
        };
        self.buffer = state;
        let is_taken = context.load(sequence, &self.buffer);
        is_taken.then_some(self.position)
    }
}

impl Supply for BoundedSupply<'_> {
    fn tokens(&self) -> &[i32] {
        self.wanted.tokens
    }

    fn lengths(&self) -> Vec<usize> {
        vec![self.position]
    }

    fn load(&mut self, _tokens: usize) -> Option<usize> {
        let loaded = self.load_prepared();
        self.took = self.start.elapsed();
        loaded
    }

    fn is_aside(&self) -> bool {
        false
    }

    fn put_back(&mut self) -> bool {
        false
    }

    fn finish(self, done: &Done) {
        let Self {
            context,
            wanted,
            took,
            ..
        } = self;
        let reused = with_record(context, |record| {
            record.keep_buffer(self.buffer);
            if let Some(position) = done.loaded {
                record.rates.loaded(position, took);
            }
            record.session.reused(wanted.sequence)
        });
        figures::add_time(&FIGURES.load_nanos, took);
        figures::add(&FIGURES.failed_loads, self.failed + done.failed_loads);
        if done.loaded.is_some() {
            figures::add(&FIGURES.loads, 1);
            figures::add(&FIGURES.direct_loads, usize::from(self.is_direct));
            let loaded = wanted.loaded_now(done, reused.unwrap_or(0));
            note_loaded(context, &wanted, loaded);
        }
    }
}

/// Tokens that the server had been told were evaluated were loaded now.
fn note_loaded(context: Context<'_>, wanted: &Wanted<'_>, loaded: Range<usize>) {
    let sequence = wanted.sequence;
    if loaded.is_empty() {
        return;
    }
    figures::add(&FIGURES.loaded_tokens, loaded.len());
    if records::is_oldest(context) {
        usage::loaded(sequence, loaded.len());
    }
    let number = |tokens: usize| {
        let position = media::position(&wanted.tokens[..tokens]);
        i32::try_from(position).unwrap_or(i32::MAX)
    };
    guard::compute(|| {
        push(Event::Loaded {
            context: contexts::id_of(context.pointer()),
            sequence,
            from: number(loaded.start),
            to: number(loaded.end),
            entries: u32::try_from(loaded.len()).unwrap_or(u32::MAX),
        });
    });
}

/// The state, and its position. `held`: how many tokens the engine holds.
fn search_state(
    context: Context<'_>,
    wanted: &Wanted<'_>,
    held: usize,
    may_flow: bool,
) -> Option<(usize, Prepared)> {
    let Wanted {
        sequence,
        tokens,
        believed,
        ..
    } = *wanted;
    // A chunk that is gone or damaged leaves the store: then there may be less.
    const ATTEMPTS: usize = 4;
    let found = with_index(context, |index, record| {
        let index = index.as_mut()?;
        if record.has_embeddings() || !record.session.may_load(sequence) {
            return None;
        }
        let conditions = record.conditions(sequence);
        let fingerprint = record.fingerprint(conditions)?;
        index.settle();
        let length = hidden::length(index, record, conditions, tokens)?;
        // The host has had the rows of all that it believes in.
        let tokens = tokens.get(..length.max(believed))?;
        for _ in 0..ATTEMPTS {
            let offer = index.offer_bounded(&fingerprint, tokens, held)?;
            let position = offer.position();
            let is_whole = media::whole(&tokens[..position]) == position;
            if !is_whole || !is_worth_loading(record, position, held, believed) {
                return None;
            }
            index.note_origin(fingerprint, || record.origin(conditions));
            if let Some(state) = prepare_state(index, record, &offer, (sequence, tokens), may_flow)
            {
                return Some((position, state));
            }
        }
        None
    });
    found.flatten()
}

fn is_worth_loading(record: &ContextStore, position: usize, held: usize, believed: usize) -> bool {
    let gained = position - held;
    let new = position.saturating_sub(believed);
    gained >= worth::LEAST_GAINED
        && new <= record.room(believed)
        && worth::loading(held, position, record.rates.worth_loading())
}

fn prepare_state(
    index: &mut StoreIndex,
    record: &mut ContextStore,
    offer: &BoundedOffer,
    of: (i32, &[i32]),
    may_flow: bool,
) -> Option<Prepared> {
    let shape = record.shape().cloned()?;
    let region = index.region_for_bounded(may_flow && record.flows, &shape, offer);
    if let (Some(layout), Some(region)) = (shape.dense(), region) {
        let outline = index.outline_bounded(offer, layout, of, region);
        return outline.map(Prepared::Outline);
    }
    let mut state = std::mem::take(&mut record.buffer);
    if index.compose_bounded(offer, &shape, of, &mut state) {
        return Some(Prepared::Composed(state));
    }
    record.buffer = state;
    None
}

/// Another sequence of the context that holds a beginning of what is wanted, and nothing else, and more than the store
/// has a state for.
pub(in crate::store) fn better_than_last_state(
    context: Context<'_>,
    run: &Run,
    wanted: &[i32],
) -> Option<i32> {
    let better = with_index(context, |index, record| {
        let index = index.as_mut()?;
        let conditions = record.conditions(run.sequence);
        let (sequence, shared) = record.session.sharing(run, wanted, conditions)?;
        let all = record.session.believed(sequence)?.len();
        let held = record.session.in_engine(run.sequence);
        if shared < all || shared < held + worth::LEAST_GAINED {
            return None;
        }
        let fingerprint = record.fingerprint(conditions)?;
        let stored = index.last_state_in(&fingerprint, wanted).max(held);
        worth::sharing(all, shared, stored, record.rates.worth_saving()).then_some(sequence)
    });
    better.flatten()
}
