//! The flags of a server, and the generation of its rules.

use std::collections::BTreeSet;
use std::fmt;

use contextpilot_server_flags::is_of_0_7;
use contextpilot_traffic::{Calls, Memory, Setup, Traffic};

/// A server that is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its flags, those of the recording or others.
    pub server: Setup,
    /// Which generation's rules it follows.
    pub generation: Generation,
    /// Tokens that a slot may hold, whatever its share of the context: the model was trained for no more, or
    /// `--kv-unified-per-slot` says so.
    pub slot_limit: Option<u32>,
    /// `CONTEXTPILOT_STORE_GB`: how large the prefix store may become, bytes. 0: there is none, or it is not simulated,
    /// see [`can_have_store`](Self::can_have_store).
    pub store_limit: u64,
    /// How fast the store's chunks are copied in and out, bytes in a second.
    pub store_speed: u64,
}

/// How fast chunks are copied, unless something else is said: as by an ordinary SSD. What the system still has in
/// memory is copied several times as fast.
pub const STORE_SPEED: u64 = 1_000_000_000;

/// More checkpoints for a slot are simulated as so many: each is looked at for each batch, and no server has the memory.
const MOST_CHECKPOINTS: u32 = 4096;

/// A prefix store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreSetting {
    /// Bytes.
    pub(crate) limit: u64,
    /// Bytes in a second.
    pub(crate) speed: u64,
}

/// Servers whose rules differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generation {
    /// Without a host prompt cache. A slot is similar enough by the share of its *own* content that begins
    /// the prompt, and of these slots the one with the longest common prefix is taken. A recurrent context
    /// is never reused. The prompt is not copied for further answers (`n`). Slots are ordered as with
    /// [`Self::Older`].
    Of2025,
    /// Before `llama_process` (mid 2026). Nothing is loaded from the host prompt cache into a slot that is
    /// empty or that the client asked for. The host prompt cache keeps at least one entry, whatever its
    /// limit. Checkpoints are made at other places, and stay when the slot is emptied. Slots are ordered
    /// as with [`Self::Older`].
    Early2026,
    /// Before build 11669. Of slots that were never used, the last is taken first. An empty slot is not
    /// preferred to others. Further answers (`n`) take the idle slots with the lowest numbers.
    Older,
    /// Since build 11669 (0.7.0). Empty slots are taken first, then the least recently used. Further
    /// answers (`n`) take slots in the same order. The slot of an embedding is emptied.
    #[default]
    Late2026,
}

impl Generation {
    /// Whether a slot that is emptied loses its checkpoints too.
    pub(crate) fn clears_checkpoints(self) -> bool {
        matches!(self, Self::Older | Self::Late2026)
    }

    /// How many positions beyond the sliding window a saved state has. `None`: all that the context still
    /// has. The value for [`Self::Late2026`] was measured, not read from the source.
    pub(crate) fn kept_beyond_window(self) -> Option<i64> {
        match self {
            Self::Of2025 | Self::Early2026 => None,
            Self::Older | Self::Late2026 => Some(0),
        }
    }

    /// Whether a slot is emptied when it has evaluated an embedding's prompt. (Seen in 0.7.0; builds 9246 and 11434,
    /// and the sources of 2025, leave the prompt there.)
    pub(crate) fn empties_after_embedding(self) -> bool {
        self == Self::Late2026
    }

    /// Whether a state file of a slot has the slot's checkpoints.
    pub(crate) fn saves_checkpoints(self) -> bool {
        self == Self::Late2026
    }

    /// Found by the functions that the server calls, then by the number of its build, then by its version.
    /// If the recording has none of these, by the slots that requests got.
    fn from_recording(setup: &Setup, traffic: &Traffic) -> Self {
        if setup.cache_ram.is_none() {
            return Self::Of2025;
        }
        if setup.calls == Calls::Decode {
            return Self::Early2026;
        }
        let is_late = is_of_0_7(&setup.version, &setup.engine);
        if is_late.unwrap_or_else(|| !takes_last_first(traffic, setup.parallel)) {
            Self::Late2026
        } else {
            Self::Older
        }
    }
}

/// Whether the first request that could choose among several unused slots took the last of them.
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

/// A change of a flag that the recorded server does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the recorded server is too old to have a host cache: leave --cache-ram out")
    }
}

impl std::error::Error for Unknown {}

