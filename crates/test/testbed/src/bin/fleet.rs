//! Three servers behind vllm-router, with each of its policies: how many prompt tokens come from a cache,
//! and how long the first token takes. Then one server is killed and started again: does the router know
//! what each server has?
//!
//! Run it by `scripts/fleet`, which builds the commands and runs this in a network namespace of its own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use contextpilot_testbed::{
    Completion, Connection, Error, Gateway, Random, Request, Response, Result, Router, Server,
};
use serde_json::json;
use tempfile::TempDir;

const SERVERS: u16 = 3;
const POLICIES: [&str; 4] = ["kv_aware", "cache_aware", "consistent_hash", "round_robin"];
/// Conversations, and their turns.
const CONVERSATIONS: usize = 24;
const TURNS: usize = 6;
/// Documents that conversations begin with, and their tokens.
const DOCUMENTS: usize = 6;
const DOCUMENT: usize = 900;
/// Tokens of a turn.
const TURN: usize = 60;
/// Requests at a time.
const CLIENTS: usize = 4;
/// Tokens of a block.
const BLOCK: u64 = 16;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // A command for people. It has no other error message.
            eprintln!("[ContextPilot] The fleet stopped: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let mut next = || {
        arguments
            .next()
            .ok_or_else(|| Error::new("run scripts/fleet"))
    };
    let commands = Commands {
        launcher: next()?,
        companion: next()?,
        python: next()?,
    };
    println!("| policy | prompt tokens | from a cache | first token, median | 90 % |");
    println!("|---|--:|--:|--:|--:|");
    for (nth, policy) in POLICIES.into_iter().enumerate() {
        let fleet = Fleet::start(&commands, policy, HOST_CACHE, 21_000 + 100 * nth as u16)?;
        println!("{}", fleet.load()?.row(policy));
    }
    let fleet = Fleet::start(&commands, "kv_aware", NO_HOST_CACHE, 22_000)?;
    fleet.load()?;
    fleet.restart_one(&commands)
}

struct Commands {
    launcher: PathBuf,
    companion: PathBuf,
    python: PathBuf,
}

struct Fleet {
    servers: Vec<Mutex<Server>>,
    states: Vec<TempDir>,
    gateways: Vec<Gateway>,
    router: Router,
    first_port: u16,
}

/// The results of the requests.
#[derive(Default)]
struct Figures {
    cached: u64,
    evaluated: u64,
    first_token: Vec<Duration>,
}

impl Figures {
    fn row(mut self, policy: &str) -> String {
        self.first_token.sort_unstable();
        let at = |part: usize| {
            let place = self.first_token.len() * part / 100;
            let time = self.first_token.get(place).copied().unwrap_or_default();
            format!("{:.1} ms", time.as_secs_f64() * 1000.0)
        };
        let all = self.cached + self.evaluated;
        let part = self.cached as f64 / all.max(1) as f64 * 100.0;
        format!(
            "| {policy} | {all} | {part:.1} % | {} | {} |",
            at(50),
            at(90)
        )
    }
}

/// The ports of the `nth` server: its own, its gateway's, and that of its KV cache events.
fn ports(first: u16, nth: u16) -> (u16, u16, u16) {
    (first + 10 * nth, first + 10 * nth + 1, first + 10 * nth + 2)
}

/// The host prompt cache of each server, MiB: some 12,000 tokens. All three together have room for all
/// conversations once, and not for much more.
const HOST_CACHE: &str = "6";
/// No host prompt cache: the engine does not find all that it has there (see docs/fleets.md), so the
/// router's credit could not be compared.
const NO_HOST_CACHE: &str = "0";

fn start_server(
    commands: &Commands,
    first: u16,
    nth: u16,
    host: &str,
    state: &Path,
) -> Result<Server> {
    let (port, _, events) = ports(first, nth);
    Server::tiny()
        .args(["--port", &port.to_string(), "--parallel", "4", "-c", "8192"])
        .args(["--cache-ram", host])
        .launcher(&commands.launcher)
        .env(
            "CONTEXTPILOT_KV_EVENTS",
            format!("tcp://127.0.0.1:{events}"),
        )
        .env("XDG_STATE_HOME", state)
        .spawn()
}

impl Fleet {
    fn start(commands: &Commands, policy: &str, host: &str, first_port: u16) -> Result<Self> {
        let (mut servers, mut states, mut gateways) = (Vec::new(), Vec::new(), Vec::new());
        for nth in 0..SERVERS {
            let state = tempfile::tempdir()?;
            let server = start_server(commands, first_port, nth, host, state.path())?;
            let (_, port, events) = ports(first_port, nth);
            let gateway = Gateway::start(&commands.companion, server.address(), port, events)?;
            servers.push(Mutex::new(server));
            states.push(state);
            gateways.push(gateway);
        }
        let port = first_port + 10 * SERVERS;
        Ok(Self {
            router: Router::start(&commands.python, policy, port, &gateways)?,
            servers,
            states,
            gateways,
            first_port,
        })
    }

