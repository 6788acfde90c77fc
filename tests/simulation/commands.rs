//! The commands `simulate` and `advise` on a recording: their output, also for a file that is cut off.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use contextpilot_testbed::{Arch, Error, Model, Request, Result, Server};
use serde_json::Value;

use crate::prompts::text;
use crate::recorded::{LAUNCHER, SIGTERM};

const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");

pub(super) fn run() -> Result<String> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("traffic");
    let mut server = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2)
        .args(["-c", "2048"])
        .launcher(LAUNCHER)
        .env("CONTEXTPILOT_TRAFFIC_FILE", &path)
        .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0")
        .spawn()?;
    for nth in 0..9 {
        server.complete(&Request::completion(text(nth % 3, 60)))?;
    }
    let control = server.await_control()?.to_string();
    let now = Command::new(COMPANION)
        .args(["advise", "--control", &control])
        .output()?;
    let advice = String::from_utf8_lossy(&now.stdout).into_owned();
    expect(
        "a running server's recording is read where it says",
        advice.contains("CONTEXTPILOT_STORE_GB=1"),
    )?;
    expect(
        "a host cache and slots are weighed against a store",
        advice.contains("\n--cache-ram ") && advice.contains("\n--parallel "),
    )?;
    server.stop(SIGTERM)?;

    let grid = [
        "simulate",
        "--parallel",
        "1,2,3",
        "--cache-ram",
        "0,8",
        "--json",
    ];
    let points: Value = serde_json::from_slice(&run_on(&path, &grid)?.stdout)
        .map_err(|error| Error::new(error.to_string()))?;
    let points = points.as_array().cloned().unwrap_or_default();
    expect("there are six points", points.len() == 6)?;
    for point in &points {
        let known = [
            "parallel",
            "cache_ram",
            "slot_prompt_similarity",
            "cache_reuse",
        ]
        .iter()
        .chain(&[
            "reused_share",
            "evaluated_tokens",
            "prompt_seconds",
            "host_bytes",
        ]);
        for name in known {
            expect(name, point[*name].is_number())?;
        }
    }
    let share = |parallel: u64, ram: i64| {
        let mut found = points
            .iter()
            .filter(|p| p["parallel"] == parallel && p["cache_ram"] == ram);
        found
            .next()
            .and_then(|p| p["reused_share"].as_f64())
            .unwrap_or(f64::NAN)
    };
    // Three prompts take turns. They need three slots; with one or two, hardly anything is reused.
    expect("two slots are not enough", share(2, 0) < 0.05)?;
    expect("three are", share(3, 0) > 0.6)?;
    expect("or a host cache", share(1, 8) > 0.6)?;

    let stores = [
        "simulate",
        "--cache-ram",
        "0",
        "--store-gb",
        "0,0.5",
        "--json",
    ];
    let points: Value = serde_json::from_slice(&run_on(&path, &stores)?.stdout)
        .map_err(|error| Error::new(error.to_string()))?;
    expect(
        "none is loaded without a store",
        points[0]["loaded_tokens"] == 0,
    )?;
    let with = &points[1];
    expect("it has a store", with["store_gb"] == 0.5)?;
    expect(
        "with one, what was evaluated once is not evaluated again",
        with["spared_share"].as_f64() > Some(0.6),
    )?;
    expect("it takes room", with["store_bytes"].as_u64() > Some(4096))?;
    let table = run_on(&path, &["simulate", "--store-gb", "0,10"])?;
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    expect("the store is in the table", table.contains("store-gb"))?;

    let plot = folder.path().join("reuse.svg");
    let svg = [
        "simulate",
        "--parallel",
        "1,2",
        "--svg",
        &plot.to_string_lossy(),
    ];
    let printed = String::from_utf8_lossy(&run_on(&path, &svg)?.stdout).into_owned();
    expect(
        "there is a table",
        printed.lines().count() == 3 && printed.contains("reused"),
    )?;
    expect(
        "there is a plot",
        fs::read_to_string(&plot)?.contains("<svg"),
    )?;
    let advice = String::from_utf8_lossy(&run_on(&path, &["advise"])?.stdout).into_owned();
    expect("there is advice", advice.contains("CONTEXTPILOT_STORE_GB"))?;

    let bytes = fs::read(&path)?;
    fs::write(&path, &bytes[..bytes.len() - 7])?;
    let cut = run_on(&path, &["simulate"])?;
    let said = String::from_utf8_lossy(&cut.stderr).into_owned();
    expect(
        "it is said that the file was cut",
        said.contains("was cut off"),
    )?;
    fs::write(&path, b"something else")?;
    let other = companion(&path, &["simulate"])?;
    expect("another file is refused", !other.status.success())?;
    Ok("table, JSON, plot, advice, cut file".to_owned())
}

fn companion(path: &Path, arguments: &[&str]) -> Result<Output> {
    Ok(Command::new(COMPANION).args(arguments).arg(path).output()?)
}

fn run_on(path: &Path, arguments: &[&str]) -> Result<Output> {
    let output = companion(path, arguments)?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(Error::new(String::from_utf8_lossy(&output.stderr)))
    }
}

fn expect(what: &str, holds: bool) -> Result<()> {
    if holds {
        Ok(())
    } else {
        Err(Error::new(format!("not so: {what}")))
    }
}
