//! Rows of tokens of which only the identities are known.

/// Tokens with consecutive identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The identity of the first token.
    pub first: u64,
    /// The number of tokens.
    pub length: u32,
}

/// A prompt, or what a slot holds, by identities. They tell which tokens are equal, and nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// No run is empty, and none continues the one before it.
    runs: Vec<Run>,
    /// The position after the last token of each run.
    ends: Vec<u32>,
}

impl Tokens {
    /// An empty row.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            runs: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// The number of tokens.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Whether there are no tokens.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The runs, in order.
    #[must_use]
    #[inline]
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The identity of the token at a position.
    #[must_use]
    #[inline]
    pub fn at(&self, position: u32) -> Option<u64> {
        let nth = self.ends.partition_point(|&end| end <= position);
        (nth < self.runs.len()).then(|| self.part(nth, position).first)
    }

    /// Appends a run. A run that would make the row longer than 2³² − 1 tokens is left out.
    pub fn push(&mut self, run: Run) {
        let Some(end) = self.len().checked_add(run.length) else {
            return;
        };
        if run.length == 0 {
            return;
        }
        match (self.runs.last_mut(), self.ends.last_mut()) {
            (Some(last), Some(last_end))
                if last.first.checked_add(u64::from(last.length)) == Some(run.first) =>
            {
                last.length += run.length;
                *last_end = end;
            }
            _ => {
                self.runs.push(run);
                self.ends.push(end);
            }
        }
    }

    /// Appends the tokens `[from, to)` of another row.
    pub fn extend(&mut self, other: &Self, from: u32, to: u32) {
        other.within(from, to).for_each(|run| self.push(run));
    }

    /// The tokens `[from, to)`.
    pub fn within(&self, from: u32, to: u32) -> impl Iterator<Item = Run> + '_ {
        let to = to.min(self.len());
        let first = self.ends.partition_point(|&end| end <= from);
        let mut at = from;
        (first..self.runs.len()).map_while(move |nth| {
            let run = (at < to).then(|| self.part(nth, at))?;
            let length = run.length.min(to - at);
            at += length;
            Some(Run { length, ..run })
        })
    }

    /// Removes all but the first `length` tokens.
    pub fn truncate(&mut self, length: u32) {
        let whole = self.ends.partition_point(|&end| end <= length);
        let begin = whole.checked_sub(1).map_or(0, |last| self.ends[last]);
        let rest = (length > begin).then(|| self.runs.get(whole).copied());
        self.runs.truncate(whole);
        self.ends.truncate(whole);
        if let Some(Some(run)) = rest {
            self.runs.push(Run {
                length: length - begin,
                ..run
            });
            self.ends.push(length);
        }
    }

    /// The length of the common prefix of two rows, in tokens.
    #[must_use]
    pub fn common_prefix(&self, other: &Self) -> u32 {
        self.matching(0, other, 0)
    }

    /// How many tokens from the position `at` on are equal to those of another row from `there` on.
    #[must_use]
    pub fn matching(&self, at: u32, other: &Self, there: u32) -> u32 {
        let mut ours = self.ends.partition_point(|&end| end <= at);
        let mut theirs = other.ends.partition_point(|&end| end <= there);
        let mut length = 0;
        while ours < self.runs.len() && theirs < other.runs.len() {
            let (a, b) = (
                self.part(ours, at + length),
                other.part(theirs, there + length),
            );
            if a.first != b.first {
                break;
            }
            let step = a.length.min(b.length);
            length += step;
            ours += usize::from(a.length == step);
            theirs += usize::from(b.length == step);
        }
        length
    }

    /// The part of the `nth` run from position `at` on. `at` must lie within that run.
    #[inline]
    fn part(&self, nth: usize, at: u32) -> Run {
        let length = self.ends[nth] - at;
        let run = self.runs[nth];
        Run {
            first: run.first + u64::from(run.length - length),
            length,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn identities(tokens: &Tokens) -> Vec<u64> {
        let runs = tokens.runs.iter();
        runs.flat_map(|run| run.first..run.first + u64::from(run.length))
            .collect()
    }

    fn row(identities: &[u64]) -> Tokens {
        let mut row = Tokens::new();
        for &first in identities {
            row.push(Run { first, length: 1 });
        }
        row
    }

    proptest! {
        /// Compares each operation on rows with the same one on a plain list of identities.
        #[test]
        fn operations_on_a_row_give_what_they_give_on_a_plain_list(
            a in prop::collection::vec(0_u64..6, 0..30),
            b in prop::collection::vec(0_u64..6, 0..30),
            from in 0_u32..40, to in 0_u32..40,
        ) {
            let (x, y) = (row(&a), row(&b));
            prop_assert_eq!(identities(&x), a.clone());
            prop_assert_eq!(x.len() as usize, a.len());
            let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(x.common_prefix(&y) as usize, common);
            let tail = |list: &[u64], at: u32| list.get(at as usize..).unwrap_or_default().to_vec();
            let (at, there) = (tail(&a, from), tail(&b, to));
            let matching = at.iter().zip(&there).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(x.matching(from, &y, to) as usize, matching);
            prop_assert_eq!(x.at(from), a.get(from as usize).copied());
            let mut cut = x.clone();
            cut.truncate(from);
            prop_assert_eq!(identities(&cut), a[..a.len().min(from as usize)].to_vec());
            cut.extend(&y, from, to);
            let end = b.len().min(to as usize);
            let mut expected = a[..a.len().min(from as usize)].to_vec();
            expected.extend(b.get(from as usize..end).unwrap_or_default());
            prop_assert_eq!(identities(&cut), expected);
        }
    }
}
