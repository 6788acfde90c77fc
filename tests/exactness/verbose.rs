//! Compares what the hook says with the server's own verbose log.
//!
//! Sends many random prompts to a server that logs all its decisions (`-v`). Before each prompt,
//! `POST /match` forecasts how much will be reused, and in which slot. The forecast must come true. The
//! hook must also agree with the log: how the slot was chosen, whether an entry of the host prompt
//! cache was loaded, and whether the whole prompt was evaluated because the cache could not go back.

use crate::{LAUNCHER, latest};
use contextpilot_control::{ChosenBy, Evaluated, Match, MatchRequest};
use contextpilot_testbed::{
    Arch, Builder, Completion, Connection, Error, Model, Random, Request, Result, Server, try_until,
};
use std::net::SocketAddr;

/// A server, and how many prompts are sent to it.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    server: Builder,
    prompts: u32,
}

fn tiny(arch: Arch, args: &[&str]) -> Builder {
    let server = Server::builder().model(&Model::tiny(arch));
    server.args(["-v"]).args(args.iter().copied())
}

pub(crate) fn all() -> Vec<Run> {
    let run = |name, server, prompts| Run {
        name,
        server,
        prompts,
    };
    let bare = [
        "--cache-ram",
        "0",
        "--no-kv-unified",
        "-np",
        "3",
        "-c",
        "3072",
    ];
    let some = ["--cache-ram", "1", "-np", "3", "-c", "3072"];
    let apart = [
        "--cache-ram",
        "64",
        "--no-kv-unified",
        "-np",
        "3",
        "-c",
        "3072",
    ];
    vec![
        run("verbose: default flags", tiny(Arch::Llama, &[]), 80),
        run("verbose: slots only", tiny(Arch::Llama, &bare), 80),
        run("verbose: host cache", tiny(Arch::Llama, &apart), 80),
        run("verbose: host cache of 1 MiB", tiny(Arch::Llama, &some), 80),
        run(
            "verbose: cache reuse",
            tiny(Arch::Llama, &bare).args(["--cache-reuse", "8"]),
            80,
        ),
        run(
            "verbose: by age",
            tiny(Arch::Llama, &bare).args(["-sps", "0"]),
            60,
        ),
        run("verbose: sliding window", tiny(Arch::Gemma2, &bare), 60),
        run("verbose: recurrent", tiny(Arch::Mamba, &bare), 60),
    ]
}

/// How much was compared.
#[derive(Default)]
pub(crate) struct Compared {
    prompts: u32,
    by_similarity: u32,
    by_age: u32,
    by_id: u32,
    loaded: u32,
    no_way_back: u32,
}

impl Compared {
    pub(crate) fn text(&self) -> String {
        let Self {
            prompts,
            by_similarity,
            by_age,
            by_id,
            loaded,
            no_way_back,
        } = self;
        format!(
            "{prompts} prompts, slot by similarity {by_similarity}, by age {by_age}, by id {by_id}; \
             from the host cache {loaded}, without a way back {no_way_back}"
        )
    }
}

impl Run {
    pub(crate) fn compare(&self) -> Result<Compared> {
        let hooked = self.server.clone().launcher(LAUNCHER);
        let server = hooked.env("CONTEXTPILOT_LISTEN", "127.0.0.1:0").spawn()?;
        let control = server.await_control()?;
        let mut random = Random(7);
        let mut known: Vec<Vec<i32>> = Vec::new();
        let mut compared = Compared::default();
        let mut said_before = server.stderr().len();
        for nth in 0..self.prompts {
            let prompt = draw_prompt(&mut random, &known);
            known.push(prompt.clone());
            let pinned = (random.below(8) == 0).then(|| random.below(3) as u32);
            let told = matched(control, &prompt, pinned)?;
            let mut request =
                Request::completion(prompt.clone()).predict(1 + random.below(6) as u32);
            if random.below(10) == 0 {
                request = request.with("cache_prompt", false);
            }
            if let Some(slot) = pinned {
                request = request.slot(slot);
            }
            let cached = request.body()["cache_prompt"] != false;
            let answer = server.complete(&request)?;
            server.wait_idle()?;
            let evaluated = newest(control, u64::from(nth) + 1)?;
            // The server's log is written by a separate thread, in order. This is the last line of a
            // request.
            let said = try_until("the server's log of the request", || {
                let log = server.stderr();
                let new = log.get(said_before..).unwrap_or_default();
                let whole = new.contains("stop processing");
                Ok(whole.then(|| (Said::of(new), log.len())))
            });
            let (said, read) = said?;
            said_before = read;
            let problem = wrong(&told, &answer, &evaluated, &said, cached);
            if let Some(problem) = problem {
                return Err(Error::new(format!(
                    "prompt {nth} of {} tokens: {problem}\n  {told:?}\n  {evaluated:?}\n  {said:?}",
                    prompt.len()
                )));
            }
            compared.prompts += 1;
            compared.by_similarity += u32::from(said.chosen == Some(ChosenBy::Similarity));
            compared.by_age += u32::from(said.chosen == Some(ChosenBy::LeastRecentlyUsed));
            compared.by_id += u32::from(said.chosen == Some(ChosenBy::Id));
            compared.loaded += u32::from(said.loaded);
            compared.no_way_back += u32::from(said.no_way_back);
        }
        Ok(compared)
    }
}

