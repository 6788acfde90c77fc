//! Lines in SVG files.

use std::path::Path;

use contextpilot_testbed::{Error, Result};
use plotters::prelude::*;

use crate::sample::Sample;

const SIZE: (u32, u32) = (760, 380);
/// People who see few colours can tell them apart, too.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(80, 80, 80),
];

/// A named line.
pub(crate) type Line = (String, Vec<(f64, f64)>);

/// What a plot shows.
pub(crate) struct Plot<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
    /// The horizontal axis counts powers of ten.
    pub(crate) logarithmic: bool,
    /// The vertical axis begins at 0 even if no line goes there.
    pub(crate) from_zero: bool,
    pub(crate) lines: Vec<Line>,
}

/// The share of figures that lie at or below a value: a line that is further left is faster.
/// Without the last of a hundred, which would make the rest too small to see.
pub(crate) fn shares(samples: &[(String, Sample)]) -> Vec<Line> {
    let line = |(name, sample): &(String, Sample)| {
        let count = sample.len() as f64;
        let shown = sample.len() - sample.len() / 100;
        let points = sample.sorted().iter().take(shown).enumerate();
        let points = points.map(|(nth, &value)| (value, (nth + 1) as f64 / count * 100.0));
        (name.clone(), points.collect())
    };
    samples.iter().map(line).collect()
}

impl Plot<'_> {
    /// Draws it.
    ///
    /// # Errors
    /// Nothing to draw, or a file that cannot be written.
    pub(crate) fn draw(&self, path: &Path) -> Result<()> {
        let why = |error: &dyn std::fmt::Display| {
            Error::from(std::io::Error::other(format!(
                "{}: {error}",
                path.display()
            )))
        };
        let scaled = |x: f64| if self.logarithmic { x.log10() } else { x };
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let (left, right) = range(points().map(|&(x, _)| scaled(x)))
            .ok_or_else(|| why(&"there is nothing to draw"))?;
        let (low, high) =
            range(points().map(|&(_, y)| y)).ok_or_else(|| why(&"there is nothing to draw"))?;
        let low = if self.from_zero { low.min(0.0) } else { low };

        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE).map_err(|error| why(&error))?;
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(left..right, low..high + (high - low) * 0.04)
            .map_err(|error| why(&error))?;
        chart
            .configure_mesh()
            .light_line_style(WHITE)
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&|x| {
                show(if self.logarithmic {
                    10_f64.powf(*x)
                } else {
                    *x
                })
            })
            .y_label_formatter(&|y| show(*y))
            .draw()
            .map_err(|error| why(&error))?;
        for ((name, points), colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let points = points.iter().map(|&(x, y)| (scaled(x), y));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))
                .map_err(|error| why(&error))?
                .label(name.as_str())
                .legend(|(x, y)| {
                    PathElement::new(vec![(x, y), (x + 16, y)], colour.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.2))
            .draw()
            .map_err(|error| why(&error))?;
        area.present().map_err(|error| why(&error))
    }
}

/// The least and the most; wider if they are the same.
fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let values = values.filter(|value| value.is_finite());
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    if low > high {
        return None;
    }
    Some(if low < high {
        (low, high)
    } else {
        (low - 0.5, high + 0.5)
    })
}

/// As short as it can be said.
fn show(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size >= 1e6 => format!("{:.0} M", value / 1e6),
        _ if size >= 1e4 => format!("{:.0} k", value / 1e3),
        _ if size >= 10.0 || size == 0.0 => format!("{value:.0}"),
        _ if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(lines: Vec<Line>) -> Plot<'static> {
        Plot {
            title: "title",
            x: "x",
            y: "y",
            logarithmic: true,
            from_zero: true,
            lines,
        }
    }

    #[test]
    fn a_line_is_drawn_and_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.svg");
        let line = ("one line".to_owned(), vec![(10.0, 1.0), (1000.0, 2.0)]);
        plot(vec![line]).draw(&path).expect("it is drawn");
        let svg = std::fs::read_to_string(&path).expect("it is a file");
        assert!(
            svg.contains("one line") && svg.contains("<polyline"),
            "{svg}"
        );
    }

    #[test]
    fn nothing_cannot_be_drawn() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = plot(Vec::new()).draw(&folder.path().join("a.svg"));
        assert!(error.is_err_and(|error| error.to_string().contains("nothing to draw")));
    }

    #[test]
    fn shares_rise_to_all() {
        let lines = shares(&[("a".to_owned(), Sample::new(vec![2.0, 1.0]))]);
        assert_eq!(lines[0].1, [(1.0, 50.0), (2.0, 100.0)]);
    }
}
