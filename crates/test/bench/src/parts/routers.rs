//! What routers cost: KV cache events that are published, and the gateway in front of a server.

use std::net::TcpListener;

use contextpilot_testbed::{Builder, Gateway, Index, Request, Result, Server};
use contextpilot_testbed::{Connection, try_until};

use super::serving::{ask, ask_through, prompt, start};
use crate::lab::Lab;
use crate::page::{Aim, Page};
use crate::sample::{Comparison, Verdict, order};
use crate::subscribers::{Attackers, Subscribers, publishing, work};

const EVENTS: [&str; 5] = [
    "an index",
    "an index, again",
    "an index, and events that nobody reads",
    "an index, and a router",
    "an index, and three routers that never read",
];
const ONE_ROUTER: usize = 3;
const ATTACKED: [&str; 3] = [
    "an index, and events",
    "the same, again",
    "the same, and eight subscribers that repeat their subscriptions",
];
const ATTACKERS: usize = 8;
const GATEWAY: [&str; 3] = ["direct", "direct, again", "through the gateway"];
const THROUGH: usize = 2;
const TOKENS: usize = 200;
const PREDICT: u32 = 64;
/// Target: at most that much of the time without events.
const MOST: f64 = 1.02;

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("Routers");
    page.say(format!(
        "The tiny model, and streamed completions as under *Serving*: {TOKENS} tokens of prompt, {PREDICT}\n\
         of answer, one request at a time, each of which takes the place of another. *Per chunk*: from\n\
         the first to the end, for each token behind the first.",
    ));
    events(lab, page)?;
    attacked(lab, page)?;
    gateway(lab, page)
}

/// Times of a side's requests, ms: to the first token, and for each further one.
struct Times {
    first: Comparison,
    chunk: Comparison,
}

impl Times {
    fn new(names: &[&str]) -> Self {
        Self {
            first: Comparison::new(names),
            chunk: Comparison::new(names),
        }
    }

    fn add(&mut self, side: usize, [first, whole]: [f64; 2]) {
        self.first.add(side, first);
        self.chunk
            .add(side, (whole - first) / f64::from(PREDICT - 1));
    }

    fn say(&self, page: &mut Page, title: &str) {
        page.say(format!("### {title}"));
        page.say("Time to the first token:");
        page.say(self.first.table("ms"));
        page.say("Per chunk:");
        page.say(self.chunk.table("ms"));
    }

    /// Whether a side takes at most [`MOST`] of the first one's time.
    fn aim(&self, page: &mut Page, side: usize, name: &str) {
        for (what, times) in [("First token", &self.first), ("Per chunk", &self.chunk)] {
            let ratio = times.ratio(side);
            let aim = match times.verdict(side) {
                _ if ratio.middle <= MOST => Aim::Met,
                Verdict::Noise => Aim::Noise,
                _ => Aim::Missed,
            };
            let what = format!("{what}, {name}");
            page.aim(&what, &format!("at most {MOST}"), &ratio.show(3), aim);
        }
    }
}

fn request(round: usize) -> Request {
    Request::completion(prompt(round, TOKENS))
        .id(format!("req-{round}"))
        .predict(PREDICT)
        .streamed()
}

/// The server under the launcher, with and without events.
fn events(lab: &Lab, page: &mut Page) -> Result<()> {
    let index = Index::start()?;
    let plain = Server::tiny().bare_slots(2);
    let without = lab
        .hooked(&plain, &index.url())
        .env("CONTEXTPILOT_LISTEN", "127.0.0.1:0");
    let with = publishing(&without);
    let builders: [Builder; 5] = [without.clone(), without, with.clone(), with.clone(), with];
    let servers = start(&builders)?;
    let one = Subscribers::one_that_reads(&servers[ONE_ROUTER])?;
    let three = Subscribers::that_never_read(&servers[ONE_ROUTER + 1], 3)?;
    let mut times = Times::new(&EVENTS);
    for round in 0..lab.rounds(600, 4) {
        for side in order(round, servers.len()) {
            times.add(side, ask(&servers[side], &request(round))?);
        }
    }
    drop((one, three));
    times.say(page, "Events");
    for (side, name) in EVENTS.iter().enumerate().skip(ONE_ROUTER - 1) {
        times.aim(page, side, name);
    }
    let [first, chunk] = [&times.first, &times.chunk].map(|one| one.ratio(ONE_ROUTER).middle);
    page.in_short(
        "Routers:",
        &format!(
            "publishing events to one takes {first:.3} times as long to the first token and {chunk:.3} \
             times a chunk."
        ),
    );
    Ok(())
}

/// Servers that publish events, one of them to subscribers that attack it. They are there all the time, so all sides
/// have the same processors.
fn attacked(lab: &Lab, page: &mut Page) -> Result<()> {
    let index = Index::start()?;
    let plain = Server::tiny();
    let builder = publishing(&lab.hooked(&plain.bare_slots(2), &index.url()));
    let builders: [Builder; 3] = std::array::from_fn(|_| builder.clone());
    let servers = start(&builders)?;
    let last = servers.len() - 1;
    let attackers = Attackers::of(&servers[last], ATTACKERS)?;
    let mut times = Times::new(&ATTACKED);
    for round in 0..lab.rounds(400, 4) {
        for side in order(round, servers.len()) {
            times.add(side, ask(&servers[side], &request(round))?);
        }
    }
    drop(attackers);
    let work = work(&servers[last])?;
    times.say(page, "Subscribers that attack");
    page.say(format!(
        "Each makes 63 subscriptions and repeats an empty one as fast as it can. The server ends the\n\
         connection when that has cost half a second of a processor, and they come again. All of it cost {work:.0} ms of one.",
    ));
    times.aim(page, last, "eight subscribers that attack");
    Ok(())
}

/// A plain server, directly and through the gateway.
fn gateway(lab: &Lab, page: &mut Page) -> Result<()> {
    let server = Server::tiny().bare_slots(2).spawn()?;
    // No other process takes it in this moment.
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let gateway = Gateway::start(&lab.companion, server.address(), port, port)?;
    try_until("the gateway listens", || {
        Ok(Connection::open(gateway.address()).ok())
    })?;
    let mut times = Times::new(&GATEWAY);
    for round in 0..lab.rounds(600, 4) {
        for side in order(round, GATEWAY.len()) {
            let to = match side {
                THROUGH => gateway.address(),
                _ => server.address(),
            };
            // A prompt of its own each time, or the second side would find the first one's.
            let request = request(round * GATEWAY.len() + side);
            times.add(side, ask_through(&mut Connection::open(to)?, &request)?);
        }
    }
    times.say(page, "The gateway");
    page.say(
        "The gateway takes a connection of its own to the server for each request, and hands on each\n\
         chunk as it comes.",
    );
    let (first, chunk) = (times.first.difference(THROUGH), times.chunk.ratio(THROUGH));
    page.in_short(
        "The gateway",
        &format!(
            "adds {:.2} ms to the first token; a chunk takes {:.3} times as long.",
            first.middle, chunk.middle
        ),
    );
    Ok(())
}
