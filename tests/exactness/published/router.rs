//! vllm-router in front of two servers: what it credits a request with is what the server then takes
//! from its cache, down to the block.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use contextpilot_testbed::{Arch, Connection, Error, Model, Result, Server};
use serde_json::{Value, json};

use crate::indexer::{BLOCK, next_port};
use crate::prompts::text;
use crate::publisher::{Publisher, until};

const COMPANION: &str = env!("CARGO_BIN_EXE_contextpilot-llama");
const REQUESTS: u64 = 350;

/// Ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server and its gateway.
struct Worker {
    publisher: Publisher,
    gateway: u16,
    _running: Running,
}

impl Worker {
    fn start() -> Result<Self> {
        let llama = Server::builder().model(&Model::tiny(Arch::Llama));
        let publisher = Publisher::start(&llama.bare_slots(3), next_port(), None)?;
        let gateway = next_port();
        let server = format!("http://{}", publisher.server.address());
        let running = Command::new(COMPANION)
            .args(["gateway", "--server", &server, "--port"])
            .arg(gateway.to_string())
            .env("CONTEXTPILOT_KV_EVENTS", events(&publisher))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let worker = Self {
            publisher,
            gateway,
            _running: Running(running),
        };
        await_port(gateway)?;
        Ok(worker)
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.gateway)
    }

    /// The number of the newest batch, when all is published.
    fn settled(&self) -> Result<u64> {
        until("all is published", || {
            let stats = self.publisher.stats()?;
            let (events, undecided) = (&stats["kv_events"], &stats["undecided"]);
            let rest = events["waiting"] == 0 && undecided == false;
            Ok(events["sequence"].as_u64().filter(|_| rest))
        })
    }
}

