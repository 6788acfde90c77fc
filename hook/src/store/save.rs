//! What is copied out of the engine, and when: what a sequence is about to lose, and what a crash would cost, where
//! the copy is cheap beside what was evaluated. And what a request asks to keep.
//!
//! Of a context that cannot go back to any position, a state is stored with its tail, and so are the tails that have waited for the
//! rows.
//!
//! What is about to be lost may have no name yet: the model's file is still being read for its digest, or the folder is. It waits in
//! memory ([`waiting`]), and is stored as soon as its name is known. Nothing is loaded from there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_control::KEEPS_NO_MORE;
use contextpilot_kv_engine::{Engine as _, is_bounded, synchronise};
use contextpilot_kv_store::{Fingerprint, Layout, Run, media, worth};

use super::calls::{before, hears};
use super::context::{ContextStore, Prefix};
use super::engine::Context;
use super::index::StoreIndex;
use super::index::held::with_index;
use super::only_new::{self, Extent, NewFrom};
use super::records::{self, FLUSH, be_patient, be_patient_for, with_record};
use super::waiting::{self, MOST_BYTES, Waiting};
use super::{figures, hidden, own_batch};
use crate::capture::hints;

/// A sequence is about to lose what stands from a position on. A negative sequence stands for all.
pub(crate) fn about_to_lose(context: Option<Context<'_>>, sequence: i32, from: i32) {
    let Some(context) = context else {
        return;
    };
    let from = usize::try_from(from).unwrap_or(0);
    before(context, || {
        let lost = with_record(context, |record| {
            let sequences = match sequence {
                0.. => vec![sequence],
                _ => record.session.sequences().collect(),
            };
            (sequences, record.session.index(sequence, from))
        });
        let (sequences, kept) = lost.unwrap_or_default();
        save_all(context, &sequences, kept);
    });
}

/// Saves sequences that are about to keep only their first `kept` tokens, as far as that is worth it.
fn save_all(context: Context<'_>, sequences: &[i32], kept: usize) {
    let lost = with_record(context, |record| {
        let lengths = sequences
            .iter()
            .map(|id| record.session.believed(*id).map_or(0, <[i32]>::len));
        lengths.max().unwrap_or(0).saturating_sub(kept)
    });
    be_patient_for(context, lost.unwrap_or(0));
    for &sequence in sequences {
        save(context, sequence, kept);
    }
}

/// Another sequence wants what this one holds, or an image follows that cannot be stored: as if it were about to be lost.
pub(super) fn share(context: Context<'_>, sequence: i32) {
    save(context, sequence, 0);
}

/// As [`about_to_lose`], of all sequences but one.
pub(crate) fn about_to_keep(context: Option<Context<'_>>, kept: i32) {
    let Some(context) = context else {
        return;
    };
    before(context, || {
        let sequences = with_record(context, |record| {
            let all = record.session.sequences();
            all.filter(|id| *id != kept).collect::<Vec<_>>()
        });
        save_all(context, &sequences.unwrap_or_default(), 0);
    });
}

/// The context is about to be freed: what it holds is saved, the longest sequence first.
pub(crate) fn about_to_free(context: Context<'_>, until: Instant) {
    before(context, || {
        // No client waits for a token.
        be_patient(context, FLUSH);
        await_names(context, until);
        store_waiting(context);
        let sequences = with_record(context, |record| {
            let all = record.session.sequences();
            let length = |id| record.session.believed(id).map_or(0, <[i32]>::len);
            let mut all: Vec<_> = all.map(|id| (length(id), id)).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            all
        });
        for (_, sequence) in sequences.unwrap_or_default() {
            if Instant::now() < until {
                save(context, sequence, 0);
            }
        }
    });
    if hears(context) {
        own_batch::forget(context);
    }
}

