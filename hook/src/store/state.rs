//! States that the server itself saves and restores, for its host prompt cache. They are taken apart as
//! well, so that nothing has to be copied twice.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use contextpilot_kv_engine::{
    Change, Checkpoint, Engine as _, Host as _, bounded, changed, is_bounded, keep_checkpoint,
};
use contextpilot_kv_store::Held;
use contextpilot_residency::Token;

use super::bounded::checkpoint;
use super::calls::{acts, before, hears};
use super::context::ContextStore;
use super::engine::Context;
use super::index::held::with_index;
use super::records::with_record;
use super::{ahead, hidden, save};

/// The server has saved a whole sequence to its own memory.
///
/// # Safety
/// The engine has written `size` bytes to `target`.
pub(crate) unsafe fn saved(context: Context<'_>, sequence: i32, target: *const u8, size: usize) {
    if !hears(context) || target.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let state = unsafe { std::slice::from_raw_parts(target, size) };
    save::insert(context, sequence, (state, 0), None);
    with_index(context, |index, record| {
        hidden::insert(index, record, sequence);
        remember(record, sequence, target, state);
    });
}

fn remember(record: &mut ContextStore, sequence: i32, target: *const u8, state: &[u8]) {
    let held = record.session.copy_out(sequence);
    record.remember(target.addr(), held, sample(state));
}

/// The size of the part of a sequence that cannot be cut back, if it is pending and the store has it: then the server gets
/// it from there ([`write_checkpoint`]), and nothing is loaded. It is what the engine would write behind a load.
pub(crate) fn checkpoint_size(context: Context<'_>, sequence: i32) -> Option<usize> {
    let mut size = None;
    before(context, || {
        let checkpoint = checkpoint(context, sequence);
        size = checkpoint.as_ref().map(|checkpoint| checkpoint.bytes.len());
        context.journal(|journal| journal.announce(sequence, checkpoint));
    });
    // Nothing is announced any more if the library has stopped meanwhile.
    let is_announced = context.journal(|journal| journal.is_announced(sequence));
    size.filter(|_| is_announced == Some(true))
}

/// Writes what [`checkpoint_size`] told the size of, and returns that. `None`: the engine is to do it.
///
/// # Safety
/// `target` has room for `size` bytes.
pub(crate) unsafe fn write_checkpoint(
    context: Context<'_>,
    sequence: i32,
    target: *mut u8,
    size: usize,
) -> Option<usize> {
    if !hears(context) {
        return None;
    }
    let Checkpoint {
        tokens,
        conditions,
        bytes,
        ..
    } = context
        .journal(|journal| journal.take_announced(sequence))
        .flatten()?;
    // If the library has stopped since, that is not known, but a host asks for the bytes right behind their size.
    let now = with_record(context, |record| {
        record.session.believed(sequence) == Some(&tokens)
            && record.session.under(sequence) == conditions
    });
    if now == Some(false) || bytes.len() > size || target.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    with_record(context, |record| {
        let first = record
            .bounds
            .map_or(0, |bounds| bounds.first_row(tokens.len()));
        record.remember_checkpoint((sample(&bytes), digest(&tokens)), conditions, first);
    });
    Some(bytes.len())
}

/// The server has saved the part of a sequence that cannot be cut back, a checkpoint, to its own memory.
///
/// # Safety
/// The engine has written `size` bytes to `target`.
pub(crate) unsafe fn checkpointed(
    context: Context<'_>,
    sequence: i32,
    target: *const u8,
    size: usize,
) {
    if !hears(context) || target.is_null() || !is_bounded(&context) {
        return;
    }
    // SAFETY: the caller's promise.
    let state = unsafe { std::slice::from_raw_parts(target, size) };
    with_record(context, |record| {
        let held = record.session.copy_out(sequence);
        if let Some(held) = held.filter(Held::is_whole) {
            let checkpoint = (sample(state), digest(&held.tokens));
            record.remember_checkpoint(checkpoint, held.conditions, held.first);
        }
        keep_checkpoint(record, sequence, state);
    });
}

