//! Images and sounds among the tokens of a sequence.
//!
//! The engine evaluates rows of numbers in place of tokens: a *run* of them for each image or sound. Here each row has a
//! token, which is negative: no vocabulary has such. Those of a run are a digest of all of its rows and of how they are
//! evaluated, 29 bits in each, and one bit marks the last. So equal tokens mean equal rows, and everything that compares,
//! counts and hashes tokens does so with media, too.
//!
//! A run is loaded as a whole or not at all ([`whole`]). Fewer than four of its tokens do not say for certain of which run
//! they are (`certain`).
//!
//! # Positions
//! A token's position is its index in the sequence, unless there are images before whose rows *share* a position: those of
//! models with positions of several dimensions (M-RoPE). Such an image stands at one position, and what is behind it a few
//! farther. One more bit marks its rows, and the last one says how many positions it takes. So the tokens of a sequence say
//! where each of them stands, and this module alone converts between the two ([`position`], [`index`], [`reach`]).

use sha2::{Digest, Sha256};

use crate::TAIL;

/// Runs of fewer rows have no tokens: their digest would be too short.
pub const LEAST_ROWS: usize = CERTAIN;

/// So many tokens of a run have 116 bits, or 100 if they share a position.
const CERTAIN: usize = 4;

/// No token of a vocabulary.
const ROW: u32 = 1 << 31;
/// The last row of a run.
const LAST: u32 = 1 << 30;
/// The rows of the run share a position.
const SHARED: u32 = 1 << 29;
/// How many positions a run takes whose rows share one: in its last token.
const TAKES: u32 = 0xffff;

/// The tokens of a run of so many rows. `digest`: of all that KV of these rows depends on, but for the tokens before.
/// `None`: there are too few of them.
pub fn run(digest: &[u8; 32], rows: usize) -> Option<Vec<i32>> {
    if rows < LEAST_ROWS {
        return None;
    }
    let words = (0_u64..).flat_map(|nth| {
        let mut hash = Sha256::new();
        hash.update(b"media");
        hash.update(digest);
        hash.update(nth.to_le_bytes());
        let whole = hash.finalize();
        (0..8).map(move |word| u32::from_le_bytes([0, 1, 2, 3].map(|i| whole[4 * word + i])))
    });
    let token = |(nth, word): (usize, u32)| {
        let digest = word & !(LAST | SHARED);
        negative(if nth + 1 == rows {
            digest | LAST
        } else {
            digest
        })
    };
    Some(words.take(rows).enumerate().map(token).collect())
}

/// As [`run`], of rows that share a position; what is behind them stands so many positions farther. `None`: it has too few rows,
/// or takes no position, or too many.
pub fn shared_run(digest: &[u8; 32], rows: usize, takes: usize) -> Option<Vec<i32>> {
    let takes = u32::try_from(takes)
        .ok()
        .filter(|takes| (1..=TAKES).contains(takes))?;
    let mut tokens = run(digest, rows)?;
    for token in &mut tokens {
        *token |= SHARED as i32;
    }
    let last = tokens.last_mut()?;
    *last = (*last as u32 & !TAKES | takes) as i32;
    Some(tokens)
}

/// The tokens of so many rows that an encoder has made, which are no part of a sequence. `digest`: of all that they depend on.
/// `None`: there are too few of them. The first token has a mark that the others do not have: no run of a sequence has that.
pub fn encoding(digest: &[u8; 32], rows: usize) -> Option<Vec<i32>> {
    let mut tokens = run(digest, rows)?;
    *tokens.first_mut()? |= SHARED as i32;
    Some(tokens)
}

/// Whether these tokens are the first of what an encoder has made.
pub(crate) fn begins_encoding(tokens: &[i32]) -> bool {
    let [first, second, ..] = *tokens else {
        return false;
    };
    is_shared(first) && is_row(second) && !is_shared(second)
}

/// Whether a token stands for a row that shares its position with the others of its run.
pub fn is_shared(token: i32) -> bool {
    let bits = ROW | SHARED;
    token as u32 & bits == bits
}

