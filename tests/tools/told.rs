//! What `why` says is true: each scene is played on a real server, whose own figures are the truth.

use std::io::Write;
use std::net::TcpStream;

use contextpilot_testbed::{Arch, Builder, Connection, Model, Random, Request, Server};
use serde_json::{Value, json as object};

use crate::support::{Watched, json, two_slots, until};

/// So many tokens, the same for the same seed, and others for others.
fn tokens(seed: u64, count: usize) -> Vec<i32> {
    let mut random = Random(seed);
    // From 259 on, after the tokens for single bytes.
    (0..count).map(|_| 259 + random.below(98) as i32).collect()
}

fn ask(prompt: Vec<i32>) -> Request {
    Request::completion(prompt).predict(2)
}

fn tiny() -> Builder {
    Server::builder().model(&Model::tiny(Arch::Llama))
}

/// The last requests, the latest last, once there are so many.
fn explained(watched: &Watched, count: usize) -> Vec<Value> {
    until("all are explained", || {
        let text = watched.text(&["why", "--last", "100", "--worth", "0", "--json"]);
        let all: Vec<Value> = text.lines().map(json).collect();
        (all.len() == count).then_some(all)
    })
}

fn said(watched: &Watched, id: &str) -> String {
    watched.text(&["why", id, "--worth", "0"])
}

#[track_caller]
fn has(text: &str, part: &str) {
    assert!(text.contains(part), "{part:?} is not in:\n{text}");
}

#[test]
fn a_server_that_uses_no_cache_by_a_flag_is_named_as_that() {
    let watched = Watched::start(two_slots().args(["--no-cache-prompt"]));
    let body = object!({ "prompt": tokens(1, 300), "n_predict": 2, "id_slot": 0 });
    let again = || Request::new("/completion", body.clone());
    watched.complete(again().id("one"));
    let second = watched.complete(again().id("two"));
    assert_eq!((second.cache_n, second.prompt_n), (0, 300));
    explained(&watched, 2);
    let evaluation = &watched.json(&["why", "two"])["evaluation"];
    assert_eq!(evaluation["causes"]["uncached"], 299, "{evaluation}");
    has(
        &said(&watched, "two"),
        "start the server without --no-cache-prompt",
    );
    // A request that wants the cache has it, if the one before it wanted that, too.
    let wants = || again().with("cache_prompt", true);
    watched.complete(wants().id("three"));
    let last = watched.complete(wants().id("four"));
    assert_eq!(last.prompt_n, 1);
    explained(&watched, 4);
    let evaluation = &watched.json(&["why", "four"])["evaluation"];
    assert_eq!(evaluation["reused"], 299, "{evaluation}");
}

#[test]
fn a_client_that_erases_a_slot_is_the_culprit_and_not_the_next_prompt() {
    let watched = Watched::start(two_slots());
    let again = |id: &str| ask(tokens(1, 300)).slot(0).id(id);
    watched.complete(again("first"));
    watched
        .server
        .post("/slots/0?action=erase", &object!({}))
        .unwrap();
    watched.complete(ask(tokens(2, 50)).slot(1).id("other"));
    assert_eq!(watched.complete(again("again")).prompt_n, 300);
    explained(&watched, 3);
    let lost = &watched.json(&["why", "again"])["evaluation"]["lost"];
    assert_eq!(
        (&lost["through"], &lost["by"]),
        (&object!("erase"), &Value::Null),
        "{lost}"
    );
    let text = said(&watched, "again");
    has(&text, "a client erased the slot");
    has(&text, "would have saved 299 tokens");
    has(&text, "do not erase slots");
}

#[test]
fn a_client_that_restores_over_a_slot_is_the_culprit() {
    let watched = Watched::start(two_slots());
    let again = |id: &str| ask(tokens(1, 300)).slot(0).id(id);
    watched.complete(ask(tokens(2, 50)).slot(0).id("saved"));
    let file = object!({ "filename": "saved" });
    assert_eq!(
        watched
            .server
            .post("/slots/0?action=save", &file)
            .unwrap()
            .status,
        200
    );
    watched.complete(again("first"));
    assert_eq!(
        watched
            .server
            .post("/slots/0?action=restore", &file)
            .unwrap()
            .status,
        200
    );
    assert_eq!(watched.complete(again("again")).cache_n, 0);
    explained(&watched, 3);
    let lost = &watched.json(&["why", "again"])["evaluation"]["lost"];
    assert_eq!(
        (&lost["through"], &lost["by"]),
        (&object!("restore"), &Value::Null),
        "{lost}"
    );
    has(
        &said(&watched, "again"),
        "a client restored something else into the slot",
    );
}

