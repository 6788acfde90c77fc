//! Numbers as C++ reads them.

/// `std::stoi`: skips white space, reads a sign and decimal digits, and ignores the rest. `None`:
/// it throws, because there is no digit or the number is beyond an `int`.
pub(crate) fn integer(text: &[u8]) -> Option<i32> {
    let (sign, rest) = sign(text);
    let digits = &rest[..count(rest, u8::is_ascii_digit)];
    let number = std::str::from_utf8(digits).ok()?.parse::<i64>().ok()?;
    i32::try_from(sign * number).ok()
}

/// `std::stof`: as [`integer`], with a fraction and an exponent. `None`: it throws, because there is no
/// number or it is beyond a `float`, near zero included. Hexadecimal numbers are not understood here.
pub(crate) fn real(text: &[u8]) -> Option<f32> {
    let (sign, rest) = sign(text);
    let word = String::from_utf8_lossy(&rest[..rest.len().min(3)]).to_ascii_lowercase();
    if word == "nan" || word == "inf" {
        return word.parse().ok().map(|number: f32| sign as f32 * number);
    }
    if word.starts_with("0x") {
        return None;
    }
    let mut end = count(rest, u8::is_ascii_digit);
    let mut digits = end;
    if rest.get(end) == Some(&b'.') {
        let fraction = count(&rest[end + 1..], u8::is_ascii_digit);
        digits += fraction;
        end += 1 + fraction;
    }
    if digits == 0 {
        return None;
    }
    let mantissa = &rest[..end];
    if matches!(rest.get(end), Some(b'e' | b'E')) {
        let signed = usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
        let begin = end + 1 + signed;
        let exponent = count(rest.get(begin..).unwrap_or_default(), u8::is_ascii_digit);
        if exponent > 0 {
            end = begin + exponent;
        }
    }
    let number: f32 = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
    let is_zero = !mantissa.iter().any(|byte| (b'1'..=b'9').contains(byte));
    (number.is_normal() || is_zero).then_some(sign as f32 * number)
}

/// The sign (1 if there is none), and the text behind it. White space before it is skipped.
fn sign(text: &[u8]) -> (i64, &[u8]) {
    let text = &text[count(text, is_space)..];
    match text.split_first() {
        Some((b'-', rest)) => (-1, rest),
        Some((b'+', rest)) => (1, rest),
        _ => (1, text),
    }
}

fn count(text: &[u8], matches: impl Fn(&u8) -> bool) -> usize {
    text.iter().take_while(|byte| matches(byte)).count()
}

/// `isspace` of the C locale.
pub(crate) fn is_space(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || *byte == 0x0b
}

/// `string_strip`
pub(crate) fn strip(text: &[u8]) -> &[u8] {
    let text = &text[count(text, is_space)..];
    let end = text.iter().rposition(|byte| !is_space(byte));
    &text[..end.map_or(0, |last| last + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_ends_where_its_digits_end() {
        for (text, expected) in [
            ("8", Some(8)),
            (" \x0b+8x", Some(8)),
            ("-1", Some(-1)),
            ("0x10", Some(0)),
            ("45124.9", Some(45124)),
            ("2147483647", Some(i32::MAX)),
            ("-2147483648", Some(i32::MIN)),
            ("2147483648", None),
            ("99999999999999999999", None),
            ("", None),
            ("x", None),
            ("- 1", None),
            ("+-1", None),
        ] {
            assert_eq!(integer(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_real_number_has_a_fraction_and_an_exponent() {
        for (text, expected) in [
            ("0.5x", Some(0.5)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("1e-1", Some(0.1)),
            ("1e", Some(1.0)),
            ("1e+", Some(1.0)),
            ("-2", Some(-2.0)),
            ("0", Some(0.0)),
            ("0e99", Some(0.0)),
            ("infinity", Some(f32::INFINITY)),
            ("1e99", None),
            ("1e-40", None),
            ("1e-60", None),
            (".", None),
            ("e1", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(real(text.as_bytes()), expected, "{text:?}");
        }
        assert!(real(b"NaN").is_some_and(f32::is_nan));
    }

    #[test]
    fn white_space_is_that_of_c() {
        assert_eq!(strip(b"\t a b\x0b\r\n"), b"a b");
        assert_eq!(strip(b" \n"), b"");
    }
}
