//! Waiting for what must come.

use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Only a failure takes that long.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);

/// Looks again and again until there is something.
///
/// # Panics
/// When there is nothing after a minute.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    match try_until(what, || Ok(look())) {
        Ok(seen) => seen,
        Err(error) => panic!("{error}"),
    }
}

/// The same for looks that may fail.
///
/// # Errors
/// As the look, and when there is nothing after a minute.
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
