//! llama-cpp-python itself, where it is (`scripts/llama-cpp-python`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use contextpilot_testbed::{Arch, Index, Model, script, skip_optional};

use crate::program::{Run, hooked, without_ours};

/// The Python that has it.
pub(crate) fn python() -> Option<PathBuf> {
    script("llama-cpp-python", &[])
        .inspect_err(|why| skip_optional(why.why_skipped()))
        .ok()
        .map(PathBuf::from)
}

/// A program among the fixtures.
fn command(python: &Path, name: &str, store: Option<&Path>) -> Command {
    let mut command = command_with(python, name, Arch::Llama);
    if let Some(store) = store {
        command.envs(hooked(store));
    }
    command
}

/// The same with a model of this kind, and no store.
pub(crate) fn command_with(python: &Path, name: &str, arch: Arch) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(python);
    without_ours(&mut command);
    command
        .arg(root.join("tests/embedded/fixtures").join(name))
        .arg(Model::tiny(arch).path());
    command
}

fn run(python: &Path, store: Option<&Path>) -> Run {
    let output = command(python, "bindings.py", store).output();
    Run::of(&output.expect("Python starts"))
}

/// The page's own lines, as a module.
fn write_page(folder: &Path) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/embedding.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, code) = page.split_once("```python\n").expect("the page has Python");
    let (code, _) = code.split_once("```").unwrap();
    fs::write(folder.join("page.py"), code).unwrap();
}

#[test]
fn the_pages_python_ties_ids_to_prompts() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    write_page(folder.path());
    let index = Index::start().unwrap();
    for hook in [true, false] {
        let store = hook.then(|| folder.path());
        let mut command = command(&python, "ids.py", store);
        let output = command
            .env("PYTHONPATH", folder.path())
            .env("CONTEXTPILOT_INDEX_URL", index.url())
            .output();
        let run = Run::of(&output.expect("Python starts"));
        let tied = run.step("tied").rest["result"];
        assert_eq!(tied, i64::from(hook), "{run:?}");
    }
    // What was still cached at the end comes last, in any order.
    let told = index.reports();
    assert_eq!(told[..2], ["first", "second"], "{told:?}");
    let rest: BTreeSet<&str> = told[2..].iter().map(String::as_str).collect();
    assert_eq!(rest, BTreeSet::from(["first again", "unused"]));
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
