//! Does ContextPilot's own index agree with the engine?
//!
//! The index server from PyPI (`scripts/index-server`) is started in the usual way,
//! and llama-server under the launcher. Requests go through the index, which adds
//! ids. After every request the truth is determined by replaying all requests
//! (`contextpilot_testbed::truth`). Then `GET /requests` must list exactly the ids
//! that are still cached.
//!
//! Without Python these tests are skipped.

mod agreement;
mod python;
mod relay;
mod server;
mod words;

use agreement::Agreement;
use contextpilot_testbed::{Builder, Request, Server, or_return};
use python::python;
use serde_json::json;
use std::time::{Duration, Instant};

/// Documents without a common prefix.
const TEA: &str = "Tea is picked by hand in the early morning, then rolled and dried.";
const SEA: &str = "Waves carry energy across an ocean, but hardly any of the water.";
const OWL: &str = "Owls turn their heads because their eyes cannot turn in them.";
const ELM: &str = "Elms line the avenue; a beetle brings the fungus that kills them.";
const ICE: &str = "Ice floats, which keeps the lakes below it alive in winter.";

fn llama() -> Builder {
    Server::tiny()
}

/// A request to the OpenAI-compatible endpoint. Sampling is greedy, so that a replay
/// gives the same answer.
fn completion(prompt: &str) -> Request {
    let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "seed": 1});
    Request::new("/v1/completions", body)
}

#[test]
fn with_two_slots_the_index_lists_exactly_what_is_cached() {
    let python = or_return!(python());
    let mut both = Agreement::start(&python, llama().bare_slots(2));
    for contexts in [
        &[&[TEA, SEA][..], &[SEA, OWL], &[ELM]][..],
        &[&[OWL, TEA][..], &[ICE, SEA]],
    ] {
        for (context, id) in both.reorder(contexts) {
            let request = completion(&format!("{context}\nWhat of it?")).id(id);
            both.step(&context, &request);
        }
    }
    // The index adds an id to requests without one.
    for prompt in [ICE, OWL, TEA] {
        both.step(prompt, &completion(prompt));
    }
    let sent = both.sent().len();
    assert_eq!(sent, 8);

    // The engine refuses this prompt. The index lists the id until the hook reports it.
    let answer = both.send(&completion(&"Too long. ".repeat(4096)));
    assert_eq!(answer.status, 400, "{}", answer.text());
    both.agree("a prompt that is too long");

    let gone = both.finish().len();
    assert_eq!(gone, sent + 1 - 2, "two of these prompts fit");
}

#[test]
fn a_growing_conversation_stays_listed_until_it_is_overwritten() {
    let python = or_return!(python());
    let mut both = Agreement::start(&python, llama().bare_slots(2));
    let mut turns = both.reorder(&[&[TEA, SEA]]);
    let (mut prompt, id) = turns.remove(0);
    let mut request = completion(&prompt).id(id);
    for turn in 0..4 {
        let answer = both.step(&format!("turn {turn}"), &request);
        prompt.push_str(&answer.content);
        prompt.push_str("\nAnd then?");
        request = completion(&prompt);
    }
    assert_eq!(both.told(), [""; 0], "every turn contains those before");
    // The first prompt takes the other slot, the second one overwrites a slot.
    both.step("beside", &completion(OWL));
    both.step("one too many", &completion(ELM));
    let gone = both.finish().len();
    assert!([1, 4].contains(&gone), "one slot was overwritten: {gone}");
}

#[test]
fn with_default_flags_nothing_is_evicted() {
    let python = or_return!(python());
    let mut both = Agreement::start(&python, llama());
    let contexts = [&[TEA][..], &[SEA], &[OWL], &[ELM], &[ICE], &[OWL, ICE]];
    for (context, id) in both.reorder(&contexts) {
        both.step(&context, &completion(&context).id(id));
    }
    assert_eq!(both.sent().len(), 6, "more than there are slots");
    assert!(both.finish().is_empty());
}

