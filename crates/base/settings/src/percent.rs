//! Percent coding (RFC 3986), of text in paths and of user info.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// Everything but the unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The text with everything but unreserved characters encoded.
pub fn encode(text: &str) -> impl fmt::Display + '_ {
    utf8_percent_encode(text, RESERVED)
}

/// Why a text cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecodable {
    /// A `%` is not followed by two hexadecimal digits.
    Escape,
    /// What is decoded is not UTF-8.
    NotUtf8,
}

/// Decodes a text.
///
/// # Errors
/// It is not properly encoded. (The crate that decodes leaves a lone `%` as it is.)
pub fn decode(text: &str) -> Result<String, Undecodable> {
    if !is_encoded(text) {
        return Err(Undecodable::Escape);
    }
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| Undecodable::NotUtf8)
}

/// Whether two hexadecimal digits follow each `%`.
pub(crate) fn is_encoded(text: &str) -> bool {
    let mut escapes = text.split('%').skip(1).map(str::as_bytes);
    escapes.all(|after| {
        let digits = after.get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_text_decodes_to_itself_and_a_broken_one_to_nothing() {
        for (encoded, text) in [
            ("req-1", "req-1"),
            ("a%2Fb%3f%25", "a/b?%"),
            ("%C3%A9+", "\u{e9}+"),
            ("", ""),
        ] {
            assert_eq!(decode(encoded).as_deref(), Ok(text));
        }
        for wrong in ["%", "%2", "%zz", "%+1", "a%C3%"] {
            assert_eq!(decode(wrong), Err(Undecodable::Escape), "{wrong}");
        }
        for wrong in ["%ff", "%C3"] {
            assert_eq!(decode(wrong), Err(Undecodable::NotUtf8), "{wrong}");
        }
    }

    #[test]
    fn everything_but_unreserved_characters_is_encoded() {
        assert_eq!(encode("req-1_a.b~").to_string(), "req-1_a.b~");
        assert_eq!(encode("a/b ?\u{e9}%").to_string(), "a%2Fb%20%3F%C3%A9%25");
    }
}
