//! How much memory a request takes while it is worked on.

use crate::Endpoint;

/// For each byte of a body: its copies while it is read, and in the answer.
const BYTE: usize = 4;
/// For each value in it, beside its bytes: the value itself, its copies, and what they are ordered by.
const VALUE: usize = 400;
/// The same for an id.
const ID: usize = 200;

/// Bytes that a body takes until it is answered, about and at most: the body itself, what is read of it, and the
/// answer. A small body can hold many values, and each takes far more than its text.
#[must_use]
pub fn weight(endpoint: Endpoint, body: &[u8]) -> usize {
    let value = match endpoint {
        Endpoint::Evict => ID,
        _ => VALUE,
    };
    let bytes = body.len().saturating_mul(BYTE);
    bytes.saturating_add(values(body).saturating_mul(value))
}

/// No fewer than there are values and members in a text that is JSON.
fn values(body: &[u8]) -> usize {
    let mut count = 1;
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                // To the end of the string.
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            b',' | b'[' | b'{' => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_and_texts_are_not_read() {
        for (text, expected) in [
            ("1", 1),
            ("[]", 2),
            ("[1,2,3]", 4),
            (r#"{"a":[1,"x,[{\"y,,"],"b":2}"#, 5),
            (r#"["never ends,,,"#, 2),
            (r#"["\"#, 2),
            ("", 1),
        ] {
            assert_eq!(values(text.as_bytes()), expected, "{text}");
        }
    }
}
