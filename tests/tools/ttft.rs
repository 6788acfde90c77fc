use std::process::Stdio;

use serde_json::Value;

use contextpilot_testbed::{Arch, Builder, Model, Server};

use crate::support::{Watched, companion, fails, good, nowhere, read, two_slots, until};

fn experiment(builder: Builder) -> Value {
    let watched = Watched::start(builder);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("result");
    let said = watched.json(&[
        "ttft",
        "--trials",
        "3",
        "--context-tokens",
        "300",
        "--out",
        out.to_str().unwrap(),
    ]);
    let trials = said["trials"].as_array().unwrap();
    assert_eq!(trials.len(), 3);
    for trial in trials {
        let (hit, miss) = (&trial["hit"], &trial["miss"]);
        assert_eq!(trial["slot"], 0);
        let number = |value: &serde_json::Value| value.as_u64().unwrap();
        // A warmed context is reused.
        assert!(number(&hit["cached"]) > 500, "{trial:#}");
        // Without warming hardly anything is reused: contexts may begin with the same words by chance.
        assert!(number(&miss["cached"]) < 100, "{trial:#}");
        assert!(number(&miss["evaluated"]) > 250, "{trial:#}");
        assert_eq!(trial["before"]["said"]["state"], "cached");
        assert_eq!(trial["after"]["right"], true, "{trial:#}");
    }
    assert_eq!(
        (&said["hook"]["asked"], &said["hook"]["right"]),
        (&6.into(), &6.into())
    );
    assert!(said["ratio"].as_f64().unwrap() > 0.0, "{:#}", said["ratio"]);
    let csv = read(&out.with_extension("csv"));
    assert_eq!(csv.lines().count(), 4, "{csv}");
    let columns = |line: &str| line.split(',').count();
    let first = csv.lines().next().unwrap();
    assert!(
        csv.lines().all(|line| columns(line) == columns(first)),
        "{csv}"
    );
    let svg = read(&out.with_extension("svg"));
    assert!(svg.starts_with("<svg") && svg.contains("Time to first token"));
    said
}

#[test]
fn ttft_measures_hits_and_misses_and_the_hook_tells_them_apart() {
    let said = experiment(two_slots());
    assert!(said["store"].is_null(), "there is none: {said:#}");
}

#[test]
fn with_a_prefix_store_ttft_has_a_third_row() {
    let folder = tempfile::tempdir().unwrap();
    let said = experiment(two_slots().env("CONTEXTPILOT_STORE", folder.path()));
    assert!(said["store"]["median"].as_f64().unwrap() > 0.0, "{said:#}");
    for trial in said["trials"].as_array().unwrap() {
        let (stored, hit) = (&trial["store"], &trial["hit"]);
        assert_eq!(stored["prompt_tokens"], hit["prompt_tokens"], "{trial:#}");
        assert_eq!(stored["evaluated"], 1, "{trial:#}");
    }
}

/// With the default flags, prompts that leave a slot are moved to the host prompt cache.
#[test]
fn with_default_flags_the_hook_tells_hits_and_misses_apart_too() {
    experiment(Server::builder().model(&Model::tiny(Arch::Llama)));
}

#[test]
fn without_a_hook_ttft_runs_and_says_so() {
    let server = two_slots().spawn().unwrap();
    let url = format!("http://{}", server.address());
    let folder = tempfile::tempdir().unwrap();
    let ttft = |more: &[&str]| {
        let mut command = companion(&["ttft", "--trials", "2", "--server", &url]);
        command.args(["--control", &nowhere()]);
        command.args(more).current_dir(folder.path());
        command
    };
    let output = ttft(&["--context-tokens", "100"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("No hook answers"), "{stderr}");
    let text = good(&output);
    for part in ["not asked", "times as fast"] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    for name in ["ttft.csv", "ttft.svg"] {
        assert!(folder.path().join(name).is_file(), "{name}");
    }
    let large = fails(ttft(&["--context-tokens", "5000"]));
    assert!(large.contains("take --context-tokens "), "{large}");
    assert!(fails(ttft(&["--slot", "9"])).contains("there is no slot 9"));
}

#[test]
fn what_was_measured_before_the_server_ended_is_written() {
    let mut server = two_slots().args(["--metrics"]).spawn().unwrap();
    let url = format!("http://{}", server.address());
    let folder = tempfile::tempdir().unwrap();
    let mut command = companion(&["ttft", "--trials", "10000", "--server", &url]);
    command.args(["--control", &nowhere(), "--context-tokens", "50"]);
    command.current_dir(folder.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    until("some trials are made", || {
        let slots = server.get("/metrics").ok()?.text();
        let tokens = slots
            .lines()
            .find_map(|line| line.strip_prefix("llamacpp:prompt_tokens_total "))?;
        (tokens.parse::<f64>().ok()? > 2000.0).then_some(())
    });
    // Asked to end, it answers on connections that are open, and this command goes on asking.
    server.stop(9).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Of 10000 trials the first "), "{said}");
    let csv = read(&folder.path().join("ttft.csv"));
    assert!(csv.lines().count() > 1, "{csv}");
    assert!(folder.path().join("ttft.svg").is_file());
    assert!(!output.stdout.is_empty());
}
