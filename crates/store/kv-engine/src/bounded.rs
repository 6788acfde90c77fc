//! Contexts that cannot go back to any position: with sliding windows, recurrent, or both.
//!
//! A state of theirs stands for one position. While a prompt goes on along what is stored, and a state lies ahead, its tokens are
//! left out without anything being loaded: they are *pending*. The engine then holds less than the host believes. Before
//! the sequence is looked at, the engine is made to [reach](complete) what the host believes: the state that is nearest
//! before is loaded, and what is behind it evaluated.
//!
//! The rows of an image or a sound are there during one call of the host's, and cannot be evaluated later. So nothing before one is
//! pending when it is evaluated, and it is left out only if a state was stored right behind it ([`prepare_media`]): no row is
//! ever pending.
//!
//! The beginning of a batch is evaluated by calls of our own: a few tokens at a time, as the engine itself computes them, and
//! up to where other prompts may turn off, where tails are taken. That is before the last message of a prompt, and where it
//! leaves what is stored.

use std::sync::Arc;

use contextpilot_kv_store::{Run, media, worth};

use crate::Refusal;
use crate::change::{Plan, carry_out, change_engine, put_back};
use crate::host::{Host, Part, Record, Supply, Wanted};
use crate::journal::{ANYTHING, Aside};
use crate::tails::{MOST_BYTES, Tail};

/// Does what is to be done before a batch of so many entries is evaluated. Returns whether no more is left of it than the
/// context computes at once, if that matters.
///
/// # Errors
/// Why that is not possible.
pub(crate) fn prepare_batch<H: Host>(
    host: &H,
    parts: &[Part],
    entries: usize,
) -> Result<bool, Refusal> {
    // What is pending takes room that the server believes to be taken. It is evaluated before other tokens get that room.
    let is_short = host.record(|record| {
        let session = record.session();
        session.pending_sequences().next().is_some() && session.held() + entries > record.size()
    });
    if is_short == Some(true) {
        complete(host, -1);
    }
    for part in parts {
        prepare_part(host, part)?;
    }
    stop_at_turns(host, parts)?;
    in_pieces(host, parts, entries)
}

/// Loads what a part needs, or leaves it pending.
fn prepare_part<H: Host>(host: &H, part: &Part) -> Result<(), Refusal> {
    let run = &part.run;
    let sequence = run.sequence;
    let known = continues(host, part);
    match known {
        None => Ok(()),
        Some((_, true)) => Err(Refusal::Failed),
        Some((false, false)) => {
            reach(host, sequence, None, true)?;
            host.record(|record| record.session_mut().obscure(sequence));
            Ok(())
        }
        Some((true, false)) if host.is_uncached(sequence) => reach(host, sequence, None, true),
        Some((true, false)) if host.may_wait(run) => {
            part.pending.set(true);
            Ok(())
        }
        Some((true, false)) => reach(host, sequence, Some(run), true),
    }
}

/// Whether a part goes on with what its sequence holds, and whether that is lost. `None`: the library has stopped.
fn continues<H: Host>(host: &H, part: &Part) -> Option<(bool, bool)> {
    let sequence = part.run.sequence;
    check_window(host, sequence);
    host.record(|record| {
        let conditions = record.conditions(sequence);
        let continues = part.follows && record.session_mut().continues(&part.run, conditions);
        (continues, record.session().is_lost(sequence))
    })
}

/// An image or a sound is about to be evaluated, all of whose rows this part has. True: the engine holds them now, since a state was
/// stored right behind them. Else it holds all that is before.
///
/// # Errors
/// Why that is not possible.
pub fn prepare_media<H: Host>(host: &H, part: &Part) -> Result<bool, Refusal> {
    let run = &part.run;
    let sequence = run.sequence;
    let known = continues(host, part);
    let Some((continues, is_lost)) = known else {
        return Ok(false);
    };
    if is_lost {
        return Err(Refusal::Failed);
    }
    let is_stored = || {
        let found = host.with_states(sequence, |record, states| {
            let wanted = record.session().wanted(run);
            Some(states.last_state_in(&wanted) == wanted.len())
        });
        found == Some(true)
    };
    let may_load = continues && !host.is_uncached(sequence) && is_stored();
    reach(host, sequence, may_load.then_some(run), true)?;
    let there = host.record(|record| {
        if !continues {
            record.session_mut().obscure(sequence);
        }
        record.session().there(run)
    });
    Ok(there == Some(run.tokens.len()))
}

