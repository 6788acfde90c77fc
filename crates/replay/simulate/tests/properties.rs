//! What must hold of a simulation of any traffic.

use std::sync::Arc;

use contextpilot_simulate::{Point, Setting, simulate};
use contextpilot_traffic::{
    Calls, ChangeKind, Memory, Refusal, RequestRecord, Run, Setup, SizeKind, SizeSample,
    SlotChange, Tokens, Traffic, TrafficChange, TrafficRequest,
};
use proptest::prelude::*;

/// A request: its conversation, how many tokens it repeats of that, how many new tokens follow, and the
/// pause before it in microseconds.
type Asked = (u64, u32, u32, u64);

fn traffic(asked: &[Asked], setup: Setup) -> Traffic {
    let mut time = 0;
    let requests = asked.iter().enumerate().map(|(order, ask)| {
        let &(talk, shared, own, pause) = ask;
        time += pause;
        let mut tokens = Tokens::new();
        tokens.push(Run {
            first: 0,
            length: 1,
        });
        let run = |first, length| Run { first, length };
        tokens.push(run(1_000_000 * (talk + 1), shared));
        tokens.push(run(1_000_000_000 + 10_000 * order as u64, own));
        let prompt = tokens.len().saturating_sub(3).max(1);
        let record = RequestRecord {
            order: order as u64,
            arrived: time,
            launched: time,
            prompted: time + 10 * u64::from(prompt),
            ended: time + 10 * u64::from(prompt) + 300,
            prompt,
            evaluated: prompt,
            ..RequestRecord::default()
        };
        TrafficRequest {
            record,
            tokens: Arc::new(tokens),
            junction: Tokens::new(),
        }
    });
    let sizes = [10, 1000].map(|tokens| SizeSample {
        kind: SizeKind::State,
        tokens,
        bytes: 100 + 1024 * u64::from(tokens),
    });
    Traffic {
        requests: requests.collect(),
        sizes: sizes.to_vec(),
        setup: Some(setup),
        ..Traffic::default()
    }
}

/// A change of a slot: before which request, of which slot, of which kind, and whose tokens it holds then.
type Changed = (usize, u32, u8, usize);

fn change(traffic: &Traffic, &(before, slot, what, whose): &Changed) -> TrafficChange {
    let next = &traffic.requests[before % traffic.requests.len()].record;
    let whose = &traffic.requests[whose % traffic.requests.len()];
    let refusal = Refusal {
        declined: what % 2 == 0,
        saved: what % 3 == 0,
        loaded: what % 5 == 0,
        id_slot: (what % 7 == 0).then_some(slot),
        ..Refusal::default()
    };
    let kind = match what % 5 {
        0 => ChangeKind::Erased,
        1 => ChangeKind::Restored,
        2 => ChangeKind::Slept,
        3 => ChangeKind::Swapped { models: slot % 3 },
        _ => ChangeKind::Refused(refusal),
    };
    let has_tokens = match kind {
        ChangeKind::Restored => true,
        ChangeKind::Refused(refusal) => refusal.loaded,
        ChangeKind::Erased | ChangeKind::Slept | ChangeKind::Swapped { .. } => false,
    };
    TrafficChange {
        record: SlotChange {
            order: next.order,
            at: next.arrived.saturating_sub(1),
            slot,
            media: Vec::new(),
            kind,
        },
        tokens: if has_tokens {
            Arc::clone(&whose.tokens)
        } else {
            Arc::default()
        },
    }
}

fn changed() -> impl Strategy<Value = Vec<Changed>> {
    let change = (any::<usize>(), 0_u32..8, any::<u8>(), any::<usize>());
    prop::collection::vec(change, 0..20)
}

fn with_changes(mut traffic: Traffic, changed: &[Changed]) -> Traffic {
    let changes = changed.iter().map(|drawn| change(&traffic, drawn));
    let mut changes: Vec<TrafficChange> = changes.collect();
    changes.sort_by_key(|change| change.record.order);
    traffic.changes = changes;
    traffic
}

fn asked() -> impl Strategy<Value = Vec<Asked>> {
    prop::collection::vec((0_u64..5, 0_u32..300, 1_u32..60, 0_u64..9_000), 1..60)
}

