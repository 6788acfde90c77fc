//! Figures, and what may be said about them.

use std::fmt::Write as _;

use contextpilot_testbed::Random;

/// With fewer rounds, nothing is certain: chance alone puts five of five figures on one side in one
/// of sixteen cases.
const FEWEST: usize = 6;

/// Figures of one kind, sorted.
#[derive(Clone, Debug)]
pub(crate) struct Sample(Vec<f64>);

impl Sample {
    pub(crate) fn new(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self(figures)
    }

    /// The figure below which this share of them lies; not a number if there are none.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let last = self.0.len().saturating_sub(1);
        let place = (last as f64 * share).round() as usize;
        self.0.get(place).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn sorted(&self) -> &[f64] {
        &self.0
    }

    /// Where the median is with 95 % certainty: between two of the figures, by the binomial
    /// distribution of how many of them are below it. Nothing is assumed about the figures but
    /// that they do not depend on each other.
    pub(crate) fn interval(&self) -> Interval {
        let n = self.0.len() as f64;
        let half = 1.96 * n.sqrt() / 2.0;
        let place = |place: f64| {
            let last = self.0.len().saturating_sub(1);
            let place = place.clamp(0.0, last as f64) as usize;
            self.0.get(place).copied().unwrap_or(f64::NAN)
        };
        Interval {
            low: place((n / 2.0 - half).floor()),
            middle: self.median(),
            high: place((n / 2.0 + half).ceil()),
        }
    }
}

/// A median, and where it may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) low: f64,
    pub(crate) middle: f64,
    pub(crate) high: f64,
}

impl Interval {
    /// With so many decimals: `1.02 (0.99 to 1.05)`.
    pub(crate) fn show(&self, decimals: usize) -> String {
        let Self { low, middle, high } = self;
        format!("{middle:.decimals$} ({low:.decimals$} to {high:.decimals$})")
    }
}

/// In which order to ask the sides in a round: another one each time, or a side that always comes after
/// a slow one would suffer from what that leaves behind.
pub(crate) fn order(round: usize, sides: usize) -> Vec<usize> {
    let mut random = Random(round as u64);
    let mut order: Vec<usize> = (0..sides).collect();
    order.sort_by_cached_key(|_| random.draw());
    order
}

/// One side of a comparison, round by round.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) rounds: Vec<f64>,
}

/// Several sides that were measured in turn. The first is what the others are compared with; the
/// second is the same thing again: it shows how far two equal things seem to differ here.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) sides: Vec<Side>,
}

/// What a comparison says about one of its sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No difference can be told from none.
    Noise,
    Slower,
    Faster,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Noise => "inside the noise",
            Self::Slower => "more",
            Self::Faster => "less",
        }
    }
}

impl Comparison {
    pub(crate) fn new(names: &[&str]) -> Self {
        let side = |name: &&str| Side {
            name: (*name).to_owned(),
            rounds: Vec::new(),
        };
        Self {
            sides: names.iter().map(side).collect(),
        }
    }

    pub(crate) fn add(&mut self, side: usize, figure: f64) {
        if let Some(side) = self.sides.get_mut(side) {
            side.rounds.push(figure);
        }
    }

    fn pairs(&self, side: usize, join: impl Fn(f64, f64) -> f64) -> Sample {
        let of = |side: usize| self.sides.get(side).map_or(&[][..], |side| &side.rounds);
        let pairs = of(side).iter().zip(of(0));
        Sample::new(pairs.map(|(&one, &first)| join(one, first)).collect())
    }

    /// What this side took over what the first took, in each round.
    pub(crate) fn ratios(&self, side: usize) -> Sample {
        self.pairs(side, |one, first| one / first)
    }

    /// What this side took over what the first took, round by round.
    pub(crate) fn ratio(&self, side: usize) -> Interval {
        self.ratios(side).interval()
    }

    /// What this side took more than the first, round by round.
    pub(crate) fn difference(&self, side: usize) -> Interval {
        self.pairs(side, |one, first| one - first).interval()
    }

    /// A difference counts if it is certain, and larger than that between the first two sides,
    /// which are the same thing.
    pub(crate) fn verdict(&self, side: usize) -> Verdict {
        let rounds = self.sides.get(side).map_or(0, |side| side.rounds.len());
        if rounds < FEWEST {
            return Verdict::Noise;
        }
        let ratio = self.ratio(side);
        let same = self.ratio(1);
        let noise = (same.low - 1.0).abs().max((same.high - 1.0).abs());
        if ratio.low > 1.0 && ratio.middle - 1.0 > noise {
            Verdict::Slower
        } else if ratio.high < 1.0 && 1.0 - ratio.middle > noise {
            Verdict::Faster
        } else {
            Verdict::Noise
        }
    }

