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

/// Since when hooks observe. Every hook reads it, so the answer to [`is_active`] is here too.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    /// They do not.
    Inactive,
    /// No request has come yet.
    Loading,
    /// A request has come.
    Serving,
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Inactive as u8);

/// The [`Phase`] now, as a number.
#[inline]
pub(crate) fn phase() -> u8 {
    // Relaxed: this publishes nothing else.
    PHASE.load(Ordering::Relaxed)
}

/// Whether hooks observe.
#[inline]
pub(crate) fn is_active() -> bool {
    phase() != Phase::Inactive as u8
}

/// A request has come.
pub(crate) fn serving() {
    if phase() == Phase::Loading as u8 {
        // Not if hooks have just stopped observing.
        let _ = PHASE.compare_exchange(
            Phase::Loading as u8,
            Phase::Serving as u8,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }
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
    PHASE.store(Phase::Loading as u8, Ordering::Relaxed);
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
    let _ = go_out();
}

/// The mode before.
fn go_out() -> u8 {
    PHASE.store(Phase::Inactive as u8, Ordering::Relaxed);
    MODE.swap(OUT, Ordering::SeqCst)
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
    if go_out() == OUT {
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
