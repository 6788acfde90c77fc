//! Evaluations: what the store has of a batch is loaded, and left out of it.

mod batches;
mod learn;
mod load;
mod parts;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use contextpilot_kv_engine::Engine as _;
use contextpilot_kv_store::{Run, worth};
use contextpilot_residency::{Entry, Event};

use self::batches::{Batches, sequences_of};
pub(crate) use self::batches::{extended, legacy};
use self::learn::{learn_from_warm_up, learn_layout, prove_layout};
pub(super) use self::parts::Part;
use self::parts::parts;
use super::context::{ContextStore, Facts};
use super::engine::LOST;
use super::figures::{self, FIGURES};
use super::media::Media;
use super::shelf::Shelf;
use super::{
    Context, PATIENCE, ahead, be_patient, change, exact, hears, only_new, outputs, records, rescue,
    with_record, with_shelf,
};
use crate::attach::is_embedded;
use crate::attach::original::original;
use crate::base::guard;
use crate::base::log;
use crate::capture::contexts::{self, Windows};
use crate::capture::uncached;
use crate::channel::push;

/// How many batches are being evaluated, as far as the store knows: one, or one on each of several threads.
static EVALUATING: AtomicUsize = AtomicUsize::new(0);

/// Whether an engine evaluates a batch now, or what the store has of one is loaded.
pub(super) fn is_busy() -> bool {
    EVALUATING.load(Ordering::Relaxed) > 0
}

/// A batch that is being evaluated, or a state that is being loaded.
pub(super) struct Busy;

