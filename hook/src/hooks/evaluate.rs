//! Hooks for evaluating batches. They note the batch before the call, because overwritten tokens are lost
//! whether the evaluation succeeds or not, and the result after it.

use std::ops::Deref;

use contextpilot_residency::{ContextId, Entries, Entry, Event};

use crate::attach::original::original;
use crate::attach::{claims, is_program};
use crate::base::abi::{Batch, Pointer};
use crate::base::guard::{self, EngineCall};
use crate::base::status::STATUS;
use crate::capture::contexts::Keeps;
use crate::capture::measure::{self, Longest};
use crate::capture::{adapters, contexts, engine_prompts, llama_batch, shadow};
use crate::channel::{self, nudge, push};
use crate::store::{self, Context, ahead, bounded, purpose};

/// `LLAMA_PROCESS_TYPE_DECODE`. Encoding does not touch the KV cache.
const DECODE: i32 = 1;

pub(crate) unsafe fn llama_process(context: Pointer, kind: i32, batch: Pointer) -> i32 {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    note_evaluation();
    if kind != DECODE {
        return original!(llama_process(context, kind, batch));
    }
    // SAFETY: the caller passes the batch for evaluation, so no other thread changes it now.
    let entries = || unsafe { shadow::with(batch, |s| s.entries()) }.flatten();
    let evaluation = Evaluation::begin(used, entries);
    let result = if store::is_on() {
        // SAFETY: as above.
        unsafe { store::evaluate::batches::extended(used, batch) }
    } else {
        original!(llama_process(context, kind, batch))
    };
    evaluation.end(result)
}

pub(crate) unsafe fn llama_decode(context: Pointer, batch: Batch) -> i32 {
    let call = EngineCall::enter();
    // SAFETY: our caller uses the context.
    let used = unsafe { Context::of(&call, context) };
    note_evaluation();
    let asked = call.counts().then(|| {
        // SAFETY: the caller passes a batch that the engine may read.
        unsafe { llama_batch::Answers::of(context, &batch) }
    });
    // SAFETY: as above.
    let entries = || unsafe { llama_batch::entries(&batch, asked.as_ref()?) };
    let known = store::is_on()
        .then(|| guard::compute(entries))
        .flatten()
        .flatten();
    let evaluation = Evaluation::begin(used, || match &known {
        Some(known) => Some(known.clone()),
        None => entries(),
    });
    let result = if store::is_on() {
        // SAFETY: as above.
        unsafe { store::evaluate::batches::legacy(used, batch, known.as_deref()) }
    } else {
        original!(llama_decode(context, batch))
    };
    evaluation.end(result)
}

macro_rules! members {
    ($($decode:ident),*) => {$(
        /// What a copy of `llama_decode` calls.
        pub(crate) unsafe fn $decode(context: Pointer, batch: *const Batch) -> i32 {
            let call = EngineCall::enter();
            // SAFETY: our caller uses the context.
            let used = unsafe { Context::of(&call, context) };
            if !call.is_hosts() {
                return original!($decode(context, batch));
            }
            claims::note_copies();
            note_evaluation();
            if store::is_on() {
                // In a program that has copies of functions, hooks do not see all that a store must see.
                purpose::refuse(used, COPIES);
            }
            // SAFETY: the caller passes a batch that the engine may read. Behind it lies something else.
            let batch_of = || unsafe { Batch::at(batch) };
            let asked = call.counts().then(|| {
                // SAFETY: as above.
                unsafe { llama_batch::Answers::of(context, &batch_of()) }
            });
            // SAFETY: as above.
            let entries = || unsafe { llama_batch::entries(&batch_of(), asked.as_ref()?) };
            let evaluation = Evaluation::begin(used, entries);
            let result = original!($decode(context, batch));
            evaluation.end(result)
        }
    )*};
}
members!(
    _ZN13llama_context6decodeERK11llama_batch,
    _ZN13llama_context6decodeER11llama_batch
);

/// Why a context has no store.
const COPIES: &str = "this program has copies of llama_decode (link-time optimisation makes them)";

/// What the engine returns if the context has no room for the batch. All other results but 0 are errors, or say that the
/// program has stopped it.
const NO_ROOM: i32 = 1;

