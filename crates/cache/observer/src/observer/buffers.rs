//! Host buffers: sequences that are saved there and restored.

use std::sync::Arc;

use contextpilot_control::{Change, Memory};
use contextpilot_residency::{BufferId, ContextId, Ledger, SequenceId};

use super::Observer;
use crate::names::names;
use crate::note::Now;

#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    pub(crate) bytes: u64,
    pub(crate) kind: Kind,
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
    /// A slot was copied to a buffer.
    pub(super) fn saved(
        &mut self,
        sequence: SequenceId,
        buffer: BufferId,
        tokens: u32,
        now: Now,
        ledger: &Ledger,
    ) {
        let bytes = self.buffers.get_mut(&buffer).map(|buffer| {
            buffer.kind = Kind::Sequence;
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

    /// A slot was loaded from a buffer.
    pub(super) fn restored(
        &mut self,
        sequence: SequenceId,
        tokens: u32,
        now: Now,
        ledger: &Ledger,
    ) {
        let change = Change::Restored {
            ids: names(ledger, sequence),
            slot: sequence,
            tokens,
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
