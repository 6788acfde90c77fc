//! The engine's contexts, and whose memory is whose.
//!
//! Memory functions are called with the `llama_memory_t` of a context. It belongs to the context
//! and has one address for life, so a small table leads back. Read by every hook of the engine,
//! written a few times in a process's life; no lock. Before mid-2025 they were called with the
//! context itself.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use contextpilot_residency::{ContextId, Event};

use crate::attach;
use crate::attach::original::{self, original, plain};
use crate::attach::table::{HOST_CACHE, LAUNCH, newest};
use crate::base::abi::{ContextParams, Pointer};
use crate::base::bounds::CONTEXTS;
use crate::base::guard::EngineCall;
use crate::base::mode;
use crate::base::status::STATUS;
use crate::capture::{adapters, facts, pieces};
use crate::channel::{lose_step, nudge, push};

struct Row {
    /// Zero: the row is free.
    context: AtomicUsize,
    /// Zero: a context without memory (an encoder), which cannot hold a prompt.
    memory: AtomicUsize,
    /// Its memory cannot go back to any position it has been at.
    bounded: AtomicBool,
    /// Length of the longest sequence whose size was asked for.
    measured: AtomicU32,
    /// The server asks less of its sliding window than those of 2026 do.
    looks_back_far: AtomicBool,
    /// The server has not made it only to see how large it is: see [`model`](crate::capture::model).
    in_use: AtomicBool,
    /// Tokens of a batch, as the server asked for; zero: that was not seen, here and below.
    batch: AtomicU32,
    /// Tokens of a slot.
    slot: AtomicU32,
    /// What its tokens stand for. Zero: it has no text. Alive as long as the context.
    vocabulary: AtomicUsize,
}

#[allow(clippy::declare_interior_mutable_const)]
const FREE: Row = Row {
    context: AtomicUsize::new(0),
    memory: AtomicUsize::new(0),
    bounded: AtomicBool::new(false),
    measured: AtomicU32::new(0),
    looks_back_far: AtomicBool::new(false),
    in_use: AtomicBool::new(false),
    batch: AtomicU32::new(0),
    slot: AtomicU32::new(0),
    vocabulary: AtomicUsize::new(0),
};
static ROWS: [Row; CONTEXTS] = [FREE; CONTEXTS];

/// What the engine says of a context that was not known.
struct Answers {
    memory: Pointer,
    recurrent: bool,
    hybrid: bool,
    /// Of its sliding-window layers, tokens; 0 if there are none.
    window: i32,
    vocabulary: Option<Pointer>,
    observed: Option<facts::ContextFacts>,
}

/// A context is there; if it is a new one, says so to the ledger. Not to be called within the
/// [guard](crate::base::guard), since the engine is asked.
pub(crate) fn know(call: &EngineCall, context: Pointer) {
    if context.is_null() || !call.counts() || find(context.addr()).is_some() {
        return;
    }
    attach::ask_version();
    let answers = Answers::of(context);
    call.observe(|| add(context, &answers));
}

impl Answers {
    fn of(context: Pointer) -> Self {
        // SAFETY: a living context.
        let model = unsafe { plain::get_model(context) };
        // SAFETY: a living context's model, here and below.
        let recurrent = model.and_then(|model| unsafe { plain::is_recurrent(model) });
        // SAFETY: see above.
        let hybrid = model.and_then(|model| unsafe { plain::is_hybrid(model) });
        // SAFETY: see above.
        let window = model.and_then(|model| unsafe { plain::window(model) });
        Self {
            memory: memory_in(context),
            recurrent: recurrent == Some(true),
            hybrid: hybrid == Some(true),
            window: window.unwrap_or(0),
            // SAFETY: see above.
            vocabulary: model.and_then(|model| unsafe { pieces::vocabulary_of(model) }),
            observed: facts::ask_context(context, model),
        }
    }

    /// How far the layers of a bounded context look back, tokens: 0 where they carry a state along.
    /// None for a context that keeps every position.
    fn reach(&self) -> Option<u32> {
        let window = if keeps_whole_window() { 0 } else { self.window };
        (self.recurrent || self.hybrid || window > 0).then(|| u32::try_from(window).unwrap_or(0))
    }
}

