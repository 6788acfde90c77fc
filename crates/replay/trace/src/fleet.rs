//! Many servers, a router in front of them, and prefix stores: what is reused, and how long the first token takes.
//!
//! A server is simpler here than in `crates/replay/simulate`, where every token counts: it has slots, a host cache and a prefix store,
//! by blocks. It evaluates one prompt after the other, and answers of its slots side by side, which do not slow each other
//! down. A slot is chosen as llama-server does it: the one that has most of the prompt, if that is enough, or else the one that
//! was used longest ago. What it held then goes to the host cache and, if it is not there yet, to the store. What of a prompt
//! neither the slot nor the host cache has is loaded from the store, if that is quicker than evaluating it.
//!
//! A store of its own has at once what its server has lost. The shared one has it when the server's machine has looked for what is
//! to be sent, and another server when its machine has looked for what is new there (`looks`). A server writes what is new when
//! it evaluates the second token of an answer, if there is one and enough is new to be worth a copy, or else when it loses it.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::curve::{Reuse, warm_up};
use crate::request::{NONE, Request};
use crate::trace::Trace;
use crate::tree::Node;

mod blocks;
mod looks;
mod route;
mod server;

use blocks::BlockStore;
use looks::Looks;
pub use route::Route;
use route::Router;
use server::FleetServer;

/// What a fleet is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// How many servers, at least one.
    pub servers: u32,
    /// How a request's server is chosen.
    pub route: Route,
    /// Slots of a server.
    pub slots: u32,
    /// What its host cache has room for, tokens.
    pub host_tokens: u64,
    /// The share of a prompt that a slot must have to be chosen for it.
    pub similarity: f64,
    /// Prompt tokens that a server evaluates in a second.
    pub prompt_rate: f64,
    /// Tokens of an answer in a second.
    pub answer_rate: f64,
    /// The KV of a token, bytes.
    pub token_bytes: u64,
    /// The prefix store that each has.
    pub own: Option<Own>,
    /// The one that all have.
    pub shared: Option<Shared>,
    /// The share of the first requests that count in no figure.
    pub warm_up: f64,
}

/// A prefix store of a server's own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Own {
    /// How large it may become, bytes.
    pub room: u64,
    /// How fast it is read, bytes in a second.
    pub speed: f64,
}

/// A prefix store for all servers. What a server has fetched from it is in its own store then, if it has one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shared {
    /// How large it may become, bytes.
    pub room: u64,
    /// How fast the network brings it to a server, bytes in a second.
    pub link: f64,
    /// From one look of a machine for what is to be sent or fetched to the next, microseconds; the mean of them. 0: it looks all the
    /// time.
    pub looks: u64,
    /// What is new must be this share of a sequence to be written before it is lost.
    pub worth: f64,
}

/// What a fleet did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Requests that count.
    pub requests: u64,
    /// What was not evaluated: in slots, host caches or stores.
    pub reuse: Reuse,
    /// Of the reused tokens, those that a store had.
    pub loaded_tokens: u64,
    /// Bytes that went over the network: to the shared store, and from it.
    pub sent_bytes: u64,
    /// Bytes that came from the shared store.
    pub fetched_bytes: u64,
    /// Times to the first token, seconds, in order.
    pub first_tokens: Vec<f32>,
    /// The most tokens that one server evaluated, as a multiple of the mean.
    pub imbalance: f64,
    /// When the last answer was there, seconds.
    pub seconds: f64,
}

impl Outcome {
    /// Tokens that were evaluated.
    #[must_use]
    pub fn evaluated_tokens(&self) -> u64 {
        self.reuse.tokens - self.reuse.reused_tokens
    }

    /// The time to the first token that this share of the requests had at most, seconds.
    #[must_use]
    pub fn first_token(&self, share: f64) -> f64 {
        let nth = (share * self.first_tokens.len() as f64).ceil() as usize;
        let nth = nth.clamp(1, self.first_tokens.len().max(1)) - 1;
        self.first_tokens.get(nth).copied().map_or(0.0, f64::from)
    }
}

/// Plays a trace on a fleet.
#[must_use]
pub fn fleet(trace: &Trace, setting: &Setting) -> Outcome {
    let mut fleet = Fleet::new(trace, setting);
    fleet.run();
    fleet.end()
}

/// A fleet whose time to the first token is within a bound for this share of the requests, and which is not with a server less;
/// and its outcome. At most `most` servers. `None`: not even with so many.
#[must_use]
pub fn plan(
    trace: &Trace,
    setting: &Setting,
    share: f64,
    bound: f64,
    most: u32,
) -> Option<(u32, Outcome)> {
    let play = |servers: u32| {
        fleet(
            trace,
            &Setting {
                servers,
                ..*setting
            },
        )
    };
    let fits = |outcome: &Outcome| outcome.first_token(share) <= bound;
    let most = most.max(1);
    let (mut low, mut high) = (0, 1);
    let mut found = loop {
        let outcome = play(high);
        if fits(&outcome) {
            break outcome;
        }
        if high == most {
            return None;
        }
        low = high;
        high = high.saturating_mul(2).min(most);
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let outcome = play(middle);
        if fits(&outcome) {
            (high, found) = (middle, outcome)
        } else {
            low = middle
        }
    }
    Some((high, found))
}

