//! Orders of single contexts by what is cached.

use std::collections::HashMap;

use contextpilot_order::{Block, Cached, Frequency, OnlineOptions, Tiers, is_permutation, online};
use proptest::prelude::*;

fn order(
    blocks: &[Block],
    cached: &Cached,
    options: &OnlineOptions,
) -> (Vec<Block>, usize, Option<u64>) {
    let frequency = Frequency::new(64.0, 1000);
    let ordered = online(blocks, cached, &frequency, |_| 1, options);
    (ordered.blocks, ordered.cached, ordered.prompt)
}

fn cached(prompts: &[(u64, &[Block])]) -> Cached {
    let mut cached = Cached::new();
    for (prompt, blocks) in prompts {
        cached.insert(*prompt, blocks);
    }
    cached
}

#[test]
fn a_cached_prefix_comes_first_and_the_rest_keeps_its_order() {
    let cached = cached(&[(1, &[4, 2, 9]), (2, &[7, 1])]);
    let any = OnlineOptions::default();
    assert_eq!(
        order(&[1, 2, 3, 4], &cached, &any),
        (vec![4, 2, 1, 3], 2, Some(1))
    );
    assert_eq!(
        order(&[1, 7, 4], &cached, &any),
        (vec![7, 1, 4], 2, Some(2))
    );
    // 9 is cached, but not as a prefix.
    assert_eq!(order(&[3, 9], &cached, &any), (vec![3, 9], 0, None));
    assert_eq!(order(&[], &cached, &any), (vec![], 0, None));
}

#[test]
fn the_longest_prefix_wins_over_the_most_frequent_first_block() {
    let cached = cached(&[(1, &[1, 9]), (2, &[1, 8]), (3, &[5, 2, 3])]);
    let any = OnlineOptions::default();
    assert_eq!(
        order(&[1, 2, 3, 5], &cached, &any),
        (vec![5, 2, 3, 1], 3, Some(3))
    );
}

#[test]
fn the_weights_of_blocks_decide_which_prefix_is_longest() {
    let cached = cached(&[(1, &[1]), (2, &[2, 3])]);
    let frequency = Frequency::new(64.0, 1000);
    let weight = |block| if block == 1 { 500 } else { 100 };
    let ordered = online(
        &[2, 3, 1],
        &cached,
        &frequency,
        weight,
        &OnlineOptions::default(),
    );
    assert_eq!((ordered.blocks, ordered.prompt), (vec![1, 2, 3], Some(1)));
}

#[test]
fn the_first_blocks_are_kept() {
    let cached = cached(&[(1, &[4, 2, 9]), (2, &[1, 3])]);
    let keep = |keep_first| OnlineOptions {
        keep_first,
        ..OnlineOptions::default()
    };
    assert_eq!(
        order(&[1, 2, 3, 4], &cached, &keep(1)),
        (vec![1, 3, 2, 4], 2, Some(2))
    );
    assert_eq!(
        order(&[3, 4, 2], &cached, &keep(1)),
        (vec![3, 4, 2], 0, None)
    );
    assert_eq!(
        order(&[4, 2, 1], &cached, &keep(3)),
        (vec![4, 2, 1], 2, Some(1))
    );
    assert_eq!(order(&[4, 2], &cached, &keep(9)), (vec![4, 2], 2, Some(1)));
}

#[test]
fn the_rest_is_ordered_by_frequency_unless_it_must_be_stable() {
    let mut frequency = Frequency::new(10.0, 1000);
    for _ in 0..3 {
        frequency.note(&[5]);
    }
    frequency.note(&[6]);
    let cached = cached(&[(1, &[9])]);
    let ordered = |stable| {
        let options = OnlineOptions {
            stable,
            ..OnlineOptions::default()
        };
        online(&[1, 2, 6, 5, 9], &cached, &frequency, |_| 1, &options).blocks
    };
    assert_eq!(ordered(false), [9, 5, 6, 1, 2]);
    assert_eq!(ordered(true), [9, 1, 2, 6, 5]);
}

#[test]
fn blocks_that_are_requested_together_stand_together() {
    let mut frequency = Frequency::new(40.0, 1000);
    for _ in 0..3 {
        frequency.note(&[1, 2]);
        frequency.note(&[7, 8]);
        frequency.note(&[7, 9]);
    }
    let mut rest = vec![9, 8, 7, 2];
    frequency.sort_after(&[1], &mut rest);
    // 7 is requested more often, but not with 1.
    assert_eq!(rest, [2, 7, 9, 8]);
    let mut rest = vec![30, 2, 20];
    frequency.sort_after(&[99], &mut rest);
    assert_eq!(rest, [2, 30, 20], "nobody knows 99");
}

