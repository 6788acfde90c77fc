//! LoRA adapters. The server chooses a slot by its tokens. It empties the slot if the slot worked under
//! other adapters than those that the request names.

use super::{Case, bare, llama, text};
use contextpilot_testbed::{Arch, Builder, Model, Request, Server, Step, Trace};
use serde_json::{Value, json};

/// Adapters by index and scale: those that a request names, or those that are set for requests that
/// name none.
type Named<'a> = &'a [(u32, f32)];

const NONE: Named = &[(0, 0.0)];
const A: Named = &[(0, 1.0)];
const WEAK_A: Named = &[(0, 0.5)];
const B: Named = &[(1, 1.0)];
const BOTH: Named = &[(0, 1.0), (1, 0.25)];

/// The tokens `#$` and `%&` of the tiny models.
const FIRST: [u32; 2] = [262, 263];
const SECOND: [u32; 2] = [264, 265];

fn list(named: Named) -> Value {
    let one = |&(id, scale): &(u32, f32)| json!({"id": id, "scale": scale});
    named.iter().map(one).collect()
}

/// Two ordinary adapters. Requests that name none get both.
fn two(server: Builder) -> Builder {
    let server = server.adapter(1, &[]).adapter(2, &[]);
    server.args(["--lora-init-without-apply"])
}

/// Two adapters that are activated by tokens, and an ordinary one. The traces first call [`set`] with
/// [`NONE`], so that requests that name none get none.
fn activated(server: Builder) -> Builder {
    let server = server.adapter(3, &FIRST).adapter(4, &SECOND);
    server.adapter(1, &[]).args(["--lora-init-without-apply"])
}

fn request(prompt: impl Into<Value>, named: Named) -> Request {
    let request = Request::completion(prompt);
    match named {
        [] => request,
        named => request.with("lora", list(named)),
    }
}

/// Adds a request with an id of its own.
fn ask(trace: Trace, prompt: impl Into<Value>, named: Named) -> Trace {
    let id = format!("req-{}", trace.steps.len());
    trace.ask(request(prompt, named).id(id))
}

/// The same, in this slot.
fn ask_in(trace: Trace, slot: u32, prompt: &str, named: Named) -> Trace {
    let id = format!("req-{}", trace.steps.len());
    trace.ask(request(prompt, named).slot(slot).id(id))
}

fn asked(all: &[(&str, Named)]) -> Trace {
    all.iter().fold(Trace::new(), |trace, (prompt, named)| {
        ask(trace, *prompt, named)
    })
}

fn set(trace: Trace, named: Named) -> Trace {
    trace.then(Step::Adapters(list(named)))
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = slots();
    cases.extend(unnamed());
    cases.extend(host());
    cases.extend(by_tokens());
    cases.extend(others());
    cases
}

fn slots() -> Vec<Case> {
    let (p, q) = (&*text(1, 60), &*text(2, 60));
    let longer = &*format!("{p}{}", text(3, 30));
    vec![
        Case::new(
            "adapters: others for an equal prompt",
            two(bare(1)),
            asked(&[(p, A), (p, A), (p, B), (p, B)]),
        )
        .gone_at_least(2),
        Case::new(
            "adapters: others, and back again",
            two(bare(1)),
            asked(&[(p, A), (p, B), (p, A), (longer, A), (longer, NONE), (p, A)]),
        )
        .prompts_return()
        .gone_at_least(4),
        Case::new(
            "adapters: other scales",
            two(bare(1)),
            asked(&[(p, A), (p, WEAK_A), (p, BOTH), (p, NONE), (p, BOTH)]),
        )
        .prompts_return()
        .gone_at_least(4),
        Case::new(
            "adapters: an equal prompt in each slot",
            two(bare(2)),
            ask_in(ask_in(ask_in(Trace::new(), 0, p, A), 1, p, B), 0, longer, A),
        ),
        Case::new(
            "adapters: one slot of two goes on under others",
            two(bare(2)),
            ask_in(ask_in(ask_in(Trace::new(), 0, p, A), 1, p, B), 1, longer, A),
        )
        .gone_at_least(1),
        Case::new(
            "adapters: two conversations over two slots",
            two(bare(2)),
            (1..=4).fold(Trace::new(), |trace, turn| {
                let trace = ask(trace, text(1, 50 * turn), A);
                ask(trace, text(2, 50 * turn), B)
            }),
        ),
        Case::new(
            "adapters: two conversations in one slot",
            two(bare(1)),
            (1..=3).fold(Trace::new(), |trace, turn| {
                let trace = ask(trace, text(1, 50 * turn), A);
                ask(trace, text(2, 50 * turn), B)
            }),
        )
        .prompts_return()
        .gone_at_least(5),
        Case::new(
            "adapters: one conversation under two",
            two(bare(2)),
            (1..=4).fold(Trace::new(), |trace, turn| {
                ask(trace, text(1, 50 * turn), if turn % 2 == 1 { A } else { B })
            }),
        )
        .prompts_return()
        .gone_at_least(3),
        Case::new(
            "adapters: many evaluations a prompt",
            two(bare(2).args(["-b", "64", "-ub", "32"])),
            asked(&[
                (&text(1, 400), A),
                (&text(1, 400), B),
                (&text(1, 380), A),
                (&text(2, 400), B),
            ]),
        )
        .prompts_return()
        .gone_at_least(1),
        Case::new(
            "adapters: erased, saved and restored",
            two(bare(2)),
            ask_in(
                ask_in(ask_in(Trace::new(), 0, p, A), 1, q, B)
                    .then(Step::Save(0, "a.bin".into()))
                    // The slot worked under B, so a request that names A cannot reuse it.
                    .then(Step::Restore(1, "a.bin".into()))
                    .then(Step::Erase(0)),
                0,
                q,
                A,
            ),
        )
        .gone_at_least(2),
    ]
}

