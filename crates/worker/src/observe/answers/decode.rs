//! Percent-encoding.

/// Decodes a text; `None` if it is not UTF-8, or not properly encoded.
pub(super) fn percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let [high, low] = [digit(digits[0])?, digit(digits[1])?];
        bytes.push(high << 4 | low);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

fn digit(byte: u8) -> Option<u8> {
    let value = char::from(byte).to_digit(16)?;
    u8::try_from(value).ok()
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
            assert_eq!(percent(encoded).as_deref(), Some(text));
        }
        for wrong in ["%", "%2", "%zz", "%+1", "%ff", "%C3"] {
            assert_eq!(percent(wrong), None, "{wrong}");
        }
    }
}
