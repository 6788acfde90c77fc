//! How the server is started.

use std::collections::BTreeSet;
use std::fmt;

use contextpilot_traffic::{Calls, Memory, Setup, Traffic};

/// The flags that decide what is reused.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// `--parallel`
    pub parallel: u32,
    /// It is not given, and neither is `--kv-unified`.
    pub auto_parallel: bool,
    /// `--ctx-size`: tokens, for all slots.
    pub context: u32,
    /// Tokens that a slot can have.
    pub slot_context: u32,
    /// `--kv-unified`
    pub kv_unified: bool,
    /// `--cache-ram`, MiB. 0: no host cache, negative: no limit.
    pub cache_ram: i64,
    /// `--cache-idle-slots`
    pub cache_idle_slots: bool,
    /// `--slot-prompt-similarity`, in thousandths.
    pub slot_prompt_similarity: u32,
    /// `--cache-reuse`
    pub cache_reuse: u32,
    /// `--context-shift`
    pub context_shift: bool,
    /// `--ctx-checkpoints`
    pub ctx_checkpoints: u32,
    /// `--checkpoint-min-step`
    pub checkpoint_min_step: u32,
    /// `--batch-size`
    pub batch_size: u32,
    /// `--ubatch-size`
    pub ubatch_size: u32,
    /// How the model's context remembers.
    pub memory: Memory,
    /// The server has a host cache, and its flag.
    pub has_host_cache: bool,
    /// Whose rules it follows.
    pub generation: Generation,
    /// A slot has no more tokens than the model was trained for.
    pub trained: Option<u32>,
}

/// Servers whose rules differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generation {
    /// Without a host cache: as the others before build 11669, but a slot is chosen by the share of
    /// what *it* holds that begins the prompt, what a recurrent context holds is never used again, and
    /// nothing is copied for further answers.
    Of2025,
    /// Before `llama_process` (mid 2026): of slots that were never used the last is taken first; a slot
    /// that holds nothing, or that the client asked for, is given nothing from the host cache, which
    /// keeps at least one entry whatever its limit; checkpoints are made at other places, and outlive
    /// what the slot held.
    Early2026,
    /// Before build 11669: of slots that were never used the last is taken first, an empty slot is
    /// no better than another, and further answers (`n`) take the first slots that are idle.
    Older,
    /// Since build 11669 (0.7.0): empty slots are taken first, then those that were not used for
    /// longest, and so for further answers.
    #[default]
    Late2026,
}

impl Generation {
    /// Whether a slot that is emptied loses its checkpoints too.
    pub(crate) fn clears_checkpoints(self) -> bool {
        matches!(self, Self::Older | Self::Late2026)
    }

    /// How many positions a saved state has that the window has left; `None`: all that there are. What
    /// the last ones do is measured, not read.
    pub(crate) fn kept_beyond_window(self) -> Option<i64> {
        match self {
            Self::Of2025 | Self::Early2026 => None,
            Self::Older => Some(0),
            Self::Late2026 => Some(1),
        }
    }

    /// Whether a file of a slot has its checkpoints.
    pub(crate) fn saves_checkpoints(self) -> bool {
        self == Self::Late2026
    }

    /// From what the server calls, and what the engine says of itself: the number of its build, or
    /// its version. Where there is neither, from the slots that requests got.
    fn of(setup: &Setup, traffic: &Traffic) -> Self {
        if setup.cache_ram.is_none() {
            return Self::Of2025;
        }
        if setup.calls == Calls::Decode {
            return Self::Early2026;
        }
        let is_late = match (build(&setup.engine), version(&setup.version)) {
            (Some(build), _) => build >= 11_669,
            (None, Some(version)) => version >= (0, 7),
            (None, None) => !takes_last_first(traffic, setup.parallel),
        };
        match is_late {
            true => Self::Late2026,
            false => Self::Older,
        }
    }
}

