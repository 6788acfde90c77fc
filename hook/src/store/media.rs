//! Images and sounds.
//!
//! libmtmd evaluates the rows of one image or sound by one call of its own, in one batch or several. That call is seen, so all
//! rows are known before the engine gets the first of them. A digest of them makes the run's tokens
//! ([`contextpilot_kv_store::media`]), by which it is found, loaded and left out like text. So what is loaded was evaluated
//! from these very numbers, whatever encoder or file they came from.
//!
//! A run is left out whole or not at all. It cannot be evaluated again by the hook, which has its rows during this call
//! only: so before a state is loaded into a sequence with media in it, the engine's own is put aside.
//!
//! The rows of an image may share a position (M-RoPE). The engine cannot be cut between them, so such an image counts as left out
//! as soon as its first batch is, though the host shows the rest later.
//!
//! In a context that cannot go back to any position, a state is stored behind each of them, and they are loaded by that one only
//! ([`prepare_media`](contextpilot_kv_engine::bounded::prepare_media)).
//!
//! With sliding windows that goes for what the engine computes at once (`-ub`); else the sequence is known up to it.

use std::cell::{Cell, OnceCell};
use std::ptr;

use contextpilot_kv_engine::Bounds;
use contextpilot_kv_store::media;
use contextpilot_residency::Entry;
use sha2::{Digest, Sha256};

use super::encodings;
use super::engine::Context;
use super::records::with_record;
use super::working::is_on;
use crate::attach::{is_embedded, plain};
use crate::base::abi::Pointer;
use crate::base::guard;
use crate::base::lent::Lender;
use crate::capture::llama_batch;

/// What is evaluated by one call of libmtmd's.
pub(super) struct Media {
    context: usize,
    pub(super) sequence: i32,
    /// The position of the first row.
    pub(super) first: i32,
    /// The digest of all rows.
    digest: [u8; 32],
    pub(super) rows: usize,
    /// The rows share a position.
    grid: Option<Grid>,
    /// The tokens of the rows, made from the digest and from how the rows are evaluated. `None`: they cannot be stored.
    tokens: OnceCell<Option<Vec<i32>>>,
    /// How many rows the batches so far had.
    pub(super) done: Cell<usize>,
    /// The engine holds it, and nothing of it is evaluated. Known from its first batch on.
    pub(super) is_there: Cell<bool>,
    /// The engine cannot be cut within it. Known as well.
    pub(super) is_one: Cell<bool>,
}

/// How the rows of an image stand that share a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    columns: usize,
    /// So many positions farther is what follows.
    takes: usize,
}

thread_local! {
    static MINE: Cell<*const ()> = const { Cell::new(ptr::null()) };
}
static LENDER: Lender = Lender::new(&MINE);

/// Runs `decode`, which evaluates this image or sound from this position of a sequence on.
///
/// # Safety
/// The context and the chunk are alive, and `rows` are those of the chunk.
pub(crate) unsafe fn during(
    context: Pointer,
    chunk: Pointer,
    rows: Pointer,
    (sequence, first): (i32, i32),
    decode: impl FnOnce() -> i32,
) -> i32 {
    if !is_on() || rows.is_null() {
        return decode();
    }
    encodings::note_unseen();
    // SAFETY: the caller's promise.
    let count = unsafe { plain::chunk_rows(chunk) };
    // SAFETY: as above.
    let grid = count.and_then(|count| unsafe { grid_of(chunk, count) });
    // SAFETY: as above.
    let width = unsafe { llama_batch::row_size(context) };
    let size = |(count, width): (usize, usize)| {
        let bytes = count.checked_mul(width)?.checked_mul(size_of::<f32>())?;
        isize::try_from(bytes).is_ok().then_some((count, bytes))
    };
    let Some((count, bytes)) = count.zip(width).and_then(size) else {
        return decode();
    };
    let digest = || {
        // SAFETY: the caller's promise: libmtmd is about to read so many numbers.
        let rows = unsafe { std::slice::from_raw_parts(rows.cast::<u8>(), bytes) };
        // Megabytes, while the engine waits: ten times as fast as SHA-256 where the processor has no instructions for that.
        *blake3::hash(rows).as_bytes()
    };
    let Some(digest) = guard::compute(digest) else {
        return decode();
    };
    let media = Media {
        context: context.addr(),
        sequence,
        first,
        digest,
        rows: count,
        grid,
        tokens: OnceCell::new(),
        done: Cell::new(0),
        is_there: Cell::new(false),
        is_one: Cell::new(false),
    };
    let _lent = LENDER.lend(&media);
    decode()
}

