//! Servers with a prefix store: what a router believes to be there is what is then reused *or loaded*.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use contextpilot_client::Control;
use contextpilot_control::Evaluated;
use contextpilot_testbed::{
    Arch, Builder, Connection, Error, Gateway, Model, Random, Request, Result, Router, Server,
    try_until,
};
use serde_json::{Value, json};

use crate::indexer::{BLOCK, Indexer, next_port};
use crate::prompts::text;
use crate::publisher::Publisher;
use crate::router::settle;

type Test = fn(&Indexer, &Path) -> Result<String>;

pub(crate) const ALL: [(&str, Test); 4] = [
    ("a store: credited is reused or loaded", credited),
    (
        "a store: credited is loaded up to the last state",
        up_to_states,
    ),
    ("a store: restarts, neighbours and late routers", restarts),
    ("a store: what leaves it, and what is not told", leaving),
];

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// The engine always evaluates the last token, and fewer than this many are not worth a copy.
const LEAST: usize = 8;

fn with_store(folder: &Path, budget: &str) -> Builder {
    with_store_of(Arch::Llama, folder, budget)
}

fn with_store_of(arch: Arch, folder: &Path, budget: &str) -> Builder {
    let llama = Server::builder().model(&Model::tiny(arch));
    let llama = llama.bare_slots(2).args(["-c", "4096"]);
    llama
        .env("CONTEXTPILOT_STORE", folder)
        .env("CONTEXTPILOT_STORE_GB", budget)
}

fn start(builder: &Builder) -> Result<Publisher> {
    let mut publisher = Publisher::start(builder, next_port(), None)?;
    publisher.server.await_ready()?;
    try_until("the store is in use", || {
        Ok((publisher.stats()?["store"]["ready"] == true).then_some(()))
    })?;
    Ok(publisher)
}

fn prompt(seed: u64, length: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..length).map(|_| 300 + random.below(50) as u32).collect()
}

/// Waits until everything is published: blocks of the store in all. What the store has is told by a thread that looks
/// ten times a second; so nothing must change for some of its turns.
fn at_rest(publisher: &Publisher) -> Result<u64> {
    let (mut last, mut since) = (Value::Null, Instant::now());
    try_until("all is published", || {
        let stats = publisher.stats()?;
        let (events, chunks) = (&stats["kv_events"], &stats["store"]["chunks"]);
        let now = json!([
            events["disk_blocks"],
            events["waiting"],
            chunks,
            stats["undecided"]
        ]);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        let quiet = events["waiting"] == 0 && stats["undecided"] == false;
        let is_long = since.elapsed() > Duration::from_millis(500);
        Ok(events["disk_blocks"].as_u64().filter(|_| quiet && is_long))
    })
}

/// Sends a prompt. How many tokens of it were reused, and how many loaded.
fn ask(publisher: &Publisher, nth: usize, tokens: &[u32]) -> Result<[usize; 2]> {
    let id = format!("req-{nth}");
    let request = Request::completion(Value::from(tokens)).predict(2).id(&*id);
    publisher.server.complete(&request)?;
    let control =
        Control::new(&publisher.control.to_string()).map_err(|e| Error::new(e.to_string()))?;
    let account = try_until("the request's account", || {
        let latest = control.latest(1).map_err(|e| Error::new(e.to_string()))?;
        let named = |evaluated: &Evaluated| evaluated.id.as_deref() == Some(&*id);
        Ok(latest.requests.into_iter().find(named))
    })?;
    let from = account.evaluation.from;
    Ok([from.slot as usize, from.store as usize])
}

/// Waits until the indexer believes that there are as many blocks of these tokens as `right` says, in slots and in all.
fn believe(
    indexer: &Indexer,
    publisher: &Publisher,
    tokens: &[u32],
    right: impl Fn(usize, usize) -> bool,
) -> Result<[usize; 2]> {
    let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
    let mut last = [0, 0];
    try_until("it believes it", || {
        let belief = indexer.believes(publisher.events, &ids)?;
        last = [belief.device, belief.any];
        Ok(right(belief.device, belief.any).then_some(last))
    })
    .map_err(|error| {
        Error::new(format!(
            "{error}: it believes in {last:?} blocks of {} tokens",
            ids.len()
        ))
    })
}

