//! `store` on the folder that a real server wrote.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use contextpilot_testbed::{Completion, Request, chunk_files};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Watched, companion, fails, good, json, two_slots, until};

/// A server with a store of 600 tokens, its folder, and the answer.
fn filled() -> (Watched, TempDir, Completion) {
    let folder = tempfile::tempdir().unwrap();
    let builder = two_slots().env("CONTEXTPILOT_STORE", folder.path());
    let watched = Watched::start(builder);
    until("the store is in use", || {
        let ready = &watched.json(&["stats"])["store"]["ready"];
        (*ready == true).then_some(())
    });
    let answer = watched.complete(asking(1, 600));
    watched.complete(asking(2, 5));
    // What the model is called is written behind the chunks.
    until("the prompt is on disk, and its model's name", || {
        let said = shown(folder.path(), &[]);
        let is_named = said["models"][0]["model"].is_string();
        let tokens = said["tokens"].as_u64().unwrap_or(0);
        (is_named && tokens >= 600).then_some(())
    });
    (watched, folder, answer)
}

fn asking(first: u64, count: usize) -> Request {
    let prompt: Vec<u64> = (1..=count as u64).map(|i| 300 + (first * i) % 50).collect();
    Request::completion(Value::from(prompt)).slot(0).predict(4)
}

fn shown(folder: &Path, arguments: &[&str]) -> Value {
    let output = on(folder, arguments).arg("--json").output().unwrap();
    json(&String::from_utf8_lossy(&output.stdout))
}

fn on(folder: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = companion(&[&["store"], arguments].concat());
    command.env("CONTEXTPILOT_STORE", folder);
    command
}

/// The files of chunks, the largest first.
fn chunks(folder: &Path) -> Vec<PathBuf> {
    let mut files = chunk_files(folder);
    files.sort_by_key(|file| std::cmp::Reverse(fs::metadata(file).unwrap().len()));
    files
}

#[test]
fn warming_a_prompt_loads_or_evaluates_it_before_it_is_needed() {
    let (watched, folder, _) = filled();
    let file = folder.path().join("body.json");
    let stored: Vec<u64> = (1..=600).map(|i| 300 + i % 50).collect();
    let body = json!({"prompt": stored, "id_slot": 0, "n_predict": 50});
    fs::write(&file, body.to_string()).unwrap();
    // Its slot has another prompt.
    let warmed = watched.json(&["warm", file.to_str().unwrap()]);
    assert_eq!(warmed["prompt_tokens"], 600, "{warmed}");
    assert_eq!(warmed["evaluated"], 1, "{warmed}");
    assert!(warmed["loaded"].as_u64().unwrap() > 500, "{warmed}");
    let answer = watched.complete(asking(1, 600));
    assert_eq!(answer.cache_n, 599, "{answer:?}");
    // A text that no prompt had.
    fs::write(
        &file,
        "Elms line the avenue, and a beetle brings the fungus.",
    )
    .unwrap();
    let said = watched.text(&["warm", file.to_str().unwrap()]);
    assert!(said.contains(", 0 from the prefix store, "), "{said}");
    let again = watched.json(&["warm", file.to_str().unwrap()]);
    assert_eq!(again["evaluated"], 1, "{again}");
    fs::write(&file, "{}").unwrap();
    let why = fails(watched.command(&["warm", file.to_str().unwrap()]));
    assert!(why.contains("say with --api"), "{why}");
}

