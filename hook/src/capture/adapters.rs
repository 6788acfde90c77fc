//! Keeps which LoRA adapters are applied to which context.
//!
//! The server sets the adapters before each batch, whether they changed or not. The worker gets only
//! changes, together with the first batch that they apply to.
//!
//! The engine's API requires that only one thread at a time uses a context. So the state here
//! needs no lock, as with batches (see [`crate::capture::shadow`]).

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use contextpilot_residency::{Adapter, Compared, Event, Scale};

use crate::attach::table::{ADAPTERS, newest};
use crate::attach::{original, plain};
use crate::base::abi::Pointer;
use crate::base::bounds::CONTEXTS;
use crate::base::guard::EngineCall;
use crate::capture::contexts;
use crate::channel::{self, try_push};

/// The longest activation sequence that is read, in tokens; no known adapter has a longer one. An
/// adapter with a longer one counts as an ordinary adapter, and then less is claimed.
const LONGEST_INVOCATION: usize = 4096;

/// Some adapter was seen. Until then, all functions here return at once.
static SEEN: AtomicBool = AtomicBool::new(false);

struct StateCell(UnsafeCell<AdapterState>);

// SAFETY: only the thread that uses the context reaches its state. That is one thread at a time, and
// the caller synchronises one use with the next.
unsafe impl Sync for StateCell {}

#[allow(clippy::declare_interior_mutable_const)]
const NONE: StateCell = StateCell(UnsafeCell::new(AdapterState {
    applied: Vec::new(),
    invocations: Vec::new(),
    reported: Vec::new(),
    gaps: usize::MAX,
}));
/// By the context's [place](contexts::place_of).
static STATES: [StateCell; CONTEXTS] = [NONE; CONTEXTS];

/// An adapter's address, and its scale.
type Applied = (usize, Scale);

struct AdapterState {
    applied: Vec<Applied>,
    /// The tokens that activate each adapter that was ever applied.
    invocations: Vec<(usize, Arc<[i32]>)>,
    /// The adapters that the worker knows of, and the number of gaps at that time.
    reported: Vec<Applied>,
    gaps: usize,
}

/// Whether it can be seen which adapters the server applies.
pub(crate) fn are_seen() -> bool {
    original::has_any(ADAPTERS)
}

/// All adapters of a context, in the server's order.
///
/// # Safety
/// `adapters` and `scales` have `count` elements, and the calling thread uses the context.
pub(crate) unsafe fn set_all(
    call: &EngineCall,
    context: Pointer,
    adapters: *const Pointer,
    count: usize,
    scales: *const f32,
) {
    if count == 0 && !SEEN.load(Ordering::Relaxed) {
        return;
    }
    let given = !adapters.is_null() && !scales.is_null();
    let (adapters, scales): (&[Pointer], &[f32]) = if given && count > 0 {
        // SAFETY: the caller's promise.
        (
            unsafe { std::slice::from_raw_parts(adapters, count) },
            unsafe {
                // SAFETY: the caller's promise.
                std::slice::from_raw_parts(scales, count)
            },
        )
    } else {
        (&[], &[])
    };
    let all = adapters.iter().zip(scales);
    let all = all.map(|(adapter, scale)| (adapter.addr(), Scale::new(*scale)));
    // SAFETY: the caller's promise.
    unsafe { change(call, context, |applied| replace(applied, all.clone())) };
    for adapter in adapters {
        // SAFETY: the caller's promise; the adapter was just applied.
        unsafe { learn_invocation(call, context, *adapter) };
    }
}

fn replace(applied: &mut Vec<Applied>, all: impl Iterator<Item = Applied>) {
    applied.clear();
    applied.extend(all);
}

/// One adapter is applied to a context, beside the others.
///
/// # Safety
/// Our caller's caller uses the context, and the adapter lives.
pub(crate) unsafe fn set(call: &EngineCall, context: Pointer, adapter: Pointer, scale: f32) {
    let new = (adapter.addr(), Scale::new(scale));
    // SAFETY: the caller's promise.
    unsafe {
        change(call, context, |applied| {
            match applied.iter_mut().find(|(address, _)| *address == new.0) {
                Some(known) => *known = new,
                None => applied.push(new),
            }
        });
    }
    // SAFETY: the caller's promise.
    unsafe { learn_invocation(call, context, adapter) };
}

/// An adapter is removed from a context.
///
/// # Safety
/// Our caller's caller uses the context.
pub(crate) unsafe fn remove(call: &EngineCall, context: Pointer, adapter: Pointer) {
    let gone = adapter.addr();
    let work = |applied: &mut Vec<Applied>| applied.retain(|(address, _)| *address != gone);
    // SAFETY: the caller's promise.
    unsafe { change(call, context, work) };
}

/// All adapters are removed from a context.
///
/// # Safety
/// Our caller's caller uses the context.
pub(crate) unsafe fn clear(call: &EngineCall, context: Pointer) {
    if SEEN.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        unsafe { change(call, context, Vec::clear) };
    }
}

