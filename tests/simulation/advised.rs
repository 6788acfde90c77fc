//! Takes the advice for bad set-ups: starts the real server with the advised flags, and compares the
//! share of reused tokens with the promised share.

use std::process::Command;

use contextpilot_client::Control;
use contextpilot_testbed::{
    Arch, Completion, Error, Model, Request, Result, Server, Step, Tally, Trace,
};
use serde_json::Value;

use crate::client::{Client, Sampling, phrases};
use crate::prompts::text;
use crate::recorded::{LAUNCHER, SIGTERM};
use crate::sessions::{loaded, with_store};
use crate::store::await_store;

const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");
/// How far the promised share may be off.
const TOLERANCE: f64 = 0.02;

/// A server and traffic for which other flags would be better.
struct SetUp {
    name: &'static str,
    arch: Arch,
    flags: &'static [&'static str],
    trace: Trace,
    /// No flags help: the prompts have no common prefix.
    hopeless: bool,
}

fn talks(talkers: u64, turns: usize, front: &str, length: usize) -> Trace {
    let mut trace = Trace::new();
    for turn in 1..=turns {
        for talker in 0..talkers {
            let prompt = format!("{front}{}", text(100 + talker, length * turn));
            trace = trace.then(Step::Ask(Request::completion(prompt).predict(8)));
        }
    }
    trace
}

/// Each prompt begins with another date.
fn dated() -> Trace {
    (0..24).fold(Trace::new(), |trace, nth| {
        let prompt = format!("{}{}", text(5000 + nth, 30), text(1, 500));
        trace.then(Step::Ask(Request::completion(prompt).predict(8)))
    })
}

/// A window over a list of documents: from one request to the next, the first document is left out.
fn windows() -> Trace {
    (0..24).fold(Trace::new(), |trace, nth| {
        let documents: String = (nth..nth + 5).map(|nth| text(200 + nth, 120)).collect();
        let prompt = format!("{}{documents}", text(1, 100));
        trace.then(Step::Ask(Request::completion(prompt).predict(8)))
    })
}

/// A client sends a model's own answers, later without the oldest turns.
fn chat() -> Result<Trace> {
    let server = Server::builder().model(&Model::tiny(Arch::Llama));
    let mut server = server.args(BARE.iter().copied()).spawn()?;
    let sayings = (0..20).map(|nth| text(nth, 40));
    let sampling = Sampling {
        temperature: 0.0,
        tokens: 150,
        grammar: Some(phrases()),
    };
    let mut client = Client::new(&server, &text(99, 60), sayings, sampling);
    client.chat()?;
    let trace = client.trace;
    server.stop(SIGTERM)?;
    Ok(trace)
}

const BARE: &[&str] = &["-c", "8192", "--parallel", "1", "--cache-ram", "0"];

fn set_ups() -> Result<Vec<SetUp>> {
    let bare = BARE;
    let tight: &[&str] = &["-c", "8192", "--parallel", "2", "--cache-ram", "1"];
    let strict: &[&str] = &[
        "-c",
        "8192",
        "--parallel",
        "4",
        "--cache-ram",
        "0",
        "--slot-prompt-similarity",
        "1",
    ];
    let set_up = |name, arch, flags, trace, hopeless| SetUp {
        name,
        arch,
        flags,
        trace,
        hopeless,
    };
    let chat = chat()?;
    Ok(vec![
        set_up(
            "one slot for three talkers",
            Arch::Llama,
            bare,
            talks(3, 6, "", 90),
            false,
        ),
        set_up(
            "a small host cache for eight",
            Arch::Llama,
            tight,
            talks(8, 4, "", 110),
            false,
        ),
        set_up(
            "a similarity that nothing has",
            Arch::Llama,
            strict,
            talks(3, 6, &text(7, 200), 60),
            false,
        ),
        set_up(
            "chunks that could be moved",
            Arch::Llama,
            bare,
            windows(),
            false,
        ),
        set_up(
            "a recurrent model in one slot",
            Arch::Mamba,
            bare,
            talks(3, 6, "", 90),
            false,
        ),
        set_up(
            "a date in front of everything",
            Arch::Gemma2,
            bare,
            dated(),
            true,
        ),
        set_up(
            "a chat without its oldest turns",
            Arch::Llama,
            bare,
            chat.clone(),
            false,
        ),
        set_up(
            "such a chat, with a host cache",
            Arch::Llama,
            &["-c", "8192", "--parallel", "1"],
            chat.clone(),
            false,
        ),
        set_up(
            "such a chat, with the default flags",
            Arch::Llama,
            &["-c", "8192"],
            chat,
            false,
        ),
    ])
}

