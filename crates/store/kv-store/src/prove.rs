//! Proves with a real state that states are understood.

use std::ops::Range;

use crate::{Composer, GRID, Layout, LayoutError, SequenceState};

/// Takes a state apart in pieces of several sizes, puts it together, and compares it byte for byte.
/// If the cells are not in the order of their positions, the rows are compared.
///
/// Takes two to three times the state's size in memory for a moment. A state of few tokens proves
/// as much as one of many; with two or more tokens, the order of rows is proven, too.
///
/// # Errors
/// The layout is not known, positions are missing, or the state is not the same.
pub fn prove(bytes: &[u8]) -> Result<Layout, LayoutError> {
    let state = SequenceState::read(bytes)?;
    let all = state.indexes().ok_or(LayoutError::Positions)?;
    let composed = compose(&state, &all).ok_or(LayoutError::Differs)?;
    let same = if state.is_in_order() {
        composed == bytes
    } else {
        let layout = state.layout();
        let again = SequenceState::read_as(&composed, layout)?;
        again.layout() == layout && rows(&state, &all) == rows(&again, &all)
    };
    if same && composed.len() == bytes.len() {
        Ok(state.layout().clone())
    } else {
        Err(LayoutError::Differs)
    }
}

/// A copy of the state, from pieces. Every second piece is the end of a larger chunk.
fn compose(state: &SequenceState<'_>, all: &Range<usize>) -> Option<Vec<u8>> {
    let mut buffer = Vec::new();
    let mut composer =
        Composer::new(state.layout(), state.sequence(), all.clone(), &mut buffer).ok()?;
    composer.place(state.cell_positions());
    let mut rows = Vec::new();
    let mut at = all.start;
    for take in [1, 2, 7].into_iter().chain(std::iter::repeat(GRID)) {
        if at == all.end {
            break;
        }
        let take = take.min(all.end - at);
        let skip = (at - all.start).min(take % 2);
        rows.clear();
        if !state.extract(at - skip..at + take, &mut rows) {
            return None;
        }
        composer.put(at, &rows, skip + take, skip, take).ok()?;
        at += take;
    }
    composer.finish().ok()?;
    Some(buffer)
}

fn rows(state: &SequenceState<'_>, all: &Range<usize>) -> Option<Vec<u8>> {
    let mut rows = Vec::new();
    state.extract(all.clone(), &mut rows).then_some(rows)
}
