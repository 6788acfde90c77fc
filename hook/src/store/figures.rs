//! Counters of the store. They only grow, but for what the store holds now.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use contextpilot_control::{FilesRead, KeptPrompts, PrefixStore, StoreRemote, Timestamp};
use contextpilot_kv_store::{Fingerprint, KEPT_SHARE};

use crate::capture::usage;

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    /// Sequences that were loaded.
    pub(crate) loads: AtomicU64,
    /// Loaded sequences whose rows went from the files into the engine without a copy of the state in between.
    pub(crate) direct_loads: AtomicU64,
    /// Tokens that were left out of evaluations.
    pub(crate) loaded_tokens: AtomicU64,
    /// Time that loading took, in nanoseconds.
    pub(crate) load_nanos: AtomicU64,
    /// States that were taken apart because something new was in them.
    pub(crate) saves: AtomicU64,
    /// Copies for which only what was new was copied out of the engine.
    pub(crate) partial_saves: AtomicU64,
    /// Tokens that were new to the store, and are written.
    pub(crate) saved_tokens: AtomicU64,
    /// Time that copying from the engine took, in nanoseconds.
    pub(crate) save_nanos: AtomicU64,
    /// Loads that failed: tokens were evaluated instead.
    pub(crate) failed_loads: AtomicU64,
    /// Chunks that were not kept, because the disk was too slow or refused them.
    pub(crate) lost_chunks: AtomicU64,
    /// Chunks that a prompt has had fetched.
    pub(crate) fetched_chunks: AtomicU64,
    /// Time that prompts have waited for chunks that are elsewhere, in nanoseconds.
    pub(crate) fetch_nanos: AtomicU64,
    /// Images and sounds that were encoded, and the time that this took, in nanoseconds.
    pub(crate) encoded: AtomicU64,
    pub(crate) encode_nanos: AtomicU64,
    /// Those that were not, because what the encoder makes of them was loaded, and the time that loading took, in nanoseconds.
    pub(crate) encodings_loaded: AtomicU64,
    pub(crate) encodings_load_nanos: AtomicU64,
    /// What the store holds now.
    pub(crate) bytes: AtomicU64,
    pub(crate) chunks: AtomicU64,
    pub(crate) limit: AtomicU64,
    pub(crate) encoding_bytes: AtomicU64,
    /// What it was asked to keep, and until when at most, in nanoseconds.
    pub(crate) kept_prompts: AtomicU64,
    pub(crate) kept_tokens: AtomicU64,
    pub(crate) kept_bytes: AtomicU64,
    pub(crate) kept_until: AtomicU64,
}

pub(crate) static FIGURES: Figures = Figures {
    loads: AtomicU64::new(0),
    direct_loads: AtomicU64::new(0),
    loaded_tokens: AtomicU64::new(0),
    load_nanos: AtomicU64::new(0),
    saves: AtomicU64::new(0),
    partial_saves: AtomicU64::new(0),
    saved_tokens: AtomicU64::new(0),
    save_nanos: AtomicU64::new(0),
    failed_loads: AtomicU64::new(0),
    lost_chunks: AtomicU64::new(0),
    fetched_chunks: AtomicU64::new(0),
    fetch_nanos: AtomicU64::new(0),
    encoded: AtomicU64::new(0),
    encode_nanos: AtomicU64::new(0),
    encodings_loaded: AtomicU64::new(0),
    encodings_load_nanos: AtomicU64::new(0),
    bytes: AtomicU64::new(0),
    chunks: AtomicU64::new(0),
    limit: AtomicU64::new(0),
    encoding_bytes: AtomicU64::new(0),
    kept_prompts: AtomicU64::new(0),
    kept_tokens: AtomicU64::new(0),
    kept_bytes: AtomicU64::new(0),
    kept_until: AtomicU64::new(0),
};

/// Files of models and adapters whose digests are being made.
pub(super) static DIGESTS: AtomicU64 = AtomicU64::new(0);
/// The folder has been read, or there is an index of it.
pub(super) static FOLDER_READ: AtomicBool = AtomicBool::new(false);

