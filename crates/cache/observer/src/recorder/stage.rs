//! What the recorder remembers of the last launch, batch and saved slot.

use contextpilot_residency::{Arrival, SequenceId};

/// What the server is doing. It tells why a slot is emptied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stage {
    /// The task that was launched last, if since then no batch was submitted, and it was not answered. The answer of an
    /// earlier one may be sent meanwhile: other threads of the server do that.
    launching: Option<Launch>,
    /// The last batch failed, and the next one is not submitted yet.
    failing: bool,
    /// The last slot whose content was saved to the host prompt cache or loaded from it, since the last
    /// batch was submitted.
    exchanged: Option<(SequenceId, Exchange)>,
}

#[derive(Clone, Copy, Debug)]
struct Launch {
    arrival: Option<Arrival>,
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
    pub(super) fn launched(&mut self, sequence: SequenceId, arrival: Option<Arrival>) -> Exchange {
        self.launching = Some(Launch { arrival });
        let exchanged = self.exchanged.take();
        let of_slot = exchanged.filter(|&(slot, _)| slot == sequence);
        of_slot.map(|(_, exchange)| exchange).unwrap_or_default()
    }

    pub(super) fn submitted(&mut self) {
        *self = Self::default();
    }

    pub(super) fn evaluated(&mut self, failed: bool) {
        self.failing = failed;
    }

    pub(super) fn answered(&mut self, arrival: Arrival) {
        let goes_on = |launch: &Launch| launch.arrival != Some(arrival);
        self.launching = self.launching.filter(goes_on);
    }

    /// Whether the last batch has failed.
    pub(super) fn fails(&self) -> bool {
        self.failing
    }

    /// Whether the server itself may empty slots now. `clears_idle`: it empties idle slots when it launches a
    /// task.
    pub(super) fn empties_slots(&self, clears_idle: bool) -> bool {
        self.failing || self.launching.is_some() && clears_idle
    }
}
