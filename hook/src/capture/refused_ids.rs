//! Why ids of requests could not be used. The worker says each reason once, so that a client that sends numbers as ids
//! learns of it. The requests are counted ([`STATUS`](crate::base::status::STATUS)).

use std::sync::atomic::{AtomicU8, Ordering};

use contextpilot_request::Refusal;

/// A bit for each reason that was met.
static MET: AtomicU8 = AtomicU8::new(0);
/// A bit for each reason that was said.
static SAID: AtomicU8 = AtomicU8::new(0);

/// A request had an id that cannot be used.
pub(super) fn note(why: Refusal) {
    MET.fetch_or(bit(why), Ordering::Relaxed);
}

/// A reason that was met and not said yet. Each is returned once.
pub(crate) fn newly_met() -> Option<Refusal> {
    let met = MET.load(Ordering::Relaxed);
    let unsaid = |why: &Refusal| met & bit(*why) & !SAID.load(Ordering::Relaxed) != 0;
    let why = Refusal::ALL.into_iter().find(unsaid)?;
    SAID.fetch_or(bit(why), Ordering::Relaxed);
    Some(why)
}

fn bit(why: Refusal) -> u8 {
    1 << (why as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_said_once() {
        assert_eq!(newly_met(), None);
        for why in [
            Refusal::Compressed,
            Refusal::NotAString,
            Refusal::NotAString,
        ] {
            note(why);
        }
        assert_eq!(newly_met(), Some(Refusal::NotAString));
        assert_eq!(newly_met(), Some(Refusal::Compressed));
        note(Refusal::NotAString);
        assert_eq!(newly_met(), None);
    }

    #[test]
    fn each_reason_has_a_bit_of_its_own() {
        let bits = Refusal::ALL.map(bit);
        assert_eq!(bits.iter().fold(0, |all, bit| all | bit).count_ones(), 6);
    }
}
