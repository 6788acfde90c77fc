//! Hidden states of tokens, from which is drafted what comes next: by heads of the model itself (MTP), from what is behind the last
//! layer, or by another model (EAGLE-3, DFlash, DSpark), from what goes into some layers.
//!
//! The host asks the engine for the state of every entry of a batch, one row for each, and evaluates its own context of the
//! draft with them, token by token. Entries that were left out have no rows in the engine. So the row of each token is stored
//! as well: it depends on what KV depends on, and stands in chunks of its own, under a fingerprint of its own. The host gets
//! a batch's rows from memory of ours, in its own order ([`Batch`]); the draft's context then holds what it would hold without
//! a store, and drafts what it would draft.
//!
//! A draft is only a guess, which the model verifies: a row that cannot be read is zeros, which may cost accepted drafts, and
//! never an answer. No more of a prompt is loaded than there are rows of.
//!
//! Rows are kept in memory until the KV of their tokens is stored, and no longer. They say of which tokens they are, so no
//! change of a sequence need be told to them.

use std::borrow::Cow;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};

use contextpilot_kv_engine::Part;
use contextpilot_kv_store::{Conditions, common};

use super::calls::hears;
use super::context::ContextStore;
use super::engine::Context;
use super::hidden_rows::{Batch, Hidden, Ours, Rows};
use super::index::StoreIndex;
use super::index::held::with_index;
use super::records::{self, with_record};
use crate::attach::original::original;
use crate::base::abi::Pointer;

pub(crate) use super::hidden_rows::Source;

/// Some context has hidden states.
static ANY: AtomicBool = AtomicBool::new(false);
/// What goes into layers is for a draft of a kind that was tried: EAGLE-3, DFlash or DSpark.
static IS_TRIED: AtomicBool = AtomicBool::new(false);
/// A draft has no memory of its own, but that of the model.
static IS_SHARED: AtomicBool = AtomicBool::new(false);

fn are_any() -> bool {
    ANY.load(Ordering::Acquire)
}

/// The host asks for a row of each entry from now on, of so many numbers; also of those that it has asked for before.
pub(super) fn want(context: Context<'_>, source: Source, width: usize) {
    let wanted = with_record(context, |record| {
        let hidden = record.take_hidden().unwrap_or_default();
        let mut sources = hidden.sources;
        if sources.iter().all(|(known, _)| *known != source) {
            sources.push((source, width));
        }
        let width: usize = sources.iter().map(|(_, width)| width).sum();
        record.want_hidden(Some(Hidden {
            sources: sources.clone(),
            size: width.saturating_mul(size_of::<f32>()),
            ..Hidden::default()
        }));
        sources
    });
    if let Some(sources) = wanted {
        in_batch(context, |batch| {
            *batch = Batch::of(sources);
        });
        ANY.store(true, Ordering::Release);
    }
}

/// The host asks for none any more.
pub(super) fn forget(context: Context<'_>) {
    if are_any() {
        with_record(context, |record| record.want_hidden(None));
        in_batch(context, |batch| *batch = Batch::NONE);
    }
}

/// There is a draft's context of this architecture. `is_shared`: its memory may be that of another context.
pub(super) fn note_draft(architecture: Option<&str>, is_shared: bool) {
    if matches!(architecture, Some("eagle3" | "dflash")) {
        // It has the other's vocabulary, and memory of its own.
        IS_TRIED.store(true, Ordering::Relaxed);
    } else if is_shared {
        IS_SHARED.store(true, Ordering::Relaxed);
    }
}

/// Why nothing is stored of a context that asks for these.
fn unfit(hidden: &Hidden) -> Option<&'static str> {
    const UNTRIED: &str =
        "speculation that needs what goes into layers, and is not EAGLE-3, DFlash or DSpark";
    const SHARED: &str = "speculation by a draft that shares the memory of its model";
    let mut sources = hidden.sources.iter();
    let has_layers = sources.any(|(source, _)| matches!(source, Source::Layer(_)));
    if has_layers {
        (!IS_TRIED.load(Ordering::Relaxed)).then_some(UNTRIED)
    } else {
        IS_SHARED.load(Ordering::Relaxed).then_some(SHARED)
    }
}

fn in_batch<R>(context: Context<'_>, work: impl FnOnce(&mut Batch) -> R) -> Option<R> {
    let mut batch = records::find(context)?.hidden()?;
    Some(work(&mut batch))
}

/// The host is about to evaluate a batch.
pub(super) fn prepare(context: Context<'_>) {
    if !are_any() {
        return;
    }
    let unfit = with_record(context, |record| {
        let hidden = record.hidden_mut()?;
        hidden.ours.clear();
        unfit(hidden)
    });
    if let Some(why) = unfit.flatten() {
        forget(context);
        with_record(context, |record| record.refuse(why));
    }
}

