//! How many tokens of a prompt are found in what a slot holds (`pre_decode`, the state `STARTED`).

use contextpilot_traffic::{Run, Tokens};

use crate::content::Content;

/// `--cache-reuse`: chunks of `least` tokens or more that are further on in the slot are moved up.
/// `from`: the length of the common prefix. `gram`: how many tokens decide about an identity; shorter
/// chunks are not found. Returns how many tokens of the prompt the slot has then.
pub(crate) fn with_chunks(
    held: &Content,
    prompt: &Content,
    from: u32,
    (least, gram): (u32, u32),
) -> u32 {
    let mut wanted = from;
    let mut search = from;
    // A chunk has the identities of all of its tokens but the first ones.
    let first = gram.saturating_sub(1);
    while wanted + first < prompt.len() && search + first < held.len() {
        let Some(identity) = prompt.row().at(wanted + first) else {
            break;
        };
        let Some((begin, length)) = places(held.row(), identity)
            .filter(|&place| place >= search + first && place < held.len())
            .map(|place| {
                let alike = held.row().matching(place, prompt.row(), wanted + first);
                let begin = place - first;
                let most = (held.len() - begin).min(prompt.len() - wanted);
                (begin, most.min(first + alike))
            })
            .find(|&(_, length)| length >= least)
        else {
            break;
        };
        search = begin + length;
        wanted += length;
    }
    wanted
}

/// The positions at which a token occurs, in ascending order.
fn places(row: &Tokens, identity: u64) -> impl Iterator<Item = u32> + '_ {
    let starts = row.runs().iter().scan(0, |next, run| {
        let start = *next;
        *next += run.length;
        Some((start, *run))
    });
    starts.filter_map(move |(start, Run { first, length })| {
        let offset = identity.checked_sub(first)?;
        (offset < u64::from(length)).then(|| start + offset as u32)
    })
}

/// Shortens a common prefix that ends within media: media are reused as a whole or not at all.
pub(crate) fn outside_media(common: u32, media: &[(u32, u32)]) -> u32 {
    let within = media
        .iter()
        .find(|&&(begin, end)| begin < common && common < end);
    within.map_or(common, |&(begin, _)| begin)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn content(parts: &[(u64, u32)]) -> Content {
        let mut row = Tokens::new();
        for &(first, length) in parts {
            row.push(Run { first, length });
        }
        let length = row.len();
        Content::new(Arc::new(row), length)
    }

    #[test]
    fn a_long_enough_chunk_further_on_in_the_slot_is_reused() {
        let (head, middle, tail) = ((0, 30), (100, 40), (200, 50));
        let long = content(&[head, middle, tail]);
        let short = content(&[head, tail]);
        assert_eq!(with_chunks(&long, &short, 30, (16, 1)), 80);
        assert_eq!(with_chunks(&long, &short, 30, (51, 1)), 30);
        // The chunk is found wherever it is in the slot.
        let swapped = content(&[head, tail, middle]);
        assert_eq!(with_chunks(&long, &swapped, 30, (16, 1)), 80);
        // A new token in front of the chunk ends the search.
        let hidden = content(&[head, (300, 1), tail]);
        assert_eq!(with_chunks(&long, &hidden, 30, (16, 1)), 30);
    }

    /// The first tokens of the chunk have other tokens before them, and so other identities.
    #[test]
    fn the_first_tokens_of_a_chunk_are_found_by_those_that_follow() {
        let (head, tail) = ((0, 30), (207, 50));
        let long = content(&[head, (100, 40), (200, 7), tail]);
        let short = content(&[head, (300, 7), tail]);
        assert_eq!(with_chunks(&long, &short, 30, (57, 8)), 87);
        assert_eq!(with_chunks(&long, &short, 30, (58, 8)), 30);
    }

    #[test]
    fn a_common_prefix_that_ends_within_media_ends_before_them() {
        assert_eq!(outside_media(15, &[(10, 20)]), 10);
        assert_eq!(outside_media(20, &[(10, 20)]), 20);
        assert_eq!(outside_media(10, &[(10, 20)]), 10);
    }
}
