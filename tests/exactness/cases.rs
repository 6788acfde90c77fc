//! The traces of the tests `exactness`, `explained`, `published` and `simulation`.

#[path = "cases/adapters.rs"]
mod adapters;
#[path = "cases/bounded.rs"]
mod bounded;
#[path = "cases/drafts.rs"]
pub(crate) mod drafts;
#[path = "cases/media.rs"]
mod media;

use crate::prompts::text;
use contextpilot_testbed::{Arch, Builder, Model, Request, Server, Step, Trace};
use serde_json::json;

/// A trace, and the server it is for.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) server: Builder,
    pub(crate) trace: Trace,
    /// How many ids must be evicted at the end. With fewer, the trace does not test what it should.
    pub(crate) gone_at_least: Option<usize>,
    /// An evicted prompt is evaluated again later, under another id. So the truth has to be
    /// determined after every step.
    pub(crate) prompts_return: bool,
    /// It needs the host prompt cache, which servers before late 2025 do not have.
    pub(crate) host_cache: bool,
    /// It is checked after each step: see `moments`.
    pub(crate) every_moment: bool,
}

impl Case {
    pub(crate) fn new(name: &'static str, server: Builder, trace: Trace) -> Self {
        Self {
            name,
            server,
            trace,
            gone_at_least: None,
            prompts_return: false,
            host_cache: false,
            every_moment: false,
        }
    }

    fn host_cache(mut self) -> Self {
        self.host_cache = true;
        self
    }

    fn prompts_return(mut self) -> Self {
        self.prompts_return = true;
        self
    }

    fn gone_at_least(mut self, ids: usize) -> Self {
        self.gone_at_least = Some(ids);
        self
    }

    /// Whether the client leaves during this step. How much of the answer it reads depends on chance.
    pub(crate) fn is_abandoned(&self, step: usize) -> bool {
        matches!(self.trace.steps[step], Step::Abandon(..))
    }
}

fn llama() -> Builder {
    Server::tiny()
}

fn bare(slots: u32) -> Builder {
    llama()
        .bare_slots(slots)
        .args(["-c", &(slots * 1024).to_string()])
}

fn ask(trace: Trace, id: impl std::fmt::Display, prompt: impl Into<serde_json::Value>) -> Trace {
    trace.ask(Request::completion(prompt).id(format!("req-{id}")))
}

/// `count` unrelated prompts of `length` tokens.
fn distinct(count: u64, length: usize) -> Trace {
    (0..count).fold(Trace::new(), |trace, seed| {
        ask(trace, seed, text(seed, length))
    })
}

/// All traces.
pub(crate) fn all() -> Vec<Case> {
    let groups = [
        skeleton(),
        host(),
        truncation(),
        conversations(),
        moving(),
        endpoints(),
        endings(),
        other_models(),
        bounded::cases(),
        media::cases(),
        adapters::cases(),
        drafts::cases(),
    ];
    let all = groups.into_iter().flatten().collect();
    match drafts::kind() {
        Some(kind) => drafts::of(&kind, all),
        None => all,
    }
}

/// The basic cases.
fn skeleton() -> Vec<Case> {
    let shared = text(7, 120);
    let shares = |seed, length| format!("{shared}{}", text(seed, length));
    let chat = |trace: Trace, id: u64, question: &str| {
        trace.ask(
            Request::chat(&[("system", "be brief"), ("user", question)]).id(format!("req-{id}")),
        )
    };
    vec![
        Case::new("two slots, distinct prompts", bare(2), distinct(6, 60)).gone_at_least(4),
        Case::new("one slot", bare(1), distinct(5, 60)).gone_at_least(4),
        Case::new("default flags", llama(), distinct(8, 60)),
        Case::new(
            "shared prefixes",
            bare(2),
            [(0, 40), (1, 30), (2, 50), (0, 40), (3, 10)]
                .into_iter()
                .enumerate()
                .fold(Trace::new(), |trace, (n, (seed, length))| {
                    ask(trace, n, shares(seed, length))
                }),
        )
        .gone_at_least(2),
        Case::new(
            "a conversation that grows",
            bare(2),
            (1..=5).fold(Trace::new(), |trace, turn| {
                ask(trace, turn, text(3, 50 * turn))
            }),
        ),
        Case::new(
            "the same prompt under two ids",
            bare(1),
            ask(
                ask(ask(Trace::new(), "a", text(1, 70)), "b", text(1, 70)),
                "c",
                text(2, 70),
            ),
        )
        .gone_at_least(2),
        Case::new(
            "chat",
            bare(2),
            (0..5).fold(Trace::new(), |trace, n| chat(trace, n, &text(n, 40))),
        )
        .gone_at_least(3),
        Case::new(
            "streaming",
            bare(2),
            (0..5).fold(Trace::new(), |trace, n| {
                trace.ask(
                    Request::completion(text(n, 60))
                        .id(format!("req-{n}"))
                        .streamed(),
                )
            }),
        )
        .gone_at_least(3),
        Case::new(
            "requests without an id in between",
            bare(2),
            (0..8).fold(Trace::new(), |trace, n| {
                let request = Request::completion(text(n, 60));
                trace.ask(if n % 2 == 0 {
                    request.id(format!("req-{n}"))
                } else {
                    request
                })
            }),
        )
        .gone_at_least(3),
    ]
}

