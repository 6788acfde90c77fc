//! Gives the engine what the server believes in, and what the store has of the next tokens.

use std::time::Instant;

use contextpilot_kv_engine::{Engine as _, Refusal};
use contextpilot_kv_store::{Run, worth};
use contextpilot_residency::Event;

use super::{at_a_time, check_window, may_owe};
use crate::base::{guard, log};
use crate::capture::{contexts, uncached};
use crate::channel::push;
use crate::store::context::ContextStore;
use crate::store::engine::{Context, LOST, code};
use crate::store::evaluate::{Busy, Part};
use crate::store::figures::{self, FIGURES};
use crate::store::flow::{self, Prepared};
use crate::store::shelf::Shelf;
use crate::store::shelf::exact::ExactOffer;
use crate::store::{PATIENCE, be_patient, change, rescue, with_record, with_shelf};

/// Does what is to be done before a part of a batch is evaluated. The result that the server gets if that is not
/// possible; 0: it is done.
pub(in crate::store) fn prepare(context: Context<'_>, part: &Part) -> i32 {
    let sequence = part.run.sequence;
    check_window(context, sequence);
    let known = with_record(context, |one| {
        let conditions = one.conditions();
        let continues = part.follows && one.session.continues(&part.run, conditions);
        (continues, one.session.is_lost(sequence))
    });
    let Some((continues, is_lost)) = known else {
        return 0;
    };
    if is_lost {
        return LOST;
    }
    if !continues {
        let result = reach(context, sequence, None);
        if result == 0 {
            with_record(context, |one| one.session.obscure(sequence));
        }
        return result;
    }
    if uncached::is(sequence) {
        return reach(context, sequence, None);
    }
    if may_owe(context, &part.run) {
        part.owed.set(true);
        return 0;
    }
    reach(context, sequence, Some(&part.run))
}

/// Gives the engine what it lacks of a sequence that somebody is about to look at; a negative sequence stands for all.
pub(in crate::store) fn pay(context: Context<'_>, sequence: i32) {
    let owing = with_record(context, |one| {
        let owing = one.session.owing();
        let owing = owing.filter(|id| sequence < 0 || *id == sequence);
        owing.collect::<Vec<_>>()
    });
    for sequence in owing.unwrap_or_default() {
        if reach(context, sequence, None) != 0 {
            with_record(context, |one| one.session.lose(sequence));
        }
    }
}

/// The engine did not evaluate a batch for which states were loaded: what they hold of the batch must not stay, and
/// as they cannot be cut, nothing of them does. Negative: of all sequences.
pub(in crate::store) fn undo(context: Context<'_>, sequence: i32) {
    let ahead = with_record(context, |one| {
        let ahead = one.session.ahead().map(|(id, _)| id);
        let ahead = ahead.filter(|id| sequence < 0 || *id == sequence);
        ahead.collect::<Vec<_>>()
    });
    for sequence in ahead.unwrap_or_default() {
        empty(context, sequence);
    }
}

fn empty(context: Context<'_>, sequence: i32) {
    let believed = with_record(context, |one| {
        one.session.believed(sequence).map(<[_]>::len)
    });
    if let Some(believed) = believed.flatten() {
        rescue::loosen(context, sequence, believed, rescue::ANYTHING);
    }
    context.cut(sequence, 0);
    let noted = with_record(context, |one| one.session.set_in_engine(sequence, 0));
    if noted.is_some() {
        rescue::tighten(context, sequence);
    }
}

/// Evaluates all of a sequence again: nothing of it is loaded.
pub(super) fn evaluate_all(context: Context<'_>, sequence: i32) {
    empty(context, sequence);
    if reach_by(context, sequence, None, false) != 0 {
        with_record(context, |one| one.session.lose(sequence));
    }
}

/// Gives the engine all that the server believes in of a sequence, and as much of the run behind it as there is a state
/// for. Returns what the engine said to the evaluation of the rest.
fn reach(context: Context<'_>, sequence: i32, run: Option<&Run>) -> i32 {
    reach_by(context, sequence, run, true)
}

