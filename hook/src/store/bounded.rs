//! Contexts that cannot go back to any position: with sliding windows, recurrent, or both.
//!
//! A state of theirs has a *tail* (see [`Shape`](contextpilot_kv_store::Shape)) that stands for one position. So
//! a state is only loaded at exactly the position at which one was taken, and never more than the server believes
//! in stays in the engine when a call ends: the server's own checkpoints, which hold such tails, are then those of
//! a server without a store.
//!
//! **Pending.** The server shows a prompt batch by batch, and states are far apart. While a prompt goes on along what is
//! stored, and a state lies ahead, its tokens are left out without anything being loaded: they are *pending*. The engine
//! then holds less than the server believes, never more. Before the host looks at the sequence (a copy, an output, most
//! checkpoints), and when the prompt leaves the path, they are made up for: the state that is nearest before is loaded, and what
//! is behind it evaluated ([`bounded`]). So it does not matter where the prompt turns off, nor where the server's batches end.
//! Loading at each batch what lies within it would be simpler, and would save little: the batches of two prompts
//! seldom end at the same places, and each load would copy the whole dense part.
//!
//! A checkpoint that the server takes at exactly a position of which the store has a state is taken from there
//! ([`show`]), and costs no load: it is the state's tail.
//!
//! Newer servers ask for the first and the last position of a sequence at every batch. They are answered without
//! that. The last is that of the tokens believed in. The first is one that any state at this position has: the
//! window, and not more than that. Going back to anything else is possible as well, because nothing of it is in the
//! engine yet.
//!
//! **Sliding windows, a few tokens at a time.** The engine computes a batch in parts of `n_ubatch` tokens. Before it does,
//! it tries out whether all parts find room, and puts the cells back. In a cache of sliding windows, the trial removes
//! further cells, which are not put back (seen in 0.7.0, and in the sources of 2026): then the first parts miss some of
//! their window. That makes a plain server answer wrongly now and then, if slots share a cache that is small beside the
//! batch. What is stored would be wrong for good. So with a store, such a context evaluates one part at a time
//! (`kv-engine/bounded.rs`), as a server does whose `--batch-size` is its `--ubatch-size`.
//!
//! **Where states are taken.** Where an answer begins, on the way through a long prompt, when tokens are about to be lost,
//! and whenever the server itself copies a whole sequence. And where the server takes a checkpoint: that has the tail
//! already, which waits in memory until the rows of the dense part are copied out for one of the other reasons. So do tails
//! that are taken where other prompts may turn off (`kv-engine/bounded.rs`).
//!
//! **Going back.** A plain engine keeps more than the windows for a while, and a program may know that: it goes back by its
//! own decision, without asking. A load brings the windows only. So of a sequence that was loaded it is known from where on
//! it has rows, and if the host goes back behind that, the engine's sequence is emptied, and what is left of it is pending
//! ([`about_to_go_back`]). Before the host looks at such a sequence in a way after which that is not known any more (a copy
//! of a part, a move, a state of the whole context), the sequence is evaluated again ([`make_whole`]).
//!
//! **If that fails**, the sequence is empty in the engine, and its tokens are still pending. Where the server is about to evaluate, it
//! hears of it ("no room", after which it makes some; or an error, after which it starts again). Where it cannot hear of
//! it, the next evaluation is refused as an error.

pub(super) mod load;
mod show;

use contextpilot_kv_engine::bounded;
use contextpilot_kv_store::{Run, worth};

pub(super) use self::show::checkpoint;
use super::calls::acts;
use super::engine::Context;
use super::index::held::with_index;
use super::records::with_record;
use super::working::is_on;
use super::{elsewhere, hidden};
use crate::attach::{self, original};

/// Why one of these contexts has no store: the engine's states have the windows only, and the host may go back behind them.
pub(super) const WHOLE_WINDOWS: &str = "its sliding windows keep every position (swa_full), and a state of a sequence does \
                                        not: use swa_full=False, or no --swa-full";

/// Why one of these contexts has no store. A batch of several parts computes some of them without their window in such a cache
/// (see above), and whether it finds room depends on each cell: with a store a program would be answered otherwise.
/// A server that finds no room makes some.
pub(super) const SHARED_WINDOWS: &str = "its sequences share one small cache of its sliding windows: use kv_unified=False, \
                                         or one sequence";

/// As [`WHOLE_WINDOWS`].
pub(super) const UNKNOWN_WINDOWS: &str =
    "whether its sliding windows keep every position (swa_full) is not known";