/// The host prompt cache.
fn host() -> Vec<Case> {
    let limited = |mib: &str| llama().args(["--cache-ram", mib, "-c", "4096", "--parallel", "2"]);
    vec![
        Case::new("default flags, 60 prompts", llama(), distinct(60, 50)),
        Case::new("host cache of 1 MiB", limited("1"), distinct(10, 300))
            .gone_at_least(2)
            .host_cache(),
        Case::new("host cache of 2 MiB", limited("2"), distinct(14, 400))
            .gone_at_least(2)
            .host_cache(),
        Case::new(
            "host entries within longer ones",
            limited("1"),
            (0..12).fold(Trace::new(), |trace, n| {
                ask(trace, n, text(n % 4, 100 + 60 * (n / 4) as usize))
            }),
        )
        .host_cache(),
    ]
}

/// A prompt keeps a part of its slot's content and replaces the rest.
fn truncation() -> Vec<Case> {
    let base = text(1, 40);
    let mut every = Trace::new();
    for at in [0, 1, 2, 20, 37, 38, 39, 40] {
        every = ask(every, format!("base-{at}"), base.clone());
        every = ask(
            every,
            format!("cut-{at}"),
            format!("{}{}", &base[..at], text(at as u64 + 100, 20)),
        );
    }
    vec![
        Case::new("truncation at many positions", bare(1), every)
            .gone_at_least(12)
            .prompts_return(),
        Case::new(
            "run again without the cache",
            bare(1),
            ask(Trace::new(), "a", text(1, 50)).ask(
                Request::completion(text(1, 50))
                    .id("req-b")
                    .with("cache_prompt", false),
            ),
        ),
        Case::new(
            "run again without the cache, in many batches",
            bare(1).args(["-b", "32", "-ub", "32"]),
            ask(
                ask(Trace::new(), "a", text(1, 100)).ask(
                    Request::completion(text(1, 100))
                        .id("req-b")
                        .with("cache_prompt", false),
                ),
                "c",
                text(1, 60),
            ),
        )
        .gone_at_least(2),
        Case::new(
            "many evaluations a prompt",
            bare(2).args(["-b", "64", "-ub", "32"]),
            distinct(5, 400),
        )
        .gone_at_least(3),
        Case::new(
            "erase",
            bare(2),
            distinct(2, 60).then(Step::Erase(0)).then(Step::Erase(1)),
        )
        .gone_at_least(2),
    ]
}

fn conversations() -> Vec<Case> {
    let interleaved = |talkers: u64, turns: usize| {
        let mut trace = Trace::new();
        for turn in 1..=turns {
            for talker in 0..talkers {
                trace = ask(trace, format!("{talker}.{turn}"), text(talker, 60 * turn));
            }
        }
        trace
    };
    vec![
        Case::new("3 conversations over 2 slots", bare(2), interleaved(3, 4))
            .gone_at_least(9)
            .prompts_return(),
        Case::new("5 conversations, default flags", llama(), interleaved(5, 3)).host_cache(),
        Case::new(
            "several prompts in one request",
            bare(4),
            (0..3).fold(Trace::new(), |trace, n| {
                let prompts = json!([text(10 * n, 50), text(10 * n + 1, 60)]);
                ask(trace, n, prompts)
            }),
        ),
    ]
}

