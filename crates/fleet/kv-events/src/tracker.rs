//! Makes stored and removed blocks from the content of the ledger.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use contextpilot_residency::{BufferId, CacheEntry, Fact, Ledger, Token, is_of_vocabulary};

use crate::{KvEvent, Medium, block_hash, event};

/// Follows a ledger. See the crate's page.
#[derive(Debug)]
pub struct Tracker {
    /// Tokens of a block.
    block: u32,
    /// The names of the server's LoRA adapters, in its order.
    adapters: Vec<Arc<str>>,
    /// Ordered, so that equal events give equal facts. Host entries are here as long as the
    /// ledger knows them, also without blocks.
    chains: BTreeMap<View, Chain>,
    /// How many chains have a block, on each medium.
    counts: HashMap<u64, [u32; 2]>,
    /// Host entries that facts were about.
    touched: BTreeSet<BufferId>,
    /// Subscribers may know blocks that no longer exist.
    stale: bool,
}

/// A slot or host entry, and the requests that it serves: those that name a certain adapter, or none.
type View = (CacheEntry, Option<usize>);

/// The tokens that the server would reuse of a slot or host entry, for the requests of a view.
#[derive(Debug, Default)]
struct Chain {
    hashes: Vec<u64>,
    /// Index of the first token that ends the chain, if one was found.
    ended: Option<u32>,
}

impl Tracker {
    /// For blocks of so many tokens, at least one. The ledger must be empty.
    #[must_use]
    pub fn new(block: u32) -> Self {
        Self {
            block: block.max(1),
            adapters: Vec::new(),
            chains: BTreeMap::new(),
            counts: HashMap::new(),
            touched: BTreeSet::new(),
            stale: true,
        }
    }

    /// Names the server's LoRA adapters, in its order. What can serve requests for one of them, alone and at
    /// scale 1, is published under that name.
    #[must_use]
    pub fn with_adapters(mut self, names: &[String]) -> Self {
        self.adapters = names.iter().map(|name| name.as_str().into()).collect();
        self
    }

    /// How many adapters have a name.
    #[must_use]
    pub fn adapters(&self) -> usize {
        self.adapters.len()
    }

    /// The [observed](Ledger::observed) ledger has told this. There may be several before the next
    /// [`Self::follow`].
    pub fn note(&mut self, fact: &Fact) {
        match fact {
            Fact::Saved { buffer, .. } | Fact::Freed { buffer } => {
                self.touched.insert(*buffer);
            }
            Fact::ContextFreed { .. } | Fact::OutOfStep => self.touch_all(),
            _ => {}
        }
    }

    /// Adds to `events` what has changed since the last call.
    pub fn follow(&mut self, ledger: &mut Ledger, events: &mut Vec<KvEvent>) {
        if std::mem::take(&mut self.stale) {
            events.push(KvEvent::Cleared);
        }
        let mut gone = Vec::new();
        let known = self.chains.keys().map(|&(entry, _)| entry);
        let known = known.filter(|entry| matches!(entry, CacheEntry::Slot(_)));
        let slots = ledger.slots().map(CacheEntry::Slot);
        let mut all = BTreeSet::new();
        all.extend(known.chain(slots));
        let hosts = std::mem::take(&mut self.touched);
        for entry in all
            .into_iter()
            .chain(hosts.into_iter().map(CacheEntry::Host))
        {
            self.follow_one(entry, ledger, events, &mut gone);
        }
        // New blocks are stored before old ones are removed.
        for (medium, hashes) in gone {
            self.remove(medium, &hashes, events);
        }
    }

    /// Earlier events did not arrive: everything will be published again, after a
    /// [`KvEvent::Cleared`].
    pub fn start_over(&mut self) {
        self.touch_all();
        self.chains.clear();
        self.counts.clear();
        self.stale = true;
    }

    fn touch_all(&mut self) {
        let hosts = self.chains.keys().filter_map(|view| match view.0 {
            CacheEntry::Host(buffer) => Some(buffer),
            CacheEntry::Slot(_) => None,
        });
        self.touched.extend(hosts);
    }

    fn follow_one(
        &mut self,
        entry: CacheEntry,
        ledger: &mut Ledger,
        events: &mut Vec<KvEvent>,
        gone: &mut Vec<(Medium, Vec<u64>)>,
    ) {
        let unchanged = ledger.take_unchanged(entry);
        let reusable = ledger.reusable_of(entry);
        self.follow_view((entry, None), unchanged, reusable, ledger, events, gone);
        if let CacheEntry::Slot(_) = entry {
            for adapter in 0..self.adapters.len() {
                let view = (entry, Some(adapter));
                let reusable = ledger.reusable_under(entry, adapter);
                if reusable > 0 || self.chains.contains_key(&view) {
                    self.follow_view(view, unchanged, reusable, ledger, events, gone);
                }
            }
        }
    }

    /// `unchanged`: how many tokens are unchanged. `reusable`: how many tokens count now.
    fn follow_view(
        &mut self,
        view: View,
        unchanged: u32,
        reusable: u32,
        ledger: &Ledger,
        events: &mut Vec<KvEvent>,
        gone: &mut Vec<(Medium, Vec<u64>)>,
    ) {
        let entry = view.0;
        let chain = self.chains.entry(view).or_default();
        chain.ended = chain.ended.filter(|&at| unchanged > at);
        let wanted = (reusable / self.block) as usize;
        let kept = chain.hashes.len().min((unchanged / self.block) as usize);
        let kept = kept.min(wanted);
        let lost = chain.hashes.split_off(kept);
        if !lost.is_empty() {
            gone.push((medium_of(entry), lost));
        }
        let ended = chain
            .ended
            .map_or(usize::MAX, |at| (at / self.block) as usize);
        if kept < wanted.min(ended) && !ledger.is_in_flight(entry) {
            let tokens = ledger.tokens_from(entry, kept as u32 * self.block);
            self.extend(view, &tokens, wanted - kept, events);
        }
        let known = match entry {
            CacheEntry::Slot(_) => !self.chains[&view].hashes.is_empty(),
            CacheEntry::Host(buffer) => ledger.knows(buffer),
        };
        if !known {
            self.chains.remove(&view);
        }
    }

    /// Extends a chain with up to so many blocks of these tokens.
    fn extend(&mut self, view: View, tokens: &[Token], blocks: usize, events: &mut Vec<KvEvent>) {
        let medium = medium_of(view.0);
        let adapter = view.1.and_then(|adapter| self.adapters.get(adapter));
        let chain = self.chains.entry(view).or_default();
        for block in tokens.chunks_exact(self.block as usize).take(blocks) {
            if let Some(at) = block.iter().position(|&token| !is_of_vocabulary(token)) {
                let before = chain.hashes.len() as u32 * self.block;
                chain.ended = Some(before + at as u32);
                return;
            }
            let tokens: Vec<u32> = block.iter().map(|token| token.unsigned_abs()).collect();
            let parent = chain.hashes.last().copied();
            let hash = block_hash(parent, &tokens, adapter.map(|name| &**name));
            chain.hashes.push(hash);
            let count = &mut self.counts.entry(hash).or_default()[medium as usize];
            *count += 1;
            if *count == 1 {
                event::store(hash, parent, &tokens, medium, adapter, events);
            }
        }
    }

    /// Removes these blocks from the end of a chain.
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

fn medium_of(entry: CacheEntry) -> Medium {
    match entry {
        CacheEntry::Slot(_) => Medium::Gpu,
        CacheEntry::Host(_) => Medium::Cpu,
    }
}
