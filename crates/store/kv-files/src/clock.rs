//! The time that all processes share that use one folder.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A chunk that lacks what it continues is removed at the next start, if it is older. A neighbour may have
/// written one behind our reading of the folder.
const UNFINISHED: Duration = Duration::from_secs(600);

/// The time by which all processes order what they used: nanoseconds since 1970, as of files.
pub fn time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// Chunks that were last used before this time have a parent, or never will.
pub fn may_be_unfinished() -> u64 {
    time().saturating_sub(UNFINISHED.as_nanos() as u64)
}
