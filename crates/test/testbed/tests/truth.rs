//! The testbed with the real server, without the hook: does it find the truth where that is known
//! beforehand?

use std::collections::BTreeSet;

use contextpilot_testbed::{
    Arch, Builder, Model, Request, Residency, Server, Step, Trace, residency, truth,
};
use serde_json::json;

fn server() -> Builder {
    Server::tiny()
}

/// A prompt of sixty characters that differs from every other one from the first on.
fn prompt(letter: char) -> String {
    format!("{}, and so on and on.", String::from(letter).repeat(40))
}

fn set(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|&id| id.to_owned()).collect()
}

#[test]
fn what_is_overwritten_in_two_slots_is_gone() {
    let ask = |id: &str, letter, slot| Request::completion(prompt(letter)).id(id).slot(slot);
    let trace = Trace::new()
        .ask(ask("a", 'a', 0))
        .ask(ask("b", 'b', 1))
        .ask(ask("c", 'c', 0).streamed())
        .ask(ask("again", 'a', 1).slot(1))
        .ask(Request::chat(&[("user", "hello")]).id("chat").slot(0));
    let truth = truth(&trace, &server().bare_slots(2)).unwrap();
    // `a` has the same prompt as `again`, which is cached.
    assert_eq!(truth.gone(), set(&["b", "c"]));
    let Residency::Resident(probe) = &truth.residency["a"] else {
        panic!("{truth:?}");
    };
    assert_eq!(probe.place, "in slot 1");
    assert_eq!(probe.cache_n + 1, probe.prompt_tokens);
}

#[test]
fn a_conversation_keeps_its_beginnings_and_erasing_ends_it() {
    let turn = |id: &str, text: &str| Request::completion(text).id(id).slot(0);
    let mut trace = Trace::new()
        .ask(turn("one", "A question, and"))
        .ask(turn("two", "A question, and an answer, and a question"))
        .ask(turn("other", "A question, but another one"));
    let server = server().bare_slots(1);
    let before = truth(&trace, &server).unwrap();
    assert_eq!(before.gone(), set(&["one", "two"]));
    assert!(!truth(&trace.upto(2), &server).unwrap().residency["one"].is_gone());
    trace = trace.then(Step::Erase(0));
    let after = truth(&trace, &server).unwrap();
    assert_eq!(after.gone(), set(&["one", "two", "other"]));
}

#[test]
fn saving_and_restoring_brings_a_prompt_back() {
    let trace = Trace::new()
        .ask(Request::completion(prompt('a')).id("a").slot(0))
        .then(Step::Save(0, "kept".into()))
        .ask(Request::completion(prompt('b')).id("b").slot(0))
        .then(Step::Restore(1, "kept".into()));
    let truth = truth(&trace, &server().bare_slots(2)).unwrap();
    assert_eq!(truth.gone(), set(&[]));
}

#[test]
fn default_flags_keep_everything_in_host_memory() {
    let mut trace = Trace::new();
    for letter in 'a'..='f' {
        let request = Request::completion(prompt(letter)).id(letter);
        trace = trace.ask(request);
    }
    let truth = truth(&trace, &server()).unwrap();
    assert_eq!(truth.gone(), set(&[]));
    assert_eq!(truth.ids().len(), 6);
}

/// The engine does not load a host entry for a prompt that is less than a quarter of the entry. But
/// for the next turn of the conversation it does.
#[test]
fn a_short_prompt_with_a_long_answer_is_found_by_its_continuation() {
    let trace = Trace::new()
        .ask(Request::completion("A short one").predict(200).id("short"))
        .ask(Request::completion(prompt('b')).id("b"));
    let server = server().args(["--parallel", "1"]);
    let found = residency(&trace, "short", &server).unwrap();
    let Residency::Resident(probe) = found else {
        panic!("{found:?}");
    };
    assert!(probe.place.contains("by a continuation"), "{probe:?}");
}

#[test]
fn a_host_cache_that_is_too_small_loses_the_oldest() {
    // A token takes 512 bytes, so 1 MiB holds two prompts of a thousand tokens, but not three.
    let long = |letter: char| String::from(letter).repeat(950);
    let ask = |letter: char| Request::completion(long(letter)).id(letter);
    let trace = ('a'..='e').fold(Trace::new(), |trace, letter| trace.ask(ask(letter)));
    let server = server().args(["--parallel", "1", "--cache-ram", "1"]);
    let truth = truth(&trace, &server).unwrap();
    // `e` is in the slot, `c` and `d` fit into the host cache.
    assert_eq!(truth.gone(), set(&["a", "b"]));
}

#[test]
fn refused_requests_and_several_prompts() {
    let trace = Trace::new()
        .ask(Request::completion("x".repeat(5000)).id("too long"))
        .ask(Request::completion(json!(["first one", "second one"])).id("both"))
        .ask(
            Request::completion(vec![1, 70, 71, 72])
                .id("tokens")
                .slot(1),
        );
    let truth = truth(&trace, &server().bare_slots(2)).unwrap();
    assert_eq!(truth.residency["too long"], Residency::Gone(None));
    // One half of `both` had to make room for `tokens`.
    assert_eq!(truth.gone(), set(&["too long", "both"]));
}

#[test]
fn with_checkpoints_a_prompt_counts_as_cached_if_nine_tenths_are_reused() {
    for arch in [Arch::Gemma2, Arch::Mamba] {
        let server = Server::builder().model(&Model::tiny(arch)).bare_slots(1);
        let trace = Trace::new()
            .ask(Request::completion(prompt('a')).id("a"))
            .ask(Request::completion(prompt('b')).id("b"));
        let truth = truth(&trace, &server).unwrap();
        assert_eq!(truth.gone(), set(&["a"]), "{arch}");
    }
}

/// The slot stops when its client is gone, and is idle before the next step.
#[test]
fn a_slot_is_idle_after_the_client_of_its_answer_has_left() {
    let server = server().bare_slots(1).spawn().unwrap();
    let long = Request::completion(prompt('a')).predict(3000).streamed();
    let outcomes = Trace::new()
        .then(Step::Abandon(long, 2))
        .ask(Request::completion(prompt('a')))
        .run(&server)
        .unwrap();
    assert!(outcomes[0].response.text().starts_with("data: "));
    assert!(outcomes[1].completions[0].cache_n > 0);
}

#[test]
fn a_stopped_server_ends_as_the_signal_asks() {
    let mut server = server().spawn().unwrap();
    let status = server.stop(libc::SIGTERM).unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(server.get("/health").is_err());
    assert!(server.stderr().contains("listening"));
}
