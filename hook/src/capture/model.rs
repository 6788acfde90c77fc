//! Whether the server has a model to answer with.
//!
//! No function of the server's says so, but these do together: it uses a context (servers since
//! December 2025 also make some that they do not use, to see how much fits), no call that loads
//! something is under way, and the engine has been silent for a moment, since a model is tried
//! before anything is served (`--warmup`). From the first time that this holds, or that a request
//! is at work, the server is one that answers. It may sleep later on; then the next request waits
//! until the model is back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use contextpilot_control::ModelState;

use crate::base::guard;
use crate::capture::contexts;

/// How long the engine is silent after a model was loaded and tried, at least. The server goes on
/// from one to the next within some milliseconds.
pub(crate) const SILENCE: Duration = Duration::from_millis(100);

/// Calls that load something now.
static LOADS: AtomicUsize = AtomicUsize::new(0);

/// The server has become one that answers.
static SETTLED: AtomicBool = AtomicBool::new(false);

/// The time that the engine takes to load a model. Ends with an exception of the engine's too.
pub(crate) struct Loading(());

impl Loading {
    pub(crate) fn begin() -> Self {
        LOADS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        LOADS.fetch_sub(1, Ordering::SeqCst);
        guard::observe(contexts::note_change);
    }
}

/// Whether a model is there and nothing is being loaded, so that it is enough that the engine is
/// silent.
pub(crate) fn is_there() -> bool {
    contexts::is_any_in_use() && LOADS.load(Ordering::SeqCst) == 0
}

/// The server answers, from now on.
pub(crate) fn settle() {
    SETTLED.store(true, Ordering::Relaxed);
}

/// Any thread may ask.
pub(crate) fn state() -> ModelState {
    match (SETTLED.load(Ordering::Relaxed), contexts::is_any_in_use()) {
        (false, _) => ModelState::Loading,
        (true, true) => ModelState::Loaded,
        (true, false) => ModelState::Asleep,
    }
}