/// As [`reach`]; `may_load`: not all of it need be evaluated.
fn reach_by(context: Context<'_>, sequence: i32, run: Option<&Run>, may_load: bool) -> i32 {
    let begun = with_record(context, |one| {
        let owed = one.session.believed_on_credit(sequence).is_some();
        let is_long = run.is_some_and(|run| run.leading >= worth::LEAST);
        if !owed && !is_long {
            return None;
        }
        let believed = one.session.believed(sequence)?.len();
        let wanted = match run {
            Some(run) => one.session.wanted(run),
            None => one.session.believed(sequence)?.to_vec(),
        };
        // Else it would be evaluated under other adapters than it was meant for.
        let same = one.session.under(sequence) == one.conditions();
        Some((wanted, believed, owed, same))
    });
    let Some((wanted, believed, owed, same)) = begun.flatten() else {
        return 0;
    };
    if owed && !same {
        return LOST;
    }
    if owed {
        // Even if a generated token is what asks for it: evaluating takes longer.
        be_patient(context, PATIENCE);
    }
    if let Some(run) = run {
        if let Some(other) = better_than_stored(context, run, &wanted) {
            change::share(context, other);
        }
    }
    rescue::loosen(context, sequence, believed, rescue::ANYTHING);
    if may_load {
        load(context, sequence, &wanted, believed);
    }
    // `None`, here and below: the library has stopped, and whoever puts the context right begins anew.
    let Some(held) = with_record(context, |one| one.session.in_engine(sequence)) else {
        return 0;
    };
    if held >= believed {
        rescue::loosen(context, sequence, believed, held);
        return 0;
    }
    let Some(most) = with_record(context, |one| at_a_time(context, one)) else {
        return 0;
    };
    let rest = &wanted[held..believed];
    let result = context.evaluate(sequence, held, rest, most);
    let there = match result {
        Ok(()) => Some(believed),
        // The host has stopped it. What was evaluated until then stays, and the rest is still owed.
        Err(Refusal::Stopped) => context.length(sequence).filter(|there| *there < believed),
        Err(_) => None,
    };
    match there {
        Some(there) => {
            let noted = with_record(context, |one| one.session.set_in_engine(sequence, there));
            if noted.is_some() {
                rescue::tighten(context, sequence);
            }
        }
        None => empty(context, sequence),
    }
    result.map_or_else(code, |()| 0)
}

/// Loads the last state that lies within what is wanted, if there is one and it is worth it.
fn load(context: Context<'_>, sequence: i32, wanted: &[i32], believed: usize) {
    let _busy = Busy::begin();
    let mut lost = 0;
    // If what is left out of a state cannot be brought, the state is put together.
    for may_flow in [true, false] {
        let start = Instant::now();
        let found = search(context, sequence, wanted, believed, may_flow);
        let Some((position, prepared, held)) = found else {
            break;
        };
        rescue::loosen(context, sequence, believed, rescue::ANYTHING);
        lost = lost.max(held);
        let mut buffer = Vec::new();
        let (taken, goes_on) = match prepared {
            Prepared::Outline(outline) => (flow::load(context, sequence, outline), true),
            Prepared::Composed(state) => {
                buffer = state;
                (context.load(sequence, &buffer), false)
            }
        };
        let taken = taken && context.holds(sequence, position);
        let took = start.elapsed();
        with_record(context, |one| {
            one.keep_buffer(buffer);
            if taken && position > believed {
                one.session.loaded(sequence, wanted[..position].to_vec());
            } else if taken {
                one.session.set_in_engine(sequence, position);
            }
            if taken {
                let first = one.bounds.map_or(0, |bounds| bounds.first_row(position));
                one.session.begin_at(sequence, first);
                one.rates.loaded(position, took);
            }
        });
        figures::add_time(&FIGURES.load_nanos, took);
        if taken {
            figures::add(&FIGURES.loads, 1);
            figures::add(&FIGURES.direct_loads, usize::from(goes_on));
            note_paid(context, sequence, lost, position.min(believed));
            return;
        }
        figures::add(&FIGURES.failed_loads, 1);
        empty(context, sequence);
        if !goes_on {
            break;
        }
    }
    if lost > 0 {
        log::line(format_args!(
            "Prefix store: the engine refused a state, {lost} tokens are evaluated again"
        ));
    }
}