/// # Safety
/// Our caller's caller uses the context.
unsafe fn change(call: &EngineCall, context: Pointer, work: impl FnOnce(&mut Vec<Applied>)) {
    contexts::know(call, context);
    call.guarded(|| {
        SEEN.store(true, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        match unsafe { state(context) } {
            Some(state) => work(&mut state.applied),
            // It is not followed, and adapters cannot be ignored.
            None => channel::desync(),
        }
    });
}

/// Asks the engine which tokens activate an adapter, unless that is known.
///
/// # Safety
/// Our caller's caller uses the context, and the adapter lives.
unsafe fn learn_invocation(call: &EngineCall, context: Pointer, adapter: Pointer) {
    let mut known = true;
    call.guarded(|| {
        // SAFETY: the caller's promise.
        let state = unsafe { state(context) };
        known = state.is_none_or(|state| {
            let mut invocations = state.invocations.iter();
            invocations.any(|(address, _)| *address == adapter.addr())
        });
    });
    if known {
        return;
    }
    // Two calls of the engine, so this is outside of the guard.
    // SAFETY: the caller's promise.
    let count = unsafe { plain::invocation_count(adapter) };
    // SAFETY: the caller's promise.
    let tokens = unsafe { plain::invocation(adapter) };
    call.guarded(|| {
        let count = count.and_then(|count| usize::try_from(count).ok());
        let count = count.filter(|count| (1..=LONGEST_INVOCATION).contains(count));
        let tokens: &[i32] = match (count, tokens.filter(|tokens| !tokens.is_null())) {
            // SAFETY: `count` tokens that belong to the engine and live as long as the adapter.
            (Some(count), Some(tokens)) => unsafe { std::slice::from_raw_parts(tokens, count) },
            _ => &[],
        };
        // SAFETY: the caller's promise.
        if let Some(state) = unsafe { state(context) } {
            state.invocations.push((adapter.addr(), tokens.into()));
        }
    });
}

/// Sends the worker the adapters for the batch that a context is about to evaluate, if they have
/// changed. False if the channel has no room.
///
/// # Safety
/// Our caller's caller uses the context.
#[inline]
pub(crate) unsafe fn tell(context: Pointer) -> bool {
    // SAFETY: the caller's promise.
    !SEEN.load(Ordering::Relaxed) || unsafe { tell_changes(context) }
}

/// As [`tell`], once an adapter was seen.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe fn tell_changes(context: Pointer) -> bool {
    // SAFETY: the caller's promise.
    let Some(state) = (unsafe { state(context) }) else {
        return true;
    };
    let gaps = channel::gaps();
    if state.gaps == gaps && state.reported == state.applied {
        return true;
    }
    let invocation = |wanted: usize| {
        let mut invocations = state.invocations.iter();
        let found = invocations.find(|(address, _)| *address == wanted);
        found.map_or_else(|| Arc::from([]), |(_, tokens)| Arc::clone(tokens))
    };
    let adapters = state.applied.iter().map(|&(address, scale)| Adapter {
        address,
        scale,
        invocation: invocation(address),
    });
    let reported = try_push(Event::Adapters {
        context: contexts::id_of(context),
        adapters: adapters.collect(),
        compared: match newest(ADAPTERS, original::has) {
            Some("adapters") => Compared::WhenNamed,
            _ => Compared::Always,
        },
    });
    if reported {
        state.gaps = gaps;
        state.reported.clone_from(&state.applied);
    }
    reported
}

/// The adapters of a context, by address, and their scales. `None`: that is not known, as the context is not followed.
///
/// # Safety
/// Our caller's caller uses the context, and has just set or removed some.
pub(crate) unsafe fn applied(context: Pointer) -> Option<Vec<(usize, f32)>> {
    if !SEEN.load(Ordering::Relaxed) {
        return Some(Vec::new());
    }
    // SAFETY: the caller's promise.
    let state = unsafe { state(context) }?;
    let applied = state.applied.iter();
    Some(
        applied
            .map(|(adapter, scale)| (*adapter, scale.get()))
            .collect(),
    )
}

/// A context is about to be freed.
///
/// # Safety
/// Our caller's caller uses the context.
pub(crate) unsafe fn forget(context: Pointer) {
    // SAFETY: the caller's promise.
    if let Some(state) = unsafe { state(context) } {
        state.applied.clear();
        state.invocations.clear();
        state.reported.clear();
        state.gaps = usize::MAX;
    }
}

/// The state of a context. `None`: it is not followed.
///
/// # Safety
/// Our caller's caller uses the context, and no other reference to its state is alive.
unsafe fn state(context: Pointer) -> Option<&'static mut AdapterState> {
    let cell = STATES.get(contexts::place_of(context)?)?;
    // SAFETY: see `StateCell`: the caller is the only one that uses the context now.
    Some(unsafe { &mut *cell.0.get() })
}
