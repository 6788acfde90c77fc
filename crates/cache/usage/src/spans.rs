//! Values in a JSON text, by where they stand, so that some can be replaced with every other byte as it was.

use std::ops::Range;

/// What replaces the bytes of a value.
pub type Edit = (Range<usize>, String);

/// The text with these edits, which do not overlap.
#[must_use]
pub fn apply(text: &[u8], mut edits: Vec<Edit>) -> Vec<u8> {
    edits.sort_by_key(|(at, _)| at.start);
    let (mut right, mut done) = (Vec::with_capacity(text.len() + 64), 0);
    for (at, value) in edits {
        right.extend_from_slice(text.get(done..at.start).unwrap_or_default());
        right.extend_from_slice(value.as_bytes());
        done = at.end;
    }
    right.extend_from_slice(text.get(done..).unwrap_or_default());
    right
}

/// A value of a text that was found to be JSON.
#[derive(Clone, Debug)]
pub struct Value<'a> {
    text: &'a [u8],
    at: Range<usize>,
}

impl<'a> Value<'a> {
    /// The value that the whole text is.
    #[must_use]
    pub fn from_text(text: &'a [u8]) -> Self {
        let all = Self {
            text,
            at: 0..text.len(),
        };
        let start = all.blank(0);
        let at = start..all.end_of(start);
        Self { text, at }
    }

    /// The bytes that it takes in the text.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.text.get(self.at.clone()).unwrap_or_default()
    }

    /// `None`: it is no whole number, or one that is negative or too large.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        std::str::from_utf8(self.bytes()).ok()?.parse().ok()
    }

    /// `None`: it is no number.
    #[must_use]
    pub fn fraction(&self) -> Option<f64> {
        std::str::from_utf8(self.bytes()).ok()?.parse().ok()
    }

    /// Whether it is a text in quotes.
    #[must_use]
    pub fn is_string(&self) -> bool {
        self.bytes().starts_with(b"\"")
    }

    /// `None`: it is none, or one that cannot be a Rust string.
    #[must_use]
    pub fn string(&self) -> Option<String> {
        serde_json::from_slice(self.bytes()).ok()
    }

    /// An edit that puts another value in its place.
    #[must_use]
    pub fn becomes(&self, value: impl ToString) -> Edit {
        (self.at.clone(), value.to_string())
    }

    /// The member of this name, the last if there are several.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<Value<'a>> {
        let named = self.members().filter(|(key, _)| key.is(name));
        named.last().map(|(_, value)| value)
    }

    /// Whether it is the text of this name, without escapes.
    fn is(&self, name: &str) -> bool {
        let quoted = self.bytes().strip_prefix(b"\"");
        quoted.and_then(|rest| rest.strip_suffix(b"\"")) == Some(name.as_bytes())
    }

    /// The members of an object with their names, in the order of the text. None for another value.
    pub fn members(&self) -> impl Iterator<Item = (Value<'a>, Value<'a>)> {
        let all = self.clone();
        let mut next = self.first(b'{');
        std::iter::from_fn(move || {
            let key = all.value_at(next?)?;
            let value = all.value_at(all.blank(all.blank(key.at.end) + 1))?;
            next = all.behind(&value);
            Some((key, value))
        })
    }

    /// The values of a list. None for another value.
    pub fn elements(&self) -> impl Iterator<Item = Value<'a>> {
        let all = self.clone();
        let mut next = self.first(b'[');
        std::iter::from_fn(move || {
            let value = all.value_at(next?)?;
            next = all.behind(&value);
            Some(value)
        })
    }

    /// The texts in it at any depth, without the names of members.
    pub fn texts(&self) -> impl Iterator<Item = Value<'a>> {
        let (all, mut next) = (self.clone(), self.at.start);
        std::iter::from_fn(move || {
            loop {
                let rest = all.text.get(next..all.at.end)?;
                let start = next + rest.iter().position(|byte| *byte == b'"')?;
                next = all.end_of_text(start);
                if all.text.get(all.blank(next)) != Some(&b':') {
                    let (text, at) = (all.text, start..next);
                    return Some(Value { text, at });
                }
            }
        })
    }

    /// Where the first value begins of a list or an object, which itself begins with this byte.
    fn first(&self, opening: u8) -> Option<usize> {
        let is_it = self.text.get(self.at.start) == Some(&opening);
        is_it.then(|| self.blank(self.at.start + 1))
    }

    /// Where the next value begins in a list or an object.
    fn behind(&self, value: &Value<'a>) -> Option<usize> {
        let at = self.blank(value.at.end);
        (self.text.get(at) == Some(&b',')).then(|| self.blank(at + 1))
    }

    /// The value that begins here. `None`: there is none, the list or object ends.
    fn value_at(&self, start: usize) -> Option<Value<'a>> {
        let at = start..self.end_of(start);
        let (text, is_there) = (self.text, !at.is_empty());
        is_there.then_some(Value { text, at })
    }

    /// The first place from here on that is no blank.
    fn blank(&self, from: usize) -> usize {
        let rest = self.text.get(from..).unwrap_or_default();
        let blanks = rest.iter().take_while(|byte| byte.is_ascii_whitespace());
        from + blanks.count()
    }

    /// Where the value that begins here ends.
    fn end_of(&self, from: usize) -> usize {
        let (mut depth, mut at) = (0_usize, from);
        while let Some(byte) = self.text.get(at) {
            match byte {
                b'"' => at = self.end_of_text(at) - 1,
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth == 0 => return at,
                b'}' | b']' => depth -= 1,
                b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return at,
                _ => {}
            }
            at += 1;
            if depth == 0 && matches!(byte, b'"' | b'}' | b']') {
                return at;
            }
        }
        at
    }

    fn end_of_text(&self, from: usize) -> usize {
        let mut at = from + 1;
        while let Some(byte) = self.text.get(at) {
            match byte {
                b'\\' => at += 2,
                b'"' => return at + 1,
                _ => at += 1,
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_elements_are_found_where_they_stand() {
        let text = br#" { "a" : [1, "x,]", {"b":2} ,[]], "c":{} , "d\"":null,"a":"\u00e9" } "#;
        let all = Value::from_text(text);
        let shown: Vec<_> = all
            .members()
            .map(|(key, value)| [key, value].map(|it| String::from_utf8_lossy(it.bytes())))
            .collect();
        let expected = [
            [r#""a""#, r#"[1, "x,]", {"b":2} ,[]]"#],
            [r#""c""#, "{}"],
            [r#""d\"""#, "null"],
            [r#""a""#, r#""\u00e9""#],
        ];
        assert_eq!(shown, expected);
        let list = all.members().next().expect("a member").1;
        let elements: Vec<_> = list.elements().map(|it| it.bytes()).collect();
        let expected: [&[u8]; 4] = [b"1", br#""x,]""#, br#"{"b":2}"#, b"[]"];
        assert_eq!(elements, expected);
        let last = all.member("a").expect("a member");
        assert_eq!(last.string().as_deref(), Some("é"));
        assert_eq!(all.member("c").expect("a member").members().count(), 0);
        assert_eq!((list.members().count(), last.elements().count()), (0, 0));
        let texts: Vec<_> = all.texts().map(|it| it.bytes()).collect();
        let expected: [&[u8]; 2] = [br#""x,]""#, br#""\u00e9""#];
        assert_eq!(texts, expected);
    }
}
