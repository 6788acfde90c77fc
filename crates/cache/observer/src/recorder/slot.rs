//! The request that a slot works on, until it is recorded.

use std::collections::HashMap;

use contextpilot_residency::{Arrival, Entry, FILLER, Ledger, SequenceId, Token, TokenCounts};
use contextpilot_traffic::RequestRecord;

use super::stage::Exchange;
use crate::note::{KeptPrompt, Stamp};

/// The most ends of batches, and the most media, that are recorded for a prompt.
const MOST_BREAKS: usize = 64;
/// The most media whose number of rows is remembered. Before one more, all are forgotten.
const MOST_MEDIA: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct SlotRecord {
    pub(super) open: Option<Open>,
}

/// A request that a slot works on, or has worked on last.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) record: RequestRecord,
    pub(super) arrival: Option<Arrival>,
    /// The task is not known yet: see [`UNTIED`](contextpilot_residency::UNTIED).
    pub(super) untied: bool,
    /// The prompt is not evaluated to its end.
    pub(super) prompting: bool,
    /// The counts of a prompt whose end only its answer has told, as that of an embedding.
    pub(super) whole: Option<TokenCounts>,
    /// The server emptied the slot before it said that the prompt has ended.
    pub(super) emptied: Option<Emptied>,
    /// The tokens of the prompt, and those that were evaluated after it. Empty until the prompt has ended.
    pub(super) tokens: Vec<Token>,
    /// How many more tokens than positions the prompt has, because rows of media share positions.
    pub(super) surplus: i64,
    /// Positions by which context shifts have moved the end of the answer back.
    pub(super) discarded: i64,
    /// It has been answered.
    pub(super) over: bool,
    /// The batch that is being evaluated has entries of this slot.
    pub(super) flying: bool,
    /// The token and position of the media that were submitted last, and how many of their rows were.
    pub(super) media: Option<(Token, i32, u32)>,
    /// Whether the slot was saved and loaded before the launch.
    pub(super) exchange: Exchange,
    /// The launch failed.
    pub(super) declined: bool,
    /// It is for `/infill`.
    pub(super) infill: bool,
    /// Its prompt got tokens of earlier answers.
    pub(super) kept: Option<KeptPrompt>,
}

/// What a slot held when the server emptied it.
#[derive(Debug)]
pub(super) struct Emptied {
    pub(super) held: Vec<Token>,
    pub(super) at: Stamp,
    /// Because a batch failed, or for a reason that is not known.
    pub(super) failed: bool,
}

impl Open {
    /// Sets the prompt's tokens and media. `held`: what the slot holds, one token for each position.
    pub(super) fn set_prompt(&mut self, held: Vec<Token>, rows: &HashMap<Token, u32>) {
        let positions = held.len();
        self.tokens = with_rows(held, rows);
        self.surplus = (self.tokens.len() - positions) as i64;
        self.record.prompt = self.tokens.len() as u32;
        self.record.media = media_in(&self.tokens);
    }

    /// The request, and what was evaluated of its prompt, if the client left before its end and the slot has not changed
    /// since.
    pub(super) fn left(
        &self,
        sequence: SequenceId,
        ledger: &Ledger,
        rows: &HashMap<Token, u32>,
    ) -> Option<(RequestRecord, Vec<Token>)> {
        let waits = self.whole.is_none() && self.emptied.is_none();
        if !(self.prompting && self.over && !self.flying && waits) {
            return None;
        }
        let begun = ledger.unfinished(sequence)?;
        let tokens = with_rows(ledger.tokens_in(sequence), rows);
        let record = RequestRecord {
            abandoned: true,
            reused: small(begun.counts.reused),
            evaluated: small(begun.counts.evaluated),
            prompt: tokens.len() as u32,
            media: media_in(&tokens),
            ..self.record.clone()
        };
        (!begun.untouched && !begun.whole).then_some((record, tokens))
    }

    /// How many tokens context shifts have discarded, if any.
    pub(super) fn shift(&self) -> Option<u32> {
        u32::try_from(self.discarded).ok().filter(|&gone| gone > 0)
    }

    /// Notes where a batch ends.
    pub(super) fn note_break(&mut self, run: &[Entry]) {
        let end = run.last().map_or(0, |entry| entry.position + 1);
        let breaks = &mut self.record.breaks;
        if let (Ok(end), true) = (u32::try_from(end), breaks.len() < MOST_BREAKS) {
            breaks.push(end);
        }
    }

    /// Adds entries after the prompt. They replace what was there from their positions on: a rejected
    /// draft, or a batch that failed.
    pub(super) fn grow(&mut self, run: &[Entry]) {
        for entry in run {
            let place = i64::from(entry.position) + self.discarded + self.surplus;
            let at = usize::try_from(place).unwrap_or(0);
            if at >= self.record.prompt as usize && at <= self.tokens.len() {
                self.tokens.truncate(at);
                self.tokens.push(entry.token);
            }
        }
    }
}

/// Counts the rows of media that share a position. Media may go on in the next batch: `last` is the result
/// of the batch before.
pub(super) fn count_rows(
    run: &[Entry],
    mut last: Option<(Token, i32, u32)>,
    rows: &mut HashMap<Token, u32>,
) -> Option<(Token, i32, u32)> {
    for entry in run {
        last = match last {
            _ if entry.token >= 0 => None,
            Some((token, position, count))
                if (token, position) == (entry.token, entry.position) =>
            {
                if rows.len() >= MOST_MEDIA {
                    rows.clear();
                }
                rows.insert(token, count + 1);
                Some((token, position, count + 1))
            }
            _ => Some((entry.token, entry.position, 1)),
        };
    }
    last
}

/// Converts tokens from one for each position, as the ledger has them, to one for each row of media.
pub(super) fn with_rows(held: Vec<Token>, rows: &HashMap<Token, u32>) -> Vec<Token> {
    if rows.is_empty() {
        return held;
    }
    let mut tokens = Vec::with_capacity(held.len());
    for token in held {
        match rows.get(&token) {
            Some(&count) => tokens.extend(std::iter::repeat_n(token, count as usize)),
            None if token == FILLER => {}
            None => tokens.push(token),
        }
    }
    tokens
}

/// The media in a row of tokens: `[begin, end)` of each. Equal media that follow each other directly are
/// taken for one.
pub(super) fn media_in(tokens: &[Token]) -> Vec<(u32, u32)> {
    let mut begin = 0;
    let runs = tokens.chunk_by(|a, b| a == b).filter_map(|run| {
        let place = (begin, begin + run.len() as u32);
        begin = place.1;
        (run[0] < 0).then_some(place)
    });
    runs.take(MOST_BREAKS).collect()
}

pub(super) fn small(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
