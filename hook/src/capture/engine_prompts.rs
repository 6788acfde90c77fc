//! Prompts in a program that is no llama-server: there are no requests, so the batches say where one begins and
//! ends.
//!
//! A prompt begins with a part of a batch that is more than the next token of its sequence. It ends with the first
//! output, but for the output at the end of a full batch: llama-cpp-python asks for that in every batch of a
//! long prompt, and reads none but the last.

use std::sync::Mutex;

use contextpilot_observer::Note;
use contextpilot_residency::{Arrival, Entries, Entry, Event};

use crate::base::abi::Pointer;
use crate::base::bounds::SEQUENCES;
use crate::base::clock;
use crate::base::status::STATUS;
use crate::capture::contexts;
use crate::channel::{note, push};

/// A sequence of the context that is observed.
#[derive(Debug, PartialEq)]
pub(crate) struct Sequence {
    id: i32,
    /// Its next position.
    next: i32,
    /// Its prompt has not ended yet.
    open: bool,
    /// Its last prompt.
    prompt: Option<Arrival>,
}

/// What is known of the sequences of the oldest context.
#[derive(Default)]
struct Watched {
    context: usize,
    sequences: Vec<Sequence>,
    /// How many prompts there were.
    prompts: u64,
}

static WATCHED: Mutex<Option<Watched>> = Mutex::new(None);

/// The context is about to evaluate these entries. If somebody observes, announces the prompts that begin, and returns the entries as
/// they are to be understood.
pub(crate) fn submitted(context: Pointer, entries: Entries) -> Entries {
    if !clock::is_engaged() || !contexts::is_oldest(context) {
        return entries;
    }
    // A context is used by one thread at a time, so nobody else has the lock.
    let Ok(mut watched) = WATCHED.try_lock() else {
        return entries;
    };
    let watched = watched.get_or_insert_default();
    if watched.context != context.addr() {
        watched.context = context.addr();
        watched.sequences.clear();
    }
    let is_full = contexts::batch_of(context).is_some_and(|most| entries.len() >= most as usize);
    let mut entries: Vec<Entry> = entries.to_vec();
    for run in entries.chunk_by_mut(|a, b| a.sequence == b.sequence) {
        if watched.add(run, is_full) {
            watched.begin(run[0].sequence);
        }
    }
    entries.into()
}

impl Watched {
    /// Announces a prompt of a sequence, as if it were a request. That of the prompt before it is over.
    fn begin(&mut self, id: i32) {
        let at = self.at(id);
        if let Some(arrival) = self.sequences[at].prompt {
            note(|| Note::Answered { arrival });
        }
        self.prompts += 1;
        let arrival = Arrival(self.prompts);
        self.sequences[at].prompt = Some(arrival);
        STATUS.without_id.add(1);
        // Task numbers may be used again after so many.
        let task = (self.prompts & 0x3fff_ffff) as i32;
        note(|| Note::Received { arrival });
        note(|| Note::Posted { arrival, task });
        push(Event::Launched { sequence: id, task });
    }

    /// Notes a part of a batch. Returns whether a prompt begins with it.
    fn add(&mut self, run: &mut [Entry], is_full: bool) -> bool {
        let [first, .., last] = &mut *run else {
            return run.first().is_some_and(|one| self.add_one(*one));
        };
        let (id, from, to) = (first.sequence, first.position, last.position);
        let ends = last.output;
        let at = self.at(id);
        let goes_on = self.sequences[at].next == from;
        let is_draft = goes_on && run.iter().all(|entry| entry.output);
        let sequence = &mut self.sequences[at];
        let begins = !(goes_on && (sequence.open || is_draft));
        sequence.next = to.saturating_add(1);
        sequence.open = !ends || is_full && !is_draft;
        if ends && sequence.open {
            // It is not the end of the prompt.
            if let Some(last) = run.last_mut() {
                last.output = false;
            }
        }
        begins
    }

    fn add_one(&mut self, one: Entry) -> bool {
        let at = self.at(one.sequence);
        let sequence = &mut self.sequences[at];
        let begins = sequence.next != one.position;
        sequence.next = one.position.saturating_add(1);
        if begins || one.output {
            sequence.open = !one.output;
        }
        begins
    }

    /// The index of a sequence, which is added if it is new.
    fn at(&mut self, id: i32) -> usize {
        let known = self.sequences.iter().position(|one| one.id == id);
        known.unwrap_or_else(|| {
            if self.sequences.len() >= SEQUENCES {
                self.sequences.clear();
            }
            self.sequences.push(Sequence {
                id,
                next: -1,
                open: false,
                prompt: None,
            });
            self.sequences.len() - 1
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates positions, with an output for the last. Returns whether a prompt begins, and whether the end is
    /// understood as an output.
    fn evaluated(watched: &mut Watched, positions: std::ops::Range<i32>, full: bool) -> [bool; 2] {
        let mut entries: Vec<Entry> = positions
            .clone()
            .map(|position| Entry {
                sequence: 0,
                position,
                token: 1,
                output: position + 1 == positions.end,
            })
            .collect();
        let begins = watched.add(&mut entries, full);
        [begins, entries.last().unwrap().output]
    }

    #[test]
    fn a_prompt_of_several_batches_is_one() {
        let mut watched = Watched::default();
        assert_eq!(evaluated(&mut watched, 0..512, true), [true, false]);
        assert_eq!(evaluated(&mut watched, 512..1024, true), [false, false]);
        assert_eq!(evaluated(&mut watched, 1024..1100, false), [false, true]);
        // Generated tokens.
        assert_eq!(evaluated(&mut watched, 1100..1101, false), [false, true]);
        assert_eq!(evaluated(&mut watched, 1101..1102, false), [false, true]);
        // The next turn of a conversation, and a prompt of which all but the last token is there.
        assert_eq!(evaluated(&mut watched, 1102..1150, false), [true, true]);
        assert_eq!(evaluated(&mut watched, 900..901, false), [true, true]);
        assert_eq!(evaluated(&mut watched, 0..40, false), [true, true]);
    }

    #[test]
    fn a_prompt_that_fills_its_last_batch_ends_with_the_token_after_it() {
        let mut watched = Watched::default();
        assert_eq!(evaluated(&mut watched, 0..512, true), [true, false]);
        assert_eq!(evaluated(&mut watched, 512..513, false), [false, true]);
        assert_eq!(evaluated(&mut watched, 513..520, false), [true, true]);
    }

    #[test]
    fn guesses_of_a_draft_are_no_prompt() {
        let mut watched = Watched::default();
        assert_eq!(evaluated(&mut watched, 0..40, false), [true, true]);
        let guess = |position| Entry {
            sequence: 0,
            position,
            token: 1,
            output: true,
        };
        let mut guesses: Vec<Entry> = (40..44).map(guess).collect();
        assert!(!watched.add(&mut guesses, false));
    }
}
