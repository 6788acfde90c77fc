//! Loads what the store has of a prompt into the context.

use std::time::Instant;

use contextpilot_kv_engine::Engine as _;
use contextpilot_kv_store::{Run, media, worth};

use crate::base::log;
use crate::store::figures::{self, FIGURES};
use crate::store::flow::{self, Prepared};
use crate::store::shelf::Offer;
use crate::store::{Context, change, elsewhere, rescue, with_record, with_shelf};

/// Looks for a run whose sequence holds `held` tokens, and loads what there is. False if the engine lost what
/// it held, and it could not be evaluated again.
pub(super) fn load(context: Context<'_>, run: &Run, held: usize) -> bool {
    let start = Instant::now();
    if let Some(sequence) = better_than_stored(context, run, held) {
        change::share(context, sequence);
    }
    let waited = elsewhere::bring(context, run, held);
    let Some((mut offer, prepared)) = search(context, run, held, true) else {
        return true;
    };
    let sequence = run.sequence;
    let believed = usize::try_from(run.first).unwrap_or(0);
    // The rows of media are gone, and before an image text is not evaluated in batches like the server's, and maybe not as
    // text is: should the engine refuse what is loaded, it gets back what it has now.
    let mut aside = None;
    if media::is_any_row(&offer.tokens[..held]) || media::is_any_row(&run.tokens) {
        // Copying that takes time, too.
        let all = offer.tokens.len();
        let ratio = with_record(context, |one| one.rates.worth_loading()).unwrap_or(0);
        if all.saturating_sub(held) * ratio < all + held {
            return true;
        }
        let mut state = Vec::new();
        if !context.save(sequence, &mut state) {
            return true;
        }
        aside = Some(state);
    }
    rescue::loosen(context, sequence, believed, rescue::ANYTHING);
    let mut lengths = offer.lengths(held);
    let (mut state, mut composed) = (Vec::new(), false);
    let mut done = None;
    let mut began = Instant::now();
    match prepared {
        Prepared::Composed(bytes) => (state, composed) = (bytes, true),
        Prepared::Outline(outline) => {
            let length = offer.tokens.len();
            let taken = flow::load(context, sequence, outline);
            if taken && context.holds(sequence, length) {
                figures::add(&FIGURES.direct_loads, 1);
                done = Some(length);
                lengths.clear();
            } else {
                figures::add(&FIGURES.failed_loads, 1);
                began = Instant::now();
                lengths = vec![held];
                if let Some((other, Prepared::Composed(bytes))) = search(context, run, held, false)
                {
                    (offer, state, composed) = (other, bytes, true);
                    lengths = offer.lengths(held);
                }
            }
        }
    }
    for &length in &lengths {
        if length == 0 {
            // A state that was taken, but is not of the length that was asked for, must not stay.
            context.cut(sequence, 0);
            done = Some(0);
            break;
        }
        let is_composed =
            std::mem::take(&mut composed) || compose(context, &offer, length, sequence, &mut state);
        let taken = is_composed && context.load(sequence, &state);
        if taken && context.holds(sequence, length) {
            done = Some(length);
            break;
        }
        figures::add(&FIGURES.failed_loads, 1);
    }
    let tokens = offer.tokens;
    let loaded = done.unwrap_or(0);
    let kept = loaded.max(held);
    if loaded < held {
        // The engine has removed the sequence, and the server believes in it.
        log::line(format_args!(
            "Prefix store: the engine refused a state, {held} tokens are evaluated again"
        ));
        context.cut(sequence, 0);
        let is_again = match &aside {
            Some(state) => context.put_back(sequence, state),
            // The engine takes as many tokens at a time as the server's batch has.
            None => {
                let most = run.tokens.len();
                context.evaluate(sequence, 0, &tokens[..held], most).is_ok()
            }
        };
        if !is_again {
            rescue::tighten(context, sequence);
            with_record(context, |one| {
                one.session.removed(sequence, -1, -1);
                one.session.obscure(sequence);
                one.keep_buffer(state);
            });
            return false;
        }
    }
    rescue::loosen(context, sequence, believed, kept);
    let took = start.elapsed().saturating_sub(waited);
    with_record(context, |one| {
        one.session.loaded(sequence, tokens[..kept].to_vec());
        one.keep_buffer(state);
        if loaded > held {
            one.rates.loaded(loaded, began.elapsed());
        }
    });
    if loaded > held {
        figures::add(&FIGURES.loads, 1);
    }
    figures::add_time(&FIGURES.load_nanos, took);
    true
}

