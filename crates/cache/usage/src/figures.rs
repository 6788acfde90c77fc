//! Finds the figures in a JSON text and replaces them, with every other byte as it was.

use serde::de::IgnoredAny;

use crate::Account;
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
#[must_use]
pub fn has_figures(text: &[u8]) -> bool {
    FIGURES.iter().any(|name| has(text, name))
}

/// Whether an event's line may have something to put right. While a prompt is evaluated there is no account of it yet.
#[must_use]
pub fn has_final_figures(line: &[u8]) -> bool {
    has_figures(line) && !has(line, PROGRESS)
}

fn has(text: &[u8], name: &[u8]) -> bool {
    text.windows(name.len()).any(|bytes| bytes == name)
}

/// An answer of the server, or an event of one, with the usage that is right. `None`: it is to be left alone.
///
/// ```
/// use contextpilot_usage::{Account, correct};
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
    let all = Value::from_text(answer);
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

/// Lines of an event stream with the usage that is right, with every other byte as it was. Each `data:` line is a JSON text.
/// `None`: all are to be left alone.
#[must_use]
pub fn correct_lines(lines: &[u8], account: Account) -> Option<Vec<u8>> {
    let mut right = Vec::with_capacity(lines.len() + 64);
    let mut is_any = false;
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let json = line
            .strip_prefix(b"data:")
            .filter(|json| has_final_figures(json))
            .map_or(b"".as_slice(), <[u8]>::trim_ascii);
        match correct(json, account) {
            Some(right_json) => {
                let end = line.trim_ascii_end().len();
                right.extend_from_slice(&line[..end - json.len()]);
                right.extend_from_slice(&right_json);
                right.extend_from_slice(&line[end..]);
                is_any = true;
            }
            None => right.extend_from_slice(line),
        }
    }
    is_any.then_some(right)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ACCOUNT;

    fn right(answer: &str) -> Option<String> {
        let right = correct(answer.as_bytes(), ACCOUNT)?;
        Some(String::from_utf8(right).expect("UTF-8"))
    }

    #[test]
    fn only_figures_change_in_each_api() {
        for (before, after) in [
            (
                r#"{"a": "\"cache_n\": 4 }", "timings": {"cache_n": 4 ,"prompt_n":1516, "prompt_ms":2.0,"prompt_per_token_ms":0.001, "prompt_per_second": 758000.0, "predicted_n":3}}"#,
                r#"{"a": "\"cache_n\": 4 }", "timings": {"cache_n": 1519 ,"prompt_n":1, "prompt_ms":2.0,"prompt_per_token_ms":2.0, "prompt_per_second": 500.0, "predicted_n":3}}"#,
            ),
            (
                r#"{"usage":{"completion_tokens":2,"prompt_tokens":1520,"total_tokens":1522,"prompt_tokens_details":{"cached_tokens":4}}}"#,
                r#"{"usage":{"completion_tokens":2,"prompt_tokens":1520,"total_tokens":1522,"prompt_tokens_details":{"cached_tokens":1519}}}"#,
            ),
            (
                r#"{"type":"response.completed","response":{"output":[{"usage":1}],"usage":{"input_tokens":1520,"input_tokens_details":{"cached_tokens":4}}}}"#,
                r#"{"type":"response.completed","response":{"output":[{"usage":1}],"usage":{"input_tokens":1520,"input_tokens_details":{"cached_tokens":1519}}}}"#,
            ),
            (
                r#"{"type":"message_start","message":{"usage":{"cache_read_input_tokens":4,"input_tokens":1516,"output_tokens":0}}}"#,
                r#"{"type":"message_start","message":{"usage":{"cache_read_input_tokens":1519,"input_tokens":1,"output_tokens":0}}}"#,
            ),
        ] {
            assert_eq!(right(before).as_deref(), Some(after), "{before}");
        }
    }

    #[test]
    fn what_is_not_of_this_account_or_no_json_stays() {
        for answer in [
            "",
            "{",
            r#"{"timings":{"cache_n":5,"prompt_n":1515}}"#,
            r#"{"timings":{"cache_n":4,"prompt_n":1517}}"#,
            r#"{"timings":{"cache_n":4}}"#,
            r#"{"timings":{"cache_n":"4","prompt_n":1516}}"#,
            r#"{"timings":{"cache_n":4.0,"prompt_n":1516}}"#,
            r#"{"timings":[{"cache_n":4,"prompt_n":1516}]}"#,
            r#"[{"timings":{"cache_n":4,"prompt_n":1516}}]"#,
            r#"{"timings":{"cache_n":4,"prompt_n":1516}"#,
            r#"{"choices":[{"timings":{"cache_n":4,"prompt_n":1516}}]}"#,
            r#"{"usage":{"prompt_tokens":1519,"prompt_tokens_details":{"cached_tokens":4}}}"#,
            r#"{"usage":{"input_tokens":1520,"cache_read_input_tokens":4}}"#,
            r#"{"usage":{"cache_read_input_tokens":4}}"#,
            r#"{"text":"{\"usage\":{\"cache_read_input_tokens\":4,\"input_tokens\":1516}}"}"#,
        ] {
            assert_eq!(right(answer), None, "{answer}");
        }
        let nothing = Account {
            loaded: 0,
            ..ACCOUNT
        };
        let answer = br#"{"timings":{"cache_n":1519,"prompt_n":1}}"#;
        assert_eq!(correct(answer, nothing), None);
    }
}