fn setups() -> impl Strategy<Value = Setup> {
    let memory = prop_oneof![
        Just(Memory::Full),
        Just(Memory::Recurrent),
        (16_u32..100).prop_map(Memory::Window)
    ];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let calls = prop_oneof![
        Just(Calls::Unknown),
        Just(Calls::Decode),
        Just(Calls::Process)
    ];
    let numbers = (1_u32..6, -1_i64..4, 0_u32..500, 0_u32..40, 0_u32..5);
    let store = prop_oneof![Just(None), (10_000_u64..1_000_000).prop_map(Some)];
    let all = (memory, flags, calls, numbers, store);
    all.prop_map(|(memory, flags, calls, numbers, store)| Setup {
        parallel: numbers.0,
        context: 2048,
        slot_context: if flags.0 {
            2048
        } else {
            (2048 / numbers.0).div_ceil(256) * 256
        },
        kv_unified: flags.0,
        cache_ram: Some(numbers.1),
        cache_idle_slots: flags.1,
        slot_prompt_similarity: numbers.2 as f32 / 1000.0,
        cache_reuse: numbers.3,
        context_shift: flags.2,
        ctx_checkpoints: numbers.4,
        ubatch_size: 64,
        memory,
        calls,
        store,
        ..Setup::default()
    })
}

/// Checks a point: sums, bounds, and the order of times.
fn check(point: &Point, traffic: &Traffic) -> Result<(), TestCaseError> {
    let (mut reused, mut loaded, mut evaluated) = (0, 0, 0);
    for (request, outcome) in traffic.requests.iter().zip(&point.outcomes) {
        let Some(outcome) = outcome else { continue };
        let sum = outcome.reused + outcome.loaded + outcome.evaluated;
        prop_assert_eq!(sum, request.record.prompt);
        prop_assert!(outcome.evaluated > 0, "the last token is always evaluated");
        prop_assert!(outcome.arrived <= outcome.launched && outcome.launched <= outcome.ended);
        prop_assert!(outcome.slot < point.setting.server.parallel);
        reused += u64::from(outcome.reused);
        loaded += u64::from(outcome.loaded);
        evaluated += u64::from(outcome.evaluated);
    }
    prop_assert_eq!(
        (reused, loaded, evaluated),
        (
            point.reused_tokens,
            point.loaded_tokens,
            point.evaluated_tokens
        )
    );
    prop_assert_eq!(reused + loaded + evaluated, point.prompt_tokens);
    prop_assert!(point.store_bytes <= point.setting.store_limit);
    let refused = point
        .outcomes
        .iter()
        .filter(|outcome| outcome.is_none())
        .count();
    prop_assert_eq!(refused as u64, point.refused);
    prop_assert!((0.0..=1.0).contains(&point.reused_share()));
    Ok(())
}

/// How many of these are at work at once, at most.
fn at_once(times: impl Iterator<Item = (u64, u64)>) -> usize {
    let mut ends: Vec<(u64, bool)> = times
        .filter(|(begin, end)| begin < end)
        .flat_map(|(begin, end)| [(begin, true), (end, false)])
        .collect();
    ends.sort_unstable();
    let (mut now, mut most) = (0_usize, 0);
    for (_, begins) in ends {
        now = if begins { now + 1 } else { now - 1 };
        most = most.max(now);
    }
    most
}

