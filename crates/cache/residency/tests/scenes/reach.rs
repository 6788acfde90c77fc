//! Bounded contexts, which can go back to certain positions only: sliding windows and recurrent models.

use crate::NOTHING;
use crate::server::{ENGINE, SceneServer, text};
use contextpilot_residency::{
    BufferId, CacheEntry, EvaluationId, Event, Position, RequestId, RewindGeneration, Rewinding,
    SequenceId,
};

/// A server with a bounded context. `window`: how many tokens its layers look back; 0: a recurrent
/// model.
fn bounded(window: u32) -> SceneServer {
    let mut server = SceneServer::start();
    server.apply(Event::Bounded {
        context: ENGINE,
        window,
    });
    server
}

/// Such a server of 0.7.0, with these `--ctx-checkpoints` and `--checkpoint-min-step`.
fn late(window: u32, (checkpoints, min_step): (u32, u32)) -> SceneServer {
    let mut server = bounded(window);
    server.apply(Event::Rewinds {
        context: ENGINE,
        rules: Rewinding {
            generation: RewindGeneration::Late2026,
            checkpoints,
            min_step,
        },
    });
    server
}

/// A prompt in two batches with a checkpoint four tokens before its end, as llama-server does it.
/// `first`: the first position in memory after each batch.
fn prompt(
    server: &mut SceneServer,
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

fn reaches(server: &mut SceneServer, slot: SequenceId, first: Position) {
    server.apply(Event::Reaches {
        context: ENGINE,
        sequence: slot,
        first,
    });
}

fn generate(server: &mut SceneServer, slot: SequenceId, token: &str, first: Position) {
    server.submit(slot, &text(token), true);
    reaches(server, slot, first);
    server.done();
}

fn long(letter: char) -> String {
    letter.to_string().repeat(100)
}

#[test]
fn a_long_prompt_with_a_checkpoint_near_its_end_stays_cached() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    generate(&mut server, 0, "x", 100);
    assert_eq!(server.lost(), NOTHING);
}

#[test]
fn a_short_prompt_with_its_checkpoint_four_tokens_before_the_end_is_out_of_reach() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", "a short prompt"), [9, 13], 0xc0);
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

#[test]
fn when_its_only_checkpoint_is_freed_a_prompt_is_out_of_reach() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    server.free(0xc0);
    // The server may be about to change the slot, so the next batch or silence decides.
    assert_eq!(server.lost(), NOTHING);
    server.quiet(10);
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

#[test]
fn without_a_checkpoint_a_prompt_is_cached_until_memory_no_longer_has_its_window() {
    let mut server = bounded(50);
    // The first position the engine needs for a prompt of 100 is 49.
    prompt(&mut server, 0, ("a", &long('a')), [0, 48], 0xc0);
    server.free(0xc0);
    generate(&mut server, 0, "x", 48);
    assert_eq!(server.lost(), NOTHING);
    generate(&mut server, 0, "y", 49);
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

#[test]
fn a_prompt_that_is_continued_needs_its_own_checkpoint() {
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
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

#[test]
fn a_host_entry_keeps_copies_of_the_checkpoints_and_restores_them() {
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
    assert_eq!(server.lost(), ["a evicted: Cleared, slot 1"]);
}

#[test]
fn a_prompt_in_two_slots_is_cached_until_both_have_lost_their_checkpoints() {
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
            "a evicted: OutOfReach, slot 1",
            "b evicted: OutOfReach, slot 1"
        ]
    );
}

#[test]
fn a_checkpoint_made_during_generation_does_not_keep_the_prompt_cached() {
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
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

#[test]
fn a_context_that_is_not_bounded_needs_no_checkpoints() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "a short prompt");
    reaches(&mut server, 0, 1000);
    generate(&mut server, 0, "x", 1001);
    assert_eq!(server.lost(), NOTHING);
}

/// The conversation in a slot goes to host memory and into the next slot, so that the checkpoints there
/// are copies.
fn move_through_host(server: &mut SceneServer, from: SequenceId, held: &str, checkpoint: usize) {
    let entry = 0xb00 + from as usize;
    server.put_by(from, entry);
    server.free(checkpoint);
    server.restore(from + 1, entry, held);
    reaches(server, from + 1, held.len() as Position - 1);
    server.free(entry);
}

fn turns(letters: &str) -> String {
    letters.chars().map(long).collect()
}

