//! Two ledgers follow the same server. One gets the launches of tasks. The other has to tie requests to
//! slots by their prompts. Both must report the same.

use contextpilot_residency::{Arrival, Entry, Event, Fact, Ledger, Prompts, SequenceId, Token};
use naive::{Choices, Random};
use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

#[allow(
    dead_code,
    unused_imports,
    reason = "each test program uses a part of it"
)]
mod naive;

const SLOTS: usize = 3;
const ENGINE: contextpilot_residency::ContextId = contextpilot_residency::ContextId(1);

/// A request, in a slot or in the queue.
#[derive(Clone)]
struct Request {
    /// Its arrival, its task and its id are this number.
    n: u64,
    prompt: Vec<Token>,
    /// Tokens of the prompt that were submitted.
    done: usize,
}

#[derive(Default)]
struct Slot {
    held: Vec<Token>,
    request: Option<Request>,
}

struct Server {
    /// The ledger that gets the launches.
    direct: Ledger,
    /// The ledger that gets what `prompts` makes of the other events.
    tied: Ledger,
    prompts: Prompts,
    slots: [Slot; SLOTS],
    queue: VecDeque<Request>,
    /// The number of the last request.
    asked: u64,
    /// All prompts, by the numbers of their requests, and whether they were evaluated to the end.
    prompts_of: Vec<(Vec<Token>, bool)>,
    /// Ids that were evicted in the last step, sorted: by `direct`, and by `tied`.
    evicted: [Vec<String>; 2],
    /// Ids that were ever cached, for the same two ledgers.
    cached: [BTreeSet<String>; 2],
}

/// What the server and its clients may do.
#[derive(Clone, Copy)]
struct Habits {
    /// A prompt is evaluated in up to so many pieces.
    pieces: u32,
    /// The queue is not first in, first out.
    overtake: bool,
    /// Clients go away, and prompts are refused.
    leave: bool,
}

impl Server {
    fn new() -> Self {
        Self {
            direct: Ledger::new(),
            tied: Ledger::new(),
            prompts: Prompts::new(),
            slots: Default::default(),
            queue: VecDeque::new(),
            asked: 0,
            prompts_of: vec![(Vec::new(), false)],
            evicted: Default::default(),
            cached: Default::default(),
        }
    }

    /// Applies an event of the server to both ledgers.
    fn apply(&mut self, event: Event) {
        let mut facts = Vec::new();
        let mut events = Vec::new();
        self.direct.apply(event.clone(), &mut facts);
        self.note(0, &mut facts);
        if !matches!(event, Event::Launched { .. }) {
            self.prompts.pass(event, &self.tied, &mut events);
        }
        self.apply_tied(events);
    }

    fn apply_tied(&mut self, events: Vec<Event>) {
        let mut facts = Vec::new();
        for event in events {
            self.tied.apply(event, &mut facts);
        }
        self.note(1, &mut facts);
    }

    fn note(&mut self, which: usize, facts: &mut Vec<Fact>) {
        for fact in facts.drain(..) {
            match fact {
                Fact::Evicted { id, .. } => self.evicted[which].push(id.to_string()),
                Fact::Cached { id, .. } => {
                    self.cached[which].insert(id.to_string());
                }
                _ => {}
            }
        }
        self.evicted[which].sort_unstable();
    }

    /// One random step.
    fn step(&mut self, choices: &mut Random, habits: Habits) {
        self.evicted = Default::default();
        let at = choices.below(SLOTS as u32) as usize;
        match choices.below(8) {
            0 | 1 => self.ask(choices),
            2 | 3 if self.slots[at].request.is_none() => {
                // The server removes tokens for a prompt while it fills the prompt's first batch.
                self.start(at, choices, habits.overtake);
                self.work(at, choices, habits.pieces);
            }
            4 if self.slots[at].request.is_none() => {
                self.slots[at].held.clear();
                self.remove(at, -1);
            }
            5 if habits.leave && choices.once_in(3) => self.leave(choices),
            _ => self.work(at, choices, habits.pieces),
        }
        if choices.once_in(16) {
            // In the middle of a prompt, the engine is never silent for a second.
            let lengths = if self.is_at_a_prompt() { 2 } else { 3 };
            let elapsed = Duration::from_millis([10, 100, 1000][choices.below(lengths) as usize]);
            self.apply(Event::Quiet { elapsed });
        }
    }

