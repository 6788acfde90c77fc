//! Three servers with one Redis behind a router: what the simulator of fleets says of them.

use std::collections::HashSet;
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use contextpilot_testbed::{
    Completion, Connection, KillOnDrop, Session, Sessions, Spec, or_return,
};
use contextpilot_trace::fleet::{Own, Route, Setting, Shared, fleet};
use contextpilot_trace::read::chain;
use contextpilot_trace::{Builder as TraceBuilder, Clock, NewRequest};

use super::*;

/// Tokens of a block: those of the sessions' own.
const BLOCK: u32 = 4;
const SERVERS: u32 = 3;
/// How far the simulated share of reused tokens may be off.
const TOLERANCE: f64 = 0.02;

/// Slots of 8,192 tokens, and no host prompt cache.
///
/// The model is not the tiniest one. A prompt waits for what the remote has no longer than evaluating it takes; where that is
/// nothing, a server on a busy machine waits in vain, and then does not ask for ten seconds.
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

/// What was played.
struct Played {
    /// The share of prompt tokens that were not evaluated.
    reused: f64,
    /// What was asked when.
    requests: Vec<NewRequest>,
    /// From an answer to the session's next request, seconds: half of them are shorter.
    apart: f64,
    /// From one look for what others wrote to the next, microseconds.
    looks: u64,
    /// How long an evaluated token took, and the rest of an answer, microseconds.
    token: f64,
    rest: f64,
}

impl Played {
    fn of(servers: &[Stored], requests: Vec<NewRequest>, asked: u64) -> Self {
        let figures: Vec<_> = servers.iter().map(Stored::figures).collect();
        let loaded: u64 = figures.iter().map(|one| one.loaded_tokens).sum();
        let looks: u64 = figures
            .iter()
            .map(|one| one.remote.as_ref().unwrap().look_ms)
            .sum();
        let all: u64 = requests.iter().map(|one| u64::from(one.input)).sum();
        Self {
            reused: 1.0 - (asked as f64 - loaded as f64) / all as f64,
            requests,
            apart: 0.0,
            looks: looks * 1000 / u64::from(SERVERS),
            token: 0.0,
            rest: 0.0,
        }
    }

    /// What the simulator says, in the mean of several runs, which begin at other times between two looks. `looks`: of the store
    /// that all have.
    fn simulated(&self, route: Route, slots: u32, looks: Option<u64>) -> f64 {
        const RUNS: u64 = 16;
        let rate = |micros: f64| if micros > 0.0 { 1e6 / micros } else { 1e9 };
        let setting = Setting {
            servers: SERVERS,
            route,
            slots,
            host_tokens: 0,
            similarity: 0.1,
            prompt_rate: rate(self.token),
            answer_rate: rate(self.rest),
            token_bytes: 1,
            own: Some(Own {
                room: 1 << 30,
                speed: 1e15,
            }),
            shared: looks.map(|looks| Shared {
                room: 1 << 40,
                link: 1e15,
                looks,
                worth: 0.125,
            }),
            warm_up: 0.0,
        };
        let run = |nth: u64| {
            let mut trace = TraceBuilder::new(BLOCK, Clock::Trace, None);
            // A trace begins with its first request: that of no tokens.
            trace.push(&NewRequest::default()).unwrap();
            for one in &self.requests {
                let at = one.at + nth * self.looks / RUNS;
                trace.push(&NewRequest { at, ..one.clone() }).unwrap();
            }
            fleet(&trace.finish(), &setting).reuse.of_tokens()
        };
        (0..RUNS).map(run).sum::<f64>() / RUNS as f64
    }
}

/// vllm-router, which sends requests to the servers in turn.
struct InTurn {
    _process: KillOnDrop,
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
            _process: KillOnDrop(command.stderr(Stdio::null()).spawn().unwrap()),
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
    /// How many blocks of a prompt a server has.
    fn has(&self, server: usize, ids: &[u64]) -> usize {
        let there = ids
            .iter()
            .take_while(|id| self.blocks[server].contains(*id));
        there.count()
    }

