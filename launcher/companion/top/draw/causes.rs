//! Evaluated tokens by cause: a bar.

use ratatui::style::Color;
use ratatui::text::{Line as Text, Span};

use super::{bar_width, colour};
use crate::companion::show::percent;
use crate::companion::top::state::State;
use crate::companion::words;

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
pub(super) fn are_known(state: &State) -> bool {
    let now = state.now.as_ref();
    now.is_some_and(|now| now.reuse.causes.sum() > 0)
}

/// `Why ████████  new 61 %, evicted 30 %, elsewhere 9 %`
pub(super) fn line(state: &State, width: u16) -> Text<'static> {
    let Some(now) = &state.now else {
        return Text::default();
    };
    let causes = now.reuse.causes.all();
    let tokens = PARTS.map(|(part, ..)| {
        let of = causes.iter().filter(|(name, _)| words::kind(name) == part);
        of.map(|(_, tokens)| *tokens).fold(0, u64::saturating_add)
    });
    let all = tokens.into_iter().fold(0, u64::saturating_add);
    if all == 0 {
        return Text::default();
    }
    let width = bar_width(width) as u64;
    let mut spans = vec![Span::raw(" Why ")];
    let (mut sum, mut drawn) = (0, 0);
    for ((_, letter, shade), tokens) in PARTS.iter().zip(tokens) {
        sum += tokens;
        let end = sum * width / all;
        let filling = if state.colours { '█' } else { *letter };
        let part = filling.to_string().repeat((end - drawn) as usize);
        spans.push(Span::styled(part, colour(state, *shade)));
        drawn = end;
    }
    let mut shares: Vec<(u64, &str)> = tokens.into_iter().zip(PARTS.map(|part| part.0)).collect();
    shares.retain(|(tokens, _)| *tokens > 0);
    shares.sort_by_key(|&(tokens, _)| std::cmp::Reverse(tokens));
    let shares: Vec<String> = shares
        .into_iter()
        .map(|(tokens, cause)| format!("{cause} {}", percent(Some(tokens as f64 / all as f64))))
        .collect();
    spans.push(Span::raw(format!(" {}", shares.join(", "))));
    Text::from(spans)
}
