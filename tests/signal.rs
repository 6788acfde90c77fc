//! An eviction is reported as soon as it is certain, not when the engine is done.

use contextpilot_testbed::{Arch, Index, Model, Request, Server, Spec, Step, Trace};
use std::time::Instant;
use support::{PATIENCE, hooked};

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

/// The overwriting prompt takes about half a second to evaluate. The index is
/// notified of the eviction while the engine still evaluates.
#[test]
fn an_eviction_is_reported_before_the_overwriting_prompt_is_evaluated() {
    let index = Index::start().unwrap();
    let slow = Model::of(&Spec {
        layers: 8,
        width: 512,
        ..Spec::new(Arch::Llama)
    });
    let server = hooked(&Server::builder().model(&slow).bare_slots(1), &index);
    let request = |letter: char, id: &str| {
        let prompt = letter.to_string().repeat(300);
        Request::completion(prompt).id(id).predict(1)
    };
    server.complete(&request('a', "req-a")).unwrap();
    let sent = Instant::now();
    server.complete(&request('b', "req-b")).unwrap();
    let answered = sent.elapsed();
    assert!(index.wait_until(|evicted| evicted.contains("req-a"), PATIENCE));
    let told = index.posts()[0].at - sent;
    // The evaluation is nearly all of the time to the answer. A limit in
    // milliseconds would depend on the machine.
    assert!(
        told < answered / 2,
        "told {told:?} after the request, answered after {answered:?}"
    );
}

/// No evaluation follows an erase. So the ledger decides after a short silence.
#[test]
fn an_erase_is_reported_without_another_request() {
    let index = Index::start().unwrap();
    let server = hooked(&Server::tiny().bare_slots(1), &index);
    let trace = Trace::new()
        .ask(Request::completion("some prompt").id("req-a"))
        .then(Step::Erase(0));
    trace.run(&server).unwrap();
    assert!(index.wait_until(|evicted| evicted.contains("req-a"), PATIENCE));
}
