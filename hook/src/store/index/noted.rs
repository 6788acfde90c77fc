//! The fingerprints of which something was written down a short time ago.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use contextpilot_kv_store::Fingerprint;

/// After so long it is written down again, for other processes go by the times of these files: what no server has used for
/// days is not fetched, or is removed.
pub(in crate::store) const AGAIN: Duration = Duration::from_secs(6 * 3600);
/// More are forgotten: a client makes as many as it likes, with scales of adapters.
const MOST: usize = 1 << 12;

#[derive(Default)]
pub(super) struct Noted(HashMap<Fingerprint, Instant>);

impl Noted {
    /// Whether something is to be written down of this one. From now on, it is written down.
    pub(super) fn is_due(&mut self, fingerprint: Fingerprint, now: Instant) -> bool {
        let noted = self.0.get(&fingerprint);
        if noted.is_some_and(|noted| now.saturating_duration_since(*noted) < AGAIN) {
            return false;
        }
        if noted.is_none() && self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(fingerprint, now);
        true
    }

    /// What was written down is gone.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_due_once_in_a_while_and_again_when_the_folder_is_another_one() {
        let mut noted = Noted::default();
        let (tea, sea) = (Fingerprint([1; 16]), Fingerprint([2; 16]));
        let now = Instant::now();
        assert!(noted.is_due(tea, now));
        assert!(noted.is_due(sea, now));
        assert!(!noted.is_due(tea, now + AGAIN / 2));
        assert!(noted.is_due(tea, now + AGAIN));
        assert!(!noted.is_due(tea, now + AGAIN));
        noted.forget();
        assert!(noted.is_due(tea, now + AGAIN));
    }

    #[test]
    fn it_does_not_grow_without_a_bound() {
        let mut noted = Noted::default();
        for nth in 0..3 * MOST as u128 {
            assert!(noted.is_due(Fingerprint(nth.to_le_bytes()), Instant::now()));
            assert!(noted.0.len() <= MOST);
        }
    }
}
