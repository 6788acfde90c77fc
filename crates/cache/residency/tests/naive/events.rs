//! Random events: mostly such as a real engine causes, often impossible ones.

use super::Naive;
use contextpilot_residency::{
    Adapter, Arrival, BufferId, Compared, ContextId, Entry, EvaluationId, Event, Position,
    RequestId, Scale, SequenceId, TaskId, Token,
};
use std::time::Duration;

/// Where decisions come from: a seed, or the bytes of a fuzzer.
pub(crate) trait Choices {
    /// A number below `n`.
    fn below(&mut self, n: u32) -> u32;

    /// Whether all decisions are used up.
    fn is_over(&self) -> bool;

    /// True once in `n`.
    fn once_in(&mut self, n: u32) -> bool {
        self.below(n) == n - 1
    }
}

/// Endless decisions from a seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Choices for Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((((z ^ (z >> 31)) >> 32) * u64::from(n)) >> 32) as u32
    }

    fn is_over(&self) -> bool {
        false
    }
}

/// Decisions from bytes: one byte for each.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Choices for Bytes<'_> {
    fn below(&mut self, n: u32) -> u32 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                u32::from(first) % n
            }
            None => 0,
        }
    }

    fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// Makes up events.
pub(crate) struct Generator {
    /// Tokens come in blocks of equal ones. The longest block.
    block: u32,
    /// A batch was submitted and not evaluated yet.
    submitted: bool,
    posted: Vec<(Arrival, TaskId, RequestId)>,
    /// For which requests the server compares adapters; `None`: it has no adapters.
    adapters: Option<Compared>,
    /// The number of the last evaluation of an unknown request.
    evaluations: u64,
}

const SLOTS: u32 = 4;
const BUFFERS: u32 = 5;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

impl Generator {
    pub(crate) fn new(block: u32) -> Self {
        Self {
            block,
            submitted: false,
            posted: Vec::new(),
            adapters: None,
            evaluations: 0,
        }
    }

    /// A generator with adapters or without: the first of the bytes decides.
    pub(crate) fn from_bytes(bytes: &[u8], block: u32) -> Self {
        match bytes.first().map(|first| first % 4) {
            Some(1) => Self::with_adapters(block, Compared::WhenNamed),
            Some(2) => Self::with_adapters(block, Compared::Always),
            _ => Self::new(block),
        }
    }

    /// A generator for a server with adapters.
    pub(crate) fn with_adapters(block: u32, compared: Compared) -> Self {
        Self {
            adapters: Some(compared),
            ..Self::new(block)
        }
    }

    /// The next event, given what slots hold now.
    pub(crate) fn next(&mut self, choices: &mut impl Choices, now: &Naive) -> Event {
        let context = match choices.below(64) {
            63 => ContextId(3),
            61 | 62 => ContextId(2),
            _ => ContextId(1),
        };
        if self.submitted && choices.once_in(24) {
            let sequence = slot(choices);
            let from = position(choices, now, sequence);
            let entries = choices.below(4);
            return Event::Loaded {
                context,
                sequence,
                from,
                to: from.saturating_add(entries as i32),
                entries,
            };
        }
        if self.submitted && !choices.once_in(6) {
            self.submitted = false;
            return Event::Evaluated {
                context,
                failed: failed(choices, now),
                no_room: false,
            };
        }
        let sequence = slot(choices);
        match self.adapters {
            Some(compared) if choices.once_in(8) => {
                return self.adapters_event(choices, context, compared);
            }
            _ => {}
        }
        match choices.below(64) {
            0..=19 => {
                self.submitted = true;
                let slots = [1, 1, 1, 2, 2, 3, 0][choices.below(7) as usize];
                let mut entries = Vec::new();
                for _ in 0..slots {
                    self.entries(choices, now, &mut entries);
                }
                let entries = entries.into();
                Event::Submitted { context, entries }
            }
            20 => Event::Uncached {
                task: match choices.below(4) {
                    0 => self.some_posted(choices).map_or(77, |(_, task, _)| task),
                    // Most probably the task that is posted next.
                    _ => 100 + self.posted.len() as TaskId,
                },
            },
            21..=25 => self.posted(choices),
            26..=30 if choices.once_in(4) => self.unclaimed(choices, sequence),
            26..=30 => Event::Launched {
                sequence,
                task: self.some_posted(choices).map_or(77, |(_, task, _)| task),
            },
            31..=33 => {
                let unknown = || (Arrival(999), 0, NAMES[0].into());
                let (arrival, _, id) = self.some_posted(choices).unwrap_or_else(unknown);
                let id = Some(id).filter(|_| !choices.once_in(8));
                Event::Answered { arrival, id }
            }
            34..=42 => {
                let from = position(choices, now, sequence);
                let to = match choices.below(4) {
                    0 => position(choices, now, sequence),
                    _ => -1,
                };
                Event::Removed {
                    context,
                    sequence,
                    from,
                    to,
                }
            }
            43..=45 => Event::Shifted {
                context,
                sequence,
                from: position(choices, now, sequence),
                to: match choices.below(2) {
                    0 => position(choices, now, sequence),
                    _ => -1,
                },
                delta: match choices.below(16) {
                    0 => Position::MAX,
                    1 => Position::MIN,
                    n => (n as Position - 10).min(2) * self.length(choices) as Position,
                },
            },
            46..=48 => Event::Copied {
                context,
                source: sequence,
                target: slot(choices),
                from: match choices.below(4) {
                    0 => position(choices, now, sequence),
                    _ => -1,
                },
                to: match choices.below(2) {
                    0 => position(choices, now, sequence),
                    _ => -1,
                },
            },
            49..=51 => Event::Saved {
                context,
                sequence,
                buffer: buffer(choices),
            },
            52..=54 => Event::Restored {
                context,
                sequence,
                buffer: buffer(choices),
            },
            55 | 56 => Event::Freed {
                buffer: buffer(choices),
            },
            57 => Event::Replaced {
                context,
                sequence,
                tokens: self.tokens(choices, now, sequence, 0),
            },
            58..=60 => Event::Quiet {
                elapsed: Duration::from_millis(
                    [9, 10, 99, 100, 999, 1000][choices.below(6) as usize],
                ),
            },
            _ => match choices.below(16) {
                0 if choices.once_in(4) => Event::Reset,
                0 => Event::OutOfStep,
                1 => Event::ContextFreed { context },
                2..=4 => Event::ContextCreated { context },
                5 | 6 => Event::Obscured { context, sequence },
                7 => Event::Kept { context, sequence },
                8 => Event::Cleared { context },
                9 => Event::Evaluated {
                    context,
                    failed: failed(choices, now),
                    no_room: false,
                },
                // A whole slot: what servers remove most often.
                n => Event::Removed {
                    context,
                    sequence,
                    from: if n < 13 { -1 } else { 0 },
                    to: -1,
                },
            },
        }
    }

