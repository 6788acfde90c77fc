//! The rules by which llama-server goes back in a bounded context: they differ by generation and flags.

/// The rules of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewinding {
    /// Which generation's rules it follows.
    pub generation: RewindGeneration,
    /// Checkpoints of a slot, at most (`--ctx-checkpoints`).
    pub checkpoints: u32,
    /// Tokens between two checkpoints that stay when there is no room for all
    /// (`--checkpoint-min-step`).
    pub min_step: u32,
}

impl Default for Rewinding {
    fn default() -> Self {
        Self {
            generation: RewindGeneration::Mid2026,
            checkpoints: 32,
            min_step: 8192,
        }
    }
}

/// Servers whose rules differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewindGeneration {
    /// With `llama_decode`.
    Early2026,
    /// With `llama_process`, before 0.7.0.
    Mid2026,
    /// Since build 11669 (0.7.0).
    Late2026,
}
