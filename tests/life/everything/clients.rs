//! Clients and their conversations.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use contextpilot_testbed::{Completion, Connection, Random, Request};
use serde_json::Value;

/// The letters of the tiny models.
const LETTERS: std::ops::Range<u64> = 300..350;
/// So that no answer, also not one that a client has left, is three times as long as its prompt: the server looks only
/// for entries of the host cache of which it would keep a quarter.
const SHORTEST: u64 = 40;
const LONGEST: usize = 1500;
/// Tokens of an answer that is not waited for.
const LONG_ANSWER: u32 = 100;

/// A conversation: prompts that are all beginnings of the longest. Others begin otherwise.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) tokens: Vec<u32>,
    pub(crate) asked: Vec<Asked>,
}

/// A request that has at least begun to be answered, so the server has evaluated its prompt.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) id: String,
    /// Length of its prompt, tokens.
    pub(crate) tokens: usize,
    /// How many of them the server reused.
    pub(crate) reused: usize,
}

/// One life of the server.
pub(crate) struct Life {
    server: SocketAddr,
    over: AtomicBool,
    next: AtomicUsize,
    left: AtomicUsize,
}

impl Life {
    /// `next`: the number of the first request.
    pub(crate) fn new(server: SocketAddr, next: usize) -> Self {
        Self {
            server,
            over: AtomicBool::new(false),
            next: AtomicUsize::new(next),
            left: AtomicUsize::new(0),
        }
    }

    /// Clients end after the answer that they wait for.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn next(&self) -> usize {
        self.next.load(Ordering::Relaxed)
    }

    /// How many clients left in the middle of an answer.
    pub(crate) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Sends requests until the life is over, or the server is gone.
    pub(crate) fn client(&self, mut random: Random) -> Vec<Chain> {
        let mut chains = vec![Chain::default()];
        while !self.over.load(Ordering::Relaxed) {
            let tokens = choose(&mut chains, &mut random);
            let Some(chain) = chains.last_mut() else {
                break;
            };
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let id = format!("req-{number}");
            let request = Request::completion(&chain.tokens[..tokens]).id(id.as_str());
            let answered = match random.below(6) {
                0 => self.leave(request.predict(LONG_ANSWER)),
                _ => self.ask(request.predict(1 + random.below(6) as u32)),
            };
            match answered {
                Some(reused) => chain.asked.push(Asked { id, tokens, reused }),
                None => break,
            }
        }
        chains
    }

    /// How many tokens were reused. `None`: the server is gone.
    fn ask(&self, request: Request) -> Option<usize> {
        let mut connection = Connection::open(self.server).ok()?;
        let body = request.wire_body();
        let answer = connection.exchange("POST", request.path(), body.as_bytes());
        let answer = answer.ok()?;
        Some(Completion::first(&answer).unwrap().cache_n)
    }

    /// Leaves when the first token is there, and with it the figures.
    fn leave(&self, request: Request) -> Option<usize> {
        let request = request.streamed().with("timings_per_token", true);
        let mut connection = Connection::open(self.server).ok()?;
        let body =
            Connection::request_bytes("POST", request.path(), request.wire_body().as_bytes());
        connection.write(&body).ok()?;
        let head = connection.head().ok()?;
        let part = connection.part(&head).ok()??;
        self.left.fetch_add(1, Ordering::Relaxed);
        let part = String::from_utf8(part).unwrap();
        let event = part.strip_prefix("data: ").unwrap().lines().next().unwrap();
        let event: Value = serde_json::from_str(event).unwrap();
        Some(event["timings"]["cache_n"].as_u64().unwrap() as usize)
    }
}

/// Puts the conversation that goes on last, and says how long its next prompt is.
fn choose(chains: &mut Vec<Chain>, random: &mut Random) -> usize {
    let one = random.index(chains.len());
    let last = chains.len() - 1;
    chains.swap(one, last);
    let chain = &mut chains[last];
    let grows = |chain: &mut Chain, by: u64, random: &mut Random| {
        chain
            .tokens
            .extend((0..by).map(|_| random.within(LETTERS) as u32));
        chain.tokens.len()
    };
    match random.below(10) {
        // Asks again.
        0..=1 if !chain.tokens.is_empty() => chain.tokens.len(),
        // Goes back.
        2 if !chain.tokens.is_empty() => {
            random.within(SHORTEST..chain.tokens.len() as u64 + 1) as usize
        }
        3..=6 if (1..LONGEST).contains(&chain.tokens.len()) => {
            let by = random.within(8..120);
            grows(chain, by, random)
        }
        _ => {
            let by = random.within(SHORTEST..400);
            if chain.tokens.is_empty() {
                return grows(chain, by, random);
            }
            let mut fresh = Chain::default();
            let tokens = grows(&mut fresh, by, random);
            chains.push(fresh);
            tokens
        }
    }
}
