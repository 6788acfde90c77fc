//! What is copied out of the engine, and when: what a sequence is about to lose, and what a crash would cost, where
//! the copy is cheap beside what was evaluated.
//!
//! Of a context that cannot go back to any position, a state is stored with its tail, and so are the tails that have waited for the
//! rows.

use std::sync::Arc;
use std::time::Instant;

use contextpilot_kv_engine::{Engine as _, is_bounded, synchronise};
use contextpilot_kv_store::{Fingerprint, Layout, Run, media, worth};

use super::calls::{before, hears};
use super::context::ContextStore;
use super::engine::Context;
use super::index::StoreIndex;
use super::index::held::with_index;
use super::only_new::{self, Copied, NewFrom};
use super::records::{FLUSH, be_patient, be_patient_for, with_record};
use super::{aside, hidden, own_batch};

/// A sequence is about to lose what stands from a position on. A negative sequence stands for all.
pub(crate) fn about_to_lose(context: Option<Context<'_>>, sequence: i32, from: i32) {
    let Some(context) = context else {
        return;
    };
    let from = usize::try_from(from).unwrap_or(0);
    before(context, || {
        let lost = with_record(context, |record| {
            let sequences = match sequence {
                0.. => vec![sequence],
                _ => record.session.sequences().collect(),
            };
            (sequences, record.session.index(sequence, from))
        });
        let (sequences, kept) = lost.unwrap_or_default();
        save_all(context, &sequences, kept);
    });
}

/// Saves sequences that are about to keep only their first `kept` tokens, as far as that is worth it.
fn save_all(context: Context<'_>, sequences: &[i32], kept: usize) {
    let lost = with_record(context, |record| {
        let lengths = sequences
            .iter()
            .map(|id| record.session.believed(*id).map_or(0, <[i32]>::len));
        lengths.max().unwrap_or(0).saturating_sub(kept)
    });
    be_patient_for(context, lost.unwrap_or(0));
    for &sequence in sequences {
        save(context, sequence, kept);
    }
}

/// Another sequence wants what this one holds, or an image follows that cannot be stored: as if it were about to be lost.
pub(super) fn share(context: Context<'_>, sequence: i32) {
    save(context, sequence, 0);
}

/// As [`about_to_lose`], of all sequences but one.
pub(crate) fn about_to_keep(context: Option<Context<'_>>, kept: i32) {
    let Some(context) = context else {
        return;
    };
    before(context, || {
        let sequences = with_record(context, |record| {
            let all = record.session.sequences();
            all.filter(|id| *id != kept).collect::<Vec<_>>()
        });
        save_all(context, &sequences.unwrap_or_default(), 0);
    });
}

/// The context is about to be freed: what it holds is saved, the longest sequence first.
pub(crate) fn about_to_free(context: Context<'_>, until: Instant) {
    before(context, || {
        // No client waits for a token.
        be_patient(context, FLUSH);
        aside::await_names(context, until);
        aside::settle(context);
        let sequences = with_record(context, |record| {
            let all = record.session.sequences();
            let length = |id| record.session.believed(id).map_or(0, <[i32]>::len);
            let mut all: Vec<_> = all.map(|id| (length(id), id)).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            all
        });
        for (_, sequence) in sequences.unwrap_or_default() {
            if Instant::now() < until {
                save(context, sequence, 0);
            }
        }
    });
    if hears(context) {
        own_batch::forget(context);
    }
}

/// A run was evaluated, and its sequence is about to lose nothing. If an answer has just begun, what is new is saved
/// nevertheless if that is cheap: then a crash costs little, and other servers that use the folder have it at once.
/// No client waits for it: the answer's first token has gone out.
pub(super) fn save_early(context: Context<'_>, run: &Run) {
    let due = with_record(context, |record| {
        let is_step = run.leading == 0 && run.tokens.len() == 1;
        let was_due = is_step && record.postponed.remove(&run.sequence);
        was_due || record.session.is_milestone(run, worth::STEPS)
    });
    if due == Some(true) && !save_if(context, run.sequence, 0, worth::MARGIN) {
        with_record(context, |record| record.postponed.insert(run.sequence));
    }
}

/// Saves a sequence that is about to keep only its first `kept` tokens, if that is worth it.
fn save(context: Context<'_>, sequence: i32, kept: usize) {
    save_if(context, sequence, kept, 1);
}

