//! Shows the server what it may look at while its tokens are pending.

use contextpilot_kv_engine::{Checkpoint, Record as _};

use crate::store::context::ContextStore;
use crate::store::engine::Context;
use crate::store::index::held::with_index;
use crate::store::records::with_record;

/// The server takes a checkpoint of a sequence of which tokens are pending. What it gets, if the store has a state of exactly this
/// position; else the engine is to get them.
pub(in crate::store) fn checkpoint(context: Context<'_>, sequence: i32) -> Option<Checkpoint> {
    // Servers take checkpoints while they generate, too: the call does not wait for the index then.
    if with_record(context, |record| may_come_from_store(record, sequence)) != Some(true) {
        return None;
    }
    let found = with_index(context, |index, record| {
        let index = index.as_mut()?;
        let conditions = record.conditions(sequence);
        let fingerprint = record.fingerprint(conditions)?;
        let (shape, tokens) = (record.shape()?, record.session.believed(sequence)?);
        let mut bytes = Vec::new();
        shape.begin(sequence, &mut bytes);
        let begins_at = bytes.len();
        index.settle();
        if !index.append_tail_at(&fingerprint, tokens, &mut bytes) {
            return None;
        }
        // Another sequence may have had it. A recurrent state names none.
        let is_its_own = record.bounds?.window == 0
            || shape.readdress_windows(&mut bytes[begins_at..], sequence);
        is_its_own.then(|| Checkpoint {
            sequence,
            tokens: tokens.to_vec(),
            conditions,
            bytes,
        })
    });
    found.flatten()
}

/// Whether tokens of the sequence are pending, and its tails are understood as far as that is needed.
fn may_come_from_store(record: &ContextStore, sequence: i32) -> bool {
    let is_pending = record.session.believed_if_pending(sequence).is_some();
    // Else evaluating them fails, and the server is to hear of it.
    let can_be_evaluated = !record.session.is_lost(sequence) && record.is_under_these(sequence);
    let has_dense = || record.shape().is_some_and(|shape| shape.dense().is_some());
    let is_understood = record.bounds.is_some_and(|bounds| match bounds.window {
        // With windows beside a recurrent state, it is not known where the sequence is named.
        0 => bounds.at_once.is_none(),
        _ => has_dense(),
    });
    is_pending && can_be_evaluated && is_understood
}
