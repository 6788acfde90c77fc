//! Rows that wait to be written.

use std::ops::Range;
use std::sync::{Arc, Weak};

use contextpilot_kv_store::{Chunk, State};

/// Rows of a chunk: cut out already, or still within the state of a sequence.
///
/// Cutting is a copy. If most of a state is new, the caller hands the whole state over, and the thread writes
/// the rows from where they stand.
#[derive(Clone, Debug)]
pub(super) enum Rows {
    Cut(Arc<Vec<u8>>),
    InState(Arc<Vec<u8>>, Range<usize>),
}

/// Rows for as long as the thread has them.
#[derive(Debug)]
pub(super) enum Waiting {
    Cut(Weak<Vec<u8>>),
    InState(Weak<Vec<u8>>, Range<usize>),
}

impl Rows {
    pub(super) fn waiting(&self) -> Waiting {
        match self {
            Self::Cut(rows) => Waiting::Cut(Arc::downgrade(rows)),
            Self::InState(state, range) => Waiting::InState(Arc::downgrade(state), range.clone()),
        }
    }

    /// The rows by themselves. `None`: the state is not one, or does not have these positions.
    pub(super) fn cut(&self) -> Option<Arc<Vec<u8>>> {
        match self {
            Self::Cut(rows) => Some(Arc::clone(rows)),
            Self::InState(state, range) => {
                let mut rows = Vec::new();
                let state = State::read(state).ok()?;
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
            Self::Cut(rows) => Some(take(rows)),
            Self::InState(state, range) => {
                let state = State::read(state).ok()?;
                state
                    .slices(range.clone())
                    .map(|mut slices| slices.try_for_each(take))
            }
        }
    }

    /// The size of the rows of this chunk, bytes.
    pub(super) fn size(&self, chunk: &Chunk) -> u64 {
        match self {
            Self::Cut(rows) => rows.len() as u64,
            Self::InState(..) => chunk.bytes,
        }
    }

    /// The memory behind them.
    pub(super) fn into_bytes(self) -> Arc<Vec<u8>> {
        match self {
            Self::Cut(bytes) | Self::InState(bytes, _) => bytes,
        }
    }
}

impl Waiting {
    pub(super) fn rows(&self) -> Option<Rows> {
        match self {
            Self::Cut(rows) => rows.upgrade().map(Rows::Cut),
            Self::InState(state, range) => {
                let state = state.upgrade()?;
                Some(Rows::InState(state, range.clone()))
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        let (Self::Cut(bytes) | Self::InState(bytes, _)) = self;
        bytes.strong_count() == 0
    }
}
