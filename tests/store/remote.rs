//! Several machines with one store: folders that are kept alike through a real Redis, or a bucket.

mod asked;
mod bucket;
mod fleet;
mod hostile;
mod machines;
mod tls;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use contextpilot_testbed::{
    Arch, Builder, KillOnDrop, Model, Request, Server, or_return, private_folder, skip, until,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::moved::{companion, companion_command, good, refused};
use super::{SIGTERM, Stored, chunk_files, exact, folder, one_slot, started, tokens};

/// An address at which nothing listens.
fn free_port() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap()
}

/// A Redis of the test's own.
struct Redis {
    process: KillOnDrop,
    at: SocketAddr,
}

impl Redis {
    /// `None`: there is none on this machine.
    fn start(arguments: &[&str]) -> Option<Self> {
        Self::start_at(free_port(), arguments)
    }

    fn start_at(at: SocketAddr, arguments: &[&str]) -> Option<Self> {
        let Ok(program) = which::which("redis-server") else {
            skip("there is no redis-server; install it (Debian: redis-server)");
            return None;
        };
        let mut command = Command::new(program);
        let (port, address) = (at.port().to_string(), at.ip().to_string());
        command.args(["--port", &port, "--bind", &address]);
        command
            .args(["--save", "", "--appendonly", "no"])
            .args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let redis = Self {
            process: KillOnDrop(command.spawn().unwrap()),
            at,
        };
        until("the Redis answers", || TcpStream::connect(at).ok());
        Some(redis)
    }

    fn url(&self) -> String {
        format!("redis://{}", self.at)
    }

