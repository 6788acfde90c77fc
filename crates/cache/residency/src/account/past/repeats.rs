//! Which tokens of a prompt stood in what slots held before, behind something else: a date or a nonce may stand in front of a
//! text that was sent often.

use super::{Key, NONE, Past, ROOT, Token};
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
    /// contents, wherever they stand there. In order, and apart.
    pub(in super::super) fn repeats(&self, prompt: &[Token], from: u32) -> Vec<Range<u32>> {
        // A row may begin before the first token that is asked about.
        let start = (from as usize).saturating_sub(REPEATED - 1);
        let end = prompt.len().min(start.saturating_add(FARTHEST));
        let ours = &prompt[start.min(end)..end];
        // Each row of the prompt, with its first place.
        let mut rows: HashMap<&[Token], usize> = HashMap::new();
        for (place, row) in ours.windows(REPEATED).enumerate() {
            rows.entry(row).or_insert(place);
        }
        let mut is_found = vec![false; ours.len()];
        let mut unfound = rows.len();
        for &(_, leaf) in self.leaves.iter().rev().take(CONTENTS) {
            if unfound == 0 {
                break;
            }
            for row in self.content(leaf).windows(REPEATED) {
                if let Some(&place) = rows.get(row) {
                    unfound -= usize::from(!std::mem::replace(&mut is_found[place], true));
                }
            }
        }
        let found = ours.windows(REPEATED).enumerate();
        let found = found.filter(|(_, row)| is_found[rows[row]]);
        joined(found.map(|(place, _)| (start + place) as u32))
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