/// A run was evaluated, and its sequence is about to lose nothing. Some of it is saved nevertheless.
pub(super) fn save_after(context: Context<'_>, run: &Run) {
    if run.leading == run.tokens.len() {
        save_midway(context, run);
    } else {
        if run.tokens.len() == 1 {
            save_early(context, run);
        }
        keep_on_request(context, run.sequence);
    }
}

/// If an answer has just begun, what is new is saved if that is cheap: then a crash costs little, and other servers that
/// use the folder have it at once. No client waits for it: the answer's first token has gone out.
fn save_early(context: Context<'_>, run: &Run) {
    let loss = Loss::by_crash(run.sequence);
    let may_be = with_record(context, |record| {
        let was_due = record.postponed.remove(&run.sequence);
        let is_due = was_due || record.session.is_milestone(run, worth::STEPS);
        is_due.then(|| loss.may_be_worth(record))
    });
    let asked = may_be.flatten().map(|may_be| store(context, loss, may_be));
    if asked == Some(false) {
        with_record(context, |record| record.postponed.insert(run.sequence));
    }
}

/// A prompt was evaluated up to its end. If its request says how long it is worth keeping, it is stored now, and kept.
fn keep_on_request(context: Context<'_>, sequence: i32) {
    if !hints::are_any() || !records::is_oldest(context) {
        return;
    }
    let Some(seconds) = hints::take_lifetime(sequence) else {
        return;
    };
    if seconds > 0 {
        share(context, sequence);
    }
    let done = with_index(context, |index, record| {
        let conditions = record.session.conditions(sequence)?;
        // Without its hidden states, where the server asks for these, a prompt would be evaluated once more.
        let mut kinds = record.fingerprints(conditions)?;
        let tokens = record.session.believed(sequence)?;
        let index = index.as_mut()?;
        Some(kinds.all(|kind| index.keep_for(&kind, tokens, seconds)))
    });
    if done.flatten() == Some(false) {
        figures::note_refusal(KEEPS_NO_MORE);
    }
}

/// If the context cannot go back to any position, and the prompt is long and goes on, a state may be worth taking.
fn save_midway(context: Context<'_>, run: &Run) {
    if run.tokens.len() < worth::LEAST_LOST || !is_bounded(&context) {
        return;
    }
    let is_far = with_index(context, |index, record| {
        let (_, held) = record.prefix(run.sequence)?;
        let (tokens, fingerprint) = (held.tokens, held.fingerprint?);
        // A state within an image is of no use.
        if !worth::midway(tokens.len(), 0) || media::whole(tokens) < tokens.len() {
            return None;
        }
        let last = index.as_ref()?.last_state_in(&fingerprint, tokens);
        Some(worth::midway(tokens.len(), last))
    });
    if is_far.flatten() == Some(true) {
        copy_out(context, Loss::by_crash(run.sequence));
    }
}

/// A sequence that is about to keep only its first `kept` tokens.
#[derive(Clone, Copy)]
struct Loss {
    sequence: i32,
    kept: usize,
    /// What is new must have taken so many times as long to evaluate as copying all of it takes.
    margin: usize,
}

impl Loss {
    /// It loses everything, should the process crash.
    fn by_crash(sequence: i32) -> Self {
        Self {
            sequence,
            kept: 0,
            margin: worth::MARGIN,
        }
    }

    /// Whether a copy is worth it of so many tokens, of which the first are `there`.
    fn is_worth(self, record: &ContextStore, tokens: usize, there: usize) -> bool {
        let ratio = record.rates.worth_saving();
        worth::saving(tokens, self.kept, there, ratio, self.margin)
            && !record.session.is_draft(self.sequence, self.kept)
    }

    /// What is not worth it even if the store has nothing is not looked for.
    fn may_be_worth(self, record: &ContextStore) -> bool {
        let tokens = record.session.believed(self.sequence);
        self.is_worth(record, tokens.map_or(0, <[i32]>::len), 0)
    }
}

