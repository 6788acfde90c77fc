//! Shell completions and man pages.

use std::process::Command;

use crate::support::{companion, good, read};

#[test]
fn completions_contain_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = good(&companion(&["completions", shell]).output().unwrap());
        for command in [
            "demo", "top", "open", "report", "stats", "where", "why", "events", "slots", "ttft",
            "reset", "run", "simulate", "advise", "traffic", "plan", "store", "doctor", "listen",
            "gateway", "index", "up", "agent", "warm", "keep", "release",
        ] {
            assert!(script.contains(command), "{command} for {shell}");
        }
    }
}

/// What bash offers for the last of these words.
fn offered(script: &std::path::Path, words: &[&str]) -> Vec<String> {
    // As bash itself does when Tab is pressed.
    let tab = r#"
        source "$1" && shift
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
        read -ra rule <<<"$(complete -p contextpilot-llama)"
        for ((i = 0; i < ${#rule[@]}; i++)); do
            [ "${rule[i]}" = -F ] && function=${rule[i + 1]}
        done
        "$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let output = Command::new("bash")
        .args(["--norc", "-c", tab, "bash"])
        .arg(script)
        .args(words)
        .output();
    let lines = good(&output.unwrap());
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn bash_offers_the_flags_and_commands_of_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("completions");
    let text = good(&companion(&["completions", "bash"]).output().unwrap());
    std::fs::write(&script, text).unwrap();

    let mut commands: Vec<Vec<String>> = vec![vec![]];
    let mut checked = 0;
    while let Some(path) = commands.pop() {
        let mut words = vec!["contextpilot-llama"];
        words.extend(path.iter().map(String::as_str));
        let help = [&words[1..], &["--help"]].concat();
        let help = good(&companion(&help).output().unwrap());

        let mut flags = offered(&script, &[&words[..], &["--"]].concat());
        let mut documented: Vec<String> = flags_in(&help).collect();
        flags.sort();
        documented.sort();
        assert_eq!(flags, documented, "{words:?}");
        let names = offered(&script, &[&words[..], &[""]].concat());
        for name in commands_in(&help) {
            assert!(names.contains(&name), "{words:?} {name}: {names:?}");
            commands.push([path.clone(), vec![name]].concat());
        }
        checked += 1;
    }
    assert!(checked > 20, "{checked}");
    let shells = offered(&script, &["contextpilot-llama", "completions", "f"]);
    assert_eq!(shells, ["fish"]);
}

/// The long flags that a help text describes: each begins a line.
fn flags_in(help: &str) -> impl Iterator<Item = String> + '_ {
    help.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = match line.split_once(", ") {
            Some((short, long)) if short.len() == 2 && short.starts_with('-') => long,
            _ => line,
        };
        let end = line.find([' ', '=', '[']).unwrap_or(line.len());
        line.starts_with("--").then(|| line[..end].to_owned())
    })
}

/// The commands that a help text lists.
fn commands_in(help: &str) -> impl Iterator<Item = String> + '_ {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    listed
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
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
        "-server",
        "-top",
        "-ttft",
        "-slots",
        "-slots-save",
        "-store",
        "-store-prune",
        "-store-export",
        "-store-import",
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
