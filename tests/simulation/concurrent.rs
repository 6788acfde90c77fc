//! Several clients at once, at the recorded setting.

use std::thread;

use contextpilot_simulate::{Replay, Setting};
use contextpilot_testbed::{Arch, Error, Model, Request, Result, Server};

use crate::prompts::text;
use crate::recorded::{TOLERANCE, record_with};

const CLIENTS: u64 = 5;
const TURNS: u64 = 12;
/// One prompt of 60 is about two percentage points. With this many conversations it is a quarter of a point.
const CONVERSATIONS: u64 = 8;

/// How far the engine may be from the range of several courses: it is one more of them.
const FAR: f64 = 0.05;

/// There are more clients than slots, so some requests wait. Each client sends its next prompt when it
/// has the answer, and begins a new conversation when one has ended. In the server's own order the replay is to be as the
/// engine was. Simulated without it, which slot is free first depends on less time than the simulator knows, and a wrong choice
/// costs a whole prompt: so that is only to be near.
pub(super) fn run() -> Result<String> {
    let server = Server::builder().model(&Model::tiny(Arch::Llama)).args([
        "-c",
        "8192",
        "--parallel",
        "3",
        "--cache-ram",
        "2",
    ]);
    let traffic = record_with(&server, |server| {
        thread::scope(|scope| {
            let clients = (0..CLIENTS).map(|client| scope.spawn(move || talk(server, client)));
            let clients: Vec<_> = clients.collect();
            clients.into_iter().try_for_each(|client| {
                client.join().map_err(|_| Error::new("a client panicked"))?
            })
        })
    })?;
    let setting = Setting::recorded(&traffic);
    let setting = setting.ok_or_else(|| Error::new("the recording says nothing of the server"))?;
    let replay = Replay::new(&traffic);
    let point = replay.simulate(&setting);
    let spread = replay.spread(&point);
    let spread = spread.ok_or_else(|| Error::new("no client asks without a pause"))?;
    let followed = replay.as_recorded(&setting).reused_share();
    let sum = |of: fn(&contextpilot_traffic::RequestRecord) -> u32| -> u64 {
        traffic
            .requests
            .iter()
            .map(|r| u64::from(of(&r.record)))
            .sum()
    };
    let engine = sum(|record| record.reused) as f64 / sum(|record| record.prompt) as f64;
    let range = spread.lowest - FAR..spread.highest + FAR;
    let followed_off = followed - engine;
    let waited = traffic
        .requests
        .iter()
        .filter(|r| r.record.launched > r.record.arrived + 2_000)
        .count();
    let said = format!(
        "{} prompts of {CLIENTS} clients, {waited} waited: engine {:.1} %, simulated {:.1} % ({:.1} to {:.1} %), \
         in the recorded order {:.1} %",
        traffic.requests.len(),
        100.0 * engine,
        100.0 * point.reused_share(),
        100.0 * spread.lowest,
        100.0 * spread.highest,
        100.0 * followed,
    );
    if std::env::var_os("SHOW").is_some() {
        for (request, outcome) in traffic.requests.iter().zip(&point.outcomes) {
            let record = &request.record;
            let times = (
                record.arrived,
                record.launched,
                record.prompted,
                record.ended,
            );
            let simulated = outcome.map(|o| (o.arrived, o.launched, o.ended, o.slot, o.reused));
            println!(
                "  {}: {times:?} slot {} reused {} of {}; simulated {simulated:?}",
                record.order, record.slot, record.reused, record.prompt
            );
        }
    }
    let is_whole = traffic.requests.len() as u64 == CLIENTS * CONVERSATIONS * TURNS;
    if is_whole && range.contains(&engine) && followed_off.abs() <= TOLERANCE {
        Ok(said)
    } else {
        Err(Error::new(said))
    }
}

fn talk(server: &Server, client: u64) -> Result<()> {
    for conversation in 0..CONVERSATIONS {
        let seed = 100 * conversation + client;
        let mut prompt = text(1, 200) + &text(10_000 + seed, 60);
        for turn in 0..TURNS {
            let completion = server.complete(&Request::completion(&*prompt).predict(40))?;
            prompt += &completion.content;
            prompt += &text(100 * (20_000 + seed) + turn, 30);
        }
    }
    Ok(())
}
