//! llama-server as it appears in events: slots, requests, batches.
//!
//! Prompts are text, one token a byte. Facts are collected as sentences, such as
//! `a cached in slot 0` and `a evicted: overwritten, slot 0`.

use contextpilot_residency::{
    Arrival, BufferId, ContextId, Entry, Event, Fact, Ledger, Place, Position, SequenceId, TaskId,
    Token,
};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const ENGINE: ContextId = ContextId(0x1000);

pub(crate) struct SceneServer {
    pub(crate) ledger: Ledger,
    /// What the server believes its slots to hold.
    slots: BTreeMap<SequenceId, Vec<Token>>,
    posted: i32,
    said: Vec<String>,
}

/// A request that was posted.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    id: &'static str,
    arrival: Arrival,
    pub(crate) task: TaskId,
}

/// The tokens of a text: its bytes.
pub(crate) fn text(text: &str) -> Vec<Token> {
    text.bytes().map(Token::from).collect()
}

/// Batch entries for a slot. `ends`: the last one asks for an output, as at the end of a prompt.
pub(crate) fn entries(
    slot: SequenceId,
    from: Position,
    tokens: &[Token],
    ends: bool,
) -> Vec<Entry> {
    let count = tokens.len();
    (0..count)
        .map(|nth| Entry {
            sequence: slot,
            position: from + nth as Position,
            token: tokens[nth],
            output: ends && nth + 1 == count,
        })
        .collect()
}

impl SceneServer {
    pub(crate) fn start() -> Self {
        let mut server = Self {
            ledger: Ledger::new(),
            slots: BTreeMap::new(),
            posted: 0,
            said: Vec::new(),
        };
        server.apply(Event::ContextCreated { context: ENGINE });
        server
    }

    pub(crate) fn apply(&mut self, event: Event) {
        let mut facts = Vec::new();
        self.ledger.apply(event, &mut facts);
        self.said.extend(facts.into_iter().map(|fact| match fact {
            Fact::Awaited { id } => format!("{id} awaited"),
            Fact::Cached { id, sequence, .. } => format!("{id} cached in slot {sequence}"),
            Fact::Evicted {
                id, reason, place, ..
            } => {
                let place = match place {
                    Place::Slot(slot) => format!("slot {slot}"),
                    Place::Host => "host".into(),
                    Place::Nowhere => "nowhere".into(),
                };
                format!("{id} evicted: {reason:?}, {place}")
            }
            other => panic!("nobody observes: {other:?}"),
        }));
    }

    /// The facts since the last call, as sentences.
    pub(crate) fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    /// The evictions since the last call, sorted. The other facts since then are dropped.
    pub(crate) fn lost(&mut self) -> Vec<String> {
        let mut said = self.said();
        said.retain(|sentence| sentence.contains("evicted"));
        said.sort_unstable();
        said
    }

    // ---- requests ------------------------------------------------------

    pub(crate) fn post(&mut self, id: &'static str) -> Request {
        self.posted += 1;
        let request = Request {
            id,
            arrival: Arrival(self.posted as u64),
            task: self.posted,
        };
        self.post_again(&request, request.task);
        request
    }

    /// Posts a further task of a request: one for several answers or with several prompts has several.
    pub(crate) fn post_again(&mut self, request: &Request, task: TaskId) {
        self.posted = self.posted.max(task);
        self.apply(Event::Posted {
            arrival: request.arrival,
            task,
            id: Some(request.id.into()),
        });
    }

    /// Posts a request with two tasks. Returns the request and its second task.
    pub(crate) fn post_two(&mut self, id: &'static str) -> (Request, TaskId) {
        let request = self.post(id);
        let second = request.task + 1;
        self.post_again(&request, second);
        (request, second)
    }

    pub(crate) fn launch(&mut self, slot: SequenceId, task: TaskId) {
        self.apply(Event::Launched {
            sequence: slot,
            task,
        });
    }

    pub(crate) fn answer(&mut self, request: Request) {
        self.apply(Event::Answered {
            arrival: request.arrival,
            id: Some(request.id.into()),
        });
    }