/// What happens when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The shared store has a chain now.
    Stored(Node),
    /// A server has written a chain.
    Written(Node, u32),
    /// A request comes.
    Comes(u32),
}

struct Fleet<'a> {
    trace: &'a Trace,
    setting: Setting,
    servers: Vec<FleetServer>,
    router: Router,
    /// The store of all, and when each server's machine looks at it.
    shared: BlockStore,
    looks: Vec<Looks>,
    /// The servers, by when they are ready for a prompt.
    ready: BTreeSet<(u64, u32)>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// The requests that wait for each answer: the first, and the next one of each.
    waiting: Vec<u32>,
    next: Vec<u32>,
    evaluated: Vec<u64>,
    outcome: Outcome,
    end: u64,
    counted: usize,
    path: Vec<Node>,
}

impl<'a> Fleet<'a> {
    fn new(trace: &'a Trace, setting: &Setting) -> Self {
        let servers = setting.servers.max(1);
        let per_block = setting
            .token_bytes
            .saturating_mul(u64::from(trace.block))
            .max(1);
        let host = setting.host_tokens / u64::from(trace.block.max(1));
        let own = setting.own.map_or(0, |own| own.room / per_block);
        let shared = setting.shared.map_or(0, |shared| shared.room / per_block);
        let requests = trace.requests.len();
        let (mut waiting, mut next) = (vec![NONE; requests], vec![NONE; requests]);
        let mut events = BinaryHeap::new();
        for (number, request) in trace.requests.iter().enumerate() {
            match waiting.get_mut(request.after as usize) {
                Some(first) => next[number] = std::mem::replace(first, number as u32),
                None => events.push(Reverse((request.at, Event::Comes(number as u32)))),
            }
        }
        Self {
            trace,
            setting: *setting,
            servers: (0..servers)
                .map(|_| FleetServer::new(setting.slots, host, own))
                .collect(),
            router: Router::new(setting.route, servers),
            shared: BlockStore::new(shared),
            looks: setting.shared.map_or_else(Vec::new, |shared| {
                let all = 0..servers;
                all.map(|server| Looks::new(server, shared.looks)).collect()
            }),
            ready: (0..servers).map(|server| (0, server)).collect(),
            events,
            waiting,
            next,
            evaluated: vec![0; servers as usize],
            outcome: Outcome::default(),
            end: 0,
            counted: warm_up(setting.warm_up, requests),
            path: Vec::new(),
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((now, event))) = self.events.pop() {
            match event {
                Event::Stored(end) => {
                    let mut path = std::mem::take(&mut self.path);
                    self.trace.tree.path(end, &mut path);
                    let come = self.shared.insert(&self.trace.tree, &path, now);
                    let bytes = self.bytes(come);
                    self.outcome.sent_bytes = self.outcome.sent_bytes.saturating_add(bytes);
                    self.path = path;
                }
                Event::Written(end, server) => {
                    let sent = self.looks[server as usize].next(now);
                    self.events.push(Reverse((sent, Event::Stored(end))));
                }
                Event::Comes(number) => {
                    let answered = self.serve(number, now);
                    let mut other = self.waiting[number as usize];
                    while let Some(request) = self.trace.requests.get(other as usize) {
                        let time = answered.saturating_add(u64::from(request.pause) * 1000);
                        self.events.push(Reverse((time, Event::Comes(other))));
                        other = self.next[other as usize];
                    }
                }
            }
        }
    }

    /// A request comes. Returns when it is answered.
    fn serve(&mut self, number: u32, now: u64) -> u64 {
        let trace = self.trace;
        let request = &trace.requests[number as usize];
        let mut path = std::mem::take(&mut self.path);
        trace.tree.path(request.end, &mut path);
        let chosen = self.choose(request, &path, now);
        let before = (self.servers[chosen as usize].ready(), chosen);
        let served = self.serve_at(chosen, number, &path, now);
        self.ready.remove(&before);
        self.ready
            .insert((self.servers[chosen as usize].ready(), chosen));
        self.router.served(chosen, &path);
        self.path = path;
        self.end = self.end.max(served);
        served
    }

    fn choose(&mut self, request: &Request, path: &[Node], now: u64) -> u32 {
        let idle = self.ready.first().map_or(0, |(_, server)| *server);
        let (servers, trace) = (&self.servers, self.trace);
        let setting = &self.setting;
        let has = |server: u32| servers[server as usize].has(&trace.tree, path);
        let evaluating = |tokens: u64| micros(tokens, setting.prompt_rate);
        // What is not quicker to load is evaluated.
        let loading = |tokens: u64| match setting.own {
            Some(own) => micros(tokens.saturating_mul(setting.token_bytes), own.speed)
                .min(evaluating(tokens)),
            None => evaluating(tokens),
        };
        // How long the first token takes there. What is evaluated counts twice, since others wait for it.
        let cost = |server: u32| {
            let server = &servers[server as usize];
            let wait = server.ready().saturating_sub(now) as f64;
            let there = trace.tokens(request, server.remembers(&trace.tree, path));
            let stored = trace.tokens(request, server.store.find(&trace.tree, path));
            let rest = u64::from(request.input) - there.max(stored);
            wait + loading(stored.saturating_sub(there)) + 2.0 * evaluating(rest)
        };
        let enough = trace.tree.depth(request.end) / 2;
        self.router
            .choose(request.session, path, (idle, enough), has, cost)
    }

