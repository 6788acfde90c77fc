//! Host buffers: sequences that are saved there and restored.

use std::sync::Arc;

use contextpilot_control::{Change, Memory};
use contextpilot_residency::{BufferId, ContextId, Ledger, SequenceId};

use super::Observer;
use crate::names::names;
use crate::note::Now;
use crate::prompt::Surplus;

/// What the observer has to look at when the ledger has applied an event.
#[derive(Debug)]
#[must_use]
pub enum After {
    /// Nothing.
    Nothing,
    /// Whether the sequence was saved to the buffer.
    Saved(SequenceId, BufferId),
    /// Whether the sequence was restored from a buffer that is known.
    Restored(SequenceId, BufferId),
}

#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
    /// The surplus of the sequence that was saved.
    pub(super) surplus: Surplus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only its size is known yet.
    Sized,
    Sequence,
    Checkpoint,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    pub(crate) capacity: Option<u32>,
    pub(crate) slots: Option<u32>,
    pub(crate) can_shift: Option<bool>,
    pub(crate) memory: Memory,
    pub(crate) model: Option<Arc<str>>,
    /// The tokens and bytes of the longest sequence whose size is known.
    pub(crate) measured: (u32, u64),
}

impl Context {
    pub(crate) fn bytes_per_token(&self) -> Option<f64> {
        let (tokens, bytes) = self.measured;
        (tokens > 0).then(|| bytes as f64 / f64::from(tokens))
    }
}

impl Observer {
    /// A sequence may have been saved: it was if the ledger knows the buffer now.
    pub(super) fn saved(
        &mut self,
        sequence: SequenceId,
        buffer: BufferId,
        now: Now,
        ledger: &Ledger,
    ) {
        if !ledger.knows(buffer) {
            self.buffers.remove(&buffer);
            return;
        }
        let tokens = ledger.held(sequence);
        let slot = self.slots.get(&sequence);
        let bytes = self.buffers.get_mut(&buffer).map(|buffer| {
            buffer.kind = Kind::Sequence;
            buffer.surplus = slot.map_or_else(Surplus::default, |s| s.surplus.clone());
            buffer.bytes
        });
        if let (Some(bytes), Some(context)) = (bytes, ledger.primary()) {
            self.measured(context, tokens, bytes);
        }
        let change = Change::MovedToHost {
            ids: names(ledger, sequence),
            slot: sequence,
            tokens,
            bytes,
        };
        self.change(change, now);
    }

    /// A sequence was restored from a buffer that was known.
    pub(super) fn restored(
        &mut self,
        sequence: SequenceId,
        buffer: BufferId,
        now: Now,
        ledger: &Ledger,
    ) {
        let surplus = self.buffers.get(&buffer).map(|b| b.surplus.clone());
        let slot = self.slots.entry(sequence).or_default();
        slot.surplus = surplus.unwrap_or_default();
        let change = Change::Restored {
            ids: names(ledger, sequence),
            slot: sequence,
            tokens: ledger.held(sequence),
        };
        self.change(change, now);
    }

    pub(super) fn measured(&mut self, context: ContextId, tokens: u32, bytes: u64) {
        let context = self.contexts.entry(context).or_default();
        if tokens > context.measured.0 {
            context.measured = (tokens, bytes);
        }
    }
}
