//! Whether the library does anything at all.

use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::log;

/// Hands everything through: before the constructor, in other programs, where nobody wants it.
const INERT: u8 = 0;
/// Takes note; no thread runs yet.
const ARMED: u8 = 1;
/// Takes note, and the worker listens.
const RUNNING: u8 = 2;
/// Hands everything through for good.
const OUT: u8 = 3;

static MODE: AtomicU8 = AtomicU8::new(INERT);

#[inline]
pub(crate) fn is_active() -> bool {
    // Relaxed: nothing is read on the strength of this that is not published otherwise.
    matches!(MODE.load(Ordering::Relaxed), ARMED | RUNNING)
}

/// What other rooms do when the mode changes.
pub(crate) struct Turns {
    /// Starts the threads, unless they run.
    pub(crate) start: fn(),
    /// What was believed until now counts no more.
    pub(crate) lose_step: fn(),
}

static TURNS: OnceLock<Turns> = OnceLock::new();

/// The constructor's verdict that this is a process for us.
pub(crate) fn arm(turns: Turns) {
    let _ = TURNS.set(turns);
    MODE.store(ARMED, Ordering::Relaxed);
}

/// The server begins to load its first model, or uses a context: now the threads are needed.
pub(crate) fn ensure_running() {
    if let Some(turns) = TURNS.get() {
        (turns.start)();
    }
}

/// True for the one caller who is to start the threads.
pub(crate) fn begin_running() -> bool {
    MODE.compare_exchange(ARMED, RUNNING, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
}

/// Whether the threads run (or are being started).
pub(crate) fn is_running() -> bool {
    MODE.load(Ordering::Relaxed) == RUNNING
}

/// Nothing more is taken note of: a forked child, or a set-up that failed.
pub(crate) fn withdraw() {
    MODE.store(OUT, Ordering::Relaxed);
}

/// Where our code panicked last, for the one line about it.
static PLACE: Mutex<String> = Mutex::new(String::new());

/// In the place of the usual message, which comes in several lines and through locks of others.
pub(crate) fn note_panic(panic: &PanicHookInfo<'_>) {
    if let Some(place) = panic.location() {
        *PLACE.lock().unwrap_or_else(PoisonError::into_inner) = place.to_string();
    }
}

/// Where that was; empty if nowhere.
pub(crate) fn place_of_panic() -> String {
    PLACE.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// After a panic in our code: the server goes on as if we were not there, and nothing that was
/// believed is relied upon any more.
#[cold]
pub(crate) fn break_down() {
    if MODE.swap(OUT, Ordering::SeqCst) == OUT {
        return;
    }
    // What can still be done is done first: telling people may fail.
    if let Some(turns) = TURNS.get() {
        (turns.lose_step)();
    }
    let place = place_of_panic();
    log::line(format_args!(
        "Stopped after an internal error at {place}. The server is not affected; all that was \
         reported as cached is taken back, and nothing is reported any more. Restart the server \
         to go on, and please report this line",
    ));
}
