//! Indexes of outputs: the host counts the entries of the batch that it made, the engine those of the
//! batch that it evaluated.

use std::sync::atomic::{AtomicBool, Ordering};

use contextpilot_kv_engine::Host as _;

use super::engine::Context;

/// Entries were left out of the last evaluation of some context.
static ANY: AtomicBool = AtomicBool::new(false);

/// Entries of the evaluation that follows are left out: their indexes, in order.
pub(super) fn set(context: Context<'_>, left_out: Vec<u32>) {
    let some = !left_out.is_empty();
    if !some && !ANY.load(Ordering::Relaxed) {
        return;
    }
    context.journal(|journal| journal.set_left_out(left_out));
    if some {
        ANY.store(true, Ordering::Release);
    }
}

/// The engine's index for an entry of the host's batch. Negative indexes count outputs from the end, and
/// all outputs are evaluated.
pub(crate) fn index_in_engine(context: Context<'_>, index: i32) -> i32 {
    if !ANY.load(Ordering::Acquire) || !context.is_hosts() || index < 0 {
        return index;
    }
    let translated = context.journal(|journal| translate(journal.left_out(), index));
    translated.unwrap_or(index)
}

/// An entry that was left out has no output: the engine refuses an index that is out of its range.
fn translate(left_out: &[u32], index: i32) -> i32 {
    let Ok(wanted) = u32::try_from(index) else {
        return index;
    };
    match left_out.binary_search(&wanted) {
        Ok(_) => i32::MAX,
        Err(before) => index - i32::try_from(before).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_moves_by_the_entries_that_were_left_out_before_it() {
        let left_out = [0, 1, 2, 5];
        let translated = |index| translate(&left_out, index);
        assert_eq!([3, 4, 6, 7].map(translated), [0, 1, 2, 3]);
        assert_eq!([0, 5].map(translated), [i32::MAX, i32::MAX]);
        assert_eq!(translate(&[], 7), 7);
    }
}
