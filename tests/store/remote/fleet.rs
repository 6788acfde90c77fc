//! Three servers with one Redis behind a router: what the simulator of fleets says of them.

use std::time::Instant;

use contextpilot_testbed::Sessions;
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

/// The router: as the simulator's, by a request's number or its session.
fn chosen(route: Route, nth: usize, session: usize) -> usize {
    match route {
        Route::RoundRobin => (nth + 1) % SERVERS as usize,
        _ => Route::of_session(session as u32, SERVERS) as usize,
    }
}

/// Plays sessions side by side, a request of each in turn. Returns the share of prompt tokens that were not evaluated, and
/// what was asked when.
fn play(sessions: &Sessions, route: Route, redis: &Redis, count: u32) -> (f64, Trace) {
    let folders = [(); SERVERS as usize].map(|()| folder());
    let builder = shared_by(&slots(count), redis);
    let servers = [0, 1, 2].map(|nth: usize| Stored::start(&builder, folders[nth].path()));
    let prompts: Vec<Vec<Vec<u32>>> = sessions
        .all
        .iter()
        .map(|one| one.prompts().collect())
        .collect();
    let longest = prompts.iter().map(Vec::len).max().unwrap();
    let mut trace = TraceBuilder::new(BLOCK, Clock::Trace, None);
    let begin = Instant::now();
    let (mut all, mut asked) = (0, 0);
    for turn in 0..longest {
        for (session, prompts) in prompts.iter().enumerate() {
            let Some(prompt) = prompts.get(turn) else {
                continue;
            };
            let at = begin.elapsed().as_micros() as u64;
            let server = &servers[chosen(route, trace.len(), session)].server;
            let request = Request::completion(Value::from(prompt.as_slice())).predict(1);
            let answer = server.complete(&request).unwrap();
            all += prompt.len();
            asked += answer.prompt_n;
            let (input, ids) = chain(prompt.iter().map(|token| u64::from(*token)), BLOCK);
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
    (1.0 - evaluated / all as f64, trace.finish())
}

/// Fifty are no multiple of three, so in turn each session comes to another server. A turn of all takes longer than it takes
/// until others see what a server wrote.
#[test]
fn three_servers_with_one_redis_reuse_what_the_simulator_says() {
    for (number, route, slots) in [(50, Route::RoundRobin, 1), (11, Route::Session, 2)] {
        let Some(redis) = Redis::start(&[]) else {
            return;
        };
        let (truth, trace) = play(&Sessions::made_up(number, 10), route, &redis, slots);
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
            shared: Some(Shared {
                room: 1 << 40,
                link: 1e15,
                delay: 1_500_000,
                worth: 0.125,
            }),
            warm_up: 0.0,
        };
        let simulated = fleet(&trace, &setting).reuse.of_tokens();
        let off = simulated - truth;
        println!("{number} sessions, {route}, {slots} slots: {truth:.4}, simulated {simulated:.4}");
        assert!(off.abs() <= TOLERANCE, "{route}: {truth} {simulated}");
        // Without the shared store it would be another figure, or the same for sessions that stay.
        let alone = Setting {
            shared: None,
            ..setting
        };
        let alone = fleet(&trace, &alone).reuse.of_tokens();
        match route {
            Route::RoundRobin => assert!(simulated - alone > 3.0 * TOLERANCE, "{alone}"),
            _ => assert_eq!(simulated, alone),
        }
    }
}
