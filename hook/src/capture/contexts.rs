//! Keeps the engine's contexts, and which memory belongs to which context.
//!
//! Since mid-2025, memory functions are called with the `llama_memory_t` of a context, before that with
//! the context itself. A memory belongs to one context and keeps its address, so a small table maps it
//! to its context. Every hook of the engine reads the table. It is written a few times in the life of a
//! process, and needs no lock.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};

use contextpilot_residency::{ContextId, Event, program};

use crate::attach;
use crate::attach::engines::{self, Entered};
use crate::attach::original::{self, original};
use crate::attach::plain;
use crate::attach::table::{HOST_CACHE, LAUNCH, newest};
use crate::base::abi::{ContextParams, Pointer};
use crate::base::bounds::CONTEXTS;
use crate::base::guard::EngineCall;
use crate::base::mode;
use crate::base::params::Read;
use crate::base::status::STATUS;
use crate::capture::{facts, only_server, pieces, rewinding};
use crate::channel::{desync, nudge, push};

struct Row {
    /// Zero: the row is free.
    context: AtomicUsize,
    /// Zero: a context without memory (an encoder), which cannot hold a prompt.
    memory: AtomicUsize,
    /// Its memory can go back to certain positions only: sliding windows, or a recurrent state.
    bounded: AtomicBool,
    /// What it keeps for its sliding windows: a [`Windows`].
    windows: AtomicU8,
    /// It goes back to any position of what it has evaluated, but its saved states have only the windows at their ends.
    saves_windows: AtomicBool,
    /// Length of the longest sequence whose size the engine was asked for, in tokens.
    measured: AtomicU32,
    /// The server is of 2025, and its rule for going back in a sliding window is looser than that of 2026.
    looks_back_far: AtomicBool,
    /// The server uses it, and has not created it only to see how large it is: see
    /// [`model`](crate::capture::model).
    in_use: AtomicBool,
    /// Tokens of a batch, as the server asked for. Zero, here and below: not seen.
    batch: AtomicU32,
    /// Tokens that are computed at once.
    at_once: AtomicU32,
    /// Tokens of a slot.
    slot: AtomicU32,
    /// Its vocabulary, which lives as long as the context. Zero: it has no text.
    vocabulary: AtomicUsize,
    /// The engine that has created it.
    engine: AtomicUsize,
}

#[allow(clippy::declare_interior_mutable_const)]
const FREE: Row = Row {
    context: AtomicUsize::new(0),
    memory: AtomicUsize::new(0),
    bounded: AtomicBool::new(false),
    windows: AtomicU8::new(Windows::None as u8),
    saves_windows: AtomicBool::new(false),
    measured: AtomicU32::new(0),
    looks_back_far: AtomicBool::new(false),
    in_use: AtomicBool::new(false),
    batch: AtomicU32::new(0),
    at_once: AtomicU32::new(0),
    slot: AtomicU32::new(0),
    vocabulary: AtomicUsize::new(0),
    engine: AtomicUsize::new(0),
};
static ROWS: [Row; CONTEXTS] = [FREE; CONTEXTS];

/// What a context keeps for the layers with a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Windows {
    /// There are no such layers.
    None,
    /// The windows, and a little more.
    Bounded,
    /// The same, in one cache for several sequences of a program.
    Shared,
    /// Every position (`swa_full`), as for other layers.
    Whole,
    /// One or the other: what the context was created with is not understood.
    Unknown,
}

/// What the engine says of a new context.
struct Answers {
    memory: Pointer,
    recurrent: bool,
    hybrid: bool,
    /// The sliding window, in tokens; 0 if there is none.
    window: i32,
    windows: Windows,
    vocabulary: Option<Pointer>,
    observed: Option<facts::ContextFacts>,
}

/// A context exists. If it is new, sends it to the ledger. Do not call this within the
/// [guard](crate::base::guard), because it asks the engine.
#[inline]
pub(crate) fn know(call: &EngineCall, context: Pointer) {
    // Every evaluation asks this.
    if find(context.addr()).is_none() {
        know_with(call, context, None);
    }
}

/// As [`know`], with what the context was created with, if that was seen.
fn know_with(call: &EngineCall, context: Pointer, params: Option<&ContextParams>) {
    if context.is_null() || !call.counts() || find(context.addr()).is_some() {
        return;
    }
    attach::ask_version();
    let answers = Answers::of(context, params);
    call.guarded(|| add(context, &answers));
}