/// Whether any of these tokens does.
pub fn is_any_shared(tokens: &[i32]) -> bool {
    tokens.iter().any(|token| is_shared(*token))
}

/// How many positions farther the token behind this one stands.
fn step(token: i32) -> usize {
    match (is_shared(token), token as u32 & LAST) {
        (false, _) => 1,
        (true, 0) => 0,
        (true, _) => (token as u32 & TAKES) as usize,
    }
}

/// The position of what stands behind these tokens, which begin with the first of a sequence.
pub fn position(tokens: &[i32]) -> usize {
    tokens.iter().map(|token| step(*token)).sum()
}

/// The position of each of these tokens, which begin with the first of a sequence.
pub fn positions(tokens: &[i32]) -> impl Iterator<Item = usize> {
    tokens.iter().scan(0, |next, token| {
        let here = *next;
        *next += step(*token);
        Some(here)
    })
}

/// How many of these tokens, which begin with the first of a sequence, stand before a position. An engine that removes
/// everything from there on keeps just these.
pub fn index(tokens: &[i32], position: usize) -> usize {
    positions(tokens).take_while(|at| *at < position).count()
}

/// One more than the last position at which one of these tokens stands, which begin with the first of a sequence. Behind an
/// image that is less than the [`position`] of what follows.
pub fn reach(tokens: &[i32]) -> usize {
    match tokens.split_last() {
        Some((_, before)) => position(before) + 1,
        None => 0,
    }
}

/// How many of these tokens there are up to this index and, if rows that share a position stand there, to the end of their
/// run: an engine cannot be cut between them.
pub fn cuttable(tokens: &[i32], index: usize) -> usize {
    let is_open = |token: &i32| is_shared(*token) && *token as u32 & LAST == 0;
    let before = tokens[..index].last();
    if !before.is_some_and(is_open) {
        return index;
    }
    let behind = &tokens[index..];
    let open = behind.iter().take_while(|token| is_open(token)).count();
    tokens.len().min(index + open + 1)
}

/// Whether a token stands for a row of media.
pub fn is_row(token: i32) -> bool {
    token < 0 && token != TAIL
}

/// Whether any of these tokens stands for a row of media.
pub fn is_any_row(tokens: &[i32]) -> bool {
    tokens.iter().any(|token| is_row(*token))
}

/// How many of these tokens, which begin with the first of a sequence, there are without a run that is not whole.
pub fn whole(tokens: &[i32]) -> usize {
    let backward = tokens.iter().rev();
    let open = backward.take_while(|token| is_row(**token) && **token as u32 & LAST == 0);
    tokens.len() - open.count()
}

/// How many of these tokens there are without a run of which so few are there that they may be those of another one.
pub(crate) fn certain(tokens: &[i32]) -> usize {
    let whole = whole(tokens);
    if tokens.len() - whole < CERTAIN {
        whole
    } else {
        tokens.len()
    }
}