    fn is_at_a_prompt(&self) -> bool {
        let mut requests = self.slots.iter().filter_map(|slot| slot.request.as_ref());
        requests.any(|request| request.done < request.prompt.len())
    }

    /// A client goes away. Its request is in the queue or in a slot.
    fn leave(&mut self, choices: &mut Random) {
        let queued = self.queue.len() as u32;
        let nth = choices.below(queued + SLOTS as u32);
        let request = match nth.checked_sub(queued) {
            None => self.queue.remove(nth as usize),
            Some(slot) => self.slots[slot as usize].request.take(),
        };
        if let Some(request) = request {
            self.end(request.n, false);
        }
    }

    fn end(&mut self, n: u64, served: bool) {
        let mut events = Vec::new();
        self.prompts
            .over(Arrival(n), served, &self.tied, &mut events);
        self.apply_tied(events);
        self.apply(Event::Answered {
            arrival: Arrival(n),
            id: Some(n.to_string().into()),
        });
    }

    /// Whether a slot holds a request's prompt. The last token does not count: it is always evaluated
    /// again.
    fn holds(&self, id: &str) -> bool {
        let n: usize = id.parse().expect("ids are numbers");
        let (prompt, _) = &self.prompts_of[n];
        let needed = &prompt[..(prompt.len() - 1).max(1)];
        self.slots.iter().any(|slot| slot.held.starts_with(needed))
    }

    fn was_evaluated(&self, id: &str) -> bool {
        let n: usize = id.parse().expect("ids are numbers");
        self.prompts_of[n].1
    }

    /// A request is posted. Its prompt often begins with what a slot holds or another request asks.
    fn ask(&mut self, choices: &mut Random) {
        let known = match choices.below(4) {
            0 => self.slots[choices.below(SLOTS as u32) as usize]
                .held
                .clone(),
            1 => self.queue.back().map_or(Vec::new(), |r| r.prompt.clone()),
            _ => Vec::new(),
        };
        let mut prompt = known;
        for _ in 0..choices.below(4) + u32::from(prompt.is_empty()) {
            prompt.push(choices.below(3) as Token);
        }
        self.asked += 1;
        let n = self.asked;
        self.apply(Event::Posted {
            arrival: Arrival(n),
            task: n as i32,
            id: Some(n.to_string().into()),
        });
        self.prompts
            .expect(Arrival(n), n as i32, prompt.clone().into());
        self.prompts_of.push((prompt.clone(), false));
        let done = 0;
        self.queue.push_back(Request { n, prompt, done });
    }

    /// A slot takes a request from the queue, and removes what does not belong to its prompt.
    fn start(&mut self, at: usize, choices: &mut Random, overtake: bool) {
        let nth = if overtake && !self.queue.is_empty() {
            choices.below(self.queue.len() as u32) as usize
        } else {
            0
        };
        let Some(mut request) = self.queue.remove(nth) else {
            return;
        };
        self.apply(Event::Launched {
            sequence: at as SequenceId,
            task: request.n as i32,
        });
        let held = &mut self.slots[at].held;
        let pairs = held.iter().zip(&request.prompt);
        let common = pairs.take_while(|(a, b)| a == b).count();
        request.done = common.min(request.prompt.len() - 1);
        held.truncate(request.done);
        let from = request.done;
        self.slots[at].request = Some(request);
        self.remove(at, from as i32);
    }

    fn remove(&mut self, at: usize, from: i32) {
        self.apply(Event::Removed {
            context: ENGINE,
            sequence: at as SequenceId,
            from,
            to: -1,
        });
    }

