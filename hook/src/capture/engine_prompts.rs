//! Prompts in a program that is no llama-server: there are no requests, so the batches say where one begins and
//! ends.
//!
//! A prompt begins with a part of a batch that is more than the next token of its sequence. It ends with the first
//! output, but for the output at the end of a full batch: llama-cpp-python asks for that in every batch of a
//! long prompt, and reads none but the last.
//!
//! Its answer is over when tokens of the prompt are removed, when the next prompt of the sequence begins, or when the
//! context is freed.
//!
//! The program may give the next prompt of a sequence an id (`contextpilot_request`). Then the index is told when
//! that prompt is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use contextpilot_observer::Note;
use contextpilot_residency::{
    Arrival, ContextId, Entries, Entry, Event, RequestId, TaskId, program,
};

use crate::base::abi::Pointer;
use crate::base::bounds::{CONTEXTS, SEQUENCES};
use crate::base::status::STATUS;
use crate::capture::{contexts, recent};
use crate::channel::{introduce, note, push, push_observed};

/// A sequence of a context.
#[derive(Debug, PartialEq)]
pub(crate) struct Sequence {
    id: i32,
    /// Its next position.
    next: i32,
    /// One past the position of the last token of its prompt.
    end: i32,
    /// Its prompt has not ended yet.
    open: bool,
    /// Its last prompt.
    prompt: Option<Announced>,
    /// The id of its next prompt.
    next_id: Option<(Announced, TaskId)>,
}

/// A prompt that the worker knows.
#[derive(Debug, PartialEq)]
struct Announced {
    arrival: Arrival,
    id: Option<RequestId>,
}

/// What is known of the sequences of a context.
struct Watched {
    context: usize,
    /// What it is called in events.
    id: ContextId,
    sequences: Vec<Sequence>,
}

/// By the context's [place](contexts::place_of). Locked by the thread that uses the context, which is one at a time.
static WATCHED: [Mutex<Watched>; CONTEXTS] = [const { Mutex::new(Watched::NONE) }; CONTEXTS];

/// How many sequences are known, of all contexts.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// How many prompts there were.
static PROMPTS: AtomicU64 = AtomicU64::new(0);

/// There is an observer or an index.
static ENGAGED: AtomicBool = AtomicBool::new(false);

/// Called when the library attaches: prompts are announced from now on.
pub(crate) fn engage() {
    ENGAGED.store(true, Ordering::Relaxed);
}

/// `None`: prompts are not wanted, or the context is not known.
fn watched(context: Pointer) -> Option<MutexGuard<'static, Watched>> {
    if !ENGAGED.load(Ordering::Relaxed) {
        return None;
    }
    let watched = WATCHED.get(contexts::place_of(context)?)?;
    let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
    watched.turn_to(context);
    Some(watched)
}

/// The context is about to evaluate these entries. If prompts are wanted, announces those that begin, and returns
/// the entries as they are to be understood.
pub(crate) fn submitted(context: Pointer, entries: Entries) -> Entries {
    let Some(mut watched) = watched(context) else {
        return entries;
    };
    let is_full = contexts::batch_of(context).is_some_and(|most| entries.len() >= most as usize);
    let mut entries: Vec<Entry> = entries.to_vec();
    for run in entries.chunk_by_mut(|a, b| a.sequence == b.sequence) {
        if watched.add(run, is_full) {
            watched.begin(run[0].sequence);
        }
    }
    entries.into()
}

/// Gives the next prompt of a sequence an id. False if this context is not followed.
pub(crate) fn name_next(context: Pointer, sequence: i32, id: RequestId) -> bool {
    let Some(mut watched) = watched(context) else {
        return false;
    };
    let (arrival, task) = next();
    let at = watched.at(sequence);
    // The prompt of an id that is replaced never comes.
    if let Some((earlier, _)) = watched.sequences[at].next_id.take() {
        earlier.end();
    }
    STATUS.with_id.add(1);
    note(|| Note::Received { arrival });
    let kept = recent::store_id(arrival, &id);
    let posted = Event::Posted {
        arrival,
        task,
        id: Some(RequestId::clone(&id)),
    };
    if introduce(posted, arrival, &id, kept) {
        let id = Some(id);
        watched.sequences[at].next_id = Some((Announced { arrival, id }, task));
    }
    true
}

/// The positions `[from, to)` of a sequence were removed, as `llama_memory_seq_rm` counts. Call this before the ledger hears
/// of it: the prompt that was lost is not the one for which it was lost.
pub(crate) fn removed(context: ContextId, sequence: i32, from: i32, to: i32) {
    each_of(context, |known| {
        let is_it = sequence < 0 || known.id == sequence;
        if is_it && known.loses_prompt(from, to) {
            known.answer_is_over();
        }
    });
}

/// Only this sequence of the context is left.
pub(crate) fn kept(context: ContextId, sequence: i32) {
    each_of(context, |known| {
        if known.id != sequence {
            known.answer_is_over();
        }
    });
}

fn each_of(context: ContextId, work: impl FnMut(&mut Sequence)) {
    if !ENGAGED.load(Ordering::Relaxed) {
        return;
    }
    // In a program, a context is called by its place.
    let Some(watched) = WATCHED.get(context.0) else {
        return;
    };
    let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
    watched.sequences.iter_mut().for_each(work);
}

/// The context is about to be freed: its prompts are over.
pub(crate) fn about_to_free(context: Pointer) {
    if let Some(mut watched) = watched(context) {
        watched.end_all();
        watched.context = 0;
    }
}

/// The numbers of the next prompt, as if it were a request.
fn next() -> (Arrival, TaskId) {
    let number = PROMPTS.fetch_add(1, Ordering::Relaxed) + 1;
    // Task numbers may be used again after so many.
    let task = (number & 0x3fff_ffff) as i32;
    (Arrival(number), task)
}