/// Tries all set-ups.
pub(super) fn run(tally: &mut Tally) {
    match set_ups() {
        Ok(set_ups) => {
            for set_up in set_ups {
                tally.note(&format!("advice: {}", set_up.name), try_out(&set_up));
            }
        }
        Err(error) => tally.note("advice", Err(error)),
    }
}

fn try_out(set_up: &SetUp) -> Result<String> {
    let server = Server::builder().model(&Model::tiny(set_up.arch));
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("traffic");
    let mut recorder: Server = server
        .clone()
        .args(set_up.flags.iter().copied())
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_TRAFFIC_FILE", &path)
        .spawn()?;
    let before = share(&set_up.trace, &recorder)?;
    recorder.stop(SIGTERM)?;
    let output = Command::new(COMPANION)
        .args(["advise", "--json"])
        .arg(&path)
        .output()?;
    let advice: Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        Error::new(format!(
            "{error}: {}",
            String::from_utf8_lossy(&output.stderr)
        ))
    })?;
    let changes = advice["changes"].as_array().cloned().unwrap_or_default();
    if set_up.hopeless {
        let client = advice["tokens"]["behind_a_difference"].as_u64();
        return if changes.is_empty() && client > Some(0) {
            Ok(format!("nothing helps but the client, {client:?} tokens"))
        } else {
            Err(Error::new(advice.to_string()))
        };
    }
    let Some(last) = changes.last() else {
        return Err(Error::new(format!("no advice: {advice}")));
    };
    let flags: Vec<&str> = last["flags"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    // If a flag is given twice, the last one counts.
    let mut builder = server
        .args(set_up.flags.iter().copied())
        .args(flags.iter().copied());
    let store = last["store_gb"].as_f64();
    if let Some(gb) = store {
        let folder = folder.path().join("store");
        builder = with_store(builder, &folder, (gb * 1e9) as u64)
            .launcher(LAUNCHER)
            .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
    }
    let mut advised = builder.spawn()?;
    let control = match store {
        Some(_) => {
            let address = advised.await_control()?.to_string();
            let control = Control::new(&address).map_err(|e| Error::new(e.to_string()))?;
            await_store(&control);
            Some(control)
        }
        None => None,
    };
    let mut after = share(&set_up.trace, &advised)?;
    if let Some(control) = control {
        after += loaded(&control)? as f64 / prompts(&advice);
    }
    advised.stop(SIGTERM)?;
    let promised = last["point"]["spared_share"].as_f64().unwrap_or(f64::NAN);
    let store = store.map(|gb| format!("a store of {gb} GB"));
    let tried: Vec<&str> = flags.into_iter().chain(store.as_deref()).collect();
    let said = format!(
        "{}: {:.1} % before, {:.1} % promised, {:.1} % after",
        tried.join(" "),
        100.0 * before,
        100.0 * promised,
        100.0 * after
    );
    if (after - promised).abs() <= TOLERANCE && after > before {
        Ok(said)
    } else {
        Err(Error::new(said))
    }
}

/// All tokens of prompts.
fn prompts(advice: &Value) -> f64 {
    advice["recorded"]["prompt_tokens"]
        .as_f64()
        .unwrap_or(f64::NAN)
}

/// The share of prompt tokens that the engine reused, by its own figures.
fn share(trace: &Trace, server: &Server) -> Result<f64> {
    let outcomes = trace.run(server)?;
    let completions: Vec<&Completion> = outcomes.iter().flat_map(|o| &o.completions).collect();
    let reused: usize = completions.iter().map(|c| c.cache_n).sum();
    let tokens: usize = completions.iter().map(|c| c.cache_n + c.prompt_n).sum();
    Ok(reused as f64 / tokens as f64)
}
