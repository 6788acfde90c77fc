//! An engine in memory, with a store. What it computes of a token is a number that depends on all tokens before, and on what it
//! was evaluated under: so a wrong state is seen in each output behind it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use contextpilot_kv_engine::{
    Bounds, Done, Engine, Host, Journal, Part, Record, Refusal, States, Supply, Tails, Wanted,
    repair,
};
use contextpilot_kv_store::{Conditions, Run, Session, media};

/// What a context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It can go back to any position.
    Dense,
    /// It looks back so many tokens.
    Window(usize),
    Recurrent,
}

/// The rows in a state that was [saved](Engine::save), which has the tokens behind them.
pub(crate) fn rows_of(state: &[u8]) -> impl Iterator<Item = u64> {
    let words = state[..state.len() / 12 * 8].chunks_exact(8);
    words.map(|word| u64::from_le_bytes(word.try_into().unwrap()))
}

/// What an engine has computed of a token.
pub(crate) fn next(before: u64, token: i32, under: Conditions) -> u64 {
    let mut hash = before ^ (u64::from(token as u32) << 20) ^ u64::from(under.0);
    hash = (hash ^ 0x9E37_79B9_7F4A_7C15).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    hash ^ (hash >> 29)
}

/// The same of all of these tokens.
pub(crate) fn computed(tokens: &[(i32, Conditions)]) -> Vec<u64> {
    let mut last = 0;
    let next = |&(token, under): &(i32, Conditions)| {
        last = next(last, token, under);
        last
    };
    tokens.iter().map(next).collect()
}

/// So many tokens have room, as far as the store knows.
const ROOM: usize = 150;

/// What is behind the windows is dropped whenever so many tokens more are there.
pub(crate) const DROPS: usize = 11;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Of each token.
    pub(crate) all: Vec<u64>,
    pub(crate) tokens: Vec<i32>,
    /// Those of positions before are gone.
    first: usize,
}

/// What goes wrong, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The engine refuses this call of ours. The number says how much of it is done before.
    Call(u32, u8),
    /// It refuses this batch of the host's.
    Batch(u32, u8),
    /// The library stops before this look at the record.
    Before(u32),
    /// The same, behind it.
    Behind(u32),
    /// A state is gone when it is to be loaded for this time.
    Gone(u32),
}

impl Fault {
    /// One that comes about, if there is anything of its kind. `counts`: see [`Memory::counts`].
    pub(crate) fn within(self, counts: [u32; 4]) -> Self {
        let of = |which: usize, at: u32| 1 + at % counts[which].max(1);
        match self {
            Self::Call(at, part) => Self::Call(of(0, at), part),
            Self::Batch(at, part) => Self::Batch(of(1, at), part),
            Self::Before(at) => Self::Before(of(2, at)),
            Self::Behind(at) => Self::Behind(of(2, at)),
            Self::Gone(at) => Self::Gone(of(3, at)),
        }
    }
}

/// What is known of a context.
pub(crate) struct Known {
    pub(crate) session: Session,
    pub(crate) bounds: Option<Bounds>,
    pub(crate) under: Conditions,
    tails: Tails,
}

impl Record for Known {
    fn session(&self) -> &Session {
        &self.session
    }
    fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }
    fn conditions(&self, _: i32) -> Conditions {
        self.under
    }
    fn bounds(&self) -> Option<Bounds> {
        self.bounds
    }
    fn at_a_time(&self) -> usize {
        self.bounds.and_then(|bounds| bounds.at_once).unwrap_or(7)
    }
    fn size(&self) -> usize {
        ROOM
    }
    fn tails(&self) -> &Tails {
        &self.tails
    }
    fn tails_mut(&mut self) -> &mut Tails {
        &mut self.tails
    }
    fn tail_of<'a>(&self, part: &'a [u8]) -> Option<&'a [u8]> {
        Some(part)
    }
    fn are_these(&self, conditions: Conditions) -> bool {
        conditions == self.under
    }
    fn has_embeddings(&self) -> bool {
        false
    }
    fn may_store(&self) -> bool {
        true
    }
}