/// Whether a credit in blocks is what came from a slot or the store.
fn is_right(credited: usize, tokens: usize, [reused, loaded]: [usize; 2]) -> bool {
    let there = reused + loaded;
    let most = (tokens - 1) / BLOCK;
    there / BLOCK == credited.min(most) || (tokens - there <= LEAST && credited == tokens / BLOCK)
}

/// Conversations that grow, part and come again, over two slots that cannot keep them.
fn credited(indexer: &Indexer, _: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let publisher = start(&with_store(folder.path(), "1"))?;
    indexer.register(publisher.events, publisher.events)?;
    publisher.await_subscribers(1)?;
    let control =
        Control::new(&publisher.control.to_string()).map_err(|e| Error::new(e.to_string()))?;
    let mut random = Random(1);
    let mut talks: Vec<Vec<u32>> = (0..5).map(|seed| prompt(seed, 150)).collect();
    let (mut sum, mut only_stored) = ([0, 0], 0);
    const ASKED: usize = 60;
    for nth in 0..ASKED {
        let who = random.index(talks.len());
        if random.below(5) == 0 {
            // Another conversation leaves this one somewhere.
            let length = 40 + random.index(talks[who].len() - 40);
            let mut branch = talks[who][..length].to_vec();
            branch.extend(prompt(100 + nth as u64, 30));
            talks[(who + 1) % 5] = branch;
        }
        let more = random.index(60);
        talks[who].extend(prompt(1000 + nth as u64, more));
        talks[who].truncate(1200);
        let tokens = talks[who].clone();
        at_rest(&publisher)?;
        let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
        let found = control
            .matching(&ids)
            .map_err(|e| Error::new(e.to_string()))?;
        let [device, any] = believe(indexer, &publisher, &tokens, |_, _| true)?;
        let stored = found.stored.unwrap_or(0) as usize;
        if any != device.max(stored / BLOCK) {
            return Err(Error::new(format!(
                "request {nth}: it believes in {any} blocks, {device} of them in slots; {stored} tokens are stored"
            )));
        }
        let came = ask(&publisher, nth, &tokens)?;
        if !is_right(any, tokens.len(), came) {
            return Err(Error::new(format!(
                "request {nth}: credited with {any} blocks ({device} in slots) of {} tokens; {came:?} were reused and loaded",
                tokens.len()
            )));
        }
        sum = [sum[0] + came[0], sum[1] + came[1]];
        only_stored += usize::from(any > device);
    }
    if only_stored > ASKED / 6 && sum[0] > 0 && sum[1] > 0 {
        Ok(format!(
            "{ASKED} requests credited to the block: {} tokens reused, {} loaded; of {only_stored} prompts only the store had all",
            sum[0], sum[1]
        ))
    } else {
        Err(Error::new(format!(
            "{only_stored} {sum:?}: nothing is shown"
        )))
    }
}

/// Models that cannot go back: conversations that grow, over two slots that cannot keep them, also after a restart. The states of a
/// prompt stand four tokens before its end, and where its answer begins: one that goes on with other tokens than the answer is
/// credited with all that it shares, and loaded up to the state before. Where the server takes a checkpoint on the way, less than a part
/// of a batch is evaluated.
fn up_to_states(indexer: &Indexer, _: &Path) -> Result<String> {
    const PART: usize = 64;
    let (mut credited, mut only_stored) = (0, 0);
    for arch in [Arch::Gemma2, Arch::Mamba, Arch::Jamba] {
        let folder = tempfile::tempdir()?;
        let builder =
            with_store_of(arch, folder.path(), "1").args(["-ub".to_owned(), PART.to_string()]);
        let mut publisher = start(&builder)?;
        indexer.register(publisher.events, publisher.events)?;
        publisher.await_subscribers(1)?;
        let mut random = Random(2);
        let mut talks: Vec<Vec<u32>> = (0..4).map(|seed| prompt(seed, 150)).collect();
        for nth in 0..24 {
            if nth == 16 {
                publisher.server.stop(SIGTERM)?;
                publisher = start(&builder)?;
                indexer.register(publisher.events, publisher.events)?;
                publisher.await_subscribers(1)?;
            }
            let who = nth % talks.len();
            talks[who].extend(prompt(1000 + nth as u64, random.index(60)));
            let tokens = talks[who].clone();
            at_rest(&publisher)?;
            let control = Control::new(&publisher.control.to_string());
            let ids: Vec<i32> = tokens.iter().map(|token| *token as i32).collect();
            let found = control.and_then(|control| control.matching(&ids));
            let found = found.map_err(|e| Error::new(e.to_string()))?;
            let stored = found.stored.unwrap_or(0) as usize / BLOCK;
            let is_right = |device: usize, any: usize| {
                let right = device.max(stored);
                (right..=right + 1).contains(&any)
            };
            let believed = believe(indexer, &publisher, &tokens, is_right);
            let [device, any] = believed.map_err(|error| {
                Error::new(format!("{arch}, request {nth}, {stored} stored: {error}"))
            })?;
            let came = ask(&publisher, nth, &tokens)?;
            if came[0] + came[1] + PART + BLOCK <= any * BLOCK {
                return Err(Error::new(format!(
                    "{arch}, request {nth}: credited with {any} blocks ({device} in slots) of {} tokens; {came:?} were reused and loaded",
                    tokens.len()
                )));
            }
            credited += any;
            only_stored += usize::from(any > device);
        }
    }
    if only_stored < 50 {
        return Err(Error::new(format!(
            "{only_stored} of 72 prompts were credited for the store"
        )));
    }
    Ok(format!(
        "72 requests credited with {credited} blocks; of {only_stored} prompts only the store had all"
    ))
}