impl Setting {
    /// Whether two differ by the size of the host prompt cache at most.
    #[must_use]
    pub fn differs_by_host_cache(&self, other: &Self) -> bool {
        let mut same = self.clone();
        same.server.cache_ram = other.server.cache_ram;
        same == *other
    }

    /// The recorded setting. `None`: the recording ends before the server's flags.
    #[must_use]
    pub fn recorded(traffic: &Traffic) -> Option<Self> {
        let setup = traffic.setup.as_ref()?;
        let mut setting = Self::from_setup(setup, Generation::from_recording(setup, traffic));
        let has_loaded = || traffic.requests.iter().any(|asked| asked.record.loaded > 0);
        if setting.server.memory != Memory::Full && !has_loaded() {
            // It may have refused the model, and a recording does not say so.
            setting.store_limit = 0;
        }
        Some(setting)
    }

    fn from_setup(setup: &Setup, generation: Generation) -> Self {
        let mut setting = Self {
            server: Setup {
                parallel: setup.parallel.max(1),
                ctx_checkpoints: setup.ctx_checkpoints.min(MOST_CHECKPOINTS),
                batch_size: setup.batch_size.max(1),
                ubatch_size: setup.ubatch_size.max(1),
                ..setup.clone()
            },
            generation,
            slot_limit: None,
            store_limit: 0,
            store_speed: STORE_SPEED,
        };
        if setting.can_have_store() {
            setting.store_limit = setup.store.unwrap_or(0);
        }
        if setup.slot_context < setting.share() {
            setting.slot_limit = Some(setup.slot_context);
        }
        setting
    }

    /// MiB of the host prompt cache. 0: there is none, negative: no limit.
    #[must_use]
    pub fn cache_ram(&self) -> i64 {
        self.server.cache_ram.unwrap_or(0)
    }

    /// With `--parallel` and this many slots. The context stays as large as it is. The slots divide it,
    /// each part rounded up to a multiple of 256 tokens (`llama_context`). They share it only if this
    /// setting has `--kv-unified`: without either flag sharing is the default, which `--parallel` ends.
    #[must_use]
    pub fn with_parallel(self, parallel: u32) -> Self {
        let kv_unified = self.server.kv_unified && !self.server.auto_parallel;
        self.with_slots(parallel, kv_unified)
    }

    /// With this many slots, that share the context (`kv_unified`) or divide it.
    #[must_use]
    pub fn with_slots(mut self, parallel: u32, kv_unified: bool) -> Self {
        self.server.parallel = parallel.max(1);
        self.server.auto_parallel = false;
        self.server.kv_unified = kv_unified;
        self.server.slot_context = self.largest_slot();
        if !self.server.kv_unified {
            self.server.context = self.share().saturating_mul(self.server.parallel);
        }
        self
    }

    /// Tokens that a slot may hold.
    fn largest_slot(&self) -> u32 {
        self.share().min(self.slot_limit.unwrap_or(u32::MAX)).max(1)
    }

    /// With so many tokens of context for all slots (`--ctx-size`).
    #[must_use]
    pub fn with_context(mut self, context: u32) -> Self {
        self.server.context = context;
        self.server.slot_context = self.largest_slot();
        self
    }

    /// With a host prompt cache of this many MiB (`--cache-ram`).
    ///
    /// # Errors
    /// The server is too old to have one, and `mib` is not 0.
    pub fn with_cache_ram(mut self, mib: i64) -> Result<Self, Unknown> {
        match &mut self.server.cache_ram {
            Some(ram) => *ram = mib,
            None if mib == 0 => {}
            None => return Err(Unknown),
        }
        Ok(self)
    }

    /// Whether the model's cache is one that a prefix store is for: one whose states are whole, which those of whole windows are
    /// not. Of a cache that cannot go back to any position, servers of 2025 cannot say where its states are divided.
    #[must_use]
    pub fn can_have_store(&self) -> bool {
        let is_understood =
            self.server.memory == Memory::Full || self.generation != Generation::Of2025;
        is_understood && !self.server.whole_windows
    }

    pub(crate) fn store(&self) -> Option<StoreSetting> {
        (self.store_limit > 0 && self.can_have_store()).then_some(StoreSetting {
            limit: self.store_limit,
            speed: self.store_speed,
        })
    }

    /// Tokens of the context for one slot.
    fn share(&self) -> u32 {
        if self.server.kv_unified {
            self.server.context
        } else {
            (self.server.context / self.server.parallel).div_ceil(256) * 256
        }
    }
}
