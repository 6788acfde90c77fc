//! Batches: the tokens that they write, and the end of prompts.

use super::Ledger;
use crate::batch::InFlight;
use crate::entries::Entry;
use crate::fact::{Fact, Reason};
use crate::ids::SequenceId;
use crate::token::{FILLER, Position, Token};
use crate::tree::Holder;

/// The widest gap, in positions, that a media chunk may leave before the next entry. No chunk takes
/// more positions. Behind a wider gap the sequence counts as unknown.
const WIDEST_GAP: i64 = 1 << 16;
/// The most placeholder tokens for content that was written unseen. No slot is longer.
const LONGEST_UNSEEN: Position = 1 << 22;

impl Ledger {
    pub(super) fn submitted(&mut self, entries: &[Entry], facts: &mut Vec<Fact>) {
        if let Some(jobs) = &mut self.jobs {
            jobs.submitted(entries, facts);
        }
        self.clear_in_flight();
        self.batch.evaluating = true;
        let mut run = std::mem::take(&mut self.run);
        let mut rest = entries;
        while let Some(first) = rest.first() {
            run.clear();
            run.extend(self.unfinished_media(first));
            let (these, others) = rest.split_at(gather(rest, &mut run));
            rest = others;
            let flight = self.in_flight_of(first.sequence);
            flight.entries += these.len();
            flight.outputs += these.iter().filter(|entry| entry.output).count();
            flight.ends = these.last().is_some_and(|entry| entry.output);
            flight.has_text |= these.iter().any(|entry| entry.token >= 0);
            if !flight.obscured {
                let placed = self.place(first.sequence, first.position, &run, facts);
                self.in_flight_of(first.sequence).obscured = !placed;
            }
        }
        self.run = run;
        // A prompt ends with this batch, so the tokens beyond it will not be evaluated again.
        for index in 0..self.batch.in_flight.len() {
            let flight = &self.batch.in_flight[index];
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
                self.release_ghost(id, Reason::Overwritten, facts);
            }
        }
        self.decide_emptied(facts);
        self.take_on_blend(facts);
    }

    /// If the server empties a slot for a task, it launches the task before the next batch. So an
    /// empty slot without a task stays empty, however busy the others are.
    fn decide_emptied(&mut self, facts: &mut Vec<Fact>) {
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
            self.release_ghost(id, Reason::Cleared, facts);
        }
    }

    pub(super) fn evaluated(&mut self, failed: &[(SequenceId, Position)], facts: &mut Vec<Fact>) {
        if let Some(jobs) = &mut self.jobs {
            jobs.evaluated(!failed.is_empty(), facts);
        }
        if failed.is_empty() {
            for index in 0..self.batch.in_flight.len() {
                let flight = &self.batch.in_flight[index];
                let (id, ends, obscured) = (flight.sequence, flight.ends, flight.obscured);
                if ends && obscured {
                    let launch = self
                        .sequences
                        .get_mut(&id)
                        .and_then(|sequence| sequence.launch.take());
                    self.abandon(launch, facts);
                } else if ends {
                    self.mark_cached(id, facts);
                }
            }
        }
        for index in 0..self.batch.in_flight.len() {
            self.review_slot(self.batch.in_flight[index].sequence, facts);
        }
        self.clear_in_flight();
        for &(id, last) in failed {
            let Some(sequence) = self.sequences.get(&id) else {
                continue;
            };
            let holder = sequence.holder;
            let held = u32::try_from(i64::from(last) + 1).unwrap_or(0);
            if held > self.tree.depth(holder) {
                self.obscure(id, facts);
            } else {
                // The server tries again with a smaller batch, so the removed tokens stay undecided.
                self.remove(id, i64::from(held), i64::MAX, facts);
            }
        }
    }

    /// No batch is being evaluated any more.
    fn clear_in_flight(&mut self) {
        self.batch.evaluating = false;
        for flight in self.batch.in_flight.drain(..) {
            if let Some(sequence) = self.sequences.get_mut(&flight.sequence) {
                sequence.in_flight = None;
            }
        }
    }

    fn in_flight_of(&mut self, id: SequenceId) -> &mut InFlight {
        let next = self.batch.in_flight.len();
        let index = *self.sequence(id).in_flight.get_or_insert(next);
        self.batch.at(index, id)
    }

    /// The last token of a sequence, if it belongs to an image whose rows go on with this entry at
    /// the same position.
    ///
    /// Known limit: if the rows have different tokens, the token of such an image changes with each
    /// row until the image is complete. If such an image is evaluated again over its own branch and
    /// is divided between two batches, the branch counts as overwritten.
    fn unfinished_media(&self, entry: &Entry) -> Option<Token> {
        let sequence = self.sequences.get(&entry.sequence)?;
        let held = i64::from(self.tree.depth(sequence.holder));
        let last = self.tree.last(sequence.holder)?;
        let same = i64::from(entry.position) == held - 1 && entry.token < 0 && last < 0;
        same.then_some(last)
    }

    /// Writes tokens into a sequence at a position. Returns false if the tokens before them are not
    /// known.
    fn place(
        &mut self,
        id: SequenceId,
        position: Position,
        tokens: &[Token],
        facts: &mut Vec<Fact>,
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
            self.obscure(id, facts);
            return false;
        }
        if position < held {
            self.remove(id, position, i64::MAX, facts);
        } else if position > held {
            self.walk(id, &vec![FILLER; (position - held) as usize], facts);
        }
        match self.sequence(id).forgotten {
            Some(nth) => {
                let places = position..position + tokens.len() as i64;
                let unseen = places.map(|at| crate::unseen_token(nth, at as Position));
                self.walk(id, &unseen.collect::<Vec<_>>(), facts);
            }
            None => self.walk(id, tokens, facts),
        }
        true
    }

    /// A sequence goes on behind tokens that were written unseen: enters placeholders for them, up to
    /// this position. Does nothing in a bounded context, where the ways back are unknown too.
    fn begin_unseen(&mut self, holder: Holder, position: Position) {
        let held = self.tree.depth(holder);
        if held > 0 || !(1..=LONGEST_UNSEEN).contains(&position) || self.is_bounded() {
            return;
        }
        let nth = self.gap.next_unseen();
        let tokens: Vec<Token> = (0..position)
            .map(|position| crate::unseen_token(nth, position))
            .collect();
        self.tree.extend(holder, &tokens);
    }

    /// Appends tokens to a sequence, and decides its undecided branch if the tokens do.
    pub(super) fn walk(&mut self, id: SequenceId, tokens: &[Token], facts: &mut Vec<Fact>) {
        let sequence = self.sequence(id);
        let holder = sequence.holder;
        let ghost = sequence.ghost.as_ref().map(|ghost| ghost.holder);
        let mut walked = 0;
        if let Some(ghost) = ghost {
            walked = self.tree.follow(holder, tokens, Some(ghost));
            let arrived = self.tree.depth(holder) == self.tree.depth(ghost);
            if arrived || walked < tokens.len() {
                self.release_ghost(id, Reason::Overwritten, facts);
            }
        }
        self.tree.extend(holder, &tokens[walked..]);
    }
}

/// Appends to `run` the tokens at the front of a batch that belong to one sequence and stand at
/// successive positions. Returns how many entries that were. Rows of an image that share a position
/// become one token.
///
/// Not inlined: its loop runs once for each token, and keeps its values in registers only in a function of
/// its own.
#[inline(never)]
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

/// Combines the tokens of media rows that share a position; their order matters. Equal tokens
/// combine to themselves: they are the hash of the whole media item.
fn fold(all: Token, row: Token) -> Token {
    if all == row {
        return all;
    }
    let mixed = (all as u32).rotate_left(5) ^ (row as u32);
    crate::media_token(mixed.wrapping_mul(0x9e37_79b1))
}