fn negative(bits: u32) -> i32 {
    match (bits | ROW) as i32 {
        TAIL => TAIL + 1,
        token => token,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_whole_or_it_is_not_there() {
        let image = run(&[7; 32], 20).unwrap();
        let sound = run(&[8; 32], LEAST_ROWS).unwrap();
        let tokens = [&[1, 2, 3][..], &image, &sound, &[4, 5]].concat();
        let ends = 0..=tokens.len();
        let cut = |cut: fn(&[i32]) -> usize| -> Vec<usize> {
            ends.clone().map(|end| cut(&tokens[..end])).collect()
        };
        let expected = |some: usize| -> Vec<usize> {
            let expected = ends.clone().map(|end| match end {
                3..23 if end < 3 + some => 3,
                23..27 => 23,
                _ => end,
            });
            expected.collect()
        };
        assert_eq!(cut(whole), expected(20));
        assert_eq!(cut(certain), expected(CERTAIN));
    }

    #[test]
    fn runs_of_other_rows_have_nothing_in_common() {
        let image = run(&[7; 32], 300).unwrap();
        assert_eq!(image.len(), 300);
        assert!(image.iter().all(|token| is_row(*token)));
        assert_eq!(run(&[7; 32], 300), Some(image.clone()));
        let other = run(&[8; 32], 300).unwrap();
        assert!(image.iter().all(|token| !other.contains(token)));
        assert_eq!(run(&[7; 32], LEAST_ROWS - 1), None);
    }

    #[test]
    fn tokens_stand_at_their_index_but_for_images_whose_rows_share_a_position() {
        let image = shared_run(&[7; 32], 6, 3).unwrap();
        let sound = run(&[8; 32], LEAST_ROWS).unwrap();
        assert!(is_any_shared(&image) && !is_any_shared(&sound));
        let tokens = [&[1, 2][..], &image, &sound, &[4, 5]].concat();
        let expected = [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8, 9, 10];
        let all: Vec<usize> = positions(&tokens).collect();
        assert_eq!(all, expected);
        for (count, before) in (0..tokens.len()).zip(expected) {
            assert_eq!(position(&tokens[..count]), before);
            assert_eq!(reach(&tokens[..count + 1]), before + 1);
        }
        assert_eq!((position(&tokens), reach(&[])), (11, 0));
        // The positions 3 and 4 are the image's, too: it is there, or it is not.
        let before = [0, 1, 2, 8, 8, 8, 9, 10, 11, 12, 13, 14, 14];
        let counts: Vec<usize> = (0..13).map(|at| index(&tokens, at)).collect();
        assert_eq!(counts, before);
        let cuts: Vec<usize> = (0..=9).map(|at| cuttable(&tokens, at)).collect();
        assert_eq!(cuts, [0, 1, 2, 8, 8, 8, 8, 8, 8, 9]);
        assert_eq!(cuttable(&tokens[..5], 4), 5);
        assert_eq!(whole(&tokens[..7]), 2);
    }

    #[test]
    fn how_many_positions_an_image_takes_is_a_part_of_its_name() {
        let of = |takes| shared_run(&[7; 32], 20, takes);
        assert_ne!(of(5), of(4));
        assert_ne!(of(5), run(&[7; 32], 20));
        assert_eq!(position(&of(0xffff).unwrap()), 0xffff);
        assert_eq!((of(0), of(0x1_0000)), (None, None));
        assert!(!of(5).unwrap().contains(&TAIL));
    }

    #[test]
    fn no_row_is_taken_for_a_token_or_for_a_tail() {
        assert!([0, 5, i32::MAX, TAIL].iter().all(|token| !is_row(*token)));
        assert!(is_row(negative(0)) && is_row(negative(LAST)));
        assert!(is_any_row(&[3, -4]) && !is_any_row(&[3, TAIL]));
    }

    /// These tokens are in files, and are to be the same on every machine.
    #[test]
    fn tokens_stay_what_they_are() {
        let tokens = run(&[0; 32], 4).unwrap();
        let expected = [-1_887_985_495, -1_628_528_646, -1_775_353_671, -775_367_529];
        assert_eq!(tokens, expected);
    }

    #[test]
    fn what_an_encoder_has_made_is_no_run_of_a_sequence() {
        let digest = [7; 32];
        let rows = encoding(&digest, 20).unwrap();
        assert!(begins_encoding(&rows) && begins_encoding(&rows[..LEAST_ROWS]));
        assert_eq!(rows[1..], run(&digest, 20).unwrap()[1..]);
        assert_eq!((whole(&rows), certain(&rows[..3])), (20, 0));
        let shared = shared_run(&digest, 20, 5).unwrap();
        for other in [
            &run(&digest, 20).unwrap()[..],
            &shared,
            &[1, 2],
            &shared[19..],
        ] {
            assert!(!begins_encoding(other));
        }
        assert!(!begins_encoding(&[&shared[19..], &[5]].concat()));
        assert_eq!(encoding(&digest, LEAST_ROWS - 1), None);
    }
}
