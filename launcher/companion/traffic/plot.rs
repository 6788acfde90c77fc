//! Plots of shares over something.

use plotters::prelude::*;

const SIZE: (u32, u32) = (760, 420);
const COLOURS: [RGBColor; 7] = [
    RGBColor(27, 120, 55),
    RGBColor(178, 24, 43),
    RGBColor(33, 102, 172),
    RGBColor(230, 97, 1),
    RGBColor(94, 60, 153),
    RGBColor(90, 90, 90),
    RGBColor(1, 133, 113),
];

/// A line: its name, and its points.
pub(in crate::companion) type Line = (String, Vec<(f64, f64)>);

type Drawing<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Shares in percent over `across`, which is drawn in powers of two.
pub(in crate::companion) fn svg(
    caption: &str,
    across: &str,
    lines: &[Line],
) -> Result<String, String> {
    let mut text = String::new();
    draw(caption, across, lines, &mut text)
        .map_err(|e| format!("the plot cannot be drawn: {e}"))?;
    Ok(text)
}

fn draw<'a>(
    caption: &str,
    across: &str,
    lines: &[Line],
    text: &'a mut String,
) -> Result<(), Drawing<'a>> {
    let all = || {
        lines
            .iter()
            .flat_map(|(_, line)| line.iter().map(|(x, _)| x.max(1.0)))
    };
    let least = all().fold(f64::MAX, f64::min).min(1e15).log2().floor();
    let most = all().fold(1.0, f64::max).log2().ceil().max(least + 1.0);
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(caption, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(least..most, 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc(across)
        .y_desc("%")
        .x_label_formatter(&|power| crate::companion::show::count(power.exp2().round() as u64))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (nth, (name, line)) in lines.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        let at = |(x, y): &(f64, f64)| (x.max(1.0).log2(), *y);
        chart
            .draw_series(LineSeries::new(line.iter().map(at), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
        let dots = line
            .iter()
            .map(|point| Circle::new(at(point), 3, colour.filled()));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(TRANSPARENT)
        .draw()?;
    area.present()
}
