//! Requests and contexts that end in ways that depend on time, so that no trace can
//! replay them; and embeddings and reranking.

use contextpilot_testbed::{Arch, Index, Model, Request, Server, Spec, Step, Trace};
use std::collections::BTreeSet;
use support::{PATIENCE, hooked};

#[allow(dead_code, reason = "each test program uses a part of it")]
mod support;

fn ids(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// The client disconnects after the first reports of progress. Its prompt is not
/// complete, so it never counts as cached. What it overwrote is gone.
#[test]
fn evictions_are_exact_when_a_client_leaves_during_its_prompt() {
    let index = Index::start().unwrap();
    let slow = Model::of(&Spec {
        layers: 8,
        width: 512,
        ..Spec::new(Arch::Llama)
    });
    let server = Server::builder()
        .model(&slow)
        .bare_slots(2)
        .args(["-c", "8192", "-b", "64", "-ub", "64"]);
    let server = hooked(&server.observed(), &index);
    let kept = Request::completion("kept where it is")
        .id("req-kept")
        .slot(0);
    let overwritten = Request::completion("overwritten by the next")
        .id("req-overwritten")
        .slot(1);
    let long = Request::completion("x".repeat(3000))
        .id("req-long")
        .slot(1)
        .streamed()
        .with("return_progress", true);
    Trace::new()
        .ask(kept.clone())
        .ask(overwritten)
        .then(Step::Abandon(long, 2))
        .run(&server)
        .unwrap();
    let gone = ids(&["req-long", "req-overwritten"]);
    index.wait_until(|evicted| evicted.is_superset(&gone), PATIENCE);
    server.come_to_rest().unwrap();
    assert_eq!(index.evicted(), gone);
    let answer = server.complete(&kept).unwrap();
    assert_eq!(answer.cache_n + 1, answer.prompt_tokens);
}

/// `--sleep-idle-seconds` frees the context, and with it all slots and the host
/// prompt cache.
#[test]
fn when_a_server_falls_asleep_all_ids_are_reported() {
    let index = Index::start().unwrap();
    let server = Server::tiny().args(["--sleep-idle-seconds", "1"]);
    let server = hooked(&server, &index);
    let request =
        |n: u32| Request::completion(format!("{n} is the number of this")).id(format!("req-{n}"));
    for n in 0..6 {
        server.complete(&request(n)).unwrap();
    }
    let all = (0..6).map(|n| format!("req-{n}")).collect::<BTreeSet<_>>();
    assert!(
        index.wait_until(|evicted| *evicted == all, PATIENCE),
        "{:?}",
        index.evicted()
    );

    // The server wakes up with an empty cache, and the hook works as before.
    let again = request(0).id("req-again");
    assert_eq!(server.complete(&again).unwrap().cache_n, 0);
    let with_again = all
        .iter()
        .cloned()
        .chain(["req-again".to_owned()])
        .collect();
    assert!(index.wait_until(|evicted| *evicted == with_again, PATIENCE));
    assert_eq!(index.reports().len(), 7, "each is reported once");
}

/// A server that answers embeddings and completions. An embedding overwrites the
/// content of its slot, and the server empties the slot afterwards.
#[test]
fn embeddings_evict_completions() {
    let index = Index::start().unwrap();
    let server = Server::tiny()
        .bare_slots(2)
        .args(["--embeddings", "--pooling", "last"]);
    let server = hooked(&server.observed(), &index);
    let completion = |n: u32| Request::completion(format!("{n} is in slot {n}")).slot(n);
    for n in 0..2 {
        let request = completion(n).id(format!("req-{n}"));
        assert_eq!(server.send(&request).unwrap().status, 200);
    }
    let embedding = serde_json::json!({"input": "Something else to embed", "rid": "req-e"});
    let embedded = server.post("/v1/embeddings", &embedding).unwrap();
    assert_eq!(embedded.status, 200, "{}", embedded.text());
    let gone = ids(&["req-0", "req-e"]);
    assert!(index.wait_until(|evicted| evicted.is_superset(&gone), PATIENCE));
    server.come_to_rest().unwrap();
    assert_eq!(index.evicted(), gone);
    let cached = server.complete(&completion(1)).unwrap();
    assert_eq!(cached.cache_n + 1, cached.prompt_tokens);
    assert_eq!(server.complete(&completion(0)).unwrap().cache_n, 0);
}

/// The server evaluates each document together with the query, in any slot.
#[test]
fn reranking_evicts_completions() {
    let index = Index::start().unwrap();
    let server = Server::tiny()
        .bare_slots(1)
        .args(["--embeddings", "--pooling", "rank"]);
    let server = hooked(&server, &index);
    let request = Request::completion("A prompt to be overwritten").id("req-a");
    assert_eq!(server.send(&request).unwrap().status, 200);
    let rerank = serde_json::json!({"query": "which", "documents": ["this one", "that one"]});
    assert_eq!(server.post("/v1/rerank", &rerank).unwrap().status, 200);
    assert!(index.wait_until(|evicted| evicted.contains("req-a"), PATIENCE));
}
