//! How a prompt differs from an earlier one, behind what they have in common.

use super::past::common;
use crate::token::Token;
use std::collections::HashMap;

/// This many equal tokens in a row are no coincidence: both texts go on alike there.
const SURE: usize = 16;
/// If nowhere [`SURE`] tokens are equal, so many count as well.
const LIKELY: usize = 4;
/// How many tokens of each text are compared.
const FARTHEST: usize = 1 << 18;

/// The first difference between two texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Tokens of the difference that only the prompt has.
    pub(super) inserted: u32,
    /// Tokens of the difference that only the earlier prompt has.
    pub(super) deleted: u32,
    /// Tokens behind the difference that are the same in both.
    pub(super) same_after: u32,
}

/// Compares what a prompt (`ours`) and an earlier one (`theirs`) have behind their common beginning.
/// Their first tokens differ, or one is empty.
///
/// The difference ends where both go on alike for [`SURE`] tokens, else for [`LIKELY`] tokens, else
/// at their common end. Of several such places the earliest in the prompt counts, or one a few tokens
/// later if fewer tokens differ then (text that repeats itself is alike at several places). If there
/// is no such place, all tokens of both differ.
pub(super) fn difference(ours: &[Token], theirs: &[Token]) -> Difference {
    let ours = &ours[..ours.len().min(FARTHEST)];
    let theirs = &theirs[..theirs.len().min(FARTHEST)];
    let found = meet(ours, theirs, SURE).or_else(|| meet(ours, theirs, LIKELY));
    found.unwrap_or_else(|| {
        let backwards = ours.iter().rev().zip(theirs.iter().rev());
        let same = backwards.take_while(|(a, b)| a == b).count();
        Difference {
            inserted: (ours.len() - same) as u32,
            deleted: (theirs.len() - same) as u32,
            same_after: same as u32,
        }
    })
}

/// Finds where both go on alike for at least `length` tokens: as early in `ours` as possible, or up to
/// `length` tokens later if fewer tokens differ then. Of several places in `theirs`, the first of
/// those that go on alike for longest.
fn meet(ours: &[Token], theirs: &[Token], length: usize) -> Option<Difference> {
    if ours.len() < length || theirs.len() < length {
        return None;
    }
    // For each window the first place in `theirs`, and for each place the next one with an equal
    // window: a linked list without an allocation for each window.
    let mut first: HashMap<u64, u32> = HashMap::with_capacity(theirs.len());
    let mut next = vec![NONE; theirs.len()];
    for (place, window) in theirs.windows(length).enumerate().rev() {
        let later = first.insert(key(window), place as u32);
        next[place] = later.unwrap_or(NONE);
    }
    let mut meetings = ours.windows(length).enumerate().map(|(from, window)| {
        let start = first.get(&key(window)).copied()?;
        let chain = std::iter::successors(Some(start), |&place| {
            Some(next[place as usize]).filter(|&place| place != NONE)
        });
        // Another window may have the same key. At most 16 places are compared, so that text that
        // repeats itself does not take long.
        let places = chain.filter(|&place| theirs[place as usize..].starts_with(window));
        let lengths = places
            .take(16)
            .map(|place| (common(&ours[from..], &theirs[place as usize..]), place));
        let (same, place) =
            lengths.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
        Some(Difference {
            inserted: from as u32,
            deleted: place,
            same_after: same as u32,
        })
    });
    let earliest = meetings.find_map(|meeting| meeting)?;
    let later = meetings.take(length).flatten();
    later
        .chain([earliest])
        .min_by_key(|found| (found.inserted + found.deleted, found.inserted))
}

/// The end of a list of places.
const NONE: u32 = u32::MAX;

