//! Whether the index answers the hook.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use contextpilot_delivery::{Config, IndexAnswer, ask};
use contextpilot_settings::{Settings, env};
use serde_json::Value;

use super::report::{Finding, Grade};

const SUBJECT: &str = "index";
/// The time for the whole answer. Short, because a user waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks the index as the hook would report an eviction to it: the same proxy, trust and credentials.
pub(super) fn check(settings: &Settings) -> Finding {
    let variable = env::INDEX_URL;
    let found = |grade, text: String| Finding::new(SUBJECT, grade, text);
    let lookup = |name: &str| std::env::var(name).ok();
    // A line about the proxy, if it cannot be used.
    let log = Arc::new(|line: &str| drop(writeln!(std::io::stderr(), "{line}")));
    let config = Config::for_endpoint("health", settings, lookup, log);
    let (Some(url), Some(mut config)) = (&settings.index, config) else {
        return none(settings);
    };
    config.connect_timeout = PATIENCE.min(config.connect_timeout);
    config.timeout = PATIENCE;
    // Shows no credentials.
    let endpoint = url.endpoint("");
    let shown = endpoint.trim_end_matches('/');
    match ask(&config) {
        Ok(IndexAnswer { status, body }) => {
            let (grade, text) = judge(status, &body);
            found(grade, format!("{shown} {text}"))
        }
        Err(why) => found(
            Grade::Limited,
            format!(
                "{shown} does not answer ({why}): start it, or correct {variable}; \
                 evictions wait until it does"
            ),
        ),
    }
}

/// What to say if the settings name no index.
fn none(settings: &Settings) -> Finding {
    let variable = env::INDEX_URL;
    if settings.is_engaged() {
        let text =
            format!("none, as the hook only observes (with {variable} it reports evictions)");
        return Finding::new(SUBJECT, Grade::Good, text);
    }
    let text = format!("none: with {variable}=http://127.0.0.1:8765 evictions are reported to it");
    Finding::new(SUBJECT, Grade::Good, text)
}

/// What follows from the answer to `GET /health`, as text after the index's address.
fn judge(status: u16, body: &[u8]) -> (Grade, String) {
    let json = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let said = description(&json);
    match status {
        200..=299 if json.get("eviction_enabled") == Some(&Value::Bool(false)) => {
            let text = "takes no evictions (it is stateless): start it with a cache to track";
            (Grade::Limited, text.to_owned())
        }
        // An index has a status, ContextPilot's own and ours.
        200..=299 if json.get("status").is_some_and(Value::is_string) => {
            (Grade::Good, format!("answers{said}"))
        }
        200..=299 => {
            let variable = env::INDEX_URL;
            let text = format!("answers GET /health, but not as an index does: correct {variable}");
            (Grade::Limited, text)
        }
        401 | 403 => {
            let (token, url) = (env::INDEX_TOKEN, env::INDEX_URL);
            let text = format!(
                "answers GET /health with {status}{said}: set {token}, or a user in {url}, as it \
                 asks for"
            );
            (Grade::Limited, text)
        }
        // The index answers 503 until it is initialized.
        _ => {
            let text = format!(
                "answers GET /health with {status}{said}: check that it is the index, and built"
            );
            (Grade::Limited, text)
        }
    }
}

/// The index's version and state, if the answer has them.
fn description(body: &Value) -> String {
    let text = |name: &str| {
        let text: String = body.get(name)?.as_str()?.chars().take(64).collect();
        (!text.is_empty() && !text.contains(char::is_control)).then_some(text)
    };
    let parts = [
        text("version").map(|version| format!("version {version}")),
        text("status"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        String::new()
    } else {
        format!(": {}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_and_state_of_the_index_are_shown() {
        let said = |body: &str| judge(200, body.as_bytes());
        let ready = (Grade::Good, "answers: ready".to_owned());
        assert_eq!(said(r#"{"status": "ready"}"#), ready);
        let ready = (Grade::Good, "answers: version 0.5.0, ready".to_owned());
        assert_eq!(said(r#"{"status": "ready", "version": "0.5.0"}"#), ready);
        let escapes = said(r#"{"status": "\u001b[2J"}"#);
        assert_eq!(escapes, (Grade::Good, "answers".to_owned()));
    }

    #[test]
    fn only_an_index_is_good() {
        for (status, body) in [
            (200, "hello"),
            (200, "<html>Please log in</html>"),
            (202, "{}"),
            (200, r#"{"eviction_enabled": false, "status": "ready"}"#),
            (401, r#"{"status": "ready"}"#),
            (503, r#"{"status": "not_ready"}"#),
        ] {
            let (grade, text) = judge(status, body.as_bytes());
            assert_eq!(grade, Grade::Limited, "{status} {body}: {text}");
        }
        assert!(judge(401, b"").1.contains("CONTEXTPILOT_INDEX_TOKEN"));
        assert!(judge(503, br#"{"status": "x"}"#).1.contains("503: x"));
    }
}
