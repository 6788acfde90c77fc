//! Do routers know what the engine would reuse?
//!
//! The router here is NVIDIA Dynamo's own indexer, of PyPI's `ai-dynamo-runtime`. It reads the KV
//! cache events that the hook publishes. The truth comes from the engine:
//!
//! - For slots, it is the tokens of each slot. The server writes them to a file when it saves the
//!   slot, which changes nothing. After every step of a trace, the indexer is asked about everything
//!   that any slot has ever held. Its score for the device must be the number of full blocks that a
//!   slot holds now.
//! - For host memory, which a server does not show, it is `cache_n` when the prompt is sent to a server
//!   that was brought to the same state.
//! - The same holds for requests that name a LoRA adapter, because a server does not show under which
//!   adapters its slots work.
//!
//! The test runs in a network namespace of its own, because the indexer listens at all addresses.
//!
//! ```text
//! cargo test --test published [-- NAME...]
//! ```

#[path = "published/adapters.rs"]
mod adapters;
#[path = "published/bounded.rs"]
mod bounded;
#[allow(dead_code, reason = "the other test uses the rest")]
mod cases;
#[path = "published/disturbances.rs"]
mod disturbances;
#[path = "published/indexer.rs"]
mod indexer;
mod prompts;
#[path = "published/publisher.rs"]
mod publisher;
#[path = "published/relay.rs"]
mod relay;
#[path = "published/router.rs"]
mod router;
#[path = "published/selection.rs"]
mod selection;
#[path = "published/slots.rs"]
mod slots;
#[path = "published/stored.rs"]
mod stored;
#[path = "published/three.rs"]
mod three;
#[path = "published/traces.rs"]
mod traces;

use std::process::{Command, ExitCode};

use contextpilot_testbed::{Result, Tally, skip_case};
use indexer::Indexer;

const LAUNCHER: &str = env!("CARGO_BIN_EXE_contextpilot-llama-server");
/// Set if the test runs inside the namespace.
const INSIDE: &str = "CONTEXTPILOT_TEST_NAMESPACE";

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    if std::env::var_os(INSIDE).is_none() {
        return enter(&wanted);
    }
    let Some(python) = indexer::python("dynamo") else {
        return ExitCode::SUCCESS;
    };
    let indexer = Indexer::start(&python).expect("the indexer starts");
    let mut tally = Tally::default();
    let is_wanted =
        |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    for case in cases::all() {
        match case.server.lacking() {
            _ if !is_wanted(case.name) => {}
            Some(lacking) => tally.skip(case.name, &format!("no {lacking}")),
            None => tally.run(case.name, || traces::run(&case, &indexer)),
        }
    }
    let mut run = |name: &str, test: &dyn Fn() -> Result<String>| {
        if is_wanted(name) {
            tally.run(name, test);
        }
    };
    for (name, test) in disturbances::ALL {
        run(name, &|| test(&indexer, &python));
    }
    run("Dynamo's selection service before three servers", &|| {
        selection::run(&python)
    });
    for (name, test) in stored::ALL {
        run(name, &|| test(&indexer, &python));
    }
    if let Some(python) = indexer::python("vllm-router") {
        run("vllm-router before two servers with stores", &|| {
            stored::router(&python)
        });
        run("vllm-router before two servers", &|| {
            router::run(&python, false)
        });
        run("vllm-router before two servers with adapters", &|| {
            router::run(&python, true)
        });
    }
    tally.end()
}

/// Runs this program again in a network namespace.
fn enter(wanted: &[String]) -> ExitCode {
    let program = std::env::current_exe().expect("this program has a path");
    let probe = Command::new("unshare")
        .args(["-rn", "ip", "link", "set", "lo", "up"])
        .output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        let why = "no network namespace can be made here (unshare -rn, of util-linux, and ip)";
        skip_case("published", why);
        return ExitCode::SUCCESS;
    }
    let status = Command::new("unshare")
        .args(["-rn", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"])
        .arg(program)
        .args(wanted)
        .env(INSIDE, "1")
        .status();
    if status.expect("it can be run again").success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