/// Requests that name no adapters, mixed with requests that name some.
fn unnamed() -> Vec<Case> {
    let (p, q) = (&*text(1, 60), &*text(2, 60));
    let longer = &*format!("{p}{}", text(3, 30));
    vec![
        Case::new(
            "adapters: named, and then not",
            two(bare(1)),
            asked(&[(p, A), (p, &[]), (longer, &[])]),
        )
        .gone_at_least(1),
        Case::new(
            "adapters: not named, and then named",
            two(bare(1)),
            asked(&[(p, &[]), (p, A), (p, &[])]),
        )
        .prompts_return(),
        Case::new(
            "adapters: set for all between requests",
            two(bare(1)),
            [A, NONE, B, A].iter().fold(Trace::new(), |trace, named| {
                ask(ask(set(trace, named), p, &[]), longer, &[])
            }),
        )
        .prompts_return(),
        Case::new(
            "adapters: set for all, and nothing more",
            two(bare(1)),
            set(ask(set(Trace::new(), NONE), p, &[]), A),
        ),
        Case::new(
            "adapters: set to what is named",
            two(bare(2)),
            ask(ask(ask(set(Trace::new(), A), p, A), p, &[]), q, NONE),
        ),
        Case::new(
            "adapters: too long a prompt that names none",
            two(bare(1)),
            ask(ask(ask(Trace::new(), p, &[]), p, A), text(9, 1500), &[]),
        )
        .gone_at_least(2),
        Case::new(
            "adapters: too long a prompt that names others",
            two(bare(1)),
            ask(ask(Trace::new(), p, A), text(9, 1500), B),
        )
        .gone_at_least(2),
        Case::new(
            "adapters: named where there are none",
            bare(1),
            asked(&[(p, A), (p, B), (longer, &[]), (q, A)]),
        )
        .gone_at_least(3),
    ]
}

/// The host prompt cache. It does not store under which adapters an entry was evaluated.
fn host() -> Vec<Case> {
    let one = || two(llama().args(["--parallel", "1", "-c", "2048"]));
    let (p, q, r) = (&*text(1, 60), &*text(2, 60), &*text(3, 60));
    let longer = &*format!("{p}{}", text(4, 30));
    vec![
        Case::new(
            "adapters: from the host cache, under the same",
            one(),
            asked(&[(p, A), (q, B), (r, A), (longer, A)]),
        )
        .host_cache(),
        Case::new(
            "adapters: from the host cache, under others",
            one(),
            asked(&[(p, A), (q, B), (longer, B), (r, A)]),
        )
        .host_cache()
        .prompts_return()
        .gone_at_least(1),
        Case::new(
            "adapters: loaded from the host cache and thrown away",
            one(),
            asked(&[(p, A), (q, B), (longer, A), (q, A)]),
        )
        .host_cache()
        .prompts_return(),
        Case::new(
            "adapters: default flags",
            two(llama()),
            (0..6).fold(Trace::new(), |trace, n| {
                let named = [A, B, &[]][n % 3];
                ask(trace, text((n / 4) as u64, 60 + n), named)
            }),
        )
        .host_cache()
        .prompts_return(),
        Case::new(
            "adapters: host cache of 1 MiB",
            two(llama().args(["--cache-ram", "1", "-c", "4096", "--parallel", "2"])),
            (0..6).fold(Trace::new(), |trace, n| {
                ask(trace, text(n % 4, 500), if n % 2 == 0 { A } else { B })
            }),
        )
        .host_cache()
        .prompts_return(),
    ]
}

