//! What is about to be lost before it is known under which name it is stored: the model's file is still being read for its
//! digest, or the folder is. It waits in memory, and is stored as soon as that is known. Nothing is loaded from here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_kv_engine::Tail;
use contextpilot_kv_store::{Conditions, common, worth};

use super::context::ContextStore;
use super::figures;
use super::index::StoreIndex;
use super::only_new::Copied;

use super::{Context, FLUSH, save, with_index, with_record};

/// Bytes that wait in all contexts together. The disk's queue, to which they go, has room for as many.
const MOST_BYTES: usize = 512 << 20;

static BYTES: AtomicUsize = AtomicUsize::new(0);

/// A state that waits for its name.
struct Waiting {
    tokens: Vec<i32>,
    conditions: Conditions,
    state: Arc<Vec<u8>>,
    /// The size of the part that cannot be cut back, in a context that cannot go back to any position.
    partial: Option<usize>,
    /// Tails that waited for the rows of this state.
    tails: Vec<Tail>,
    /// What counts of it.
    bytes: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The states of a context, the oldest first.
#[derive(Default)]
pub(super) struct Aside(Vec<Waiting>);

impl Aside {
    fn of(&self, conditions: Conditions) -> impl Iterator<Item = &Waiting> {
        let these = self.0.iter();
        these.filter(move |one| one.conditions == conditions)
    }

    /// How many of these tokens' rows wait.
    fn rows(&self, conditions: Conditions, tokens: &[i32]) -> usize {
        let shared = |one: &Waiting| common(&one.tokens, tokens);
        self.of(conditions).map(shared).max().unwrap_or(0)
    }

    /// How many tokens the longest beginning of these has of which a whole state waits.
    fn states(&self, conditions: Conditions, tokens: &[i32]) -> usize {
        let beginnings = self.of(conditions).map(|one| &one.tokens);
        let beginnings = beginnings.filter(|of| tokens.starts_with(of));
        beginnings.map(Vec::len).max().unwrap_or(0)
    }