/// Three agents that do not fit into the context that the slots share.
#[test]
fn a_shared_context_without_room_is_the_culprit() {
    let flags = [
        "-c",
        "1024",
        "--parallel",
        "4",
        "--kv-unified",
        "--cache-ram",
        "0",
    ];
    let watched = Watched::start(tiny().args(flags));
    for agent in 0..3 {
        let prompt = ask(tokens(agent + 1, 450)).slot(agent as u32);
        watched.complete(prompt.id(format!("agent {agent}")));
    }
    let again = watched.complete(ask(tokens(1, 450)).slot(0).id("again"));
    assert_eq!(again.prompt_n, 450, "{}", watched.server.stderr());
    assert!(watched.server.stderr().contains("purging slot 0"));
    explained(&watched, 4);
    let lost = &watched.json(&["why", "again"])["evaluation"]["lost"];
    assert_eq!(lost["through"], "no_room", "{lost}");
    let text = said(&watched, "again");
    has(&text, "the context of all slots was full");
    has(&text, "start the server with --ctx-size 2048");
}

/// A client that gives up in the middle of a prompt, and asks again.
#[test]
fn prompts_that_were_given_up_are_prompts() {
    let watched =
        Watched::start(tiny().args(["--parallel", "1", "-c", "32768", "-b", "64", "-ub", "64"]));
    let prompt = || ask(tokens(1, 30_000)).with("rid", "long");
    let body = prompt().wire_body();
    let bytes = Connection::request_bytes("POST", "/completion", body.as_bytes());
    let held = || {
        watched.json(&["stats"])["slots"][0]["tokens"]
            .as_u64()
            .unwrap_or(0)
    };
    for attempt in 0..2_u64 {
        let before = held();
        let mut client = TcpStream::connect(watched.server.address()).unwrap();
        client.write_all(&bytes).unwrap();
        until("it is at work", || (held() > before).then_some(()));
        drop(client);
        let all = explained(&watched, attempt as usize + 1);
        let evaluation = &all[attempt as usize]["evaluation"];
        assert_eq!(evaluation["given_up"], true, "{evaluation}");
        assert_eq!(
            evaluation["attempts"].as_u64().unwrap_or(0),
            attempt,
            "{evaluation}"
        );
        let evaluated = evaluation["evaluated"].as_u64().unwrap();
        assert!(evaluated > 0 && evaluated % 64 == 0, "{evaluation}");
    }
    let all = explained(&watched, 2);
    let taken: u64 = all
        .iter()
        .map(|one| one["evaluation"]["evaluated"].as_u64().unwrap())
        .sum();
    assert_eq!(
        taken,
        held(),
        "each attempt goes on where the one before it stopped"
    );
    let stats = watched.json(&["stats"]);
    assert_eq!(stats["reuse"]["total"]["evaluated"], taken);
    // Its evaluation has ended; the server lets the request go a moment later.
    watched.wait_state("long", "evicted");
    let text = said(&watched, "long");
    has(&text, "its client left then");
    has(
        &text,
        "clients gave up 1 request before it that begin like this",
    );
}

#[test]
fn embeddings_that_were_never_sent_are_new() {
    let watched = Watched::start(tiny().args([
        "--embeddings",
        "--pooling",
        "mean",
        "--parallel",
        "2",
        "-c",
        "2048",
    ]));
    for batch in 0..2 {
        let inputs: Vec<Vec<i32>> = (0..6).map(|nth| tokens(10 * batch + nth, 60)).collect();
        let body = object!({ "input": inputs });
        assert_eq!(
            watched.server.post("/v1/embeddings", &body).unwrap().status,
            200
        );
    }
    let all = explained(&watched, 2);
    for one in &all {
        let causes = &one["evaluation"]["causes"];
        assert_eq!(
            (&causes["evicted"], &causes["not_known"]),
            (&object!(0), &object!(0)),
            "{one}"
        );
    }
    // The same again: the server reuses nothing for embeddings, whatever is cached, so nothing was lost.
    let inputs: Vec<Vec<i32>> = (0..6).map(|nth| tokens(nth, 60)).collect();
    let body = object!({ "input": inputs });
    let again = watched.server.post("/v1/embeddings", &body).unwrap();
    assert_eq!(again.status, 200);
    let all = explained(&watched, 3);
    let evaluation = &all[2]["evaluation"];
    let causes = &evaluation["causes"];
    assert_eq!(evaluation["evaluated"], 6 * 60, "{evaluation}");
    assert_eq!(causes["uncached"], 6 * 59, "{evaluation}");
    assert_eq!(causes["evicted"], 0, "{evaluation}");
    // Nothing is promised, and no flag is said to decide. (An embedding is recorded when its slot is used again.)
    let advised = watched.json(&["advise"]);
    assert_eq!(advised["changes"], object!([]), "{advised}");
    assert_eq!(advised["alone"], object!([]), "{advised}");
    let repeated = advised["tokens"]["not_wanted"].as_u64();
    assert!(repeated >= Some(4 * 60), "{advised}");
    assert_eq!(advised["tokens"]["prefix"], 0, "{advised}");
    let text = watched.text(&["advise"]);
    assert!(
        text.contains("the server reuses nothing for these, whatever its flags"),
        "{text}"
    );
    assert!(
        text.contains("0 % of the tokens repeat the beginning"),
        "{text}"
    );
}