/// KV that moves (cache reuse, context shift), or is removed by something other than a prompt.
fn moving() -> Vec<Case> {
    let (head, middle, tail) = (text(1, 30), text(2, 40), text(3, 50));
    vec![
        Case::new(
            "cache reuse: a chunk moves up",
            bare(1).args(["--cache-reuse", "16"]),
            ask(
                ask(Trace::new(), "long", format!("{head}{middle}{tail}")),
                "short",
                format!("{head}{tail}"),
            ),
        )
        .gone_at_least(1),
        Case::new(
            "cache reuse: the same again",
            bare(1).args(["--cache-reuse", "16"]),
            ask(
                ask(
                    ask(Trace::new(), "long", format!("{head}{middle}{tail}")),
                    "short",
                    format!("{head}{tail}"),
                ),
                "again",
                format!("{head}{tail}{middle}"),
            ),
        )
        .gone_at_least(1),
        Case::new(
            "context shift",
            llama().bare_slots(1).args(["-c", "256", "--context-shift"]),
            Trace::new()
                .ask(Request::completion(text(1, 100)).id("req-a").predict(300))
                .ask(
                    Request::completion(text(2, 100))
                        .id("req-b")
                        .predict(300)
                        .with("n_keep", 100),
                ),
        )
        .gone_at_least(1),
        Case::new(
            "save and restore",
            bare(2),
            ask(
                ask(Trace::new(), "a", text(1, 60)).then(Step::Save(0, "a.bin".into())),
                "b",
                text(2, 60),
            )
            .then(Step::Restore(1, "a.bin".into()))
            .then(Step::Erase(0)),
        )
        .gone_at_least(1),
        Case::new(
            "unified KV too full",
            llama().args([
                "--kv-unified",
                "--cache-ram",
                "0",
                "--parallel",
                "4",
                "-c",
                "512",
            ]),
            distinct(6, 200),
        )
        .gone_at_least(3),
        Case::new(
            "n > 1: copies",
            bare(4),
            (0..4).fold(Trace::new(), |trace, n| {
                trace.ask(
                    Request::completion(text(n, 60))
                        .id(format!("req-{n}"))
                        .with("n", 2),
                )
            }),
        ),
    ]
}

/// Every endpoint and every form of a prompt.
fn endpoints() -> Vec<Case> {
    let tokens = |seed: u64, length: usize| -> Vec<u32> {
        text(seed, length)
            .bytes()
            .map(|byte| 300 + u32::from(byte % 50))
            .collect()
    };
    let five = |request: &dyn Fn(u64) -> Request| {
        (0..5).fold(Trace::new(), |trace, n| {
            trace.ask(request(n).id(format!("req-{n}")))
        })
    };
    let infill = |n: u64| {
        Request::new(
            "/infill",
            json!({
                "input_prefix": text(n, 40), "input_suffix": text(n + 50, 20),
                "n_predict": 8, "temperature": 0, "seed": 1,
            }),
        )
    };
    let body = |n: u64, path: &str, field: &str, value: serde_json::Value| {
        Request::new(
            path,
            json!({field: value, "max_tokens": 8, "n_predict": 8, "temperature": 0, "seed": n}),
        )
    };
    vec![
        Case::new(
            "token arrays",
            bare(2),
            five(&|n| Request::completion(tokens(n, 50))),
        )
        .gone_at_least(3),
        Case::new(
            "mixed arrays",
            bare(2),
            five(&|n| {
                let mut mixed = vec![json!(text(n, 30))];
                mixed.extend(tokens(n, 10).into_iter().map(|token| json!(token)));
                mixed.push(json!(text(n + 9, 10)));
                Request::completion(mixed)
            }),
        )
        .gone_at_least(3),
        Case::new(
            "/v1/completions",
            bare(2),
            five(&|n| body(n, "/v1/completions", "prompt", json!(text(n, 60)))),
        )
        .gone_at_least(3),
        Case::new("infill", bare(2), five(&infill)).gone_at_least(3),
        Case::new(
            "infill: all its parts",
            bare(2),
            five(&|n| {
                infill(n).with("prompt", text(n + 60, 10)).with(
                    "input_extra",
                    json!([
                        {"filename": "one.rs", "text": text(n % 2, 30)},
                        {"filename": "myproject", "text": ""},
                        {"text": text(n + 70, 20)},
                    ]),
                )
            }),
        )
        .gone_at_least(3),
        Case::new(
            "infill: all its parts, with markers of files",
            bare(2).args([
                "--override-kv",
                "tokenizer.ggml.fim_rep_token_id=int:300",
                "--override-kv",
                "tokenizer.ggml.fim_sep_token_id=int:301",
            ]),
            five(&|n| {
                infill(n).with("prompt", text(n + 60, 10)).with(
                    "input_extra",
                    json!([
                        {"filename": "myproject", "text": text(n % 2, 30)},
                        {"filename": "filename", "text": ""},
                        {"text": text(n + 70, 20)},
                    ]),
                )
            }),
        )
        .gone_at_least(3),
        Case::new(
            "infill: mixed arrays, the suffix first",
            bare(2).args(["--spm-infill"]),
            five(&|n| {
                let prefix = json!([text(n, 20), 300 + n, 310, text(n + 9, 10)]);
                infill(n)
                    .with("input_prefix", prefix)
                    .with("input_suffix", tokens(n, 10))
            }),
        )
        .gone_at_least(3),
        Case::new(
            "infill: more than a batch",
            bare(2).args(["-b", "128", "-ub", "64"]),
            five(&|n| {
                infill(n)
                    .with("input_prefix", text(n, 200))
                    .with("input_suffix", text(n + 50, 100))
                    .with("prompt", text(n + 60, 10))
            }),
        )
        .gone_at_least(3),
        Case::new(
            "infill: more extra context than there is room for",
            // The server leaves room for a batch, so a slot of 1024 has room for about 512.
            bare(2).args(["-b", "512"]),
            five(&|n| {
                let long = json!([{"text": text(n, 400)}, {"text": text(n + 80, 300)}]);
                let short = json!([{"text": text(n + 90, 60)}]);
                infill(n).with("input_extra", if n == 1 { short } else { long })
            }),
        )
        .gone_at_least(3),
        Case::new(
            "chat with tools",
            bare(2).args(["--jinja"]),
            five(&|n| {
                Request::chat(&[("user", &text(n, 50))]).with(
                    "tools",
                    json!([{"type": "function", "function": {
                        "name": format!("tool{n}"), "description": text(n, 20),
                        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
                    }}]),
                )
            }),
        )
        .gone_at_least(3),
        Case::new(
            "/v1/messages",
            bare(2),
            five(&|n| {
                Request::new(
                    "/v1/messages",
                    json!({
                        "messages": [{"role": "user", "content": text(n, 60)}],
                        "max_tokens": 8, "temperature": 0,
                    }),
                )
            }),
        )
        .gone_at_least(3),
        Case::new(
            "/v1/responses",
            bare(2),
            five(&|n| {
                Request::new(
                    "/v1/responses",
                    json!({"input": text(n, 60), "max_output_tokens": 8, "temperature": 0}),
                )
            }),
        )
        .gone_at_least(3),
    ]
}