/// Another sequence of the context that holds more of what is wanted than the store has, and enough more to be
/// worth copying it out and in. (A server with several free slots may take the one that does not hold the
/// prompt, and so it does if the other one was just given away.)
fn better_than_stored(context: Context<'_>, run: &Run, held: usize) -> Option<i32> {
    let better = with_shelf(context, |shelf, one| {
        let shelf = shelf.as_mut()?;
        let conditions = one.conditions();
        let wanted = one.session.wanted(run);
        let (sequence, shared) = one.session.sharing(run, &wanted, conditions)?;
        if shared < held + worth::LEAST {
            return None;
        }
        let fingerprint = one.fingerprint(conditions)?;
        let stored = shelf.length_of(&fingerprint, &wanted).max(held);
        let all = one.session.believed(sequence)?.len();
        worth::sharing(all, shared, stored, one.rates.worth_saving()).then_some(sequence)
    });
    better.flatten()
}

/// What is worth loading, and its state. `may_flow`: it need not be put together.
fn search(
    context: Context<'_>,
    run: &Run,
    held: usize,
    may_flow: bool,
) -> Option<(Offer, Prepared)> {
    // A chunk that is gone or damaged leaves the store: then there may be less.
    const ATTEMPTS: usize = 4;
    let found = with_shelf(context, |shelf, one| {
        let shelf = shelf.as_mut()?;
        let fingerprint = one.fingerprint(one.conditions())?;
        let layout = one.layout().cloned()?;
        shelf.settle();
        let wanted = one.session.wanted(run);
        let room = one.room(held);
        // If the prompt ends in this batch, nothing of it is left to be loaded.
        let goes_on = run.leading == run.tokens.len();
        for _ in 0..ATTEMPTS {
            let more = room.saturating_sub(wanted.len().saturating_sub(held));
            let offer = shelf.offer(&fingerprint, &wanted, if goes_on { more } else { 0 });
            let gained = offer.wanted.saturating_sub(held);
            let all = offer.tokens.len();
            let is_worth_it = worth::loading(held, all, one.rates.worth_loading());
            if gained < worth::LEAST || gained > room || !is_worth_it {
                return None;
            }
            shelf.note(fingerprint, || one.origin(one.conditions()));
            let region = shelf.region_for(may_flow && one.flows, &layout, &offer);
            if let Some(region) = region {
                match shelf.outline(&offer, &layout, run.sequence, region) {
                    Some(outline) => return Some((offer, Prepared::Outline(outline))),
                    None => continue,
                }
            }
            let mut state = shelf.buffer(&mut one.buffer, layout.state_size(all));
            if shelf.compose(&offer, all, &layout, run.sequence, &mut state) {
                return Some((offer, Prepared::Composed(state)));
            }
            one.buffer = state;
        }
        None
    });
    found.flatten()
}

fn compose(
    context: Context<'_>,
    offer: &Offer,
    length: usize,
    sequence: i32,
    state: &mut Vec<u8>,
) -> bool {
    let composed = with_shelf(context, |shelf, one| {
        let shelf = shelf.as_mut()?;
        let layout = one.layout().cloned()?;
        Some(shelf.compose(offer, length, &layout, sequence, state))
    });
    composed.flatten() == Some(true)
}
