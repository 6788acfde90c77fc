//! The prefix store (`CONTEXTPILOT_STORE`): a prompt's beginning that some earlier prompt had is loaded,
//! and not evaluated again.
//!
//! It works below the server. The server asks the engine to evaluate a batch. If the store has the KV of
//! a sequence's tokens so far and of the next ones, they are put into the context, and left out of the
//! batch. The server does not know. Positions, states, outputs and answers are as if each token had been
//! evaluated.
//!
//! ```text
//!  server ── batch ──► evaluate ── search ──► index (tree, files)          crates/store
//!                         │ load: the sequence's state, composed of chunks
//!                         ▼
//!                       engine ── state of a sequence that is about to lose tokens ──► index
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`evaluate`] | what comes before and after an evaluation: searching, loading, leaving out |
//! | [`change`] | what comes after any other change of a sequence |
//! | [`save`] | what is copied out, and when: what would be lost |
//! | [`exact`] | contexts that cannot go back to any position |
//! | [`state`] | states that the server itself saves and restores |
//! | [`aside`] | what waits until it is known under which name it is stored |
//! | [`ahead`] | tokens that the engine holds and the server has not asked for yet |
//! | [`outputs`] | indexes of outputs |
//! | [`hidden`], [`hidden_rows`] | hidden states of tokens, for drafts (MTP, EAGLE-3) |
//! | [`purpose`] | contexts and batches from which nothing may be left out |
//! | [`media`] | images and sounds |
//! | [`encodings`] | what the encoder has made of them |
//! | [`metadata`] | what KV depends on by the model's metadata: the context's length, tokens behind |
//! | [`params`] | what a program that is no llama-server creates its contexts and models with |
//! | [`context`] | what is known of each context: its sequences, and what its KV depends on |
//! | [`conditions`] | the adapters that tokens were evaluated under |
//! | [`records`] | where that is kept, and which thread may touch it |
//! | [`repair`] | what puts a context right after an error |
//! | [`host`] | all of this as `crates/store/kv-engine` sees it, which decides what is loaded, cut off and evaluated |
//! | [`index`] | the store itself: its tree, its folder, its writer |
//! | [`neighbours`] | other processes that use the same folder |
//! | [`elsewhere`] | what the folder does not have, and the remote may |
//! | [`content`] | digests of models, adapters and engines |
//! | [`surroundings`] | the engine's version, and flags, on which KV may depend |
//! | [`config`] | llama.cpp's own configuration, whose lines are flags |
//! | [`flow`] | rows that go from the files into the engine without a copy of the state in between |
//! | [`only_new`] | what is new of a sequence is copied out of the engine, and no more |
//! | [`rates`] | how long evaluating and copying take here |
//! | [`engine`] | a context of the engine, and the calls that are made of it |
//! | [`own_batch`] | batches that the store makes |
//! | [`announced`] | what is announced to routers of the store |
//! | [`figures`] | counters |
//! | [`busy`], [`clock`] | whether engines are at work; the time that all processes have |
//!
//! **Ahead.** All of a stored prompt is loaded at once, at the first batch, although the server asks for it
//! batch by batch: loading replaces the whole sequence, so loading for each batch would be quadratic. What
//! the engine then holds beyond the server's view is *ahead*. Evaluations that go on with the same tokens
//! leave them out; at a token that differs they are cut off. Every other call that could see them cuts
//! them off first.
//!
//! **Whose thread.** Everything here runs on the thread that called the engine, but for what the index's writer does with
//! files; and while a large state is loaded, others read ahead for that thread. What is known of a context has a lock of its own,
//! which no other thread takes ([`records`]).
//! The index has one that threads of ours hold for some ten microseconds at a time ([`announced`], [`neighbours`]), or for
//! longer if they lose the processor, which they get last. So a prompt waits for them a few milliseconds at most, a
//! generated token not at all ([`IndexHeld`]); a call that does not get the index goes on as before its folder was read. A
//! server uses one context with one thread; in a program that uses several contexts at the same time, a prompt waits
//! while a state of another context is put together or taken apart.
//!
//! **After an error of ours** on any thread, each context is put right by its own next call: [`repair`].
//!
//! **If anything is not known** (a batch, a layout, a call, a failed load), tokens are evaluated as ever.
//! After a failed load the hook itself evaluates what the engine lost.

pub(crate) mod ahead;
mod announced;
mod aside;
mod busy;
pub(crate) mod change;
mod conditions;
mod config;
pub(crate) mod content;
mod context;
mod elsewhere;
pub(crate) mod encodings;
pub(crate) mod engine;
pub(crate) mod evaluate;
pub(crate) mod exact;
pub(crate) mod figures;
pub(crate) mod flow;
pub(crate) mod hidden;
mod hidden_rows;
mod host;
mod index;
mod keep;
pub(crate) mod media;
mod metadata;
mod neighbours;
pub(crate) mod only_new;
pub(crate) mod outputs;
mod own_batch;
pub(crate) mod params;
pub(crate) mod purpose;
mod rates;
mod records;
mod repair;
pub(crate) mod save;
pub(crate) mod state;
mod surroundings;
mod waiting;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contextpilot_control::PrefixStore;
use contextpilot_kv_publisher::Stored;
use contextpilot_settings::StoreAt;

