//! The border between the host's code and ours.
//!
//! [`guarded`] is the only way from a hook into our code. It does nothing if the library is inert or
//! the thread is already in our code, it catches our panics, and it restores `errno`. The engine is
//! never called within it: a C++ exception would end the process there, but must reach the engine's
//! caller. So hooks ask the engine first (`ask…`, `…::of`), in code that cannot panic, and note the
//! answer afterwards. [`EngineCall`] distinguishes the host's own calls of the engine from calls that
//! the engine makes of itself.

use std::panic::{AssertUnwindSafe, catch_unwind};

use self::flags::{Flags, flags};
use crate::base::mode;

mod flags;

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

/// As [`EngineCall`], of a call that the host itself makes. For the shortest hooks, which have nothing to do if the engine made it:
/// so nothing need be kept of where the thread was before.
pub(crate) struct HostCall(());

impl HostCall {
    /// `None`: the engine itself made the call.
    #[inline]
    pub(crate) fn enter() -> Option<Self> {
        let flags = flags();
        if flags.in_engine.get() {
            return None;
        }
        flags.in_engine.set(true);
        Some(Self(()))
    }
}

impl Drop for HostCall {
    #[inline]
    fn drop(&mut self) {
        flags::leave_engine();
    }
}

/// Whether a hook that is reached now was called by the engine itself, and not by the host.
#[inline]
pub(crate) fn is_in_engine() -> bool {
    flags().in_engine.get()
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
    fn a_short_hook_has_nothing_to_do_with_a_call_of_the_engine_itself() {
        {
            let _outer = EngineCall::enter();
            assert!(HostCall::enter().is_none());
            assert!(is_in_engine(), "the outer call still lasts");
        }
        assert!(!is_in_engine());
        let call = HostCall::enter();
        assert!(call.is_some() && is_in_engine());
        assert!(EngineCall::enter().nested);
        drop(call);
        assert!(!is_in_engine());
    }

    #[allow(clippy::disallowed_methods, reason = "this is a test")]
    #[test]
    fn each_thread_is_where_it_is_by_itself() {
        let _call = EngineCall::enter();
        let elsewhere = std::thread::spawn(|| {
            let before = is_in_engine();
            let _call = EngineCall::enter();
            (before, is_in_engine())
        });
        assert_eq!(elsewhere.join().ok(), Some((false, true)));
        assert!(is_in_engine());
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
