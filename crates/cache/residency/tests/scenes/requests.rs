//! Requests: from their arrival to their end, with and without having been cached.

use crate::NOTHING;
use crate::server::{ENGINE, SceneServer, entries, text};
use contextpilot_residency::{Arrival, Entry, Event, Fact, Ledger, MOST_LIVE};

#[test]
fn an_id_that_comes_again_takes_the_older_ones_place() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "the first");
    assert_eq!(server.said(), ["a awaited", "a cached in slot 0"]);
    let request = server.post("a");
    assert_eq!(server.said(), ["a awaited"]);
    assert_eq!(server.ledger.live(), 1);
    // No request has the old prompt now.
    server.prompt(0, "b", "another");
    assert_eq!(server.lost(), NOTHING);
    server.launch(1, request.task);
    server.submit(1, &text("the second"), true);
    server.done();
    assert_eq!(server.said(), ["a cached in slot 1"]);
    server.prompt(1, "c", "more");
    assert_eq!(server.lost(), ["a evicted: Overwritten, slot 1"]);
}

#[test]
fn a_request_that_is_rejected_without_a_task_was_never_cached() {
    let mut server = SceneServer::start();
    server.apply(Event::Answered {
        arrival: contextpilot_residency::Arrival(7),
        id: Some("a".into()),
    });
    assert_eq!(server.lost(), ["a evicted: NeverCached, nowhere"]);
}

#[test]
fn a_rejected_request_leaves_an_older_one_with_its_id_alone() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "cached");
    server.apply(Event::Answered {
        arrival: contextpilot_residency::Arrival(77),
        id: Some("a".into()),
    });
    assert_eq!((server.lost(), server.ledger.live()), (vec![], 1));
}

#[test]
fn a_task_that_is_never_launched_was_never_cached() {
    let mut server = SceneServer::start();
    let request = server.post("a");
    server.quiet(10_000);
    assert_eq!(server.lost(), NOTHING, "it may be waiting for a slot");
    server.answer(request);
    assert_eq!(server.lost(), ["a evicted: NeverCached, nowhere"]);
}

#[test]
fn a_prompt_that_is_too_long_is_launched_and_answered_and_never_evaluated() {
    let mut server = SceneServer::start();
    let request = server.post("a");
    server.launch(0, request.task);
    server.answer(request);
    server.quiet(99);
    assert_eq!(server.lost(), NOTHING);
    server.quiet(100);
    assert_eq!(server.lost(), ["a evicted: NeverCached, nowhere"]);
}

#[test]
fn a_prompt_that_is_too_long_is_over_when_its_slot_takes_the_next_task() {
    let mut server = SceneServer::start();
    let request = server.post("a");
    server.launch(0, request.task);
    server.answer(request);
    let next = server.post("b");
    server.launch(0, next.task);
    assert_eq!(server.lost(), ["a evicted: NeverCached, nowhere"]);
}

#[test]
fn a_request_that_is_cancelled_in_its_prompt_is_over_in_silence() {
    let mut server = SceneServer::start();
    let request = server.post("a");
    server.launch(0, request.task);
    server.submit(0, &text("the first part"), false);
    server.answer(request);
    server.quiet(5_000);
    assert_eq!(server.lost(), NOTHING, "its batch is still evaluated");
    server.done();
    server.quiet(100);
    assert_eq!(server.lost(), ["a evicted: NeverCached, nowhere"]);
    assert_eq!(server.ledger.held(0), 14, "the slot keeps what it has");
}

#[test]
fn what_a_cancelled_request_was_on_its_way_back_to_is_lost_in_silence() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "one and two and three");
    let request = server.post("b");
    server.launch(0, request.task);
    server.remove(0, -1, -1);
    server.submit(0, &text("one and"), false);
    server.done();
    server.quiet(1_000);
    assert_eq!(server.lost(), NOTHING, "it has not been answered");
    server.answer(request);
    server.quiet(100);
    assert_eq!(
        server.lost(),
        [
            "a evicted: Overwritten, slot 0",
            "b evicted: NeverCached, nowhere"
        ]
    );
}