#[test]
fn counts_decay_and_are_bounded() {
    let mut frequency = Frequency::new(2.0, 10);
    frequency.note(&[1]);
    assert!((frequency.how_often(1) - 1.0).abs() < 1e-9);
    frequency.note(&[2]);
    frequency.note(&[2]);
    assert!((frequency.how_often(1) - 0.5).abs() < 1e-9);
    for block in 10..200 {
        frequency.note(&[block]);
    }
    let known = (0..200)
        .filter(|block| frequency.how_often(*block) > 0.0)
        .count();
    assert!(known <= 20, "{known}");
    assert!(frequency.how_often(199) > 0.0);
}

#[test]
fn an_evicted_prompts_prefix_stays_while_another_prompt_has_it() {
    let mut cached = cached(&[(1, &[1, 2, 3]), (2, &[1, 2, 4])]);
    assert_eq!(cached.nodes(), 4);
    assert!(cached.remove(1));
    assert!(!cached.remove(1));
    assert_eq!(cached.beginning_of(&[1, 2, 3], |_| 1, 0), (2, Some(2)));
    assert!(cached.remove(2));
    assert_eq!((cached.nodes(), cached.prompts()), (0, 0));
}

#[test]
fn the_longest_prefix_counts_blocks_that_cannot_be_used_too() {
    let mut cached = cached(&[(1, &[1, 2, 3]), (2, &[1, 4])]);
    cached.usable_from(1, 3);
    assert_eq!(cached.longest(&[1, 2, 9]), (2, Some(1)));
    assert_eq!(cached.longest(&[1, 4, 2]), (2, Some(2)));
    assert_eq!(cached.longest(&[9, 1]), (0, None));
    cached.remove(1);
    assert_eq!(cached.longest(&[1, 2, 9]), (1, Some(2)));
}

#[test]
fn blocks_that_cannot_be_used_now_are_not_promised() {
    let mut cached = cached(&[(1, &[1, 2, 3, 4]), (2, &[5, 6])]);
    let any = OnlineOptions::default();
    cached.usable_from(1, 3);
    assert_eq!(cached.beginning_of(&[1, 2, 9], |_| 1, 0), (0, None));
    assert_eq!(cached.beginning_of(&[1, 2, 3, 9], |_| 1, 0), (3, Some(1)));
    // A prefix that can be used wins over a longer one that cannot. Without any, the longest is taken.
    assert_eq!(
        order(&[1, 2, 5], &cached, &any),
        (vec![5, 1, 2], 1, Some(2))
    );
    assert_eq!(order(&[2, 1, 9], &cached, &any), (vec![1, 2, 9], 0, None));
    cached.usable_from(1, 0);
    assert_eq!(
        order(&[1, 2, 5], &cached, &any),
        (vec![1, 2, 5], 2, Some(1))
    );
    cached.usable_from(1, 2);
    assert!(cached.remove(1));
    assert_eq!(cached.nodes(), 2);
    // A tenth of the prompt is the least that the engine looks at.
    let long: Vec<Block> = (5..60).collect();
    assert_eq!(order(&long, &cached, &any).1, 0);
    assert_eq!(order(&long[..9], &cached, &any).1, 2);
}

#[test]
fn the_longer_prefix_of_two_tiers_wins() {
    let mut engine = cached(&[(1, &[1, 2]), (2, &[7])]);
    let store = cached(&[(3, &[4, 1, 2]), (4, &[7, 8]), (5, &[9])]);
    let kept = cached(&[(6, &[8]), (7, &[2, 1])]);
    let frequency = Frequency::new(64.0, 1000);
    let order = |engine: &Cached, blocks: &[Block]| {
        let tiers = Tiers::with_store(engine, &kept, &store);
        let any = OnlineOptions::default();
        let ordered = online(blocks, tiers, &frequency, |_| 1, &any);
        (ordered.blocks, ordered.cached, ordered.prompt)
    };
    assert_eq!(
        order(&engine, &[1, 2, 3, 4]),
        (vec![4, 1, 2, 3], 3, Some(3))
    );
    assert_eq!(order(&engine, &[1, 2, 9]), (vec![1, 2, 9], 2, Some(1)));
    // Of two prefixes of one length, the engine's is used.
    assert_eq!(order(&engine, &[3, 7]), (vec![7, 3], 1, Some(2)));
    // After it, the one that the store keeps.
    assert_eq!(order(&engine, &[9, 8]), (vec![8, 9], 1, Some(6)));
    assert_eq!(order(&engine, &[9, 2, 1]), (vec![1, 2, 9], 2, Some(1)));
    // Less than a tenth is worth a load.
    let long: Vec<Block> = (9..60).collect();
    assert_eq!(order(&engine, &long).1, 1);
    // What the engine itself would not use.
    engine.usable_from(1, 2);
    assert_eq!(order(&engine, &[1, 9]), (vec![9, 1], 1, Some(5)));
    let tiers = Tiers::with_store(&engine, &kept, &store);
    assert_eq!(tiers.longest(&[1, 2, 9]), (2, Some(1)));
    assert_eq!(tiers.longest(&[4, 1, 9]), (2, Some(3)));
    assert_eq!(tiers.beginning_of(&[7, 8], |_| 1, 0), (2, Some(4)));
    assert_eq!(tiers.beginning_of(&[8, 7], |_| 1, 0), (1, Some(6)));
    assert_eq!(tiers.beginning_of(&[3, 7], |_| 1, 0), (0, None));
}