impl Answers {
    fn of(context: Pointer, params: Option<&ContextParams>) -> Self {
        // SAFETY: a living context.
        let model = unsafe { plain::get_model(context) };
        // SAFETY: the model of a living context, here and below.
        let recurrent = model.and_then(|model| unsafe { plain::is_recurrent(model) });
        // SAFETY: see above.
        let hybrid = model.and_then(|model| unsafe { plain::is_hybrid(model) });
        // SAFETY: see above.
        let window = model.and_then(|model| unsafe { plain::window(model) });
        let memory = memory_in(context);
        let window = window.unwrap_or(0);
        Self {
            memory,
            recurrent: recurrent == Some(true),
            hybrid: hybrid == Some(true),
            window,
            windows: if window > 0 {
                windows_with(params)
            } else {
                Windows::None
            },
            // SAFETY: see above.
            vocabulary: model.and_then(|model| unsafe { pieces::vocabulary_of(model) }),
            observed: facts::ask_context(context, memory, model),
        }
    }

    /// The window of a server's context that keeps every position of it. Other programs go back by their own rules.
    fn whole_window(&self) -> Option<u32> {
        let is_whole = self.windows == Windows::Whole && self.reach().is_none();
        let window = u32::try_from(self.window).ok()?;
        (is_whole && !attach::is_embedded()).then_some(window)
    }

    /// How far the layers of a bounded context look back, in tokens: 0 for a recurrent state.
    /// `None` for a context that keeps every position.
    fn reach(&self) -> Option<u32> {
        let window = match self.windows {
            Windows::None | Windows::Whole => 0,
            // Less is claimed for a context that goes back to certain positions only.
            Windows::Bounded | Windows::Shared | Windows::Unknown => self.window,
        };
        (self.recurrent || self.hybrid || window > 0).then(|| u32::try_from(window).unwrap_or(0))
    }
}

/// What a context keeps that was created with these parameters. The engine has no function that says it.
fn windows_with(params: Option<&ContextParams>) -> Windows {
    // SAFETY: no preconditions.
    let defaults = params.and_then(|_| unsafe { plain::default_context() });
    let read = params
        .zip(defaults)
        .and_then(|(params, defaults)| Read::of(&defaults, params));
    // A server that finds no room makes some.
    let is_shared = attach::is_embedded()
        && newest(LAUNCH, original::has).is_none()
        && params.is_some_and(|params| params.slots() > 1)
        && read.as_ref().and_then(|read| read.is_shared) != Some(false);
    match read.and_then(|read| read.keeps_windows) {
        Some(true) => Windows::Whole,
        Some(false) if is_shared => Windows::Shared,
        Some(false) => Windows::Bounded,
        // A server creates its contexts as its flags say. Another program has none.
        None if attach::is_embedded() => Windows::Unknown,
        None if attach::flags().swa_full() => Windows::Whole,
        None => Windows::Bounded,
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
            row.engine.store(engines::current(), Ordering::Release);
            row.memory.store(answers.memory.addr(), Ordering::Release);
            let window = answers.reach();
            row.bounded.store(window.is_some(), Ordering::Release);
            row.windows.store(answers.windows as u8, Ordering::Release);
            let whole = answers.whole_window();
            row.saves_windows.store(whole.is_some(), Ordering::Release);
            row.measured.store(0, Ordering::Relaxed);
            // A server that never calls `llama_get_memory` creates only contexts that it uses.
            let asks = original::llama_get_memory().is_some();
            row.in_use.store(!asks, Ordering::Release);
            row.batch.store(0, Ordering::Relaxed);
            row.at_once.store(0, Ordering::Relaxed);
            row.slot.store(0, Ordering::Relaxed);
            let vocabulary = answers
                .vocabulary
                .map_or(0, |known| known.expose_provenance());
            row.vocabulary.store(vocabulary, Ordering::Release);
            let slides = window.is_some_and(|window| window > 0);
            let of_2025 = match newest(LAUNCH, original::has) {
                Some(launch) => launch == "server25",
                // The server's functions are hidden. Late in 2025 it may be one or the other: take the
                // rule of 2026, which claims less.
                None => !plain::has(HOST_CACHE),
            };
            row.looks_back_far
                .store(slides && of_2025, Ordering::Release);
            STATUS.contexts.add(1);
            mode::ensure_running();
            let id = row.id();
            push(Event::ContextCreated { context: id });
            if let Some(window) = window {
                push(Event::Bounded {
                    context: id,
                    window,
                });
                let rules = rewinding::rules();
                push(Event::Rewinds { context: id, rules });
            } else if let Some(window) = whole {
                push(Event::WholeWindows {
                    context: id,
                    window,
                });
                let rules = rewinding::rules();
                push(Event::Rewinds { context: id, rules });
            }
            facts::note_context(id, window, answers.observed.as_ref());
            return;
        }
    }
    // The table is full: calls with this context will not be understood.
    desync();
}

