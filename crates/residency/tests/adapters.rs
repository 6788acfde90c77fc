//! LoRA adapters: the server looks for tokens, but empties a slot that worked under others than
//! those that a request names (2026), or than those that are applied to it (2025).

use contextpilot_residency::{Adapter, Compared, ContextId, Event, Scale, Token};
use server::{ENGINE, Server, text};

#[allow(dead_code, reason = "each test program uses a part of it")]
mod server;

/// How strongly each adapter of the server's is applied.
type Scales = [f32; 3];

const NONE: Scales = [0.0, 0.0, 0.0];
const A: Scales = [1.0, 0.0, 0.0];
const WEAK_A: Scales = [0.5, 0.0, 0.0];
const B: Scales = [0.0, 1.0, 0.0];
/// Activated by the tokens `#$`.
const INVOKED: Scales = [0.0, 0.0, 1.0];

fn adapters(scales: Scales) -> Vec<Adapter> {
    let invocations: [&[Token]; 3] = [&[], &[], &[35, 36]];
    let one = |(address, (scale, invocation)): (usize, (f32, &[Token]))| Adapter {
        address,
        scale: Scale::new(scale),
        invocation: invocation.into(),
    };
    let each = scales.into_iter().zip(invocations);
    (100..).zip(each).map(one).collect()
}

impl Server {
    fn force(&mut self, scales: Scales, compared: Compared) {
        self.force_in(ENGINE, scales, compared);
    }

    fn force_in(&mut self, context: ContextId, scales: Scales, compared: Compared) {
        self.apply(Event::Adapters {
            context,
            adapters: adapters(scales),
            compared,
        });
    }

    /// A request that names adapters comes to a slot. `emptied`: the server finds that they are
    /// others than the slot's.
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

    /// One that names none; `scales` are the server's own.
    fn unnamed(&mut self, slot: i32, id: &'static str, prompt: &str, scales: Scales) {
        let request = self.post(id);
        self.launch(slot, request.task);
        self.evaluate(slot, prompt, scales, false, Compared::WhenNamed);
        self.answer(request);
    }

    /// A request to a server of 2025.
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
        let rest = match emptied {
            true => {
                self.remove(slot, 0, -1);
                0
            }
            false => self.reuse(slot, &prompt),
        };
        self.force(scales, compared);
        self.submit(slot, &prompt[rest..], true);
        self.done();
    }
}

#[test]
fn an_equal_prompt_under_other_adapters_takes_the_place_of_the_first() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(0, "again", "a prompt", (A, false));
    assert!(server.lost().is_empty());
    server.named(0, "b", "a prompt", (B, true));
    assert_eq!(
        server.lost(),
        [
            "a evicted: adapters_changed, slot 0",
            "again evicted: adapters_changed, slot 0"
        ]
    );
    server.named(0, "weak", "a prompt", (WEAK_A, true));
    assert_eq!(server.lost(), ["b evicted: adapters_changed, slot 0"]);
}

#[test]
fn the_slot_is_empty_from_the_launch_on() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    let request = server.post("b");
    server.apply(Event::NamedAdapters {
        task: request.task,
        scales: vec![(1, Scale::new(1.0))],
    });
    server.said();
    server.launch(0, request.task);
    assert_eq!(server.lost(), ["a evicted: adapters_changed, slot 0"]);
    // The client goes away before anything is evaluated: the tokens are not found again.
    server.answer(request);
    server.quiet(200);
    assert_eq!(server.ledger.held(0), 0);
}

#[test]
fn requests_that_name_nothing_take_whatever_is_there() {
    let mut server = Server::start();
    server.unnamed(0, "none", "a prompt", NONE);
    server.named(0, "a", "a prompt", (A, true));
    // The server would use the KV of "a" for it, as it does not compare.
    assert!(server.lost().is_empty());
    // What is applied without being named takes the slot from "a", but not from "none".
    server.unnamed(0, "none again", "a prompt", NONE);
    assert_eq!(server.lost(), ["a evicted: adapters_changed, slot 0"]);
    server.unnamed(0, "all", "a prompt", B);
    assert!(server.lost().is_empty());
    server.prompt(0, "other", "another one");
    assert_eq!(server.lost().len(), 3);
}

#[test]
fn each_slot_has_its_own() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(1, "b", "a prompt", (B, false));
    assert!(server.lost().is_empty());
    assert_eq!(server.ledger.requests_in(0).len(), 1);
    let found = server.ledger.whereabouts("b").expect("it is live");
    assert_eq!(found.sequences, [1]);
    server.named(0, "c", "something else", (A, false));
    assert_eq!(server.lost(), ["a evicted: overwritten, slot 0"]);
    server.remove(1, -1, -1);
    server.quiet(50);
    assert_eq!(server.lost(), ["b evicted: cleared, slot 1"]);
}

