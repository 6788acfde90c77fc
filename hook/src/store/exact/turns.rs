//! Tails where other prompts may turn off: see [`exact`](super), *Where states are taken*.

use contextpilot_kv_engine::{Engine as _, Part, Record as _};
use contextpilot_kv_store::{Run, worth};

use super::pieces::evaluate_to;
use super::take::keep_partial;
use super::{Context, with_index, with_record};
use crate::capture::contexts;
use crate::store::tails::MOST_BYTES;

/// Evaluates the beginnings of parts up to where other prompts may turn off, and takes tails there: before the last message
/// that begins in the batch, and where the prompt leaves what is stored. Not at exactly these places, but where the engine would
/// divide the batch, which is less than a `--ubatch-size` before: so the engine computes the same parts as without that.
/// Returns the result that the server gets if the engine refuses.
pub(in crate::store) fn stop_at_turns(context: Context<'_>, parts: &[Part]) -> i32 {
    let all = parts.iter();
    let prompts =
        all.filter(|part| part.follows && !part.pending.get() && part.run.leading >= worth::LEAST);
    for part in prompts {
        let message = last_message(context, &part.run);
        let Some((believed, most, stops)) = stops(context, &part.run, message) else {
            continue;
        };
        for stop in stops {
            let there = with_record(context, |one| one.session.there(&part.run));
            let Some(there) = there else {
                return 0;
            };
            let end = stop - believed;
            if end > there {
                let result = evaluate_to(context, parts, part, (believed, there), end, most);
                if result != 0 {
                    return result;
                }
            }
            take(context, &part.run, end);
        }
    }
    0
}

/// Where the last message that has its first tokens in this run begins: at the last special token with some tokens
/// of text behind it.
fn last_message(context: Context<'_>, run: &Run) -> Option<usize> {
    let is_control = context.is_control()?;
    behind_which_is_text(&run.tokens[..run.leading], |token| is_control(*token))
}

fn behind_which_is_text(tokens: &[i32], is_special: impl Fn(&i32) -> bool) -> Option<usize> {
    let mut text = 0;
    for (at, token) in tokens.iter().enumerate().rev() {
        if !is_special(token) {
            text += 1;
        } else if text >= worth::LEAST {
            return Some(at);
        } else {
            text = 0;
        }
    }
    None
}

/// How many tokens the server believes in, how many are evaluated by one call, and the positions at which tails are to be
/// taken, in order.
fn stops(
    context: Context<'_>,
    run: &Run,
    message: Option<usize>,
) -> Option<(usize, usize, Vec<usize>)> {
    let at_once = contexts::at_once_in(context.pointer())? as usize;
    let found = with_index(context, |index, one| {
        let index = index.as_mut()?;
        let sequence = run.sequence;
        let conditions = one.conditions(sequence);
        let believed = one.session.believed(sequence)?.len();
        let from = believed + one.session.there(run);
        let is_known = one.shape().is_some()
            && !one.has_embeddings()
            && usize::try_from(run.first) == Ok(believed)
            && one.session.in_engine(sequence) == from
            && (from == 0 || one.session.under(sequence) == conditions)
            && one.session.may_load(sequence);
        if !is_known {
            return None;
        }
        let fingerprint = one.fingerprint(conditions)?;
        let wanted = one.session.wanted(run);
        let leaves = index.length_of(&fingerprint, &wanted);
        let mut places = vec![leaves];
        places.extend(message.map(|at| believed + at));
        places.retain(|place| (from..wanted.len()).contains(place));
        places.sort_unstable();
        let mut stops: Vec<usize> = Vec::new();
        for place in places {
            let stop = from + (place - from) / at_once * at_once;
            let before = &wanted[..place];
            let last = index.last_state_in(&fingerprint, before);
            let last = last.max(one.waiting.last(sequence, before));
            let last = last.max(stops.last().copied().unwrap_or(0));
            if stop > last && place - last >= at_once {
                stops.push(stop);
            }
        }
        let most = one.at_a_time();
        (!stops.is_empty()).then_some((believed, most, stops))
    });
    found.flatten()
}

/// The engine holds the run up to this entry: its tail is kept until the rows are copied out, too.
fn take(context: Context<'_>, run: &Run, end: usize) {
    let size = context.part_size(run.sequence);
    if size.is_none_or(|size| size > MOST_BYTES) {
        return;
    }
    let mut partial = Vec::new();
    if context.save_part(run.sequence, &mut partial) {
        with_record(context, |one| {
            let tokens = one.session.after(run, end);
            let conditions = one.session.conditions(run.sequence)?;
            keep_partial(one, run.sequence, (tokens, conditions), &partial)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_with_text_is_found() {
        let text = [9; 20];
        let found = |parts: &[&[i32]]| behind_which_is_text(&parts.concat(), |token| *token < 3);
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