pub(crate) struct Memory {
    pub(crate) kind: Kind,
    pub(crate) rows: RefCell<BTreeMap<i32, Rows>>,
    /// Under what tokens are evaluated.
    pub(crate) under: Cell<Conditions>,
    /// These ever changed.
    pub(crate) is_mixed: Cell<bool>,
    record: RefCell<Option<Known>>,
    pub(crate) journal: RefCell<Journal>,
    /// The library goes on.
    pub(crate) is_active: Cell<bool>,
    /// What is stored, and under what it was evaluated.
    pub(crate) stored: RefCell<Vec<(Conditions, Vec<i32>)>>,
    fault: Cell<Option<Fault>>,
    counts: [Cell<u32>; 4],
    pub(crate) loads: Cell<usize>,
    /// A sequence whose prompt the host wants evaluated.
    pub(crate) uncached: Cell<Option<i32>>,
}

impl Memory {
    pub(crate) fn new(kind: Kind, fault: Option<Fault>) -> Self {
        let bounds = match kind {
            Kind::Dense => None,
            Kind::Window(window) => Some(Bounds {
                window,
                // Some of them share a cache.
                at_once: (window % 2 == 0).then_some(3 + window / 2),
            }),
            Kind::Recurrent => Some(Bounds {
                window: 0,
                at_once: None,
            }),
        };
        let mut session = Session::default();
        if bounds.is_some() {
            session.bind();
        }
        Self {
            kind,
            rows: RefCell::default(),
            under: Cell::default(),
            is_mixed: Cell::new(false),
            record: RefCell::new(Some(Known {
                session,
                bounds,
                under: Conditions::default(),
                tails: Tails::default(),
            })),
            journal: RefCell::new(Journal::EMPTY),
            is_active: Cell::new(true),
            stored: RefCell::default(),
            fault: Cell::new(fault),
            counts: Default::default(),
            loads: Cell::new(0),
            uncached: Cell::new(None),
        }
    }

    /// How often each kind of thing was done that a fault can hit.
    pub(crate) fn counts(&self) -> [u32; 4] {
        [0, 1, 2, 3].map(|which| self.counts[which].get())
    }

    fn is_due(&self, which: usize, at: u32) -> bool {
        self.counts[which].get() == at
    }

    fn count(&self, which: usize) {
        self.counts[which].set(self.counts[which].get() + 1);
    }

    /// How much of a call is done before it is refused.
    fn refuses(&self) -> Option<u8> {
        self.count(0);
        match self.fault.get() {
            Some(Fault::Call(at, part)) if self.is_due(0, at) => Some(part),
            _ => None,
        }
    }

    /// The same of the host's batch.
    pub(crate) fn refuses_batch(&self) -> Option<u8> {
        self.count(1);
        match self.fault.get() {
            Some(Fault::Batch(at, part)) if self.is_due(1, at) => Some(part),
            _ => None,
        }
    }

    fn is_gone(&self) -> bool {
        self.count(3);
        matches!(self.fault.get(), Some(Fault::Gone(at)) if self.is_due(3, at))
    }

    /// The engine evaluates a token behind those of a sequence.
    pub(crate) fn push(&self, sequence: i32, token: i32) -> u64 {
        let mut rows = self.rows.borrow_mut();
        let held = rows.entry(sequence).or_default();
        let at = held.all.len();
        let mut row = next(
            held.all.last().copied().unwrap_or(0),
            token,
            self.under.get(),
        );
        match self.kind {
            Kind::Dense => {}
            Kind::Recurrent => held.first = at,
            Kind::Window(window) => {
                if held.first > (at + 1).saturating_sub(window) {
                    // A part of its window is missing.
                    row ^= 1;
                }
                // Some more stay for a while.
                if (at + 1) % DROPS == 0 {
                    held.first = held.first.max((at + 1).saturating_sub(window));
                }
            }
        }
        held.all.push(row);
        held.tokens.push(token);
        row
    }

