//! What a stored prompt's first token takes, and how long a save keeps another slot waiting.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Arch, Connection, Model, Request, Result, Server, Spec};
use serde_json::Value;

use super::super::serving::{ask, prompt};
use super::stored::Stored;
use crate::lab::{Lab, failed, resident};
use crate::page::{Aim, Page};
use crate::sample::{Comparison, Sample, order};

/// Targets: a stored prompt's first token, and the longest gap.
const SOONER: f64 = 50.0;
const GAP: f64 = 1.2;

/// The time to the first token of prompts that are asked again, on one slot.
pub(super) fn again(lab: &Lab, page: &mut Page) -> Result<()> {
    const TOKENS: usize = 3_000;
    let Some(model) = &lab.model else {
        return Ok(());
    };
    let model = &Model::file(model.clone(), Arch::Llama);
    let plain =
        Server::builder()
            .model(model)
            .bare_slots(1)
            .args(["-c", "4096", "--cache-ram", "0"]);
    let folder = tempfile::tempdir_in(lab.scratch(""))?;
    let stored = Stored::start(lab, &plain, folder.path())?;
    let other = plain.spawn()?;
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..lab.rounds(3, 2) {
        for document in 0..lab.rounds(3, 2) {
            for (side, server) in [&other, &stored.server].into_iter().enumerate() {
                // Letters, which are tokens of this model, too.
                let tokens: Vec<usize> = (0..TOKENS)
                    .map(|n| 300 + (n * (document + 7) + document) % 47)
                    .collect();
                let request = Request::completion(Value::from(tokens))
                    .predict(8)
                    .streamed();
                let [first, _] = ask(server, &request)?;
                if round > 0 {
                    times[side].push(first);
                }
            }
        }
    }
    let [plain, stored] = times.map(|times| Sample::new(times).median());
    let sooner = plain / stored;
    page.say(format!(
        "Documents of {TOKENS} tokens that are asked again on one slot, {}: the first token after {plain:.0} ms\n\
         without the store and {stored:.0} ms with it (medians).",
        model.path().file_name().unwrap_or_default().to_string_lossy(),
    ));
    page.aim(
        "The first token of a stored prompt, so many times sooner",
        &format!("at least {SOONER}"),
        &format!("{sooner:.0}"),
        Aim::met_if(sooner >= SOONER),
    );
    Ok(())
}

/// The longest gap between two tokens of a slot while the other slot's prompt of 100 MB is saved.
pub(super) fn neighbour(lab: &Lab, page: &mut Page) -> Result<()> {
    // Much KV for little work: 48 KB a token.
    let spec = Spec {
        layers: 96,
        ..Spec::new(Arch::Llama)
    };
    let tokens = lab.rounds(2_100, 200);
    let plain = Server::builder()
        .model(&Model::of(&spec))
        // Not `bare_slots`, which has no host prompt cache.
        .args(["--no-kv-unified", "--parallel", "2"])
        .args(["-c", "12800", "-ctk", "f32", "-ctv", "f32"]);
    let folder = tempfile::tempdir_in(lab.scratch(""))?;
    let stored = Stored::start(
        lab,
        &plain.clone().args(["--cache-ram", "0"]),
        folder.path(),
    )?;
    let servers = [plain.clone().spawn()?, plain.spawn()?];
    let servers = [&servers[0], &servers[1], &stored.server];
    let mut gaps = Comparison::new(&["the server's host cache", "the same, again", "the store"]);
    // MiB. The server's own save takes as much memory meanwhile.
    let saved = (tokens * 48) as f64 / 1024.0;
    for round in 0..lab.rounds(6, 1) {
        for side in order(round, servers.len()) {
            let saves = stored.figures()?.saves;
            let gap = gap(servers[side], round, tokens)?;
            let is_saved = match side {
                2 => stored.figures()?.saves > saves,
                _ => gap.grown >= 0.9 * saved,
            };
            if !is_saved {
                return Err(failed("nothing was saved"));
            }
            gaps.add(side, gap.longest);
        }
    }
    page.say(format!(
        "**A neighbour**: one of two slots generates, and the other one's prompt of {tokens} tokens ({} MB) is\n\
         saved, because a prompt of 8 tokens takes its place: by the plain server to its host cache, or to the\n\
         store. The longest gap between two tokens meanwhile:",
        tokens * 48 * 1024 / 1_000_000,
    ));
    page.say(gaps.table("ms"));
    let ratio = gaps.ratio(2);
    page.aim(
        "A neighbour's longest gap while 100 MB are stored, against the server's own save",
        &format!("at most {GAP}"),
        &ratio.show(2),
        Aim::met_if(ratio.middle <= GAP),
    );
    Ok(())
}

struct Gap {
    /// The longest between two tokens, ms.
    longest: f64,
    /// Memory that the server took meanwhile, MiB.
    grown: f64,
}

fn gap(server: &Server, round: usize, tokens: usize) -> Result<Gap> {
    let (seen, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let stream = scope.spawn(|| {
            let request = Request::completion(prompt(2 * round + 1, 8))
                .slot(0)
                .predict(4_000)
                .streamed();
            let mut connection = server.connect()?;
            let body = request.wire_body();
            connection.write(&Connection::request_bytes(
                "POST",
                request.path(),
                body.as_bytes(),
            ))?;
            let head = connection.head()?;
            let mut times = Vec::new();
            while !done.load(Ordering::Acquire) && connection.part(&head)?.is_some() {
                times.push(Instant::now());
                seen.fetch_add(1, Ordering::Release);
            }
            Ok(times)
        });
        let wait_for = |count: usize| {
            while seen.load(Ordering::Acquire) < count && !stream.is_finished() {
                thread::sleep(Duration::from_millis(1));
            }
        };
        let wait_for_more = |count: usize| wait_for(seen.load(Ordering::Acquire) + count);
        wait_for_more(20);
        // While the other slot generates: a server with a host cache saves what is in a slot that is free before it
        // begins with a prompt, in whatever slot. Not streamed: the next request must find it done.
        let long = Request::completion(prompt(2 * round, tokens))
            .slot(1)
            .predict(1);
        let long = server.complete(&long);
        wait_for_more(20);
        let before = resident(server);
        let start = Instant::now();
        // Any slot: the one that generates is not free.
        let short = Request::completion(prompt(900_000 + round, 8)).predict(1);
        let answer = server.complete(&short);
        let end = Instant::now();
        let after = resident(server);
        wait_for_more(3);
        done.store(true, Ordering::Release);
        let times: Result<Vec<Instant>> = stream
            .join()
            .unwrap_or_else(|_| Err(failed("a client panicked")));
        long?;
        answer?;
        let times = times?;
        let grown = after? - before?;
        let gaps = times
            .windows(2)
            .filter(|pair| pair[1] >= start && pair[0] <= end);
        let longest = gaps.map(|pair| pair[1] - pair[0]).max();
        longest
            .map(|gap| Gap {
                longest: gap.as_secs_f64() * 1e3,
                grown,
            })
            .ok_or_else(|| failed("no token came meanwhile"))
    })
}