/// Three turns of a conversation. Before each but the first it goes through host memory.
fn three_turns(server: &mut SceneServer) {
    prompt(server, 0, ("a", &turns("a")), [95, 99], 0xc0);
    move_through_host(server, 0, &turns("a"), 0xc0);
    prompt(server, 1, ("b", &turns("ab")), [195, 199], 0xc1);
    move_through_host(server, 1, &turns("ab"), 0xc1);
    prompt(server, 2, ("c", &turns("abc")), [295, 299], 0xc2);
    server.quiet(10);
}

#[test]
fn with_room_for_all_the_copies_of_checkpoints_stay() {
    let mut server = late(0, (4, 100));
    three_turns(&mut server);
    assert_eq!(server.lost(), NOTHING);
}

#[test]
fn without_room_copies_go_that_are_too_close_to_an_earlier_checkpoint() {
    let mut server = late(0, (3, 100));
    three_turns(&mut server);
    assert_eq!(server.lost(), ["b evicted: OutOfReach, slot 1"]);
}

#[test]
fn without_room_and_far_apart_the_oldest_copy_goes() {
    let mut server = late(0, (2, 99));
    three_turns(&mut server);
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

/// There is room for all, but the server has freed a checkpoint: it has other rules than we think.
#[test]
fn a_server_with_other_rules_is_not_believed_to_have_copies() {
    let mut server = late(0, (32, 8192));
    prompt(&mut server, 0, ("a", &turns("a")), [95, 99], 0xc0);
    move_through_host(&mut server, 0, &turns("a"), 0xc0);
    prompt(&mut server, 1, ("b", &turns("ab")), [195, 199], 0xc1);
    assert_eq!(server.lost(), NOTHING);
    server.free(0xc1);
    prompt(&mut server, 1, ("c", &turns("abc")), [295, 299], 0xc2);
    server.quiet(10);
    assert_eq!(
        server.lost(),
        [
            "a evicted: OutOfReach, slot 0",
            "b evicted: OutOfReach, slot 1"
        ]
    );
}

#[test]
fn an_emptied_slot_keeps_no_copy_of_a_checkpoint_at_its_very_beginning() {
    let mut server = bounded(0);
    // The checkpoint is behind two tokens.
    prompt(&mut server, 0, ("a", "prompt"), [1, 5], 0xc0);
    server.copy(0, 1);
    server.remove(1, -1, -1);
    server.prompt(1, "b", "another");
    reaches(&mut server, 1, 6);
    assert_eq!(server.ledger.reusable_of(CacheEntry::Slot(1)), 0);
}

#[test]
fn a_host_entry_has_the_window_at_its_end_only() {
    let mut server = late(50, (32, 8192));
    prompt(&mut server, 0, ("a", &long('a')), [0, 0], 0xc0);
    server.free(0xc0);
    for _ in 0..60 {
        generate(&mut server, 0, "x", 0);
    }
    assert_eq!(server.lost(), NOTHING);
    server.put_by(0, 0xb0);
    server.quiet(10);
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

#[test]
fn a_host_entry_whose_window_begins_early_enough_serves_a_prompt() {
    let mut server = late(50, (32, 8192));
    prompt(&mut server, 0, ("a", &long('a')), [0, 0], 0xc0);
    server.free(0xc0);
    server.put_by(0, 0xb0);
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING);
}

#[test]
fn a_checkpoint_at_the_very_end_of_a_prompt_serves_it() {
    // The second prompt begins with the first, and its memory no longer has the window of that.
    let two = |mut server: SceneServer| {
        prompt(&mut server, 0, ("a", &long('a')), [0, 0], 0xc0);
        let second = format!("{}bbbb", long('a'));
        prompt(&mut server, 0, ("b", &second), [50, 54], 0xc1);
        server.free(0xc0);
        generate(&mut server, 0, "x", 54);
        server.lost()
    };
    assert_eq!(two(late(50, (32, 8192))), NOTHING);
    assert_eq!(two(bounded(50)), ["a evicted: OutOfReach, slot 0"]);
}

fn load(
    server: &mut SceneServer,
    held: &str,
    first: Position,
    checkpoints: &[(u32, Position, Position)],
) {
    server.apply(Event::Replaced {
        context: ENGINE,
        sequence: 0,
        tokens: text(held),
    });
    reaches(server, 0, first);
    for &(tokens, first, last) in checkpoints {
        server.apply(Event::CheckpointLoaded {
            context: ENGINE,
            sequence: 0,
            tokens,
            first,
            last,
        });
    }
}

#[test]
fn a_prompt_stays_cached_when_its_slot_is_restored_with_its_checkpoints() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    load(&mut server, &long('a'), 99, &[(96, 95, 95)]);
    server.free(0xc0);
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING);
}