impl Busy {
    pub(super) fn begin() -> Self {
        EVALUATING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Busy {
    /// Also if the engine throws an exception.
    fn drop(&mut self) {
        EVALUATING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a batch holds, as far as it is known.
enum Content {
    /// Tokens alone, each of one sequence.
    Plain(Vec<Entry>),
    /// Rows of an image or a sound that is being evaluated.
    Media(Vec<Entry>),
    /// Something else, in these sequences; `None`: not known in which.
    Other(Option<Vec<i32>>),
}

/// Evaluates a batch as it is. Returns the engine's result.
fn without_store(context: Context<'_>, whole: impl FnOnce() -> i32) -> i32 {
    if hears(context) {
        if rescue::is_any_lost(context) {
            return LOST;
        }
        outputs::set(context, Vec::new());
    }
    whole()
}

/// Evaluates a batch, without what the store has of it. Returns the engine's result.
fn evaluate(
    context: Context<'_>,
    content: Content,
    media: Option<&Media>,
    batch: &impl Batches,
) -> i32 {
    if contexts::memory_of(context.pointer()).is_none() {
        return batch.whole();
    }
    let _busy = Busy::begin();
    be_patient(context, PATIENCE);
    describe(context);
    match content {
        Content::Plain(entries) if !is_causal(context) => {
            figures::note_refusal("attention that is not causal");
            evaluate_other(context, Some(&sequences_of(&entries)), None, batch)
        }
        Content::Plain(entries) => evaluate_tokens(context, &entries, batch),
        Content::Media(entries) => {
            let tokens = media.and_then(|media| media.tokens_of(context, &entries));
            match media.zip(tokens) {
                Some((media, tokens)) => evaluate_media(context, media, tokens, &entries, batch),
                None => evaluate_other(context, Some(&sequences_of(&entries)), media, batch),
            }
        }
        Content::Other(sequences) => evaluate_other(context, sequences.as_deref(), media, batch),
    }
}

fn is_causal(context: Context<'_>) -> bool {
    with_record(context, |one| one.is_causal) != Some(false)
}

/// Evaluates something that is no tokens, or of which that is not known. `sequences`: `None`: not known in which.
fn evaluate_other(
    context: Context<'_>,
    sequences: Option<&[i32]>,
    media: Option<&Media>,
    batch: &impl Batches,
) -> i32 {
    for &sequence in sequences.unwrap_or(&[-1]) {
        ahead::remove_in(context, sequence);
        if is_embedded() {
            exact::make_whole_in(context, sequence);
        }
        let media = media.filter(|media| media.sequence == sequence);
        if media.is_some() {
            // Of what it holds then, nothing can be saved.
            change::share(context, sequence);
        }
        with_record(context, |one| match media {
            Some(media) => one.session.evaluated_media(sequence, media.first),
            None => one.session.obscure(sequence),
        });
    }
    let is_lost = with_record(context, |one| one.session.is_any_lost());
    let is_lost_now = !rescue::goes_on(context) && rescue::is_any_lost(context);
    if is_lost == Some(true) || is_lost_now {
        return LOST;
    }
    outputs::set(context, Vec::new());
    let result = batch.whole();
    if result == 0 {
        with_record(context, |one| one.session.updated());
        if let Some([sequence]) = sequences {
            learn_from_warm_up(context, *sequence);
        }
    }
    result
}

/// Evaluates rows of an image or a sound, or leaves them out. `tokens`: those of all of its rows.
fn evaluate_media(
    context: Context<'_>,
    media: &Media,
    tokens: &[i32],
    entries: &[Entry],
    batch: &impl Batches,
) -> i32 {
    let from = media.done.get() - entries.len();
    if from == 0 {
        // The engine holds all of it after this, or nothing.
        let all = Part::of_media(media, 0, tokens);
        look_up(context, std::slice::from_ref(&all));
        let mut result = 0;
        if !prepare(context, &all) {
            result = LOST;
        }
        let there = with_record(context, |one| one.session.there(&all.run));
        let is_there = result == 0 && there == Some(tokens.len());
        media.is_there.set(is_there);
        if !is_there {
            ahead::remove_in(context, media.sequence);
        }
        if result != 0 {
            return result;
        }
    }
    let part = Part::of_media(media, from, &tokens[from..media.done.get()]);
    let left_out = match media.is_there.get() {
        true => part.indexes.clone(),
        false => Vec::new(),
    };
    evaluate_rest(context, entries, &[part], left_out, true, batch)
}

fn evaluate_tokens(context: Context<'_>, entries: &[Entry], batch: &impl Batches) -> i32 {
    let parts = parts(entries);
    if parts.iter().all(|part| part.run.leading == 0) {
        // Generated tokens wait for nobody.
        be_patient(context, Duration::ZERO);
    }
    await_ready(context, &parts);
    learn_layout(context, &parts);
    look_up(context, &parts);
    let is_exact = exact::is_exact(context);
    let mut whole = true;
    let result = prepare_all(context, &parts, entries.len(), is_exact, &mut whole);
    if result != 0 {
        if is_exact {
            exact::undo(context, -1);
        } else {
            ahead::remove_in(context, -1);
        }
        return result;
    }
    let left_out = left_out(context, &parts).unwrap_or_default();
    evaluate_rest(context, entries, &parts, left_out, whole, batch)
}

/// Evaluates a batch but for these entries, when all is prepared. `whole`: no more than may be is left for one call.
fn evaluate_rest(
    context: Context<'_>,
    entries: &[Entry],
    parts: &[Part],
    mut left_out: Vec<u32>,
    whole: bool,
    batch: &impl Batches,
) -> i32 {
    let is_exact = exact::is_exact(context);
    // Behind this nothing is asked of the record until the engine has evaluated.
    if !rescue::goes_on(context) {
        if rescue::is_any_lost(context) {
            return LOST;
        }
        left_out.clear();
        for part in parts {
            part.owed.set(false);
            part.ours.set(0);
        }
    }
    outputs::set(context, left_out.clone());
    // Ends as "not known" if the engine throws.
    let mut open = Open {
        context,
        parts,
        ended: false,
    };
    let start = Instant::now();
    let mut result = match left_out.len() {
        0 => batch.whole(),
        all if all == entries.len() => 0,
        _ => batch.without(entries, &left_out),
    };
    let took = start.elapsed();
    if result == 0 {
        note_evaluated(context, parts);
    }
    let evaluated = entries.len() - left_out.len();
    if result == 0 && evaluated > 0 {
        with_record(context, |one| {
            one.rates.evaluated(evaluated, took);
            one.session.updated();
        });
    }
    if is_exact && result != 0 {
        exact::undo(context, -1);
    } else if result != 0 {
        let is_loose = rescue::is_any_loose(context);
        ahead::remove_in(context, -1);
        rescue::goes_on(context);
        if is_loose {
            // What was ahead took room that the server believes to be free.
            outputs::set(context, Vec::new());
            result = batch.whole();
        }
    }
    open.ended = true;
    if result == 0 {
        note_loaded(context, entries, parts);
    }
    end(context, parts, result);
    if !whole {
        forget_all(context, parts);
    }
    if result == 0 {
        prove_layout(context, parts);
        for part in parts {
            change::save_early(context, &part.run);
            if is_exact {
                exact::save_midway(context, &part.run);
            }
        }
    }
    result
}

/// The first prompt of a process may come before the folder has been read, or before it is known what is in the model's file.
/// It waits for that, but no longer than evaluating it would take.
fn await_ready(context: Context<'_>, parts: &[Part]) {
    /// Prompts of fewer tokens do not wait.
    const LEAST: usize = 64;
    /// How long evaluating a token takes on a fast card.
    const A_TOKEN: Duration = Duration::from_micros(250);
    /// How long all prompts of a process wait together: a model of 30 GB takes minutes.
    const IN_ALL: Duration = Duration::from_millis(500);
    const TURN: Duration = Duration::from_millis(1);
    static WAITED: AtomicU64 = AtomicU64::new(0);
    let waited = Duration::from_micros(WAITED.load(Ordering::Relaxed));
    if figures::is_ready() || waited >= IN_ALL {
        return;
    }
    let leading = parts
        .iter()
        .filter(|part| part.follows)
        .map(|part| part.run.leading);
    let Some(tokens) = leading.max().filter(|tokens| *tokens >= LEAST) else {
        return;
    };
    let longest = with_record(context, |one| {
        let may_load = !one.is_refused() && !one.has_embeddings();
        let count = u32::try_from(tokens).unwrap_or(u32::MAX);
        let evaluating = one.rates.evaluating(tokens).unwrap_or(A_TOKEN * count);
        may_load.then(|| evaluating.min(IN_ALL - waited))
    });
    let Some(longest) = longest.flatten() else {
        return;
    };
    let start = Instant::now();
    while !figures::is_ready() && start.elapsed() < longest {
        std::thread::sleep(TURN);
    }
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    WAITED.fetch_add(micros, Ordering::Relaxed);
}

/// While the folder is being read, what it has of these prompts is read before.
fn look_up(context: Context<'_>, parts: &[Part]) {
    if !figures::is_reading() {
        return;
    }
    for part in parts
        .iter()
        .filter(|part| part.follows && part.run.leading > 0)
    {
        with_shelf(context, |shelf, one| {
            let conditions = one.conditions();
            if let (Some(shelf), Some(fingerprint)) = (shelf, one.fingerprint(conditions)) {
                shelf.look_up(&fingerprint, &one.session.wanted(&part.run));
            }
        });
    }
}

/// Does what is to be done before a batch is evaluated. The result that the server gets if that is not possible; 0: it is
/// done. `whole` is set to false if more is left for one call than may be.
fn prepare_all(
    context: Context<'_>,
    parts: &[Part],
    entries: usize,
    is_exact: bool,
    whole: &mut bool,
) -> i32 {
    if is_exact {
        pay_for_room(context, entries);
    }
    for part in parts {
        let result = match is_exact {
            true => exact::prepare(context, part),
            false if prepare(context, part) => 0,
            // The engine lost a sequence that the server believes in, and it cannot be repaired.
            false => LOST,
        };
        if result != 0 {
            return result;
        }
    }
    if !is_exact {
        return 0;
    }
    match exact::stop_at_turns(context, parts) {
        0 => exact::in_pieces(context, parts, entries, whole),
        result => result,
    }
}

/// The server believes in the tokens of these parts now. (Those that are owed are noted by [`end`].)
fn note_evaluated(context: Context<'_>, parts: &[Part]) {
    for part in parts.iter().filter(|part| !part.owed.get()) {
        let first = usize::try_from(part.run.first).unwrap_or(0);
        rescue::evaluated(context, part.run.sequence, first + part.run.tokens.len());
    }
}

/// More was evaluated by one call than may be: what became of it is not for the store.
fn forget_all(context: Context<'_>, parts: &[Part]) {
    with_record(context, |one| {
        for part in parts.iter().filter(|part| !part.owed.get()) {
            one.session.obscure(part.run.sequence);
        }
    });
}

/// What is owed takes room that the server believes to be taken. It is paid before anybody else gets it.
fn pay_for_room(context: Context<'_>, entries: usize) {
    let is_short = with_record(context, |one| {
        one.session.owing().next().is_some() && one.session.held() + entries > one.size
    });
    if is_short == Some(true) {
        exact::pay(context, -1);
    }
}

/// Says why nothing of a prompt is loaded or kept, if nothing is.
fn note_unknown(one: &ContextStore, run: &Run) {
    if one.has_embeddings() {
        // All tokens of such a prompt may have outputs.
        if run.tokens.len() >= worth::LEAST {
            figures::note_refusal("embeddings: every token of the batch is needed");
        }
        return;
    }
    let why = one.session.why_unknown(run.sequence);
    if let Some(why) = why.filter(|_| run.leading >= worth::LEAST && one.is_proven()) {
        figures::note_refusal(change::name_of(why));
    }
}

/// If few tokens stand between what is known of a sequence and a prompt, they are evaluated again, and the prompt is stored.
/// False if the sequence was lost.
fn see_again(context: Context<'_>, run: &Run) -> bool {
    let sequence = run.sequence;
    let wanted = with_record(context, |one| {
        let conditions = one.conditions();
        let wanted = one.session.to_see_again(run, conditions)?;
        let may_be = one.layout().is_some() && !one.is_refused() && !one.has_embeddings();
        may_be.then_some(wanted)
    });
    // Now rows of an image may see those behind them, and tokens would, too.
    let Some((from, tokens)) = wanted.flatten().filter(|_| is_causal(context)) else {
        return true;
    };
    let believed = from + tokens.len();
    rescue::loosen(context, sequence, believed, rescue::ANYTHING);
    context.cut(sequence, from);
    let done = context
        .evaluate(sequence, from, &tokens, tokens.len())
        .is_ok();
    if done {
        rescue::loosen(context, sequence, believed, believed);
    } else {
        rescue::tighten(context, sequence);
    }
    with_record(context, |one| match done {
        true => {
            let conditions = one.conditions();
            one.session.seen_again(sequence, conditions);
        }
        false => {
            one.session.removed(sequence, -1, -1);
            one.session.obscure(sequence);
        }
    });
    done
}

/// Does what is to be done before a part of a batch is evaluated. False if a sequence was lost.
fn prepare(context: Context<'_>, part: &Part) -> bool {
    if !see_again(context, &part.run) {
        return false;
    }
    let advice = with_shelf(context, |shelf, one| {
        if !part.follows {
            let cut = one.session.ahead_of(part.run.sequence);
            return (contextpilot_kv_store::Advice { cut, search: None }, true);
        }
        expect(shelf.as_ref(), one, &part.run);
        let conditions = one.conditions();
        let mut advice = one.session.advise(&part.run, conditions, worth::LEAST);
        if one.has_embeddings() {
            advice.cut = one.session.ahead_of(part.run.sequence);
            advice.search = None;
        }
        if uncached::is(part.run.sequence) {
            advice.search = None;
        }
        (advice, false)
    });
    let Some((advice, foreign)) = advice else {
        return true;
    };
    if let Some(length) = advice.cut {
        context.cut(part.run.sequence, length);
        let believed = usize::try_from(part.run.first).unwrap_or(0);
        rescue::loosen(context, part.run.sequence, believed, length);
        with_record(context, |one| one.session.cut(part.run.sequence, length));
    }
    if foreign {
        with_record(context, |one| one.session.obscure(part.run.sequence));
    }
    match advice.search {
        Some(held) => load::load(context, &part.run, held),
        None => true,
    }
}

/// The sequence may soon be copied out, with what is evaluated now. While that is evaluated, memory is made ready, unless the
/// store has most of it.
fn expect(shelf: Option<&Shelf>, one: &mut ContextStore, run: &Run) {
    let held = one.session.believed(run.sequence).map(<[_]>::len);
    let (Some(shelf), Some(held)) = (shelf, held) else {
        return;
    };
    let tokens = held + run.tokens.len();
    let size = one.layout().map(|layout| layout.state_size(tokens));
    let Some(size) = size.filter(|size| !shelf.expects(*size)) else {
        return;
    };
    let conditions = one.conditions();
    let there = one.fingerprint(conditions).map_or(0, |fingerprint| {
        shelf.length_of(&fingerprint, &one.session.wanted(run))
    });
    let layout = one.layout();
    if !layout.is_some_and(|layout| only_new::is_enough(one.flows, layout, tokens, there)) {
        shelf.expect(size);
    }
}

/// The indexes of the entries that the engine holds already. `None`: the library has stopped.
fn left_out<'a>(
    context: Context<'_>,
    parts: impl IntoIterator<Item = &'a Part>,
) -> Option<Vec<u32>> {
    with_record(context, |one| {
        let mut all = Vec::new();
        for part in parts {
            let there = match part.owed.get() {
                true => part.indexes.len(),
                false => one.session.there(&part.run),
            };
            all.extend_from_slice(&part.indexes[..there]);
        }
        all.sort_unstable();
        all
    })
}

/// Tells the worker which entries were not evaluated because the engine held them. (Of those that are owed it is not
/// known yet.)
fn note_loaded(context: Context<'_>, entries: &[Entry], parts: &[Part]) {
    if !outputs::are_left_out(context) {
        return;
    }
    let ours: usize = parts.iter().map(|part| part.ours.get()).sum();
    let paid = parts.iter().filter(|part| !part.owed.get());
    let paid = match ours {
        0 => left_out(context, paid).unwrap_or_default(),
        _ => with_record(context, |one| {
            let of_store = |part: &Part| {
                let there = one.session.there(&part.run) - part.ours.get();
                part.indexes[..there].to_vec()
            };
            paid.flat_map(of_store).collect()
        })
        .unwrap_or_default(),
    };
    figures::add(&FIGURES.loaded_tokens, paid.len());
    let loaded: Vec<&Entry> = paid.iter().map(|&index| &entries[index as usize]).collect();
    guard::compute(|| {
        for run in loaded.chunk_by(|a, b| a.sequence == b.sequence && a.position + 1 == b.position)
        {
            push(Event::Loaded {
                context: contexts::id_of(context.pointer()),
                sequence: run[0].sequence,
                from: run[0].position,
                to: run[run.len() - 1].position + 1,
            });
        }
    });
}

/// The engine has evaluated the batch, or refused to.
fn end(context: Context<'_>, parts: &[Part], result: i32) {
    // There was no room, or the batch was invalid: all is as before.
    if matches!(result, 1 | -1) {
        return;
    }
    let noted = with_record(context, |one| {
        for part in parts {
            let sequence = part.run.sequence;
            match result {
                0 if part.owed.get() => one.session.owe(&part.run),
                0 => {
                    one.session.evaluated(&part.run);
                    note_unknown(one, &part.run);
                }
                // Its entries were not in the batch.
                _ if part.owed.get() => {}
                _ => {
                    let is_owed = one.session.believed_on_credit(sequence).is_some();
                    one.session.obscure(sequence);
                    if is_owed {
                        one.session.lose(sequence);
                    }
                }
            }
        }
    });
    if noted.is_none() && result == 0 {
        for part in parts.iter().filter(|part| part.owed.get()) {
            rescue::owe(context, &part.run);
        }
    }
}

/// An evaluation that has not ended yet. If the engine throws an exception, nobody knows what it did.
struct Open<'a> {
    context: Context<'a>,
    parts: &'a [Part],
    ended: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.ended {
            end(self.context, self.parts, -2);
        }
    }
}

/// Asks the engine what it says of a context, once.
fn describe(context: Context<'_>) {
    let known = with_record(context, |one| one.is_described());
    if known != Some(false) {
        return;
    }
    let facts = Facts::of(context);
    with_record(context, |one| {
        one.describe(&facts);
        match contexts::windows_of(context.pointer()) {
            Windows::Whole => refuse_aloud(one, exact::WHOLE_WINDOWS),
            Windows::Shared => refuse_aloud(one, exact::SHARED_WINDOWS),
            Windows::Unknown => refuse_aloud(one, exact::UNKNOWN_WINDOWS),
            Windows::None | Windows::Bounded if contexts::is_bounded(context.pointer()) => {
                one.bind(&facts)
            }
            Windows::None | Windows::Bounded => {}
        }
    });
}

/// The context has no store. Says so, once for each reason.
fn refuse_aloud(one: &mut ContextStore, why: &str) {
    if one.refuse_newly(why) {
        log::line(format_args!(
            "Prefix store: none for this model: {why}; its prompts are evaluated as ever"
        ));
    }
}

/// A context is about to be freed.
pub(super) fn forget(context: Context<'_>) {
    let Some(row) = records::find(context) else {
        return;
    };
    let batch = row.batch.swap(0, Ordering::Relaxed);
    guard::compute(|| row.free());
    if batch != 0 {
        let batch = std::ptr::with_exposed_provenance_mut(batch);
        original!(llama_batch_ext_free(batch));
    }
}
