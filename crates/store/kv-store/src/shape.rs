//! States of models whose cache cannot go back to any position: with sliding windows, recurrent, or both.
//!
//! ```text
//!  [u32 magic, i32 sequence]      since 2026
//!  the dense part                 as crate::layout has it; a recurrent model has none
//!  the tail                       sliding-window layers, recurrent states
//! ```
//!
//! The rows of the dense part depend on their own tokens and those before them, like all rows. The tail is what
//! the model knows at one position, and says nothing about any other: so it is kept whole. The engine writes it
//! alone if it is asked for a *partial* state (`LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY`), so the size of that says
//! where the dense part ends.

use sha2::{Digest, Sha256};

use crate::bytes::Bytes;
use crate::layout::{MAGIC, MOST};
use crate::numbers::Kind;
use crate::{Layout, LayoutError, SequenceState, prove};

/// How the states of one context are divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    dense: Option<Layout>,
    magic: bool,
    /// The first word of a tail: how many streams it has, or that it has one cell. A tail of a cache with other streams
    /// is not taken by the engine.
    first: [u8; 4],
}

/// Magic number and sequence.
const PREFIX: usize = 8;

impl Shape {
    /// Proves that a state is divided in this way. Both states must be of the same sequence at the same position, which
    /// holds two tokens or more.
    ///
    /// # Errors
    /// The partial state is not the end of the whole one, or what comes before it is not understood.
    pub fn prove(whole: &[u8], partial: &[u8]) -> Result<Self, LayoutError> {
        let magic = whole.starts_with(&MAGIC.to_le_bytes());
        let prefix = if magic { PREFIX } else { 0 };
        let tail = partial.get(prefix..).ok_or(LayoutError::Short)?;
        if partial[..prefix] != whole[..prefix.min(whole.len())] || !whole.ends_with(tail) {
            return Err(LayoutError::Differs);
        }
        let first = tail.get(..4).ok_or(LayoutError::Short)?;
        let end = whole.len() - tail.len();
        let dense = match end.checked_sub(prefix) {
            None => return Err(LayoutError::Short),
            Some(0) => None,
            Some(_) => Some(prove(&whole[..end])?),
        };
        Ok(Self {
            dense,
            magic,
            first: std::array::from_fn(|i| first[i]),
        })
    }

    /// The layout of the dense part, if there is one.
    pub fn dense(&self) -> Option<&Layout> {
        self.dense.as_ref()
    }

    /// A hash of what is not in every state the same: see [`Layout::digest`].
    pub fn digest(&self) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(b"shape");
        hash.update(self.first);
        if let Some(dense) = &self.dense {
            hash.update(dense.digest());
        }
        let whole = hash.finalize();
        std::array::from_fn(|i| whole[i])
    }

    /// The bytes of a token in a chunk; the tail is not of any token.
    pub fn bytes_per_token(&self) -> usize {
        self.dense.as_ref().map_or(0, Layout::bytes_per_token)
    }

    /// The size of a state with so many tokens and this tail, bytes. `usize::MAX` if there can be none.
    pub fn state_size(&self, tokens: usize, tail: usize) -> usize {
        let dense = self.dense.as_ref();
        let before = dense.map_or(self.prefix(), |dense| dense.state_size(tokens));
        before.saturating_add(tail)
    }

    /// Divides a state, of which the engine says that its partial state has `partial` bytes. `None`: it has not this
    /// shape, or its dense part does not hold exactly these tokens, as far as their positions say.
    pub fn divide<'a>(
        &self,
        whole: &'a [u8],
        partial: usize,
        tokens: &[i32],
    ) -> Option<(Option<SequenceState<'a>>, &'a [u8])> {
        let end = whole
            .len()
            .checked_sub(partial.checked_sub(self.prefix())?)?;
        let (before, tail) = whole.split_at(end);
        if !tail.starts_with(&self.first) {
            return None;
        }
        let dense = match &self.dense {
            None if before.len() != self.prefix() => return None,
            None => None,
            Some(layout) => {
                let state = SequenceState::read(before).ok()?;
                let good = state.layout() == layout && state.is_of(tokens);
                Some(good.then_some(state)?)
            }
        };
        Some((dense, tail))
    }

    /// The tail in a partial state.
    pub fn tail_of<'a>(&self, partial: &'a [u8]) -> Option<&'a [u8]> {
        let tail = partial.get(self.prefix()..)?;
        tail.starts_with(&self.first).then_some(tail)
    }

    /// Makes of a tail that has sliding windows, and nothing else, what the engine writes of another sequence: see
    /// [`Layout::readdress`]. The cells of both parts are written in the same way.
    #[must_use]
    pub fn readdress_windows(&self, tail: &mut [u8], sequence: i32) -> bool {
        let dense = self.dense.as_ref();
        dense.is_some_and(|dense| dense.readdress(tail, sequence))
    }

    /// What the state of a sequence begins with, before its dense part and its tail.
    pub fn begin(&self, sequence: i32, state: &mut Vec<u8>) {
        state.clear();
        if self.magic {
            state.extend(MAGIC.to_le_bytes());
            state.extend(sequence.to_le_bytes());
        }
    }

    fn prefix(&self) -> usize {
        if self.magic { PREFIX } else { 0 }
    }
}

