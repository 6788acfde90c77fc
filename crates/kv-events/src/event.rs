//! What is published.

use std::sync::Arc;

/// Where blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Medium {
    /// In a slot, whatever it is computed on.
    Gpu,
    /// In the host prompt cache.
    Cpu,
}

impl Medium {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Gpu, Self::Cpu];

    /// As routers know it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Cpu => "CPU",
        }
    }
}

/// A change of what can be used again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    /// Blocks are there that were not. Each lies below the one before it.
    Stored {
        /// Their names.
        hashes: Vec<u64>,
        /// What lies above the first; `None`: it is the first of a chain.
        parent: Option<u64>,
        /// The tokens of all of them.
        tokens: Vec<u32>,
        /// Where.
        medium: Medium,
        /// The name of the LoRA adapter of the requests that they serve; `None`: of those that
        /// name none.
        adapter: Option<Arc<str>>,
    },
    /// Blocks are there no more.
    Removed {
        /// Their names, each before what it lies below.
        hashes: Vec<u64>,
        /// Where.
        medium: Medium,
    },
    /// None are there any more, nowhere.
    Cleared,
}

/// Says that a block is there: in the last event, if it lies below the last block of that.
pub(crate) fn store(
    hash: u64,
    above: Option<u64>,
    block: &[u32],
    on: Medium,
    adapter: Option<&Arc<str>>,
    events: &mut Vec<KvEvent>,
) {
    match events.last_mut() {
        // What lies below another block has the same adapter.
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

/// Says that a block is there no more: in the last event, if that is about the same medium.
pub(crate) fn remove(hash: u64, on: Medium, events: &mut Vec<KvEvent>) {
    match events.last_mut() {
        Some(KvEvent::Removed { hashes, medium }) if *medium == on => hashes.push(hash),
        _ => events.push(KvEvent::Removed {
            hashes: vec![hash],
            medium: on,
        }),
    }
}
