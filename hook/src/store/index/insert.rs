//! A state becomes chunks, and what is new of them goes to the folder.

use std::ops::Range;
use std::sync::Arc;

use contextpilot_kv_files::clock;
use contextpilot_kv_store::{
    Chunk, Conditions, Fingerprint, Numbers, Refused, SequenceState, StateMap, is_tail_finite,
};

use super::{NOT_FINITE, StoreIndex};
use crate::store::context::ContextStore;
use crate::store::figures::{self, FIGURES};

/// Where the rows of a chunk are.
enum Rows {
    /// In a state that is handed over as a whole, and stays in memory until all of its chunks are written.
    InState(Arc<Vec<u8>>, Arc<StateMap>),
    /// By themselves, and what they consist of, if that is still to be looked at.
    Cut(Arc<Vec<u8>>, Option<Arc<Numbers>>),
}

/// Why a chunk is not inserted.
#[derive(PartialEq, Eq)]
enum Lost {
    /// The writer does not take it.
    Refused,
    /// The state does not have its rows, or the budget no room.
    Unfit,
}

impl StoreIndex {
    /// Inserts what is new in a state of these tokens, with the rows from a position on. `part`: the size of the part of it that cannot
    /// be cut back, if there is such a part. `None`: it is a state of something else, and nothing is inserted.
    pub(in crate::store) fn insert_state(
        &mut self,
        record: &ContextStore,
        (fingerprint, conditions, tokens): (Fingerprint, Conditions, &[i32]),
        (state, rows_from): (&[u8], usize),
        ours: Option<&Arc<Vec<u8>>>,
        part: Option<usize>,
    ) -> Option<()> {
        match part {
            None => {
                let layout = record.layout()?;
                let state = SequenceState::read(state).ok()?;
                if state.layout() != layout || !state.is_of(tokens) {
                    return None;
                }
                self.insert(&fingerprint, tokens, &state.with_rows_from(rows_from), ours);
            }
            Some(part) => {
                let (dense, tail) = record.shape()?.divide(state, part, tokens)?;
                let dense = dense.map(|state| state.with_rows_from(rows_from));
                // A machine that gets them from the remote has seen no more of the prompt than stands before the tail.
                let ends = match self.elsewhere {
                    Some(_) => record.tails.within(tokens),
                    None => Vec::new(),
                };
                self.insert_bounded(&fingerprint, (tokens, &ends), dense.as_ref(), tail, ours);
            }
        }
        if self.length_of(&fingerprint, tokens) > 0 {
            self.note_origin(fingerprint, || record.origin(conditions));
        }
        Some(())
    }

    /// Inserts what is new in a state that holds these tokens. `ours`: memory that begins with the bytes of the state, if it
    /// may be kept until they are written.
    pub(super) fn insert(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        state: &SequenceState<'_>,
        ours: Option<&Arc<Vec<u8>>>,
    ) {
        self.settle();
        self.tree.now(clock::time());
        let bytes = state.layout().bytes_per_token();
        let missing = self.tree.missing(fingerprint, tokens, bytes);
        self.insert_missing(&missing, state, ours);
        self.count();
    }

    /// As [`insert`](Self::insert), of a state with a tail, which is inserted if all of its rows are. `dense`: the rows, if it has
    /// any. `ends`: a chunk ends behind each of these numbers of tokens.
    pub(super) fn insert_bounded(
        &mut self,
        fingerprint: &Fingerprint,
        (tokens, ends): (&[i32], &[usize]),
        dense: Option<&SequenceState<'_>>,
        tail: &[u8],
        ours: Option<&Arc<Vec<u8>>>,
    ) {
        self.settle();
        self.tree.now(clock::time());
        let bytes = dense.map_or(0, |state| state.layout().bytes_per_token());
        let missing = self.tree.missing_divided(fingerprint, tokens, bytes, ends);
        let all = match dense {
            Some(state) => self.insert_missing(&missing, state, ours),
            // Chunks of nothing, to which tails are tied.
            None => self.insert_all(&missing, true, |_| Some(Rows::Cut(Arc::default(), None))),
        };
        if all {
            let tail = Arc::new(tail.to_vec());
            self.insert_tail_if(fingerprint, tokens, &tail, !missing.is_empty());
        }
        self.count();
    }

    /// Inserts these chunks of a state, one after the other, as far as it goes. Whether that is all of them.
    fn insert_missing(
        &mut self,
        missing: &[Chunk],
        state: &SequenceState<'_>,
        ours: Option<&Arc<Vec<u8>>>,
    ) -> bool {
        let new: u64 = missing.iter().map(|chunk| chunk.bytes).sum();
        let room = self.writer.accepts(new).is_ok();
        // Else the thread would hold much for little.
        let is_most = 2 * new >= state.bytes().len() as u64 && state.has_all_rows();
        let handed = match ours {
            _ if !is_most || !room => None,
            Some(ours) => Some(Arc::clone(ours)),
            // Its rows would be cut out into fresh memory.
            None => self.copy(state.bytes()),
        };
        // Rows that are cut out take memory beside the state: of one that is ours, or of which only what is new was
        // copied, no more than that has.
        let takes_all = room && (ours.is_some() || handed.is_some() || !state.has_all_rows());
        let handed = handed.map(|bytes| (bytes, Arc::new(state.map().clone())));
        let numbers = Arc::new(state.layout().numbers());
        self.insert_all(missing, takes_all, |chunk| {
            if let Some((bytes, map)) = &handed {
                return Some(Rows::InState(Arc::clone(bytes), Arc::clone(map)));
            }
            let from = chunk.start as usize;
            let mut rows = Vec::new();
            let cut = state.extract(from..from + chunk.tokens.len(), &mut rows);
            cut.then(|| Rows::Cut(Arc::new(rows), Some(Arc::clone(&numbers))))
        })
    }

