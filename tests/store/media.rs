//! Prompts with images and sounds.

mod encodings;
mod hybrids;
mod random;
mod screenshots;
mod sounds;

use contextpilot_control::{Evaluated, Evaluation};
use contextpilot_testbed::{Arch, Builder, Model, ProjectorKind, Request, Server, until};
use serde_json::json;

use super::pictures::{base64, picture};
use super::random::{ROUNDING, difference, steps};
use super::sound::sound;
use super::{SIGKILL, Stored, folder, one_slot, started};

/// What stands for an image or a sound in a prompt.
const MARK: &str = "<image>";

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// So many letters, by a seed.
    Text(u64, usize),
    /// By a seed, with sides of so many pixels.
    Image(u64, u32),
    /// By a seed, so many seconds.
    Sound(u64, u32),
}
use Part::{Image, Sound, Text};

/// The side of an image that has [`ROWS`] with each projector.
const SIDE: u32 = 112;

/// Rows of an image of that size.
const ROWS: u64 = 16;

fn with_images(builder: Builder, kind: ProjectorKind) -> Builder {
    builder.projector(kind).env("LLAMA_MEDIA_MARKER", MARK)
}

fn llava() -> Builder {
    with_images(one_slot(), ProjectorKind::Llava)
}

/// The rows of an image share a position, in a grid (M-RoPE).
fn qwen() -> Builder {
    let builder = Server::builder()
        .model(&Model::tiny(Arch::Qwen2Vl))
        .bare_slots(1)
        .args(["-c", "8192"]);
    with_images(builder, ProjectorKind::Qwen2Vl)
}

/// Each kind of places that an image's rows may have.
fn kinds() -> [Builder; 2] {
    [llava(), qwen()]
}

/// The same, with the tokens that the server puts before and behind an image: `<|vision_start|>` and `<|vision_end|>` are
/// letters to a tiny model.
fn framed_kinds() -> [(Builder, u64, u64); 2] {
    [(llava(), 0, 0), (qwen(), 16, 14)]
}

fn letters(seed: u64, count: usize) -> String {
    let file = picture(seed, count.div_ceil(3) as u32 + 1);
    let letters = file.iter().rev().take(count);
    letters.map(|byte| char::from(*byte)).collect()
}

fn asking(parts: &[Part]) -> Request {
    let text: String = parts
        .iter()
        .map(|part| match part {
            Text(seed, count) => letters(*seed, *count),
            Image(..) | Sound(..) => MARK.to_owned(),
        })
        .collect();
    let media: Vec<String> = parts
        .iter()
        .filter_map(|part| match part {
            Image(seed, side) => Some(base64(&picture(*seed, *side))),
            Sound(seed, seconds) => Some(base64(&sound(*seed, *seconds))),
            Text(..) => None,
        })
        .collect();
    let prompt = json!({"prompt_string": text, "multimodal_data": media});
    Request::completion(prompt)
        .predict(4)
        .with("n_probs", 8)
        .with("return_tokens", true)
}

/// Both servers say the same.
#[track_caller]
fn ask(stored: &mut Stored, plain: &Server, parts: &[Part]) -> Evaluation {
    send(stored, plain, &asking(parts))
}

/// As [`ask`], for any request.
#[track_caller]
fn send(stored: &mut Stored, plain: &Server, request: &Request) -> Evaluation {
    stored.next += 1;
    let id = format!("req-{}", stored.next);
    let ours = stored.server.send(&request.clone().id(&*id)).unwrap();
    let theirs = plain.send(request).unwrap();
    let [ours, theirs] = [ours, theirs].map(|answer| steps(&answer.json().unwrap()));
    let account = until("the request's account", || {
        let latest = stored.control.latest(1).unwrap();
        let named = |one: &Evaluated| one.id.as_deref() == Some(&*id);
        latest.requests.into_iter().find(named)
    });
    let account = account.evaluation;
    let difference = difference(&ours, &theirs);
    let is_same = !ours.is_empty() && difference < ROUNDING;
    assert!(is_same, "{id}: {difference}; {account:?}");
    account
}

/// One server evaluates the prompt in batches of one size, and the next one, of another size, loads it.
#[track_caller]
fn is_loaded_whatever_the_batches(kind: &Builder, prompt: &[Part]) {
    for (batch, again) in [("12", "2048"), ("2048", "12"), ("12", "9")] {
        let folder = folder();
        let flags = |batch| kind.clone().args(["-b", batch, "-ub", batch]);
        let plain = started(&flags("2048"));
        let mut first = Stored::start(&flags(batch), folder.path());
        ask(&mut first, &plain, prompt);
        first.end();
        let mut second = Stored::start(&flags(again), folder.path());
        let account = ask(&mut second, &plain, prompt);
        assert_eq!(
            account.evaluated, 1,
            "{prompt:?} {batch} {again}: {account:?}"
        );
    }
}