    /// A server serves a request. Returns when it is answered.
    fn serve_at(&mut self, chosen: u32, number: u32, path: &[Node], now: u64) -> u64 {
        let trace = self.trace;
        let request = &trace.requests[number as usize];
        let setting = self.setting;
        let counts = number as usize >= self.counted;
        let server = &mut self.servers[chosen as usize];
        let slot = server.take_slot(&trace.tree, path, now, setting.similarity);
        if let Some(lost) = slot.lost.filter(|_| setting.own.is_some()) {
            trace.tree.path(lost, &mut server.scratch);
            server.store.insert(&trace.tree, &server.scratch, now);
        }
        let mut has = slot.reused;
        let mut load_time = 0.0;
        let tokens = |from: u32, to: u32| trace.tokens(request, to) - trace.tokens(request, from);
        // As the store itself: what is not quicker is evaluated.
        let time = |from: u32, to: u32, speed: f64| {
            let tokens = tokens(from, to);
            let time = micros(tokens.saturating_mul(setting.token_bytes), speed);
            Some(time).filter(|time| *time < micros(tokens, setting.prompt_rate))
        };
        if let Some(own) = setting.own {
            let there = server.store.find(&trace.tree, path);
            if let Some(time) = time(has, there.max(has), own.speed).filter(|_| there > has) {
                server.store.touch(path, now);
                (has, load_time) = (there, time);
            }
        }
        if let Some(shared) = setting.shared {
            let seen = self.looks[chosen as usize].last(now);
            let there = self.shared.find_of(&trace.tree, path, seen);
            if let Some(time) = time(has, there.max(has), shared.link).filter(|_| there > has) {
                self.shared.touch(path, now);
                if counts {
                    let bytes = tokens(has, there).saturating_mul(setting.token_bytes);
                    let all = self.outcome.fetched_bytes;
                    self.outcome.fetched_bytes = all.saturating_add(bytes);
                }
                (has, load_time) = (there, load_time + time);
            }
        }
        let evaluated = u64::from(request.input) - trace.tokens(request, has);
        let took = load_time + micros(evaluated, setting.prompt_rate);
        let begin = now.max(slot.free).max(server.evaluates_until);
        let first = begin.saturating_add(took as u64);
        let answer = micros(u64::from(request.output), setting.answer_rate);
        let answered = first.saturating_add(answer as u64);
        let mut is_written = false;
        if let Some(Shared { worth, .. }) = setting.shared {
            if let Some(lost) = slot.lost.filter(|_| !slot.was_written) {
                self.write(lost, chosen, begin);
            }
            let is_worth = evaluated as f64 >= worth * f64::from(request.input);
            is_written = request.output > 1 && is_worth;
            if is_written {
                self.write(request.end, chosen, first);
            }
        }
        let server = &mut self.servers[chosen as usize];
        if is_written && setting.own.is_some() {
            server.store.insert(&trace.tree, path, now);
        }
        server.evaluates_until = first;
        server.fill_slot(&trace.tree, slot.nth, request.end, answered, is_written);
        self.evaluated[chosen as usize] += evaluated;
        if counts {
            let all = trace.tree.depth(request.end);
            self.outcome.requests += 1;
            self.outcome.reuse.request(u64::from(request.input), all);
            let reused = u64::from(request.input) - evaluated;
            self.outcome.reuse.reuse(reused, has);
            self.outcome.loaded_tokens += tokens(slot.reused, has);
            let first = first.saturating_sub(now) as f64 / 1e6;
            self.outcome.first_tokens.push(first as f32);
        }
        answered
    }

    fn write(&mut self, end: Node, server: u32, time: u64) {
        self.events
            .push(Reverse((time, Event::Written(end, server))));
    }

    fn bytes(&self, blocks: u64) -> u64 {
        let tokens = blocks.saturating_mul(u64::from(self.trace.block));
        tokens.saturating_mul(self.setting.token_bytes)
    }

    fn end(mut self) -> Outcome {
        self.outcome.first_tokens.sort_by(f32::total_cmp);
        let all: u64 = self.evaluated.iter().sum();
        let most = self.evaluated.iter().max().copied().unwrap_or(0);
        self.outcome.imbalance = match all {
            0 => 1.0,
            all => most as f64 * self.evaluated.len() as f64 / all as f64,
        };
        self.outcome.seconds = self.end as f64 / 1e6;
        self.outcome
    }
}

/// How long so much takes, microseconds. What has no speed takes for ever, which is as long as time can be told.
fn micros(amount: u64, rate: f64) -> f64 {
    match amount {
        0 => 0.0,
        amount if rate > 0.0 => (amount as f64 * 1e6 / rate).min(1e15),
        _ => 1e15,
    }
}
