//! Which tokens of a prompt stood in what slots held before, behind something else: a date or a nonce may stand in front of a
//! text that was sent often.

use super::{Key, NONE, Past, ROOT, Token, common};
use std::collections::HashMap;
use std::ops::Range;

/// So many equal tokens in a row are no coincidence. Short under test.
pub(in super::super) const REPEATED: usize = if cfg!(test) { 3 } else { 16 };
/// So many of the latest contents are compared with a prompt. All of them under test.
const CONTENTS: usize = if cfg!(test) { usize::MAX } else { 8 };
/// So many tokens of each are compared.
const FARTHEST: usize = 1 << 16;

impl Past {
    /// The ranges of a prompt from its token `from` on that are in rows of [`REPEATED`] tokens or more of one of the latest
    /// contents, wherever they stand there. In order, and apart.
    pub(in super::super) fn repeats(&self, prompt: &[Token], from: u32) -> Vec<Range<u32>> {
        // A row may begin before the first token that is asked about.
        let start = (from as usize).saturating_sub(REPEATED - 1);
        let end = prompt.len().min(start.saturating_add(FARTHEST));
        let ours = &prompt[start.min(end)..end];
        let mut is_repeated = vec![false; ours.len()];
        for &(_, leaf) in self.leaves.iter().rev().take(CONTENTS) {
            if ours.len() < REPEATED || is_repeated.iter().all(|&one| one) {
                break;
            }
            mark(ours, &self.content(leaf), &mut is_repeated);
        }
        ranges(&is_repeated, start as u32)
    }

    /// The first tokens of a content that ends with this node.
    fn content(&self, leaf: Key) -> Vec<Token> {
        let mut parts: Vec<&[Token]> = Vec::new();
        let mut key = leaf;
        while key != ROOT && key != NONE {
            parts.push(&self.nodes[key].tokens);
            key = self.nodes[key].parent;
        }
        let mut tokens: Vec<Token> = Vec::new();
        for part in parts.into_iter().rev() {
            let room = FARTHEST - tokens.len();
            tokens.extend_from_slice(&part[..part.len().min(room)]);
        }
        tokens
    }
}

/// Marks the tokens of `ours` that are in a row which `theirs` has, too.
fn mark(ours: &[Token], theirs: &[Token], is_repeated: &mut [bool]) {
    let mut places: HashMap<u64, usize> = HashMap::with_capacity(theirs.len());
    for (place, row) in theirs.windows(REPEATED).enumerate() {
        places.entry(hash(row)).or_insert(place);
    }
    let mut at = 0;
    while at + REPEATED <= ours.len() {
        let row = &ours[at..at + REPEATED];
        // Rows with equal hashes are not always equal.
        let place = places
            .get(&hash(row))
            .filter(|&&place| theirs[place..].starts_with(row));
        let Some(&place) = place else {
            at += 1;
            continue;
        };
        let alike = common(&ours[at..], &theirs[place..]);
        is_repeated[at..at + alike].fill(true);
        // The next row may begin before this one ends.
        at += alike - REPEATED + 1;
    }
}

fn ranges(is_repeated: &[bool], start: u32) -> Vec<Range<u32>> {
    let mut ranges: Vec<Range<u32>> = Vec::new();
    for (at, _) in (start..).zip(is_repeated).filter(|(_, is)| **is) {
        match ranges.last_mut() {
            Some(last) if last.end == at => last.end += 1,
            _ => ranges.push(at..at + 1),
        }
    }
    ranges
}

fn hash(row: &[Token]) -> u64 {
    row.iter().fold(0, |hash: u64, &token| {
        (hash.rotate_left(5) ^ u64::from(token as u32)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}
