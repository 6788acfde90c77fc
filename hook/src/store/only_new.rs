//! What is new of a sequence is copied out of the engine, and no more.
//!
//! The engine writes the state of a whole sequence, as long as that may be. It asks the backend that has the cache's memory
//! for the rows: `ggml_backend_tensor_get(tensor, target, offset, size)`. If the store has most of the sequence, rows that it has
//! are left out there. Their memory was never touched, and takes none.
//!
//! If the engine gets its rows in another way than this knows, it writes all of them, as ever.

use std::cell::{Cell, OnceCell};
use std::ptr;
use std::slice;
use std::time::{Duration, Instant};

use contextpilot_kv_engine::Engine as _;
use contextpilot_kv_store::{Layout, WantedBytes, worth};

use super::engine::Context;
use super::figures::{self, FIGURES};
use super::flow;
use super::records::with_record;
use crate::attach::original::{self, original};
use crate::base::abi::Pointer;
use crate::base::lent::Lender;
use crate::base::region::Region;
use crate::base::{faults, guard};

/// How much of a sequence is to be copied.
pub(super) enum Extent {
    /// All of it: so many bytes, as far as that is known.
    Whole(usize),
    /// What is new, of a state with this layout.
    From(NewFrom, Layout),
}

/// Where what is new begins.
#[derive(Clone, Copy)]
pub(super) struct NewFrom {
    /// Behind so many tokens.
    pub(super) tokens: usize,
    /// Where the next one stands.
    pub(super) position: usize,
}

/// Whether only what is behind the tokens that are `there` is to be copied of a sequence with so many. `flows`: whether the
/// context was not seen to get rows in another way.
pub(super) fn is_enough(flows: bool, layout: &Layout, tokens: usize, there: usize) -> bool {
    // A layout was learned of a state that was copied out.
    let is_seen = original::called::ggml_backend_tensor_get.ever()
        && original::ggml_backend_tensor_get().is_some();
    let is_large = flow::is_large(layout.state_size(tokens));
    flows && is_seen && is_large && worth::is_mostly_stored(tokens, there)
}

/// A state that lacks rows.
pub(super) struct NewRows {
    region: Region,
    size: usize,
    /// So many tokens have no rows.
    pub(super) tokens: usize,
}

impl NewRows {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.region[..self.size]
    }
}

/// Copies a sequence out of the engine, but for rows of the tokens before `from`. `None`: the engine refuses, or the system
/// gives no memory. If a context does not get rows in this way, that is remembered. How long it took says nothing of
/// whole copies, by which is judged what is worth one.
pub(super) fn copy_out(
    context: Context<'_>,
    sequence: i32,
    from: NewFrom,
    layout: &Layout,
) -> Option<NewRows> {
    let start = Instant::now();
    let most = context.state_size(sequence)?;
    let Some(mut region) = Region::new(most) else {
        // The next copy is a whole one, to memory that is used again.
        with_record(context, |record| record.flows = false);
        return None;
    };
    let taking = Taking {
        begin: region.as_mut_ptr(),
        size: most,
        layout,
        sequence,
        from: from.position,
        wanted: OnceCell::new(),
        left_out: Cell::new(0),
    };
    let lent = LENDER.lend(&taking);
    // SAFETY: there is room for so many bytes.
    let size = unsafe { context.write(taking.begin, most, sequence) };
    drop(lent);
    figures::add_time(&FIGURES.save_nanos, start.elapsed());
    if size == 0 || size > most {
        return None;
    }
    let was_asked = taking.wanted.get().is_some();
    with_record(context, |record| record.flows &= was_asked);
    let tokens = match taking.left_out.get() {
        0 => 0,
        _ => {
            figures::add(&FIGURES.partial_saves, 1);
            from.tokens
        }
    };
    Some(NewRows {
        region,
        size,
        tokens,
    })
}

/// Copies the state of a sequence out of the engine, into this memory. Returns how long that took. `None`: the engine refuses.
pub(super) fn copy_whole(
    context: Context<'_>,
    sequence: i32,
    state: &mut Vec<u8>,
) -> Option<Duration> {
    let start = Instant::now();
    let saved = context.save(sequence, state);
    let took = start.elapsed();
    figures::add_time(&FIGURES.save_nanos, took);
    saved.then_some(took)
}

/// A state that the engine writes on this thread.
struct Taking<'a> {
    begin: *mut u8,
    size: usize,
    layout: &'a Layout,
    sequence: i32,
    /// A position.
    from: usize,
    /// Found when the engine asks for the first rows. `None` inside: all are wanted.
    wanted: OnceCell<Option<WantedBytes>>,
    /// Bytes that were left out.
    left_out: Cell<usize>,
}

thread_local! {
    static MINE: Cell<*const ()> = const { Cell::new(ptr::null()) };
}
static LENDER: Lender = Lender::new(&MINE);

/// The engine asks for `size` bytes. False if they are none of ours.
///
/// # Safety
/// The contract of `ggml_backend_tensor_get`.
#[inline]
pub(crate) unsafe fn fetch(tensor: Pointer, target: *mut u8, offset: usize, size: usize) -> bool {
    if LENDER.is_idle() || faults::go_astray() {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { fetch_mine(tensor, target, offset, size) }
}

#[cold]
unsafe fn fetch_mine(tensor: Pointer, target: *mut u8, offset: usize, size: usize) -> bool {
    // SAFETY: this is what is lent here, and none of it leaves this function.
    let Some(taking) = (unsafe { LENDER.borrow::<Taking<'_>>() }) else {
        return false;
    };
    let begin = target.addr().wrapping_sub(taking.begin.addr());
    let end = begin.checked_add(size);
    let Some(end) = end.filter(|end| *end <= taking.size) else {
        return false;
    };
    let wanted = taking.wanted.get_or_init(|| {
        // SAFETY: the first bytes of the region, which no thread writes to now.
        let begun = unsafe { slice::from_raw_parts(taking.begin, begin) };
        let find = || WantedBytes::new(taking.layout, taking.sequence, begun, taking.from);
        guard::compute(find).flatten()
    });
    let Some(wanted) = wanted else {
        return false;
    };
    let (mut at, mut copied) = (begin, 0);
    // Nothing of this can panic.
    while let Some(part) = wanted.next(at..end) {
        original!(ggml_backend_tensor_get(
            tensor,
            target.wrapping_add(part.start - begin),
            offset + (part.start - begin),
            part.len()
        ));
        copied += part.len();
        at = part.end;
    }
    taking.left_out.set(taking.left_out.get() + (size - copied));
    true
}
