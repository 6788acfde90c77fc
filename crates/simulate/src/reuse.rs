//! How much of what a slot holds is found again (`pre_decode`, the state `STARTED`).

use contextpilot_traffic::{Run, Tokens};

use crate::content::Content;

/// `--cache-reuse`: chunks of `least` tokens or more that stand further on in what is held are
/// moved up. `from` is the common prefix. Returns how much of the prompt is there then.
pub(crate) fn with_chunks(held: &Content, prompt: &Content, from: u32, least: u32) -> u32 {
    let mut wanted = from;
    let mut search = from;
    while wanted < prompt.len() && search < held.len() {
        let Some(identity) = prompt.row().at(wanted) else {
            break;
        };
        let Some((begin, length)) = places(held.row(), identity)
            .filter(|&place| place >= search && place < held.len())
            .map(|place| {
                let length = held.row().matching(place, prompt.row(), wanted);
                (
                    place,
                    length.min(held.len() - place).min(prompt.len() - wanted),
                )
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

/// Where a token stands, in ascending order.
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

/// Media are found again as a whole, or not at all.
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
    fn a_chunk_that_stands_further_on_is_moved_up() {
        let (head, middle, tail) = ((0, 30), (100, 40), (200, 50));
        let long = content(&[head, middle, tail]);
        let short = content(&[head, tail]);
        assert_eq!(with_chunks(&long, &short, 30, 16), 80);
        assert_eq!(with_chunks(&long, &short, 30, 51), 30);
        // Chunks are found in the order in which they stand.
        let swapped = content(&[head, tail, middle]);
        assert_eq!(with_chunks(&long, &swapped, 30, 16), 80);
        // Something new in front of a chunk hides it.
        let hidden = content(&[head, (300, 1), tail]);
        assert_eq!(with_chunks(&long, &hidden, 30, 16), 30);
    }

    #[test]
    fn media_are_whole() {
        assert_eq!(outside_media(15, &[(10, 20)]), 10);
        assert_eq!(outside_media(20, &[(10, 20)]), 20);
        assert_eq!(outside_media(10, &[(10, 20)]), 10);
    }
}
