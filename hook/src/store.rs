//! The prefix store (`CONTEXTPILOT_STORE`): a prompt's beginning that some earlier prompt had is loaded,
//! and not evaluated again.
//!
//! It works below the server. The server asks the engine to evaluate a batch. If the store has the KV of
//! a sequence's tokens so far and of the next ones, they are put into the context, and left out of the
//! batch. The server does not know. Positions, states, outputs and answers are as if each token had been
//! evaluated.
//!
//! ```text
//!  server ── batch ──► evaluate ── search ──► shelf (tree, files)          crates/kv-store, crates/kv-files
//!                         │ load: the sequence's state, composed of chunks
//!                         ▼
//!                       engine ── state of a sequence that is about to lose tokens ──► shelf
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`evaluate`] | what comes before and after an evaluation: searching, loading, leaving out |
//! | [`change`] | what comes before and after any other change of a sequence: saving what would be lost |
//! | [`exact`] | contexts that cannot go back to any position |
//! | [`state`] | states that the server itself saves and restores |
//! | [`ahead`] | tokens that the engine holds and the server has not asked for yet |
//! | [`outputs`] | indexes of outputs |
//! | [`purpose`] | contexts and batches from which nothing may be left out |
//! | [`params`] | what a program that is no llama-server creates its contexts and models with |
//! | [`context`] | what is known of each context: its sequences, and what its KV depends on |
//! | [`shelf`] | the store itself: its tree, its folder, its writer |
//! | [`neighbours`] | other processes that use the same folder |
//! | [`content`] | digests of models and adapters |
//! | [`rates`] | how long evaluating and copying take here |
//! | [`engine`] | the calls of the engine |
//! | [`told`] | what routers are told of the store |
//! | [`figures`] | counters |
//!
//! **Ahead.** All of a stored prompt is loaded at once, at the first batch, although the server asks for it
//! batch by batch: loading replaces the whole sequence, so loading for each batch would be quadratic. What
//! the engine then holds beyond the server's view is *ahead*. Evaluations that go on with the same tokens
//! leave them out; at a token that differs they are cut off. Every other call that could see them cuts
//! them off first.
//!
//! **Whose thread.** Everything here runs on the thread that called the engine, but for the files, which
//! the shelf's writer has. One lock protects the state. Threads of ours hold it for some ten microseconds at a
//! time ([`told`], [`neighbours`]). A server uses one context with one thread; in a program that uses several contexts at
//! the same time, one waits while a prompt of another is loaded or copied out.
//!
//! **If anything is not known** (a batch, a layout, a call, a failed load), tokens are evaluated as ever.
//! After a failed load the hook itself evaluates what the engine lost.

pub(crate) mod ahead;
pub(crate) mod change;
pub(crate) mod content;
mod context;
mod engine;
pub(crate) mod evaluate;
pub(crate) mod exact;
pub(crate) mod figures;
mod neighbours;
pub(crate) mod outputs;
pub(crate) mod params;
pub(crate) mod purpose;
mod rates;
mod shelf;
pub(crate) mod state;
mod told;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use contextpilot_kv_publisher::Stored;
use contextpilot_settings::StoreAt;

use self::context::ContextStore;
use self::shelf::Shelf;
use crate::base::abi::Pointer;
use crate::base::guard::{self, EngineCall};
use crate::base::mode;

/// A store is asked for, and nothing was found that makes it impossible.
static ON: AtomicBool = AtomicBool::new(false);

/// Everything that is known. `None`: the library was not asked for a store.
static STATE: Mutex<State> = Mutex::new(State {
    shelf: None,
    contexts: Vec::new(),
});

struct State {
    /// The store itself, once its folder has been read.
    shelf: Option<Shelf>,
    contexts: Vec<ContextStore>,
}

/// Called by the constructor: a store is asked for.
pub(crate) fn engage() {
    ON.store(true, Ordering::SeqCst);
}

/// Whether a store is asked for.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Opens the folder and starts the threads. Called once, when the server begins to load its model. The
/// folder is read on a thread of its own, and until that is done nothing is found. `routers`: who is told what there is.
///
/// # Errors
/// Why there is no store, as the rest of a message.
pub(crate) fn start(at: &StoreAt, routers: Option<Stored>) -> Result<(), String> {
    figures::set_folder(&at.folder);
    exact::want(at.bounded);
    content::begin_engine();
    // On a thread of ours, which needs no guard.
    let opened = Shelf::open(at, |shelf| {
        on_state(|state| state.shelf = Some(shelf));
        figures::FOLDER_READ.store(true, Ordering::Release);
    });
    let opened = opened.and_then(|()| routers.map_or(Ok(()), told::start));
    if let Err(why) = &opened {
        ON.store(false, Ordering::SeqCst);
        figures::set_problem(why);
    }
    opened
}

/// The process ends: waits until what is queued is written, at most until then.
pub(crate) fn finish(until: Instant) {
    let left = until.saturating_duration_since(Instant::now());
    with_state(|state| {
        if let Some(shelf) = &mut state.shelf {
            shelf.flush(left);
        }
    });
}

/// How long the end of the process may wait for the store's files.
pub(crate) const FLUSH: Duration = Duration::from_secs(2);

/// Whether the store acts on this call. If the library has stopped, this puts the engine into the state
/// that the server believes in, and from then on there is no store.
fn acts(call: &EngineCall) -> bool {
    if !is_on() || !call.is_hosts() {
        return false;
    }
    if mode::is_active() {
        return true;
    }
    ON.store(false, Ordering::SeqCst);
    ahead::remove_all();
    false
}

/// Runs `work` on the state, on a thread of ours, which needs no guard.
fn on_state<R>(work: impl FnOnce(&mut State) -> R) -> R {
    work(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// How many tokens at the beginning of a prompt would be loaded if the server had nothing else of it, and the request
/// named no adapter. On a thread of ours.
pub(crate) fn length_of(tokens: &[i32]) -> Option<usize> {
    if !is_on() {
        return None;
    }
    let mut state = state_soon()?;
    let state = &mut *state;
    let fingerprint = state.contexts.first_mut()?.without_adapters(&[])?;
    // No prompt has others; a chunk may.
    let of_vocabulary = tokens.iter().take_while(|token| **token >= 0).count();
    let tokens = &tokens[..of_vocabulary];
    Some(state.shelf.as_mut()?.length_of(&fingerprint, tokens))
}

/// The state, on the thread that also reports evictions: a prompt that is being loaded may have it for a second, and
/// evictions do not wait for that. `None`: somebody had it for ten milliseconds.
fn state_soon() -> Option<MutexGuard<'static, State>> {
    for _ in 0..20 {
        match STATE.try_lock() {
            Ok(state) => return Some(state),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(500)),
        }
    }
    None
}

/// Runs `work` on the state. `None` if it did not run to its end.
fn with_state<R>(work: impl FnOnce(&mut State) -> R) -> Option<R> {
    guard::compute(|| work(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Runs `work` on the state of a context, which is created if this is the first that is heard of it.
fn with_context<R>(
    context: Pointer,
    work: impl FnOnce(&mut Option<Shelf>, &mut ContextStore) -> R,
) -> Option<R> {
    with_state(|state| {
        let address = context.addr();
        let known = state.contexts.iter().position(|one| one.is(address));
        let at = known.unwrap_or_else(|| {
            state.contexts.push(ContextStore::new(address));
            state.contexts.len() - 1
        });
        work(&mut state.shelf, &mut state.contexts[at])
    })
}
