//! The quick ways of the crate against slow ones that keep every block by itself.

use std::collections::HashSet;

use contextpilot_trace::{
    Builder, Clock, Future, NewRequest, Policy, Reuse, Trace, best, ceiling, curve, play, warm_up,
};
use proptest::prelude::*;

const BLOCK: u32 = 10;

/// Chains with few ids, so that they share much.
fn traffic() -> impl Strategy<Value = Vec<(Vec<u64>, u32)>> {
    let chain = prop::collection::vec(0..3_u64, 1..7);
    prop::collection::vec((chain, 1..=BLOCK), 1..80)
}

fn trace(chains: &[(Vec<u64>, u32)]) -> Trace {
    let mut builder = Builder::new(BLOCK, Clock::Trace, None);
    for (nth, (ids, last)) in chains.iter().enumerate() {
        let new = NewRequest {
            at: nth as u64,
            input: (ids.len() as u32 - 1) * BLOCK + last,
            ids: ids.clone(),
            ..NewRequest::default()
        };
        assert_eq!(builder.push(&new), Ok(0));
    }
    builder.finish()
}

/// A block by itself: the chain up to it.
type Block = Vec<u64>;

fn blocks(ids: &[u64]) -> Vec<Block> {
    (1..=ids.len())
        .map(|length| ids[..length].to_vec())
        .collect()
}

fn count(reuse: &mut Reuse, (ids, last): &(Vec<u64>, u32), found: usize) {
    let tokens = |blocks: usize| {
        if blocks == ids.len() {
            (blocks as u64 - 1) * u64::from(BLOCK) + u64::from(*last)
        } else {
            blocks as u64 * u64::from(BLOCK)
        }
    };
    reuse.tokens += tokens(ids.len());
    reuse.reused_tokens += tokens(found);
    reuse.blocks += ids.len() as u64;
    reuse.reused_blocks += found as u64;
}

/// A list of blocks, those used last in front. A request's first block is put in front last.
fn slow_lru(chains: &[(Vec<u64>, u32)], room: usize, warm_up: usize) -> Reuse {
    let mut list: Vec<Block> = Vec::new();
    let mut reuse = Reuse::default();
    for (nth, chain) in chains.iter().enumerate() {
        let blocks = blocks(&chain.0);
        let found = blocks
            .iter()
            .take_while(|block| list.contains(block))
            .count();
        if nth >= warm_up {
            count(&mut reuse, chain, found);
        }
        for block in blocks.into_iter().rev() {
            list.retain(|listed| *listed != block);
            list.insert(0, block);
        }
        list.truncate(room);
    }
    reuse
}

/// The most blocks that are reused, by trying everything: after each request, any of the blocks that are there or were just
/// used may stay, as many as have room, and none without those before it.
fn most_blocks(chains: &[(Vec<u64>, u32)], room: usize) -> u64 {
    let mut states: std::collections::HashMap<Vec<Block>, u64> = [(Vec::new(), 0)].into();
    for (ids, _) in chains {
        let blocks = blocks(ids);
        let mut next = std::collections::HashMap::new();
        for (there, reused) in states {
            let found = blocks
                .iter()
                .take_while(|block| there.contains(block))
                .count();
            let mut all = there.clone();
            all.extend(
                blocks
                    .iter()
                    .filter(|block| !there.contains(block))
                    .cloned(),
            );
            for kept in 0..1_u32 << all.len() {
                if kept.count_ones() as usize > room {
                    continue;
                }
                let stays: HashSet<&Block> = (0..all.len())
                    .filter(|nth| kept >> nth & 1 == 1)
                    .map(|nth| &all[nth])
                    .collect();
                let is_whole = |block: &&&Block| {
                    block.len() == 1 || stays.contains(&block[..block.len() - 1].to_vec())
                };
                if stays.iter().filter(is_whole).count() < stays.len() {
                    continue;
                }
                let mut state: Vec<Block> = stays.into_iter().cloned().collect();
                state.sort();
                let best = next.entry(state).or_insert(0);
                *best = (reused + found as u64).max(*best);
            }
        }
        states = next;
    }
    states.into_values().max().unwrap_or(0)
}