#[test]
fn chats_are_reported_like_completions() {
    let python = or_return!(python());
    let mut both = Agreement::start(&python, llama().bare_slots(2));
    // After the first `/reorder` the index adds ids to chats.
    for (context, id) in both.reorder(&[&[TEA]]) {
        both.step("text", &completion(&context).id(id));
    }
    let mut messages = vec![("user".to_owned(), SEA.to_owned())];
    let chat = |messages: &[(String, String)]| {
        let messages = messages.iter().map(|(role, text)| (&**role, &**text));
        Request::chat(&messages.collect::<Vec<_>>())
    };
    let answer = both.step("chat", &chat(&messages));
    messages.push(("assistant".to_owned(), answer.content));
    messages.push(("user".to_owned(), "Go on.".to_owned()));
    both.step("second turn", &chat(&messages));
    both.step("streamed", &Request::chat(&[("user", OWL)]).streamed());
    // Requests to this endpoint are listed by the index, as completions are.
    let body = json!({"input": ELM, "max_output_tokens": 8, "seed": 1});
    both.step("responses", &Request::new("/v1/responses", body));
    both.step("another", &Request::chat(&[("user", ICE)]));
    assert_eq!(both.sent().len(), 6, "each was given an id");
    let gone = both.finish();
    assert!(gone.len() >= 3, "{gone:?}");
}

/// If no POST arrives for this long, the hook is not retrying. Its first retries
/// come after some tens of milliseconds.
const SILENCE: Duration = Duration::from_millis(1500);

#[test]
fn evictions_before_the_first_reorder_are_refused_and_not_sent_again() {
    let python = or_return!(python());
    let both = &mut Agreement::start(&python, llama().bare_slots(1));
    let refused = |both: &Agreement| {
        let evictions = both.index.evictions().into_iter();
        evictions
            .map(|eviction| eviction.status)
            .collect::<Vec<_>>()
    };
    // Before the first `/reorder` the index adds ids and does not track them.
    both.complete(&completion(TEA));
    for (told, prompt) in [SEA, OWL].into_iter().enumerate() {
        both.complete(&completion(prompt));
        let expected = vec![503; told + 1];
        wait("the index is told", || refused(both) == expected);
    }
    std::thread::sleep(SILENCE);
    assert_eq!(refused(both), [503, 503], "{}", both.hook_says());

    // From now on it tracks them. The hook does not send the refused evictions again.
    // What was cached before is reported when it is evicted.
    let (context, id) = both.reorder(&[&[ELM]]).remove(0);
    both.complete(&completion(&context).id(id.clone()));
    wait("the last of before is told", || both.told().len() == 1);
    both.complete(&completion(ICE));
    wait("the first of after is told", || both.told().len() == 2);
    assert_eq!(both.told()[1], id);
    std::thread::sleep(SILENCE);
    assert_eq!(refused(both), [503, 503, 200, 200]);
    assert_eq!(both.index.requests().len(), 1, "one slot, one prompt");
}

#[test]
fn if_the_index_closes_the_connection_the_next_eviction_still_arrives() {
    let python = or_return!(python());
    let mut both = Agreement::start(&python, llama().bare_slots(1));
    let ids = both.reorder(&[&[TEA], &[SEA], &[OWL]]);
    for (context, id) in &ids[..2] {
        both.step(context, &completion(context).id(id));
    }
    // Uvicorn closes a connection after five seconds without a request.
    let port = both.index.address().port();
    wait("the index hangs up", || !connected(port));
    let (context, id) = &ids[2];
    both.step(context, &completion(context).id(id));
    assert_eq!(both.finish().len(), 2);
}

/// Waits up to 20 seconds: the index closes an idle connection after five.
fn wait(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process on this machine has a connection to this local port.
fn connected(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let established = "01";
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(2);
        let remote = fields.next().unwrap_or_default();
        remote.ends_with(&format!(":{port:04X}")) && fields.next() == Some(established)
    })
}
