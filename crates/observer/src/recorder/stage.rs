//! What the recorder remembers of the last launch, batch and saved slot.

use contextpilot_residency::SequenceId;

/// What the server is doing. It tells why a slot is emptied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stage {
    /// A task was launched, and since then no batch was submitted and no request answered.
    launching: bool,
    /// The last batch failed, and the next one is not submitted yet.
    failing: bool,
    /// The last slot whose content was saved to the host prompt cache or loaded from it, since the last
    /// batch was submitted.
    exchanged: Option<(SequenceId, Exchange)>,
}

/// Whether a slot's content was saved to and loaded from the host prompt cache before a launch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exchange {
    pub(super) saved: bool,
    pub(super) loaded: bool,
}

impl Stage {
    pub(super) fn saved(&mut self, sequence: SequenceId) {
        self.exchange(sequence).saved = true;
    }

    pub(super) fn loaded(&mut self, sequence: SequenceId) {
        self.exchange(sequence).loaded = true;
    }

    fn exchange(&mut self, sequence: SequenceId) -> &mut Exchange {
        let last = self.exchanged.filter(|&(last, _)| last == sequence);
        let (_, exchange) = self
            .exchanged
            .insert(last.unwrap_or((sequence, Exchange::default())));
        exchange
    }

    /// Returns whether the slot was saved and loaded before this launch.
    pub(super) fn launched(&mut self, sequence: SequenceId) -> Exchange {
        self.launching = true;
        let exchanged = self.exchanged.take();
        let exchanged = exchanged.filter(|&(slot, _)| slot == sequence);
        exchanged.map(|(_, exchange)| exchange).unwrap_or_default()
    }

    pub(super) fn submitted(&mut self) {
        *self = Self::default();
    }

    pub(super) fn evaluated(&mut self, failed: bool) {
        self.failing = failed;
    }

    pub(super) fn answered(&mut self) {
        self.launching = false;
    }

    /// Whether the server itself may empty slots now. `clears_idle`: it empties idle slots when it launches a
    /// task.
    pub(super) fn empties_slots(&self, clears_idle: bool) -> bool {
        self.failing || self.launching && clears_idle
    }
}
