//! What was generated keeps its tokens.
//!
//! A client sends an answer back as text, and the server tokenizes the next prompt as a whole. The model may have written
//! the same text in other tokens, and then the KV of its answer, and of all behind it, is of no use. So answers are
//! remembered ([`Answers`]), and where the text of a prompt goes on as one of them did, behind the same tokens, the prompt gets
//! the answer's tokens ([`Answers::keep`]): up to the last place where both ways to divide the text have a boundary, or, at the end of
//! the answer, where one more token leads to one.
//!
//! The text stays the same, byte for byte, and so does which of its bytes are special tokens. Tool calls may be an exception, if that is
//! wanted: JSON that is equal, and the header of a call in gpt-oss's format.

#![forbid(unsafe_code)]

mod answers;
mod cursor;
mod header;
mod json;
mod record;

pub use answers::{AnswerId, Answers, Kept, Other, with_others};

/// The vocabulary of a model.
pub trait Vocabulary {
    /// The bytes of a token, special tokens as their text. Empty: it has none, or there is no such token.
    fn piece(&self, token: i32) -> &[u8];

    /// The token that is a piece of text with these bytes.
    fn token_of(&self, piece: &[u8]) -> Option<i32>;

    /// Whether the token is not a piece of text: a control token, an unknown one, or one that the user defined.
    fn is_special(&self, token: i32) -> bool;
}
