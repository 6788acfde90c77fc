//! Finds the figures in a JSON text and replaces them, with every other byte as it was.

use serde::de::IgnoredAny;

use super::Account;
use crate::spans::{Edit, Value, apply};

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
    let all = Value::of(answer);
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
            edits.extend(figure.map(|figure| figure.becomes(format!("{value:?}"))));
        }
    }
    Some(edits)
}
