//! Batches: what they write, and when a prompt has ended.

use super::*;
use crate::event::FILLER;

/// A gap that a media chunk leaves between positions: chunks of more positions
/// than this do not exist, a larger gap is a defect.
const WIDEST_GAP: i64 = 1 << 16;
/// No slot is longer.
const LONGEST_UNSEEN: Position = 1 << 22;

/// What one batch does to one sequence.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) sequence: SequenceId,
    entries: usize,
    outputs: usize,
    /// The last entry's output was asked for.
    ends: bool,
    /// What the sequence held before the batch could not be made out.
    obscured: bool,
    /// Not all of it is media.
    pub(super) has_text: bool,
}

impl Flight {
    /// Embedding tasks ask for the output of all their tokens, generation for
    /// that of the last one; a single token says nothing.
    fn wants_every_output(&self) -> bool {
        self.entries > 1 && self.outputs == self.entries
    }
}

impl Ledger {
    pub(super) fn submitted(&mut self, entries: &[Entry], effects: &mut Vec<Effect>) {
        self.land();
        self.evaluating = true;
        let mut run: Vec<Token> = Vec::new();
        let mut rest = entries;
        while let Some(first) = rest.first() {
            run.clear();
            run.extend(self.unfinished_media(first));
            let (these, others) = rest.split_at(gather(rest, &mut run));
            rest = others;
            let flight = self.flight(first.sequence);
            flight.entries += these.len();
            flight.outputs += these.iter().filter(|entry| entry.output).count();
            flight.ends = these.last().is_some_and(|entry| entry.output);
            flight.has_text |= these.iter().any(|entry| entry.token >= 0);
            if !flight.obscured {
                let placed = self.place(first.sequence, first.position, &run, effects);
                self.flight(first.sequence).obscured = !placed;
            }
        }
        // The prompt ends with this batch, so what lies beyond is not coming back.
        for index in 0..self.flights.len() {
            let flight = &self.flights[index];
            let (id, ends) = (flight.sequence, flight.ends);
            let every_output = flight.wants_every_output();
            if let Some(launch) = self
                .sequences
                .get_mut(&id)
                .and_then(|sequence| sequence.launch.as_mut())
            {
                launch.every_output |= every_output;
                if launch.every_output {
                    continue;
                }
            }
            if ends {
                self.release_ghost(id, Reason::Overwritten, effects);
            }
        }
        self.decide_emptied(effects);
        self.take_on_blend(effects);
    }

    /// A slot that was emptied for a task has it before the next batch: one without
    /// a task stays empty, however busy the others are.
    fn decide_emptied(&mut self, effects: &mut Vec<Effect>) {
        if !self.launches {
            return;
        }
        let emptied: Vec<SequenceId> = self
            .sequences
            .iter()
            .filter(|(_, sequence)| sequence.ghost.is_some() && sequence.launch.is_none())
            .filter(|(_, sequence)| self.is_empty(sequence))
            .map(|(&id, _)| id)
            .collect();
        for id in emptied {
            self.release_ghost(id, Reason::Cleared, effects);
        }
    }

    pub(super) fn evaluated(
        &mut self,
        failed: &[(SequenceId, Position)],
        effects: &mut Vec<Effect>,
    ) {
        if failed.is_empty() {
            for index in 0..self.flights.len() {
                let flight = &self.flights[index];
                let (id, ends, obscured) = (flight.sequence, flight.ends, flight.obscured);
                if ends && obscured {
                    let launch = self
                        .sequences
                        .get_mut(&id)
                        .and_then(|sequence| sequence.launch.take());
                    self.abandon(launch, effects);
                } else if ends {
                    self.settle(id, effects);
                }
            }
        }
        for index in 0..self.flights.len() {
            self.review_slot(self.flights[index].sequence, effects);
        }
        self.land();
        for &(id, last) in failed {
            let Some(sequence) = self.sequences.get(&id) else {
                continue;
            };
            let holder = sequence.holder;
            let held = u32::try_from(i64::from(last) + 1).unwrap_or(0);
            if held > self.tree.depth(holder) {
                self.obscure(id, effects);
            } else {
                // The server tries again with a smaller batch: what is gone may come back.
                self.remove(id, i64::from(held), i64::MAX, effects);
            }
        }
    }

    /// No batch is being evaluated any more.
    fn land(&mut self) {
        self.evaluating = false;
        for flight in self.flights.drain(..) {
            if let Some(sequence) = self.sequences.get_mut(&flight.sequence) {
                sequence.flight = None;
            }
        }
    }

