//! Sums over the last 60 seconds.

use contextpilot_control::ReuseOver;

use crate::note::Stamp;
use contextpilot_residency::TokenCounts;

const SECONDS: u64 = 60;

#[derive(Clone, Copy, Debug, Default)]
struct Second {
    number: u64,
    prompts: u64,
    reused: u64,
    evaluated: u64,
}

/// Sums for each of the last 60 seconds.
#[derive(Debug)]
pub(crate) struct Minute([Second; SECONDS as usize]);

impl Minute {
    pub(crate) fn new() -> Self {
        Self([Second::default(); SECONDS as usize])
    }

    pub(crate) fn add(&mut self, taken: TokenCounts, at: Stamp) {
        let number = at.0 / 1_000_000_000;
        let second = &mut self.0[(number % SECONDS) as usize];
        if second.number != number {
            *second = Second {
                number,
                ..Second::default()
            };
        }
        second.prompts += 1;
        second.reused += taken.reused;
        second.evaluated += taken.evaluated;
    }

    pub(crate) fn sum(&self, now: Stamp) -> ReuseOver {
        let now = now.0 / 1_000_000_000;
        let recent = self
            .0
            .iter()
            .filter(|second| second.number + SECONDS > now && second.number <= now);
        let (mut prompts, mut reused, mut evaluated) = (0, 0, 0);
        for second in recent {
            prompts += second.prompts;
            reused += second.reused;
            evaluated += second.evaluated;
        }
        ReuseOver::new(prompts, reused, evaluated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_counts_in_the_minute_for_sixty_seconds() {
        let second = |number: u64| Stamp(number * 1_000_000_000);
        let taken = TokenCounts {
            tokens: 10,
            reused: 6,
            evaluated: 4,
        };
        let mut minute = Minute::new();
        minute.add(taken, second(100));
        minute.add(taken, second(130));
        assert_eq!(minute.sum(second(159)), ReuseOver::new(2, 12, 8));
        assert_eq!(minute.sum(second(160)), ReuseOver::new(1, 6, 4));
        // Second 160 takes the place of second 100.
        minute.add(taken, second(160));
        assert_eq!(minute.sum(second(160)).prompts, 2);
        assert_eq!(minute.sum(second(220)), ReuseOver::new(0, 0, 0));
    }
}
