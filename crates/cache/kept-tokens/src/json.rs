//! JSON that was spelled otherwise.

use serde::de::IgnoredAny;
use serde_json::Deserializer;

/// How many beginnings of objects are tried at most.
const MOST: usize = 32;

/// Both texts have the same first bytes, and then one of them goes on otherwise, within an object. Where that ends in both, if
/// it is equal as JSON: the same names and values in the same order. Only white space between its tokens may differ, and
/// how characters of a string are escaped.
pub(crate) fn ends_of_equal(ours: &[u8], theirs: &[u8]) -> Option<(usize, usize)> {
    let pairs = ours.iter().zip(theirs);
    let same = pairs.take_while(|(ours, theirs)| ours == theirs).count();
    let begins = (0..same).filter(|&at| ours[at] == b'{');
    begins.take(MOST).find_map(|at| {
        let (our, their) = (object(&ours[at..])?, object(&theirs[at..])?);
        let both = (at + our.len(), at + their.len());
        (both.0 > same && are_equal(our, their)).then_some(both)
    })
}

/// The object with which a text begins.
fn object(text: &[u8]) -> Option<&[u8]> {
    let mut values = Deserializer::from_slice(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    let object = &text[..values.byte_offset()];
    std::str::from_utf8(object).ok().map(|_| object)
}

/// Whether two objects have the same tokens.
fn are_equal(mut ours: &[u8], mut theirs: &[u8]) -> bool {
    loop {
        let (a, b) = (token(&mut ours), token(&mut theirs));
        let is_same = a == b || a.first() == Some(&b'"') && is_same_string(a, b);
        if a.is_empty() || !is_same {
            return is_same;
        }
    }
}

fn is_same_string(a: &[u8], b: &[u8]) -> bool {
    let [a, b] = [a, b].map(|quoted| serde_json::from_slice::<String>(quoted).ok());
    a.is_some() && a == b
}

/// The next token of a valid text, without the white space before it. Empty: there is none.
fn token<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let all = text.trim_ascii_start();
    let length = match all {
        [] => 0,
        [b'"', inside @ ..] => {
            let mut escaped = false;
            let end = inside.iter().position(|&byte| {
                let is_end = byte == b'"' && !escaped;
                escaped = byte == b'\\' && !escaped;
                is_end
            });
            end.map_or(all.len(), |end| end + 2)
        }
        [b'{' | b'}' | b'[' | b']' | b':' | b',', ..] => 1,
        _ => {
            let ends = |byte: &u8| byte.is_ascii_whitespace() || b"{}[]:,\"".contains(byte);
            all.iter().position(ends).unwrap_or(all.len())
        }
    };
    let (token, rest) = all.split_at(length);
    *text = rest;
    token
}

#[cfg(test)]
mod tests {
    use contextpilot_random::Random;
    use serde_json::Value;

    use super::*;

    fn spaces(random: &mut Random, into: &mut String) {
        (0..random.below(3)).for_each(|_| into.push(random.choose(&[' ', '\n', '\t'])));
    }

    fn string(text: &str, random: &mut Random, into: &mut String) {
        into.push('"');
        for letter in text.chars() {
            match letter {
                _ if random.below(4) == 0 => {
                    letter
                        .encode_utf16(&mut [0; 2])
                        .iter()
                        .for_each(|unit| into.push_str(&format!("\\u{unit:04x}")));
                }
                '"' | '\\' => into.extend(['\\', letter]),
                '/' if random.below(2) == 0 => into.push_str("\\/"),
                '\n' => into.push_str("\\n"),
                _ => into.push(letter),
            }
        }
        into.push('"');
    }

    /// A value in a random spelling.
    fn spell(value: &Value, random: &mut Random, into: &mut String) {
        spaces(random, into);
        match value {
            Value::String(text) => string(text, random, into),
            Value::Array(all) => {
                into.push('[');
                for (nth, item) in all.iter().enumerate() {
                    into.push_str(if nth > 0 { "," } else { "" });
                    spell(item, random, into);
                }
                into.push(']');
            }
            Value::Object(all) => {
                into.push('{');
                for (nth, (name, value)) in all.iter().enumerate() {
                    into.push_str(if nth > 0 { "," } else { "" });
                    spaces(random, into);
                    string(name, random, into);
                    spaces(random, into);
                    into.push(':');
                    spell(value, random, into);
                }
                into.push('}');
            }
            other => into.push_str(&other.to_string()),
        }
        spaces(random, into);
    }

    fn value(random: &mut Random, depth: u64) -> Value {
        let text = |random: &mut Random| -> String {
            let length = random.below(4);
            (0..length)
                .map(|_| random.choose(&['a', '"', '\\', '/', '\n', 'é', '😀', '{', '}']))
                .collect()
        };
        match random.below(if depth == 0 { 4 } else { 6 }) {
            0 => Value::Null,
            1 => random.below(2).eq(&0).into(),
            2 => random.below(300).into(),
            3 => text(random).into(),
            4 => (0..random.below(3))
                .map(|_| value(random, depth - 1))
                .collect(),
            _ => object_of(random, depth - 1),
        }
    }

    fn object_of(random: &mut Random, depth: u64) -> Value {
        let all = (0..random.within(1..4)).map(|nth| (format!("n{nth}"), value(random, depth)));
        Value::Object(all.collect())
    }

    #[test]
    fn what_is_spelled_otherwise_is_found_and_nothing_else_is() {
        let mut random = Random(11);
        let (mut found, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let object = object_of(&mut random, 3);
            let mut texts = [0, 1].map(|_| {
                let mut text = String::new();
                spell(&object, &mut random, &mut text);
                text.trim().to_owned().into_bytes()
            });
            let is_damaged = random.below(2) == 0;
            if is_damaged {
                let at = random.index(texts[1].len());
                texts[1][at] = random.choose(b" \"\\{}[]:,0123456789naeu");
            }
            let [ours, theirs] = texts.map(|text| [b"call ", &text[..], b" end"].concat());
            match ends_of_equal(&ours, &theirs) {
                Some((our, their)) => {
                    // The first object that differs may be an inner one. It begins at the same place in both.
                    let begins = (0..our.min(their)).find(|&at| {
                        let both = [&ours[at..our], &theirs[at..their]];
                        let [our, their] = both.map(serde_json::from_slice::<Value>);
                        ours[..at] == theirs[..at]
                            && matches!((our, their), (Ok(our), Ok(their)) if our == their)
                    });
                    assert!(begins.is_some(), "{ours:?} {theirs:?}");
                    found += 1;
                }
                None => {
                    assert!(is_damaged || ours == theirs, "{ours:?} {theirs:?}");
                    refused += 1;
                }
            }
        }
        assert!(found > 8000 && refused > 5000, "{found} {refused}");
    }

    #[test]
    fn other_numbers_names_and_orders_are_not_equal() {
        let ours = br#"{"a":1,"b":[1,2]}"#;
        for theirs in [
            r#"{"a": 1.0,"b":[1,2]}"#,
            r#"{"b":[1,2],"a":1}"#,
            r#"{"a":1,"b":[12]}"#,
            r#"{"a":1,"b":[1,2],}"#,
            r#"{"a": 1,"b":[1,2]"#,
            r#"{"a":"1","b":[1,2]}"#,
        ] {
            assert_eq!(ends_of_equal(ours, theirs.as_bytes()), None, "{theirs}");
        }
        let theirs = "{ \"a\" : 1, \"b\": [1, 2] } and";
        assert_eq!(
            ends_of_equal(ours, theirs.as_bytes()),
            Some((17, theirs.len() - 4))
        );
    }
}
