//! Panels as one SVG.

use plotters::prelude::*;

use crate::{Panel, Result};

/// A cell of the grid, in pixels.
const CELL: (u32, u32) = (40, 26);
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 110, 20),
    RGBColor(44, 140, 44),
    RGBColor(190, 40, 50),
    RGBColor(130, 90, 180),
    RGBColor(120, 120, 120),
];

pub(crate) fn svg(panels: &[Panel]) -> Result<String> {
    let bottom = panels.iter().map(|panel| panel.place[1] + panel.place[3]);
    let size = (24 * CELL.0, bottom.max().unwrap_or(1) * CELL.1);
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE)?;
        for panel in panels {
            let [x, y, w, h] = panel.place;
            let corner = ((x * CELL.0) as i32 + 6, (y * CELL.1) as i32 + 6);
            let inside = area
                .clone()
                .shrink(corner, (w * CELL.0 - 12, h * CELL.1 - 12));
            if panel.is_number {
                number(&inside, panel)?
            } else {
                lines(&inside, panel)?
            }
        }
        area.present()?;
    }
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn number(area: &Area, panel: &Panel) -> Result<()> {
    area.titled(&panel.title, ("sans-serif", 16))?;
    let last = panel.series.first().and_then(|series| series.points.last());
    let text = last.map_or("no data".to_owned(), |(_, value)| {
        written(*value, &panel.unit)
    });
    let style = ("sans-serif", 40).into_font().color(&COLOURS[0]);
    area.draw(&Text::new(text, (12, 56), style))?;
    Ok(())
}

fn lines(area: &Area, panel: &Panel) -> Result<()> {
    let points = || panel.series.iter().flat_map(|series| &series.points);
    let last = points().map(|(x, _)| *x).fold(1.0, f64::max);
    let highest = points().map(|(_, y)| *y).fold(0.0, f64::max);
    let top = if highest > 0.0 { highest * 1.1 } else { 1.0 };
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 16))
        .margin_right(20)
        .x_label_area_size(22)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..last, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_label_formatter(&|x| format!("{x:.0} s"))
        .y_label_formatter(&|y| written(*y, &panel.unit))
        .y_labels(5)
        .draw()?;
    for (series, colour) in panel.series.iter().zip(COLOURS.iter().cycle()) {
        chart
            .draw_series(LineSeries::new(series.points.iter().copied(), colour))?
            .label(&series.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 12, y)], colour));
    }
    if !panel.series.is_empty() {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .legend_area_size(16)
            .background_style(WHITE.mix(0.7))
            .border_style(TRANSPARENT)
            .draw()?;
    }
    Ok(())
}

/// In a unit, by Grafana's name for it.
fn written(value: f64, unit: &str) -> String {
    match unit {
        "percentunit" => format!("{:.0} %", value * 100.0),
        "bytes" if value >= 1048576.0 => format!("{:.1} MiB", value / 1048576.0),
        "bytes" => format!("{:.0} KiB", value / 1024.0),
        "s" => format!("{:.0} ms", value * 1e3),
        "ops" | "reqps" => format!("{value:.1}/s"),
        _ if value >= 100.0 || value == value.trunc() => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}
