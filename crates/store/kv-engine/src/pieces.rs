//! Batches of contexts that cannot go back to any position, whose beginnings are evaluated by calls of our own: a few tokens
//! at a time, as the engine itself computes them, and up to where other prompts may turn off, where tails are taken. That is
//! before the last message of a prompt, and where it leaves what is stored.

use contextpilot_kv_store::{Run, media, worth};

use crate::Refusal;
use crate::bounded::may_evaluate_ahead;
use crate::host::{Host, Part, Record, change_engine};
use crate::journal::ANYTHING;
use crate::tails::{MOST_BYTES, Tail};

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

/// Evaluates the beginnings of parts up to where other prompts may turn off, and takes tails there: before the last message
/// that begins in the batch, and where the prompt leaves what is stored. Not at exactly these places, but where the engine would
/// divide the batch, which is less than a `--ubatch-size` before: so the engine computes the same parts as without that.
///
/// # Errors
/// The engine refuses.
pub(crate) fn stop_at_turns<H: Host>(host: &H, parts: &[Part]) -> Result<(), Refusal> {
    let all = parts.iter();
    let prompts = all.filter(|part| {
        part.follows && !part.pending.get() && part.run.leading >= worth::LEAST_GAINED
    });
    for part in prompts {
        let message = host.last_message(&part.run);
        let Some((believed, most, stops)) = stops(host, &part.run, message) else {
            continue;
        };
        for stop in stops {
            let Some(there) = host.record(|record| record.session().there(&part.run)) else {
                return Ok(());
            };
            let end = stop - believed;
            if end > there {
                if !may_evaluate_ahead(host, part.run.sequence) {
                    break;
                }
                evaluate_to(host, parts, part, (believed, there), end, most)?;
            }
            take_tail(host, &part.run, end);
        }
    }
    Ok(())
}

/// Where the last message that has its first tokens among these begins: at the last special token with some tokens of text
/// behind it.
pub fn last_message(tokens: &[i32], is_special: impl Fn(i32) -> bool) -> Option<usize> {
    let mut text = 0;
    for (at, &token) in tokens.iter().enumerate().rev() {
        if !is_special(token) {
            text += 1;
        } else if text >= worth::LEAST_GAINED {
            return Some(at);
        } else {
            text = 0;
        }
    }
    None
}

/// How many tokens the server believes in, how many are evaluated by one call, and behind how many tokens tails are to be
/// taken, in order. `message`: where in the run one begins.
fn stops<H: Host>(
    host: &H,
    run: &Run,
    message: Option<usize>,
) -> Option<(usize, usize, Vec<usize>)> {
    let at_once = host.at_once()?;
    let sequence = run.sequence;
    host.with_states(sequence, |record, states| {
        let session = record.session();
        let believed = session.believed(sequence)?.len();
        let from = believed + session.there(run);
        let is_known = usize::try_from(run.first) == Ok(session.position(sequence, believed))
            && session.in_engine(sequence) == from
            && (from == 0 || session.under(sequence) == record.conditions(sequence))
            && session.may_load(sequence);
        if !is_known {
            return None;
        }
        let wanted = session.wanted(run);
        let mut places = vec![states.length_of(&wanted)];
        places.extend(message.map(|at| believed + at));
        places.retain(|place| (from..wanted.len()).contains(place));
        places.sort_unstable();
        let mut stops: Vec<usize> = Vec::new();
        for place in places {
            let stop = from + (place - from) / at_once * at_once;
            let before = &wanted[..place];
            let last = states.last_state_in(before);
            let last = last.max(record.tails().last(sequence, before));
            let last = last.max(stops.last().copied().unwrap_or(0));
            if stop > last && place - last >= at_once {
                stops.push(stop);
            }
        }
        let most = record.at_a_time();
        (!stops.is_empty()).then_some((believed, most, stops))
    })
}

/// The engine holds the run up to this entry: its tail is kept until the rows are copied out, too.
fn take_tail<H: Host>(host: &H, run: &Run, end: usize) {
    let size = host.part_size(run.sequence);
    if size.is_none_or(|size| size > MOST_BYTES) {
        return;
    }
    let mut part = Vec::new();
    if host.save_part(run.sequence, &mut part) {
        host.record(|record| {
            let tokens = record.session().after(run, end);
            keep_tail(record, run.sequence, tokens, &part)
        });
    }
}

/// The host has taken a checkpoint. Its tail is kept until the rows are copied out as well, so that the host does not wait for
/// them now.
pub fn keep_checkpoint(record: &mut impl Record, sequence: i32, part: &[u8]) {
    let session = record.session();
    let Some(tokens) = session.believed(sequence).map(<[_]>::to_vec) else {
        return;
    };
    if session.is_in_prompt(sequence) {
        keep_tail(record, sequence, tokens, part);
    }
}

/// The engine holds these tokens of a sequence, and this is its part that cannot be cut back.
fn keep_tail(record: &mut impl Record, sequence: i32, tokens: Vec<i32>, part: &[u8]) -> Option<()> {
    let conditions = record.session().conditions(sequence)?;
    let tail = record.tail_of(part)?;
    let (bytes, size) = (tail.to_vec(), record.size_of_tail(tail));
    record.tails_mut().add(Tail {
        sequence,
        tokens,
        conditions,
        bytes: std::sync::Arc::new(bytes),
        size,
    });
    Some(())
}

/// Evaluates the entries from `there` up to `end` of a part, whose sequence has `believed` tokens, by calls of our own. They are
/// then *ahead*, and left out. Whether it [may be](may_evaluate_ahead) is known.
///
/// # Errors
/// The engine refuses.
fn evaluate_to<H: Host>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_with_text_is_found() {
        let text = [9; 20];
        let found = |parts: &[&[i32]]| last_message(&parts.concat(), |token| token < 3);
        // System, user, and what an answer begins with.
        assert_eq!(
            found(&[&[1], &text, &[2, 7, 1], &text, &[2, 7, 1, 8, 7]]),
            Some(23)
        );
        assert_eq!(found(&[&[1], &text[..7], &[2]]), None);
        assert_eq!(found(&[&text]), None);
        assert_eq!(found(&[&text, &[1], &text[..8]]), Some(20));
        assert_eq!(found(&[]), None);
    }
}
