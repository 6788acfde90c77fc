//! Has a server with the hook call each hooked function, and ends it. For memory checkers such as
//! valgrind.
//!
//! `exercise PROGRAM HOOK [store]`, where PROGRAM runs llama-server; see `scripts/sanitize`. With `store`, only what concerns
//! the prefix store. `exercise model` prints the path of
//! the model that another program may be checked with.

use contextpilot_testbed::{
    Arch, Behaviour, Connection, Error, Index, Model, Request, Result, Server,
};
use contextpilot_testbed::{Step, Trace};
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Under valgrind everything takes some fifty times as long, and on a busy machine a start took more than 300 s.
const PATIENCE: Duration = Duration::from_secs(900);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A command for people. It has no other error message.
            eprintln!("[ContextPilot] The exercise stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn failed(what: impl Into<String>) -> Error {
    Error::from(std::io::Error::other(what.into()))
}

fn run() -> Result<()> {
    let mut args = std::env::args_os().skip(1);
    if args.len() == 1 && args.next().is_some_and(|what| what == "model") {
        println!("{}", Model::tiny(Arch::Llama).path().display());
        return Ok(());
    }
    let mut args = std::env::args_os().skip(1);
    let (Some(program), Some(hook)) = (args.next(), args.next()) else {
        return Err(failed("run scripts/sanitize"));
    };
    if args.next().is_some_and(|what| what == "store") {
        return stored(&program, &hook);
    }
    let usual = ["--context-shift", "-c", "1024", "--parallel", "2"];
    let servers: [(&str, Arch, &[&str]); 2] = [
        ("host prompt cache", Arch::Llama, &[]),
        (
            "sliding window, checkpoints",
            Arch::Gemma2,
            &["--cache-ram", "1"],
        ),
    ];
    for (name, arch, args) in servers {
        let index = Index::start()?;
        let mut server = Server::builder()
            .model(&Model::tiny(arch))
            .args(usual)
            .args(args.iter().copied())
            .program(&program)
            .preload(&hook)
            .index_url(index.url())
            .ready_within(PATIENCE)
            .spawn()?;
        trace(name).run(&server)?;
        index.behave(Behaviour::CloseMidAnswer);
        let text = "what is said while the index is away";
        Trace::new()
            .ask(Request::completion(text).id("req-away").slot(0))
            .ask(Request::completion("something else").slot(0))
            .run(&server)?;
        index.behave(Behaviour::Accept);
        server.signal(libc::SIGTERM);
        let status = server.wait(PATIENCE)?;
        println!("{name}: {status}, {} ids reported", index.evicted().len());
        if !status.success() || index.evicted().is_empty() {
            return Err(failed(format!("{status}\n{}", server.stderr())));
        }
    }
    stored(&program, &hook)
}

