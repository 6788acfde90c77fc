//! What is copied out of the engine, and when: what a sequence is about to lose, and what a crash would cost, where
//! the copy is cheap beside what was evaluated. And the changes of sequences other than evaluations.

use std::sync::Arc;
use std::time::Instant;

use contextpilot_kv_store::{Run, State as SequenceState, worth};

use super::context::ContextStore;
use super::figures::{self, FIGURES};
use super::shelf::Shelf;
use super::{acts, ahead, engine, exact, with_context};
use crate::base::abi::Pointer;
use crate::base::guard::EngineCall;

/// A sequence is about to lose what is behind its first `kept` tokens. A negative sequence stands for all.
pub(crate) fn about_to_lose(call: &EngineCall, context: Option<Pointer>, sequence: i32, kept: i32) {
    let Some(context) = context.filter(|_| acts(call)) else {
        return;
    };
    let kept = usize::try_from(kept).unwrap_or(0);
    let sequences = with_context(context, |_, one| match sequence {
        0.. => vec![sequence],
        _ => one.session.sequences().collect(),
    });
    for sequence in sequences.unwrap_or_default() {
        save(context, sequence, kept);
    }
}

/// Another sequence wants what this one holds: as if that were about to be lost.
pub(super) fn share(context: Pointer, sequence: i32) {
    save(context, sequence, 0);
}

/// As [`about_to_lose`], of all sequences but one.
pub(crate) fn about_to_keep(call: &EngineCall, context: Option<Pointer>, kept: i32) {
    let Some(context) = context.filter(|_| acts(call)) else {
        return;
    };
    let sequences = with_context(context, |_, one| {
        let all = one.session.sequences();
        all.filter(|id| *id != kept).collect::<Vec<_>>()
    });
    for sequence in sequences.unwrap_or_default() {
        save(context, sequence, 0);
    }
}

