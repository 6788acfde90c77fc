//! The figures of `/stats` equal the engine's own: `cache_n` and `prompt_n`, summed over a trace.

use crate::support::{Hooked, ask, bare, model, text};
use contextpilot_control::{Mode, Stats};
use contextpilot_testbed::{Arch, Builder, Completion, Model, ProjectorKind, Request, Step, Trace};
use serde_json::json;

/// Runs a trace. The sums of the engine's figures must equal those of `/stats`.
#[track_caller]
fn agree(server: &Builder, trace: Trace) -> (Hooked, Stats) {
    let hooked = Hooked::observing(server);
    let outcomes = trace.run(&hooked.server).unwrap();
    let said: Vec<&Completion> = outcomes.iter().flat_map(|o| o.evaluated()).collect();
    let sum = |figure: fn(&Completion) -> usize| said.iter().map(|c| figure(c) as u64).sum::<u64>();
    let stats = hooked.settled(trace.requests().count() as u64);
    let ours = &stats.reuse.total;
    assert_eq!(
        (ours.prompts, ours.reused, ours.evaluated),
        (said.len() as u64, sum(|c| c.cache_n), sum(|c| c.prompt_n)),
        "{:?}\n{}",
        said.iter()
            .map(|c| (c.cache_n, c.prompt_n))
            .collect::<Vec<_>>(),
        hooked.server.stderr(),
    );
    assert!(sum(|c| c.prompt_n) > 0);
    (hooked, stats)
}

fn conversations() -> Trace {
    let mut trace = Trace::new();
    for turn in 1..=4 {
        for talker in 0..3 {
            let request = ask(talker, 60 * turn);
            // Requests without an id count as well.
            trace = trace.ask(match talker {
                0 => request,
                _ => request.id(format!("req-{talker}.{turn}")),
            });
        }
        // The whole prompt is cached.
        trace = trace.ask(ask(2, 60 * turn).id(format!("req-again-{turn}")));
    }
    trace
}

#[test]
fn for_conversations_in_few_slots_the_figures_equal_the_engines() {
    let (_, stats) = agree(&bare(2), conversations());
    assert_eq!(stats.mode, Mode::Observing);
    assert_eq!(stats.delivery, None);
    assert_eq!(stats.requests.seen, 16);
    assert_eq!((stats.requests.with_id, stats.requests.without_id), (12, 4));
    assert_eq!(stats.reuse.total, stats.reuse.last_minute);
    assert!(stats.reuse.total.reused > 0);
}

#[test]
fn with_a_host_cache_the_figures_equal_the_engines() {
    let shared = text(9, 100);
    let trace = (0..5).fold(conversations(), |trace, n| {
        trace.ask(Request::completion(format!("{shared}{}", text(n, 30))))
    });
    let (hooked, stats) = agree(&model(Arch::Llama), trace);
    assert!(stats.host.entries > 0, "{stats:?}");
    assert!(stats.host.tokens > 0 && stats.host.bytes > 0, "{stats:?}");
    assert_eq!(stats.host.limit_bytes, Some(8192 << 20));
    drop(hooked);
}

#[test]
fn with_a_sliding_window_the_figures_equal_the_engines() {
    let (_, stats) = agree(&model(Arch::Gemma2).bare_slots(2), conversations());
    assert!(stats.host.checkpoints > 0, "{stats:?}");
    assert!(stats.host.checkpoint_bytes > 0, "{stats:?}");
}

#[test]
fn with_a_recurrent_model_the_figures_equal_the_engines() {
    agree(&model(Arch::Mamba).bare_slots(2), conversations());
}

#[test]
fn with_small_batches_and_cache_reuse_the_figures_equal_the_engines() {
    let (head, middle, tail) = (text(1, 40), text(2, 80), text(3, 90));
    let trace = Trace::new()
        .ask(Request::completion(format!("{head}{middle}{tail}")))
        .ask(Request::completion(format!("{head}{tail}")))
        .ask(ask(7, 301))
        .ask(ask(7, 301));
    let server = bare(1).args(["--cache-reuse", "16", "-b", "64", "-ub", "32"]);
    agree(&server, trace);
}

#[test]
fn for_several_prompts_or_answers_in_a_request_the_figures_equal_the_engines() {
    let trace = Trace::new()
        .ask(Request::completion(json!([text(1, 50), text(2, 60)])).id("req-1"))
        .ask(ask(3, 70).id("req-2").with("n", 2))
        .ask(Request::chat(&[("user", &text(4, 40))]).id("req-3"))
        .ask(Request::chat(&[("user", &text(4, 40))]).streamed());
    agree(&bare(4), trace);
}

