use serde::{Deserialize, Serialize};

/// The server's flags that decide what it reuses, and what its context can do: part of
/// [`Stats`](crate::Stats). A flag that was not given has the server's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Flags {
    /// `--parallel`: the number of slots. `None`: there is no context yet.
    pub parallel: Option<u32>,
    /// `--kv-unified`: the slots share the context. If not, they divide it.
    pub kv_unified: bool,
    /// `--slot-prompt-similarity`: the share of a prompt that a slot must hold to be chosen for it. 0: slots
    /// are chosen by age alone.
    pub slot_prompt_similarity: f64,
    /// `--no-cache-prompt`: prompts of requests that do not say otherwise (`cache_prompt`) are evaluated whole.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub no_cache_prompt: bool,
    /// `--cache-reuse`: the shortest chunk that is moved, in tokens. 0: no chunk is moved.
    pub cache_reuse: u32,
    /// Whether this context can move chunks (`llama_memory_can_shift`). `None`: not known.
    pub can_shift: Option<bool>,
    /// `--context-shift`: tokens are cut out of the middle of a full slot.
    pub context_shift: bool,
    /// `--cache-idle-slots`: idle slots are saved to the host prompt cache, and emptied.
    pub cache_idle_slots: bool,
    /// `--ctx-checkpoints`: the most for each slot.
    pub ctx_checkpoints: u32,
    /// `--checkpoint-min-step`: the least distance of two checkpoints, in tokens.
    pub checkpoint_min_step: u32,
    /// Which positions the context keeps, and so can go back to.
    pub memory: Memory,
}

/// Which positions a context keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// All.
    #[default]
    Full,
    /// Some layers keep a sliding window only. The context can go back to the window and to checkpoints.
    Window,
    /// A recurrent or hybrid model: one state, at the last position. The context can go back to checkpoints.
    Recurrent,
    /// A newer server's word.
    #[serde(other)]
    Other,
}
