//! The end of a context.

use super::Ledger;
use crate::fact::{Fact, Place, Reason};
use crate::ids::ContextId;

impl Ledger {
    pub(super) fn context_freed(&mut self, context: ContextId, facts: &mut Vec<Fact>) {
        let primary = self.contexts.freed(context);
        self.tell(facts, || Fact::ContextFreed { context, primary });
        self.reaches.forget_context(context);
        self.adapters.forget_context(context);
        if primary {
            if let Some(jobs) = &mut self.jobs {
                jobs.lose_slots(facts);
            }
            self.empty_all(Reason::ContextFreed, facts);
            self.batch.drop_all();
            self.gap.unheard = false;
            self.reaches.clear();
            // No slot outlives its context, nor does the task that it works on.
            for (_, mut sequence) in std::mem::take(&mut self.sequences) {
                self.abandon(sequence.launch.take(), facts);
                self.release(sequence.holder, Reason::ContextFreed, Place::Nowhere, facts);
            }
            // The server makes a new host prompt cache for its next context, and drops the old one
            // only then. Until then no request can use an entry of it.
            let mut buffers: Vec<_> = self.buffers.drain().collect();
            buffers.sort_unstable_by_key(|&(buffer, _)| buffer);
            for (_, holder) in buffers {
                self.release(holder, Reason::ContextFreed, Place::Host, facts);
            }
        }
    }
}
