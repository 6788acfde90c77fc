//! What one client may send takes a time that grows with its length, and no stack: before, one context of
//! 100,000 blocks took minutes, and a cached prefix of some thousands overflowed the stack.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use contextpilot_order::{
    Batch, BatchOptions, Block, Cached, Frequency, OnlineOptions, Tiers, batch_after,
    batch_sharing, importance_note, is_permutation, online,
};

/// Far above what is right on a busy machine, and far below what the square of `MANY` takes.
const LIMIT: Duration = Duration::from_secs(60);
const MANY: Block = 100_000;

fn in_time<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let took = start.elapsed();
    assert!(took < LIMIT, "{what} took {took:?}");
    result
}

fn reversed() -> Vec<Block> {
    (0..MANY).rev().collect()
}

/// One prompt of all blocks, and one of each alone.
fn cached() -> Cached {
    let mut cached = Cached::new();
    let all: Vec<Block> = (0..MANY).collect();
    cached.insert(0, &all);
    for block in 0..MANY {
        cached.insert(1 + u64::from(block), &[block]);
    }
    cached
}

#[test]
fn one_long_context() {
    let cached = cached();
    let mut frequency = Frequency::new(40.0, MANY as usize);
    frequency.note(&reversed());
    let given = reversed();
    let options = OnlineOptions::default();
    let ordered = in_time("online", || {
        online(&given, &cached, &frequency, |_| 1, &options)
    });
    assert!(is_permutation(&ordered.blocks, &given));
    let prefix: Vec<Block> = (0..1000).collect();
    assert_eq!(ordered.blocks[..1000], prefix);
    let note = in_time("the note", || importance_note(&given, &ordered.blocks));
    assert!(note.is_some());
}

#[test]
fn a_batch_of_two_long_contexts() {
    let mut cached = cached();
    let given = [reversed(), reversed()];
    let ordered = |batch: Batch| {
        assert!(is_permutation(&batch.contexts[1], &given[1]));
    };
    in_time("sharing", || {
        ordered(batch_sharing(&given, 0, &cached, |_| 1))
    });
    in_time("clustering", || {
        ordered(batch_after(&given, &cached, &BatchOptions::default()));
    });
    let numbers: HashMap<Block, Block> = (0..MANY).map(|block| (block, block)).collect();
    let copy = in_time("a copy", || {
        Tiers::from(&cached).renumbered(&numbers, usize::MAX)
    });
    assert_eq!(copy.nodes(), cached.nodes());
    in_time("removal", || {
        for prompt in 0..=u64::from(MANY) {
            assert!(cached.remove(prompt));
        }
    });
}

#[test]
fn many_equal_prompts_are_removed_one_by_one() {
    let mut cached = Cached::new();
    for prompt in 0..u64::from(MANY) {
        cached.insert(prompt, &[1, 2, 3]);
        // In host memory, of no use for a prompt as short.
        cached.usable_from(prompt, 9);
    }
    in_time("removal", || {
        for prompt in 0..u64::from(MANY) {
            assert!(cached.remove(prompt));
        }
    });
    assert_eq!(cached.nodes(), 0);
}

#[test]
fn many_contexts_with_one_block_in_common_among_many_cached() {
    let mut cached = Cached::new();
    for prompt in 0..20_000 {
        cached.insert(prompt, &[0, 1 + prompt as Block % 5000, 7]);
    }
    let given: Vec<Vec<Block>> = (0..500)
        .map(|at| {
            let mut context: Vec<Block> = (1..200).map(|n| (at * 7 + n * n) % 5000).collect();
            context.push(0);
            context
        })
        .collect();
    let ordered = in_time("sharing", || batch_sharing(&given, 0, &cached, |_| 1));
    assert_eq!(ordered.contexts.len(), given.len());
}