/// The folder cannot be used: there is no store.
pub(super) static FOLDER_LOST: AtomicBool = AtomicBool::new(false);

/// Prompts are looked up by the index, and the folder is being read.
pub(super) static READING: AtomicBool = AtomicBool::new(false);

/// Whether the folder is being read while prompts are looked up by its index.
pub(super) fn is_reading() -> bool {
    READING.load(Ordering::Acquire)
}

/// Whether all that prompts are looked up by is there.
pub(super) fn is_ready() -> bool {
    FOLDER_READ.load(Ordering::Acquire) && DIGESTS.load(Ordering::Acquire) == 0
}

/// Whether it is not there yet, and is still to come.
pub(super) fn is_awaited() -> bool {
    !is_ready() && !FOLDER_LOST.load(Ordering::Acquire)
}

/// What is wrong now, by its kind.
static PROBLEMS: Mutex<[Option<Problem>; 5]> = Mutex::new([const { None }; 5]);

struct Problem {
    text: String,
    /// When it was last seen.
    at: Instant,
}
/// Why contexts have no store, or prompts none of it, and how often.
static REFUSED: Mutex<Vec<(String, u64)>> = Mutex::new(Vec::new());
/// The fingerprints that contexts have, the one that came last at the end.
static USED: Mutex<Vec<Fingerprint>> = Mutex::new(Vec::new());
/// So many of them are remembered.
const MOST_USED: usize = 16;
/// What was said of the remote last.
static REMOTE: Mutex<Option<StoreRemote>> = Mutex::new(None);

pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

pub(super) fn add_time(counter: &AtomicU64, time: Duration) {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    counter.fetch_add(nanos, Ordering::Relaxed);
}

/// The folder of the store, once it is asked for.
static FOLDER: OnceLock<String> = OnceLock::new();

pub(super) fn set_folder(folder: &Path) {
    let _ = FOLDER.set(folder.display().to_string());
}

/// Whether anything is kept because a client has asked for it.
pub(crate) fn is_any_kept() -> bool {
    FIGURES.kept_prompts.load(Ordering::Relaxed) > 0
}

/// All figures, and how far files have been read; `None`: no store is asked for.
pub(super) fn all(reading: Option<FilesRead>) -> Option<PrefixStore> {
    let folder = FOLDER.get()?.clone();
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let seconds = |counter: &AtomicU64| get(counter) as f64 / 1e9;
    let (refused, refused_times) = lock(&REFUSED).iter().cloned().unzip();
    Some(PrefixStore {
        folder,
        ready: is_ready(),
        lost: FOLDER_LOST.load(Ordering::Acquire),
        reading,
        bytes: get(&FIGURES.bytes),
        limit_bytes: get(&FIGURES.limit),
        chunks: get(&FIGURES.chunks),
        kept: KeptPrompts {
            prompts: get(&FIGURES.kept_prompts),
            tokens: get(&FIGURES.kept_tokens),
            bytes: get(&FIGURES.kept_bytes),
            limit_bytes: get(&FIGURES.limit) / KEPT_SHARE,
            until: match get(&FIGURES.kept_until) {
                0 => None,
                nanoseconds => Some(Timestamp::from_unix_ms(nanoseconds / 1_000_000)),
            },
        },
        counted: usage::counted(),
        loads: get(&FIGURES.loads),
        direct_loads: get(&FIGURES.direct_loads),
        loaded_tokens: get(&FIGURES.loaded_tokens),
        load_seconds: seconds(&FIGURES.load_nanos),
        saves: get(&FIGURES.saves),
        partial_saves: get(&FIGURES.partial_saves),
        saved_tokens: get(&FIGURES.saved_tokens),
        save_seconds: seconds(&FIGURES.save_nanos),
        failed_loads: get(&FIGURES.failed_loads),
        lost_chunks: get(&FIGURES.lost_chunks),
        fetched_chunks: get(&FIGURES.fetched_chunks),
        fetch_seconds: seconds(&FIGURES.fetch_nanos),
        encoded: get(&FIGURES.encoded),
        encode_seconds: seconds(&FIGURES.encode_nanos),
        encodings_loaded: get(&FIGURES.encodings_loaded),
        encodings_load_seconds: seconds(&FIGURES.encodings_load_nanos),
        encodings_bytes: get(&FIGURES.encoding_bytes),
        refused,
        refused_times,
        fingerprints: lock(&USED).iter().map(ToString::to_string).collect(),
        problem: first_problem(),
        remote: lock(&REMOTE).clone(),
    })
}

