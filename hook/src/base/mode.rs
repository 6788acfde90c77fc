//! Whether the library is inert or active.

use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::log;

/// Hooks only call the original: before the constructor, in other programs, and if no setting asks for
/// the hook.
const INERT: u8 = 0;
/// Hooks observe; no thread runs yet.
const ARMED: u8 = 1;
/// Hooks observe, and the worker runs.
const RUNNING: u8 = 2;
/// Hooks only call the original, until the process ends.
const OUT: u8 = 3;

static MODE: AtomicU8 = AtomicU8::new(INERT);

#[inline]
pub(crate) fn is_active() -> bool {
    // Relaxed: this publishes nothing else.
    matches!(MODE.load(Ordering::Relaxed), ARMED | RUNNING)
}

/// What other modules do when the mode changes.
pub(crate) struct Transitions {
    /// Starts the threads, unless they run.
    pub(crate) start: fn(),
    /// Opens a gap: every live id is reported as evicted.
    pub(crate) desync: fn(),
}

static TRANSITIONS: OnceLock<Transitions> = OnceLock::new();

/// Called by the constructor if this process is a llama-server.
pub(crate) fn arm(transitions: Transitions) {
    let _ = TRANSITIONS.set(transitions);
    MODE.store(ARMED, Ordering::Relaxed);
}

/// The server begins to load its first model, or uses a context: now the threads are needed.
pub(crate) fn ensure_running() {
    if let Some(transitions) = TRANSITIONS.get() {
        (transitions.start)();
    }
}

/// True for the one caller that has to start the threads.
pub(crate) fn begin_running() -> bool {
    MODE.compare_exchange(ARMED, RUNNING, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
}

/// Whether the threads run (or are being started).
pub(crate) fn is_running() -> bool {
    MODE.load(Ordering::Relaxed) == RUNNING
}

/// Stops observing: in a forked child, or after a set-up that failed.
pub(crate) fn disable() {
    MODE.store(OUT, Ordering::Relaxed);
}

/// Where our code panicked last, for the message about it.
static PLACE: Mutex<String> = Mutex::new(String::new());

/// Replaces the usual panic message, which has several lines and takes locks.
pub(crate) fn note_panic(panic: &PanicHookInfo<'_>) {
    if let Some(place) = panic.location() {
        *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = place.to_string();
    }
}

/// Where our code panicked; empty if it did not.
pub(crate) fn place_of_panic() -> String {
    PLACE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// After a panic in our code: the server goes on without the hook, and every live id is reported as
/// evicted.
#[cold]
pub(crate) fn disable_after_panic() {
    if MODE.swap(OUT, Ordering::SeqCst) == OUT {
        return;
    }
    // Log last: logging may panic again.
    if let Some(transitions) = TRANSITIONS.get() {
        (transitions.desync)();
    }
    let place = place_of_panic();
    log::line(format_args!(
        "Stopped after an internal error at {place}. The server is not affected; all that was \
         reported as cached is taken back, and nothing is reported any more. Restart the server \
         to go on, and please report this line",
    ));
}