/// What the server's log says of one request.
#[derive(Debug)]
struct Said {
    chosen: Option<ChosenBy>,
    loaded: bool,
    no_way_back: bool,
}

impl Said {
    fn of(log: &str) -> Self {
        let says = |text: &str| log.contains(text);
        let chosen = if says("selected slot by id") {
            Some(ChosenBy::Id)
        } else if says("selected slot by LCP similarity") {
            Some(ChosenBy::Similarity)
        } else if says("selected slot by LRU") {
            Some(ChosenBy::LeastRecentlyUsed)
        } else {
            None
        };
        Self {
            chosen,
            loaded: says("found better prompt with"),
            no_way_back: says("forcing full prompt re-processing"),
        }
    }
}

/// The first difference between forecast, answer, evaluation and log.
fn wrong(
    told: &Match,
    answer: &Completion,
    evaluated: &Evaluated,
    said: &Said,
    cached: bool,
) -> Option<String> {
    let slot = answer.slot.map(|slot| slot as i32);
    if told.slot != slot || evaluated.slot != slot.unwrap_or(-1) {
        return Some(format!("it was evaluated in slot {slot:?}"));
    }
    let reused = answer.cache_n as u64;
    if cached && told.reused != reused {
        return Some(format!("{reused} were reused"));
    }
    if told.chosen_by != said.chosen {
        return Some("the slot was chosen otherwise".to_owned());
    }
    if told.loads.is_some() != said.loaded {
        return Some("the host cache gave something else".to_owned());
    }
    let evaluation = &evaluated.evaluation;
    if (evaluation.reused, evaluation.evaluated) != (reused, answer.prompt_n as u64) {
        return Some("the account does not add up".to_owned());
    }
    if said.loaded && cached && evaluation.from.slot > 0 {
        return Some("what was reused came from the host cache".to_owned());
    }
    if said.no_way_back != (reused == 0 && evaluation.causes.no_way_back > 0) {
        return Some("the way back is another".to_owned());
    }
    if !cached && evaluation.causes.no_way_back > 0 {
        return Some("nobody wanted to go back".to_owned());
    }
    (evaluation.causes.not_known > 0).then(|| "something is not known".to_owned())
}

fn matched(control: SocketAddr, prompt: &[i32], pinned: Option<u32>) -> Result<Match> {
    let asked = MatchRequest {
        tokens: prompt.to_vec(),
        id_slot: pinned.map(|slot| slot as i32),
        ..MatchRequest::default()
    };
    let body = serde_json::to_vec(&asked).map_err(|error| Error::new(error.to_string()))?;
    let mut connection = Connection::open(control)?;
    let response = connection.exchange("POST", "/match", &body)?;
    let text = response.text();
    serde_json::from_str(&text).map_err(|error| Error::new(format!("{error} in {text}")))
}

/// The evaluation with this number.
fn newest(control: SocketAddr, number: u64) -> Result<Evaluated> {
    let deadline = std::time::Instant::now() + crate::PATIENCE;
    loop {
        let newest = latest(control, 1)?.requests.pop();
        match newest.filter(|one| one.number == number) {
            Some(one) => return Ok(one),
            None if std::time::Instant::now() > deadline => {
                return Err(Error::new("it was never told"));
            }
            None => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
}

/// The beginning of an earlier prompt, perhaps with a gap in it, followed by new tokens.
fn draw_prompt(random: &mut Random, known: &[Vec<i32>]) -> Vec<i32> {
    let mut prompt = Vec::new();
    if !known.is_empty() && random.below(5) > 0 {
        // One of the last eight prompts.
        let back = random.index(8).min(known.len() - 1);
        let like = &known[known.len() - 1 - back];
        let keep = random.index(like.len() + 1);
        let skip = match random.below(3) {
            0 => random.index(20),
            _ => like.len(),
        };
        prompt.extend(&like[..keep]);
        prompt.extend(like.iter().skip(keep + skip));
    }
    let more = 1 + random.below(60);
    prompt.extend((0..more).map(|_| 3 + 'a' as i32 + random.below(26) as i32));
    prompt.truncate(400);
    prompt
}