use self::context::ContextStore;
pub(crate) use self::engine::Context;
use self::index::StoreIndex;
use self::records::{Row, try_lock};
use crate::base::guard;
use crate::base::{faults, mode};
use crate::capture::uncached;

/// A store is asked for, and nothing was found that makes it impossible.
static ON: AtomicBool = AtomicBool::new(false);

/// The store itself, once its folder has been read.
static INDEX: Mutex<Option<StoreIndex>> = Mutex::new(None);

/// The host's threads use the index in turn, and threads of ours do not take part: they have a lower priority, and
/// a thread that waited for one of them would have the same.
static TURN: Mutex<()> = Mutex::new(());

/// Called by the constructor: a store is asked for.
pub(crate) fn engage() {
    ON.store(true, Ordering::SeqCst);
    uncached::engage();
}

/// What `/stats` says of the store; `None`: none is asked for.
pub(crate) fn figures() -> Option<PrefixStore> {
    figures::all(content::being_read())
}

/// Whether a store is asked for.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Opens the folder and starts the threads. Called once, when the server begins to load its model. The
/// folder is read on a thread of its own, and until that is done nothing is found. `routers`: what there is is announced to them.
///
/// # Errors
/// Why there is no store, as the rest of a message.
pub(crate) fn start(at: &StoreAt, routers: Option<Stored>, strict: bool) -> Result<(), String> {
    figures::set_folder(&at.folder);
    context::want_bounded(at.bounded);
    surroundings::begin();
    // On a thread of ours, which needs no guard.
    let ready = |index: StoreIndex| {
        on_index(|ours| *ours = Some(index));
        figures::FOLDER_READ.store(true, Ordering::Release);
    };
    let opened = StoreIndex::open(at, strict, ready, neighbours::follow);
    let opened = opened.and_then(|()| routers.map_or(Ok(()), announced::start));
    if let Err(why) = &opened {
        ON.store(false, Ordering::SeqCst);
        figures::set_problem(figures::Kind::Start, why);
    }
    opened
}

/// The process ends: waits until what is queued is written, at most until then.
pub(crate) fn finish(until: Instant) {
    guard::compute(|| {
        let mut left = until.saturating_duration_since(Instant::now());
        let mut index = lock_within(&INDEX, &mut left);
        if let Some(index) = index.as_mut().and_then(|index| index.as_mut()) {
            index.flush(left);
            if Instant::now() < until {
                index.write_index();
            }
        }
    });
}

/// How long the end of the process may wait for the store's files.
pub(crate) const FLUSH: Duration = Duration::from_secs(2);

/// How long a call waits in all for a thread of ours that has the index, and on a busy machine may lose the processor: at least.
/// If evaluating what depends on the index takes longer than this, the call waits so long.
const PATIENCE: Duration = Duration::from_millis(5);
/// No call waits longer than this.
const LONGEST: Duration = Duration::from_millis(100);

/// Whether the store works.
fn works() -> bool {
    is_on() && mode::is_active()
}

/// Whether the store hears of the call, which may be over.
fn hears(context: Context<'_>) -> bool {
    is_on() && context.is_hosts()
}

/// Whether the store acts on this call, before the engine's function runs. If the library has stopped, this puts the
/// context right, and from then on it has no store.
fn acts(context: Context<'_>) -> bool {
    hears(context) && repair::goes_on(context)
}

/// What comes before the engine's function. If the library stops meanwhile, the context is right at the end.
fn before(context: Context<'_>, work: impl FnOnce()) {
    if acts(context) {
        be_patient(context, PATIENCE);
        work();
        repair::goes_on(context);
    }
}

/// How long the call that lasts may wait for the index, in all.
fn be_patient(context: Context<'_>, patience: Duration) {
    if let Some(row) = records::row(context) {
        row.set_patience(patience);
    }
}

/// The call that lasts decides about so many tokens: whether they are loaded or evaluated, stored or lost.
fn be_patient_for(context: Context<'_>, tokens: usize) {
    let evaluating = with_record(context, |record| record.rates.evaluating(tokens));
    let patience = evaluating.flatten().unwrap_or(PATIENCE);
    be_patient(context, patience.clamp(PATIENCE, LONGEST));
}

/// Runs `work` on the index, on a thread of ours, which needs no guard.
fn on_index<R>(work: impl FnOnce(&mut Option<StoreIndex>) -> R) -> R {
    let mut index = INDEX.lock().unwrap_or_else(PoisonError::into_inner);
    faults::hold_index();
    work(&mut index)
}

/// Fewer tokens are not loaded.
pub(crate) const LEAST: usize = contextpilot_kv_store::worth::LEAST;

/// What the store has of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beginning {
    /// How many tokens would be loaded if the server had nothing of it, and the request named no adapter.
    pub(crate) tokens: usize,
    /// The context can go back to any position, so a part of what a slot holds is of use, too.
    pub(crate) goes_back: bool,
    /// How many of these tokens are kept on request, and until when, in nanoseconds since 1970.
    pub(crate) kept: Option<(usize, u64)>,
}

