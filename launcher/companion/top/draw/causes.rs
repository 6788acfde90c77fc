//! Evaluated tokens by cause, and prompts by what differs from an earlier one: bars.

use ratatui::style::Color;
use ratatui::text::{Line as Text, Span};

use super::style::{bar_width, colour};
use crate::companion::differs::Differs;
use crate::companion::show::percent;
use crate::companion::top::state::ScreenState;
use crate::companion::words;

/// A part of a bar.
struct Part {
    word: &'static str,
    /// It fills the part where there are no colours.
    letter: char,
    colour: Color,
    size: u64,
}

/// The [kinds](words::kind) of causes as the bar has them, with a letter that fills it where there are no colours.
const PARTS: [(&str, char, Color); 7] = [
    ("new", 'n', Color::Green),
    ("repeated", 'r', Color::LightYellow),
    ("evicted", 'e', Color::Red),
    ("elsewhere", 's', Color::Yellow),
    ("no way back", 'b', Color::Magenta),
    ("moved", 'm', Color::Cyan),
    ("other", 'o', Color::Blue),
];

/// Whether there is anything to be shown.
pub(super) fn are_known(state: &ScreenState) -> bool {
    let now = state.now.as_ref();
    now.is_some_and(|now| now.reuse.causes.sum() > 0)
}

/// `Why ████████  new 61 %, evicted 30 %, elsewhere 9 %`
pub(super) fn line(state: &ScreenState, width: u16) -> Text<'static> {
    let Some(now) = &state.now else {
        return Text::default();
    };
    let causes = now.reuse.causes.all();
    let parts = PARTS.map(|(word, letter, colour)| {
        let of = causes.iter().filter(|(name, _)| words::kind(name) == word);
        let size = of.map(|(_, tokens)| *tokens).fold(0, u64::saturating_add);
        Part {
            word,
            letter,
            colour,
            size,
        }
    });
    bar(state, " Why ", width, &parts)
}

/// `Left ███████  left out 61 %, tokenized otherwise 39 %`: of the last prompts that left an earlier one.
pub(super) fn differences(state: &ScreenState, width: u16) -> Text<'static> {
    let parts = Differs::ALL.map(|kind| {
        let of = state.differences.iter().filter(|differs| **differs == kind);
        Part {
            word: kind.word(),
            letter: letter(kind),
            colour: terminal(kind.colour()),
            size: of.count() as u64,
        }
    });
    bar(state, " Left ", width, &parts)
}

/// Each has a letter of its word.
fn letter(of: Differs) -> char {
    match of {
        Differs::LeftOut => 'o',
        Differs::LeftOutLater => 'l',
        Differs::Retokenized => 't',
        Differs::Spelled => 's',
        Differs::Answer => 'a',
        Differs::Block => 'm',
        Differs::Dated => 'd',
        Differs::Text => 'x',
        Differs::Order => 'r',
        Differs::Both => 'b',
        Differs::Media => 'i',
        Differs::Prompt => 'p',
    }
}

/// A colour as terminals count them: 31 is the second of the sixteen, 91 the tenth.
fn terminal(number: u8) -> Color {
    Color::Indexed(match number {
        90.. => number - 82,
        _ => number - 30,
    })
}

fn bar(state: &ScreenState, label: &'static str, width: u16, parts: &[Part]) -> Text<'static> {
    let all = parts
        .iter()
        .fold(0_u64, |all, part| all.saturating_add(part.size));
    if all == 0 {
        return Text::default();
    }
    let width = bar_width(width) as u64;
    let mut spans = vec![Span::raw(label)];
    let (mut sum, mut drawn) = (0, 0);
    for part in parts {
        sum += part.size;
        let end = sum * width / all;
        let filling = if state.colours { '█' } else { part.letter };
        let drawing = filling.to_string().repeat((end - drawn) as usize);
        spans.push(Span::styled(drawing, colour(state, part.colour)));
        drawn = end;
    }
    let mut shown: Vec<&Part> = parts.iter().filter(|part| part.size > 0).collect();
    shown.sort_by_key(|part| std::cmp::Reverse(part.size));
    let share = |part: &Part| percent(Some(part.size as f64 / all as f64));
    let shares = shown
        .iter()
        .map(|part| format!("{} {}", part.word, share(part)));
    spans.push(Span::raw(format!(
        " {}",
        shares.collect::<Vec<_>>().join(", ")
    )));
    Text::from(spans)
}