/// What the folder has is told before the first request of a new process, to routers that were there, to those that come
/// late, and by neighbours.
fn restarts(indexer: &Indexer, python: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let builder = with_store(folder.path(), "1");
    let tea = prompt(1, 500);
    let blocks = |count: usize| move |device: usize, any: usize| device == 0 && any == count;
    let mut first = start(&builder)?;
    indexer.register(first.events, first.events)?;
    first.await_subscribers(1)?;
    let neighbour = start(&builder)?;
    indexer.register(neighbour.events, neighbour.events)?;
    neighbour.await_subscribers(1)?;
    ask(&first, 0, &tea)?;
    believe(indexer, &first, &tea, |device, any| {
        device == 31 && any == 31
    })?;
    // It is written a moment later, and seen within two seconds.
    believe(indexer, &neighbour, &tea, blocks(31))?;
    let came = ask(&neighbour, 1, &tea)?;
    if !is_right(31, 500, came) || came[0] > 0 {
        return Err(Error::new(format!("the neighbour loads {came:?}")));
    }
    for (nth, signal) in [SIGKILL, SIGTERM].into_iter().enumerate() {
        first.server.stop(signal)?;
        first = start(&builder)?;
        indexer.register(first.events, first.events)?;
        first.await_subscribers(1)?;
        believe(indexer, &first, &tea, blocks(31))?;
        let late = Indexer::start(python)?;
        late.register(first.events, first.events)?;
        believe(&late, &first, &tea, blocks(31))?;
        let came = ask(&first, 2 + nth, &tea)?;
        if !is_right(31, 500, came) || came[0] > 0 {
            return Err(Error::new(format!("after signal {signal} {came:?} came")));
        }
    }
    Ok("31 blocks after a kill, an orderly end, and by a neighbour".to_owned())
}

/// What leaves the store leaves the router; nothing is told where it is not known what requests would get.
fn leaving(indexer: &Indexer, _: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    // A document of 500 tokens has 0.25 MB, and two are in slots.
    let publisher = start(&with_store(folder.path(), "0.0012"))?;
    indexer.register(publisher.events, publisher.events)?;
    publisher.await_subscribers(1)?;
    let prompts: Vec<_> = (0..6).map(|seed| prompt(50 + seed, 500)).collect();
    for (nth, tokens) in prompts.iter().enumerate() {
        ask(&publisher, nth, tokens)?;
    }
    at_rest(&publisher)?;
    let mut there = BTreeSet::new();
    for (nth, tokens) in prompts.iter().enumerate() {
        let [device, any] = believe(indexer, &publisher, tokens, |_, _| true)?;
        if any > device {
            there.insert(nth);
        }
    }
    let told = publisher.figures()?["disk_blocks"].as_u64();
    let room = publisher.stats()?["store"]["bytes"].as_u64();
    if there.is_empty() || there.contains(&0) || told > Some(150) {
        return Err(Error::new(format!(
            "{there:?} are believed to be there, {told:?} blocks in {room:?} bytes"
        )));
    }
    let nth = there.iter().next().copied().unwrap_or_default();
    let came = ask(&publisher, 10, &prompts[nth])?;
    let gone = ask(&publisher, 11, &prompts[0])?;
    if came[1] == 0 || gone[1] > 0 {
        return Err(Error::new(format!("{came:?} and {gone:?} came")));
    }
    // Under which adapters a request is served that names none, the store does not know.
    let adapted = with_store(folder.path(), "1").adapter(1, &[]);
    let publisher = start(&adapted)?;
    for (nth, prompt) in prompts.iter().enumerate().take(4) {
        ask(&publisher, nth, prompt)?;
    }
    match at_rest(&publisher)? {
        0 => Ok(format!(
            "of 6 documents {} are left, and believed to be",
            there.len()
        )),
        told => Err(Error::new(format!(
            "{told} blocks are told with an adapter"
        ))),
    }
}

