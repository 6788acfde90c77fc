//! What else there is for the same purpose, on the same machine and the same traces.

mod package;
mod polling;
mod traces;

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use contextpilot_testbed::{Arch, Index, Model, Request, Result, Server, Spec};

use super::launch::{NOWHERE, in_turn};
use super::serving::{ask, prompt};
use super::signal::{request, watched_server};
use crate::lab::{Lab, failed, has};
use crate::page::Page;
use crate::probe::{Clock, Probe, Submissions};
use crate::sample::{Comparison, Sample, order};

use package::Package;
use polling::{INTERVAL, Watcher, poll};

/// How long to wait for an eviction that must come.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(python: Option<&Path>, lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("Next to what else there is");
    let found = Package::find(lab, python)?;
    let package = found.as_ref().ok();
    match &found {
        Ok(package) => page.say(format!(
            "The Python package contextpilot {}, installed without its dependencies, brings a\n\
             command `contextpilot-llama-server`, which compiles a hook at each start with an index and\n\
             preloads it, and a watcher that polls `/slots` every {} ms. The hook posts from within the\n\
             engine's call when a slot is cleared as a whole. The watcher is reimplemented here, field\n\
             by field, so that it can be asked at chosen moments; it reads two fields that llama-server\n\
             no longer sends, so a second watcher does the best that today's answer allows.",
            package.version,
            INTERVAL.as_millis()
        )),
        Err(why) => page.say(format!("The Python package is left out: {why}.")),
    }
    traces::compare(lab, page, package)?;
    first_token(lab, page, package)?;
    if has("cc") {
        signals(lab, page, package)?;
    }
    if let Some(package) = package {
        launching(lab, page, package)?;
    }
    Ok(())
}

/// With the default flags, where the package's hook is at work: idle slots are cleared whenever
/// another one starts.
fn first_token(lab: &Lab, page: &mut Page, package: Option<&Package>) -> Result<()> {
    let index = Index::start()?;
    let plain = Server::builder().model(&Model::tiny(Arch::Llama));
    let mut names = vec![
        "plain",
        "plain, again",
        "this project",
        "polling every 500 ms",
    ];
    let mut servers = vec![
        plain.spawn()?,
        plain.spawn()?,
        lab.hooked(&plain, &index.url()).spawn()?,
        plain.spawn()?,
    ];
    if let Some(package) = package {
        names.push("the package's hook");
        servers.push(package.hooked(&plain, &index.url()).spawn()?);
    }
    let mut times = Comparison::new(&names);
    let polled = &servers[3];
    let watcher = Mutex::new(Watcher::default());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let poller = scope.spawn(|| poll(polled, &index, &watcher, &stop));
        let asked: Result<()> = (0..lab.rounds(200, 2)).try_for_each(|round| {
            for side in order(round, servers.len()) {
                let request = Request::completion(prompt(round, 200))
                    .id(format!("req-{round}"))
                    .predict(4)
                    .streamed();
                times.add(side, ask(&servers[side], &request)?[0]);
            }
            Ok(())
        });
        stop.store(true, Ordering::Relaxed);
        poller.join().map_err(|_| failed("the poller panicked"))??;
        asked
    })?;
    page.say("### Time to the first token, with the default flags");
    page.say(times.table("ms"));
    Ok(())
}

