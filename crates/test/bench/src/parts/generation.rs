//! What the hook costs while tokens are generated, and nothing else: the time of a token, by the
//! server's own clock.
//!
//! A server of 2026 hands over between two of its threads three times a token. Whether the system
//! runs both on one core or on two makes a token of the tiny model take once or twice the time,
//! and the system may choose otherwise at any moment. So each server is kept on one core, all of its
//! threads and all of the hook's: what the hook does anywhere counts. What becomes of it where
//! the system chooses is measured too.

use contextpilot_testbed::{Builder, Index, Request, Result, Server};

use super::serving::{prompt, start_in_any_order};
use crate::cores::Reserved;
use crate::lab::{Lab, failed};
use crate::page::{Aim, Page};
use crate::sample::{Comparison, Sample, order};

const NAMES: [&str; 5] = [
    "plain",
    "plain, again",
    "an empty library preloaded",
    "hook inert",
    "hook active",
];
const AGAIN: usize = 1;
const EMPTY: usize = 2;
const ACTIVE: usize = 4;
const TOKENS: u32 = 300;
/// Targets: of the plain server's time, the median of all starts and the worst of them.
const MOST: f64 = 1.01;
const MOST_OF_ANY: f64 = 1.02;
/// Target, µs.
const A_TOKEN: f64 = 1.0;

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    let starts = lab.rounds(10, 1);
    let requests = lab.rounds(15, 2);
    let index = Index::start()?;
    let builders = builders(lab, &index)?;
    let kept = measure(&builders, starts, requests, true)?;
    let free = measure(&builders, starts, requests, false)?;

    page.section("Generating");
    page.say(format!(
        "The time of a generated token, by the server's own clock (`predicted_ms`): {TOKENS} tokens a\n\
         request, one slot, the tiny model. {starts} starts of each side; the servers of a start are\n\
         alive together and are asked in turns, {requests} requests each, of which the median counts.\n\
         Each request pushes the one before it out, which the index is told of. *Inert*: the hook is\n\
         preloaded and nothing is set.",
    ));
    page.say(
        "This server hands over between two of its threads three times a token. Whether the system\n\
         puts them on one core or on two decides how long a token takes, and hides everything\n\
         else. So first with each server on one core, with all of its threads and the hook's: whatever\n\
         the hook does anywhere counts.",
    );
    page.say(kept.table("µs a token"));
    page.say(kept.ranges());
    page.say("The same, where the system chooses the cores:");
    page.say(free.table("µs a token"));
    page.say(free.ranges());

    let ratio = kept.ratio(ACTIVE);
    let more = kept.difference(ACTIVE);
    let worst = kept.ratios(ACTIVE).at(1.0);
    let again = kept.ratios(AGAIN);
    page.aim(
        "A generated token, the tiny model, hooked",
        &format!("at most {MOST}"),
        &ratio.show(3),
        Aim::met_if(ratio.middle <= MOST),
    );
    page.aim(
        "A generated token, the worst of all starts",
        &format!("at most {MOST_OF_ANY}"),
        &format!("{worst:.3}"),
        match worst {
            worst if worst <= MOST_OF_ANY => Aim::Met,
            // Servers that are as good as equal differ as much.
            worst if worst <= again.at(1.0).max(kept.ratios(EMPTY).at(1.0)) => Aim::Noise,
            _ => Aim::Missed,
        },
    );
    page.aim(
        "A generated token, more",
        &format!("at most {A_TOKEN} µs"),
        &format!("{} µs", more.show(2)),
        Aim::met_if(more.middle <= A_TOKEN),
    );
    page.in_short(
        "Generating",
        &format!(
            "takes {:.3} times as long a token ({:.2} µs more of {:.0}; {:.3} to {:.3} by start, the \
             plain server again {:.3} to {:.3}), on the tiny model and one core.",
            ratio.middle,
            more.middle,
            kept.samples()[0].1.median(),
            kept.ratios(ACTIVE).at(0.0),
            worst,
            again.at(0.0),
            again.at(1.0),
        ),
    );
    Ok(())
}

fn builders(lab: &Lab, index: &Index) -> Result<[Builder; 5]> {
    let empty = lab.library("empty")?;
    let plain = Server::tiny().bare_slots(1);
    Ok([
        plain.clone(),
        plain.clone(),
        plain.clone().preload(empty),
        plain.clone().preload(&lab.hook),
        lab.hooked(&plain, &index.url()),
    ])
}

/// The median time of a token at each start, µs.
fn measure(
    builders: &[Builder],
    starts: usize,
    requests: usize,
    on_one_core: bool,
) -> Result<Comparison> {
    let reserved = on_one_core.then(Reserved::new).transpose()?;
    let mut times = Comparison::new(&NAMES);
    for nth in 0..starts {
        let (sides, servers) = start_in_any_order(builders, nth)?;
        if let Some(reserved) = &reserved {
            for server in &servers {
                reserved.give_to(server.pid())?;
            }
        }
        let mut tokens: Vec<Vec<f64>> = vec![Vec::new(); builders.len()];
        for round in 0..=requests {
            for place in order(nth * (requests + 1) + round, servers.len()) {
                let time = token(&servers[place], round)?;
                // The first warms up.
                if round > 0 {
                    tokens[sides[place]].push(time);
                }
            }
        }
        for (side, tokens) in tokens.into_iter().enumerate() {
            times.add(side, Sample::new(tokens).median());
        }
    }
    Ok(times)
}

/// Has a server generate, and says how long a token took, µs.
fn token(server: &Server, round: usize) -> Result<f64> {
    let request = Request::completion(prompt(round, 24))
        .id(format!("req-{round}"))
        .predict(TOKENS)
        .with("ignore_eos", true);
    let answer = server.complete(&request)?.raw;
    let timings = &answer["timings"];
    match (timings["predicted_n"].as_u64(), &timings["predicted_ms"]) {
        (Some(tokens), time) if tokens == u64::from(TOKENS) => time
            .as_f64()
            .map(|time| time * 1e3 / f64::from(TOKENS))
            .ok_or_else(|| failed("the server does not say how long it took")),
        (tokens, _) => Err(failed(format!("{tokens:?} tokens rather than {TOKENS}"))),
    }
}