/// Prompts that come again have as many drafts, and as many of them accepted, as without a store; of the first one, `rest` tokens are
/// evaluated then.
#[track_caller]
fn drafts_as_if_evaluated(what: &str, builder: &Builder, prompts: [[Part; 3]; 2], rest: u64) {
    let folder = folder();
    let mut stored = Stored::start(builder, folder.path());
    let plain = started(builder);
    let mut made = 0;
    for prompt in [prompts, prompts].concat() {
        let says = |server: &Server| {
            let answer = server.send(&asking(&prompt).predict(24)).unwrap();
            let value = answer.json().unwrap();
            let drafted = ["draft_n", "draft_n_accepted"];
            let drafted = drafted.map(|name| value["timings"][name].as_u64().unwrap_or(0));
            (steps(&value), drafted)
        };
        let ((ours, drafts), (theirs, theirs_drafts)) = (says(&stored.server), says(&plain));
        let is_same = !ours.is_empty() && difference(&ours, &theirs) < ROUNDING;
        assert!(is_same, "{what}: {prompt:?}");
        assert_eq!(drafts, theirs_drafts, "{what}: {prompt:?}");
        made += drafts[0];
    }
    assert!(made > 0, "{what}");
    let account = ask(&mut stored, &plain, &prompts[0]);
    assert_eq!(account.evaluated, rest, "{what}: {account:?}");
    assert_eq!(stored.figures().refused, [""; 0], "{what}");
}

const TEA: [Part; 3] = [Text(1, 100), Image(1, SIDE), Text(2, 200)];
const SEA: [Part; 3] = [Text(3, 80), Image(2, SIDE), Text(4, 100)];

#[test]
fn a_prompt_with_an_image_is_loaded_but_for_its_last_token() {
    for (kind, _, behind) in framed_kinds() {
        let folder = folder();
        let mut stored = Stored::start(&kind, folder.path());
        let plain = started(&kind);
        let first = ask(&mut stored, &plain, &TEA);
        assert_eq!(first.from.store, 0);
        ask(&mut stored, &plain, &SEA);
        let again = ask(&mut stored, &plain, &TEA);
        assert_eq!(again.evaluated, 1, "{again:?}");
        assert_eq!(again.prompt_tokens, first.prompt_tokens);
        // The same text before and behind another image. The server has the first 100 letters in its slot.
        let other = [Text(1, 100), Image(9, SIDE), Text(2, 200)];
        let other = ask(&mut stored, &plain, &other);
        assert_eq!(other.evaluated, ROWS + behind + 200, "{other:?}");
        let figures = stored.figures();
        assert_eq!(figures.refused, [""; 0]);
        assert_eq!(figures.problem, None);
    }
}

#[test]
fn the_next_server_has_what_stands_behind_images_also_after_a_kill() {
    for kind in kinds() {
        let folder = folder();
        let mut first = Stored::start(&kind, folder.path());
        let plain = started(&kind);
        ask(&mut first, &plain, &TEA);
        ask(&mut first, &plain, &SEA);
        first.await_written();
        first.server.stop(SIGKILL).unwrap();
        let mut second = Stored::start(&kind, folder.path());
        assert_eq!(ask(&mut second, &plain, &TEA).evaluated, 1);
        second.end();
        let mut third = Stored::start(&kind, folder.path());
        assert_eq!(ask(&mut third, &plain, &TEA).evaluated, 1);
    }
}

/// The server's batches are smaller than an image, and some of them are whole texts.
#[test]
fn an_image_is_whole_or_it_is_not_there_whatever_batches_it_is_evaluated_in() {
    for kind in kinds() {
        is_loaded_whatever_the_batches(&kind, &TEA);
    }
}

/// A branch behind a second image, or at it: the engine holds an image already when the rest is loaded.
#[test]
fn prompts_that_part_behind_an_image_are_loaded_to_where_they_part() {
    for kind in kinds() {
        let folder = folder();
        let mut stored = Stored::start(&kind, folder.path());
        let plain = started(&kind);
        let with = |end: &[Part]| [&TEA[..], end].concat();
        let [one, two] = [5, 6].map(|seed| with(&[Image(seed, SIDE), Text(seed, 150)]));
        let three = with(&[Text(7, 150)]);
        for prompt in [&one, &two, &three] {
            ask(&mut stored, &plain, prompt);
            ask(&mut stored, &plain, &SEA);
        }
        for prompt in [&one, &two, &three, &one, &two] {
            let account = ask(&mut stored, &plain, prompt);
            assert_eq!(account.evaluated, 1, "{prompt:?}: {account:?}");
            ask(&mut stored, &plain, &SEA);
        }
        assert_eq!(stored.figures().failed_loads, 0);
    }
}

