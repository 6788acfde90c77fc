//! The tokens around a difference of two prompts, as text.

use contextpilot_control::DivergedText;
use contextpilot_residency::{Around, Token};

/// Stands for media, such as an image.
const MEDIA: &[u8] = b"[media]";

/// The tokens as text. `piece` returns the bytes of a token. `None`: `piece` does not know one of the
/// tokens. `edit`: how many tokens only the new prompt has there, and how many only the old one.
///
/// The difference may be within a character that consists of several tokens. Then the first bytes of
/// the character, which both prompts share, are shown with the rest of it. If the tokens were cut off
/// within a character, that character is left out. Other bytes that are no UTF-8 are replaced.
pub(crate) fn quote(
    around: &Around,
    edit: (u64, u64),
    mut piece: impl FnMut(Token) -> Option<Vec<u8>>,
) -> Option<DivergedText> {
    let mut bytes = |tokens: &[Token]| -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut media = false;
        for &token in tokens {
            if token >= 0 {
                bytes.extend(piece(token)?);
            } else if !media {
                bytes.extend_from_slice(MEDIA);
            }
            media = token < 0;
        }
        Some(bytes)
    };
    let before = bytes(&around.before)?;
    let was_cut = around.before.len() >= Around::BEFORE;
    let before = if was_cut {
        &before[continuation(&before)..]
    } else {
        &before[..]
    };
    let (before, begun) = before.split_at(before.len() - incomplete(before));
    let mut behind = |tokens: &[Token], differing: usize| -> Option<(String, usize)> {
        let differs = [begun, &bytes(&tokens[..differing])?].concat();
        let bytes = [begun, &bytes(tokens)?].concat();
        let cut = if tokens.len() >= Around::BEHIND {
            incomplete(&bytes)
        } else {
            0
        };
        let text = String::from_utf8_lossy(&bytes[..bytes.len() - cut]).into_owned();
        // A character of which some bytes differ differs.
        let whole = differs.len() - incomplete(&differs);
        let begun = usize::from(whole < differs.len());
        let characters = String::from_utf8_lossy(&differs[..whole]).chars().count() + begun;
        let differs = characters.min(text.chars().count());
        Some((text, differs))
    };
    let (new, old) = differing(around, edit);
    let (old, old_differs) = behind(&around.old, old)?;
    let (new, new_differs) = behind(&around.new, new)?;
    Some(DivergedText {
        old,
        new,
        old_differs: Some(old_differs),
        new_differs: Some(new_differs),
        before: String::from_utf8_lossy(before).into_owned(),
    })
}

/// How many of the new and of the old tokens differ: all of them, unless those behind the edit are the same.
fn differing(around: &Around, (inserted, deleted): (u64, u64)) -> (usize, usize) {
    let (new, old) = (&around.new, &around.old);
    let [inserted, deleted] =
        [inserted, deleted].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    match (new.get(inserted..), old.get(deleted..)) {
        (Some(a), Some(b))
            if !a.is_empty() && !b.is_empty() && (a.starts_with(b) || b.starts_with(a)) =>
        {
            (inserted, deleted)
        }
        _ => (new.len(), old.len()),
    }
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
    fn quoted(before: &[u8], old: &[u8], new: &[u8]) -> (String, String, String) {
        let tokens = |bytes: &[u8]| bytes.iter().map(|&byte| Token::from(byte)).collect();
        let around = Around {
            before: tokens(before),
            old: tokens(old),
            new: tokens(new),
        };
        let piece = |token| Some(vec![u8::try_from(token).unwrap()]);
        let text = quote(&around, (0, 0), piece).unwrap();
        (text.before, text.old, text.new)
    }

    fn texts(before: &str, old: &str, new: &str) -> (String, String, String) {
        (before.to_owned(), old.to_owned(), new.to_owned())
    }

    #[test]
    fn a_difference_within_a_character_shows_the_whole_of_it() {
        assert_eq!(
            quoted(b"caf\xc3", b"\xa9!", b"\xa8 noir"),
            texts("caf", "\u{e9}!", "\u{e8} noir")
        );
        // Only the last of four bytes differs.
        let (old, new) = ("\u{1f600}", "\u{1f601}");
        let [before, last] = [&old.as_bytes()[..3], &old.as_bytes()[3..]];
        assert_eq!(
            quoted(before, last, &new.as_bytes()[3..]),
            texts("", old, new)
        );
    }

    #[test]
    fn an_incomplete_character_where_the_tokens_were_cut_is_left_out() {
        let long = "\u{20ac}".repeat(20);
        let from = |start: usize, length: usize| &long.as_bytes()[start..start + length];
        let before = from(1, Around::BEFORE);
        // These 16 bytes are 2 of one character, 4 whole ones, and 2 of the next.
        let (before, old, new) = quoted(before, b"\xac!", b"\xad");
        assert_eq!(before, "\u{20ac}".repeat(4));
        assert_eq!((&*old, &*new), ("\u{20ac}!", "\u{20ad}"));
        let cut = quoted(b"", from(0, Around::BEHIND - 1), from(0, Around::BEHIND));
        assert!(cut.1.ends_with('\u{fffd}'), "the prompt ends so: {}", cut.1);
        assert_eq!(cut.2, "\u{20ac}".repeat(8));
    }

    #[test]
    fn bytes_that_are_no_utf_8_are_replaced() {
        assert_eq!(
            quoted(b"a", b"\xff", b"\x80b"),
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
        let text = quote(&around, (0, 0), letter).unwrap();
        assert_eq!(
            (&*text.before, &*text.old, &*text.new),
            ("A[media]B", "[media]", "")
        );
        assert_eq!(quote(&around, (0, 0), |_| None), None);
    }

    #[test]
    fn what_differs_is_told_from_what_both_prompts_have_behind_it() {
        let of = |old: &str, new: &str, edit: (u64, u64)| {
            let tokens = |text: &str| text.bytes().map(Token::from).collect();
            let around = Around {
                before: tokens("on "),
                old: tokens(old),
                new: tokens(new),
            };
            let letter = |token| Some(vec![u8::try_from(token).unwrap()]);
            let text = quote(&around, edit, letter).unwrap();
            (text.old_differs.unwrap(), text.new_differs.unwrap())
        };
        assert_eq!(of("Monday, and", "Sunday, and", (2, 2)), (2, 2));
        assert_eq!(of("a cup of tea", "a large cup of t", (8, 2)), (2, 8));
        // Only the second byte of a character differs.
        assert_eq!(of("caf\u{e9} noir", "caf\u{e8} noir", (5, 5)), (4, 4));
        // Nothing is the same behind, or it is further on than is known.
        assert_eq!(of("tea", "milk", (4, 3)), (3, 4));
        assert_eq!(of("Monday", "Sunday", (3, 2)), (6, 6));
        assert_eq!(of("Monday", "Sunday", (100, 100)), (6, 6));
    }
}
