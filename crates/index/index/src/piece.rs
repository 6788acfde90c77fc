//! A piece of a request: what it may cost, and what follows it.

/// What is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A piece that needs the state: [`Index::proceed`](crate::Index::proceed).
    State,
    /// A piece that needs no state, and may take long: [`Work::compute`](crate::Work::compute).
    Alone,
    /// All is done: [`Work::answer`](crate::Work::answer).
    Answer,
}

/// How much is done in one piece, counted in blocks: a few milliseconds.
const PIECE: usize = 4096;

/// A context with more blocks is placed in two pieces.
pub(crate) const HALF: usize = PIECE / 2;

/// Counts what is done in a piece.
#[derive(Debug, Default)]
pub(crate) struct Piece(usize);

impl Piece {
    /// Something was done that takes as long as so many blocks.
    pub(crate) fn done(&mut self, blocks: usize) {
        self.0 += blocks;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0 >= PIECE
    }

    /// How many blocks still fit.
    pub(crate) fn left(&self) -> usize {
        PIECE.saturating_sub(self.0)
    }
}

/// What a request costs that has no blocks, in blocks.
pub(crate) const REQUEST: usize = 16;
