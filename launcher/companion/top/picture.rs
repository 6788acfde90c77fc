//! A screen as an SVG file.

use std::fmt::Write;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Of a cell, in pixels. A monospaced font of 14 px is 8.4 px wide.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
const MARGIN: f64 = 12.0;
const BASELINE: f64 = 13.5;

/// Draws what a terminal would show.
pub(super) fn svg(screen: &Buffer) -> String {
    let area = screen.area();
    let (width, height) = (
        f64::from(area.width) * WIDTH + 2.0 * MARGIN,
        f64::from(area.height) * HEIGHT + 2.0 * MARGIN,
    );
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" shape-rendering=\"crispEdges\" \
         font-family=\"DejaVu Sans Mono, Menlo, Consolas, \
         monospace\" font-size=\"14\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#1b1f24\"/>\n"
    );
    for y in 0..area.height {
        let mut x = 0;
        while x < area.width {
            let Some(cell) = screen.cell((x, y)) else {
                break;
            };
            let (left, top) = (
                MARGIN + f64::from(x) * WIDTH,
                MARGIN + f64::from(y) * HEIGHT,
            );
            // Fonts differ in how they draw blocks; rectangles meet.
            if let Some((from_left, from_top)) = block(cell.symbol()) {
                rectangle(&mut svg, (left, top), (from_left, from_top), fill(cell));
                x += 1;
                continue;
            }
            let mut text = String::new();
            let begin = x;
            while let Some(next) = screen.cell((x, y)) {
                if x >= area.width || style(next) != style(cell) || block(next.symbol()).is_some() {
                    break;
                }
                text.push_str(next.symbol());
                x += 1;
            }
            if !text.trim().is_empty() {
                let weight = if cell.modifier.contains(Modifier::BOLD) {
                    " font-weight=\"bold\""
                } else {
                    ""
                };
                let _ = writeln!(
                    svg,
                    "<text x=\"{left:.1}\" y=\"{:.1}\" fill=\"{}\"{weight} textLength=\"{:.1}\" \
                     xml:space=\"preserve\">{}</text>",
                    top + BASELINE,
                    fill(cell),
                    f64::from(x - begin) * WIDTH,
                    escaped(&text)
                );
            }
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn style(cell: &Cell) -> (Color, Modifier) {
    (cell.fg, cell.modifier)
}

/// How much of a cell a block character fills, from its left and from its
/// bottom, in eighths.
fn block(symbol: &str) -> Option<(u32, u32)> {
    match symbol.chars().next()? {
        '█' => Some((8, 8)),
        c @ '▁'..='▇' => Some((8, c as u32 - '▁' as u32 + 1)),
        c @ '▉'..='▏' => Some((7 - (c as u32 - '▉' as u32), 8)),
        _ => None,
    }
}

fn rectangle(svg: &mut String, (left, top): (f64, f64), (across, up): (u32, u32), fill: &str) {
    let height = HEIGHT * f64::from(up) / 8.0;
    let _ = writeln!(
        svg,
        "<rect x=\"{left:.1}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{height:.2}\" fill=\"{fill}\"/>",
        top + HEIGHT - height,
        WIDTH * f64::from(across) / 8.0,
    );
}

fn fill(cell: &Cell) -> &'static str {
    match cell.fg {
        Color::Green => "#57ab5a",
        Color::Yellow => "#c69026",
        Color::Red => "#e5534b",
        Color::Cyan => "#39c5cf",
        Color::Magenta => "#b083f0",
        Color::DarkGray => "#768390",
        _ => "#cdd9e5",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rectangles_and_text_is_text() {
        let screen = Buffer::with_lines(["a<b █▄▌"]);
        let svg = svg(&screen);
        assert!(svg.contains(">a&lt;b </text>"), "{svg}");
        for size in [
            "width=\"8.40\" height=\"18.00\"",
            "height=\"9.00\"",
            "width=\"4.20\"",
        ] {
            assert!(svg.contains(size), "{size} in {svg}");
        }
        assert_eq!([block("▏"), block("▁")], [Some((1, 8)), Some((8, 1))]);
    }
}
