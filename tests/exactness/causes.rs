//! A trace for each cause of evaluated tokens. Each trace must show its cause. Most causes occur in no
//! trace of the test `exactness`.

use crate::cases::Case;
use crate::prompts::text;
use contextpilot_testbed::{Arch, Builder, Model, Request, Server, Step, Trace};

/// A trace and the cause that it must show.
pub(crate) struct Shown {
    pub(crate) cause: &'static str,
    pub(crate) case: Case,
}

fn server(arch: Arch) -> Builder {
    Server::builder().model(&Model::tiny(arch))
}

fn bare() -> Builder {
    server(Arch::Llama).bare_slots(2)
}

fn ask(prompt: impl Into<serde_json::Value>) -> Request {
    Request::completion(prompt)
}

/// Requests with ids, one after the other.
fn asked(requests: impl IntoIterator<Item = Request>) -> Trace {
    let requests = requests.into_iter().enumerate();
    requests.fold(Trace::new(), |trace, (nth, request)| {
        trace.ask(request.id(format!("req-{nth}")))
    })
}

/// Two prompts that begin with the same 100 tokens.
fn alike() -> [String; 2] {
    [(1, 200), (2, 300)].map(|(seed, length)| text(7, 100) + &text(seed, length))
}

pub(crate) fn all() -> Vec<Shown> {
    let shown = |cause, name, server, trace| Shown {
        cause,
        case: Case::new(name, server, trace),
    };
    let [short, long] = alike();
    vec![
        shown(
            "new",
            "cause: a prompt that was never seen",
            bare(),
            asked([ask(text(1, 100))]),
        ),
        shown(
            "repeated",
            "cause: sent before, behind something else",
            bare(),
            // The slot that had it is taken by another prompt.
            asked([
                ask(text(1, 30) + &text(2, 300)),
                ask(text(3, 400)),
                ask(text(4, 400)),
                ask(text(5, 30) + &text(2, 300)),
            ]),
        ),
        shown(
            "last_token",
            "cause: the same prompt again",
            bare(),
            asked([ask(text(1, 100)), ask(text(1, 100))]),
        ),
        shown(
            "evicted",
            "cause: overwritten, and asked for again",
            bare(),
            asked([1, 2, 3, 1].map(|seed| ask(text(seed, 100)))),
        ),
        shown(
            "elsewhere_pinned",
            "cause: another slot is named",
            bare(),
            asked([ask(text(1, 100)).slot(0), ask(text(1, 100)).slot(1)]),
        ),
        shown(
            "elsewhere_busy",
            "cause: its slot is at work",
            bare(),
            busy(),
        ),
        shown(
            "elsewhere_busy",
            "cause: evaluated in another slot at the same time",
            bare(),
            asked([ask(vec![short.clone(), long.clone()])]),
        ),
        shown(
            "elsewhere_similarity",
            "cause: too small a share of the prompt",
            bare(),
            // Only 30 of 1,000 tokens are common.
            asked([ask(text(1, 30)), ask(text(1, 30) + &text(2, 970))]),
        ),
        shown(
            "elsewhere_least_recently_used",
            "cause: slots are chosen by age",
            bare().args(["-sps", "0"]),
            asked([ask(short.clone()), ask(long.clone())]),
        ),
        shown(
            "elsewhere_host_rule",
            "cause: a small part of a host entry",
            server(Arch::Llama).args(["-np", "1", "-c", "4096", "--cache-ram", "64"]),
            // The first prompt is saved to the host cache when the second takes its slot. The third
            // prompt has a tenth of it.
            asked([
                ask(text(1, 1000)),
                ask(text(2, 1000)),
                ask(text(1, 100) + &text(3, 50)),
            ]),
        ),
        shown(
            "no_way_back",
            "cause: a window without a checkpoint",
            server(Arch::Gemma2)
                .bare_slots(1)
                .args(["--ctx-checkpoints", "0"]),
            asked([ask(text(1, 1500)), ask(text(1, 400) + &text(2, 100))]),
        ),
        shown(
            "no_way_back",
            "cause: a state without a checkpoint",
            server(Arch::Mamba)
                .bare_slots(1)
                .args(["--ctx-checkpoints", "0"]),
            asked([ask(text(1, 600)), ask(text(1, 400) + &text(2, 100))]),
        ),
        shown(
            "uncached",
            "cause: the cache is not wanted",
            bare(),
            asked([
                ask(text(1, 100)),
                ask(text(1, 100)).with("cache_prompt", false),
            ]),
        ),
        shown(
            "moved",
            "cause: the same tokens further on",
            server(Arch::Llama).bare_slots(1),
            // The second prompt lacks the first 50 tokens of the first one.
            asked([ask(text(1, 50) + &text(2, 300)), ask(text(2, 300))]),
        ),
        shown(
            "adapter",
            "cause: other adapters",
            server(Arch::Llama).bare_slots(1).adapter(1, &[]),
            asked([0.0, 1.0].map(|scale| {
                let list = serde_json::json!([{ "id": 0, "scale": scale }]);
                ask(text(1, 100)).with("lora", list)
            })),
        ),
        shown(
            "not_known",
            "cause: more than is remembered",
            server(Arch::Llama)
                .bare_slots(1)
                .env("CONTEXTPILOT_EXPLAIN_MB", "1"),
            // 1 MiB has room for 262,144 tokens. These prompts have 280,000.
            asked(
                (0..140)
                    .chain([0])
                    .map(|seed| ask(text(seed, 2000)).predict(1)),
            ),
        ),
    ]
}

/// While a slot is busy, another prompt with the same beginning is sent.
fn busy() -> Trace {
    let [short, long] = alike();
    Trace::new()
        .then(Step::Begin(
            ask(short).id("req-busy").predict(1500).streamed(),
        ))
        .ask(ask(long).id("req-meanwhile"))
        .then(Step::Release)
}
