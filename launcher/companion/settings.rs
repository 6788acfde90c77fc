//! The settings as `--help` and the manual show them.

use contextpilot_settings::table::{ALL, Setting};

/// Characters of a line.
const WIDTH: usize = 100;
const EXAMPLE: &str = "Example:
  contextpilot-llama demo
  contextpilot-llama agent -m model.gguf
  contextpilot-llama up -m model.gguf
  contextpilot-llama top
  contextpilot-llama listen &
  CONTEXTPILOT_INDEX_URL=http://127.0.0.1:8765 contextpilot-llama-server -m model.gguf";

/// What stands at the end of `-h`.
pub(super) fn short_end() -> String {
    format!(
        "{EXAMPLE}\n\n--help lists the environment variables that configure contextpilot-llama-server."
    )
}

/// What stands at the end of `--help`.
pub(super) fn end() -> String {
    let mut text = format!(
        "{EXAMPLE}\n\nEnvironment variables of contextpilot-llama-server. Without one of the first {} the hook is \
         not used:\n",
        ALL.iter().filter(|setting| setting.engages()).count()
    );
    for setting in ALL {
        text += &format!("\n  {}\n", setting.name);
        for line in lines(&meaning(setting), WIDTH - 6) {
            text += &format!("      {line}\n");
        }
    }
    text.trim_end().to_owned()
}

/// The manual of contextpilot-llama-server.
pub(super) fn manual() -> String {
    let page = include_str!("../../packaging/contextpilot-llama-server.1");
    let (before, after) = page.split_once(SETTINGS).unwrap_or((page, ""));
    let entry =
        |setting: &Setting| format!(".TP\n.B {}\n{}\n", setting.name, roff(&meaning(setting)));
    before.to_owned() + &ALL.iter().map(entry).collect::<String>() + after
}

/// Where they stand in the manual's source.
const SETTINGS: &str = ".\\\" All settings.\n";

/// What it means, and its default.
fn meaning(setting: &Setting) -> String {
    plain(&format!("{}. Default: {}.", setting.text, setting.kind))
}

/// Markdown without its signs, and of links only their text: nothing of one alone in parentheses.
fn plain(markdown: &str) -> String {
    let mut rest = markdown;
    let mut text = String::new();
    while let Some((before, link)) = rest.split_once('[') {
        let Some((name, (_, after))) = link
            .split_once("](")
            .and_then(|(name, target)| Some((name, target.split_once(')')?)))
        else {
            break;
        };
        // In parentheses the text says nothing without its target.
        if let (Some(before), Some(after)) = (before.strip_suffix(" ("), after.strip_prefix(')')) {
            text += before;
            rest = after;
            continue;
        }
        text += before;
        // `[::1]` is none.
        if name.contains(']') {
            text.push('[');
            rest = link;
        } else {
            text += name;
            rest = after;
        }
    }
    (text + rest).replace('`', "")
}

/// Lines of that width. A longer word has a line of its own.
fn lines(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// As text in a manual. No meaning begins with a dot or an apostrophe.
fn roff(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_loses_its_signs_and_no_word() {
        for (markdown, text) in [
            (
                "`1`: [some of it](docs/a.md#b), and `[::1]:8890`",
                "1: some of it, and [::1]:8890",
            ),
            ("`[::1]:1` or [a link](b)", "[::1]:1 or a link"),
            ("at a time ([all limits](b#c)), 64", "at a time, 64"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(plain(markdown), text);
        }
    }

    #[test]
    fn help_and_manual_have_every_setting() {
        let (help, manual) = (end(), manual());
        for setting in ALL {
            assert!(help.contains(&format!("\n  {}\n", setting.name)), "{help}");
            assert!(
                manual.contains(&format!("\n.B {}\n", setting.name)),
                "{manual}"
            );
        }
        assert!(
            help.lines().all(|line| line.chars().count() <= WIDTH),
            "{help}"
        );
        for text in [&help, &manual] {
            assert!(!text.contains("](") && !text.contains('`'), "{text}");
        }
        assert!(
            !manual.contains(SETTINGS) && manual.ends_with(".BR contextpilot-llama (1)\n"),
            "{manual}"
        );
    }
}
