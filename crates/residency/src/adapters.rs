//! LoRA adapters, as far as they decide what the server uses of its cache again.
//!
//! llama-server looks for tokens, not for the adapters that they were evaluated with: neither its
//! slots nor its host prompt cache remember those. But it compares the adapters of a request with
//! the ones that its slot worked under last, and empties the slot if they differ
//! (`launch_slot_with_task`): of every request in the servers of 2025, of one that names some since.
//! An adapter that is activated by tokens in the prompt ("aLoRA") spares what was evaluated without
//! adapters, or with others of its kind (`lora_should_clear_cache`).

use crate::event::Token;
use std::sync::Arc;

/// How strongly an adapter is applied. 0: not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale(u32);

impl Scale {
    /// The engine's and the server's `float`.
    #[must_use]
    pub const fn new(scale: f32) -> Self {
        // Both zeros are equal to the server.
        Self(if scale == 0.0 { 0 } else { scale.to_bits() })
    }

    /// The number; 0 is never negative.
    #[must_use]
    pub const fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// An adapter that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Names it while it is loaded: its address.
    pub address: usize,
    /// How strongly it is applied.
    pub scale: Scale,
    /// The tokens that activate it; none for an ordinary adapter.
    pub invocation: Arc<[Token]>,
}

/// Of which requests a server compares the adapters with those of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Of those that name some. Others take the slot as it is, whatever the server applies to them
    /// (since early 2026).
    WhenNamed,
    /// Of all (2025). Which adapters a request names is of no interest then: those that are applied
    /// to it are what is compared.
    Always,
}

/// What matters of the adapters that are applied together. Two of them are the same but for one
/// chance in 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blend {
    /// 0 without adapters.
    hash: u64,
    /// Some adapter is applied with a positive scale.
    enabled: bool,
    /// There are some, and all of them are activated by tokens.
    invoked: bool,
}

impl Blend {
    /// Of adapters with the scales at which they are applied.
    pub fn of<'a>(adapters: impl IntoIterator<Item = (&'a Adapter, Scale)>) -> Self {
        let mut blend = Self::default();
        let mut ordinary = false;
        for (adapter, scale) in adapters {
            if scale.get() == 0.0 {
                continue;
            }
            // A sum, so that their order does not matter.
            let both = (adapter.address as u64).rotate_left(32) ^ u64::from(scale.0);
            blend.hash = blend.hash.wrapping_add(mix(both));
            blend.enabled |= scale.get() > 0.0;
            blend.invoked = true;
            ordinary |= adapter.invocation.is_empty();
        }
        blend.invoked &= !ordinary;
        blend
    }

    /// Whether some adapter is applied with a positive scale.
    #[must_use]
    pub fn is_enabled(self) -> bool {
        self.enabled
    }

    /// Whether there are some, and all of them are activated by tokens.
    #[must_use]
    pub fn is_invoked(self) -> bool {
        self.invoked
    }

    /// Whether the server keeps what a slot holds that worked under this, for a request under
    /// another.
    pub(crate) fn keeps_for(self, next: Self) -> bool {
        self == next || (next.invoked && (self.invoked || !self.enabled))
    }
}

/// The last step of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where the adapter that is activated by tokens begins to act in a prompt: the server looks for
/// its tokens backwards, and begins anew at each that is not the one expected. It never takes
/// anything from its cache from one token before that on. `None`: there is not one such adapter, or
/// the prompt does not have its tokens.
#[must_use]
pub fn activation(adapters: &[Adapter], prompt: &[Token]) -> Option<usize> {
    let mut enabled = adapters.iter().filter(|one| one.scale.get() > 0.0);
    let (Some(adapter), None) = (enabled.next(), enabled.next()) else {
        return None;
    };
    let mut expected = adapter.invocation.iter().rev();
    let mut next = expected.next()?;
    for (at, token) in prompt.iter().enumerate().rev() {
        if token == next {
            match expected.next() {
                Some(token) => next = token,
                None => return Some(at),
            }
        } else {
            expected = adapter.invocation.iter().rev();
            next = expected.next()?;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(address: usize, scale: f32, invocation: &[Token]) -> Adapter {
        Adapter {
            address,
            scale: Scale::new(scale),
            invocation: invocation.into(),
        }
    }

    fn blend(adapters: &[Adapter]) -> Blend {
        Blend::of(adapters.iter().map(|one| (one, one.scale)))
    }

    #[test]
    fn blends_are_equal_if_what_is_applied_is() {
        let (a, b) = (adapter(1, 1.0, &[]), adapter(2, 0.5, &[]));
        let off = adapter(3, -0.0, &[]);
        assert_eq!(
            blend(&[a.clone(), b.clone()]),
            blend(&[b.clone(), off, a.clone()])
        );
        assert_eq!(blend(&[adapter(1, 0.0, &[])]), Blend::default());
        let other_scale = adapter(1, 0.5, &[]);
        let all = [
            blend(&[other_scale]),
            blend(&[a.clone(), b.clone()]),
            blend(&[a]),
            blend(&[b]),
            blend(&[]),
        ];
        for (nth, one) in all.iter().enumerate() {
            assert!(!all[nth + 1..].contains(one), "{nth}");
        }
    }

    /// `lora_should_clear_cache`, `server-common.cpp` of 2026.
    #[test]
    fn only_adapters_that_are_activated_spare_what_is_there() {
        let ordinary = blend(&[adapter(1, 1.0, &[])]);
        let negative = blend(&[adapter(1, -1.0, &[])]);
        let (one, other) = (adapter(2, 1.0, &[5]), adapter(3, 1.0, &[6]));
        let mixed = blend(&[adapter(1, 1.0, &[]), one.clone()]);
        let (one, other) = (blend(&[one]), blend(&[other]));
        let none = Blend::default();
        for (before, next, kept) in [
            (ordinary, ordinary, true),
            (ordinary, none, false),
            (none, ordinary, false),
            (none, one, true),
            (one, other, true),
            (one, none, false),
            (ordinary, one, false),
            (one, ordinary, false),
            (mixed, one, false),
            (none, mixed, false),
            // What counts as applied differs there: above 0, and not 0.
            (negative, one, true),
            (negative, none, false),
        ] {
            assert_eq!(before.keeps_for(next), kept, "{before:?} {next:?}");
        }
    }

    #[test]
    fn the_last_activation_counts() {
        let adapters = [adapter(1, 0.0, &[9]), adapter(2, 1.0, &[5, 6])];
        let at = |prompt: &[Token]| activation(&adapters, prompt);
        assert_eq!(at(&[1, 5, 6, 2, 5, 6, 3]), Some(4));
        assert_eq!(at(&[5, 6]), Some(0));
        assert_eq!(at(&[1, 5, 1, 6]), None);
        assert_eq!(at(&[]), None);
        // The server's search begins anew after the token at which it failed, not at it.
        let doubled = [adapter(1, 1.0, &[5, 6, 6])];
        assert_eq!(activation(&doubled, &[5, 6, 6, 6]), None);
        assert_eq!(activation(&adapters[..1], &[9]), None);
        let two = [adapter(1, 1.0, &[9]), adapter(2, 1.0, &[9])];
        assert_eq!(activation(&two, &[9]), None);
    }
}