fn add(context: Pointer, answers: &Answers) {
    let address = context.addr();
    for row in &ROWS {
        if row
            .context
            .compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            row.memory.store(answers.memory.addr(), Ordering::Release);
            let window = answers.reach();
            row.bounded.store(window.is_some(), Ordering::Release);
            row.measured.store(0, Ordering::Relaxed);
            // Servers that ask for no memory make no context that they do not use.
            let asks = original::llama_get_memory().is_some();
            row.in_use.store(!asks, Ordering::Release);
            row.batch.store(0, Ordering::Relaxed);
            row.slot.store(0, Ordering::Relaxed);
            let vocabulary = answers
                .vocabulary
                .map_or(0, |known| known.expose_provenance());
            row.vocabulary.store(vocabulary, Ordering::Release);
            let slides = window.is_some_and(|window| window > 0);
            let of_2025 = match newest(LAUNCH, original::has) {
                Some(launch) => launch == "server25",
                // Out of sight. At the end of that year it is one or the other: then of 2026, whose
                // rule claims less.
                None => !plain::has(HOST_CACHE),
            };
            row.looks_back_far
                .store(slides && of_2025, Ordering::Release);
            STATUS.contexts.add(1);
            mode::ensure_running();
            push(Event::ContextCreated {
                context: ContextId(address),
            });
            if let Some(window) = window {
                push(Event::Bounded {
                    context: ContextId(address),
                    window,
                });
            }
            facts::note_context(context, answers.observed.as_ref());
            return;
        }
    }
    // No room: its calls will not be understood.
    lose_step();
}

/// A context was made in this way. Not to be called within the [guard](crate::base::guard).
pub(crate) fn made(call: &EngineCall, context: Pointer, params: &ContextParams) {
    know(call, context);
    if context.is_null() || !call.counts() {
        return;
    }
    // SAFETY: a living context, here and below.
    let slot = unsafe { plain::context_size_of_one(context) }
        // SAFETY: see above.
        .or_else(|| unsafe { plain::context_size(context) }?.checked_div(params.slots()));
    call.observe(|| {
        if let Some(row) = find(context.addr()) {
            row.batch.store(params.batch(), Ordering::Relaxed);
            row.slot.store(slot.unwrap_or(0), Ordering::Relaxed);
        }
    });
}

/// Tokens of a batch, as the server asked for: the engine may have made it less.
pub(crate) fn batch() -> Option<u32> {
    number_of_server(|row| &row.batch)
}

/// Tokens of a slot.
pub(crate) fn slot() -> Option<u32> {
    number_of_server(|row| &row.slot)
}

/// The bytes that a token of the server's own context stands for.
pub(crate) fn piece(token: i32) -> Option<Vec<u8>> {
    let _held = pieces::hold();
    let vocabulary = first()?.vocabulary.load(Ordering::Acquire);
    if vocabulary == 0 {
        return None;
    }
    let vocabulary = std::ptr::with_exposed_provenance_mut(vocabulary);
    // SAFETY: its context has not gone, nor has its model, while this is held.
    unsafe { pieces::piece(vocabulary, token) }
}

/// The server's own context, which it makes before that of a draft model.
fn first() -> Option<&'static Row> {
    let mut rows = ROWS.iter();
    rows.find(|row| row.context.load(Ordering::Acquire) != 0)
}

/// Of the server's own context.
fn number_of_server(of: impl Fn(&'static Row) -> &'static AtomicU32) -> Option<u32> {
    let number = of(first()?).load(Ordering::Relaxed);
    (number > 0).then_some(number)
}

/// A context is about to go.
///
/// # Safety
/// Our caller's caller uses the context.
pub(crate) unsafe fn forget(context: Pointer) {
    // SAFETY: the caller's promise.
    unsafe { adapters::forget(context) };
    if let Some(row) = find(context.addr()) {
        // Nobody asks for its text any more when this is done.
        let _held = pieces::hold();
        row.vocabulary.store(0, Ordering::Release);
        row.memory.store(0, Ordering::Release);
        row.context.store(0, Ordering::Release);
        push(Event::ContextFreed {
            context: ContextId(context.addr()),
        });
    }
}

/// All contexts that are alive.
pub(crate) fn all() -> impl Iterator<Item = ContextId> {
    ROWS.iter()
        .map(|row| ContextId(row.context.load(Ordering::Acquire)))
        .filter(|context| context.0 != 0)
}

/// The server uses this context.
pub(crate) fn note_use(context: Pointer) {
    if let Some(row) = find(context.addr()) {
        row.note_use();
    }
}

/// Whether there is a context that the server uses.
pub(crate) fn is_any_in_use() -> bool {
    let mut rows = ROWS.iter();
    rows.any(|row| row.context.load(Ordering::Acquire) != 0 && row.in_use.load(Ordering::Acquire))
}

/// How often something happened to the model that is no event.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// A load has ended, or the server uses a context that it did not use before.
pub(crate) fn note_change() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
    nudge();
}

/// How often that was.
pub(crate) fn changes() -> usize {
    CHANGES.load(Ordering::SeqCst)
}

impl Row {
    fn note_use(&self) {
        if !self.in_use.load(Ordering::Relaxed) {
            self.in_use.store(true, Ordering::Release);
            note_change();
        }
    }
}

