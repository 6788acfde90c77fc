//! Compares the journal with a naive map, with crashes and clean ends in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use contextpilot_journal::{Identity, Journal, Origin};
use contextpilot_server_flags::{Generation, ServerFlags};
use contextpilot_testbed::private_folder;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Live(u8),
    Evicted(u8),
    Gone(u8),
    Flush,
    /// The process dies, and the next one starts.
    Crash,
    /// The process ends by itself, and the next one starts.
    End,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..12_u8).prop_map(Step::Live),
        3 => (0..12_u8).prop_map(Step::Evicted),
        4 => (0..12_u8).prop_map(Step::Gone),
        2 => Just(Step::Flush),
        1 => Just(Step::Crash),
        1 => Just(Step::End),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Believed {
    Live,
    Evicted,
    Returned,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_next_start_gets_the_ids_that_were_live_at_the_last_flush(
        steps in proptest::collection::vec(step(), 0..150)
    ) {
        let home = private_folder();
        let start = || {
            let flags = ServerFlags::read([], |_| None, Generation::Late2026);
            let identity = Identity::of("http://index", &flags, &Origin::default());
            let lookup = |name: &str| (name == "HOME").then(|| home.path().into());
            Journal::in_state_folder(lookup, None, identity, |line| panic!("said {line}"))
        };
        let id = |n: u8| -> Arc<str> { format!("req-{n:02}").into() };
        let (mut journal, _) = start();
        let mut naive: BTreeMap<u8, Believed> = BTreeMap::new();
        let mut flushed: Vec<u8> = Vec::new();
        for step in steps.into_iter().chain([Step::End]) {
            match step {
                Step::Live(n) => {
                    journal.note_live(&id(n));
                    let entry = naive.entry(n).or_insert(Believed::Live);
                    if *entry == Believed::Evicted {
                        *entry = Believed::Returned;
                    }
                }
                Step::Evicted(n) => {
                    journal.note_evicted(&id(n));
                    naive.entry(n).and_modify(|entry| *entry = Believed::Evicted);
                }
                Step::Gone(n) => {
                    journal.note_gone(&id(n));
                    if naive.get(&n).is_some_and(|entry| *entry != Believed::Returned) {
                        naive.remove(&n);
                    }
                }
                Step::Flush => {
                    journal.flush();
                    flushed = naive.keys().copied().collect();
                }
                Step::Crash | Step::End => {
                    if matches!(step, Step::End) {
                        flushed = naive.keys().copied().collect();
                        journal.close();
                    } else {
                        drop(journal);
                    }
                    let (next, mut lost) = start();
                    journal = next;
                    lost.sort();
                    let expected: Vec<_> = flushed.iter().map(|&n| id(n)).collect();
                    prop_assert_eq!(lost, expected);
                    naive = flushed.iter().map(|&n| (n, Believed::Evicted)).collect();
                }
            }
        }
    }
}
