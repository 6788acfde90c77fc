//! Remembers answers, so that prompts that have them as text get their tokens.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::library::Library;
use contextpilot_kept_tokens::{AnswerId, Answers};
use contextpilot_residency::program::token_in;
use contextpilot_residency::{ContextId, Entry, Event, Ledger, Position, SequenceId, Token};

/// Follows the sequences of the primary context.
pub(crate) struct Learner {
    library: &'static dyn Library,
    answers: &'static Mutex<Answers>,
    /// This is a program, whose tokens say of which context they are.
    is_program: bool,
    sequences: HashMap<SequenceId, Following>,
    /// Batches so far.
    batches: u64,
}

/// What was evaluated last of a sequence.
#[derive(Clone, Copy)]
struct Following {
    /// The position behind it.
    next: Position,
    /// The last batch with tokens of it, and where these begin.
    batch: (u64, Position),
    /// Its output was asked for, so what comes next was generated.
    output: bool,
    /// The answer that it belongs to, and where that began.
    answer: Option<(AnswerId, Position)>,
    /// Up to here the answer is kept elsewhere.
    kept: Position,
}

impl Learner {
    pub(crate) fn new(
        library: &'static dyn Library,
        answers: &'static Mutex<Answers>,
        is_program: bool,
    ) -> Self {
        Self {
            library,
            answers,
            is_program,
            sequences: HashMap::new(),
            batches: 0,
        }
    }

    /// An event that is about to be applied to the ledger.
    pub(crate) fn note(&mut self, event: &Event, ledger: &Ledger) {
        let is_ours = |context: &ContextId| ledger.primary() == Some(*context);
        match event {
            Event::Submitted { context, entries } if is_ours(context) => {
                self.batches += 1;
                for entry in entries.iter() {
                    self.submitted(entry, ledger);
                }
            }
            Event::Removed {
                context,
                sequence,
                from,
                to,
            } if is_ours(context) => match (*sequence, *to) {
                (0.., ..0) => self.cut(*sequence, *from),
                (sequence, _) => {
                    let is_meant = |other| sequence < 0 || other == sequence;
                    self.keep(is_meant);
                    self.sequences.retain(|&other, _| !is_meant(other));
                }
            },
            Event::Copied {
                context,
                source,
                target,
                ..
            } if is_ours(context) => {
                let copy = self.sequences.get(source).copied();
                self.keep(|other| other == *target);
                self.sequences.remove(target);
                let copy = copy.map(|copy| Following {
                    answer: None,
                    ..copy
                });
                self.sequences.extend(copy.map(|copy| (*target, copy)));
            }
            Event::Restored { sequence, .. }
            | Event::Replaced { sequence, .. }
            | Event::Shifted { sequence, .. }
            | Event::Obscured { sequence, .. } => {
                self.keep(|other| other == *sequence);
                self.sequences.remove(sequence);
            }
            Event::Cleared { .. } | Event::Kept { .. } | Event::ContextFreed { .. } => {
                self.keep(|_| true);
                self.sequences.clear();
            }
            Event::Quiet { .. } => self.keep(|_| true),
            _ => {}
        }
    }

    /// The answers of these sequences are kept elsewhere, too.
    fn keep(&mut self, is_meant: impl Fn(SequenceId) -> bool) {
        for (sequence, following) in &mut self.sequences {
            let answer = following
                .answer
                .filter(|_| following.next > following.kept && is_meant(*sequence));
            if let Some((answer, _)) = answer {
                following.kept = following.next;
                self.library.keep_answer(answer);
            }
        }
    }

    fn submitted(&mut self, entry: &Entry, ledger: &Ledger) {
        let (sequence, position) = (entry.sequence, entry.position);
        let before = self.sequences.get(&sequence);
        if before.is_some_and(|before| before.next != position || !before.output) {
            self.keep(|other| other == sequence);
        }
        let before = self.sequences.get(&sequence);
        let batch = match before {
            Some(before) if before.batch.0 == self.batches => before.batch,
            _ => (self.batches, position),
        };
        let before = before.filter(|before| before.next == position && before.output);
        let mut answer = before.and_then(|before| before.answer);
        if before.is_some() {
            if answer.is_none() {
                answer = self.begin(sequence, position, ledger);
            }
            let token = self.plain(entry.token);
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answer = answer.filter(|(answer, _)| answers.push(*answer, token));
        }
        let following = Following {
            next: position + 1,
            batch,
            output: entry.output,
            answer,
            kept: before.map_or(0, |before| before.kept),
        };
        self.sequences.insert(sequence, following);
    }

    /// An answer begins at this position.
    fn begin(
        &self,
        sequence: SequenceId,
        position: Position,
        ledger: &Ledger,
    ) -> Option<(AnswerId, Position)> {
        let mut tokens = ledger.tokens_of(sequence)?;
        // Media are not text.
        if usize::try_from(position) != Ok(tokens.len()) || tokens.iter().any(|token| *token < 0) {
            return None;
        }
        for token in &mut tokens {
            *token = self.plain(*token);
        }
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        Some((answers.begin(&tokens), position))
    }

    /// A sequence was cut: a draft was wrong, which is within the last batch, or the next prompt begins.
    fn cut(&mut self, sequence: SequenceId, from: Position) {
        let Some(following) = self.sequences.get_mut(&sequence) else {
            return;
        };
        if from >= following.next {
            return;
        }
        match following.answer {
            Some((answer, begun)) if from > following.batch.1 => {
                let left = usize::try_from(from - begun).unwrap_or(0);
                let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
                answers.truncate(answer, left);
                following.next = from;
                following.output = true;
            }
            // The answer stays remembered.
            _ => {
                self.keep(|other| other == sequence);
                self.sequences.remove(&sequence);
            }
        }
    }

    fn plain(&self, token: Token) -> Token {
        if self.is_program {
            token_in(token).1
        } else {
            token
        }
    }
}
