//! The rules by which the server chooses what it reuses.

/// The server's settings that decide what it reuses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// `--slot-prompt-similarity`: the share of a prompt that a slot must hold to be chosen for it.
    pub similarity: f32,
    /// The common beginning is compared with the slot's tokens, not with the prompt's. Servers from
    /// before the host prompt cache do this.
    pub of_slot: bool,
    /// `--cache-reuse`: the shortest chunk that is moved, in tokens. 0: no chunk is moved.
    pub cache_reuse: u32,
    /// Launches are found by prompts ([`Prompts`](crate::Prompts)). So a launch is known only after
    /// the server has made room for the prompt in the slot.
    pub tied: bool,
}

impl Default for Rules {
    /// The defaults of llama-server.
    fn default() -> Self {
        Self {
            similarity: 0.1,
            of_slot: false,
            cache_reuse: 0,
            tied: false,
        }
    }
}

impl Rules {
    /// The defaults of servers from before the host prompt cache (it came in autumn 2025).
    #[must_use]
    pub fn of_2025() -> Self {
        Self {
            similarity: 0.5,
            of_slot: true,
            ..Self::default()
        }
    }

    /// How similar a slot is to a prompt, if it is similar enough to be chosen for that. Computed in
    /// `f32`, as by the server.
    pub(super) fn similarity(&self, common: u32, prompt: u32, held: u32) -> Option<f32> {
        let whole = if self.of_slot { held } else { prompt };
        let share = common as f32 / whole as f32;
        (self.similarity != 0.0 && share > self.similarity).then_some(share)
    }
}
