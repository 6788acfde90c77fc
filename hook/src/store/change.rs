//! What is copied out of the engine, and when: what a sequence is about to lose, and what a crash would cost, where
//! the copy is cheap beside what was evaluated. And the changes of sequences other than evaluations.

use std::sync::Arc;
use std::time::Instant;

use contextpilot_kv_engine::{Change, bounded, changed, synchronise};
use contextpilot_kv_store::{Run, State as SequenceState, Why, worth};

use super::context::ContextStore;
use super::figures;
use super::index::StoreIndex;
use super::only_new::Copied;
use super::{
    Context, FLUSH, aside, be_patient, be_patient_for, before, exact, hears, hidden, only_new,
    own_batch, with_index, with_record,
};

/// A sequence is about to lose what is behind its first `kept` tokens. A negative sequence stands for all.
pub(crate) fn about_to_lose(context: Option<Context<'_>>, sequence: i32, kept: i32) {
    let Some(context) = context else {
        return;
    };
    let kept = usize::try_from(kept).unwrap_or(0);
    before(context, || {
        let sequences = with_record(context, |one| match sequence {
            0.. => vec![sequence],
            _ => one.session.sequences().collect(),
        });
        save_all(context, &sequences.unwrap_or_default(), kept);
    });
}

/// Saves sequences that are about to keep only their first `kept` tokens, as far as that is worth it.
fn save_all(context: Context<'_>, sequences: &[i32], kept: usize) {
    let lost = with_record(context, |one| {
        let lengths = sequences
            .iter()
            .map(|id| one.session.believed(*id).map_or(0, <[i32]>::len));
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
        let sequences = with_record(context, |one| {
            let all = one.session.sequences();
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
        let sequences = with_record(context, |one| {
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
    });
    if hears(context) {
        own_batch::forget(context);
    }
}

/// A run was evaluated, and its sequence is about to lose nothing. If an answer has just begun, what is new is saved
/// nevertheless if that is cheap: then a crash costs little, and other servers that use the folder have it at once.
/// No client waits for it: the answer's first token has gone out.
pub(super) fn save_early(context: Context<'_>, run: &Run) {
    let due = with_record(context, |one| {
        let is_step = run.leading == 0 && run.tokens.len() == 1;
        let was_due = is_step && one.postponed.remove(&run.sequence);
        was_due || one.session.is_milestone(run, worth::STEPS)
    });
    if due == Some(true) && !save_if(context, run.sequence, 0, worth::MARGIN) {
        with_record(context, |one| one.postponed.insert(run.sequence));
    }
}

/// Saves a sequence that is about to keep only its first `kept` tokens, if that is worth it.
fn save(context: Context<'_>, sequence: i32, kept: usize) {
    save_if(context, sequence, kept, 1);
}

/// Returns false if another thread has the index.
fn save_if(context: Context<'_>, sequence: i32, kept: usize, margin: usize) -> bool {
    let may_be =
        with_record(context, |one| may_be_worth(one, sequence, kept, margin)) == Some(true);
    let asked = if exact::is_exact(context) {
        exact::save(context, sequence, kept, margin)
    } else {
        !may_be || save_kv(context, sequence, kept, margin)
    };
    if may_be {
        // Also if all of its KV is there already: a server that drafts otherwise may have stored it.
        hidden::save(context, sequence);
    }
    asked
}

/// What is not worth it even if the store has nothing is not looked for.
fn may_be_worth(one: &ContextStore, sequence: i32, kept: usize, margin: usize) -> bool {
    let ratio = one.rates.worth_saving();
    let tokens = one.session.believed(sequence).map_or(0, <[i32]>::len);
    worth::saving(tokens, kept, 0, ratio, margin) && !one.session.is_draft(sequence, kept)
}

fn save_kv(context: Context<'_>, sequence: i32, kept: usize, margin: usize) -> bool {
    let wanted = with_index(context, |index, one| {
        if aside::is_due(index.as_ref(), one, sequence) {
            return (false, aside::wanted(one, sequence, kept, margin));
        }
        let wanted = is_worth_saving(index, one, sequence, kept, margin);
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
            let Some(new) = only_new::copy_out(context, sequence, from, &layout) else {
                return true;
            };
            let kept = with_index(context, |index, one| {
                keep(index, one, sequence, (new.bytes(), new.from), None);
                index.is_some()
            });
            return kept != Some(false);
        }
    };
    let saved = only_new::copy_whole(context, sequence, &mut buffer);
    let kept = with_index(context, |index, one| {
        if saved {
            let state = Arc::new(buffer);
            keep(index, one, sequence, (&state, 0), Some(&state));
            // Else the writer has it.
            buffer = Arc::try_unwrap(state).unwrap_or_default();
        }
        one.buffer = buffer;
        index.is_some()
    });
    kept != Some(false)
}

/// What is to be copied, if anything is: what the state has that the store has not must have taken `margin`
/// times as long to evaluate as the state takes to copy.
fn is_worth_saving(
    index: &mut Option<StoreIndex>,
    one: &mut ContextStore,
    sequence: i32,
    kept: usize,
    margin: usize,
) -> Option<Copied> {
    let index = index.as_mut()?;
    let bytes = one.layout()?.bytes_per_token();
    let conditions = one.session.conditions(sequence)?;
    let fingerprint = one.fingerprint(conditions)?;
    let tokens = one.session.believed(sequence)?;
    let ratio = one.rates.worth_saving();
    let there = index.length_of(&fingerprint, tokens);
    let is_worth = worth::saving(tokens.len(), kept, there, ratio, margin);
    if !is_worth || !index.has_room(&fingerprint, tokens, bytes) {
        return None;
    }
    let layout = one.layout()?;
    if only_new::is_enough(one.flows, layout, tokens.len(), there) {
        return Some(Copied::From(there, layout.clone()));
    }
    let size = layout.state_size(tokens.len());
    Some(Copied::Whole(index.buffer(&mut one.buffer, size)))
}

/// Takes what is new out of the state of a sequence, which has the rows from this position on.
/// `ours`: its bytes, if they may be handed over.
pub(super) fn keep(
    index: &mut Option<StoreIndex>,
    one: &mut ContextStore,
    sequence: i32,
    (state, rows_from): (&[u8], usize),
    ours: Option<&Arc<Vec<u8>>>,
) {
    if aside::is_due(index.as_ref(), one, sequence) {
        if let Some(ours) = ours {
            aside::put(one, sequence, ours, None);
        }
        return;
    }
    let Some(conditions) = one.session.conditions(sequence) else {
        return;
    };
    let fingerprint = one.fingerprint(conditions);
    let (Some(index), Some(layout), Some(fingerprint), Some(tokens)) = (
        index,
        one.layout(),
        fingerprint,
        one.session.believed(sequence),
    ) else {
        return;
    };
    if index.length_of(&fingerprint, tokens) == tokens.len() {
        return;
    }
    match SequenceState::read(state) {
        Ok(state)
            if state.layout() == layout && state.tokens() == tokens.len() && state.is_whole() =>
        {
            let state = state.with_rows_from(rows_from);
            index.keep(&fingerprint, tokens, &state, ours);
            if index.length_of(&fingerprint, tokens) > 0 {
                index.note(fingerprint, || one.origin(conditions));
            }
        }
        // The engine holds something else than was seen: nothing is kept.
        _ => {}
    }
}

/// Positions of a sequence were removed.
pub(crate) fn removed(context: Option<Context<'_>>, sequence: i32, from: i32, to: i32) {
    let Some(context) = context.filter(|context| hears(*context)) else {
        return;
    };
    let is_whole = from <= 0 && to < 0;
    let change = if is_whole {
        Change::Removed(sequence)
    } else {
        Change::Shortened(sequence)
    };
    changed(&context, change, |one| {
        one.session.removed(sequence, from, to);
    });
    bounded::check_window(&context, sequence);
}

/// Everything was removed.
pub(crate) fn cleared(context: Option<Context<'_>>) {
    if let Some(context) = context.filter(|context| hears(*context)) {
        changed(&context, Change::Removed(-1), |one| one.session.cleared());
    }
}

/// A sequence was copied.
pub(crate) fn copied(context: Option<Context<'_>>, source: i32, target: i32, from: i32, to: i32) {
    if let Some(context) = context.filter(|context| hears(*context)) {
        changed(&context, Change::Replaced(target), |one| {
            one.session.copied(source, target, from, to);
        });
    }
}

/// All sequences but one were removed.
pub(crate) fn kept(context: Option<Context<'_>>, sequence: i32) {
    if let Some(context) = context.filter(|context| hears(*context)) {
        changed(&context, Change::Kept(sequence), |one| {
            one.session.kept(sequence);
        });
    }
}

/// Why prompts in a sequence are neither loaded nor kept.
pub(super) fn name_of(why: Why) -> &'static str {
    match why {
        Why::Moved => "a slot that holds tokens that were moved (--cache-reuse, context shift)",
        Why::Restored => "a slot that was restored from a file",
        Why::Media => "a slot with an image or a sound that cannot be stored",
        Why::Unseen => "a slot whose tokens were not all seen",
    }
}

/// Positions of a sequence were moved.
pub(crate) fn moved(
    context: Option<Context<'_>>,
    sequence: i32,
    (from, to): (i32, i32),
    delta: i32,
) {
    if let Some(context) = context.filter(|context| hears(*context)) {
        changed(&context, Change::Replaced(sequence), |one| {
            one.session.moved(sequence, from, to, delta);
            if one.is_proven() && !one.has_embeddings() {
                figures::note_refusal(name_of(Why::Moved));
            }
        });
    }
}

/// What a sequence holds is not known any more; negative: of all.
pub(crate) fn obscured(context: Option<Context<'_>>, sequence: i32) {
    if let Some(context) = context.filter(|context| hears(*context)) {
        changed(&context, Change::Replaced(sequence), |one| {
            one.session.overwritten(sequence);
        });
    }
}
