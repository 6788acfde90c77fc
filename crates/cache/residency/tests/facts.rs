//! What an observed ledger tells, and that it says the same of the cache as one that is not observed.

use std::ops::Range;

use contextpilot_residency::{
    Arrival, Asker, ContextId, Entry, Event, Fact, Ledger, Place, Reason, RequestId, TokenCounts,
    UNTIED,
};

const CONTEXT: ContextId = ContextId(1);
const SLOT: i32 = 0;

fn apply(ledger: &mut Ledger, events: impl IntoIterator<Item = Event>) -> Vec<Fact> {
    let mut facts = Vec::new();
    for event in events {
        ledger.apply(event, &mut facts);
    }
    facts
}

/// A request posts a task, and the slot takes it.
fn launched(number: u64, id: Option<&str>) -> [Event; 2] {
    let task = number as i32;
    [
        Event::Posted {
            arrival: Arrival(number),
            task,
            id: id.map(RequestId::from),
        },
        Event::Launched {
            sequence: SLOT,
            task,
        },
    ]
}

/// The slot's positions from `from` to `to` are evaluated, and the last asks for its output.
fn evaluated(token: i32, from: i32, to: i32) -> [Event; 3] {
    let removed = Event::Removed {
        context: CONTEXT,
        sequence: SLOT,
        from,
        to: -1,
    };
    let [submitted, done] = batch(token, from..to, |position| position + 1 == to);
    [removed, submitted, done]
}

/// A batch of the slot, of equal tokens. `has_output`: which positions ask for their output.
fn batch(token: i32, positions: Range<i32>, has_output: impl Fn(i32) -> bool) -> [Event; 2] {
    let entry = |position| Entry {
        sequence: SLOT,
        position,
        token,
        output: has_output(position),
    };
    let submitted = Event::Submitted {
        context: CONTEXT,
        entries: positions.map(entry).collect(),
    };
    let done = Event::Evaluated {
        context: CONTEXT,
        failed: Vec::new(),
        no_room: false,
    };
    [submitted, done]
}

fn asker(number: u64, id: Option<&str>) -> Asker {
    Asker {
        number,
        id: id.map(RequestId::from),
    }
}

#[test]
fn the_facts_of_a_request_come_in_their_order() {
    let mut ledger = Ledger::observed();
    let facts = apply(&mut ledger, launched(1, Some("a")));
    let (arrival, id) = (Arrival(1), Some(RequestId::from("a")));
    let awaited = Fact::Awaited { id: "a".into() };
    let took = Fact::Launched {
        sequence: SLOT,
        task: 1,
        asker: asker(1, Some("a")),
        evaluation: None,
        goes_on: false,
    };
    let posted = Fact::Posted {
        arrival,
        task: 1,
        id: id.clone(),
    };
    assert_eq!(facts, [posted, awaited, took]);
    let busy = |ledger: &Ledger| ledger.works_for(SLOT).map(|(_, busy)| busy);
    assert_eq!(busy(&ledger), Some(true));

    let facts = apply(&mut ledger, evaluated(7, 0, 20));
    let ended = Fact::PromptEvaluated {
        sequence: SLOT,
        asker: asker(1, Some("a")),
        evaluation: None,
        counts: TokenCounts {
            tokens: 20,
            reused: 0,
            evaluated: 20,
        },
        answers: true,
    };
    let cached = Fact::Cached {
        id: "a".into(),
        sequence: SLOT,
        tokens: 20,
    };
    let batch = Fact::BatchEvaluated { sequence: SLOT };
    assert_eq!(facts, [batch, ended, cached]);

    let first = Fact::FirstToken { sequence: SLOT };
    assert_eq!(apply(&mut ledger, evaluated(8, 20, 21)), [first]);
    assert_eq!(apply(&mut ledger, evaluated(9, 21, 22)), []);
    let answered = Event::Answered {
        arrival,
        id: id.clone(),
    };
    let facts = apply(&mut ledger, [answered]);
    assert_eq!(
        facts,
        [Fact::Answered {
            arrival,
            id,
            leaves: false
        }]
    );
    assert_eq!(busy(&ledger), Some(false));
}

