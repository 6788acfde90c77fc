//! Plots of shares in percent, and the files that they are written to.

use std::fs;
use std::path::Path;

use plotters::prelude::*;

use super::show::count;

const SIZE: (u32, u32) = (720, 400);
const COLOURS: [RGBColor; 7] = [
    RGBColor(27, 120, 55),
    RGBColor(178, 24, 43),
    RGBColor(33, 102, 172),
    RGBColor(230, 97, 1),
    RGBColor(94, 60, 153),
    RGBColor(90, 90, 90),
    RGBColor(1, 133, 113),
];

/// A line: its name, and its points in the order in which they are joined.
pub(super) type Line = (String, Vec<(f64, f64)>);

/// The lines of points that say of which they are.
pub(super) fn lines(points: impl IntoIterator<Item = (String, (f64, f64))>) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for (name, at) in points {
        match lines.iter_mut().find(|(known, _)| *known == name) {
            Some((_, line)) => line.push(at),
            None => lines.push((name, vec![at])),
        }
    }
    for (_, line) in &mut lines {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

/// Why nothing can be drawn into a text.
pub(super) type DrawingError<'a> =
    DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// What is drawn as an SVG.
pub(super) fn drawn(
    draw: impl FnOnce(&mut String) -> Result<(), DrawingError<'_>>,
) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text).map_err(|e| format!("the plot cannot be drawn: {e}"))?;
    Ok(text)
}

/// What the horizontal axis counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    /// Ones, from zero.
    Ones,
    /// Powers of two.
    Powers,
}

/// A plot of prompt tokens that are reused, and the text that is beside it on a page.
pub(super) struct Plot {
    /// What the horizontal axis is.
    pub(super) across: String,
    pub(super) axis: Axis,
    pub(super) lines: Vec<Line>,
    pub(super) text: String,
}

impl Plot {
    /// Writes it to the files that are wanted.
    ///
    /// # Errors
    /// What could not be drawn or written.
    pub(super) fn write(&self, svg: Option<&Path>, page: Option<&Path>) -> Result<(), String> {
        if svg.is_none() && page.is_none() {
            return Ok(());
        }
        let drawn = self.svg()?;
        let written = |path: &Path, content: &str| {
            fs::write(path, content).map_err(|e| {
                let path = path.display();
                format!("{path} cannot be written ({e}): check the folder")
            })
        };
        svg.map_or(Ok(()), |path| written(path, &drawn))?;
        page.map_or(Ok(()), |path| written(path, &self.page_with(&drawn)))
    }

    /// One file, with nothing from elsewhere.
    ///
    /// # Errors
    /// What could not be drawn.
    pub(super) fn page(&self) -> Result<String, String> {
        Ok(self.page_with(&self.svg()?))
    }

    fn page_with(&self, drawn: &str) -> String {
        let escaped = self.text.replace('&', "&amp;").replace('<', "&lt;");
        format!(
            "<!doctype html>\n<meta charset=\"utf-8\">\n<title>ContextPilot: traffic</title>\n\
             <style>body{{font:15px sans-serif;max-width:60em;margin:2em auto}}pre{{font-size:13px}}svg{{max-width:100%}}</style>\n\
             {drawn}\n<pre>{escaped}</pre>\n"
        )
    }

    fn svg(&self) -> Result<String, String> {
        drawn(|text| self.draw(text))
    }

    fn draw<'a>(&self, text: &'a mut String) -> Result<(), DrawingError<'a>> {
        let axis = self.axis;
        let place = |x: f64| match axis {
            Axis::Ones => x,
            Axis::Powers => x.max(1.0).log2(),
        };
        let all = || self.lines.iter().flat_map(|(_, line)| line);
        let most = all().map(|(x, _)| place(*x)).fold(0.0, f64::max);
        let range = match axis {
            Axis::Ones => 0.0..most.max(1.0) + 1.0,
            Axis::Powers => {
                let least = all().map(|(x, _)| place(*x)).fold(50.0, f64::min).floor();
                least..most.ceil().max(least + 1.0)
            }
        };
        // Whole steps only: between them labels would be the same, or no powers.
        let steps = (range.end - range.start) as usize + 1;
        let label = |x: &f64| match axis {
            _ if x.fract() != 0.0 => String::new(),
            Axis::Ones => format!("{x:.0}"),
            Axis::Powers => count(x.exp2() as u64),
        };
        let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption("Prompt tokens that are reused", ("sans-serif", 20))
            .margin(12)
            .margin_right(28)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(range, 0.0..100.0)?;
        chart
            .configure_mesh()
            .x_desc(self.across.as_str())
            .y_desc("%")
            .x_labels(steps.min(11))
            .x_label_formatter(&label)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (nth, (name, line)) in self.lines.iter().enumerate() {
            let colour = COLOURS[nth % COLOURS.len()];
            let at = |(x, y): &(f64, f64)| (place(*x), *y);
            chart.draw_series(LineSeries::new(line.iter().map(at), colour.mix(0.6)))?;
            let dots = line
                .iter()
                .map(|point| Circle::new(at(point), 4, colour.filled()));
            chart
                .draw_series(dots)?
                .label(name)
                .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(TRANSPARENT)
            .draw()?;
        area.present()
    }
}
