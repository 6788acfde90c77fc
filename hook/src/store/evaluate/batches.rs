//! The two kinds of batches, and how a smaller one is made.

use std::sync::atomic::Ordering;

use contextpilot_residency::Entry;

use super::{Content, evaluate, without_store};
use crate::attach::original::{self, original};
use crate::base::abi::{Batch, Pointer};
use crate::base::guard::{self, EngineCall};
use crate::capture::shadow;
use crate::store::{acts, media, records};

/// `LLAMA_PROCESS_TYPE_DECODE`.
const DECODE: i32 = 1;

/// A batch of the server's, and how to evaluate it.
pub(super) trait Batches {
    /// Evaluates it as it is.
    fn whole(&self) -> i32;
    /// Evaluates it without these entries.
    fn without(&self, entries: &[Entry], left_out: &[u32]) -> i32;
    /// Evaluates these tokens of a sequence that is empty, at most `most` at a time, and asks for no output.
    fn tokens(&self, sequence: i32, tokens: &[i32], most: usize) -> i32;
}

/// Evaluates a `llama_batch_ext`.
///
/// # Safety
/// The caller passes the batch for evaluation by this context.
pub(crate) unsafe fn extended(call: &EngineCall, context: Pointer, batch: Pointer) -> i32 {
    if !acts(call, context) {
        let whole = || original!(llama_process(context, DECODE, batch));
        return without_store(call, context, whole);
    }
    // SAFETY: for this call.
    let media = unsafe { media::current(context) };
    let read = |shadow: &mut shadow::Shadow| content_of_shadow(shadow, media.is_some());
    // SAFETY: the caller uses the batch.
    let content = guard::compute(|| unsafe { shadow::with(batch, read) });
    let content = content.flatten().unwrap_or(Content::Other(None));
    evaluate(context, content, media, &Extended { context, batch })
}

fn content_of_shadow(shadow: &mut shadow::Shadow, is_media: bool) -> Content {
    if let Some(entries) = shadow.plain() {
        return Content::Plain(entries.to_vec());
    }
    let entries = shadow.entries();
    if let Some(entries) = entries.as_ref().filter(|_| is_media) {
        return Content::Media(entries.to_vec());
    }
    Content::Other(entries.map(|entries| sequences_of(&entries)))
}

pub(super) fn sequences_of(entries: &[Entry]) -> Vec<i32> {
    let mut sequences: Vec<i32> = entries.iter().map(|entry| entry.sequence).collect();
    sequences.sort_unstable();
    sequences.dedup();
    sequences
}

/// Evaluates a `llama_batch`. `entries`: what is in it, each entry once for each of its sequences.
///
/// # Safety
/// The caller passes the batch for evaluation by this context.
pub(crate) unsafe fn legacy(
    call: &EngineCall,
    context: Pointer,
    batch: Batch,
    entries: Option<&[Entry]>,
) -> i32 {
    if !acts(call, context) {
        let whole = || original!(llama_decode(context, batch));
        return without_store(call, context, whole);
    }
    // SAFETY: for this call.
    let media = unsafe { media::current(context) };
    let content = guard::compute(|| match entries {
        // With both, tokens and rows of numbers (MTP), the tokens alone say too little.
        Some(all)
            if !batch.token.is_null()
                && batch.embedding.is_null()
                && all.len() == batch.len as usize =>
        {
            Content::Plain(all.to_vec())
        }
        Some(all) if batch.token.is_null() && media.is_some() => Content::Media(all.to_vec()),
        entries => Content::Other(entries.map(sequences_of)),
    });
    let content = content.unwrap_or(Content::Other(None));
    evaluate(context, content, media, &Legacy { context, batch })
}

struct Extended {
    context: Pointer,
    batch: Pointer,
}

impl Extended {
    /// Our own batch with these entries; null if the engine does not take them.
    fn fill<'a>(&self, entries: impl Iterator<Item = &'a Entry>) -> Pointer {
        let Some(row) = records::row(self.context) else {
            return std::ptr::null_mut();
        };
        let batch: Pointer = match row.batch.load(Ordering::Relaxed) {
            0 => original!(llama_batch_ext_init(self.context)),
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

    fn process(&self, batch: Pointer) -> i32 {
        match batch.is_null() {
            true => REFUSED,
            false => original!(llama_process(self.context, DECODE, batch)),
        }
    }
}

/// As if there were no room: what is ahead is cut off, and the server's batch is evaluated as it is.
const REFUSED: i32 = 1;

impl Batches for Extended {
    fn whole(&self) -> i32 {
        original!(llama_process(self.context, DECODE, self.batch))
    }

    fn without(&self, entries: &[Entry], left_out: &[u32]) -> i32 {
        self.process(self.fill(kept(entries, left_out)))
    }

    fn tokens(&self, sequence: i32, tokens: &[i32], most: usize) -> i32 {
        in_batches(sequence, 0, tokens, most, |entries| {
            self.process(self.fill(entries.iter()))
        })
    }
}

struct Legacy {
    context: Pointer,
    batch: Batch,
}

/// Evaluates a `llama_batch` of ours.
fn decode<'a>(context: Pointer, entries: impl Iterator<Item = &'a Entry>) -> i32 {
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
    original!(llama_decode(context, batch))
}

impl Batches for Legacy {
    fn whole(&self) -> i32 {
        original!(llama_decode(self.context, self.batch))
    }

    fn without(&self, entries: &[Entry], left_out: &[u32]) -> i32 {
        decode(self.context, kept(entries, left_out))
    }

    fn tokens(&self, sequence: i32, tokens: &[i32], most: usize) -> i32 {
        in_batches(sequence, 0, tokens, most, |entries| {
            decode(self.context, entries.iter())
        })
    }
}

/// The entries that are not left out.
fn kept<'a>(entries: &'a [Entry], left_out: &[u32]) -> impl Iterator<Item = &'a Entry> {
    let mut left_out = left_out.iter().peekable();
    entries
        .iter()
        .enumerate()
        .filter_map(move |(index, entry)| {
            let out = left_out.next_if(|out| **out as usize == index).is_some();
            (!out).then_some(entry)
        })
}

/// Evaluates tokens behind the first `from` of a sequence, in batches of ours, and asks for no output.
pub(in crate::store) fn evaluate_own(
    context: Pointer,
    sequence: i32,
    from: usize,
    tokens: &[i32],
    most: usize,
) -> i32 {
    let is_extended = original::llama_process().is_some();
    in_batches(sequence, from, tokens, most, |entries| match is_extended {
        true => {
            let batch = Extended {
                context,
                batch: std::ptr::null_mut(),
            };
            batch.process(batch.fill(entries.iter()))
        }
        false => decode(context, entries.iter()),
    })
}

/// Evaluates tokens behind the first `from`, in batches of ours.
fn in_batches(
    sequence: i32,
    from: usize,
    tokens: &[i32],
    most: usize,
    evaluate: impl Fn(&[Entry]) -> i32,
) -> i32 {
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
        let result = evaluate(&entries.collect::<Vec<_>>());
        if result != 0 {
            return result;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_not_kept() {
        let entry = |token| Entry {
            sequence: 0,
            position: token,
            token,
            output: false,
        };
        let entries: Vec<Entry> = (0..6).map(entry).collect();
        let tokens = |left_out: &[u32]| {
            let kept = kept(&entries, left_out);
            kept.map(|entry| entry.token).collect::<Vec<_>>()
        };
        assert_eq!(tokens(&[0, 1, 4]), [2, 3, 5]);
        assert_eq!(tokens(&[]), [0, 1, 2, 3, 4, 5]);
    }
}
