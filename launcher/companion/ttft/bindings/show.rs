//! The table, the file and the plot.

use plotters::prelude::*;

use super::super::figures::{Spread, columns, ms};
use super::super::trial::Measured;
use super::compared::{Run, Summary, Trial};
use crate::companion::plot::{DrawingError, drawn};
use crate::companion::show::count;
use crate::companion::table::Table;

/// A measurement of each trial: its name, a colour, and where it is.
struct Kind {
    name: &'static str,
    colour: RGBColor,
    of: fn(&Trial) -> &Measured,
    spread: fn(&Summary) -> Spread,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "miss: A removed",
        colour: RGBColor(178, 24, 43),
        of: |trial| &trial.miss,
        spread: |summary| summary.miss,
    },
    Kind {
        name: "hit: [A, B] cached",
        colour: RGBColor(27, 120, 55),
        of: |trial| &trial.hit,
        spread: |summary| summary.hit,
    },
    Kind {
        name: "again: [A, B] after the miss",
        colour: RGBColor(33, 102, 172),
        of: |trial| &trial.again,
        spread: |summary| summary.again,
    },
];

pub(super) fn text(runs: &[Run]) -> String {
    let head = [
        "",
        "hit ms",
        "evaluated",
        "miss ms",
        "evaluated",
        "again ms",
        "evaluated",
    ];
    let mut table = Table::new(&head, &[0]);
    for run in runs {
        let mut row = vec![run.name()];
        for which in [1, 0, 2] {
            let kind = &KINDS[which];
            row.push(ms((kind.spread)(&run.summary).median));
            row.push(count(middle(run, kind.of)));
        }
        table.row(row);
    }
    let trials = runs.first().map_or(0, |run| run.trials.len());
    table.text()
        + &format!(
            "\nMedians of {trials} trials: time to the first token, and tokens that the engine evaluated for it.\n"
        )
}

/// The median of the evaluated tokens.
fn middle(run: &Run, of: fn(&Trial) -> &Measured) -> u64 {
    let trials = run.trials.iter();
    let mut numbers: Vec<u64> = trials.map(|trial| of(trial).evaluated).collect();
    numbers.sort_unstable();
    numbers.get(numbers.len() / 2).copied().unwrap_or(0)
}

/// A line for each trial of each program.
pub(super) fn csv(runs: &[Run]) -> String {
    let mut text = "program,version,store,trial,\
                    hit_ms,hit_prompt_tokens,hit_cached,hit_evaluated,\
                    miss_ms,miss_prompt_tokens,miss_cached,miss_evaluated,\
                    again_ms,again_prompt_tokens,again_cached,again_evaluated\n"
        .to_owned();
    for run in runs {
        for trial in &run.trials {
            let mut cells = vec![
                run.program.to_owned(),
                run.version.clone().unwrap_or_default(),
                run.store.to_string(),
                trial.number.to_string(),
            ];
            let all = [&trial.hit, &trial.miss, &trial.again];
            cells.extend(all.into_iter().flat_map(columns));
            text += &(cells.join(",") + "\n");
        }
    }
    text
}

const SIZE: (u32, u32) = (860, 420);

/// All trials, one program beside the other, with their medians as lines.
pub(super) fn svg(runs: &[Run]) -> Result<String, String> {
    drawn(|text| draw(runs, text))
}

fn draw<'a>(runs: &[Run], text: &'a mut String) -> Result<(), DrawingError<'a>> {
    let trials = || runs.iter().flat_map(|run| &run.trials);
    let all = trials().flat_map(|trial| KINDS.iter().map(|kind| (kind.of)(trial).first_token_ms));
    let highest = all.fold(0.001, f64::max);
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("Time to first token", ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(56)
        .build_cartesian_2d((0..runs.len()).into_segmented(), 0.0..highest * 1.3)?;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(at) => runs.get(*at).map_or(String::new(), Run::name),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .y_desc("ms")
        .disable_x_mesh()
        .x_labels(runs.len())
        .x_label_formatter(&name)
        .light_line_style(TRANSPARENT)
        .draw()?;
    for kind in &KINDS {
        let points = runs.iter().enumerate().flat_map(|(at, run)| {
            run.trials.iter().map(move |trial| {
                let point = (SegmentValue::CenterOf(at), (kind.of)(trial).first_token_ms);
                Circle::new(point, 4, kind.colour.mix(0.5).filled())
            })
        });
        chart
            .draw_series(points)?
            .label(kind.name)
            .legend(move |(x, y)| Circle::new((x + 8, y), 4, kind.colour.filled()));
        let medians = runs.iter().enumerate().map(|(at, run)| {
            let height = (kind.spread)(&run.summary).median;
            let ends = [SegmentValue::Exact(at), SegmentValue::Exact(at + 1)];
            PathElement::new(ends.map(|end| (end, height)).to_vec(), kind.colour.mix(0.5))
        });
        chart.draw_series(medians)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(TRANSPARENT)
        .draw()?;
    area.present()
}
