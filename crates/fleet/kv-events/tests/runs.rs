//! A subscriber has the blocks of what a prefix store has, and no others.

use std::collections::BTreeSet;

use contextpilot_kv_events::{Feed, KvEvent, Medium, Run, Runs, block_hash};
use contextpilot_kv_store::{Change, Fingerprint, Store};
use contextpilot_random::Random;
use support::{Subscriber, read};

#[allow(dead_code, reason = "other tests use the rest")]
mod support;

const OURS: Fingerprint = Fingerprint([1; 16]);
const BYTES: usize = 64;

/// A store, and what is announced of it.
struct Scene {
    store: Store,
    runs: Runs,
    feed: Feed,
    live: Subscriber,
    block: usize,
    /// Prompts are loaded up to states.
    has_states: bool,
    /// Every prompt that was ever stored.
    prompts: Vec<Vec<i32>>,
}

impl Scene {
    fn new(block: u32, limit: u64, most: usize) -> Self {
        let mut store = Store::new(limit);
        store.changes();
        let mut scene = Self {
            store,
            runs: Runs::with_most(block, most),
            feed: Feed::new(block, 0),
            live: Subscriber::new(block as usize),
            block: block as usize,
            has_states: false,
            prompts: Vec::new(),
        };
        scene.send(&[KvEvent::Cleared]);
        scene
    }

    fn send(&mut self, events: &[KvEvent]) {
        let batch = self.feed.batch(events, 1.0);
        self.live.take(&read(&batch.payload));
    }

    /// Stores all of a prompt, as far as there is room.
    fn keep(&mut self, tokens: &[i32]) {
        for chunk in self.store.missing(&OURS, tokens, BYTES) {
            if self.store.insert(chunk).is_err() {
                break;
            }
        }
        self.prompts.push(tokens.to_vec());
    }

    /// Stores states behind some of the tokens of a prompt that are there.
    fn keep_states(&mut self, tokens: &[i32], random: &mut Random) {
        for _ in 0..random.index(3) {
            let tokens = &tokens[..1 + random.index(tokens.len())];
            if let Some(tail) = self.store.missing_tail(&OURS, tokens, 3_000) {
                let _ = self.store.insert(tail);
            }
        }
    }

    /// Tells everything from the beginning: there is something, and it is what was told before.
    fn tell_all_again(&mut self) {
        let before = self.announced();
        assert!(!before.is_empty());
        let mut events = vec![KvEvent::Cleared];
        self.runs.tell_all(&mut events);
        self.send(&events);
        assert_eq!(self.announced(), before);
    }

    /// Tells what has changed.
    fn tell(&mut self) {
        let mut events = Vec::new();
        for change in self.store.changes().chunks {
            match change {
                Change::Left(name) => self.runs.remove(&name.0, &mut events),
                Change::Came(name) => {
                    // It may have left again.
                    if let Some((chunk, _)) = self.store.chunk(&name) {
                        let run = Run {
                            name: name.0,
                            behind: chunk.parent.map(|(name, tokens)| (name.0, tokens)),
                            start: chunk.start,
                            tokens: if chunk.is_tail() {
                                [].into()
                            } else {
                                chunk.tokens.clone()
                            },
                            kept: false,
                        };
                        self.runs.add(run, &mut events);
                    }
                }
            }
        }
        self.send(&events);
    }

    /// The blocks of everything that the store has.
    fn truth(&self) -> BTreeSet<u64> {
        let mut all = BTreeSet::new();
        for prompt in &self.prompts {
            let found = self.store.find(&OURS, prompt);
            let there = if self.has_states {
                let last = self.store.tails(&found).pop();
                last.map_or(0, |last| last.piece.start)
            } else {
                found.tokens()
            };
            let mut above = None;
            for tokens in prompt[..there].chunks_exact(self.block) {
                let tokens: Vec<u32> = tokens.iter().map(|token| token.unsigned_abs()).collect();
                let hash = block_hash(above, &tokens, None);
                all.insert(hash);
                above = Some(hash);
            }
        }
        all
    }

    fn announced(&self) -> BTreeSet<u64> {
        self.live.blocks(Medium::Disk, None)
    }

