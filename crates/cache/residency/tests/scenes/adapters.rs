//! LoRA adapters. The server compares tokens only, but it empties a slot that worked under other
//! adapters than those that a request names (servers of 2026) or gets (servers of 2025).

use crate::server::{ENGINE, Request, SceneServer, text};
use contextpilot_residency::{Adapter, Compared, ContextId, Event, Scale, Token};

/// How strongly each of the server's three adapters is applied.
type Scales = [f32; 3];

const NONE: Scales = [0.0, 0.0, 0.0];
const A: Scales = [1.0, 0.0, 0.0];
const WEAK_A: Scales = [0.5, 0.0, 0.0];
const B: Scales = [0.0, 1.0, 0.0];
/// Activated by the tokens `#$`.
const INVOKED: Scales = [0.0, 0.0, 1.0];

fn adapters(scales: Scales) -> Vec<Adapter> {
    let invocations: [&[Token]; 3] = [&[], &[], &[35, 36]];
    let adapter = |(address, (scale, invocation)): (usize, (f32, &[Token]))| Adapter {
        address,
        scale: Scale::new(scale),
        invocation: invocation.into(),
    };
    let each = scales.into_iter().zip(invocations);
    (100..).zip(each).map(adapter).collect()
}

impl SceneServer {
    fn apply_adapters(&mut self, scales: Scales, compared: Compared) {
        self.apply_adapters_in(ENGINE, scales, compared);
    }

    fn apply_adapters_in(&mut self, context: ContextId, scales: Scales, compared: Compared) {
        self.apply(Event::Adapters {
            context,
            adapters: adapters(scales),
            compared,
        });
    }

    /// A request that names one adapter, by its index, arrives.
    fn post_naming(&mut self, id: &'static str, index: i32) -> Request {
        let request = self.post(id);
        self.apply(Event::NamedAdapters {
            task: request.task,
            scales: vec![(index, Scale::new(1.0))],
        });
        request
    }

    /// A slot evaluates a request that names adapters. `emptied`: the server empties the slot first,
    /// because it worked under other adapters.
    fn named(
        &mut self,
        slot: i32,
        id: &'static str,
        prompt: &str,
        (scales, emptied): (Scales, bool),
    ) {
        let request = self.post(id);
        self.apply(Event::NamedAdapters {
            task: request.task,
            scales: (0..)
                .zip(scales)
                .map(|(index, scale)| (index, Scale::new(scale)))
                .collect(),
        });
        self.launch(slot, request.task);
        self.evaluate(slot, prompt, scales, emptied, Compared::WhenNamed);
        self.answer(request);
    }

    /// A slot evaluates a request that names none. `scales`: what the server applies to such requests.
    fn unnamed(&mut self, slot: i32, id: &'static str, prompt: &str, scales: Scales) {
        let request = self.post(id);
        self.launch(slot, request.task);
        self.evaluate(slot, prompt, scales, false, Compared::WhenNamed);
        self.answer(request);
    }

    /// A slot of a server of 2025 evaluates a request.
    fn compared(
        &mut self,
        slot: i32,
        id: &'static str,
        prompt: &str,
        (scales, emptied): (Scales, bool),
    ) {
        let request = self.post(id);
        self.launch(slot, request.task);
        self.evaluate(slot, prompt, scales, emptied, Compared::Always);
        self.answer(request);
    }

    fn evaluate(
        &mut self,
        slot: i32,
        prompt: &str,
        scales: Scales,
        emptied: bool,
        compared: Compared,
    ) {
        let prompt = text(prompt);
        let rest = if emptied {
            self.remove(slot, 0, -1);
            0
        } else {
            self.reuse(slot, &prompt)
        };
        self.apply_adapters(scales, compared);
        self.submit(slot, &prompt[rest..], true);
        self.done();
    }
}

