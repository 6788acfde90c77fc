//! Colours, where there are any, and bars.

use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use crate::companion::top::state::ScreenState;

/// Eighths of a cell.
const PARTS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// A quarter of the screen, at most.
pub(super) fn bar_width(width: u16) -> usize {
    usize::from(width / 4).min(40)
}

/// How full something is needs no more: what is wider is for what slots work on.
pub(super) fn gauge_width(width: u16) -> usize {
    bar_width(width).min(20)
}

pub(super) fn bar(state: &ScreenState, fill: f64, width: usize) -> Span<'static> {
    let eighths = ((fill.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize).min(width * 8);
    let mut text = "█".repeat(eighths / 8);
    if eighths % 8 > 0 {
        text.push(PARTS[eighths % 8 - 1]);
    }
    let missing = width - eighths.div_ceil(8);
    text.push_str(&"·".repeat(missing));
    let shade = match fill {
        ..0.75 => Color::Green,
        0.75..0.95 => Color::Yellow,
        _ => Color::Red,
    };
    Span::styled(text, colour(state, shade))
}

pub(super) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

pub(super) fn colour(state: &ScreenState, colour: Color) -> Style {
    if state.colours {
        Style::new().fg(colour)
    } else {
        Style::new()
    }
}