    /// A whole request: a slot evaluates its prompt, and it is answered. Nothing is generated.
    pub(crate) fn prompt(&mut self, slot: SequenceId, id: &'static str, prompt: &str) {
        let request = self.post(id);
        self.launch(slot, request.task);
        let prompt = text(prompt);
        let rest = self.reuse(slot, &prompt);
        self.submit(slot, &prompt[rest..], true);
        self.done();
        self.answer(request);
    }

    /// Keeps the beginning that a slot has in common with a prompt, without the prompt's last token, and
    /// removes the rest. Returns how many tokens are kept.
    pub(crate) fn reuse(&mut self, slot: SequenceId, prompt: &[Token]) -> usize {
        let held = self.slots.entry(slot).or_default();
        let common = held.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let keep = common.min(prompt.len() - 1);
        self.remove(slot, keep as Position, -1);
        keep
    }

    // ---- the engine ----------------------------------------------------

    pub(crate) fn submit(&mut self, slot: SequenceId, tokens: &[Token], ends: bool) {
        let held = self.slots.entry(slot).or_default();
        let batch = entries(slot, held.len() as Position, tokens, ends);
        held.extend_from_slice(tokens);
        self.submit_entries(batch);
    }

    pub(crate) fn submit_entries(&mut self, entries: Vec<Entry>) {
        self.apply(Event::Submitted {
            context: ENGINE,
            entries: entries.into(),
        });
    }

    /// The submitted batch was evaluated.
    pub(crate) fn done(&mut self) {
        self.failed(&[]);
    }

    /// The submitted batch failed. Each slot of it, with the last position that it still holds.
    pub(crate) fn failed(&mut self, failed: &[(SequenceId, Position)]) {
        for &(slot, last) in failed {
            let held = self.slots.entry(slot).or_default();
            held.truncate((last + 1) as usize);
        }
        self.apply(Event::Evaluated {
            context: ENGINE,
            failed: failed.to_vec(),
            no_room: false,
        });
    }

    /// Generated tokens, each evaluated on its own.
    pub(crate) fn generate(&mut self, slot: SequenceId, answer: &str) {
        for token in text(answer) {
            self.submit(slot, &[token], true);
            self.done();
        }
    }

    pub(crate) fn remove(&mut self, slot: SequenceId, from: Position, to: Position) {
        let held = self.slots.entry(slot).or_default();
        if to < 0 {
            held.truncate(from.max(0) as usize);
        }
        self.apply(Event::Removed {
            context: ENGINE,
            sequence: slot,
            from,
            to,
        });
    }

    pub(crate) fn shift(
        &mut self,
        slot: SequenceId,
        from: Position,
        to: Position,
        delta: Position,
    ) {
        self.apply(Event::Shifted {
            context: ENGINE,
            sequence: slot,
            from,
            to,
            delta,
        });
    }

    pub(crate) fn copy(&mut self, source: SequenceId, target: SequenceId) {
        let held = self.slots.get(&source).cloned().unwrap_or_default();
        self.slots.insert(target, held);
        self.apply(Event::Copied {
            context: ENGINE,
            source,
            target,
            from: -1,
            to: -1,
        });
    }

    pub(crate) fn save(&mut self, slot: SequenceId, buffer: usize) {
        self.apply(Event::Saved {
            context: ENGINE,
            sequence: slot,
            buffer: BufferId(buffer),
        });
    }

    pub(crate) fn restore(&mut self, slot: SequenceId, buffer: usize, held: &str) {
        self.slots.insert(slot, text(held));
        self.apply(Event::Restored {
            context: ENGINE,
            sequence: slot,
            buffer: BufferId(buffer),
        });
    }

    pub(crate) fn free(&mut self, buffer: usize) {
        self.apply(Event::Freed {
            buffer: BufferId(buffer),
        });
    }

    /// Saves a slot to host memory and empties it, as the server does with idle slots by default.
    pub(crate) fn put_by(&mut self, slot: SequenceId, buffer: usize) {
        self.save(slot, buffer);
        self.remove(slot, -1, -1);
    }

    pub(crate) fn quiet(&mut self, milliseconds: u64) {
        self.apply(Event::Quiet {
            elapsed: Duration::from_millis(milliseconds),
        });
    }
}
