//! Orders of batches: equal to the Python index's, and permutations whatever comes.

use contextpilot_order::{
    Batch, BatchOptions, Block, Linkage, batch, cached_first, is_permutation,
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
fn is_the_python_indexs_answer() {
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
fn a_group_that_is_cached_comes_first() {
    let contexts = [vec![1, 2], vec![1, 3], vec![7, 8]];
    let mut batch = batch(&contexts, &BatchOptions::default());
    assert_eq!(batch.groups, [vec![0, 1], vec![2]]);
    cached_first(&mut batch, |blocks| u64::from(blocks[0] == 7));
    assert_eq!(batch.groups, [vec![2], vec![0, 1]]);
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
        alpha in prop::sample::select(vec![0.0, 0.001, 1.0, -3.0]),
        linkage in prop::sample::select(vec![
            Linkage::Average, Linkage::Complete, Linkage::Single, Linkage::Weighted,
        ]),
    ) {
        let options = BatchOptions { alpha, linkage };
        let ordered = batch(&contexts, &options);
        check(&contexts, &ordered);
        prop_assert_eq!(&batch(&contexts, &options), &ordered);
        let mut first = ordered;
        cached_first(&mut first, |blocks| blocks.first().map_or(0, |block| u64::from(*block)));
        check(&contexts, &first);
    }

    #[test]
    fn larger_batches_too(
        contexts in prop::collection::vec(prop::collection::vec(0..200_u32, 5..15), 40..60),
    ) {
        check(&contexts, &batch(&contexts, &BatchOptions::default()));
    }
}
