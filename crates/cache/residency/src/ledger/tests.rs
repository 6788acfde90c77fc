//! Compares the ledger with the naive one (`tests/naive`) on random events.
//!
//! Runs of the tree are at most four tokens long here (see `tree::RUN`), so that these short
//! sequences span several nodes.

use super::*;
use crate::adapters::{Adapter, Compared, Scale};
use crate::entries::Entry;
use crate::ids::{Arrival, ContextId};
use crate::token::Position;
use naive::{Bytes, Choices, Generator, Pair, Random};
use proptest::prelude::*;

mod enough;
#[path = "../../tests/naive/mod.rs"]
mod naive;

/// Events in all: the four tests below take a quarter each.
const EVENTS: usize = 1_000_000;
/// Events on one ledger before a new one is made.
const LIFE: usize = 500;

fn agree(seeds: std::ops::Range<u64>) {
    agree_with(seeds, || Generator::new(1));
}

fn agree_with(seeds: std::ops::Range<u64>, generator: impl Fn() -> Generator) {
    for seed in seeds {
        let mut pair = Pair::default();
        let mut nth = 0;
        let outcome = pair.run(&mut Random(seed), &mut generator(), LIFE, |ledger| {
            // The check costs more than the event, so it is not made each time.
            nth += 1;
            if nth % 4 == 0 {
                ledger.tree.check();
            }
        });
        if let Err(difference) = outcome {
            panic!("seed {seed}: {difference}");
        }
    }
}

const QUARTER: u64 = (EVENTS / LIFE / 4) as u64;

#[test]
fn the_ledger_agrees_with_the_naive_one_on_random_events_first_quarter() {
    agree(0..QUARTER);
}

#[test]
fn the_ledger_agrees_with_the_naive_one_on_random_events_second_quarter() {
    agree(QUARTER..2 * QUARTER);
}

#[test]
fn the_ledger_agrees_with_the_naive_one_on_random_events_third_quarter() {
    agree(2 * QUARTER..3 * QUARTER);
}

#[test]
fn the_ledger_agrees_with_the_naive_one_on_random_events_fourth_quarter() {
    agree(3 * QUARTER..4 * QUARTER);
}

/// With as many events as each quarter above.
#[test]
fn both_agree_on_adapters_that_are_compared_when_they_are_named() {
    agree_with(0..QUARTER, || {
        Generator::with_adapters(1, Compared::WhenNamed)
    });
}

#[test]
fn both_agree_on_adapters_that_are_always_compared() {
    agree_with(0..QUARTER, || Generator::with_adapters(1, Compared::Always));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Like the tests above, but with bytes for choices: proptest can shrink these.
    #[test]
    fn both_agree_on_events_made_from_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..800)) {
        let mut pair = Pair::default();
        let outcome = pair.run(
            &mut Bytes(&bytes),
            &mut Generator::from_bytes(&bytes, 1),
            usize::MAX,
            |ledger| ledger.tree.check(),
        );
        prop_assert_eq!(outcome, Ok(()));
    }
}

#[test]
fn equal_events_give_equal_effects_in_equal_order() {
    for seed in 0..20 {
        let mut choices = Random(seed);
        let mut generator = Generator::new(1);
        let mut double = naive::Naive::default();
        let (mut ledger, mut other) = (Ledger::new(), Ledger::new());
        let (mut facts, mut others) = (Vec::new(), Vec::new());
        assert!(!choices.is_over());
        for _ in 0..LIFE {
            let event = generator.next(&mut choices, &double);
            double.apply(&event);
            ledger.apply(event.clone(), &mut facts);
            other.apply(event, &mut others);
            assert_eq!(facts, others, "seed {seed}");
        }
    }
}

/// If the random events led to no facts, the agreement of both ledgers would prove nothing.
#[test]
fn random_events_lead_to_every_fact_of_the_cache() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..300 {
        let mut choices = Random(seed);
        let mut generator = Generator::from_bytes(&[seed as u8], 1);
        let mut double = naive::Naive::default();
        for _ in 0..LIFE {
            let event = generator.next(&mut choices, &double);
            for fact in double.apply(&event) {
                let name = match fact {
                    Fact::Awaited { .. } => "awaited".into(),
                    Fact::Cached { .. } => "cached".into(),
                    Fact::Evicted { reason, place, .. } => match place {
                        Place::Slot(_) => format!("{reason:?} in a slot"),
                        Place::Host => format!("{reason:?} in host memory"),
                        Place::Nowhere => format!("{reason:?}"),
                    },
                    other => panic!("nobody observes: {other:?}"),
                };
                *seen.entry(name).or_default() += 1;
            }
        }
    }
    for fact in [
        "awaited",
        "cached",
        "Overwritten in a slot",
        "Cleared in a slot",
        "Shifted in a slot",
        "AdaptersChanged in a slot",
        "DroppedFromHost in host memory",
        "ContextFreed in a slot",
        "OutOfStep in a slot",
        "OutOfStep",
        "NeverCached",
        "Reset",
    ] {
        assert!(
            seen.get(fact).is_some_and(|&count| count >= 30),
            "{fact}: {seen:#?}"
        );
    }
}