/// Notes that the engine evaluates at all: until then the hook claims nothing of it.
#[inline]
fn note_evaluation() {
    if claims::note_evaluation() {
        // Wakes the worker, which says so.
        guard::guarded(nudge);
    }
}

/// An evaluation, from submission to the engine's result.
struct Evaluation<'a> {
    used: Context<'a>,
    sequences: Sequences,
    /// A sequence whose size is worth asking for, if there is an observer.
    longest: Option<Longest>,
    /// The context, if the evaluation was noted as begun, and not yet as ended.
    open: Option<Keeps>,
}

impl<'a> Evaluation<'a> {
    fn begin(used: Context<'a>, entries: impl FnOnce() -> Option<Entries>) -> Self {
        let (call, context) = (used.call(), used.pointer());
        let mut evaluation = Evaluation {
            used,
            sequences: Sequences::None,
            longest: None,
            open: None,
        };
        contexts::know(call, context);
        call.guarded(|| {
            let Some(keeps) = contexts::keeps(context) else {
                // A context without memory evaluates, but keeps nothing.
                return;
            };
            evaluation.open = Some(keeps);
            // SAFETY: our caller uses the context.
            let told = unsafe { adapters::tell(context) };
            match entries().filter(|_| told) {
                Some(entries) => {
                    let entries = if is_program() {
                        engine_prompts::submitted(context, entries)
                    } else {
                        entries
                    };
                    evaluation.sequences = Sequences::of(&entries);
                    evaluation.longest = measure::worth_measuring(context, &entries);
                    channel::submitted(keeps.id, entries);
                }
                None => obscured(keeps.id),
            }
        });
        evaluation
    }

    fn end(mut self, result: i32) -> i32 {
        // Clear this only after the engine has answered: it may throw instead.
        if let Some(keeps) = self.open
            && self.used.call().counts()
        {
            if result != 0 || keeps.is_bounded || self.longest.is_some() {
                self.ask_and_end(keeps, result);
            } else {
                self.open = None;
                self.used.call().guarded(|| channel::evaluated(keeps.id));
            }
        }
        result
    }

    /// The evaluation has ended, and the engine is asked what it has now: that is not so for a generated token.
    #[inline(never)]
    fn ask_and_end(&mut self, keeps: Keeps, result: i32) {
        // The engine may hold less than the batch said.
        let is_whole = |id: &i32| bounded::ends(self.used, *id).is_none();
        // With what is ahead its state is larger than that.
        let holds_more =
            |longest: &Longest| ahead::believed(self.used, longest.sequence()).is_some();
        let longest = self.longest.filter(|longest| {
            result == 0 && self.sequences.iter().all(is_whole) && !holds_more(longest)
        });
        let size =
            longest.map(|longest| (longest, measure::ask_size(self.used.pointer(), longest)));
        let failed = match result {
            0 => Vec::new(),
            _ => self.left_behind(),
        };
        let reaches = self.reaches(keeps);
        self.open = None;
        self.used.call().guarded(|| {
            for &(sequence, first) in &reaches {
                note_reach(self.used.pointer(), sequence, first);
            }
            if let Some((longest, size)) = size {
                measure::note_size(self.used.pointer(), longest, size);
            }
            push(Event::Evaluated {
                context: keeps.id,
                failed,
                no_room: result == NO_ROOM,
            });
        });
    }

    /// The last position of each sequence after an evaluation failed.
    fn left_behind(&self) -> Vec<(i32, i32)> {
        self.sequences
            .iter()
            .map(|&sequence| {
                let pending = bounded::ends(self.used, sequence).map(|(_, last)| last);
                // SAFETY: a living context, whose evaluation has returned.
                let last = pending
                    .or_else(|| unsafe { contexts::last_position(self.used.pointer(), sequence) });
                (sequence, last.unwrap_or(-1))
            })
            .collect()
    }

    /// The first position of each sequence that a bounded context still has.
    fn reaches(&self, keeps: Keeps) -> Vec<(i32, Option<i32>)> {
        if !keeps.is_bounded {
            return Vec::new();
        }
        let sequences = self.sequences.iter();
        sequences
            .map(|&sequence| (sequence, ask_reach(self.used, sequence)))
            .collect()
    }
}

