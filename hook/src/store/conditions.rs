//! Under what the tokens of a context were evaluated: the adapters that were applied, and their scales.

use contextpilot_kv_store::{Conditions, Fingerprint};

use super::content::Adapter;

/// Sets of adapters that are remembered: requests may name ever new scales. What was evaluated under a set that is
/// forgotten is not stored any more, and the set counts as a new one.
const MOST: usize = 64;

/// A set of adapters.
pub(super) struct UnderAdapters {
    number: Conditions,
    /// With scales as bits.
    pub(super) adapters: Vec<(Adapter, u32)>,
    /// Made when it is needed: the digests of the files take a moment.
    pub(super) fingerprint: Option<Fingerprint>,
}

/// The sets that were applied so far.
pub(super) struct AllConditions {
    /// The one that was applied last comes last.
    known: Vec<UnderAdapters>,
    /// How many numbers were given.
    count: u32,
    /// How many sets there were.
    sets: u32,
}

/// Stands for all sets if there are no numbers left. Nothing is stored of them.
const NONE_LEFT: Conditions = Conditions(u32::MAX);

impl AllConditions {
    /// At first no adapters are applied.
    pub(super) fn new() -> Self {
        let mut all = Self {
            known: Vec::new(),
            count: 0,
            sets: 0,
        };
        all.add(Vec::new());
        all
    }

    fn add(&mut self, adapters: Vec<(Adapter, u32)>) {
        self.known.push(UnderAdapters {
            number: Conditions(self.count),
            adapters,
            fingerprint: None,
        });
        self.count = self.count.saturating_add(1);
        self.sets = self.sets.saturating_add(1);
        if self.known.len() > MOST {
            self.known.remove(0);
        }
    }

    /// These adapters are applied from now on. Returns whether they are new.
    pub(super) fn apply(&mut self, mut adapters: Vec<(Adapter, u32)>) -> bool {
        // A scale of 0 has no effect.
        adapters.retain(|(_, scale)| f32::from_bits(*scale) != 0.0);
        // One that is not known may be another one if it was not applied meanwhile.
        let is_unknown = |(adapter, _): &(Adapter, u32)| matches!(adapter, Adapter::Unknown(_));
        let count = self.known.len();
        let first = match adapters.iter().any(is_unknown) {
            true => count.saturating_sub(1),
            false => 0,
        };
        let known = (first..count).find(|&at| self.known[at].adapters == adapters);
        match known {
            Some(at) => self.known[at..].rotate_left(1),
            None => self.add(adapters),
        }
        known.is_none()
    }

    /// What was evaluated so far is under other conditions than what is evaluated from now on, though the adapters are the
    /// same.
    pub(super) fn begin_anew(&mut self) {
        for one in &mut self.known {
            one.number = Conditions(self.count);
            self.count = self.count.saturating_add(1);
        }
    }

    /// Those that are applied now.
    pub(super) fn now(&self) -> Conditions {
        self.known.last().map_or(NONE_LEFT, |one| one.number)
    }

    /// Whether they never changed.
    pub(super) fn are_always_the_same(&self) -> bool {
        self.count == 1
    }

    /// Whether there never were any adapters.
    pub(super) fn are_always_none(&self) -> bool {
        let mut known = self.known.iter();
        self.sets == 1 && known.all(|one| one.adapters.is_empty())
    }

    /// `None`: it was forgotten.
    pub(super) fn get(&self, conditions: Conditions) -> Option<&UnderAdapters> {
        let mut known = self.known.iter();
        known.find(|one| one.number == conditions && conditions != NONE_LEFT)
    }

    pub(super) fn set_fingerprint(&mut self, conditions: Conditions, made: Fingerprint) {
        let mut known = self.known.iter_mut();
        if let Some(one) = known.find(|one| one.number == conditions) {
            one.fingerprint = Some(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(scale: f32) -> Vec<(Adapter, u32)> {
        vec![(Adapter::Loaded(1), scale.to_bits())]
    }

    /// After it was freed, there may be another one at its address.
    #[test]
    fn an_adapter_that_is_not_known_is_the_same_while_it_is_applied() {
        let mut all = AllConditions::new();
        let unknown = || vec![(Adapter::Unknown(1), 1.0_f32.to_bits())];
        assert!(all.apply(unknown()));
        let first = all.now();
        assert!(!all.apply(unknown()));
        assert_eq!(all.now(), first);
        assert!(!all.apply(Vec::new()));
        assert!(all.apply(unknown()));
        assert_ne!(all.now(), first);
    }

    #[test]
    fn however_many_scales_requests_name_few_are_remembered() {
        let mut all = AllConditions::new();
        assert!(all.are_always_none());
        assert!(!all.apply(scaled(0.0)), "no effect");
        let plain = all.now();
        assert!(all.apply(scaled(0.5)));
        let half = all.now();
        for nth in 0_u8..200 {
            assert!(all.apply(scaled(1.0 + f32::from(nth))));
            assert!(!all.apply(scaled(0.5)));
            assert_eq!(all.now(), half);
            assert!(all.known.len() <= MOST);
        }
        assert!(!all.are_always_the_same());
        assert_eq!(
            all.get(half).map(|one| one.adapters.clone()),
            Some(scaled(0.5))
        );
        // Forgotten: under its number nothing is found, and it gets another one.
        assert!(all.get(plain).is_none());
        assert!(all.apply(Vec::new()));
        assert_ne!(all.now(), plain);
    }

    #[test]
    fn what_was_evaluated_before_all_began_anew_is_not_found() {
        let mut all = AllConditions::new();
        let plain = all.now();
        all.begin_anew();
        assert!(all.are_always_none() && all.get(plain).is_none());
        all.apply(scaled(0.5));
        let before = all.now();
        all.begin_anew();
        assert_ne!(all.now(), before);
        assert!(all.get(before).is_none());
        assert_eq!(
            all.get(all.now()).map(|one| one.adapters.clone()),
            Some(scaled(0.5))
        );
        assert!(!all.apply(Vec::new()), "it is still known");
    }

    #[test]
    fn if_no_numbers_are_left_nothing_is_found() {
        let mut all = AllConditions::new();
        all.count = u32::MAX;
        for scale in [0.5, 0.6] {
            assert!(all.apply(scaled(scale)));
            assert_eq!(all.now(), NONE_LEFT);
            assert!(all.get(all.now()).is_none());
        }
    }
}