    fn flight(&mut self, id: SequenceId) -> &mut Flight {
        let next = self.flights.len();
        let index = *self.sequence(id).flight.get_or_insert(next);
        if index == next {
            self.flights.push(Flight {
                sequence: id,
                entries: 0,
                outputs: 0,
                ends: false,
                obscured: false,
                has_text: false,
            });
        }
        &mut self.flights[index]
    }

    /// The token of an image whose rows go on with this entry, at the same position.
    ///
    /// Known limit: where its rows have different tokens, that of such an image is
    /// another one until it is whole. Run again over its own branch *and* cut between
    /// batches, it counts as overwritten.
    fn unfinished_media(&self, entry: &Entry) -> Option<Token> {
        let sequence = self.sequences.get(&entry.sequence)?;
        let held = i64::from(self.tree.depth(sequence.holder));
        let last = self.tree.last(sequence.holder)?;
        let same = i64::from(entry.position) == held - 1 && entry.token < 0 && last < 0;
        same.then_some(last)
    }

    /// Writes tokens into a sequence at a position. False if it is not known
    /// what comes before them.
    fn place(
        &mut self,
        id: SequenceId,
        position: Position,
        tokens: &[Token],
        effects: &mut Vec<Effect>,
    ) -> bool {
        let sequence = self.sequence(id);
        sequence.tail.clear();
        let holder = sequence.holder;
        if std::mem::take(&mut sequence.unknown) {
            self.begin_unseen(holder, position);
        }
        let held = i64::from(self.tree.depth(holder));
        let position = i64::from(position);
        let after_media = self.tree.last(holder).is_some_and(|token| token < 0);
        if position < 0 || position > held + WIDEST_GAP || (position > held && !after_media) {
            self.obscure(id, effects);
            return false;
        }
        if position < held {
            self.remove(id, position, i64::MAX, effects);
        } else if position > held {
            self.walk(id, &vec![FILLER; (position - held) as usize], effects);
        }
        match self.sequence(id).forgotten {
            Some(nth) => {
                let places = position..position + tokens.len() as i64;
                let unseen = places.map(|at| crate::unseen_token(nth, at as Position));
                self.walk(id, &unseen.collect::<Vec<_>>(), effects);
            }
            None => self.walk(id, tokens, effects),
        }
        true
    }

    /// What a sequence goes on from was written unseen: up to this position it stands for
    /// itself, and agrees with nothing else. Not where the ways back are unknown too.
    fn begin_unseen(&mut self, holder: Holder, position: Position) {
        let held = self.tree.depth(holder);
        if held > 0 || !(1..=LONGEST_UNSEEN).contains(&position) || self.window().is_some() {
            return;
        }
        let nth = self.next_unseen();
        let tokens: Vec<Token> = (0..position)
            .map(|position| crate::unseen_token(nth, position))
            .collect();
        self.tree.extend(holder, &tokens);
    }

    /// Appends tokens to a sequence, deciding the branch that it has left.
    pub(super) fn walk(&mut self, id: SequenceId, tokens: &[Token], effects: &mut Vec<Effect>) {
        let sequence = self.sequence(id);
        let holder = sequence.holder;
        let ghost = sequence.ghost.as_ref().map(|ghost| ghost.holder);
        let mut walked = 0;
        if let Some(ghost) = ghost {
            walked = self.tree.follow(holder, tokens, Some(ghost));
            let arrived = self.tree.depth(holder) == self.tree.depth(ghost);
            if arrived || walked < tokens.len() {
                self.release_ghost(id, Reason::Overwritten, effects);
            }
        }
        self.tree.extend(holder, &tokens[walked..]);
    }
}

/// Appends to `run` the tokens at the front of a batch that are of one sequence and
/// at successive positions; returns how many entries that took. The rows of an image
/// can share a position: they become one token.
fn gather(entries: &[Entry], run: &mut Vec<Token>) -> usize {
    let start = i64::from(entries[0].position);
    let mut goes_on = |entry: &Entry| {
        let next = start + run.len() as i64;
        let position = i64::from(entry.position);
        if entry.sequence != entries[0].sequence {
            return false;
        }
        if position == next {
            run.push(entry.token);
            return true;
        }
        match run.last_mut() {
            Some(row) if position == next - 1 && *row < 0 && entry.token < 0 => {
                *row = fold(*row, entry.token);
                true
            }
            _ => false,
        }
    };
    entries.iter().take_while(|entry| goes_on(entry)).count()
}

/// Combines the tokens of media rows that share a position; order matters. Where all
/// rows stand for the whole, so does any part of them.
fn fold(all: Token, row: Token) -> Token {
    if all == row {
        return all;
    }
    let mixed = (all as u32).rotate_left(5) ^ (row as u32);
    crate::media_token(mixed.wrapping_mul(0x9e37_79b1))
}