    /// The state of these tokens.
    fn state_of(&self, tokens: &[i32], under: Conditions) -> Rows {
        let plain: Vec<_> = tokens.iter().map(|token| (*token, under)).collect();
        let all = computed(&plain);
        let tokens = tokens.to_vec();
        let first = self.first_of(all.len());
        Rows { all, tokens, first }
    }

    /// The first position that a state of so many tokens has.
    fn first_of(&self, tokens: usize) -> usize {
        match self.kind {
            Kind::Dense => 0,
            Kind::Recurrent => tokens - 1,
            Kind::Window(window) => tokens.saturating_sub(window),
        }
    }

    pub(crate) fn put(&self, sequence: i32, rows: Rows) {
        self.rows.borrow_mut().insert(sequence, rows);
    }

    pub(crate) fn get(&self, sequence: i32) -> Rows {
        let rows = self.rows.borrow();
        rows.get(&sequence).cloned().unwrap_or_default()
    }

    /// What a state of the sequence has: of sliding windows no more than the windows.
    pub(crate) fn copy_out(&self, sequence: i32) -> Rows {
        let mut rows = self.get(sequence);
        if let Kind::Window(window) = self.kind {
            rows.first = rows.first.max(rows.all.len().saturating_sub(window));
        }
        rows
    }
}

impl Rows {
    /// Removes what stands from this position on.
    pub(crate) fn remove_from(&mut self, position: usize) {
        self.tokens.truncate(media::index(&self.tokens, position));
        self.all.truncate(self.tokens.len());
    }
}

impl Engine for Memory {
    fn cut(&self, sequence: i32, from: usize) {
        self.count(0);
        let mut rows = self.rows.borrow_mut();
        if from == 0 {
            rows.remove(&sequence);
        } else if let Some(held) = rows.get_mut(&sequence) {
            held.remove_from(from);
            if self.kind == Kind::Recurrent && held.all.len() < held.first + 1 {
                panic!("a recurrent state cannot go back");
            }
        }
    }

    fn length(&self, sequence: i32) -> Option<usize> {
        Some(media::reach(&self.get(sequence).tokens))
    }

    fn first(&self, sequence: i32) -> Option<usize> {
        let rows = self.get(sequence);
        (!rows.all.is_empty()).then_some(rows.first)
    }

    fn save(&self, sequence: i32, state: &mut Vec<u8>) -> bool {
        if self.refuses().is_some() {
            return false;
        }
        let Rows { all, tokens, .. } = self.get(sequence);
        *state = all.into_iter().flat_map(u64::to_le_bytes).collect();
        state.extend(tokens.into_iter().flat_map(i32::to_le_bytes));
        true
    }

    fn part_size(&self, _: i32) -> Option<usize> {
        Some(8)
    }

    /// For the test it has all rows.
    fn save_part(&self, sequence: i32, state: &mut Vec<u8>) -> bool {
        self.save(sequence, state)
    }

    /// Of what was put aside: other states are loaded by [`Found`].
    fn load(&self, sequence: i32, state: &[u8]) -> bool {
        if self.refuses().is_some() {
            return false;
        }
        let all: Vec<u64> = rows_of(state).collect();
        let words = state[8 * all.len()..].chunks_exact(4);
        let tokens = words
            .map(|word| i32::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let first = self.first_of(all.len());
        self.put(sequence, Rows { all, tokens, first });
        true
    }

    fn evaluate(
        &self,
        sequence: i32,
        from: usize,
        tokens: &[i32],
        most: usize,
    ) -> Result<(), Refusal> {
        assert!(most > 0);
        let there = media::position(&self.get(sequence).tokens);
        assert_eq!(there, from, "behind what is there");
        assert!(!media::is_any_row(tokens), "the rows are gone");
        let part = self.refuses();
        let count = part.map_or(tokens.len(), |part| usize::from(part) % (tokens.len() + 1));
        for token in &tokens[..count] {
            self.push(sequence, *token);
        }
        match part {
            None => Ok(()),
            Some(part) => Err(match part % 3 {
                0 => Refusal::NoRoom,
                1 => Refusal::Stopped,
                _ => Refusal::Failed,
            }),
        }
    }
}

/// States of one sequence of the store.
pub(crate) struct Found<'a> {
    memory: &'a Memory,
    sequence: i32,
    under: Conditions,
    tokens: Vec<i32>,
    lengths: Vec<usize>,
    aside: Option<Rows>,
}

