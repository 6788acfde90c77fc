//! Secrets in the server's flags are in no file, no message, and no arguments of ours.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use contextpilot_testbed::{Builder, until};

use super::moved::{companion, good, refused};
use super::{SIGTERM, Stored, folder, one_slot, tokens};

/// Part of each secret.
const SECRET: &str = "sesame";
const MCP: &str = r#"{"mcpServers":{"tea":{"url":"http://me:sesame@127.0.0.1:9/","headers":{"Authorization":"sesame"}}}}"#;

/// With a secret wherever a server takes one.
fn secretive() -> Builder {
    one_slot()
        .args(["--hf-token", "hf_sesame"])
        .args(["--override-kv", "general.name=str:sesame"])
        .args(["--mcp-servers-json", MCP])
        .args(["--cors-origins", "https://me:sesame@host"])
        .env("LLAMA_ARG_TAGS", "sesame")
}

/// The files below a folder in which a secret stands.
fn with_secret(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(with_secret(&path));
        } else if fs::read(&path).is_ok_and(|bytes| holds(&bytes)) {
            found.push(path.to_string_lossy().into_owned());
        }
    }
    found
}

fn holds(bytes: &[u8]) -> bool {
    let mut parts = bytes.windows(SECRET.len());
    parts.any(|part| part.eq_ignore_ascii_case(SECRET.as_bytes()))
}

#[track_caller]
fn says_none(output: &Output) {
    assert!(
        !holds(&output.stdout) && !holds(&output.stderr),
        "{output:?}"
    );
}