/// A request waits for a busy slot. A later request with the same prompt gets a free slot at once.
fn overtaken() -> Trace {
    let completion = |prompt, slot, id: &str| Request::completion(prompt).slot(slot).id(id);
    Trace::new()
        .then(Step::Begin(
            // Long enough that the other requests are sent meanwhile.
            completion(text(1, 60), 0, "req-busy")
                .predict(30_000)
                .streamed(),
        ))
        .then(Step::Queue(completion(text(2, 60), 0, "req-waits")))
        .ask(completion(text(2, 60), 1, "req-overtakes"))
        .then(Step::Release)
}

/// Two long slots, and the server's `/metrics`, which tell how many requests wait.
fn metered() -> Builder {
    llama().bare_slots(2).args(["-c", "65536", "--metrics"])
}

/// Requests that are refused, too long, or left by their clients.
fn endings() -> Vec<Case> {
    let rejected = |trace: Trace, id: &str, field: &str, value: serde_json::Value| {
        trace.ask(Request::completion(text(9, 20)).id(id).with(field, value))
    };
    vec![
        Case::new(
            "a prompt that is too long",
            bare(2),
            ask(ask(Trace::new(), "a", text(1, 60)), "long", text(2, 1500)),
        )
        .gone_at_least(1),
        Case::new(
            "rejected before it became a task",
            bare(2),
            rejected(
                rejected(
                    distinct(1, 60),
                    "req-grammar",
                    "grammar",
                    json!("root ::= ("),
                ),
                "req-type",
                // For other parameters, older servers ignore a value of the wrong type.
                "prompt",
                json!({"no": "text"}),
            ),
        )
        .gone_at_least(1),
        Case::new(
            "clients that leave before the answer",
            bare(2),
            (0..4).fold(distinct(2, 60), |trace, n| {
                trace.then(Step::Abandon(
                    Request::completion(text(100 + n, 600)).predict(50),
                    0,
                ))
            }),
        ),
        Case::new(
            "clients that leave during the answer",
            bare(2),
            (0..4).fold(Trace::new(), |trace, n| {
                trace.then(Step::Abandon(
                    Request::completion(text(n, 60))
                        .id(format!("req-{n}"))
                        .predict(200)
                        .streamed(),
                    3,
                ))
            }),
        )
        .gone_at_least(2),
        Case::new("equal prompts, the later one first", metered(), overtaken()).gone_at_least(1),
        Case::new(
            "equal prompts, and all of them gone",
            metered(),
            ask(ask(overtaken(), 8, text(8, 60)), 9, text(9, 60)),
        )
        .gone_at_least(3),
        Case::new(
            "speculative decoding with a draft model",
            drafted(bare(2)),
            long_answers(60),
        )
        .gone_at_least(3),
    ]
}

