//! The last changes, for readers who come back or fall behind.

use std::collections::VecDeque;
use std::sync::Arc;

use contextpilot_control::{Change, ResidencyEvent};

/// Events that are kept.
pub const MOST_EVENTS: usize = 4096;
/// Request ids in them, all together.
pub const MOST_IDS: usize = 65_536;

/// A bounded row of events with successive numbers.
#[derive(Debug, Default)]
pub struct Ring {
    events: VecDeque<Arc<ResidencyEvent>>,
    ids: usize,
    /// The number of the last event ever; 0: none.
    last: u64,
}

/// What a reader gets who has read up to some number.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Since {
    /// Events that are not kept any more.
    pub missed: u64,
    /// The others.
    pub events: Vec<Arc<ResidencyEvent>>,
}

impl Ring {
    /// Takes the next event.
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

    /// What came after the event of this number, `most` events at a time.
    #[must_use]
    pub fn since(&self, read: u64, most: usize) -> Since {
        let kept_from = self.last - self.events.len() as u64;
        let missed = kept_from.saturating_sub(read);
        let skip = read.saturating_sub(kept_from);
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
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
    fn a_reader_gets_what_it_has_not_read() {
        let mut ring = Ring::default();
        assert_eq!(ring.since(0, 9), Since::default());
        (1..=5).for_each(|n| ring.push(event(n, 1)));
        assert_eq!(numbers(&ring.since(0, 2)), [1, 2]);
        assert_eq!(numbers(&ring.since(3, 9)), [4, 5]);
        assert_eq!(numbers(&ring.since(5, 9)), [0; 0]);
        assert_eq!(numbers(&ring.since(77, 9)), [0; 0]);
    }

    #[test]
    fn what_is_not_kept_is_counted() {
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
