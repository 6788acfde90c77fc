//! Reads the tokens and the checkpoints in a slot's save file.
//!
//! Servers up to 2025 write the tokens and nothing else. Newer servers (`server_tokens::serialize`)
//! write a list of 32-bit words: the null token as a mark, version 1, the number of tokens,
//! the tokens, the number of media chunks, their first positions, and the chunks.
//!
//! Servers of 0.7.0 append the slot's checkpoints to the file: a mark, version 1 and their number, 32 bits
//! each; then of each the number of tokens (64 bits), the first and the last position (32 bits), and three
//! blocks of state, each behind its length (64 bits).

use std::io::{Read, Seek, SeekFrom};

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

const CHECKPOINTS: [u8; 8] = *b"SCKP\x01\0\0\0";
/// If there are more checkpoints, none is read, so that a damaged file does not keep the server waiting.
const MOST_CHECKPOINTS: u32 = 1024;

/// A checkpoint in the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SavedCheckpoint {
    /// How many tokens the slot held when it was made.
    pub(crate) tokens: u32,
    /// The first and last position at that time.
    pub(crate) first: i32,
    pub(crate) last: i32,
}

/// The checkpoints in a file whose state ends at this place. `None` if the server would not read them: it
/// takes all or none.
pub(crate) fn checkpoints(
    file: &mut (impl Read + Seek),
    end_of_state: u64,
) -> Option<Vec<SavedCheckpoint>> {
    let size = file.seek(SeekFrom::End(0)).ok()?;
    let mut at = file.seek(SeekFrom::Start(end_of_state)).ok()?;
    let mark: [u8; 8] = read(file)?;
    let count = u32::from_le_bytes(read(file)?);
    if mark != CHECKPOINTS || count > MOST_CHECKPOINTS {
        return None;
    }
    at += 12;
    let mut all = Vec::new();
    for _ in 0..count {
        let tokens = i64::from_le_bytes(read(file)?);
        all.push(SavedCheckpoint {
            tokens: u32::try_from(tokens).ok()?,
            first: i32::from_le_bytes(read(file)?),
            last: i32::from_le_bytes(read(file)?),
        });
        at += 16;
        for _ in 0..3 {
            let length = u64::from_le_bytes(read(file)?);
            at = at.checked_add(8)?.checked_add(length)?;
            if at > size {
                return None;
            }
            file.seek(SeekFrom::Start(at)).ok()?;
        }
    }
    Some(all)
}

fn read<const N: usize>(file: &mut impl Read) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn the_tokens_are_read_from_both_formats() {
        assert_eq!(unpack(&[5, 6, 7]), Some(vec![5, 6, 7]));
        assert_eq!(unpack(&[-1, 1, 3, 5, 6, 7, 0]), Some(vec![5, 6, 7]));
        assert_eq!(unpack(&[]), Some(vec![]));
        assert_eq!(unpack(&[-1, 1, 0, 0]), Some(vec![]));
    }

    /// A file with 5 bytes of state and two checkpoints.
    fn with_checkpoints() -> Vec<u8> {
        let mut file = b"stateSCKP\x01\0\0\0\x02\0\0\0".to_vec();
        for (tokens, first, last) in [(146_i64, 0_i32, 145_i32), (196, 86, 195)] {
            file.extend(tokens.to_le_bytes());
            file.extend([first.to_le_bytes(), last.to_le_bytes()].as_flattened());
            for block in [&b"engine"[..], b"", b"x"] {
                file.extend((block.len() as u64).to_le_bytes());
                file.extend(block);
            }
        }
        file
    }

    #[test]
    fn the_checkpoints_are_read_behind_the_state() {
        let of = |tokens, first, last| SavedCheckpoint {
            tokens,
            first,
            last,
        };
        let read = checkpoints(&mut Cursor::new(with_checkpoints()), 5);
        assert_eq!(read, Some(vec![of(146, 0, 145), of(196, 86, 195)]));
    }

    #[test]
    fn a_file_that_is_cut_off_or_has_no_checkpoints_gives_none() {
        let whole = with_checkpoints();
        for length in 0..whole.len() {
            let read = checkpoints(&mut Cursor::new(&whole[..length]), 5);
            assert_eq!(read, None, "{length}");
        }
        assert_eq!(checkpoints(&mut Cursor::new(&whole), 4), None);
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
