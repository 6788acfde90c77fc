//! Host buffers: sequences that are saved there and restored.

use contextpilot_control::Change;
use contextpilot_residency::{BufferId, ContextId, Ledger, SequenceId};

use super::Observer;
use super::known::Kind;
use crate::names::names;
use crate::note::Now;

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
