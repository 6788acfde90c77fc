//! Rows of media embeddings, by the rules in the docs of the ledger.

use contextpilot_residency::{Entry, Position, SequenceId, Token, media_token};

/// No image takes more positions than this.
pub(super) const WIDEST_GAP: i64 = 1 << 16;
/// The token for positions that an image takes beyond its rows.
pub(super) const FILLER: Token = media_token(0x6669_6c6c);

/// Entries of a batch that make up one token.
pub(super) struct Row {
    pub(super) sequence: SequenceId,
    pub(super) position: Position,
    pub(super) tokens: Vec<Token>,
    pub(super) entries: usize,
    pub(super) outputs: usize,
    pub(super) ends: bool,
}

/// Media rows that share a position are one token.
pub(super) fn merged(entries: &[Entry]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for entry in entries {
        if let Some(last) = rows.last_mut().filter(|last| {
            (last.sequence, last.position) == (entry.sequence, entry.position)
                && last.tokens[0] < 0
                && entry.token < 0
        }) {
            last.tokens.push(entry.token);
            last.entries += 1;
            last.outputs += usize::from(entry.output);
            last.ends = entry.output;
        } else {
            rows.push(Row {
                sequence: entry.sequence,
                position: entry.position,
                tokens: vec![entry.token],
                entries: 1,
                outputs: usize::from(entry.output),
                ends: entry.output,
            });
        }
    }
    rows
}

/// One token for all rows of a position.
pub(super) fn fold(rows: &[Token]) -> Token {
    rows[1..].iter().fold(rows[0], fold_two)
}

pub(super) fn fold_two(all: Token, row: &Token) -> Token {
    if all == *row {
        return all;
    }
    let mixed = (all as u32).rotate_left(5) ^ (*row as u32);
    media_token(mixed.wrapping_mul(0x9e37_79b1))
}