/// The context is about to be freed: what it holds is saved, the longest sequence first.
pub(crate) fn about_to_free(call: &EngineCall, context: Pointer, until: Instant) {
    if !acts(call) {
        return;
    }
    let sequences = with_context(context, |_, one| {
        let all = one.session.sequences();
        let length = |id| one.session.believed(id).map_or(0, <[i32]>::len);
        let mut all: Vec<_> = all.map(|id| (length(id), id)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all
    });
    for (_, sequence) in sequences.unwrap_or_default() {
        if Instant::now() < until {
            save(context, sequence, 0);
        }
    }
    super::evaluate::forget(context);
}

/// A run was evaluated, and its sequence is about to lose nothing. If an answer has just begun, what is new is saved
/// nevertheless if that is cheap: then a crash costs little, and other servers that use the folder have it at once.
/// Nobody waits for it: the answer's first token has gone out.
pub(super) fn save_early(context: Pointer, run: &Run) {
    let milestone = with_context(context, |_, one| {
        one.session.is_milestone(run, worth::STEPS)
    });
    if milestone == Some(true) {
        save_if(context, run.sequence, 0, worth::MARGIN);
    }
}

/// Saves a sequence that is about to keep only its first `kept` tokens, if that is worth it.
fn save(context: Pointer, sequence: i32, kept: usize) {
    save_if(context, sequence, kept, 1);
}

fn save_if(context: Pointer, sequence: i32, kept: usize, margin: usize) {
    if exact::is_exact(context) {
        return exact::save(context, sequence, kept, margin);
    }
    let wanted = with_context(context, |shelf, one| {
        is_worth_saving(shelf, one, sequence, kept, margin)
    });
    let Some(mut buffer) = wanted.flatten() else {
        return;
    };
    ahead::remove_in(context, sequence);
    let start = Instant::now();
    // SAFETY: our caller's caller uses the context.
    let saved = unsafe { engine::save(context, sequence, &mut buffer) };
    let took = start.elapsed();
    figures::add_time(&FIGURES.save_nanos, took);
    with_context(context, |shelf, one| {
        if saved {
            let tokens = one.session.believed(sequence).map_or(0, <[_]>::len);
            one.rates.saved(tokens, took);
            let state = Arc::new(buffer);
            keep(shelf, one, sequence, &state, Some(&state));
            // Else the writer has it.
            buffer = Arc::try_unwrap(state).unwrap_or_default();
        }
        one.buffer = buffer;
    });
}

/// The memory for the state, if the state is wanted: what it has that the store has not must have taken `margin`
/// times as long to evaluate as the state takes to copy.
fn is_worth_saving(
    shelf: &mut Option<Shelf>,
    one: &mut ContextStore,
    sequence: i32,
    kept: usize,
    margin: usize,
) -> Option<Vec<u8>> {
    let shelf = shelf.as_mut()?;
    let bytes = one.layout.as_ref()?.bytes_per_token();
    let conditions = one.session.conditions(sequence)?;
    let fingerprint = one.fingerprint(conditions)?;
    let tokens = one.session.believed(sequence)?;
    let ratio = one.rates.worth_saving();
    // What is not worth it even if the store has nothing is not looked for.
    if !worth::saving(tokens.len(), kept, 0, ratio, margin) || one.session.is_draft(sequence, kept)
    {
        return None;
    }
    let there = shelf.length_of(&fingerprint, tokens);
    let is_worth = worth::saving(tokens.len(), kept, there, ratio, margin);
    if !is_worth || !shelf.has_room(&fingerprint, tokens, bytes) {
        return None;
    }
    let size = one.layout.as_ref()?.state_size(tokens.len());
    Some(shelf.buffer(&mut one.buffer, size))
}

/// Takes what is new out of the state of a sequence.
/// `ours`: its bytes, if they may be handed over.
pub(super) fn keep(
    shelf: &mut Option<Shelf>,
    one: &mut ContextStore,
    sequence: i32,
    state: &[u8],
    ours: Option<&Arc<Vec<u8>>>,
) {
    let Some(conditions) = one.session.conditions(sequence) else {
        return;
    };
    let fingerprint = one.fingerprint(conditions);
    let (Some(shelf), Some(layout), Some(fingerprint), Some(tokens)) = (
        shelf,
        &one.layout,
        fingerprint,
        one.session.believed(sequence),
    ) else {
        return;
    };
    if shelf.length_of(&fingerprint, tokens) == tokens.len() {
        return;
    }
    match SequenceState::read(state) {
        Ok(state)
            if state.layout() == layout && state.tokens() == tokens.len() && state.is_whole() =>
        {
            shelf.name_model(fingerprint, || one.model_name(conditions));
            shelf.note_origin(fingerprint, || one.origin(conditions));
            shelf.keep(&fingerprint, tokens, &state, ours);
        }
        // The engine holds something else than was seen: nothing is kept.
        _ => {}
    }
}

/// Positions of a sequence were removed.
pub(crate) fn removed(
    call: &EngineCall,
    context: Option<Pointer>,
    sequence: i32,
    from: i32,
    to: i32,
) {
    if let Some(context) = context.filter(|_| acts(call)) {
        with_context(context, |_, one| one.session.removed(sequence, from, to));
        exact::check_window(context, sequence);
    }
}

macro_rules! noted {
    ($($(#[$doc:meta])* $name:ident($($argument:ident),*) => $method:ident;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name(call: &EngineCall, context: Option<Pointer>, $($argument: i32),*) {
            if let Some(context) = context.filter(|_| acts(call)) {
                with_context(context, |_, one| one.session.$method($($argument),*));
            }
        }
    )*};
}
noted! {
    /// Everything was removed.
    cleared() => cleared;
    /// A sequence was copied.
    copied(source, target, from, to) => copied;
    /// All sequences but one were removed.
    kept(sequence) => kept;
    /// What a sequence holds is not known any more; negative: of all.
    obscured(sequence) => obscure;
}
