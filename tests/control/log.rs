//! `CONTEXTPILOT_LOG_FILE` gets a line for each finished request.

use crate::support::{LAUNCHER, ask, bare, text, until};
use contextpilot_control::{LogLine, Outcome, Reason};
use contextpilot_testbed::{Arch, Builder, Model, Request, Server};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn lines(path: &Path) -> Vec<LogLine> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn logger(path: &Path) -> Builder {
    let builder = bare(1).launcher(LAUNCHER);
    builder.env("CONTEXTPILOT_LOG_FILE", path)
}

fn logging(path: &Path) -> Server {
    logger(path).spawn().unwrap()
}

#[test]
fn each_finished_request_is_logged_without_its_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queries.jsonl");
    let mut server = logging(&path);
    let first = server.complete(&ask(1, 60).id("req-1")).unwrap();
    let second = server.complete(&ask(1, 90).id("req-2")).unwrap();
    let third = server.complete(&ask(2, 70)).unwrap();
    server.send(&ask(3, 3000).id("req-long")).unwrap();
    server
        .send(&Request::completion(json!({"no": "prompt"})))
        .unwrap();
    let lines = until("all lines are written", || {
        Some(lines(&path)).filter(|lines| lines.len() >= 5)
    });
    assert_eq!(lines.len(), 5);
    let ids: Vec<_> = lines.iter().map(|line| line.id.as_deref()).collect();
    assert_eq!(
        ids,
        [Some("req-1"), Some("req-2"), None, Some("req-long"), None]
    );
    for (line, said) in lines.iter().zip([first, second, third]) {
        assert_eq!(line.outcome, Outcome::Answered);
        assert_eq!((line.slot, line.prompts), (Some(0), 1));
        assert_eq!(line.prompt_tokens, said.prompt_tokens as u64);
        assert_eq!(line.reused, said.cache_n as u64);
        assert_eq!(line.evaluated, said.prompt_n as u64);
        let first_token = line.time_to_first_token_seconds.unwrap();
        assert!(
            first_token > 0.0 && first_token <= line.total_seconds,
            "{line:?}"
        );
    }
    // The second prompt continues the first, so both are evicted together.
    assert!(lines[0].evicted.is_empty() && lines[1].evicted.is_empty());
    let mut gone: Vec<_> = lines[2]
        .evicted
        .iter()
        .map(|e| (&*e.id, e.reason))
        .collect();
    gone.sort_unstable();
    assert_eq!(
        gone,
        [
            ("req-1", Reason::Overwritten),
            ("req-2", Reason::Overwritten)
        ]
    );
    for line in &lines[3..] {
        assert_eq!((line.outcome, line.prompts), (Outcome::Unfinished, 0));
        assert_eq!(line.time_to_first_token_seconds, None);
    }
    let whole = std::fs::read_to_string(&path).unwrap();
    assert!(!whole.contains(&text(1, 8)), "{whole}");
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // The request that finishes right before the server ends is logged, too.
    server.complete(&ask(4, 60).id("req-last")).unwrap();
    server.stop(libc::SIGTERM).unwrap();
    let last = self::lines(&path).pop().unwrap();
    assert_eq!(last.id.as_deref(), Some("req-last"));
    let stderr = server.stderr();
    assert!(stderr.contains("for observation only"), "{stderr}");
    assert_eq!(server.control(), None);
    // Without an index there is no journal.
    assert!(!server.folder().join("contextpilot-llama").exists());
}

#[test]
fn if_the_log_file_cannot_be_written_one_line_says_so_before_the_first_request() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none");
    let path = missing.join("queries.jsonl");
    let server = logging(&path);
    let said = || server.stderr().matches("cannot be written").count();
    assert_eq!(said(), 1, "{}", server.stderr());
    for n in 0..3 {
        server.complete(&ask(n, 60)).unwrap();
    }
    // It is tried again.
    std::fs::create_dir(missing).unwrap();
    server.complete(&ask(9, 60).id("req-9")).unwrap();
    until("its line is written", || {
        let mut lines = lines(&path).into_iter();
        lines.find(|line| line.id.as_deref() == Some("req-9"))
    });
    assert_eq!(said(), 1);
}

