//! How one sequence of the engine is changed so that it holds certain tokens: a list of steps. And how the record and the
//! journal are kept alike meanwhile: each change of a sequence goes through [`change_engine`] or [`changed`].

use contextpilot_kv_store::media;

use crate::host::{Done, Host, Supply, Wanted};
use crate::journal::{ANYTHING, Change};
use crate::{Engine, Refusal};

/// Changes a sequence of the engine in which the host believes up to this position. The journal knows of it before `work`, and
/// until the record does: `note` tells that what came of it, and returns up to which the engine may hold it now, or [`ANYTHING`].
///
/// If the library stops meanwhile, [`repair`](crate::repair()) finds the sequence in the journal.
pub(crate) fn change_engine<H: Host, D>(
    host: &H,
    sequence: i32,
    believed: usize,
    work: impl FnOnce() -> D,
    note: impl FnOnce(&mut H::Record, &D) -> usize,
) -> D {
    host.journal(|journal| journal.uncertain(sequence, believed, ANYTHING));
    let done = work();
    if let Some(held) = host.record(|record| note(record, &done)) {
        host.journal(|journal| journal.uncertain(sequence, believed, held));
    }
    done
}

/// The host has changed sequences: `work` notes it in the record.
pub fn changed<H: Host>(host: &H, change: Change, work: impl FnOnce(&mut H::Record)) {
    let heard = host.record(work).is_some();
    host.journal(|journal| journal.changed(change, heard));
}

/// A step of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Load the state of so many tokens. If that fails, the sequence is emptied. Not taken if a state was loaded.
    Load(usize),
    /// Give the engine what it held before. Not taken if the engine holds as much.
    PutBack,
    /// Evaluate what the engine lacks, at most so many tokens at a time. Not taken if the engine holds enough.
    Evaluate(usize),
}

/// What is done to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The sequence.
    pub(crate) sequence: i32,
    /// How many of the tokens the engine holds before the first step.
    pub(crate) held: usize,
    /// How many of the tokens it must hold behind the last one.
    pub(crate) least: usize,
    /// In this order.
    pub(crate) steps: Vec<Step>,
}

impl Plan {
    /// Nothing is to be done for what is wanted but to load what the store has. If that is refused, the engine gets back what it
    /// held.
    pub(crate) fn to_load(wanted: &Wanted<'_>, supply: &impl Supply, most: usize) -> Self {
        let lengths = supply.lengths().into_iter();
        let mut steps: Vec<_> = lengths.filter(|len| *len > 0).map(Step::Load).collect();
        steps.push(if supply.is_aside() {
            Step::PutBack
        } else {
            Step::Evaluate(most)
        });
        Self {
            sequence: wanted.sequence,
            held: wanted.held,
            least: wanted.held,
            steps,
        }
    }

    /// The engine is to hold all that the host believes in.
    /// `is_aside`: what it holds is [put aside](crate::journal::Aside).
    pub(crate) fn to_reach(
        wanted: &Wanted<'_>,
        supply: Option<&impl Supply>,
        is_aside: bool,
        most: usize,
    ) -> Self {
        let lengths = supply.map(Supply::lengths).unwrap_or_default();
        let mut steps: Vec<_> = lengths.into_iter().map(Step::Load).collect();
        if is_aside {
            steps.push(Step::PutBack);
        }
        steps.push(Step::Evaluate(most));
        if is_aside {
            // The engine may have refused that, too.
            steps.push(Step::PutBack);
        }
        Self {
            sequence: wanted.sequence,
            held: wanted.held,
            least: wanted.believed,
            steps,
        }
    }
}

/// Carries a plan out. The journal knows of it: see [`change_engine`].
///
/// `tokens`: at least those that the engine holds, and those that it is to hold. This asks nothing of the record, so it comes
/// to its end even if the library stops.
pub(crate) fn carry_out<H: Host>(
    host: &H,
    plan: &Plan,
    tokens: &[i32],
    mut supply: Option<&mut impl Supply>,
) -> Done {
    let sequence = plan.sequence;
    let mut done = Done {
        held: plan.held,
        loaded: None,
        failed_loads: 0,
        refused: None,
    };
    for &step in &plan.steps {
        let is_enough = done.held >= plan.least;
        match step {
            Step::Load(length) if done.loaded.is_none() => {
                let load = |supply: &mut &mut _| Supply::load(*supply, length);
                let taken = supply.as_mut().and_then(load);
                let loaded = supply.as_deref().map(Supply::tokens).unwrap_or_default();
                let holds = |length: &usize| host.holds(sequence, &loaded[..*length]);
                if let Some(length) = taken.filter(holds) {
                    done.held = length;
                    done.loaded = Some(length);
                } else {
                    // A state may have been taken that is of another length.
                    host.cut(sequence, 0);
                    done.held = 0;
                    done.failed_loads += 1;
                }
            }
            Step::PutBack if done.held < plan.held => {
                if done.refused.is_none() {
                    host.note_refused_state(plan.held);
                }
                let puts = |supply: &mut &mut _| Supply::put_back(*supply);
                if supply.as_mut().is_some_and(puts) || put_back(host, sequence) {
                    done.held = plan.held;
                }
            }
            Step::Evaluate(most) if !is_enough => {
                if done.held < plan.held {
                    host.note_refused_state(plan.held);
                }
                evaluate(host, sequence, &tokens[..plan.least], most, &mut done);
            }
            _ => {}
        }
    }
    done
}

/// Gives the engine what was put aside of a sequence, and what stays there. False: it refuses it, or nothing was.
pub(crate) fn put_back<H: Host>(host: &H, sequence: i32) -> bool {
    let aside = host.journal(|journal| journal.take_aside(sequence));
    let Some(aside) = aside.flatten() else {
        return false;
    };
    let is_taken = host.load(sequence, &aside.state);
    if !is_taken {
        host.cut(sequence, 0);
    }
    host.journal(|journal| journal.put_aside(aside));
    is_taken
}

/// Evaluates what the engine lacks of these tokens.
fn evaluate(host: &impl Engine, sequence: i32, tokens: &[i32], most: usize, done: &mut Done) {
    let (held, rest) = tokens.split_at(done.held);
    let result = if media::is_any_row(rest) {
        // The rows are gone.
        Err(Refusal::Failed)
    } else {
        host.evaluate(sequence, media::position(held), rest, most)
    };
    done.refused = result.err();
    let there = match result {
        Ok(()) => Some(tokens.len()),
        // The host has stopped it. What was evaluated until then stays.
        Err(Refusal::Stopped) => {
            let length = host.length(sequence);
            let there = length.map(|length| media::index(tokens, length));
            there.filter(|there| *there < tokens.len())
        }
        Err(_) => None,
    };
    if there.is_none() {
        host.cut(sequence, 0);
    }
    done.held = there.unwrap_or(0);
}
