//! What is about to be lost before it is known under which name it is stored: the model's file is still being read for its
//! digest, or the folder is. It waits in memory, and is stored as soon as that is known. Nothing is loaded from here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_kv_engine::Tail;
use contextpilot_kv_store::worth;

use super::context::ContextStore;
use super::engine::Context;
use super::figures;
use super::index::StoreIndex;
use super::index::held::with_index;
use super::only_new::Copied;
use super::records::{FLUSH, with_record};
use super::waiting::{self, MOST_BYTES, Waiting};

/// Whether what a sequence loses now has no name yet, and will have one.
pub(super) fn is_due(index: Option<&StoreIndex>, record: &mut ContextStore, sequence: i32) -> bool {
    let conditions = record.session.conditions(sequence);
    figures::is_awaited()
        && !record.is_refused()
        && conditions.is_some_and(|of| index.is_none() || record.fingerprint(of).is_none())
}

/// What is to be copied of a sequence that is about to keep only its first `kept` tokens, if anything is: all of it. (A copy
/// that is made in case of a crash, with a larger margin, would be lost by that as well.)
pub(super) fn wanted(
    record: &mut ContextStore,
    sequence: i32,
    kept: usize,
    margin: usize,
) -> Option<Copied> {
    let conditions = record.session.conditions(sequence)?;
    let tokens = record.session.believed(sequence)?;
    let there = if record.bounds.is_some() {
        record.aside.states(conditions, tokens)
    } else {
        record.aside.rows(conditions, tokens)
    };
    let layout = record.layout_of_rows();
    let has_room = layout.is_none_or(|layout| layout.state_size(tokens.len()) <= MOST_BYTES);
    let is_worth = worth::saving(
        tokens.len(),
        kept,
        there,
        record.rates.worth_saving(),
        margin,
    );
    let is = is_worth && has_room && record.is_proven() && !record.session.is_draft(sequence, kept);
    (is && margin == 1).then(|| Copied::Whole(std::mem::take(&mut record.buffer)))
}

/// The state of a sequence waits for its name. `partial`: the size of the part of it that cannot be cut back, if there is one.
pub(super) fn put(
    record: &mut ContextStore,
    sequence: i32,
    state: &Arc<Vec<u8>>,
    partial: Option<usize>,
) {
    let known = record.session.conditions(sequence);
    let Some((conditions, tokens)) = known.zip(record.session.believed(sequence)) else {
        return;
    };
    let tokens = tokens.to_vec();
    let tails = record.tails.take_of(sequence);
    let is_beginning = |tail: &Tail| tokens.starts_with(&tail.tokens);
    let tails = tails.into_iter().filter(is_beginning).collect();
    let waiting = Waiting::new(conditions, tokens, state, partial, tails);
    record.aside.add(waiting);
}

/// Stores what waits, if its names are known by now.
pub(super) fn settle(context: Context<'_>) {
    if !waiting::is_any() || figures::is_awaited() {
        return;
    }
    with_index(context, |index, record| {
        // Else another thread has it.
        if let Some(index) = index {
            for waiting in record.aside.take() {
                store(index, record, &waiting);
            }
        }
    });
}

fn store(index: &mut StoreIndex, record: &mut ContextStore, waiting: &Waiting) -> Option<()> {
    let fingerprint = record.fingerprint(waiting.conditions)?;
    let state = (&**waiting.state, 0);
    let of_whom = (fingerprint, waiting.conditions, &*waiting.tokens);
    index.insert_state(
        record,
        of_whom,
        state,
        Some(&waiting.state),
        waiting.partial,
    )?;
    for tail in &waiting.tails {
        if let Some(of) = record.fingerprint(tail.conditions) {
            index.insert_tail(&of, &tail.tokens, &tail.bytes);
        }
    }
    Some(())
}

/// The context is about to be freed. If it holds anything that has no name yet, that is waited for until then, and by a
/// process no longer than its end waits for files.
pub(super) fn await_names(context: Context<'_>, until: Instant) {
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