/// A context was created with these parameters. Do not call this within the
/// [guard](crate::base::guard).
pub(crate) fn made(call: &EngineCall, context: Pointer, params: &ContextParams) {
    know_with(call, context, Some(params));
    if context.is_null() || !call.counts() {
        return;
    }
    // SAFETY: a living context, here and below.
    let slot = unsafe { plain::context_size_of_one(context) }
        // SAFETY: see above.
        .or_else(|| unsafe { plain::context_size(context) }?.checked_div(params.slots()));
    call.guarded(|| {
        if let Some(row) = find(context.addr()) {
            row.batch.store(params.batch(), Ordering::Relaxed);
            row.at_once.store(params.at_once(), Ordering::Relaxed);
            row.slot.store(slot.unwrap_or(0), Ordering::Relaxed);
        }
    });
}

/// Tokens of a batch, as the server asked for. The engine may have reduced the number.
pub(crate) fn batch() -> Option<u32> {
    number_of_server(|row| &row.batch)
}

/// The same, of this context.
pub(crate) fn batch_of(context: Pointer) -> Option<u32> {
    let number = find(context.addr())?.batch.load(Ordering::Relaxed);
    (number > 0).then_some(number)
}

/// Tokens that this context computes at once, as the host asked for.
pub(crate) fn at_once_in(context: Pointer) -> Option<u32> {
    let number = find(context.addr())?.at_once.load(Ordering::Relaxed);
    (number > 0).then_some(number)
}

/// The vocabulary of a context's model, which lives as long as the context. `None`: it has no text.
pub(crate) fn vocabulary_of(context: Pointer) -> Option<Pointer> {
    let address = find(context.addr())?.vocabulary.load(Ordering::Acquire);
    (address != 0).then(|| std::ptr::with_exposed_provenance_mut(address))
}

/// Tokens of a slot.
pub(crate) fn slot() -> Option<u32> {
    number_of_server(|row| &row.slot)
}

/// The bytes that a token stands for: of the server's own context, or of the context of a program that the token
/// [belongs to](program::token_in).
pub(crate) fn piece(token: i32) -> Option<Vec<u8>> {
    let _held = pieces::hold();
    let (row, token) = if attach::is_program() {
        let (context, token) = program::token_in(token);
        (ROWS.get(context.0)?, token)
    } else {
        (first()?, token)
    };
    let vocabulary = row.vocabulary.load(Ordering::Acquire);
    if vocabulary == 0 {
        return None;
    }
    let vocabulary = std::ptr::with_exposed_provenance_mut(vocabulary);
    let _engine = Entered::new(row.engine.load(Ordering::Acquire));
    // SAFETY: while the lock is held, neither the context nor its model is freed.
    unsafe { pieces::piece(vocabulary, token) }
}

/// The context of the server's main model, which is created before that of a draft model.
fn first() -> Option<&'static Row> {
    let mut rows = ROWS.iter();
    rows.find(|row| row.context.load(Ordering::Acquire) != 0)
}