#[test]
fn a_prompt_is_out_of_reach_when_its_slot_is_restored_without_checkpoints() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    load(&mut server, &long('a'), 99, &[]);
    server.free(0xc0);
    server.quiet(10);
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

#[test]
fn a_prompt_stays_cached_when_the_server_keeps_the_checkpoints_of_a_slot_that_it_restores() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    load(&mut server, &long('a'), 99, &[]);
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING);
    server.free(0xc0);
    server.quiet(10);
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

/// A prompt of 100 tokens, of which the first so many are equal for all.
fn like(equal: usize, letter: char) -> String {
    let rest = letter.to_string().repeat(100 - equal);
    "a".repeat(equal) + &rest
}

#[test]
fn a_prompt_stays_cached_while_its_slot_holds_nine_tenths_of_it() {
    let mut server = bounded(50);
    prompt(&mut server, 0, ("a", &like(100, 'a')), [0, 0], 0xc0);
    prompt(&mut server, 0, ("b", &like(95, 'b')), [0, 0], 0xc1);
    prompt(&mut server, 0, ("c", &like(90, 'c')), [0, 0], 0xc2);
    assert_eq!(server.lost(), NOTHING);
    prompt(&mut server, 0, ("d", &like(89, 'd')), [0, 0], 0xc3);
    assert_eq!(
        server.lost(),
        [
            "a evicted: Overwritten, slot 0",
            "b evicted: Overwritten, slot 0",
            "c evicted: Overwritten, slot 0"
        ]
    );
}

#[test]
fn a_short_prompt_stays_cached_while_all_but_its_last_token_is_held() {
    let mut server = bounded(2);
    prompt(&mut server, 0, ("a", "seven b"), [0, 0], 0xc0);
    prompt(&mut server, 0, ("b", "seven c"), [0, 0], 0xc1);
    assert_eq!(server.lost(), NOTHING);
    prompt(&mut server, 0, ("c", "seven_c"), [0, 0], 0xc2);
    assert_eq!(
        server.lost(),
        [
            "a evicted: Overwritten, slot 0",
            "b evicted: Overwritten, slot 0"
        ]
    );
}

/// A recurrent model goes on at the end of what it holds, without a checkpoint.
#[test]
fn the_beginning_of_a_prompt_serves_it_if_nine_tenths_of_it_are_held() {
    let mut server = bounded(0);
    prompt(&mut server, 0, ("a", &long('a')), [95, 99], 0xc0);
    prompt(
        &mut server,
        0,
        ("b", &(long('a') + "bbbbb")),
        [100, 104],
        0xc1,
    );
    prompt(&mut server, 0, ("c", &long('a')), [95, 99], 0xc2);
    server.free(0xc1);
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING);
    server.free(0xc0);
    server.free(0xc2);
    generate(&mut server, 0, "x", 100);
    // "a" and "c" cannot do without a checkpoint either.
    assert_eq!(
        server.lost(),
        [
            "a evicted: OutOfReach, slot 0",
            "b evicted: OutOfReach, slot 0",
            "c evicted: OutOfReach, slot 0"
        ]
    );
}

#[test]
fn how_much_of_a_prompt_is_held_decides_how_far_memory_must_reach_back() {
    let mut server = bounded(50);
    prompt(&mut server, 0, ("a", &like(100, 'a')), [0, 0], 0xc0);
    prompt(&mut server, 0, ("b", &like(95, 'b')), [0, 0], 0xc1);
    // The first one comes back, under another id.
    prompt(&mut server, 0, ("c", &like(100, 'a')), [0, 48], 0xc2);
    for checkpoint in [0xc0, 0xc1, 0xc2] {
        server.free(checkpoint);
    }
    // From position 48 on all of "a" can be reused, but not the 95 tokens of "b" that are held.
    generate(&mut server, 0, "x", 48);
    assert_eq!(server.lost(), ["b evicted: OutOfReach, slot 0"]);
}