    /// The first line of an answer to a command, in words without blanks.
    fn say(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(self.at).unwrap();
        stream
            .write_all(format!("{command}\r\n").as_bytes())
            .unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// All of an answer that is one value.
    fn text(&self, command: &str) -> String {
        let stream = TcpStream::connect(self.at).unwrap();
        (&stream)
            .write_all(format!("{command}\r\n").as_bytes())
            .unwrap();
        let mut reader = BufReader::new(stream);
        let mut size = String::new();
        reader.read_line(&mut size).unwrap();
        let size: usize = size.trim().trim_start_matches('$').parse().unwrap();
        let mut text = vec![0; size];
        reader.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// From now on it says nothing.
    fn halt(&self) {
        kill_process(Pid::from_child(&self.process), Signal::STOP).unwrap();
    }

    /// How many chunks it has.
    fn chunks(&self) -> usize {
        let keys = "redis.call('keys','contextpilot:kv:1:chunk:*')";
        let count = self.say(&format!("EVAL \"return #{keys}\" 0"));
        count.trim_start_matches(':').parse().unwrap()
    }
}

fn shared(redis: &Redis) -> Builder {
    shared_by(&one_slot(), redis)
}

fn shared_by(server: &Builder, redis: &Redis) -> Builder {
    let server = server.clone();
    server.env("CONTEXTPILOT_STORE_REMOTE", redis.url())
}

/// `contextpilot-llama store sync URL --once --json`.
fn once(folder: &Path, redis: &Redis) -> Value {
    good(&companion(
        folder,
        &["sync", &redis.url(), "--once", "--json"],
    ))
}

/// `store sync` learns which chunks are of use in a folder before the first prompt.
#[test]
fn of_what_a_servers_chunks_will_be_is_written_down_once_it_has_warmed_up() {
    for arch in [Arch::Llama].into_iter().chain(exact::ALL) {
        let folder = folder();
        let origins = || -> Vec<OsString> {
            let all = fs::read_dir(folder.path().join("v1/origins"));
            let all = all.into_iter().flatten();
            all.map(|entry| entry.unwrap().file_name()).collect()
        };
        let remote = format!("redis://{}", free_port());
        let builder = exact::one_slot(arch).env("CONTEXTPILOT_STORE_REMOTE", remote);
        let mut stored = Stored::start(&builder, folder.path());
        let before = until("the origin is there", || {
            Some(origins()).filter(|all| !all.is_empty())
        });
        assert!(chunk_files(folder.path()).is_empty(), "{arch}");
        for seed in [39, 40] {
            stored.ask(&tokens(seed, 500));
        }
        until("a prompt is stored", || {
            (stored.figures().chunks > 0).then_some(())
        });
        stored.server.stop(SIGTERM).unwrap();
        assert_eq!(origins(), before, "{arch}: its chunks are others");
        assert_eq!(before.len(), 1, "{arch}");
    }
}

#[test]
fn a_server_loads_what_one_on_another_machine_evaluated() {
    let redis = or_return!(Redis::start(&[]));
    let (here, there) = (folder(), folder());
    let mut one = Stored::start(&shared(&redis), here.path());
    let mut other = Stored::start(&shared(&redis), there.path());
    let plain = started(&one_slot());
    let (tea, sea) = (tokens(134, 700), tokens(135, 500));
    one.ask(&tea);
    one.ask(&sea);
    // What is only in the slot is stored when the server ends, and sent after that.
    one.server.stop(SIGTERM).unwrap();
    until("the other one has all", || {
        has_all_of(&other, &there, &here)
    });
    let (_, account) = other.compare(&plain, &tea);
    assert_eq!(account.from.store, 699, "{account:?}");
    let (_, account) = other.compare(&plain, &sea);
    assert_eq!(account.from.store, 499, "{account:?}");

    // Nothing is fetched for a model of which no server here knows.
    let elsewhere = folder();
    let moved = once(elsewhere.path(), &redis);
    assert_eq!(
        (&moved["sent"], &moved["fetched"]),
        (&0.into(), &0.into()),
        "{moved}"
    );
    // A server on an empty folder gets all that was sent before it came, too.
    let mut third = Stored::start(&shared(&redis), elsewhere.path());
    until("all is fetched", || has_all_of(&third, &elsewhere, &here));
    let (_, account) = third.compare(&plain, &tea);
    assert_eq!(account.from.store, 699, "{account:?}");
}

/// Whether a server has seen that its folder has all chunks of another one.
fn has_all_of(server: &Stored, own: &TempDir, other: &TempDir) -> Option<()> {
    let names = |folder: &TempDir| -> BTreeSet<OsString> {
        let files = chunk_files(folder.path()).into_iter();
        files
            .map(|file| file.file_name().unwrap().to_owned())
            .collect()
    };
    let (own, other) = (names(own), names(other));
    let seen = server.figures().chunks >= own.len() as u64;
    (!other.is_empty() && other.is_subset(&own) && seen).then_some(())
}

/// The folder is removed while the server and `store sync` run. They go on with the one that the server makes.
#[test]
fn a_folder_that_was_removed_is_made_again_and_kept_alike() {
    let redis = or_return!(Redis::start(&[]));
    let home = folder();
    let at = home.path().join("store");
    fs::create_dir(&at).unwrap();
    let mut stored = Stored::start(&shared(&redis), &at);
    for seed in [141, 142] {
        stored.ask(&tokens(seed, 500));
    }
    until("a prompt is sent", || (redis.chunks() > 0).then_some(()));
    stored.await_written();
    let there = chunk_files(&at);
    until("the folder is gone", || fs::remove_dir_all(&at).ok());
    until("it is said", || {
        let said = stored.server.stderr();
        said.contains("the folder cannot be read").then_some(())
    });
    let before = redis.chunks();
    let mut seed = 143;
    until("the folder is there again, with an origin", || {
        stored.ask(&tokens(seed, 500));
        seed += 1;
        let origins = fs::read_dir(at.join("v1/origins")).ok()?;
        (origins.count() == 1 && !chunk_files(&at).is_empty()).then_some(())
    });
    // Not all of it, if two begin with the same token.
    until("what is new is sent, and what was there fetched", || {
        let is_fetched = chunk_files(&at).iter().any(|file| there.contains(file));
        (redis.chunks() > before && is_fetched).then_some(())
    });
}

#[test]
fn what_is_damaged_there_is_not_taken() {
    let redis = or_return!(Redis::start(&[]));
    let (here, there) = (folder(), folder());
    for (folder, prompt) in [(&here, tokens(136, 400)), (&there, tokens(137, 40))] {
        let mut stored = Stored::start(&one_slot(), folder.path());
        stored.ask(&prompt);
        stored.server.stop(SIGTERM).unwrap();
    }
    let sent = once(here.path(), &redis);
    let own = chunk_files(here.path());
    assert_eq!(sent["sent"], own.len(), "{sent}");
    let name = own[0].file_stem().unwrap().to_str().unwrap();
    let key = format!("contextpilot:kv:1:chunk:{name}");
    // One bit of its rows.
    assert!(redis.say(&format!("SETBIT {key} 20000 1")).starts_with(':'));
    assert!(redis.say(&format!("SETBIT {key} 20001 0")).starts_with(':'));
    assert!(redis.say(&format!("SETBIT {key} 20002 1")).starts_with(':'));
    let moved = once(there.path(), &redis);
    assert_eq!(moved["damaged"], 1, "{moved}");
    assert_eq!(redis.say(&format!("EXISTS {key}")), ":0");
    // A folder that has it sends it again.
    assert_eq!(once(here.path(), &redis)["sent"], 1);
    assert_eq!(once(there.path(), &redis)["fetched"], 1);
    assert_eq!(once(there.path(), &redis)["fetched"], 0);
    // Which chunks are of use in a folder is not known before a server has stored something there.
    let unused = folder();
    let said = companion(unused.path(), &["sync", &redis.url(), "--once"]);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.contains("\nNo server has stored anything in this folder yet"),
        "{said}"
    );
}

/// As systemd ends a service: every process gets SIGTERM, and the server goes on for a while.
#[test]
fn a_signal_ends_it_when_the_server_has_ended_and_without_a_remote_nothing_is_alike() {
    let folder = folder();
    let nobody = format!("redis://{}", free_port());
    assert!(refused(&companion(folder.path(), &["sync", &nobody, "--once"])).contains("refused"));

    let mut server = Command::new("sleep").arg("100").spawn().unwrap();
    let of = server.id().to_string();
    let mut command = companion_command(folder.path(), &["sync", &nobody, "--of", &of]);
    let mut sync = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(sync.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("is not kept alike"), "{line}");
    let pid = rustix::process::Pid::from_child(&sync);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(
        sync.try_wait().unwrap().is_none(),
        "the server still writes"
    );
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(sync.wait().unwrap().success());
    let rest: Vec<_> = lines.map(Result::unwrap).collect();
    assert!(rest.is_empty(), "{rest:?}");
}

#[test]
fn what_the_server_writes_after_the_signal_is_sent() {
    let redis = or_return!(Redis::start(&[]));
    let folder = folder();
    let mut server = Command::new("sleep").arg("100").spawn().unwrap();
    let of = server.id().to_string();
    let mut command = companion_command(folder.path(), &["sync", &redis.url(), "--of", &of]);
    let mut sync = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(sync.stderr.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    assert!(line.contains("are kept alike: 0 chunks sent"), "{line}");
    let pid = rustix::process::Pid::from_child(&sync);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut stored = Stored::start(&one_slot(), folder.path());
    stored.ask(&tokens(170, 500));
    let said = stored.server.stderr();
    assert!(
        said.contains("with a prefix store; no index is set"),
        "{said}"
    );
    stored.end();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(sync.wait().unwrap().success());
    assert!(redis.chunks() > 0);
}

/// What `doctor` says of the subject with these variables: the grade, and the text.
fn doctor(folder: &Path, variables: &[(&str, &str)], subject: &str) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
    command.args(["doctor", "--json"]);
    command.arg(contextpilot_testbed::llama_server());
    command.env("HOME", folder).env("XDG_RUNTIME_DIR", folder);
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut findings = report["findings"].as_array().unwrap().iter();
    let found = findings.find(|finding| finding["subject"] == subject);
    let text = |name: &str| found.unwrap()[name].as_str().unwrap().to_owned();
    (text("grade"), text("text"))
}

#[test]
fn doctor_asks_the_remote() {
    let redis = or_return!(Redis::start(&["--requirepass", "sesame"]));
    let folder = private_folder();
    let store = folder.path().join("store");
    let with = |url: &str| {
        let store = ("CONTEXTPILOT_STORE", store.to_str().unwrap());
        let settings = [store, ("CONTEXTPILOT_STORE_REMOTE", url)];
        doctor(folder.path(), &settings, "store remote")
    };
    let url = format!("redis://:sesame@{}", redis.at);
    let answers = format!("{} answers", redis.url());
    assert_eq!(with(&url), ("ok".to_owned(), answers));
    let alone = [("CONTEXTPILOT_STORE_REMOTE", url.as_str())];
    let (grade, text) = doctor(folder.path(), &alone, "settings");
    assert_eq!(grade, "limit");
    assert!(text.contains("without CONTEXTPILOT_STORE"), "{text}");
    for wrong in [
        url.replace("sesame", "open"),
        redis.url(),
        "s3://:open@ab".to_owned(),
    ] {
        let (grade, text) = with(&wrong);
        assert_eq!(grade, "limit", "{text}");
        assert!(!text.contains("open"), "{text}");
    }
}

#[test]
fn a_redis_that_is_full_or_gone_costs_nothing_but_its_help() {
    let full = ["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"];
    let redis = or_return!(Redis::start(&full));
    let folder = folder();
    let mut stored = Stored::start(&shared(&redis), folder.path());
    let plain = started(&one_slot());
    for seed in 138..141 {
        stored.compare(&plain, &tokens(seed, 700));
    }
    until("it is said that it is full", || {
        stored
            .server
            .stderr()
            .contains("set maxmemory-policy allkeys-lru there")
            .then_some(())
    });
    let at = redis.at;
    drop(redis);
    until("it is said that it is gone", || {
        let said = stored.server.stderr();
        let lines = said
            .lines()
            .filter(|line| line.contains("is not kept alike"));
        (lines.count() == 2).then_some(())
    });
    let (_, account) = stored.compare(&plain, &tokens(138, 700));
    assert_eq!(account.from.store, 699, "{account:?}");
    // Another Redis at the same address gets all of it.
    let redis = Redis::start_at(at, &[]).unwrap();
    until("all is sent", || {
        (redis.chunks() > 0 && redis.chunks() as u64 == stored.figures().chunks).then_some(())
    });
    // That is said when all is sent, so a moment later.
    until("it is said that it is there again", || {
        let said = stored.server.stderr();
        said.contains("is there again: ").then_some(())
    });
}

/// A program that reads the launcher's output to its end waits for all processes that write there.
#[test]
fn nobody_waits_for_a_remote_who_only_asks_or_does_not_start() {
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let run = |arguments: &[&str]| {
        let folder = folder();
        let mut command = Command::new(env!("CARGO_BIN_EXE_contextpilot-llama-server"));
        command
            .args(arguments)
            .env("CONTEXTPILOT_STORE", folder.path());
        command.env("CONTEXTPILOT_STORE_REMOTE", &url);
        command.env("LLAMA_SERVER_BIN", contextpilot_testbed::llama_server());
        let begin = std::time::Instant::now();
        let output = command.output().unwrap();
        (output, begin.elapsed())
    };
    for question in ["--version", "--help"] {
        let (output, _) = run(&[question]);
        assert!(output.status.success(), "{output:?}");
        let asked = silent.accept();
        assert!(asked.is_err(), "{question}: the remote was asked");
    }
    let (output, took) = run(&["-m", "/nothing/there.gguf"]);
    assert!(!output.status.success());
    // An answer would be late after ten seconds, and the process after 30.
    assert!(took < Duration::from_secs(8), "{took:?}");
}

/// The process beside the server says in the folder how it goes, and all commands show it.
#[test]
fn the_remote_is_shown_while_it_is_there_and_when_it_is_not() {
    let redis = or_return!(Redis::start(&[]));
    let folder = folder();
    let mut stored = Stored::start(&shared(&redis), folder.path());
    for seed in [240, 241] {
        stored.ask(&tokens(seed, 500));
    }
    let remote = || stored.figures().remote;
    stored.await_written();
    let chunks = stored.figures().chunks;
    let shown = until("that all was sent is shown", || {
        remote().filter(|remote| remote.sent == chunks && remote.waiting == 0)
    });
    assert!(shown.reachable && shown.problem.is_none(), "{shown:?}");
    assert_eq!(shown.address, redis.url());
    assert_eq!((shown.fetched, shown.refused), (0, 0));
    let since = shown.since.unwrap();
    let said = good(&companion(folder.path(), &["--json"]));
    assert_eq!(said["remote"]["sent"], shown.sent, "{said}");
    let text = companion(folder.path(), &[]);
    let text = String::from_utf8(text.stdout).unwrap();
    let line = format!("remote {}: reachable for", redis.url());
    assert!(text.contains(&line), "{text}");
    assert!(text.contains("0 waiting, 0 refused"), "{text}");
    let metric = |name: &str, label: &str| {
        let page = stored.control.raw("/metrics").unwrap().1;
        let mut lines = page.lines();
        let line = lines.find(|line| line.contains(&format!("{name}{{")) && line.contains(label));
        line.unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    let sent = metric("prefix_store_remote_chunks_total", "change=\"sent\"");
    assert_eq!(sent, shown.sent.to_string());
    assert_eq!(metric("prefix_store_remote_failing", ""), "0");

    drop(redis);
    let gone = until("that it is gone is shown", || {
        remote().filter(|remote| !remote.reachable)
    });
    assert!(gone.since.unwrap() >= since, "{gone:?}");
    let problem = gone.problem.unwrap();
    assert!(
        problem.contains("refused") || problem.contains("end of file"),
        "{problem}"
    );
    assert_eq!(metric("prefix_store_remote_failing", ""), "1");
    stored.server.stop(SIGTERM).unwrap();
    until("nobody is there any more", || {
        let said = good(&companion(folder.path(), &["--json"]));
        said["remote"].is_null().then_some(())
    });
}
