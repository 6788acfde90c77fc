//! A subscriber has exactly the blocks that the naive implementation of the ledger would reuse.

use std::collections::BTreeSet;

use contextpilot_kv_events::{Feed, KvEvent, Medium, Tracker, block_hash};
use contextpilot_residency::{Event, Token, is_of_vocabulary};
use naive::{Choices, Generator, Pair, Random};
use support::{Subscriber, read};

#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
#[path = "../../../cache/residency/tests/naive/mod.rs"]
mod naive;
#[allow(dead_code, reason = "other tests use the rest")]
mod support;

/// The names of the adapters in generated events.
const ADAPTERS: [&str; 3] = ["sql", "chat", "code"];

/// The names of all full blocks of some lists, for requests that name an adapter, or none.
fn blocks(lists: &[&[Token]], block: usize, adapter: Option<&str>) -> BTreeSet<u64> {
    let mut all = BTreeSet::new();
    for list in lists {
        let mut above = None;
        for tokens in list.chunks_exact(block) {
            if !tokens.iter().all(|&token| is_of_vocabulary(token)) {
                break;
            }
            let tokens: Vec<u32> = tokens.iter().map(|&token| token as u32).collect();
            let hash = block_hash(above, &tokens, adapter);
            all.insert(hash);
            above = Some(hash);
        }
    }
    all
}

struct Scene {
    pair: Pair,
    tracker: Tracker,
    feed: Feed,
    live: Subscriber,
    block: usize,
    stored: usize,
    removed: usize,
    /// Blocks that served requests for an adapter, over all comparisons.
    adapted: usize,
}

impl Scene {
    fn new(block: u32) -> Self {
        Self {
            pair: Pair::default(),
            tracker: Tracker::new(block).with_adapters(&ADAPTERS.map(String::from)),
            feed: Feed::new(block, 0),
            live: Subscriber::new(block as usize),
            block: block as usize,
            stored: 0,
            removed: 0,
            adapted: 0,
        }
    }

    fn apply(&mut self, event: &Event) {
        self.pair.apply(event.clone()).expect("the ledger is right");
        let facts = self.pair.facts.iter();
        facts.for_each(|fact| self.tracker.note(fact));
    }

    /// Publishes what has changed and compares.
    fn check(&mut self, after: &str) {
        let mut events = Vec::new();
        self.tracker.follow(&mut self.pair.ledger, &mut events);
        for event in &events {
            match event {
                KvEvent::Stored { hashes, .. } => self.stored += hashes.len(),
                KvEvent::Removed { hashes, .. } => self.removed += hashes.len(),
                KvEvent::Cleared => {}
            }
        }
        let batch = self.feed.batch(&events, 0.0);
        assert_eq!(read(&batch.payload), events);
        self.live.take(&events);

        let (slots, hosts) = self.pair.naive.reusable();
        self.check_slots(&slots, None, after);
        for (place, name) in ADAPTERS.iter().enumerate() {
            let slots = self.pair.naive.reusable_under(place);
            self.adapted += self.check_slots(&slots, Some(name), after);
            assert!(self.live.blocks(Medium::Cpu, Some(name)).is_empty());
        }
        let hosts = blocks(&hosts, self.block, None);
        assert_eq!(self.live.blocks(Medium::Cpu, None), hosts, "{after}");

        // A subscriber that starts now.
        let mut late = Subscriber::new(self.block);
        let replay = self.feed.replay(0, 0.0);
        replay.for_each(|batch| late.take(&read(&batch.payload)));
        assert_eq!(late, self.live, "{after}");
    }
}

impl Scene {
    /// How many blocks there are of these lists, which are what counts for requests that name an
    /// adapter, or none.
    fn check_slots(&self, slots: &[&[Token]], adapter: Option<&str>, after: &str) -> usize {
        let slots = blocks(slots, self.block, adapter);
        // Tokens that are being computed may count already, but need not.
        let coming = blocks(&self.pair.naive.in_flight(), self.block, adapter);
        let here = self.live.blocks(Medium::Gpu, adapter);
        let missing: Vec<_> = slots.difference(&here).collect();
        assert!(
            missing.is_empty(),
            "not published {missing:x?} for {adapter:?}: {after}"
        );
        let surplus: Vec<_> = here.difference(&slots).collect();
        let surplus: Vec<_> = surplus
            .iter()
            .filter(|block| !coming.contains(block))
            .collect();
        assert!(
            surplus.is_empty(),
            "not there {surplus:x?} for {adapter:?}: {after}"
        );
        here.len()
    }
}

fn run(seeds: std::ops::Range<u64>, events: usize, block: u32, longest: u32) -> [usize; 3] {
    let mut said = [0; 3];
    for seed in seeds {
        let mut scene = Scene::new(block);
        let mut choices = Random(seed);
        let mut generator = Generator::from_bytes(&[seed as u8], longest);
        for nth in 0..events {
            let event = generator.next(&mut choices, &scene.pair.naive);
            scene.apply(&event);
            // Often the worker finds several events.
            if choices.below(3) == 0 {
                scene.check(&format!("seed {seed}, event {nth}: {event:?}"));
            }
            if choices.once_in(200) {
                // The published events were lost.
                scene.tracker.start_over();
            }
        }
        said[0] += scene.stored;
        said[1] += scene.removed;
        said[2] += scene.adapted;
    }
    said
}

#[test]
fn after_random_events_a_subscriber_has_the_reusable_blocks() {
    for block in [1, 2, 3] {
        let [stored, removed, adapted] = run(0..200, 200, block, 3);
        assert!(
            stored > 3_000 && removed > 3_000 && adapted > 500,
            "{stored} {removed} {adapted}"
        );
    }
}

#[test]
fn after_long_random_sequences_a_subscriber_has_the_reusable_blocks() {
    let [stored, removed, _] = run(0..60, 150, 16, 300);
    assert!(stored > 2_000 && removed > 1_000, "{stored} {removed}");
}
