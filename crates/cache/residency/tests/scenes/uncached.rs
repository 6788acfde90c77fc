//! Prompts that are not to be cached, on servers that forget them without a word to the engine:
//! their tokens stand in the slot, and none of them is found again.

use crate::server::{SceneServer, entries, text};
use contextpilot_residency::Event;

impl SceneServer {
    /// A request with `"cache_prompt": false` runs through, on the server of May 2025: it removes
    /// all that the slot holds, and remembers nothing of what it writes there.
    fn uncached(&mut self, slot: i32, id: &'static str, prompt: &str) {
        let request = self.post(id);
        self.apply(Event::Uncached { task: request.task });
        self.launch(slot, request.task);
        self.remove(slot, 0, -1);
        self.submit_entries(entries(slot, 0, &text(prompt), true));
        self.done();
        self.answer(request);
    }
}

#[test]
fn an_uncached_request_is_evicted_when_it_is_launched() {
    let mut server = SceneServer::start();
    server.uncached(0, "a", "a prompt");
    assert_eq!(
        server.said(),
        ["a awaited", "a evicted: NeverCached, nowhere"]
    );
    // Its tokens are there all the same.
    assert_eq!(server.ledger.held(0), 8);
    assert_eq!(server.ledger.live(), 0);
}

#[test]
fn an_uncached_request_overwrites_even_an_equal_prompt_in_its_slot() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "a prompt");
    server.said();
    server.uncached(0, "b", "a prompt");
    assert_eq!(
        server.said(),
        [
            "b awaited",
            "b evicted: NeverCached, nowhere",
            "a evicted: Overwritten, slot 0"
        ]
    );
}

#[test]
fn an_uncached_prompt_does_not_keep_an_equal_one_cached() {
    let mut server = SceneServer::start();
    server.uncached(0, "a", "a prompt");
    server.prompt(1, "b", "a prompt");
    server.said();
    server.prompt(1, "c", "something else");
    assert_eq!(
        server.said(),
        [
            "c awaited",
            "b evicted: Overwritten, slot 1",
            "c cached in slot 1"
        ]
    );
}

#[test]
fn the_request_after_an_uncached_one_is_cached() {
    let mut server = SceneServer::start();
    server.uncached(0, "a", "a prompt");
    server.said();
    server.prompt(0, "b", "a prompt");
    server.prompt(0, "c", "a prompt and more");
    assert_eq!(
        server.said(),
        [
            "b awaited",
            "b cached in slot 0",
            "c awaited",
            "c cached in slot 0"
        ]
    );
}

/// Where its tokens came in several batches, that server believes to hold zeros: a prompt that
/// begins with such a token goes on behind it.
#[test]
fn what_the_server_goes_on_from_all_the_same_is_known_again() {
    let mut server = SceneServer::start();
    server.uncached(0, "a", "a prompt");
    server.said();
    let request = server.post("b");
    server.launch(0, request.task);
    server.remove(0, 1, -1);
    server.submit_entries(entries(0, 1, &text(" prompt"), true));
    server.done();
    assert_eq!(server.said(), ["b awaited", "b cached in slot 0"]);
    server.prompt(0, "c", "other");
    assert_eq!(server.lost(), ["b evicted: Overwritten, slot 0"]);
}

#[test]
fn a_request_with_several_prompts_is_gone_once() {
    let mut server = SceneServer::start();
    let request = server.post("a");
    for task in [request.task, request.task + 1] {
        server.apply(Event::Uncached { task });
    }
    server.post_again(&request, request.task + 1);
    server.launch(0, request.task);
    server.launch(1, request.task + 1);
    for slot in [0, 1] {
        server.submit(slot, &text("a prompt"), true);
    }
    server.done();
    server.answer(request);
    assert_eq!(
        server.said(),
        ["a awaited", "a evicted: NeverCached, nowhere"]
    );
}

#[test]
fn uncached_tasks_that_never_get_a_slot_are_bounded() {
    let mut server = SceneServer::start();
    for task in 0..100_000 {
        server.apply(Event::Uncached { task });
    }
    let request = server.post("a");
    server.launch(0, request.task);
    server.submit(0, &text("a prompt"), true);
    server.done();
    assert_eq!(server.said(), ["a awaited", "a cached in slot 0"]);
}