proptest! {
    #[test]
    fn sums_agree_and_equal_input_gives_equal_outcomes(
        asked in asked(), changed in changed(), setup in setups(), room in 0_u64..100,
    ) {
        let store = setup.store.unwrap_or(0);
        let traffic = with_changes(traffic(&asked, setup), &changed);
        let mut setting = Setting::recorded(&traffic).unwrap();
        if setting.can_have_store() {
            setting.store_limit = room * store;
        }
        let point = simulate(&traffic, &setting);
        check(&point, &traffic)?;
        let again = simulate(&traffic, &setting);
        prop_assert_eq!(&again.outcomes, &point.outcomes);
    }

    #[test]
    fn no_slot_works_on_two_requests_at_once(
        asked in asked(), changed in changed(), setup in setups(),
    ) {
        let traffic = with_changes(traffic(&asked, setup), &changed);
        let point = simulate(&traffic, &Setting::recorded(&traffic).unwrap());
        let mut spans: Vec<_> = point.outcomes.iter().flatten().map(|o| (o.slot, o.launched, o.ended)).collect();
        spans.sort_unstable();
        for pair in spans.windows(2) {
            prop_assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?}");
        }
    }

    /// Whatever the flags are: who waits for an answer sends nothing else.
    #[test]
    fn no_more_requests_are_at_work_than_there_were_clients(
        asked in asked(), setup in setups(), slots in 1_u32..5, ram in 0_i64..3,
    ) {
        let traffic = traffic(&asked, setup);
        let recorded = traffic.requests.iter().map(|request| (request.record.arrived, request.record.ended));
        let clients = at_once(recorded);
        let setting = Setting::recorded(&traffic).unwrap();
        let other = setting.clone().with_parallel(slots).with_cache_ram(ram).unwrap();
        for setting in [setting, other] {
            let point = simulate(&traffic, &setting);
            prop_assert_eq!(point.outcomes.iter().flatten().count() as u64 + point.refused, asked.len() as u64);
            let simulated = point.outcomes.iter().flatten().map(|outcome| (outcome.arrived, outcome.ended));
            prop_assert!(at_once(simulated) <= clients);
        }
    }

    /// Compares one slot, without a host prompt cache, with a plain model of it.
    #[test]
    fn a_single_slot_holds_what_was_evaluated_or_restored_last(asked in asked(), changed in changed()) {
        let setup = Setup {
            parallel: 1, context: 2048, slot_context: 2048, kv_unified: false,
            cache_ram: Some(0), ..Setup::default()
        };
        // The pauses are so long that no two requests overlap.
        let asked: Vec<Asked> = asked.iter().map(|&(talk, shared, own, _)| (talk, shared, own, 50_000)).collect();
        let traffic = with_changes(traffic(&asked, setup), &changed);
        let point = simulate(&traffic, &Setting::recorded(&traffic).unwrap());
        let mut changes = traffic.changes.iter().peekable();
        let mut held = Arc::new(Tokens::new());
        for (request, outcome) in traffic.requests.iter().zip(&point.outcomes) {
            let record = &request.record;
            while let Some(change) = changes.next_if(|change| change.record.order <= record.order) {
                match change.record.kind {
                    ChangeKind::Refused(_) => {}
                    _ => held = Arc::clone(&change.tokens),
                }
            }
            let common = held.common_prefix(&request.tokens);
            prop_assert_eq!(outcome.unwrap().reused, common.min(record.prompt - 1));
            held = Arc::clone(&request.tokens);
        }
    }

    /// There is one conversation, one slot, and no host prompt cache.
    #[test]
    fn a_conversation_alone_in_its_slot_reuses_the_prefix_it_shares_with_its_last_request(
        lengths in prop::collection::vec((0_u32..300, 1_u32..60), 1..20),
    ) {
        let asked: Vec<Asked> = lengths.iter().map(|&(shared, own)| (0, shared, own, 50_000)).collect();
        let setup = Setup {
            parallel: 1, context: 2048, slot_context: 2048, kv_unified: false,
            cache_ram: Some(0), ..Setup::default()
        };
        let traffic = traffic(&asked, setup);
        let point = simulate(&traffic, &Setting::recorded(&traffic).unwrap());
        for (nth, outcome) in point.outcomes.iter().enumerate() {
            let this = &traffic.requests[nth];
            let expected = nth.checked_sub(1).map_or(0, |before| {
                let before = &traffic.requests[before];
                this.tokens.common_prefix(&before.tokens).min(this.record.prompt)
            });
            let expected = expected.min(this.record.prompt - 1);
            prop_assert_eq!(outcome.unwrap().reused, expected);
        }
    }

    /// With a store that never is full, a prompt is evaluated only behind the longest beginning that an earlier request
    /// had, but for what is too little to be worth a copy.
    #[test]
    fn with_a_large_store_nothing_is_evaluated_twice(
        asked in asked(), slots in 1_u32..4, ram in 0_i64..3,
    ) {
        let setup = Setup {
            parallel: slots, context: 2048 * slots, slot_context: 2048, kv_unified: false,
            cache_ram: Some(ram), store: Some(1 << 40), ..Setup::default()
        };
        let asked: Vec<Asked> = asked.iter().map(|&(talk, shared, own, _)| (talk, shared, own, 50_000)).collect();
        let traffic = traffic(&asked, setup);
        let point = simulate(&traffic, &Setting::recorded(&traffic).unwrap());
        for (nth, outcome) in point.outcomes.iter().enumerate() {
            let this = &traffic.requests[nth];
            let earlier = traffic.requests[..nth].iter();
            let known = earlier.map(|request| request.tokens.common_prefix(&this.tokens)).max().unwrap_or(0);
            let known = known.min(this.record.prompt - 1);
            let outcome = outcome.unwrap();
            let spared = outcome.reused + outcome.loaded;
            prop_assert!(spared <= known, "{} of {}", spared, known);
            // What is about to be lost is saved from eight tokens on, and so is what is loaded.
            prop_assert!(spared + 16 > known, "{} of {}", spared, known);
        }
    }

    /// This need not hold where the choice of slots or entries depends on the limit. So there is one
    /// slot, and conversations only grow: an entry has nearly all its tokens in common with a prompt, or
    /// just the first one.
    #[test]
    fn without_a_limit_the_host_prompt_cache_reuses_no_less_than_with_one(
        talks in prop::collection::vec(0_u64..6, 1..50), small in 1_i64..3,
    ) {
        let mut grown = [0_u32; 6];
        let asked: Vec<Asked> = talks.iter().map(|&talk| {
            grown[talk as usize] += 40;
            (talk, grown[talk as usize], 4, 50_000)
        }).collect();
        let setup = Setup {
            parallel: 1, context: 4096, slot_context: 4096, kv_unified: false,
            cache_ram: Some(1), ..Setup::default()
        };
        let traffic = traffic(&asked, setup);
        let setting = Setting::recorded(&traffic).unwrap();
        let less = simulate(&traffic, &setting.clone().with_cache_ram(small).unwrap());
        let more = simulate(&traffic, &setting.with_cache_ram(-1).unwrap());
        for (less, more) in less.outcomes.iter().zip(&more.outcomes) {
            prop_assert!(less.unwrap().reused <= more.unwrap().reused);
        }
    }
}

