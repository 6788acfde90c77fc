use serde::{Deserialize, Serialize};

/// Why a request is no longer cached. The words are stable between versions, in JSON, in logs
/// and as the label `reason` of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Another prompt was written over it.
    Overwritten,
    /// Its slot was erased, purged or cleared.
    Cleared,
    /// Its tokens moved or their middle was cut out.
    Shifted,
    /// Its last copy was dropped from the host prompt cache.
    DroppedFromHost,
    /// It stands in memory that slides or only goes forward, and nothing leads back to it.
    OutOfReach,
    /// Its slot works under other LoRA adapters now, under which the server would not use it for a
    /// request that names the former ones.
    AdaptersChanged,
    /// The context that held it was freed: sleep, unload, shutdown.
    ContextFreed,
    /// It ended without ever having been cached: refused, too long, cancelled mid-prompt.
    NeverCached,
    /// The hook lost sight of the engine and claims nothing any more.
    OutOfStep,
    /// A client asked for it: `POST /reset`.
    Reset,
    /// More requests were live than the hook keeps track of (131,072): the oldest was given up.
    TooMany,
    /// A word of a newer server.
    #[serde(other)]
    Other,
}

impl Reason {
    /// All that this version knows.
    pub const ALL: [Self; 11] = [
        Self::Overwritten,
        Self::Cleared,
        Self::Shifted,
        Self::DroppedFromHost,
        Self::OutOfReach,
        Self::AdaptersChanged,
        Self::ContextFreed,
        Self::NeverCached,
        Self::OutOfStep,
        Self::Reset,
        Self::TooMany,
    ];

    /// The word, as JSON has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Overwritten => "overwritten",
            Self::Cleared => "cleared",
            Self::Shifted => "shifted",
            Self::DroppedFromHost => "dropped_from_host",
            Self::OutOfReach => "out_of_reach",
            Self::AdaptersChanged => "adapters_changed",
            Self::ContextFreed => "context_freed",
            Self::NeverCached => "never_cached",
            Self::OutOfStep => "out_of_step",
            Self::Reset => "reset",
            Self::TooMany => "too_many",
            Self::Other => "other",
        }
    }
}

/// Where a prompt's KV stands, or last stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "place", rename_all = "snake_case")]
pub enum Place {
    /// In a slot of the server.
    Slot {
        /// Its number: llama-server's `id_slot`.
        slot: i32,
    },
    /// In the host prompt cache (`--cache-ram`).
    Host,
    /// Nowhere (yet).
    Nowhere,
}