/// vllm-router before two servers with stores of their own.
pub(crate) fn router(python: &Path) -> Result<String> {
    const REQUESTS: u64 = 70;
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    let mut servers = Vec::new();
    for folder in &folders {
        let publisher = start(&with_store(folder.path(), "1"))?;
        let (address, port) = (publisher.server.address(), next_port());
        let companion = Path::new(env!("CARGO_BIN_EXE_contextpilot-llama"));
        let gateway = Gateway::start(companion, address, port, publisher.events)?;
        servers.push((publisher, gateway));
    }
    let (publishers, gateways): (Vec<_>, Vec<_>) = servers.into_iter().unzip();
    let router = Router::start(python, "kv_aware", next_port(), &gateways)?;
    for publisher in &publishers {
        publisher.await_subscribers(1)?;
    }
    let (mut credited, mut loaded, mut chosen) = (0, 0, [0, 0]);
    for nth in 0..REQUESTS {
        for (publisher, gateway) in publishers.iter().zip(&gateways) {
            at_rest(publisher)?;
            settle(&router, publisher, gateway)?;
        }
        let (who, turn) = (nth % 7, nth / 7);
        let length = 20 + (turn as usize % 9) * 13;
        let prompt = format!("{}{}", text(who % 3, 90), text(100 + who, length));
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 3});
        if who < 2 && turn % 4 == 0 {
            // This request bypasses the router, and goes to the server that was chosen less often.
            let other = usize::from(chosen[0] > chosen[1]);
            let mut connection = Connection::open(gateways[other].address())?;
            connection.exchange("POST", "/v1/completions", body.to_string().as_bytes())?;
            continue;
        }
        let before: Vec<u64> = publishers
            .iter()
            .map(loaded_tokens)
            .collect::<Result<_>>()?;
        let mut connection = Connection::open(router.address())?;
        let answer = connection
            .exchange("POST", "/v1/completions", body.to_string().as_bytes())?
            .json()?;
        let decision = router.decision()?;
        let decision = decision.ok_or_else(|| Error::new("the router does not say"))?;
        let at = usize::from(decision.worker != gateways[0].url());
        let came_loaded = (loaded_tokens(&publishers[at])? - before[at]) as usize;
        let number = |field: &str| answer["timings"][field].as_u64().unwrap_or(0) as usize;
        let (cached, evaluated) = (number("cache_n"), number("prompt_n"));
        let all = cached + evaluated;
        let blocks = decision.credited as usize / BLOCK;
        if !is_right(blocks, all, [cached, came_loaded]) {
            return Err(Error::new(format!(
                "request {nth}: credited with {} of {all} tokens, {cached} were reused and {came_loaded} loaded",
                decision.credited
            )));
        }
        credited += decision.credited;
        loaded += came_loaded;
        chosen[at] += 1;
    }
    if credited > 0 && loaded > 0 && !chosen.contains(&0) {
        Ok(format!(
            "{REQUESTS} requests, {chosen:?} to each server, credited with {credited} tokens, {loaded} of them loaded"
        ))
    } else {
        Err(Error::new(format!(
            "{credited} {loaded} {chosen:?}: nothing is shown"
        )))
    }
}

fn loaded_tokens(publisher: &Publisher) -> Result<u64> {
    let stats = publisher.stats()?;
    stats["store"]["loaded_tokens"]
        .as_u64()
        .ok_or_else(|| Error::new(stats["store"].to_string()))
}
