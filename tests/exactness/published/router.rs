//! vllm-router in front of two servers: the blocks that it expects to be cached for a request are
//! those that the server then reuses.

use std::net::SocketAddr;
use std::path::Path;

use contextpilot_testbed::{Connection, Error, Gateway, Result, Router, Server};
use serde_json::{Value, json};

use crate::indexer::{BLOCK, next_port};
use crate::prompts::text;
use crate::publisher::Publisher;
use contextpilot_testbed::try_until;

const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");
const REQUESTS: u64 = 350;
/// How many requests are sent if some name adapters. The router knows adapters from the events only.
const WITH_ADAPTERS: u64 = 120;

fn start(adapters: bool) -> Result<(Publisher, Gateway)> {
    let llama = Server::tiny();
    let mut llama = llama.bare_slots(3);
    if adapters {
        let two = llama.adapter(1, &[]).adapter(2, &[]);
        llama = two.args(["--lora-init-without-apply"]);
    }
    let publisher = Publisher::start(&llama, next_port(), None)?;
    let server = publisher.server.address();
    let companion = Path::new(COMPANION);
    let gateway = Gateway::start(companion, server, next_port(), publisher.events)?;
    Ok((publisher, gateway))
}

/// Waits until the router has received all events.
pub(crate) fn settle(router: &Router, publisher: &Publisher, gateway: &Gateway) -> Result<()> {
    let newest = try_until("all is published", || {
        let stats = publisher.stats()?;
        let (events, undecided) = (&stats["kv_events"], &stats["undecided"]);
        let rest = events["waiting"] == 0 && undecided == false;
        Ok(events["sequence"].as_u64().filter(|_| rest))
    })?;
    try_until("the router has heard of it", || {
        Ok(router.heard(gateway)?.filter(|known| *known >= newest))
    })?;
    Ok(())
}

fn post(to: SocketAddr, path: &str, body: &Value) -> Result<Value> {
    let mut connection = Connection::open(to)?;
    connection
        .exchange("POST", path, body.to_string().as_bytes())?
        .json()
}

/// `adapters`: requests that bypass the router name adapters.
pub(crate) fn run(python: &Path, adapters: bool) -> Result<String> {
    let (publishers, gateways): (Vec<Publisher>, Vec<Gateway>) =
        [start(adapters)?, start(adapters)?].into_iter().unzip();
    check_render(&publishers[0], &gateways[0])?;
    let router = Router::start(python, "kv_aware", next_port(), &gateways)?;
    for publisher in &publishers {
        publisher.await_subscribers(1)?;
    }
    let (mut compared, mut credited, mut chosen) = (0, 0, [0, 0]);
    let requests = if adapters { WITH_ADAPTERS } else { REQUESTS };
    for nth in 0..requests {
        for (publisher, gateway) in publishers.iter().zip(&gateways) {
            settle(&router, publisher, gateway)?;
        }
        // Growing conversations. Some of them begin with the same document.
        let (who, turn) = (nth % 7, nth / 7);
        let length = 20 + (turn as usize % 9) * 13;
        let prompt = format!("{}{}", text(who % 3, 90), text(100 + who, length));
        let mut body = json!({"model": "m", "prompt": prompt, "max_tokens": 3});
        if who < 2 && (adapters || turn % 4 == 0) {
            // This request bypasses the router, and goes to the server that was chosen less often.
            let other = usize::from(chosen[0] > chosen[1]);
            if adapters {
                body["lora"] = json!([{"id": who, "scale": 1.0}]);
            }
            post(gateways[other].address(), "/v1/completions", &body)?;
            continue;
        }
        let answer = post(router.address(), "/v1/completions", &body)?;
        let decision = router.decision()?;
        let decision = decision.ok_or_else(|| Error::new("the router does not say"))?;
        check(decision.credited, &answer)
            .map_err(|error| Error::new(format!("request {nth}: {error}")))?;
        compared += 1;
        credited += decision.credited;
        for (chosen, gateway) in chosen.iter_mut().zip(&gateways) {
            *chosen += u64::from(decision.worker == gateway.url());
        }
    }
    // With adapters, all requests of the router may go to one server: the other one has blocks for
    // adapters only.
    if credited == 0 || !adapters && chosen.contains(&0) {
        return Err(Error::new(format!(
            "credited with {credited} tokens, {chosen:?} were chosen: nothing is shown"
        )));
    }
    Ok(format!(
        "{compared} requests, {} and {} to each server, credited with {credited} tokens",
        chosen[0], chosen[1]
    ))
}

/// Whether the engine reused as much as the router expected.
fn check(credited: u64, answer: &Value) -> Result<()> {
    let timings = &answer["timings"];
    let number = |field: &str| timings[field].as_u64();
    let (Some(cached), Some(evaluated)) = (number("cache_n"), number("prompt_n")) else {
        return Err(Error::new(answer.to_string()));
    };
    // The engine always evaluates the last token.
    let whole = if evaluated == 1 { cached + 1 } else { cached };
    let blocks = |tokens: u64| tokens / BLOCK as u64 * BLOCK as u64;
    if [blocks(cached), blocks(whole)].contains(&credited) {
        Ok(())
    } else {
        Err(Error::new(format!(
            "credited with {credited} tokens, {cached} came from the cache"
        )))
    }
}

/// The gateway's answers to a router must agree with what the server does with the same request.
fn check_render(publisher: &Publisher, gateway: &Gateway) -> Result<()> {
    let at = gateway.address();
    let count = |tokens: &Value| tokens["token_ids"].as_array().map_or(0, Vec::len) as u64;
    let chat = json!({
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "max_tokens": 1,
    });
    let rendered = post(at, "/v1/chat/completions/render", &chat)?;
    let answer = post(at, "/v1/chat/completions", &chat)?;
    let text = json!({"prompt": "Hello there", "max_tokens": 1});
    let texts = post(at, "/v1/completions/render", &text)?;
    let of_text = post(at, "/v1/completions", &text)?;
    let mut connection = Connection::open(at)?;
    let sources = connection
        .exchange("GET", "/kv_event_sources", b"")?
        .json()?;
    let events = format!("tcp://127.0.0.1:{}", publisher.events);
    let found = [
        (json!(count(&rendered)), &answer["usage"]["prompt_tokens"]),
        (json!(count(&texts[0])), &of_text["usage"]["prompt_tokens"]),
        (json!(events), &sources["0"]["endpoint"]),
    ];
    for (ours, theirs) in &found {
        if ours != *theirs {
            return Err(Error::new(format!("{ours} and {theirs}, of {rendered}")));
        }
    }
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]});
    let refused = post(at, "/v1/chat/completions/render", &image)?;
    if refused["error"]["code"] == 501 {
        Ok(())
    } else {
        Err(Error::new(format!("an image is rendered: {refused}")))
    }
}
