//! Which tokens of a recording were sent before, behind something else.

use std::collections::BTreeMap;

use contextpilot_traffic::{Tokens, TrafficRequest};

/// Tokens that were seen, by their identities: what a token is called depends on so many before it, but not on where they stand.
#[derive(Debug, Default)]
pub struct Seen {
    /// Stretches of identities: from their first one to one past their last.
    stretches: BTreeMap<u64, u64>,
}

impl Seen {
    /// Adds the tokens of a request.
    pub fn add(&mut self, tokens: &Tokens) {
        for run in tokens.runs() {
            self.insert(run.first, run.first + u64::from(run.length));
        }
    }

    /// How many tokens of a prompt behind its first `prefix` ones, which an earlier request begins with, were seen, and where
    /// the first of them stands. `gram`: how many tokens decide about an identity. A prompt that has an identity has all of them.
    #[must_use]
    pub fn behind(&self, request: &TrafficRequest, gram: u32, prefix: u32) -> (u32, u32) {
        let (mut at, mut upto, mut sum) = (0, 0, 0);
        let mut goes_on = request.record.prompt;
        for run in request.tokens.runs() {
            let left = request.record.prompt.saturating_sub(at).min(run.length);
            for (from, to) in self.overlaps(run.first, run.first + u64::from(left)) {
                let (from, to) = (from - run.first, to - run.first);
                let begin = (at + from as u32).saturating_sub(gram.max(1) - 1).max(upto);
                upto = at + to as u32;
                sum += upto - begin;
                if upto > prefix {
                    goes_on = goes_on.min(begin.max(prefix));
                }
            }
            at += run.length;
        }
        (sum.saturating_sub(prefix), goes_on)
    }

    /// The parts of the identities `[from, to)` that were seen.
    fn overlaps(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let earlier = self.stretches.range(..=from).next_back();
        let earlier = earlier.map(|(&begin, _)| begin);
        let parts = self.stretches.range(earlier.unwrap_or(from).min(to)..to);
        parts
            .map(move |(&begin, &end)| (begin.max(from), end.min(to)))
            .filter(|(begin, end)| begin < end)
    }

    /// Adds the stretch `[from, to)`, joined with those that it touches.
    fn insert(&mut self, mut from: u64, mut to: u64) {
        while let Some((&begin, &end)) = self.stretches.range(..=to).next_back() {
            if end < from {
                break;
            }
            from = from.min(begin);
            to = to.max(end);
            self.stretches.remove(&begin);
        }
        self.stretches.insert(from, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::{request, row};

    #[test]
    fn tokens_that_were_seen_are_counted_with_those_that_their_identity_stands_for() {
        let stretches = BTreeMap::from([(10, 20), (30, 40)]);
        let seen = Seen { stretches };
        let prompt = request(0, row(&[(50, 6), (15, 10)]));
        // Identities 15 to 19 were seen, at the places 6 to 10.
        assert_eq!(seen.behind(&prompt, 1, 0), (5, 6));
        assert_eq!(seen.behind(&prompt, 4, 0), (8, 3));
    }

    #[test]
    fn stretches_that_touch_are_joined_and_overlaps_counted() {
        let mut seen = Seen::default();
        for (from, to) in [(10, 20), (30, 40), (20, 25), (24, 31)] {
            seen.insert(from, to);
        }
        assert_eq!(seen.stretches, BTreeMap::from([(10, 40)]));
        let stretches = BTreeMap::from([(10, 20), (30, 40)]);
        let seen = Seen { stretches };
        let parts = |from, to| seen.overlaps(from, to).collect::<Vec<_>>();
        assert_eq!(parts(15, 35), [(15, 20), (30, 35)]);
        assert_eq!(parts(0, 100), [(10, 20), (30, 40)]);
        assert_eq!(parts(20, 30), []);
    }
}