#[test]
fn a_host_entry_is_for_any_adapters() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    server.put_by(0, 1);
    server.named(0, "b", "something", (B, true));
    // Another slot, or this one after a request for A, would load it and use it.
    assert!(server.lost().is_empty());
    server.free(1);
    assert_eq!(server.lost(), ["a evicted: dropped_from_host, host"]);
}

#[test]
fn what_is_loaded_for_a_request_waits_for_its_adapters() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    server.put_by(0, 1);
    server.named(0, "b", "something", (B, true));
    server.said();
    // A prompt that goes on from it, for A: the slot worked under B, so the server loads the entry
    // and throws it away. But what it then evaluates is the same.
    server.restore(0, 1, "a prompt");
    server.free(1);
    server.named(0, "more", "a prompt and more", (A, true));
    assert_eq!(server.lost(), ["b evicted: overwritten, slot 0"]);
    // For B, it is used.
    server.put_by(0, 2);
    server.restore(0, 2, "a prompt and more");
    server.free(2);
    server.named(0, "bad", "a prompt", (B, true));
    assert_eq!(
        server.lost(),
        [
            "a evicted: adapters_changed, slot 0",
            "more evicted: adapters_changed, slot 0"
        ]
    );
}

#[test]
fn what_was_loaded_for_nothing_stays_as_it_was() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    server.put_by(0, 1);
    server.named(0, "b", "something", (B, true));
    server.restore(0, 1, "a prompt");
    server.free(1);
    server.said();
    assert!(server.ledger.awaits_silence());
    server.quiet(200);
    assert_eq!(server.lost(), ["a evicted: adapters_changed, slot 0"]);
    assert!(!server.ledger.awaits_silence());
}

#[test]
fn a_copy_works_under_the_same() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(1, "b", "something", (B, false));
    server.copy(0, 1);
    assert_eq!(server.lost(), ["b evicted: overwritten, slot 1"]);
    server.prompt(0, "c", "another");
    assert!(server.lost().is_empty(), "the copy serves a");
}

#[test]
fn an_adapter_that_is_activated_spares_what_comes_before() {
    let mut server = Server::start();
    server.named(0, "base", "a prompt", (NONE, false));
    // Evaluated from one token before the activation on, the rest taken as it is.
    server.named(0, "invoked", "a prompt#$ and more", (INVOKED, false));
    // The server empties an activated slot for a request without adapters.
    assert_eq!(server.lost(), ["base evicted: adapters_changed, slot 0"]);
    server.named(0, "base", "a prompt", (NONE, true));
    // But not the other way round. What follows the activation is never used again, so that
    // nothing of use is lost by losing it.
    assert!(server.lost().is_empty());
    server.named(0, "other", "a promise", (NONE, false));
    assert_eq!(
        server.lost(),
        [
            "base evicted: overwritten, slot 0",
            "invoked evicted: overwritten, slot 0"
        ]
    );
}

#[test]
fn an_activation_at_the_front_leaves_nothing_to_use_again() {
    let mut server = Server::start();
    server.named(0, "first", "x#$ and more", (INVOKED, false));
    assert_eq!(server.lost(), ["first evicted: never_cached, nowhere"]);
    // With nothing before it, the server forgets to look.
    server.named(0, "nothing", "#$ and more", (INVOKED, false));
    assert!(server.lost().is_empty());
}

#[test]
fn an_activation_that_is_missing_applies_nothing() {
    let mut server = Server::start();
    server.named(0, "base", "a prompt", (NONE, false));
    let request = server.post("invoked");
    server.apply(Event::NamedAdapters {
        task: request.task,
        scales: vec![(2, Scale::new(1.0))],
    });
    server.launch(0, request.task);
    server.evaluate(0, "a prompt and more", NONE, false, Compared::WhenNamed);
    server.answer(request);
    assert!(server.lost().is_empty());
    // Nor was the slot emptied, so a request without adapters finds all of it.
    server.named(0, "base again", "a prompt and more", (NONE, false));
    assert!(server.lost().is_empty());
}

