//! Compares the reported evictions with the truth.

use std::{collections::BTreeSet, fmt};

/// The comparison for one trace (or the sum over several).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Ids that were asked about.
    pub ids: usize,
    /// Ids whose prompt is not cached any more.
    pub gone: usize,
    /// Ids that were reported, including those that were not asked about.
    pub reported: usize,
    /// Ids that are gone but were not reported.
    pub missed: BTreeSet<String>,
    /// Ids that were reported but are not gone, or were not asked about.
    pub false_: BTreeSet<String>,
}

impl Score {
    /// Compares what is gone with what was reported. `ids` are all ids that were asked about.
    pub fn of(
        ids: &BTreeSet<String>,
        gone: &BTreeSet<String>,
        reported: &BTreeSet<String>,
    ) -> Self {
        Self {
            ids: ids.len(),
            gone: gone.len(),
            reported: reported.len(),
            missed: gone.difference(reported).cloned().collect(),
            false_: reported.difference(gone).cloned().collect(),
        }
    }

    /// Whether no id was missed and none was reported falsely.
    pub fn is_perfect(&self) -> bool {
        self.missed.is_empty() && self.false_.is_empty()
    }

    /// The share of the gone ids that were reported. 1 if no id is gone.
    pub fn recall(&self) -> f64 {
        ratio(self.gone - self.missed.len(), self.gone)
    }

    /// The share of the reported ids that are gone. 1 if no id was reported.
    pub fn precision(&self) -> f64 {
        ratio(self.reported - self.false_.len(), self.reported)
    }

    /// Adds the score of another trace. Its ids get the prefix `name`, since traces use the same ids.
    pub fn add(&mut self, name: &str, other: &Self) {
        self.ids += other.ids;
        self.gone += other.gone;
        self.reported += other.reported;
        let named = |id: &String| format!("{name}/{id}");
        self.missed.extend(other.missed.iter().map(named));
        self.false_.extend(other.false_.iter().map(named));
    }

    /// The head of a Markdown table of [`Score::row`]s.
    pub const HEAD: &'static str = "\
| trace | ids | gone | reported | missed | false | recall | precision |
|---|--:|--:|--:|--:|--:|--:|--:|";

    /// A row of a Markdown table.
    pub fn row(&self, name: &str) -> String {
        format!(
            "| {name} | {} | {} | {} | {} | {} | {:.2} | {:.2} |",
            self.ids,
            self.gone,
            self.reported,
            self.missed.len(),
            self.false_.len(),
            self.recall(),
            self.precision(),
        )
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        1.0
    } else {
        part as f64 / whole as f64
    }
}

/// The text for the message of an assertion.
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} ids gone, {} reported; missed {:?}, false {:?}",
            self.gone, self.ids, self.reported, self.missed, self.false_
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|&id| id.to_owned()).collect()
    }

    #[test]
    fn missed_and_false_are_told_apart() {
        let score = Score::of(
            &set(&["a", "b", "c", "d"]),
            &set(&["a", "b"]),
            &set(&["b", "c"]),
        );
        assert_eq!(score.missed, set(&["a"]));
        assert_eq!(score.false_, set(&["c"]));
        assert!(!score.is_perfect());
        assert_eq!(score.row("x"), "| x | 4 | 2 | 2 | 1 | 1 | 0.50 | 0.50 |");
        let mut sum = score.clone();
        sum.add("other", &score);
        assert_eq!((sum.ids, sum.missed.len()), (8, 2));
    }

    #[test]
    fn nothing_gone_and_nothing_reported_is_perfect() {
        let score = Score::of(&set(&["a"]), &set(&[]), &set(&[]));
        assert!(score.is_perfect());
        assert_eq!((score.recall(), score.precision()), (1.0, 1.0));
        let unknown = Score::of(&set(&["a"]), &set(&[]), &set(&["slot_0"]));
        assert!(!unknown.is_perfect());
        assert_eq!(unknown.precision(), 0.0);
    }
}
