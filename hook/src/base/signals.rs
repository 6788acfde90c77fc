//! Signals, which are the host's.

use std::mem::MaybeUninit;
use std::ptr;

/// Runs `work` with all signals blocked. Threads that it starts inherit that, so the host's signal handlers run on the
/// host's threads only. What comes meanwhile waits, or goes to another thread.
pub(crate) fn blocked<R>(work: impl FnOnce() -> R) -> R {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: fills the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: one set is filled, the other is to be filled.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    // SAFETY: the call has filled it.
    let _before = (blocked == 0).then(|| Mask(unsafe { before.assume_init() }));
    work()
}

/// The signals that were blocked, and are so again when this is dropped: also if there is a panic.
struct Mask(libc::sigset_t);

impl Drop for Mask {
    fn drop(&mut self) {
        // SAFETY: a set that the system has given.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked(signal: i32) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: without a new set, the call fills the other one with what is blocked now.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), now.as_mut_ptr()) };
        // SAFETY: it is filled.
        unsafe { libc::sigismember(now.as_ptr(), signal) == 1 }
    }

    #[allow(clippy::disallowed_methods, reason = "this is a test")]
    #[test]
    fn signals_are_blocked_meanwhile_and_for_threads_that_are_started() {
        assert!(!is_blocked(libc::SIGTERM));
        let inherited = blocked(|| {
            assert!(is_blocked(libc::SIGTERM));
            std::thread::spawn(|| is_blocked(libc::SIGTERM)).join()
        });
        assert!(inherited.expect("no panic"));
        assert!(!is_blocked(libc::SIGTERM));
        let panics = std::panic::catch_unwind(|| blocked(|| panic!("for the test")));
        assert!(panics.is_err());
        assert!(!is_blocked(libc::SIGTERM));
    }
}