impl Supply for Found<'_> {
    fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    fn lengths(&self) -> Vec<usize> {
        self.lengths.clone()
    }

    fn load(&mut self, tokens: usize) -> Option<usize> {
        // What is composed is asked of the store.
        if self.memory.is_gone() || self.memory.record(|_| ()).is_none() {
            return None;
        }
        let mut rows = self.memory.state_of(&self.tokens[..tokens], self.under);
        let part = self.memory.refuses();
        if let Some(part) = part {
            // The sequence holds anything, and the engine may even say that it took the state.
            // (Not a part of an image whose rows share a position: no position would say so.)
            let count = tokens * usize::from(part) / 256;
            rows.tokens.truncate(count);
            rows.tokens.truncate(media::whole(&rows.tokens));
            rows.all.truncate(rows.tokens.len());
            rows.all.iter_mut().for_each(|row| *row ^= 1);
        }
        self.memory.put(self.sequence, rows);
        part.is_none_or(|part| part % 2 == 0).then_some(tokens)
    }

    fn is_aside(&self) -> bool {
        self.aside.is_some()
    }

    fn put_back(&mut self) -> bool {
        let Some(rows) = self.aside.take() else {
            return false;
        };
        let is_taken = self.memory.refuses().is_none();
        if is_taken {
            self.memory.put(self.sequence, rows);
        }
        is_taken
    }

    fn finish(self, done: &Done) {
        let count = usize::from(done.loaded.is_some());
        self.memory.loads.set(self.memory.loads.get() + count);
    }
}

fn common(a: &[i32], b: &[i32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Tokens of which there is a state.
struct All<'a>(Vec<&'a [i32]>);

impl States for All<'_> {
    fn length_of(&self, tokens: &[i32]) -> usize {
        let all = self.0.iter().map(|stored| common(stored, tokens));
        all.max().unwrap_or(0)
    }

    fn last_state_in(&self, tokens: &[i32]) -> usize {
        let all = self.0.iter().filter(|stored| tokens.starts_with(stored));
        all.map(|stored| stored.len()).max().unwrap_or(0)
    }
}

impl Host for Memory {
    type Record = Known;

    fn record<R>(&self, work: impl FnOnce(&mut Known) -> R) -> Option<R> {
        if !self.is_active.get() {
            return None;
        }
        self.count(2);
        let mut record = self.record.borrow_mut();
        let known = record.as_mut()?;
        known.under = self.under.get();
        let fault = self.fault.get();
        if matches!(fault, Some(Fault::Before(at)) if self.is_due(2, at)) {
            self.is_active.set(false);
            return None;
        }
        let result = work(known);
        if matches!(fault, Some(Fault::Behind(at)) if self.is_due(2, at)) {
            self.is_active.set(false);
            return None;
        }
        Some(result)
    }

    fn goes_on(&self) -> bool {
        if self.is_active.get() {
            return true;
        }
        let record = self.record.borrow_mut().take();
        let found = self.journal.borrow_mut().take_repairable();
        let lost = repair(self, record.as_ref(), found, |work| work());
        self.journal.borrow_mut().set_lost(lost);
        false
    }

    fn journal<R>(&self, work: impl FnOnce(&mut Journal) -> R) -> Option<R> {
        Some(work(&mut self.journal.borrow_mut()))
    }

