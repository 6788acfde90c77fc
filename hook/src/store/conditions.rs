//! The conditions under which the tokens of a context were evaluated: the adapters that were applied, their scales, and the
//! salt of the request. Tokens of another salt are no others to the engine, but the store keeps them apart.

use contextpilot_kv_store::{Conditions, Fingerprint};

use super::content::Adapter;
use crate::capture::salts::Salt;

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

/// Salts that are remembered, each with a set of adapters: more than there are slots. What was evaluated under one that is
/// forgotten is not stored any more.
const MOST_SALTED: usize = 1024;

/// Their numbers begin here.
const FIRST_SALTED: u32 = 1 << 31;

/// A set of adapters, for requests that name a salt.
struct Salted {
    number: Conditions,
    under: Conditions,
    salt: Salt,
    fingerprint: Option<Fingerprint>,
}

/// The sets that were applied so far.
pub(super) struct AllConditions {
    /// The one that was used last comes last.
    salted: Vec<Salted>,
    /// How many numbers these were given.
    salted_count: u32,
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
            salted: Vec::new(),
            salted_count: 0,
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
        self.count = self.count.saturating_add(1).min(FIRST_SALTED);
        self.sets = self.sets.saturating_add(1);
        if self.known.len() > MOST {
            self.known.remove(0);
        }
    }

    /// These adapters are applied from now on. Returns whether they are new.
    pub(super) fn apply(&mut self, mut adapters: Vec<(Adapter, u32)>) -> bool {
        // A scale of 0 has no effect.
        adapters.retain(|(_, scale)| f32::from_bits(*scale) != 0.0);
        // An unknown adapter may be another one if it was not applied meanwhile.
        let is_unknown = |(adapter, _): &(Adapter, u32)| matches!(adapter, Adapter::Unknown(_));
        let count = self.known.len();
        let first = if adapters.iter().any(is_unknown) {
            count.saturating_sub(1)
        } else {
            0
        };
        let known = (first..count).find(|&at| self.known[at].adapters == adapters);
        match known {
            Some(at) => self.known[at..].rotate_left(1),
            None => self.add(adapters),
        }
        known.is_none()
    }

    /// What was evaluated so far is under other conditions than what is evaluated from now on, though the adapters are the
    /// same. Returns the conditions before, and what they are now.
    pub(super) fn begin_anew(&mut self) -> Vec<(Conditions, Conditions)> {
        let mut renamed = Vec::new();
        for known in &mut self.known {
            let before = std::mem::replace(&mut known.number, Conditions(self.count));
            renamed.push((before, known.number));
            self.count = self.count.saturating_add(1).min(FIRST_SALTED);
        }
        renamed
    }

    /// Those that are applied now, for requests that name no salt.
    fn now(&self) -> Conditions {
        let number = self
            .known
            .last()
            .map_or(NONE_LEFT, |applied| applied.number);
        match number.0 {
            0..FIRST_SALTED => number,
            _ => NONE_LEFT,
        }
    }

    /// The same for requests that name this salt, if it was [remembered](Self::remember).
    pub(super) fn now_with(&self, salt: Salt) -> Conditions {
        if salt == Salt::None {
            return self.now();
        }
        let under = self.now();
        let mut last_first = self.salted.iter().rev();
        let known = last_first.find(|salted| salted.under == under && salted.salt == salt);
        known.map_or(NONE_LEFT, |salted| salted.number)
    }

    /// A request names this salt, under what is applied now.
    pub(super) fn remember(&mut self, salt: Salt) {
        let under = self.now();
        if salt == Salt::None || under == NONE_LEFT {
            return;
        }
        let is_this = |salted: &Salted| salted.under == under && salted.salt == salt;
        if self.salted.last().is_some_and(is_this) {
            return;
        }
        match self.salted.iter().position(is_this) {
            Some(at) => self.salted[at..].rotate_left(1),
            None => {
                let number = FIRST_SALTED.saturating_add(self.salted_count);
                self.salted_count = self.salted_count.saturating_add(1);
                self.salted.push(Salted {
                    number: Conditions(number),
                    under,
                    salt,
                    fingerprint: None,
                });
                if self.salted.len() > MOST_SALTED {
                    self.salted.remove(0);
                }
            }
        }
    }

    fn salted(&self, conditions: Conditions) -> Option<&Salted> {
        let is_this = |salted: &&Salted| salted.number == conditions && conditions != NONE_LEFT;
        let mut last_first = self.salted.iter().rev();
        last_first.find(is_this)
    }

    /// Whether these are the adapters that are applied now, whatever the salt.
    pub(super) fn are_now(&self, conditions: Conditions) -> bool {
        let under = self
            .salted(conditions)
            .map_or(conditions, |salted| salted.under);
        under == self.now()
    }

    /// The salt of tokens that were evaluated under these conditions.
    pub(super) fn salt_of(&self, conditions: Conditions) -> Salt {
        self.salted(conditions)
            .map_or(Salt::None, |salted| salted.salt)
    }

    /// Whether they never changed.
    pub(super) fn are_always_the_same(&self) -> bool {
        self.count == 1
    }

    /// Whether there never were any adapters.
    pub(super) fn are_always_none(&self) -> bool {
        let mut known = self.known.iter();
        self.sets == 1 && known.all(|applied| applied.adapters.is_empty())
    }

    /// The adapters. `None`: they were forgotten, or the salt of their tokens is not known.
    pub(super) fn get(&self, conditions: Conditions) -> Option<&UnderAdapters> {
        let under = match self.salted(conditions) {
            Some(salted) if salted.salt == Salt::Unknown => return None,
            Some(salted) => salted.under,
            None => conditions,
        };
        let mut known = self.known.iter();
        known.find(|applied| applied.number == under && under != NONE_LEFT)
    }

    /// The fingerprint that was made of them, if one was.
    pub(super) fn fingerprint(&self, conditions: Conditions) -> Option<Fingerprint> {
        let under = self.get(conditions)?;
        match self.salted(conditions) {
            Some(salted) => salted.fingerprint,
            None => under.fingerprint,
        }
    }

    pub(super) fn set_fingerprint(&mut self, conditions: Conditions, made: Fingerprint) {
        let mut salted = self.salted.iter_mut();
        if let Some(salted) = salted.find(|salted| salted.number == conditions) {
            salted.fingerprint = Some(made);
            return;
        }
        let mut known = self.known.iter_mut();
        if let Some(applied) = known.find(|applied| applied.number == conditions) {
            applied.fingerprint = Some(made);
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
            all.get(half).map(|applied| applied.adapters.clone()),
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
            all.get(all.now()).map(|applied| applied.adapters.clone()),
            Some(scaled(0.5))
        );
        assert!(!all.apply(Vec::new()), "it is still known");
    }

    fn salt(nth: u8) -> Salt {
        Salt::Of([nth; 16])
    }

    #[test]
    fn tokens_for_another_salt_are_others_under_the_same_adapters() {
        let mut all = AllConditions::new();
        let plain = all.now_with(Salt::None);
        assert_eq!(all.now_with(salt(1)), NONE_LEFT, "not heard of yet");
        for nth in [1, 2, 1] {
            all.remember(salt(nth));
        }
        let (first, second) = (all.now_with(salt(1)), all.now_with(salt(2)));
        assert!(first != second && first != plain && second != plain && first != NONE_LEFT);
        assert!(all.are_now(first) && all.are_now(plain) && !all.are_now(NONE_LEFT));
        assert_eq!(
            (all.salt_of(first), all.salt_of(plain)),
            (salt(1), Salt::None)
        );
        assert!(all.are_always_the_same() && all.are_always_none());
        all.set_fingerprint(plain, Fingerprint([1; 16]));
        assert_eq!(all.fingerprint(first), None);
        all.set_fingerprint(first, Fingerprint([2; 16]));
        assert_eq!(all.fingerprint(first), Some(Fingerprint([2; 16])));
        assert_eq!(all.fingerprint(plain), Some(Fingerprint([1; 16])));
        // Other adapters.
        all.apply(scaled(0.5));
        assert!(!all.are_now(first));
        all.remember(salt(1));
        assert_ne!(all.now_with(salt(1)), first);
        assert!(
            all.get(first)
                .is_some_and(|first| first.adapters.is_empty())
        );
        // The model's file was in doubt.
        all.begin_anew();
        assert!(all.get(first).is_none() && all.fingerprint(first).is_none());
    }

    #[test]
    fn what_is_nobodys_is_not_stored() {
        let mut all = AllConditions::new();
        all.remember(Salt::Unknown);
        let nobodys = all.now_with(Salt::Unknown);
        assert!(nobodys != NONE_LEFT && all.are_now(nobodys));
        assert!(all.get(nobodys).is_none());
    }

    #[test]
    fn however_many_salts_requests_name_few_are_remembered() {
        let mut all = AllConditions::new();
        all.remember(salt(1));
        let first = all.now_with(salt(1));
        for nth in 0..2 * MOST_SALTED as u128 {
            all.remember(Salt::Of((1 << 100 | nth).to_le_bytes()));
            if nth < 2000 {
                all.remember(salt(1));
            }
        }
        assert!(all.salted.len() <= MOST_SALTED);
        assert_eq!(all.now_with(salt(1)), first, "it is used");
        for nth in 0..MOST_SALTED as u128 {
            all.remember(Salt::Of((2 << 100 | nth).to_le_bytes()));
        }
        assert_eq!(all.now_with(salt(1)), NONE_LEFT);
        assert!(all.get(first).is_none() && !all.are_now(first));
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
