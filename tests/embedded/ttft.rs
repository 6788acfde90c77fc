//! `contextpilot-llama ttft --python`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use contextpilot_testbed::{Arch, Model, llama_server};
use serde_json::Value;

use crate::program::without_ours;
use crate::python::python;

fn ttft(python: &Path, model: &Path, folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    without_ours(&mut command);
    command.args(["ttft", "--trials", "2", "--context-tokens", "150", "--json"]);
    command.arg("--python").arg(model);
    command.arg("--python-bin").arg(python);
    command.env("LLAMA_SERVER_BIN", llama_server());
    command.current_dir(folder).output().unwrap()
}

#[test]
fn bindings_and_server_are_measured_with_and_without_the_store() {
    let Some(python) = python() else { return };
    let model = Model::tiny(Arch::Llama);
    let folder = tempfile::tempdir().unwrap();
    let output = ttft(
        &python,
        &model.path().canonicalize().unwrap(),
        folder.path(),
    );
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = said["runs"].as_array().unwrap();
    let names: Vec<(&str, bool)> = runs
        .iter()
        .map(|run| {
            let store = run["store"].as_bool().unwrap();
            (run["program"].as_str().unwrap(), store)
        })
        .collect();
    let (bindings, server) = ("llama-cpp-python", "llama-server");
    let wanted = [
        (bindings, false),
        (bindings, true),
        (server, false),
        (server, true),
    ];
    assert_eq!(names, wanted);
    for run in runs {
        for trial in run["trials"].as_array().unwrap() {
            let of = |what: &str, which: &str| trial[what][which].as_u64().unwrap();
            assert!(of("hit", "evaluated") < 80, "{run:#}");
            assert!(of("miss", "evaluated") > 120, "{run:#}");
            // The server has a cache of its own, and the bindings have none.
            let again = of("again", "evaluated");
            match (run["program"] == bindings, run["store"] == true) {
                (true, false) => assert!(again > 240, "{run:#}"),
                (true, true) => assert!(again <= 2, "{run:#}"),
                (false, _) => assert!(again < 80, "{run:#}"),
            }
            let prompt = of("again", "prompt_tokens");
            assert_eq!(prompt, of("hit", "prompt_tokens"), "{run:#}");
        }
    }
    let csv = fs::read_to_string(folder.path().join("ttft.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 4 * 2, "{csv}");
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.iter().all(|count| *count == columns[0]), "{csv}");
    let svg = fs::read_to_string(folder.path().join("ttft.svg")).unwrap();
    assert!(svg.contains("llama-server, prefix store"));
}

#[test]
fn a_python_without_the_bindings_is_named_with_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python");
    fs::write(
        &python,
        "#!/bin/sh\necho 'it has no llama_cpp' >&2; exit 1\n",
    )
    .unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    let model = Model::tiny(Arch::Llama).path().canonicalize().unwrap();
    let missing = folder.path().join("missing");
    for (python, model, wanted) in [
        (
            &python,
            &model,
            "it has no llama_cpp; install llama-cpp-python",
        ),
        (&missing, &model, "cannot be started"),
        (&python, &missing, "There is no model at "),
    ] {
        let output = ttft(python, model, folder.path());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains(wanted), "{stderr}");
    }
}
