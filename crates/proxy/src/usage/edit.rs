//! Finds the figures in a JSON text and replaces them, with every other byte as it was.

use std::ops::Range;

use serde::de::IgnoredAny;

use super::Account;

/// Only a member has a quote right behind its name: in a text, a quote has a backslash before it.
const FIGURES: [&[u8]; 3] = [
    b"\"cached_tokens\"",
    b"\"cache_n\"",
    b"\"cache_read_input_tokens\"",
];

/// An event with this member says how far a prompt is, and has the timings of that moment. The server writes no blanks.
const PROGRESS: &[u8] = b"\"prompt_progress\":";

/// Whether there may be something to put right.
pub(super) fn has_figures(text: &[u8]) -> bool {
    FIGURES.iter().any(|name| has(text, name))
}

/// Whether an event's line may have something to put right. While a prompt is evaluated there is no account of it yet.
pub(super) fn has_final_figures(line: &[u8]) -> bool {
    has_figures(line) && !has(line, PROGRESS)
}

fn has(text: &[u8], name: &[u8]) -> bool {
    text.windows(name.len()).any(|bytes| bytes == name)
}

/// An answer of the server, or an event of one, with the usage that is right. `None`: it is to be left alone.
///
/// ```
/// use contextpilot_proxy::{Account, correct};
///
/// let account = Account { reused: 90, evaluated: 10, loaded: 86 };
/// let answer = br#"{"usage":{"input_tokens":96, "cache_read_input_tokens":4}}"#;
/// let right = br#"{"usage":{"input_tokens":10, "cache_read_input_tokens":90}}"#;
/// assert_eq!(correct(answer, account).unwrap(), right);
/// ```
#[must_use]
pub fn correct(answer: &[u8], account: Account) -> Option<Vec<u8>> {
    if account.loaded == 0 || !has_figures(answer) {
        return None;
    }
    // What follows relies on it.
    serde_json::from_slice::<IgnoredAny>(answer).ok()?;
    let all = Value {
        text: answer,
        at: 0..answer.len(),
    };
    let mut edits = Vec::new();
    for place in [
        Some(all.clone()),
        all.member("response"),
        all.member("message"),
    ] {
        let place = place.as_ref();
        let usage = place.and_then(|place| place.member("usage"));
        edits.extend(
            usage
                .and_then(|usage| in_usage(&usage, account))
                .unwrap_or_default(),
        );
        let timings = place.and_then(|place| place.member("timings"));
        edits.extend(
            timings
                .and_then(|timings| in_timings(&timings, account))
                .unwrap_or_default(),
        );
    }
    (!edits.is_empty()).then(|| apply(answer, edits))
}

/// A number that replaces another one.
type Edit = (Range<usize>, String);

fn apply(text: &[u8], mut edits: Vec<Edit>) -> Vec<u8> {
    edits.sort_by_key(|(at, _)| at.start);
    let (mut right, mut done) = (Vec::with_capacity(text.len() + 64), 0);
    for (at, number) in edits {
        right.extend_from_slice(text.get(done..at.start).unwrap_or_default());
        right.extend_from_slice(number.as_bytes());
        done = at.end;
    }
    right.extend_from_slice(text.get(done..).unwrap_or_default());
    right
}

impl Account {
    /// What the server counts as cached, and as evaluated.
    fn servers(self) -> Option<(u64, u64)> {
        let cached = self.reused.checked_sub(self.loaded)?;
        Some((cached, self.evaluated.checked_add(self.loaded)?))
    }
}

/// OpenAI's two forms of usage, or Anthropic's.
fn in_usage(usage: &Value<'_>, account: Account) -> Option<Vec<Edit>> {
    let (cached, evaluated) = account.servers()?;
    if let Some(read) = usage.member("cache_read_input_tokens") {
        let input = usage.member("input_tokens")?;
        let is_it = read.number()? == cached && input.number()? == evaluated;
        return is_it.then(|| {
            vec![
                read.becomes(account.reused),
                input.becomes(account.evaluated),
            ]
        });
    }
    let (prompt, details) = [
        ("prompt_tokens", "prompt_tokens_details"),
        ("input_tokens", "input_tokens_details"),
    ]
    .into_iter()
    .find_map(|(prompt, details)| Some((usage.member(prompt)?, usage.member(details)?)))?;
    let read = details.member("cached_tokens")?;
    let is_it = read.number()? == cached && prompt.number()? == cached + evaluated;
    is_it.then(|| vec![read.becomes(account.reused)])
}

/// The time stays: it was taken, with what loading took of it.
fn in_timings(timings: &Value<'_>, account: Account) -> Option<Vec<Edit>> {
    let (cached, evaluated) = account.servers()?;
    let (cache_n, prompt_n) = (timings.member("cache_n")?, timings.member("prompt_n")?);
    if cache_n.number()? != cached || prompt_n.number()? != evaluated {
        return None;
    }
    let mut edits = vec![
        cache_n.becomes(account.reused),
        prompt_n.becomes(account.evaluated),
    ];
    let milliseconds = timings.member("prompt_ms").and_then(|it| it.fraction());
    if let Some(milliseconds) = milliseconds.filter(|it| *it > 0.0 && account.evaluated > 0) {
        #[allow(clippy::cast_precision_loss, reason = "tokens of a prompt")]
        let tokens = account.evaluated as f64;
        for (name, value) in [
            ("prompt_per_token_ms", milliseconds / tokens),
            ("prompt_per_second", 1e3 / milliseconds * tokens),
        ] {
            let figure = timings.member(name);
            edits.extend(figure.map(|figure| (figure.at, format!("{value:?}"))));
        }
    }
    Some(edits)
}

/// A value of a JSON text that was found to be one.
#[derive(Clone, Debug)]
struct Value<'a> {
    text: &'a [u8],
    at: Range<usize>,
}

impl<'a> Value<'a> {
    fn bytes(&self) -> &'a [u8] {
        self.text.get(self.at.clone()).unwrap_or_default()
    }

    fn number(&self) -> Option<u64> {
        std::str::from_utf8(self.bytes()).ok()?.parse().ok()
    }

    fn fraction(&self) -> Option<f64> {
        std::str::from_utf8(self.bytes()).ok()?.parse().ok()
    }

    fn becomes(&self, number: u64) -> Edit {
        (self.at.clone(), number.to_string())
    }

    /// The member of this name, the last if there are several.
    fn member(&self, name: &str) -> Option<Value<'a>> {
        let mut at = self.blank(self.at.start);
        if self.text.get(at) != Some(&b'{') {
            return None;
        }
        let mut found = None;
        loop {
            // Behind a brace or a comma.
            at = self.blank(at + 1);
            if self.text.get(at) != Some(&b'"') {
                return found;
            }
            let end = self.end_of(at);
            let key = self.text.get(at + 1..end - 1)?;
            let value = self.blank(self.blank(end) + 1);
            let end = self.end_of(value);
            if key == name.as_bytes() {
                found = Some(Value {
                    text: self.text,
                    at: value..end,
                });
            }
            at = self.blank(end);
            if self.text.get(at) != Some(&b',') {
                return found;
            }
        }
    }

    /// Past blanks.
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
                b',' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return at,
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
