//! The last evictions.

use std::collections::{HashMap, VecDeque};

use contextpilot_control::{Place, Reason};
use contextpilot_residency::RequestId;

/// This many evictions are remembered.
pub const MOST_GONE: usize = 10_000;

/// An eviction.
#[derive(Clone, Debug)]
pub(crate) struct Gone {
    pub(crate) at_unix_ms: u64,
    pub(crate) reason: Reason,
    pub(crate) from: Place,
    pub(crate) by: Option<RequestId>,
    pub(crate) tokens: Option<u32>,
}

/// A bounded memory of evictions, by id: the latest of each.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    by_id: HashMap<RequestId, (u64, Gone)>,
    /// Oldest first. An entry is obsolete if `by_id` has another number for its id.
    order: VecDeque<(u64, RequestId)>,
    next: u64,
}

impl Memory {
    pub(crate) fn remember(&mut self, id: &RequestId, gone: Gone) {
        self.next += 1;
        self.by_id.insert(id.clone(), (self.next, gone));
        self.order.push_back((self.next, id.clone()));
        while self.order.len() > MOST_GONE {
            if let Some((number, id)) = self.order.pop_front() {
                if self.by_id.get(&id).is_some_and(|(last, _)| *last == number) {
                    self.by_id.remove(&id);
                }
            }
        }
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Gone> {
        self.by_id.get(id).map(|(_, gone)| gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_full_the_oldest_eviction_is_forgotten_and_each_ids_latest_kept() {
        let gone = |at_unix_ms| Gone {
            at_unix_ms,
            reason: Reason::Cleared,
            from: Place::Host,
            by: None,
            tokens: None,
        };
        let mut memory = Memory::default();
        let id = |n: usize| RequestId::from(format!("req-{n}"));
        memory.remember(&id(0), gone(1));
        memory.remember(&id(1), gone(1));
        for n in 2..MOST_GONE {
            memory.remember(&id(n), gone(1));
        }
        memory.remember(&id(1), gone(2));
        assert!(memory.get("req-0").is_none());
        assert!(memory.get("req-2").is_some());
        memory.remember(&id(MOST_GONE), gone(1));
        assert_eq!(memory.get("req-1").map(|gone| gone.at_unix_ms), Some(2));
        assert_eq!(memory.order.len(), MOST_GONE);
        assert!(memory.by_id.len() <= MOST_GONE);
    }
}
