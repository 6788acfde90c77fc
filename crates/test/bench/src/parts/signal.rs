//! From the submission of the batch that overwrites a prompt to the first byte of the POST at the
//! index.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::{Arch, Index, Model, Request, Result, Server, Spec};

use crate::lab::{Lab, failed, has};
use crate::page::{Aim, Page};
use crate::plot::{Plot, shares};
use crate::probe::{Clock, Probe, Submissions};
use crate::sample::Sample;
use crate::subscribers::{Subscribers, publishing};

/// Targets, ms.
const MEDIAN: f64 = 0.5;
const WORST: f64 = 5.0;
/// How long to wait for an eviction that must come.
const PATIENCE: Duration = Duration::from_secs(60);
const SLOTS: u32 = 4;

/// Times of a signal, ms.
pub(super) struct Signal {
    /// Since the batch was submitted.
    pub(super) submitted: Vec<f64>,
    /// Since the request was sent: the request's way into the server is in it.
    pub(super) sent: Vec<f64>,
    /// The overwriting request was answered after that time since it was sent.
    pub(super) answered: Vec<f64>,
}

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("The signal");
    if !has("cc") {
        page.say("Skipped: there is no C compiler to make the probe with.");
        return Ok(());
    }
    let probe = Probe::build(lab)?;
    let tiny = Spec::new(Arch::Llama);
    let slow = if lab.quick {
        tiny.clone()
    } else {
        Spec {
            layers: 8,
            width: 512,
            ..tiny.clone()
        }
    };
    page.say(
        "One slot is overwritten again and again. A library that is preloaded in front of the hook\n\
         notes when the server submits a batch with tokens of that slot; the index notes when the\n\
         first byte of the POST is there. Under load, the other three slots generate all the time,\n\
         and their requests are evicted and told as well.",
    );
    let mut table = String::from(
        "| | rounds | median, ms | p90 | p99 | since the request was sent, median | p99 | its answer takes |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut curves = Vec::new();
    let (idle, under_load) = ((false, 0), (true, 0));
    for (name, spec, (loaded, routers), rounds) in [
        (
            "tiny model, otherwise idle",
            &tiny,
            idle,
            lab.rounds(500, 4),
        ),
        (
            "tiny model, under load",
            &tiny,
            under_load,
            lab.rounds(1000, 8),
        ),
        (
            "the same, with three routers that never read",
            &tiny,
            (true, 3),
            lab.rounds(1000, 8),
        ),
        (
            "4 ms a token, under load",
            &slow,
            under_load,
            lab.rounds(100, 2),
        ),
    ] {
        let signal = signal(lab, &probe, spec, loaded, routers, rounds)?;
        let [submitted, sent, answered] =
            [signal.submitted, signal.sent, signal.answered].map(Sample::new);
        let seen = match submitted.len() {
            0 => "– | – | –".to_owned(),
            _ => [0.5, 0.9, 0.99]
                .map(|share| format!("{:.3}", submitted.at(share)))
                .join(" | "),
        };
        table.push_str(&format!(
            "| {name} | {} | {seen} | {:.3} | {:.3} | {:.1} |\n",
            sent.len(),
            sent.median(),
            sent.at(0.99),
            answered.median()
        ));
        if submitted.len() == 0 {
            page.say("The engine is inside this llama-server, where the probe sees nothing.");
        } else if loaded {
            let (median, worst) = (submitted.median(), submitted.at(0.99));
            page.aim(
                &format!("Signal, {name}, median"),
                &format!("under {MEDIAN} ms"),
                &format!("{median:.3} ms"),
                Aim::met_if(median < MEDIAN),
            );
            page.aim(
                &format!("Signal, {name}, p99"),
                &format!("under {WORST} ms"),
                &format!("{worst:.3} ms"),
                Aim::met_if(worst < WORST),
            );
            if *spec == tiny && name.starts_with("tiny") {
                page.in_short(
                    "The signal",
                    &format!(
                        "is at the index {median:.2} ms (median; p99 {worst:.2} ms) after the \
                         overwriting batch is submitted, while the other slots generate."
                    ),
                );
            }
        }
        curves.push((name.to_owned(), submitted));
    }
    page.say(table);
    curves.retain(|(_, sample)| sample.len() > 0);
    if curves.is_empty() {
        return Ok(());
    }
    page.figure(
        "signal",
        &Plot {
            title: "From the submission of the overwriting batch to the POST at the index",
            x: "ms",
            y: "% of evictions",
            logarithmic: true,
            from_zero: true,
            lines: shares(&curves),
        },
    )
}