#[test]
fn without_adapters_in_the_server_names_mean_nothing() {
    let mut server = Server::start();
    for id in ["a", "b"] {
        let request = server.post(id);
        server.apply(Event::NamedAdapters {
            task: request.task,
            scales: vec![(0, Scale::new(1.0))],
        });
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
fn a_draft_model_has_its_own() {
    let draft = ContextId(0x2000);
    let mut server = Server::start();
    server.apply(Event::ContextCreated { context: draft });
    server.named(0, "a", "a prompt", (A, false));
    server.force_in(draft, NONE, Compared::WhenNamed);
    server.named(0, "again", "a prompt", (A, false));
    assert!(server.lost().is_empty());
}

#[test]
fn an_image_is_evaluated_under_what_was_applied_before() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(1, "b", "b prompt", (B, false));
    let request = server.post("image");
    server.apply(Event::NamedAdapters {
        task: request.task,
        scales: vec![(0, Scale::new(1.0))],
    });
    server.launch(0, request.task);
    server.reuse(0, &text("a prompt, image"));
    // Still under B: the server applies adapters after it has evaluated the image.
    server.submit(0, &[-7, -7], false);
    server.done();
    assert!(server.lost().is_empty());
    server.force(A, Compared::WhenNamed);
    server.submit(0, &text("!"), true);
    server.done();
    assert!(server.lost().is_empty());
}

#[test]
fn servers_of_2025_compare_every_request() {
    let mut server = Server::start();
    server.prompt(0, "base", "a prompt");
    server.compared(1, "b", "a prompt", (B, false));
    assert!(server.lost().is_empty());
    server.compared(0, "a", "a prompt", (A, true));
    assert_eq!(server.lost(), ["base evicted: adapters_changed, slot 0"]);
    server.compared(0, "more", "a prompt and more", (A, false));
    assert!(server.lost().is_empty());
    server.compared(1, "base", "a prompt", (NONE, true));
    assert_eq!(server.lost(), ["b evicted: adapters_changed, slot 1"]);
}

#[test]
fn a_task_that_was_never_evaluated_leaves_nobody_sure() {
    let mut server = Server::start();
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
            "a evicted: adapters_changed, slot 0",
            "b evicted: never_cached, nowhere"
        ]
    );

    // Where it was seen, and is the same, nothing changes.
    server.unnamed(0, "c", "a prompt", A);
    server.named(0, "d", "a prompt", (A, false));
    let request = server.post("e");
    server.launch(0, request.task);
    server.answer(request);
    server.quiet(200);
    server.named(0, "f", "a prompt", (A, false));
    assert_eq!(server.lost(), ["e evicted: never_cached, nowhere"]);
}

#[test]
fn a_refused_task_leaves_the_slot_at_what_it_names() {
    let mut server = Server::start();
    server.named(0, "base", "a prompt", (NONE, false));
    let request = server.post("refused");
    server.apply(Event::NamedAdapters {
        task: request.task,
        scales: vec![(2, Scale::new(1.0))],
    });
    server.launch(0, request.task);
    server.answer(request);
    assert_eq!(server.lost(), [] as [&str; 0]);
    // The next task finds the slot activated, and so the server empties it.
    server.named(0, "other", "a prompt", (NONE, true));
    assert_eq!(
        server.lost(),
        [
            "base evicted: adapters_changed, slot 0",
            "refused evicted: never_cached, nowhere"
        ]
    );
}

#[test]
fn a_task_that_nobody_saw_launched_may_be_anywhere() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    server.named(1, "b", "b prompt", (B, false));
    server.unnamed(2, "c", "c prompt", B);
    let untied = |server: &mut Server, task, named: Option<i32>| {
        if let Some(index) = named {
            let scales = vec![(index, Scale::new(1.0))];
            server.apply(Event::NamedAdapters { task, scales });
        }
        server.apply(Event::Untied { task });
    };
    // Of the slots that worked under B, none is changed by another task for it.
    untied(&mut server, 101, None);
    assert_eq!(server.lost(), ["a evicted: adapters_changed, slot 0"]);
    // One that names others empties a slot.
    untied(&mut server, 102, Some(0));
    assert_eq!(
        server.lost(),
        [
            "b evicted: out_of_step, slot 1",
            "c evicted: out_of_step, slot 2"
        ]
    );
    // What follows is known again.
    server.remove(1, 0, -1);
    server.named(1, "d", "b prompt", (B, false));
    assert!(server.lost().is_empty());
    assert_eq!(server.ledger.live(), 1);
}

#[test]
fn what_was_lost_is_not_taken_for_no_adapters() {
    let mut server = Server::start();
    server.named(0, "a", "a prompt", (A, false));
    server.apply(Event::OutOfStep);
    server.said();
    // Named before, launched after; what is applied is said again, with the first batch.
    server.remove(0, -1, -1);
    server.named(0, "b", "a prompt", (B, false));
    server.named(0, "b again", "a prompt", (B, false));
    assert!(server.lost().is_empty());

    server.apply(Event::OutOfStep);
    server.said();
    // Nothing is said, against all promises: then nothing is claimed.
    let request = server.post("c");
    server.apply(Event::NamedAdapters {
        task: request.task,
        scales: vec![(0, Scale::new(1.0))],
    });
    server.launch(0, request.task);
    server.remove(0, 0, -1);
    server.submit(0, &text("a prompt"), true);
    server.done();
    assert_eq!(server.lost(), ["c evicted: never_cached, nowhere"]);
}