/// Whether the values of a tail ([`Shape`]) are finite numbers, as far as it is understood: as sliding
/// windows, which are laid out as a dense part, or as recurrent states:
///
/// ```text
/// u32 cells, per cell i32 position, u32 sequences, [i32 of each]
/// u32 transposed, u32 layers
/// per layer that has one i32 type, u64 row size, the rows of all cells      twice: what was last, and the state
/// ```
pub fn is_tail_finite(tail: &[u8]) -> bool {
    match SequenceState::read(tail) {
        Ok(state) => state.is_finite(),
        Err(_) => is_recurrent_finite(&mut Bytes(tail)).unwrap_or(true),
    }
}

/// `None`: it is not understood.
fn is_recurrent_finite(bytes: &mut Bytes<'_>) -> Option<bool> {
    let cells = bytes.u32()? as usize;
    for _ in 0..cells {
        let _position = bytes.u32()?;
        let sequences = bytes.u32()? as usize;
        bytes.take(sequences.checked_mul(4)?)?;
    }
    let transposed = bytes.u32()?;
    let layers = bytes.u32()? as usize;
    if transposed != 0 || layers > MOST {
        return None;
    }
    let mut is_finite = true;
    let mut parts = 0;
    while !bytes.0.is_empty() {
        let kind = bytes.u32()? as i32;
        let size = usize::try_from(bytes.u64()?).ok()?;
        let rows = bytes.take(size.checked_mul(cells)?)?;
        is_finite &= Kind::from_ggml_type(kind)?.are_finite(rows);
        parts += 1;
    }
    (parts <= 2 * layers).then_some(is_finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As engines of 2025 and 2026 write the tail of a recurrent model: a layer with attention has none.
    #[test]
    fn recurrent_states_are_looked_at() {
        let tail = |value: f32| {
            let words = [1_u32, 17, 0, 0, 3];
            let mut tail: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            for rows in [
                [0.5_f32; 6],
                [1.0; 6],
                [2.0; 6],
                [f32::MAX, value, 0.0, 0.0, 0.0, 0.0],
            ] {
                tail.extend(0_i32.to_le_bytes());
                tail.extend(24_u64.to_le_bytes());
                tail.extend(rows.iter().flat_map(|value| value.to_le_bytes()));
            }
            tail
        };
        assert!(is_tail_finite(&tail(-7.0)));
        assert!(!is_tail_finite(&tail(f32::NAN)));
        assert!(!is_tail_finite(&tail(f32::INFINITY)));
        let mut longer = tail(f32::NAN);
        longer.push(0);
        assert!(is_tail_finite(&longer), "it is not understood");
        assert!(is_tail_finite(&[]));
    }
}
