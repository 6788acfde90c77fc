//! Three servers with one Redis behind a router: what the simulator of fleets says of them.

use std::collections::HashSet;
use std::thread;
use std::time::Instant;

use contextpilot_testbed::{Connection, Sessions};
use contextpilot_trace::fleet::{Own, Route, Setting, Shared, fleet};
use contextpilot_trace::read::chain;
use contextpilot_trace::{Builder as TraceBuilder, Clock, NewRequest, Trace};

use super::*;

/// Tokens of a block: those of the sessions' own.
const BLOCK: u32 = 4;
const SERVERS: u32 = 3;
/// How far the simulated share of reused tokens may be off.
const TOLERANCE: f64 = 0.02;

/// Slots of 4,096 tokens, and no host prompt cache.
fn slots(count: u32) -> Builder {
    Server::builder()
        .model(&Model::tiny(Arch::Llama))
        .bare_slots(count)
        .args(["-c".to_owned(), (4096 * count).to_string()])
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
/// the session's hash names or that has most of the prompt. Returns the share of prompt tokens that were not evaluated, and what
/// was asked when. `None`: there is no router.
fn play(
    sessions: &Sessions,
    route: Route,
    redis: &Redis,
    count: u32,
    pause: Duration,
) -> Option<(f64, Trace)> {
    let folders = [(); SERVERS as usize].map(|()| folder());
    let builder = shared_by(&slots(count), redis);
    let servers = [0, 1, 2].map(|nth: usize| Stored::start(&builder, folders[nth].path()));
    let router = match route {
        Route::RoundRobin => Some(InTurn::start(&servers)?),
        _ => None,
    };
    let prompts: Vec<Vec<Vec<u32>>> = sessions
        .all
        .iter()
        .map(|one| one.prompts().collect())
        .collect();
    let longest = prompts.iter().map(Vec::len).max().unwrap();
    let mut trace = TraceBuilder::new(BLOCK, Clock::Trace, None);
    let begin = Instant::now();
    let (mut all, mut asked) = (0, 0);
    let mut answered = Answered::default();
    for turn in 0..longest {
        if turn > 0 {
            thread::sleep(pause);
        }
        for (session, prompts) in prompts.iter().enumerate() {
            let Some(prompt) = prompts.get(turn) else {
                continue;
            };
            let at = begin.elapsed().as_micros() as u64;
            let (input, ids) = chain(prompt.iter().map(|token| u64::from(*token)), BLOCK);
            all += prompt.len();
            asked += match &router {
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
            let new = NewRequest {
                at,
                session: Some(session as u32),
                input,
                output: 1,
                ids,
                ..NewRequest::default()
            };
            trace.push(&new).unwrap();
        }
    }
    let loaded: u64 = servers.iter().map(|one| one.figures().loaded_tokens).sum();
    let evaluated = asked as f64 - loaded as f64;
    Some((1.0 - evaluated / all as f64, trace.finish()))
}

/// Seconds after each turn: `CONTEXTPILOT_FLEET_PAUSES=0,1,2` plays all again with others.
fn pauses() -> Vec<Duration> {
    let given = std::env::var("CONTEXTPILOT_FLEET_PAUSES");
    let given = given.unwrap_or_else(|_| "0".to_owned());
    let seconds = given.split(',').map(|one| one.trim().parse().unwrap());
    seconds.map(Duration::from_secs_f64).collect()
}

/// How soon a server sees what another one wrote depends on how busy the machine is: at once or after ten seconds, the truth must
/// lie between what is simulated with these. What sessions reuse that stay with a server, or come to one that has their prompts,
/// does not depend on it.
#[test]
fn three_servers_with_one_redis_reuse_what_the_simulator_says() {
    // Forty are no multiple of three, so in turn each session comes to another server.
    let cases = [
        (40, Route::RoundRobin, 1),
        (11, Route::Session, 2),
        (20, Route::Prefix, 2),
        (20, Route::LoadPrefix, 2),
    ];
    let pauses = pauses();
    let cases = cases
        .into_iter()
        .flat_map(|case| pauses.iter().map(move |pause| (case, *pause)));
    for ((number, route, slots), pause) in cases {
        let Some(redis) = Redis::start(&[]) else {
            return;
        };
        let sessions = Sessions::made_up(number, 8);
        let Some((truth, trace)) = play(&sessions, route, &redis, slots, pause) else {
            continue;
        };
        let shared = Shared {
            room: 1 << 40,
            link: 1e15,
            delay: 0,
            worth: 0.125,
        };
        let simulated = |shared: Option<Shared>| {
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
                shared,
                warm_up: 0.0,
            };
            fleet(&trace, &setting).reuse.of_tokens()
        };
        let after = |seconds: f64| {
            let delay = (seconds * 1e6) as u64;
            simulated(Some(Shared { delay, ..shared }))
        };
        let delays = [0.0, 1.5, 3.0, 5.0, 10.0].map(|seconds| (seconds, after(seconds)));
        let took = trace.requests.last().map_or(0, |one| one.at / 1_000_000);
        println!(
            "{number} sessions, {route}, pauses of {pause:?}, {took} s: {truth:.4}, simulated {delays:.4?}"
        );
        let (soon, late, alone) = (after(0.0), after(10.0), simulated(None));
        assert!(truth <= soon + TOLERANCE, "{route}: {truth} {soon}");
        assert!(truth >= late - TOLERANCE, "{route}: {truth} {late}");
        match route {
            // What the shared store brings.
            Route::RoundRobin => assert!(truth > alone + 3.0 * TOLERANCE, "{truth} {alone}"),
            Route::Session => assert_eq!((soon, late), (alone, alone)),
            _ => assert!((soon - late).abs() < TOLERANCE, "{soon} {late}"),
        }
    }
}