    /// An event about adapters. Few adapters and few scales, so that equal sets come back.
    fn adapters_event(
        &self,
        choices: &mut impl Choices,
        context: ContextId,
        compared: Compared,
    ) -> Event {
        let scale = |choices: &mut _| match Choices::below(choices, 8) {
            0..=3 => 0.0,
            4..=6 => 1.0,
            _ => -0.5,
        };
        if choices.once_in(8) {
            let task = self.some_posted(choices).map_or(77, |(_, task, _)| task);
            return Event::Untied { task };
        }
        if choices.once_in(3) {
            let count = choices.below(3);
            let scales = (0..count)
                .map(|_| {
                    let index = choices.below(6) as i32 - 1;
                    (index, Scale::new(scale(choices)))
                })
                .collect();
            let task = match choices.below(4) {
                0 => self.some_posted(choices).map_or(77, |(_, task, _)| task),
                _ => 100 + self.posted.len() as TaskId,
            };
            return Event::NamedAdapters { task, scales };
        }
        let invocations: [&[Token]; 4] = [&[], &[], &[2], &[1, 3]];
        let adapters = (1..).zip(invocations).map(|(address, invocation)| Adapter {
            address,
            scale: Scale::new(scale(choices)),
            invocation: invocation.into(),
        });
        Event::Adapters {
            context,
            adapters: adapters.collect(),
            compared,
        }
    }

    fn posted(&mut self, choices: &mut impl Choices) -> Event {
        let count = self.posted.len() as u32;
        if choices.once_in(12) {
            return Event::Posted {
                arrival: Arrival(u64::from(1000 + choices.below(4))),
                task: 77,
                id: None,
            };
        }
        let (arrival, task, id) = match (choices.below(16), self.some_posted(choices)) {
            // Another task of the same request.
            (0..=3, Some((arrival, _, id))) => (arrival, 100 + count as TaskId, id),
            // Arrival, task or both with a number that was used before.
            (4, Some((arrival, task, id))) => (arrival, task, id),
            (5, Some((arrival, _, _))) => (arrival, 100 + count as TaskId, NAMES[0].into()),
            (6, Some((_, task, _))) => (Arrival(u64::from(count)), task, NAMES[1].into()),
            _ => (
                Arrival(u64::from(count)),
                100 + count as TaskId,
                NAMES[choices.below(NAMES.len() as u32) as usize].into(),
            ),
        };
        self.posted.push((arrival, task, id.clone()));
        Event::Posted {
            arrival,
            task,
            id: Some(id),
        }
    }

