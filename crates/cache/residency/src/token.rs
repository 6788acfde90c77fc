//! Tokens: those of the vocabulary, and those that stand for media or for what was not seen.

/// A vocabulary token, an opaque media token (negative, see [`media_token`]), or a placeholder
/// (2³⁰ and above, see [`unseen_token`]).
pub type Token = i32;
/// A position in a sequence (`llama_pos`). A negative bound of a range is open, as in the engine's
/// API.
pub type Position = i32;

/// Makes the opaque token that stands for one row of media embeddings. `content_hash` is the hash
/// of the row or, better, of the whole media item that the rows come from.
///
/// Vocabulary tokens are never negative, so the two kinds cannot be confused. Equal media have
/// equal tokens. A token of different media is equal by chance once in 2³¹.
#[must_use]
pub const fn media_token(content_hash: u32) -> Token {
    (content_hash | 0x8000_0000) as Token
}

/// The token for positions that a media item takes beyond its rows.
pub const FILLER: Token = media_token(0x6669_6c6c);

/// The tokens of a media item whose rows all have the same token, one for each of `positions`
/// positions. If the rows share one position (`shared`), the token stands at the first position and
/// [`FILLER`] at the others.
pub fn media_run(token: Token, positions: usize, shared: bool) -> impl Iterator<Item = Token> {
    let of = move |nth| if nth > 0 && shared { FILLER } else { token };
    (0..positions).map(of)
}

/// Makes the placeholder for a token that the ledger did not see being written, or that the server
/// will not find again: the one at `position` of the `nth` such content.
///
/// Placeholders are 2³⁰ and above. No vocabulary is so large, so a placeholder equals no token of
/// another kind. Two placeholders are equal by chance once in 2³⁰.
#[must_use]
pub const fn unseen_token(nth: u32, position: Position) -> Token {
    // The last step of SplitMix64.
    let mut z = ((nth as u64) << 32) | (position as u32 as u64);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    0x4000_0000 | ((z ^ (z >> 31)) & 0x3fff_ffff) as Token
}

/// Whether a token is a placeholder of [`unseen_token`].
pub(crate) const fn is_unseen(token: Token) -> bool {
    token >= 0x4000_0000
}

/// Whether a token is one of the model's vocabulary: neither a media token nor a placeholder.
#[must_use]
pub const fn is_of_vocabulary(token: Token) -> bool {
    token >= 0 && !is_unseen(token)
}
