//! What a slot works on, as it will be recorded.

use std::collections::HashMap;

use contextpilot_residency::{Arrival, Entry, FILLER, Token};
use contextpilot_traffic::RequestRecord;

use super::changes::Exchange;
use crate::prompt::{Prompt, Surplus};

/// Ends of batches that are noted for a prompt.
const MOST_BREAKS: usize = 64;
/// Media of which it is known how many rows they have.
const MOST_MEDIA: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct SlotRecord {
    pub(super) surplus: Surplus,
    pub(super) open: Option<Open>,
}

/// A request that a slot works on, or has worked on last.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) record: RequestRecord,
    pub(super) arrival: Option<Arrival>,
    /// Not evaluated to its end yet.
    pub(super) prompt: Option<Prompt>,
    /// The prompt's, and those that followed. Empty until the prompt has ended.
    pub(super) tokens: Vec<Token>,
    /// Tokens of the prompt that have no position of their own.
    pub(super) surplus: i64,
    /// Tokens that context shifts took away in front of what is generated.
    pub(super) discarded: i64,
    /// It has been answered.
    pub(super) over: bool,
    /// It is in the batch that is being evaluated.
    pub(super) flying: bool,
    /// Token and position of the media that were submitted last, and how many rows of them.
    pub(super) media: Option<(Token, i32, u32)>,
    /// What was done to the slot before it was launched.
    pub(super) exchange: Exchange,
    /// It was not.
    pub(super) declined: bool,
}

impl Open {
    /// `held`: what the slot has, a token for each position.
    pub(super) fn set_prompt(&mut self, held: Vec<Token>, rows: &HashMap<Token, u32>) {
        let positions = held.len();
        self.tokens = with_rows(held, rows);
        self.surplus = (self.tokens.len() - positions) as i64;
        self.record.prompt = self.tokens.len() as u32;
        self.record.media = media_in(&self.tokens);
    }

    pub(super) fn note_break(&mut self, run: &[Entry]) {
        let end = run.last().map_or(0, |entry| entry.position + 1);
        let breaks = &mut self.record.breaks;
        if let (Ok(end), true) = (u32::try_from(end), breaks.len() < MOST_BREAKS) {
            breaks.push(end);
        }
    }

    /// What follows the prompt. What was written there before was a draft that was rejected, or a
    /// batch that failed.
    pub(super) fn grow(&mut self, run: &[Entry]) {
        for entry in run {
            let at = i64::from(entry.position) + self.discarded + self.surplus;
            let at = usize::try_from(at).unwrap_or(0);
            if at >= self.record.prompt as usize && at <= self.tokens.len() {
                self.tokens.truncate(at);
                self.tokens.push(entry.token);
            }
        }
    }
}

/// Counts rows of media that share a position, also over the ends of batches.
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

/// A token for each row, where the ledger has one for each position.
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

/// Where media begin and end. Two in a row that are equal are taken for one.
pub(super) fn media_in(tokens: &[Token]) -> Vec<(u32, u32)> {
    let mut begin = 0;
    let runs = tokens.chunk_by(|a, b| a == b).filter_map(|run| {
        let place = (begin, begin + run.len() as u32);
        begin = place.1;
        (run[0] < 0).then_some(place)
    });
    runs.take(MOST_BREAKS).collect()
}
