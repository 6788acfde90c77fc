//! A state becomes chunks of the index.

use std::sync::Arc;

use contextpilot_kv_store::{Conditions, Fingerprint, SequenceState};

use super::context::ContextStore;
use super::index::StoreIndex;

/// Keeps what is new in a state of these tokens, with the rows from a position on. `part`: the size of the part of it that cannot
/// be cut back, if there is such a part. `None`: it is a state of something else, and nothing is kept.
pub(super) fn keep_state(
    index: &mut StoreIndex,
    record: &ContextStore,
    (fingerprint, conditions, tokens): (Fingerprint, Conditions, &[i32]),
    (state, rows_from): (&[u8], usize),
    ours: Option<&Arc<Vec<u8>>>,
    part: Option<usize>,
) -> Option<()> {
    match part {
        None => {
            let layout = record.layout()?;
            let state = SequenceState::read(state).ok()?;
            if state.layout() != layout || !state.is_of(tokens) {
                return None;
            }
            index.keep(&fingerprint, tokens, &state.with_rows_from(rows_from), ours);
        }
        Some(part) => {
            let (dense, tail) = record.shape()?.divide(state, part, tokens)?;
            let dense = dense.map(|state| state.with_rows_from(rows_from));
            // A machine that gets them from the remote has seen no more of the prompt than stands before the tail.
            let ends = match index.elsewhere {
                Some(_) => record.tails.within(tokens),
                None => Vec::new(),
            };
            index.keep_exact(&fingerprint, (tokens, &ends), dense.as_ref(), tail, ours);
        }
    }
    if index.length_of(&fingerprint, tokens) > 0 {
        index.note_origin(fingerprint, || record.origin(conditions));
    }
    Some(())
}