    /// Sends all turns of all conversations, as many at a time as there are clients.
    fn load(&self) -> Result<Figures> {
        let figures = Mutex::new(Figures::default());
        let next =
            Mutex::new((0..TURNS).flat_map(|turn| (0..CONVERSATIONS).map(move |c| (c, turn))));
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|_| {
                    scope.spawn(|| -> Result<()> {
                        loop {
                            let Some((conversation, turn)) = lock(&next).next() else {
                                return Ok(());
                            };
                            let (first_token, answer) = self.ask(conversation, turn)?;
                            let mut figures = lock(&figures);
                            figures.cached += answer.cache_n as u64;
                            figures.evaluated += answer.prompt_n as u64;
                            figures.first_token.push(first_token);
                        }
                    })
                })
                .collect();
            for client in clients {
                client
                    .join()
                    .map_err(|_| Error::new("a client panicked"))??;
            }
            Ok::<(), Error>(())
        })?;
        Ok(figures.into_inner().unwrap_or_default())
    }

    /// Sends one turn of a conversation, streamed. The body has only fields that vLLM knows: with others
    /// the router credits no cached tokens.
    fn ask(&self, conversation: usize, turn: usize) -> Result<(Duration, Completion)> {
        let body = json!({
            "model": "m", "prompt": prompt(conversation, turn), "max_tokens": 4,
            "temperature": 0, "seed": 1, "stream": true,
            "user": format!("user-{conversation}"),
        });
        let request = Request::new("/v1/completions", body);
        let mut connection = Connection::open(self.router.address())?;
        let begun = Instant::now();
        let bytes = request.wire_body();
        connection.write(&Connection::request_bytes(
            "POST",
            request.path(),
            bytes.as_bytes(),
        ))?;
        let mut response: Response = connection.head()?;
        let mut first_token = None;
        while let Some(part) = connection.part(&response)? {
            if part.is_empty() {
                break;
            }
            first_token.get_or_insert_with(|| begun.elapsed());
            response.body.extend_from_slice(&part);
        }
        let first_token = first_token.ok_or_else(|| Error::new("an empty answer"))?;
        Ok((first_token, Completion::first(&response)?))
    }

    /// Kills a server and starts it again. Then compares the cached tokens that the router credits requests
    /// with, and those that come from the caches.
    fn restart_one(&self, commands: &Commands) -> Result<bool> {
        {
            let mut server = self.servers[0].lock().map_err(|_| Error::new("lost"))?;
            server.stop(9)?;
            *server = start_server(
                commands,
                self.first_port,
                0,
                NO_HOST_CACHE,
                self.states[0].path(),
            )?;
        }
        // The router connects again. The first batch of events tells it that the server has nothing.
        let before = self.router.heard(&self.gateways[0])?;
        let begun = Instant::now();
        while self.router.heard(&self.gateways[0])? <= before {
            if begun.elapsed() > Duration::from_secs(30) {
                let log = self.router.log()?;
                let end = log.lines().rev().take(30).collect::<Vec<_>>().join("\n");
                return Err(Error::new(format!(
                    "the router does not hear of the new server, newest first:\n{end}"
                )));
            }
            thread::sleep(Duration::from_millis(50));
        }
        let (mut right, mut all) = (0, 0);
        for conversation in 0..CONVERSATIONS {
            let (_, answer) = self.ask(conversation, TURNS - 1)?;
            let decision = self.router.decision()?;
            let credited = decision.map_or(0, |decision| decision.credited);
            let cached = answer.cache_n as u64;
            let whole = cached + u64::from(answer.prompt_n == 1);
            let blocks = |tokens: u64| tokens / BLOCK * BLOCK;
            all += 1;
            right += u64::from(credited == blocks(cached) || credited == blocks(whole));
            // The router has received all events before the next request.
            thread::sleep(Duration::from_millis(300));
        }
        println!(
            "\nAfter a server was killed and started again, {right} of {all} requests were credited with exactly what came from the cache."
        );
        Ok(right == all)
    }
}

/// The prompt of a conversation at a turn: a document that others share, and the turns so far.
fn prompt(conversation: usize, turn: usize) -> String {
    let mut prompt = letters(conversation % DOCUMENTS, DOCUMENT);
    for nth in 0..=turn {
        prompt += &letters(1000 + conversation * 100 + nth, TURN);
    }
    prompt
}

/// Letters, each of which is a token of the tiny model.
fn letters(seed: usize, length: usize) -> String {
    Random(seed as u64).letters(length)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
