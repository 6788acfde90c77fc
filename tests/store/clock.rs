//! A clock that was set back: files are there whose last use lies in the future.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{Stored, chunk_files, folder, one_slot, started, tokens};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// A prompt of 250 tokens is one chunk, of which two fit.
const TWO: &str = "0.0003";
const LENGTH: usize = 250;

/// A prompt that differs from the others from its first token on.
fn prompt(nth: u32) -> Vec<u32> {
    let mut tokens = tokens(60 + u64::from(nth), LENGTH);
    tokens[0] = 300 + nth;
    tokens
}

/// One life of a server: asks for these prompts, says how many tokens of each were loaded, and stores the last.
fn life(folder: &Path, budget: &str, asked: &[u32]) -> Vec<u64> {
    let plain = started(&one_slot());
    let mut stored = Stored::start_within(&one_slot(), folder, budget);
    let loaded = asked.iter().map(|&nth| {
        let (_, account) = stored.compare(&plain, &prompt(nth));
        account.from.store
    });
    let loaded = loaded.collect();
    assert_eq!(stored.figures().problem, None);
    stored.end();
    loaded
}

/// Stores a prompt, and says in which file.
fn stored_at(folder: &Path, nth: u32) -> std::path::PathBuf {
    let before = chunk_files(folder);
    life(folder, "1", &[nth]);
    let mut new = chunk_files(folder);
    new.retain(|file| !before.contains(file));
    assert_eq!(new.len(), 1, "{new:?}");
    new.remove(0)
}

fn set_used(file: &Path, time: SystemTime) {
    let file = File::options().write(true).open(file).unwrap();
    file.set_modified(time).unwrap();
}

#[test]
fn what_was_used_before_the_clock_was_set_back_is_loaded_and_leaves_first() {
    let folder = folder();
    let (tea, sea) = (stored_at(folder.path(), 0), stored_at(folder.path(), 1));
    let now = SystemTime::now();
    // By the old clock, tea was used after sea.
    set_used(&tea, now + 2 * YEAR);
    set_used(&sea, now + YEAR);
    // Nothing is lost, and nothing is from the future any more.
    life(folder.path(), TWO, &[]);
    assert!(tea.exists() && sea.exists());
    let used = |file: &Path| file.metadata().unwrap().modified().unwrap();
    assert!(used(&sea) < used(&tea), "they keep their order");
    assert!(used(&tea) <= SystemTime::now());
    // A third prompt takes the place of the one that was used before the other.
    life(folder.path(), TWO, &[2]);
    assert!(tea.exists() && !sea.exists());
    // And a fourth that of the one from before, not of the third.
    life(folder.path(), TWO, &[3]);
    assert!(!tea.exists());
    assert_eq!(life(folder.path(), TWO, &[2, 3]), [LENGTH as u64 - 1; 2]);
}
