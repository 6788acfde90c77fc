//! What it costs to say why prompts are evaluated: with the memory of what was in slots, and without
//! (`CONTEXTPILOT_EXPLAIN_MB`).

use std::thread;
use std::time::Duration;

use contextpilot_testbed::{Builder, Request, Result, Server};

use crate::lab::{Lab, failed, processor_time, resident};
use crate::page::Page;
use crate::sample::{Comparison, order};

/// Off, off again, on.
const SIDES: [(&str, &str); 3] = [("off", "0"), ("off, again", "0"), ("on", "32")];
const ON: usize = 2;
/// Tokens of a slot, with room for an answer.
const CONTEXT: usize = 33_000;

/// How often the processor time is looked at, and how often in a row it must be the same.
const LOOK: Duration = Duration::from_millis(20);
const QUIET: u32 = 5;

/// Prompts that are asked for.
struct Work {
    name: &'static str,
    tokens: usize,
    /// How many of these the prompt before had as well, at the beginning.
    same: usize,
    /// Requests in a round.
    requests: usize,
}

const WORKS: [Work; 3] = [
    Work {
        name: "1,000 tokens, half of them new",
        tokens: 1_000,
        same: 500,
        requests: 20,
    },
    Work {
        name: "8,000 tokens, half of them new",
        tokens: 8_000,
        same: 4_000,
        requests: 2,
    },
    Work {
        name: "8,000 tokens, 100 of them new",
        tokens: 8_000,
        same: 7_900,
        requests: 10,
    },
];

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    page.section("Why prompts are evaluated: what it costs to say so");
    page.say(
        "With `CONTEXTPILOT_LISTEN`, no index, one slot, the tiny model. Processor time of a request on the\n\
         hook's own threads, µs: it does not count what other programs on the machine take.",
    );
    let (mut threads, mut growth) = (Vec::new(), Vec::new());
    for work in &WORKS {
        let servers = SIDES.map(|(_, megabytes)| server(lab, megabytes));
        let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
        let Costs { ours, hosts, more } = work.measure(lab, &servers)?;
        page.say(format!("**{}**\n\n{}", work.name, ours.table("µs")));
        let ratio = hosts.ratio(ON).show(3);
        threads.push(format!("{ratio} ({})", work.name));
        growth.push(format!("{more:.1} MiB ({})", work.name));
        page.in_short(
            "Explaining",
            &format!(
                "takes {} µs more of the worker's processor time for a prompt of {}.",
                ours.difference(ON).show(0),
                work.name
            ),
        );
    }
    page.say(format!(
        "The server's own threads take, with it over without it: {}. It does nothing on the inference\n\
         path. Resident memory is larger by {}; at most by the setting, and what\n\
         [docs/memory.md](memory.md) lists for the last evaluations.",
        threads.join(", "),
        growth.join(", "),
    ));
    Ok(())
}

fn server(lab: &Lab, megabytes: &str) -> Result<Server> {
    let plain: Builder = Server::tiny()
        .bare_slots(1)
        .args(["-c".to_owned(), CONTEXT.to_string()]);
    let hooked = lab.launched(&plain).observed();
    hooked.env("CONTEXTPILOT_EXPLAIN_MB", megabytes).spawn()
}

/// The processor time that a server has used, once the hook's threads have done all that there is to
/// do.
fn at_rest(server: &Server) -> Result<[f64; 2]> {
    let mut before = processor_time(server)?;
    let mut quiet = 0;
    // Asking the endpoint would give them more to do.
    while quiet < QUIET {
        thread::sleep(LOOK);
        let now = processor_time(server)?;
        quiet = if now[1] > before[1] { 0 } else { quiet + 1 };
        before = now;
    }
    Ok(before)
}

/// The costs of a request.
struct Costs {
    /// µs on the hook's threads.
    ours: Comparison,
    /// ms on the server's.
    hosts: Comparison,
    /// MiB that the server with it grew more than the one without.
    more: f64,
}

impl Work {
    fn measure(&self, lab: &Lab, servers: &[Server]) -> Result<Costs> {
        let names = SIDES.map(|(name, _)| name);
        let (mut ours, mut hosts) = (Comparison::new(&names), Comparison::new(&names));
        let requests = lab.rounds(self.requests, 1);
        let mut asked = vec![0; servers.len()];
        let mut growth = Vec::new();
        for (server, asked) in servers.iter().zip(&mut asked) {
            self.ask(server, asked)?;
            at_rest(server)?;
            growth.push(-resident(server)?);
        }
        for round in 0..lab.rounds(15, 2) {
            for side in order(round, servers.len()) {
                let before = processor_time(&servers[side])?;
                for _ in 0..requests {
                    self.ask(&servers[side], &mut asked[side])?;
                }
                let after = at_rest(&servers[side])?;
                let each = |whose: usize| (after[whose] - before[whose]) / requests as f64;
                hosts.add(side, each(0));
                ours.add(side, each(1) * 1e3);
            }
        }
        for (server, growth) in servers.iter().zip(&mut growth) {
            *growth += resident(server)?;
        }
        Ok(Costs {
            ours,
            hosts,
            more: growth[ON] - growth[0],
        })
    }

    /// Sends the next prompt.
    fn ask(&self, server: &Server, asked: &mut usize) -> Result<()> {
        *asked += 1;
        let prompt = self.prompt(*asked);
        let answer = server.complete(&Request::completion(prompt).predict(1))?;
        let reused = if *asked == 1 { 0 } else { self.same };
        if answer.cache_n < reused {
            let found = answer.cache_n;
            return Err(failed(format!("{found} tokens were reused, not {reused}")));
        }
        Ok(())
    }

    /// Letters: first what all have, then what no other has.
    fn prompt(&self, number: usize) -> Vec<i32> {
        let letter = |seed: usize, place: usize| {
            let mixed = (place + seed * 7_919).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
            300 + (mixed % 26) as i32
        };
        let mut tokens: Vec<i32> = (0..self.same).map(|place| letter(0, place)).collect();
        // So that they part at once.
        tokens.push(330 + (number % 20) as i32);
        tokens.extend((tokens.len()..self.tokens).map(|place| letter(number, place)));
        tokens
    }
}
