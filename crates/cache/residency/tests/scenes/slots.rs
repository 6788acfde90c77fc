//! What slots and the host prompt cache hold, and when it is lost.

use crate::NOTHING;
use crate::server::{ENGINE, SceneServer, entries, text};
use contextpilot_residency::{BufferId, CacheEntry, Event};

// ---- prompts in slots --------------------------------------------------

#[test]
fn a_prompt_is_cached_once_it_has_been_evaluated() {
    let mut server = SceneServer::start();
    let request = server.post("a");
    server.launch(0, request.task);
    server.submit(0, &text("hel"), false);
    server.done();
    server.submit(0, &text("lo"), true);
    assert_eq!(server.said(), ["a awaited"]);
    server.done();
    assert_eq!(server.said(), ["a cached in slot 0"]);
    assert_eq!((server.ledger.held(0), server.ledger.tokens()), (5, 5));
}

#[test]
fn a_prompt_is_evicted_when_the_first_token_that_disagrees_is_submitted() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "the cat sat");
    let request = server.post("b");
    server.launch(0, request.task);
    let rest = server.reuse(0, &text("the dog sat"));
    assert_eq!(
        (rest, server.lost()),
        (4, vec![]),
        "removal decides nothing"
    );
    server.submit(0, &text("dog"), false);
    assert_eq!(server.lost(), ["a evicted: Overwritten, slot 0"]);
}

#[test]
fn a_full_hit_loses_nothing() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "again and again");
    server.generate(0, " and on");
    server.prompt(0, "b", "again and again");
    assert_eq!(server.lost(), NOTHING);
    assert_eq!(server.ledger.live(), 2);
    // The answer to the first has gone with the end of the second prompt.
    assert_eq!(server.ledger.tokens(), "again and again".len());
}

#[test]
fn what_has_changed_since_somebody_looked_is_known() {
    let mut server = SceneServer::start();
    let slot = CacheEntry::Slot(0);
    assert_eq!(server.ledger.take_unchanged(slot), 0, "it holds nothing");
    server.prompt(0, "a", "the cat sat");
    assert_eq!(server.ledger.take_unchanged(slot), 0, "nobody has looked");
    assert_eq!(server.ledger.take_unchanged(slot), 11);
    server.prompt(0, "b", "the dog sat on it");
    assert_eq!(server.ledger.take_unchanged(slot), 4);
}

#[test]
fn an_equal_prompt_evaluated_without_the_cache_evicts_nothing() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "all of it again");
    let request = server.post("b");
    server.launch(0, request.task);
    server.remove(0, -1, -1);
    for (part, ends) in [("all ", false), ("of it", false), (" again", true)] {
        server.submit(0, &text(part), ends);
        server.quiet(50);
        server.done();
    }
    assert_eq!(server.lost(), NOTHING);
    assert_eq!(server.ledger.live(), 2);
}

#[test]
fn another_prompt_evaluated_without_the_cache_evicts_the_first() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "all of it again");
    server.remove(0, -1, -1);
    server.submit(0, &text("all "), false);
    server.done();
    assert_eq!(server.lost(), NOTHING);
    server.submit(0, &text("is gone"), false);
    assert_eq!(server.lost(), ["a evicted: Overwritten, slot 0"]);
}

#[test]
fn one_prompt_can_have_many_ids() {
    let mut server = SceneServer::start();
    for id in ["a", "b", "c"] {
        server.prompt(0, id, "the same prompt");
    }
    assert_eq!((server.lost(), server.ledger.live()), (vec![], 3));
    server.prompt(0, "d", "another");
    assert_eq!(
        server.lost(),
        ["a", "b", "c"].map(|id| format!("{id} evicted: Overwritten, slot 0"))
    );
}

#[test]
fn prompts_that_differ_in_their_last_token_only_keep_each_other() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "question 1");
    server.prompt(0, "b", "question 2");
    assert_eq!(server.lost(), NOTHING);
    server.prompt(0, "c", "question");
    assert_eq!(
        server.lost(),
        ["a", "b"].map(|id| format!("{id} evicted: Overwritten, slot 0"))
    );
}