/// What the server had been told to be evaluated was loaded now.
fn note_paid(context: Context<'_>, sequence: i32, from: usize, to: usize) {
    if from >= to {
        return;
    }
    figures::add(&FIGURES.loaded_tokens, to - from);
    let number = |position: usize| i32::try_from(position).unwrap_or(i32::MAX);
    guard::compute(|| {
        push(Event::Loaded {
            context: contexts::id_of(context.pointer()),
            sequence,
            from: number(from),
            to: number(to),
        });
    });
}

/// The state, its position, and how many tokens the engine holds now.
fn search(
    context: Context<'_>,
    sequence: i32,
    wanted: &[i32],
    believed: usize,
    may_flow: bool,
) -> Option<(usize, Prepared, usize)> {
    // A chunk that is gone or damaged leaves the store: then there may be less.
    const ATTEMPTS: usize = 4;
    let found = with_shelf(context, |shelf, one| {
        let shelf = shelf.as_mut()?;
        if one.has_embeddings() || !one.session.may_load(sequence) {
            return None;
        }
        let fingerprint = one.fingerprint(one.conditions())?;
        shelf.settle();
        let held = one.session.in_engine(sequence);
        for _ in 0..ATTEMPTS {
            let offer = shelf.offer_exact(&fingerprint, wanted, held)?;
            let position = offer.position();
            if !is_worth_loading(one, position, held, believed) {
                return None;
            }
            shelf.note(fingerprint, || one.origin(one.conditions()));
            if let Some(state) = prepare_state(shelf, one, &offer, sequence, may_flow) {
                return Some((position, state, held));
            }
        }
        None
    });
    found.flatten()
}

fn is_worth_loading(one: &ContextStore, position: usize, held: usize, believed: usize) -> bool {
    let gained = position - held;
    let new = position.saturating_sub(believed);
    gained >= worth::LEAST
        && new <= one.room(believed)
        && gained * one.rates.worth_loading() >= position
}

fn prepare_state(
    shelf: &mut Shelf,
    one: &mut ContextStore,
    offer: &ExactOffer,
    sequence: i32,
    may_flow: bool,
) -> Option<Prepared> {
    let shape = one.shape().cloned()?;
    let region = shelf.region_for_exact(may_flow && one.flows, &shape, offer);
    if let (Some(layout), Some(region)) = (shape.dense(), region) {
        let outline = shelf.outline_exact(offer, layout, sequence, region);
        return outline.map(Prepared::Outline);
    }
    let mut state = std::mem::take(&mut one.buffer);
    if shelf.compose_exact(offer, &shape, sequence, &mut state) {
        return Some(Prepared::Composed(state));
    }
    one.buffer = state;
    None
}

/// Another sequence of the context that holds a beginning of what is wanted, and nothing else, and more than the store
/// has a state for.
fn better_than_stored(context: Context<'_>, run: &Run, wanted: &[i32]) -> Option<i32> {
    let better = with_shelf(context, |shelf, one| {
        let shelf = shelf.as_mut()?;
        let conditions = one.conditions();
        let (sequence, shared) = one.session.sharing(run, wanted, conditions)?;
        let all = one.session.believed(sequence)?.len();
        let held = one.session.in_engine(run.sequence);
        if shared < all || shared < held + worth::LEAST {
            return None;
        }
        let fingerprint = one.fingerprint(conditions)?;
        let stored = shelf.last_state_in(&fingerprint, wanted).max(held);
        let more = shared.saturating_sub(stored);
        (more >= worth::LEAST && more * one.rates.worth_saving() >= all).then_some(sequence)
    });
    better.flatten()
}
