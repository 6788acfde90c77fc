//! What advice depends on: the server's flags and state.

use contextpilot_client::control::{Flags, HostCache, Memory, Stats};

/// A server, as it is now. Without figures nothing is known, and advice is given as if it could help.
pub(super) struct Server<'a>(Option<&'a Stats>);

impl<'a> Server<'a> {
    pub(super) fn new(stats: Option<&'a Stats>) -> Self {
        Self(stats)
    }

    pub(super) fn flags(&self) -> Option<&'a Flags> {
        self.0?.flags.as_ref()
    }

    pub(super) fn slots(&self) -> Option<u32> {
        self.flags()?.parallel
    }

    /// A slot keeps its content until it is overwritten: idle slots are not saved to the host cache and emptied. A
    /// request that names an emptied slot finds nothing, for it does not look into the host cache.
    pub(super) fn keeps_idle_slots(&self) -> bool {
        let empties = self.flags().is_none_or(|flags| flags.cache_idle_slots);
        !(empties && self.has_host_cache())
    }

    /// The context keeps a sliding window of what it could keep whole.
    pub(super) fn keeps_a_window(&self) -> bool {
        let flags = self.flags();
        flags.is_some_and(|flags| flags.memory == Memory::Window)
    }

    pub(super) fn host(&self) -> Option<&'a HostCache> {
        Some(&self.0?.host)
    }

    /// Servers of 2025 have no host prompt cache.
    pub(super) fn can_have_host_cache(&self) -> bool {
        let attached = self.0.map(|stats| &stats.engine.attached);
        attached.is_none_or(|all| all.iter().any(|part| part == "host prompt cache"))
    }

    /// There is one, and it is on.
    pub(super) fn has_host_cache(&self) -> bool {
        let on = |host: &HostCache| host.limit_bytes != Some(0) && host.limit_from != "unknown";
        self.host().is_some_and(on)
    }

    /// So many tokens are more than the host prompt cache may hold.
    pub(super) fn exceeds_host_cache(&self, tokens: u64) -> bool {
        let size = self.0.and_then(|stats| stats.kv.bytes_per_token);
        let limit = self.host().and_then(|host| host.limit_bytes);
        let both = size.zip(limit);
        both.is_some_and(|(size, limit)| tokens as f64 * size > limit as f64)
    }

    /// Whether `--cache-reuse` would move chunks: it is off, and this context can. With a projector for
    /// images, the server turns it off.
    pub(super) fn may_move_chunks(&self) -> bool {
        let Some(flags) = self.flags() else {
            return true;
        };
        let mut functions = self.0.into_iter().flat_map(|stats| &stats.engine.functions);
        let has_projector = functions.any(|one| one.name == "mtmd_init_from_file" && one.called);
        let can = flags.can_shift != Some(false) && flags.memory == Memory::Full && !has_projector;
        can && flags.cache_reuse == 0
    }

    /// Tokens that move are those that a full context shifts, and not chunks that are reused.
    pub(super) fn shifts_contexts(&self) -> bool {
        let flags = self.flags();
        flags.is_none_or(|flags| flags.context_shift || flags.cache_reuse == 0)
    }
}
