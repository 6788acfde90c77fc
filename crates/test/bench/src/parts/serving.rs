//! The real server with and without the hook: the time to the first token, and to the last; with
//! an index that listens, with none, and with one that hangs.

use std::time::Instant;

use contextpilot_testbed::{
    Arch, Behaviour, Builder, Connection, Index, Model, Request, Result, Server, Spec,
};

use super::launch::NOWHERE;
use crate::lab::{Lab, failed};
use crate::page::{Aim, Page};
use crate::plot::{Plot, shares};
use crate::sample::{Comparison, Sample, Verdict, order};

pub(super) const NAMES: [&str; 6] = [
    "plain",
    "plain, again",
    "a thread is woken, and does nothing",
    "hooked",
    "hooked, nothing listens",
    "hooked, the index hangs",
];
const WOKEN: usize = 2;
const HOOKED: usize = 3;
/// Target: at most that much of the plain server's time.
pub(super) const MOST: f64 = 1.02;

/// A model, and requests that suit it.
struct Load {
    tiny: bool,
    title: &'static str,
    name: &'static str,
    spec: Spec,
    prompt: usize,
    predict: u32,
    starts: usize,
    /// Requests to each server of a start.
    rounds: usize,
}

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    let tiny = Spec::new(Arch::Llama);
    let large = if lab.quick {
        tiny.clone()
    } else {
        // 12 million parameters a layer, of 4 bytes each.
        Spec {
            layers: 8,
            width: 1024,
            ..tiny.clone()
        }
    };
    let mebibytes = std::fs::metadata(Model::of(&large).path())?.len() >> 20;
    page.section("Serving");
    page.say(
        "Streamed completions, one at a time, of prompts that have nothing in common: each pushes an\n\
         earlier one out of its slot, so that there is an eviction to tell for each request. The six\n\
         servers of a start run side by side and are asked in turns. Two starts of the same server differ\n\
         more than two requests to one: the targets are about the medians of the starts. *A thread is\n\
         woken*: a library without the hook, which wakes a thread for each prompt. On a machine whose\n\
         cores all evaluate, that thread takes one of them away for a moment, as the hook's does.",
    );
    for load in [
        Load {
            tiny: true,
            title: "The tiny model, where nothing hides the cost: 200 tokens of prompt, 64 of answer",
            name: "the tiny model",
            spec: tiny,
            prompt: 200,
            predict: 64,
            starts: lab.rounds(20, 1),
            rounds: lab.rounds(30, 4),
        },
        Load {
            tiny: false,
            title: "Random weights of some hundred MB: 24 tokens of prompt, 8 of answer",
            name: "a model of some hundred MB",
            spec: large,
            prompt: 24,
            predict: 8,
            starts: lab.rounds(6, 1),
            rounds: lab.rounds(8, 1),
        },
    ] {
        serve(lab, page, &load)?;
    }
    page.say(format!("The larger model has {mebibytes} MiB."));
    Ok(())
}

/// Times of each server: of each request, and the medians of each start.
struct Times {
    requests: Comparison,
    starts: Comparison,
}

impl Times {
    fn new() -> Self {
        let [requests, starts] = [&NAMES, &NAMES].map(|names| Comparison::new(names));
        Self { requests, starts }
    }

    /// Those of a start, of each server.
    fn add(&mut self, start: Vec<Vec<f64>>) {
        for (side, times) in start.into_iter().enumerate() {
            times.iter().for_each(|&time| self.requests.add(side, time));
            self.starts.add(side, Sample::new(times).median());
        }
    }

    fn tables(&self) -> String {
        let starts = self.starts.table("ms, by start");
        format!(
            "{}\n{starts}\n{}",
            self.requests.table("ms"),
            self.starts.ranges()
        )
    }
}

