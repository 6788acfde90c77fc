//! From what the ledger holds to blocks that come and go.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use contextpilot_residency::{BufferId, Event, Keeper, Ledger, Token, is_of_vocabulary};

use crate::{KvEvent, Medium, block_hash, event};

/// Follows a ledger. See the crate's page.
#[derive(Debug)]
pub struct Tracker {
    /// Tokens of a block.
    block: u32,
    /// Ordered, so that equal events give equal effects. Host entries are here as long as the
    /// ledger knows them, also without blocks.
    chains: BTreeMap<Keeper, Chain>,
    /// How many chains have a block, on each medium.
    counts: HashMap<u64, [u32; 2]>,
    /// Host entries that events were about.
    touched: BTreeSet<BufferId>,
    /// Subscribers may believe in blocks that are not there.
    stale: bool,
}

/// What the server would use again of what one keeper holds.
#[derive(Debug, Default)]
struct Chain {
    hashes: Vec<u64>,
    /// Index of the first token that ends the chain, if one was found.
    ended: Option<u32>,
}

impl Tracker {
    /// For blocks of so many tokens, at least one. The ledger is empty yet.
    #[must_use]
    pub fn new(block: u32) -> Self {
        Self {
            block: block.max(1),
            chains: BTreeMap::new(),
            counts: HashMap::new(),
            touched: BTreeSet::new(),
            stale: true,
        }
    }

    /// An event was applied to the ledger. Several may be before the next [`Self::follow`].
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Saved { buffer, .. } | Event::Freed { buffer } => {
                self.touched.insert(*buffer);
            }
            Event::ContextFreed { .. } | Event::OutOfStep => self.touch_all(),
            _ => {}
        }
    }

    /// Adds to `events` what has changed since this was called last.
    pub fn follow(&mut self, ledger: &mut Ledger, events: &mut Vec<KvEvent>) {
        if std::mem::take(&mut self.stale) {
            events.push(KvEvent::Cleared);
        }
        let mut gone = Vec::new();
        let known = self
            .chains
            .keys()
            .filter(|one| matches!(one, Keeper::Slot(_)));
        let slots = ledger.slots().map(Keeper::Slot);
        let slots: BTreeSet<Keeper> = known.copied().chain(slots).collect();
        let hosts = std::mem::take(&mut self.touched);
        for keeper in slots.into_iter().chain(hosts.into_iter().map(Keeper::Host)) {
            self.follow_one(keeper, ledger, events, &mut gone);
        }
        // What has come was said before.
        for (medium, hashes) in gone {
            self.remove(medium, &hashes, events);
        }
    }

    /// What was said so far did not arrive: all of it will be said again, after a
    /// [`KvEvent::Cleared`].
    pub fn start_over(&mut self) {
        self.touch_all();
        self.chains.clear();
        self.counts.clear();
        self.stale = true;
    }

    fn touch_all(&mut self) {
        let hosts = self.chains.keys().filter_map(|keeper| match keeper {
            Keeper::Host(buffer) => Some(*buffer),
            Keeper::Slot(_) => None,
        });
        self.touched.extend(hosts);
    }

    fn follow_one(
        &mut self,
        keeper: Keeper,
        ledger: &mut Ledger,
        events: &mut Vec<KvEvent>,
        gone: &mut Vec<(Medium, Vec<u64>)>,
    ) {
        let medium = match keeper {
            Keeper::Slot(_) => Medium::Gpu,
            Keeper::Host(_) => Medium::Cpu,
        };
        let unchanged = ledger.take_unchanged(keeper);
        let reusable = ledger.reusable_of(keeper);
        let chain = self.chains.entry(keeper).or_default();
        chain.ended = chain.ended.filter(|&at| unchanged > at);
        let wanted = (reusable / self.block) as usize;
        let kept = chain.hashes.len().min((unchanged / self.block) as usize);
        let kept = kept.min(wanted);
        let lost = chain.hashes.split_off(kept);
        if !lost.is_empty() {
            gone.push((medium, lost));
        }
        let ended = chain
            .ended
            .map_or(usize::MAX, |at| (at / self.block) as usize);
        if kept < wanted.min(ended) && !ledger.is_in_flight(keeper) {
            let tokens = ledger.tokens_from(keeper, kept as u32 * self.block);
            self.extend(keeper, medium, &tokens, wanted - kept, events);
        }
        let known = match keeper {
            Keeper::Slot(_) => !self.chains[&keeper].hashes.is_empty(),
            Keeper::Host(buffer) => ledger.knows(buffer),
        };
        if !known {
            self.chains.remove(&keeper);
        }
    }

    /// A chain goes on with up to so many blocks of these tokens.
    fn extend(
        &mut self,
        keeper: Keeper,
        medium: Medium,
        tokens: &[Token],
        blocks: usize,
        events: &mut Vec<KvEvent>,
    ) {
        let chain = self.chains.entry(keeper).or_default();
        for block in tokens.chunks_exact(self.block as usize).take(blocks) {
            if let Some(at) = block.iter().position(|&token| !is_of_vocabulary(token)) {
                let before = chain.hashes.len() as u32 * self.block;
                chain.ended = Some(before + at as u32);
                return;
            }
            let tokens: Vec<u32> = block.iter().map(|token| token.unsigned_abs()).collect();
            let parent = chain.hashes.last().copied();
            let hash = block_hash(parent, &tokens);
            chain.hashes.push(hash);
            let count = &mut self.counts.entry(hash).or_default()[medium as usize];
            *count += 1;
            if *count == 1 {
                event::store(hash, parent, &tokens, medium, events);
            }
        }
    }

    /// A chain has lost its end, which these are.
    fn remove(&mut self, medium: Medium, hashes: &[u64], events: &mut Vec<KvEvent>) {
        for &hash in hashes.iter().rev() {
            let Some(count) = self.counts.get_mut(&hash) else {
                debug_assert!(false, "each block of a chain is counted");
                continue;
            };
            count[medium as usize] -= 1;
            let last = count[medium as usize] == 0;
            if *count == [0, 0] {
                self.counts.remove(&hash);
            }
            if last {
                event::remove(hash, medium, events);
            }
        }
    }
}
