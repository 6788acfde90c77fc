//! Batches that the store makes: a smaller one than the host's, and tokens that the engine lacks.

use std::sync::atomic::Ordering;

use contextpilot_kv_engine::NO_ROOM;
use contextpilot_residency::Entry;

use super::engine::Context;
use super::{hidden, records};
use crate::attach::original::{self, original};
use crate::base::abi::{Batch, Pointer};
use crate::base::guard;

/// `LLAMA_PROCESS_TYPE_DECODE`.
pub(super) const DECODE: i32 = 1;

/// Evaluates these entries as a `llama_batch_ext`.
pub(super) fn process<'a>(context: Context<'_>, entries: impl Iterator<Item = &'a Entry>) -> i32 {
    let batch = fill(context, entries);
    if batch.is_null() {
        // As if there were no room: what is ahead is cut off, and the server's batch is evaluated as it is.
        return NO_ROOM;
    }
    let context = context.pointer();
    original!(llama_process(context, DECODE, batch))
}

/// Our own batch with these entries; null if the engine does not take them.
fn fill<'a>(context: Context<'_>, entries: impl Iterator<Item = &'a Entry>) -> Pointer {
    let Some(row) = records::row(context) else {
        return std::ptr::null_mut();
    };
    let context = context.pointer();
    let batch: Pointer = match row.batch.load(Ordering::Relaxed) {
        0 => original!(llama_batch_ext_init(context)),
        known => std::ptr::with_exposed_provenance_mut(known),
    };
    if batch.is_null() {
        return batch;
    }
    row.batch
        .store(batch.expose_provenance(), Ordering::Relaxed);
    original!(llama_batch_ext_clear(batch));
    for entry in entries {
        let index = original!(llama_batch_ext_add_token(
            batch,
            entry.sequence,
            entry.token
        ));
        // Models with several positions for a token read as many. For text, the first three are equal.
        let position = [entry.position, entry.position, entry.position, 0];
        let placed = original!(llama_batch_ext_set_pos(batch, index, position.as_ptr()));
        let asked =
            !entry.output || original!(llama_batch_ext_set_output_logits(batch, index, true));
        if index < 0 || !placed || !asked {
            return std::ptr::null_mut();
        }
    }
    batch
}

/// Evaluates these entries as a `llama_batch`.
pub(super) fn decode<'a>(context: Context<'_>, entries: impl Iterator<Item = &'a Entry>) -> i32 {
    let entries: Vec<&Entry> = entries.collect();
    let tokens: Vec<i32> = entries.iter().map(|entry| entry.token).collect();
    let positions: Vec<i32> = entries.iter().map(|entry| entry.position).collect();
    let counts = vec![1; entries.len()];
    let sequences: Vec<i32> = entries.iter().map(|entry| entry.sequence).collect();
    let lists: Vec<*const i32> = sequences.iter().map(std::ptr::from_ref).collect();
    let outputs: Vec<i8> = entries.iter().map(|entry| i8::from(entry.output)).collect();
    let batch = Batch {
        len: i32::try_from(entries.len()).unwrap_or(0),
        token: tokens.as_ptr(),
        embedding: std::ptr::null(),
        position: positions.as_ptr(),
        sequences: counts.as_ptr(),
        sequence: lists.as_ptr(),
        output: outputs.as_ptr(),
        beyond: [0; 9],
    };
    let context = context.pointer();
    original!(llama_decode(context, batch))
}

/// Evaluates tokens behind the first `from` of a sequence, at most `most` at a time, and asks for no output.
pub(super) fn evaluate_tokens(
    context: Context<'_>,
    sequence: i32,
    from: usize,
    tokens: &[i32],
    most: usize,
) -> i32 {
    let is_extended = original::llama_process().is_some();
    let most = most.max(1);
    for (nth, tokens) in tokens.chunks(most).enumerate() {
        let entries = tokens
            .iter()
            .zip(from + nth * most..)
            .map(|(&token, position)| Entry {
                sequence,
                position: i32::try_from(position).unwrap_or(i32::MAX),
                token,
                output: false,
            });
        let entries = entries.collect::<Vec<_>>();
        let result = if is_extended {
            process(context, entries.iter())
        } else {
            decode(context, entries.iter())
        };
        if result != 0 {
            return result;
        }
        hidden::take_own_rows(context, sequence, from + nth * most, tokens);
    }
    0
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