#[test]
fn refused_requests_are_finished_and_the_figures_equal_the_engines() {
    let trace = Trace::new()
        .ask(ask(1, 80).id("req-1"))
        // Longer than the slot.
        .ask(ask(2, 3000).id("req-2"))
        .ask(ask(3, 3000))
        .ask(Request::completion(json!({"not": "a prompt"})))
        .then(Step::Erase(0))
        .ask(ask(1, 80));
    let (_, stats) = agree(&bare(1), trace);
    assert_eq!(stats.requests.finished, 5);
}

/// Two clients disconnect after their prompts were evaluated. These prompts count, as they do in the
/// engine's own metrics.
#[test]
fn evaluated_prompts_of_clients_that_left_are_counted() {
    let server = bare(2).args(["--metrics"]);
    let hooked = Hooked::observing(&server);
    let trace = Trace::new()
        .ask(ask(1, 80).id("req-1"))
        .then(Step::Abandon(ask(1, 200).predict(400).streamed(), 3))
        .then(Step::Abandon(
            ask(2, 120).id("req-2").predict(400).streamed(),
            2,
        ))
        .ask(ask(2, 120));
    trace.run(&hooked.server).unwrap();
    let stats = hooked.settled(4);
    let metrics = hooked.server.get("/metrics").unwrap().text();
    let evaluated = metrics
        .lines()
        .find_map(|line| line.strip_prefix("llamacpp:prompt_tokens_total "))
        .unwrap();
    assert_eq!(stats.reuse.total.evaluated.to_string(), evaluated);
    assert_eq!(stats.reuse.total.prompts, 4);
}

#[test]
fn tokens_of_a_draft_model_are_not_counted() {
    let draft = Model::tiny(Arch::Draft);
    let server = bare(2)
        .args(["-md".into(), draft.path().as_os_str().to_owned()])
        .args(["--spec-type", "draft-simple"]);
    let trace = (0..4).fold(Trace::new(), |trace, n| {
        trace.ask(ask(n % 2, 60 + 20 * n as usize).predict(30))
    });
    agree(&server, trace);
}

/// A request with an image, a square of one colour, between two texts.
fn look(colour: &str, length: usize) -> Request {
    // A PPM file in base64: "P6 56  56  255\n", then three bytes a pixel.
    let file = format!("UDYgNTYgIDU2ICAyNTUK{}", colour.repeat(56 * 56));
    let url = format!("data:image/x-portable-pixmap;base64,{file}");
    let content = json!([
        {"type": "text", "text": text(1, 20)},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": text(2, length)},
    ]);
    Request::chat(&[]).with("messages", json!([{"role": "user", "content": content}]))
}

#[test]
fn with_images_the_figures_equal_the_engines() {
    const LIGHT: &str = "YWFh";
    const DARK: &str = "YmJi";
    for (arch, kind) in [
        (Arch::Llama, ProjectorKind::Llava),
        (Arch::Qwen2Vl, ProjectorKind::Qwen2Vl),
    ] {
        let bare = model(arch).projector(kind).bare_slots(1);
        // One slot, so that prompts with images are moved to the host prompt cache and back.
        let saving = model(arch).projector(kind).args(["--parallel", "1"]);
        let trace = Trace::new()
            .ask(look(LIGHT, 20))
            .ask(look(LIGHT, 20))
            .ask(look(LIGHT, 40).id("req-1"))
            .ask(look(DARK, 40))
            .ask(ask(1, 60))
            .ask(look(DARK, 40))
            .ask(look(LIGHT, 40));
        agree(&bare, trace.clone());
        let (_, stats) = agree(&saving, trace);
        assert!(stats.host.entries > 0, "{stats:?}");
    }
}

/// More clients than slots.
#[test]
fn with_several_clients_the_figures_equal_the_engines() {
    let hooked = Hooked::observing(&bare(2));
    let said: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client| {
                let hooked = &hooked;
                scope.spawn(move || {
                    let requests = (1..=8).map(|turn| ask(client % 3, 30 * turn));
                    requests
                        .map(|request| hooked.server.complete(&request).unwrap())
                        .map(|answer| (answer.cache_n as u64, answer.prompt_n as u64))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|c| c.join().unwrap())
            .collect()
    });
    let total = hooked.settled(32).reuse.total;
    let reused = said.iter().map(|(reused, _)| reused).sum::<u64>();
    let evaluated = said.iter().map(|(_, evaluated)| evaluated).sum::<u64>();
    assert_eq!(
        (total.prompts, total.reused, total.evaluated),
        (32, reused, evaluated)
    );
}

#[test]
fn answered_embeddings_are_counted() {
    let hooked = Hooked::observing(&bare(2).args(["--embeddings", "--pooling", "mean"]));
    let body = json!({"input": text(1, 60)});
    let request = Request::new("/v1/embeddings", body).id("req-1");
    let tokens = hooked.complete(&request)["usage"]["prompt_tokens"]
        .as_u64()
        .unwrap();
    let stats = hooked.settled(1);
    let total = stats.reuse.total;
    assert_eq!(
        (total.prompts, total.reused, total.evaluated),
        (1, 0, tokens)
    );
}
