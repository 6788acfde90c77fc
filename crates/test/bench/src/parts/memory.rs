//! What the hook takes of memory and disk, and what many short requests suffer from it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Index, Request, Result, Server};

use super::serving::{MOST, prompt};
use crate::lab::{Lab, failed, processor_time, resident};
use crate::page::{Aim, Page};
use crate::plot::Plot;
use crate::sample::{Comparison, Sample, Verdict, order};

const CLIENTS: usize = 4;
const SLOTS: u32 = 4;
/// The server closes a connection after 100 requests.
const ON_A_CONNECTION: usize = 90;
/// How long to wait for an eviction that must come.
const PATIENCE: Duration = Duration::from_secs(60);
/// Target for the library, MiB.
const LIBRARY: f64 = 5.0;
const HOOKED: usize = 2;

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    sizes(lab, page)?;
    let requests = lab.rounds(100_000, 90);
    let rounds = lab.rounds(100, 3);
    let index = Index::start()?;
    let plain = Server::tiny().bare_slots(SLOTS).args(["-c", "2048"]);
    let servers = [
        plain.spawn()?,
        plain.spawn()?,
        lab.hooked(&plain, &index.url()).spawn()?,
    ];
    let idle = servers.iter().map(resident).collect::<Result<Vec<_>>>()?;
    let mut rate = Comparison::new(&["plain", "plain, again", "hooked"]);
    let mut growth: Vec<Vec<(f64, f64)>> = idle.iter().map(|&mib| vec![(0.0, mib)]).collect();
    let used = servers
        .iter()
        .map(processor_time)
        .collect::<Result<Vec<_>>>()?;
    let next = AtomicUsize::new(0);
    for round in 0..rounds {
        for side in order(round, servers.len()) {
            // The second plain server only shows how far two of them differ.
            let share = if side == 1 { 10 } else { 1 };
            let count = (requests / rounds / share).max(CLIENTS);
            let start = Instant::now();
            load(&servers[side], &next, count)?;
            rate.add(side, start.elapsed().as_secs_f64() * 1e3 / count as f64);
            growth[side].push((((round + 1) * count) as f64, resident(&servers[side])?));
        }
    }
    let after: Vec<f64> = growth
        .iter()
        .filter_map(|line| line.last())
        .map(|at| at.1)
        .collect();
    let more = |at: &[f64]| at[HOOKED] - at[0];
    page.section("Memory");
    page.say(format!(
        "| resident, MiB | idle | after {requests} requests |\n\
         |---|--:|--:|\n\
         | plain | {:.1} | {:.1} |\n\
         | hooked | {:.1} | {:.1} |\n\
         | **more** | **{:.1}** | **{:.1}** |",
        idle[0],
        after[0],
        idle[HOOKED],
        after[HOOKED],
        more(&idle),
        more(&after)
    ));
    page.in_short(
        "Memory",
        &format!(
            "takes {:.1} MiB more when idle, {:.1} MiB more after {requests} requests.",
            more(&idle),
            more(&after)
        ),
    );
    let line = |name: &str, side: usize| (name.to_owned(), growth[side].clone());
    page.figure(
        "memory",
        &Plot {
            title: "Resident memory of the server",
            x: "requests",
            y: "MiB",
            logarithmic: false,
            from_zero: true,
            lines: vec![line("plain", 0), line("hooked", HOOKED)],
        },
    )?;
    page.section("Many short requests");
    page.say(format!(
        "The same requests as a measure of speed, and the hardest there is: {CLIENTS} clients, prompts of 40\n\
         tokens, two tokens of answer, the tiny model. Each request pushes another one out, which the\n\
         index is told of, so that a POST and its answer share the processor with every millisecond\n\
         of work. Milliseconds a request, all clients together:"
    ));
    page.say(rate.table("ms"));
    let ratio = rate.ratio(HOOKED);
    let aim = match rate.verdict(HOOKED) {
        _ if ratio.middle <= MOST => Aim::Met,
        Verdict::Noise => Aim::Noise,
        _ => Aim::Missed,
    };
    let what = "Many short requests at once, the tiny model, hooked";
    page.aim(what, "at most 1.02", &ratio.show(3), aim);
    let a_second = |side: usize| 1e3 / Sample::new(rate.sides[side].rounds.clone()).median();
    page.say(format!(
        "{:.0} requests a second without the hook, {:.0} with it.",
        a_second(0),
        a_second(HOOKED)
    ));
    let asked = growth[0].last().map_or(1.0, |at| at.0);
    let each = |side: usize| -> Result<[f64; 2]> {
        let now = processor_time(&servers[side])?;
        Ok([0, 1].map(|whose| (now[whose] - used[side][whose]) * 1e3 / asked))
    };
    let (without, with) = (each(0)?, each(HOOKED)?);
    page.say(format!(
        "Processor time of a request, which depends less on what else the machine does: {:.0} µs\n\
         without the hook; with it {:.0} µs on the server's threads and {:.0} µs on the hook's.",
        without[0], with[0], with[1]
    ));
    // Or the hooked server would not have done what is measured here.
    if index.wait_until(|told| !told.is_empty(), PATIENCE) {
        Ok(())
    } else {
        Err(failed("the hooked server told of no eviction"))
    }
}

fn sizes(lab: &Lab, page: &mut Page) -> Result<()> {
    let size = |path: &std::path::Path| -> Result<f64> {
        Ok(std::fs::metadata(path)?.len() as f64 / f64::from(1 << 20))
    };
    let library = size(&lab.hook)?;
    let (launcher, companion) = (size(&lab.launcher)?, size(&lab.companion)?);
    page.section("Size");
    page.say(format!(
        "| file | MiB |\n|---|--:|\n\
         | the hook library | {library:.2} |\n\
         | contextpilot-llama-server, with the library inside | {launcher:.2} |\n\
         | contextpilot-llama, with the library inside | {companion:.2} |"
    ));
    page.aim(
        "Size of the library",
        "at most 5 MiB",
        &format!("{library:.2} MiB"),
        Aim::met_if(library <= LIBRARY),
    );
    Ok(())
}

/// So many requests from all clients together.
fn load(server: &Server, next: &AtomicUsize, count: usize) -> Result<()> {
    let left = AtomicUsize::new(count);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| client(server, next, &left)))
            .collect();
        for client in clients {
            client.join().map_err(|_| failed("a client panicked"))??;
        }
        Ok(())
    })
}

fn client(server: &Server, next: &AtomicUsize, left: &AtomicUsize) -> Result<()> {
    loop {
        let mut connection = server.connect()?;
        for _ in 0..ON_A_CONNECTION {
            let more = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
            if more.is_err() {
                return Ok(());
            }
            let number = next.fetch_add(1, Ordering::Relaxed);
            let request = Request::completion(prompt(number, 40))
                .id(format!("req-{number}"))
                .predict(2);
            let body = request.wire_body();
            let answer = connection.exchange("POST", request.path(), body.as_bytes())?;
            if answer.status != 200 {
                return Err(failed(format!("{}: {}", answer.status, answer.text())));
            }
        }
    }
}
