//! Which prompts count as cached in a bounded context, compared with the definition: some slot or host entry begins
//! like the prompt, and the server would reuse nine tenths of it from there.

use super::*;
use crate::ids::CacheEntry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const CONTEXT: ContextId = ContextId(1);

/// A ledger, and the prompts of the ids that it may call cached.
struct Scene {
    ledger: Ledger,
    choices: Random,
    facts: Vec<Fact>,
    prompts: BTreeMap<RequestId, Vec<Token>>,
    tasks: i32,
    buffers: usize,
    /// Host entries and the checkpoints of slots.
    alive: Vec<BufferId>,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let mut scene = Self {
            ledger: Ledger::new(),
            choices: Random(seed),
            facts: Vec::new(),
            prompts: BTreeMap::new(),
            tasks: 0,
            buffers: 0,
            alive: Vec::new(),
        };
        let window = scene.below(3) * 20;
        scene.apply(Event::ContextCreated { context: CONTEXT });
        scene.apply(Event::Bounded {
            context: CONTEXT,
            window,
        });
        scene
    }

    fn below(&mut self, limit: u32) -> u32 {
        self.choices.below(limit)
    }

    fn apply(&mut self, event: Event) {
        self.ledger.apply(event, &mut self.facts);
    }

    fn buffer(&mut self) -> BufferId {
        self.buffers += 1;
        let buffer = BufferId(self.buffers);
        self.alive.push(buffer);
        buffer
    }

    /// The beginning of one of two documents, with one of three ends.
    fn text(&mut self) -> Vec<Token> {
        let document = self.below(2) as Token * 1000;
        let length = 30 + self.below(4) as Token * 10 - self.below(6) as Token;
        let end = 500 + self.below(3) as Token * 10;
        let more = self.below(9) as Token;
        (document..document + length)
            .chain(end..end + more)
            .collect()
    }

    fn reaches(&mut self, sequence: SequenceId) {
        let held = self.ledger.held(sequence);
        let first = self.below(held + 1) as Position;
        self.apply(Event::Reaches {
            context: CONTEXT,
            sequence,
            first,
        });
    }

    /// A batch. With its last output, if that is asked for.
    fn evaluate(&mut self, sequence: SequenceId, tokens: &[Token], output: bool, moves: bool) {
        let held = self.ledger.held(sequence) as Position;
        let last = held + tokens.len() as Position - 1;
        let entries: Vec<Entry> = (held..)
            .zip(tokens)
            .map(|(position, &token)| Entry {
                sequence,
                position,
                token,
                output: output && position == last,
            })
            .collect();
        self.apply(Event::Submitted {
            context: CONTEXT,
            entries: entries.into(),
        });
        if moves {
            self.reaches(sequence);
        }
        self.apply(Event::Evaluated {
            context: CONTEXT,
            failed: Vec::new(),
            no_room: false,
        });
    }

    fn remove(&mut self, sequence: SequenceId, from: Position) {
        self.apply(Event::Removed {
            context: CONTEXT,
            sequence,
            from,
            to: -1,
        });
    }

    /// A slot evaluates a prompt, perhaps from some tokens before the difference on, and perhaps generates.
    fn prompt(&mut self, sequence: SequenceId) {
        self.tasks += 1;
        let task = self.tasks;
        let arrival = Arrival(task as u64);
        let id = RequestId::from(task.to_string().as_str());
        let prompt = self.text();
        self.prompts.insert(id.clone(), prompt.clone());
        self.apply(Event::Posted {
            arrival,
            task,
            id: Some(id.clone()),
        });
        self.apply(Event::Launched { sequence, task });
        let back = self.below(2) * self.below(12);
        let common = common(&self.ledger.tokens_in(sequence), &prompt) as usize;
        let kept = common.min(prompt.len() - 1).saturating_sub(back as usize);
        self.remove(sequence, kept as Position);
        let middle = kept.max(prompt.len() - 4);
        if kept < middle {
            self.evaluate(sequence, &prompt[kept..middle], false, true);
            let buffer = self.buffer();
            let last = middle as Position - 1;
            let first = last - self.below(3) as Position;
            self.apply(Event::Checkpointed {
                context: CONTEXT,
                sequence,
                buffer,
                first,
                last,
            });
        }
        self.evaluate(sequence, &prompt[middle..], true, true);
        for _ in 0..self.below(3) {
            self.evaluate(sequence, &[700], true, false);
        }
        self.apply(Event::Answered {
            arrival,
            id: Some(id),
        });
    }

    fn step(&mut self) {
        let sequence = self.below(3) as SequenceId;
        let nth = self.below(self.alive.len().max(1) as u32) as usize;
        let known = self.alive.get(nth).copied();
        match (self.below(10), known) {
            (0 | 1, _) => {
                let buffer = self.buffer();
                self.apply(Event::Saved {
                    context: CONTEXT,
                    sequence,
                    buffer,
                });
            }
            (2, Some(buffer)) => {
                self.alive.swap_remove(nth);
                self.apply(Event::Freed { buffer });
            }
            (3, Some(buffer)) if self.ledger.knows(buffer) => {
                self.apply(Event::Restored {
                    context: CONTEXT,
                    sequence,
                    buffer,
                });
                self.reaches(sequence);
            }
            (4, _) => self.remove(sequence, -1),
            _ => self.prompt(sequence),
        }
        let elapsed = Duration::from_secs(1);
        self.apply(Event::Quiet { elapsed });
    }

    /// Whether a prompt is cached, by the definition.
    fn is_cached(&self, prompt: &[Token]) -> bool {
        let ledger = &self.ledger;
        let bounds = ledger.bounds().expect("it is bounded");
        let slots = ledger.sequences.keys().map(|&id| CacheEntry::Slot(id));
        let hosts = ledger.buffers.keys().map(|&id| CacheEntry::Host(id));
        slots.chain(hosts).any(|entry| {
            let common = common(&ledger.tokens_from(entry, 0), prompt);
            let length = prompt.len() as u32;
            let needed = bounds.needed(common + u32::from(common < length));
            let reach = ledger.reaches.reach_of(entry);
            let reused = reach.map_or(common, |reach| reach.reuse_of(common, needed));
            reused * 10 >= length * 9
        })
    }

    /// Whether no slot or host entry holds all of a live request's prompt.
    fn is_held_in_part(&self, id: &str) -> bool {
        let name = self.ledger.requests.find(id).expect("it is live");
        let request = self.ledger.requests.get(name).expect("it is live");
        request.remainder(0).is_some_and(|rest| rest.end.is_none())
    }
}

fn common(held: &[Token], prompt: &[Token]) -> u32 {
    held.iter().zip(prompt).take_while(|(a, b)| a == b).count() as u32
}

#[test]
fn in_a_bounded_context_prompts_are_cached_as_the_definition_says() {
    let mut held_in_part = 0;
    for seed in 0..2_000 {
        let mut scene = Scene::new(seed);
        for step in 0..12 {
            scene.step();
            scene.ledger.tree.check();
            let facts = std::mem::take(&mut scene.facts);
            let gone: BTreeSet<RequestId> = facts
                .into_iter()
                .filter_map(|fact| match fact {
                    Fact::Evicted { id, .. } => Some(id),
                    _ => None,
                })
                .collect();
            for (id, prompt) in &scene.prompts {
                let cached = scene.is_cached(prompt);
                assert_eq!(!gone.contains(id), cached, "seed {seed}, step {step}: {id}");
                held_in_part += usize::from(cached && scene.is_held_in_part(id));
            }
            scene.prompts.retain(|id, _| !gone.contains(id));
        }
    }
    assert!(held_in_part > 1_000, "{held_in_part}");
}