#[test]
fn an_equal_prompt_under_other_adapters_evicts_the_first() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(0, "again", "a prompt", (A, false));
    assert!(server.lost().is_empty());
    server.named(0, "b", "a prompt", (B, true));
    assert_eq!(
        server.lost(),
        [
            "a evicted: AdaptersChanged, slot 0",
            "again evicted: AdaptersChanged, slot 0"
        ]
    );
    server.named(0, "weak", "a prompt", (WEAK_A, true));
    assert_eq!(server.lost(), ["b evicted: AdaptersChanged, slot 0"]);
}

#[test]
fn when_a_task_names_other_adapters_its_slot_is_empty_from_the_launch_on() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    let request = server.post_naming("b", 1);
    server.said();
    server.launch(0, request.task);
    assert_eq!(server.lost(), ["a evicted: AdaptersChanged, slot 0"]);
    // The client goes away before anything is evaluated: the tokens are not found again.
    server.answer(request);
    server.quiet(200);
    assert_eq!(server.ledger.held(0), 0);
}

#[test]
fn a_request_that_names_no_adapters_stays_cached_under_any() {
    let mut server = SceneServer::start();
    server.unnamed(0, "none", "a prompt", NONE);
    server.named(0, "a", "a prompt", (A, true));
    // The server would use the KV of "a" for it, as it does not compare.
    assert!(server.lost().is_empty());
    // What is applied without being named takes the slot from "a", but not from "none".
    server.unnamed(0, "none again", "a prompt", NONE);
    assert_eq!(server.lost(), ["a evicted: AdaptersChanged, slot 0"]);
    server.unnamed(0, "all", "a prompt", B);
    assert!(server.lost().is_empty());
    server.prompt(0, "other", "another one");
    assert_eq!(server.lost().len(), 3);
}

#[test]
fn when_slots_work_under_different_adapters_each_request_is_cached_in_its_own_slot() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(1, "b", "a prompt", (B, false));
    assert!(server.lost().is_empty());
    assert_eq!(server.ledger.requests_in(0, usize::MAX).len(), 1);
    let found = server.ledger.whereabouts("b").expect("it is live");
    assert_eq!(found.sequences, [1]);
    server.named(0, "c", "something else", (A, false));
    assert_eq!(server.lost(), ["a evicted: Overwritten, slot 0"]);
    server.remove(1, -1, -1);
    server.quiet(50);
    assert_eq!(server.lost(), ["b evicted: Cleared, slot 1"]);
}

#[test]
fn a_host_entry_keeps_a_prompt_cached_for_any_adapters() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    server.put_by(0, 1);
    server.named(0, "b", "something", (B, true));
    // Another slot, or this one after a request for A, would load it and use it.
    assert!(server.lost().is_empty());
    server.free(1);
    assert_eq!(server.lost(), ["a evicted: DroppedFromHost, host"]);
}

#[test]
fn after_a_load_from_the_host_cache_the_next_batch_decides_the_adapters() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    server.put_by(0, 1);
    server.named(0, "b", "something", (B, true));
    server.said();
    // A prompt that goes on from it, for A: the slot worked under B, so the server loads the entry
    // and throws it away. But what it then evaluates is the same.
    server.restore(0, 1, "a prompt");
    server.free(1);
    server.named(0, "more", "a prompt and more", (A, true));
    assert_eq!(server.lost(), ["b evicted: Overwritten, slot 0"]);
    // For B, it is used.
    server.put_by(0, 2);
    server.restore(0, 2, "a prompt and more");
    server.free(2);
    server.named(0, "bad", "a prompt", (B, true));
    assert_eq!(
        server.lost(),
        [
            "a evicted: AdaptersChanged, slot 0",
            "more evicted: AdaptersChanged, slot 0"
        ]
    );
}

#[test]
fn if_no_batch_follows_a_load_the_slot_stays_at_its_former_adapters() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    server.put_by(0, 1);
    server.named(0, "b", "something", (B, true));
    server.restore(0, 1, "a prompt");
    server.free(1);
    server.said();
    assert!(server.ledger.awaits_silence());
    server.quiet(200);
    assert_eq!(server.lost(), ["a evicted: AdaptersChanged, slot 0"]);
    assert!(!server.ledger.awaits_silence());
}