    fn find<'a>(&'a self, wanted: &Wanted<'a>) -> Option<impl Supply + 'a> {
        let under = self.under.get();
        let may = self.record(|known| known.session.may_load(wanted.sequence));
        if may != Some(true) {
            return None;
        }
        let stored = self.stored.borrow();
        let of_these = stored.iter().filter(|(of, _)| *of == under);
        let is_dense = self.kind == Kind::Dense;
        // An image is there as a whole, or not at all.
        let whole = |tokens: &[i32]| media::whole(&tokens[..common(tokens, wanted.tokens)]);
        let counted = of_these.map(|(_, tokens)| (whole(tokens), tokens));
        let loadable = counted.filter(|(count, tokens)| is_dense || *count == tokens.len());
        let (count, tokens) = loadable.max_by_key(|(count, _)| *count)?;
        if count < wanted.held + 8 {
            return None;
        }
        let mut lengths = vec![tokens.len(), count];
        let goes_on = wanted
            .run
            .is_some_and(|run| run.leading == run.tokens.len());
        if !goes_on || count < wanted.tokens.len() {
            // What it has behind that is of no use.
            lengths.remove(0);
        }
        if is_dense {
            lengths.push(wanted.held);
        }
        lengths.dedup();
        let in_run = wanted.run.is_some_and(|run| media::is_any_row(&run.tokens));
        let has_rows = in_run || media::is_any_row(&tokens[..wanted.held]);
        // Every other one is as if it had an image in it.
        let is_aside = is_dense && (wanted.held % 2 == 1 || has_rows);
        let aside = is_aside.then(|| self.get(wanted.sequence));
        Some(Found {
            memory: self,
            sequence: wanted.sequence,
            under,
            tokens: tokens.clone(),
            lengths,
            aside,
        })
    }

    fn is_uncached(&self, sequence: i32) -> bool {
        self.uncached.get() == Some(sequence)
    }

    fn may_wait(&self, run: &Run) -> bool {
        if run.leading < run.tokens.len() || self.is_mixed.get() {
            return false;
        }
        let wanted = self.record(|known| known.session.wanted(run));
        let may = self.record(|known| known.session.may_load(run.sequence));
        let stored = self.stored.borrow();
        let mut texts = stored.iter().map(|(_, tokens)| tokens);
        let mut leads = |wanted: &Vec<i32>| texts.any(|tokens| tokens.starts_with(wanted));
        may == Some(true) && wanted.is_some_and(|wanted| leads(&wanted))
    }

    fn at_once(&self) -> Option<usize> {
        let bounds = self.record(|known| known.bounds);
        Some(bounds.flatten()?.at_once.unwrap_or(5))
    }

    fn with_states<R>(
        &self,
        _: i32,
        work: impl FnOnce(&Known, &dyn States) -> Option<R>,
    ) -> Option<R> {
        let under = self.under.get();
        let stored = self.stored.borrow();
        let of_these = stored.iter().filter(|(of, _)| *of == under);
        let states = All(of_these.map(|(_, tokens)| &tokens[..]).collect());
        self.record(|known| work(known, &states)).flatten()
    }

    fn last_message(&self, run: &Run) -> Option<usize> {
        let found = contextpilot_kv_engine::last_message(&run.tokens, |token| token % 9 == 0);
        found.filter(|at| *at < run.leading)
    }

    fn about_to_reach(&self) {}

    fn note_refused_state(&self, _: usize) {}
}

/// A batch of the host's.
pub(crate) fn part(sequence: i32, first: usize, tokens: &[i32], leading: usize, at: usize) -> Part {
    Part {
        run: Run {
            sequence,
            first: i32::try_from(first).unwrap(),
            tokens: tokens.to_vec(),
            leading,
        },
        indexes: (at..at + tokens.len()).map(|index| index as u32).collect(),
        follows: true,
        ..Part::default()
    }
}