/// Returns false if another thread has the index.
fn save_if(context: Context<'_>, sequence: i32, kept: usize, margin: usize) -> bool {
    let may_be = with_record(context, |record| {
        may_be_worth(record, sequence, kept, margin)
    }) == Some(true);
    // Also for the tails that wait.
    let asked = if may_be || is_bounded(&context) {
        copy_out(context, sequence, kept, margin)
    } else {
        true
    };
    if may_be {
        // Also if all of its KV is there already: a server that drafts otherwise may have stored it.
        hidden::save(context, sequence);
    }
    asked
}

/// What is not worth it even if the store has nothing is not looked for.
fn may_be_worth(record: &ContextStore, sequence: i32, kept: usize, margin: usize) -> bool {
    let ratio = record.rates.worth_saving();
    let tokens = record.session.believed(sequence).map_or(0, <[i32]>::len);
    worth::saving(tokens, kept, 0, ratio, margin) && !record.session.is_draft(sequence, kept)
}

/// A run was evaluated. If the context cannot go back to any position, and the prompt is long and goes on, a state may be worth
/// taking.
pub(super) fn save_midway(context: Context<'_>, run: &Run) {
    let goes_on = run.leading == run.tokens.len() && run.tokens.len() >= worth::LEAST_LOST;
    let is_far = || {
        with_index(context, |index, record| {
            let conditions = record.session.conditions(run.sequence)?;
            let fingerprint = record.fingerprint(conditions)?;
            let tokens = record.session.believed(run.sequence)?;
            // A state within an image is of no use.
            if !worth::midway(tokens.len(), 0) || media::whole(tokens) < tokens.len() {
                return None;
            }
            let last = index.as_ref()?.last_state_in(&fingerprint, tokens);
            Some(worth::midway(tokens.len(), last))
        })
    };
    if goes_on && is_bounded(&context) && is_far().flatten() == Some(true) {
        copy_out(context, run.sequence, 0, worth::MARGIN);
    }
}

/// Copies a sequence out that is about to keep only its first `kept` tokens. What is new must have taken `margin` times as long to
/// evaluate as copying all of it takes. Returns false if another thread has the index.
fn copy_out(context: Context<'_>, sequence: i32, kept: usize, margin: usize) -> bool {
    let wanted = with_index(context, |index, record| {
        if aside::is_due(index.as_ref(), record, sequence) {
            return (false, aside::wanted(record, sequence, kept, margin));
        }
        insert_waiting(index, record, sequence);
        let wanted = what_to_save(index, record, sequence, kept, margin);
        (index.is_some(), wanted)
    });
    let Some((asked, wanted)) = wanted else {
        return true;
    };
    let Some(copied) = wanted else {
        return asked;
    };
    synchronise(&context, sequence);
    let mut buffer = match copied {
        Copied::Whole(buffer) => buffer,
        Copied::From(from, layout) => {
            let new = only_new::copy_out(context, sequence, from, &layout);
            return new
                .is_none_or(|new| insert(context, sequence, (new.bytes(), new.tokens), None));
        }
    };
    let saved = only_new::copy_whole(context, sequence, &mut buffer);
    let state = Arc::new(buffer);
    let asked = !saved || insert(context, sequence, (&state, 0), Some(&state));
    // Else the writer has it.
    let buffer = Arc::try_unwrap(state).unwrap_or_default();
    with_record(context, |record| record.buffer = buffer);
    asked
}

/// What is to be copied, if anything is worth it.
fn what_to_save(
    index: &mut Option<StoreIndex>,
    record: &mut ContextStore,
    sequence: i32,
    kept: usize,
    margin: usize,
) -> Option<Copied> {
    let index = index.as_mut()?;
    let layout = rows_of(record)?;
    let conditions = record.session.conditions(sequence)?;
    let fingerprint = record.fingerprint(conditions)?;
    let tokens = record.session.believed(sequence)?;
    let ratio = record.rates.worth_saving();
    let there = length_of(index, record, &fingerprint, tokens);
    let is_worth = worth::saving(tokens.len(), kept, there, ratio, margin);
    let bytes = layout.as_ref().map_or(0, Layout::bytes_per_token);
    let is_draft = record.session.is_draft(sequence, kept);
    if !is_worth || is_draft || !index.has_room(&fingerprint, tokens, bytes) {
        return None;
    }
    let size = match &layout {
        Some(layout) if record.bounds.is_none() => layout.state_size(tokens.len()),
        _ => bytes * tokens.len(),
    };
    if let Some(layout) = layout {
        let there = index.length_of(&fingerprint, tokens);
        if only_new::is_enough(record.flows, &layout, tokens.len(), there) {
            // Rows that share a position are all copied, or none is.
            let there = media::whole(&tokens[..there]);
            let from = NewFrom {
                tokens: there,
                position: media::position(&tokens[..there]),
            };
            return Some(Copied::From(from, layout));
        }
    }
    Some(Copied::Whole(index.buffer(&mut record.buffer, size)))
}