/// The context that has this memory. Without one, nothing is certain any more, unless there is
/// no memory either.
pub(crate) fn of_memory(memory: Pointer) -> Option<ContextId> {
    let address = memory.addr();
    if address == 0 {
        return None;
    }
    let row = ROWS
        .iter()
        .find(|row| row.memory.load(Ordering::Acquire) == address);
    match row {
        Some(row) => row.note_use(),
        None => lose_step(),
    }
    row.map(|row| ContextId(row.context.load(Ordering::Acquire)))
}

/// Where the engine keeps a new context's KV; null for an encoder, which keeps none.
fn memory_in(context: Pointer) -> Pointer {
    if original::llama_get_memory().is_some() {
        return original!(llama_get_memory(context));
    }
    // SAFETY: a living context. Before there was a function to ask, every context had memory.
    unsafe { plain::kv_self(context) }.unwrap_or(context)
}

/// The context of a function that is called with it, if it keeps anything.
pub(crate) fn with_memory(context: Pointer) -> Option<ContextId> {
    note_use(context);
    memory_of(context).map(|_| ContextId(context.addr()))
}

/// The context's memory, if it has one.
pub(crate) fn memory_of(context: Pointer) -> Option<Pointer> {
    let row = find(context.addr())?;
    let memory = row.memory.load(Ordering::Acquire);
    (memory != 0).then_some(std::ptr::with_exposed_provenance_mut(memory))
}

/// Whether the context cannot go back to any position that it has been at.
pub(crate) fn is_bounded(context: Pointer) -> bool {
    find(context.addr()).is_some_and(|row| row.bounded.load(Ordering::Acquire))
}

/// The last position of a sequence, -1 for an empty one; `None` if the engine cannot be asked. Not
/// to be called within the [guard](crate::base::guard).
///
/// # Safety
/// The context is alive and not at work now.
pub(crate) unsafe fn last_position(context: Pointer, sequence: i32) -> Option<i32> {
    let memory = memory_of(context)?;
    // SAFETY: the caller's promise, here and below; a context's memory lives as long.
    unsafe { plain::last_in_memory(memory, sequence) }
        // SAFETY: see above.
        .or_else(|| unsafe { plain::last_in_self(context, sequence) })
        // SAFETY: see above.
        .or_else(|| unsafe { plain::last_in_cache(context, sequence) })
}

/// The first position that there still is of a sequence; `None` if the engine cannot be asked.
/// Before it could be, bounded contexts were recurrent ones, which hold their last position only. Not
/// to be called within the [guard](crate::base::guard).
///
/// # Safety
/// The context is alive and not at work now.
pub(crate) unsafe fn first_position(context: Pointer, sequence: i32) -> Option<i32> {
    let memory = memory_of(context)?;
    let looks_back_far = find(context.addr())?.looks_back_far.load(Ordering::Acquire);
    // SAFETY: the caller's promise, here and below; a context's memory lives as long.
    let windowed = unsafe { plain::first_in_memory(memory, sequence) }
        // SAFETY: see above.
        .or_else(|| unsafe { plain::first_in_self(context, sequence) })
        .map(|first| match looks_back_far {
            true => as_if_of_2026(first),
            false => first,
        });
    // SAFETY: see above.
    windowed.or_else(|| unsafe { last_position(context, sequence) })
}

/// A server of 2025 goes on after `n` tokens if the first position is no later than `n - window`,
/// or is 0. One of 2026, whose rule the ledger has, wants it to be earlier than `n - window - 1`.
fn as_if_of_2026(first: i32) -> i32 {
    match first {
        ..=0 => -2,
        // What is later than 0 stays so.
        1.. => (first - 2).max(1),
    }
}

/// The length of the longest sequence of a context whose size was asked for.
pub(crate) fn measured(context: Pointer) -> Option<&'static AtomicU32> {
    find(context.addr()).map(|row| &row.measured)
}

/// Whether the server was told to keep all positions of sliding-window layers. The context knows,
/// but does not say.
fn keeps_whole_window() -> bool {
    let told = std::env::args_os().any(|argument| argument == "--swa-full");
    told || std::env::var_os("LLAMA_ARG_SWA_FULL")
        .is_some_and(|value| ["1", "true", "on", "enabled"].iter().any(|on| value == *on))
}

fn find(address: usize) -> Option<&'static Row> {
    ROWS.iter()
        .find(|row| address != 0 && row.context.load(Ordering::Acquire) == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Never more than the server would serve, and less only next to the window's edge.
    #[test]
    fn the_rule_of_2025_is_told_in_terms_of_the_ledgers() {
        for (window, tokens, first) in (0..60)
            .flat_map(|tokens| (0..60).map(move |first| (tokens, first)))
            .flat_map(|(tokens, first)| [8, 32].map(|window| (window, tokens, first)))
        {
            let served = first <= (tokens - window).max(0);
            let told = as_if_of_2026(first) < (tokens - window - 1).max(0);
            let edge = (1..=2).contains(&first) && tokens - window <= 2;
            assert!(told == served || edge && !told, "{window} {tokens} {first}");
        }
    }
}