    /// The request in a slot goes on: more of its prompt, a token of its answer, or its end.
    fn work(&mut self, at: usize, choices: &mut Random, pieces: u32) {
        let Some(request) = &mut self.slots[at].request else {
            return;
        };
        let rest = &request.prompt[request.done..];
        let tokens = match rest.len() {
            0 if choices.once_in(3) => {
                let n = request.n;
                self.slots[at].request = None;
                self.end(n, true);
                return;
            }
            0 => vec![choices.below(3) as Token],
            left if pieces > 1 && !choices.once_in(pieces) => {
                rest[..1 + choices.below(left as u32) as usize].to_vec()
            }
            _ => rest.to_vec(),
        };
        request.done = (request.done + tokens.len()).min(request.prompt.len());
        let ends = request.done == request.prompt.len();
        self.prompts_of[request.n as usize].1 |= ends;
        let held = &mut self.slots[at].held;
        let (from, count) = (held.len(), tokens.len());
        held.extend_from_slice(&tokens);
        let entries = tokens.iter().enumerate().map(|(nth, &token)| Entry {
            sequence: at as SequenceId,
            position: (from + nth) as i32,
            token,
            output: ends && nth + 1 == count,
        });
        self.apply(Event::Submitted {
            context: ENGINE,
            entries: entries.collect(),
        });
        self.apply(Event::Evaluated {
            context: ENGINE,
            failed: Vec::new(),
            no_room: false,
        });
    }

    fn ids(ledger: &Ledger) -> BTreeSet<&str> {
        ledger.ids().map(|id| &**id).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// In whatever order prompts are evaluated, equal ones or not, whole or in pieces: as long as no
    /// client leaves, both ledgers evict the same ids at the same moments.
    #[test]
    fn if_no_client_leaves_both_ledgers_evict_the_same(seed in any::<u64>(), overtake in any::<bool>()) {
        let (mut server, mut choices) = (Server::new(), Random(seed));
        let habits = Habits { pieces: 3, overtake, leave: false };
        for step in 0..300 {
            server.step(&mut choices, habits);
            prop_assert_eq!(&server.evicted[0], &server.evicted[1], "step {}", step);
            prop_assert_eq!(Server::ids(&server.direct), Server::ids(&server.tied));
        }
        let answered = |id: &&String| {
            let at_work = server.slots.iter().filter_map(|slot| slot.request.as_ref());
            let mut unanswered = at_work.chain(&server.queue);
            !unanswered.any(|request| request.n.to_string() == **id)
        };
        let [direct, tied] = &server.cached;
        prop_assert!(direct.iter().filter(answered).eq(tied.iter().filter(answered)));
        prop_assert!(direct.len() > 10, "nothing is claimed at all");
    }

    /// Where a client leaves while others wait with an equal prompt, its request may have been
    /// evaluated or not. It counts as cached if its prompt is. So what only the tied ledger claims must
    /// be in a slot, and what only the tied ledger has evicted must not be cached.
    #[test]
    fn if_clients_leave_their_requests_count_as_cached_while_the_prompts_are(seed in any::<u64>()) {
        let (mut server, mut choices) = (Server::new(), Random(seed));
        let habits = Habits { pieces: 3, overtake: true, leave: true };
        for step in 0..300 {
            server.step(&mut choices, habits);
            if server.is_at_a_prompt() {
                continue;
            }
            // Decides what was undecided.
            server.apply(Event::Quiet { elapsed: Duration::from_secs(1) });
            let (tied, direct) = (Server::ids(&server.tied), Server::ids(&server.direct));
            for id in tied.difference(&direct) {
                prop_assert!(server.holds(id), "step {step}: {id} is claimed");
            }
            for id in direct.difference(&tied) {
                let is_cached = server.was_evaluated(id) && server.holds(id);
                prop_assert!(!is_cached, "step {step}: {id} is evicted");
            }
        }
    }
}
