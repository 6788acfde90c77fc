//! The words for what the hook reports: one word for one thing, in all commands. `docs/tools.md` lists
//! them, and a test compares.

use contextpilot_client::control::{Place, Reason, RequestName, Title};

use super::show::Visible;

/// What became of a request that is [`Reason::NeverCached`]: it is no eviction, and was in no place.
pub(super) const NEVER_CACHED: &str =
    "never cached: it was refused, or its client left before the prompt was evaluated";

/// There is no last request.
pub(super) const NO_PROMPT: &str = "No prompt was evaluated yet";

/// A request: by its id or, without one, by its number.
pub(super) fn request(name: &RequestName) -> String {
    Visible(&name.to_string()).to_string()
}

/// So many characters of a title, among other things on a line.
const TITLE: usize = 80;

/// What a request is about, and which program sent it: `“Fix the login test”, from opencode/1.18.33`.
pub(super) fn title(title: &Title) -> String {
    let Title { words, agent } = title;
    let (mut words, agent) = (words.clone(), agent.clone());
    if let Some((end, _)) = words.char_indices().nth(TITLE) {
        words.truncate(end);
        // The last of those that are shown.
        words.pop();
        words.push('…');
    }
    whole_title(&Title { words, agent })
}

/// The same, where there may be room for all of it.
pub(super) fn whole_title(title: &Title) -> String {
    let Title { words, agent } = title;
    let words = (!words.is_empty()).then(|| format!("“{}”", Visible(words)));
    let agent = (!agent.is_empty()).then(|| format!("from {}", Visible(agent)));
    words
        .into_iter()
        .chain(agent)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A place, as part of a sentence.
pub(super) fn place(place: &Place) -> String {
    match place {
        Place::Slot { slot } => format!("in slot {slot}"),
        Place::Host => "in the host cache".to_owned(),
        Place::Nowhere => "nowhere".to_owned(),
    }
}

/// A reason, as one or two words.
pub(super) fn reason(reason: Reason) -> String {
    reason.as_str().replace('_', " ")
}

/// A reason, and the request that caused it.
pub(super) fn lost(why: Reason, by: Option<&str>) -> String {
    let word = reason(why);
    match by {
        Some(by) => format!("{word} by {}", Visible(by)),
        None => word,
    }
}

/// Why a request is not cached any more, and where it was.
pub(super) fn evicted(why: Reason, by: Option<&str>, from: &Place) -> String {
    match why {
        Reason::NeverCached => NEVER_CACHED.to_owned(),
        _ => format!("{}; it was {}", lost(why, by), place(from)),
    }
}

/// A cause of evaluated tokens, as it stands behind their number.
pub(super) fn cause(name: &str) -> &str {
    match name {
        "last_token" => "last token",
        "repeated" => "sent before behind something else",
        "elsewhere_pinned" => "in another slot than the one named",
        "elsewhere_busy" => "in a busy slot",
        "elsewhere_similarity" => "in another slot, too small a share",
        "elsewhere_least_recently_used" => "in another slot, not looked for",
        "elsewhere_host_rule" => "in the host cache, not taken",
        "no_way_back" => "in the slot, without a way back",
        "uncached" => "not wanted from the cache",
        "moved" => "in the slot further on",
        "adapter" => "for other adapters",
        "not_known" => "not known",
        other => other,
    }
}

/// A cause of evaluated tokens, in the few words that a bar has room for.
pub(super) fn kind(name: &str) -> &str {
    match name {
        "new" => "new",
        "repeated" => "repeated",
        "evicted" => "evicted",
        "no_way_back" => "no way back",
        "moved" => "moved",
        _ if name.starts_with("elsewhere_") => "elsewhere",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use contextpilot_client::control::Causes;

    use super::*;

    const PAGE: &str = include_str!("../../docs/tools.md");

    /// What is below `## Words`.
    fn words() -> &'static str {
        let from = PAGE.split_once("\n## Words\n").unwrap().1;
        from.split_once("\n## ").unwrap().0
    }

    #[test]
    fn the_page_has_each_cause_as_the_commands_show_it() {
        let rows: Vec<[&str; 3]> = words()
            .lines()
            .filter(|line| line.ends_with("` |"))
            .map(|line| {
                let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
                <[&str; 3]>::try_from(cells).unwrap()
            })
            .filter(|[why, ..]| *why != "`why`")
            .collect();
        let shown = |name| [cause(name), kind(name), name];
        let mut expected: Vec<[&str; 3]> =
            Causes::default().all().map(|(name, _)| shown(name)).into();
        let mut listed: Vec<[&str; 3]> = rows
            .into_iter()
            .map(|[why, top, label]| [why, top, label.trim_matches('`')])
            .collect();
        expected.sort_unstable();
        listed.sort_unstable();
        assert_eq!(listed, expected);
    }

    #[test]
    fn the_page_in_a_browser_has_the_same_words() {
        let source = include_str!("../../page/src/causes.ts");
        let labels: Vec<(&str, &str)> = source
            .split("key: \"")
            .skip(1)
            .filter_map(|rest| {
                let (name, rest) = rest.split_once('"')?;
                let label = rest.trim_start_matches(',').trim_start();
                let label = label.strip_prefix("label: \"")?;
                Some((name, label.split_once('"')?.0))
            })
            .collect();
        for (name, _) in Causes::default().all() {
            let label = labels.iter().find(|(key, _)| *key == name);
            assert_eq!(label.map(|(_, label)| *label), Some(cause(name)), "{name}");
        }
        assert!(source.contains(NEVER_CACHED));
    }

    #[test]
    fn among_other_things_a_title_is_short() {
        let of = |words: &str| Title {
            words: words.to_owned(),
            agent: "a/1".to_owned(),
        };
        let fits = of(&"é".repeat(TITLE));
        assert_eq!(title(&fits), whole_title(&fits));
        let long = of(&"é".repeat(TITLE + 1));
        let short = format!("“{}…”, from a/1", "é".repeat(TITLE - 1));
        assert_eq!(title(&long), short);
        assert!(whole_title(&long).contains(&long.words));
    }

    #[test]
    fn the_page_has_each_reason() {
        let text = words().replace('\n', " ");
        for why in Reason::ALL {
            let word = reason(why);
            assert!(text.contains(&word), "{word}");
        }
    }
}
