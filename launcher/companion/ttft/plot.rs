use plotters::prelude::*;

use crate::companion::plot::{DrawingError, drawn};

use super::figures::{Spread, Summary};
use super::trial::{Measured, Trial};

const SIZE: (u32, u32) = (720, 400);
const HIT: RGBColor = RGBColor(27, 120, 55);
const MISS: RGBColor = RGBColor(178, 24, 43);
const STORE: RGBColor = RGBColor(33, 102, 172);

/// Hit and miss of each trial, with their medians as lines.
pub(super) fn svg(trials: &[Trial]) -> Result<String, String> {
    drawn(|text| draw(trials, text))
}

fn draw<'a>(trials: &[Trial], text: &'a mut String) -> Result<(), DrawingError<'a>> {
    let summary = Summary::new(trials);
    let times = || {
        trials.iter().flat_map(|trial| {
            let both = [&trial.hit, &trial.miss].into_iter();
            both.chain(&trial.store)
                .map(|measured| measured.first_token_ms)
        })
    };
    let highest = times().fold(0.0, f64::max).max(0.001);
    let last = trials.len() as f64;

    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Time to first token", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d(0.5..last + 0.5, 0.0..highest * 1.15)?;
    chart
        .configure_mesh()
        .x_desc("trial")
        .y_desc("ms")
        .x_labels(trials.len().clamp(1, 12))
        .x_label_formatter(&|trial| format!("{trial:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()?;
    type Of = fn(&Trial) -> Option<&Measured>;
    let stored = summary.store.map(|spread| {
        let of: Of = |trial| trial.store.as_ref();
        ("from the prefix store", STORE, spread, of)
    });
    let rows: [(&str, RGBColor, Spread, Of); 2] = [
        ("miss: A removed", MISS, summary.miss, |trial| {
            Some(&trial.miss)
        }),
        ("hit: [A, B] cached", HIT, summary.hit, |trial| {
            Some(&trial.hit)
        }),
    ];
    for (name, colour, spread, of) in rows.into_iter().chain(stored) {
        let points = trials.iter().filter_map(|trial| {
            let at = (trial.number.into(), of(trial)?.first_token_ms);
            Some(Circle::new(at, 4, colour.filled()))
        });
        let label = format!("{name}, median {:.1} ms", spread.median);
        chart
            .draw_series(points)?
            .label(label)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
        let ends = [(0.5, spread.median), (last + 0.5, spread.median)];
        chart.draw_series(LineSeries::new(ends, colour.mix(0.5)))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(TRANSPARENT)
        .draw()?;
    area.present()
}
