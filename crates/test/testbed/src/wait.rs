//! Waits for conditions outside this process.

use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// After this time the condition counts as failed.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

/// Calls `look` again and again until it returns something.
///
/// # Panics
/// If it has returned nothing for a minute.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    match try_until(what, || Ok(look())) {
        Ok(seen) => seen,
        Err(error) => panic!("{error}"),
    }
}

/// Like [`until`], for a `look` that may fail.
///
/// # Errors
/// Those of `look`, and if it has returned nothing for a minute.
pub fn try_until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look()? {
            return Ok(seen);
        }
        if Instant::now() >= deadline {
            return Err(Error::new(format!("not within a minute: {what}")));
        }
        thread::sleep(LOOK);
    }
}
