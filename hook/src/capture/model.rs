//! Whether the server has loaded its model, and answers requests.
//!
//! No function of the server says so. Three conditions together do: the server uses a context (since
//! December 2025 servers also create contexts that they do not use, to see how much fits), no loading
//! call is running, and the engine has been silent for a moment, because the server runs a warm-up
//! before it answers (`--warmup`). When this holds for the first time, or when a slot takes a request,
//! the server counts as answering. Later it may sleep: then the next request waits until the model is
//! loaded again.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use contextpilot_control::ModelState;

use crate::base::guard;
use crate::capture::contexts;

/// How long the engine must be silent after a model was loaded and warmed up. The server takes some
/// milliseconds from one of these steps to the next.
pub(crate) const SILENCE: Duration = Duration::from_millis(100);

/// The number of loading calls that are running.
static LOADS: AtomicUsize = AtomicUsize::new(0);

/// The server has answered, or was ready to.
static SETTLED: AtomicBool = AtomicBool::new(false);

/// Lives while the engine loads a model. An exception of the engine drops it too.
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
        guard::guarded(contexts::note_change);
    }
}

/// Whether there is a model and nothing is being loaded: two of the three conditions. Silence is the
/// third.
pub(crate) fn is_there() -> bool {
    contexts::is_any_in_use() && LOADS.load(Ordering::SeqCst) == 0
}

/// From now on the server counts as answering.
pub(crate) fn settle() {
    SETTLED.store(true, Ordering::Relaxed);
}

/// The state of the model. Any thread may call this.
pub(crate) fn state() -> ModelState {
    match (SETTLED.load(Ordering::Relaxed), contexts::is_any_in_use()) {
        (false, _) => ModelState::Loading,
        (true, true) => ModelState::Loaded,
        (true, false) => ModelState::Asleep,
    }
}
