//! Images and sounds among the tokens of a sequence.
//!
//! The engine evaluates rows of numbers in place of tokens: a *run* of them for each image or sound. Here each row has a
//! token, which is negative: no vocabulary has such. Those of a run are a digest of all of its rows and of how they are
//! evaluated, 30 bits in each, and one bit marks the last. So equal tokens mean equal rows, and everything that compares,
//! counts and hashes tokens does so with media, too.
//!
//! A run is loaded as a whole or not at all ([`whole`]). Fewer than four of its tokens do not say for certain of which run
//! they are (`certain`).

use sha2::{Digest, Sha256};

use crate::TAIL;

/// Runs of fewer rows have no tokens: their digest would be too short.
pub const LEAST_ROWS: usize = CERTAIN;

/// So many tokens of a run have 120 bits.
const CERTAIN: usize = 4;

/// The last row of a run.
const LAST: u32 = 1 << 30;

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
        if nth + 1 == rows {
            negative(word | LAST)
        } else {
            negative(word & !LAST)
        }
    };
    Some(words.take(rows).enumerate().map(token).collect())
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
    let open = tokens.iter().rev();
    let open = open.take_while(|token| is_row(**token) && **token as u32 & LAST == 0);
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
    match (bits | 1 << 31) as i32 {
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
        let one = run(&[7; 32], 300).unwrap();
        assert_eq!(one.len(), 300);
        assert!(one.iter().all(|token| is_row(*token)));
        assert_eq!(run(&[7; 32], 300), Some(one.clone()));
        let other = run(&[8; 32], 300).unwrap();
        assert!(one.iter().all(|token| !other.contains(token)));
        assert_eq!(run(&[7; 32], LEAST_ROWS - 1), None);
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
        let expected = [-1_887_985_495, -1_091_657_734, -1_775_353_671, -238_496_617];
        assert_eq!(tokens, expected);
    }
}