#[test]
fn a_copy_of_a_slot_works_under_the_same_adapters() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(1, "b", "something", (B, false));
    server.copy(0, 1);
    assert_eq!(server.lost(), ["b evicted: Overwritten, slot 1"]);
    server.prompt(0, "c", "another");
    assert!(server.lost().is_empty(), "the copy serves a");
}

#[test]
fn of_a_prompt_that_activates_an_adapter_only_what_comes_before_counts() {
    let mut server = SceneServer::start();
    server.named(0, "base", "a prompt", (NONE, false));
    // The server reuses the tokens before the activation, except for the last one.
    server.named(0, "invoked", "a prompt#$ and more", (INVOKED, false));
    // The server empties an activated slot for a request without adapters.
    assert_eq!(server.lost(), ["base evicted: AdaptersChanged, slot 0"]);
    server.named(0, "base", "a prompt", (NONE, true));
    // The reverse evicts nothing: the server does not empty a slot without adapters for "invoked". And
    // it never reuses tokens from the activation on, so their loss does not count.
    assert!(server.lost().is_empty());
    server.named(0, "other", "a promise", (NONE, false));
    assert_eq!(
        server.lost(),
        [
            "base evicted: Overwritten, slot 0",
            "invoked evicted: Overwritten, slot 0"
        ]
    );
}

#[test]
fn a_prompt_that_activates_an_adapter_at_its_second_token_is_never_cached() {
    let mut server = SceneServer::start();
    server.named(0, "first", "x#$ and more", (INVOKED, false));
    assert_eq!(server.lost(), ["first evicted: NeverCached, nowhere"]);
    // The server overlooks an activation at the first token.
    server.named(0, "nothing", "#$ and more", (INVOKED, false));
    assert!(server.lost().is_empty());
}

#[test]
fn if_the_prompt_does_not_activate_a_named_adapter_the_slot_works_without() {
    let mut server = SceneServer::start();
    server.named(0, "base", "a prompt", (NONE, false));
    let request = server.post_naming("invoked", 2);
    server.launch(0, request.task);
    server.evaluate(0, "a prompt and more", NONE, false, Compared::WhenNamed);
    server.answer(request);
    assert!(server.lost().is_empty());
    // Nor was the slot emptied, so a request without adapters finds all of it.
    server.named(0, "base again", "a prompt and more", (NONE, false));
    assert!(server.lost().is_empty());
}

#[test]
fn if_the_server_has_no_adapters_named_ones_change_nothing() {
    let mut server = SceneServer::start();
    for id in ["a", "b"] {
        let request = server.post_naming(id, 0);
        server.launch(0, request.task);
        let prompt = text("a prompt");
        let rest = server.reuse(0, &prompt);
        server.submit(0, &prompt[rest..], true);
        server.done();
        server.answer(request);
    }
    assert!(server.lost().is_empty());
    assert_eq!(server.ledger.live(), 2);
}

#[test]
fn adapters_of_a_draft_models_context_change_nothing() {
    let draft = ContextId(0x2000);
    let mut server = SceneServer::start();
    server.apply(Event::ContextCreated { context: draft });
    server.named(0, "a", "a prompt", (A, false));
    server.apply_adapters_in(draft, NONE, Compared::WhenNamed);
    server.named(0, "again", "a prompt", (A, false));
    assert!(server.lost().is_empty());
}

#[test]
fn a_batch_with_an_image_only_does_not_change_the_slots_adapters() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(1, "b", "b prompt", (B, false));
    let request = server.post_naming("image", 0);
    server.launch(0, request.task);
    server.reuse(0, &text("a prompt, image"));
    // Still under B: the server applies adapters after it has evaluated the image.
    server.submit(0, &[-7, -7], false);
    server.done();
    assert!(server.lost().is_empty());
    server.apply_adapters(A, Compared::WhenNamed);
    server.submit(0, &text("!"), true);
    server.done();
    assert!(server.lost().is_empty());
}

