//! A place in a text, and in the tokens into which the tokenizer divides it.

use crate::Vocabulary;

/// What the places of one prompt have in common.
pub(crate) struct Prompt<'a, V> {
    pub(crate) text: &'a [u8],
    /// The tokenizer's own tokens.
    pub(crate) canonical: &'a [i32],
    /// How many of the first tokens the tokenizer has added: they have no text.
    pub(crate) added: usize,
    pub(crate) vocabulary: &'a V,
}

/// A place in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Bytes before it.
    pub(crate) at: usize,
    /// The tokenizer's tokens that begin before it.
    pub(crate) canonical: usize,
    /// Where the last of these ends.
    end: usize,
    /// A text begins here: before it stands a special token, or nothing.
    begins: bool,
}

impl Cursor {
    pub(crate) const START: Self = Self {
        at: 0,
        canonical: 0,
        end: 0,
        begins: true,
    };

    /// Whether the tokenizer's tokens have a boundary here.
    pub(crate) fn is_boundary(&self) -> bool {
        self.at == self.end
    }

    /// The place behind the tokenizer's next token, which has so many bytes of the text.
    fn behind(self, width: usize, is_special: bool) -> Self {
        let at = self.at + width;
        Self {
            at,
            canonical: self.canonical + 1,
            end: at,
            begins: is_special,
        }
    }

    /// The next such boundary.
    pub(crate) fn up(self) -> Self {
        Self {
            at: self.end,
            ..self
        }
    }
}

impl<V: Vocabulary> Prompt<'_, V> {
    /// How many bytes of the text a token stands for here. Some tokenizers put a space before a text, which it has not.
    /// `None`: the text goes on otherwise.
    fn width(&self, token: i32, at: usize, begins: bool) -> Option<usize> {
        let piece = self.vocabulary.piece(token);
        let rest = self.text.get(at..)?;
        if piece.is_empty() {
            return None;
        }
        if rest.starts_with(piece) {
            return Some(piece.len());
        }
        let shorter = piece.strip_prefix(b" ").filter(|_| begins)?;
        rest.starts_with(shorter).then_some(shorter.len())
    }

    /// The text from a place on to where the tokenizer has a boundary.
    pub(crate) fn rest(&self, place: Cursor) -> &[u8] {
        self.text.get(place.at..place.end).unwrap_or_default()
    }

    /// Whether the tokenizer has put a space before the text that begins here.
    fn puts_space(&self, place: Cursor) -> bool {
        let token = self.canonical.get(place.canonical);
        let next = self.next_canonical(place);
        token
            .zip(next)
            .is_some_and(|(token, next)| next.at - place.at < self.vocabulary.piece(*token).len())
    }

    /// As [`next_canonical`](Self::next_canonical), without a look at the text, which takes longer: the place is right if pieces
    /// have as many bytes as their text.
    pub(crate) fn pass_canonical(&self, place: Cursor) -> Option<Cursor> {
        let token = *self.canonical.get(place.canonical)?;
        let is_special = self.vocabulary.is_special(token);
        let piece = self.vocabulary.piece(token);
        let width = if place.canonical < self.added {
            0
        } else if place.begins && piece.first() == Some(&b' ') {
            self.width(token, place.at, !is_special)?
        } else {
            piece.len()
        };
        Some(place.behind(width, is_special))
    }

    /// The place behind the tokenizer's next token, at a boundary. `None`: its pieces are not the text.
    pub(crate) fn next_canonical(&self, place: Cursor) -> Option<Cursor> {
        let token = *self.canonical.get(place.canonical)?;
        let is_special = self.vocabulary.is_special(token);
        let width = if place.canonical < self.added {
            0
        } else {
            self.width(token, place.at, place.begins && !is_special)?
        };
        Some(place.behind(width, is_special))
    }

    /// The place behind a token of an answer. `None`: the text goes on otherwise, or a special token is text in one of both.
    pub(crate) fn next(&self, place: Cursor, token: i32) -> Option<Cursor> {
        if self.vocabulary.is_special(token) {
            let same = place.is_boundary() && self.canonical.get(place.canonical) == Some(&token);
            return same.then(|| self.next_canonical(place)).flatten();
        }
        // Only where the tokenizer itself has put a space that the text has not.
        let spaced = place.begins && self.puts_space(place);
        self.advance(place, place.at + self.width(token, place.at, spaced)?)
    }

    /// The place of these bytes, which is behind another one. `None`: a special token is between them.
    pub(crate) fn advance(&self, place: Cursor, at: usize) -> Option<Cursor> {
        let mut ahead = place.up();
        while ahead.at < at {
            let next = *self.canonical.get(ahead.canonical)?;
            if self.vocabulary.is_special(next) {
                return None;
            }
            ahead = self.next_canonical(ahead)?;
        }
        Some(Cursor {
            at,
            begins: false,
            ..ahead
        })
    }
}