/// Its rows may be the same numbers, but not where they stand.
#[test]
fn an_image_of_one_colour_is_another_one_if_it_is_turned() {
    let folder = folder();
    let mut stored = Stored::start(&qwen(), folder.path());
    let plain = started(&qwen());
    let asking = |width: u32, height: u32| {
        let mut file = format!("P6 {width} {height} 255\n").into_bytes();
        file.resize(file.len() + (3 * width * height) as usize, b'q');
        let prompt = format!("{}{MARK}{}", letters(1, 40), letters(2, 40));
        let prompt = json!({"prompt_string": prompt, "multimodal_data": [base64(&file)]});
        Request::completion(prompt).predict(4).with("n_probs", 8)
    };
    let (lying, upright) = (asking(224, 56), asking(56, 224));
    for (request, evaluated) in [
        (&lying, None),
        (&upright, Some(16 + 14 + 40)),
        (&lying, Some(1)),
    ] {
        let account = send(&mut stored, &plain, request);
        if let Some(evaluated) = evaluated {
            assert_eq!(account.evaluated, evaluated, "{account:?}");
        }
        ask(&mut stored, &plain, &SEA);
    }
}

/// A list of images that grows, and loses its first one from some length on; another prompt takes the slot between two turns.
#[test]
fn a_growing_list_of_images_is_loaded_as_far_as_it_is_the_same() {
    for (kind, before, behind) in framed_kinds() {
        let one = before + ROWS + behind + 40;
        let folder = folder();
        let mut stored = Stored::start(&kind, folder.path());
        let plain = started(&kind);
        let list = |from: u64, to: u64| {
            let mut parts = vec![Text(20, 60)];
            parts.extend((from..to).flat_map(|seed| [Image(seed, SIDE), Text(seed, 40)]));
            parts
        };
        for end in 1..8_u64 {
            let begin = end.saturating_sub(5);
            let account = ask(&mut stored, &plain, &list(begin, end));
            ask(&mut stored, &plain, &SEA);
            let new = match (begin, end) {
                (0, 1) => 60 + one,
                (0, _) => one,
                // All of it stands elsewhere.
                _ => 5 * one,
            };
            assert!(
                account.evaluated <= new + 1,
                "{end}: {new} {}",
                account.evaluated
            );
        }
        stored.end();
        let mut stored = Stored::start(&kind, folder.path());
        for end in [7, 5, 3] {
            let account = ask(&mut stored, &plain, &list(u64::saturating_sub(end, 5), end));
            assert_eq!(account.evaluated, 1, "{end}: {account:?}");
        }
    }
}

/// A draft only guesses: it guesses as well as without a store. (Its own context lacks the images.)
#[test]
fn a_draft_model_guesses_as_well_behind_images() {
    let draft = Model::tiny(Arch::Llama);
    let builder = llava()
        .args(["-md".into(), draft.path().as_os_str().to_owned()])
        .args(["--spec-type", "draft-simple"]);
    let folder = folder();
    let mut stored = Stored::start(&builder, folder.path());
    let plain = started(&builder);
    for prompt in [TEA, SEA, TEA, SEA] {
        let says = |server: &Server| {
            let answer = server.send(&asking(&prompt).predict(24)).unwrap();
            let value = answer.json().unwrap();
            let drafted = ["draft_n", "draft_n_accepted"];
            let drafted = drafted.map(|name| value["timings"][name].as_u64().unwrap());
            (steps(&value), drafted)
        };
        let ((ours, our_drafts), (theirs, their_drafts)) = (says(&stored.server), says(&plain));
        assert!(difference(&ours, &theirs) < ROUNDING, "{prompt:?}");
        assert!(our_drafts[1] > 0);
        assert_eq!(our_drafts, their_drafts, "{prompt:?}");
    }
    let account = ask(&mut stored, &plain, &TEA);
    assert_eq!(account.evaluated, 1, "{account:?}");
}

/// The encoder gives the same rows, whatever it encodes beside them.
#[test]
fn an_image_among_others_is_the_same_image() {
    for kind in kinds() {
        let folder = folder();
        let mut first = Stored::start(&kind, folder.path());
        let plain = started(&kind);
        let all = [
            Text(1, 40),
            Image(1, SIDE),
            Image(2, SIDE),
            Image(3, SIDE),
            Text(2, 90),
        ];
        ask(&mut first, &plain, &all);
        first.end();
        let mut second = Stored::start(&kind, folder.path());
        let other = [Text(1, 40), Image(1, SIDE), Image(2, SIDE), Text(5, 20)];
        let account = ask(&mut second, &plain, &other);
        assert_eq!(account.evaluated, 20, "{account:?}");
    }
}

