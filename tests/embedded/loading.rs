//! Objects that come and go while the hook waits for an engine.

use std::path::{Path, PathBuf};
use std::process::Command;

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

/// It says that it is active when the model is loaded. With link-time optimisation nothing of that may be called.
#[test]
fn if_no_evaluation_of_a_program_is_seen_that_is_said_once() {
    let Some(engine) = Program::find() else {
        return;
    };
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
                .count();
            assert_eq!(found, times, "{how} {variables:?} {said}");
        }
    }
}

/// A host may set variables on another thread at any time. Then nothing of ours may read them: neither where contexts are
/// made and prompts evaluated, nor on our own threads.
#[test]
fn nobody_reads_the_environment_that_another_thread_changes() {
    // scripts/soak environment asks for more.
    let contexts = std::env::var("CONTEXTPILOT_TEST_CONTEXTS").unwrap_or_else(|_| "1000".into());
    let Some(engine) = Program::find() else {
        return;
    };
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