/// What the store has of a prompt. On a thread of ours.
pub(crate) fn beginning_of(tokens: &[i32]) -> Option<Beginning> {
    if !works() {
        return None;
    }
    let basis = records::oldest()?;
    let fingerprint = basis.fingerprint(&[])?;
    let goes_back = basis.goes_back();
    // No prompt has others; a chunk may.
    let of_vocabulary = tokens.iter().take_while(|token| **token >= 0).count();
    let tokens = &tokens[..of_vocabulary];
    // This thread also reports evictions. A prompt that is being loaded may have the index for a second, and they do not
    // wait for that.
    let mut index = lock_within(&INDEX, &mut Duration::from_millis(10))?;
    // While the folder is read, this may find less than a prompt would: looking that up reads files.
    let index = index.as_mut()?;
    // No more is loaded than there are hidden states of, if the server needs these.
    let usable = match basis.fingerprint_of_hidden() {
        Some(of_rows) => index.length_of(&of_rows, tokens),
        None => tokens.len(),
    };
    let there = if goes_back {
        index.length_of(&fingerprint, &tokens[..usable])
    } else {
        // A state behind the last token, which is always evaluated, is of no use.
        let most = tokens.len().saturating_sub(1);
        index.last_state_in(&fingerprint, &tokens[..usable.min(most)])
    };
    let kept = index.kept_of(&fingerprint, &tokens[..there]);
    Some(Beginning {
        tokens: there,
        goes_back,
        kept,
    })
}

/// The lock, if it is free within this time, from which the wait is taken.
fn lock_within<'a, T>(lock: &'a Mutex<T>, patience: &mut Duration) -> Option<MutexGuard<'a, T>> {
    const TURN: Duration = Duration::from_micros(50);
    if let Some(held) = try_lock(lock) {
        return Some(held);
    }
    let start = Instant::now();
    let most = std::mem::take(patience);
    while start.elapsed() < most {
        std::thread::sleep(TURN);
        if let Some(held) = try_lock(lock) {
            *patience = most.saturating_sub(start.elapsed());
            return Some(held);
        }
    }
    None
}

/// The index, on a thread of the host's.
struct IndexHeld {
    index: MutexGuard<'static, Option<StoreIndex>>,
    _turn: MutexGuard<'static, ()>,
}

impl IndexHeld {
    /// `None`: another thread has it, and the call has waited long enough. A call without any patience does not wait.
    fn wait_for(row: &Row) -> Option<Self> {
        let mut patience = row.patience();
        let held = Self::within(&mut patience);
        row.set_patience(patience);
        held
    }

    /// The same, of a call that may wait so long.
    fn within(patience: &mut Duration) -> Option<Self> {
        let turn = if patience.is_zero() {
            try_lock(&TURN)?
        } else {
            TURN.lock().unwrap_or_else(PoisonError::into_inner)
        };
        let index = lock_within(&INDEX, patience)?;
        Some(Self { index, _turn: turn })
    }
}

/// Runs `work` on the record of a context, which is made if this is the first that is heard of it. `None` if it did not
/// run to its end: the library has stopped.
fn with_record<R>(context: Context<'_>, work: impl FnOnce(&mut ContextStore) -> R) -> Option<R> {
    in_row(context, |_, record| work(record))
}

/// As [`with_record`], with the index. It is `None` before its folder has been read, or if another thread has it.
fn with_index<R>(
    context: Context<'_>,
    work: impl FnOnce(&mut Option<StoreIndex>, &mut ContextStore) -> R,
) -> Option<R> {
    in_row(context, |row, record| match IndexHeld::wait_for(row) {
        Some(mut held) => work(&mut held.index, record),
        None => work(&mut None, record),
    })
}

fn in_row<R>(
    context: Context<'_>,
    work: impl FnOnce(&'static Row, &mut ContextStore) -> R,
) -> Option<R> {
    if !mode::is_active() {
        return None;
    }
    let row = records::row(context)?;
    guard::compute(|| {
        faults::at_record();
        let result = row.with(|record| work(row, record));
        faults::behind_record();
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_somebody_has_is_waited_for_as_long_as_the_call_may() {
        let lock = Mutex::new(());
        let mut patience = Duration::from_millis(3);
        assert!(lock_within(&lock, &mut patience).is_some());
        assert_eq!(patience, Duration::from_millis(3));
        let held = lock.lock().unwrap();
        let start = Instant::now();
        assert!(lock_within(&lock, &mut patience).is_none());
        assert!(start.elapsed() >= Duration::from_millis(3));
        // What comes after it in the same call does not wait.
        assert_eq!(patience, Duration::ZERO);
        assert!(lock_within(&lock, &mut patience).is_none());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| lock_within(&lock, &mut Duration::from_secs(60)).is_some());
            std::thread::sleep(Duration::from_millis(1));
            drop(held);
            assert!(waits.join().unwrap());
        });
    }
}