/// The number in `b11669-Debian`. Builds from outside its repository have 0 or 1.
fn build(engine: &str) -> Option<u32> {
    let begin = engine.find(|c: char| c.is_ascii_digit())?;
    let digits = engine[begin..]
        .split(|c: char| !c.is_ascii_digit())
        .next()?;
    digits.parse().ok().filter(|&number| number >= 1000)
}

/// Major and minor number.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let mut next = || numbers.next()?.parse().ok();
    Some((next()?, next()?))
}

/// Whether of several slots that were never used the last was taken.
fn takes_last_first(traffic: &Traffic, slots: u32) -> bool {
    let mut unused: BTreeSet<u32> = (0..slots).collect();
    let mut changes = traffic
        .changes
        .iter()
        .map(|change| &change.record)
        .peekable();
    for request in &traffic.requests {
        let record = &request.record;
        while let Some(change) = changes.next_if(|change| change.order <= record.order) {
            unused.remove(&change.slot);
        }
        let free = record.id_slot.is_none() && !record.child && unused.len() > 1;
        if free && unused.contains(&record.slot) {
            return unused.last() == Some(&record.slot);
        }
        unused.remove(&record.slot);
    }
    false
}

/// A change that the recorded server does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the recorded server is too old to have a host cache: leave --cache-ram out")
    }
}

impl std::error::Error for Unknown {}

impl Setting {
    /// As recorded. `None`: the recording says nothing of the server.
    #[must_use]
    pub fn recorded(traffic: &Traffic) -> Option<Self> {
        let setup = traffic.setup.as_ref()?;
        Some(Self::of(setup, Generation::of(setup, traffic)))
    }

    fn of(setup: &Setup, generation: Generation) -> Self {
        let mut setting = Self {
            parallel: setup.parallel.max(1),
            auto_parallel: setup.auto_parallel,
            context: setup.context,
            slot_context: setup.slot_context,
            kv_unified: setup.kv_unified,
            cache_ram: setup.cache_ram.unwrap_or(0),
            cache_idle_slots: setup.cache_idle_slots,
            slot_prompt_similarity: setup.slot_prompt_similarity,
            cache_reuse: setup.cache_reuse,
            context_shift: setup.context_shift,
            ctx_checkpoints: setup.ctx_checkpoints,
            checkpoint_min_step: setup.checkpoint_min_step,
            batch_size: setup.batch_size.max(1),
            ubatch_size: setup.ubatch_size.max(1),
            memory: setup.memory,
            has_host_cache: setup.cache_ram.is_some(),
            generation,
            trained: None,
        };
        if setup.slot_context < setting.share() {
            setting.trained = Some(setup.slot_context);
        }
        setting
    }

    /// With so many slots. The context stays as large as it is, and is divided by them, unless
    /// they share it (`llama_context`: to a multiple of 256 tokens each). Without `--parallel` they
    /// do, and with it only if `--kv-unified` says so.
    #[must_use]
    pub fn with_parallel(self, parallel: u32) -> Self {
        let kv_unified = self.kv_unified && !self.auto_parallel;
        self.with_slots(parallel, kv_unified)
    }

    /// With so many slots, that share the context or divide it.
    #[must_use]
    pub fn with_slots(mut self, parallel: u32, kv_unified: bool) -> Self {
        self.parallel = parallel.max(1);
        self.auto_parallel = false;
        self.kv_unified = kv_unified;
        self.slot_context = self.share().min(self.trained.unwrap_or(u32::MAX)).max(1);
        if !self.kv_unified {
            self.context = self.share().saturating_mul(self.parallel);
        }
        self
    }

    /// With a host cache of so many MiB.
    ///
    /// # Errors
    /// The server has none.
    pub fn with_cache_ram(mut self, mib: i64) -> Result<Self, Unknown> {
        if !self.has_host_cache && mib != 0 {
            return Err(Unknown);
        }
        self.cache_ram = mib;
        Ok(self)
    }

    fn share(&self) -> u32 {
        match self.kv_unified {
            true => self.context,
            false => (self.context / self.parallel).div_ceil(256) * 256,
        }
    }

    pub(crate) fn similarity(&self) -> f32 {
        self.slot_prompt_similarity as f32 / 1000.0
    }
}
