use serde::Serialize;

use super::trial::{Measured, Trial, Verdict};
use crate::companion::show::{count, counted};
use crate::companion::table::Table;

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) p10: f64,
    pub(super) p90: f64,
}

impl Spread {
    /// Of at least one number.
    pub(super) fn from_numbers(numbers: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = numbers.collect();
        sorted.sort_by(f64::total_cmp);
        Self {
            median: quantile(&sorted, 0.5),
            p10: quantile(&sorted, 0.1),
            p90: quantile(&sorted, 0.9),
        }
    }
}

/// Interpolates between the two nearest values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * sorted.len().saturating_sub(1) as f64;
    let at = |place: f64| sorted.get(place as usize).copied().unwrap_or(f64::NAN);
    let (low, high) = (at(place.floor()), at(place.ceil()));
    low + (high - low) * place.fract()
}

#[derive(Clone, Debug)]
pub(super) struct Summary {
    pub(super) hit: Spread,
    pub(super) miss: Spread,
    /// Of the trials in which the prefix store had the prompt.
    pub(super) store: Option<Spread>,
    /// How often the hook was asked, and right.
    pub(super) hook: Option<(usize, usize)>,
}

impl Summary {
    pub(super) fn new(trials: &[Trial]) -> Self {
        let verdicts: Vec<&Verdict> = trials.iter().flat_map(Trial::verdicts).collect();
        let right = verdicts.iter().filter(|verdict| verdict.right).count();
        Self {
            hit: Spread::from_numbers(trials.iter().map(|trial| trial.hit.first_token_ms)),
            miss: Spread::from_numbers(trials.iter().map(|trial| trial.miss.first_token_ms)),
            store: (stored(trials).count() > 0).then(|| {
                Spread::from_numbers(stored(trials).map(|measured| measured.first_token_ms))
            }),
            hook: (!verdicts.is_empty()).then_some((verdicts.len(), right)),
        }
    }

    pub(super) fn ratio(&self) -> f64 {
        self.miss.median / self.hit.median
    }
}

/// What came from the prefix store.
fn stored(trials: &[Trial]) -> impl Iterator<Item = &Measured> {
    trials.iter().filter_map(|trial| trial.store.as_ref())
}

pub(super) fn text(trials: &[Trial], summary: &Summary) -> String {
    let mut text = by_trial(trials) + "\n";
    let mut table = Table::new(
        &["", "median ms", "p10", "p90", "tokens reused", "evaluated"],
        &[0],
    );
    let mut row = |name: &str, spread: Spread, all: Vec<&Measured>| {
        let middle = |of: fn(&Measured) -> u64| {
            let mut numbers: Vec<u64> = all.iter().map(|measured| of(measured)).collect();
            numbers.sort_unstable();
            let middle = numbers.get(numbers.len() / 2);
            middle.map_or(String::new(), |n| count(*n))
        };
        table.row(vec![
            name.to_owned(),
            ms(spread.median),
            ms(spread.p10),
            ms(spread.p90),
            middle(|measured| measured.cached),
            middle(|measured| measured.evaluated),
        ]);
    };
    row("hit", summary.hit, trials.iter().map(|t| &t.hit).collect());
    row(
        "miss",
        summary.miss,
        trials.iter().map(|t| &t.miss).collect(),
    );
    if let Some(spread) = summary.store {
        row("from the store", spread, stored(trials).collect());
    }
    text += &table.text();
    text += &format!(
        "\nA cached context makes the first token come {:.1} times as fast.\n",
        summary.ratio()
    );
    if let Some(store) = summary.store {
        text += &format!(
            "From the prefix store it comes {:.1} times as fast as with a miss.\n",
            summary.miss.median / store.median
        );
    }
    if let Some((asked, right)) = summary.hook {
        text += &format!(
            "The hook was asked {} what is cached, and right {}.\n",
            counted(asked as u64, "time"),
            counted(right as u64, "time")
        );
    }
    text
}

fn by_trial(trials: &[Trial]) -> String {
    let mut table = Table::new(
        &[
            "trial",
            "hit ms",
            "miss ms",
            "before the hit, the hook said",
            "",
            "after the miss",
            "",
        ],
        &[3, 4, 5, 6],
    );
    for trial in trials {
        let mut row = vec![
            trial.number.to_string(),
            ms(trial.hit.first_token_ms),
            ms(trial.miss.first_token_ms),
        ];
        for verdict in [&trial.before, &trial.after] {
            match verdict {
                Some(verdict) => {
                    row.push(verdict.said.text());
                    row.push(judgement(verdict).to_owned());
                }
                None => row.extend(["not asked".to_owned(), String::new()]),
            }
        }
        table.row(row);
    }
    table.text()
}

fn judgement(verdict: &Verdict) -> &'static str {
    match (verdict.right, verdict.cached) {
        (true, _) => "right",
        (false, true) => "WRONG, it was cached",
        (false, false) => "WRONG, it was gone",
    }
}

pub(super) fn ms(milliseconds: f64) -> String {
    match milliseconds {
        ..10.0 => format!("{milliseconds:.2}"),
        10.0..100.0 => format!("{milliseconds:.1}"),
        _ => format!("{milliseconds:.0}"),
    }
}

/// A line for each trial; what the hook said in words without commas.
pub(super) fn csv(trials: &[Trial]) -> String {
    let mut text = "trial,slot,hit_ms,hit_prompt_tokens,hit_cached,hit_evaluated,\
                    miss_ms,miss_prompt_tokens,miss_cached,miss_evaluated,\
                    hook_before_hit,was_cached_before_hit,hook_before_hit_right,\
                    hook_after_miss,was_cached_after_miss,hook_after_miss_right,\
                    store_ms,store_prompt_tokens,store_loaded,store_evaluated\n"
        .to_owned();
    for trial in trials {
        let mut cells = vec![
            trial.number.to_string(),
            trial.slot.map_or(String::new(), |slot| slot.to_string()),
        ];
        cells.extend(columns(&trial.hit));
        cells.extend(columns(&trial.miss));
        for verdict in [&trial.before, &trial.after] {
            match verdict {
                Some(verdict) => cells.extend([
                    verdict.said.text(),
                    verdict.cached.to_string(),
                    verdict.right.to_string(),
                ]),
                None => cells.extend([const { String::new() }; 3]),
            }
        }
        match &trial.store {
            Some(stored) => cells.extend(columns(stored)),
            None => cells.extend([const { String::new() }; 4]),
        }
        text += &(cells.join(",") + "\n");
    }
    text
}

pub(super) fn columns(measured: &Measured) -> [String; 4] {
    [
        format!("{:.3}", measured.first_token_ms),
        measured.prompt_tokens.to_string(),
        measured.cached.to_string(),
        measured.evaluated.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_interpolated_between_the_nearest_values() {
        let spread = Spread::from_numbers([5.0, 1.0, 2.0, 4.0, 3.0].into_iter());
        let expected = Spread {
            median: 3.0,
            p10: 1.4,
            p90: 4.6,
        };
        assert_eq!(spread, expected);
        assert_eq!(Spread::from_numbers([7.0].into_iter()).p90, 7.0);
        assert_eq!(quantile(&[1.0, 2.0], 0.5), 1.5);
    }
}