fn signal(
    lab: &Lab,
    probe: &Probe,
    spec: &Spec,
    loaded: bool,
    routers: usize,
    rounds: usize,
) -> Result<Signal> {
    let index = Index::start()?;
    let log = lab.scratch("submissions");
    // What an earlier server wrote there counts for nothing.
    let _ = std::fs::remove_file(&log);
    let plain = Server::builder()
        .model(&Model::of(spec))
        .bare_slots(SLOTS)
        .env("CONTEXTPILOT_INDEX_URL", index.url());
    let watched = match routers {
        0 => plain,
        _ => publishing(&plain),
    };
    let server = probe.watch(watched, Some(&lab.hook), &log).spawn()?;
    let _routers = match routers {
        0 => None,
        _ => Some(Subscribers::that_never_read(&server, routers)?),
    };
    let watched = Watched {
        server: &server,
        log: &log,
        index: &index,
    };
    if loaded {
        under_load(&server, || watched.rounds(rounds))
    } else {
        watched.rounds(rounds)
    }
}

/// Does something while all slots but the first generate.
fn under_load<T>(server: &Server, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (1..SLOTS)
            .map(|slot| {
                let done = &done;
                scope.spawn(move || generate(server, slot, done))
            })
            .collect();
        let result = work();
        done.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| failed("a client panicked"))??;
        }
        result
    })
}

fn generate(server: &Server, slot: u32, done: &AtomicBool) -> Result<()> {
    for round in 0.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let letter = char::from(b'a' + (round % 26) as u8);
        let request = Request::completion(letter.to_string().repeat(30))
            .id(format!("req-load-{slot}-{round}"))
            .slot(slot)
            .predict(200);
        server.complete(&request)?;
    }
    Ok(())
}

/// A server under the probe, whose first slot is overwritten.
pub(super) struct Watched<'a> {
    pub(super) server: &'a Server,
    pub(super) log: &'a Path,
    pub(super) index: &'a Index,
}

impl Watched<'_> {
    fn rounds(&self, rounds: usize) -> Result<Signal> {
        let clock = Clock::new();
        let submissions = Submissions::open(self.log)?;
        let mut signal = Signal {
            submitted: Vec::new(),
            sent: Vec::new(),
            answered: Vec::new(),
        };
        for round in 0..rounds {
            let id = format!("req-signal-{round}");
            self.server.complete(&request('a', round).id(&id))?;
            let before = submissions.count()?;
            let start = Instant::now();
            self.server.complete(&request('A', round))?;
            let answered = start.elapsed();
            let told = self.index.wait_for_id(&id, PATIENCE);
            let told = told.ok_or_else(|| failed(format!("{id} was not told")))?;
            if let Some(submitted) = submissions.first_with(0, before)? {
                signal.submitted.push(clock.since(submitted, told));
            }
            signal
                .sent
                .push(told.duration_since(start).as_secs_f64() * 1e3);
            signal.answered.push(answered.as_secs_f64() * 1e3);
        }
        Ok(signal)
    }
}

/// Fifty tokens in the first slot: unlike those of the rounds before and after.
fn request(first: char, round: usize) -> Request {
    let letter = char::from(first as u8 + (round % 26) as u8);
    Request::completion(letter.to_string().repeat(50))
        .slot(0)
        .predict(1)
}