/// Gives the engine what it lacks of a sequence that is about to be looked at; a negative sequence stands for all. If that
/// fails, the sequence is lost: the host hears of it at its next evaluation.
pub fn complete<H: Host>(host: &H, sequence: i32) {
    let all = host.record(|record| {
        let pending = record.session().pending_sequences();
        let wanted = pending.filter(|id| sequence < 0 || *id == sequence);
        wanted.collect::<Vec<_>>()
    });
    for sequence in all.unwrap_or_default() {
        if reach(host, sequence, None, true).is_err() {
            host.record(|record| record.session_mut().lose(sequence));
        }
    }
}

/// The engine did not evaluate a batch for which states were loaded: what they hold of the batch must not stay, and
/// as they cannot be cut, nothing of them does. Negative: of all sequences.
pub fn undo<H: Host>(host: &H, sequence: i32) {
    let all = host.record(|record| {
        let ahead = record.session().ahead().map(|(id, _)| id);
        let wanted = ahead.filter(|id| sequence < 0 || *id == sequence);
        wanted.collect::<Vec<_>>()
    });
    for sequence in all.unwrap_or_default() {
        if !go_back_aside(host, sequence) {
            empty(host, sequence);
        }
    }
}

/// The engine gets back what was put aside of a sequence before a state was loaded. False: nothing was, or the engine refuses it.
fn go_back_aside<H: Host>(host: &H, sequence: i32) -> bool {
    let tokens = host.journal(|journal| Some(journal.aside_of(sequence)?.tokens));
    let Some(tokens) = tokens.flatten() else {
        return false;
    };
    let believed = believed(host, sequence);
    let work = || put_back(host, sequence);
    change_engine(host, sequence, believed, work, |record, is_back| {
        let held = if *is_back { tokens } else { 0 };
        let first = record.bounds().map_or(0, |bounds| bounds.first_row(held));
        let session = record.session_mut();
        session.set_in_engine(sequence, held);
        session.begin_at(sequence, first);
        session.position(sequence, held)
    })
}

/// Puts aside what the engine holds of a sequence: so many tokens. False: it does not give it.
fn put_aside<H: Host>(host: &H, sequence: i32, tokens: usize) -> bool {
    let mut state = Vec::new();
    let is_saved = host.save(sequence, &mut state);
    if is_saved {
        let aside = Aside {
            sequence,
            tokens,
            state,
        };
        host.journal(|journal| journal.put_aside(aside));
    }
    is_saved
}

/// The position up to which the host believes in a sequence.
fn believed<H: Host>(host: &H, sequence: i32) -> usize {
    let believed = host.record(|record| record.session().believed(sequence).map(media::position));
    believed.flatten().unwrap_or(0)
}

fn empty<H: Host>(host: &H, sequence: i32) {
    let believed = believed(host, sequence);
    let cut = || host.cut(sequence, 0);
    change_engine(host, sequence, believed, cut, |record, ()| {
        record.session_mut().set_in_engine(sequence, 0);
        0
    });
}

/// The host is about to remove what is behind the first `kept` tokens of a sequence; negative: of all. If it goes back behind what
/// a load has brought, rows are missing that might be there without a load: the engine's sequence is emptied, and what the host keeps
/// of it is pending. Returns these sequences.
pub fn about_to_go_back<H: Host>(host: &H, sequence: i32, kept: usize) -> Vec<i32> {
    let lacking = host.record(|record| {
        let window = record.bounds().map_or(0, |bounds| bounds.window);
        if window == 0 || kept == 0 {
            return Vec::new();
        }
        let needed = (kept + 1).saturating_sub(window);
        let session = record.session();
        let mut all = session.lacking(sequence, needed, |of| record.are_these(of));
        // Else the engine would be given less than the host keeps, and what comes next would stand behind a hole.
        all.retain(|id| session.known_of(*id) >= kept);
        all
    });
    let lacking = lacking.unwrap_or_default();
    for &sequence in &lacking {
        let cut = || host.cut(sequence, 0);
        change_engine(host, sequence, kept, cut, |record, ()| {
            record.session_mut().leave_all_pending(sequence, kept);
            0
        });
    }
    lacking
}

/// The host removes all tokens of a sequence from this position on. True if the engine holds none of them: they are not pending any
/// more. Else, what is pending of them is forgotten, so that it is not evaluated.
pub fn removes_only_pending<H: Host>(host: &H, sequence: i32, from: usize) -> bool {
    let only = host.record(|record| {
        let session = record.session_mut();
        session.believed_if_pending(sequence)?;
        let in_engine = session.in_engine(sequence);
        let only = from > 0 && session.index(sequence, from) >= in_engine;
        if only {
            session.removed(sequence, i32::try_from(from).ok()?, -1);
        } else {
            session.cut(sequence, in_engine);
        }
        Some(only)
    });
    only.flatten() == Some(true)
}

