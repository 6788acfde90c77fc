//! What it costs the server to be looked at: in a browser, and with `top`. Processor time, which does not count what
//! other programs on the machine take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use contextpilot_client::Control;
use contextpilot_testbed::{Arch, Model, Request, Result, Server};

use super::serving::prompt;
use crate::lab::{Lab, failed, processor_time};
use crate::page::{Aim, Page};
use crate::sample::{Comparison, order};

const SIDES: [(&str, Who); 4] = [
    ("nobody", Who::Nobody),
    ("nobody, again", Who::Nobody),
    ("`top`", Who::Top),
    ("the page", Who::Page),
];
const TOP: usize = 2;
const PAGE: usize = 3;
/// A request begins so often.
const EACH: Duration = Duration::from_millis(50);
/// Tokens of a prompt and of its answer. The server generates most of the time.
const PROMPT: usize = 200;
const ANSWER: u32 = 40;
/// How often `top` and the page ask (page/src/live.ts), and how often the page asks for the tree at most.
const ASKS: Duration = Duration::from_secs(1);
const TREE_EACH: Duration = Duration::from_secs(2);
const MOST_BRANCHES: usize = 1000;
/// The page also asks again for so many requests that were under way.
const UNDER_WAY: u64 = 24;
const MOST_LAST: u64 = 1000;

pub(super) fn run(lab: &Lab, page: &mut Page) -> Result<()> {
    let rounds = lab.rounds(12, 2);
    let span = Duration::from_secs(lab.rounds(5, 1) as u64);
    let names = SIDES.map(|(name, _)| name);
    let (mut ours, mut hosts) = (Comparison::new(&names), Comparison::new(&names));
    let servers: Vec<Server> = SIDES.iter().map(|_| server(lab)).collect::<Result<_>>()?;
    let watchers = SIDES.iter().zip(&servers);
    let watchers: Vec<Watcher> = watchers
        .map(|((_, who), server)| Watcher::of(*who, server))
        .collect::<Result<_>>()?;
    for round in 0..=rounds {
        for side in order(round, servers.len()) {
            let [of_server, of_hook] = work(&servers[side], round, span)?;
            // The first fills slots and host prompt cache.
            if round > 0 {
                ours.add(side, of_hook);
                hosts.add(side, of_server);
            }
        }
    }
    for (watcher, (name, who)) in watchers.into_iter().zip(SIDES) {
        let asked = watcher.end()?;
        if who != Who::Nobody && asked == 0 {
            return Err(failed(format!("{name} asked nothing")));
        }
    }

    page.section("Somebody looks");
    page.say(format!(
        "With `CONTEXTPILOT_LISTEN`, no index, two slots, the tiny model, {} requests a second of {PROMPT} tokens with {ANSWER} \
         tokens\nof answer each. Processor time, ms in a second: it does not count what other programs take. *The page* asks what\n\
         the page asks (`/stats` each second, `/events`, `/requests/last`, and `/tree` every two seconds), the tree being looked at.",
        Duration::from_secs(1).as_millis() / EACH.as_millis(),
    ));
    page.say(format!("The hook's own threads:\n\n{}", ours.table("ms")));
    page.say(format!(
        "The server's own threads:\n\n{}",
        hosts.table("ms")
    ));
    let more = ours.difference(PAGE);
    let of_top = ours.difference(TOP);
    page.aim(
        "The page is looked at: the hook's threads, more",
        &format!("what `top` takes ({} ms a second)", of_top.show(2)),
        &format!("{} ms a second", more.show(2)),
        Aim::met_if(more.middle <= of_top.high.max(of_top.middle)),
    );
    page.in_short(
        "Somebody looks",
        &format!(
            "the page takes {} ms of a second of the hook's threads, `top` {}; the server's own threads take {} and {} \
             times what they take if nobody looks.",
            more.show(2),
            of_top.show(2),
            hosts.ratio(PAGE).show(3),
            hosts.ratio(TOP).show(3),
        ),
    );
    Ok(())
}

fn server(lab: &Lab) -> Result<Server> {
    let plain = Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(2);
    lab.launched(&plain).observed().spawn()
}

/// Sends requests for so long, one each [`EACH`]. The processor time of a second: the server's threads, and ours in it; ms.
fn work(server: &Server, round: usize, span: Duration) -> Result<[f64; 2]> {
    let before = processor_time(server)?;
    let begin = Instant::now();
    let mut nth = 0;
    while begin.elapsed() < span {
        let number = 1000 * round + nth as usize;
        let request = Request::completion(prompt(number, PROMPT))
            .id(format!("req-{number}"))
            .predict(ANSWER)
            .with("ignore_eos", true);
        server.complete(&request)?;
        nth += 1;
        thread::sleep((EACH * nth).saturating_sub(begin.elapsed()));
    }
    let took = begin.elapsed().as_secs_f64();
    let after = processor_time(server)?;
    Ok([0, 1].map(|whose| (after[whose] - before[whose]) / took))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Nobody,
    Top,
    Page,
}

/// Looks at a server until it is ended.
struct Watcher {
    ends: Arc<AtomicBool>,
    asking: Option<JoinHandle<Result<u64>>>,
}

impl Watcher {
    fn of(who: Who, server: &Server) -> Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        if who == Who::Nobody {
            return Ok(Self { ends, asking: None });
        }
        let control = server.await_control()?.to_string();
        let control = Control::new(&control).map_err(|error| failed(error.to_string()))?;
        let listening = control.clone();
        // It ends with the server.
        thread::spawn(move || {
            if let Ok(mut events) = listening.events(None) {
                while let Some(Ok(_)) = events.next() {}
            }
        });
        let until = Arc::clone(&ends);
        let asking = thread::spawn(move || ask(&control, who, &until));
        Ok(Self {
            ends,
            asking: Some(asking),
        })
    }

    /// How often it has asked for figures.
    fn end(self) -> Result<u64> {
        self.ends.store(true, Ordering::Relaxed);
        let Some(asking) = self.asking else {
            return Ok(0);
        };
        asking.join().map_err(|_| failed("a watcher panicked"))?
    }
}

/// What `top` and the page ask. How often.
fn ask(control: &Control, who: Who, ends: &AtomicBool) -> Result<u64> {
    let failed = |error: contextpilot_client::Error| failed(error.to_string());
    let (mut rounds, mut seen, mut tree_at) = (0, None, None::<Instant>);
    while !ends.load(Ordering::Relaxed) {
        let stats = control.stats().map_err(failed)?;
        rounds += 1;
        let now = stats.reuse.total.prompts + stats.requests.finished;
        let changed = seen != Some(now);
        if who == Who::Page && changed {
            let more = seen.map_or(MOST_LAST, |seen| (now - seen + UNDER_WAY).min(MOST_LAST));
            control.latest(more as usize).map_err(failed)?;
            if tree_at.is_none_or(|at| at.elapsed() >= TREE_EACH) {
                tree_at = Some(Instant::now());
                control.tree(MOST_BRANCHES).map_err(failed)?;
            }
        }
        seen = Some(now);
        thread::sleep(ASKS);
    }
    Ok(rounds)
}
