//! The last changes, for readers that come back or fall behind.

use std::collections::VecDeque;
use std::sync::Arc;

use contextpilot_control::{Change, ResidencyEvent};

/// The most events that are kept.
pub const MOST_EVENTS: usize = 4096;
/// The most request ids in all kept events together.
pub const MOST_IDS: usize = 65_536;

/// The last events. Their numbers are successive.
#[derive(Debug, Default)]
pub struct Ring {
    events: VecDeque<Arc<ResidencyEvent>>,
    ids: usize,
    /// The number of the last event. 0: there was none.
    last: u64,
}

/// The answer to a reader that has read up to some number.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Since {
    /// The number of events that the reader has missed: they are no longer kept.
    pub missed: u64,
    /// The next events.
    pub events: Vec<Arc<ResidencyEvent>>,
}

impl Ring {
    /// Adds the next event.
    pub fn push(&mut self, event: ResidencyEvent) {
        self.last = event.sequence;
        self.ids += ids_in(&event);
        self.events.push_back(Arc::new(event));
        while self.events.len() > MOST_EVENTS || self.ids > MOST_IDS {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.ids -= ids_in(&oldest);
        }
    }

    /// The number of the last event.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The events after the one with the number `read`, at most `most` of them.
    #[must_use]
    pub fn since(&self, read: u64, most: usize) -> Since {
        let kept_from = self.last - self.events.len() as u64;
        let missed = kept_from.saturating_sub(read);
        let skip = usize::try_from(read.saturating_sub(kept_from)).unwrap_or(usize::MAX);
        Since {
            missed,
            events: self.events.iter().skip(skip).take(most).cloned().collect(),
        }
    }
}

fn ids_in(event: &ResidencyEvent) -> usize {
    match &event.change {
        Change::MovedToHost { ids, .. } | Change::Restored { ids, .. } => ids.len(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use contextpilot_control::Timestamp;

    fn event(sequence: u64, ids: usize) -> ResidencyEvent {
        ResidencyEvent {
            epoch: "e".to_owned(),
            sequence,
            at: Timestamp::from_unix_ms(0),
            change: Change::Restored {
                ids: vec![String::new(); ids],
                slot: 0,
                tokens: 1,
            },
        }
    }

    fn numbers(since: &Since) -> Vec<u64> {
        since.events.iter().map(|event| event.sequence).collect()
    }

    #[test]
    fn a_reader_gets_the_events_after_its_last_one() {
        let mut ring = Ring::default();
        assert_eq!(ring.since(0, 9), Since::default());
        (1..=5).for_each(|n| ring.push(event(n, 1)));
        assert_eq!(numbers(&ring.since(0, 2)), [1, 2]);
        assert_eq!(numbers(&ring.since(3, 9)), [4, 5]);
        assert_eq!(numbers(&ring.since(5, 9)), [0; 0]);
        assert_eq!(numbers(&ring.since(77, 9)), [0; 0]);
    }

    #[test]
    fn events_that_are_no_longer_kept_are_counted_as_missed() {
        let mut ring = Ring::default();
        let most = MOST_EVENTS as u64;
        (1..=most + 10).for_each(|n| ring.push(event(n, 1)));
        let since = ring.since(3, 1);
        assert_eq!((since.missed, numbers(&since)), (7, vec![11]));
        assert_eq!(ring.since(10, 1).missed, 0);

        // A few large ones take the room of many small ones.
        let next = most + 11;
        (next..next + 100).for_each(|n| ring.push(event(n, 1000)));
        assert!(ring.ids <= MOST_IDS);
        assert_eq!(ring.events.len(), MOST_IDS / 1000);
        assert_eq!(ring.last(), next + 99);
    }
}
