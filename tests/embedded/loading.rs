//! Objects that come and go while the hook waits for an engine.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use contextpilot_client::Control;
use contextpilot_testbed::{or_return, until};

use crate::program::{Program, hooked, without_ours};

const TIMES: &str = "1000";

pub(crate) fn compile(compiler: &str, to: &Path, source: &str, flags: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embedded/fixtures");
    let mut compiler = Command::new(compiler);
    compiler.arg(folder.join(source)).args(flags);
    let output = compiler.arg("-o").arg(to).output();
    let output = output.expect("the compiler starts");
    assert!(output.status.success(), "{output:?}");
}

/// It is loaded at the same address again and again, and must be redirected each time, but not before the dynamic
/// linker has finished with it: that would crash it, or would be overwritten.
#[test]
fn a_library_that_is_loaded_again_is_followed_again_whatever_other_threads_do() {
    let folder = tempfile::tempdir().unwrap();
    let [program, plugin] = ["loads", "plugin.so"].map(|name| folder.path().join(name));
    compile("cc", &program, "loads.c", &["-lpthread", "-ldl"]);
    let flags = ["-shared", "-fPIC", "-Wl,-z,now,-z,relro"];
    compile("cc", &plugin, "plugin.c", &flags);
    let mut command = Command::new(program);
    without_ours(&mut command);
    command.arg(plugin).arg(TIMES).envs(hooked(folder.path()));
    let output = command.output().unwrap();
    let answered = String::from_utf8_lossy(&output.stdout);
    assert_eq!(answered.trim(), TIMES, "{output:?}");
}

fn changes() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("changes");
    compile(
        "cc",
        &program,
        "changes.c",
        &["-O1", "-rdynamic", "-ldl", "-lpthread"],
    );
    (folder, program)
}

/// It says that it is attached when the model is loaded. With link-time optimisation nothing of that may be called.
#[test]
fn if_no_evaluation_of_a_program_is_seen_that_is_said_once() {
    let engine = or_return!(Program::find());
    let (folder, program) = changes();
    let store = folder.path().join("store");
    let mut observed = hooked(&store);
    let log = folder.path().join("log");
    observed[2] = ("CONTEXTPILOT_LOG_FILE", log.to_str().unwrap());
    for variables in [hooked(&store), observed] {
        for (how, times) in [("inlined", 1), ("", 0)] {
            let line = engine.line_of(&program);
            let mut command = Command::new(&line[0]);
            without_ours(&mut command);
            command.args(&line[1..]).arg("2").envs(variables);
            if !how.is_empty() {
                command.arg(how);
            }
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            let found = said
                .matches("] No evaluation of this program was seen")
                .count()
                + said.matches("] This program is not followed: ").count();
            assert_eq!(found, times, "{how} {variables:?} {said}");
            assert_eq!(said.contains("] Active: "), times == 0, "{how} {said}");
            assert!(said.contains("] Attached: llama.cpp "), "{how} {said}");
        }
    }
}

fn listen(folder: &tempfile::TempDir) -> String {
    format!("unix:{}", folder.path().join("control").display())
}

/// Runs a line for [`changes`], which waits after two contexts: the process, and the hook's endpoint.
fn waiting(line: &[PathBuf], how: &str, folder: &tempfile::TempDir) -> (Child, Control) {
    let (store, listen) = (folder.path().join("store"), listen(folder));
    let mut command = Command::new(&line[0]);
    without_ours(&mut command);
    command.args(&line[1..]).args(["2", how, "wait"]);
    command
        .envs(hooked(&store))
        .env("CONTEXTPILOT_LISTEN", &listen);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = pipes.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "contexts 2, asked 0");
    (child, Control::new(&listen).unwrap())
}