impl Drop for Evaluation<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(keeps) = self.open {
            thrown(self.used, keeps);
        }
    }
}

/// The engine threw an exception, so it is not known how much it evaluated.
#[cold]
#[inline(never)]
fn thrown(used: Context<'_>, keeps: Keeps) {
    used.call().guarded(|| push(all_obscured(keeps.id)));
}

/// A batch is submitted whose content is not known.
#[cold]
#[inline(never)]
fn obscured(context: ContextId) {
    STATUS.untracked_batches.add(1);
    push(all_obscured(context));
}

fn all_obscured(context: ContextId) -> Event {
    Event::Obscured {
        context,
        sequence: -1,
    }
}

/// The first position of a sequence that a bounded context still has. `None` for other contexts. Do not
/// call this within the guard.
pub(super) fn ask_reach(used: Context<'_>, sequence: i32) -> Option<i32> {
    let context = used.pointer();
    if !contexts::is_bounded(context) {
        return None;
    }
    if let Some((first, _)) = bounded::ends(used, sequence) {
        return Some(contexts::as_the_ledger_has_it(context, first));
    }
    // SAFETY: a living context that is not at work now.
    unsafe { contexts::first_position(context, sequence) }
}

/// Sends that position to the ledger.
pub(super) fn note_reach(context: Pointer, sequence: i32, first: Option<i32>) {
    if let Some(first) = first {
        push(Event::Reaches {
            context: contexts::id_of(context),
            sequence,
            first,
        });
    }
}

/// The sequences of a batch, each once. One needs no memory: a slot that generates submits such a batch for each token.
enum Sequences {
    None,
    One(i32),
    Many(Vec<i32>),
}

impl Deref for Sequences {
    type Target = [i32];

    fn deref(&self) -> &[i32] {
        match self {
            Self::None => &[],
            Self::One(sequence) => std::slice::from_ref(sequence),
            Self::Many(sequences) => sequences,
        }
    }
}

impl Sequences {
    /// Fast, because a prompt's entries are all of one sequence as a rule, and batches of generation have few entries.
    #[inline]
    fn of(entries: &[Entry]) -> Self {
        match entries {
            [] => Self::None,
            [only] => Self::One(only.sequence),
            [first, rest @ ..] if are_all_of(first.sequence, rest) => Self::One(first.sequence),
            _ => Self::several(entries),
        }
    }

    #[inline(never)]
    fn several(entries: &[Entry]) -> Self {
        let mut sequences: Vec<i32> = entries
            .chunk_by(|a, b| a.sequence == b.sequence)
            .filter_map(|run| run.first().map(|entry| entry.sequence))
            .collect();
        sequences.sort_unstable();
        sequences.dedup();
        Self::Many(sequences)
    }
}

/// Whether all entries are of this sequence. Four at a time, as that is what a token of a prompt costs here.
#[inline(never)]
fn are_all_of(sequence: i32, entries: &[Entry]) -> bool {
    let is_of_it = |entry: &Entry| entry.sequence == sequence;
    let mut rest = entries;
    while let [a, b, c, d, more @ ..] = rest {
        if !(is_of_it(a) && is_of_it(b) && is_of_it(c) && is_of_it(d)) {
            return false;
        }
        rest = more;
    }
    rest.iter().all(is_of_it)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_sequences_of_a_batch_are_listed_once() {
        for of_entries in [
            &[][..],
            &[3],
            &[3, 3],
            &[3, 1],
            &[0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0, 0, 2],
            &[0, 0, 2, 0, 0, 0, 0],
            &[2, 2, 2, 2, 1, 1, 1, 1, 2],
        ] {
            let entries: Vec<Entry> = of_entries
                .iter()
                .map(|&sequence| Entry {
                    sequence,
                    position: 0,
                    token: 0,
                    output: false,
                })
                .collect();
            let expected: BTreeSet<i32> = of_entries.iter().copied().collect();
            let expected: Vec<i32> = expected.into_iter().collect();
            assert_eq!(*Sequences::of(&entries), *expected, "{of_entries:?}");
        }
    }
}
