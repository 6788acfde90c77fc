//! What must hold of any traffic.

use std::sync::Arc;

use contextpilot_simulate::{Point, Setting, simulate};
use contextpilot_traffic::{
    Memory, RequestRecord, Run, Setup, SizeKind, SizeSample, Tokens, Traffic, TrafficRequest,
};
use proptest::prelude::*;

/// A request: which conversation, how many tokens of it, how many are new, when it comes.
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
    let numbers = (1_u32..6, -1_i64..4, 0_u32..500, 0_u32..40, 0_u32..5);
    (memory, flags, numbers).prop_map(|(memory, flags, numbers)| Setup {
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
        slot_prompt_similarity: numbers.2,
        cache_reuse: numbers.3,
        context_shift: flags.2,
        ctx_checkpoints: numbers.4,
        ubatch_size: 64,
        memory,
        ..Setup::default()
    })
}

/// What is true of each point: sums, bounds, time.
fn check(point: &Point, traffic: &Traffic) -> Result<(), TestCaseError> {
    let (mut reused, mut evaluated) = (0, 0);
    for (request, outcome) in traffic.requests.iter().zip(&point.outcomes) {
        let Some(outcome) = outcome else { continue };
        prop_assert_eq!(outcome.reused + outcome.evaluated, request.record.prompt);
        prop_assert!(outcome.evaluated > 0, "the last token is always evaluated");
        prop_assert!(outcome.arrived <= outcome.launched && outcome.launched <= outcome.ended);
        prop_assert!(outcome.slot < point.setting.parallel);
        reused += u64::from(outcome.reused);
        evaluated += u64::from(outcome.evaluated);
    }
    prop_assert_eq!(
        (reused, evaluated),
        (point.reused_tokens, point.evaluated_tokens)
    );
    prop_assert_eq!(reused + evaluated, point.prompt_tokens);
    let refused = point
        .outcomes
        .iter()
        .filter(|outcome| outcome.is_none())
        .count();
    prop_assert_eq!(refused as u64, point.refused);
    prop_assert!((0.0..=1.0).contains(&point.reused_share()));
    Ok(())
}

proptest! {
    #[test]
    fn sums_agree_and_input_decides(asked in asked(), setup in setups()) {
        let traffic = traffic(&asked, setup);
        let setting = Setting::recorded(&traffic).unwrap();
        let point = simulate(&traffic, &setting);
        check(&point, &traffic)?;
        let again = simulate(&traffic, &setting);
        prop_assert_eq!(&again.outcomes, &point.outcomes);
    }

    /// No slot works on two requests at once.
    #[test]
    fn a_slot_works_on_one_request(asked in asked(), setup in setups()) {
        let traffic = traffic(&asked, setup);
        let point = simulate(&traffic, &Setting::recorded(&traffic).unwrap());
        let mut spans: Vec<_> = point.outcomes.iter().flatten().map(|o| (o.slot, o.launched, o.ended)).collect();
        spans.sort_unstable();
        for pair in spans.windows(2) {
            prop_assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].1, "{pair:?}");
        }
    }

    /// With every slot for itself and one for each conversation, a host cache has nothing to add,
    /// and what is reused is the longest prefix that the conversation has in common with its last.
    #[test]
    fn one_conversation_in_one_slot_reuses_what_it_shares(
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

    /// A host cache that takes everything forgets nothing that a smaller one kept. This is so where
    /// the choice of slots and of entries does not depend on it: one slot, and conversations that
    /// only grow, so that an entry either is the whole beginning of a prompt or has nothing of it.
    #[test]
    fn more_memory_keeps_what_less_kept(
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

/// As many requests as an operator may have in a day.
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
