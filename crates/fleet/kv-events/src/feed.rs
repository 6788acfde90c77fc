//! Numbers batches, and keeps their result for subscribers that missed some.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::{KvEvent, Medium, encode, event};

/// The most empty batches of a replay. A subscriber that missed more gets the snapshot under a later number.
pub const MOST_EMPTY: u64 = 1024;

/// The blocks that a subscriber knows after all batches so far.
#[derive(Debug)]
pub struct Feed {
    block_size: u32,
    /// The number of the next batch.
    next: u64,
    stored: HashMap<(u64, Medium), Stored>,
    /// In the order in which they were stored, so that each comes after its parent.
    order: BTreeMap<u64, (u64, Medium)>,
    /// The number of the next stored block.
    serial: u64,
    /// How many there are on each medium.
    blocks: [usize; Medium::ALL.len()],
}

#[derive(Debug)]
struct Stored {
    serial: u64,
    parent: Option<u64>,
    tokens: Box<[u32]>,
    adapter: Option<Arc<str>>,
}

/// A message without its topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Goes up by one with each.
    pub sequence: u64,
    /// Its msgpack.
    pub payload: Vec<u8>,
}

impl Feed {
    /// For blocks of so many tokens. `next` is the number of the first batch.
    #[must_use]
    pub fn new(block_size: u32, next: u64) -> Self {
        Self {
            block_size,
            next,
            stored: HashMap::new(),
            order: BTreeMap::new(),
            serial: 0,
            blocks: [0; Medium::ALL.len()],
        }
    }

    /// The number of the next batch.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// How many blocks there are on a medium.
    #[must_use]
    pub fn blocks(&self, medium: Medium) -> usize {
        self.blocks[medium as usize]
    }

    /// The next batch. A batch without events is a heartbeat. `time`: seconds since 1970.
    pub fn batch(&mut self, events: &[KvEvent], time: f64) -> Batch {
        for event in events {
            self.take(event);
        }
        let sequence = self.next;
        self.next += 1;
        Batch {
            sequence,
            payload: encode::batch(events, time, self.block_size),
        }
    }

    /// The batches from a number on, for a subscriber that missed them. The first clears everything and
    /// stores all current blocks, the others are empty. None if there is no such batch yet.
    pub fn replay(&self, start: u64, time: f64) -> impl Iterator<Item = Batch> {
        let first = start.max(self.next.saturating_sub(MOST_EMPTY));
        let empty = encode::batch(&[], time, self.block_size);
        let mut snapshot =
            (first < self.next).then(|| encode::batch(&self.snapshot(), time, self.block_size));
        (first..self.next).map(move |sequence| Batch {
            sequence,
            payload: snapshot.take().unwrap_or_else(|| empty.clone()),
        })
    }

    fn snapshot(&self) -> Vec<KvEvent> {
        let mut events = vec![KvEvent::Cleared];
        for key in self.order.values() {
            let (hash, on) = *key;
            let block = &self.stored[key];
            let adapter = block.adapter.as_ref();
            event::store(hash, block.parent, &block.tokens, on, adapter, &mut events);
        }
        events
    }

    fn take(&mut self, event: &KvEvent) {
        match event {
            KvEvent::Stored {
                hashes,
                parent,
                tokens,
                medium,
                adapter,
            } => {
                let mut above = *parent;
                let blocks = tokens.chunks_exact(self.block_size as usize);
                for (&hash, tokens) in hashes.iter().zip(blocks) {
                    self.serial += 1;
                    let block = Stored {
                        serial: self.serial,
                        parent: above.replace(hash),
                        tokens: tokens.into(),
                        adapter: adapter.clone(),
                    };
                    self.order.insert(self.serial, (hash, *medium));
                    match self.stored.insert((hash, *medium), block) {
                        Some(before) => drop(self.order.remove(&before.serial)),
                        None => self.blocks[*medium as usize] += 1,
                    }
                }
            }
            KvEvent::Removed { hashes, medium } => {
                for &hash in hashes {
                    if let Some(block) = self.stored.remove(&(hash, *medium)) {
                        self.order.remove(&block.serial);
                        self.blocks[*medium as usize] -= 1;
                    }
                }
            }
            KvEvent::Cleared => {
                self.blocks = [0; Medium::ALL.len()];
                self.stored.clear();
                self.order.clear();
            }
        }
    }
}
