//! When a machine looks for what is to be sent to the store of all, and for what is new there: as `store sync` does, again and again,
//! with a pause whose length is spread by a fifth, so that machines which began together do not stay together.

use crate::trace::mixed;

#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    /// From one to the next in the mean, microseconds.
    every: u64,
    last: u64,
    next: u64,
    /// What the next pause is made of.
    seed: u64,
}

impl Looks {
    /// Those of the server with this number.
    pub(super) fn new(server: u32, every: u64) -> Self {
        let seed = mixed(u64::from(server));
        Self {
            every,
            last: 0,
            next: share(seed, every),
            seed,
        }
    }

    /// The last one until now. A later call is never for an earlier time.
    pub(super) fn last(&mut self, now: u64) -> u64 {
        self.go_on(now);
        self.last
    }

    /// The next one from now on.
    pub(super) fn next(&mut self, now: u64) -> u64 {
        self.go_on(now);
        if self.last == now { now } else { self.next }
    }

    fn go_on(&mut self, now: u64) {
        if self.every == 0 {
            self.last = now;
            return;
        }
        // Of a long time in which there was nothing to be seen, only the end matters.
        let missed = now.saturating_sub(self.next) / self.every;
        self.next += missed.saturating_sub(8) * self.every;
        while self.next <= now {
            self.last = self.next;
            self.seed = mixed(self.seed);
            let spread = share(self.seed, self.every / 5 * 2);
            let pause = (self.every - self.every / 5).saturating_add(spread);
            self.next = self.next.saturating_add(pause.max(1));
        }
    }
}

/// A time below this one, as chance has it.
fn share(random: u64, of: u64) -> u64 {
    ((u128::from(random) * u128::from(of)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written at any time is seen two looks later: after a period in the mean, and never after more than two of the longest.
    #[test]
    fn others_see_a_write_after_two_looks() {
        const EVERY: u64 = 500_000;
        let (mut writer, mut reader) = (Looks::new(0, EVERY), Looks::new(1, EVERY));
        let (mut sum, mut longest) = (0, 0);
        const WRITES: u64 = 20_000;
        for nth in 0..WRITES {
            let time = nth * 3_333_333;
            let sent = writer.next(time);
            assert!(sent >= time);
            let seen = reader.next(sent);
            assert_eq!(reader.last(seen), seen);
            sum += seen - time;
            longest = longest.max(seen - time);
        }
        // The time from any moment to the next look: half a period, and what its spread adds to that.
        let of_one = EVERY as f64 / 2.0 * (1.0 + 0.4 * 0.4 / 12.0);
        let mean = sum as f64 / WRITES as f64;
        assert!((mean / (2.0 * of_one) - 1.0).abs() < 0.01, "{mean}");
        assert!((EVERY..=EVERY / 5 * 12).contains(&longest), "{longest}");
    }

    #[test]
    fn without_a_pause_all_is_seen_at_once() {
        let mut looks = Looks::new(7, 0);
        assert_eq!((looks.next(5), looks.last(9)), (5, 9));
    }
}