/// The first and last position of a sequence as the host must see them, if the engine holds fewer.
pub(crate) fn ends(context: Context<'_>, sequence: i32) -> Option<(i32, i32)> {
    if !is_on() {
        return None;
    }
    let known = with_record(context, |record| {
        Some((record.session.reach_if_pending(sequence)?, record.bounds?))
    });
    let (believed, bounds) = known.flatten()?;
    let number = |position: usize| i32::try_from(position).ok();
    Some((number(bounds.first(believed))?, number(believed - 1)?))
}

/// The host removes what is behind a position, and the engine holds nothing of that: it is not pending any more.
/// Else, what is pending of this part is forgotten, so that it is not evaluated.
pub(crate) fn removes_only_pending(
    context: Option<Context<'_>>,
    sequence: i32,
    from: i32,
    to: i32,
) -> bool {
    let Some(context) = context.filter(|context| acts(*context) && sequence >= 0 && to < 0) else {
        return false;
    };
    usize::try_from(from).is_ok_and(|from| bounded::removes_only_pending(&context, sequence, from))
}

/// The host is about to remove positions of a sequence; negative: of all. If it goes back behind what a load has brought,
/// rows are missing that might be there without a load: the engine's sequence is emptied, and what the host keeps of it is
/// pending. Returns these sequences, for [`went_back`].
pub(crate) fn about_to_go_back(
    context: Option<Context<'_>>,
    sequence: i32,
    from: i32,
    to: i32,
) -> Vec<i32> {
    let Some(context) = context.filter(|context| acts(*context)) else {
        return Vec::new();
    };
    let Ok(kept @ 1..) = usize::try_from(from) else {
        return Vec::new();
    };
    if to >= 0 {
        // What is behind the gap may be moved, and then looks back at what is before it.
        make_whole(context, sequence);
        return Vec::new();
    }
    bounded::about_to_go_back(&context, sequence, kept)
}

/// The host has gone back in these sequences. What is pending of them is evaluated now if it may not wait.
pub(crate) fn went_back(context: Option<Context<'_>>, sequences: &[i32]) {
    let Some(context) = context.filter(|context| !sequences.is_empty() && acts(*context)) else {
        return;
    };
    let may_wait =
        is_hidden() && with_record(context, |record| record.is_always_the_same()) == Some(true);
    for &sequence in sequences.iter().filter(|_| !may_wait) {
        bounded::complete(&context, sequence);
    }
}

/// A program is about to do something after which it is not known any more what a load has left out of a sequence: it is
/// evaluated again. Negative: of all. (Servers ask which positions are there.)
pub(crate) fn make_whole(context: Context<'_>, sequence: i32) {
    if attach::is_embedded() && acts(context) {
        bounded::make_whole(&context, sequence);
    }
}

/// Whether the host does not see the engine's own answers for what is pending.
fn is_hidden() -> bool {
    original::llama_memory_seq_pos_min().is_some() && original::llama_memory_seq_pos_max().is_some()
}

/// Whether a run may be left out without anything being loaded: all of its tokens are on the way to a state, and the
/// host does not see that the engine lacks them.
pub(super) fn may_wait(context: Context<'_>, run: &Run) -> bool {
    let goes_on = run.leading == run.tokens.len() && is_hidden();
    if goes_on && is_on_the_way(context, run, false) {
        return true;
    }
    if run.leading < worth::LEAST_GAINED {
        return false;
    }
    let held = with_record(context, |record| record.session.in_engine(run.sequence));
    let waited = elsewhere::bring(context, run, held.unwrap_or(0));
    goes_on && !waited.is_zero() && is_on_the_way(context, run, true)
}

/// `is_brought`: the remote was asked for what continues the prompt.
fn is_on_the_way(context: Context<'_>, run: &Run, is_brought: bool) -> bool {
    let may = with_index(context, |index, record| {
        let index = index.as_mut()?;
        // When it is evaluated, another adapter may be applied.
        let may = !record.has_embeddings() && record.is_always_the_same();
        if !may || !record.session.may_load(run.sequence) {
            return None;
        }
        let conditions = record.conditions(run.sequence);
        let fingerprint = record.fingerprint(conditions)?;
        let wanted = record.session.wanted(run);
        let believed = wanted.len() - run.leading;
        index.settle();
        if record.room(believed) < run.tokens.len() {
            return None;
        }
        let last = index.last_state_in(&fingerprint, &wanted);
        let there = last.max(record.session.in_engine(run.sequence));
        let found = index.length_of(&fingerprint, &wanted);
        let may_hope = || is_brought && elsewhere::may_hope(index, found, there, &wanted);
        if !index.leads_to_state(&fingerprint, &wanted) && !may_hope() {
            return None;
        }
        if hidden::length(index, record, conditions, &wanted)? < wanted.len() {
            return None;
        }
        Some(wanted.len() - there <= worth::MOST_PENDING)
    });
    may.flatten() == Some(true)
}