#[test]
fn what_is_not_a_file_of_this_user_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let [letter, log, traffic] = ["letter", "log", "traffic"].map(|name| folder.path().join(name));
    std::fs::write(&letter, "a letter").unwrap();
    std::os::unix::fs::symlink(&letter, &log).unwrap();
    std::fs::write(&traffic, "another letter").unwrap();
    let server = bare(1)
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_LOG_FILE", &log)
        .env("CONTEXTPILOT_TRAFFIC_FILE", &traffic)
        .spawn()
        .unwrap();
    let said = server.stderr();
    for what in ["(it is a link; ", "(it is not a recording; "] {
        assert_eq!(said.matches(what).count(), 1, "{said}");
    }
    server.complete(&ask(1, 60)).unwrap();
    server.wait_idle().unwrap();
    assert_eq!(std::fs::read_to_string(&letter).unwrap(), "a letter");
    assert_eq!(std::fs::read_to_string(&traffic).unwrap(), "another letter");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 3, "nothing was renamed");
}

/// A server whose log file may have one MiB.
fn logging_within_a_mib(path: &Path) -> Server {
    let builder = logger(path).env("CONTEXTPILOT_LOG_FILE_MB", "1");
    builder.spawn().unwrap()
}

#[test]
fn a_log_file_at_its_limit_is_renamed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queries.jsonl");
    // The log file has reached its limit.
    std::fs::write(&path, vec![b'\n'; 1 << 20]).unwrap();
    let server = logging_within_a_mib(&path);
    server.complete(&ask(1, 60).id("req-1")).unwrap();
    let aside = folder.path().join("queries.jsonl.1");
    until("it is set aside", || aside.exists().then_some(()));
    server.complete(&ask(1, 60).id("req-2")).unwrap();
    let lines = until("both lines are written", || {
        Some(lines(&path)).filter(|lines| lines.len() == 2)
    });
    let ids = [0, 1].map(|nth| lines[nth].id.as_deref());
    assert_eq!(ids, [Some("req-1"), Some("req-2")]);
    assert_eq!(std::fs::metadata(&aside).unwrap().len(), 1 << 20);
}

#[test]
fn a_log_file_that_cannot_be_renamed_is_named_at_the_start_and_stays_within_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("queries.jsonl");
    std::fs::write(&path, vec![b'\n'; 1 << 20]).unwrap();
    std::fs::create_dir(folder.path().join("queries.jsonl.1")).unwrap();
    let server = logging_within_a_mib(&path);
    let said = |what: &str| server.stderr().matches(what).count();
    assert_eq!(said("cannot be renamed at its limit ("), 1);
    server.complete(&ask(1, 60)).unwrap();
    server.complete(&ask(2, 60)).unwrap();
    until("it is said that it is full", || {
        (said("allows and cannot be renamed (") == 1).then_some(())
    });
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
}

/// What a server with these settings says, which ends before it loads if settings are strict.
fn refused_if_strict(settings: &[(&str, String)]) -> String {
    let output = std::process::Command::new(LAUNCHER)
        .env("LLAMA_SERVER_BIN", contextpilot_testbed::llama_server())
        .arg("-m")
        .arg(Model::tiny(Arch::Llama).path())
        .args(["--port", "0"])
        .env("CONTEXTPILOT_STRICT", "1")
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    said
}

#[test]
fn if_settings_are_strict_a_server_that_cannot_listen_ends_before_it_loads() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("missing/control.sock");
    let said = refused_if_strict(&[("CONTEXTPILOT_LISTEN", format!("unix:{}", socket.display()))]);
    assert!(
        said.contains("] Inactive: CONTEXTPILOT_LISTEN: cannot listen on unix:"),
        "{said}"
    );
}

#[test]
fn if_settings_are_strict_a_server_whose_indexs_socket_is_a_file_ends_before_it_loads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("index.sock");
    std::fs::write(&file, "").unwrap();
    let said = refused_if_strict(&[("CONTEXTPILOT_INDEX_URL", format!("unix:{}", file.display()))]);
    assert!(
        said.contains("] Inactive: CONTEXTPILOT_INDEX_URL: ")
            && said.contains("index.sock\" is no socket; name the socket"),
        "{said}"
    );
}

#[test]
fn if_settings_are_strict_a_server_whose_recording_cannot_be_written_ends_before_it_loads() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("control.sock");
    let said = refused_if_strict(&[
        ("CONTEXTPILOT_TRAFFIC_FILE", "/dev/null".into()),
        ("CONTEXTPILOT_LISTEN", format!("unix:{}", socket.display())),
    ]);
    let ours = said.lines().filter(|line| line.contains("] Inactive: "));
    let line = ours.collect::<String>();
    assert!(
        line.contains(
            "CONTEXTPILOT_TRAFFIC_FILE is /dev/null, which cannot be written (it is a device"
        ) && line.ends_with("The server ends here, as CONTEXTPILOT_STRICT is set"),
        "{said}"
    );
    assert!(!socket.exists());
}