#[test]
fn a_prompt_is_found_by_all_of_its_blocks() {
    let mut cached = cached(&[(1, &[1, 2]), (2, &[1, 2, 3]), (3, &[1, 2])]);
    assert_eq!(cached.prompt_of(&[1, 2]), Some(3));
    assert_eq!(cached.prompt_of(&[1]), None);
    assert_eq!(cached.prompt_of(&[2]), None);
    assert_eq!(cached.prompt_of(&[]), None);
    cached.remove(3);
    assert_eq!(cached.prompt_of(&[1, 2]), Some(1));
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, Vec<Block>),
    Remove(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let insert = (0..12_u64, prop::collection::vec(0..6_u32, 0..6))
        .prop_map(|(prompt, blocks)| Step::Insert(prompt, blocks));
    let step = prop_oneof![2 => insert, 1 => (0..12_u64).prop_map(Step::Remove)];
    prop::collection::vec(step, 0..60)
}

/// The longest cached prefix that can be made of the blocks.
fn naive(prompts: &HashMap<u64, Vec<Block>>, blocks: &[Block]) -> usize {
    let fits = |prompt: &Vec<Block>| {
        let mut left = blocks.to_vec();
        prompt
            .iter()
            .take_while(
                |block| match left.iter().position(|unused| unused == *block) {
                    Some(place) => {
                        left.remove(place);
                        true
                    }
                    None => false,
                },
            )
            .count()
    };
    prompts.values().map(fits).max().unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn finds_what_a_naive_search_finds(
        steps in steps(),
        blocks in prop::collection::vec(0..6_u32, 0..8),
        keep_first in 0..3_usize,
        stable in any::<bool>(),
    ) {
        let mut cached = Cached::new();
        let mut prompts: HashMap<u64, Vec<Block>> = HashMap::new();
        let mut frequency = Frequency::new(8.0, 4);
        for step in steps {
            match step {
                Step::Insert(prompt, blocks) => {
                    frequency.note(&blocks);
                    cached.insert(prompt, &blocks);
                    prompts.insert(prompt, blocks);
                }
                Step::Remove(prompt) => {
                    prop_assert_eq!(cached.remove(prompt), prompts.remove(&prompt).is_some());
                }
            }
            prop_assert_eq!(cached.prompts(), prompts.len());
        }
        let distinct: std::collections::HashSet<&[Block]> = prompts
            .values()
            .flat_map(|blocks| (1..=blocks.len()).map(|length| &blocks[..length]))
            .collect();
        prop_assert_eq!(cached.nodes(), distinct.len());

        let any = online(&blocks, &cached, &frequency, |_| 1, &OnlineOptions::default());
        prop_assert!(is_permutation(&blocks, &any.blocks));
        prop_assert_eq!(any.cached, naive(&prompts, &blocks));

        let options = OnlineOptions { keep_first, stable };
        let ordered = online(&blocks, &cached, &frequency, |_| 1, &options);
        prop_assert!(is_permutation(&blocks, &ordered.blocks));
        let kept = keep_first.min(blocks.len());
        prop_assert_eq!(&ordered.blocks[..kept], &blocks[..kept]);
        // The promised prefix is in the cache.
        prop_assert_eq!(cached.beginning_of(&ordered.blocks, |_| 1, 0).0, ordered.cached);
        match ordered.prompt {
            Some(prompt) => prop_assert!(
                prompts[&prompt].starts_with(&ordered.blocks[..ordered.cached])
            ),
            None => prop_assert_eq!(ordered.cached, 0),
        }
        prop_assert_eq!(
            &online(&blocks, &cached, &frequency, |_| 1, &options),
            &ordered
        );
    }

    /// Whatever prompts are in which tier, the order is that of one tier with all of them.
    #[test]
    fn tiers_are_as_good_as_one_with_all(
        prompts in prop::collection::vec((0..3_usize, prop::collection::vec(0..6_u32, 1..6)), 0..12),
        blocks in prop::collection::vec(0..6_u32, 0..8),
        keep_first in 0..3_usize,
    ) {
        let mut each = [Cached::new(), Cached::new(), Cached::new()];
        let mut all = Cached::new();
        for (number, (tier, blocks)) in prompts.iter().enumerate() {
            each[*tier].insert(number as u64, blocks);
            all.insert(number as u64, blocks);
        }
        let frequency = Frequency::new(8.0, 4);
        let options = OnlineOptions { keep_first, ..OnlineOptions::default() };
        let [engine, kept, others] = &each;
        let tiers = Tiers::with_store(engine, kept, others);
        let ordered = online(&blocks, tiers, &frequency, |_| 1, &options);
        let whole = online(&blocks, &all, &frequency, |_| 1, &options);
        prop_assert_eq!(ordered.cached, whole.cached);
        prop_assert!(is_permutation(&blocks, &ordered.blocks));
        prop_assert_eq!(all.beginning_of(&ordered.blocks, |_| 1, 0).0, ordered.cached);
        if let Some(prompt) = ordered.prompt {
            let (_, whole) = &prompts[prompt as usize];
            prop_assert!(whole.starts_with(&ordered.blocks[..ordered.cached]));
        }

        // In other numbers, too.
        let numbers: HashMap<Block, Block> = (0..5).map(|block| (block, block + 10)).collect();
        let copy = tiers.renumbered(&numbers, usize::MAX);
        prop_assert_eq!(copy.nodes(), Tiers::from(&all).renumbered(&numbers, usize::MAX).nodes());
        for (_, blocks) in &prompts {
            let renumbered: Vec<Block> = blocks.iter().map(|block| block + 10).collect();
            let known = blocks.iter().take_while(|block| **block < 5).count();
            prop_assert_eq!(copy.longest(&renumbered).0, known);
        }
        prop_assert!(tiers.renumbered(&numbers, 3).nodes() <= 3);
    }
}

