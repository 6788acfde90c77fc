//! Prompts with images and sounds.
//!
//! For llama-server two images are equal if their *files* have the same hash
//! (`server_tokens::get_common_prefix`), whatever the encoder makes of them.
//!
//! No case saves a slot with an image to a file and restores it. The file names the
//! image and does not contain its rows. So the hook does not know the restored
//! content, and counts it as not cached.

#[path = "../../support/media.rs"]
mod pictures;
#[path = "../../support/sound.rs"]
mod sound;

use super::{Case, bare, llama};
use crate::prompts::text;
use contextpilot_testbed::{Arch, Builder, Model, ProjectorKind, Request, Server, Trace};
use pictures::{base64, picture};
use serde_json::{Value, json};

/// Models that place the rows of an image differently: one position per row, or M-RoPE. What the hook
/// sees of an image depends on that.
const KINDS: [(Arch, ProjectorKind, [&str; 8]); 2] = [
    (
        Arch::Llama,
        ProjectorKind::Llava,
        [
            "images: the same again",
            "images: two of the same size, same text",
            "images: with text-only prompts in between",
            "images: a conversation that grows",
            "images: several in one prompt",
            "images: cut between batches",
            "images: default flags",
            "images: run again without the cache, cut between batches",
        ],
    ),
    (
        Arch::Qwen2Vl,
        ProjectorKind::Qwen2Vl,
        [
            "M-RoPE: the same image again",
            "M-RoPE: two images of the same size, same text",
            "M-RoPE: with text-only prompts in between",
            "M-RoPE: a conversation that grows",
            "M-RoPE: several images in one prompt",
            "M-RoPE: images cut between batches",
            "M-RoPE: default flags",
            "M-RoPE: run again without the cache, cut between batches",
        ],
    ),
];

pub(super) fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = KINDS
        .into_iter()
        .flat_map(|(arch, kind, names)| of(arch, kind, names))
        .collect();
    all.extend(llava_only());
    all.extend(sounds());
    all
}

