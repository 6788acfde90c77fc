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

use contextpilot_kv_store::{Run, media, worth};

use crate::Refusal;
use crate::host::{Host, Part, Record, Supply, Wanted, change_engine};
use crate::journal::{Aside, Journal};
use crate::plan::{Plan, carry_out, put_back};

/// Does what is to be done before a part of a batch is evaluated.
///
/// # Errors
/// Why that is not possible.
pub fn prepare<H: Host>(host: &H, part: &Part) -> Result<(), Refusal> {
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
        let all = record.session().pending_sequences();
        let all = all.filter(|id| sequence < 0 || *id == sequence);
        all.collect::<Vec<_>>()
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
        let all = record.session().ahead().map(|(id, _)| id);
        let all = all.filter(|id| sequence < 0 || *id == sequence);
        all.collect::<Vec<_>>()
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

/// A part of the host's batch is about to be evaluated for this sequence by a call of ours. Should the engine refuse the rest, nothing
/// of it must stay: whether the engine can then be given again what it holds now.
pub(crate) fn may_evaluate_ahead<H: Host>(host: &H, sequence: i32) -> bool {
    let held = host.record(|record| {
        let session = record.session();
        let has_rows = session.believed(sequence).is_some_and(media::is_any_row);
        has_rows.then(|| session.in_engine(sequence))
    });
    let is_aside = |journal: &mut Journal| journal.aside_of(sequence).is_some();
    match held.flatten() {
        Some(held) => host.journal(is_aside) == Some(true) || put_aside(host, sequence, held),
        None => true,
    }
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