/// The hash of a window.
fn key(window: &[Token]) -> u64 {
    window.iter().fold(0, |key: u64, &token| {
        (key.rotate_left(5) ^ u64::from(token as u32)).wrapping_mul(0x517c_c1b7_2722_0a95)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(ours: &[Token], theirs: &[Token]) -> (u32, u32, u32) {
        let Difference {
            inserted,
            deleted,
            same_after,
        } = difference(ours, theirs);
        (inserted, deleted, same_after)
    }

    fn run(from: Token, length: Token) -> Vec<Token> {
        (from..from + length).collect()
    }

    #[test]
    fn one_edit_is_an_insertion_a_deletion_or_a_replacement() {
        let tail = run(100, 50);
        let with = |head: &[Token]| [head, &tail[..]].concat();
        assert_eq!(counts(&with(&[1, 2, 3]), &tail), (3, 0, 50));
        assert_eq!(counts(&tail, &with(&[1, 2])), (0, 2, 50));
        assert_eq!(counts(&with(&[1, 2, 3]), &with(&[4, 5])), (3, 2, 50));
        // The earlier one had an answer behind it.
        let answered = [with(&[4]), run(900, 30)].concat();
        assert_eq!(counts(&with(&[1]), &answered), (1, 1, 50));
    }

    #[test]
    fn a_short_common_rest_counts_only_if_both_end_with_it() {
        assert_eq!(counts(&[1, 7, 8], &[2, 7, 8]), (1, 1, 2));
        assert_eq!(counts(&[1, 7, 8], &[2, 7, 8, 9]), (3, 4, 0));
        assert_eq!(counts(&[1], &[]), (1, 0, 0));
        assert_eq!(counts(&[], &[1, 2]), (0, 2, 0));
    }

    /// The inserted tokens end like a sentence, so they are also alike to the middle of `theirs`.
    #[test]
    fn an_insertion_into_text_that_repeats_itself_is_still_an_insertion() {
        let sentence = [
            7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 1, 2,
        ];
        let theirs = sentence.repeat(3);
        let ours = [&[5, 5, 5, 1, 2][..], &theirs].concat();
        assert_eq!(counts(&ours, &theirs), (5, 0, 54));
    }

    #[test]
    fn a_long_equal_rest_counts_before_a_few_tokens_that_are_equal_earlier() {
        // Four tokens come again early, and the whole rest later.
        let rest = run(100, 40);
        let ours = [&[5, 1, 2, 3, 4, 6][..], &rest].concat();
        let theirs = [&[9, 1, 2, 3, 4, 9, 9, 9][..], &rest].concat();
        assert_eq!(counts(&ours, &theirs), (6, 8, 40));
    }

    /// Does the same by trying all places.
    fn naive(ours: &[Token], theirs: &[Token]) -> (u32, u32, u32) {
        for length in [SURE, LIKELY] {
            let meet = |from: usize| {
                let alike = |place: usize| common(&ours[from..], &theirs[place..]);
                let longest = (0..theirs.len()).map(alike).max().unwrap_or(0);
                let place = (0..theirs.len()).find(|&place| alike(place) == longest);
                (longest >= length).then(|| (from as u32, place.unwrap() as u32, longest as u32))
            };
            if let Some(first) = (0..ours.len()).find(|&from| meet(from).is_some()) {
                let near = (first..=first + length).filter(|&from| from < ours.len());
                let best = near
                    .filter_map(meet)
                    .min_by_key(|found| (found.0 + found.1, found.0));
                return best.unwrap();
            }
        }
        let mut same = 0;
        while same < ours.len().min(theirs.len())
            && ours[ours.len() - same - 1] == theirs[theirs.len() - same - 1]
        {
            same += 1;
        }
        let (ours, theirs) = (ours.len() - same, theirs.len() - same);
        (ours as u32, theirs as u32, same as u32)
    }

    proptest! {
        #[test]
        fn the_difference_is_the_one_found_by_trying_all_places(
            ours in prop::collection::vec(0..3_i32, 0..30),
            theirs in prop::collection::vec(0..3_i32, 0..16),
        ) {
            prop_assert_eq!(counts(&ours, &theirs), naive(&ours, &theirs));
        }

        #[test]
        fn the_tokens_behind_a_difference_are_equal_and_nothing_exceeds_the_texts(
            ours in prop::collection::vec(0..5_i32, 0..60),
            theirs in prop::collection::vec(0..5_i32, 0..60),
        ) {
            let (inserted, deleted, same) = counts(&ours, &theirs);
            let (inserted, deleted, same) = (inserted as usize, deleted as usize, same as usize);
            prop_assert!(inserted + same <= ours.len() && deleted + same <= theirs.len());
            prop_assert_eq!(
                &ours[inserted..inserted + same],
                &theirs[deleted..deleted + same]
            );
        }
    }
}
