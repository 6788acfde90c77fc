//! Rows that go from the files into the engine without a copy of the state in between.
//!
//! The engine takes a state from one piece of memory. It reads what the state says about cells and layers, and hands the
//! rows on to whoever has the cache's memory: `ggml_backend_tensor_set(tensor, source, offset, size)`. In an *outline*
//! of a state the rows are left out: their memory is there, but was never touched. When the engine hands on rows of
//! the outline, they are put in, a block at a time, straight from the files, which threads read ahead.
//!
//! So loading a state takes no memory for it, and no time for finding and clearing that.
//!
//! The engine may hand rows on in another way than this knows. So each byte that is left out must have been handed on
//! once, in order, by the thread that loads. If that is not so, or a file is damaged, the load has failed, and the state is
//! put together in memory.

use std::cell::{Cell, RefCell};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use contextpilot_kv_files::{Flow, LeftOut, Lost, Readers, Span};
use contextpilot_kv_store::Layout;

use super::figures::{self, FIGURES};
use super::{engine, with_record};
use crate::attach::original::{self, original};
use crate::base::abi::Pointer;
use crate::base::region::Region;
use crate::base::{faults, guard, signals};

/// A smaller state is put together in memory that is used again: to start threads would take longer.
const LEAST: usize = 8 << 20;

/// Threads that read ahead, at most: the engine's thread takes a block in about the time in which one reads it.
const MOST_READERS: usize = 3;

/// A state that the engine can be given.
pub(super) enum Prepared {
    Composed(Vec<u8>),
    Outline(Outline),
}

/// A state, and what it lacks.
pub(super) struct Outline {
    pub(super) state: Region,
    pub(super) left_out: LeftOut,
}

/// Memory for the outline of a state of so many bytes. `None`: the state is to be put together. `flows`: whether the context
/// was not seen to take rows in another way.
pub(super) fn region(flows: bool, layout: &Layout, bytes: usize) -> Option<Region> {
    let is_large = bytes >= faults::least_straight(LEAST);
    let can = flows && layout.keeps_rows_together() && is_large;
    let can = can && original::ggml_backend_tensor_set().is_some();
    can.then(|| Region::new(bytes)).flatten()
}

/// As [`engine::load`]. If a context does not take rows in this way, that is remembered.
///
/// # Safety
/// As for [`engine::cut`].
pub(super) unsafe fn load(context: Pointer, sequence: i32, outline: Outline) -> bool {
    let Outline { state, left_out } = outline;
    let threads = thread::available_parallelism().map_or(1, |all| all.get() - 1);
    let readers = Readers {
        threads: threads.clamp(1, MOST_READERS),
        on_start: guard::enter_for_life,
    };
    let take = |flow: &mut Flow<'_>| {
        let taking = Taking {
            state: &state,
            flow: RefCell::new(flow),
        };
        let _under_way = UnderWay::begin(&taking);
        // SAFETY: the caller's promise.
        unsafe { engine::load(context, sequence, &state) }
    };
    let (taken, read) = signals::blocked(|| left_out.read(readers, take));
    if taken && matches!(read, Err(Lost::NotTaken)) {
        with_record(context, |one| one.flows = false);
    }
    let done = taken && read.is_ok();
    if done {
        figures::add(&FIGURES.direct_loads, 1);
    }
    done
}

/// A state that the engine takes on this thread.
struct Taking<'t, 'f> {
    state: &'t [u8],
    flow: RefCell<&'t mut Flow<'f>>,
}

/// How many threads take states now.
static TAKING: AtomicUsize = AtomicUsize::new(0);

// A constant initialiser and no destructor: see the guard.
thread_local! {
    /// What this thread takes.
    static MINE: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// Lives while the engine takes a state.
struct UnderWay;

impl UnderWay {
    fn begin(taking: &Taking<'_, '_>) -> Self {
        MINE.set(ptr::from_ref(taking).cast());
        TAKING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        TAKING.fetch_sub(1, Ordering::Relaxed);
        MINE.set(ptr::null());
    }
}

/// The engine hands on `size` bytes. False if they are none of ours.
///
/// # Safety
/// The contract of `ggml_backend_tensor_set`.
#[inline]
pub(crate) unsafe fn hand_on(
    tensor: Pointer,
    source: *const u8,
    offset: usize,
    size: usize,
) -> bool {
    if TAKING.load(Ordering::Relaxed) == 0 || faults::go_astray() {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { hand_on_mine(tensor, source, offset, size) }
}

#[cold]
unsafe fn hand_on_mine(tensor: Pointer, source: *const u8, offset: usize, size: usize) -> bool {
    let Some(taking) = NonNull::new(MINE.get().cast_mut()) else {
        return false;
    };
    // SAFETY: what this thread takes lives until `UnderWay` is dropped, which sets the cell to null; and of its lifetimes,
    // nothing leaves this function.
    let taking = unsafe { taking.cast::<Taking<'_, '_>>().as_ref() };
    let begin = source.addr().wrapping_sub(taking.state.as_ptr().addr());
    let is_inside = begin.checked_add(size);
    if is_inside.is_none_or(|end| end > taking.state.len()) {
        return false;
    }
    // The engine's function is not called within it.
    let Ok(mut flow) = taking.flow.try_borrow_mut() else {
        return true;
    };
    let mut done = 0;
    while done < size {
        let next = guard::compute(|| flow.next(begin + done, size - done));
        let (from, count) = match next.flatten() {
            Some(Span::Own(count)) => (taking.state[begin + done..].as_ptr(), count),
            Some(Span::Read(bytes)) => (bytes.as_ptr(), bytes.len()),
            // The load has failed, and what the engine holds will be removed.
            None => break,
        };
        original!(ggml_backend_tensor_set(tensor, from, offset + done, count));
        done += count;
    }
    true
}
