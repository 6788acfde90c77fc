//! Contexts that cannot go back to any position: with sliding windows, recurrent, or both.
//!
//! A state of theirs stands for one position. While a prompt goes on along what is stored, and a state lies ahead, its tokens are
//! left out without anything being loaded: they are *pending*. The engine then holds less than the host believes. Before
//! the sequence is looked at, the engine is made to [reach](complete) what the host believes: the state that is nearest
//! before is loaded, and what is behind it evaluated.

use contextpilot_kv_store::{Run, worth};

use crate::Refusal;
use crate::host::{Host, Part, Record, Supply, Wanted};
use crate::journal::ANYTHING;
use crate::plan::{Plan, carry_out, settle};

/// Does what is to be done before a part of a batch is evaluated.
///
/// # Errors
/// Why that is not possible.
pub fn prepare<H: Host>(host: &H, part: &Part) -> Result<(), Refusal> {
    let run = &part.run;
    let sequence = run.sequence;
    check_window(host, sequence);
    let known = host.record(|one| {
        let conditions = one.conditions(sequence);
        let continues = part.follows && one.session_mut().continues(run, conditions);
        (continues, one.session().is_lost(sequence))
    });
    match known {
        None => Ok(()),
        Some((_, true)) => Err(Refusal::Failed),
        Some((false, false)) => {
            reach(host, sequence, None, true)?;
            host.record(|one| one.session_mut().obscure(sequence));
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

/// Gives the engine what it lacks of a sequence that is about to be looked at; a negative sequence stands for all. If that
/// fails, the sequence is lost: the host hears of it at its next evaluation.
pub fn complete<H: Host>(host: &H, sequence: i32) {
    let all = host.record(|one| {
        let all = one.session().pending_sequences();
        let all = all.filter(|id| sequence < 0 || *id == sequence);
        all.collect::<Vec<_>>()
    });
    for sequence in all.unwrap_or_default() {
        if reach(host, sequence, None, true).is_err() {
            host.record(|one| one.session_mut().lose(sequence));
        }
    }
}

/// The engine did not evaluate a batch for which states were loaded: what they hold of the batch must not stay, and
/// as they cannot be cut, nothing of them does. Negative: of all sequences.
pub fn undo<H: Host>(host: &H, sequence: i32) {
    let all = host.record(|one| {
        let all = one.session().ahead().map(|(id, _)| id);
        let all = all.filter(|id| sequence < 0 || *id == sequence);
        all.collect::<Vec<_>>()
    });
    for sequence in all.unwrap_or_default() {
        empty(host, sequence);
    }
}

fn empty<H: Host>(host: &H, sequence: i32) {
    let believed = host.record(|one| one.session().believed(sequence).map(<[_]>::len));
    if let Some(believed) = believed.flatten() {
        host.journal(|journal| journal.uncertain(sequence, believed, ANYTHING));
    }
    host.cut(sequence, 0);
    let noted = host.record(|one| one.session_mut().set_in_engine(sequence, 0));
    if noted.is_some() {
        host.journal(|journal| journal.settled(sequence));
    }
}

/// The host is about to remove what is behind the first `kept` tokens of these sequences, of which rows are missing that
/// might be there without a load: the engine's sequences are emptied, and what the host keeps is pending.
pub fn begin_anew<H: Host>(host: &H, sequences: &[i32], kept: usize) {
    for &sequence in sequences {
        host.journal(|journal| journal.uncertain(sequence, kept, ANYTHING));
        host.cut(sequence, 0);
        let noted = host.record(|one| one.session_mut().leave_all_pending(sequence, kept));
        if noted.is_some() {
            host.journal(|journal| journal.settled(sequence));
        }
    }
}

/// Evaluates all of a sequence again: nothing of it is loaded.
pub fn evaluate_again<H: Host>(host: &H, sequence: i32) {
    empty(host, sequence);
    if reach(host, sequence, None, false).is_err() {
        host.record(|one| one.session_mut().lose(sequence));
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
    let goal = host.record(|one| {
        let session = one.session();
        let is_pending = session.believed_if_pending(sequence).is_some();
        let is_long = run.is_some_and(|run| run.leading >= worth::LEAST);
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
            most: one.at_a_time(),
            is_pending,
            is_same: one.is_under_these(sequence),
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
    let plan = Plan::to_reach(&wanted, supply.as_ref(), goal.most);
    let done = carry_out(host, &plan, &goal.wanted, supply.as_mut());
    let noted = host.record(|one| {
        let first = |position| one.bounds().map_or(0, |bounds| bounds.first_row(position));
        let loaded = done.loaded.map(|position| (position, first(position)));
        let session = one.session_mut();
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
    });
    // Else the code that puts the context right begins anew.
    if noted.is_some() {
        settle(host, &plan, &done);
    }
    if let Some(supply) = supply {
        supply.finish(&done);
    }
    done.refused.map_or(Ok(()), Err)
}

/// If a sliding window does not reach back any more as far as evaluating needs it, what is evaluated now is something
/// else, and not for the store. (Servers take care of that.)
pub fn check_window<H: Host>(host: &H, sequence: i32) {
    let needed = host.record(|one| {
        let window = one.bounds()?.window;
        let tokens = one.session().in_engine(sequence);
        let is_known = one.session().believed(sequence).is_some();
        (is_known && window > 0 && tokens > 0).then(|| (tokens + 1).saturating_sub(window))
    });
    let Some(needed) = needed.flatten() else {
        return;
    };
    let reaches = host.first(sequence).is_some_and(|first| first <= needed);
    if !reaches {
        host.record(|one| one.session_mut().obscure(sequence));
    }
}