    /// A prompt that leaves an earlier one anywhere.
    fn prompt(&self, random: &mut Random) -> Vec<i32> {
        let mut tokens = match self.prompts.len() {
            0 => Vec::new(),
            all => self.prompts[random.index(all)].clone(),
        };
        tokens.truncate(random.index(tokens.len() + 1));
        let more = 1 + random.index(400);
        tokens.extend((0..more).map(|_| random.below(3) as i32));
        tokens.truncate(1000);
        tokens
    }
}

#[test]
fn what_is_told_is_what_the_store_has() {
    for (seed, block) in [(1, 16), (2, 16), (3, 1), (4, 7), (5, 300)] {
        let mut random = Random(seed);
        let mut scene = Scene::new(block, 300_000, usize::MAX);
        let mut left = 0;
        for round in 0..60 {
            for _ in 0..1 + random.index(3) {
                let prompt = scene.prompt(&mut random);
                scene.keep(&prompt);
            }
            if random.index(10) == 0 {
                let prompt = &scene.prompts[random.index(scene.prompts.len())];
                let found = scene.store.find(&OURS, prompt);
                if let Some(piece) = found.pieces().get(random.index(4)) {
                    left += scene.store.remove(&piece.name.clone()).len();
                }
            }
            scene.tell();
            if round % 4 == 3 {
                let truth = scene.truth();
                assert_eq!(scene.announced(), truth, "seed {seed}");
            }
        }
        assert!(left > 0 && scene.store.chunks() == scene.runs.len());
        // From the beginning, and then nothing.
        scene.tell_all_again();
        let mut events = Vec::new();
        scene.runs.clear(false, &mut events);
        scene.send(&events);
        assert!(scene.announced().is_empty() && scene.runs.is_empty());
    }
}

#[test]
fn what_is_told_of_a_store_with_states_ends_at_the_last_one_on_each_way() {
    for (seed, block) in [(1, 16), (2, 16), (3, 1), (4, 7), (5, 300)] {
        let mut random = Random(seed);
        let mut scene = Scene::new(block, 300_000, usize::MAX);
        let mut events = Vec::new();
        scene.runs.clear(true, &mut events);
        scene.has_states = true;
        let (mut left, mut less) = (0, 0);
        for _ in 0..60 {
            for _ in 0..1 + random.index(3) {
                let prompt = scene.prompt(&mut random);
                scene.keep(&prompt);
                scene.keep_states(&prompt, &mut random);
            }
            let prompt = &scene.prompts[random.index(scene.prompts.len())];
            let found = scene.store.find(&OURS, prompt);
            let tails = scene.store.tails(&found);
            if let Some(tail) = tails.get(random.index(4)) {
                left += scene.store.remove(&tail.piece.name.clone()).len();
            }
            scene.tell();
            let truth = scene.truth();
            assert_eq!(scene.announced(), truth, "seed {seed}");
            assert_eq!(scene.feed.blocks(Medium::Disk), truth.len());
            scene.has_states = false;
            less += usize::from(scene.truth().len() > truth.len());
            scene.has_states = true;
        }
        assert!(left > 0 && less > 30 && scene.store.chunks() == scene.runs.len());
        scene.tell_all_again();
    }
}

#[test]
fn no_more_is_told_than_may_be() {
    more_than_may_be(false);
    more_than_may_be(true);
}

fn more_than_may_be(has_states: bool) {
    const MOST: usize = 150;
    let mut random = Random(7);
    let mut scene = Scene::new(16, u64::MAX, MOST);
    scene.runs.clear(has_states, &mut Vec::new());
    scene.has_states = has_states;
    let mut fewer = 0;
    for _ in 0..40 {
        let prompt = scene.prompt(&mut random);
        scene.keep(&prompt);
        scene.keep_states(&prompt, &mut random);
        scene.tell();
        let (announced, truth) = (scene.announced(), scene.truth());
        assert!(
            announced.len() + scene.runs.len() <= MOST,
            "{}",
            announced.len()
        );
        assert!(announced.is_subset(&truth));
        fewer += usize::from(announced.len() < truth.len());
        assert_eq!(scene.feed.blocks(Medium::Disk), announced.len());
    }
    assert!(fewer > 0);
}

