//! Rows that go from the files into the engine without a copy of the state in between.
//!
//! The engine takes a state from one piece of memory. It reads what the state says about cells and layers, and hands the
//! rows on to the backend that has the cache's memory: `ggml_backend_tensor_set(tensor, source, offset, size)`. In an *outline*
//! of a state the rows are left out: their memory is there, but was never touched. When the engine hands on rows of
//! the outline, they are put in, a block at a time, straight from the files, which threads read ahead.
//!
//! So loading a state takes no memory for it, and no time for finding and clearing that.
//!
//! The engine may hand rows on in another way than this knows. So each byte that is left out must have been handed on
//! once, in order, by the thread that loads. If that is not so, or a file is damaged, the load has failed, and the state is
//! put together in memory. Before, what was handed on is overwritten with zeros: cells that hold nothing are
//! masked, but the attention of some engines reads them, and what is no number there makes others none.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::thread;

use contextpilot_kv_engine::Engine;
use contextpilot_kv_files::{Flow, LeftOut, Lost, Readers, Span};
use contextpilot_kv_store::{Layout, worth};

use super::engine::Context;
use super::records::with_record;
use crate::attach::original::{self, original};
use crate::base::abi::Pointer;
use crate::base::lent::Lender;
use crate::base::region::Region;
use crate::base::{faults, guard, signals};

/// Threads that read ahead, at most: the engine's thread takes a block in about the time in which one reads it.
const MOST_READERS: usize = 3;

/// A state that the engine can be given.
pub(super) enum Prepared {
    Composed(Vec<u8>),
    Outline(Outline),
}

/// A state, and what it lacks.
pub(super) struct Outline {
    /// Zeros where rows are left out.
    pub(super) state: Region,
    pub(super) left_out: LeftOut,
}

/// Whether a state of so many bytes is large enough for what this does, and for [`super::only_new`].
pub(super) fn is_large(bytes: usize) -> bool {
    bytes >= faults::least_straight(worth::LARGE)
}

/// Whether the rows of a state of so many bytes may be left out. `flows`: whether the context was not seen to take rows in
/// another way.
pub(super) fn can(flows: bool, layout: &Layout, bytes: usize) -> bool {
    // A context that has a layout has evaluated a batch. What that was made of was handed on in this way.
    let is_seen = original::called::ggml_backend_tensor_set.ever()
        && original::ggml_backend_tensor_set().is_some();
    flows && is_seen && layout.keeps_rows_together() && is_large(bytes)
}

/// As [`Engine::load`]. If a context does not take rows in this way, that is remembered.
pub(super) fn load(context: Context<'_>, sequence: i32, outline: Outline) -> bool {
    let Outline { state, left_out } = outline;
    let threads = thread::available_parallelism().map_or(1, |all| all.get() - 1);
    let readers = Readers {
        threads: threads.clamp(1, MOST_READERS),
        on_start: guard::enter_for_life,
    };
    let started = guard::compute(|| signals::blocked(|| left_out.start(readers)));
    let Some(flow) = started else {
        return false;
    };
    let taking = Taking {
        state: &state,
        flow: RefCell::new(flow),
        handed_on: RefCell::default(),
    };
    let lent = LENDER.lend(&taking);
    let taken = context.load(sequence, &state);
    drop(lent);
    let Taking {
        flow, handed_on, ..
    } = taking;
    let read = guard::compute(|| flow.into_inner().finish());
    if taken && matches!(read, Some(Ok(()))) {
        return true;
    }
    if taken && matches!(read, Some(Err(Lost::NotTaken))) {
        with_record(context, |record| record.flows = false);
    }
    // SAFETY: the engine has just handed these on, and its cache is as large as it was.
    unsafe { clear(&handed_on.into_inner(), &state) };
    false
}

/// Overwrites what was handed on with the zeros that the outline has in its place.
///
/// # Safety
/// `ggml_backend_tensor_set` may be called with these.
unsafe fn clear(handed_on: &[HandedOn], outline: &[u8]) {
    for part in handed_on {
        let zeros = &outline[part.at..part.at + part.size];
        original!(ggml_backend_tensor_set(
            part.tensor,
            zeros.as_ptr(),
            part.offset,
            zeros.len()
        ));
    }
}

/// Rows that the engine has from the files.
struct HandedOn {
    /// Where they are left out in the state.
    at: usize,
    tensor: Pointer,
    offset: usize,
    size: usize,
}

impl HandedOn {
    /// Whether these rows follow, in the state and in the tensor.
    fn is_followed_by(&self, at: usize, tensor: Pointer, offset: usize) -> bool {
        self.tensor == tensor && (self.at + self.size, self.offset + self.size) == (at, offset)
    }
}

/// A state that the engine takes on this thread.
struct Taking<'a> {
    state: &'a [u8],
    flow: RefCell<Flow>,
    handed_on: RefCell<Vec<HandedOn>>,
}

impl Taking<'_> {
    /// What comes next for a tensor, from `at` of the state on: where it is, and how many bytes.
    fn next(
        &self,
        flow: &mut Flow,
        (at, most): (usize, usize),
        tensor: Pointer,
        offset: usize,
    ) -> Option<(*const u8, usize)> {
        match flow.next(at, most)? {
            Span::Own(count) => Some((self.state[at..].as_ptr(), count)),
            Span::Read(bytes) => {
                let mut all = self.handed_on.borrow_mut();
                match all.last_mut() {
                    Some(last) if last.is_followed_by(at, tensor, offset) => {
                        last.size += bytes.len();
                    }
                    _ => all.push(HandedOn {
                        at,
                        tensor,
                        offset,
                        size: bytes.len(),
                    }),
                }
                Some((bytes.as_ptr(), bytes.len()))
            }
        }
    }
}

thread_local! {
    static MINE: Cell<*const ()> = const { Cell::new(ptr::null()) };
}
static LENDER: Lender = Lender::new(&MINE);

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
    if LENDER.is_idle() || faults::go_astray() {
        return false;
    }
    // SAFETY: the caller's promise.
    unsafe { hand_on_mine(tensor, source, offset, size) }
}

#[cold]
unsafe fn hand_on_mine(tensor: Pointer, source: *const u8, offset: usize, size: usize) -> bool {
    // SAFETY: this is what is lent here, and none of it leaves this function.
    let Some(taking) = (unsafe { LENDER.borrow::<Taking<'_>>() }) else {
        return false;
    };
    let begin = source.addr().wrapping_sub(taking.state.as_ptr().addr());
    let is_inside = begin.checked_add(size);
    if is_inside.is_none_or(|end| end > taking.state.len()) {
        return false;
    }
    // A backend may hand on to others what it was handed: that was counted, and is what it is to be.
    let Ok(mut flow) = taking.flow.try_borrow_mut() else {
        return false;
    };
    let mut done = 0;
    while done < size {
        let next = guard::compute(|| {
            let rest = (begin + done, size - done);
            taking.next(&mut flow, rest, tensor, offset + done)
        });
        // Else the load has failed, and what the engine holds will be removed.
        let Some((from, count)) = next.flatten() else {
            break;
        };
        // While this runs, the block stays.
        original!(ggml_backend_tensor_set(tensor, from, offset + done, count));
        done += count;
    }
    true
}
