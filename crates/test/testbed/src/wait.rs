//! Waits for conditions outside this process: any, and the files of a prefix store.

use std::path::{Path, PathBuf};
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

/// The files of all chunks of a store, in the order of their names.
///
/// # Panics
/// If the folder cannot be listed.
pub fn chunk_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of a store") {
            let path = entry.expect("a folder's entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "kv") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Waits until all chunks that a server has stored are in its folder. A server's thread writes them some time after
/// `stored`, the figure of its `/stats`, has counted them.
///
/// # Panics
/// If they are not all there within a minute.
#[track_caller]
pub fn await_written(folder: &Path, stored: impl Fn() -> u64) {
    until("the chunks are on disk", || {
        (chunk_files(folder).len() as u64 == stored()).then_some(())
    });
}
