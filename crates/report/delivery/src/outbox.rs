//! The set of request ids whose eviction must still be reported.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// How much may wait. Over either limit the oldest ids are dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Ids waiting.
    pub ids: usize,
    /// Bytes of their text, all together.
    pub bytes: usize,
}

impl Limits {
    /// A million ids or 64 MiB of text: hours of a busy server without an
    /// index, and still a bounded part of its memory.
    pub const DEFAULT: Self = Limits {
        ids: 1_000_000,
        bytes: 64 << 20,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// An insertion-ordered set of ids, of which one batch at a time may be in
/// flight. Every operation is amortised O(1) per id, but for withdrawing one
/// that was set aside.
///
/// Ids that were refused when they were sent alone can be [set aside](Self::set_aside), so that
/// the others need not wait for them. They wait in a separate queue, and count as the oldest.
///
/// An id in flight is no longer in the set. If it is evicted again meanwhile, it is
/// queued again, because the index may have received it again in between.
/// If it is withdrawn meanwhile, a failed batch does not bring it back.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Oldest first. `None` is a tombstone of a withdrawn id.
    queue: VecDeque<Option<Arc<str>>>,
    /// The number of `queue[0]`; numbers grow towards the back and wrap.
    first: u64,
    /// The number of each waiting id.
    numbers: HashMap<Arc<str>, u64>,
    /// Ids that were refused alone, the oldest first. A POST adds one at most, so they stay few.
    aside: VecDeque<Arc<str>>,
    /// The same ids.
    is_aside: HashSet<Arc<str>>,
    /// Bytes of all waiting ids.
    bytes: usize,
    /// The batch in flight, oldest first.
    in_flight: Vec<Arc<str>>,
    /// The ids of the batch in flight that a failure brings back.
    returnable: HashSet<Arc<str>>,
    limits: Limits,
    dropped: u64,
}

impl Outbox {
    /// An empty outbox.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Outbox {
            limits,
            ..Outbox::default()
        }
    }

    /// Queues an id. If it waits already, nothing changes.
    pub fn evict(&mut self, id: Arc<str>) {
        if self.is_waiting(&id) {
            return;
        }
        // This entry supersedes the one in flight: if that fails, only this one is sent.
        self.returnable.remove(&id);
        self.bytes += id.len();
        let number = self.first.wrapping_add(self.queue.len() as u64);
        self.numbers.insert(Arc::clone(&id), number);
        self.queue.push_back(Some(id));
        self.enforce_limits();
    }

    /// The id became resident again, so it is not sent. If it is in flight
    /// already, it is not sent again. Returns whether it was waiting.
    pub fn withdraw(&mut self, id: &str) -> bool {
        self.returnable.remove(id);
        if self.is_aside.remove(id) {
            self.aside.retain(|other| **other != *id);
            self.bytes -= id.len();
            return true;
        }
        let Some(number) = self.numbers.remove(id) else {
            return false;
        };
        let index = number.wrapping_sub(self.first) as usize;
        if let Some(slot) = self.queue.get_mut(index) {
            *slot = None;
        }
        self.bytes -= id.len();
        self.tidy();
        true
    }

    /// Takes up to `max` of the oldest ids; they are in flight until
    /// [`delivered`](Self::delivered) or [`put_back`](Self::put_back).
    /// Empty while another batch is in flight.
    pub fn take_batch(&mut self, max: usize) -> Vec<Arc<str>> {
        if !self.in_flight.is_empty() {
            return Vec::new();
        }
        let mut batch = Vec::with_capacity(max.min(self.len()));
        while batch.len() < max {
            let Some(id) = self.pop_oldest() else { break };
            batch.push(id);
        }
        self.flies(&batch);
        self.tidy();
        batch
    }

    /// Takes the id that was set aside first. It is in flight as a batch of one.
    /// Empty if there is none, or while another batch is in flight.
    pub fn take_aside(&mut self) -> Vec<Arc<str>> {
        if !self.in_flight.is_empty() {
            return Vec::new();
        }
        let batch = Vec::from_iter(self.pop_aside());
        self.flies(&batch);
        batch
    }

    fn flies(&mut self, batch: &[Arc<str>]) {
        self.returnable.extend(batch.iter().cloned());
        self.in_flight = batch.to_vec();
    }

    /// The batch in flight was confirmed or dropped: forgets it.
    pub fn delivered(&mut self) {
        self.in_flight.clear();
        self.returnable.clear();
    }

    /// The batch in flight failed: it waits again, before all later ids. Ids
    /// that were withdrawn or evicted again meanwhile are left out.
    pub fn put_back(&mut self) {
        for id in std::mem::take(&mut self.in_flight).into_iter().rev() {
            if !self.returnable.remove(&id) {
                continue;
            }
            self.bytes += id.len();
            self.first = self.first.wrapping_sub(1);
            self.numbers.insert(Arc::clone(&id), self.first);
            self.queue.push_front(Some(id));
        }
        self.delivered();
        self.enforce_limits();
    }

    /// The batch in flight was refused: it waits again, behind all others that were set aside,
    /// and [`take_batch`](Self::take_batch) does not take it.
    pub fn set_aside(&mut self) {
        for id in std::mem::take(&mut self.in_flight) {
            if !self.returnable.remove(&id) {
                continue;
            }
            self.bytes += id.len();
            self.is_aside.insert(Arc::clone(&id));
            self.aside.push_back(id);
        }
        self.delivered();
        self.enforce_limits();
    }

    /// Drops the ids at these positions of the batch in flight. The others are still in
    /// flight. Returns the dropped ids.
    pub fn give_up(&mut self, places: &[usize]) -> Vec<Arc<str>> {
        let given_up: Vec<_> = places
            .iter()
            .filter_map(|&place| self.in_flight.get(place).cloned())
            .collect();
        for id in &given_up {
            self.returnable.remove(id);
        }
        given_up
    }

    /// Whether the id waits. An id in flight does not, unless it was evicted again meanwhile.
    #[must_use]
    pub fn is_waiting(&self, id: &str) -> bool {
        self.numbers.contains_key(id) || self.is_aside.contains(id)
    }

    /// Whether the id waits or is in flight, and was not withdrawn.
    #[must_use]
    pub fn is_pending(&self, id: &str) -> bool {
        self.is_waiting(id) || self.returnable.contains(id)
    }

    /// Ids waiting, without those in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.numbers.len() + self.aside.len()
    }

    /// Whether nothing waits (something may be in flight).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waiting ids that were set aside.
    #[must_use]
    pub fn aside(&self) -> usize {
        self.aside.len()
    }

    /// Whether there is something for [`take_batch`](Self::take_batch).
    #[must_use]
    pub fn has_batch(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Ids in the batch in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Ids dropped over the limits since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    fn enforce_limits(&mut self) {
        while self.len() > self.limits.ids || self.bytes > self.limits.bytes {
            if self.pop_aside().or_else(|| self.pop_oldest()).is_none() {
                break;
            }
            self.dropped += 1;
        }
    }

    fn pop_aside(&mut self) -> Option<Arc<str>> {
        let id = self.aside.pop_front()?;
        self.is_aside.remove(&id);
        self.bytes -= id.len();
        Some(id)
    }

    fn pop_oldest(&mut self) -> Option<Arc<str>> {
        while let Some(slot) = self.queue.pop_front() {
            self.first = self.first.wrapping_add(1);
            if let Some(id) = slot {
                self.numbers.remove(&id);
                self.bytes -= id.len();
                return Some(id);
            }
        }
        None
    }

    /// Keeps fewer tombstones than ids (plus a constant), and frees the memory
    /// of a long outage when it is over.
    fn tidy(&mut self) {
        const SLACK: usize = 1024;
        if self.queue.len() > 2 * self.numbers.len() + SLACK {
            self.queue.retain(Option::is_some);
            self.first = 0;
            for (number, id) in self.queue.iter().flatten().enumerate() {
                if let Some(known) = self.numbers.get_mut(id) {
                    *known = number as u64;
                }
            }
        }
        if self.numbers.is_empty() && self.queue.capacity() > 4 * SLACK {
            self.queue = VecDeque::new();
            self.numbers = HashMap::new();
        }
    }
}