    /// An event about an evaluation whose request is not known.
    fn unclaimed(&mut self, choices: &mut impl Choices, sequence: SequenceId) -> Event {
        let back = u64::from(choices.below(3));
        let evaluation = EvaluationId(self.evaluations.saturating_sub(back));
        let task = self.some_posted(choices).map_or(77, |(_, task, _)| task);
        match choices.below(8) {
            0..=2 => {
                self.evaluations += 1;
                Event::LaunchedUnclaimed {
                    sequence,
                    evaluation: EvaluationId(self.evaluations),
                    likely: task,
                }
            }
            3..=6 => Event::Claimed { evaluation, task },
            _ => Event::ClaimsClosed { evaluation },
        }
    }

    /// One of the last requests.
    fn some_posted(&self, choices: &mut impl Choices) -> Option<(Arrival, TaskId, RequestId)> {
        let count = self.posted.len();
        let back = choices.below(4) as usize + 1;
        self.posted.get(count.checked_sub(back)?).cloned()
    }

    /// A run of entries for one slot.
    fn entries(&self, choices: &mut impl Choices, now: &Naive, entries: &mut Vec<Entry>) {
        let sequence = choices.below(SLOTS) as SequenceId;
        let held = now.held(sequence) as Position;
        let start = match choices.below(24) {
            0 => position(choices, now, sequence),
            1 => held + 3,
            2 => held - 1,
            _ => held,
        };
        let tokens = self.tokens(choices, now, sequence, start);
        let outputs = choices.below(8);
        // Rows of one image, at one position.
        let step = i32::from(!choices.once_in(8));
        let count = tokens.len();
        entries.extend(tokens.into_iter().enumerate().map(|(i, token)| Entry {
            sequence,
            position: start.saturating_add(i as Position * step),
            token: if step == 0 { -1 - (token & 1) } else { token },
            output: match outputs {
                0 | 1 => false,
                2 => true,
                _ => i + 1 == count,
            },
        }));
    }

    fn length(&self, choices: &mut impl Choices) -> u32 {
        match self.block {
            1 => 1,
            block => 1 + choices.below(255) * block / 255,
        }
    }

    /// Tokens to write into `sequence` from `start` on. They begin with what the slot has left there,
    /// what another slot holds there, or nothing; then come new ones.
    fn tokens(
        &self,
        choices: &mut impl Choices,
        now: &Naive,
        sequence: SequenceId,
        start: Position,
    ) -> Vec<Token> {
        let start = usize::try_from(start).unwrap_or(0);
        let known = match choices.below(4) {
            0 => now.left(sequence),
            1 => Some(now.content(choices.below(SLOTS) as SequenceId)),
            _ => None,
        };
        let mut tokens = known.and_then(|k| k.get(start..)).unwrap_or(&[]).to_vec();
        match choices.below(4) {
            0 => {}
            1 => {
                tokens.pop();
            }
            _ => {
                let most = self.length(choices) as usize * choices.below(8) as usize;
                tokens.truncate(most);
            }
        }
        let blocks = if tokens.is_empty() { 1 } else { 0 } + choices.below(4);
        let long = now.held(sequence) > 24 * self.block;
        for _ in 0..if long { 1 } else { blocks } {
            let token = match choices.below(12) {
                0..=5 => 1,
                6..=8 => 2,
                9 => 3,
                10 => -1,
                _ => -2,
            };
            let length = self.length(choices) as usize;
            tokens.extend(std::iter::repeat_n(token, length));
        }
        tokens.truncate(40 * self.block as usize);
        tokens
    }
}

fn slot(choices: &mut impl Choices) -> SequenceId {
    match choices.below(64) {
        63 => SequenceId::MIN,
        62 => SequenceId::MAX,
        61 | 60 => -1,
        n => (n % SLOTS) as SequenceId,
    }
}

fn buffer(choices: &mut impl Choices) -> BufferId {
    BufferId(choices.below(BUFFERS) as usize)
}

fn position(choices: &mut impl Choices, now: &Naive, sequence: SequenceId) -> Position {
    let held = now.held(sequence);
    match choices.below(32) {
        0 => Position::MIN,
        1 => Position::MAX,
        2 => -1,
        3 => held as Position + 1,
        4 | 5 => held as Position,
        n if n < 12 => held as Position - 1,
        _ => (choices.below(256) * held / 256) as Position,
    }
}

/// The sequences of a failed evaluation, and where they end. Mostly empty: no failure.
fn failed(choices: &mut impl Choices, now: &Naive) -> Vec<(SequenceId, Position)> {
    if !choices.once_in(8) {
        return Vec::new();
    }
    (0..SLOTS as SequenceId)
        .filter(|_| choices.below(2) == 0)
        .collect::<Vec<_>>()
        .into_iter()
        .map(|sequence| (sequence, position(choices, now, sequence)))
        .collect()
}