fn run(name: u8, behind: Option<([u8; 16], u32)>, start: u32, tokens: &[i32]) -> Run {
    Run {
        name: [name; 16],
        behind,
        start,
        tokens: tokens.into(),
        kept: false,
    }
}

/// The one that came first of those that nothing continues. What came last stays, or a full store would never be announced
/// of again.
#[test]
fn what_is_too_much_leaves_in_the_order_in_which_it_came() {
    let hash = |token| block_hash(None, &[token], None);
    // Two runs of one block each.
    let mut runs = Runs::with_most(1, 4);
    let mut events = Vec::new();
    for name in 1..=2 {
        runs.add(run(name, None, 0, &[i32::from(name)]), &mut events);
    }
    for name in 3..=5_u8 {
        events.clear();
        runs.add(run(name, None, 0, &[i32::from(name)]), &mut events);
        let [
            KvEvent::Stored { hashes: came, .. },
            KvEvent::Removed { hashes: left, .. },
        ] = &events[..]
        else {
            panic!("{events:?}");
        };
        let name = u32::from(name);
        assert_eq!(
            (&came[..], &left[..]),
            (&[hash(name)][..], &[hash(name - 2)][..])
        );
        assert_eq!(runs.len(), 2);
    }
}

/// What is kept on request leaves the store last.
#[test]
fn what_is_kept_stays_told_as_long_as_anything_else_may_leave() {
    let mut runs = Runs::with_most(1, 6);
    let mut events = Vec::new();
    let kept = |run| Run { kept: true, ..run };
    runs.add(kept(run(1, None, 0, &[1])), &mut events);
    for name in 2..=6 {
        runs.add(run(name, None, 0, &[i32::from(name)]), &mut events);
    }
    let announced = |runs: &Runs| {
        let mut events = Vec::new();
        runs.tell_all(&mut events);
        let tokens = events.into_iter().flat_map(|event| match event {
            KvEvent::Stored { tokens, .. } => tokens,
            other => panic!("{other:?}"),
        });
        tokens.collect::<Vec<_>>()
    };
    assert_eq!(announced(&runs), [1, 5, 6]);
    for name in 7..=9 {
        runs.add(kept(run(name, None, 0, &[i32::from(name)])), &mut events);
    }
    assert_eq!(
        announced(&runs),
        [7, 8, 9],
        "too many of them: the first leave"
    );
}

#[test]
fn a_run_that_cannot_stand_there_is_not_told() {
    let mut runs = Runs::new(2);
    let mut events = Vec::new();
    runs.add(run(1, None, 0, &[1, 2, 3]), &mut events);
    assert_eq!(events.len(), 1);
    for wrong in [
        run(1, None, 0, &[1, 2, 3]),
        run(2, None, 4, &[1, 2]),
        run(2, None, 0, &[]),
        run(2, None, 0, &[1, -1]),
        run(2, Some(([9; 16], 3)), 3, &[1, 2]),
        run(2, Some(([1; 16], 3)), 4, &[1, 2]),
        run(2, Some(([1; 16], 4)), 4, &[1, 2]),
    ] {
        runs.add(wrong, &mut events);
    }
    assert_eq!((events.len(), runs.len()), (1, 1));
    // Behind one token of it: the block begins there, and has no block before it.
    events.clear();
    runs.add(run(2, Some(([1; 16], 1)), 1, &[7, 8, 9]), &mut events);
    let [first, second] = [&[1, 7][..], &[8, 9]];
    let above = block_hash(None, first, None);
    assert_eq!(
        events,
        [KvEvent::Stored {
            hashes: vec![above, block_hash(Some(above), second, None)],
            parent: None,
            tokens: [first, second].concat(),
            medium: Medium::Disk,
            adapter: None,
        }]
    );
    // What continues a run leaves with it.
    events.clear();
    runs.remove(&[1; 16], &mut events);
    assert!(runs.is_empty());
    assert_eq!(events.iter().map(KvEvent::weight).sum::<usize>(), 3);
}