/// The prefix store of each kind of memory: three lives of a server on one folder, and before the last one every file in it is
/// damaged.
fn stored(program: &OsStr, hook: &OsStr) -> Result<()> {
    let kinds: [(Arch, &[&str]); 4] = [
        (Arch::Llama, &["--cache-ram", "0"]),
        (Arch::Llama, &["--cache-ram", "1"]),
        (Arch::Jamba, &["--cache-ram", "0", "--kv-unified"]),
        (
            Arch::Gemma2,
            &["--cache-ram", "0", "-b", "256", "-ub", "128"],
        ),
    ];
    let (mut loads, mut saves) = (0, 0);
    for (arch, args) in kinds {
        let folder = tempfile::tempdir()?;
        for life in ["stored", "stored, the next life", "stored, all damaged"] {
            let damaged = life.ends_with("damaged");
            let files = if damaged { damage(folder.path())? } else { 0 };
            let mut server = Server::builder()
                .model(&Model::tiny(arch))
                .args(["--parallel", "2", "-c", "4096"])
                .args(args.iter().copied())
                .program(program)
                .preload(hook)
                .env("CONTEXTPILOT_STORE", folder.path())
                .env("CONTEXTPILOT_STORE_GB", "1")
                .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
                .ready_within(PATIENCE)
                .spawn()?;
            let control = server.await_control()?;
            stored_trace().run(&server)?;
            let stats = Connection::open(control)?.exchange("GET", "/stats", b"")?;
            let store = &stats.json()?["store"];
            let count = |name: &str| store[name].as_u64().unwrap_or(0);
            let (loaded, kept) = (count("loads"), count("saves"));
            let tokens = count("loaded_tokens");
            let problem = store["problem"].as_str().unwrap_or("no problem");
            server.signal(libc::SIGTERM);
            let status = server.wait(PATIENCE)?;
            println!(
                "{arch} {}, {life}: {status}, {kept} saves, {loaded} loads of {tokens} tokens, {files} damaged files, {problem}",
                args.join(" ")
            );
            let refused = store["refused"]
                .as_array()
                .is_none_or(|why| !why.is_empty());
            let noticed = problem.contains("read");
            // In the other lives the server's own cache may have given back everything.
            let enough = life != "stored, the next life" || tokens >= 500;
            if !status.success() || refused || !enough || noticed != damaged {
                return Err(failed(format!("{status}, {store}\n{}", server.stderr())));
            }
            loads += loaded;
            saves += kept;
        }
    }
    println!("prefix store: {loads} loads, {saves} saves");
    Ok(())
}

/// Prompts that push each other out of a slot and come back, one that goes on, a client that leaves, and a copy of a slot.
fn stored_trace() -> Trace {
    let ask = |seed: usize, length: usize| {
        let tokens: Vec<usize> = (0..length)
            .map(|n| 300 + (n * (seed + 7) + seed) % 47)
            .collect();
        Request::completion(serde_json::json!(tokens))
            .id(format!("req-{seed}"))
            .slot(0)
    };
    let mut trace = Trace::new();
    for (seed, length) in [(1, 600), (2, 600), (1, 600), (3, 600), (2, 700)] {
        trace = trace.ask(ask(seed, length));
    }
    trace
        .then(Step::Save(0, "stored".into()))
        .then(Step::Abandon(ask(3, 600).streamed().predict(200), 2))
        .then(Step::Restore(0, "stored".into()))
        .ask(ask(1, 500))
        .ask(ask(1, 600).with("n_cmpl", 2))
}

/// Changes a byte in each file of chunks, and says how many there are.
fn damage(folder: &Path) -> Result<usize> {
    let mut changed = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            changed += damage(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "kv") {
            let mut bytes = std::fs::read(&path)?;
            let at = bytes.len().saturating_sub(100);
            bytes[at] ^= 1;
            std::fs::write(&path, bytes)?;
            changed += 1;
        }
    }
    Ok(changed)
}

fn trace(name: &str) -> Trace {
    let text = |n: usize| format!("{n} is where this prompt begins, in a life with {name}");
    let ask = |n: usize| Request::completion(text(n)).id(format!("req-{n}"));
    let mut trace = Trace::new();
    for n in 0..6 {
        trace = trace.ask(ask(n));
    }
    trace
        // Back from the host cache.
        .ask(ask(1))
        .ask(ask(6).streamed())
        .ask(ask(7).with("n_cmpl", 2))
        .ask(Request::chat(&[("user", "how are you?")]).id("req-chat"))
        .ask(Request::completion(serde_json::json!([5, 6, 7, 8, 9])).id("req-tokens"))
        .then(Step::Abandon(ask(8).streamed().predict(200), 2))
        .then(Step::Abandon(ask(9), 0))
        .ask(ask(10).slot(0))
        .then(Step::Save(0, "slot".into()))
        .ask(ask(11).slot(0))
        .then(Step::Restore(0, "slot".into()))
        .then(Step::Erase(1))
        // Longer than the context of a slot: it is shifted.
        .ask(ask(12).slot(0).predict(1100))
        // Longer than the context: refused.
        .ask(Request::completion("x".repeat(5000)).id("req-refused"))
}