#[test]
fn a_conversation_grows_without_losing_its_turns() {
    let mut server = SceneServer::start();
    let (mut talk, ids) = (String::from("you are helpful."), ["a", "b", "c", "d"]);
    for id in ids {
        talk.push_str(" and then?");
        server.prompt(0, id, &talk);
        server.generate(0, " this.");
        talk.push_str(" this.");
    }
    assert_eq!((server.lost(), server.ledger.live()), (vec![], 4));
    // Back to the second turn: the later ones are lost, latest included.
    server.prompt(0, "e", "you are helpful. and then? this. and never more");
    assert_eq!(
        server.lost(),
        ["b", "c", "d"].map(|id| format!("{id} evicted: Overwritten, slot 0"))
    );
}

#[test]
fn a_prompt_in_two_slots_is_lost_with_the_last() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "shared");
    server.prompt(1, "b", "shared");
    server.prompt(0, "c", "other 0");
    assert_eq!(server.lost(), NOTHING);
    server.prompt(1, "d", "other 1");
    assert_eq!(
        server.lost(),
        ["a", "b"].map(|id| format!("{id} evicted: Overwritten, slot 1"))
    );
}

#[test]
fn prompts_of_many_runs_are_lost_and_kept_by_the_token() {
    let mut server = SceneServer::start();
    let long: String = ('a'..='z').cycle().take(5_000).collect();
    server.prompt(0, "long", &long);
    server.prompt(1, "half", &long[..2_500]);
    assert_eq!(server.ledger.tokens(), 5_000);
    server.prompt(0, "next", &format!("{}!", &long[..4_998]));
    assert_eq!(server.lost(), ["long evicted: Overwritten, slot 0"]);
    server.prompt(0, "last", "!");
    assert_eq!(server.lost(), ["next evicted: Overwritten, slot 0"]);
    assert_eq!((server.ledger.tokens(), server.ledger.live()), (2_501, 2));
}

// ---- erased, purged ----------------------------------------------------

#[test]
fn an_erased_slot_is_decided_by_ten_milliseconds_of_silence() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "erase me");
    server.remove(0, -1, -1);
    server.quiet(9);
    assert_eq!(server.lost(), NOTHING);
    server.quiet(10);
    assert_eq!(server.lost(), ["a evicted: Cleared, slot 0"]);
    assert_eq!(server.ledger.tokens(), 0);
}

#[test]
fn a_slot_that_is_emptied_for_a_task_is_not_decided_by_ten_milliseconds() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "the same again");
    let request = server.post("b");
    server.launch(0, request.task);
    server.remove(0, 0, -1);
    server.quiet(99);
    assert_eq!(server.lost(), NOTHING);
}

#[test]
fn an_erased_slot_is_decided_by_the_next_batch_of_another() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "erase me");
    server.prompt(1, "b", "busy all the time");
    server.remove(0, -1, -1);
    assert_eq!(server.lost(), NOTHING);
    server.generate(1, "!");
    assert_eq!(server.lost(), ["a evicted: Cleared, slot 0"]);
}

#[test]
fn a_slot_whose_tasks_cannot_be_seen_may_be_emptied_for_one() {
    let mut server = SceneServer::start();
    server.submit(0, &text("erase me"), true);
    server.done();
    server.submit(1, &text("busy"), true);
    server.done();
    server.remove(0, -1, -1);
    server.generate(1, "!");
    assert_eq!(server.ledger.tokens(), "erase me".len() + "busy!".len());
    server.quiet(10);
    assert_eq!(server.ledger.tokens(), "busy!".len());
}

#[test]
fn clearing_everything_is_certain_at_once() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "one");
    server.prompt(1, "b", "two");
    server.apply(Event::Cleared { context: ENGINE });
    assert_eq!(
        server.lost(),
        ["a evicted: Cleared, slot 0", "b evicted: Cleared, slot 1"]
    );
}

#[test]
fn keeping_one_sequence_loses_the_others() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "one");
    server.prompt(1, "b", "two");
    server.apply(Event::Kept {
        context: ENGINE,
        sequence: 1,
    });
    assert_eq!(server.lost(), ["a evicted: Cleared, slot 0"]);
}

// ---- the host prompt cache ---------------------------------------------

#[test]
fn a_slot_saved_to_host_memory_loses_nothing_until_its_buffer_is_freed() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "put by");
    server.put_by(0, 0xb0);
    server.quiet(1_000);
    assert!(server.ledger.knows(BufferId(0xb0)));
    assert_eq!(server.lost(), NOTHING);
    server.free(0xb0);
    assert_eq!(server.lost(), ["a evicted: DroppedFromHost, host"]);
    assert_eq!(server.ledger.tokens(), 0);
}

