//! The size of a sequence's KV, for the control endpoint and the log file. Without these, the engine is
//! not asked.

use std::sync::atomic::Ordering;

use contextpilot_observer::Note;
use contextpilot_residency::Entry;

use super::contexts;
use crate::attach::plain;
use crate::base::abi::Pointer;
use crate::base::clock::is_engaged;
use crate::channel::note;

/// A sequence whose size is worth asking for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Longest {
    sequence: i32,
    tokens: u32,
}

impl Longest {
    pub(crate) fn sequence(self) -> i32 {
        self.sequence
    }
}

/// Whether a batch makes a sequence twice as long as any that was measured, which happens some
/// twenty times in the life of a context at most.
#[inline]
pub(crate) fn worth_measuring(context: Pointer, entries: &[Entry]) -> Option<Longest> {
    if !is_engaged() || entries.len() < 2 {
        return None;
    }
    twice_as_long(context, entries)
}

#[inline(never)]
fn twice_as_long(context: Pointer, entries: &[Entry]) -> Option<Longest> {
    let last = entries.last()?;
    let tokens = u32::try_from(last.position).ok()?.saturating_add(1);
    let measured = contexts::measured(context)?.load(Ordering::Relaxed);
    (tokens >= measured.saturating_mul(2)).then_some(Longest {
        sequence: last.sequence,
        tokens,
    })
}

/// Asks the engine for the size of a sequence right after it was evaluated, in bytes. Do not call this
/// within the guard.
pub(crate) fn ask_size(context: Pointer, longest: Longest) -> Option<usize> {
    // SAFETY: a living context that is not at work now, on the thread that uses it.
    unsafe { plain::state_size(context, longest.sequence) }
}

/// The engine has said how large a sequence is.
pub(crate) fn note_size(context: Pointer, longest: Longest, size: Option<usize>) {
    let Longest { tokens, .. } = longest;
    if let Some(measured) = contexts::measured(context) {
        measured.store(tokens, Ordering::Relaxed);
    }
    if let Some(bytes) = size {
        note(|| Note::Measured {
            context: contexts::id_of(context),
            tokens,
            bytes: bytes as u64,
        });
    }
}
