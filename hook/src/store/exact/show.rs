//! Shows the server what it may look at while it is owed.

use super::Kind;
use crate::base::abi::Pointer;
use crate::store::rescue::Checkpoint;
use crate::store::with_shelf;

/// The server takes a checkpoint of a sequence that is owed. What it gets, if the store has a state of exactly this
/// position; else the debt is to be paid.
pub(in crate::store) fn checkpoint(context: Pointer, sequence: i32) -> Option<Checkpoint> {
    let found = with_shelf(context, |shelf, one| {
        let shelf = shelf.as_mut()?;
        let believed = one.session.believed_on_credit(sequence)?;
        // Paying the debt fails then, and the server is to hear of it.
        if one.session.is_lost(sequence) || one.session.under(sequence) != one.conditions() {
            return None;
        }
        let fingerprint = one.fingerprint(one.conditions())?;
        let (shape, tokens) = (one.shape()?, one.session.believed(sequence)?);
        let mut bytes = Vec::new();
        shape.begin(sequence, &mut bytes);
        let begins_at = bytes.len();
        shelf.settle();
        let there = shelf.append_tail_at(&fingerprint, tokens, &mut bytes);
        // Another sequence may have had it.
        let is_its_own = match one.bounds?.kind() {
            Kind::Windows => shape.readdress_windows(&mut bytes[begins_at..], sequence),
            // It names no sequence.
            Kind::Recurrent => true,
            Kind::Both => false,
        };
        (there && is_its_own).then_some(Checkpoint {
            sequence,
            believed,
            bytes,
        })
    });
    found.flatten()
}