#[test]
fn a_prompt_restored_from_host_memory_is_in_its_new_slot() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "there and back");
    server.put_by(0, 0xb0);
    server.restore(2, 0xb0, "there and back");
    server.free(0xb0);
    server.quiet(1_000);
    assert_eq!((server.lost(), server.ledger.held(2)), (vec![], 14));
    server.prompt(2, "b", "elsewhere");
    assert_eq!(server.lost(), ["a evicted: Overwritten, slot 2"]);
}

#[test]
fn a_buffer_that_a_longer_one_contains_can_go() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "a beginning");
    server.put_by(0, 0xb0);
    server.prompt(1, "b", "a beginning and more");
    server.put_by(1, 0xb1);
    server.quiet(10);
    server.free(0xb0);
    assert_eq!(server.lost(), NOTHING);
    server.free(0xb1);
    assert_eq!(server.lost().len(), 2);
}

#[test]
fn a_buffer_that_is_written_over_holds_the_new_content_only() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "first");
    server.prompt(1, "b", "second");
    server.put_by(0, 0xb0);
    server.quiet(10);
    server.save(1, 0xb0);
    assert_eq!(server.lost(), ["a evicted: DroppedFromHost, host"]);
    server.remove(1, -1, -1);
    server.quiet(10);
    assert_eq!(server.lost(), NOTHING);
}

#[test]
fn buffers_that_are_not_known_hold_nothing() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "known");
    server.free(0xdead);
    assert_eq!(server.lost(), NOTHING);
    server.restore(0, 0xdead, "");
    assert_eq!(server.lost(), ["a evicted: OutOfStep, slot 0"]);
}

// ---- what moves --------------------------------------------------------

#[test]
fn a_context_shift_loses_what_goes_beyond_its_cut() {
    let mut server = SceneServer::start();
    server.prompt(0, "short", "keep");
    server.prompt(0, "long", "keep this middle");
    // Positions 4 to 9 go, the rest moves down.
    server.remove(0, 4, 9);
    server.shift(0, 9, -1, -5);
    assert_eq!(server.lost(), ["long evicted: Shifted, slot 0"]);
    assert_eq!(server.ledger.held(0), 11);
    server.prompt(1, "b", "keep middle");
    server.remove(0, -1, -1);
    server.quiet(10);
    assert_eq!(server.ledger.tokens(), 11, "the slots held the same");
}

#[test]
fn cache_reuse_moves_a_chunk_from_the_middle() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "head OLD chunk");
    let request = server.post("b");
    server.launch(0, request.task);
    server.remove(0, 5, 9);
    server.shift(0, 9, 14, -4);
    assert_eq!(server.lost(), ["a evicted: Shifted, slot 0"]);
    assert_eq!(server.ledger.held(0), 10);
    server.remove(0, 10, -1);
    server.submit_entries(entries(0, 10, &text("s!"), true));
    server.done();
    assert_eq!(server.said(), ["b cached in slot 0"]);
    server.prompt(1, "c", "head chunks!");
    assert_eq!(server.ledger.tokens(), 12, "the slots hold the same");
}

#[test]
fn two_tokens_shifted_to_one_position_evict_what_the_slot_holds() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "abcdef");
    server.shift(0, 3, -1, -1);
    assert_eq!(server.ledger.held(0), 0);
    assert_eq!(server.lost().len(), 1);
}

#[test]
fn copies_keep_a_prompt_alive() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "n answers");
    server.remove(1, -1, -1);
    server.copy(0, 1);
    server.prompt(0, "b", "something else");
    assert_eq!(server.lost(), NOTHING);
    server.prompt(1, "c", "something else");
    assert_eq!(server.lost(), ["a evicted: Overwritten, slot 1"]);
}

#[test]
fn a_copy_onto_itself_changes_nothing() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "myself");
    server.copy(0, 0);
    assert_eq!((server.lost(), server.ledger.held(0)), (vec![], 6));
}

#[test]
fn a_state_file_takes_the_place_of_a_slot() {
    let mut server = SceneServer::start();
    server.prompt(0, "a", "before");
    server.prompt(1, "b", "from a file");
    server.apply(Event::Replaced {
        context: ENGINE,
        sequence: 0,
        tokens: text("from a file"),
    });
    assert_eq!(server.lost(), ["a evicted: Overwritten, slot 0"]);
    server.prompt(1, "c", "elsewhere");
    assert_eq!(server.lost(), NOTHING, "slot 0 has it");
}
