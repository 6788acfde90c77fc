//! What the store has of a context that cannot go back to any position: tokens with the rows of its dense part, and
//! tails behind some of them.

use contextpilot_kv_files::{LeftOut, ReadError};
use contextpilot_kv_store::{
    Composer, Fingerprint, Found, Layout, Piece, Shape, Tail, is_tail_finite, make_room,
};

use super::{StoreIndex, cut_to};
use crate::base::region::Region;
use crate::store::flow::Outline;

/// A state that can be put together.
pub(in crate::store) struct BoundedOffer {
    found: Found,
    tail: Tail,
}

impl BoundedOffer {
    /// The position at which the state was taken: how many tokens it stands for.
    pub(in crate::store) fn position(&self) -> usize {
        self.tail.piece.start
    }

    /// The size of its tail, bytes.
    fn tail_size(&self) -> usize {
        usize::try_from(self.tail.bytes).unwrap_or(usize::MAX)
    }

    /// What its dense part is made of.
    fn pieces(&self) -> Vec<Piece> {
        cut_to(self.found.pieces(), self.position())
    }
}

impl StoreIndex {
    /// The state behind the most of these tokens, and behind more than `held` of them.
    pub(in crate::store) fn offer_bounded(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        held: usize,
    ) -> Option<BoundedOffer> {
        let found = self.tree.find(fingerprint, tokens);
        let tail = self.tree.tails(&found).pop()?;
        (tail.piece.start > held).then_some(BoundedOffer { found, tail })
    }

    /// Whether a prompt that begins with these tokens may be on its way to a state: all of them are there, and behind
    /// them, or at their end, is one.
    pub(in crate::store) fn leads_to_state(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
    ) -> bool {
        let found = self.tree.find(fingerprint, tokens);
        found.tokens() == tokens.len() && self.tree.leads_to_tail(&found)
    }

    /// The position of the last state behind some of these tokens, or all; 0 if there is none.
    pub(in crate::store) fn last_state_in(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
    ) -> usize {
        let offer = self.offer_bounded(fingerprint, tokens, 0);
        offer.map_or(0, |offer| offer.position())
    }

    /// Puts the state together for a sequence that is to hold these tokens, or the first of them. False if something of it is gone or damaged; then that has left the store, and
    /// another offer may be asked for.
    pub(in crate::store) fn compose_bounded(
        &mut self,
        offer: &BoundedOffer,
        shape: &Shape,
        (sequence, tokens): (i32, &[i32]),
        state: &mut Vec<u8>,
    ) -> bool {
        let size = shape.state_size(offer.position(), offer.tail_size());
        if size > isize::MAX as usize {
            return false;
        }
        *state = self.buffer(state, size);
        make_room(state, size);
        let pieces = offer.pieces();
        match shape.dense() {
            None => shape.begin(sequence, state),
            Some(layout) => {
                let length = offer.position();
                let Ok(mut composer) = Composer::new(layout, sequence, 0..length, state) else {
                    return false;
                };
                composer.place_tokens(&tokens[..length]);
                if !self.put_all(composer, &pieces, None) {
                    return false;
                }
            }
        }
        if !self.append_tail(&offer.tail, state) {
            return false;
        }
        self.note_all_used(pieces, offer);
        true
    }

    /// As [`region_for`](Self::region_for).
    pub(in crate::store) fn region_for_bounded(
        &self,
        flows: bool,
        shape: &Shape,
        offer: &BoundedOffer,
    ) -> Option<Region> {
        let bytes = shape.state_size(offer.position(), offer.tail_size());
        self.region(flows, shape.dense()?, || offer.pieces(), bytes)
    }

    /// As [`compose_bounded`](Self::compose_bounded), without what can be brought from the files while the engine takes the
    /// state. `state` has its size. `None`: false.
    pub(in crate::store) fn outline_bounded(
        &mut self,
        offer: &BoundedOffer,
        layout: &Layout,
        (sequence, tokens): (i32, &[i32]),
        mut state: Region,
    ) -> Option<Outline> {
        let length = offer.position();
        let (dense, tail) = state.split_at_mut_checked(layout.state_size(length))?;
        let mut composer = Composer::within(layout, sequence, 0..length, dense).ok()?;
        composer.place_tokens(&tokens[..length]);
        let mut left_out = LeftOut::new(&self.folder);
        let pieces = offer.pieces();
        if !self.put_all(composer, &pieces, Some(&mut left_out)) {
            return None;
        }
        let mut bytes = Vec::new();
        if !self.append_tail(&offer.tail, &mut bytes) || bytes.len() != tail.len() {
            return None;
        }
        tail.copy_from_slice(&bytes);
        self.note_all_used(pieces, offer);
        Some(Outline { state, left_out })
    }

    fn note_all_used(&mut self, pieces: Vec<Piece>, offer: &BoundedOffer) {
        let used: Vec<_> = pieces.into_iter().chain([offer.tail.piece]).collect();
        self.note_used(&used);
    }

    /// Appends the tail that was taken behind exactly these tokens, which are one or more. False if there is none.
    pub(in crate::store) fn append_tail_at(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        partial: &mut Vec<u8>,
    ) -> bool {
        let offer = self.offer_bounded(fingerprint, tokens, tokens.len() - 1);
        let Some(BoundedOffer { tail, .. }) = offer else {
            return false;
        };
        let there = self.append_tail(&tail, partial);
        if there {
            self.note_used(&[tail.piece]);
        }
        there
    }

    /// False if it is gone or damaged; then it has left the store.
    fn append_tail(&mut self, tail: &Tail, state: &mut Vec<u8>) -> bool {
        let name = tail.piece.name;
        // What waits to be written was looked at before.
        if let Some(rows) = self.writer.pending(&name) {
            state.extend_from_slice(&rows);
            return rows.len() as u64 == tail.bytes;
        }
        let read = self.folder.read(&name, tail.bytes, &mut self.rows);
        let read = read.and_then(|()| {
            if is_tail_finite(&self.rows) {
                Ok(())
            } else {
                Err(ReadError::NOT_FINITE)
            }
        });
        match read {
            Ok(()) => {
                state.extend_from_slice(&self.rows);
                true
            }
            Err(error) => {
                self.cannot_read(name, &error);
                false
            }
        }
    }
}
