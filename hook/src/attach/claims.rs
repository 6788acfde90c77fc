//! What is claimed on the strength of functions that were found and patched, and is withdrawn when
//! calls that ought to have come by now did not: compilers put copies of functions into their
//! callers, linkers bind within a file, allocators free memory of their own accord.
//!
//! A claim that is withdrawn stays so. It is never the other way round: what is seen late, or not
//! at all, makes us claim less.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::evidence;
use super::table::{EVALUATION, Generations, LAUNCH, MEMORY, NUMBERS};
use crate::{prompts, saved};

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

static WITHDRAWN: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

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

pub(crate) fn is_withdrawn(claim: Claim) -> bool {
    WITHDRAWN[claim as usize].load(Ordering::Relaxed)
}

/// How many claims have been withdrawn.
pub(crate) fn count_withdrawn() -> u64 {
    let withdrawn = WITHDRAWN.iter().filter(|one| one.load(Ordering::Relaxed));
    withdrawn.count() as u64
}

/// The next claim that does not hold any more, each once.
pub(crate) fn review() -> Option<Withdrawn> {
    let withdrawn = host_cache().or_else(serving)?;
    let first = !WITHDRAWN[withdrawn.claim as usize].swap(true, Ordering::Relaxed);
    first.then_some(withdrawn)
}

fn host_cache() -> Option<Withdrawn> {
    if is_withdrawn(Claim::HostCache) {
        return None;
    }
    let noticed = if saved::was_reused() {
        "the memory of one was used again"
    } else {
        let limit = *HOST_LIMIT.get()?;
        let passed = saved::bytes() > limit.saturating_mul(LIMITS);
        if !passed || saved::was_any_freed() {
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
    if is_withdrawn(Claim::KvCache) || is_withdrawn(Claim::Requests) {
        return None;
    }
    let answered = ANSWERED.load(Ordering::Relaxed) >= ANSWERS;
    let launched = is_any_called(LAUNCH);
    let (claim, function) = if answered && !is_any_called(EVALUATION) {
        (Claim::KvCache, "llama_decode")
    } else if answered && launched && !is_any_called(MEMORY) {
        (Claim::KvCache, "llama_memory_seq_rm")
    } else if launched && !is_any_called(NUMBERS) && !prompts::are_engaged() {
        // What is launched has a number.
        (Claim::Requests, "server_queue::get_new_id")
    } else if answered && !launched && !prompts::are_engaged() {
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
