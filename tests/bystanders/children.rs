//! Programs that are started by a llama-server with a working hook.

use std::path::Path;

use contextpilot_testbed::{Builder, Index, Request, Server, skip};
use serde_json::json;

use crate::engine::Engine;
use crate::runs::HOOK;
use crate::tools::{program, python};

/// The tool of llama-server that runs a shell.
const TOOL: &str = "exec_shell_command";

/// A server with the tool that runs commands. `None`, after a line on stderr, if this server has no such
/// tool.
fn server() -> Option<Builder> {
    let server = Server::tiny().bare_slots(2).args(["--tools", TOOL]);
    if let Some(lacking) = server.lacking() {
        skip(format!("this server has no {lacking}"));
        return None;
    }
    Some(server)
}

/// The output of a command on both streams, and its exit code.
fn printed(server: &Server, command: &str) -> String {
    let body = json!({"tool": TOOL, "params": {"command": command, "timeout": 60}});
    let answer = server.post("/tools", &body).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let answer = answer.json().unwrap();
    let text = answer["plain_text_response"].as_str();
    text.expect("what the tool answers").to_owned()
}

/// A command line for the shell, with each word in quotes.
fn quoted(line: &[impl AsRef<Path>]) -> String {
    let words = line.iter().map(|word| {
        let word = word.as_ref().display().to_string();
        assert!(!word.contains('\''), "{word}");
        format!("'{word}'")
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn processes_that_a_server_starts_behave_as_without_the_hook() {
    let Some(server) = server() else { return };
    let index = Index::start().unwrap();
    let plain = server.spawn().unwrap();
    let active = server
        .launcher(env!("CARGO_BIN_EXE_contextpilot-llama-server"))
        .index_url(index.url())
        .spawn()
        .unwrap();
    for server in [&plain, &active] {
        let request = Request::completion("Tea is picked by hand").id("req-tea");
        server.complete(&request.slot(0)).unwrap();
    }
    assert!(
        active.stderr().contains("] Active: "),
        "{}",
        active.stderr()
    );
    // If the children did not inherit the preload, this test would show nothing.
    let inherited = printed(&active, "echo $LD_PRELOAD $CONTEXTPILOT_INDEX_URL");
    assert!(inherited.contains(&index.url()), "{inherited}");
    assert!(
        inherited.contains("libcontextpilot_llama_hook"),
        "{inherited}"
    );
    assert!(Path::new(HOOK).exists());

    let mut commands = vec![
        // The open files of the process, without numbers.
        "readlink /proc/self/fd/* | sed 's/[0-9][0-9]*/#/g' | sort".to_owned(),
        "grep -E '^(Sig(Pnd|Blk|Ign|Cgt)|ShdPnd)' /proc/self/status".to_owned(),
        "echo $(ls /proc/$$/task | wc -l); exit 3".to_owned(),
        "ulimit -a; umask".to_owned(),
    ];
    if let Some(python) = python() {
        let script = crate::tools::fixture("sockets.py");
        commands.push(quoted(&[python, script]));
    }
    if let Some(perl) = program("perl") {
        let script = crate::tools::fixture("sockets.pl");
        commands.push(quoted(&[perl, script]));
    }
    for name in ["git", "curl", "node", "java"] {
        if let Some(program) = program(name) {
            commands.push(format!("{} --version", quoted(&[program])));
        }
    }
    if let Some(line) = Engine::find().and_then(|engine| engine.calls("local")) {
        commands.push(quoted(&line));
    }
    for command in &commands {
        let expected = printed(&plain, command);
        let printed = printed(&active, command);
        assert!(expected.contains("[exit code: "), "{command}: {expected}");
        let lines = expected.lines().zip(printed.lines());
        let differ: Vec<_> = lines.filter(|(a, b)| a != b).take(5).collect();
        assert!(differ.is_empty(), "{command}: {differ:#?}");
        assert_eq!(printed, expected, "{command}");
    }
    // The index gets no reports from these programs.
    assert!(index.evicted().is_empty(), "{:?}", index.evicted());
}