    /// What each round says, here a start.
    pub(crate) fn ranges(&self) -> String {
        let sides = self.sides.iter().enumerate().skip(1);
        let ratios = sides.map(|(nth, side)| {
            let ratios = self.ratios(nth);
            let (lowest, highest) = (ratios.at(0.0), ratios.at(1.0));
            format!("{} {lowest:.3} to {highest:.3}", side.name)
        });
        let ratios: Vec<String> = ratios.collect();
        format!("Ratio to the first by start: {}.", ratios.join("; "))
    }

    /// A Markdown table; `unit` stands in its head.
    pub(crate) fn table(&self, unit: &str) -> String {
        let mut table = format!(
            "| | median, {unit} | p10 | p90 | p99 | ratio to the first | more, {unit} | |\n\
             |---|--:|--:|--:|--:|--:|--:|---|\n"
        );
        for (nth, side) in self.sides.iter().enumerate() {
            let sample = Sample::new(side.rounds.clone());
            let figures = [0.5, 0.1, 0.9, 0.99].map(|share| format!("{:.3}", sample.at(share)));
            let compared = match nth {
                0 => "1 | | ".to_owned(),
                _ => format!(
                    "{} | {} | {}",
                    self.ratio(nth).show(3),
                    self.difference(nth).show(3),
                    self.verdict(nth).text(),
                ),
            };
            let _ = writeln!(
                table,
                "| {} | {} | {compared} |",
                side.name,
                figures.join(" | ")
            );
        }
        table
    }

    pub(crate) fn samples(&self) -> Vec<(String, Sample)> {
        let sides = self.sides.iter();
        sides
            .map(|side| (side.name.clone(), Sample::new(side.rounds.clone())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(again: f64, other: f64) -> Comparison {
        let mut comparison = Comparison::new(&["plain", "plain, again", "hooked"]);
        for round in 0..101 {
            let wobble = f64::from(round % 10) / 1000.0;
            comparison.add(0, 1.0);
            comparison.add(1, again + wobble);
            comparison.add(2, other + wobble);
        }
        comparison
    }

    #[test]
    fn percentiles_and_the_interval_of_the_median() {
        let sample = Sample::new((0..=100).rev().map(f64::from).collect());
        assert_eq!(
            (sample.median(), sample.at(0.99), sample.len()),
            (50.0, 99.0, 101)
        );
        let interval = sample.interval();
        assert!(interval.low >= 39.0 && interval.low < 42.0, "{interval:?}");
        assert!(
            interval.high > 59.0 && interval.high <= 62.0,
            "{interval:?}"
        );
        assert!(Sample::new(Vec::new()).median().is_nan());
        let one = Sample::new(vec![3.0]).interval();
        assert_eq!((one.low, one.middle, one.high), (3.0, 3.0, 3.0));
    }

    #[test]
    fn each_side_has_its_turn_and_every_neighbour() {
        let mut neighbours = std::collections::BTreeSet::new();
        for round in 0..100 {
            let order = order(round, 3);
            neighbours.extend(order.windows(2).map(|pair| (pair[0], pair[1])));
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
        }
        assert_eq!(neighbours.len(), 6, "{neighbours:?}");
    }

    #[test]
    fn a_difference_counts_only_beyond_that_of_equal_things() {
        assert_eq!(comparison(1.0, 1.1).verdict(2), Verdict::Slower);
        assert_eq!(comparison(1.0, 0.9).verdict(2), Verdict::Faster);
        // Certain, but equal things differ as much.
        assert_eq!(comparison(1.05, 1.03).verdict(2), Verdict::Noise);
        assert_eq!(comparison(0.95, 1.03).verdict(2), Verdict::Noise);
        // Not certain.
        assert_eq!(comparison(1.0, 0.9955).verdict(2), Verdict::Noise);
    }

    #[test]
    fn a_table_has_a_row_for_each_side() {
        let table = comparison(1.0, 1.1).table("ms");
        assert_eq!(table.lines().count(), 5, "{table}");
        let last = table.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("| hooked | 1.104 |") && last.ends_with("| more |"),
            "{last}"
        );
    }
}