#[test]
fn an_eviction_says_for_whom_also_if_that_request_has_no_id() {
    let mut ledger = Ledger::observed();
    apply(&mut ledger, launched(1, Some("a")));
    apply(&mut ledger, evaluated(7, 0, 20));
    apply(&mut ledger, launched(2, None));
    let evicted = |facts: Vec<Fact>| {
        let evicted = |fact: &Fact| matches!(fact, Fact::Evicted { .. });
        facts.into_iter().find(evicted)
    };
    let by = |by| {
        Some(Fact::Evicted {
            id: "a".into(),
            reason: Reason::Overwritten,
            place: Place::Slot(SLOT),
            by,
        })
    };
    let facts = apply(&mut ledger, evaluated(8, 0, 20));
    assert_eq!(evicted(facts), by(Some(asker(2, None))));

    let mut ledger = Ledger::new();
    apply(&mut ledger, launched(1, Some("a")));
    apply(&mut ledger, evaluated(7, 0, 20));
    assert_eq!(apply(&mut ledger, launched(2, None)), []);
    let facts = apply(&mut ledger, evaluated(8, 0, 20));
    assert_eq!(facts.len(), 1, "{facts:?}");
    assert_eq!(evicted(facts), by(None));
}

/// Its outputs do not tell where the prompt of an embedding ends.
#[test]
fn the_prompt_of_an_embedding_ends_before_its_request_is_answered() {
    let mut ledger = Ledger::observed();
    apply(&mut ledger, launched(1, None));
    let progress = Fact::BatchEvaluated { sequence: SLOT };
    assert_eq!(apply(&mut ledger, batch(7, 0..8, |_| true)), [progress]);
    assert!(ledger.unfinished(SLOT).is_some_and(|prompt| prompt.whole));
    let arrival = Arrival(1);
    let facts = apply(&mut ledger, [Event::Answered { arrival, id: None }]);
    let [
        Fact::PromptEvaluated {
            counts, answers, ..
        },
        Fact::Answered { .. },
    ] = &facts[..]
    else {
        panic!("{facts:?}");
    };
    assert_eq!((counts.evaluated, *answers), (8, false));
}

/// A request for several answers (`n`): the server evaluates its prompt once, and copies it to the slots of the others.
#[test]
fn a_further_answer_takes_over_the_prompt_of_its_parent() {
    let further = SLOT + 1;
    let copied = || Event::Copied {
        context: CONTEXT,
        source: SLOT,
        target: further,
        from: -1,
        to: -1,
    };
    let mut ledger = Ledger::observed();
    apply(&mut ledger, launched(1, Some("a")));
    let posted = Event::Posted {
        arrival: Arrival(1),
        task: 2,
        id: Some("a".into()),
    };
    let waits = Event::Launched {
        sequence: further,
        task: 2,
    };
    apply(&mut ledger, [posted, waits]);
    apply(&mut ledger, evaluated(7, 0, 20));
    let took_over = |facts: Vec<Fact>| {
        let took_over = |fact: &Fact| matches!(fact, Fact::TookOver { .. });
        facts.into_iter().find(took_over)
    };
    let facts = apply(&mut ledger, [copied()]);
    assert_eq!(
        took_over(facts),
        Some(Fact::TookOver {
            source: SLOT,
            target: further,
            asker: asker(1, Some("a")),
            evaluation: None,
            counts: TokenCounts {
                tokens: 20,
                reused: 0,
                evaluated: 20,
            },
            unseen: false,
        })
    );
    assert!(ledger.unfinished(further).is_none(), "it has its prompt");

    // While the parent works on its prompt, only the beginning of it is copied.
    let mut ledger = Ledger::observed();
    apply(&mut ledger, launched(1, Some("a")));
    let [removed, mut submitted, done] = evaluated(7, 0, 20);
    if let Event::Submitted { entries, .. } = &mut submitted {
        let none = entries.iter().map(|entry| Entry {
            output: false,
            ..*entry
        });
        *entries = none.collect();
    }
    apply(&mut ledger, [removed, submitted, done]);
    let facts = apply(&mut ledger, [copied()]);
    assert_eq!(took_over(facts), None);
}

/// A slot that was seen to work for a task that is not known: once it is, what was evaluated before is its prompt's.
#[test]
fn a_prompt_that_began_for_an_unknown_task_goes_on() {
    let mut ledger = Ledger::observed();
    let unknown = Event::Launched {
        sequence: SLOT,
        task: UNTIED,
    };
    apply(&mut ledger, [unknown]);
    let [submitted, done] = batch(7, 0..12, |_| false);
    apply(&mut ledger, [submitted]);
    let so_far = ledger.unfinished(SLOT).expect("its prompt");
    assert_eq!((so_far.counts.evaluated, so_far.in_batch), (0, 12));
    apply(&mut ledger, [done]);
    let facts = apply(&mut ledger, launched(1, Some("a")));
    let goes_on = |fact: &Fact| matches!(fact, Fact::Launched { goes_on: true, .. });
    assert!(facts.iter().any(goes_on), "{facts:?}");
    let so_far = ledger.unfinished(SLOT).expect("its prompt");
    assert_eq!((so_far.counts.evaluated, so_far.in_batch), (12, 0));
}