#[test]
fn a_prompt_is_kept_and_released_by_hand_and_the_store_shows_it() {
    let (watched, folder, _) = filled();
    let file = folder.path().join("body.json");
    let stored: Vec<u64> = (1..=600).map(|i| 300 + i % 50).collect();
    for (salt, rest) in [
        (json!(null), "), for "),
        (json!("a"), "), for requests with its cache_salt, for "),
    ] {
        let body = json!({"prompt": stored, "id_slot": 0, "cache_salt": salt});
        fs::write(&file, body.to_string()).unwrap();
        let file = file.to_str().unwrap();
        let kept = watched.json(&["keep", file, "--for", "2h"]);
        assert_eq!(kept["prompt_tokens"], 600, "{kept}");
        assert_eq!(kept["kept"], true, "{kept}");
        let shown_as_kept = || {
            shown(folder.path(), &[])["kept"]
                .as_array()
                .unwrap()
                .clone()
        };
        let one = until("it is kept", || shown_as_kept().pop());
        assert_eq!(shown_as_kept().len(), 1, "{one}");
        // The chunk that it ends in may have some of an answer.
        let tokens = one["tokens"].as_u64().unwrap();
        assert!((600..=650).contains(&tokens), "{one}");
        assert_eq!(one["is_salted"], !salt.is_null(), "{one}");
        let left = one["seconds_left"].as_f64().unwrap();
        assert!(left > 0.0 && left <= 7200.0, "{one}");
        let text = good(&on(folder.path(), &[]).output().unwrap());
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("kept: {tokens} tokens of ")));
        assert!(line.is_some_and(|line| line.contains(rest)), "{text}");
        let released = good(&watched.command(&["release", file]).output().unwrap());
        assert!(released.contains("keep it no longer"), "{released}");
        until("it is released", || {
            shown_as_kept().is_empty().then_some(())
        });
    }
    let output = watched.command(&["keep", "x", "--for", "soon"]).output();
    let why = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(why.contains("such as 8h"), "{why}");
}

#[test]
fn what_is_refused_is_not_said_to_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let builder = two_slots()
        .env("CONTEXTPILOT_STORE", folder.path())
        .env("CONTEXTPILOT_STORE_GB", "0.002");
    let watched = Watched::start(builder);
    until("the store is in use", || {
        let ready = &watched.json(&["stats"])["store"]["ready"];
        (*ready == true).then_some(())
    });
    let file = folder.path().join("body.json");
    let keep = |prompt: Vec<u64>| {
        fs::write(&file, json!({"prompt": prompt}).to_string()).unwrap();
        watched.command(&["keep", file.to_str().unwrap()])
    };
    // A quarter of the budget has room for some 900 tokens.
    let mut long = keep((1..=1500).map(|i| 300 + i % 50).collect());
    let output = long.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(
        stdout.starts_with("1,500 tokens are cached now"),
        "{stdout}"
    );
    assert!(!stdout.contains("prefix store keeps"), "{stdout}");
    let todo = "a quarter of the budget, or be more than 1,024 prompts (cache_control): raise CONTEXTPILOT_STORE_GB, or let \
                something go with contextpilot-llama release";
    assert!(
        stderr.contains("It is not kept: ") && stderr.contains(todo),
        "{stderr}"
    );
    let stats = watched.text(&["stats"]);
    assert!(stats.contains(todo), "{stats}");
    let kept = good(
        &keep((1..=300).map(|i| 300 + i % 49).collect())
            .output()
            .unwrap(),
    );
    assert!(kept.contains("The prefix store keeps it for 1h"), "{kept}");
}

#[test]
fn it_shows_what_a_server_has_stored() {
    let (watched, folder, _) = filled();
    let said = shown(folder.path(), &[]);
    let files = chunks(folder.path());
    assert_eq!(said["chunks"], files.len());
    let on_disk: u64 = files
        .iter()
        .map(|file| fs::metadata(file).unwrap().len().next_multiple_of(4096))
        .sum();
    assert_eq!(said["bytes"], on_disk);
    let models = said["models"].as_array().unwrap();
    assert_eq!(models.len(), 1, "{said}");
    assert_eq!(models[0]["tokens"], said["tokens"]);
    let name = watched.json(&["stats"])["model"]["name"].clone();
    assert_eq!(models[0]["model"], name, "{said}");
    assert!(said["last_used_seconds_ago"].as_f64().unwrap() < 60.0);

    let text = good(&on(folder.path(), &[]).output().unwrap());
    assert!(
        text.starts_with(&*folder.path().to_string_lossy()),
        "{text}"
    );
    assert!(text.contains(name.as_str().unwrap()), "{text}");
    let path = good(&on(folder.path(), &["path"]).output().unwrap());
    assert_eq!(path.trim_end(), folder.path().to_string_lossy());
}

