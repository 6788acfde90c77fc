//! Servers that draft: a trace for each kind that is in every run, and with `CONTEXTPILOT_TEST_DRAFTS=KIND` all other traces, too:
//! `draft-mtp` (heads of the model itself), `draft-eagle3`, `draft-dflash` or `draft-dspark` (a draft that follows the model's layers), or
//! `draft-simple` (a draft model of its own).

use super::{Case, drafted, long_answers};
use contextpilot_testbed::{Arch, Builder, Model, Server};

/// The kind that is asked for.
pub(crate) fn kind() -> Option<String> {
    std::env::var("CONTEXTPILOT_TEST_DRAFTS").ok()
}

/// Those that are in every run. (Draft models of their own are among the others.)
pub(super) fn cases() -> Vec<Case> {
    let server = |slots: u32| {
        let builder = Server::builder().bare_slots(slots);
        builder.args(["-c", &(slots * 1024).to_string()])
    };
    let dense = |kind| drafting(kind, server(2).model(&Model::tiny(Arch::Llama)));
    let hybrid = drafting("draft-mtp", server(2).model(&Model::tiny(Arch::Mamba)));
    [
        (
            "speculative decoding with heads of the model (MTP)",
            dense("draft-mtp"),
            60,
        ),
        (
            "speculative decoding by the model's layers (EAGLE-3)",
            dense("draft-eagle3"),
            60,
        ),
        (
            "speculative decoding by the model's layers (DFlash)",
            dense("draft-dflash"),
            60,
        ),
        (
            "speculative decoding by the model's layers (DSpark)",
            dense("draft-dspark"),
            60,
        ),
        ("hybrid: speculative decoding (MTP)", hybrid, 120),
    ]
    .map(|(name, server, length)| Case::new(name, server, long_answers(length)).gone_at_least(3))
    .into()
}

/// Those of these cases whose model has full attention and no adapters, and which do not draft already. With EAGLE-3, llama-server
/// 0.7.0 itself answers each prompt with an image or a sound by an error. With heads, those of recurrent models, too: a hybrid takes their place.
pub(super) fn of(kind: &str, cases: Vec<Case>) -> Vec<Case> {
    let (usual, recurrent) = (Model::tiny(Arch::Llama), Model::tiny(Arch::Mamba));
    let fits = |case: &Case| {
        let is_plain = !case.server.has_adapters() && !case.server.drafts();
        let has_media = ["images", "sounds"]
            .iter()
            .any(|what| case.name.starts_with(what));
        let is_answered = kind != "draft-eagle3" || !has_media;
        let has_heads = kind == "draft-mtp" && case.server.serves(&recurrent);
        is_plain && is_answered && (has_heads || case.server.serves(&usual))
    };
    let cases = cases.into_iter().filter(fits);
    let drafting = cases.map(|case| Case {
        server: drafting(kind, case.server.clone()),
        ..case
    });
    drafting.collect()
}

/// The server drafts in this way, with a model that fits: a hybrid in place of a recurrent one.
pub(crate) fn drafting(kind: &str, server: Builder) -> Builder {
    let is_recurrent = server.serves(&Model::tiny(Arch::Mamba));
    match kind {
        "draft-simple" => drafted(server),
        "draft-mtp" => {
            let arch = if is_recurrent {
                Arch::Qwen35
            } else {
                Arch::Mtp
            };
            server.model(&Model::tiny(arch)).args(["--spec-type", kind])
        }
        _ => {
            let arch = kind
                .strip_prefix("draft-")
                .and_then(|name| name.parse().ok());
            let follows = arch.filter(|arch: &Arch| arch.follows_layers());
            let arch = follows
                .unwrap_or_else(|| panic!("CONTEXTPILOT_TEST_DRAFTS is no kind of drafts: {kind}"));
            server
                .followed_by(arch, 1)
                .args(["--spec-draft-p-min", "0.3"])
        }
    }
}
