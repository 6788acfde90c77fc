//! What one peer has subscribed to.

use std::collections::HashMap;

use crate::Refusal;

/// Most subscriptions of one subscriber.
pub const MOST_SUBSCRIPTIONS: usize = 64;
/// Most bytes of all of them.
pub const MOST_SUBSCRIPTION_BYTES: usize = 16 << 10;

/// Prefixes, and how often each is subscribed to.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    counts: HashMap<Vec<u8>, u32>,
    bytes: usize,
}

impl Subscriptions {
    /// Returns whether it is new.
    pub(crate) fn add(&mut self, prefix: &[u8]) -> Result<bool, Refusal> {
        if let Some(count) = self.counts.get_mut(prefix) {
            *count = count.saturating_add(1);
            return Ok(false);
        }
        let bytes = self.bytes + prefix.len();
        if self.counts.len() >= MOST_SUBSCRIPTIONS || bytes > MOST_SUBSCRIPTION_BYTES {
            return Err(Refusal::ManySubscriptions);
        }
        self.bytes = bytes;
        self.counts.insert(prefix.to_vec(), 1);
        Ok(true)
    }

    /// Returns whether it was the last one of this prefix.
    pub(crate) fn cancel(&mut self, prefix: &[u8]) -> bool {
        let Some(count) = self.counts.get_mut(prefix) else {
            return false;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        self.counts.remove(prefix);
        self.bytes -= prefix.len();
        true
    }
}
