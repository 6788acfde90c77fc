//! Between the host and our own code.
//!
//! [`observe`] is the only way into our code from a hook: it keeps us out where we have no
//! business, our panics in, and `errno` as it was. The engine is never asked within it: an exception
//! of the engine's would end the process there, and goes on to the engine's caller otherwise. So
//! hooks ask first (`ask…`, `…::of`), in code that cannot panic, and note afterwards. [`EngineCall`] tells the host's own calls of
//! the engine from those that the engine makes of itself.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::mode;

struct Flags {
    /// Our own code is running on this thread (for ever, on our own threads): whatever it calls
    /// is no business of ours.
    internal: Cell<bool>,
    /// The engine is running on this thread, called through a hook.
    in_engine: Cell<bool>,
}

// Initialised by the compiler and never dropped: usable in the first and the last moments of a
// thread, without registering or allocating anything.
thread_local! {
    static FLAGS: Flags = const {
        Flags { internal: Cell::new(false), in_engine: Cell::new(false) }
    };
}

/// The calling thread's flags. The address is asked for once in a hook: it takes a call.
#[inline]
fn flags() -> &'static Flags {
    FLAGS.with(|flags| {
        let flags: *const Flags = flags;
        // SAFETY: without a destructor, they last as long as their thread; and the reference
        // does not leave it, since a `Cell` cannot be shared.
        unsafe { &*flags }
    })
}

/// Makes the calling thread one of our own, for life.
pub(crate) fn enter_for_life() {
    flags().internal.set(true);
}

/// Runs our own code, if the library is active and this is not our own code already.
#[inline]
pub(crate) fn observe(work: impl FnOnce()) {
    if mode::is_active() {
        flags().observe(work);
    }
}

/// Runs our own code at the end of the process, even if we broke down before.
pub(crate) fn observe_end(work: impl FnOnce()) {
    flags().observe(work);
}

impl Flags {
    #[inline]
    fn observe(&self, work: impl FnOnce()) {
        if self.internal.replace(true) {
            return;
        }
        let errno = errno_location();
        // SAFETY: points to this thread's errno.
        let value = unsafe { *errno };
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            mode::break_down();
        }
        // SAFETY: as above.
        unsafe { *errno = value };
        self.internal.set(false);
    }
}

/// The span of a call into the engine. Hooks that are reached within it were called by the
/// engine itself, which is an implementation detail: the outermost call says it all.
///
/// Dropped by C++ exceptions too, which unwind through the hooks.
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

    /// [`observe`]s, unless the engine itself made the call.
    #[inline]
    pub(crate) fn observe(&self, work: impl FnOnce()) {
        if self.counts() {
            self.flags.observe(work);
        }
    }

    /// Whether the host itself made the call, and the library is active. Who goes on without
    /// [`observe`](Self::observe), which takes a fifth of the time of the shortest hooks, must
    /// not panic, allocate, or call anything that sets `errno` or could come back to a hook.
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
    fn only_the_outermost_call_of_the_engine_counts() {
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
    fn nothing_is_observed_while_inert() {
        observe(|| panic!("reached"));
    }
}
