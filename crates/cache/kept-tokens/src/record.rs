//! An answer as bytes (integers are little-endian):
//!
//! ```text
//! "CPans1\0\0", u64 key, u32 tokens, u32 of these before the answer, the tokens, u64 sum
//! ```

const MAGIC: &[u8; 8] = b"CPans1\0\0";

/// No answer has more tokens.
const MOST: usize = 1 << 22;

/// What an answer consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: u64,
    pub(crate) tokens: Vec<i32>,
    pub(crate) before: usize,
}

/// Stands for some tokens and one more. (Two lists with the same number do no harm: the text decides.)
pub(crate) fn and(tokens: u64, token: i32) -> u64 {
    (tokens.rotate_left(7) ^ u64::from(token as u32)).wrapping_mul(0xf135_7aea_2e62_a9c5)
}

fn sum(key: u64, tokens: &[i32], before: usize) -> u64 {
    let all = tokens.iter().fold(key, |sum, &token| and(sum, token));
    and(all, before as i32)
}

pub(crate) fn encode(key: u64, tokens: &[i32], before: usize) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(key.to_le_bytes());
    bytes.extend((tokens.len() as u32).to_le_bytes());
    bytes.extend((before as u32).to_le_bytes());
    tokens
        .iter()
        .for_each(|token| bytes.extend(token.to_le_bytes()));
    bytes.extend(sum(key, tokens, before).to_le_bytes());
    bytes
}

/// The first record, and what follows it.
pub(crate) fn decode(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (key, rest) = rest.split_first_chunk()?;
    let (count, rest) = rest.split_first_chunk()?;
    let (before, rest) = rest.split_first_chunk()?;
    let key = u64::from_le_bytes(*key);
    let (count, before) = (
        u32::from_le_bytes(*count) as usize,
        u32::from_le_bytes(*before) as usize,
    );
    if count > MOST || before > count {
        return None;
    }
    let (tokens, rest) = rest.split_at_checked(4 * count)?;
    let tokens = tokens
        .chunks_exact(4)
        .map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]]));
    let tokens: Vec<i32> = tokens.collect();
    let (told, rest) = rest.split_first_chunk()?;
    let good = u64::from_le_bytes(*told) == sum(key, &tokens, before);
    good.then_some((
        Record {
            key,
            tokens,
            before,
        },
        rest,
    ))
}
