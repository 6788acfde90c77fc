//! Which of this process's engines a thread is in.
//!
//! A program that is no llama-server may load several libraries with llama.cpp inside. Each has functions of its own
//! under the same names, so each hook exists once for each engine, and what a hook calls is the original of that
//! engine ([`AddressSlot`](super::slot::AddressSlot) has one for each). A hook enters its engine for as long as it runs. Code that is
//! not called by a hook, and asks a context of anything, enters the context's engine.
//!
//! As long as there is one engine, nothing of this costs more than a look at a flag. A llama-server never has another
//! one: its hooks are others, which ask for none of this.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How many engines of a process are followed. More are left alone.
pub(crate) const ENGINES: usize = 4;

/// This process is no llama-server, and may load several engines.
static IN_PROGRAM: AtomicBool = AtomicBool::new(false);

/// A second engine is followed, or about to be.
static SEVERAL: AtomicBool = AtomicBool::new(false);

/// How many are followed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

// A constant initialiser and no destructor, as in `base/guard.rs`.
thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// Whether this process may have more than one engine. A llama-server has one.
#[inline]
pub(super) fn may_be_several() -> bool {
    IN_PROGRAM.load(Ordering::Relaxed)
}

/// This process may have more than one engine. From the library's constructor, before any function is hooked.
#[cfg(target_os = "linux")]
pub(super) fn expect_several() {
    IN_PROGRAM.store(true, Ordering::Relaxed);
}

/// Whether more than one engine is followed.
#[inline]
fn are_several() -> bool {
    SEVERAL.load(Ordering::Relaxed)
}

/// The engine that this thread is in: less than [`ENGINES`]. The first one, if it is in none.
#[inline]
pub(crate) fn current() -> usize {
    if are_several() {
        current_of_several()
    } else {
        0
    }
}

/// A function of its own, so that callers of [`current`] need not be ready for the call that a thread's own variable takes.
#[cold]
#[inline(never)]
fn current_of_several() -> usize {
    CURRENT.get()
}

/// The thread is in an engine until this is dropped, also by an exception.
pub(crate) struct Entered {
    /// Where it was before. `None`: there is only one.
    before: Option<usize>,
}

// Never inlined: each hook exists four times for the engines of programs, and would be twice as large.
impl Entered {
    #[inline(never)]
    pub(crate) fn new(engine: usize) -> Self {
        Self {
            before: are_several().then(|| CURRENT.replace(engine)),
        }
    }
}

impl Drop for Entered {
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            CURRENT.set(before);
        }
    }
}

/// The number of the next engine, which the thread is in until the result is dropped. `None` if there is no room for
/// it. Only one thread attaches at a time.
pub(crate) fn enter_next() -> Option<(usize, Entered)> {
    let next = COUNT.load(Ordering::Relaxed);
    if next >= ENGINES {
        return None;
    }
    if next > 0 {
        SEVERAL.store(true, Ordering::SeqCst);
    }
    Some((next, Entered::new(next)))
}

/// The engine that was entered as the next one is followed from now on.
#[cfg(target_os = "linux")]
pub(super) fn keep_next() {
    COUNT.fetch_add(1, Ordering::Relaxed);
}