/// Saves a sequence that is about to keep only its first `kept` tokens, if that is worth it.
fn save(context: Context<'_>, sequence: i32, kept: usize) {
    let loss = Loss {
        sequence,
        kept,
        margin: 1,
    };
    let may_be = with_record(context, |record| loss.may_be_worth(record));
    store(context, loss, may_be == Some(true));
}

/// Saves a sequence, if that is worth it. Returns false if a later call may: another thread has the index, or names are not known yet.
fn store(context: Context<'_>, loss: Loss, may_be_worth: bool) -> bool {
    // Also for the tails that wait.
    let asked = if may_be_worth || is_bounded(&context) {
        copy_out(context, loss)
    } else {
        true
    };
    if may_be_worth {
        // Also if all of its KV is there already: a server that drafts otherwise may have stored it.
        hidden::save(context, loss.sequence);
    }
    asked
}

/// Copies a sequence out, if that is worth it, and stores what is new. Returns false if a later call may: see [`store`].
fn copy_out(context: Context<'_>, loss: Loss) -> bool {
    let sequence = loss.sequence;
    let found = with_index(context, |index, record| {
        insert_tails(index, record, sequence);
        let (asked, extent) = extent_of(index.as_ref(), record, loss);
        let memory = match (&extent, index) {
            (Some(Extent::Whole(bytes)), Some(index)) => index.buffer(&mut record.buffer, *bytes),
            (Some(Extent::Whole(_)), None) => std::mem::take(&mut record.buffer),
            (Some(Extent::From(..)) | None, _) => Vec::new(),
        };
        (asked, extent, memory)
    });
    let Some((asked, extent, mut buffer)) = found else {
        return true;
    };
    let Some(extent) = extent else {
        return asked;
    };
    synchronise(&context, sequence);
    if let Extent::From(from, layout) = extent {
        let new = only_new::copy_out(context, sequence, from, &layout);
        return new.is_none_or(|new| insert(context, sequence, (new.bytes(), new.tokens), None));
    }
    let took = only_new::copy_whole(context, sequence, &mut buffer);
    let state = Arc::new(buffer);
    let asked = took.is_none() || insert(context, sequence, (&state, 0), Some(&state));
    // Else the writer has it.
    let buffer = Arc::try_unwrap(state).unwrap_or_default();
    with_record(context, |record| {
        record.buffer = buffer;
        if let Some(took) = took {
            let tokens = record.session.believed(sequence).map_or(0, <[_]>::len);
            record.rates.saved(tokens, took);
        }
    });
    asked
}

/// What is to be copied of a sequence, if anything is worth it. False: a later call may find more to be.
fn extent_of(
    index: Option<&StoreIndex>,
    record: &mut ContextStore,
    loss: Loss,
) -> (bool, Option<Extent>) {
    let Some((record, held)) = record.prefix(loss.sequence) else {
        return (index.is_some(), None);
    };
    match (index, held.fingerprint) {
        (Some(index), Some(fingerprint)) => {
            let extent = extent_for_store(index, record, &fingerprint, held.tokens, loss);
            (true, extent)
        }
        _ if awaits_names(record) => (false, extent_that_waits(record, held, loss)),
        _ => (index.is_some(), None),
    }
}

/// What is to be copied for the store.
fn extent_for_store(
    index: &StoreIndex,
    record: &ContextStore,
    fingerprint: &Fingerprint,
    tokens: &[i32],
    loss: Loss,
) -> Option<Extent> {
    if !record.is_proven() {
        return None;
    }
    let layout = record.layout_of_rows();
    let there = length_of(index, record, fingerprint, tokens);
    let bytes = layout.map_or(0, Layout::bytes_per_token);
    if !loss.is_worth(record, tokens.len(), there) || !index.has_room(fingerprint, tokens, bytes) {
        return None;
    }
    if let Some(layout) = layout {
        let there = index.length_of(fingerprint, tokens);
        if only_new::is_enough(record.flows, layout, tokens.len(), there) {
            // Rows that share a position are all copied, or none is.
            let there = media::whole(&tokens[..there]);
            let from = NewFrom {
                tokens: there,
                position: media::position(&tokens[..there]),
            };
            return Some(Extent::From(from, layout.clone()));
        }
    }
    Some(Extent::Whole(match layout {
        Some(layout) if record.bounds.is_none() => layout.state_size(tokens.len()),
        _ => bytes * tokens.len(),
    }))
}