/// A number of the context of the server's main model.
fn number_of_server(of: impl Fn(&'static Row) -> &'static AtomicU32) -> Option<u32> {
    let number = of(first()?).load(Ordering::Relaxed);
    (number > 0).then_some(number)
}

/// A context is about to be freed. What is kept by its [place](place_of) is forgotten before.
pub(crate) fn forget(context: Pointer) {
    if let Some(row) = find(context.addr()) {
        // Before the row is free: in a program, the next context may get its place.
        push(Event::ContextFreed { context: row.id() });
        facts::note_freed(row.id());
        // After this, no thread reads its vocabulary.
        let _held = pieces::hold();
        row.vocabulary.store(0, Ordering::Release);
        row.memory.store(0, Ordering::Release);
        row.context.store(0, Ordering::Release);
        if all().next().is_none() {
            only_server::ended();
        }
    }
}

/// What a context is called in events: its address, or its place in a program, where several are followed
/// ([`contextpilot_residency::program`]).
pub(crate) fn id_of(context: Pointer) -> ContextId {
    if attach::is_program() {
        ContextId(place_of(context).unwrap_or(CONTEXTS))
    } else {
        ContextId(context.addr())
    }
}

/// Enters the engine of a context, for code that is not called by that engine's hooks.
pub(crate) fn enter_engine_of(context: Pointer) -> Entered {
    let row = find(context.addr());
    Entered::new(row.map_or_else(engines::current, |row| row.engine.load(Ordering::Acquire)))
}

/// Where a context stands in the table.
pub(crate) fn place_of(context: Pointer) -> Option<usize> {
    let address = context.addr();
    let is_it = |row: &Row| address != 0 && row.context.load(Ordering::Acquire) == address;
    ROWS.iter().position(is_it)
}

/// The context that lives, if there is one and no other.
pub(crate) fn only() -> Option<Pointer> {
    let addresses = ROWS.iter().map(|row| row.context.load(Ordering::Acquire));
    let mut living = addresses.filter(|address| *address != 0);
    let only = living.next().filter(|_| living.next().is_none())?;
    Some(std::ptr::with_exposed_provenance_mut(only))
}

/// All contexts that are alive.
pub(crate) fn all() -> impl Iterator<Item = ContextId> {
    let living = ROWS
        .iter()
        .filter(|row| row.context.load(Ordering::Acquire) != 0);
    living.map(Row::id)
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

/// Counts changes of the model that are not events.
static CHANGES: AtomicUsize = AtomicUsize::new(0);

/// A load has ended, or the server uses a context that it did not use before.
pub(crate) fn note_change() {
    CHANGES.fetch_add(1, Ordering::SeqCst);
    nudge();
}

/// The number of such changes.
pub(crate) fn changes() -> usize {
    CHANGES.load(Ordering::SeqCst)
}

impl Row {
    /// See [`id_of`].
    fn id(&self) -> ContextId {
        let address = self.context.load(Ordering::Acquire);
        id_of(std::ptr::with_exposed_provenance_mut(address))
    }

    fn note_use(&self) {
        if !self.in_use.load(Ordering::Relaxed) {
            self.in_use.store(true, Ordering::Release);
            note_change();
        }
    }
}

/// The context that has this memory. If the memory is unknown, this opens a gap; a null memory is
/// allowed.
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
        None => desync(),
    }
    row.map(Row::id)
}

/// The context that has this memory, or that this is (in old engines). Unlike [`of_memory`], this has no
/// consequences.
pub(crate) fn owner(memory: Pointer) -> Option<Pointer> {
    let address = memory.addr();
    let is_owner = |row: &&Row| {
        row.memory.load(Ordering::Acquire) == address
            || row.context.load(Ordering::Acquire) == address
    };
    let row = ROWS.iter().find(|row| address != 0 && is_owner(row))?;
    let context = row.context.load(Ordering::Acquire);
    Some(std::ptr::with_exposed_provenance_mut(context))
}

/// The memory of a new context; null for an encoder, which has none.
fn memory_in(context: Pointer) -> Pointer {
    if original::llama_get_memory().is_some() {
        return original!(llama_get_memory(context));
    }
    // SAFETY: a living context. Before there was a function to ask, every context had memory.
    unsafe { plain::kv_self(context) }.unwrap_or(context)
}

/// The context that a function was called with, if it has a memory.
pub(crate) fn with_memory(context: Pointer) -> Option<ContextId> {
    note_use(context);
    memory_of(context).map(|_| id_of(context))
}

/// A context that keeps what it evaluates.
#[derive(Clone, Copy)]
pub(crate) struct Keeps {
    /// See [`id_of`].
    pub(crate) id: ContextId,
    /// See [`is_bounded`].
    pub(crate) is_bounded: bool,
}