#[test]
fn from_when_to_when_is_only_said_if_it_differs() {
    let (mut watched, folder, _) = filled();
    watched.server.stop(15).unwrap();
    let files = chunks(folder.path());
    assert!(files.len() > 1);
    let use_then = |file: &Path, hours: u64| {
        let then = SystemTime::now() - Duration::from_secs(hours * 3600);
        fs::File::open(file).unwrap().set_modified(then).unwrap();
    };
    let said = || {
        let text = good(&on(folder.path(), &[]).output().unwrap());
        text.lines().nth(1).unwrap().to_owned()
    };
    files.iter().for_each(|file| use_then(file, 3));
    let line = said();
    assert_eq!(line.matches(" ago").count(), 1, "{line}");
    assert!(!line.contains(" to "), "{line}");
    use_then(&files[0], 5);
    let line = said();
    assert!(line.contains(" to 5 h") && line.ends_with(" ago"), "{line}");
}

#[test]
fn verify_removes_what_is_damaged_and_says_so() {
    let (mut watched, folder, _) = filled();
    watched.server.stop(15).unwrap();
    let all = chunks(folder.path()).len();
    // The summary says check and shrink, so these are understood.
    let kept = ["shrink", "--to", "1TB"];
    assert!(good(&on(folder.path(), &kept).output().unwrap()).starts_with("0 chunks removed"));
    let unsaid = on(folder.path(), &["shrink"]).output().unwrap();
    let unsaid = String::from_utf8(unsaid.stderr).unwrap();
    assert!(unsaid.contains("store shrink --to <SIZE>"), "{unsaid}");
    for name in ["verify", "check"] {
        let output = on(folder.path(), &[name]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(good(&output).contains("all are good"), "{output:?}");
    }

    let largest = chunks(folder.path()).remove(0);
    let mut bytes = fs::read(&largest).unwrap();
    let end = bytes.len();
    bytes[end - 1000] ^= 1;
    fs::write(&largest, bytes).unwrap();
    let output = on(folder.path(), &["verify", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = json(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(said["damaged"], 1, "{said}");
    assert_eq!(said["good"], all - 1, "{said}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let name = largest.file_stem().unwrap().to_string_lossy();
    let line = format!("[ContextPilot] The chunk {name} was removed: ");
    assert!(stderr.starts_with(&line), "{stderr}");
    assert!(!largest.exists());

    good(&on(folder.path(), &["clear"]).output().unwrap());
    let empty = good(&on(folder.path(), &["verify"]).output().unwrap());
    assert_eq!(empty, "The store is empty: there is nothing to check\n");
    let refused = |path: &Path| {
        let output = on(path, &["verify"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refused(&largest).contains("There is no prefix store in "));
    fs::write(&largest, "").unwrap();
    assert!(refused(&largest).contains(" is no folder: "));
}

#[test]
fn pruning_under_a_running_server_costs_time_only() {
    let (watched, folder, first) = filled();
    let before = shown(folder.path(), &[]);
    let half = before["bytes"].as_u64().unwrap() / 2;
    let said = shown(folder.path(), &["prune", "--to", &half.to_string()]);
    assert!(said["left_bytes"].as_u64().unwrap() <= half, "{said}");
    assert!(said["left_chunks"].as_u64().unwrap() > 0, "{said}");
    let files = chunks(folder.path()).len() as u64;
    assert_eq!(said["left_chunks"], files);
    let removed = said["chunks"].as_u64().unwrap();
    assert_eq!(before["chunks"], removed + files);

    let answer = watched.complete(asking(1, 600));
    assert_eq!(answer.content, first.content);
    // The beginning stayed: what a chunk continues leaves after it.
    let account = until("the prompt's account", || {
        let said = watched.json(&["stats"]);
        (said["store"]["loads"].as_u64()? > 0).then_some(said)
    });
    let loaded = account["store"]["loaded_tokens"].as_u64().unwrap();
    assert!(loaded >= 256, "{}", account["store"]);

    // The server may be writing what it has just evaluated.
    until("the store stays empty", || {
        let said = shown(folder.path(), &["clear"]);
        assert_eq!(said["left_chunks"], 0);
        chunks(folder.path()).is_empty().then_some(())
    });
    assert_eq!(
        watched.complete(asking(2, 5)).content,
        watched.complete(asking(2, 5)).content
    );
    let answer = watched.complete(asking(1, 600));
    assert_eq!(answer.content, first.content);
}

#[test]
fn without_a_store_it_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = companion(&["store"]);
    // No server of this user runs there.
    command.env("XDG_RUNTIME_DIR", folder.path());
    command.env("HOME", folder.path());
    command.env_remove("CONTEXTPILOT_STORE");
    let said = fails(command);
    assert!(said.contains("CONTEXTPILOT_STORE"), "{said}");
    assert!(said.contains("--folder"), "{said}");
    let said = fails(on(folder.path(), &[]));
    assert!(said.contains("There is no prefix store in"), "{said}");
    // Looking made none.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let output = on(folder.path(), &["prune", "--to", "much"]).output();
    let stderr = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(stderr.contains("10GB"), "{stderr}");
    let path = good(&on(folder.path(), &["path", "--json"]).output().unwrap());
    assert_eq!(json(&path), json!({ "folder": folder.path() }));
}

/// The same model with another flag on which KV depends.
#[test]
fn of_two_models_with_one_name_it_says_in_what_they_differ() {
    let (watched, folder, _) = filled();
    assert_eq!(
        shown(folder.path(), &[])["models"][0]["differs"],
        Value::Null
    );
    drop(watched);
    let builder = two_slots()
        .args(["--rope-freq-base", "5000"])
        .env("CONTEXTPILOT_STORE", folder.path());
    let watched = Watched::start(builder);
    until("the store is in use", || {
        let ready = &watched.json(&["stats"])["store"]["ready"];
        (*ready == true).then_some(())
    });
    watched.complete(asking(1, 600));
    watched.complete(asking(2, 5));
    // What a model is, is written by itself, and chunks one after the other.
    let models = until("the prompt is on disk, and what both models are", || {
        let models = shown(folder.path(), &[])["models"].clone();
        let is_whole = models[0]["tokens"].as_u64().unwrap_or(0) >= 600;
        (is_whole && models[1]["differs"].is_string()).then_some(models)
    });
    assert_eq!(models[0]["model"], models[1]["model"]);
    assert_eq!(models[0]["differs"], Value::Null);
    let differs = models[1]["differs"].as_str().unwrap();
    assert_eq!(differs, "flags differ: none, here --rope-freq-base 5000");
    let text = good(&on(folder.path(), &[]).output().unwrap());
    for model in models.as_array().unwrap() {
        let short = &model["fingerprint"].as_str().unwrap()[..12];
        assert!(text.contains(&format!("({short})")), "{text}");
    }
    assert!(text.contains(&format!(": {differs}\n")), "{text}");

    // Which of the two a server uses now.
    let used = watched.json(&["stats"])["store"]["fingerprints"].clone();
    assert_eq!(used, json!([models[0]["fingerprint"]]));

    // One of them goes, and the other stays.
    let [now, old] = [0, 1].map(|nth| models[nth]["fingerprint"].as_str().unwrap());
    let output = on(folder.path(), &["clear", "--model", "coffee.gguf"]).output();
    let stderr = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(
        stderr.contains("nothing of a model that is called coffee.gguf"),
        "{stderr}"
    );
    let before = shown(folder.path(), &[]);
    let said = shown(folder.path(), &["clear", "--model", &old[..12]]);
    assert_eq!(said["chunks"], models[1]["chunks"], "{said}");
    assert_eq!(said["left_chunks"], models[0]["chunks"], "{said}");
    let after = shown(folder.path(), &[]);
    assert_eq!(
        after["models"].as_array().unwrap().len(),
        1,
        "{before} {after}"
    );
    assert_eq!(after["models"][0]["fingerprint"], now);
    let name = models[0]["model"].as_str().unwrap();
    let said = shown(folder.path(), &["prune", "--to", "1", "--model", name]);
    assert_eq!(said["left_chunks"], 0, "{said}");
}