    /// The server that has most of a prompt, if that is more than half; of several, the one that answered last. Else the one whose
    /// last answer is longest ago. Where no request waits, both routers by prefix choose so.
    fn choose(&mut self, ids: &[u64]) -> usize {
        let has = |server: usize| self.has(server, ids);
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

/// The three servers, with a folder each.
struct Three {
    all: Vec<Stored>,
    _folders: [TempDir; SERVERS as usize],
}

impl Three {
    fn start(redis: &Redis, slots_of_each: u32) -> Self {
        let folders = [(); SERVERS as usize].map(|()| folder());
        let builder = shared_by(&slots(slots_of_each), redis);
        let start = |folder: &TempDir| Stored::start(&builder, folder.path());
        Self {
            all: folders.iter().map(start).collect(),
            _folders: folders,
        }
    }
}

fn prompts(sessions: &[Session]) -> Vec<Vec<Vec<u32>>> {
    let prompts = sessions.iter().map(|one| one.prompts().collect());
    prompts.collect()
}

fn blocks(prompt: &[u32]) -> (u32, Vec<u64>) {
    chain(prompt.iter().map(|token| u64::from(*token)), BLOCK)
}

/// Plays sessions, so many side by side, a request of each in turn, with a pause after each turn: through vllm-router, or to the
/// server that the session's hash names or that has most of the prompt. `None`: there is no router.
fn play(
    sessions: &Sessions,
    beside: usize,
    route: Route,
    redis: &Redis,
    slots: u32,
    pause: Duration,
) -> Option<Played> {
    let servers = Three::start(redis, slots);
    let router = match route {
        Route::RoundRobin => Some(InTurn::start(&servers.all)?),
        _ => None,
    };
    let prompts = prompts(&sessions.all);
    let begin = Instant::now();
    let mut evaluated = 0;
    let mut answered = Answered::default();
    let mut requests = Vec::new();
    let mut last: Vec<Option<Instant>> = vec![None; prompts.len()];
    let mut apart = Vec::new();
    let turns = prompts.iter().map(Vec::len).max().unwrap();
    let all = (0..prompts.len()).collect::<Vec<_>>();
    for (some, turn) in all
        .chunks(beside)
        .flat_map(|some| (0..turns).map(move |turn| (some, turn)))
    {
        if turn > 0 {
            thread::sleep(pause);
        }
        for &session in some {
            let Some(prompt) = prompts[session].get(turn) else {
                continue;
            };
            let at = Instant::now();
            apart.extend(last[session].map(|last| at.duration_since(last).as_secs_f64()));
            let (input, ids) = blocks(prompt);
            evaluated += match &router {
                Some(router) => router.ask(prompt),
                None => {
                    let of = match route {
                        Route::Session => Route::of_session(session as u32, SERVERS) as usize,
                        _ => answered.choose(&ids),
                    };
                    let request = Request::completion(Value::from(prompt.as_slice())).predict(1);
                    servers.all[of].server.complete(&request).unwrap().prompt_n as u64
                }
            };
            last[session] = Some(Instant::now());
            requests.push(NewRequest {
                at: at.duration_since(begin).as_micros() as u64,
                session: Some(session as u32),
                input,
                output: 1,
                ids,
                ..NewRequest::default()
            });
        }
    }
    apart.sort_by(f64::total_cmp);
    Some(Played {
        apart: apart[apart.len() / 2],
        ..Played::of(&servers.all, requests, evaluated)
    })
}

/// A router by load and prefix: it knows what each server has answered, and until when each has enough to do, if all takes as long
/// as what it measured at the beginning.
struct ByLoad {
    answered: Answered,
    /// How long a token takes, and the rest of an answer, microseconds.
    token: f64,
    rest: f64,
    /// What each has to do, a request after the other: microseconds.
    given: [Vec<f64>; SERVERS as usize],
    /// When it began with the first of these, microseconds.
    began: [f64; SERVERS as usize],
}

impl ByLoad {
    /// The server whose first token comes first, if what is evaluated counts twice: of those that have more than half of a prompt,
    /// and the one that is ready first.
    fn choose(&mut self, ids: &[u64], now: f64) -> usize {
        let all = 0..SERVERS as usize;
        let has = all.clone().map(|server| self.answered.has(server, ids));
        let has: Vec<usize> = has.collect();
        let wait = |server: usize| {
            let given: f64 = self.given[server].iter().sum();
            (self.began[server] + given - now).max(0.0) * f64::from(u8::from(given > 0.0))
        };
        let evaluating =
            |server: usize| self.token * f64::from(BLOCK) * (ids.len() - has[server]) as f64;
        let cost = |server: &usize| wait(*server) + 2.0 * evaluating(*server);
        let idle = all
            .clone()
            .min_by(|one, other| wait(*one).total_cmp(&wait(*other)));
        let candidates = all.filter(|one| has[*one] > ids.len() / 2).chain(idle);
        let chosen = candidates.min_by(|one, other| cost(one).total_cmp(&cost(other)));
        let chosen = chosen.unwrap();
        if self.given[chosen].is_empty() {
            self.began[chosen] = now;
        }
        let takes = self.rest + evaluating(chosen);
        self.given[chosen].push(takes);
        self.answered.blocks[chosen].extend(ids);
        chosen
    }

    /// The server begins with the next one.
    fn answered(&mut self, server: usize, now: f64) {
        self.given[server].remove(0);
        self.began[server] = now;
    }
}

/// Plays sessions all at once: each asks again as soon as it is answered, so requests wait at servers of one slot.
fn play_at_once(sessions: &Sessions, redis: &Redis) -> Played {
    let servers = Three::start(redis, 1);
    let ask = |server: usize, prompt: &[u32]| -> Completion {
        let request = Request::completion(Value::from(prompt)).predict(1);
        servers.all[server].server.complete(&request).unwrap()
    };
    let prompt_micros = |answer: &Completion| {
        let millis = answer.raw["timings"]["prompt_ms"].as_f64();
        millis.unwrap() * 1e3
    };
    // What all takes here, of prompts that have nothing in common with others.
    let measured = |seed: u64| {
        let (prompt, begin) = (tokens(1 << 40 | seed, 2000), Instant::now());
        let micros = prompt_micros(&ask(seed as usize % 3, &prompt));
        let rest = begin.elapsed().as_micros() as f64 - micros;
        (micros / prompt.len() as f64, rest)
    };
    let measured: Vec<_> = (0..6).map(measured).collect();
    let mean = |pick: fn(&(f64, f64)) -> f64| measured.iter().map(pick).sum::<f64>() / 6.0;
    let before: u64 = servers
        .all
        .iter()
        .map(|one| one.figures().loaded_tokens)
        .sum();
    assert_eq!(before, 0, "what was measured had nothing in common");
    let router = Mutex::new(ByLoad {
        answered: Answered::default(),
        token: mean(|one| one.0),
        rest: mean(|one| one.1),
        given: [const { Vec::new() }; SERVERS as usize],
        began: [0.0; SERVERS as usize],
    });
    let begin = Instant::now();
    let now = || begin.elapsed().as_micros() as f64;
    let play = |(session, prompts): (usize, &Vec<Vec<u32>>)| {
        let mut requests = Vec::new();
        let (mut asked, mut micros) = (0, 0.0);
        for prompt in prompts {
            let (input, ids) = blocks(prompt);
            let at = now();
            let server = router.lock().unwrap().choose(&ids, at);
            let answer = ask(server, prompt);
            router.lock().unwrap().answered(server, now());
            asked += answer.prompt_n as u64;
            micros += prompt_micros(&answer);
            requests.push(NewRequest {
                at: at as u64,
                session: Some(session as u32),
                input,
                output: 1,
                ids,
                after: (!requests.is_empty()).then_some((1, 0)),
                ..NewRequest::default()
            });
        }
        (requests, asked, micros)
    };
    let prompts = prompts(&sessions.all);
    let play = &play;
    let done: Vec<_> = thread::scope(|scope| {
        let each = prompts.iter().enumerate();
        let threads: Vec<_> = each.map(|one| scope.spawn(move || play(one))).collect();
        let done = threads.into_iter().map(|thread| thread.join().unwrap());
        done.collect()
    });
    let took = now();
    let asked = done.iter().map(|(_, asked, _)| asked).sum();
    let micros: f64 = done.iter().map(|(.., micros)| micros).sum();
    let requests: Vec<_> = done.into_iter().flat_map(|(all, ..)| all).collect();
    let (count, input) = (
        requests.len(),
        requests.iter().map(|one| f64::from(one.input)).sum::<f64>(),
    );
    let played = Played::of(&servers.all, requests, asked);
    let evaluated = (1.0 - played.reused) * input;
    Played {
        token: micros / evaluated,
        // Of the time of all servers, in which none had nothing to do.
        rest: (f64::from(SERVERS) * took - micros).max(0.0) / count as f64,
        ..played
    }
}

/// Seconds after each turn: `CONTEXTPILOT_FLEET_PAUSES=0,1,2` plays all again with others.
fn pauses() -> Vec<Duration> {
    let given = std::env::var("CONTEXTPILOT_FLEET_PAUSES");
    let given = given.unwrap_or_else(|_| "0".to_owned());
    let seconds = given.split(',').map(|one| one.trim().parse().unwrap());
    seconds.map(Duration::from_secs_f64).collect()
}

/// What sessions reuse that come to another server each time depends on when the machines look for what others wrote: how often that
/// is, the servers say. Of sessions that stay with a server, or come to one that has their prompts, it does not.
#[test]
fn three_servers_with_one_redis_reuse_what_the_simulator_says() {
    // So many sessions side by side, so many of these after each other, and requests of each. None of the first three numbers is
    // a multiple of three, so in turn each session comes to another server. The fewer, the sooner. Chance has most to say there:
    // when the machines happen to look. So there are more of them.
    let cases = [
        (2, 5, 20, Route::RoundRobin, 1),
        (4, 4, 16, Route::RoundRobin, 1),
        (10, 2, 12, Route::RoundRobin, 1),
        (11, 1, 8, Route::Session, 2),
        (20, 1, 8, Route::Prefix, 2),
        (20, 1, 8, Route::LoadPrefix, 2),
    ];
    let pauses = pauses();
    let cases = cases
        .into_iter()
        .flat_map(|case| pauses.iter().map(move |pause| (case, *pause)));
    let mut wrong = Vec::new();
    for ((beside, groups, requests, route, slots), pause) in cases {
        let redis = or_return!(Redis::start(&[]));
        let sessions = Sessions::made_up(beside * groups, requests);
        let Some(played) = play(&sessions, beside as usize, route, &redis, slots, pause) else {
            continue;
        };
        let simulated = |looks| played.simulated(route, slots, looks);
        let says = simulated(Some(played.looks));
        let (at_once, alone) = (simulated(Some(0)), simulated(None));
        let (truth, apart) = (played.reused, played.apart);
        let row = format!(
            "{beside} sessions side by side, {route}, pauses of {pause:?}: {apart:.2} s apart, looks every {:.2} s: {truth:.4}, \
             simulated {says:.4}; at once {at_once:.4}, nothing shared {alone:.4}",
            played.looks as f64 / 1e6
        );
        println!("{row}");
        let is_told_apart = match route {
            // What the shared store may bring at most.
            Route::RoundRobin => at_once > alone + 3.0 * TOLERANCE,
            Route::Session => at_once == alone,
            _ => (at_once - alone).abs() < TOLERANCE,
        };
        let is_right = match route {
            // A busy machine writes its files late, which the simulator does not know: then they reuse less.
            Route::RoundRobin => truth < says + TOLERANCE && truth > alone - TOLERANCE,
            _ => (says - truth).abs() < TOLERANCE,
        };
        if !is_right || !is_told_apart {
            wrong.push(row);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Where requests wait, sessions leave a server that has their prompts if another one answers sooner.
#[test]
fn three_servers_reuse_what_the_simulator_says_where_the_load_decides() {
    let redis = or_return!(Redis::start(&[]));
    let played = play_at_once(&Sessions::made_up(14, 12), &redis);
    let says = played.simulated(Route::LoadPrefix, 1, Some(played.looks));
    let of = |route| played.simulated(route, 1, Some(played.looks));
    let (session, turns) = (of(Route::Session), of(Route::RoundRobin));
    let truth = played.reused;
    let row = format!(
        "14 sessions at once, {:.0} us a token and {:.0} us an answer, looks every {:.2} s: {truth:.4}, simulated {says:.4}; by session \
         {session:.4}, in turn {turns:.4}",
        played.token,
        played.rest,
        played.looks as f64 / 1e6
    );
    println!("{row}");
    assert!((says - truth).abs() <= TOLERANCE, "{row}");
}
