//! The ways in which people run llama-server: addresses of every kind, TLS, routers, wrappers. In
//! each, exactly the evicted ids must be reported.
#![cfg(target_os = "linux")]

mod addresses;
mod bare;
mod decisions;
mod routers;
#[path = "../support/mod.rs"]
mod support;
mod unseen;
mod wrappers;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use contextpilot_testbed::{Builder, Index, Request, Score, Server, Step, Trace, truth};

use support::PATIENCE;

/// A server with two slots and no host prompt cache.
fn server() -> Builder {
    Server::tiny().bare_slots(2).observed()
}

/// Requests that differ in how they reach the server: several reads, several TLS records, other
/// endpoints, token ids as a prompt.
fn trace() -> Trace {
    let text = |id: &str, slot: u32, prompt: &str| Request::completion(prompt).id(id).slot(slot);
    Trace::new()
        .ask(text("req-tea", 0, "Tea is picked by hand"))
        .ask(text("req-sea", 1, "The sea is wide").streamed())
        .ask(
            Request::chat(&[("user", "Where do owls sleep?")])
                .id("req-owl")
                .slot(0),
        )
        .ask(text("req-sea2", 1, "The sea is wide and deep"))
        // Larger than a buffer of the server and than a TLS record. The id comes last.
        .ask(text("req-ash", 1, "Ash trees grow tall").with("padding", "x".repeat(50_000)))
        .ask(
            Request::completion(vec![70, 71, 72, 73, 74, 75])
                .id("req-ids")
                .slot(0),
        )
        .ask(Request::completion("Nobody named this one").slot(0))
        .then(Step::Erase(1))
        .ask(text("req-end", 1, "This is the end").streamed())
}

/// The ids of the trace that are evicted at its end, according to the engine. Determined once for
/// all tests.
fn gone() -> &'static BTreeSet<String> {
    static GONE: OnceLock<BTreeSet<String>> = OnceLock::new();
    GONE.get_or_init(|| {
        let gone = truth(&trace(), &server()).unwrap().gone();
        assert!(gone.len() > 3, "the trace shows little: {gone:?}");
        gone
    })
}

/// Runs the trace, and sends the steps to the server's addresses in turn. Exactly the evicted ids
/// must be reported.
#[track_caller]
fn assert_exact(server: &mut Server, index: &Index) {
    let trace = trace();
    for (number, step) in trace.steps.iter().enumerate() {
        server.choose(number % server.endpoints().len());
        let one = Trace::new().then(step.clone());
        one.run(server).unwrap();
    }
    index.wait_until(|evicted| evicted.is_superset(gone()), PATIENCE);
    server.settle().unwrap();
    let ids = trace.ids().into_iter().collect();
    let score = Score::of(&ids, gone(), &index.evicted());
    assert!(score.is_perfect(), "{score}\n{}", server.stderr());
    assert_eq!(index.reports().len(), gone().len(), "each is told once");
}

/// The lines of launcher and hook, without that of the control endpoint. A router passes on the output of its children, on stdout or
/// stderr.
fn lines(server: &Server) -> Vec<String> {
    let said = server.stderr() + &server.stdout();
    let ours = said.lines().filter(|line| line.contains("[ContextPilot]"));
    ours.filter(|line| !line.contains("] Control endpoint: "))
        .map(str::to_owned)
        .collect()
}

fn ids(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// Exactly these ids must be reported, each once. The server has to be the only one, or to say nothing of a
/// control endpoint.
#[track_caller]
fn assert_told(server: &Server, index: &Index, expected: &[&str]) {
    let expected = ids(expected);
    index.wait_until(|evicted| evicted.is_superset(&expected), PATIENCE);
    server.settle().unwrap();
    assert_eq!(index.evicted(), expected);
    assert_eq!(index.reports().len(), expected.len(), "each is told once");
}