#[test]
fn nothing_is_cached_after_a_clear() {
    let mut cached = cached(&[(1, &[4, 2]), (2, &[7])]);
    cached.clear();
    let any = OnlineOptions::default();
    assert_eq!(order(&[2, 4], &cached, &any), (vec![2, 4], 0, None));
    assert_eq!(cached.prompt_of(&[7]), None);
    assert!(!cached.remove(1), "it is not there any more");
    cached.insert(1, &[2]);
    assert_eq!(order(&[2, 4], &cached, &any), (vec![2, 4], 1, Some(1)));
}

/// A rank is kept while the frequency that it stands for goes down. So it says of two blocks, noted at different times,
/// what their frequencies say now.
#[test]
fn ranks_order_blocks_as_their_frequencies_do() {
    // Half of a request is forgotten with the second after it.
    let mut frequency = Frequency::new(2.0, 1000);
    let requests: [&[Block]; 8] = [&[1], &[1], &[1], &[1], &[1], &[3], &[2], &[3]];
    requests.iter().for_each(|blocks| frequency.note(blocks));
    let orders = [(1, 2), (1, 3), (2, 3)].map(|(a, b)| {
        let by_rank = frequency.rank(a).total_cmp(&frequency.rank(b));
        assert_eq!(
            by_rank,
            frequency.how_often(a).total_cmp(&frequency.how_often(b)),
            "{a}, {b}"
        );
        by_rank
    });
    use std::cmp::Ordering::{Greater, Less};
    assert_eq!(orders, [Greater, Less, Less]);
    // Time goes by, and a rank stays.
    let before = frequency.rank(2);
    let often = frequency.how_often(2);
    (0..4).for_each(|_| frequency.note(&[9]));
    assert_eq!(frequency.rank(2), before);
    assert_eq!(frequency.how_often(2), often / 4.0);
    assert_eq!(frequency.rank(5), f64::NEG_INFINITY, "never");
    frequency.clear();
    assert_eq!(
        (frequency.how_often(2), frequency.rank(2)),
        (0.0, f64::NEG_INFINITY)
    );
}
