//! Takes states.

use std::sync::Arc;

use contextpilot_kv_engine::Engine as _;
use contextpilot_kv_store::{Layout, Run, worth};

use crate::store::context::ContextStore;
use crate::store::index::StoreIndex;
use crate::store::only_new::{self, Copied};
use crate::store::{Context, aside, with_index, with_record};

/// On the way through a prompt, states are that far apart, in tokens, or farther.
const MIDWAY: usize = 4096;

/// Keeps the tails of a sequence that were waiting, if their rows are there now. Those that are not of what the
/// sequence holds now are dropped.
fn keep_waiting(index: &mut Option<StoreIndex>, one: &mut ContextStore, sequence: i32) {
    let (Some(index), Some(tokens)) = (index, one.session.believed(sequence)) else {
        return;
    };
    let tokens = tokens.to_vec();
    for waiting in one.tails.take_of(sequence) {
        let kept = tokens.starts_with(&waiting.tokens)
            && one
                .fingerprint(waiting.conditions)
                .is_some_and(|fingerprint| {
                    index.keep_tail(&fingerprint, &waiting.tokens, &waiting.bytes)
                });
        if !kept && tokens.starts_with(&waiting.tokens) {
            one.tails.put_back(waiting);
        }
    }
}

/// A run was evaluated. If its prompt is long and goes on, a state may be worth taking.
pub(in crate::store) fn save_midway(context: Context<'_>, run: &Run) {
    let goes_on = run.leading == run.tokens.len() && run.tokens.len() >= worth::LEAST_LOST;
    let is_far = || {
        with_index(context, |index, one| {
            let conditions = one.session.conditions(run.sequence)?;
            let fingerprint = one.fingerprint(conditions)?;
            let tokens = one.session.believed(run.sequence)?;
            if tokens.len() < MIDWAY {
                return None;
            }
            let last = index.as_ref()?.last_state_in(&fingerprint, tokens);
            Some(tokens.len() - last >= MIDWAY)
        })
    };
    if goes_on && is_far().flatten() == Some(true) {
        save(context, run.sequence, 0, worth::MARGIN);
    }
}

/// Takes the state of a sequence that is about to keep only its first `kept` tokens. What is new must have taken `margin`
/// times as long to evaluate as copying all of it takes. Returns false if another thread has the index.
pub(in crate::store) fn save(
    context: Context<'_>,
    sequence: i32,
    kept: usize,
    margin: usize,
) -> bool {
    let wanted = with_index(context, |index, one| {
        if aside::is_due(index.as_ref(), one, sequence) {
            return (false, aside::wanted(one, sequence, kept, margin));
        }
        keep_waiting(index, one, sequence);
        let wanted = is_worth_saving(index, one, sequence, kept, margin);
        (index.is_some(), wanted)
    });
    let Some((asked, wanted)) = wanted else {
        return true;
    };
    let Some(copied) = wanted else {
        return asked;
    };
    let mut buffer = match copied {
        Copied::Whole(buffer) => buffer,
        Copied::From(from, layout) => {
            let new = only_new::copy_out(context, sequence, from, &layout);
            return new.is_none_or(|new| keep(context, sequence, (new.bytes(), new.from), None));
        }
    };
    let saved = only_new::copy_whole(context, sequence, &mut buffer);
    let state = Arc::new(buffer);
    let asked = !saved || keep(context, sequence, (&state, 0), Some(&state));
    // Else the writer has it.
    let buffer = Arc::try_unwrap(state).unwrap_or_default();
    with_record(context, |one| one.buffer = buffer);
    asked
}

/// Keeps what is new in the state that a sequence has now, with the rows from this position on. `ours`: its bytes, if they
/// may be handed over. Returns false if another thread has the index.
pub(in crate::store) fn keep(
    context: Context<'_>,
    sequence: i32,
    state: (&[u8], usize),
    ours: Option<&Arc<Vec<u8>>>,
) -> bool {
    let partial = context.part_size(sequence);
    let length = context.length(sequence);
    let Some(partial) = partial else {
        return true;
    };
    let asked = with_index(context, |index, one| {
        if aside::is_due(index.as_ref(), one, sequence) {
            let held = one.session.believed(sequence).map(<[_]>::len);
            if let Some(ours) = ours.filter(|_| length.is_some() && length == held) {
                aside::put(one, sequence, ours, Some(partial));
            }
            return true;
        }
        keep_new(index, one, sequence, state, ours, (partial, length));
        keep_waiting(index, one, sequence);
        index.is_some()
    });
    asked != Some(false)
}

fn keep_new(
    index: &mut Option<StoreIndex>,
    one: &mut ContextStore,
    sequence: i32,
    (state, rows_from): (&[u8], usize),
    ours: Option<&Arc<Vec<u8>>>,
    (partial, length): (usize, Option<usize>),
) -> Option<()> {
    let conditions = one.session.conditions(sequence)?;
    let fingerprint = one.fingerprint(conditions)?;
    let shape = one.shape()?;
    let tokens = one.session.believed(sequence)?;
    let index = index.as_mut()?;
    if length != Some(tokens.len()) || index.last_state_in(&fingerprint, tokens) == tokens.len() {
        return None;
    }
    // Else the engine holds something else than was seen: nothing is kept.
    let (dense, tail) = shape.divide(state, partial, tokens.len())?;
    let dense = dense.map(|state| state.with_rows_from(rows_from));
    index.keep_exact(&fingerprint, tokens, dense.as_ref(), tail, ours);
    if index.length_of(&fingerprint, tokens) > 0 {
        index.note(fingerprint, || one.origin(conditions));
    }
    Some(())
}

/// What is to be copied, if anything is.
fn is_worth_saving(
    index: &mut Option<StoreIndex>,
    one: &mut ContextStore,
    sequence: i32,
    kept: usize,
    margin: usize,
) -> Option<Copied> {
    let index = index.as_mut()?;
    let dense = one.shape()?.dense().cloned();
    let bytes = dense.as_ref().map_or(0, Layout::bytes_per_token);
    let conditions = one.session.conditions(sequence)?;
    let fingerprint = one.fingerprint(conditions)?;
    let tokens = one.session.believed(sequence)?;
    if tokens.len() < kept + worth::LEAST_LOST || one.session.is_draft(sequence, kept) {
        return None;
    }
    let missing = tokens.len() - index.last_state_in(&fingerprint, tokens);
    let is_worth = missing * one.rates.worth_saving() >= margin * tokens.len();
    let is_worth = is_worth && missing >= worth::LEAST_LOST;
    if !is_worth || !index.has_room(&fingerprint, tokens, bytes) {
        return None;
    }
    if let Some(layout) = dense {
        let there = index.length_of(&fingerprint, tokens);
        if only_new::is_enough(one.flows, &layout, tokens.len(), there) {
            return Some(Copied::From(there, layout));
        }
    }
    let buffer = index.buffer(&mut one.buffer, bytes * tokens.len());
    Some(Copied::Whole(buffer))
}
