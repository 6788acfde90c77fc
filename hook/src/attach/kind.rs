//! What kind of process this is: a llama-server, or another program with an engine inside.

use std::sync::atomic::{AtomicBool, Ordering};

/// This program was attached to, and is no llama-server.
static EMBEDDED: AtomicBool = AtomicBool::new(false);

/// Whether this process was attached to, and is no llama-server. It has no flags then. (Only on Linux.)
pub(crate) fn is_embedded() -> bool {
    EMBEDDED.load(Ordering::Relaxed)
}

/// An engine in this program was attached to.
#[cfg(target_os = "linux")]
pub(super) fn set_embedded() {
    EMBEDDED.store(true, Ordering::Relaxed);
}