#[test]
fn a_task_without_an_id_is_given_a_second() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "one and two");
    server.launch(0, 99);
    server.remove(0, -1, -1);
    server.submit(0, &text("one"), false);
    server.done();
    server.quiet(999);
    assert_eq!(server.lost(), NOTHING);
    server.quiet(1_000);
    assert_eq!(server.lost(), ["a evicted: Overwritten, slot 0"]);
}

#[test]
fn an_eviction_is_reported_once() {
    let mut server = SceneServer::start();
    let request = server.post("a");
    server.launch(0, request.task);
    server.submit(0, &text("a prompt"), true);
    server.done();
    // Its own answer is so long that the context shifts, before anything is sent.
    server.generate(0, " and a long answer");
    server.remove(0, 1, 9);
    server.shift(0, 9, -1, -8);
    assert_eq!(server.lost(), ["a evicted: Shifted, slot 0"]);
    server.answer(request);
    server.quiet(1_000);
    assert_eq!(server.lost(), NOTHING);
}

#[test]
fn several_prompts_in_one_request_are_cached_together_and_lost_with_the_first() {
    let mut server = SceneServer::start();
    let (request, second) = server.post_two("a");
    server.launch(0, request.task);
    server.launch(1, second);
    server.submit(0, &text("the one"), true);
    server.done();
    assert_eq!(server.said(), ["a awaited"]);
    server.submit(1, &text("the other"), true);
    server.done();
    assert_eq!(server.said(), ["a cached in slot 1"]);
    server.answer(request);
    server.prompt(0, "b", "next");
    assert_eq!(server.lost(), ["a evicted: Overwritten, slot 0"]);
    server.prompt(1, "c", "next");
    assert_eq!(server.lost(), NOTHING);
}

#[test]
fn several_answers_to_one_prompt_are_copies() {
    let mut server = SceneServer::start();
    let (request, child) = server.post_two("a");
    server.launch(0, request.task);
    server.launch(1, child);
    server.submit(0, &text("a prompt"), true);
    server.done();
    server.remove(1, -1, -1);
    server.copy(0, 1);
    assert_eq!(server.said(), ["a awaited", "a cached in slot 1"]);
    server.answer(request);
    server.generate(0, " one");
    server.generate(1, " two");
    server.quiet(1_000);
    assert_eq!((server.lost(), server.ledger.live()), (vec![], 1));
}

#[test]
fn questions_that_share_the_beginning_of_their_prompts_are_cached_while_each_is() {
    let mut server = SceneServer::start();
    let (request, child) = server.post_two("a");
    server.launch(1, child);
    server.launch(0, request.task);
    server.submit(0, &text("shared "), false);
    server.done();
    server.remove(1, -1, -1);
    server.copy(0, 1);
    server.submit(0, &text("one"), true);
    server.done();
    assert_eq!(server.said(), ["a awaited"]);
    server.submit(1, &text("two"), true);
    server.done();
    assert_eq!(server.said(), ["a cached in slot 1"]);
    // The server empties the slots of child tasks when they are over.
    server.remove(1, -1, -1);
    server.answer(request);
    server.prompt(0, "b", "shared one");
    server.quiet(1_000);
    assert_eq!(server.lost(), ["a evicted: Cleared, slot 1"]);
}

/// Embedding tasks ask for the output of every token.
fn embedding(slot: i32, from: i32, tokens: &str) -> Vec<Entry> {
    let mut entries = entries(slot, from, &text(tokens), false);
    for entry in &mut entries {
        entry.output = true;
    }
    entries
}

