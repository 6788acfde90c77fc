//! What cannot be stored is refused by name, and evaluated as ever.

use contextpilot_testbed::{Arch, Model, Server};

use super::{Stored, folder, one_slot, started, tokens};

#[test]
fn a_window_that_is_kept_whole_is_refused_by_name() {
    let folder = folder();
    let builder = Server::builder()
        .model(&Model::tiny(Arch::Gemma2))
        .bare_slots(1);
    let mut stored = Stored::start(&builder.args(["--swa-full"]), folder.path());
    for seed in [1, 2, 1] {
        let (_, account) = stored.ask(&tokens(seed, 200));
        assert_eq!(account.from.store, 0);
    }
    let figures = stored.figures();
    assert_eq!((figures.chunks, figures.loaded_tokens), (0, 0));
    assert!(
        figures.refused[0].contains("keep every position (swa_full)"),
        "{figures:?}"
    );
}

#[test]
fn models_that_cannot_go_back_are_refused_by_name_if_they_are_not_wanted() {
    for arch in [Arch::Gemma2, Arch::Mamba, Arch::Jamba] {
        let folder = folder();
        let builder = Server::builder().model(&Model::tiny(arch)).bare_slots(1);
        let unwanted = builder.env("CONTEXTPILOT_STORE_BOUNDED", "0");
        let mut stored = Stored::start(&unwanted, folder.path());
        for seed in [1, 2, 1] {
            let (_, account) = stored.ask(&tokens(seed, 200));
            assert_eq!(account.from.store, 0);
        }
        let figures = stored.figures();
        assert_eq!((figures.chunks, figures.loaded_tokens), (0, 0));
        let why = &figures.refused[0];
        assert!(why.contains("CONTEXTPILOT_STORE_BOUNDED"), "{figures:?}");
    }
}

#[test]
fn models_that_cannot_go_back_are_stored_unless_they_are_not_wanted() {
    for arch in [Arch::Gemma2, Arch::Mamba, Arch::Jamba] {
        let folder = folder();
        let builder = Server::builder().model(&Model::tiny(arch)).bare_slots(1);
        let mut stored = Stored::start(&builder, folder.path());
        for seed in [1, 2] {
            stored.ask(&tokens(seed, 200));
        }
        let (_, account) = stored.ask(&tokens(1, 200));
        assert_eq!(account.from.store, 196, "{arch}: {account:?}");
        assert_eq!(stored.figures().refused, [""; 0]);
    }
}

#[test]
fn embeddings_are_evaluated_whole() {
    let folder = folder();
    let builder = one_slot().args(["--embeddings", "--pooling", "mean"]);
    let stored = Stored::start(&builder, folder.path());
    let plain = started(&builder);
    let body = |seed| serde_json::json!({ "content": tokens(seed, 300) });
    for seed in [1, 2, 1] {
        let ours = stored.server.post("/embedding", &body(seed)).unwrap();
        let theirs = plain.post("/embedding", &body(seed)).unwrap();
        assert_eq!(ours.status, theirs.status);
        assert_eq!(ours.text(), theirs.text());
    }
    let figures = stored.figures();
    assert_eq!((figures.loaded_tokens, figures.chunks), (0, 0));
    assert_eq!(figures.refused.len(), 1, "{figures:?}");
    assert!(figures.refused[0].contains("embeddings"), "{figures:?}");
    assert_eq!(figures.refused_times, [3], "one for each prompt");
}