/// The host is about to replace a sequence: what is pending of it is not pending any more.
pub fn forget_pending<H: Host>(host: &H, sequence: i32) {
    removes_only_pending(host, sequence, 0);
}

/// Evaluates what a load has left out of a sequence; negative: of all. Nothing of it is loaded.
pub fn make_whole<H: Host>(host: &H, sequence: i32) {
    let lacking = host.record(|record| {
        let session = record.session();
        let mut all = session.lacking(sequence, 0, |of| record.are_these(of));
        // What follows what is known of another one cannot be evaluated again, and neither can images and sounds.
        let can_be = |tokens: &[i32]| !media::is_any_row(tokens);
        all.retain(|id| session.believed(*id).is_some_and(can_be));
        all
    });
    for sequence in lacking.unwrap_or_default() {
        empty(host, sequence);
        if reach(host, sequence, None, false).is_err() {
            host.record(|record| record.session_mut().lose(sequence));
        }
    }
}

/// What is to be reached.
struct Goal {
    /// The tokens that the host believes in, and behind them those of the run that may be loaded.
    wanted: Vec<i32>,
    believed: usize,
    held: usize,
    most: usize,
    is_pending: bool,
    /// The adapters are those under which the sequence was evaluated.
    is_same: bool,
}

/// Gives the engine all that the host believes in of a sequence, and as much of the run behind it as there is a state
/// for. `may_load`: not all of it need be evaluated.
fn reach<H: Host>(
    host: &H,
    sequence: i32,
    run: Option<&Run>,
    may_load: bool,
) -> Result<(), Refusal> {
    let goal = host.record(|record| {
        let session = record.session();
        let is_pending = session.believed_if_pending(sequence).is_some();
        let is_long = run.is_some_and(|run| run.leading >= worth::LEAST_GAINED);
        if !is_pending && !is_long {
            return None;
        }
        let believed = session.believed(sequence)?;
        Some(Goal {
            wanted: match run {
                Some(run) => session.wanted(run),
                None => believed.to_vec(),
            },
            believed: believed.len(),
            held: session.in_engine(sequence),
            most: record.at_a_time(),
            is_pending,
            is_same: record.is_under_these(sequence),
        })
    });
    let Some(goal) = goal.flatten() else {
        return Ok(());
    };
    if goal.is_pending {
        if !goal.is_same {
            // It would be evaluated under other adapters than it was meant for.
            return Err(Refusal::Failed);
        }
        host.about_to_reach();
    }
    let wanted = Wanted {
        sequence,
        tokens: &goal.wanted,
        believed: goal.believed,
        held: goal.held,
        run,
    };
    let mut supply = if may_load { host.find(&wanted) } else { None };
    if supply.is_none() && goal.held >= goal.believed {
        return Ok(());
    }
    // The rows of media are gone: should the engine refuse what is loaded or evaluated, it gets back what it has now.
    let has_rows = media::is_any_row(&goal.wanted[..goal.held]);
    let is_aside = has_rows && put_aside(host, sequence, goal.held);
    if has_rows && !is_aside {
        supply = None;
        if goal.held >= goal.believed {
            return Ok(());
        }
    }
    let plan = Plan::to_reach(&wanted, supply.as_ref(), is_aside, goal.most);
    let work = || carry_out(host, &plan, &goal.wanted, supply.as_mut());
    let position = |tokens: usize| media::position(&goal.wanted[..tokens]);
    let believed = position(goal.believed);
    let done = change_engine(host, sequence, believed, work, |record, done| {
        let first = |position| {
            record
                .bounds()
                .map_or(0, |bounds| bounds.first_row(position))
        };
        let loaded = done.loaded.map(|position| (position, first(position)));
        let back = first(goal.held);
        let session = record.session_mut();
        if done.failed_loads > 0 && loaded.is_none() {
            // Nothing of what the engine had is left.
            session.set_in_engine(sequence, 0);
        }
        if let Some((position, first)) = loaded {
            if position > goal.believed {
                session.loaded(sequence, goal.wanted[..position].to_vec());
            }
            session.begin_at(sequence, first);
        }
        if done.held <= goal.believed {
            session.set_in_engine(sequence, done.held);
        }
        if is_aside && loaded.is_none() && (done.failed_loads > 0 || done.refused.is_some()) {
            // It got that back.
            session.begin_at(sequence, back);
        }
        position(done.held)
    });
    if is_aside && done.held <= goal.believed && host.record(|_| ()).is_some() {
        host.journal(|journal| journal.forget_aside(sequence));
    }
    if let Some(supply) = supply {
        supply.finish(&done);
    }
    done.refused.map_or(Ok(()), Err)
}

