//! The border between the host's code and ours.
//!
//! [`guarded`] is the only way from a hook into our code. It does nothing if the library is inert or
//! the thread is already in our code, it catches our panics, and it restores `errno`. The engine is
//! never called within it: a C++ exception would end the process there, but must reach the engine's
//! caller. So hooks ask the engine first (`ask…`, `…::of`), in code that cannot panic, and note the
//! answer afterwards. [`EngineCall`] distinguishes the host's own calls of the engine from calls that
//! the engine makes of itself.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::mode;

struct Flags {
    /// Our own code is running on this thread; on our own threads this is always true. Hooks that it
    /// reaches do nothing.
    internal: Cell<bool>,
    /// The engine is running on this thread, called through a hook.
    in_engine: Cell<bool>,
}

// A constant initialiser and no destructor: usable in the first and the last moments of a
// thread, without registering or allocating anything.
thread_local! {
    static FLAGS: Flags = const {
        Flags { internal: Cell::new(false), in_engine: Cell::new(false) }
    };
}

/// The calling thread's flags. A hook asks for the address only once, because that takes a call.
#[inline]
fn flags() -> &'static Flags {
    FLAGS.with(|flags| {
        let flags: *const Flags = flags;
        // SAFETY: without a destructor, the flags live as long as their thread. The reference
        // does not leave the thread, since a `Cell` cannot be shared.
        unsafe { &*flags }
    })
}

/// Marks the calling thread as one of our own, until it ends.
pub(crate) fn enter_for_life() {
    flags().internal.set(true);
}

/// Runs `work`, unless the library is inert or the thread is already in our code.
#[inline]
pub(crate) fn guarded(work: impl FnOnce()) {
    if mode::is_active() {
        flags().guarded(work);
    }
}

/// As [`guarded`], with a result; `None` if `work` did not run to its end. It runs in every mode of the
/// library, because what the prefix store has put into the engine stays there whatever happens to the
/// rest of the library.
pub(crate) fn compute<R>(work: impl FnOnce() -> R) -> Option<R> {
    let mut result = None;
    flags().guarded(|| result = Some(work()));
    result
}

/// Runs `work` at the end of the process, even after a panic of ours.
pub(crate) fn guarded_at_end(work: impl FnOnce()) {
    flags().guarded(work);
}

impl Flags {
    #[inline]
    fn guarded(&self, work: impl FnOnce()) {
        if self.internal.replace(true) {
            return;
        }
        let errno = errno_location();
        // SAFETY: points to this thread's errno.
        let value = unsafe { *errno };
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            mode::disable_after_panic();
        }
        // SAFETY: as above.
        unsafe { *errno = value };
        self.internal.set(false);
    }
}

/// Lives during a call into the engine. Hooks that are reached meanwhile were called by the
/// engine itself. They are not observed, because the outermost call has the same effect.
///
/// C++ exceptions drop it too: they unwind through the hooks.
pub(crate) struct EngineCall {
    flags: &'static Flags,
    nested: bool,
}

impl EngineCall {
    #[inline]
    pub(crate) fn enter() -> Self {
        let flags = flags();
        Self {
            flags,
            nested: flags.in_engine.replace(true),
        }
    }

    /// Whether the host itself made the call.
    pub(crate) fn is_hosts(&self) -> bool {
        !self.nested
    }

    /// As [`guarded`], unless the engine itself made the call.
    #[inline]
    pub(crate) fn guarded(&self, work: impl FnOnce()) {
        if self.counts() {
            self.flags.guarded(work);
        }
    }

    /// Whether the host itself made the call, and the library is active. This is for hooks that do
    /// without [`guarded`](Self::guarded), which takes a fifth of the time of the shortest hooks. Such a
    /// hook must not panic, allocate, or call anything that sets `errno` or could reach another hook.
    #[inline]
    pub(crate) fn counts(&self) -> bool {
        !self.nested && mode::is_active()
    }
}

impl Drop for EngineCall {
    #[inline]
    fn drop(&mut self) {
        self.flags.in_engine.set(self.nested);
    }
}

#[cfg(target_os = "linux")]
fn errno_location() -> *mut i32 {
    // SAFETY: no preconditions.
    unsafe { libc::__errno_location() }
}

#[cfg(target_os = "macos")]
fn errno_location() -> *mut i32 {
    // SAFETY: no preconditions.
    unsafe { libc::__error() }
}

/// The calling thread's `errno`.
#[inline]
pub(crate) fn errno() -> i32 {
    // SAFETY: points to this thread's errno.
    unsafe { *errno_location() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_the_engine_makes_of_itself_is_not_observed() {
        let outer = EngineCall::enter();
        {
            let inner = EngineCall::enter();
            assert!(inner.nested);
        }
        assert!(EngineCall::enter().nested, "the outer call still lasts");
        assert!(!outer.nested);
        drop(outer);
        assert!(!EngineCall::enter().nested);
    }

    #[test]
    fn while_the_library_is_inert_nothing_is_observed() {
        let mut reached = false;
        guarded(|| reached = true);
        assert!(!reached);
        let call = EngineCall::enter();
        call.guarded(|| reached = true);
        assert!(!reached);
    }
}
