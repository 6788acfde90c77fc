//! Slots whose content was written while the ledger was out of step.

use crate::NOTHING;
use crate::server::{ENGINE, SceneServer, entries, text};
use contextpilot_residency::{BufferId, Event};

fn restore(server: &mut SceneServer, sequence: i32, buffer: usize) {
    server.apply(Event::Restored {
        context: ENGINE,
        sequence,
        buffer: BufferId(buffer),
    });
}

/// A prompt that goes on from this position of a slot.
fn go_on(server: &mut SceneServer, slot: i32, id: &'static str, from: i32, rest: &str) {
    let request = server.post(id);
    server.launch(slot, request.task);
    server.remove(slot, from, -1);
    server.submit_entries(entries(slot, from, &text(rest), true));
    server.done();
    server.answer(request);
}

#[test]
fn what_was_written_unseen_is_known_by_its_place() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "in the slot");
    server.apply(Event::OutOfStep);
    server.said();
    // The slot holds 7 tokens that this one begins with, or else it would not go on there.
    go_on(&mut server, 0, "b", 7, "sun and more");
    assert_eq!(server.said(), ["b awaited", "b cached in slot 0"]);
    assert_eq!(server.ledger.held(0), 19);
    // Again, and on.
    go_on(&mut server, 0, "c", 18, "e and more");
    assert_eq!(server.said(), ["c awaited", "c cached in slot 0"]);
    // With another end, which overwrites both; the third agrees with less.
    go_on(&mut server, 0, "d", 10, "day");
    assert_eq!(
        server.said(),
        [
            "d awaited",
            "c evicted: Overwritten, slot 0",
            "b evicted: Overwritten, slot 0",
            "d cached in slot 0"
        ]
    );
    go_on(&mut server, 0, "e", 4, "other");
    assert_eq!(server.lost(), ["d evicted: Overwritten, slot 0"]);
    // Put by and taken back elsewhere, it is what it was.
    server.put_by(0, 0xb0);
    restore(&mut server, 1, 0xb0);
    server.free(0xb0);
    go_on(&mut server, 1, "f", 8, "r");
    assert_eq!(server.lost(), NOTHING);
    server.remove(1, -1, -1);
    server.quiet(1000);
    let lost = ["e evicted: Cleared, slot 1", "f evicted: Cleared, slot 1"];
    assert_eq!(server.lost(), lost);
}

/// Each slot's is its own, even where they are equal: that is not known.
#[test]
fn content_written_unseen_is_equal_to_no_other_slots_content() {
    let mut server = SceneServer::start();
    server.apply(Event::OutOfStep);
    go_on(&mut server, 0, "a", 5, "the same");
    go_on(&mut server, 1, "b", 5, "the same");
    server.said();
    // A slot that was emptied is known as ever.
    server.remove(0, -1, -1);
    server.prompt(0, "c", "12345the same");
    assert_eq!(
        server.said(),
        [
            "c awaited",
            "a evicted: Overwritten, slot 0",
            "c cached in slot 0"
        ]
    );
    server.apply(Event::Cleared { context: ENGINE });
    assert_eq!(
        server.lost(),
        ["b evicted: Cleared, slot 1", "c evicted: Cleared, slot 0"]
    );
    // What was put by before the gap comes back, and is unseen too.
    restore(&mut server, 1, 0xdead);
    go_on(&mut server, 1, "d", 3, "later");
    assert_eq!(server.said(), ["d awaited", "d cached in slot 1"]);
}

/// Where the ways back are not known either, nothing is claimed.
#[test]
fn a_prompt_behind_content_written_unseen_in_a_bounded_context_is_not_cached() {
    let mut server = SceneServer::start();
    server.apply(Event::Bounded {
        context: ENGINE,
        window: 100,
    });
    server.apply(Event::OutOfStep);
    go_on(&mut server, 0, "a", 5, "a prompt");
    assert_eq!(
        server.said(),
        ["a awaited", "a evicted: NeverCached, nowhere"]
    );
}