    /// Inserts rows of `size` bytes that are not KV: of these tokens, what is not there yet, as far as there are `rows`. A chunk ends
    /// behind each of these numbers of tokens.
    pub(in crate::store) fn insert_rows(
        &mut self,
        fingerprint: &Fingerprint,
        (tokens, ends): (&[i32], &[usize]),
        size: usize,
        rows: impl Fn(Range<usize>) -> Option<Vec<u8>>,
    ) {
        self.settle();
        self.tree.now(clock::time());
        for chunk in self.tree.missing_divided(fingerprint, tokens, size, ends) {
            let from = chunk.start as usize;
            let cut = |chunk: &Chunk| {
                let rows = rows(from..from + chunk.tokens.len())?;
                Some(Rows::Cut(Arc::new(rows), None))
            };
            if self.insert_chunk(&chunk, false, cut).is_err() {
                break;
            }
        }
        self.count();
    }

    /// A copy of a state, if there is memory ready for it.
    fn copy(&self, state: &[u8]) -> Option<Arc<Vec<u8>>> {
        let mut buffer = self.writer.buffer(state.len());
        if buffer.capacity() < state.len() {
            self.writer.give_back(buffer);
            return None;
        }
        buffer.clear();
        buffer.extend_from_slice(state);
        Some(Arc::new(buffer))
    }

    /// Inserts these chunks, one after the other, as far as it goes. Whether that is all of them. `takes_all`: the writer has
    /// room for all of them together.
    fn insert_all(
        &mut self,
        missing: &[Chunk],
        takes_all: bool,
        mut rows: impl FnMut(&Chunk) -> Option<Rows>,
    ) -> bool {
        let mut is_any = false;
        let mut all = true;
        for (nth, chunk) in missing.iter().enumerate() {
            match self.insert_chunk(chunk, takes_all, &mut rows) {
                Ok(0) => {}
                Ok(tokens) => {
                    is_any = true;
                    self.unwritten.insert(chunk.name, tokens);
                }
                Err(why) => {
                    if why == Lost::Refused {
                        figures::add(&FIGURES.lost_chunks, missing.len() - nth);
                    }
                    all = false;
                    break;
                }
            }
        }
        if is_any {
            figures::add(&FIGURES.saves, 1);
        }
        all
    }

    /// How many tokens are inserted by this.
    fn insert_chunk(
        &mut self,
        chunk: &Chunk,
        is_accepted: bool,
        rows: impl FnOnce(&Chunk) -> Option<Rows>,
    ) -> Result<usize, Lost> {
        if !is_accepted && self.writer.accepts(chunk.bytes).is_err() {
            // The disk is too slow, or refused something a moment ago: less is stored.
            return Err(Lost::Refused);
        }
        let rows = rows(chunk).ok_or(Lost::Unfit)?;
        let leaving = match self.tree.insert(chunk.clone()) {
            Ok(leaving) => leaving,
            // Another process wrote it, and it waited for the chunk before.
            Err(Refused::Known) => return Ok(0),
            Err(_) => return Err(Lost::Unfit),
        };
        self.changed += 1;
        for name in leaving {
            self.writer.remove(name);
        }
        let taken = match rows {
            Rows::InState(bytes, map) => self.writer.write_from(chunk, &bytes, &map),
            Rows::Cut(rows, numbers) => self.writer.write_accepted(chunk, rows, numbers),
        };
        if taken.is_err() {
            self.drop_chunk(chunk.name);
            return Err(Lost::Refused);
        }
        Ok(chunk.tokens.len())
    }

    /// Inserts the tail of a state that holds these tokens. False: their rows are not there yet, and it has to wait for them.
    pub(in crate::store) fn insert_tail(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        tail: &Arc<Vec<u8>>,
    ) -> bool {
        self.insert_tail_if(fingerprint, tokens, tail, false)
    }

    /// `is_accepted`: the writer has taken its rows a moment ago, which are of no use without it.
    fn insert_tail_if(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        tail: &Arc<Vec<u8>>,
        is_accepted: bool,
    ) -> bool {
        if self.tree.find(fingerprint, tokens).tokens() < tokens.len() {
            return false;
        }
        if !is_tail_finite(tail) {
            figures::note_refusal(NOT_FINITE);
            return true;
        }
        let chunk = self
            .tree
            .missing_tail(fingerprint, tokens, tail.len() as u64);
        if let Some(chunk) = chunk {
            let rows = |_: &Chunk| Some(Rows::Cut(Arc::clone(tail), None));
            if self.insert_chunk(&chunk, is_accepted, rows) == Err(Lost::Refused) {
                figures::add(&FIGURES.lost_chunks, 1);
            }
            self.count();
        }
        true
    }
}