/// What is to be copied to wait for its name: all of it. (A copy that is made in case of a crash, with a larger margin, would
/// be lost by that as well.)
fn extent_that_waits(record: &ContextStore, held: Prefix<'_>, loss: Loss) -> Option<Extent> {
    let there = if record.bounds.is_some() {
        record.aside.states(held.conditions, held.tokens)
    } else {
        record.aside.rows(held.conditions, held.tokens)
    };
    let layout = record.layout_of_rows();
    let size = layout.map_or(0, |layout| layout.state_size(held.tokens.len()));
    let is_worth = loss.margin == 1 && loss.is_worth(record, held.tokens.len(), there);
    (is_worth && size <= MOST_BYTES && record.is_proven()).then_some(Extent::Whole(size))
}

/// Whether what a sequence loses now may have no name yet, and will have one.
fn awaits_names(record: &ContextStore) -> bool {
    figures::is_awaited() && !record.is_refused()
}

/// How many of these tokens the store has a state of.
fn length_of(
    index: &StoreIndex,
    record: &ContextStore,
    fingerprint: &Fingerprint,
    tokens: &[i32],
) -> usize {
    match record.bounds {
        None => index.length_of(fingerprint, tokens),
        Some(_) => index.last_state_in(fingerprint, tokens),
    }
}

/// Stores what is new in the state that a sequence has now, and weighs nothing: with the rows from this position on. If its name
/// is not known yet, it waits. `ours`: its bytes, if they may be handed over. Returns false if another thread has the index.
pub(super) fn insert(
    context: Context<'_>,
    sequence: i32,
    state: (&[u8], usize),
    ours: Option<&Arc<Vec<u8>>>,
) -> bool {
    // What the engine says comes before the record is looked at.
    let of_engine = if is_bounded(&context) {
        let Some(part) = context.part_size(sequence) else {
            return true;
        };
        Some((part, context.length(sequence)))
    } else {
        None
    };
    let asked = with_index(context, |index, record| {
        let asked = insert_held(index.as_mut(), record, sequence, state, ours, of_engine);
        insert_tails(index, record, sequence);
        asked
    });
    asked != Some(false)
}

/// `of_engine`: the size of the part of the state that cannot be cut back, and how many tokens the engine holds, if there is
/// such a part.
fn insert_held(
    index: Option<&mut StoreIndex>,
    record: &mut ContextStore,
    sequence: i32,
    state: (&[u8], usize),
    ours: Option<&Arc<Vec<u8>>>,
    of_engine: Option<(usize, Option<usize>)>,
) -> bool {
    let has_index = index.is_some();
    let Some((known, held)) = record.prefix(sequence) else {
        return has_index;
    };
    let Prefix {
        tokens, conditions, ..
    } = held;
    // Else the engine holds something else than was seen.
    let is_of_these = of_engine.is_none_or(|(_, length)| length == Some(media::reach(tokens)));
    let part = of_engine.map(|(part, _)| part);
    match (index, held.fingerprint) {
        (Some(index), Some(fingerprint)) => {
            let is_new = length_of(index, known, &fingerprint, tokens) < tokens.len();
            if is_new && is_of_these {
                let of_whom = (fingerprint, conditions, tokens);
                index.insert_state(known, of_whom, state, ours, part);
            }
            true
        }
        _ if awaits_names(known) => {
            if let Some(ours) = ours.filter(|_| is_of_these) {
                let (tokens, tails) = (tokens.to_vec(), record.tails.take_of(sequence));
                let waiting = Waiting::new(conditions, tokens, ours, part, tails);
                record.aside.add(waiting);
            }
            true
        }
        _ => has_index,
    }
}

