//! Rows that wait to be written.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use contextpilot_kv_store::{Chunk, Numbers, StateMap};

/// Rows of a chunk: cut out already, or still within the state of a sequence.
///
/// Cutting is a copy. If most of a state is new, the caller hands the whole state over, and the thread writes
/// the rows from where they stand. The state's map comes with it: to read a state for each of its chunks would take as
/// long as its tokens are many, for each 256 of them (2 s of a processor for 100,000 tokens).
#[derive(Clone, Debug)]
pub(super) enum Rows {
    Cut(Arc<Vec<u8>>, Option<Arc<Numbers>>),
    InState(Arc<Vec<u8>>, Arc<StateMap>, Range<usize>),
}

/// What the thread has been told of a chunk last: rows for as long as it has them, or that the file is to be removed, for as
/// long as it has not done that.
#[derive(Debug)]
pub(super) enum Waiting {
    Cut(Weak<Vec<u8>>),
    InState(Weak<Vec<u8>>, Arc<StateMap>, Range<usize>),
    Removal(Weak<AtomicBool>),
}

impl Rows {
    pub(super) fn waiting(&self) -> Waiting {
        match self {
            Self::Cut(rows, _) => Waiting::Cut(Arc::downgrade(rows)),
            Self::InState(state, map, range) => {
                Waiting::InState(Arc::downgrade(state), Arc::clone(map), range.clone())
            }
        }
    }

    /// The rows by themselves. `None`: the state is not that of the map, or does not have these positions.
    pub(super) fn cut(&self) -> Option<Arc<Vec<u8>>> {
        match self {
            Self::Cut(rows, _) => Some(Arc::clone(rows)),
            Self::InState(state, map, range) => {
                let mut rows = Vec::new();
                let state = map.state_in(state)?;
                state
                    .extract(range.clone(), &mut rows)
                    .then(|| Arc::new(rows))
            }
        }
    }

    /// Passes the rows on in order, slice by slice, until `take` refuses one. `None` as for [`cut`](Self::cut).
    pub(super) fn each<E>(
        &self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        match self {
            Self::Cut(rows, _) => Some(take(rows)),
            Self::InState(state, map, range) => {
                let state = map.state_in(state)?;
                state
                    .slices(range.clone())
                    .map(|mut slices| slices.try_for_each(take))
            }
        }
    }

    /// What they consist of.
    pub(super) fn numbers(&self) -> Cow<'_, Numbers> {
        match self {
            Self::Cut(_, numbers) => Cow::Borrowed(numbers.as_deref().unwrap_or(Numbers::ANY)),
            Self::InState(_, map, _) => Cow::Owned(map.layout().numbers()),
        }
    }

    /// The size of the rows of this chunk, bytes.
    pub(super) fn size(&self, chunk: &Chunk) -> u64 {
        match self {
            Self::Cut(rows, _) => rows.len() as u64,
            Self::InState(..) => chunk.bytes,
        }
    }

    /// The memory behind them.
    pub(super) fn into_bytes(self) -> Arc<Vec<u8>> {
        match self {
            Self::Cut(bytes, _) | Self::InState(bytes, ..) => bytes,
        }
    }
}

impl Waiting {
    pub(super) fn rows(&self) -> Option<Rows> {
        match self {
            Self::Cut(rows) => rows.upgrade().map(|rows| Rows::Cut(rows, None)),
            Self::InState(state, map, range) => {
                let state = state.upgrade()?;
                Some(Rows::InState(state, Arc::clone(map), range.clone()))
            }
            Self::Removal(_) => None,
        }
    }

    pub(super) fn is_removal(&self) -> bool {
        matches!(self, Self::Removal(_))
    }

    /// The file stays. False: it was to be written, or its removal has begun.
    pub(super) fn call_removal_off(&self) -> bool {
        match self {
            Self::Removal(queued) => {
                let begun = queued.upgrade();
                begun.is_some_and(|begun| !begun.swap(true, Ordering::AcqRel))
            }
            Self::Cut(_) | Self::InState(..) => false,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        let holders = match self {
            Self::Cut(bytes) | Self::InState(bytes, ..) => bytes.strong_count(),
            Self::Removal(queued) => queued.strong_count(),
        };
        holders == 0
    }
}
