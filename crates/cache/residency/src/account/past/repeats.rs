//! Which tokens of a prompt stood in what slots held before, behind something else: a date or a nonce may stand in front of a
//! text that was sent often.

use super::{Key, Moment, NONE, Past, ROOT, Token};
use std::collections::HashMap;
use std::ops::Range;

/// This many equal tokens in a row are no coincidence. Short under test.
pub(in super::super) const REPEATED: usize = if cfg!(test) { 3 } else { 16 };
/// How many of the latest contents are compared with a prompt. All of them under test.
const CONTENTS: usize = if cfg!(test) { usize::MAX } else { 8 };
/// How many tokens of each are compared.
const FARTHEST: usize = 1 << 16;

impl Past {
    /// The ranges of a prompt from its token `from` on that are in rows of [`REPEATED`] tokens or more of one of the latest
    /// contents, wherever they stand there, as these were when the prompt began. In order, and apart.
    pub(in super::super) fn repeats(
        &self,
        prompt: &[Token],
        from: u32,
        begun: Moment,
    ) -> Vec<Range<u32>> {
        // A row may begin before the first token that is asked about.
        let start = (from as usize).saturating_sub(REPEATED - 1);
        let end = prompt.len().min(start.saturating_add(FARTHEST));
        let ours = Rows::new(&prompt[start.min(end)..end]);
        let mut is_found = vec![false; ours.firsts.len()];
        let mut unfound = ours.different;
        for &(_, leaf) in self.leaves.iter().rev().take(CONTENTS) {
            if unfound == 0 {
                break;
            }
            ours.each_in(&self.content(leaf, begun), |first| {
                unfound -= usize::from(!std::mem::replace(&mut is_found[first], true));
            });
        }
        let firsts = ours.firsts.iter().enumerate();
        let found = firsts.filter(|(_, first)| is_found[**first as usize]);
        joined(found.map(|(place, _)| (start + place) as u32))
    }

    /// The first tokens of a content that ends with this node, as it was then.
    fn content(&self, leaf: Key, then: Moment) -> Vec<Token> {
        let mut parts: Vec<&[Token]> = Vec::new();
        let mut key = leaf;
        while key != ROOT && key != NONE {
            let node = &self.nodes[key];
            if node.since <= then {
                parts.push(&node.tokens);
            }
            key = node.parent;
        }
        let mut tokens: Vec<Token> = Vec::new();
        for part in parts.into_iter().rev() {
            let room = FARTHEST - tokens.len();
            tokens.extend_from_slice(&part[..part.len().min(room)]);
        }
        tokens
    }
}

/// All rows of [`REPEATED`] tokens in a part of a prompt.
struct Rows<'a> {
    tokens: &'a [Token],
    /// For the row at each place, the first place of an equal one.
    firsts: Vec<u32>,
    /// How many rows are different.
    different: usize,
    /// The first places, by hash.
    places: HashMap<u64, u32>,
    /// Of each hash a bit: most rows of other contents are none of these, and are not looked for.
    bits: Vec<u64>,
}

impl<'a> Rows<'a> {
    fn new(tokens: &'a [Token]) -> Self {
        let mut rows = Self {
            tokens,
            firsts: Vec::with_capacity(tokens.len()),
            different: 0,
            places: HashMap::with_capacity(tokens.len()),
            bits: vec![0; BITS / 64],
        };
        for (place, hash) in hashes(tokens).enumerate() {
            let place = place as u32;
            let known = *rows.places.entry(hash).or_insert(place);
            // Others with the same hash are not found: they are as good as new.
            let is_first = rows.row(known) != rows.row(place) || known == place;
            rows.different += usize::from(is_first);
            rows.firsts.push(if is_first { place } else { known });
            let bit = bit(hash);
            rows.bits[bit / 64] |= 1 << (bit % 64);
        }
        rows
    }

    fn row(&self, place: u32) -> &[Token] {
        &self.tokens[place as usize..][..REPEATED]
    }

    /// Tells for each row of a content that is one of these the first place where it is.
    fn each_in(&self, content: &[Token], mut tell: impl FnMut(usize)) {
        // Where the row before this one is: then only one token of this one is another.
        let mut before: Option<u32> = None;
        for (row, hash) in content.windows(REPEATED).zip(hashes(content)) {
            let goes_on =
                |place: &u32| self.tokens.get(*place as usize + REPEATED - 1) == row.last();
            let next = before.map(|place| place + 1).filter(goes_on);
            before = next.or_else(|| self.find(hash, row));
            if let Some(place) = before {
                tell(self.firsts[place as usize] as usize);
            }
        }
    }

    fn find(&self, hash: u64, row: &[Token]) -> Option<u32> {
        let bit = bit(hash);
        if self.bits[bit / 64] >> (bit % 64) & 1 == 0 {
            return None;
        }
        let place = *self.places.get(&hash)?;
        (self.row(place) == row).then_some(place)
    }
}

/// Bits for the hashes of a prompt's rows: 16 KiB.
const BITS: usize = 1 << 17;

fn bit(hash: u64) -> usize {
    (hash.wrapping_mul(MIX) >> 32) as usize % BITS
}

const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hash of each row of [`REPEATED`] tokens: each follows from the one before, by the token that leaves and the one that comes.
fn hashes(tokens: &[Token]) -> impl Iterator<Item = u64> + '_ {
    const BASE: u64 = 0xc2b2_ae3d_27d4_eb4f;
    fn value(token: &Token) -> u64 {
        u64::from(*token as u32).wrapping_mul(MIX)
    }
    fn and(hash: u64, token: &Token) -> u64 {
        hash.wrapping_mul(BASE).wrapping_add(value(token))
    }
    let leaves = BASE.wrapping_pow(REPEATED as u32);
    let (first, more) = tokens.split_at(tokens.len().min(REPEATED));
    let whole = (first.len() == REPEATED).then(|| first.iter().fold(0, and));
    let mut steps = more.iter().zip(tokens);
    std::iter::successors(whole, move |hash| {
        let (comes, goes) = steps.next()?;
        Some(and(*hash, comes).wrapping_sub(value(goes).wrapping_mul(leaves)))
    })
}

/// The tokens of the rows that begin at these places, which are in order.
fn joined(places: impl Iterator<Item = u32>) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for place in places {
        let end = place + REPEATED as u32;
        match ranges.last_mut() {
            Some(last) if last.end >= place => last.end = end,
            _ => ranges.push(place..end),
        }
    }
    ranges
}