/// In `stats` and `doctor`: it is called followed once an evaluation was seen, and not before.
#[test]
fn whether_a_program_is_followed_is_told_by_its_evaluations() {
    let engine = or_return!(Program::find());
    let (folder, program) = changes();
    let listen = listen(&folder);
    for (how, is_followed) in [("calling", true), ("inlined", false)] {
        let (mut child, control) = waiting(&engine.line_of(&program), how, &folder);
        let told = until("it is known", || {
            let engine = control.stats().unwrap().engine;
            let seen = engine.seen.unwrap();
            (seen.evaluated || engine.not_followed.is_some()).then_some((seen, engine.not_followed))
        });
        let (seen, not_followed) = told;
        assert!(seen.loaded, "{how}");
        assert_eq!(
            (seen.evaluated, not_followed.is_none()),
            (is_followed, is_followed)
        );
        for (command, text) in [
            (
                "stats",
                "attached     not followed: it reads what was evaluated",
            ),
            ("top", ", NOT FOLLOWED"),
            ("doctor", "is not followed: it reads what was evaluated"),
        ] {
            let mut asks = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
            without_ours(&mut asks);
            let said = asks
                .arg(command)
                .env("CONTEXTPILOT_LISTEN", &listen)
                .output();
            let said = String::from_utf8_lossy(&said.unwrap().stdout).into_owned();
            assert_eq!(said.contains(text), !is_followed, "{command} {how}: {said}");
        }
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        assert!(child.wait().unwrap().success());
    }
}

/// As in a module for Node that has llama.cpp inside: its callers of `llama_decode` have copies of that. What the copies call
/// is exported, and followed. A store there is not: results are read in ways that are not all seen.
#[test]
fn what_copies_of_a_modules_functions_call_is_followed() {
    let engine = or_return!(Program::find());
    let (folder, program) = changes();
    let module = folder.path().join("index.node");
    std::fs::copy(engine.library(), &module).unwrap();
    let mut line = engine.line_of(&program);
    let library = line.iter().position(|part| part == engine.library());
    line[library.unwrap()] = module;
    let (mut child, control) = waiting(&line, "inlined", &folder);
    let accounts = until("both prompts are told", || {
        let latest = control.latest(16).unwrap().requests;
        (latest.len() == 2).then_some(latest)
    });
    for account in accounts {
        // As many as the program gave to the engine. They are evaluated, and not loaded.
        assert_eq!(account.evaluation.evaluated, 40, "{account:?}");
    }
    let stats = control.stats().unwrap();
    let seen = stats.engine.seen.unwrap();
    assert!(seen.loaded && seen.evaluated, "{:?}", stats.engine);
    assert_eq!(stats.engine.not_followed, None);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("] Active: llama.cpp "),
        "{said}"
    );
    let reason = "it has no prefix store, as it has copies of llama_decode";
    assert!(said.contains(reason), "{said}");
}

/// A host may set variables on another thread at any time. Then nothing of ours may read them: neither where contexts are
/// made and prompts evaluated, nor on our own threads.
#[test]
fn nobody_reads_the_environment_that_another_thread_changes() {
    // scripts/soak environment asks for more.
    let contexts = std::env::var("CONTEXTPILOT_TEST_CONTEXTS").unwrap_or_else(|_| "1000".into());
    let engine = or_return!(Program::find());
    let (folder, program) = changes();
    let store = folder.path().join("store");
    let mut observed = hooked(&store);
    let log = folder.path().join("log");
    observed[2] = ("CONTEXTPILOT_LOG_FILE", log.to_str().unwrap());
    observed[3] = ("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
    let nowhere = ("CONTEXTPILOT_INDEX_URL", "https://127.0.0.1:9");
    for variables in [hooked(&store), observed] {
        let mut line = engine.line_of(&program);
        line.push(contexts.clone().into());
        let mut command = Command::new(&line[0]);
        without_ours(&mut command);
        command
            .args(&line[1..])
            .envs(variables)
            .env(nowhere.0, nowhere.1);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let expected = format!("contexts {contexts}, asked 0\n");
        assert_eq!(said, expected, "{variables:?} {output:?}");
        let active = String::from_utf8_lossy(&output.stderr);
        assert!(active.contains("[ContextPilot] Active: "), "{output:?}");
    }
}
