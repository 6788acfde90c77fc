//! Two contexts in one server: of a model, and of the draft model that guesses for it. And contexts of several lengths.

use std::path::Path;

use contextpilot_testbed::{Arch, Builder, Model, Request, Server};
use serde_json::Value;

use super::{Stored, folder, one_slot, started, tokens};

/// With the model itself for a draft, both contexts load the same chunks.
const DRAFTS: [Arch; 2] = [Arch::Draft, Arch::Llama];

fn drafted(draft: Arch) -> Builder {
    let draft = Model::tiny(draft);
    one_slot()
        .args(["-md".into(), draft.path().as_os_str().to_owned()])
        .args(["--spec-type", "draft-simple"])
}

fn asking(prompt: &[u32]) -> Request {
    Request::completion(Value::from(prompt)).predict(40)
}

/// Asks both. The answers are equal, and so are the guesses: a draft with wrong KV guesses something else, which no
/// answer shows. How many were made, and how many were right.
fn guesses(stored: &mut Stored, plain: &Server, prompt: &[u32]) -> [u64; 2] {
    let (ours, account) = stored.send(asking(prompt));
    let theirs = plain.complete(&asking(prompt)).unwrap();
    assert_eq!(ours.content, theirs.content, "{account:?}");
    let of = |value: &Value| {
        ["draft_n", "draft_n_accepted"].map(|name| value["timings"][name].as_u64().unwrap_or(0))
    };
    assert_eq!(of(&ours.raw), of(&theirs.raw), "{account:?}");
    of(&ours.raw)
}

fn loaded_in_life(folder: &Path, draft: Arch, asked: &[&[u32]]) -> u64 {
    let plain = started(&drafted(draft));
    let mut stored = Stored::start(&drafted(draft), folder);
    let (mut made, mut right) = (0, 0);
    for prompt in asked {
        let [one, other] = guesses(&mut stored, &plain, prompt);
        made += one;
        right += other;
    }
    assert!(made > 0 && right > 0, "{draft}: {right} of {made}");
    let figures = stored.figures();
    assert_eq!(figures.refused, [""; 0]);
    assert_eq!((figures.problem, figures.failed_loads), (None, 0));
    stored.end();
    figures.loaded_tokens
}

#[test]
fn a_draft_model_loads_what_it_evaluated_before_and_guesses_as_well() {
    let (tea, sea) = (tokens(1, 600), tokens(2, 600));
    for draft in DRAFTS {
        let folder = folder();
        let loaded = loaded_in_life(folder.path(), draft, &[&tea, &sea, &tea, &sea]);
        // Two prompts, and both contexts: all but the last few tokens.
        let all = 2 * 2 * 600;
        assert!((all - 40..=all).contains(&loaded), "{draft}: {loaded}");
        let loaded = loaded_in_life(folder.path(), draft, &[&tea, &sea]);
        assert!((all - 40..=all).contains(&loaded), "{draft}: {loaded}");
    }
}

/// A context of more than 1,024 tokens has other positions in it, and one of 1,024 of a slot of four has not. What follows
/// from the same prompt in the other one is something else.
#[test]
fn a_model_with_positions_for_long_contexts_loads_what_contexts_of_its_kind_have_stored() {
    let of_length = |length: &str, slots: u32| {
        Server::builder()
            .model(&Model::tiny(Arch::LongRope))
            .bare_slots(slots)
            .args(["-c", length, "--no-kv-unified"])
    };
    let folder = folder();
    let tea = tokens(40, 600);
    let mut answers = Vec::new();
    for (length, slots, is_there) in [
        ("1024", 1, false),
        ("4096", 1, false),
        ("768", 1, true),
        ("4096", 4, true),
        ("8192", 1, true),
    ] {
        let builder = of_length(length, slots);
        let mut stored = Stored::start(&builder, folder.path());
        let (answer, account) = stored.compare(&started(&builder), &tea);
        let expected = if is_there { 599 } else { 0 };
        assert_eq!(account.from.store, expected, "{length}: {account:?}");
        answers.push(answer[0].content.clone());
        stored.end();
    }
    assert_ne!(answers[0], answers[1], "else this shows nothing");
    assert_eq!(answers[0], answers[2]);
}

/// By which name, by a flag or by its variable, in which order, and however a number is spelled.
#[test]
fn what_means_the_same_is_one_model() {
    let (folder, tea) = (folder(), tokens(42, 600));
    let scaled = [
        "--rope-scaling",
        "linear",
        "--rope-scale",
        "2",
        "--rope-freq-base",
        "5000",
    ];
    let other = [
        "--rope-freq-base",
        "5000.0",
        "--rope_scale",
        "2.0",
        "--temp",
        "0.5",
    ];
    let ways = [
        one_slot().args(scaled),
        one_slot()
            .args(other)
            .env("LLAMA_ARG_ROPE_SCALING_TYPE", "linear"),
        one_slot()
            .env("LLAMA_ARG_ROPE_SCALING_TYPE", "linear")
            .env("LLAMA_ARG_ROPE_SCALE", "2")
            .env("LLAMA_ARG_ROPE_FREQ_BASE", "5000"),
    ];
    for (nth, way) in ways.iter().enumerate() {
        let mut stored = Stored::start(way, folder.path());
        let (_, account) = stored.compare(&started(way), &tea);
        let expected = if nth == 0 { 0 } else { 599 };
        assert_eq!(account.from.store, expected, "{nth}: {account:?}");
        stored.end();
    }
}

/// Servers since mid 2026 take flags from a file of the user, too.
#[test]
fn what_another_configuration_has_stored_is_not_loaded() {
    let (folder, home) = (folder(), tempfile::tempdir().unwrap());
    let tea = tokens(41, 600);
    let builder = || one_slot().env("XDG_CONFIG_HOME", home.path());
    let loaded = |builder: &Builder| {
        let mut stored = Stored::start(builder, folder.path());
        let (_, account) = stored.compare(&started(builder), &tea);
        stored.end();
        account.from.store
    };
    assert_eq!(loaded(&builder()), 0);
    std::fs::create_dir(home.path().join("llama.cpp")).unwrap();
    let file = home.path().join("llama.cpp/config.ini");
    std::fs::write(file, "[*]\nrope-freq-base = 500\n").unwrap();
    assert_eq!(loaded(&builder()), 0);
    assert_eq!(loaded(&builder()), 599);
}
