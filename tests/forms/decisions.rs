//! Questions to a decision model (`/v1/systemone`, since 2026). The server makes a prompt of each question and
//! evaluates it in a slot, but generates nothing. The answer does not say what was reused, so the truth is what
//! a completion of the same tokens reuses, on a server without the hook.

use contextpilot_testbed::{Arch, Builder, Index, Model, Request, Server};
use serde_json::json;

use crate::support::hooked;
use crate::{assert_told, server as completing};

const TEA: &str = "Tea is picked by hand in the hills";
const SEA: &str = "The sea is wide and deep";
const OWL: &str = "Where owls sleep, it is dark";

fn server() -> Builder {
    completing().model(&Model::tiny(Arch::Decision))
}

/// A request with an id, about a state.
fn asked(id: &str, state: &str, instructions: &[&str]) -> Request {
    let question = |text| json!({"instructions": text, "type": "noul"});
    let questions = instructions
        .iter()
        .enumerate()
        .map(|(nth, text)| (nth.to_string(), question(text)));
    let questions: serde_json::Map<_, _> = questions.collect();
    let body = json!({"state": state, "questions": questions});
    Request::new("/v1/systemone", body).id(id)
}

fn ask(server: &Server, request: &Request) {
    let response = server.send(request).unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
}

/// Whether the server has the endpoint.
fn answers_questions(server: &Server) -> bool {
    let response = server.send(&asked("req-try", "A", &["B"])).unwrap();
    let answers = response.status != 404;
    if !answers {
        contextpilot_testbed::skip("this server has no /v1/systemone");
    }
    answers
}

/// Whether the prompt of a question is cached after these requests, by the engine's own account.
fn is_cached(after: &[Request], state: &str, instructions: &str) -> bool {
    let server = server().spawn().unwrap();
    after.iter().for_each(|request| ask(&server, request));
    // As the model's template puts them together (crates/test/tiny-model).
    let text = json!({"content": format!("{state} {instructions}"), "add_special": false});
    let tokens = server.post("/tokenize", &text).unwrap().json().unwrap();
    let again = Request::completion(tokens["tokens"].clone()).predict(1);
    let found = server.complete(&again).unwrap();
    assert!(found.prompt_tokens > 20, "{found:?}");
    found.cache_n == found.prompt_tokens - 1
}

#[test]
fn a_question_is_told_when_its_prompt_leaves_its_slot() {
    if !answers_questions(&server().spawn().unwrap()) {
        return;
    }
    let question = "is it so?";
    let requests = [("req-tea", TEA), ("req-sea", SEA), ("req-owl", OWL)]
        .map(|(id, state)| asked(id, state, &[question]));
    assert!(is_cached(&requests[..2], TEA, question));
    assert!(!is_cached(&requests, TEA, question));
    assert!(is_cached(&requests, SEA, question));

    let index = Index::start().unwrap();
    let server = hooked(&server(), &index);
    requests[..2].iter().for_each(|one| ask(&server, one));
    assert_told(&server, &index, &[]);
    ask(&server, &requests[2]);
    assert_told(&server, &index, &["req-tea"]);
}

/// The questions of a request share the beginning of their prompts. It is evaluated once and copied to another slot
/// for the second question, and the server empties that slot when the question is answered. A request is cached
/// while all of its prompts are.
#[test]
fn a_request_with_two_questions_is_told_when_the_server_empties_the_slot_of_the_second() {
    if !answers_questions(&server().spawn().unwrap()) {
        return;
    }
    let sea = asked("req-sea", SEA, &["so?"]);
    let both = asked("req-tea", TEA, &["is it green?", "is it far away?"]);
    let requests = [both, sea];
    assert!(is_cached(&requests[..1], TEA, "is it green?"));
    assert!(!is_cached(&requests[..1], TEA, "is it far away?"));
    assert!(is_cached(&requests, SEA, "so?"));

    let index = Index::start().unwrap();
    let server = hooked(&server(), &index);
    ask(&server, &requests[0]);
    assert_told(&server, &index, &["req-tea"]);
    ask(&server, &requests[1]);
    assert_told(&server, &index, &["req-tea"]);
}
