//! The rules by which the server chooses what it reuses.

/// What the server was told that decides what it reuses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// `--slot-prompt-similarity`: the share of a prompt that a slot must hold to be chosen for it.
    pub similarity: f32,
    /// The share that counts is that of what the slot holds, not of the prompt: so in servers of
    /// before the host prompt cache.
    pub of_slot: bool,
    /// `--cache-reuse`: tokens of the shortest chunk that is moved; 0: none is.
    pub cache_reuse: u32,
    /// Prompts are tied to requests by their tokens ([`Prompts`](crate::Prompts)): a slot is known to
    /// take on a task only when it has made room for it.
    pub tied: bool,
}

impl Default for Rules {
    /// What llama-server takes unless it is told otherwise.
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
    /// What servers of before the host prompt cache take (autumn 2025).
    #[must_use]
    pub fn of_2025() -> Self {
        Self {
            similarity: 0.5,
            of_slot: true,
            ..Self::default()
        }
    }

    /// How similar a slot is to a prompt, if it is similar enough to be chosen for that. In the
    /// engine's arithmetic.
    pub(super) fn similarity(&self, common: u32, prompt: u32, held: u32) -> Option<f32> {
        let whole = if self.of_slot { held } else { prompt };
        let share = common as f32 / whole as f32;
        (self.similarity != 0.0 && share > self.similarity).then_some(share)
    }
}
