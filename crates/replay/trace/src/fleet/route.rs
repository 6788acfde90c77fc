//! Routers.

use std::fmt;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::trace::mixed;
use crate::tree::Node;

/// Who chooses the server of a request, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// One after the other.
    RoundRobin,
    /// A session stays with a server, which its hash names.
    Session,
    /// The server that has most of the prompt; of several, the one whose first token comes first. If none has more than half of
    /// it, the one that is ready first.
    Prefix,
    /// Of those that have more than half of the prompt, and the one that is ready first, the server with the least cost: what its
    /// first token waits for, and what is evaluated for it once more, since others wait for that.
    LoadPrefix,
}

impl Route {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::RoundRobin,
        Self::Session,
        Self::Prefix,
        Self::LoadPrefix,
    ];

    /// With [`Self::Session`], the server of a session.
    #[must_use]
    pub fn of_session(session: u32, servers: u32) -> u32 {
        (mixed(u64::from(session)) % u64::from(servers.max(1))) as u32
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RoundRobin => "round-robin",
            Self::Session => "session",
            Self::Prefix => "prefix",
            Self::LoadPrefix => "load+prefix",
        })
    }
}

/// More servers with a node are not remembered.
const MOST_HOLDERS: usize = 64;
/// So many of them are asked what they have.
const ASKED: usize = 8;

#[derive(Debug)]
pub(super) struct Router {
    route: Route,
    servers: u32,
    turn: u32,
    /// The servers that had a node, the latest last.
    holders: HashMap<Node, Vec<u32>, FixedState>,
}

impl Router {
    pub(super) fn new(route: Route, servers: u32) -> Self {
        Self {
            route,
            servers,
            turn: 0,
            holders: HashMap::with_hasher(FixedState::with_seed(0)),
        }
    }

    /// `idle`: the server that is ready first. `enough`: blocks. `has`: how many blocks of the path a server has. `cost`: what
    /// serving the request takes there.
    pub(super) fn choose(
        &mut self,
        session: u32,
        path: &[Node],
        (idle, enough): (u32, u32),
        has: impl Fn(u32) -> u32,
        cost: impl Fn(u32) -> f64,
    ) -> u32 {
        match self.route {
            Route::RoundRobin => {
                self.turn = (self.turn + 1) % self.servers;
                self.turn
            }
            Route::Session => Route::of_session(session, self.servers),
            Route::Prefix => {
                let rank = |server: &u32| (has(*server), -cost(*server));
                let candidates = self.candidates(path, &has).into_iter();
                let best = candidates.filter(|server| has(*server) > enough);
                let better = |one: &u32, other: &u32| {
                    let (one, other) = (rank(one), rank(other));
                    one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
                };
                best.max_by(better).unwrap_or(idle)
            }
            Route::LoadPrefix => {
                let candidates = self.candidates(path, &has).into_iter();
                let some = candidates.filter(|server| has(*server) > enough);
                let best = some.chain([idle]);
                let cheaper = |one: &u32, other: &u32| cost(*one).total_cmp(&cost(*other));
                best.min_by(cheaper).unwrap_or(idle)
            }
        }
    }

    /// Servers that have some of a path, those with most first.
    fn candidates(&mut self, path: &[Node], has: impl Fn(u32) -> u32) -> Vec<u32> {
        let mut found: Vec<u32> = Vec::new();
        for node in path.iter().rev() {
            let Some(holders) = self.holders.get_mut(node) else {
                continue;
            };
            for nth in (0..holders.len()).rev() {
                let server = holders[nth];
                if found.len() >= ASKED {
                    return found;
                }
                if found.contains(&server) {
                    continue;
                }
                match has(server) {
                    // It has lost it.
                    0 => {
                        holders.remove(nth);
                    }
                    _ => found.push(server),
                }
            }
        }
        found
    }

    /// A server has served a prompt with this path.
    pub(super) fn served(&mut self, server: u32, path: &[Node]) {
        if matches!(self.route, Route::RoundRobin | Route::Session) {
            return;
        }
        for node in path {
            let holders = self.holders.entry(*node).or_default();
            match holders.iter().position(|holder| *holder == server) {
                Some(nth) => holders[nth..].rotate_left(1),
                None if holders.len() < MOST_HOLDERS => holders.push(server),
                None => {
                    holders.rotate_left(1);
                    if let Some(last) = holders.last_mut() {
                        *last = server;
                    }
                }
            }
        }
    }
}
