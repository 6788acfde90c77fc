//! Puts right what changes at the beginning of prompts and need not, so that the server finds in its cache what follows.
//!
//! Each rule says where and what. Nothing is changed without one, and a request that no rule changes keeps every byte.
//! Of others, only the texts change that a rule names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use contextpilot_request::Endpoint;
use contextpilot_usage::{Value, apply};
use serde::de::IgnoredAny;

mod order;
mod propose;
mod rules;

pub use propose::{Proposal, propose, propose_order};
pub use rules::RulesError;
use rules::{Action, Rule, Section};

/// Rules, and how often each was used.
#[derive(Debug)]
pub struct Stabiliser {
    rules: Vec<Rule>,
    /// One for each rule.
    used: Vec<AtomicU64>,
}

/// A text of a request that the model reads.
struct Text<'a> {
    place: Section,
    is_users: bool,
    value: Value<'a>,
}

impl Stabiliser {
    /// The rules in the text of a file ([docs/agents.md](../../../../docs/agents.md) says what stands in it).
    ///
    /// # Errors
    /// It has none, or one that cannot be followed.
    ///
    /// ```
    /// use contextpilot_proxy::Stabiliser;
    ///
    /// let rules = r#"
    ///     [[rule]]
    ///     name = "clock"
    ///     in = "system"
    ///     find = '(\d{4}-\d\d-\d\d)T\d\d:\d\dZ'
    ///     replace = "$1"
    /// "#;
    /// let stabiliser = Stabiliser::read(rules)?;
    /// let body = br#"{"messages": [{"role": "system", "content": "It is 2026-11-28T12:49Z."}]}"#;
    /// let right = br#"{"messages": [{"role": "system", "content": "It is 2026-11-28."}]}"#;
    /// assert_eq!(stabiliser.apply("/v1/chat/completions", body).unwrap(), right);
    /// # Ok::<_, contextpilot_proxy::RulesError>(())
    /// ```
    pub fn read(text: &str) -> Result<Self, RulesError> {
        let rules = rules::read(text)?;
        let used = rules.iter().map(|_| AtomicU64::new(0)).collect();
        Ok(Self { rules, used })
    }

    /// The body of a request to this path with its texts put right. `None`: no rule changes it, or it is no JSON.
    #[must_use]
    pub fn apply(&self, path: &str, body: &[u8]) -> Option<Vec<u8>> {
        // What follows relies on it.
        serde_json::from_slice::<IgnoredAny>(body).ok()?;
        let mut used = vec![false; self.rules.len()];
        let edited = self.in_texts(path, body, &mut used);
        let ordered = self.in_order(edited.as_deref().unwrap_or(body), &mut used);
        for (count, _) in self.used.iter().zip(used).filter(|(_, used)| *used) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        ordered.or(edited)
    }

    fn in_texts(&self, path: &str, body: &[u8], used: &mut [bool]) -> Option<Vec<u8>> {
        let texts = texts(path, &Value::from_text(body));
        let last = texts
            .iter()
            .rposition(|text| text.is_users && text.value.string().is_some());
        let (mut edits, mut behind) = (BTreeMap::new(), Vec::new());
        for (at, text) in texts.iter().enumerate() {
            let applies = |(_, rule): &(usize, &Rule)| rule.place == text.place;
            let mut rules = self.rules.iter().enumerate().filter(applies).peekable();
            if rules.peek().is_none() {
                continue;
            }
            let Some(mut now) = text.value.string() else {
                continue;
            };
            for (number, rule) in rules {
                let after = match &rule.action {
                    Action::Replace { find, with } => find.replace_all(&now, with),
                    Action::Move { find } if last.is_some() => {
                        behind.extend(find.find_iter(&now).map(|it| it.as_str().to_owned()));
                        find.replace_all(&now, "")
                    }
                    // Nothing to move it behind.
                    Action::Move { .. } | Action::Sort => continue,
                };
                if after != now {
                    now = after.into_owned();
                    used[number] = true;
                    edits.insert(at, now.clone());
                }
            }
        }
        if let Some(last) = last.filter(|_| !behind.is_empty()) {
            let text = edits.remove(&last).or_else(|| texts[last].value.string())?;
            edits.insert(last, format!("{text}\n\n{}", behind.join("\n")));
        }
        let edits = edits.into_iter().map(|(at, text)| {
            let quoted = serde_json::Value::from(text);
            texts[at].value.becomes(quoted)
        });
        let edits: Vec<_> = edits.collect();
        (!edits.is_empty()).then(|| apply(body, edits))
    }

