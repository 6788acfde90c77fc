//! Claims: what follows if certain functions were found and patched. A claim is withdrawn if calls that
//! should have been seen by now were not. Compilers inline functions into their
//! callers, linkers bind calls within a file, and allocators free memory without a call that we see.
//!
//! A withdrawn claim is not made again. Missing evidence only ever makes us claim less.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use contextpilot_control as control;

use super::engines::{self, ENGINES};
use super::kind::is_embedded;
use super::original::ROWS;
use super::row::Row;
use super::table::{EVALUATION, Generations, LAUNCH, MEMORY, NUMBERS};

/// Something that holds only if certain functions are seen to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The content of the slots is known.
    KvCache,
    /// The content of the host prompt cache is known, and when an entry leaves it.
    HostCache,
    /// Requests can be recognised, and tied to slots.
    Requests,
}

/// A claim that does not hold, and why, for the message.
pub(crate) struct Withdrawn {
    pub(crate) claim: Claim,
    why: Why,
}

#[derive(Clone, Copy)]
enum Why {
    /// Releases of host entries are not seen. The text says how that was noticed.
    Releases(&'static str),
    /// A function that every answer needs was not called.
    NotCalled(&'static str),
    /// Several servers run in one process.
    Several,
    /// In a program that is no llama-server, the results of an evaluation were asked for, and none was seen.
    NotEvaluated,
}

/// Why a program that has an engine, and reads what that has evaluated, is not followed.
const COPIES: &str = "it reads what was evaluated, and no evaluation was seen: its llama.cpp has copies of llama_decode \
                      that cannot be hooked (link-time optimisation does that)";

/// Said of a program that had a context, if none of its evaluations was seen until its end.
const NOT_EVALUATED: &str = "No evaluation of this program was seen, so nothing was stored or loaded: it made none, or \
                             its llama.cpp has copies of llama_decode that cannot be hooked (link-time optimisation \
                             does that)";

impl fmt::Display for Withdrawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Why::NotEvaluated => write!(
                f,
                "This program is not followed: {COPIES}; nothing is stored or loaded"
            ),
            Why::Several => f.write_str(
                "Several llama-servers run in this process at once, and their requests cannot be told apart: from now on \
                 requests are not recognised and count as gone; give each server a process of its own",
            ),
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

/// Why nothing of the engine is followed any more.
static NOT_FOLLOWED: OnceLock<String> = OnceLock::new();

/// The reason, if the content of slots was claimed to be known and is not.
pub(crate) fn not_followed() -> Option<&'static str> {
    NOT_FOLLOWED.get().map(String::as_str)
}

/// For each engine, whether an evaluation was seen, and whether that was said.
static EVALUATED: [AtomicU8; ENGINES] = [const { AtomicU8::new(UNSEEN) }; ENGINES];
const UNSEEN: u8 = 0;
const SEEN: u8 = 1;
const SAID: u8 = 2;

/// The engine that the thread is in evaluates. `true` the first time.
#[inline]
pub(crate) fn note_evaluation() -> bool {
    let state = &EVALUATED[engines::current() % ENGINES];
    state.load(Ordering::Relaxed) == UNSEEN && state.swap(SEEN, Ordering::Relaxed) == UNSEEN
}

/// An engine in which an evaluation was seen. Each is returned once.
pub(crate) fn newly_evaluated() -> Option<usize> {
    EVALUATED.iter().position(|state| {
        let said = state.compare_exchange(SEEN, SAID, Ordering::Relaxed, Ordering::Relaxed);
        said.is_ok()
    })
}

/// For each engine, whether copies of functions evaluate in it, which only the functions behind them see.
static COPIED: [AtomicBool; ENGINES] = [const { AtomicBool::new(false) }; ENGINES];

/// The engine that the thread is in has evaluated through a copy.
#[inline]
pub(crate) fn note_copies() {
    let copied = &COPIED[engines::current() % ENGINES];
    if !copied.load(Ordering::Relaxed) {
        copied.store(true, Ordering::Relaxed);
    }
}

/// Whether the engine that the thread is in evaluates through copies.
pub(crate) fn has_copies() -> bool {
    COPIED[engines::current() % ENGINES].load(Ordering::Relaxed)
}

/// What was seen of the engine at work.
pub(crate) fn seen() -> control::Seen {
    let any = |wanted: fn(&Row) -> bool| {
        let mut rows = ROWS.iter();
        rows.any(|row| wanted(row) && row.called.ever())
    };
    control::Seen {
        loaded: any(|row| {
            row.name.starts_with("llama_model_load") || row.name.starts_with("llama_init")
        }),
        evaluated: is_any_evaluated(),
        changed: any(|row| {
            MEMORY.iter().any(|(name, _)| *name == row.generation) && row.name != GET_MEMORY
        }),
    }
}

/// A function of the same generation as the functions that change the KV cache.
const GET_MEMORY: &str = "llama_get_memory";

/// Indexed by claim.
static STATES: [AtomicU8; 3] = [const { AtomicU8::new(NOT_MADE) }; 3];
const NOT_MADE: u8 = 0;
const MADE: u8 = 1;
const WITHDRAWN: u8 = 2;

/// Requests that were answered with 200.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// After so many answers, every function that an answer needs must have been called. It is more than
/// one because some servers answer an empty prompt without the engine.
const ANSWERS: u64 = 3;

/// How many times the host prompt cache's limit may be saved to it without anything being freed.
/// The cache drops its oldest entries as soon as the limit is passed once.
const LIMITS: u64 = 3;

/// The limit of the host prompt cache, in bytes. Not set if there is none, or it is unknown.
static HOST_LIMIT: OnceLock<u64> = OnceLock::new();

/// Sets the limit of the host prompt cache, in bytes.
pub(crate) fn expect_host_limit(bytes: u64) {
    let _ = HOST_LIMIT.set(bytes);
}

/// A request for generation was answered with 200.
pub(crate) fn answered() {
    ANSWERED.fetch_add(1, Ordering::Relaxed);
}

/// Called by the constructor: all functions that the claim needs were found and patched.
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

/// What was seen of the buffers of the host prompt cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// A buffer has the address of another one whose release was not seen.
    pub(crate) reused: bool,
    /// Bytes that were saved, in all.
    pub(crate) bytes: u64,
    /// The release of a buffer was seen.
    pub(crate) any_freed: bool,
}