#[test]
fn no_secret_is_in_a_folder_a_pack_a_recording_a_report_a_log_or_an_answer() {
    let (here, there, desk) = (folder(), folder(), folder());
    let desk_file = |name: &str| desk.path().join(name).to_str().unwrap().to_owned();
    let log = desk_file("queries.jsonl");
    let traffic = desk_file("traffic");
    let builder = secretive()
        .env("CONTEXTPILOT_LOG_FILE", &log)
        .env("CONTEXTPILOT_TRAFFIC_FILE", &traffic);
    let mut stored = Stored::start(&builder, here.path());
    stored.ask(&tokens(230, 600));
    stored.ask(&tokens(231, 600));
    stored.await_written();
    let at = stored.control.address().to_owned();
    for path in ["/stats", "/metrics", "/requests/last", "/tree", "/health"] {
        let (_, answer) = stored.control.raw(path).unwrap();
        assert!(!holds(answer.as_bytes()), "{path}: {answer}");
    }
    let report = desk_file("report.html");
    for words in [
        &["report", "-o", &report, "--control", &at][..],
        &["stats", "--control", &at],
        &["stats", "--json", "--control", &at],
        &["slots", "--control", &at],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
        let output = command
            .args(words)
            .env("HOME", desk.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
        says_none(&output);
    }
    let mode = fs::metadata(&report).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a report tells of prompts");
    stored.server.stop(SIGTERM).unwrap();
    for said in [stored.server.stderr(), stored.server.stdout()] {
        let mut ours = said.lines().filter(|line| line.contains("[ContextPilot]"));
        assert!(!ours.any(|line| holds(line.as_bytes())), "{said}");
    }
    assert_eq!(with_secret(here.path()), [""; 0]);

    // On another machine, whose server has other flags: the flag is named.
    let pack = desk_file("tea.pack");
    says_none(&companion(here.path(), &["export", &pack]));
    let mut other = Stored::start(&one_slot(), there.path());
    other.ask(&tokens(232, 300));
    other.end();
    let why = refused(&companion(there.path(), &["import", &pack]));
    assert!(
        why.contains("--override-kv") && !holds(why.as_bytes()),
        "{why}"
    );
    let imported = companion(there.path(), &["import", &pack, "--unchecked", "--json"]);
    good(&imported);
    says_none(&imported);
    says_none(&companion(there.path(), &["--json"]));
    assert_eq!(with_secret(there.path()), [""; 0]);
    assert_eq!(
        with_secret(desk.path()),
        [""; 0],
        "pack, log, recording, report"
    );
}

/// A server with a key, whose index is asked with a password: neither is said anywhere, nor what a client has sent as its own.
#[test]
fn no_key_of_a_server_its_clients_or_its_index_is_written_or_said() {
    let (here, desk) = (folder(), folder());
    let desk_file = |name: &str| desk.path().join(name).to_str().unwrap().to_owned();
    let builder = one_slot()
        .args(["--api-key", "sesame"])
        .env("HF_TOKEN", "hf_sesame")
        .env("LLAMA_ARG_MODEL_DRAFT_URL", "https://me:sesame@host/tea")
        .env(
            "CONTEXTPILOT_INDEX_URL",
            "http://me:sesame@127.0.0.1:9/evict",
        )
        .env("CONTEXTPILOT_TRACE_FILE", desk_file("trace"))
        .env("CONTEXTPILOT_LOG_FILE", desk_file("queries.jsonl"))
        .env("CONTEXTPILOT_TRAFFIC_FILE", desk_file("traffic"));
    let mut stored = Stored::start(&builder, here.path());
    for seed in [234, 235, 236] {
        let body = serde_json::json!({ "prompt": tokens(seed, 600), "n_predict": 2,
            "request_id": format!("req-{seed}") });
        let body = body.to_string();
        let mut connection = stored.server.connect().unwrap();
        let head = format!(
            "POST /completion?key=sesame HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        connection.write(head.as_bytes()).unwrap();
        connection.write(body.as_bytes()).unwrap();
        assert_eq!(connection.response().unwrap().status, 200);
    }
    stored.await_written();
    let at = stored.control.address().to_owned();
    for path in [
        "/stats",
        "/metrics",
        "/requests/last?n=9",
        "/recent",
        "/tree",
        "/ready",
    ] {
        let Ok((_, answer)) = stored.control.raw(path) else {
            continue;
        };
        assert!(!holds(answer.as_bytes()), "{path}: {answer}");
    }
    for words in [
        &["doctor", "--control", &at][..],
        &["report", "-o", &desk_file("report.html"), "--control", &at],
        &["stats", "--control", &at],
        &["why", "--control", &at],
        &["store", "--folder", here.path().to_str().unwrap()],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
        says_none(
            &command
                .args(words)
                .env("HOME", desk.path())
                .output()
                .unwrap(),
        );
    }
    stored.server.stop(SIGTERM).unwrap();
    for said in [stored.server.stderr(), stored.server.stdout()] {
        let mut ours = said.lines().filter(|line| line.contains("[ContextPilot]"));
        assert!(!ours.any(|line| holds(line.as_bytes())), "{said}");
    }
    for name in ["trace", "queries.jsonl", "traffic", "report.html"] {
        let file = fs::metadata(desk_file(name)).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600, "{name}");
        assert!(file.len() > 0, "{name}");
    }
    assert_eq!(with_secret(here.path()), [""; 0]);
    assert_eq!(with_secret(desk.path()), [""; 0]);
}

/// `ps` shows arguments to every user of the machine.
#[test]
fn the_remotes_password_is_in_no_arguments() {
    let folder = folder();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://me:sesame@{}", silent.local_addr().unwrap());
    let builder = one_slot().env("CONTEXTPILOT_STORE_REMOTE", &url);
    let mut stored = Stored::start(&builder, folder.path());
    stored.ask(&tokens(233, 300));
    let sync = until("the process beside the server is there", || {
        let of = stored.server.pid().to_string();
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mut lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        lines.find(|line| {
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.contains(&&b"sync"[..]) && words.contains(&of.as_bytes())
        })
    });
    assert!(!holds(&sync), "{}", String::from_utf8_lossy(&sync));
    assert_eq!(with_secret(folder.path()), [""; 0]);
    stored.server.stop(SIGTERM).unwrap();
    assert!(!holds(stored.server.stderr().as_bytes()));
}
