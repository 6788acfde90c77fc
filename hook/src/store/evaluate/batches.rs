//! The two kinds of batches, and how a smaller one is made.

use contextpilot_residency::Entry;

use super::{Batches, Content, evaluate, sequences_of, without_store};
use crate::attach::original::original;
use crate::base::abi::{Batch, Pointer};
use crate::base::guard;
use crate::capture::shadow;
use crate::store::calls::acts;
use crate::store::engine::Context;
use crate::store::media;
use crate::store::own_batch::{self, DECODE};

/// Evaluates a `llama_batch_ext`.
///
/// # Safety
/// The caller passes the batch for evaluation by this context.
pub(crate) unsafe fn extended(context: Context<'_>, batch: Pointer) -> i32 {
    // SAFETY: for this call.
    let media = unsafe { media::current(context) };
    if !acts(context) {
        let whole = || {
            let context = context.pointer();
            original!(llama_process(context, DECODE, batch))
        };
        return without_store(context, media, whole);
    }
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

/// Evaluates a `llama_batch`. `entries`: what is in it, each entry once for each of its sequences.
///
/// # Safety
/// The caller passes the batch for evaluation by this context.
pub(crate) unsafe fn legacy(context: Context<'_>, batch: Batch, entries: Option<&[Entry]>) -> i32 {
    // SAFETY: for this call.
    let media = unsafe { media::current(context) };
    if !acts(context) {
        let whole = || {
            let context = context.pointer();
            original!(llama_decode(context, batch))
        };
        return without_store(context, media, whole);
    }
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

struct Extended<'call> {
    context: Context<'call>,
    batch: Pointer,
}

impl Batches for Extended<'_> {
    fn whole(&self) -> i32 {
        let context = self.context.pointer();
        original!(llama_process(context, DECODE, self.batch))
    }

    fn without(&self, entries: &[Entry], left_out: &[u32]) -> i32 {
        own_batch::process(self.context, kept(entries, left_out))
    }
}

struct Legacy<'call> {
    context: Context<'call>,
    batch: Batch,
}

impl Batches for Legacy<'_> {
    fn whole(&self) -> i32 {
        let context = self.context.pointer();
        original!(llama_decode(context, self.batch))
    }

    fn without(&self, entries: &[Entry], left_out: &[u32]) -> i32 {
        own_batch::decode(self.context, kept(entries, left_out))
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
