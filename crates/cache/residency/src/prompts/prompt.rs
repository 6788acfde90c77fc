//! A waiting prompt, and the ways in which the server may shorten it before it evaluates it.

use crate::token::Token;
use std::borrow::Cow;

/// A prompt that a request waits with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prompt {
    /// All tokens of the prompt, before the server shortens it.
    pub tokens: Vec<Token>,
    /// How many of the first tokens are extra context of `/infill`. The server takes as many of the
    /// last of these as its settings allow: the same number for each request.
    pub extra: usize,
    /// The length of a slot, in tokens, if it is known. The servers of 2025 cut a prompt that has at
    /// least this length. Later ones refuse it.
    pub slot: Option<u32>,
}

impl From<Vec<Token>> for Prompt {
    fn from(tokens: Vec<Token>) -> Self {
        Self {
            tokens,
            ..Self::default()
        }
    }
}

/// How well a reading agrees with what is known of the server. The best comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The reading keeps as many extra tokens as the server was seen to keep; all of them, if it was
    /// not seen to leave out any.
    Likely,
    /// The reading keeps another number of extra tokens.
    Unlikely,
}

/// One way in which the server may have shortened a prompt: the tokens that a slot may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) rank: Rank,
    /// How many of the first tokens are left out.
    front: usize,
    /// How many tokens are kept between these and the hole.
    kept: usize,
    /// How many tokens are left out in the middle.
    hole: usize,
}

impl Reading {
    /// Whether no token is left out.
    pub(super) fn is_all(self) -> bool {
        self.front == 0 && self.hole == 0
    }
}

/// How many tokens of extra context the server takes; `None`: not seen yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extra {
    exactly: Option<usize>,
}

impl Extra {
    /// Learns the number that these readings imply, if all imply the same.
    pub(super) fn learn<'a>(&mut self, readings: impl Iterator<Item = (&'a Prompt, Reading)>) {
        let mut taken = readings.map(|(prompt, reading)| {
            (reading.front > 0).then(|| prompt.extra.saturating_sub(reading.front))
        });
        if let Some(Some(first)) = taken.next() {
            if taken.all(|other| other == Some(first)) {
                self.exactly = Some(first);
            }
        }
    }
}

impl Prompt {
    /// The ways in which the server may have shortened the prompt to `total` tokens, the best first.
    pub(super) fn readings(&self, total: usize, extra: Extra) -> Vec<Reading> {
        let mut readings = Vec::new();
        let taken = extra
            .exactly
            .map_or(self.extra, |most| most.min(self.extra));
        let expected = self.extra - taken;
        self.read(Rank::Likely, expected, total, &mut readings);
        let missing = self.tokens.len().checked_sub(total).filter(|&n| n > 0);
        let others = [Some(0), missing].into_iter().flatten();
        for front in others.filter(|&front| front != expected && front <= self.extra) {
            self.read(Rank::Unlikely, front, total, &mut readings);
        }
        readings
    }

    /// The readings without the first `front` tokens: uncut, and cut in the middle if the rest is too
    /// long for a slot.
    fn read(&self, rank: Rank, front: usize, total: usize, readings: &mut Vec<Reading>) {
        let length = self.tokens.len() - front;
        if length == total {
            readings.push(Reading {
                rank,
                front,
                kept: total,
                hole: 0,
            });
        }
        let Some(slot) = self.slot.and_then(|slot| usize::try_from(slot).ok()) else {
            return;
        };
        if length < slot || total >= slot || total >= length {
            return;
        }
        let hole = length - total;
        // How many tokens are kept is a setting of the server's (`--keep`) or of the request
        // (`n_keep`). The default, none, comes first.
        let kept = (0..=total.min(slot.saturating_sub(4)))
            .filter(|&kept| cut_by_server(length, slot, kept) == Some(hole));
        readings.extend(kept.map(|kept| Reading {
            rank,
            front,
            kept,
            hole,
        }));
    }

    /// The tokens of a reading.
    pub(super) fn tokens_of(&self, reading: Reading) -> Cow<'_, [Token]> {
        let tokens = &self.tokens[reading.front..];
        if reading.hole == 0 {
            return Cow::Borrowed(tokens);
        }
        let (head, rest) = tokens.split_at(reading.kept);
        Cow::Owned([head, &rest[reading.hole..]].concat())
    }
}

