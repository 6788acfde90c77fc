//! `contextpilot_request`: ids for prompts, and what the index is told.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use contextpilot_client::Control;
use contextpilot_client::control::{Reason, RequestState};
use contextpilot_testbed::{Index, or_return};

use crate::program::{Program, Step, hooked};

const PATIENCE: Duration = Duration::from_secs(20);

/// The program, which waits for a line now and then.
struct Steps {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Steps {
    fn start(program: &Program, what: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = program.command(what, variables);
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = pipes.stderr(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            input,
            output,
        }
    }

    /// What the function returned in this step.
    fn until(&mut self, name: &str) -> i64 {
        for line in self.output.by_ref() {
            let line = line.unwrap();
            let step: Step = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
            if step.name == name {
                return step.rest["result"];
            }
        }
        panic!("no step {name}");
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    fn end(mut self) {
        self.go_on();
        self.output.by_ref().for_each(drop);
        assert!(self.child.wait().unwrap().success());
    }
}

#[track_caller]
fn must_be_told(index: &Index, ids: &[&str]) {
    let wanted: BTreeSet<String> = ids.iter().map(|&id| id.to_owned()).collect();
    index.wait_until(|told| *told == wanted, PATIENCE);
    assert_eq!(index.evicted(), wanted);
}

#[test]
fn an_id_is_tied_to_the_next_prompt_and_the_index_hears_when_that_is_lost() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    for (frees, stored) in [("1", false), ("", false), ("1", true)] {
        let index = Index::start().unwrap();
        let url = index.url();
        let socket = program.folder().join("control.sock");
        let listen = format!("unix:{}", socket.display());
        let variables = hooked(store.path()).into_iter();
        let variables = variables.filter(|(name, _)| stored || !name.contains("STORE"));
        let own = [
            ("CONTEXTPILOT_INDEX_URL", url.as_str()),
            ("CONTEXTPILOT_LISTEN", listen.as_str()),
            ("FREES", frees),
        ];
        let variables: Vec<_> = variables.chain(own).collect();
        let mut steps = Steps::start(&program, "signal", &variables);

        assert_eq!(steps.until("first"), 0);
        steps.go_on();
        assert_eq!(steps.until("beside it"), 0);
        assert_eq!(index.evicted().len(), 0);
        steps.go_on();
        assert_eq!(steps.until("overwritten"), 0);
        must_be_told(&index, &["a"]);
        steps.go_on();
        steps.until("overwritten by another");
        must_be_told(&index, &["a", "b"]);
        steps.go_on();
        assert_eq!(steps.until("replaced"), 0);
        must_be_told(&index, &["a", "b", "never"]);
        steps.go_on();
        steps.until("named late");
        must_be_told(&index, &["a", "b", "never"]);
        steps.go_on();
        steps.until("cleared");
        must_be_told(&index, &["a", "b", "never", "c", "d", "x"]);
        let control = Control::new(&listen).unwrap();
        // A prompt without an id took the place of b, and the program itself that of the last two. Where the program
        // takes its time between a removal and the next batch, the sequence was not emptied for a prompt.
        let takers = [
            ("a", Some("c")),
            ("b", None),
            ("c", Some("x")),
            ("d", None),
            ("x", None),
        ];
        for (id, taker) in takers {
            let state = control.request(id).unwrap();
            let RequestState::Evicted { by, reason, .. } = state else {
                panic!("{state:?}");
            };
            let taker = taker.filter(|_| reason != Reason::Cleared);
            assert_eq!(by.as_deref(), taker, "{id}");
        }
        steps.go_on();
        assert_eq!(steps.until("younger"), 0);
        steps.go_on();
        for refused in [
            "no id",
            "an empty id",
            "not UTF-8",
            "too long",
            "no such sequence",
            "no context",
        ] {
            assert_eq!(steps.until(refused), 2, "{refused}");
        }
        let all = ["a", "b", "never", "c", "d", "x", "e", "pending"];
        if !frees.is_empty() {
            steps.until("freed");
            must_be_told(&index, &all);
        }
        steps.end();
        must_be_told(&index, &all);
    }
}

/// A program can find out that its ids are not read.
#[test]
fn without_an_index_and_without_the_hook_the_function_says_so() {
    let program = or_return!(Program::find());
    let store = tempfile::tempdir().unwrap();
    let mut steps = Steps::start(&program, "signal", &hooked(store.path()));
    assert_eq!(steps.until("first"), 1);
    steps.child.kill().unwrap();
    steps.child.wait().unwrap();

    let mut command = program.command("signal", &[]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("undefined symbol: contextpilot_request"),
        "{stderr}"
    );
}

/// Bindings such as those of Rust do not say where a context is.
#[test]
fn a_program_with_one_context_need_not_name_it() {
    let program = or_return!(Program::find());
    let index = Index::start().unwrap();
    let (store, url) = (tempfile::tempdir().unwrap(), index.url());
    let variables = hooked(store.path()).into_iter();
    let variables = variables.filter(|(name, _)| !name.contains("STORE"));
    let variables: Vec<_> = variables
        .chain([("CONTEXTPILOT_INDEX_URL", url.as_str())])
        .collect();
    let mut steps = Steps::start(&program, "alone", &variables);
    assert_eq!(steps.until("none"), 2);
    for name in ["named a", "named b"] {
        assert_eq!(steps.until(name), 0);
        assert_eq!(index.evicted().len(), 0);
        steps.go_on();
    }
    assert_eq!(steps.until("named c"), 0);
    must_be_told(&index, &["a"]);
    steps.go_on();
    // Which of them is meant cannot be known.
    assert_eq!(steps.until("two"), 2);
    assert_eq!(steps.until("one again"), 0);
    steps.end();
    must_be_told(&index, &["a", "b", "c", "d"]);
}
