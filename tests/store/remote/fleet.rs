//! Three servers with one Redis behind a router: what the simulator of fleets says of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use contextpilot_kv_files::{Folder, Header, Watch};
use contextpilot_kv_store::Chunk;
use contextpilot_testbed::{Connection, Sessions, Spec};
use contextpilot_trace::fleet::{Delay, Own, Route, Setting, Shared, fleet};
use contextpilot_trace::read::chain;
use contextpilot_trace::{Builder as TraceBuilder, Clock, NewRequest, Trace};

use super::*;

/// Tokens of a block: those of the sessions' own.
const BLOCK: u32 = 4;
const SERVERS: u32 = 3;
/// How far the simulated share of reused tokens may be off.
const TOLERANCE: f64 = 0.02;

/// Slots of 8,192 tokens, and no host prompt cache.
///
/// The model is not the tiniest one. A prompt waits for what the remote has no longer than evaluating it takes; where that is
/// nothing, a server on a busy machine waits in vain, and then asks nobody for ten seconds.
fn slots(count: u32) -> Builder {
    let model = Spec {
        layers: 4,
        width: 128,
        ..Spec::new(Arch::Llama)
    };
    Server::builder()
        .model(&Model::of(&model))
        .bare_slots(count)
        .args(["-c".to_owned(), (8192 * count).to_string()])
}

/// A server that nobody asks, and what comes into its folder: how late others see what a server wrote.
struct Onlooker {
    is_over: Arc<AtomicBool>,
    seen: JoinHandle<Vec<(Instant, Chunk)>>,
    _server: Stored,
    _folder: TempDir,
}