/// How long it takes until the index knows that a slot was overwritten.
fn signals(lab: &Lab, page: &mut Page, package: Option<&Package>) -> Result<()> {
    let probe = Probe::build(lab)?;
    let tiny = Spec::new(Arch::Llama);
    let mut table = String::from("| | told | median, ms | p90 | p99 |\n|---|--:|--:|--:|--:|\n");
    let mut row = |name: &str, times: Vec<f64>, rounds: usize| {
        let told = format!("{} of {rounds}", times.len());
        let times = Sample::new(times);
        let figures = match times.len() {
            0 => "never | | ".to_owned(),
            _ => [0.5, 0.9, 0.99]
                .map(|share| format!("{:.2}", times.at(share)))
                .join(" | "),
        };
        table.push_str(&format!("| {name} | {told} | {figures} |\n"));
    };

    let rounds = lab.rounds(100, 2);
    let log = lab.scratch("submissions-ours");
    let index = Index::start()?;
    let builder = watched_server(&tiny).env("CONTEXTPILOT_INDEX_URL", index.url());
    let server = probe.watch(builder, Some(&lab.hook), &log).spawn()?;
    row(
        "this project",
        overwritten(&server, &log, &index, rounds, None)?,
        rounds,
    );

    let rounds = lab.rounds(24, 1);
    let log = lab.scratch("submissions-polled");
    let index = Index::start()?;
    let server = probe.watch(watched_server(&tiny), None, &log).spawn()?;
    let watcher = Mutex::new(Watcher::default());
    let stop = AtomicBool::new(false);
    let times = thread::scope(|scope| {
        let poller = scope.spawn(|| poll(&server, &index, &watcher, &stop));
        let times = overwritten(&server, &log, &index, rounds, Some(&watcher));
        stop.store(true, Ordering::Relaxed);
        poller.join().map_err(|_| failed("the poller panicked"))??;
        times
    })?;
    row("polling, a new task taken for an eviction", times, rounds);

    if let Some(package) = package {
        let index = Index::start()?;
        let server = package
            .hooked(&watched_server(&tiny), &index.url())
            .spawn()?;
        for round in 0..rounds {
            server.complete(&request('a', round).id(format!("req-signal-{round}")))?;
            server.complete(&request('A', round))?;
        }
        // It posts before the engine goes on, so nothing is under way any more.
        let told = index
            .evicted()
            .iter()
            .filter(|id| id.starts_with("req-"))
            .count();
        row("the package's hook", vec![0.0; told], rounds);
    }
    page.say("### From the submission of the overwriting batch to the POST");
    page.say(
        "One slot of four, the others idle, the tiny model. An overwritten prompt is not a cleared\n\
         slot, so the package's hook has nothing to say about it.",
    );
    page.say(table);
    Ok(())
}

fn overwritten(
    server: &Server,
    log: &Path,
    index: &Index,
    rounds: usize,
    watcher: Option<&Mutex<Watcher>>,
) -> Result<Vec<f64>> {
    let clock = Clock::new();
    let submissions = Submissions::open(log)?;
    let mut times = Vec::new();
    for round in 0..rounds {
        let id = format!("req-signal-{round}");
        server.complete(&request('a', round).id(&id))?;
        if let Some(watcher) = watcher {
            let mut watcher = watcher.lock().map_err(|_| failed("the poller panicked"))?;
            watcher.register_at(server, 0, &id)?;
            drop(watcher);
            // At any moment between two looks: the last eviction was told at one.
            thread::sleep(INTERVAL * (round as u32 * 37 % 100) / 100);
        }
        let before = submissions.count()?;
        server.complete(&request('A', round))?;
        let told = index.wait_for_id(&id, PATIENCE);
        let told = told.ok_or_else(|| failed(format!("{id} was not told")))?;
        if let Some(submitted) = submissions.first_with(0, before)? {
            times.push(clock.since(submitted, told));
        }
    }
    Ok(times)
}

fn launching(lab: &Lab, page: &mut Page, package: &Package) -> Result<()> {
    let commands = || {
        let launchers = [lab.command(&lab.launcher), package.launcher(lab)];
        let mut commands = vec![lab.command(&lab.server), lab.command(&lab.server)];
        for (mut disabled, mut enabled) in launchers
            .into_iter()
            .zip([lab.command(&lab.launcher), package.launcher(lab)])
        {
            disabled.arg("--version");
            enabled
                .arg("--version")
                .env("CONTEXTPILOT_INDEX_URL", NOWHERE);
            commands.extend([disabled, enabled]);
        }
        for plain in &mut commands[..2] {
            plain.arg("--version");
        }
        commands
    };
    let names = [
        "llama-server",
        "llama-server, again",
        "this project, disabled",
        "this project, enabled",
        "the package's command, disabled",
        "the package's command, enabled",
    ];
    let times = in_turn(&names, commands, lab.rounds(20, 1))?;
    page.say("### Launching `--version`");
    page.say(times.table("ms"));
    Ok(())
}
