//! Rules for differences that were seen.

use std::sync::LazyLock;

use regex::{Regex, escape};

use super::rules::Section;

/// A rule that would have removed a difference between two prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// As it stands in a file.
    pub rule: String,
    /// The text that it found in the later prompt, as far as it was seen.
    pub found: String,
    /// What the model would have read there instead.
    pub instead: String,
}

/// Text that changes with each request and need not, and what to do about it.
struct VolatileText {
    name: &'static str,
    find: &'static str,
    /// `None`: it goes behind the user's last message.
    with: Option<&'static str>,
}

/// The first that fits is proposed.
const VOLATILE: [VolatileText; 5] = [
    // Claude Code's: the end of its version differs in each session. llama-server itself puts `cch` right.
    VolatileText {
        name: "claude-code-attribution",
        find: "cc_version=[0-9A-Za-z._-]+",
        with: Some("cc_version=0"),
    },
    VolatileText {
        name: "time-of-day",
        find: r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?",
        with: Some("$1"),
    },
    VolatileText {
        name: "uuid",
        find: r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        with: Some("00000000-0000-0000-0000-000000000000"),
    },
    VolatileText {
        name: "clock",
        find: r"[^.\n]*[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?( ?[AaPp][Mm])?[^.\n]*\.? ?",
        with: None,
    },
    VolatileText {
        name: "date",
        find: r"[^.\n]*([0-9]{4}-[0-9]{2}-[0-9]{2}|(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* [0-9]{1,2})[^.\n]*\.? ?",
        with: None,
    },
];

static PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = VOLATILE.iter().map(|kind| Regex::new(kind.find));
    patterns.map(|it| it.expect("a pattern")).collect()
});

/// Anything that looks drawn or counted.
static NONCE: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("[0-9A-Za-z_-]*[0-9][0-9A-Za-z_-]*").expect("a pattern"));

/// Characters in front of a nonce that a rule looks for: fewest, and most.
const BEFORE: (usize, usize) = (4, 24);

/// A rule for this difference between two prompts, of which the first is the earlier. `None`: none is known.
/// `is_chat`: the prompt is that of messages; `is_system`: the difference is in their system prompt.
#[must_use]
pub fn propose(before: &str, texts: [&str; 2], is_chat: bool, is_system: bool) -> Option<Proposal> {
    let place = match (is_chat, is_system) {
        (true, true) => Section::System,
        (true, false) => Section::Messages,
        (false, _) => Section::Prompt,
    };
    let [old, new] = texts.map(|text| format!("{before}{text}"));
    let known = VOLATILE
        .iter()
        .zip(PATTERNS.iter())
        .find_map(|(kind, pattern)| {
            let [old, new] = [&old, &new].map(|text| at(pattern, text, before.len()));
            let ([old, new], with) = ([old?, new?], kind.with.unwrap_or_default());
            let [was, is] = [old, new].map(|text| pattern.replace(text, with));
            let helps = old != new && was == is;
            helps.then(|| (kind, new.to_owned(), is.into_owned()))
        });
    let Some((kind, found, instead)) = known else {
        return nonce(before, [&old, &new], place);
    };
    let is_possible = kind.with.is_some() || place == Section::System;
    is_possible.then(|| Proposal {
        rule: rule(kind.name, place, kind.find, kind.with),
        found,
        instead,
    })
}

/// A rule for tools that come in another order.
#[must_use]
pub fn propose_order() -> String {
    "[[rule]]\nname = \"order-of-tools\"\nin = \"tools\"\nsort = true\n".to_owned()
}

/// What the pattern finds at this byte, where the texts begin to differ.
fn at<'a>(pattern: &Regex, text: &'a str, byte: usize) -> Option<&'a str> {
    let mut all = pattern.find_iter(text);
    let found = all.find(|found| found.start() <= byte && byte < found.end());
    found.map(|found| found.as_str())
}

/// A rule for something that stands behind a text which stays.
fn nonce(before: &str, [old, new]: [&str; 2], place: Section) -> Option<Proposal> {
    let [old_nonce, nonce] = [old, new].map(|text| at(&NONCE, text, before.len()));
    let (old_nonce, nonce) = (old_nonce?, nonce?);
    let start = nonce.as_ptr() as usize - new.as_ptr() as usize;
    // What stands before may be the chat template's, which the rule does not see.
    let line = new[..start]
        .rsplit(['\n', '<', '>', '|', '[', ']'])
        .next()?;
    let skipped = line.chars().count().saturating_sub(BEFORE.1);
    let mut label: String = line.chars().skip(skipped).collect();
    if let Some((_, whole)) = label.split_once(' ').filter(|_| skipped > 0) {
        label = whole.to_owned();
    }
    if label.chars().count() < BEFORE.0 || old_nonce == nonce {
        return None;
    }
    let words: Vec<&str> = label
        .split(|it: char| !it.is_ascii_alphanumeric())
        .collect();
    let words: Vec<&str> = words.into_iter().filter(|it| !it.is_empty()).collect();
    let name = format!("behind-{}", words.join("-").to_lowercase());
    let find = format!("{}[0-9A-Za-z_-]+", escape(&label));
    let with = format!("{}0", label.replace('$', "$$"));
    Some(Proposal {
        rule: rule(&name, place, &find, Some(&with)),
        found: format!("{label}{nonce}"),
        instead: format!("{label}0"),
    })
}