impl Onlooker {
    fn start(builder: &Builder) -> Self {
        let kept = folder();
        let server = Stored::start(builder, kept.path());
        let mut watch = Watch::new(Folder::open(kept.path()).unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let look = move || {
            let mut seen = Vec::new();
            while !until.load(Ordering::Relaxed) {
                let found = |header: Header| {
                    seen.push((Instant::now(), header.chunk));
                };
                watch.look(found).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
            seen
        };
        Self {
            is_over,
            seen: thread::spawn(look),
            _server: server,
            _folder: kept,
        }
    }

    /// How long it takes until a server sees what another one loses from its slot. The slot loses a prompt when the next one
    /// comes to that server, which in turn is the third one behind it.
    fn delay(self, asked: &[Asked]) -> Delay {
        // What was written last is still under way.
        thread::sleep(Duration::from_secs(3));
        self.is_over.store(true, Ordering::Relaxed);
        let seen = self.seen.join().unwrap();
        let took = seen.iter().filter_map(|(at, chunk)| {
            let begin = chunk.start as usize;
            let tokens = chunk.tokens.iter().map(|token| *token as u32);
            let tokens: Vec<u32> = tokens.collect();
            let has = |one: &Asked| one.prompt.get(begin..begin + tokens.len()) == Some(&tokens);
            let lost = asked.get(asked.iter().position(has)? + SERVERS as usize)?;
            Some(at.saturating_duration_since(lost.at).as_secs_f64())
        });
        let took: Vec<f64> = took.collect();
        assert!(took.len() > asked.len() / 2, "{} chunks", took.len());
        let count = took.len() as f64;
        let mean = took.iter().sum::<f64>() / count;
        let variance = took.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / count;
        // A sum of two times that are as long as chance has it.
        let reach = (6.0 * variance).sqrt();
        Delay {
            least: ((mean - reach).max(0.0) * 1e6) as u64,
            most: ((mean + reach) * 1e6) as u64,
        }
    }
}

/// A prompt, and when it was sent.
struct Asked {
    prompt: Vec<u32>,
    at: Instant,
}

/// What was played.
struct Played {
    /// The share of prompt tokens that were not evaluated.
    reused: f64,
    /// What was asked when.
    trace: Trace,
    /// From an answer to the session's next request, seconds: half of them are shorter.
    apart: f64,
    /// How late others see what a server wrote, where requests come to the servers in turn.
    delay: Option<Delay>,
}

/// vllm-router, which sends requests to the servers in turn.
struct InTurn {
    process: Child,
    at: SocketAddr,
}

impl InTurn {
    /// `None`: there is none on this machine.
    fn start(servers: &[Stored]) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/kv-router");
        let made = Command::new(script).arg("vllm-router").output().unwrap();
        if made.status.code() == Some(77) {
            let why = String::from_utf8_lossy(&made.stderr);
            skip(why.trim());
            return None;
        }
        assert!(made.status.success(), "{made:?}");
        let python = String::from_utf8(made.stdout).unwrap();
        let (at, metrics) = (free_port(), free_port());
        let mut command = Command::new(python.trim());
        command
            .args(["-m", "vllm_router.launch_router", "--host", "127.0.0.1"])
            .args(["--port", &at.port().to_string(), "--policy", "round_robin"])
            .args(["--prometheus-port", &metrics.port().to_string()])
            .arg("--worker-urls");
        command.args(
            servers
                .iter()
                .map(|one| format!("http://{}", one.server.address())),
        );
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let router = Self {
            process: command.stderr(Stdio::null()).spawn().unwrap(),
            at,
        };
        until("the router has its servers", || {
            let mut connection = Connection::open(at).ok()?;
            let health = connection.exchange("GET", "/health", b"").ok()?;
            (health.status == 200).then_some(())
        });
        Some(router)
    }

    /// How many tokens of a prompt the server asked its engine to evaluate.
    fn ask(&self, prompt: &[u32]) -> u64 {
        let body = serde_json::json!({"model": "m", "prompt": prompt, "max_tokens": 1});
        let mut connection = Connection::open(self.at).unwrap();
        let answer = connection.exchange("POST", "/v1/completions", body.to_string().as_bytes());
        let answer = answer.unwrap().json().unwrap();
        let asked = answer["timings"]["prompt_n"].as_u64();
        asked.unwrap_or_else(|| panic!("{answer}"))
    }
}

impl Drop for InTurn {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a router by prefix knows: the blocks of the prompts that each server has answered. They have stores of their own without
/// a limit, so what one had it has.
#[derive(Default)]
struct Answered {
    blocks: [HashSet<u64>; SERVERS as usize],
    /// The number of the last answer of each.
    last: [usize; SERVERS as usize],
    answers: usize,
}

impl Answered {
    /// The server that has most of a prompt, if that is more than half; of several, the one that answered last. Else the one whose
    /// last answer is longest ago. Where nobody waits, both routers by prefix choose so.
    fn choose(&mut self, ids: &[u64]) -> usize {
        let has = |server: usize| {
            let known = ids
                .iter()
                .take_while(|id| self.blocks[server].contains(*id));
            known.count()
        };
        let all = 0..SERVERS as usize;
        let best = all.clone().max_by_key(|one| (has(*one), self.last[*one]));
        let best = best.filter(|server| has(*server) > ids.len() / 2);
        let idle = all.min_by_key(|server| self.last[*server]);
        let chosen = best.or(idle).unwrap();
        self.answers += 1;
        self.last[chosen] = self.answers;
        self.blocks[chosen].extend(ids);
        chosen
    }
}

/// Plays sessions side by side, a request of each in turn, with a pause after each turn: through vllm-router, or to the server that
/// the session's hash names or that has most of the prompt. `None`: there is no router.
fn play(
    sessions: &Sessions,
    route: Route,
    redis: &Redis,
    count: u32,
    pause: Duration,
) -> Option<Played> {
    let folders = [(); SERVERS as usize].map(|()| folder());
    let builder = shared_by(&slots(count), redis);
    let servers = [0, 1, 2].map(|nth: usize| Stored::start(&builder, folders[nth].path()));
    let (router, onlooker) = match route {
        Route::RoundRobin => (
            Some(InTurn::start(&servers)?),
            Some(Onlooker::start(&builder)),
        ),
        _ => (None, None),
    };
    let prompts: Vec<Vec<Vec<u32>>> = sessions
        .all
        .iter()
        .map(|one| one.prompts().collect())
        .collect();
    let longest = prompts.iter().map(Vec::len).max().unwrap();
    let mut trace = TraceBuilder::new(BLOCK, Clock::Trace, None);
    let begin = Instant::now();
    let (mut all, mut evaluated) = (0, 0);
    let mut answered = Answered::default();
    let mut asked: Vec<Asked> = Vec::new();
    let mut last: Vec<Option<Instant>> = vec![None; prompts.len()];
    let mut apart = Vec::new();
    for turn in 0..longest {
        if turn > 0 {
            thread::sleep(pause);
        }
        for (session, prompts) in prompts.iter().enumerate() {
            let Some(prompt) = prompts.get(turn) else {
                continue;
            };
            let at = Instant::now();
            apart.extend(last[session].map(|last| at.duration_since(last).as_secs_f64()));
            let (input, ids) = chain(prompt.iter().map(|token| u64::from(*token)), BLOCK);
            all += prompt.len();
            evaluated += match &router {
                Some(router) => router.ask(prompt),
                None => {
                    let of = match route {
                        Route::Session => Route::of_session(session as u32, SERVERS) as usize,
                        _ => answered.choose(&ids),
                    };
                    let request = Request::completion(Value::from(prompt.as_slice())).predict(1);
                    servers[of].server.complete(&request).unwrap().prompt_n as u64
                }
            };
            last[session] = Some(Instant::now());
            let new = NewRequest {
                at: at.duration_since(begin).as_micros() as u64,
                session: Some(session as u32),
                input,
                output: 1,
                ids,
                ..NewRequest::default()
            };
            trace.push(&new).unwrap();
            let prompt = prompt.clone();
            asked.push(Asked { prompt, at });
        }
    }
    let loaded: u64 = servers.iter().map(|one| one.figures().loaded_tokens).sum();
    apart.sort_by(f64::total_cmp);
    Some(Played {
        reused: 1.0 - (evaluated as f64 - loaded as f64) / all as f64,
        trace: trace.finish(),
        apart: apart[apart.len() / 2],
        delay: onlooker.map(|one| one.delay(&asked)),
    })
}

/// Seconds after each turn: `CONTEXTPILOT_FLEET_PAUSES=0,1,2` plays all again with others.
fn pauses() -> Vec<Duration> {
    let given = std::env::var("CONTEXTPILOT_FLEET_PAUSES");
    let given = given.unwrap_or_else(|_| "0".to_owned());
    let seconds = given.split(',').map(|one| one.trim().parse().unwrap());
    seconds.map(Duration::from_secs_f64).collect()
}

/// How late a server sees what another one wrote depends on how busy the machine is. So that is measured beside the servers: what is
/// true lies between what the simulator says with the shortest and with the longest delay. What sessions reuse that stay with a server, or come to one that has their prompts, does not depend on it.
#[test]
fn three_servers_with_one_redis_reuse_what_the_simulator_says() {
    // None of the first four is a multiple of three, so in turn each session comes to another server. The fewer, the sooner.
    let cases = [
        (2, 20, Route::RoundRobin, 1),
        (4, 16, Route::RoundRobin, 1),
        (10, 12, Route::RoundRobin, 1),
        (40, 8, Route::RoundRobin, 1),
        (11, 8, Route::Session, 2),
        (20, 8, Route::Prefix, 2),
        (20, 8, Route::LoadPrefix, 2),
    ];
    let pauses = pauses();
    let cases = cases
        .into_iter()
        .flat_map(|case| pauses.iter().map(move |pause| (case, *pause)));
    let mut wrong = Vec::new();
    for ((number, requests, route, slots), pause) in cases {
        let Some(redis) = Redis::start(&[]) else {
            return;
        };
        let sessions = Sessions::made_up(number, requests);
        let Some(played) = play(&sessions, route, &redis, slots, pause) else {
            continue;
        };
        let simulated = |delay: Option<Delay>| {
            let setting = Setting {
                servers: SERVERS,
                route,
                slots,
                host_tokens: 0,
                similarity: 0.1,
                // Requests came one after the other, at the times that the trace has.
                prompt_rate: 1e9,
                answer_rate: 1e9,
                token_bytes: 1,
                own: Some(Own {
                    room: 1 << 30,
                    speed: 1e15,
                }),
                shared: delay.map(|delay| Shared {
                    room: 1 << 40,
                    link: 1e15,
                    delay,
                    worth: 0.125,
                }),
                warm_up: 0.0,
            };
            fleet(&played.trace, &setting).reuse.of_tokens()
        };
        let always = |seconds: u64| simulated(Some(Delay::always(seconds * 1_000_000)));
        let (at_once, late, alone) = (always(0), always(10), simulated(None));
        let (truth, apart) = (played.reused, played.apart);
        let says = played.delay.map_or(at_once, |delay| simulated(Some(delay)));
        let delay = played.delay.map_or(String::new(), |delay| {
            let [least, most] = [delay.least, delay.most].map(|time| time as f64 / 1e6);
            format!(", seen after {least:.2} to {most:.2} s")
        });
        let row = format!(
            "{number} sessions, {route}, pauses of {pause:?}: {apart:.2} s apart{delay}: {truth:.4}, simulated {says:.4}; at once \
             {at_once:.4}, after 10 s {late:.4}, nothing shared {alone:.4}"
        );
        println!("{row}");
        // Where requests come closer together than others see a write, it matters how delays follow each other, and the
        // simulator draws each by itself.
        let (soonest, latest) = played.delay.map_or((says, says), |delay| {
            let always = |time| simulated(Some(Delay::always(time)));
            (always(delay.least), always(delay.most))
        });
        let is_right = (latest - TOLERANCE..soonest + TOLERANCE).contains(&truth);
        let is_told_apart = match route {
            // What the shared store may bring at most.
            Route::RoundRobin => at_once > alone + 3.0 * TOLERANCE,
            Route::Session => (at_once, late) == (alone, alone),
            _ => (at_once - late).abs() < TOLERANCE,
        };
        if !is_right || !is_told_apart {
            wrong.push(row);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
