//! Batches of contexts with sliding windows, a few tokens at a time, as the engine itself computes them.

use contextpilot_kv_store::media;

use crate::Refusal;
use crate::bounded::may_evaluate_ahead;
use crate::change::change_engine;
use crate::host::{Host, Part, Record};
use crate::journal::ANYTHING;

/// A batch was not evaluated to its end, as the host wanted: it believes in what the engine holds of it.
fn settle<H: Host>(host: &H, parts: &[Part]) {
    for part in parts {
        let sequence = part.run.sequence;
        let believed = host.record(|record| {
            record.session_mut().settle(sequence);
            record.session().believed(sequence).map(media::position)
        });
        if let Some(believed) = believed.flatten() {
            host.journal(|journal| journal.evaluated(sequence, believed));
        }
    }
}

/// Evaluates the entries from `there` up to `end` of a part, whose sequence has `believed` tokens, by calls of our own. They are
/// then *ahead*, and left out. Whether it [may be](may_evaluate_ahead) is known.
///
/// # Errors
/// The engine refuses.
pub(crate) fn evaluate_to<H: Host>(
    host: &H,
    parts: &[Part],
    part: &Part,
    (believed, there): (usize, usize),
    end: usize,
    most: usize,
) -> Result<(), Refusal> {
    let run = &part.run;
    let sequence = run.sequence;
    let tokens = &run.tokens[there..end];
    let first = host.record(|record| record.session().position(sequence, believed));
    let Some(first) = first else {
        return Ok(());
    };
    let evaluate = || {
        let result = host.evaluate_of_batch(sequence, first + there, tokens, most);
        let stopped = result == Err(Refusal::Stopped);
        // The host has stopped it, and asks what was evaluated until then.
        let length = if stopped { host.length(sequence) } else { None };
        (result, length)
    };
    let (result, _) = change_engine(
        host,
        sequence,
        first,
        evaluate,
        |record, (result, length)| {
            let session = record.session_mut();
            let there = match result {
                // Without room, it is not known how much of it there is.
                Ok(()) | Err(Refusal::NoRoom | Refusal::Failed) => Some(end),
                Err(Refusal::Stopped) => {
                    let there = length.and_then(|length| length.checked_sub(first));
                    there.filter(|there| *there <= end)
                }
            };
            match there {
                Some(there) => session.loaded(sequence, session.after(run, there)),
                None => session.obscure(sequence),
            }
            if result.is_ok() {
                session.updated();
            }
            match (result, there) {
                (Ok(()) | Err(Refusal::Stopped), Some(there)) => first + there,
                _ => ANYTHING,
            }
        },
    );
    match result {
        Ok(()) => part.ours.set(part.ours.get() + tokens.len()),
        Err(Refusal::Stopped) => settle(host, parts),
        Err(_) => {}
    }
    result
}

/// Evaluates the beginnings of parts, so that no more tokens of the batch are left than are computed at once. They are then
/// *ahead*, and left out. Returns whether no more are left.
///
/// # Errors
/// The engine refuses.
pub(crate) fn in_pieces<H: Host>(
    host: &H,
    parts: &[Part],
    entries: usize,
) -> Result<bool, Refusal> {
    let begun = host.record(|record| {
        let there = parts.iter().map(|part| part.left_out(record.session()));
        Some((record.bounds()?.at_once?, entries - there.sum::<usize>()))
    });
    let Some((at_once, mut left)) = begun.flatten() else {
        return Ok(true);
    };
    for part in parts.iter().filter(|part| !part.pending.get()) {
        if left <= at_once {
            break;
        }
        let run = &part.run;
        let known = host.record(|record| {
            let believed = record.session().believed(run.sequence)?.len();
            let follows = part.follows && usize::try_from(run.first) == Ok(believed);
            follows.then(|| (believed, record.session().there(run)))
        });
        let Some((believed, there)) = known.flatten() else {
            continue;
        };
        if !may_evaluate_ahead(host, run.sequence) {
            continue;
        }
        // The parts are those that the engine would make.
        let wanted = (left - at_once).next_multiple_of(at_once);
        let count = wanted.min(run.leading - there);
        evaluate_to(host, parts, part, (believed, there), there + count, at_once)?;
        left -= count;
    }
    Ok(left <= at_once)
}
