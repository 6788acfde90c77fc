//! The living contexts.

use crate::ids::ContextId;

/// The living contexts, oldest first. The first is the primary context: its sequences are the slots.
#[derive(Debug, Default)]
pub(crate) struct Contexts(Vec<ContextId>);

impl Contexts {
    /// `None`: there is no context.
    pub(crate) fn primary(&self) -> Option<ContextId> {
        self.0.first().copied()
    }

    /// Whether the server's slots are sequences of this context. A context that was never announced
    /// counts as the oldest if there is no other.
    pub(crate) fn is_primary(&mut self, context: ContextId) -> bool {
        if self.0.is_empty() {
            self.0.push(context);
        }
        self.primary() == Some(context)
    }

    pub(crate) fn created(&mut self, context: ContextId) {
        if !self.0.contains(&context) {
            self.0.push(context);
        }
    }

    /// Returns whether it was the primary context.
    pub(crate) fn freed(&mut self, context: ContextId) -> bool {
        let primary = self.primary() == Some(context);
        self.0.retain(|&other| other != context);
        primary
    }
}
