//! Has a server with the hook call each hooked function, and ends it. For memory checkers such as
//! valgrind.
//!
//! `exercise PROGRAM HOOK`, where PROGRAM runs llama-server; see `scripts/sanitize`. `exercise model` prints the path of
//! the model that another program may be checked with.

use contextpilot_testbed::{
    Arch, Behaviour, Connection, Error, Index, Model, Request, Result, Server,
};
use contextpilot_testbed::{Step, Trace};
use std::ffi::OsStr;
use std::process::ExitCode;
use std::time::Duration;

/// Under valgrind everything takes some fifty times as long.
const PATIENCE: Duration = Duration::from_secs(300);

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

/// Prompts that are stored and loaded, in two lives of a server on one folder.
fn stored(program: &OsStr, hook: &OsStr) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let ask = |seed: usize| {
        let tokens: Vec<usize> = (0..600)
            .map(|n| 300 + (n * (seed + 7) + seed) % 47)
            .collect();
        Request::completion(serde_json::json!(tokens))
            .id(format!("req-{seed}"))
            .slot(0)
    };
    for life in ["stored", "stored, the next life"] {
        let mut server = Server::builder()
            .model(&Model::tiny(Arch::Llama))
            .args(["--parallel", "2", "-c", "4096", "--cache-ram", "0"])
            .program(program)
            .preload(hook)
            .env("CONTEXTPILOT_STORE", folder.path())
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
            .ready_within(PATIENCE)
            .spawn()?;
        let control = server.await_control()?;
        let mut trace = Trace::new();
        for seed in [1, 2, 1, 3, 2] {
            trace = trace.ask(ask(seed));
        }
        // A client that leaves, and a copy of a slot.
        trace
            .then(Step::Abandon(ask(3).streamed().predict(200), 2))
            .ask(ask(1).with("n_cmpl", 2))
            .run(&server)?;
        let stats = Connection::open(control)?.exchange("GET", "/stats", b"")?;
        let loaded = stats.json()?["store"]["loaded_tokens"].as_u64();
        server.signal(libc::SIGTERM);
        let status = server.wait(PATIENCE)?;
        println!("{life}: {status}, {loaded:?} tokens loaded");
        if !status.success() || loaded.unwrap_or(0) < 1_000 {
            return Err(failed(format!("{status}\n{}", server.stderr())));
        }
    }
    Ok(())
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
