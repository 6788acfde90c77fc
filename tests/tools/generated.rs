//! Shell completions and man pages.

use crate::support::{companion, good, read};

#[test]
fn completions_contain_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = good(&companion(&["completions", shell]).output().unwrap());
        for command in [
            "demo", "top", "stats", "where", "why", "events", "slots", "ttft", "reset", "simulate",
            "advise", "doctor", "listen", "gateway", "index", "up",
        ] {
            assert!(script.contains(command), "{command} for {shell}");
        }
    }
}

#[test]
fn there_is_a_man_page_for_every_command() {
    let page = good(&companion(&["man"]).output().unwrap());
    assert!(page.contains(".TH contextpilot-llama 1"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let man = folder.path().join("man1");
    good(&companion(&["man", man.to_str().unwrap()]).output().unwrap());
    for name in [
        "",
        "-top",
        "-ttft",
        "-slots",
        "-slots-save",
        "-where",
        "-index",
        "-up",
    ] {
        let page = read(&man.join(format!("contextpilot-llama{name}.1")));
        assert!(
            page.contains("EXAMPLE") || page.contains("Example"),
            "{name}"
        );
    }
}