/// What several answers to one prompt have in common is evaluated once, as the server counts it.
#[test]
fn several_answers_to_a_prompt_count_what_was_evaluated() {
    let watched = Watched::start(two_slots().args(["--metrics"]));
    watched.complete(ask(tokens(1, 200)).id("two").with("n", 2));
    explained(&watched, 1);
    let metrics = watched.server.get("/metrics").unwrap().text();
    let sum = metrics
        .lines()
        .find_map(|line| line.strip_prefix("llamacpp:prompt_tokens_total "));
    let evaluated = watched.json(&["why", "two"])["evaluation"]["evaluated"].clone();
    assert_eq!(sum, Some(evaluated.to_string().as_str()));
    let stats = watched.json(&["stats"]);
    assert_eq!(stats["reuse"]["total"]["evaluated"], evaluated);
}

/// The client leaves out a part of the answer, as agents leave out reasoning.
#[test]
fn an_answer_that_comes_back_otherwise_is_named_as_that() {
    let watched = Watched::start(two_slots());
    let first = ask(tokens(1, 300)).slot(0).predict(60).id("first");
    let first = watched.complete(first.with("return_tokens", true).with("ignore_eos", true));
    let answer: Vec<i32> = serde_json::from_value(first.raw["tokens"].clone()).unwrap();
    assert_eq!(answer.len(), 60);
    let next = [tokens(1, 300), answer[35..].to_vec(), tokens(2, 20)].concat();
    let next = watched.complete(ask(next).slot(0).id("next"));
    assert_eq!(next.cache_n, 300);
    explained(&watched, 2);
    let diverged = &watched.json(&["why", "next"])["evaluation"]["diverged"];
    assert_eq!(
        (&diverged["at"], &diverged["answer"]),
        (&object!(300), &object!(true))
    );
    let text = said(&watched, "next");
    has(&text, "in the answer that was generated there");
    has(&text, "nothing took its place");
    assert!(!text.contains("a date"), "{text}");
}

/// `stats` counts ids, `why` tokens: each says which.
#[test]
fn traffic_without_ids_loses_tokens_and_no_ids() {
    let watched = Watched::start(tiny().args(["--parallel", "1", "--cache-ram", "0"]));
    for seed in [1, 2, 1] {
        watched.complete(ask(tokens(seed, 200)));
    }
    let all = explained(&watched, 3);
    assert_eq!(all[2]["evaluation"]["causes"]["evicted"], 199, "{}", all[2]);
    let stats = watched.text(&["stats"]);
    has(&stats, "\nids evicted  none\n");
    has(&watched.text(&["why"]), "199 evicted");
}

#[test]
fn a_slot_with_a_limit_of_its_own_has_that_capacity() {
    let flags = "--parallel 2 -c 2048 --kv-unified --kv-unified-per-slot 512";
    let watched = Watched::start(tiny().args(flags.split(' ')));
    watched.complete(ask(tokens(1, 100)));
    explained(&watched, 1);
    let stats = watched.json(&["stats"]);
    assert_eq!(stats["slots"][0]["capacity"], 512, "{stats}");
}

/// A fleet with numbers for ids learns why none of them is known.
#[test]
fn ids_that_cannot_be_used_are_counted_and_each_reason_is_said_once() {
    let watched = Watched::start(two_slots());
    let sea = || ask(tokens(1, 20));
    for id in [object!(41), object!(42), object!(""), object!(null)] {
        watched.complete(sea().with("rid", id));
    }
    watched.complete(sea().id("sea"));
    explained(&watched, 5);
    let parts = "5 seen, 1 with an id, 1 without, 3 with an id that cannot be used (an id is a string of 1 to 512 bytes); ";
    has(&watched.text(&["stats"]), parts);
    let said = until("both reasons are said", || {
        let said = watched.server.stderr();
        said.contains("cannot be used (empty)").then_some(said)
    });
    let line = "[ContextPilot] The id of a request cannot be used (not a string), so its eviction is not reported: send it \
                as a string, as in \"rid\": \"41\"";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    assert_eq!(said.matches("cannot be used (").count(), 2, "{said}");
}