/// At another setting than the recorded one, a server sleeps when it has had nothing to do for long enough.
#[test]
fn a_server_that_sleeps_loses_what_it_held() {
    const SECOND: u64 = 1_000_000;
    let asked = [
        (0, 100, 1, 0),
        (0, 100, 1, 2 * SECOND),
        (0, 100, 1, 10 * SECOND),
    ];
    let setup = Setup {
        cache_ram: Some(100),
        ..Setup::default()
    };
    let traffic = traffic(&asked, setup);
    let reused = |seconds| {
        let mut setting = Setting::recorded(&traffic).unwrap();
        setting.server.sleep_idle_seconds = seconds;
        let outcomes = simulate(&traffic, &setting).outcomes;
        let reused = outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap().reused > 0);
        reused.collect::<Vec<_>>()
    };
    assert_eq!(reused(None), [false, true, true]);
    assert_eq!(reused(Some(5)), [false, true, false]);
    assert_eq!(reused(Some(1)), [false, false, false]);
}

/// As much traffic as an operator may have in a day.
#[test]
fn a_hundred_thousand_requests_are_simulated() {
    let asked: Vec<Asked> = (0..100_000_u64)
        .map(|nth| {
            (
                nth * 7 % 40,
                (nth / 40 % 250) as u32,
                1 + (nth % 50) as u32,
                40_000,
            )
        })
        .collect();
    let setup = Setup {
        context: 8192,
        slot_context: 8192,
        cache_ram: Some(64),
        ..Setup::default()
    };
    let traffic = traffic(&asked, setup);
    let point = simulate(&traffic, &Setting::recorded(&traffic).unwrap());
    assert_eq!(point.outcomes.len(), 100_000);
    assert_eq!(point.refused, 0);
    assert!(point.reused_share() > 0.3, "{}", point.reused_share());
}

/// Two clients. In the recording the first goes on after its seventh request with the eighth, for which it waited for both
/// answers; a session that ends then frees the other client alone, for whichever request begins another one.
#[test]
fn a_client_that_goes_on_begins_no_other_session_as_well() {
    let asked = [
        (2, 136, 1, 0),
        (0, 172, 19, 381),
        (0, 5, 28, 1581),
        (2, 27, 2, 610),
        (2, 196, 2, 40),
        (3, 141, 52, 2260),
        (0, 0, 1, 1),
        (0, 0, 30, 2421),
        (0, 0, 11, 280),
        (3, 226, 14, 1730),
        (1, 136, 23, 0),
        (0, 3, 9, 2280),
    ];
    let setup = Setup {
        parallel: 1,
        context: 2048,
        slot_context: 2048,
        kv_unified: false,
        cache_ram: Some(0),
        cache_idle_slots: false,
        slot_prompt_similarity: 0.0,
        ubatch_size: 64,
        ..Setup::default()
    };
    let traffic = traffic(&asked, setup);
    let recorded = traffic.requests.iter().map(|request| &request.record);
    let recorded = recorded.map(|record| (record.arrived, record.ended));
    assert_eq!(at_once(recorded), 2);
    let point = simulate(&traffic, &Setting::recorded(&traffic).unwrap());
    let simulated = point.outcomes.iter().flatten();
    let simulated: Vec<_> = simulated
        .map(|outcome| (outcome.arrived, outcome.ended))
        .collect();
    assert_eq!(simulated.len(), asked.len());
    assert!(at_once(simulated.into_iter()) <= 2);
}