#[test]
fn an_embedding_prompt_can_take_many_batches() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "embed all of this");
    let request = server.post("b");
    server.launch(0, request.task);
    server.remove(0, -1, -1);
    for (from, part) in [(0, "embed "), (6, "all of "), (13, "this")] {
        server.submit_entries(embedding(0, from, part));
        server.done();
    }
    server.answer(request);
    assert_eq!(server.lost(), NOTHING, "the same prompt came back");
    // The prompt ends with the last batch, not with the first.
    let next = server.post("c");
    server.launch(0, next.task);
    server.remove(0, 14, -1);
    server.submit_entries(embedding(0, 14, "at"));
    assert_eq!(
        server.lost(),
        ["a", "b"].map(|id| format!("{id} evicted: Overwritten, slot 0"))
    );
}

#[test]
fn a_task_at_work_when_its_context_is_freed_was_never_cached() {
    let mut server = SceneServer::start();
    let request = server.post("a");
    server.launch(0, request.task);
    server.submit(0, &text("half of"), false);
    server.apply(Event::ContextFreed { context: ENGINE });
    assert_eq!(server.lost(), NOTHING);
    server.answer(request);
    assert_eq!(server.lost(), ["a evicted: NeverCached, nowhere"]);
}

#[test]
fn ids_and_lives_can_be_asked_for() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "one");
    server.post("b");
    let mut ids: Vec<_> = server.ledger.ids().map(|id| id.to_string()).collect();
    ids.sort();
    assert_eq!(
        (ids, server.ledger.live()),
        (vec!["a".into(), "b".into()], 2)
    );
}

/// Equal prompts under ever new ids stand in the same few tokens, and nothing overwrites them.
#[test]
fn beyond_what_can_be_tracked_the_oldest_request_is_given_up() {
    let mut ledger = Ledger::new();
    let mut facts = Vec::new();
    let mut given_up = Vec::new();
    for number in 0..MOST_LIVE as u64 + 3 {
        let arrival = Arrival(number);
        let (task, id) = (number as i32, Some(number.to_string().into()));
        ledger.apply(Event::Posted { arrival, task, id }, &mut facts);
        for fact in facts.drain(..) {
            if let Fact::Evicted { id, reason, .. } = fact {
                given_up.push(format!("{id} {reason:?}"));
            }
        }
    }
    assert_eq!(given_up, ["0 TooMany", "1 TooMany", "2 TooMany"]);
    assert_eq!(ledger.live(), MOST_LIVE);
    // Its answer comes later, and is no news.
    let (arrival, id) = (Arrival(0), Some("0".into()));
    ledger.apply(Event::Answered { arrival, id }, &mut facts);
    assert_eq!(facts, []);
}

/// One request may have any number of prompts, and each stays a mark in the tree.
#[test]
fn beyond_as_many_prompts_the_oldest_request_is_given_up() {
    let mut server = SceneServer::start();
    server.prompt(0, "old", "x");
    let request = server.post("many");
    for task in request.task..request.task + MOST_LIVE as i32 - 2 {
        if task > request.task {
            server.post_again(&request, task);
        }
        server.launch(0, task);
        server.submit(0, &text("x"), true);
        server.done();
    }
    assert_eq!(
        server.lost(),
        NOTHING,
        "with the old one's as many as may be"
    );
    server.post_again(&request, -1);
    assert_eq!(server.lost(), NOTHING);
    server.post_again(&request, -2);
    assert_eq!(server.lost(), ["old evicted: TooMany, slot 0"]);
    server.post_again(&request, -3);
    assert_eq!(server.lost(), ["many evicted: TooMany, slot 0"]);
    assert_eq!(server.ledger.live(), 0);
    // What waits counts, too.
    let waits = server.post("waits");
    let first = waits.task + 1;
    for task in first..first + MOST_LIVE as i32 - 1 {
        server.post_again(&waits, task);
    }
    assert_eq!(server.lost(), NOTHING);
    server.post_again(&waits, -4);
    assert_eq!(server.lost(), ["waits evicted: TooMany, nowhere"]);
}