fn of(arch: Arch, kind: ProjectorKind, names: [&'static str; 8]) -> Vec<Case> {
    let with_host = || Server::builder().model(&Model::tiny(arch)).projector(kind);
    let slots = |slots: u32| {
        with_host()
            .bare_slots(slots)
            .args(["-c", &(slots * 1024).to_string()])
    };
    let same = || [text(1, 20).into(), image(1, 56), text(2, 20).into()];
    let other = || [text(1, 20).into(), image(2, 56), text(2, 20).into()];
    let words = |seed| [Value::from(text(seed, 60))];

    let again = look(look(Trace::new(), "a", same()), "b", same());
    // The same text before another image, then the first image again.
    let different = look(
        look(look(Trace::new(), "a", same()), "b", other()),
        "c",
        same(),
    );
    // The same prompt is evaluated again in the same slot, without reuse.
    let anew = look(Trace::new(), "a", same()).ask(
        chat(same().into_iter().collect())
            .id("req-b")
            .with("cache_prompt", false),
    );
    let between = (0..3).fold(Trace::new(), |trace, n| {
        let trace = look(trace, format!("image-{n}"), same());
        let trace = look(trace, format!("other-{n}"), other());
        look(trace, format!("text-{n}"), words(10 + n))
    });
    let several =
        [(1, 2), (1, 3), (3, 1)]
            .into_iter()
            .fold(Trace::new(), |trace, (first, second)| {
                let parts = [
                    image(first, 56),
                    text(1, 5).into(),
                    image(second, 112),
                    image(9, 28),
                    text(first, 30).into(),
                ];
                look(trace, format!("{first}-{second}"), parts)
            });
    let distinct = (0..6).fold(Trace::new(), |trace, n| {
        let parts = [text(n % 2, 30).into(), image(n, 56), text(n, 30).into()];
        look(trace, n, parts)
    });

    vec![
        Case::new(names[0], slots(1), again.clone()),
        Case::new(names[1], slots(1), different.clone())
            .gone_at_least(2)
            .prompts_return(),
        Case::new(names[2], slots(2), between)
            .gone_at_least(5)
            .prompts_return(),
        Case::new(names[3], slots(2), conversations(1, 4)),
        Case::new(names[4], slots(1), several).gone_at_least(2),
        // An image has 16 or eight rows, so it is cut between batches.
        Case::new(names[5], slots(1).args(["-b", "6", "-ub", "6"]), different)
            .gone_at_least(2)
            .prompts_return(),
        Case::new(names[6], with_host(), distinct),
        Case::new(names[7], slots(1).args(["-b", "6", "-ub", "6"]), anew),
    ]
}

/// Cases that do not depend on how rows are placed.
fn llava_only() -> Vec<Case> {
    let images = |server: Builder| server.projector(ProjectorKind::Llava);
    let parts = |n: u64| [text(n, 40).into(), image(n, 56), text(n, 200).into()];
    let many = (0..12).fold(Trace::new(), |trace, n| look(trace, n, parts(n)));
    let marked = (0..4).fold(Trace::new(), |trace, n| {
        let prompt = json!({
            "prompt_string": format!("{}<image>{}", text(1, 30), text(n / 2, 30)),
            "multimodal_data": [base64(&picture(n % 2, 56))],
        });
        trace.ask(Request::completion(prompt).id(format!("req-{n}")))
    });
    let copies = (0..3).fold(Trace::new(), |trace, n| {
        trace.ask(
            chat(parts(n).into_iter().collect())
                .id(format!("req-{n}"))
                .with("n", 2),
        )
    });
    // The same pixels in a file with another header.
    let pixels = |header| {
        let file = [header, &picture(1, 56)[PICTURE_HEADER..]].concat();
        [text(1, 20).into(), image_file(&file), text(2, 20).into()]
    };
    let files = look(
        look(Trace::new(), "a", pixels(b"P6 56 56 255\n")),
        "b",
        pixels(b"P6\n56\n56\n255\n"),
    );
    vec![
        Case::new("images: one picture in two files", images(bare(1)), files).gone_at_least(1),
        Case::new(
            "images: 3 conversations over 2 slots",
            images(bare(2)),
            conversations(3, 2),
        )
        .gone_at_least(4)
        .prompts_return(),
        Case::new(
            "images: host cache of 1 MiB",
            images(llama().args(["--cache-ram", "1", "-c", "4096", "--parallel", "2"])),
            many,
        )
        .gone_at_least(4)
        .host_cache(),
        Case::new(
            "images: /completion",
            images(bare(1)).env("LLAMA_MEDIA_MARKER", "<image>"),
            marked,
        )
        .gone_at_least(3),
        Case::new(
            "images: sliding window",
            images(
                Server::builder()
                    .model(&Model::tiny(Arch::Gemma2))
                    .bare_slots(2)
                    .args(["-c", "2048"]),
            ),
            conversations(3, 3),
        )
        .gone_at_least(6)
        .prompts_return(),
        Case::new(
            "images: recurrent",
            images(
                Server::builder()
                    .model(&Model::tiny(Arch::Mamba))
                    .bare_slots(2)
                    .args(["-c", "2048"]),
            ),
            conversations(3, 3),
        )
        .gone_at_least(6)
        .prompts_return(),
        Case::new("images: n > 1", images(bare(4)), copies),
    ]
}

/// A sound has 16 rows.
fn sounds() -> Vec<Case> {
    let server = |arch, kind| {
        let server = Server::builder().model(&Model::tiny(arch)).projector(kind);
        server.bare_slots(1).args(["-c", "1024"])
    };
    let about = |seed| [text(1, 20).into(), heard(seed), text(2, 20).into()];
    let different = look(look(Trace::new(), "a", about(1)), "b", about(2));
    let different = look(different, "c", about(1));
    let both = (0..4).fold(Trace::new(), |trace, n: u64| {
        let parts = [
            heard(n % 2),
            text(1, 5).into(),
            image(n / 2, 56),
            text(n, 30).into(),
        ];
        look(trace, n, parts)
    });
    vec![
        Case::new(
            "sounds: two of the same length, cut between batches",
            server(Arch::Llama, ProjectorKind::Ultravox).args(["-b", "6", "-ub", "6"]),
            different.clone(),
        )
        .gone_at_least(2)
        .prompts_return(),
        Case::new(
            "sounds: M-RoPE",
            server(Arch::Qwen2Vl, ProjectorKind::Ultravox),
            different,
        )
        .gone_at_least(2)
        .prompts_return(),
        Case::new(
            "sounds: beside images",
            server(Arch::Llama, ProjectorKind::LlavaUltravox),
            both,
        )
        .gone_at_least(2),
    ]
}

/// A sound of five seconds, for a message.
fn heard(seed: u64) -> Value {
    let data = base64(&sound::sound(seed, 5));
    json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
}

/// Conversations about one image each. They take turns.
fn conversations(talkers: u64, turns: usize) -> Trace {
    let mut trace = Trace::new();
    for turn in 1..=turns {
        for talker in 0..talkers {
            let mut messages = vec![json!({
                "role": "user", "content": content(vec![text(talker, 20).into(), image(talker, 56)]),
            })];
            for said in 1..turn as u64 {
                messages.extend([
                    json!({"role": "assistant", "content": text(said, 15)}),
                    json!({"role": "user", "content": text(100 * said + talker, 30)}),
                ]);
            }
            let request = Request::chat(&[]).with("messages", messages);
            trace = trace.ask(request.id(format!("req-{talker}.{turn}")));
        }
    }
    trace
}

/// Adds a chat whose message consists of these parts: texts and images.
fn look(trace: Trace, id: impl std::fmt::Display, parts: impl IntoIterator<Item = Value>) -> Trace {
    trace.ask(chat(parts.into_iter().collect()).id(format!("req-{id}")))
}

fn chat(parts: Vec<Value>) -> Request {
    let message = json!({"role": "user", "content": content(parts)});
    Request::chat(&[]).with("messages", vec![message])
}

fn content(parts: Vec<Value>) -> Value {
    let typed = parts.into_iter().map(|part| match part {
        Value::String(text) => json!({"type": "text", "text": text}),
        image => image,
    });
    typed.collect()
}

/// An image as a part of a message.
fn image(seed: u64, side: u32) -> Value {
    image_file(&picture(seed, side))
}

fn image_file(file: &[u8]) -> Value {
    let data = base64(file);
    let url = format!("data:image/x-portable-pixmap;base64,{data}");
    json!({"type": "image_url", "image_url": {"url": url}})
}

/// The number of bytes before the pixels of a [`picture`] whose side has two digits.
const PICTURE_HEADER: usize = 13;
