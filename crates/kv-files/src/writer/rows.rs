//! Rows that wait to be written.

use std::ops::Range;
use std::sync::{Arc, Weak};

use contextpilot_kv_store::{Chunk, State, StateMap};

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

/// The state that was read last. Most chunks are of the same state as the one before: to read it for each of them would
/// take as long as its tokens are many, for each 256 of them (2 s of a processor for 100,000 tokens).
#[derive(Debug, Default)]
pub(super) struct Read(Option<(Weak<Vec<u8>>, StateMap)>);

impl Read {
    /// `None`: it is no state.
    fn state<'a>(&'a mut self, bytes: &'a Arc<Vec<u8>>) -> Option<State<'a>> {
        // Where the address is the same, it is the same state: the address is not used again while it is kept here.
        let is_this =
            |(last, _): &(Weak<Vec<u8>>, _)| std::ptr::eq(last.as_ptr(), &raw const **bytes);
        if !self.0.as_ref().is_some_and(is_this) {
            let map = State::read(bytes).ok()?.into_map();
            self.0 = Some((Arc::downgrade(bytes), map));
        }
        let (_, map) = self.0.as_ref()?;
        map.of(bytes)
    }
}

impl Rows {
    pub(super) fn waiting(&self) -> Waiting {
        match self {
            Self::Cut(rows) => Waiting::Cut(Arc::downgrade(rows)),
            Self::InState(state, range) => Waiting::InState(Arc::downgrade(state), range.clone()),
        }
    }

    /// The rows by themselves. `None`: the state is not one, or does not have these positions.
    pub(super) fn cut(&self, read: &mut Read) -> Option<Arc<Vec<u8>>> {
        match self {
            Self::Cut(rows) => Some(Arc::clone(rows)),
            Self::InState(state, range) => {
                let mut rows = Vec::new();
                let state = read.state(state)?;
                state
                    .extract(range.clone(), &mut rows)
                    .then(|| Arc::new(rows))
            }
        }
    }

    /// Passes the rows on in order, slice by slice, until `take` refuses one. `None` as for [`cut`](Self::cut).
    pub(super) fn each<E>(
        &self,
        read: &mut Read,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        match self {
            Self::Cut(rows) => Some(take(rows)),
            Self::InState(state, range) => {
                let state = read.state(state)?;
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