impl Sequence {
    /// Whether this removes tokens of its prompt. Guesses of a draft are removed behind it, and a context that is shifted
    /// keeps what is behind `to`.
    fn loses_prompt(&self, from: i32, to: i32) -> bool {
        let is_rest = to < 0 || to >= self.next;
        is_rest && from < self.end
    }

    fn answer_is_over(&mut self) {
        if let Some(prompt) = self.prompt.take() {
            prompt.end();
        }
    }
}

impl Announced {
    fn end(self) {
        let Self { arrival, id } = self;
        match id {
            Some(_) => push(Event::Answered { arrival, id }),
            None => push_observed(Event::Answered { arrival, id }),
        }
    }
}

impl Default for Watched {
    fn default() -> Self {
        Self::NONE
    }
}

impl Watched {
    const NONE: Self = Self {
        context: 0,
        id: ContextId(0),
        sequences: Vec::new(),
    };

    /// From now on this context stands at this place.
    fn turn_to(&mut self, context: Pointer) {
        if self.context != context.addr() {
            self.end_all();
            self.context = context.addr();
            self.id = contexts::id_of(context);
        }
    }

    fn end_all(&mut self) {
        KNOWN.fetch_sub(self.sequences.len(), Ordering::Relaxed);
        for sequence in self.sequences.drain(..) {
            let next = sequence.next_id.map(|(next, _)| next);
            sequence
                .prompt
                .into_iter()
                .chain(next)
                .for_each(Announced::end);
        }
    }

    /// Announces a prompt of a sequence. The one before it is over.
    fn begin(&mut self, id: i32) {
        let at = self.at(id);
        self.sequences[at].answer_is_over();
        let (prompt, task) = match self.sequences[at].next_id.take() {
            Some(named) => named,
            None => {
                let (arrival, task) = next();
                STATUS.without_id.add(1);
                note(|| Note::Received { arrival });
                let id = None;
                push_observed(Event::Posted { arrival, task, id });
                (Announced { arrival, id: None }, task)
            }
        };
        self.sequences[at].prompt = Some(prompt);
        push(Event::Launched {
            sequence: program::slot_of(self.id, id),
            task,
        });
    }

    /// Notes a part of a batch. Returns whether a prompt begins with it.
    fn add(&mut self, run: &mut [Entry], is_full: bool) -> bool {
        let [first, .., last] = &mut *run else {
            return run.first().is_some_and(|entry| self.add_one(*entry));
        };
        let (id, from, to) = (first.sequence, first.position, last.position);
        let ends = last.output;
        let at = self.at(id);
        let sequence = &mut self.sequences[at];
        let is_named = sequence.next_id.is_some();
        let goes_on = sequence.next == from && !is_named;
        let is_draft = goes_on && run.iter().all(|entry| entry.output);
        let begins = !(goes_on && (sequence.open || is_draft));
        sequence.next = to.saturating_add(1);
        if !(goes_on && is_draft && !sequence.open) {
            sequence.end = sequence.next;
        }
        sequence.open = !ends || is_full && !is_draft;
        if ends && sequence.open {
            // It is not the end of the prompt.
            if let Some(last) = run.last_mut() {
                last.output = false;
            }
        }
        begins
    }

    fn add_one(&mut self, entry: Entry) -> bool {
        let at = self.at(entry.sequence);
        let sequence = &mut self.sequences[at];
        let begins = sequence.next != entry.position || sequence.next_id.is_some();
        sequence.next = entry.position.saturating_add(1);
        if begins || sequence.open {
            sequence.end = sequence.next;
        }
        if begins || entry.output {
            sequence.open = !entry.output;
        }
        begins
    }

    /// The index of a sequence, which is added if it is new.
    fn at(&mut self, id: i32) -> usize {
        let known = self.sequences.iter().position(|sequence| sequence.id == id);
        known.unwrap_or_else(|| {
            if KNOWN.fetch_add(1, Ordering::Relaxed) >= SEQUENCES {
                self.end_all();
            }
            self.sequences.push(Sequence {
                id,
                next: -1,
                end: -1,
                open: false,
                prompt: None,
                next_id: None,
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

    /// Also where one would think that the sequence goes on.
    #[test]
    fn a_prompt_with_an_id_begins_with_the_next_token() {
        let named = || {
            let arrival = Arrival(9);
            Some((Announced { arrival, id: None }, 9))
        };
        for (positions, ends) in [(40..41, true), (40..60, true)] {
            let mut watched = Watched::default();
            assert_eq!(evaluated(&mut watched, 0..40, false), [true, true]);
            watched.sequences[0].next_id = named();
            let then = evaluated(&mut watched, positions.clone(), false);
            assert_eq!(then, [true, ends], "{positions:?}");
        }
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
        // Those that were wrong are removed.
        let sequence = &watched.sequences[0];
        assert!(!sequence.loses_prompt(42, -1));
    }

    #[test]
    fn an_answer_is_over_when_tokens_of_its_prompt_are_removed() {
        let mut watched = Watched::default();
        evaluated(&mut watched, 0..512, true);
        evaluated(&mut watched, 512..600, false);
        for generated in 600..700 {
            evaluated(&mut watched, generated..generated + 1, false);
        }
        let sequence = &watched.sequences[0];
        for (from, to, loses) in [
            (-1, -1, true),
            (0, -1, true),
            (599, -1, true),
            (599, 700, true),
            // llama-cpp-python removes all behind what it believes in before each evaluation.
            (700, -1, false),
            (600, -1, false),
            // A context that is full is shifted.
            (4, 300, false),
        ] {
            assert_eq!(sequence.loses_prompt(from, to), loses, "{from} {to}");
        }
    }
}