/// Adapters that are activated by tokens in the prompt, of servers since September 2025.
fn by_tokens() -> Vec<Case> {
    const ORDINARY: Named = &[(2, 1.0)];
    let start = || set(Trace::new(), NONE);
    let then = |trace: Trace, all: &[(&str, Named)]| {
        all.iter()
            .fold(trace, |trace, (prompt, named)| ask(trace, *prompt, named))
    };
    let p = &*text(1, 60);
    let first = &*format!("{p}#${}", text(2, 40));
    let second = &*format!("{p}%&{}", text(3, 40));
    let twice = &*format!("{first}#${}", text(4, 20));
    let at_the_front = &*format!("#${}", text(5, 40));
    vec![
        Case::new(
            "activated adapters: after a prompt without",
            activated(bare(1)),
            then(start(), &[(p, NONE), (first, A), (first, A), (second, B)]),
        )
        .gone_at_least(1),
        Case::new(
            "activated adapters: and back again",
            activated(bare(1)),
            then(start(), &[(first, A), (p, NONE), (first, A), (p, &[])]),
        )
        .prompts_return(),
        Case::new(
            "activated adapters: an ordinary one between",
            activated(bare(1)),
            then(
                start(),
                &[(first, A), (first, ORDINARY), (first, B), (p, A)],
            ),
        )
        .prompts_return(),
        Case::new(
            "activated adapters: never activated",
            activated(bare(1)),
            then(start(), &[(p, NONE), (p, A), (second, A), (p, NONE)]),
        )
        .prompts_return(),
        Case::new(
            "activated adapters: activated twice, and at the front",
            activated(bare(1)),
            then(
                start(),
                &[(first, A), (twice, A), (first, A), (at_the_front, A)],
            ),
        )
        .prompts_return()
        .gone_at_least(1),
        Case::new(
            "activated adapters: two at once are refused",
            activated(bare(1)),
            then(start(), &[(p, NONE), (first, BOTH), (p, NONE)]),
        )
        .prompts_return(),
        Case::new(
            "activated adapters: for all",
            activated(bare(1)),
            then(
                set(Trace::new(), A),
                &[(first, &[]), (p, &[]), (first, &[])],
            ),
        )
        .prompts_return(),
        Case::new(
            "activated adapters: default flags",
            activated(llama()),
            then(
                start(),
                &[
                    (p, NONE),
                    (first, A),
                    (second, B),
                    (twice, A),
                    (p, ORDINARY),
                ],
            ),
        )
        .host_cache()
        .prompts_return(),
    ]
}

/// Other endpoints, other models.
fn others() -> Vec<Case> {
    let (p, q) = (&*text(1, 60), &*text(2, 60));
    let window = |server: Builder| two(server.args(["-c", "4096"]));
    let gemma = || Server::builder().model(&Model::tiny(Arch::Gemma2));
    vec![
        Case::new(
            "adapters: chat, streamed",
            two(bare(1)),
            [A, A, B, NONE]
                .iter()
                .enumerate()
                .fold(Trace::new(), |trace, (n, named)| {
                    let request = Request::chat(&[("user", p)]).with("lora", list(named));
                    trace.ask(request.streamed().id(format!("req-{n}")))
                }),
        )
        .gone_at_least(3),
        Case::new(
            "adapters: /v1/messages names none",
            two(bare(1)),
            [A, B]
                .iter()
                .enumerate()
                .fold(Trace::new(), |trace, (n, named)| {
                    let body = json!({
                        "messages": [{"role": "user", "content": p}],
                        "max_tokens": 8, "temperature": 0, "lora": list(named),
                    });
                    trace.ask(Request::new("/v1/messages", body).id(format!("req-{n}")))
                }),
        ),
        Case::new(
            "adapters: requests without an id in between",
            two(bare(1)),
            ask(ask(Trace::new(), p, A).ask(request(p, B)), q, B).ask(request(q, A)),
        )
        .gone_at_least(2),
        Case::new(
            "adapters: several prompts in one request",
            two(bare(4)),
            [A, B].iter().fold(Trace::new(), |trace, named| {
                ask(trace, json!([p, q]), named)
            }),
        )
        .gone_at_least(1),
        Case::new(
            "adapters: n > 1",
            two(bare(4)),
            [A, B, A]
                .iter()
                .enumerate()
                .fold(Trace::new(), |trace, (n, named)| {
                    let request = request(p, named).with("n", 2);
                    trace.ask(request.id(format!("req-{n}")))
                }),
        )
        .prompts_return(),
        Case::new(
            "adapters: sliding window",
            window(gemma().bare_slots(2)),
            asked(&[
                (&text(1, 100), A),
                (&text(1, 120), A),
                (&text(1, 120), B),
                (&text(2, 100), B),
                (&text(2, 110), B),
            ]),
        )
        .gone_at_least(2),
        Case::new(
            "adapters: sliding window, host cache",
            window(gemma().args(["--parallel", "2"])),
            asked(&[
                (&text(1, 100), A),
                (&text(2, 100), B),
                (&text(3, 100), A),
                (&text(1, 130), A),
                (&text(2, 130), A),
            ]),
        )
        .host_cache()
        .prompts_return(),
    ]
}
