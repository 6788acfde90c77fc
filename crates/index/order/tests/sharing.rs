//! Batches that share most: the joins against a naive search, and what they promise.

use std::collections::BTreeSet;

use contextpilot_order::{Batch, Block, Cached, Join, batch_sharing, is_permutation, joins};
use proptest::prelude::*;

/// Different sets of blocks have different weights, so that one beginning is the heaviest.
fn weight(block: Block) -> u64 {
    1 << block
}

fn sum(blocks: impl IntoIterator<Item = Block>) -> u64 {
    blocks.into_iter().map(weight).sum()
}

fn cached(prompts: &[Vec<Block>]) -> Cached {
    let mut cached = Cached::new();
    for (number, prompt) in prompts.iter().enumerate() {
        cached.insert(number as u64, prompt);
    }
    cached
}

/// The heaviest part of a prompt that the blocks make after `first`, or what comes of none.
fn beginning(first: &[Block], blocks: &BTreeSet<Block>, prompts: &[Vec<Block>]) -> Vec<Block> {
    let mut made = Vec::new();
    for prompt in prompts.iter().filter(|prompt| prompt.starts_with(first)) {
        let mut left = blocks.clone();
        let rest = prompt[first.len()..].iter().copied();
        made.push(rest.take_while(|block| left.remove(block)).collect());
    }
    let heaviest = made
        .into_iter()
        .max_by_key(|blocks: &Vec<Block>| sum(blocks.clone()));
    heaviest.unwrap_or_default()
}

/// All pairs, again after each join.
fn naive(contexts: &[Vec<Block>], first: &[Block], prompts: &[Vec<Block>]) -> Vec<Join> {
    let set = |blocks: &Vec<Block>| blocks.iter().copied().collect::<BTreeSet<_>>();
    let gain = |first: &[Block], blocks: &BTreeSet<Block>| sum(beginning(first, blocks, prompts));
    let mut clusters: Vec<Option<BTreeSet<Block>>> = contexts.iter().map(set).map(Some).collect();
    let mut joins = Vec::new();
    loop {
        let mut best = None;
        for (later, a) in clusters.iter().enumerate() {
            for (earlier, b) in clusters[..later].iter().enumerate() {
                let (Some(a), Some(b)) = (a, b) else { continue };
                let common: BTreeSet<Block> = a.intersection(b).copied().collect();
                let begun = beginning(first, &common, prompts);
                let mut together = sum(common.iter().copied()) + sum(begun.iter().copied());
                if begun.len() == common.len() {
                    let first = [first, &begun].concat();
                    together += gain(&first, &(a - &common)) + gain(&first, &(b - &common));
                }
                let saved = together as i64 - (gain(first, a) + gain(first, b)) as i64;
                let all = sum(a.iter().copied()) + sum(b.iter().copied());
                let worth = (saved, -(all as i64), -(later as i64), -(earlier as i64));
                let better = best.as_ref().is_none_or(|(known, _)| worth > *known);
                if saved > 0 && !common.is_empty() && better {
                    best = Some((worth, common));
                }
            }
        }
        let Some(((saved, _, later, earlier), common)) = best else {
            return joins;
        };
        let (later, earlier) = (-later as usize, -earlier as usize);
        clusters[later] = None;
        clusters[earlier] = None;
        clusters.push(Some(common.clone()));
        joins.push(Join {
            clusters: [earlier, later],
            common: common.into_iter().collect(),
            saved: saved as u64,
        });
    }
}

/// The weight that contexts have in common with the one that is sent before them.
fn in_common_with_the_one_before(batch: &Batch) -> u64 {
    let sent: Vec<&Vec<Block>> = batch.schedule().map(|at| &batch.contexts[at]).collect();
    let common = |pair: &[&Vec<Block>]| {
        let both = pair[0].iter().zip(pair[1]);
        sum(both.take_while(|(a, b)| a == b).map(|(a, _)| *a))
    };
    sent.windows(2).map(common).sum()
}

#[test]
fn those_with_most_in_common_are_joined_first() {
    let contexts = [vec![1, 2, 3, 4], vec![9, 2, 1], vec![4, 3, 2], vec![8, 9]];
    let shared: Vec<_> = joins(&contexts, &[], &Cached::new(), |_| 1, u64::MAX)
        .into_iter()
        .map(|join| (join.clusters, join.common))
        .collect();
    assert_eq!(
        shared,
        [([0, 2], vec![2, 3, 4]), ([1, 3], vec![9])],
        "the two clusters have nothing in common"
    );
    let batch = batch_sharing(&contexts, 0, &Cached::new(), |_| 1);
    assert_eq!(batch.groups, [vec![0, 2], vec![1, 3]]);
    assert_eq!(
        batch.contexts,
        [vec![2, 3, 4, 1], vec![9, 2, 1], vec![2, 3, 4], vec![9, 8]]
    );
}

