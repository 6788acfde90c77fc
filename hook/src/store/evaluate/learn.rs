//! Learns the layout of a context's states from a state that the engine gives.

use contextpilot_kv_engine::{Engine as _, Part, is_bounded};
use contextpilot_kv_store::{Layout, LayoutError, Shape, prove};

use crate::base::guard;
use crate::store::context::ContextStore;
use crate::store::engine::Context;
use crate::store::records::with_record;

/// Tokens that are enough to see of what the state of a sequence consists.
const ENOUGH: usize = 2;

/// A server that warms up evaluates two tokens before its first prompt, and so shows the state of a sequence. (If
/// that is not understood, a prompt's may be.)
pub(super) fn learn_from_warm_up(context: Context<'_>, sequence: i32) {
    if !is_to_learn(context) || context.length(sequence) != Some(ENOUGH) {
        return;
    }
    let proven = prove_one(context, sequence);
    with_record(context, |record| match proven {
        Some(Understood::Dense(Err(_)) | Understood::Exact(Err(_))) | None => {}
        Some(proven) => learn(record, proven),
    });
}

/// Before the first prompt of a context whose layout is not known: evaluates its first two tokens, to see
/// the state of a sequence. They are then removed, and evaluated again with the rest, or loaded.
pub(super) fn learn_layout(context: Context<'_>, parts: &[Part]) {
    if !is_to_learn(context) {
        return;
    }
    let wanted = with_record(context, |record| {
        let fresh = |part: &Part| {
            let run = &part.run;
            let empty = record.session.believed(run.sequence) == Some(&[]);
            part.follows && run.first == 0 && run.leading > ENOUGH && empty
        };
        parts.iter().position(fresh)
    });
    let Some(part) = wanted.flatten().map(|at| &parts[at]) else {
        return;
    };
    let sequence = part.run.sequence;
    let first = &part.run.tokens[..ENOUGH];
    if context.evaluate(sequence, 0, first, ENOUGH).is_ok() {
        prove_layout(context, std::slice::from_ref(part));
    }
    context.cut(sequence, 0);
}

/// Whether a context could have a store if its states were understood.
fn is_to_learn(context: Context<'_>) -> bool {
    let is = |record: &mut ContextStore| {
        !record.is_proven() && !record.is_refused() && !record.has_embeddings()
    };
    with_record(context, is) == Some(true)
}

/// Proves that states of this context can be taken apart and put together, as soon as it holds two tokens.
/// Until then it has no store.
pub(super) fn prove_layout(context: Context<'_>, parts: &[Part]) {
    let wanted = with_record(context, |record| {
        !record.is_proven() && !record.is_refused()
    });
    if wanted != Some(true) {
        return;
    }
    let mut sequences = parts.iter().map(|part| part.run.sequence);
    if let Some(proven) = sequences.find_map(|sequence| prove_one(context, sequence)) {
        with_record(context, |record| learn(record, proven));
    }
}

/// `None`: this sequence is too short, or the engine does not give its state.
fn prove_one(context: Context<'_>, sequence: i32) -> Option<Understood> {
    context
        .length(sequence)
        .filter(|&length| length >= ENOUGH)?;
    let mut state = with_record(context, |record| std::mem::take(&mut record.buffer))?;
    let saved = context.save(sequence, &mut state);
    let proven = if !saved {
        None
    } else if is_bounded(&context) {
        let mut partial = Vec::new();
        let saved = context.save_part(sequence, &mut partial);
        let prove = || Understood::Exact(Shape::prove(&state, &partial));
        saved.then(|| guard::compute(prove)).flatten()
    } else {
        guard::compute(|| Understood::Dense(prove(&state)))
    };
    with_record(context, |record| record.buffer = std::mem::take(&mut state));
    proven
}

/// What came of a proof.
enum Understood {
    Dense(Result<Layout, LayoutError>),
    Exact(Result<Shape, LayoutError>),
}

fn learn(record: &mut ContextStore, proven: Understood) {
    match proven {
        Understood::Dense(Ok(layout)) => record.set_layout(layout),
        Understood::Exact(Ok(shape)) => record.set_shape(shape),
        Understood::Dense(Err(error)) | Understood::Exact(Err(error)) => {
            let why = format!("the state of its sequences is not understood ({error})");
            record.refuse_aloud(&why);
        }
    }
}