/// What every evaluation asks of a context at once; `None`: it has no memory, or is not known.
#[inline]
pub(crate) fn keeps(context: Pointer) -> Option<Keeps> {
    let row = find(context.addr())?;
    (row.memory.load(Ordering::Acquire) != 0).then(|| Keeps {
        id: id_of(context),
        is_bounded: row.bounded.load(Ordering::Acquire),
    })
}

/// The context's memory, if it has one.
pub(crate) fn memory_of(context: Pointer) -> Option<Pointer> {
    let row = find(context.addr())?;
    let memory = row.memory.load(Ordering::Acquire);
    (memory != 0).then_some(std::ptr::with_exposed_provenance_mut(memory))
}

/// Whether the context can go back to certain positions only.
pub(crate) fn is_bounded(context: Pointer) -> bool {
    find(context.addr()).is_some_and(|row| row.bounded.load(Ordering::Acquire))
}

/// Whether a saved state has of the layers with a sliding window only the window, although the context keeps every position.
pub(crate) fn saves_windows(context: Pointer) -> bool {
    find(context.addr()).is_some_and(|row| row.saves_windows.load(Ordering::Acquire))
}

/// What the context keeps for the layers with a sliding window.
pub(crate) fn windows_of(context: Pointer) -> Windows {
    let kept = find(context.addr()).map_or(Windows::None as u8, |row| {
        row.windows.load(Ordering::Acquire)
    });
    let all = [
        Windows::None,
        Windows::Bounded,
        Windows::Shared,
        Windows::Whole,
        Windows::Unknown,
    ];
    all.into_iter()
        .find(|windows| *windows as u8 == kept)
        .unwrap_or(Windows::Unknown)
}

/// The last position of a sequence, -1 for an empty one; `None` if the engine has no function for it. Do
/// not call this within the [guard](crate::base::guard).
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

/// The first position that is still there of a sequence; `None` if the engine has no function for it.
/// Engines without that function have only recurrent bounded contexts, which hold their last position
/// only. Do not call this within the [guard](crate::base::guard).
///
/// # Safety
/// The context is alive and not at work now.
pub(crate) unsafe fn first_position(context: Pointer, sequence: i32) -> Option<i32> {
    // SAFETY: the caller's promise, here and below.
    let windowed = unsafe { first_in_engine(context, sequence) };
    windowed
        .map(|first| as_the_ledger_has_it(context, first))
        // SAFETY: see above.
        .or_else(|| unsafe { last_position(context, sequence) })
}

/// As [`first_position`], as the engine says it.
///
/// # Safety
/// As there.
pub(crate) unsafe fn first_in_engine(context: Pointer, sequence: i32) -> Option<i32> {
    let memory = memory_of(context)?;
    // SAFETY: the caller's promise, here and below; a context's memory lives as long.
    unsafe { plain::first_in_memory(memory, sequence) }
        // SAFETY: see above.
        .or_else(|| unsafe { plain::first_in_self(context, sequence) })
}

/// A first position that the server was told, by the rule that the ledger has.
pub(crate) fn as_the_ledger_has_it(context: Pointer, first: i32) -> i32 {
    let looks_back_far = |row: &Row| row.looks_back_far.load(Ordering::Acquire);
    if find(context.addr()).is_some_and(looks_back_far) {
        as_if_of_2026(first)
    } else {
        first
    }
}

/// Translates a first position from the rule of 2025 to that of 2026. A server of 2025 continues after
/// `n` tokens if the first position is at most `n - window`, or is 0. A server of 2026 before 0.7.0,
/// whose rule the ledger has for both, requires it to be less than `n - window - 1`.
fn as_if_of_2026(first: i32) -> i32 {
    match first {
        ..=0 => -2,
        // A position after 0 stays after 0.
        1.. => (first - 2).max(1),
    }
}

/// The length of the longest sequence of a context whose size the engine was asked for, in tokens.
pub(crate) fn measured(context: Pointer) -> Option<&'static AtomicU32> {
    find(context.addr()).map(|row| &row.measured)
}

fn find(address: usize) -> Option<&'static Row> {
    ROWS.iter()
        .find(|row| address != 0 && row.context.load(Ordering::Acquire) == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The translated rule never claims more than the server would reuse, and less only next to the
    /// window's edge.
    #[test]
    fn the_rule_of_2025_in_terms_of_2026_never_claims_more() {
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