/// The next claim that no longer holds. Each is returned once.
pub(crate) fn review(seen: Seen) -> Option<Withdrawn> {
    let withdrawn = several()
        .or_else(|| host_cache(seen))
        .or_else(serving)
        .or_else(evaluating)?;
    withdraw(&withdrawn).then_some(withdrawn)
}

/// A program has several servers at once.
static SEVERAL: AtomicBool = AtomicBool::new(false);

/// Another server takes requests while the first one lives.
pub(crate) fn note_several() {
    SEVERAL.store(true, Ordering::Relaxed);
}

/// Whether there were several at once. Then no request is followed any more.
pub(crate) fn are_several() -> bool {
    SEVERAL.load(Ordering::Relaxed)
}

fn several() -> Option<Withdrawn> {
    (are_several() && holds(Claim::Requests)).then_some(Withdrawn {
        claim: Claim::Requests,
        why: Why::Several,
    })
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
        // Every launched task has a number.
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

/// What a program asks for after an evaluation, where it is hooked.
const RESULTS: &[&str] = &[
    "llama_get_logits_ith",
    "llama_get_sampled_token_ith",
    "llama_get_sampled_candidates_ith",
    "llama_sampler_sample",
];

fn evaluating() -> Option<Withdrawn> {
    let asked = |row: &Row| RESULTS.contains(&row.name) && row.called.ever();
    let is_seen = !is_embedded() || is_any_evaluated() || !ROWS.iter().any(asked);
    (!is_seen && holds(Claim::KvCache)).then_some(Withdrawn {
        claim: Claim::KvCache,
        why: Why::NotEvaluated,
    })
}

/// There was a context that evaluates tokens, and does not only encode texts.
static HAD_CONTEXT: AtomicBool = AtomicBool::new(false);

/// A context that evaluates tokens exists.
pub(crate) fn note_context() {
    HAD_CONTEXT.store(true, Ordering::Relaxed);
}

/// Whether there was such a context.
pub(crate) fn had_context() -> bool {
    HAD_CONTEXT.load(Ordering::Relaxed)
}

/// The process ends: what was not said yet of a program that had contexts.
pub(crate) fn never_evaluated() -> Option<&'static str> {
    let is_open = had_context() && is_embedded() && !is_any_evaluated();
    (is_open && holds(Claim::KvCache)).then_some(NOT_EVALUATED)
}

/// Withdraws a claim. True if it was made, and not withdrawn until now.
fn withdraw(withdrawn: &Withdrawn) -> bool {
    let state = &STATES[withdrawn.claim as usize];
    let is_new = holds(withdrawn.claim) && state.swap(WITHDRAWN, Ordering::Relaxed) == MADE;
    if is_new && withdrawn.claim == Claim::KvCache {
        let _ = NOT_FOLLOWED.set(match withdrawn.why {
            Why::NotCalled(function) => format!(
                "it has copies of {function} that cannot be hooked (link-time optimisation does that)"
            ),
            _ => COPIES.to_owned(),
        });
    }
    is_new
}

fn is_any_evaluated() -> bool {
    let mut all = EVALUATED.iter();
    all.any(|state| state.load(Ordering::Relaxed) != UNSEEN)
}

/// Whether one of these functions was called since the first request.
fn is_any_called(generations: Generations) -> bool {
    let is_called = |name: &str| {
        let mut rows = ROWS.iter();
        rows.any(|row| row.name == name && row.called.while_serving())
    };
    generations.iter().any(|(_, name)| is_called(name))
}