    /// If there is too much then, the oldest leaves.
    fn add(&mut self, mut new: Waiting) {
        if new.partial.is_none() {
            // Its rows are those of the beginnings that wait.
            self.0.retain(|one| {
                one.conditions != new.conditions || !new.tokens.starts_with(&one.tokens)
            });
        }
        let tails = new.tails.iter().map(|tail| tail.bytes.len());
        let bytes = new.state.capacity() + tails.sum::<usize>();
        if bytes > MOST_BYTES {
            return;
        }
        while BYTES.load(Ordering::Relaxed).saturating_add(bytes) > MOST_BYTES {
            if self.0.is_empty() {
                return;
            }
            self.0.remove(0);
        }
        BYTES.fetch_add(bytes, Ordering::Relaxed);
        new.bytes = bytes;
        self.0.push(new);
    }
}

/// Whether what a sequence loses now has no name yet, and will have one.
pub(super) fn is_due(index: Option<&StoreIndex>, one: &mut ContextStore, sequence: i32) -> bool {
    let conditions = one.session.conditions(sequence);
    figures::is_awaited()
        && !one.is_refused()
        && conditions.is_some_and(|of| index.is_none() || one.fingerprint(of).is_none())
}

/// What is to be copied of a sequence that is about to keep only its first `kept` tokens, if anything is: all of it. (A copy
/// that is made in case of a crash, with a larger margin, would be lost by that as well.)
pub(super) fn wanted(
    one: &mut ContextStore,
    sequence: i32,
    kept: usize,
    margin: usize,
) -> Option<Copied> {
    let conditions = one.session.conditions(sequence)?;
    let tokens = one.session.believed(sequence)?;
    let there = if one.bounds.is_some() {
        one.aside.states(conditions, tokens)
    } else {
        one.aside.rows(conditions, tokens)
    };
    let layout = one.layout_of_rows();
    let has_room = layout.is_none_or(|layout| layout.state_size(tokens.len()) <= MOST_BYTES);
    let is_worth = worth::saving(tokens.len(), kept, there, one.rates.worth_saving(), margin);
    let is = is_worth && has_room && one.is_proven() && !one.session.is_draft(sequence, kept);
    (is && margin == 1).then(|| Copied::Whole(std::mem::take(&mut one.buffer)))
}

/// The state of a sequence waits for its name. `partial`: the size of the part of it that cannot be cut back, if there is one.
pub(super) fn put(
    one: &mut ContextStore,
    sequence: i32,
    state: &Arc<Vec<u8>>,
    partial: Option<usize>,
) {
    let known = one.session.conditions(sequence);
    let Some((conditions, tokens)) = known.zip(one.session.believed(sequence)) else {
        return;
    };
    let tokens = tokens.to_vec();
    let tails = one.tails.take_of(sequence);
    let is_beginning = |tail: &Tail| tokens.starts_with(&tail.tokens);
    let tails = tails.into_iter().filter(is_beginning).collect();
    one.aside.add(Waiting {
        tokens,
        conditions,
        state: Arc::clone(state),
        partial,
        tails,
        bytes: 0,
    });
}

/// Stores what waits, if its names are known by now.
pub(super) fn settle(context: Context<'_>) {
    if BYTES.load(Ordering::Relaxed) == 0 || figures::is_awaited() {
        return;
    }
    with_index(context, |index, one| {
        // Else another thread has it.
        if let Some(index) = index {
            for waiting in std::mem::take(&mut one.aside.0) {
                store(index, one, &waiting);
            }
        }
    });
}

fn store(index: &mut StoreIndex, one: &mut ContextStore, waiting: &Waiting) -> Option<()> {
    let fingerprint = one.fingerprint(waiting.conditions)?;
    let state = (&**waiting.state, 0);
    let of_whom = (fingerprint, waiting.conditions, &*waiting.tokens);
    save::keep_state(
        index,
        one,
        of_whom,
        state,
        Some(&waiting.state),
        waiting.partial,
    )?;
    for tail in &waiting.tails {
        if let Some(of) = one.fingerprint(tail.conditions) {
            index.keep_tail(&of, &tail.tokens, &tail.bytes);
        }
    }
    Some(())
}

/// The context is about to be freed. If it holds anything that has no name yet, that is waited for until then, and by a
/// process no longer than its end waits for files.
pub(super) fn await_names(context: Context<'_>, until: Instant) {
    const TURN: Duration = Duration::from_millis(1);
    static WAITED: AtomicU64 = AtomicU64::new(0);
    if !figures::is_awaited() {
        return;
    }
    let holds_any = with_record(context, |one| {
        let mut all = one.session.sequences();
        let is_long = |id| (one.session.believed(id)).is_some_and(|of| of.len() >= worth::LEAST);
        !one.is_refused() && (!one.aside.0.is_empty() || all.any(is_long))
    });
    let left = FLUSH.saturating_sub(Duration::from_micros(WAITED.load(Ordering::Relaxed)));
    let start = Instant::now();
    let until = until.min(start + left);
    while holds_any == Some(true) && figures::is_awaited() && Instant::now() < until {
        thread::sleep(TURN);
    }
    let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    WAITED.fetch_add(micros, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(tokens: &[i32], conditions: u32, bytes: usize) -> Waiting {
        Waiting {
            tokens: tokens.to_vec(),
            conditions: Conditions(conditions),
            state: Arc::new(Vec::with_capacity(bytes)),
            partial: None,
            tails: Vec::new(),
            bytes: 0,
        }
    }

    #[test]
    fn a_beginning_leaves_for_what_continues_it_and_the_oldest_if_there_is_too_much() {
        let mut aside = Aside::default();
        aside.add(waiting(&[1, 2, 3], 0, 100));
        aside.add(waiting(&[1, 2, 3], 1, 100));
        aside.add(waiting(&[1, 2, 3, 4], 0, 200));
        assert_eq!(aside.0.len(), 2, "those under other conditions stay");
        assert_eq!(BYTES.load(Ordering::Relaxed), 300);
        let (these, others) = (Conditions(0), Conditions(1));
        assert_eq!(aside.rows(these, &[1, 2, 3, 4, 5]), 4);
        assert_eq!(aside.rows(these, &[1, 2, 9]), 2);
        assert_eq!(aside.states(these, &[1, 2, 3, 4, 5]), 4);
        assert_eq!(aside.states(these, &[1, 2, 3]), 0);
        assert_eq!(aside.rows(others, &[1, 2, 3, 4]), 3);

        // Memory that is never touched.
        aside.add(waiting(&[7], 0, MOST_BYTES - 250));
        assert_eq!(aside.0.len(), 2);
        assert_eq!(aside.rows(others, &[1]), 0, "the oldest");
        aside.add(waiting(&[8], 0, MOST_BYTES + 1));
        assert_eq!(
            aside.rows(these, &[7]),
            1,
            "what never has room puts nothing out"
        );
        drop(aside);
        assert_eq!(BYTES.load(Ordering::Relaxed), 0);
    }
}