/// At any moment, while what is stored is loaded, left out, or evaluated.
#[cfg(debug_assertions)]
#[test]
fn after_an_error_of_ours_images_are_answered_as_ever() {
    // Also between the batches of one image.
    for kind in [llava(), qwen().args(["-b", "12"])] {
        answers_as_ever_after_errors(&kind, 47);
    }
}

/// One of so many moments has an error.
#[cfg(debug_assertions)]
fn answers_as_ever_after_errors(kind: &Builder, every: usize) {
    let folder = folder();
    let with = |seed| [&TEA[..], &[Image(seed, SIDE), Text(seed, 150)]].concat();
    let prompts = [with(5), SEA.to_vec(), with(6), TEA.to_vec()];
    let plain = started(kind);
    let says = |server: &Server, prompt: &[Part]| {
        let answer = server.send(&asking(prompt)).unwrap();
        assert_eq!(answer.status, 200, "{prompt:?}: {}", answer.text());
        steps(&answer.json().unwrap())
    };
    let mut first = Stored::start(kind, folder.path());
    for prompt in &prompts {
        ask(&mut first, &plain, prompt);
    }
    first.end();
    let mut reached = 0;
    for look in (7..).step_by(every) {
        let mut ended = true;
        for when in ["record", "recorded"] {
            let fault = format!("{when}:{look}");
            let builder = kind
                .clone()
                .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
                .env("CONTEXTPILOT_STORE", folder.path())
                .env("CONTEXTPILOT_FAULT", &fault);
            let server = started(&builder);
            for prompt in &prompts {
                let difference = difference(&says(&server, prompt), &says(&plain, prompt));
                assert!(difference < ROUNDING, "{fault} {prompt:?}: {difference}");
            }
            let stopped = server.stderr().contains("Stopped after an internal error");
            ended &= !stopped;
            reached += usize::from(stopped);
        }
        if ended {
            break;
        }
    }
    assert!(reached > 10, "{reached}");
}

/// The engine holds an image then, which cannot be evaluated again: its rows are gone.
#[cfg(debug_assertions)]
#[test]
fn what_the_engine_refuses_costs_no_image() {
    for (kind, _, behind) in framed_kinds() {
        let folder = folder();
        // The first load is one behind the first image, the second one of what comes between. The third one is what was used
        // last behind the first image, and at the second image the rest of what is wanted is loaded.
        let faulty = kind.clone().env("CONTEXTPILOT_FAULT", "load:4");
        let mut stored = Stored::start(&faulty, folder.path());
        let plain = started(&kind);
        let with = |seed| [&TEA[..], &[Image(seed, SIDE), Text(seed, 150)]].concat();
        for seed in [5, 6] {
            ask(&mut stored, &plain, &with(seed));
            ask(&mut stored, &plain, &SEA);
        }
        let before = stored.figures();
        assert_eq!((before.loads, before.failed_loads), (2, 0), "{before:?}");
        let account = ask(&mut stored, &plain, &with(5));
        let figures = stored.figures();
        assert!(figures.failed_loads > 0, "{account:?} {figures:?}");
        assert_eq!(account.evaluated, ROWS + behind + 150, "{account:?}");
    }
}

/// Where images cannot be stored, what has none is, and what stands before them, and `refused` says so.
#[test]
fn where_images_cannot_be_stored_text_is() {
    let of = |arch, kind| {
        let builder = Server::builder().model(&Model::tiny(arch)).bare_slots(1);
        // Fewer than an image has.
        with_images(builder.args(["-c", "4096", "-b", "12", "-ub", "12"]), kind)
    };
    for (arch, kind) in [(Arch::Gemma2, ProjectorKind::Llava)] {
        let folder = folder();
        let mut stored = Stored::start(&of(arch, kind), folder.path());
        let plain = started(&of(arch, kind));
        for _ in 0..2 {
            ask(&mut stored, &plain, &TEA);
            ask(&mut stored, &plain, &SEA);
            ask(&mut stored, &plain, &[Text(11, 300)]);
            ask(&mut stored, &plain, &[Text(12, 300)]);
        }
        let account = ask(&mut stored, &plain, &[Text(11, 300)]);
        assert!(account.evaluated < 8, "{arch}: {account:?}");
        // Text before an image, too.
        let ahead = |image| [Text(13, 300), Image(image, SIDE), Text(2, 20)];
        ask(&mut stored, &plain, &ahead(1));
        ask(&mut stored, &plain, &SEA);
        let account = ask(&mut stored, &plain, &ahead(2));
        assert!(account.from.store >= 295, "{arch}: {account:?}");
        let figures = stored.figures();
        let said = ["a slot with an image or a sound that cannot be stored"];
        assert_eq!(figures.refused, said, "{arch}");
    }
}
