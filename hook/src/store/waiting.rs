//! States that wait in memory until it is known under which names they are stored ([`save`](super::save)).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use contextpilot_kv_engine::Tail;
use contextpilot_kv_store::{Conditions, common};

/// Bytes that wait in all contexts together. The disk's queue, to which they go, has room for as many.
pub(super) const MOST_BYTES: usize = 512 << 20;

static BYTES: AtomicUsize = AtomicUsize::new(0);

/// A state that waits for its name.
pub(super) struct Waiting {
    pub(super) tokens: Vec<i32>,
    pub(super) conditions: Conditions,
    pub(super) state: Arc<Vec<u8>>,
    /// The size of the part that cannot be cut back, in a context that cannot go back to any position.
    pub(super) partial: Option<usize>,
    /// Tails that waited for the rows of this state.
    pub(super) tails: Vec<Tail>,
    /// What counts of it, once it waits.
    bytes: usize,
}

impl Waiting {
    /// Of these tails, those that are of its tokens wait with it.
    pub(super) fn new(
        conditions: Conditions,
        tokens: Vec<i32>,
        state: &Arc<Vec<u8>>,
        partial: Option<usize>,
        tails: Vec<Tail>,
    ) -> Self {
        let is_beginning = |tail: &Tail| tokens.starts_with(&tail.tokens);
        let tails = tails.into_iter().filter(is_beginning).collect();
        Self {
            tokens,
            conditions,
            state: Arc::clone(state),
            partial,
            tails,
            bytes: 0,
        }
    }
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
        these.filter(move |state| state.conditions == conditions)
    }

    /// How many of these tokens' rows wait.
    pub(super) fn rows(&self, conditions: Conditions, tokens: &[i32]) -> usize {
        let shared = |state: &Waiting| common(&state.tokens, tokens);
        self.of(conditions).map(shared).max().unwrap_or(0)
    }

    /// How many tokens the longest beginning of these has of which a whole state waits.
    pub(super) fn states(&self, conditions: Conditions, tokens: &[i32]) -> usize {
        let beginnings = self.of(conditions).map(|state| &state.tokens);
        let beginnings = beginnings.filter(|of| tokens.starts_with(of));
        beginnings.map(Vec::len).max().unwrap_or(0)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, which wait no longer.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Waiting> + use<> {
        std::mem::take(&mut self.0).into_iter()
    }

    /// If there is too much then, the oldest leaves.
    pub(super) fn add(&mut self, mut new: Waiting) {
        if new.partial.is_none() {
            // Its rows are those of the beginnings that wait.
            self.0.retain(|older| {
                older.conditions != new.conditions || !new.tokens.starts_with(&older.tokens)
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

/// Whether any state of any context waits.
pub(super) fn is_any() -> bool {
    BYTES.load(Ordering::Relaxed) > 0
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
