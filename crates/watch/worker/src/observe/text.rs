//! Decides whether text of prompts is shown (`CONTEXTPILOT_EXPLAIN_TEXT`).

use contextpilot_settings::{Listen, Settings};

use crate::library::Library;

/// Whether text of prompts is kept and shown.
#[must_use]
pub fn shows_text(settings: &Settings) -> bool {
    settings.explain_text && obstacle(settings).is_none()
}

/// The same. If the setting asks for it, a line says whether text is shown, and why not. The launcher has said that without
/// an endpoint it does nothing.
pub(super) fn is_shown(settings: &Settings, library: &dyn Library) -> bool {
    if !settings.explain_text || settings.listen.is_none() {
        return false;
    }
    match obstacle(settings) {
        None => library.say(format_args!(
            "CONTEXTPILOT_EXPLAIN_TEXT: the control endpoint shows the first words of requests and, where \
             a prompt differs from an earlier one, some of the text of both, to this machine only"
        )),
        Some(why) => library.say(format_args!(
            "CONTEXTPILOT_EXPLAIN_TEXT is not followed, no text is shown: {why}"
        )),
    }
    shows_text(settings)
}

/// Why no text can be shown, and what to do.
fn obstacle(settings: &Settings) -> Option<&'static str> {
    if settings.explain_limit.is_none() {
        return Some("CONTEXTPILOT_EXPLAIN_MB is 0, so nothing is remembered");
    }
    match settings.listen.as_ref().map(Listen::is_local) {
        Some(true) => None,
        Some(false) => Some(
            "other machines can reach the control endpoint; set CONTEXTPILOT_LISTEN to 127.0.0.1, \
             [::1] or a Unix socket",
        ),
        None => Some("it would be shown at the control endpoint; set CONTEXTPILOT_LISTEN"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_only_if_no_other_machine_can_reach_the_endpoint() {
        let of = |listen: &str, megabytes: &str| {
            let (listen, megabytes) = (listen.to_owned(), megabytes.to_owned());
            let settings = Settings::from(|name| match name {
                "CONTEXTPILOT_LISTEN" => Some((&listen).into()),
                "CONTEXTPILOT_LISTEN_TOKEN" => Some("t0ken".into()),
                "CONTEXTPILOT_EXPLAIN_MB" => Some((&megabytes).into()),
                _ => None,
            });
            let mut settings = settings.unwrap();
            assert!(!shows_text(&settings), "nobody asks for it");
            settings.explain_text = true;
            assert_eq!(shows_text(&settings), obstacle(&settings).is_none());
            obstacle(&settings)
        };
        for local in [
            "127.0.0.1:1",
            "127.9.9.9:1",
            "[::1]:1",
            "unix:/run/s",
            "auto",
        ] {
            assert_eq!(of(local, "1"), None, "{local}");
        }
        for open in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[::ffff:192.0.2.1]:1"] {
            let why = of(open, "1").unwrap();
            assert!(why.starts_with("other machines"), "{open}: {why}");
        }
        assert!(of("", "1").unwrap().contains("set CONTEXTPILOT_LISTEN"));
        assert!(of("127.0.0.1:1", "0").unwrap().contains("EXPLAIN_MB is 0"));
    }
}