#[test]
fn a_group_that_goes_on_with_what_is_cached_comes_first() {
    let contexts = [vec![1, 2, 3], vec![1, 2, 4], vec![7, 8, 9]];
    let mut cached = Cached::new();
    cached.insert(1, &[9, 7, 1]);
    cached.insert(2, &[2, 5]);
    let batch = batch_sharing(&contexts, 0, &cached, |_| 1);
    assert_eq!(batch.groups, [vec![2], vec![0, 1]]);
    assert_eq!(
        batch.contexts,
        [vec![2, 1, 3], vec![2, 1, 4], vec![9, 7, 8]]
    );
}

#[test]
fn in_a_cluster_too_what_goes_on_with_the_cache_comes_first() {
    let contexts = [vec![1, 2, 3], vec![1, 2, 4], vec![1, 2, 5]];
    let mut cached = Cached::new();
    cached.insert(1, &[1, 2, 5, 6]);
    let batch = batch_sharing(&contexts, 0, &cached, |_| 1);
    assert_eq!(batch.schedule().next(), Some(2));
}

#[test]
fn contexts_whose_kept_beginnings_differ_share_nothing() {
    let contexts = [vec![7, 1, 2], vec![8, 2, 1], vec![7, 2, 3]];
    let batch = batch_sharing(&contexts, 1, &Cached::new(), |_| 1);
    assert_eq!(batch.groups, [vec![0, 2], vec![1]]);
    assert_eq!(
        batch.contexts,
        [vec![7, 2, 1], vec![8, 2, 1], vec![7, 2, 3]]
    );
}

#[test]
fn a_context_that_is_the_beginning_of_others_is_in_their_group() {
    let contexts = [vec![3, 1, 2], vec![2, 1], vec![1, 2, 4]];
    let batch = batch_sharing(&contexts, 0, &Cached::new(), |_| 1);
    assert_eq!(batch.groups.len(), 1);
    let beginnings: BTreeSet<_> = batch.contexts.iter().map(|blocks| &blocks[..2]).collect();
    assert_eq!(beginnings.len(), 1);
}

#[test]
fn no_more_is_joined_when_the_steps_are_used_up() {
    let contexts = vec![vec![1, 2]; 8];
    assert_eq!(
        joins(&contexts, &[], &Cached::new(), |_| 1, u64::MAX).len(),
        7
    );
    assert!(joins(&contexts, &[], &Cached::new(), |_| 1, 40).len() < 7);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn joins_are_those_of_the_naive_search(
        contexts in prop::collection::vec(prop::collection::vec(0..12_u32, 0..7), 0..12),
        // Ascending, so that a set of blocks makes one beginning only.
        prompts in prop::collection::vec(prop::collection::btree_set(0..12_u32, 1..6), 0..6),
        first in prop::collection::vec(0..3_u32, 0..2),
    ) {
        let prompts: Vec<Vec<Block>> = prompts.into_iter().map(|set| set.into_iter().collect()).collect();
        let cached = cached(&prompts);
        let naive = naive(&contexts, &first, &prompts);
        prop_assert_eq!(joins(&contexts, &first, &cached, weight, u64::MAX), naive);
    }

    #[test]
    fn each_order_is_a_permutation_and_shares_what_the_joins_promise(
        contexts in prop::collection::vec(prop::collection::vec(0..12_u32, 0..7), 0..14),
        prompts in prop::collection::vec(prop::collection::vec(0..12_u32, 1..5), 0..5),
        keep in 0..3_usize,
    ) {
        let cached = cached(&prompts);
        let batch = batch_sharing(&contexts, keep, &cached, weight);
        prop_assert_eq!(&batch_sharing(&contexts, keep, &cached, weight), &batch);
        let mut scheduled: Vec<usize> = batch.schedule().collect();
        scheduled.sort_unstable();
        prop_assert!(scheduled.into_iter().eq(0..contexts.len()));
        for (before, after) in contexts.iter().zip(&batch.contexts) {
            prop_assert!(is_permutation(before, after), "{:?} {:?}", before, after);
            let kept = keep.min(before.len());
            prop_assert_eq!(&before[..kept], &after[..kept]);
        }
        if keep == 0 {
            let nothing = Cached::new();
            let joins = joins(&contexts, &[], &nothing, weight, u64::MAX);
            let promised: u64 = joins.iter().map(|join| join.saved).sum();
            let batch = batch_sharing(&contexts, 0, &nothing, weight);
            prop_assert!(in_common_with_the_one_before(&batch) >= promised);
        }
    }
}
