//! Contexts. The oldest living one is the primary context: its sequences are the slots.

use super::*;

impl Ledger {
    pub(super) fn context_created(&mut self, context: ContextId) {
        if !self.contexts.contains(&context) {
            self.contexts.push(context);
        }
    }

    pub(super) fn context_freed(&mut self, context: ContextId, facts: &mut Vec<Fact>) {
        let primary = self.contexts.first() == Some(&context);
        self.tell(facts, || Fact::ContextFreed { context, primary });
        self.contexts.retain(|&other| other != context);
        self.reaches.forget_context(context);
        self.adapters.forget_context(context);
        if primary {
            if let Some(jobs) = &mut self.jobs {
                jobs.lose_slots();
            }
            self.empty_all(Reason::ContextFreed, facts);
            self.in_flight.clear();
            self.evaluating = false;
            self.unheard = false;
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

    /// Whether the server's slots are sequences of this context. A context that
    /// was never announced counts as the oldest if there is no other.
    pub(super) fn is_primary(&mut self, context: ContextId) -> bool {
        if self.contexts.is_empty() {
            self.contexts.push(context);
        }
        self.contexts.first() == Some(&context)
    }
}