/// The store has evaluated these tokens of a sequence by itself, from this position on. Not within the guard.
pub(super) fn take_own_rows(context: Context<'_>, sequence: i32, from: usize, tokens: &[i32]) {
    let Some((size, engines)) = of_engine(context, tokens.len()) else {
        return;
    };
    with_record(context, |record| {
        let ours = record.hidden_mut()?.ours.entry(sequence).or_default();
        if ours.first + ours.tokens.len() != from {
            *ours = Ours {
                first: from,
                ..Ours::default()
            };
        }
        let rows = engines.chunks_exact(size).zip(tokens);
        for (row, &token) in rows {
            ours.tokens.push(token);
            ours.rows.push(row.into());
        }
        Some(())
    });
}

/// The size of a row, and the rows of the last evaluation, which had so many entries; none if the engine has none. `None`:
/// they are not wanted. This waits for the engine, as the host does next.
fn of_engine<'a>(context: Context<'_>, entries: usize) -> Option<(usize, Cow<'a, [u8]>)> {
    if !are_any() {
        return None;
    }
    let wanted = |record: &mut ContextStore| {
        let hidden = record.hidden()?;
        Some((hidden.size, hidden.sources.clone()))
    };
    let (size, sources) = with_record(context, wanted).flatten()?;
    let nothing = Some((size, Cow::Borrowed(&[][..])));
    if entries == 0 {
        return nothing;
    }
    let mut all: Vec<(&'a [u8], usize)> = Vec::new();
    for (source, width) in sources {
        let pointer = context.pointer();
        let rows = match source {
            Source::Last => original!(_Z26llama_get_embeddings_nextnP13llama_context(pointer)),
            Source::Layer(layer) => original!(_Z30llama_get_embeddings_layer_inpP13llama_contextj(
                pointer, layer
            )),
        };
        if rows.is_null() {
            return nothing;
        }
        let size = width * size_of::<f32>();
        // SAFETY: the engine has a row for each entry that it has evaluated, until it evaluates the next batch. Our callers
        // are done with them before.
        let rows = unsafe { slice::from_raw_parts(rows.cast::<u8>(), entries * size) };
        all.push((rows, size));
    }
    if let [(rows, _)] = all[..] {
        return Some((size, Cow::Borrowed(rows)));
    }
    let mut rows = Vec::with_capacity(entries * size);
    for nth in 0..entries {
        for (of_source, size) in &all {
            rows.extend_from_slice(&of_source[nth * size..(nth + 1) * size]);
        }
    }
    Some((size, Cow::Owned(rows)))
}

/// A batch of so many entries is about to be evaluated, without some of them if `is_short`. This cannot panic.
pub(super) fn begin(context: Context<'_>, entries: usize, is_short: bool) {
    if !are_any() {
        return;
    }
    in_batch(context, |batch| {
        batch.begin(if is_short { entries } else { 0 });
    });
}

/// The rows that the host gets of its last batch; of one entry, if an index is given. `None`: the engine has them.
pub(crate) fn rows(context: Context<'_>, source: Source, index: Option<i32>) -> Option<Pointer> {
    if !are_any() || !hears(context) {
        return None;
    }
    let rows = in_batch(context, |batch| {
        let index = index.map_or(Some(0), |index| usize::try_from(index).ok());
        Some(batch.row_mut(source, index?)?.as_mut_ptr().cast())
    });
    rows.flatten()
}

/// A batch of so many entries was evaluated but for those that were left out, and the record knows of it. Not within the guard.
pub(super) fn evaluated(context: Context<'_>, parts: &[Part], entries: usize, left_out: &[u32]) {
    let Some((_, engines)) = of_engine(context, entries - left_out.len()) else {
        return;
    };
    let evaluated = Evaluated {
        context,
        engines: &engines,
        left_out,
    };
    if left_out.is_empty() {
        with_record(context, |record| evaluated.note_all(None, record, parts))
    } else {
        with_index(context, |index, record| {
            evaluated.note_all(index.as_mut(), record, parts);
        })
    };
}

/// What the engine has evaluated of a batch.
struct Evaluated<'a> {
    context: Context<'a>,
    /// The rows of the entries that it has evaluated.
    engines: &'a [u8],
    left_out: &'a [u32],
}