fn events(publisher: &Publisher) -> String {
    format!("tcp://127.0.0.1:{}", publisher.events)
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

fn await_port(port: u16) -> Result<()> {
    until("it listens", || Ok(Connection::open(at(port)).ok())).map(|_| ())
}

fn post(port: u16, path: &str, body: &Value) -> Result<Value> {
    let mut connection = Connection::open(at(port))?;
    connection
        .exchange("POST", path, body.to_string().as_bytes())?
        .json()
}

/// The router's debug log, without colours.
fn log(path: &Path) -> Result<String> {
    let text = String::from_utf8_lossy(&std::fs::read(path)?).into_owned();
    let mut parts = text.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    Ok(plain)
}

/// The value of a field of the last line with these words.
fn last_field(log: &str, words: &[&str], field: &str) -> Option<u64> {
    let mut lines = log.lines().rev();
    let line = lines.find(|line| words.iter().all(|word| line.contains(word)))?;
    let value = line.split_once(&format!(" {field}="))?.1;
    value.split(' ').next()?.parse().ok()
}

pub(crate) fn run(python: &Path) -> Result<String> {
    let workers = [Worker::start()?, Worker::start()?];
    check_render(&workers[0])?;
    let folder = tempfile::tempdir()?;
    let said = folder.path().join("router.log");
    let port = next_port();
    let mut command = Command::new(python);
    command
        .args([
            "-m",
            "vllm_router.launch_router",
            "--host",
            "127.0.0.1",
            "--port",
        ])
        .arg(port.to_string())
        .args(["--policy", "kv_aware", "--log-level", "debug"])
        .args(["--kv-event-block-size", "16", "--kv-event-model", "m"])
        .arg("--worker-urls")
        .args(workers.iter().map(Worker::url));
    for worker in &workers {
        let (url, events) = (worker.url(), worker.publisher.events);
        command.arg("--kv-event-source");
        command.arg(format!("{url}=tcp://127.0.0.1:{events}"));
        command.arg("--kv-event-replay-source");
        command.arg(format!("{url}=tcp://127.0.0.1:{}", events + 1));
    }
    let file = File::create(&said)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?);
    let _router = Running(command.stderr(file).spawn()?);
    await_port(port)?;
    for worker in &workers {
        worker.publisher.await_subscribers(1)?;
    }

    let (mut compared, mut credited_in_all, mut chosen) = (0, 0, [0, 0]);
    for nth in 0..REQUESTS {
        // The router has heard of all that there is.
        for worker in &workers {
            let newest = worker.settled()?;
            let source = format!("source={} ", worker.url());
            until("the router has heard of it", || {
                let known = last_field(&log(&said)?, &["sequence advanced", &source], "seq");
                Ok(known.filter(|known| *known >= newest))
            })?;
        }
        // Conversations that grow, over a document that some of them share.
        let (who, turn) = (nth % 7, nth / 7);
        let length = 20 + (turn as usize % 9) * 13;
        let prompt = format!("{}{}", text(who % 3, 90), text(100 + who, length));
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 3});
        if who < 2 && turn % 4 == 0 {
            // Behind the router's back, to the server that it would not choose by itself.
            let other = usize::from(chosen[0] > chosen[1]);
            post(workers[other].gateway, "/v1/completions", &body)?;
            continue;
        }
        compared += 1;
        let answer = post(port, "/v1/completions", &body)?;
        let timings = &answer["timings"];
        let (Some(cached), Some(evaluated)) =
            (timings["cache_n"].as_u64(), timings["prompt_n"].as_u64())
        else {
            return Err(Error::new(format!("request {nth}: {answer}")));
        };
        let log = log(&said)?;
        let decision = ["KV prefix decision"];
        let credited = last_field(&log, &decision, "credited_prefix_tokens");
        let credited = credited.ok_or_else(|| Error::new("the router does not say"))?;
        // The engine always evaluates the last token again.
        let block = BLOCK as u64;
        let whole = if evaluated == 1 { cached + 1 } else { cached };
        if credited != cached / block * block && credited != whole / block * block {
            return Err(Error::new(format!(
                "request {nth}: credited with {credited} tokens, {cached} came from the cache"
            )));
        }
        credited_in_all += credited;
        for (chosen, worker) in chosen.iter_mut().zip(&workers) {
            let line = log.lines().rev().find(|line| line.contains(decision[0]));
            let here = line.is_some_and(|line| line.contains(&worker.url()));
            *chosen += u64::from(here);
        }
    }
    if credited_in_all == 0 || chosen.contains(&0) {
        return Err(Error::new(format!(
            "credited with {credited_in_all} tokens, {chosen:?} were chosen: nothing is shown"
        )));
    }
    Ok(format!(
        "{compared} requests, {} and {} to each server, credited with {credited_in_all} tokens",
        chosen[0], chosen[1]
    ))
}

/// What the gateway answers to a router is what the server makes of the request itself.
fn check_render(worker: &Worker) -> Result<()> {
    let count = |tokens: &Value| tokens["token_ids"].as_array().map_or(0, Vec::len) as u64;
    let chat = json!({
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "max_tokens": 1,
    });
    let rendered = post(worker.gateway, "/v1/chat/completions/render", &chat)?;
    let answer = post(worker.gateway, "/v1/chat/completions", &chat)?;
    let text = json!({"prompt": "Hello there", "max_tokens": 1});
    let texts = post(worker.gateway, "/v1/completions/render", &text)?;
    let of_text = post(worker.gateway, "/v1/completions", &text)?;
    let mut connection = Connection::open(at(worker.gateway))?;
    let sources = connection
        .exchange("GET", "/kv_event_sources", b"")?
        .json()?;
    let found = [
        (json!(count(&rendered)), &answer["usage"]["prompt_tokens"]),
        (json!(count(&texts[0])), &of_text["usage"]["prompt_tokens"]),
        (json!(events(&worker.publisher)), &sources["0"]["endpoint"]),
    ];
    for (ours, theirs) in &found {
        if ours != *theirs {
            return Err(Error::new(format!("{ours} and {theirs}, of {rendered}")));
        }
    }
    let image = json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]});
    let refused = post(worker.gateway, "/v1/chat/completions/render", &image)?;
    match refused["error"]["code"] == 501 {
        true => Ok(()),
        false => Err(Error::new(format!("an image is rendered: {refused}"))),
    }
}
