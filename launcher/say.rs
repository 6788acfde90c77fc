use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};

use crate::sys;

/// Prints one line on stderr.
///
/// Not `eprintln!`, which panics when stderr cannot be written: the server must
/// start all the same. One write, so that lines of several processes do not mix.
pub(crate) fn say(message: impl Display) {
    let text = format!("[ContextPilot] {message}\n");
    let line = plain(&text);
    // Nor may the signal of a closed pipe end it.
    sys::without_sigpipe(|| {
        let _ = io::stderr().write_all(line.as_bytes());
    });
}

/// A text without characters that move a terminal's cursor or hide text. Parts of what we print come from elsewhere: ids
/// of clients, and what an endpoint says of itself.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    let moves = |c: char| match c {
        '\n' | '\t' => false,
        // They change the direction of what follows.
        '\u{61c}' | '\u{200e}' | '\u{200f}' => true,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    };
    if !text.contains(moves) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::new();
    for c in text.chars() {
        if moves(c) {
            plain.extend(c.escape_unicode())
        } else {
            plain.push(c)
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn what_moves_the_cursor_or_hides_text_is_made_visible() {
        assert_eq!(plain("a\tb “é” 木\n"), "a\tb “é” 木\n");
        assert_eq!(plain("\u{1b}[2J\r\u{9b}x"), "\\u{1b}[2J\\u{d}\\u{9b}x");
        assert_eq!(plain("\u{202e}x\u{2066}"), "\\u{202e}x\\u{2066}");
    }
}