#[test]
fn a_prompt_that_is_held_in_part_is_shown_as_it_was_sent() {
    let mut server = bounded(50);
    prompt(&mut server, 0, ("a", &like(100, 'a')), [0, 0], 0xc0);
    let ends = |server: &SceneServer| {
        let branches = server.ledger.shape(&[], 10);
        let ends = branches.iter().filter(|branch| branch.prompts_total > 0);
        ends.map(|branch| (branch.to, branch.prompts_total))
            .collect::<Vec<_>>()
    };
    assert_eq!(ends(&server), [(99, 1)]);
    prompt(&mut server, 0, ("b", &like(95, 'b')), [0, 0], 0xc1);
    assert_eq!(server.ledger.requests_in(0, 10), [&RequestId::from("b")]);
    assert_eq!(ends(&server), [(99, 1)]);
    let beginning = |id| server.ledger.beginning_of(id, 100);
    assert_eq!(beginning("a"), Some(text(&like(100, 'a'))));
    assert_eq!(beginning("b"), Some(text(&like(95, 'b'))));
    let found = server.ledger.whereabouts("a").expect("it is live");
    assert_eq!(found.sequences, [0]);
}

/// Where launches cannot be seen, a request claims an evaluation only when it is answered.
#[test]
fn a_prompt_whose_evaluation_is_claimed_later_needs_its_checkpoint_as_well() {
    let mut server = bounded(0);
    let (evaluation, request) = (EvaluationId(1), server.post("a"));
    server.apply(Event::LaunchedUnclaimed {
        sequence: 0,
        evaluation,
        likely: request.task,
    });
    server.submit(0, &text(&long('a'))[..96], false);
    reaches(&mut server, 0, 95);
    server.done();
    server.apply(Event::Checkpointed {
        context: ENGINE,
        sequence: 0,
        buffer: BufferId(0xc0),
        first: 95,
        last: 95,
    });
    server.submit(0, &text(&long('a'))[96..], true);
    reaches(&mut server, 0, 99);
    server.done();
    let task = request.task;
    server.apply(Event::Claimed { evaluation, task });
    server.apply(Event::ClaimsClosed { evaluation });
    server.answer(request);
    assert_eq!(server.said(), ["a awaited", "a cached in slot 0"]);
    generate(&mut server, 0, "x", 100);
    assert_eq!(server.lost(), NOTHING);
    server.free(0xc0);
    server.quiet(10);
    assert_eq!(server.lost(), ["a evicted: OutOfReach, slot 0"]);
}

/// A server of 0.7.0 with `--swa-full`, whose model has windows of 16 tokens.
fn whole() -> SceneServer {
    let mut server = SceneServer::start();
    server.apply(Event::WholeWindows {
        context: ENGINE,
        window: 16,
    });
    server.apply(Event::Rewinds {
        context: ENGINE,
        rules: Rewinding {
            generation: RewindGeneration::Late2026,
            checkpoints: 32,
            min_step: 8192,
        },
    });
    server
}

#[test]
fn whole_windows_go_back_to_any_position_that_the_slot_evaluated() {
    let mut server = whole();
    server.prompt(0, "short", "a short one");
    server.prompt(0, "long", &format!("a short one{}", long('a')));
    server.generate(0, "an answer");
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING);
    server.prompt(0, "branch", "a short one again");
    server.quiet(10);
    assert_eq!(server.lost(), ["long evicted: Overwritten, slot 0"]);
}

/// Of what was saved, the server has only the window at the end: 16 of 100 tokens.
#[test]
fn whole_windows_that_were_saved_have_only_the_last_window() {
    let mut server = whole();
    let head = "a".repeat(50);
    let all = format!("{head}{}", "b".repeat(50));
    server.prompt(0, "head", &head);
    server.prompt(0, "all", &all);
    server.save(0, 0xb0);
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING, "the slot goes back to both");
    server.remove(0, 0, -1);
    server.prompt(0, "other", "another prompt");
    server.quiet(10);
    assert_eq!(server.lost(), ["head evicted: OutOfReach, slot 0"]);
    // So it is with the slot that it was restored into.
    server.restore(0, 0xb0, &all);
    server.free(0xb0);
    server.quiet(10);
    assert_eq!(server.lost(), ["other evicted: Overwritten, slot 0"]);
    // What is evaluated from the beginning on can go back again.
    server.remove(0, 0, -1);
    server.prompt(0, "again", &all);
    server.prompt(0, "begin", &head);
    server.quiet(10);
    assert_eq!(
        server.lost(),
        [
            "again evicted: Overwritten, slot 0",
            "all evicted: Overwritten, slot 0"
        ]
    );
}
