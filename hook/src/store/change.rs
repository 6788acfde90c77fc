//! Changes of sequences by the host, other than evaluations.

use contextpilot_kv_engine::{Change, bounded, changed};
use contextpilot_kv_store::Why;

use super::calls::hears;
use super::engine::Context;
use super::figures;

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
    changed(&context, change, |record| {
        record.session.removed(sequence, from, to);
    });
    bounded::check_window(&context, sequence);
}

/// Everything was removed.
pub(crate) fn cleared(context: Option<Context<'_>>) {
    if let Some(context) = context.filter(|context| hears(*context)) {
        changed(&context, Change::Removed(-1), |record| {
            record.session.cleared()
        });
    }
}

/// A sequence was copied.
pub(crate) fn copied(context: Option<Context<'_>>, source: i32, target: i32, from: i32, to: i32) {
    if let Some(context) = context.filter(|context| hears(*context)) {
        changed(&context, Change::Replaced(target), |record| {
            record.session.copied(source, target, from, to);
        });
    }
}

/// All sequences but one were removed.
pub(crate) fn kept(context: Option<Context<'_>>, sequence: i32) {
    if let Some(context) = context.filter(|context| hears(*context)) {
        changed(&context, Change::Kept(sequence), |record| {
            record.session.kept(sequence);
        });
    }
}

/// Why prompts in a sequence are neither loaded nor kept.
pub(super) fn name_of(why: Why) -> &'static str {
    match why {
        Why::Moved => "a slot that holds tokens that were moved (--cache-reuse, context shift)",
        Why::Restored => "a slot that was restored from a file",
        Why::Media => "a slot with an image or a sound that cannot be stored",
        Why::Doubt => {
            "a slot that was evaluated when the model's file got another name, or other rights"
        }
        Why::Window => "a slot that went back farther than the rows of its windows reach",
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
        changed(&context, Change::Replaced(sequence), |record| {
            record.session.moved(sequence, from, to, delta);
            if record.is_proven() && !record.has_embeddings() {
                figures::note_refusal(name_of(Why::Moved));
            }
        });
    }
}

/// What a sequence holds is not known any more; negative: of all.
pub(crate) fn obscured(context: Option<Context<'_>>, sequence: i32) {
    if let Some(context) = context.filter(|context| hears(*context)) {
        changed(&context, Change::Replaced(sequence), |record| {
            record.session.overwritten(sequence);
        });
    }
}
