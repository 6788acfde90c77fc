//! The time. It is read only if there is an observer: a control endpoint or a log file.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use contextpilot_observer::{Now, Stamp};

/// There is an observer.
static ENGAGED: AtomicBool = AtomicBool::new(false);
static START: OnceLock<Instant> = OnceLock::new();

/// Called by the constructor: there will be an observer.
pub(crate) fn engage() {
    START.get_or_init(Instant::now);
    ENGAGED.store(true, Ordering::Relaxed);
}

#[inline]
pub(crate) fn is_engaged() -> bool {
    ENGAGED.load(Ordering::Relaxed)
}

/// The time, or the default stamp if there is no observer.
#[inline]
pub(crate) fn stamp() -> Stamp {
    if is_engaged() {
        read()
    } else {
        Stamp::default()
    }
}

#[inline(never)]
fn read() -> Stamp {
    let since = START.get().map_or(0, |start| start.elapsed().as_nanos());
    // Plus one, because zero means that the time was not read; 64 bits last for 580 years.
    Stamp(u64::try_from(since).unwrap_or(u64::MAX - 1) + 1)
}

/// The time on both clocks.
pub(crate) fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix_ms = since.map_or(0, |since| since.as_millis());
    Now {
        stamp: stamp(),
        unix_ms: u64::try_from(unix_ms).unwrap_or(u64::MAX),
    }
}
