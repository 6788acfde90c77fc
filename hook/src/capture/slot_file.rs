//! Reads the tokens in a slot's save file.
//!
//! Servers up to 2025 write the tokens and nothing else. Newer servers (`server_tokens::serialize`)
//! write a list of 32-bit words: the null token as a mark, version 1, the number of tokens,
//! the tokens, the number of media chunks, their first positions, and the chunks.

/// `LLAMA_TOKEN_NULL`: no plain list begins with it.
const MARK: i32 = -1;
const VERSION: i32 = 1;

/// The tokens. `None` if the format is another one, or if there are media: the file does not contain
/// these in the form in which they are evaluated.
pub(crate) fn unpack(words: &[i32]) -> Option<Vec<i32>> {
    if words.first() != Some(&MARK) {
        return Some(words.to_vec());
    }
    let [_, VERSION, count, rest @ ..] = words else {
        return None;
    };
    let (tokens, media) = rest.split_at_checked(usize::try_from(*count).ok()?)?;
    (media == [0]).then(|| tokens.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_are_read_from_both_formats() {
        assert_eq!(unpack(&[5, 6, 7]), Some(vec![5, 6, 7]));
        assert_eq!(unpack(&[-1, 1, 3, 5, 6, 7, 0]), Some(vec![5, 6, 7]));
        assert_eq!(unpack(&[]), Some(vec![]));
        assert_eq!(unpack(&[-1, 1, 0, 0]), Some(vec![]));
    }

    #[test]
    fn damaged_lists_give_nothing() {
        let media = [-1, 1, 3, 5, -1, 7, 1, 1, 4, 0];
        let unknown_version = [-1, 2, 1, 5, 0];
        let too_short = [-1, 1, 3, 5, 6];
        let trailing = [-1, 1, 1, 5, 0, 0];
        let negative = [-1, 1, -3, 5, 6, 7, 0];
        for words in [
            &media[..],
            &unknown_version,
            &too_short,
            &trailing,
            &negative,
            &[-1],
        ] {
            assert_eq!(unpack(words), None, "{words:?}");
        }
    }
}
