//! Two contexts in one server: of a model, and of the draft model that guesses for it.

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
