//! KV cache events.

use std::sync::Arc;

/// Where blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// In a slot, even if the server computes on a CPU.
    Gpu,
    /// In the host prompt cache.
    Cpu,
    /// In the prefix store.
    Disk,
}

impl Medium {
    /// All, in the order in which routers prefer them.
    pub const ALL: [Self; 3] = [Self::Gpu, Self::Cpu, Self::Disk];

    /// The name that routers use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
            Self::Disk => "DISK",
        }
    }
}

/// A change of what can be reused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks became available. Each is the child of the one before it.
    Stored {
        /// Their names.
        hashes: Vec<u64>,
        /// The parent of the first block; `None` if it is the first of a chain.
        parent: Option<u64>,
        /// The tokens of all of them.
        tokens: Vec<u32>,
        /// The medium that has the blocks.
        medium: Medium,
        /// The name of the LoRA adapter of the requests that they serve; `None`: of those that
        /// name none.
        adapter: Option<Arc<str>>,
    },
    /// Blocks are no longer available.
    Removed {
        /// Their names, each before its parent.
        hashes: Vec<u64>,
        /// The medium that had the blocks.
        medium: Medium,
    },
    /// No blocks are available on any medium.
    Cleared,
}

impl KvEvent {
    /// Its tokens and hashes of blocks.
    #[must_use]
    pub fn weight(&self) -> usize {
        match self {
            Self::Stored { hashes, tokens, .. } => hashes.len() + tokens.len(),
            Self::Removed { hashes, .. } => hashes.len(),
            Self::Cleared => 1,
        }
    }
}

/// Adds a stored block: to the last event, if it is the child of that event's last block.
pub(crate) fn store(
    hash: u64,
    above: Option<u64>,
    block: &[u32],
    on: Medium,
    adapter: Option<&Arc<str>>,
    events: &mut Vec<KvEvent>,
) {
    match events.last_mut() {
        // A child has the adapter of its parent.
        Some(KvEvent::Stored {
            hashes,
            tokens,
            medium,
            ..
        }) if *medium == on && above.is_some() && hashes.last().copied() == above => {
            hashes.push(hash);
            tokens.extend_from_slice(block);
        }
        _ => events.push(KvEvent::Stored {
            hashes: vec![hash],
            parent: above,
            tokens: block.to_vec(),
            medium: on,
            adapter: adapter.cloned(),
        }),
    }
}

/// Adds a removed block: to the last event, if that has the same medium.
pub(crate) fn remove(hash: u64, on: Medium, events: &mut Vec<KvEvent>) {
    match events.last_mut() {
        Some(KvEvent::Removed { hashes, medium }) if *medium == on => hashes.push(hash),
        _ => events.push(KvEvent::Removed {
            hashes: vec![hash],
            medium: on,
        }),
    }
}