fn serve(lab: &Lab, page: &mut Page, load: &Load) -> Result<()> {
    let index = Index::start()?;
    let hanging = Index::start()?;
    hanging.behave(Behaviour::Hang);
    let plain = Server::builder()
        .model(&Model::of(&load.spec))
        .bare_slots(2);
    let hooked = |url: &str| {
        // An index that does not answer is not waited for at the end.
        lab.hooked(&plain, url)
            .env("CONTEXTPILOT_EXIT_DRAIN_MS", "0")
    };
    let wakes = lab.library("wakes")?;
    let builders = [
        plain.clone(),
        plain.clone(),
        plain.clone().preload(wakes),
        hooked(&index.url()),
        hooked(NOWHERE),
        hooked(&hanging.url()),
    ];
    let [mut first, mut whole] = [(); 2].map(|()| Times::new());
    for nth in 0..load.starts {
        let (sides, servers) = start_in_any_order(&builders, nth)?;
        let [mut firsts, mut wholes] = [(); 2].map(|()| vec![Vec::new(); builders.len()]);
        for round in nth * load.rounds..(nth + 1) * load.rounds {
            for place in order(round, servers.len()) {
                let request = Request::completion(prompt(round, load.prompt))
                    .id(format!("req-{round}"))
                    .predict(load.predict)
                    .streamed();
                let [till_first, till_end] = ask(&servers[place], &request)?;
                firsts[sides[place]].push(till_first);
                wholes[sides[place]].push(till_end);
            }
        }
        first.add(firsts);
        whole.add(wholes);
        let told = (nth + 1) * load.rounds.saturating_sub(2);
        let patience = std::time::Duration::from_secs(60);
        if !index.wait_until(|ids| ids.len() >= told, patience) {
            return Err(failed("the hooked server did not tell of its evictions"));
        }
    }

    page.say(format!("### {}", load.title));
    page.say("Time to the first token:");
    page.say(first.tables());
    page.say("Time to the end of the answer, which is what throughput follows from:");
    page.say(whole.tables());
    let figure = if load.tiny {
        "first-token"
    } else {
        "first-token-large"
    };
    page.figure(
        figure,
        &Plot {
            title: &format!("Time to the first token, {}", load.name),
            x: "ms",
            y: "% of requests",
            logarithmic: false,
            from_zero: true,
            lines: shares(&first.requests.samples()),
        },
    )?;
    if load.tiny {
        page.say(format!(
            "To the first token, a woken thread that does nothing takes {} times as long as none, and the hook {}.",
            first.starts.ratio(WOKEN).show(3),
            first.starts.ratio(HOOKED).show(3),
        ));
    }
    for (what, times) in [
        ("First token", &first.starts),
        ("Whole answer", &whole.starts),
    ] {
        for (side, name) in NAMES.iter().enumerate().skip(HOOKED) {
            let ratio = times.ratio(side);
            let (target, aim) = match (load.tiny, times.verdict(side)) {
                (true, _) if ratio.middle <= MOST => ("at most 1.02", Aim::Met),
                (true, Verdict::Noise) => ("at most 1.02", Aim::Noise),
                (true, _) => ("at most 1.02", Aim::Missed),
                (false, verdict) => ("no difference", Aim::met_if(verdict != Verdict::Slower)),
            };
            let what = format!("{what}, {}, {name}", load.name);
            page.aim(&what, target, &ratio.show(3), aim);
        }
    }
    if load.tiny {
        let ratio = |times: &Times| format!("{:.3}", times.starts.ratio(HOOKED).middle);
        page.in_short(
            "Serving",
            &format!(
                "takes {} times as long to the first token, {} times to the last, on a model so tiny \
                 that little else is measured ({:.1} ms for 200 tokens of prompt).",
                ratio(&first),
                ratio(&whole),
                first.starts.samples()[0].1.median()
            ),
        );
    }
    Ok(())
}

/// One after the other, so that none starts while another computes its way up.
pub(super) fn start(builders: &[Builder]) -> Result<Vec<Server>> {
    builders.iter().map(Builder::spawn).collect()
}

/// The same in another order at each start, the n-th: the side of each server, and the servers.
pub(super) fn start_in_any_order(
    builders: &[Builder],
    nth: usize,
) -> Result<(Vec<usize>, Vec<Server>)> {
    let sides = order(nth, builders.len());
    let shuffled: Vec<Builder> = sides.iter().map(|&side| builders[side].clone()).collect();
    Ok((sides, start(&shuffled)?))
}

/// Begins with the number, last digit first, so that prompts differ from the first token on.
pub(super) fn prompt(number: usize, tokens: usize) -> String {
    let number: String = format!("{number:06}").chars().rev().collect();
    number
        .chars()
        .chain(std::iter::repeat('x'))
        .take(tokens - 1)
        .collect()
}

/// Milliseconds until the first token and until the end.
pub(super) fn ask(server: &Server, request: &Request) -> Result<[f64; 2]> {
    ask_through(&mut server.connect()?, request)
}

/// The same, over a connection.
pub(super) fn ask_through(connection: &mut Connection, request: &Request) -> Result<[f64; 2]> {
    let body = request.wire_body();
    let bytes = Connection::request_bytes("POST", request.path(), body.as_bytes());
    let start = Instant::now();
    connection.write(&bytes)?;
    let response = connection.head()?;
    let mut first = None;
    while let Some(part) = connection.part(&response)? {
        if first.is_none() && part.starts_with(b"data: ") {
            first = Some(start.elapsed());
        }
    }
    let whole = start.elapsed();
    let first = first.ok_or_else(|| failed(format!("no token came ({})", response.status)))?;
    Ok([first, whole].map(|time| time.as_secs_f64() * 1e3))
}
