//! Memories that cannot go back to any position: sliding windows and recurrent states.

use contextpilot_residency::{BufferId, Event, Position, SequenceId};
use server::{ENGINE, Server, text};

#[allow(dead_code, reason = "each test program uses a part of it")]
mod server;

const NOTHING: [&str; 0] = [];

/// A server whose layers look back so many tokens; 0: a recurrent model.
fn bounded(window: u32) -> Server {
    let mut server = Server::start();
    server.apply(Event::Bounded {
        context: ENGINE,
        window,
    });
    server
}

/// A prompt in two batches with a checkpoint four tokens before its end, as
/// llama-server does it; `first` is what the memory reaches back to at each stage.
fn prompt(
    server: &mut Server,
    slot: SequenceId,
    (id, prompt): (&'static str, &str),
    first: [Position; 2],
    buffer: usize,
) {
    let request = server.post(id);
    server.launch(slot, request.task);
    let prompt = text(prompt);
    let kept = server.reuse(slot, &prompt);
    let (head, tail) = prompt.split_at(prompt.len() - 4);
    if kept < head.len() {
        server.submit(slot, &head[kept..], false);
        reaches(server, slot, first[0]);
        server.done();
    }
    server.apply(Event::Checkpointed {
        context: ENGINE,
        sequence: slot,
        buffer: BufferId(buffer),
        first: first[0],
        last: head.len() as Position - 1,
    });
    server.submit(slot, &tail[kept.saturating_sub(head.len())..], true);
    reaches(server, slot, first[1]);
    server.done();
    server.answer(request);
}

fn reaches(server: &mut Server, slot: SequenceId, first: Position) {
    server.apply(Event::Reaches {
        context: ENGINE,
        sequence: slot,
        first,
    });
}

fn generate(server: &mut Server, slot: SequenceId, token: &str, first: Position) {
    server.submit(slot, &text(token), true);
    reaches(server, slot, first);
    server.done();
}

fn long(letter: char) -> String {
    letter.to_string().repeat(100)
}

#[test]
fn a_checkpoint_near_the_end_is_enough() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    generate(&mut server, 0, "x", 100);
    assert_eq!(server.lost(), NOTHING);
}

#[test]
fn four_tokens_are_too_many_of_a_short_prompt() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", "a short prompt"), [9, 13], 0xc0);
    assert_eq!(server.lost(), ["a evicted: out_of_reach, slot 0"]);
}

#[test]
fn without_its_checkpoint_a_prompt_is_lost() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    server.free(0xc0);
    // The server frees checkpoints in the middle of its own doings.
    assert_eq!(server.lost(), NOTHING);
    server.quiet(10);
    assert_eq!(server.lost(), ["a evicted: out_of_reach, slot 0"]);
}

#[test]
fn inside_the_window_no_checkpoint_is_needed_beyond_it_one_is() {
    let mut server = bounded(50);
    // The first position the engine needs for a prompt of 100 is 49.
    prompt(&mut server, 0, ("a", &long('a')), [0, 48], 0xc0);
    server.free(0xc0);
    generate(&mut server, 0, "x", 48);
    assert_eq!(server.lost(), NOTHING);
    generate(&mut server, 0, "y", 49);
    assert_eq!(server.lost(), ["a evicted: out_of_reach, slot 0"]);
}

#[test]
fn a_longer_prompt_keeps_the_checkpoints_of_the_shorter_one() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    prompt(
        &mut server,
        0,
        ("b", &format!("{}{}", long('a'), long('b'))),
        [195, 199],
        0xc1,
    );
    assert_eq!(server.lost(), NOTHING);
    server.free(0xc0);
    generate(&mut server, 0, "x", 200);
    assert_eq!(server.lost(), ["a evicted: out_of_reach, slot 0"]);
}

#[test]
fn a_host_entry_takes_the_checkpoints_along_and_brings_them_back() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    server.put_by(0, 0xb0);
    // The slot's own checkpoint goes with its content; the entry has a copy.
    server.free(0xc0);
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING);
    server.apply(Event::Restored {
        context: ENGINE,
        sequence: 1,
        buffer: BufferId(0xb0),
    });
    reaches(&mut server, 1, 99);
    server.free(0xb0);
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING);
    server.remove(1, -1, -1);
    server.quiet(10);
    assert_eq!(server.lost(), ["a evicted: cleared, slot 1"]);
}

#[test]
fn another_slot_can_be_the_witness() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    prompt(&mut server, 1, ("b", &long('a')), [95, 99], 0xc1);
    server.free(0xc0);
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING);
    server.free(0xc1);
    server.quiet(10);
    assert_eq!(
        server.lost(),
        [
            "a evicted: out_of_reach, slot 1",
            "b evicted: out_of_reach, slot 1"
        ]
    );
}

#[test]
fn checkpoints_of_speculation_lead_back_to_no_prompt() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    server.apply(Event::Checkpointed {
        context: ENGINE,
        sequence: 0,
        buffer: BufferId(0xd0),
        first: 99,
        last: 99,
    });
    server.free(0xc0);
    generate(&mut server, 0, "x", 100);
    assert_eq!(server.lost(), ["a evicted: out_of_reach, slot 0"]);
}

#[test]
fn a_context_that_keeps_every_position_needs_no_way_back() {
    let mut server = Server::start();
    server.prompt(0, "a", "a short prompt");
    reaches(&mut server, 0, 1000);
    generate(&mut server, 0, "x", 1001);
    assert_eq!(server.lost(), NOTHING);
}