/// The layout of the rows in states of a context, if they have any that are stored by themselves. `None`: its states are not
/// understood.
fn rows_of(record: &ContextStore) -> Option<Option<Layout>> {
    match record.bounds {
        None => Some(Some(record.layout()?.clone())),
        Some(_) => Some(record.shape()?.dense().cloned()),
    }
}

/// How many of these tokens the store has a state of.
fn length_of(
    index: &StoreIndex,
    record: &ContextStore,
    fingerprint: &Fingerprint,
    tokens: &[i32],
) -> usize {
    match record.bounds {
        None => index.length_of(fingerprint, tokens),
        Some(_) => index.last_state_in(fingerprint, tokens),
    }
}

/// Stores what is new in the state that a sequence has now, and weighs nothing: with the rows from this position on. `ours`: its bytes, if they
/// may be handed over. Returns false if another thread has the index.
pub(super) fn insert(
    context: Context<'_>,
    sequence: i32,
    state: (&[u8], usize),
    ours: Option<&Arc<Vec<u8>>>,
) -> bool {
    // What the engine says comes before the record is looked at.
    let of_engine = if is_bounded(&context) {
        let Some(part) = context.part_size(sequence) else {
            return true;
        };
        Some((part, context.length(sequence)))
    } else {
        None
    };
    let asked = with_index(context, |index, record| {
        if aside::is_due(index.as_ref(), record, sequence) {
            let held = record.session.believed(sequence).map(media::reach);
            let is_of_these =
                of_engine.is_none_or(|(_, length)| length.is_some() && length == held);
            if let Some(ours) = ours.filter(|_| is_of_these) {
                aside::put(record, sequence, ours, of_engine.map(|(part, _)| part));
            }
            return true;
        }
        if let Some(index) = index {
            insert_new(index, record, sequence, state, ours, of_engine);
        }
        insert_waiting(index, record, sequence);
        index.is_some()
    });
    asked != Some(false)
}

/// `of_engine`: the size of the part of the state that cannot be cut back, and how many tokens the engine holds, if there is
/// such a part.
fn insert_new(
    index: &mut StoreIndex,
    record: &mut ContextStore,
    sequence: i32,
    (state, rows_from): (&[u8], usize),
    ours: Option<&Arc<Vec<u8>>>,
    of_engine: Option<(usize, Option<usize>)>,
) -> Option<()> {
    let conditions = record.session.conditions(sequence)?;
    let fingerprint = record.fingerprint(conditions)?;
    let tokens = record.session.believed(sequence)?;
    if length_of(index, record, &fingerprint, tokens) == tokens.len() {
        return None;
    }
    if of_engine.is_some_and(|(_, length)| length != Some(media::reach(tokens))) {
        // The engine holds something else than was seen.
        return None;
    }
    let part = of_engine.map(|(part, _)| part);
    let of_whom = (fingerprint, conditions, tokens);
    index.insert_state(record, of_whom, (state, rows_from), ours, part)
}

/// Inserts the tails of a sequence that were waiting, if their rows are there now. Those that are not of what the
/// sequence holds now are dropped.
fn insert_waiting(index: &mut Option<StoreIndex>, record: &mut ContextStore, sequence: i32) {
    let (Some(index), Some(tokens)) = (index, record.session.believed(sequence)) else {
        return;
    };
    if record.bounds.is_none() {
        return;
    }
    let tokens = tokens.to_vec();
    for waiting in record.tails.take_of(sequence) {
        let inserted = tokens.starts_with(&waiting.tokens)
            && record
                .fingerprint(waiting.conditions)
                .is_some_and(|fingerprint| {
                    index.insert_tail(&fingerprint, &waiting.tokens, &waiting.bytes)
                });
        if !inserted && tokens.starts_with(&waiting.tokens) {
            record.tails.put_back(waiting);
        }
    }
}