#[test]
fn on_servers_of_2025_a_request_is_cached_only_under_the_adapters_of_its_evaluation() {
    let mut server = SceneServer::start();
    server.prompt(0, "base", "a prompt");
    server.compared(1, "b", "a prompt", (B, false));
    assert!(server.lost().is_empty());
    server.compared(0, "a", "a prompt", (A, true));
    assert_eq!(server.lost(), ["base evicted: AdaptersChanged, slot 0"]);
    server.compared(0, "more", "a prompt and more", (A, false));
    assert!(server.lost().is_empty());
    server.compared(1, "base", "a prompt", (NONE, true));
    assert_eq!(server.lost(), ["b evicted: AdaptersChanged, slot 1"]);
}

#[test]
fn after_a_task_that_was_never_evaluated_the_slots_adapters_are_not_known() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    // It names nothing, and what the server applies then was never seen.
    let request = server.post("b");
    server.launch(0, request.task);
    server.answer(request);
    server.said();
    server.quiet(200);
    assert_eq!(
        server.lost(),
        [
            "a evicted: AdaptersChanged, slot 0",
            "b evicted: NeverCached, nowhere"
        ]
    );

    // If it was seen before, and is the same, the slot's adapters stay known.
    server.unnamed(0, "c", "a prompt", A);
    server.named(0, "d", "a prompt", (A, false));
    let request = server.post("e");
    server.launch(0, request.task);
    server.answer(request);
    server.quiet(200);
    server.named(0, "f", "a prompt", (A, false));
    assert_eq!(server.lost(), ["e evicted: NeverCached, nowhere"]);
}

#[test]
fn a_refused_task_leaves_the_slot_at_the_adapters_that_it_names() {
    let mut server = SceneServer::start();
    server.named(0, "base", "a prompt", (NONE, false));
    let request = server.post_naming("refused", 2);
    server.launch(0, request.task);
    server.answer(request);
    assert_eq!(server.lost(), [] as [&str; 0]);
    // The next task finds the slot activated, and so the server empties it.
    server.named(0, "other", "a prompt", (NONE, true));
    assert_eq!(
        server.lost(),
        [
            "base evicted: AdaptersChanged, slot 0",
            "refused evicted: NeverCached, nowhere"
        ]
    );
}

#[test]
fn a_task_whose_launch_was_not_seen_may_have_changed_any_slot() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(1, "b", "b prompt", (B, false));
    server.unnamed(2, "c", "c prompt", B);
    let untied = |server: &mut SceneServer, task, named: Option<i32>| {
        if let Some(index) = named {
            let scales = vec![(index, Scale::new(1.0))];
            server.apply(Event::NamedAdapters { task, scales });
        }
        server.apply(Event::Untied { task });
    };
    // Tasks that name none got B last, so slots under B are unchanged. The slot under A may have changed.
    untied(&mut server, 101, None);
    assert_eq!(server.lost(), ["a evicted: AdaptersChanged, slot 0"]);
    // A task that names A may have emptied any slot that worked under B.
    untied(&mut server, 102, Some(0));
    assert_eq!(
        server.lost(),
        [
            "b evicted: OutOfStep, slot 1",
            "c evicted: OutOfStep, slot 2"
        ]
    );
    // After the next removal and batch, the slot is known again.
    server.remove(1, 0, -1);
    server.named(1, "d", "b prompt", (B, false));
    assert!(server.lost().is_empty());
    assert_eq!(server.ledger.live(), 1);
}

#[test]
fn after_lost_events_adapters_are_unknown_until_they_are_reported_again() {
    let mut server = SceneServer::start();
    server.named(0, "a", "a prompt", (A, false));
    server.apply(Event::OutOfStep);
    server.said();
    // The applied adapters are reported again, before the first batch.
    server.remove(0, -1, -1);
    server.named(0, "b", "a prompt", (B, false));
    server.named(0, "b again", "a prompt", (B, false));
    assert!(server.lost().is_empty());

    server.apply(Event::OutOfStep);
    server.said();
    // They are not reported, although they should be: then nothing is claimed.
    let request = server.post_naming("c", 0);
    server.launch(0, request.task);
    server.remove(0, 0, -1);
    server.submit(0, &text("a prompt"), true);
    server.done();
    assert_eq!(server.lost(), ["c evicted: NeverCached, nowhere"]);
}
