//! Evaluations that fail, contexts, and media.

use crate::NOTHING;
use crate::server::{ENGINE, SceneServer, entries, text};
use contextpilot_residency::{ContextId, Event, media_token};

// ---- evaluations that fail ---------------------------------------------

#[test]
fn an_evaluation_for_which_there_was_no_room_is_tried_again_in_pieces() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "a long prompt");
    let request = server.post("b");
    server.launch(0, request.task);
    server.remove(0, -1, -1);
    server.submit(0, &text("a long prompt"), true);
    server.failed(&[(0, -1)]);
    assert_eq!(server.ledger.held(0), 0);
    server.submit(0, &text("a long"), false);
    server.done();
    server.submit(0, &text(" prompt"), true);
    server.done();
    let said = server.said();
    assert!(said.contains(&"b cached in slot 0".into()), "{said:?}");
    assert!(!said.iter().any(|s| s.contains("evicted")), "{said:?}");
}

#[test]
fn an_evaluation_that_ends_half_way_leaves_what_the_engine_has() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "half");
    let request = server.post("b");
    server.launch(0, request.task);
    let rest = server.reuse(0, &text("half and half"));
    server.submit(0, &text("half and half")[rest..], true);
    server.failed(&[(0, 7)]);
    server.answer(request);
    assert_eq!(server.ledger.held(0), 8);
    server.quiet(100);
    assert_eq!(server.lost(), ["b evicted: NeverCached, nowhere"]);
    assert_eq!(server.ledger.tokens(), 8);
}

#[test]
fn an_engine_that_holds_more_than_the_ledger_knows_evicts_the_slot() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "four");
    server.failed(&[(0, 99)]);
    assert_eq!(server.lost(), ["a evicted: OutOfStep, slot 0"]);
}

// ---- contexts ----------------------------------------------------------

#[test]
fn events_of_a_draft_context_are_ignored() {
    let mut server = SceneServer::start();
    let draft = ContextId(0x2000);
    server.apply(Event::ContextCreated { context: draft });
    server.prompt(0, "a", "the real one");
    server.apply(Event::Submitted {
        context: draft,
        entries: entries(0, 0, &text("draft"), true).into(),
    });
    server.apply(Event::Cleared { context: draft });
    server.apply(Event::ContextFreed { context: draft });
    assert_eq!((server.lost(), server.ledger.held(0)), (vec![], 12));
}

#[test]
fn a_context_that_is_freed_takes_all_along_in_slots_and_in_host_memory() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "in the slot");
    server.prompt(1, "b", "in host memory");
    server.put_by(1, 0xb0);
    server.apply(Event::ContextFreed { context: ENGINE });
    assert_eq!(
        server.lost(),
        [
            "a evicted: ContextFreed, slot 0",
            "b evicted: ContextFreed, host"
        ]
    );
    server.apply(Event::ContextCreated {
        context: ContextId(0x3000),
    });
    // The server frees its old host cache only now.
    server.free(0xb0);
    assert_eq!(server.lost(), [""; 0]);
}

#[test]
fn after_lost_events_every_live_id_is_evicted() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "in the slot");
    server.prompt(1, "b", "in host memory");
    server.put_by(1, 0xb0);
    let queued = server.post("c");
    server.said();
    server.apply(Event::OutOfStep);
    assert_eq!(server.lost().len(), 3);
    assert_eq!((server.ledger.live(), server.ledger.tokens()), (0, 0));
    server.answer(queued);
    assert_eq!(server.lost(), NOTHING, "told already");
}

// ---- media -------------------------------------------------------------

/// Text, an image of four rows, text.
fn with_image(image: u32) -> Vec<i32> {
    let mut tokens = text("look: ");
    tokens.extend((0..4).map(|row| media_token(image * 10 + row)));
    tokens.extend(text(" what?"));
    tokens
}