/// How the rows of an image stand, if they take fewer positions than they are.
///
/// # Safety
/// The chunk is alive, and has so many rows.
unsafe fn grid_of(chunk: Pointer, rows: usize) -> Option<Grid> {
    // SAFETY: the caller's promise.
    let takes = usize::try_from(unsafe { plain::chunk_positions(chunk) }?).ok()?;
    if takes == rows {
        return None;
    }
    // SAFETY: as above.
    let image = unsafe { plain::chunk_image(chunk) }.filter(|image| !image.is_null());
    // SAFETY: the chunk's own.
    let columns = image.and_then(|image| unsafe { plain::image_columns(image) });
    Some(Grid {
        columns: columns.unwrap_or(0),
        takes,
    })
}

impl Grid {
    /// Whether it is one of so many rows, of which each has a place of its own.
    fn is_of(self, rows: usize) -> bool {
        let lines = rows.checked_div(self.columns).unwrap_or(0);
        lines * self.columns == rows && self.takes == lines.max(self.columns)
    }
}

/// What this thread evaluates in this context, if that is an image or a sound.
///
/// # Safety
/// The result is used no longer than the hook runs.
pub(super) unsafe fn current<'a>(context: Context<'_>) -> Option<&'a Media> {
    if LENDER.is_idle() {
        return None;
    }
    // SAFETY: this is what is lent here; the caller's promise.
    let media = unsafe { LENDER.borrow::<Media>() }?;
    (media.context == context.pointer().addr()).then_some(media)
}

impl Media {
    /// The tokens of the run, if the entries of a batch are its next rows, and it can be stored.
    pub(super) fn tokens_of(&self, context: Context<'_>, entries: &[Entry]) -> Option<&[i32]> {
        let done = self.done.get();
        let is_next = |(nth, entry): (usize, &Entry)| {
            let place = if self.shares() { 0 } else { done + nth };
            let position = i64::from(self.first) + place as i64;
            entry.sequence == self.sequence
                && i64::from(entry.position) == position
                && !entry.output
        };
        let fits = !entries.is_empty() && done + entries.len() <= self.rows;
        if !fits || !entries.iter().enumerate().all(is_next) {
            // What follows has no tokens, either.
            self.done.set(self.rows);
            return None;
        }
        let is_whole = entries.len() == self.rows;
        let make = || {
            let is_causal = with_record(context, |record| {
                let may_be = !record.is_refused() && self.is_certain(record.bounds, is_whole);
                may_be.then_some(record.is_causal)
            });
            // Rows that see those behind them depend on which of them are in one batch.
            let is_causal = is_causal.flatten().filter(|causal| *causal || is_whole)?;
            guard::compute(|| self.make_tokens(is_causal)).flatten()
        };
        let tokens = self.tokens.get_or_init(make).as_deref();
        self.done.set(done + entries.len());
        tokens
    }

    /// Whether its rows are what they would be with any other batches. `is_whole`: all of them are in one.
    ///
    /// With sliding windows the engine computes a batch of several parts without a piece of the window, maybe (see
    /// [`bounded`](super::bounded)), and only libmtmd can divide it.
    fn is_certain(&self, bounds: Option<Bounds>, is_whole: bool) -> bool {
        let at_once = bounds.and_then(|bounds| bounds.at_once);
        // A program may go back without asking, and what a load has left out of the windows cannot be evaluated again.
        let fits = |most| is_whole && self.rows <= most && !self.shares() && !is_embedded();
        at_once.is_none_or(fits)
    }

    fn make_tokens(&self, is_causal: bool) -> Option<Vec<i32>> {
        let mut hash = Sha256::new();
        hash.update(self.digest);
        hash.update([u8::from(is_causal)]);
        let Some(grid) = self.grid else {
            return media::run(&hash.finalize().into(), self.rows);
        };
        // An image of one colour has the same rows upright and lying.
        hash.update((grid.columns as u64).to_le_bytes());
        let tokens = || media::shared_run(&hash.finalize().into(), self.rows, grid.takes);
        grid.is_of(self.rows).then(tokens).flatten()
    }

    /// Whether the engine holds all of it, and cannot be cut within it: whatever comes, nothing more of it is evaluated.
    pub(super) fn is_left_out(&self) -> bool {
        self.is_one.get() && self.is_there.get()
    }

    /// Whether its rows share a position.
    pub(super) fn shares(&self) -> bool {
        self.grid.is_some()
    }
}