fn rule(name: &str, place: Section, find: &str, with: Option<&str>) -> String {
    let place = match place {
        Section::System => "system",
        Section::Messages => "messages",
        Section::Tools => "tools",
        Section::Prompt => "prompt",
    };
    let action = match with {
        Some(with) => format!("replace = {}", quoted(with)),
        None => "move = \"behind\"".to_owned(),
    };
    let find = quoted(find);
    format!("[[rule]]\nname = \"{name}\"\nin = \"{place}\"\nfind = {find}\n{action}\n")
}

/// As TOML has it, without escapes if that is possible.
fn quoted(text: &str) -> String {
    if text.contains(['\'', '\n', '\r']) || text.contains(char::is_control) {
        // JSON has the same escapes, and one less.
        serde_json::Value::from(text)
            .to_string()
            .replace('\u{7f}', "\\u007f")
    } else {
        format!("'{text}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stabiliser;

    const CHAT: &str = "/v1/chat/completions";

    /// The system prompts as the server gets them, with the rule for their difference.
    fn put_right(before: &str, old: &str, new: &str) -> Option<[String; 2]> {
        let proposal = propose(before, [old, new], true, true)?;
        let rules = Stabiliser::read(&proposal.rule).unwrap_or_else(|e| panic!("{e}"));
        let right = [old, new].map(|text| {
            let system = format!("{before}{text}");
            let user = serde_json::json!({"role": "user", "content": "u"});
            let body =
                serde_json::json!({"messages": [{"role": "system", "content": system}, user]});
            let right = rules.apply(CHAT, body.to_string().as_bytes());
            let right: serde_json::Value =
                serde_json::from_slice(&right.expect("it changes")).expect("JSON");
            right["messages"][0]["content"]
                .as_str()
                .expect("a text")
                .to_owned()
        });
        Some(right)
    }

    #[test]
    fn a_proposed_rule_makes_the_texts_equal() {
        for (before, old, new, right) in [
            (
                "header: cc_version=2.1.",
                "197.a3f; cc_entrypoint=cli;You",
                "197.b7e; cc_entrypoint=cli;You",
                "header: cc_version=0; cc_entrypoint=cli;You",
            ),
            (
                "It is 2026-11-28T12:",
                "49:05Z. You",
                "50:41Z. You",
                "It is 2026-11-28. You",
            ),
            (
                "You help. It is 12:",
                "49 now. Be kind.",
                "50 now. Be kind.",
                "You help.Be kind.",
            ),
            (
                "You help.\nToday is ",
                "Monday.\nBe",
                "Sunday.\nBe",
                "You help.\n\nBe",
            ),
            (
                "You help.\nToday is 2026-11-",
                "28. Be",
                "29. Be",
                "You help.\nBe",
            ),
            (
                "Session 6f9619ff-8b86-d011-b42d-00cf4fc964f",
                "f it is",
                "e it is",
                "Session 00000000-0000-0000-0000-000000000000 it is",
            ),
            (
                "A session of long standing: a$b ",
                "q7 go",
                "k91 go",
                "A session of long standing: a$b 0 go",
            ),
            ("Session: a$b ", "q7 go", "k91 go", "Session: a$b 0 go"),
            ("It's \"run\" ", "17.", "18.", "It's \"run\" 0."),
        ] {
            let expected = [right, right].map(str::to_owned);
            assert_eq!(put_right(before, old, new), Some(expected), "{before}");
        }
    }

    #[test]
    fn nothing_is_proposed_for_what_the_model_must_read() {
        for (before, old, new) in [
            ("You help with ", "tea.", "milk."),
            ("at ", "1", "2"),
            ("", "", ""),
        ] {
            assert_eq!(
                propose(before, [old, new], true, true),
                None,
                "{before}{new}"
            );
        }
        // Another day: it does not help to round it.
        let day = propose("It is 2026-11-", ["28T12:49Z.", "29T12:49Z."], true, true);
        assert!(day.expect("a rule").rule.contains("move = \"behind\""));
        for is_chat in [false, true] {
            let moved = propose("It is 12:", ["49.", "50."], is_chat, false);
            assert_eq!(moved, None, "only what stands in a system prompt is moved");
        }
    }
}
