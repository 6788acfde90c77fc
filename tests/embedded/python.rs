//! llama-cpp-python itself, where it is (`scripts/llama-cpp-python`).

use std::path::{Path, PathBuf};
use std::process::Command;

use contextpilot_testbed::{Arch, Model, skip_optional};

use crate::program::{Run, hooked, without_ours};

/// The Python that has it.
fn python() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = root.join("scripts/llama-cpp-python");
    let output = Command::new(script).output().expect("the script starts");
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => {}
        Some(77) => {
            skip_optional(said.trim_end());
            return None;
        }
        _ => panic!("{said}"),
    }
    let path = String::from_utf8(output.stdout).expect("a path");
    Some(path.trim_end().into())
}

fn run(python: &Path, store: Option<&Path>) -> Run {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = Model::tiny(Arch::Llama);
    let mut command = Command::new(python);
    without_ours(&mut command);
    command
        .arg(root.join("tests/embedded/fixtures/bindings.py"))
        .arg(model.path());
    if let Some(store) = store {
        command.envs(hooked(store));
    }
    Run::of(&command.output().expect("Python starts"))
}

#[test]
fn python_programs_load_what_they_evaluated_before() {
    let Some(python) = python() else { return };
    let store = tempfile::tempdir().unwrap();
    let plain = run(&python, None);
    let few = |run: &Run, name: &str| {
        let (ours, theirs) = (run.step(name).evaluated, plain.step(name).evaluated);
        assert!(
            ours <= 40 && theirs >= 700,
            "{name}: {ours} {theirs}\n{run:?}"
        );
    };
    for life in 0..2 {
        let run = run(&python, Some(store.path()));
        run.must_answer_as(&plain);
        let known = ["document 2", "document 3", "completion", "evaluated"];
        let known = known.map(|name| format!("each {name}"));
        known.iter().for_each(|name| few(&run, name));
        few(&run, "each other again");
        if life == 1 {
            few(&run, "each document 0");
            few(&run, "each branch");
        }
    }
}