/// Adds a draft model.
fn drafted(server: Builder) -> Builder {
    let draft = Model::tiny(Arch::Draft);
    let draft = draft.path().to_string_lossy().into_owned();
    server.args([
        "-md".into(),
        draft,
        "--spec-type".into(),
        "draft-simple".into(),
    ])
}

/// Five unrelated prompts of `length` tokens, with answers in which drafts are accepted and rejected.
fn long_answers(length: usize) -> Trace {
    (0..5).fold(Trace::new(), |trace, n| {
        trace.ask(
            Request::completion(text(n, length))
                .id(format!("req-{n}"))
                .predict(40),
        )
    })
}

/// Models whose cache cannot go back to any position, only to checkpoints. There, nine
/// tenths of a prompt count as the whole.
fn other_models() -> Vec<Case> {
    let of = |arch, slots: u32| {
        Server::builder()
            .model(&Model::tiny(arch))
            .bare_slots(slots)
            .args(["-c", &(slots * 1024).to_string()])
    };
    let with_host = |arch| {
        Server::builder()
            .model(&Model::tiny(arch))
            .args(["-c", "4096"])
    };
    let growing = |turns: usize| {
        (1..=turns).fold(Trace::new(), |trace, turn| {
            ask(trace, turn, text(3, 70 * turn))
        })
    };
    let lengths = |lengths: &[usize]| {
        lengths.iter().fold(Trace::new(), |trace, &length| {
            ask(trace, length, text(length as u64, length))
        })
    };
    let long_answer = |length: usize| {
        Trace::new().ask(
            Request::completion(text(1, length))
                .id("req-long")
                .predict(200),
        )
    };
    let branches = || {
        let trunk = text(5, 150);
        (0..5).fold(Trace::new(), |trace, n| {
            ask(trace, n, format!("{trunk}{}", text(20 + n, 60)))
        })
    };
    let mut cases = vec![
        Case::new("sliding window", of(Arch::Gemma2, 2), distinct(6, 200)).gone_at_least(4),
        Case::new("recurrent", of(Arch::Mamba, 2), distinct(6, 200)).gone_at_least(4),
        Case::new(
            "sliding window: speculative decoding",
            drafted(of(Arch::Gemma2, 2)),
            long_answers(120),
        )
        .gone_at_least(3),
        Case::new(
            "recurrent: speculative decoding",
            drafted(of(Arch::Mamba, 2)),
            long_answers(120),
        )
        .gone_at_least(3),
    ];
    for (arch, names) in [
        (
            Arch::Gemma2,
            [
                "sliding window: a conversation that grows",
                "sliding window: prompts of many lengths",
                "sliding window: a long answer",
                "sliding window: a long answer to a short prompt",
                "sliding window: branches from a trunk",
                "sliding window: host prompt cache",
                "sliding window: conversation, host prompt cache",
            ],
        ),
        (
            Arch::Mamba,
            [
                "recurrent: a conversation that grows",
                "recurrent: prompts of many lengths",
                "recurrent: a long answer",
                "recurrent: a long answer to a short prompt",
                "recurrent: branches from a trunk",
                "recurrent: host prompt cache",
                "recurrent: conversation, host prompt cache",
            ],
        ),
    ] {
        cases.extend([
            Case::new(names[0], of(arch, 1), growing(6)),
            Case::new(
                names[1],
                of(arch, 8),
                lengths(&[10, 20, 36, 45, 60, 70, 130, 300]),
            ),
            Case::new(names[2], of(arch, 2), long_answer(100)),
            Case::new(names[3], of(arch, 2), long_answer(20)),
            Case::new(names[4], of(arch, 2), branches()),
            Case::new(names[5], with_host(arch), distinct(6, 90)).host_cache(),
            Case::new(names[6], with_host(arch), growing(4)).host_cache(),
        ]);
    }
    cases
}
