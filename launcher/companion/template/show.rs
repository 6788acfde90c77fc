//! What was seen, for people.

use super::measure::Outcome;
use super::seen::{Reasoning, Study};
use crate::companion::show::counted;
use crate::companion::table::Table;

/// The conversations, by their names in the JSON and for people.
fn conversations(study: &Study) -> [(&'static str, &'static str, Option<&Outcome>); 7] {
    [
        ("plain", "plain chat", study.plain.as_ref()),
        ("tools", "an agent with tools", study.tools.as_ref()),
        (
            "reasoning_back",
            "reasoning sent back",
            study.reasoning_back.as_ref(),
        ),
        (
            "reasoning_out",
            "reasoning left out",
            study.reasoning_out.as_ref(),
        ),
        (
            "parallel_calls",
            "several calls at once",
            study.parallel_calls.as_ref(),
        ),
        ("another_day", "another day", study.another_day.as_ref()),
        ("spelling", "other spelling", study.spelling.as_ref()),
    ]
}

/// A block of lines.
pub(super) fn text(study: &Study) -> String {
    let mut text = format!("{}\n", study.template);
    for (name, words, outcome) in conversations(study) {
        let said = match (outcome, study.refused.get(name)) {
            (Some(outcome), _) => sentence(outcome),
            (None, Some(why)) => format!("the server refuses it: {}", short(why)),
            (None, None) => continue,
        };
        text += &format!("  {words:<22} {said}\n");
    }
    if study.reasoning == Reasoning::NeverRendered {
        text += "  reasoning              is never rendered: if the model reasons, its answer differs from there on\n";
    }
    for help in &study.helps {
        text += &format!(
            "  helps                  {}: {} in place of {}\n",
            help.what,
            percent(help.to),
            percent(help.from)
        );
    }
    text
}

/// An agent's conversation, in a sentence.
pub(super) fn line(study: &Study, url: &str) -> String {
    let again = |outcome: &Outcome| match outcome.differ {
        0 => "nothing".to_owned(),
        _ => percent(outcome.again),
    };
    let said = match (&study.tools, &study.reasoning_back, &study.reasoning_out) {
        (_, Some(back), Some(out)) => format!(
            "{} of an agent's prompts is evaluated again if it sends reasoning back, {} if it leaves it out",
            again(back),
            again(out)
        ),
        (Some(tools), ..) => format!("{} of an agent's prompts is evaluated again", again(tools)),
        (None, ..) => "takes no tools".to_owned(),
    };
    format!("{said}; more: contextpilot-llama template {url}")
}

fn sentence(outcome: &Outcome) -> String {
    let off = match outcome.kwargs {
        Some(_) => " with thinking off",
        None => "",
    };
    let words: Vec<&str> = outcome.kinds.iter().map(|kind| kind.words()).collect();
    let kinds = words.join("; ");
    match outcome.differ {
        0 if kinds.is_empty() => format!("goes on{off}"),
        0 => format!("goes on{off}, but {kinds}"),
        differ => format!(
            "{differ} of {} {} not go on, {} is evaluated again: {kinds}",
            counted(outcome.requests as u64, "prompt"),
            if differ == 1 { "does" } else { "do" },
            percent(outcome.again)
        ),
    }
}

/// The first words of a server's message, which may be long.
fn short(why: &str) -> String {
    let why = why.trim_start_matches("Jinja Exception: ");
    let words: Vec<&str> = why.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(160) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A row for each.
pub(super) fn table(studies: &[Study]) -> String {
    let head = [
        "template",
        "plain",
        "tools",
        "back",
        "out",
        "parallel",
        "another day",
        "helps",
    ];
    let mut table = Table::new(&head, &[0, 1, 2, 3, 4, 5, 6, 7]);
    for study in studies {
        let mut cells = vec![study.template.clone()];
        for (name, _, outcome) in &conversations(study)[..6] {
            cells.push(match (outcome, study.refused.contains_key(name)) {
                (Some(outcome), _) => cell(outcome),
                (None, true) => "refused".to_owned(),
                (None, false) => "-".to_owned(),
            });
        }
        let best = study.helps.first().map(|help| help.what.clone());
        cells.push(best.unwrap_or_default());
        table.row(cells);
    }
    table.text()
}

fn cell(outcome: &Outcome) -> String {
    match (outcome.differ, &outcome.kwargs) {
        (0, None) => "ok".to_owned(),
        (0, Some(_)) => "ok, thinking off".to_owned(),
        (differ, _) => format!("{differ}/{} {}", outcome.requests, percent(outcome.again)),
    }
}
