//! The tokens around a difference of two prompts, as text.

use contextpilot_control::DivergedText;
use contextpilot_residency::{Around, Token};

/// Stands for media, such as an image.
const MEDIA: &[u8] = b"[media]";

/// The tokens as text. `piece` returns the bytes of a token. `None`: `piece` does not know one of the
/// tokens.
///
/// The difference may be within a character that consists of several tokens. Then the first bytes of
/// the character, which both prompts share, are shown with the rest of it. If the tokens were cut off
/// within a character, that character is left out. Other bytes that are no UTF-8 are replaced.
pub fn quote(
    around: &Around,
    mut piece: impl FnMut(Token) -> Option<Vec<u8>>,
) -> Option<DivergedText> {
    let mut bytes = |tokens: &[Token]| -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut media = false;
        for &token in tokens {
            match token < 0 {
                true if media => {}
                true => bytes.extend_from_slice(MEDIA),
                false => bytes.extend(piece(token)?),
            }
            media = token < 0;
        }
        Some(bytes)
    };
    let before = bytes(&around.before)?;
    let was_cut = around.before.len() >= Around::BEFORE;
    let before = match was_cut {
        true => &before[continuation(&before)..],
        false => &before[..],
    };
    let (before, begun) = before.split_at(before.len() - incomplete(before));
    let mut behind = |tokens: &[Token]| -> Option<String> {
        let bytes = [begun, &bytes(tokens)?].concat();
        let cut = match tokens.len() >= Around::BEHIND {
            true => incomplete(&bytes),
            false => 0,
        };
        Some(String::from_utf8_lossy(&bytes[..bytes.len() - cut]).into_owned())
    };
    Some(DivergedText {
        old: behind(&around.old)?,
        new: behind(&around.new)?,
        before: String::from_utf8_lossy(before).into_owned(),
    })
}

/// How many bytes at the beginning belong to a character that began before them.
fn continuation(bytes: &[u8]) -> usize {
    let inner = bytes.iter().take(3);
    inner.take_while(|&&byte| byte & 0xc0 == 0x80).count()
}

/// How many bytes at the end are an incomplete character.
fn incomplete(bytes: &[u8]) -> usize {
    for length in 1..=bytes.len().min(3) {
        let wanted = match bytes[bytes.len() - length] {
            0x00..0x80 => return 0,
            0x80..0xc0 => continue,
            0xc0..0xe0 => 2,
            0xe0..0xf0 => 3,
            0xf0.. => 4,
        };
        return if length < wanted { length } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Quotes tokens of one byte each: the texts before, old and new.
    fn of(before: &[u8], old: &[u8], new: &[u8]) -> (String, String, String) {
        let tokens = |bytes: &[u8]| bytes.iter().map(|&byte| Token::from(byte)).collect();
        let around = Around {
            before: tokens(before),
            old: tokens(old),
            new: tokens(new),
        };
        let text = quote(&around, |token| Some(vec![u8::try_from(token).unwrap()]));
        let text = text.unwrap();
        (text.before, text.old, text.new)
    }

    fn texts(before: &str, old: &str, new: &str) -> (String, String, String) {
        (before.to_owned(), old.to_owned(), new.to_owned())
    }

    #[test]
    fn a_difference_within_a_character_shows_the_whole_of_it() {
        assert_eq!(
            of(b"caf\xc3", b"\xa9!", b"\xa8 noir"),
            texts("caf", "\u{e9}!", "\u{e8} noir")
        );
        // Only the last of four bytes differs.
        let (old, new) = ("\u{1f600}", "\u{1f601}");
        let [before, last] = [&old.as_bytes()[..3], &old.as_bytes()[3..]];
        assert_eq!(of(before, last, &new.as_bytes()[3..]), texts("", old, new));
    }

    #[test]
    fn an_incomplete_character_where_the_tokens_were_cut_is_left_out() {
        let long = "\u{20ac}".repeat(20);
        let from = |start: usize, length: usize| &long.as_bytes()[start..start + length];
        let before = from(1, Around::BEFORE);
        // These 16 bytes are 2 of one character, 4 whole ones, and 2 of the next.
        let (before, old, new) = of(before, b"\xac!", b"\xad");
        assert_eq!(before, "\u{20ac}".repeat(4));
        assert_eq!((&*old, &*new), ("\u{20ac}!", "\u{20ad}"));
        let cut = of(b"", from(0, Around::BEHIND - 1), from(0, Around::BEHIND));
        assert!(cut.1.ends_with('\u{fffd}'), "the prompt ends so: {}", cut.1);
        assert_eq!(cut.2, "\u{20ac}".repeat(8));
    }

    #[test]
    fn bytes_that_are_no_utf_8_are_replaced() {
        assert_eq!(
            of(b"a", b"\xff", b"\x80b"),
            texts("a", "\u{fffd}", "\u{fffd}b")
        );
    }

    #[test]
    fn successive_tokens_of_an_image_are_shown_once() {
        let around = Around {
            before: vec![65, -1, -1, 66],
            old: vec![-1],
            new: vec![],
        };
        let letter = |token| Some(vec![u8::try_from(token).unwrap()]);
        let text = quote(&around, letter).unwrap();
        assert_eq!(
            (&*text.before, &*text.old, &*text.new),
            ("A[media]B", "[media]", "")
        );
        assert_eq!(quote(&around, |_| None), None);
    }
}