impl Evaluated<'_> {
    fn note_all(&self, index: Option<&mut StoreIndex>, record: &mut ContextStore, parts: &[Part]) {
        let Some(mut hidden) = record.take_hidden() else {
            return;
        };
        let mut index = index;
        for part in parts.iter().filter(|part| part.follows) {
            self.note_part(index.as_deref_mut(), record, &mut hidden, part);
        }
        record.set_hidden(hidden);
    }

    fn note_part(
        &self,
        index: Option<&mut StoreIndex>,
        record: &mut ContextStore,
        hidden: &mut Hidden,
        part: &Part,
    ) -> Option<()> {
        let (sequence, size) = (part.run.sequence, hidden.size);
        let position = usize::try_from(part.run.first).ok()?;
        let conditions = record.session.under(sequence);
        let is_out = |index: &&u32| self.left_out.binary_search(index).is_ok();
        let there = part.indexes.iter().take_while(is_out).count();
        let ours = hidden.ours.remove(&sequence).unwrap_or_default();
        // Those before come from the store.
        let stored = ours.behind(&part.run.tokens[..there], position);
        let stored = stored.unwrap_or(there);
        let of_rows = match stored {
            0 => None,
            _ => record.fingerprint_of_hidden(conditions),
        };
        let tokens = record.session.believed(sequence)?;
        let first = tokens.len().checked_sub(part.run.tokens.len())?;
        if record.session.position(sequence, first) != position {
            return None;
        }
        if let (Some(index), Some(of_rows)) = (index, of_rows) {
            let tokens = &tokens[..first + stored];
            index.read_rows(&of_rows, tokens, first, size, |nth, row| {
                self.give(part.indexes[nth], row);
            });
        }
        let rows = hidden.of.entry(sequence).or_default();
        rows.follow(tokens, conditions, first + stored);
        let evaluated = &part.indexes[stored..there];
        let needed_before = ours.rows.len().saturating_sub(evaluated.len());
        for (row, &index) in ours.rows.into_iter().skip(needed_before).zip(evaluated) {
            self.give(index, &row);
            rows.rows.push_back(row);
        }
        for &index in &part.indexes[there..] {
            let before = self.left_out.partition_point(|out| *out < index);
            let from = (index as usize - before) * size;
            let row = self.engines.get(from..from + size)?;
            rows.rows.push_back(row.into());
            if !self.left_out.is_empty() {
                self.give(index, row);
            }
        }
        // No more than the context could hold, whatever became of the other sequences.
        let all: usize = hidden.of.values().map(|rows| rows.rows.len()).sum();
        if all > record.size {
            hidden.of.retain(|&of, _| of == sequence);
        }
        Some(())
    }

    /// The host gets this row for an entry of its batch.
    fn give(&self, index: u32, row: &[u8]) {
        in_batch(self.context, |batch| batch.give(index as usize, row));
    }
}

/// How many of these tokens may be loaded under these conditions: as many as there are rows of, if the host asks for rows.
/// `None`: that is not known.
pub(super) fn length(
    index: &StoreIndex,
    record: &mut ContextStore,
    conditions: Conditions,
    tokens: &[i32],
) -> Option<usize> {
    if record.hidden().is_none() {
        return Some(tokens.len());
    }
    let of_rows = record.fingerprint_of_hidden(conditions)?;
    Some(index.length_of(&of_rows, tokens))
}

/// Stores the rows of a sequence, if there are any, as far as the store has its KV.
pub(super) fn save(context: Context<'_>, sequence: i32) {
    if are_any() {
        with_index(context, |index, record| insert(index, record, sequence));
    }
}

/// The same, of a caller that has the index.
pub(super) fn insert(index: &mut Option<StoreIndex>, record: &mut ContextStore, sequence: i32) {
    let Some(mut hidden) = record.take_hidden() else {
        return;
    };
    let size = hidden.size;
    if let (Some(index), Some(rows)) = (index, hidden.of.get_mut(&sequence)) {
        insert_rows(index, record, sequence, rows, size);
    }
    record.set_hidden(hidden);
}

fn insert_rows(
    index: &mut StoreIndex,
    record: &mut ContextStore,
    sequence: i32,
    rows: &mut Rows,
    size: usize,
) -> Option<()> {
    let (record, held) = record.prefix(sequence)?;
    let (conditions, of_kv) = (held.conditions, held.fingerprint?);
    let of_rows = record.hidden_beside_kv(conditions)?;
    if rows.conditions != conditions {
        return None;
    }
    let end = common(&rows.tokens, held.tokens).min(rows.end());
    let tokens = &held.tokens[..end.min(index.length_of(&of_kv, held.tokens))];
    // As the KV is divided: another machine asks for both up to where a state of the prompt ends.
    let kv = index.tree.find(&of_kv, tokens);
    let ends = kv.pieces().iter().map(|piece| piece.start + piece.take);
    let ends: Vec<usize> = ends.collect();
    index.insert_rows(&of_rows, (tokens, &ends), size, |range| rows.of(range));
    let stored = index.length_of(&of_rows, tokens);
    if stored > 0 {
        index.note_origin(of_rows, || record.origin_of_hidden(conditions));
    }
    rows.forget_before(stored);
    Some(())
}
