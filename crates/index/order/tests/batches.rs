//! Orders of batches: equal to the Python index's, and always permutations.

use contextpilot_order::{
    Batch, BatchOptions, Block, Cached, Linkage, Tiers, batch, batch_after, is_permutation,
};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Vectors {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    contexts: Vec<Vec<Block>>,
    alpha: f64,
    linkage: String,
    /// In the order of the schedule.
    reordered: Vec<Vec<Block>>,
    groups: Vec<Vec<usize>>,
    nodes: usize,
    leaves: usize,
}

#[test]
fn an_order_equals_the_python_indexs() {
    let text = include_str!("fixtures/batches.json");
    let vectors: Vectors = serde_json::from_str(text).expect("vectors");
    assert!(vectors.cases.len() >= 100);
    for (number, case) in vectors.cases.iter().enumerate() {
        let options = BatchOptions {
            alpha: case.alpha,
            linkage: Linkage::of_name(&case.linkage).expect("a method"),
        };
        let batch = batch(&case.contexts, &options);
        let scheduled: Vec<_> = batch
            .schedule()
            .map(|at| batch.contexts[at].clone())
            .collect();
        let shown = &case.contexts;
        assert_eq!(batch.groups, case.groups, "case {number}: {shown:?}");
        assert_eq!(scheduled, case.reordered, "case {number}: {shown:?}");
        assert_eq!(
            (batch.nodes, batch.leaves),
            (case.nodes, case.leaves),
            "case {number}"
        );
    }
}

#[test]
fn repeated_blocks_are_kept() {
    let contexts = [vec![1, 1, 2, 3], vec![2, 1, 1, 4], vec![5, 5, 5], vec![5]];
    let batch = batch(&contexts, &BatchOptions::default());
    assert_eq!(
        batch.contexts,
        [vec![1, 2, 3, 1], vec![1, 2, 4, 1], vec![5, 5, 5], vec![5]]
    );
}

#[test]
fn the_group_with_a_cached_prefix_comes_first_and_continues_it() {
    let contexts = [vec![1, 2, 3], vec![1, 2, 4], vec![7, 8, 9]];
    let ordered = batch(&contexts, &BatchOptions::default());
    assert_eq!(ordered.groups, [vec![0, 1], vec![2]]);
    let mut cached = Cached::new();
    cached.insert(1, &[9, 7, 1]);
    cached.insert(2, &[2, 5]);
    let ordered = batch_after(&contexts, &cached, &BatchOptions::default());
    assert_eq!(ordered.groups, [vec![2], vec![0, 1]]);
    assert_eq!(
        ordered.contexts,
        [vec![2, 1, 3], vec![2, 1, 4], vec![9, 7, 8]]
    );
}

#[test]
fn cached_prefixes_can_be_renumbered() {
    let mut cached = Cached::new();
    cached.insert(1, &[10, 20, 30]);
    cached.insert(2, &[10, 40, 20]);
    cached.insert(3, &[50]);
    let numbers = [(10, 1), (20, 2), (40, 4)].into_iter().collect();
    let copy = Tiers::from(&cached).renumbered(&numbers, 100);
    assert_eq!(copy.beginning_of(&[1, 2, 3], |_| 1, 0).0, 2);
    assert_eq!(copy.beginning_of(&[1, 4, 2], |_| 1, 0).0, 3);
    assert_eq!(copy.nodes(), 4);
    assert_eq!(Tiers::from(&cached).renumbered(&numbers, 2).nodes(), 2);
}

fn check(contexts: &[Vec<Block>], batch: &Batch) {
    assert_eq!(batch.contexts.len(), contexts.len());
    for (before, after) in contexts.iter().zip(&batch.contexts) {
        assert!(is_permutation(before, after), "{before:?} {after:?}");
    }
    let mut scheduled: Vec<usize> = batch.schedule().collect();
    scheduled.sort_unstable();
    assert!(scheduled.into_iter().eq(0..contexts.len()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_order_is_a_permutation_and_the_same_each_time(
        contexts in prop::collection::vec(prop::collection::vec(0..9_u32, 0..7), 0..14),
        prompts in prop::collection::vec(prop::collection::vec(0..9_u32, 1..5), 0..5),
        alpha in prop::sample::select(vec![0.0, 0.001, 1.0, -3.0]),
        linkage in prop::sample::select(vec![
            Linkage::Average, Linkage::Complete, Linkage::Single, Linkage::Weighted,
        ]),
    ) {
        let options = BatchOptions { alpha, linkage };
        let ordered = batch(&contexts, &options);
        check(&contexts, &ordered);
        prop_assert_eq!(&batch(&contexts, &options), &ordered);
        let mut cached = Cached::new();
        for (number, prompt) in prompts.iter().enumerate() {
            cached.insert(number as u64, prompt);
        }
        let after = batch_after(&contexts, &cached, &options);
        check(&contexts, &after);
        prop_assert_eq!(&batch_after(&contexts, &cached, &options), &after);
    }

    #[test]
    fn larger_batches_too(
        contexts in prop::collection::vec(prop::collection::vec(0..200_u32, 5..15), 40..60),
    ) {
        check(&contexts, &batch(&contexts, &BatchOptions::default()));
    }
}

/// A distance that no number can say would leave an item without a nearest one.
#[test]
fn however_large_alpha_is_all_contexts_are_ordered() {
    let contexts: Vec<Vec<Block>> = vec![vec![1, 2, 3], vec![3, 2, 1], vec![2, 1, 4]];
    for alpha in [1e308, -1e308, f64::MAX, f64::MIN] {
        let options = BatchOptions {
            alpha,
            ..BatchOptions::default()
        };
        let mut schedule: Vec<usize> = batch(&contexts, &options).schedule().collect();
        schedule.sort_unstable();
        assert_eq!(schedule, [0, 1, 2], "{alpha}");
    }
}

#[test]
fn a_batch_without_contexts_has_a_root_and_one_context_has_a_leaf() {
    let counts = |contexts: &[Vec<Block>]| {
        let batch = batch(contexts, &BatchOptions::default());
        (batch.nodes, batch.leaves, batch.groups.len())
    };
    assert_eq!(counts(&[]), (1, 1, 0));
    assert_eq!(counts(&[vec![1, 2]]), (2, 1, 1));
}