/// The server has gone back to such a part.
///
/// # Safety
/// The engine has read `size` bytes from `source`.
pub(crate) unsafe fn rewound(
    context: Context<'_>,
    sequence: i32,
    source: *const u8,
    size: usize,
    done: bool,
) {
    if !hears(context) {
        return;
    }
    let end = context.length(sequence).filter(|_| done);
    changed(&context, Change::Shortened(sequence), |record| {
        let tokens = end.and_then(|end| {
            let held = record.session.believed(sequence)?;
            Some(held.get(..record.session.index(sequence, end))?.to_vec())
        });
        let known = tokens.and_then(|tokens| {
            // SAFETY: the caller's promise.
            let state = unsafe { std::slice::from_raw_parts(source, size) };
            let (conditions, first) = record.checkpoint((sample(state), digest(&tokens)))?;
            Some((tokens, conditions, first))
        });
        match known {
            Some((tokens, conditions, first)) => {
                record.session.rewound(sequence, &tokens, conditions, first);
            }
            None => record.session.overwritten(sequence),
        }
    });
}

/// What is known of a state that was saved before.
///
/// # Safety
/// The engine has read `size` bytes from `source`.
unsafe fn known(record: &ContextStore, source: *const u8, size: usize, done: bool) -> Option<Held> {
    record
        .saved(source.addr())
        .filter(|_| done)
        .and_then(|saved| {
            // SAFETY: the caller's promise.
            let state = unsafe { std::slice::from_raw_parts(source, size) };
            // Another state may have been moved to this address.
            (sample(state) == saved.sample).then(|| saved.held.clone())
        })
}

/// The server has replaced a sequence by what it had saved before. `done`: the engine took it.
///
/// # Safety
/// The engine has read `size` bytes from `source`.
pub(crate) unsafe fn restored(
    context: Context<'_>,
    sequence: i32,
    source: *const u8,
    size: usize,
    done: bool,
) {
    if !hears(context) {
        return;
    }
    changed(&context, Change::Removed(sequence), |record| {
        // SAFETY: the caller's promise.
        match unsafe { known(record, source, size, done) } {
            Some(held) => record.session.replaced(sequence, held),
            None => record.session.restored(sequence, &[]),
        }
    });
}

/// The host has replaced a sequence by what is in a file, which says that it has these tokens. It may be of another time,
/// under other adapters.
pub(crate) fn restored_from_file(context: Context<'_>, sequence: i32, tokens: Option<&[Token]>) {
    if hears(context) {
        changed(&context, Change::Removed(sequence), |record| {
            record
                .session
                .restored(sequence, tokens.unwrap_or_default());
        });
    }
}

/// The engine removes a sequence before it replaces it.
pub(crate) fn about_to_restore(context: Context<'_>, sequence: i32) {
    if acts(context) {
        bounded::forget_pending(&context, sequence);
    }
    save::about_to_lose(Some(context), sequence, 0);
}

/// The engine replaces the part of a sequence that cannot be cut back. The rest must be there.
pub(crate) fn about_to_rewind(context: Context<'_>, sequence: i32) {
    ahead::remove(context, sequence);
    save::about_to_lose(Some(context), sequence, 0);
}

/// A number made of tokens.
fn digest(tokens: &[i32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tokens.hash(&mut hasher);
    hasher.finish()
}

/// A number made of the length and of 64 places of a state. Two states of other tokens differ in every row.
fn sample(state: &[u8]) -> u64 {
    const PLACES: usize = 64;
    let mut hash = state.len() as u64 ^ 0x9E37_79B9_7F4A_7C15;
    let mut add = |bytes: &[u8]| {
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            hash = (hash ^ u64::from_le_bytes(whole))
                .wrapping_mul(0xD6E8_FEB8_6659_FD93)
                .rotate_left(29);
        }
    };
    let step = state.len() / PLACES;
    for place in 0..PLACES {
        let from = place * step;
        add(&state[from..state.len().min(from + 64)]);
    }
    add(&state[state.len().saturating_sub(256)..]);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_differ_have_other_samples() {
        let state: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
        let mut other = state.clone();
        assert_eq!(sample(&state), sample(&other));
        for byte in &mut other[60_000..70_000] {
            *byte ^= 1;
        }
        assert_ne!(sample(&state), sample(&other));
        assert_ne!(sample(&state), sample(&state[1..]));
        let _ = [&[][..], &[1], &[1; 63]].map(sample);
    }
}