/// What the store has done, in a sentence. `None`: nothing.
pub(crate) fn sum() -> Option<String> {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (loaded, saved) = (get(&FIGURES.loaded_tokens), get(&FIGURES.saved_tokens));
    (loaded > 0 || saved > 0).then(|| {
        format!("Prefix store, in tokens: {loaded} loaded instead of evaluated, {saved} stored")
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A context has this fingerprint, which is made once for each context and its adapters.
pub(super) fn used(fingerprint: Fingerprint) {
    let mut used = lock(&USED);
    used.retain(|known| *known != fingerprint);
    if used.len() == MOST_USED {
        used.remove(0);
    }
    used.push(fingerprint);
}

/// What may be wrong. The first of these that is wrong is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// There is no store.
    Start,
    /// The folder cannot be looked at. Over with the next look that succeeds.
    Looking,
    /// Nothing can be written. Over when something can be.
    Writing,
    /// A chunk could not be read, and has left. It is reported for [`REPORTED_FOR`].
    Reading,
    /// The budget had to be guessed.
    Budget,
}

/// How long damage is reported after it is gone.
pub(super) const REPORTED_FOR: Duration = Duration::from_secs(600);

/// Something is wrong. True if that is new.
pub(super) fn set_problem(kind: Kind, problem: &str) -> bool {
    let known = &mut lock(&PROBLEMS)[kind as usize];
    let is_new = known.as_ref().is_none_or(|known| known.text != problem);
    *known = Some(Problem {
        text: problem.to_owned(),
        at: Instant::now(),
    });
    is_new
}

/// It is wrong no longer, or was last seen so long ago. True if it was.
pub(super) fn clear_problem(kind: Kind, age: Duration) -> bool {
    let known = &mut lock(&PROBLEMS)[kind as usize];
    known.take_if(|known| known.at.elapsed() >= age).is_some()
}

fn first_problem() -> Option<String> {
    let problems = lock(&PROBLEMS);
    Some(problems.iter().flatten().next()?.text.clone())
}

/// What is said of the remote now.
pub(super) fn set_remote(remote: Option<StoreRemote>) {
    *lock(&REMOTE) = remote;
}

/// A context has no store, or something of a prompt is neither loaded nor kept. True if the reason is new.
pub(super) fn note_refusal(why: &str) -> bool {
    let mut all = lock(&REFUSED);
    if let Some((_, times)) = all.iter_mut().find(|(known, _)| known == why) {
        *times += 1;
        return false;
    }
    all.push((why.to_owned(), 1));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_new_once_and_counted_each_time() {
        assert!(note_refusal("a reason of this test"));
        assert!(!note_refusal("a reason of this test"));
        let all = lock(&REFUSED);
        let known = all.iter().find(|(why, _)| why == "a reason of this test");
        assert_eq!(known.map(|(_, times)| *times), Some(2));
    }

    #[test]
    fn the_worst_that_is_wrong_now_is_told_and_what_is_over_is_not() {
        assert!(set_problem(Kind::Reading, "damage"));
        assert!(!set_problem(Kind::Reading, "damage"));
        assert!(set_problem(Kind::Writing, "full"));
        assert_eq!(first_problem().as_deref(), Some("full"));
        assert!(set_problem(Kind::Writing, "removed"));
        assert_eq!(first_problem().as_deref(), Some("removed"));
        assert!(clear_problem(Kind::Writing, Duration::ZERO));
        assert!(!clear_problem(Kind::Writing, Duration::ZERO));
        assert_eq!(first_problem().as_deref(), Some("damage"));
        assert!(!clear_problem(Kind::Reading, REPORTED_FOR));
        assert!(clear_problem(Kind::Reading, Duration::ZERO));
        assert_eq!(first_problem(), None);
    }
}
