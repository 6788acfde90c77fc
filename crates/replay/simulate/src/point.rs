//! What a simulation of one setting finds.

use crate::setting::Setting;

/// How a request was served. Times are microseconds since the recording began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The slot that served it.
    pub slot: u32,
    /// Tokens of its prompt that were reused.
    pub reused: u32,
    /// Tokens of its prompt that were loaded from the prefix store.
    pub loaded: u32,
    /// Tokens of its prompt that were evaluated.
    pub evaluated: u32,
    /// When it arrived.
    pub arrived: u64,
    /// When a slot took it on.
    pub launched: u64,
    /// When its answer was complete.
    pub ended: u64,
}

/// A setting, and what the simulation of it found.
#[derive(Clone, Debug)]
pub struct Point {
    /// The setting.
    pub setting: Setting,
    /// For each request of the recording. `None`: the server would have refused it, because its prompt
    /// does not fit into a slot, or because it wants more answers (`n`) than there are slots.
    pub outcomes: Vec<Option<Outcome>>,
    /// Tokens in prompts that were served. Further answers to one prompt (`n`) are not counted.
    pub prompt_tokens: u64,
    /// Prompt tokens that were reused: the slot had them, or the host prompt cache.
    pub reused_tokens: u64,
    /// Prompt tokens that were loaded from the prefix store.
    pub loaded_tokens: u64,
    /// Prompt tokens that were evaluated.
    pub evaluated_tokens: u64,
    /// The time that evaluating these takes, seconds.
    pub prompt_seconds: f64,
    /// The time that copies for the prefix store take, seconds.
    pub store_seconds: f64,
    /// The time from arrival to launch, summed over all requests, seconds.
    pub waited_seconds: f64,
    /// The number of refused requests. Further answers to one prompt are not counted.
    pub refused: u64,
    /// Those of them that want more answers (`n`) than there are slots. The others do not fit into a slot.
    pub too_many_answers: u64,
    /// The size of a full context, bytes. 0: the recording has no sizes.
    pub context_bytes: u64,
    /// The most that the host prompt cache held, bytes. 0: it held nothing, or the recording has no sizes.
    pub host_bytes: u64,
    /// With a host prompt cache so small, and no smaller, the same happens, bytes.
    pub(crate) host_needs: u64,
    /// The most that the prefix store had on its disk, bytes. 0: it had nothing, or the recording has no sizes.
    pub store_bytes: u64,
}

impl Point {
    /// The share of prompt tokens that was reused, from 0 to 1.
    #[must_use]
    pub fn reused_share(&self) -> f64 {
        match self.prompt_tokens {
            0 => 0.0,
            tokens => self.reused_tokens as f64 / tokens as f64,
        }
    }

    /// The share of prompt tokens that was not evaluated, but reused or loaded, from 0 to 1.
    #[must_use]
    pub fn spared_share(&self) -> f64 {
        match self.prompt_tokens {
            0 => 0.0,
            tokens => (self.reused_tokens + self.loaded_tokens) as f64 / tokens as f64,
        }
    }

    /// What happens with another setting. `None`: that is no smaller host prompt cache, or might let something go that this
    /// one did not.
    #[must_use]
    pub fn with_smaller_host_cache(&self, setting: &Setting) -> Option<Self> {
        let bytes = |setting: &Setting| {
            u64::try_from(setting.cache_ram())
                .ok()?
                .checked_mul(1 << 20)
        };
        let (smaller, larger) = (bytes(setting)?, bytes(&self.setting)?);
        let is_same = setting.differs_by_host_cache(&self.setting)
            && 0 < smaller
            && self.host_needs <= smaller
            && smaller <= larger;
        is_same.then(|| Self {
            setting: setting.clone(),
            ..self.clone()
        })
    }
}
