//! Evaluations: what the store has of a batch is loaded, and left out of it. Before the first prompt, and from the first states
//! that the engine gives, the layout of a context's states is learned.

pub(crate) mod batches;
pub(super) mod load;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use contextpilot_kv_engine::batch::{self, Ready};
use contextpilot_kv_engine::{
    Engine as _, HostBatch, LOST, Part, bounded, dense, is_bounded, synchronise,
};
use contextpilot_kv_store::{Layout, LayoutError, Run, Shape, prove};
use contextpilot_residency::{Entry, Event};

use super::bounded::{SHARED_WINDOWS, UNKNOWN_WINDOWS, WHOLE_WINDOWS};
use super::calls::{self, hears};
use super::context::{ContextStore, Facts};
use super::engine::Context;
use super::figures::{self, FIGURES};
use super::index::held::with_index;
use super::media::Media;
use super::records::{self, PATIENCE, be_patient, be_patient_for, with_record};
use super::working::Busy;
use super::{hidden, outputs, save};
use crate::attach::is_embedded;
use crate::base::guard;
use crate::capture::contexts::{self, Windows};
use crate::capture::{salts, usage};
use crate::channel::push;

/// A batch of the server's, and how to evaluate it.
trait Batches {
    /// Evaluates it as it is.
    fn whole(&self) -> i32;
    /// Evaluates it without these entries.
    fn without(&self, entries: &[Entry], left_out: &[u32]) -> i32;
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
fn without_store(context: Context<'_>, media: Option<&Media>, whole: impl FnOnce() -> i32) -> i32 {
    if media.is_some_and(Media::is_left_out) {
        // The library has stopped since.
        return 0;
    }
    if hears(context) {
        if calls::is_any_lost(context) {
            return LOST;
        }
        outputs::set(context, Vec::new());
        hidden::begin(context, 0, false);
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
    hidden::prepare(context);
    be_patient(context, PATIENCE);
    describe(context);
    save::store_waiting(context);
    take_salts(context, &content);
    match content {
        Content::Plain(entries) if !is_causal(context) => {
            // A draft that fills in several tokens at once has no store anyway.
            if with_record(context, |record| record.is_refused()) == Some(false) {
                figures::note_refusal("attention that is not causal");
            }
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

/// Takes note of the salts of the prompts that the sequences of a batch have. What a sequence holds of a prompt with another
/// salt is stored under that salt, and is the beginning of this prompt from now on: the client that sent this one knows it.
fn take_salts(context: Context<'_>, content: &Content) {
    if !salts::are_any() {
        return;
    }
    const UNTIED: &str =
        "a request has a cache_salt, and which slot takes it cannot be seen in this server";
    const DRAFTS: &str =
        "a request has a cache_salt, and a draft model's prompts cannot be told apart by it";
    let untold = match (salts::are_lost(), records::is_oldest(context)) {
        (true, _) => Some(UNTIED),
        (false, false) => Some(DRAFTS),
        (false, true) => None,
    };
    if let Some(why) = untold {
        if with_record(context, |record| record.is_refused()) == Some(false) {
            synchronise(&context, -1);
            with_record(context, |record| record.refuse_aloud(why));
        }
        return;
    }
    let sequences = match content {
        Content::Plain(entries) | Content::Media(entries) => sequences_of(entries),
        Content::Other(sequences) => sequences.clone().unwrap_or_default(),
    };
    for sequence in sequences {
        let salt = salts::in_slot(sequence);
        let was_others = with_record(context, |record| record.set_salt(sequence, salt));
        if was_others == Some(true) {
            synchronise(&context, sequence);
            save::share(context, sequence);
            with_record(context, |record| record.pass_on(sequence));
        }
    }
}

fn sequences_of(entries: &[Entry]) -> Vec<i32> {
    let mut sequences: Vec<i32> = entries.iter().map(|entry| entry.sequence).collect();
    sequences.sort_unstable();
    sequences.dedup();
    sequences
}

fn is_causal(context: Context<'_>) -> bool {
    with_record(context, |record| record.is_causal) != Some(false)
}

/// Evaluates something that is not tokens, or may not be. `sequences`: `None` if they are not known.
fn evaluate_other(
    context: Context<'_>,
    sequences: Option<&[i32]>,
    media: Option<&Media>,
    batch: &impl Batches,
) -> i32 {
    for &sequence in sequences.unwrap_or(&[-1]) {
        synchronise(&context, sequence);
        if is_embedded() {
            bounded::make_whole(&context, sequence);
        }
        let media = media.filter(|media| media.sequence == sequence);
        if media.is_some() {
            // Nothing of what it holds then can be saved.
            save::share(context, sequence);
        }
        with_record(context, |record| match media {
            Some(media) => record.session.evaluated_media(sequence, media.first),
            None => record.session.obscure(sequence),
        });
    }
    let is_lost = with_record(context, |record| record.session.is_any_lost());
    let is_lost_now = !calls::goes_on(context) && calls::is_any_lost(context);
    if is_lost == Some(true) || is_lost_now {
        return LOST;
    }
    outputs::set(context, Vec::new());
    hidden::begin(context, 0, false);
    let result = batch.whole();
    if result == 0 {
        with_record(context, |record| record.session.updated());
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
    let is_bounded = is_bounded(&context);
    if media.is_left_out() {
        outputs::set(context, (0..).take(entries.len()).collect());
        note_loaded(context, entries.iter());
        return 0;
    }
    if from == 0 {
        // The engine holds all of it after this, or nothing.
        let all = part_of_media(media, 0, tokens);
        look_up(context, std::slice::from_ref(&all));
        let is_there = if is_bounded {
            bounded::prepare_media(&context, &all)
        } else {
            dense::prepare_part(&context, &all).map(|()| {
                let there = with_record(context, |record| record.session.there(&all.run));
                there == Some(tokens.len())
            })
        };
        media.is_one.set(media.shares() || is_bounded);
        media.is_there.set(is_there == Ok(true));
        if !media.is_there.get() {
            synchronise(&context, media.sequence);
        }
        if let Err(refusal) = is_there {
            return refusal.code();
        }
    }
    let mut part = part_of_media(media, from, &tokens[from..media.done.get()]);
    let mut left_out = Vec::new();
    if media.is_there.get() {
        left_out.clone_from(&part.indexes);
        if media.is_one.get() {
            // The rest of it is there, too, and cannot be cut off.
            part.run.tokens = tokens.to_vec();
            part.run.leading = tokens.len();
        }
    }
    let ready = Ready {
        left_out,
        is_whole: true,
    };
    let (result, left_out) = evaluate_ready(context, entries, &[part], ready, batch);
    // Not if the library has stopped.
    media.is_there.set(left_out > 0);
    if result == 0 && is_bounded && left_out == 0 && media.done.get() == media.rows {
        // It is loaded by the state behind it, and by no other.
        save::share(context, media.sequence);
    }
    result
}

/// Rows of an image or a sound, behind the first `from`, with these tokens.
fn part_of_media(media: &Media, from: usize, tokens: &[i32]) -> Part {
    let from = if media.shares() { 0 } else { from };
    let from = i32::try_from(from).unwrap_or(i32::MAX);
    Part {
        run: Run {
            sequence: media.sequence,
            first: media.first.saturating_add(from),
            tokens: tokens.to_vec(),
            leading: tokens.len(),
        },
        indexes: (0..).take(tokens.len()).collect(),
        follows: media.first >= 0,
        ..Part::default()
    }
}

fn evaluate_tokens(context: Context<'_>, entries: &[Entry], batch: &impl Batches) -> i32 {
    let parts = parts(entries);
    match parts.iter().map(|part| part.run.leading).sum() {
        // Generated tokens do not wait for the index.
        0 => be_patient(context, Duration::ZERO),
        tokens => be_patient_for(context, tokens),
    }
    await_ready(context, &parts);
    learn_layout(context, &parts);
    look_up(context, &parts);
    match batch::prepare(&context, &parts, entries.len()) {
        Ok(ready) => evaluate_ready(context, entries, &parts, ready, batch).0,
        Err(refusal) => refusal.code(),
    }
}

/// Divides a batch. A generated token is a part of one entry.
fn parts(entries: &[Entry]) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut last = 0;
    for (index, entry) in entries.iter().enumerate() {
        let is_of = |part: &Part| part.run.sequence == entry.sequence;
        let known = parts.get(last).is_some_and(is_of).then_some(last);
        let known = known.or_else(|| parts.iter().position(is_of));
        last = known.unwrap_or(parts.len());
        if known.is_none() {
            parts.push(Part {
                run: Run {
                    sequence: entry.sequence,
                    first: entry.position,
                    tokens: Vec::new(),
                    leading: 0,
                },
                indexes: Vec::new(),
                follows: entry.position >= 0,
                ..Part::default()
            });
        }
        let part = &mut parts[last];
        let nth = part.run.tokens.len();
        let expected = i64::from(part.run.first) + nth as i64;
        part.follows &= i64::from(entry.position) == expected;
        if !entry.output && part.run.leading == nth {
            part.run.leading += 1;
        }
        part.run.tokens.push(entry.token);
        part.indexes.push(index as u32);
    }
    parts
}

/// Evaluates a batch that is ready. Returns the engine's result, and how many entries were left out.
fn evaluate_ready(
    context: Context<'_>,
    entries: &[Entry],
    parts: &[Part],
    ready: Ready,
    batch: &impl Batches,
) -> (i32, usize) {
    let mut evaluation = Evaluation {
        context,
        entries,
        batch,
        left_out: Vec::new(),
        took: Duration::ZERO,
    };
    let result = batch::evaluate(&context, parts, entries.len(), ready, &mut evaluation);
    if result == 0 {
        // Before the engine is asked for anything else.
        hidden::evaluated(context, parts, entries.len(), &evaluation.left_out);
        prove_layout(context, parts);
        with_record(context, ContextStore::look_at_model);
        for part in parts {
            note_submitted(context, &part.run);
            save::save_after(context, &part.run);
        }
    }
    (result, evaluation.left_out.len())
}

/// A batch of the host's that is being evaluated.
struct Evaluation<'a, B> {
    context: Context<'a>,
    entries: &'a [Entry],
    batch: &'a B,
    /// The indexes of the entries that the last evaluation was without, in order.
    left_out: Vec<u32>,
    /// How long that took.
    took: Duration,
}

impl<B: Batches> HostBatch<ContextStore> for Evaluation<'_, B> {
    fn leave_out(&mut self, left_out: &[u32]) {
        self.left_out = left_out.to_vec();
        outputs::set(self.context, left_out.to_vec());
        hidden::begin(self.context, self.entries.len(), !left_out.is_empty());
    }

    fn evaluate(&mut self, left_out: &[u32]) -> i32 {
        let start = Instant::now();
        let result = if left_out.is_empty() {
            self.batch.whole()
        } else {
            self.batch.without(self.entries, left_out)
        };
        self.took = start.elapsed();
        result
    }

    fn evaluated(&mut self, record: &mut ContextStore, entries: usize) {
        record.rates.evaluated(entries, self.took);
    }

    /// Tells the worker which entries were not evaluated.
    fn loaded(&mut self, loaded: &[u32]) {
        let at = |&index: &u32| &self.entries[index as usize];
        note_loaded(self.context, loaded.iter().map(at));
    }
}

/// These entries were not evaluated, since the store has them.
fn note_loaded<'a>(context: Context<'_>, loaded: impl Iterator<Item = &'a Entry>) {
    let loaded: Vec<&Entry> = loaded.collect();
    figures::add(&FIGURES.loaded_tokens, loaded.len());
    guard::compute(|| {
        let is_oldest = records::is_oldest(context);
        let context = contexts::id_of(context.pointer());
        // Rows of an image may share their position.
        let goes_on = |a: &&Entry, b: &&Entry| {
            a.sequence == b.sequence && (0..=1).contains(&(b.position - a.position))
        };
        for run in loaded.chunk_by(goes_on) {
            if is_oldest {
                usage::loaded(run[0].sequence, run.len());
            }
            push(Event::Loaded {
                context,
                sequence: run[0].sequence,
                from: run[0].position,
                to: run[run.len() - 1].position + 1,
                entries: u32::try_from(run.len()).unwrap_or(u32::MAX),
            });
        }
    });
}

/// The server has submitted these tokens, and the engine holds them, or the store has them for it.
fn note_submitted(context: Context<'_>, run: &Run) {
    if !usage::is_engaged() || !records::is_oldest(context) {
        return;
    }
    usage::submitted(run.sequence, run.tokens.len());
    if run.leading < run.tokens.len() {
        usage::is_complete(run.sequence, || {
            with_record(context, |record| {
                Some(record.session.believed(run.sequence)?.len())
            })
            .flatten()
        });
    }
}

/// The first prompt of a process may come before the folder has been read, or before it is known what is in the model's file.
/// It waits for that, but no longer than evaluating it would take.
fn await_ready(context: Context<'_>, parts: &[Part]) {
    /// Prompts of fewer tokens do not wait.
    const LEAST_WAITING: usize = 64;
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
    let Some(tokens) = leading.max().filter(|tokens| *tokens >= LEAST_WAITING) else {
        return;
    };
    let longest = with_record(context, |record| {
        let may_load = !record.is_refused() && !record.has_embeddings();
        let count = u32::try_from(tokens).unwrap_or(u32::MAX);
        let evaluating = record.rates.evaluating(tokens).unwrap_or(A_TOKEN * count);
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
        with_index(context, |index, record| {
            let index = index.as_mut()?;
            let conditions = record.conditions(part.run.sequence);
            let kinds = record.fingerprints(conditions)?;
            let wanted = record.session.wanted(&part.run);
            kinds.for_each(|kind| index.look_up(&kind, &wanted));
            Some(())
        });
    }
}

/// Asks the engine what it says of a context, once.
fn describe(context: Context<'_>) {
    let known = with_record(context, |record| record.is_described());
    if known != Some(false) {
        return;
    }
    let facts = Facts::of(context);
    with_record(context, |record| {
        record.describe(&facts);
        match contexts::windows_of(context.pointer()) {
            Windows::Whole => record.refuse_aloud(WHOLE_WINDOWS),
            Windows::Shared => record.refuse_aloud(SHARED_WINDOWS),
            Windows::Unknown => record.refuse_aloud(UNKNOWN_WINDOWS),
            Windows::None | Windows::Bounded if contexts::is_bounded(context.pointer()) => {
                record.bind(&facts)
            }
            Windows::None | Windows::Bounded => {}
        }
    });
}

/// Tokens that are enough to see of what the state of a sequence consists.
const ENOUGH: usize = 2;

/// A server that warms up evaluates two tokens before its first prompt, and so shows the state of a sequence. (If
/// that is not understood, a prompt's may be.)
fn learn_from_warm_up(context: Context<'_>, sequence: i32) {
    if !is_to_learn(context) || context.length(sequence) != Some(ENOUGH) {
        return;
    }
    let proven = prove_one(context, sequence);
    with_record(context, |record| match proven {
        Some(Understood::Dense(Err(_)) | Understood::Exact(Err(_))) | None => {}
        Some(proven) => learn(record, proven),
    });
}

/// Before the first prompt of a context whose layout is not known: evaluates its first two tokens, to see
/// the state of a sequence. They are then removed, and evaluated again with the rest, or loaded.
fn learn_layout(context: Context<'_>, parts: &[Part]) {
    if !is_to_learn(context) {
        return;
    }
    let wanted = with_record(context, |record| {
        let fresh = |part: &Part| {
            let run = &part.run;
            let empty = record.session.believed(run.sequence) == Some(&[]);
            part.follows && run.first == 0 && run.leading > ENOUGH && empty
        };
        parts.iter().position(fresh)
    });
    let Some(part) = wanted.flatten().map(|at| &parts[at]) else {
        return;
    };
    let sequence = part.run.sequence;
    let first = &part.run.tokens[..ENOUGH];
    if context.evaluate(sequence, 0, first, ENOUGH).is_ok() {
        prove_layout(context, std::slice::from_ref(part));
    }
    context.cut(sequence, 0);
}

/// Whether a context could have a store if its states were understood.
fn is_to_learn(context: Context<'_>) -> bool {
    let is = |record: &mut ContextStore| {
        !record.is_proven() && !record.is_refused() && !record.has_embeddings()
    };
    with_record(context, is) == Some(true)
}

/// Proves that states of this context can be taken apart and put together, as soon as it holds two tokens.
/// Until then it has no store.
fn prove_layout(context: Context<'_>, parts: &[Part]) {
    let wanted = with_record(context, |record| {
        !record.is_proven() && !record.is_refused()
    });
    if wanted != Some(true) {
        return;
    }
    let mut sequences = parts.iter().map(|part| part.run.sequence);
    if let Some(proven) = sequences.find_map(|sequence| prove_one(context, sequence)) {
        with_record(context, |record| learn(record, proven));
    }
}

/// `None`: this sequence is too short, or the engine does not give its state.
fn prove_one(context: Context<'_>, sequence: i32) -> Option<Understood> {
    context
        .length(sequence)
        .filter(|&length| length >= ENOUGH)?;
    let mut state = with_record(context, |record| std::mem::take(&mut record.buffer))?;
    let saved = context.save(sequence, &mut state);
    let proven = if !saved {
        None
    } else if is_bounded(&context) {
        let mut partial = Vec::new();
        let saved = context.save_part(sequence, &mut partial);
        let prove = || Understood::Exact(Shape::prove(&state, &partial));
        saved.then(|| guard::compute(prove)).flatten()
    } else {
        guard::compute(|| Understood::Dense(prove(&state)))
    };
    with_record(context, |record| record.buffer = std::mem::take(&mut state));
    proven
}

/// What came of a proof.
enum Understood {
    Dense(Result<Layout, LayoutError>),
    Exact(Result<Shape, LayoutError>),
}

fn learn(record: &mut ContextStore, proven: Understood) {
    match proven {
        Understood::Dense(Ok(layout)) => record.set_layout(layout),
        Understood::Exact(Ok(shape)) => record.set_shape(shape),
        Understood::Dense(Err(error)) | Understood::Exact(Err(error)) => {
            let why = format!("the state of its sequences is not understood ({error})");
            record.refuse_aloud(&why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(sequence: i32, position: i32, output: bool) -> Entry {
        Entry {
            sequence,
            position,
            token: 100 + position,
            output,
        }
    }

    #[test]
    fn a_batch_is_divided_by_sequence() {
        let batch = [
            entry(1, 7, true),
            entry(0, 0, false),
            entry(0, 1, false),
            entry(0, 2, true),
            entry(2, 5, false),
            entry(2, 7, false),
        ];
        let parts = parts(&batch);
        let seen: Vec<_> = parts
            .iter()
            .map(|part| (part.run.sequence, part.run.leading, part.follows))
            .collect();
        assert_eq!(seen, [(1, 0, true), (0, 2, true), (2, 2, false)]);
        assert_eq!(parts[1].indexes, [1, 2, 3]);
        assert_eq!(parts[1].run.tokens, [100, 101, 102]);
    }
}