/// How many tokens a server of 2025 cuts out of the middle of a prompt that is at least as long as a
/// slot: whole blocks. A block is half of the slot's room behind the kept tokens (`update_slots`,
/// "input truncated", in llama.cpp of May to August 2025).
fn cut_by_server(length: usize, slot: usize, kept: usize) -> Option<usize> {
    let block = slot.checked_sub(kept)? / 2;
    let beyond = length.checked_sub(kept + block)?;
    Some(beyond.checked_div(block)? * block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(tokens: std::ops::Range<Token>, extra: usize, slot: Option<u32>) -> Prompt {
        Prompt {
            tokens: tokens.collect(),
            extra,
            slot,
        }
    }

    fn held(prompt: &Prompt, total: usize, extra: Extra) -> Vec<(Rank, Vec<Token>)> {
        let readings = prompt.readings(total, extra).into_iter();
        readings
            .map(|reading| (reading.rank, prompt.tokens_of(reading).into_owned()))
            .collect()
    }

    #[test]
    fn a_prompt_that_fits_has_one_reading_without_a_cut() {
        let plain = prompt(0..10, 0, None);
        let all: Vec<Token> = (0..10).collect();
        assert_eq!(held(&plain, 10, Extra::default()), [(Rank::Likely, all)]);
        assert!(held(&plain, 9, Extra::default()).is_empty());
        assert!(held(&plain, 11, Extra::default()).is_empty());
    }

    /// The cut of `update_slots` of llama.cpp b5xxx and b6xxx, in integers.
    fn cut(prompt: &[Token], n_ctx: usize, n_keep: usize) -> Vec<Token> {
        let n_left = n_ctx - n_keep;
        let n_block_size = n_left / 2;
        let erased_blocks = (prompt.len() - n_keep - n_block_size) / n_block_size;
        let mut new = prompt[..n_keep].to_vec();
        new.extend_from_slice(&prompt[n_keep + erased_blocks * n_block_size..]);
        new
    }

    #[test]
    fn a_prompt_cut_by_a_server_of_2025_is_among_the_readings() {
        for (length, slot, keep) in (8..80)
            .flat_map(|length| (8..=40).map(move |slot| (length, slot)))
            .filter(|(length, slot)| length >= slot)
            .flat_map(|(length, slot)| (0..=slot - 4).map(move |keep| (length, slot, keep)))
        {
            let long = prompt(0..length as Token, 0, Some(slot as u32));
            let expected = cut(&long.tokens, slot, keep);
            assert!(expected.len() < slot);
            let held = held(&long, expected.len(), Extra::default());
            let found = held.iter().any(|(_, tokens)| *tokens == expected);
            assert!(found, "{length} tokens, slot of {slot}, {keep} kept");
            assert!(
                held.iter()
                    .all(|(_, tokens)| tokens.len() == expected.len())
            );
        }
    }

    #[test]
    fn a_prompt_shorter_than_a_slot_has_no_reading_with_a_cut() {
        let short = prompt(0..20, 0, Some(21));
        assert!((0..20).all(|total| held(&short, total, Extra::default()).is_empty()));
    }

    #[test]
    fn the_number_of_extra_tokens_is_learned_from_readings_that_agree() {
        let infill = prompt(0..10, 4, None);
        let tail = |from| (from..10).collect::<Vec<Token>>();
        let mut extra = Extra::default();
        assert_eq!(held(&infill, 10, extra), [(Rank::Likely, tail(0))]);
        assert_eq!(held(&infill, 7, extra), [(Rank::Unlikely, tail(3))]);
        assert!(held(&infill, 5, extra).is_empty(), "more than the extra");
        let reading = infill.readings(7, extra)[0];
        // Nothing is learned from two readings that disagree.
        let other = prompt(0..10, 5, None);
        extra.learn([(&infill, reading), (&other, reading)].into_iter());
        assert_eq!(extra, Extra::default());
        extra.learn([(&infill, reading)].into_iter());
        assert_eq!(held(&infill, 7, extra), [(Rank::Likely, tail(3))]);
        assert_eq!(held(&infill, 10, extra), [(Rank::Unlikely, tail(0))]);
        let longer = prompt(0..12, 6, None);
        let rest: Vec<Token> = (5..12).collect();
        assert_eq!(held(&longer, 7, extra), [(Rank::Likely, rest)]);
        let short = prompt(0..7, 1, None);
        let all: Vec<Token> = (0..7).collect();
        assert_eq!(held(&short, 7, extra), [(Rank::Likely, all)]);
    }
}
