//! What is said of the KV cache events that are published for routers.

use contextpilot_client::Metrics;

use crate::support::{Hooked, ask, bare, until};

const EVENTS: &str = "CONTEXTPILOT_KV_EVENTS";
/// Any that is free.
const ADDRESS: &str = "tcp://127.0.0.1:0";

#[test]
fn blocks_are_counted_as_they_come_and_go() {
    let hooked = Hooked::observing(&bare(2).env(EVENTS, ADDRESS));
    // 40 letters, and what stands before every prompt; eight tokens of an answer, of which the
    // last is not evaluated: three blocks of 16 tokens.
    hooked.server.complete(&ask(1, 40).slot(0)).unwrap();
    let events = until("the blocks are published", || {
        let events = hooked.stats().kv_events?;
        (events.gpu_blocks == 3).then_some(events)
    });
    assert!(
        events
            .publish
            .is_some_and(|at| at.starts_with("tcp://127.0.0.1:"))
    );
    assert!(events.replay.is_some());
    assert_eq!((events.block_size, events.cpu_blocks), (16, 0));
    assert_eq!((events.subscribers, events.removed), (0, 0));
    assert_eq!(events.problem, None);
    hooked.server.complete(&ask(2, 40).slot(0)).unwrap();
    let events = until("others take their place", || {
        let events = hooked.stats().kv_events?;
        (events.stored == 6 && events.gpu_blocks == 3).then_some(events)
    });
    assert_eq!(events.removed, 3);
    let metrics = Metrics::parse(&hooked.get("/metrics").text());
    let value = |name: &str, label| {
        let name = format!("contextpilot_llama_{name}");
        metrics.value(&name, &[label])
    };
    assert_eq!(value("kv_events_blocks", ("medium", "GPU")), Some(3.0));
    assert_eq!(value("kv_events_blocks", ("medium", "CPU")), Some(0.0));
    assert_eq!(
        value("kv_events_blocks_total", ("change", "stored")),
        Some(6.0)
    );
    assert_eq!(
        value("kv_events_failing", ("engine", "llama.cpp")),
        Some(0.0)
    );
}

#[test]
fn it_is_said_when_nothing_is_published() {
    let hooked = Hooked::observing(
        &bare(2)
            .env(EVENTS, ADDRESS)
            .env("CONTEXTPILOT_KV_BLOCK_SIZE", "1024"),
    );
    assert_eq!(hooked.stats().kv_events.unwrap().problem, None);
    hooked.server.complete(&ask(1, 40)).unwrap();
    let problem = until("it is known", || hooked.stats().kv_events?.problem);
    assert!(
        problem.contains("after 1 prompts") && problem.contains("1024"),
        "{problem}"
    );

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", taken.local_addr().unwrap());
    let hooked = Hooked::observing(&bare(2).env(EVENTS, &address));
    let problem = until("it is known", || hooked.stats().kv_events?.problem);
    assert_eq!(problem, format!("cannot listen on {address}, it is in use"));
    assert!(hooked.server.stderr().contains(&problem));
    // The server does not mind.
    hooked.server.complete(&ask(1, 40)).unwrap();
}

#[test]
fn nothing_runs_unless_it_is_asked_for() {
    let hooked = Hooked::observing(&bare(2));
    assert_eq!(hooked.stats().kv_events, None);
    assert!(!hooked.get("/metrics").text().contains("kv_events"));
    let tasks = format!("/proc/{}/task", hooked.server.pid());
    for task in std::fs::read_dir(tasks).unwrap().flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        assert!(!name.starts_with("kv-"), "{name}");
    }
}