/// Inserts the tails of a sequence that were waiting, if their rows are there now. Those that are not of what the
/// sequence holds now are dropped.
fn insert_tails(index: &mut Option<StoreIndex>, record: &mut ContextStore, sequence: i32) {
    let Some(index) = index.as_mut().filter(|_| record.bounds.is_some()) else {
        return;
    };
    if record.session.believed(sequence).is_none() {
        return;
    }
    for tail in record.tails.take_of(sequence) {
        let held = record.session.believed(sequence);
        if held.is_none_or(|held| !held.starts_with(&tail.tokens)) {
            continue;
        }
        let fingerprint = record.fingerprint(tail.conditions);
        let is_inserted = fingerprint
            .is_some_and(|fingerprint| index.insert_tail(&fingerprint, &tail.tokens, &tail.bytes));
        if !is_inserted {
            record.tails.put_back(tail);
        }
    }
}

/// Stores what waits for its name, if names are known by now.
pub(super) fn store_waiting(context: Context<'_>) {
    if !waiting::is_any() || figures::is_awaited() {
        return;
    }
    with_index(context, |index, record| {
        // Else another thread has it.
        if let Some(index) = index {
            for waiting in record.aside.take() {
                insert_waiting(index, record, &waiting);
            }
        }
    });
}

fn insert_waiting(
    index: &mut StoreIndex,
    record: &mut ContextStore,
    waiting: &Waiting,
) -> Option<()> {
    let fingerprint = record.fingerprint(waiting.conditions)?;
    let of_whom = (fingerprint, waiting.conditions, &*waiting.tokens);
    let (state, part) = (&waiting.state, waiting.partial);
    index.insert_state(record, of_whom, (&**state, 0), Some(state), part)?;
    for tail in &waiting.tails {
        if let Some(of) = record.fingerprint(tail.conditions) {
            index.insert_tail(&of, &tail.tokens, &tail.bytes);
        }
    }
    Some(())
}

/// The context is about to be freed. If it holds anything that has no name yet, that is waited for until then, and by a
/// process no longer than its end waits for files.
fn await_names(context: Context<'_>, until: Instant) {
    const TURN: Duration = Duration::from_millis(1);
    static WAITED: AtomicU64 = AtomicU64::new(0);
    if !figures::is_awaited() {
        return;
    }
    let holds_any = with_record(context, |record| {
        let mut all = record.session.sequences();
        let is_long =
            |id| (record.session.believed(id)).is_some_and(|of| of.len() >= worth::LEAST_GAINED);
        !record.is_refused() && (!record.aside.is_empty() || all.any(is_long))
    });
    let left = FLUSH.saturating_sub(Duration::from_micros(WAITED.load(Ordering::Relaxed)));
    let start = Instant::now();
    let until = until.min(start + left);
    while holds_any == Some(true) && figures::is_awaited() && Instant::now() < until {
        thread::sleep(TURN);
    }
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    WAITED.fetch_add(micros, Ordering::Relaxed);
}

/// The sequence may soon be copied out, with what is evaluated now. While that is evaluated, memory is made ready, unless the
/// store has most of it.
pub(super) fn expect(index: Option<&StoreIndex>, record: &mut ContextStore, run: &Run) {
    let held = record.session.believed(run.sequence).map(<[_]>::len);
    let (Some(index), Some(held)) = (index, held) else {
        return;
    };
    let tokens = held + run.tokens.len();
    let size = record.layout().map(|layout| layout.state_size(tokens));
    let Some(size) = size.filter(|size| !index.expects(*size)) else {
        return;
    };
    let conditions = record.conditions(run.sequence);
    let there = record.fingerprint(conditions).map_or(0, |fingerprint| {
        index.length_of(&fingerprint, &record.session.wanted(run))
    });
    let layout = record.layout();
    if !layout.is_some_and(|layout| only_new::is_enough(record.flows, layout, tokens, there)) {
        index.expect(size);
    }
}
