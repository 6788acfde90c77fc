//! `up`: server, hook and index in one command, and what a user types next.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use contextpilot_testbed::{
    Arch, Connection, KillOnDrop, Model, Response, llama_server, or_return, test_name, until,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use serde_json::{Value, json};

use crate::support::{COMPANION, Home};

/// `up`, in a process group of its own. Ends when it is dropped.
struct Up {
    process: KillOnDrop,
    log: Option<JoinHandle<String>>,
    index: SocketAddr,
}

impl Up {
    /// Starts `up` with these arguments, and waits until the index listens.
    fn start(mut command: Command) -> Self {
        command.process_group(0).stderr(Stdio::piped());
        let mut process = KillOnDrop(command.spawn().unwrap());
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let url = line.strip_prefix("[ContextPilot] Index at http://");
        let address = url.and_then(|url| url.split_once(','));
        let address = address.unwrap_or_else(|| panic!("{line}")).0;
        let index = address.parse().unwrap();
        let log = std::thread::spawn(move || {
            let mut log = line;
            for line in stderr.lines() {
                log += &(line.unwrap_or_default() + "\n");
            }
            log
        });
        Self {
            process,
            log: Some(log),
            index,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Response {
        let mut connection = Connection::open(self.index).unwrap();
        let body = body.to_string();
        connection.exchange(method, path, body.as_bytes()).unwrap()
    }

    /// Waits until the server behind the index is ready. Until then every answer is a 503, with a reason.
    fn await_ready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        until("the server is ready", || {
            let answer = self.send("GET", "/props", &json!({}));
            if answer.status == 200 {
                return Some(());
            }
            assert_eq!(answer.status, 503, "{}", answer.text());
            reasons.push(answer.json().unwrap()["error"]["message"].to_string());
            None
        });
        reasons
    }

    fn complete(&self, body: &Value) -> Response {
        let answer = self.send("POST", "/v1/completions", body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer
    }

    /// Waits for the end. Returns the code, and what all of it said.
    fn end(mut self) -> (ExitStatus, String) {
        let status = self.process.wait().unwrap();
        let log = self.log.take().unwrap().join().unwrap();
        (status, log)
    }
}

/// `up` with these arguments of its own, and `server` in the server's place.
fn up(home: &Home, arguments: &[&str], server: &Path) -> Command {
    let mut command = home.command(COMPANION, &["up"]);
    command.args(arguments).env("LLAMA_SERVER_BIN", server);
    command
}

fn tiny() -> String {
    Model::tiny(Arch::Llama).path().display().to_string()
}

/// A script that does something before the server starts, or runs it in another way.
fn script(home: &Home, lines: &str) -> std::path::PathBuf {
    let path = home.path().join("server.sh");
    let server = llama_server();
    fs::write(
        &path,
        format!("#!/bin/sh\nserver='{}'\n{lines}\n", server.display()),
    )
    .unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Whether something listens there.
fn listens(address: SocketAddr) -> bool {
    Connection::open(address).is_ok()
}

/// What a user types first, with the defaults of everything.
#[test]
fn what_a_user_types_first_works_first() {
    let home = or_return!(Home::of(test_name!()).filter(|home| home.alone));
    let up = Up::start(up(&home, &["-m", &tiny(), "-t", "1"], &llama_server()));
    assert_eq!(up.index.port(), 8765);
    up.await_ready();
    for (prompt, id) in [
        ("Tea is picked in spring.", "tea"),
        ("Owls turn their heads.", "owl"),
        ("Tea is dried.", "tea2"),
    ] {
        up.complete(&json!({"prompt": prompt, "max_tokens": 4, "rid": id, "id_slot": 0}));
    }
    until("the hook knows them", || {
        home.run(&["where", "tea2"]).status.success().then_some(())
    });
    assert!(home.text(&["why", "--last"]).contains("tea2"));
    let stats = home.text(&["stats"]);
    assert!(
        stats.contains("listening    http://127.0.0.1:9931"),
        "{stats}"
    );
    let in_front = "http://127.0.0.1:8765 stands in front, and asks what is cached";
    assert!(stats.contains(in_front), "{stats}");
    assert!(home.text(&["top"]).contains(in_front));
    let advice = home.text(&["advise"]);
    assert!(advice.contains("prompt tokens are reused"), "{advice}");
    assert_eq!(
        home.stats(&[]).process,
        up.process.id(),
        "this process is the server"
    );

    // As Ctrl-C does: to every process of the group.
    kill_process_group(up.pid(), Signal::INT).unwrap();
    let index = up.index;
    let (status, log) = up.end();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(!log.contains("second interrupt"), "{log}");
    assert!(!log.contains("for observation only"), "{log}");
    assert!(
        log.contains("the index at http://127.0.0.1:8765 asks what is cached"),
        "{log}"
    );
    assert!(
        log.contains("Index at http://127.0.0.1:8765, in front of http://127.0.0.1:9931"),
        "{log}"
    );
    until("the index has ended", || (!listens(index)).then_some(()));
    assert!(home.fails(&["stats"]).contains("No server of this user"));
    // Its recording is there still.
    let named = home.fails(&["advise"]);
    assert!(
        named.contains(", or name the recording of one that has ended: /")
            && named.contains("/up-8765.traffic"),
        "{named}"
    );
}

/// As docs/agents.md has it: the day stays, and the rest of the time goes.
#[test]
fn with_rules_what_changes_at_the_beginning_is_put_right() {
    let home = or_return!(Home::of(test_name!()));
    let rules = home.path().join("rules.toml");
    let rule = r"name = 'time-of-day'
        in = 'prompt'
        find = '([0-9]{4}-[0-9]{2}-[0-9]{2})T[0-9:.]+Z'
        replace = '$1'";
    fs::write(&rules, format!("[[rule]]\n{rule}\n")).unwrap();
    let rules = rules.display().to_string();
    let own: [&str; 4] = ["--index-port", "0", "--stabilise", &rules];
    let model = tiny();
    let server: [&str; 6] = ["-m", &model, "--port", "0", "-np", "1"];
    let up = Up::start(up(
        &home,
        &[&own[..], &server[..]].concat(),
        &llama_server(),
    ));
    up.await_ready();
    let rest = "Tea is picked in spring, and dried in the sun. ".repeat(8);
    let evaluated = |time: &str| {
        let prompt = format!("It is {time}. {rest}");
        let answer = up.complete(&json!({"prompt": prompt, "max_tokens": 1}));
        let answer = answer.json().unwrap();
        answer["timings"]["prompt_n"].as_u64().unwrap()
    };
    let first = evaluated("2026-11-28T12:49:05Z");
    assert!(first >= rest.len() as u64, "{first}");
    assert_eq!(evaluated("2026-11-28T12:51:40Z"), 1);
    // The day is still read.
    assert!(evaluated("2026-11-29T12:51:40Z") >= rest.len() as u64);
    let stats = up.send("GET", "/stats", &json!({})).json().unwrap();
    assert_eq!(stats["stabilised"], json!({"time-of-day": 3}));
    kill_process(up.pid(), Signal::TERM).unwrap();
    let (status, log) = up.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn while_the_server_starts_the_index_says_503_with_a_reason() {
    let home = or_return!(Home::of(test_name!()));
    let slow = script(&home, "sleep 1; exec \"$server\" \"$@\"");
    let up = Up::start(up(
        &home,
        &["--index-port", "0", "-m", &tiny(), "--port", "0"],
        &slow,
    ));
    let answer = up.send("GET", "/props", &json!({}));
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    let error = answer.json().unwrap()["error"].clone();
    assert_eq!(error["type"], "unavailable_error");
    let reasons = up.await_ready();
    let first = "llama-server is starting and does not listen yet: try again in a moment";
    assert_eq!(reasons[0], format!("{first:?}"));
    // A server says that it is ready a moment before it handles signals. When it answers, it does.
    let answer = up.send(
        "POST",
        "/completion",
        &json!({"prompt": "a", "n_predict": 1}),
    );
    assert_eq!(answer.status, 200);
    kill_process(up.pid(), Signal::TERM).unwrap();
    let (status, log) = up.end();
    assert_eq!(status.code(), Some(0), "{log}");
}

/// The process that is started is a shell, and the server its child.
#[test]
fn a_server_that_a_script_starts_is_found() {
    let home = or_return!(Home::of(test_name!()));
    let wrapper = script(&home, "\"$server\" \"$@\" & trap 'kill $!' TERM; wait");
    let up = Up::start(up(
        &home,
        &["--index-port", "0", "-m", &tiny(), "--port", "0"],
        &wrapper,
    ));
    up.await_ready();
    let server = home.stats(&[]).process;
    assert_ne!(server, up.process.id());
    kill_process(up.pid(), Signal::TERM).unwrap();
    let index = up.index;
    let (_, log) = up.end();
    until("the index has ended", || (!listens(index)).then_some(()));
    let server = Pid::from_raw(server.cast_signed()).unwrap();
    until("the server has ended", || {
        test_kill_process(server).is_err().then_some(())
    });
    drop(log);
}

#[test]
fn a_router_is_found_and_its_first_model_followed() {
    let home = or_return!(Home::of(test_name!()));
    let models = home.path().join("models");
    fs::create_dir(&models).unwrap();
    fs::copy(Model::tiny(Arch::Llama).path(), models.join("one.gguf")).unwrap();
    let folder = models.display().to_string();
    let router = ["--index-port", "0", "--models-dir", &folder, "--port", "0"];
    let up = Up::start(up(&home, &router, &llama_server()));
    up.await_ready();
    up.complete(&json!({"model": "one", "prompt": "Tea", "max_tokens": 1}));
    until("the hook is followed", || {
        let ready = up.send("GET", "/ready", &json!({})).json().unwrap();
        (ready["cache_truth"] == "engine").then_some(())
    });
    let child = home.stats(&[]);
    assert!(child.routed, "{child:?}");
    kill_process(up.pid(), Signal::TERM).unwrap();
    let (status, log) = up.end();
    assert_eq!(status.code(), Some(0), "{log}");
    let in_front = log
        .lines()
        .find(|line| line.contains(", in front of http://"));
    let in_front = in_front.unwrap_or_else(|| panic!("{log}"));
    assert!(
        !child.listening.iter().any(|url| in_front.ends_with(url)),
        "{in_front}"
    );
}

#[test]
fn without_a_hook_the_server_is_found_all_the_same() {
    let home = or_return!(Home::of(test_name!()));
    let mut command = up(
        &home,
        &["--index-port", "0", "-m", &tiny(), "--port", "0"],
        &llama_server(),
    );
    command.env("CONTEXTPILOT_HOOK_LIB", "/nonexistent");
    let up = Up::start(command);
    up.await_ready();
    up.complete(&json!({"prompt": "Tea", "max_tokens": 1}));
    let ready = up.send("GET", "/ready", &json!({})).json().unwrap();
    assert_eq!(ready["cache_truth"], "own guess");
}

#[test]
fn if_the_port_of_the_index_is_taken_the_flag_for_it_is_named() {
    let home = or_return!(Home::of(test_name!()));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let server = script(&home, "touch started");
    let output = up(&home, &["--index-port", &port, "-m", "x"], &server)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("choose another with --index-port"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(!home.path().join("started").exists());
}

#[test]
fn the_code_of_a_server_that_fails_is_the_code_of_up() {
    let home = or_return!(Home::of(test_name!()));
    let failing = script(&home, "exit 7");
    let up = Up::start(up(&home, &["--index-port", "0", "-m", "x"], &failing));
    let index = up.index;
    let (status, log) = up.end();
    assert_eq!(status.code(), Some(7), "{log}");
    until("the index has ended", || (!listens(index)).then_some(()));
}

#[test]
fn nothing_is_recorded_if_that_is_not_wanted() {
    let home = or_return!(Home::of(test_name!()));
    let own = [
        "--index-port",
        "0",
        "--no-recording",
        "-m",
        &tiny(),
        "--port",
        "0",
    ];
    let up = Up::start(up(&home, &own, &llama_server()));
    up.await_ready();
    assert_eq!(home.stats(&[]).recording, None);
    drop(up);
    // Otherwise one file for each port, in a folder that only this user can enter.
    let own = ["--index-port", "0", "-m", &tiny(), "--port", "0"];
    let up = Up::start(self::up(&home, &own, &llama_server()));
    up.await_ready();
    let recording = home.stats(&[]).recording.unwrap();
    let file = format!("contextpilot-llama/up-{}.traffic", up.index.port());
    assert_eq!(Path::new(&recording.file), home.path().join(file));
}

#[test]
fn who_has_the_port_is_said_before_anything_starts() {
    let home = or_return!(Home::of(test_name!()));
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let running = home.serve(&crate::support::two_slots());
    let of_server = format!("server {}, which runs already", running.pid());
    for (port, by) in [
        (other.local_addr().unwrap().port(), "another program"),
        (running.address().port(), &*of_server),
    ] {
        let port = port.to_string();
        let server = ["-m", &tiny(), "--port", &port];
        for command in [&["up", "--index-port", "0"][..], &["agent"]] {
            let said = home.fails(&[command, &server].concat());
            let line = format!("[ContextPilot] Port {port} of 127.0.0.1 is taken by {by}: ");
            assert!(
                said.starts_with(&line) && said.lines().count() == 1,
                "{said}"
            );
        }
    }
    // Which port it takes if none is given its version decides. So it is a line, and the server starts.
    let usual = TcpListener::bind("127.0.0.1:9931");
    let mut without = home.command(COMPANION, &["agent", "--no-store", "-m", &tiny()]);
    // Into a file: the process that waits for the server to be ready has it open until that is reaped.
    let log = home.path().join("said");
    let without = without.stderr(File::create(&log).unwrap());
    without
        .env("LLAMA_SERVER_BIN", "/bin/false")
        .status()
        .unwrap();
    let said = fs::read_to_string(&log).unwrap();
    let line =
        "[ContextPilot] Port 9931 of 127.0.0.1, llama-server's usual one since 0.7.0, is taken by ";
    assert!(said.contains(line), "{said}");
    assert!(said.contains("Launching"), "{said}");
    drop(usual);
    // What only asks the server something takes no port.
    let port = running.address().port().to_string();
    let mut asks = home.command(COMPANION, &["agent", "--port", &port, "--version"]);
    let asked = asks.env("LLAMA_SERVER_BIN", llama_server()).output();
    assert!(asked.unwrap().status.success());
}
