//! What is claimed on the strength of functions that were found and patched, and is withdrawn when
//! calls that ought to have come by now did not: compilers put copies of functions into their
//! callers, linkers bind within a file, allocators free memory of their own accord.
//!
//! A claim that is withdrawn stays so. It is never the other way round: what is seen late, or not
//! at all, makes us claim less.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::evidence;
use super::table::{EVALUATION, Generations, LAUNCH, MEMORY, NUMBERS};

/// Something that follows from functions being called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// What stands in the slots is known.
    KvCache,
    /// So is what stands in the host prompt cache, and when it leaves it.
    HostCache,
    /// Requests can be told apart, and tied to slots.
    Requests,
}

/// A claim that does not hold, and why: what is told to people.
pub(crate) struct Withdrawn {
    pub(crate) claim: Claim,
    why: Why,
}

#[derive(Clone, Copy)]
enum Why {
    /// Releases of the host prompt cache's entries are not seen: how that was noticed.
    Releases(&'static str),
    /// A function that every answer takes was not called.
    NotCalled(&'static str),
}

impl fmt::Display for Withdrawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Why::Releases(noticed) => write!(
                f,
                "Entries leave this llama-server's host prompt cache unseen ({noticed}), so prompts \
                 in it count as gone from now on; use a build with shared libraries, or --cache-ram 0"
            ),
            Why::NotCalled(function) => write!(
                f,
                "This llama-server has copies of {function} that cannot be hooked (link-time \
                 optimisation does that), so {}; use a build without it",
                match self.claim {
                    Claim::Requests => "requests are not recognised and count as gone",
                    _ => "nothing counts as cached from now on",
                }
            ),
        }
    }
}

/// By claim.
static STATES: [AtomicU8; 3] = [const { AtomicU8::new(NOT_MADE) }; 3];
const NOT_MADE: u8 = 0;
const MADE: u8 = 1;
const WITHDRAWN: u8 = 2;

/// Requests that were answered with 200 since the first came.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// So many such answers must have brought about what every answer needs. One may be to an empty
/// prompt, which some servers answer without the engine.
const ANSWERS: u64 = 3;

/// How many times the host prompt cache's limit may be saved to it without anything being freed.
/// The cache drops its oldest entries as soon as the limit is passed once.
const LIMITS: u64 = 3;

/// Bytes that the host prompt cache may take; not set where there is no limit or it is unknown.
static HOST_LIMIT: OnceLock<u64> = OnceLock::new();

/// The server was told that its host prompt cache may take so many bytes.
pub(crate) fn expect_host_limit(bytes: u64) {
    let _ = HOST_LIMIT.set(bytes);
}

/// A request for generation was answered with 200.
pub(crate) fn answered() {
    ANSWERED.fetch_add(1, Ordering::Relaxed);
}

/// The constructor's verdict: all that it takes was found and patched.
pub(super) fn make(claim: Claim) {
    STATES[claim as usize].store(MADE, Ordering::Relaxed);
}

/// Whether the claim was made, and not withdrawn since.
pub(crate) fn holds(claim: Claim) -> bool {
    STATES[claim as usize].load(Ordering::Relaxed) == MADE
}

/// How many claims have been withdrawn.
pub(crate) fn count_withdrawn() -> u64 {
    let withdrawn = |state: &&AtomicU8| state.load(Ordering::Relaxed) == WITHDRAWN;
    STATES.iter().filter(withdrawn).count() as u64
}

/// What was seen of the host prompt cache's buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// One came back as another's memory, without having been released.
    pub(crate) reused: bool,
    /// Bytes that were saved, all together.
    pub(crate) bytes: u64,
    /// One was released.
    pub(crate) any_freed: bool,
}

/// The next claim that does not hold any more, each once.
pub(crate) fn review(seen: Seen) -> Option<Withdrawn> {
    let withdrawn = host_cache(seen).or_else(serving)?;
    STATES[withdrawn.claim as usize].store(WITHDRAWN, Ordering::Relaxed);
    Some(withdrawn)
}

fn host_cache(seen: Seen) -> Option<Withdrawn> {
    if !holds(Claim::HostCache) {
        return None;
    }
    let noticed = if seen.reused {
        "the memory of one was used again"
    } else {
        let limit = *HOST_LIMIT.get()?;
        let passed = seen.bytes > limit.saturating_mul(LIMITS);
        if !passed || seen.any_freed {
            return None;
        }
        "its limit was passed several times"
    };
    Some(Withdrawn {
        claim: Claim::HostCache,
        why: Why::Releases(noticed),
    })
}

fn serving() -> Option<Withdrawn> {
    let answered = ANSWERED.load(Ordering::Relaxed) >= ANSWERS;
    let launched = is_any_called(LAUNCH);
    let (kv_cache, requests) = (holds(Claim::KvCache), holds(Claim::Requests));
    let (claim, function) = if kv_cache && answered && !is_any_called(EVALUATION) {
        (Claim::KvCache, "llama_decode")
    } else if kv_cache && answered && launched && !is_any_called(MEMORY) {
        (Claim::KvCache, "llama_memory_seq_rm")
    } else if requests && launched && !is_any_called(NUMBERS) {
        // What is launched has a number.
        (Claim::Requests, "server_queue::get_new_id")
    } else if requests && answered && !launched {
        (Claim::Requests, "server_context::launch_slot_with_task")
    } else {
        return None;
    };
    Some(Withdrawn {
        claim,
        why: Why::NotCalled(function),
    })
}

fn is_any_called(generations: Generations) -> bool {
    let mut names = generations.iter();
    names.any(|(_, name)| evidence::is_called(name))
}