/// The naive ledger does not model bounded contexts. There, too, nothing may panic, the tree must be
/// valid, and the live ids must be those that the facts imply.
#[test]
fn in_a_bounded_context_the_live_ids_follow_from_the_effects() {
    let context = ContextId(1);
    let mut out_of_reach = 0;
    for seed in 0..300 {
        let mut choices = Random(seed);
        let mut generator = Generator::from_bytes(&[seed as u8], 1);
        let mut double = naive::Naive::default();
        let mut ledger = Ledger::new();
        let mut live = std::collections::BTreeSet::new();
        let window = choices.below(6);
        for _ in 0..LIFE {
            let sequence = choices.below(5) as SequenceId - 1;
            let held = ledger.held(sequence) + 2;
            let mut position = || choices.below(held) as Position - 1;
            let (first, last) = (position(), position());
            let buffer = BufferId(choices.below(8) as usize);
            let event = match choices.below(12) {
                0 => Event::Bounded { context, window },
                1 | 2 => Event::Reaches {
                    context,
                    sequence,
                    first,
                },
                3 => Event::Checkpointed {
                    context,
                    sequence,
                    buffer,
                    first,
                    last,
                },
                4 => Event::Freed { buffer },
                _ => {
                    let event = generator.next(&mut choices, &double);
                    double.apply(&event);
                    event
                }
            };
            let mut facts = Vec::new();
            ledger.apply(event.clone(), &mut facts);
            ledger.tree.check();
            for fact in facts {
                match fact {
                    Fact::Awaited { id } => drop(live.insert(id)),
                    Fact::Cached { id, .. } => assert!(live.contains(&id), "seed {seed}"),
                    Fact::Evicted { id, reason, .. } => {
                        let known = live.remove(&id);
                        assert!(known || reason == Reason::NeverCached, "seed {seed}");
                        out_of_reach += usize::from(reason == Reason::OutOfReach);
                    }
                    other => panic!("nobody observes: {other:?}"),
                }
            }
            let ids: std::collections::BTreeSet<_> = ledger.ids().cloned().collect();
            assert_eq!(ids, live, "seed {seed}: {event:?}");
        }
    }
    assert!(out_of_reach >= 100, "{out_of_reach}");
}

/// Found by `scripts/fuzz ledger`. Each token of an embedding's batch is an output, and the task goes on behind it.
#[test]
fn an_embedding_task_keeps_its_adapters_if_its_prompt_is_removed_meanwhile() {
    let context = ContextId(1);
    let submitted = |tokens: &[Token]| {
        let entry = |(position, &token)| Entry {
            sequence: 0,
            position,
            token,
            output: true,
        };
        let entries = (0..).zip(tokens).map(entry).collect();
        Event::Submitted { context, entries }
    };
    let evaluated = || Event::Evaluated {
        context,
        failed: Vec::new(),
        no_room: false,
    };
    let adapter = Adapter {
        address: 1,
        scale: Scale::new(1.0),
        invocation: [5].into(),
    };
    let events = [
        Event::NamedAdapters {
            task: 1,
            scales: vec![(0, Scale::new(0.0))],
        },
        Event::Posted {
            arrival: Arrival(1),
            task: 1,
            id: Some("a".into()),
        },
        Event::Launched {
            sequence: 0,
            task: 1,
        },
        submitted(&[1, 2]),
        Event::Removed {
            context,
            sequence: 0,
            from: 0,
            to: -1,
        },
        evaluated(),
        Event::Adapters {
            context,
            adapters: vec![adapter],
            compared: Compared::WhenNamed,
        },
        submitted(&[1, 2, 3]),
        evaluated(),
    ];
    let mut pair = Pair::default();
    for event in events {
        pair.apply(event).unwrap();
    }
    assert_eq!(pair.ledger.live(), 0);
}
