//! An engine that cannot be followed: where an endpoint was asked for, it says so, and why.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use contextpilot_client::Control;
use contextpilot_client::control::{HealthStatus, Stats};
use contextpilot_testbed::{or_return, private_folder, until};

use crate::program::{HOOK, Program, without_ours};
use crate::run::{loader, module_with_texts};

const WHY: &str = "its functions cannot be found (hidden, stripped, or inlined";

/// A program that waits for a line.
struct Waiting {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Waiting {
    fn start(mut command: Command) -> Self {
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Until it has printed this.
    fn until(&mut self, text: &str) {
        let found = self.lines.any(|line| line.unwrap().contains(text));
        assert!(found, "never printed: {text}");
    }

    fn go_on(&mut self) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(b"\n").unwrap();
    }

    fn end(mut self) {
        self.go_on();
        self.lines.for_each(drop);
        assert!(self.child.wait().unwrap().success());
    }
}

/// A program with the hook. It loads a module that cannot be followed, and then waits for a line.
fn loading(folder: &Path) -> Command {
    let module = module_with_texts(folder, &["-fvisibility=default"]);
    let mut command = Command::new(loader(folder));
    without_ours(&mut command);
    command
        .arg(&module)
        .env("LD_PRELOAD", HOOK)
        .env("CONTEXTPILOT_ENGINE", "1");
    command
}

fn companion(line: &[&str], runtime: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    without_ours(&mut command);
    let output = command.args(line).env("XDG_RUNTIME_DIR", runtime).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// What the endpoint says, as soon as it answers.
fn stats(control: &Control) -> Stats {
    until("an answer of the endpoint", || control.stats().ok())
}

#[test]
fn an_endpoint_that_was_asked_for_says_why_nothing_is_followed() {
    let folder = private_folder();
    let runtime = private_folder();
    let mut command = loading(folder.path());
    command
        .env("CONTEXTPILOT_LISTEN", "auto")
        .env("XDG_RUNTIME_DIR", runtime.path());
    let mut waiting = Waiting::start(command);
    let process = waiting.child.id();
    waiting.until("loaded");
    let folder = runtime.path().join("contextpilot-llama");
    let socket = until("its socket", || {
        let mut found = fs::read_dir(&folder).ok()?;
        found
            .find_map(|file| file.ok()?.path().to_str().map(str::to_owned))
            .filter(|name| name.ends_with(".sock"))
    });
    let control = Control::new(&format!("unix:{socket}")).unwrap();
    let stats = stats(&control);
    assert_eq!(stats.process, process);
    let why = stats.engine.not_followed.as_deref().unwrap();
    assert!(why.contains(WHY) && why.contains("module.so"), "{why}");
    assert!(stats.slots.is_empty() && stats.store.is_none(), "{stats:?}");
    let ready = control.ready().unwrap();
    assert_eq!(ready.status, HealthStatus::NotAttached);
    assert!(ready.reason.contains(WHY), "{ready:?}");

    let said = companion(&["stats"], runtime.path());
    assert!(
        said.lines().next().unwrap().ends_with("NOT FOLLOWED"),
        "{said}"
    );
    assert_eq!(said.matches(WHY).count(), 1, "{said}");
    let said = companion(&["why", "--last"], runtime.path());
    assert!(
        said.starts_with("Nothing is followed: ") && said.contains(WHY),
        "{said}"
    );
    let of_process = format!("process {process} is not followed: ");
    let pid = process.to_string();
    for line in [&["doctor"][..], &["doctor", "--pid", &pid]] {
        let said = companion(line, runtime.path());
        assert_eq!(said.matches(&of_process).count(), 1, "{said}");
        assert!(!said.contains("0 functions patched"), "{said}");
    }
    waiting.end();
    assert!(!Path::new(&socket).exists());
}

#[test]
fn without_being_asked_for_nothing_runs() {
    let folder = private_folder();
    let mut command = loading(folder.path());
    command.env("CONTEXTPILOT_STORE", folder.path().join("store"));
    let mut waiting = Waiting::start(command);
    waiting.until("loaded");
    let threads = fs::read_dir(format!("/proc/{}/task", waiting.child.id())).unwrap();
    assert_eq!(threads.count(), 1);
    waiting.end();
}

/// The same address answers then, also on a connection that is open.
#[test]
fn an_engine_that_can_be_followed_takes_the_endpoint_over() {
    let program = or_return!(Program::find());
    let module = module_with_texts(program.folder(), &["-fvisibility=default"]);
    let socket = program.folder().join("control.sock");
    let listen = format!("unix:{}", socket.display());
    let beside = module.to_str().unwrap();
    let variables = [
        ("LD_PRELOAD", HOOK),
        ("CONTEXTPILOT_ENGINE", "1"),
        ("CONTEXTPILOT_LISTEN", &listen),
        ("BESIDE", beside),
    ];
    let mut waiting = Waiting::start(program.command("wait", &variables));
    waiting.until("beside");
    let control = Control::new(&listen).unwrap();
    assert!(stats(&control).engine.not_followed.is_some());
    waiting.go_on();
    waiting.until("waiting");
    let stats = stats(&control);
    assert_eq!(stats.engine.not_followed, None);
    assert!(stats.engine.seen.unwrap().evaluated, "{:?}", stats.engine);
    assert!(stats.reuse.total.evaluated > 0, "{stats:?}");
    waiting.end();
    assert!(!socket.exists());
}