    fn in_order(&self, body: &[u8], used: &mut [bool]) -> Option<Vec<u8>> {
        let sorts = |rule: &Rule| matches!(rule.action, Action::Sort);
        let number = self.rules.iter().position(sorts)?;
        let tools = Value::from_text(body).member("tools")?;
        let ordered = order::tools(&tools)?;
        used[number] = true;
        Some(apply(body, vec![tools.becomes(ordered)]))
    }

    /// The requests that each rule has changed, by the rule's name.
    pub fn used(&self) -> impl Iterator<Item = (&str, u64)> {
        let counts = self.used.iter().map(|count| count.load(Ordering::Relaxed));
        self.rules.iter().map(|rule| &*rule.name).zip(counts)
    }

    /// The same for Prometheus, with a name that begins with `prefix`.
    #[must_use]
    pub fn metrics(&self, prefix: &str) -> String {
        let name = format!("{prefix}_stabilised_requests_total");
        let mut text = format!(
            "# HELP {name} Requests that a rule of --stabilise has changed\n# TYPE {name} counter\n"
        );
        for (rule, count) in self.used() {
            // Writing to a string cannot fail. A name has nothing that must be escaped.
            let _ = writeln!(text, "{name}{{rule=\"{rule}\"}} {count}");
        }
        text
    }
}

/// All texts of a request that a rule can change, in the order in which they stand.
fn texts<'a>(path: &str, body: &Value<'a>) -> Vec<Text<'a>> {
    let mut found = Vec::new();
    let mut add = |place, is_users, value| {
        found.push(Text {
            place,
            is_users,
            value,
        });
    };
    let strings = |value: Option<Value<'a>>| {
        let value = value.into_iter();
        value.flat_map(|value| {
            if value.is_string() {
                vec![value]
            } else {
                value.elements().filter(Value::is_string).collect()
            }
        })
    };
    let messages = match Endpoint::of_path(path.as_bytes()) {
        Endpoint::Completion | Endpoint::Infill => {
            strings(body.member("prompt")).for_each(|text| add(Section::Prompt, false, text));
            None
        }
        Endpoint::Messages => {
            let system = body.member("system");
            let parts = system.iter().flat_map(parts);
            parts.for_each(|text| add(Section::System, false, text));
            body.member("messages")
        }
        Endpoint::Responses => {
            strings(body.member("instructions")).for_each(|text| add(Section::System, false, text));
            body.member("input")
        }
        _ => body.member("messages"),
    };
    if let Some(messages) = messages {
        if messages.is_string() {
            add(Section::Messages, true, messages.clone());
        }
        for message in messages.elements() {
            let role = message.member("role").and_then(|role| role.string());
            let role = role.as_deref();
            let place = match role {
                Some("system" | "developer") => Section::System,
                _ => Section::Messages,
            };
            let content = message.member("content");
            for text in content.iter().flat_map(parts) {
                add(place, role == Some("user"), text);
            }
        }
    }
    let tools = body.member("tools");
    let tools = tools.iter().flat_map(Value::texts);
    tools.for_each(|text| add(Section::Tools, false, text));
    found
}

/// The texts of a message: its content is one, or a list of parts.
fn parts<'a>(content: &Value<'a>) -> Vec<Value<'a>> {
    if content.is_string() {
        vec![content.clone()]
    } else {
        let texts = content.elements().filter_map(|part| part.member("text"));
        texts.filter(Value::is_string).collect()
    }
}

#[cfg(test)]
mod tests;
