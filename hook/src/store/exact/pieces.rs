//! Batches of contexts with sliding windows, a few tokens at a time: see [`exact`](super).

use std::time::Instant;

use contextpilot_kv_engine::{ANYTHING, Engine as _, Host as _, Part, Refusal};

use crate::store::engine::{Context, code};
use crate::store::with_record;

/// A batch was not evaluated to its end, as the host wanted: it believes in what the engine holds of it.
fn settle(context: Context<'_>, parts: &[Part]) {
    for part in parts {
        let sequence = part.run.sequence;
        let believed = with_record(context, |one| {
            one.session.settle(sequence);
            one.session.believed(sequence).map(<[_]>::len)
        });
        if let Some(believed) = believed.flatten() {
            context.journal(|journal| journal.evaluated(sequence, believed));
        }
    }
}

/// Evaluates the entries from `there` up to `end` of a part, whose sequence has `believed` tokens, by calls of our own. They are
/// then *ahead*, and left out. Returns the result that the server gets if the engine refuses.
pub(super) fn evaluate_to(
    context: Context<'_>,
    parts: &[Part],
    part: &Part,
    (believed, there): (usize, usize),
    end: usize,
    most: usize,
) -> i32 {
    let run = &part.run;
    let tokens = &run.tokens[there..end];
    let start = Instant::now();
    let from = believed + there;
    context.journal(|journal| journal.uncertain(run.sequence, believed, ANYTHING));
    match context.evaluate(run.sequence, from, tokens, most) {
        Ok(()) => {}
        // The host has stopped it, and asks what was evaluated until then.
        Err(Refusal::Stopped) => {
            let there = context.length(run.sequence);
            let there = there.and_then(|there| there.checked_sub(believed));
            with_record(context, |one| match there.filter(|there| *there <= end) {
                Some(there) => one
                    .session
                    .loaded(run.sequence, one.session.after(run, there)),
                None => one.session.obscure(run.sequence),
            });
            settle(context, parts);
            return code(Refusal::Stopped);
        }
        // No room. It is not known how much of it there is.
        Err(refusal) => {
            with_record(context, |one| {
                let tokens = one.session.after(run, end);
                one.session.loaded(run.sequence, tokens);
            });
            return code(refusal);
        }
    }
    with_record(context, |one| {
        let tokens = one.session.after(run, end);
        one.session.loaded(run.sequence, tokens);
        one.session.updated();
        one.rates.evaluated(end - there, start.elapsed());
    });
    context.journal(|journal| journal.uncertain(run.sequence, believed, believed + end));
    part.ours.set(part.ours.get() + tokens.len());
    0
}

/// Evaluates the beginnings of parts, so that no more tokens of the batch are left than are computed at once. They
/// are then *ahead*, and left out. Returns the result that the server gets if the engine refuses.
///
/// `whole` is set to false if more are left all the same.
pub(in crate::store) fn in_pieces(
    context: Context<'_>,
    parts: &[Part],
    all: usize,
    whole: &mut bool,
) -> i32 {
    let begun = with_record(context, |one| {
        let there = parts.iter().map(|part| {
            if part.pending.get() {
                part.indexes.len()
            } else {
                one.session.there(&part.run)
            }
        });
        Some((one.bounds?.at_once?, all - there.sum::<usize>()))
    });
    let Some((at_once, mut left)) = begun.flatten() else {
        return 0;
    };
    for part in parts.iter().filter(|part| !part.pending.get()) {
        if left <= at_once {
            break;
        }
        let run = &part.run;
        let known = with_record(context, |one| {
            let believed = one.session.believed(run.sequence)?.len();
            let follows = part.follows && usize::try_from(run.first) == Ok(believed);
            follows.then(|| (believed, one.session.there(run)))
        });
        let Some((believed, there)) = known.flatten() else {
            continue;
        };
        // The parts are those that the engine would make.
        let wanted = (left - at_once).next_multiple_of(at_once);
        let count = wanted.min(run.leading - there);
        let end = there + count;
        let result = evaluate_to(context, parts, part, (believed, there), end, at_once);
        if result != 0 {
            return result;
        }
        left -= count;
    }
    *whole = left <= at_once;
    0
}
