use contextpilot_simulate::Point;
use plotters::prelude::*;

const SIZE: (u32, u32) = (720, 400);
const COLOURS: [RGBColor; 6] = [
    RGBColor(27, 120, 55),
    RGBColor(178, 24, 43),
    RGBColor(33, 102, 172),
    RGBColor(230, 97, 1),
    RGBColor(94, 60, 153),
    RGBColor(90, 90, 90),
];

type Drawing<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// The share that is reused over the number of slots, a line for each combination of the others.
pub(super) fn svg(points: &[Point]) -> Result<String, String> {
    let mut text = String::new();
    draw(points, &mut text).map_err(|e| format!("the plot cannot be drawn: {e}"))?;
    Ok(text)
}

fn draw<'a>(points: &[Point], text: &'a mut String) -> Result<(), Drawing<'a>> {
    let slots = || points.iter().map(|point| point.setting.parallel);
    let most = f64::from(slots().max().unwrap_or(1)) + 1.0;
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Prompt tokens that are reused", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..most, 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("--parallel")
        .y_desc("%")
        .x_label_formatter(&|slots| format!("{slots:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (nth, (name, line)) in lines(points).into_iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        chart.draw_series(LineSeries::new(line.iter().copied(), colour.mix(0.6)))?;
        let dots = line.iter().map(|&at| Circle::new(at, 4, colour.filled()));
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

type Line = Vec<(f64, f64)>;

fn lines(points: &[Point]) -> Vec<(String, Line)> {
    let mut lines: Vec<(String, Line)> = Vec::new();
    for point in points {
        let setting = &point.setting;
        let similarity = setting.slot_prompt_similarity;
        let (ram, reuse) = (setting.cache_ram, setting.cache_reuse);
        let name = format!("cache-ram {ram}, similarity {similarity}, cache-reuse {reuse}");
        let at = (f64::from(setting.parallel), 100.0 * point.reused_share());
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