#[test]
fn different_images_never_match() {
    let mut server = SceneServer::start();
    for (slot, image, id) in [(0, 1, "a"), (1, 2, "b"), (2, 1, "c")] {
        let request = server.post(id);
        server.launch(slot, request.task);
        server.submit(slot, &with_image(image), true);
        server.done();
    }
    // "look: " is shared, the images and what follows are not.
    assert_eq!(server.ledger.tokens(), 6 + 2 * (4 + 6));
    for (slot, lost) in [(1, vec!["b"]), (0, vec![]), (2, vec!["a", "c"])] {
        server.remove(slot, -1, -1);
        server.quiet(1_000);
        let lost: Vec<_> = lost
            .iter()
            .map(|id| format!("{id} evicted: Cleared, slot {slot}"))
            .collect();
        assert_eq!(server.lost(), lost);
    }
}

/// A model with rotary positions in three dimensions: the rows of an image share
/// a position, and the text goes on after the image's longer side.
fn at_one_position(slot: i32, batches: &[(u32, u32)]) -> Vec<Vec<contextpilot_residency::Entry>> {
    batches
        .iter()
        .map(|&(from, to)| {
            (from..to)
                .flat_map(|row| entries(slot, 6, &[media_token(row)], false))
                .collect()
        })
        .collect()
}

#[test]
fn rows_of_an_image_that_share_a_position_are_one_token() {
    let mut server = SceneServer::start();
    let image = |server: &mut SceneServer, slot, cuts: &[(u32, u32)]| {
        server.submit_entries(entries(slot, 0, &text("look: "), false));
        server.done();
        for batch in at_one_position(slot, cuts) {
            server.submit_entries(batch);
            server.done();
        }
        assert_eq!(server.ledger.held(slot), 7);
        server.submit_entries(entries(slot, 6 + 8, &text("what?"), true));
        server.done();
    };
    let request = server.post("a");
    server.launch(0, request.task);
    image(&mut server, 0, &[(0, 64)]);
    assert_eq!(server.ledger.held(0), 6 + 8 + 5);
    // Cut in another way it is the same image; run again it does not overwrite itself.
    image(&mut server, 1, &[(0, 10), (10, 64)]);
    assert_eq!(server.ledger.tokens(), 6 + 8 + 5);
    server.remove(1, -1, -1);
    server.quiet(10);
    server.remove(0, -1, -1);
    image(&mut server, 0, &[(0, 64)]);
    assert_eq!(server.lost(), NOTHING);
    // One row fewer is another image.
    image(&mut server, 1, &[(0, 63)]);
    assert_eq!(server.ledger.tokens(), 6 + 2 * (8 + 5));
}

#[test]
fn rows_that_stand_for_the_whole_image_can_be_cut_anywhere() {
    let mut server = SceneServer::start();
    let image = |server: &mut SceneServer, rows: &[usize]| {
        server.submit_entries(entries(0, 0, &text("look: "), false));
        server.done();
        for &rows in rows {
            let same = entries(0, 6, &[media_token(7)], false);
            server.submit_entries(same.repeat(rows));
            server.done();
        }
        server.submit_entries(entries(0, 6 + 8, &text("what?"), true));
        server.done();
    };
    let request = server.post("a");
    server.launch(0, request.task);
    image(&mut server, &[64]);
    server.remove(0, -1, -1);
    image(&mut server, &[10, 54]);
    server.quiet(1_000);
    assert_eq!(server.lost(), NOTHING);
    assert_eq!(server.ledger.held(0), 6 + 8 + 5);
}

#[test]
fn a_gap_after_text_is_not_believed() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "text");
    server.submit_entries(entries(0, 9, &text("far"), true));
    assert_eq!(server.lost(), ["a evicted: OutOfStep, slot 0"]);
}

/// No image takes so many positions: something was not seen.
#[test]
fn a_gap_after_an_image_is_believed_up_to_a_bound() {
    for (gap, held) in [(1 << 16, 6 + (1 << 16) + 4), ((1 << 16) + 2, 0)] {
        let mut server = SceneServer::start();
        server.submit_entries(entries(0, 0, &text("look: "), false));
        server.submit_entries(entries(0, 6, &[media_token(7)], false));
        server.submit_entries(entries(0, 6 + gap, &text("what"), true));
        server.done();
        assert_eq!(server.ledger.held(0), held, "{gap}");
    }
}
