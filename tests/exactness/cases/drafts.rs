//! The same traces on servers that draft, with `CONTEXTPILOT_TEST_DRAFTS=KIND`: `draft-mtp` (heads of the model itself),
//! `draft-eagle3` (a draft that follows the model's layers) or `draft-simple` (a draft model of its own).

use super::{Case, drafted};
use contextpilot_testbed::{Arch, Builder, Model, Spec};

/// The kind that is asked for.
pub(crate) fn kind() -> Option<String> {
    std::env::var("CONTEXTPILOT_TEST_DRAFTS").ok()
}

/// Those of these cases whose model has full attention and no adapters, and which do not draft already. With EAGLE-3, llama-server
/// 0.7.0 itself answers each prompt with an image by an error.
pub(super) fn of(kind: &str, cases: Vec<Case>) -> Vec<Case> {
    let usual = Model::tiny(Arch::Llama);
    let fits = |case: &Case| {
        let is_plain = !case.server.has_adapters() && !case.server.drafts();
        let is_answered = kind != "draft-eagle3" || !case.name.starts_with("images");
        is_plain && is_answered && case.server.serves(&usual)
    };
    let cases = cases.into_iter().filter(fits);
    let drafting = cases.map(|case| Case {
        server: drafting(kind, case.server.clone()),
        ..case
    });
    drafting.collect()
}

fn drafting(kind: &str, server: Builder) -> Builder {
    match kind {
        "draft-simple" => drafted(server),
        "draft-mtp" => server
            .model(&Model::tiny(Arch::Mtp))
            .args(["--spec-type", kind]),
        "draft-eagle3" => {
            let model = Model::of(&Spec {
                layers: 4,
                ..Spec::new(Arch::Llama)
            });
            let draft = Model::tiny(Arch::Eagle3);
            server
                .model(&model)
                .args(["--spec-type", kind, "--spec-draft-p-min", "0.3"])
                .args(["-md".into(), draft.path().as_os_str().to_owned()])
        }
        _ => panic!("CONTEXTPILOT_TEST_DRAFTS is no kind of drafts: {kind}"),
    }
}
