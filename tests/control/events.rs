//! `/events`: every change in order, and how a reader learns what it missed.

use crate::support::{Hooked, ask, bare, model};
use contextpilot_control::{Change, Missed, Place, Reason};
use contextpilot_testbed::{Arch, Request};
use serde_json::json;

#[test]
fn changes_are_sent_in_order_with_numbers() {
    let hooked = Hooked::observing(&bare(1));
    let mut events = hooked.events(None);
    hooked.complete(&ask(1, 60).id("req-1"));
    hooked.complete(&ask(2, 60).id("req-2"));
    let changes: Vec<_> = (0..3).map(|_| events.change()).collect();
    let epoch = &changes[0].epoch;
    assert_eq!(*epoch, hooked.stats().epoch);
    for (nth, change) in changes.iter().enumerate() {
        assert_eq!((&change.epoch, change.sequence), (epoch, nth as u64 + 1));
    }
    let cached = |change: &Change| match change {
        Change::Cached {
            id,
            slot: 0,
            tokens,
        } if *tokens >= 60 => id.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(cached(&changes[0].change), "req-1");
    assert_eq!(
        changes[1].change,
        Change::Evicted {
            id: "req-1".to_owned(),
            reason: Reason::Overwritten,
            from: Place::Slot { slot: 0 },
            by: Some("req-2".to_owned()),
        }
    );
    assert_eq!(cached(&changes[2].change), "req-2");
}

#[test]
fn moves_to_host_memory_and_back_are_sent() {
    let hooked = Hooked::observing(&model(Arch::Llama).args(["--parallel", "1"]));
    let mut events = hooked.events(None);
    hooked.complete(&ask(1, 200).id("req-1"));
    hooked.complete(&ask(2, 200).id("req-2"));
    hooked.complete(&ask(1, 200).id("req-3"));
    let mut moved = Vec::new();
    let restored = loop {
        match events.change().change {
            Change::MovedToHost {
                ids, tokens, bytes, ..
            } => {
                assert!(tokens >= 200 && bytes.is_some_and(|bytes| bytes > 1000));
                moved.push(ids);
            }
            Change::Restored { ids, slot, tokens } => break (ids, slot, tokens),
            _ => {}
        }
    };
    assert_eq!(moved, [["req-1"], ["req-2"]]);
    assert_eq!((restored.0, restored.1), (vec!["req-1".to_owned()], 0));
    assert!(restored.2 >= 200);
}

#[test]
fn a_reader_that_reconnects_gets_the_events_since() {
    let hooked = Hooked::observing(&bare(1));
    let mut events = hooked.events(None);
    hooked.complete(&ask(1, 60).id("req-1"));
    let first = events.next();
    drop(events);
    hooked.complete(&ask(2, 60).id("req-2"));
    let mut again = hooked.events(Some(&first.id));
    assert_eq!(again.change().sequence, 2);
    assert_eq!(again.change().sequence, 3);

    // The last event was of another process. The reader is told so, and gets all events that are kept.
    for stranger in ["0123456789abcdef-1", "nonsense"] {
        let mut events = hooked.events(Some(stranger));
        let message = events.next();
        assert_eq!(message.event, "missed");
        let missed: Missed = serde_json::from_str(&message.data).unwrap();
        assert_eq!(missed.missed, None);
        assert_eq!(missed.epoch, hooked.stats().epoch);
        assert_eq!(events.change().sequence, 1);
    }
}

#[test]
fn a_reader_that_falls_behind_gets_the_number_of_missed_events() {
    let hooked = Hooked::observing(&bare(1));
    let mut events = hooked.events(None);
    hooked.complete(&ask(1, 2).id("req-first"));
    let first = events.next();
    drop(events);
    // Each refused request is one event, `never_cached`, and costs the server little. Together they
    // are more events than the hook keeps.
    for n in 0..4200 {
        let request = Request::completion(json!({})).id(format!("req-{n}"));
        assert!(hooked.server.send(&request).unwrap().status >= 400);
    }
    let stats = hooked.settled(4201);
    assert_eq!(stats.evictions[&Reason::NeverCached], 4200);
    let mut again = hooked.events(Some(&first.id));
    let message = again.next();
    assert_eq!(message.event, "missed");
    let missed: Missed = serde_json::from_str(&message.data).unwrap();
    let missed = missed.missed.unwrap();
    assert!(missed > 0);
    assert_eq!(again.change().sequence, 1 + missed + 1);
}