proptest! {
    #[test]
    fn every_size_of_the_curve_is_a_cache_of_that_size(chains in traffic(), warm_up in 0..40_usize) {
        let trace = trace(&chains);
        let rooms: Vec<u64> = (0..30).collect();
        let curve = curve(&trace, &rooms, warm_up);
        for (room, point) in rooms.iter().zip(&curve) {
            prop_assert_eq!(*point, slow_lru(&chains, *room as usize, warm_up), "{}", room);
        }
        let ceiling = ceiling(&trace, warm_up);
        prop_assert_eq!(ceiling, slow_lru(&chains, usize::MAX, warm_up));
        let future = Future::new(&trace);
        for (room, point) in rooms.iter().zip(&curve) {
            let best = best(&trace, &future, *room, 0);
            prop_assert!(best.reused_blocks <= ceiling.reused_blocks || warm_up > 0);
            prop_assert!(best.reused_blocks >= point.reused_blocks);
        }
        prop_assert_eq!(best(&trace, &future, 1 << 40, warm_up), ceiling);
    }

    #[test]
    fn no_eviction_reuses_more_blocks_than_the_best(
        chains in prop::collection::vec((prop::collection::vec(0..2_u64, 1..4), 1..=BLOCK), 1..6),
        room in 0..5_usize,
    ) {
        let trace = trace(&chains);
        let future = Future::new(&trace);
        prop_assert_eq!(
            best(&trace, &future, room as u64, 0).reused_blocks,
            most_blocks(&chains, room)
        );
    }
}

#[test]
fn a_warm_up_is_a_share_of_the_requests_rounded_down() {
    assert_eq!(warm_up(0.5, 12_031), 6_015);
    assert_eq!(warm_up(f64::NAN, 3), 0);
    assert_eq!(warm_up(7.0, 3), 3);
}

#[test]
fn a_request_that_is_larger_than_the_cache_leaves_its_first_blocks() {
    let long = (vec![1, 2, 3, 4], BLOCK);
    let trace = trace(&[long.clone(), long]);
    let points = curve(&trace, &[0, 1, 3, 4], 1);
    let reused: Vec<u64> = points.iter().map(|point| point.reused_blocks).collect();
    assert_eq!(reused, [0, 1, 3, 4]);
}

#[test]
fn a_share_is_of_all_tokens_or_of_all_blocks() {
    let reuse = Reuse {
        tokens: 40,
        reused_tokens: 10,
        blocks: 5,
        reused_blocks: 1,
    };
    assert_eq!((reuse.of_tokens(), reuse.of_blocks()), (0.25, 0.2));
    assert_eq!(Reuse::default().of_tokens(), 0.0);
}

/// Two blocks are used again and again, then many pass by that are used once.
#[test]
fn what_was_used_more_often_outlives_what_passes_by_where_the_policy_says_so() {
    let hot = [1, 2, 1, 2];
    let ids = hot.into_iter().chain(100..120).chain([1, 2]);
    let chains: Vec<(Vec<u64>, u32)> = ids.map(|id| (vec![id], BLOCK)).collect();
    let trace = trace(&chains);
    let reused = |policy| play(&trace, policy, 4, 0).reused_blocks;
    assert_eq!(reused(Policy::Lru), 2);
    assert_eq!((reused(Policy::Lfu), reused(Policy::Arc)), (4, 4));
}

/// Chunks of 256 tokens have two blocks of 128 each.
#[test]
fn the_store_s_chunks_leave_as_a_whole() {
    let mut builder = Builder::new(128, Clock::Trace, None);
    for (at, ids) in [vec![1, 2, 3, 4], vec![9], vec![1, 2, 3, 4]]
        .into_iter()
        .enumerate()
    {
        let new = NewRequest {
            at: at as u64,
            input: ids.len() as u32 * 128,
            ids,
            ..NewRequest::default()
        };
        assert_eq!(builder.push(&new), Ok(0));
    }
    let trace = builder.finish();
    let reused = |policy| play(&trace, policy, 4, 0).reused_blocks;
    assert_eq!((reused(Policy::Lru), reused(Policy::Store)), (3, 2));
}

/// Of two sessions by one user, the second begins when the last answer of the first is there.
#[test]
fn a_user_has_one_session_after_the_other() {
    let mut builder = Builder::new(BLOCK, Clock::Session { users: 1 }, None);
    for (session, at, took) in [(0, 5, 10), (0, 100, 50), (1, 7, 10)] {
        let new = NewRequest {
            at,
            session: Some(session),
            input: BLOCK,
            ids: vec![u64::from(session)],
            took: Some(took),
            ..NewRequest::default()
        };
        assert_eq!(builder.push(&new), Ok(0));
    }
    let times: Vec<u64> = builder
        .finish()
        .requests
        .iter()
        .map(|request| request.at)
        .collect();
    assert_eq!(times, [5, 100, 157]);
}
