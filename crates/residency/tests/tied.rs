//! A ledger that is told of launches, and one that has to tell requests by their prompts, side by
//! side at the same server.

use contextpilot_residency::{Arrival, Effect, Entry, Event, Ledger, Prompts, SequenceId, Token};
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

/// A request, at work or in the queue. Its number is its arrival, its task and its id.
#[derive(Clone)]
struct Request {
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
    direct: Ledger,
    tied: Ledger,
    prompts: Prompts,
    slots: [Slot; SLOTS],
    queue: VecDeque<Request>,
    asked: u64,
    /// What followed, sorted: of the one, of the other.
    said: [Vec<String>; 2],
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
            said: Default::default(),
        }
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        let mut events = Vec::new();
        self.direct.apply(event.clone(), &mut effects);
        self.said[0].extend(effects.drain(..).map(|effect| said(&effect)));
        if !matches!(event, Event::Launched { .. }) {
            self.prompts.pass(event, &self.tied, &mut events);
        }
        for event in events {
            self.tied.apply(event, &mut effects);
        }
        self.said[1].extend(effects.iter().map(said));
    }

    /// Something happens. Prompts are evaluated in up to `pieces` pieces.
    fn step(&mut self, choices: &mut Random, pieces: u32) {
        let at = choices.below(SLOTS as u32) as usize;
        match choices.below(8) {
            0 | 1 => self.ask(choices),
            2 | 3 if self.slots[at].request.is_none() => self.start(at),
            4 if self.slots[at].request.is_none() => {
                self.slots[at].held.clear();
                self.remove(at, -1);
            }
            _ => self.work(at, choices, pieces),
        }
        if choices.once_in(16) {
            let elapsed = Duration::from_millis([10, 100, 1000][choices.below(3) as usize]);
            self.apply(Event::Quiet { elapsed });
        }
    }

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
            id: n.to_string().into(),
        });
        self.prompts.expect(Arrival(n), n as i32, prompt.clone());
        let done = 0;
        self.queue.push_back(Request { n, prompt, done });
    }

    /// A slot takes on the next request and makes room for it.
    fn start(&mut self, at: usize) {
        let Some(mut request) = self.queue.pop_front() else {
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

    /// The request in a slot goes on: its prompt, its answer, its end.
    fn work(&mut self, at: usize, choices: &mut Random, pieces: u32) {
        let Some(request) = &mut self.slots[at].request else {
            return;
        };
        let rest = &request.prompt[request.done..];
        let tokens = match rest.len() {
            0 if choices.once_in(3) => {
                let n = request.n;
                self.slots[at].request = None;
                self.apply(Event::Answered {
                    arrival: Arrival(n),
                    id: n.to_string().into(),
                });
                self.prompts.forget(Arrival(n), &mut Vec::new());
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
        });
    }

    fn ids(ledger: &Ledger) -> BTreeSet<&str> {
        ledger.ids().map(|id| &**id).collect()
    }
}

fn said(effect: &Effect) -> String {
    match effect {
        Effect::Evicted { id, .. } => format!("{id} evicted"),
        other => format!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Where prompts are evaluated in the order of the queue, there is no difference.
    #[test]
    fn a_prompt_is_as_good_as_a_launch(seed in any::<u64>()) {
        let (mut server, mut choices) = (Server::new(), Random(seed));
        for step in 0..200 {
            let at = choices.below(SLOTS as u32) as usize;
            if server.slots[at].request.is_none() && choices.once_in(2) {
                server.start(at);
                server.work(at, &mut choices, 1);
            } else if server.slots.iter().all(|slot| {
                slot.request.as_ref().is_none_or(|r| r.done == r.prompt.len())
            }) {
                let asks = choices.once_in(3);
                match asks {
                    true => server.ask(&mut choices),
                    false => server.work(at, &mut choices, 1),
                }
            }
            server.said.iter_mut().for_each(|said| said.sort_unstable());
            prop_assert_eq!(&server.said[0], &server.said[1], "step {}", step);
            server.said.iter_mut().for_each(Vec::clear);
            prop_assert_eq!(Server::ids(&server.direct), Server::ids(&server.tied));
        }
    }

    /// Where equal prompts overtake each other, less is claimed, and never more.
    #[test]
    fn what_is_claimed_is_so(seed in any::<u64>()) {
        let (mut server, mut choices) = (Server::new(), Random(seed));
        let mut most = 0;
        for step in 0..200 {
            server.step(&mut choices, 3);
            let (tied, direct) = (Server::ids(&server.tied), Server::ids(&server.direct));
            prop_assert!(tied.is_subset(&direct), "step {}: {:?}, {:?}", step, tied, direct);
            most = most.max(tied.len());
        }
        prop_assert!(most > 2, "nothing is claimed at all");
    }
}
