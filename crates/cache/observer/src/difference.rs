//! The place where a prompt differs from an earlier one, and what is known of its text.

use std::sync::Arc;

use contextpilot_control::{Diverged, DivergedText};
use contextpilot_request::Sent;
use contextpilot_residency::{Around, Token};

use crate::quote::quote;

/// A date or a number has so many words: `Monday, 30 November 2026`.
const WORDS: usize = 4;

/// The tokens around a difference, and what its client had sent.
#[derive(Clone, Debug)]
pub struct Difference {
    pub(crate) around: Box<Around>,
    pub(crate) sent: Option<Arc<Sent>>,
}

impl Difference {
    /// The tokens there.
    #[must_use]
    pub fn around(&self) -> &Around {
        &self.around
    }

    /// Adds the text to a difference. `piece` returns the bytes of a token, or `None` if it does not know that.
    pub fn describe(&self, diverged: &mut Diverged, piece: impl FnMut(Token) -> Option<Vec<u8>>) {
        let edit = (diverged.inserted, diverged.deleted);
        diverged.text = quote(&self.around, edit, piece);
        let new = diverged.text.as_ref().and_then(new_words);
        let sent = self.sent.as_ref();
        diverged.sent = new.and_then(|new| sent?.may_have(&new));
    }
}

/// The words at a difference that only the new prompt has, whole, up to the end of their line. `None`: there are none.
fn new_words(text: &DivergedText) -> Option<String> {
    let differs = text.new_differs.unwrap_or(0);
    // Quotes and brackets end a text within JSON, and a special token is written in brackets.
    let ends = |letter: char| "\n\"<>[]{}|".contains(letter);
    let line: Vec<char> = text
        .new
        .chars()
        .take_while(|letter| !ends(*letter))
        .collect();
    let is_cut = line.len() == text.new.chars().count();
    let is_word = |letter: char| letter.is_ascii_alphanumeric();
    if differs == 0 || line.is_empty() {
        return None;
    }
    // The difference may be within a date: `2026-11-` stands before it.
    let joins = |letter: char| is_word(letter) || "-/.".contains(letter);
    let mut begun = 0;
    if joins(line[0]) {
        let before = text.before.chars().rev();
        begun = before.take_while(|letter| joins(*letter)).count();
    }
    let skipped = text.before.chars().count() - begun;
    let mut words: String = text.before.chars().skip(skipped).collect();
    let mut number = 0;
    for (at, &letter) in line.iter().enumerate() {
        let begins = is_word(letter) && (at == 0 || !is_word(line[at - 1]));
        number += usize::from(begins);
        if number > WORDS {
            return Some(words);
        }
        words.push(letter);
    }
    // What was cut off may be the rest of a word.
    let whole = words.trim_end_matches(is_word).len();
    words.truncate(if is_cut { whole } else { words.len() });
    Some(words).filter(|words| !words.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_words_of(before: &str, new: &str, differs: usize) -> Option<String> {
        new_words(&DivergedText {
            before: before.to_owned(),
            new: new.to_owned(),
            new_differs: Some(differs),
            ..DivergedText::default()
        })
    }

    #[test]
    fn what_is_new_is_a_few_whole_words_of_one_line() {
        let words = |text: &str| Some(text.to_owned());
        assert_eq!(
            new_words_of("Today Date: ", "30 Nov 2026\n\nYou", 2),
            words("30 Nov 2026")
        );
        assert_eq!(
            new_words_of("Today Date: 2", "9 Nov 2026\n\nYou", 1),
            words("29 Nov 2026")
        );
        assert_eq!(
            new_words_of("date is 2026-11-", "30<|end|>", 2),
            words("2026-11-30")
        );
        assert_eq!(
            new_words_of("date: ", "Monday, 30 November 2026 and more", 2),
            words("Monday, 30 November 2026 ")
        );
        assert_eq!(new_words_of("a", " 30, \"b\": 7", 3), words(" 30, "));
        // The rest of the last word is not shown.
        assert_eq!(new_words_of("on ", "30 Nov 20", 2), words("30 Nov "));
        assert_eq!(new_words_of("on ", "30", 2), None);
        assert_eq!(new_words_of("on ", "\n30", 3), None);
        assert_eq!(
            new_words_of("on ", "30 Nov\n", 0),
            None,
            "nothing is new there"
        );
    }
}