/// If a sliding window does not reach back any more as far as evaluating needs it, what is evaluated now is something
/// else, and not for the store. llama-server 0.7.0 does that where it goes back to a checkpoint that it took when it had gone back: it
/// evaluates the last token of that again, whose window begins a row before.
pub fn check_window<H: Host>(host: &H, sequence: i32) {
    let needed = host.record(|record| {
        let window = record.bounds()?.window;
        let tokens = record.session().in_engine(sequence);
        let is_known = record.session().believed(sequence).is_some();
        (is_known && window > 0 && tokens > 0).then(|| (tokens + 1).saturating_sub(window))
    });
    let Some(needed) = needed.flatten() else {
        return;
    };
    let reaches = host.first(sequence).is_some_and(|first| first <= needed);
    if !reaches {
        host.record(|record| record.session_mut().looks_too_far(sequence));
    }
}

/// Evaluates the beginnings of parts, so that no more tokens of the batch are left than are computed at once. They are then
/// *ahead*, and left out. Returns whether no more are left.
///
/// # Errors
/// The engine refuses.
fn in_pieces<H: Host>(host: &H, parts: &[Part], entries: usize) -> Result<bool, Refusal> {
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
            follows.then(|| record.session().there(run))
        });
        let Some(there) = known.flatten() else {
            continue;
        };
        // The parts are those that the engine would make.
        let wanted = (left - at_once).next_multiple_of(at_once);
        let count = wanted.min(run.leading - there);
        if evaluate_to(host, parts, part, there + count, at_once)? {
            left -= count;
        }
    }
    Ok(left <= at_once)
}

/// Evaluates the beginnings of parts up to where other prompts may turn off, and takes tails there: before the last message
/// that begins in the batch, and where the prompt leaves what is stored. Not at exactly these places, but where the engine would
/// divide the batch, which is less than a `--ubatch-size` before: so the engine computes the same parts as without that.
///
/// # Errors
/// The engine refuses.
fn stop_at_turns<H: Host>(host: &H, parts: &[Part]) -> Result<(), Refusal> {
    let all = parts.iter();
    let prompts = all.filter(|part| {
        part.follows && !part.pending.get() && part.run.leading >= worth::LEAST_GAINED
    });
    for part in prompts {
        let message = host.last_message(&part.run);
        let Some((most, ends)) = stops(host, &part.run, message) else {
            continue;
        };
        for end in ends {
            if !evaluate_to(host, parts, part, end, most)? {
                break;
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

/// How many tokens are evaluated by one call, and behind how many entries of the run tails are to be taken, in order.
/// `message`: where in the run one begins.
fn stops<H: Host>(host: &H, run: &Run, message: Option<usize>) -> Option<(usize, Vec<usize>)> {
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
            let waiting = record.tails().last(sequence, before);
            let stopped = stops.last().copied().unwrap_or(0);
            let last = states.last_state_in(before).max(waiting).max(stopped);
            if stop > last && place - last >= at_once {
                stops.push(stop);
            }
        }
        let ends: Vec<usize> = stops.iter().map(|stop| stop - believed).collect();
        (!ends.is_empty()).then(|| (record.at_a_time(), ends))
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
        bytes: Arc::new(bytes),
        size,
    });
    Some(())
}

/// Evaluates the entries of a part up to `end`, but for those that the engine holds already, by calls of our own. They are
/// then *ahead*, and left out. Returns whether the engine holds them now. Should it refuse the rest of the batch, nothing of them must
/// stay: so none is evaluated if the engine could not be given again what it holds before.
///
/// # Errors
/// The engine refuses.
fn evaluate_to<H: Host>(
    host: &H,
    parts: &[Part],
    part: &Part,
    end: usize,
    most: usize,
) -> Result<bool, Refusal> {
    let run = &part.run;
    let sequence = run.sequence;
    let known = host.record(|record| {
        let session = record.session();
        let believed = session.believed(sequence)?;
        // Those that cannot be evaluated again.
        let held = media::is_any_row(believed).then(|| session.in_engine(sequence));
        let first = session.position(sequence, believed.len());
        Some((first, session.there(run), held))
    });
    let Some((first, there, held)) = known.flatten() else {
        return Ok(false);
    };
    if end <= there {
        return Ok(true);
    }
    if let Some(held) = held {
        let is_aside = host.journal(|journal| journal.aside_of(sequence).is_some());
        if is_aside != Some(true) && !put_aside(host, sequence, held) {
            return Ok(false);
        }
    }
    let tokens = &run.tokens[there..end];
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
    result.map(|()| true)
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
