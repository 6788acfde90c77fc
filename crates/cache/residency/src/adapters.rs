//! LoRA adapters, as far as they decide what the server reuses from its KV cache.
//!
//! llama-server looks for tokens only: neither its slots nor its host prompt cache remember under
//! which adapters a token was evaluated. But the server compares the adapters of a request with
//! those that the chosen slot worked under last, and empties the slot if they differ
//! (`launch_slot_with_task`). The servers of 2025 do this for every request, later ones only for
//! requests that name adapters. An adapter that is activated by tokens in the prompt ("aLoRA") does
//! not empty a slot that worked without adapters, or only with adapters of this kind
//! (`lora_should_clear_cache`).

use crate::token::Token;
use std::sync::Arc;

/// How strongly an adapter is applied. 0: not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scale(u32);

impl Scale {
    /// From the engine's and the server's `float`.
    #[must_use]
    pub const fn new(scale: f32) -> Self {
        // To the server, 0 and -0 are equal.
        Self(if scale == 0.0 { 0 } else { scale.to_bits() })
    }

    /// The scale as a number. Never -0.
    #[must_use]
    pub const fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// An adapter that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// Its address, which names the adapter while it is loaded.
    pub address: usize,
    /// How strongly it is applied.
    pub scale: Scale,
    /// The tokens that activate it (aLoRA). Empty for an ordinary adapter.
    pub invocation: Arc<[Token]>,
}

/// An adapter that is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedAdapter {
    /// Its index in the server's list. `None`: not known, because this server applies only those with a
    /// scale ([`Compared::Always`]).
    pub index: Option<u32>,
    /// How strongly it is applied. Never 0.
    pub scale: Scale,
}

/// For which requests the server compares the request's adapters with those of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// For requests that name adapters (servers since early 2026). Other requests use the slot as
    /// it is, whatever the server applies to them.
    WhenNamed,
    /// For all requests (servers of 2025). The server compares the adapters that it applies to the
    /// request, whether the request names them or not.
    Always,
}

/// A set of adapters that are applied together, as far as the server compares it. Different sets
/// have equal blends by chance once in 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blend {
    /// 0 without adapters.
    hash: u64,
    /// Some adapter is applied with a positive scale.
    enabled: bool,
    /// At least one adapter is applied, and all applied ones are activated by tokens.
    invoked: bool,
}

impl Blend {
    /// The blend of these adapters, each applied at the scale next to it. The adapters' own scales
    /// do not count.
    pub fn from_adapters<'a>(adapters: impl IntoIterator<Item = (&'a Adapter, Scale)>) -> Self {
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

    /// Whether at least one adapter is applied, and all applied ones are activated by tokens.
    #[must_use]
    pub fn is_invoked(self) -> bool {
        self.invoked
    }

    /// Whether the server keeps what a slot that worked under this blend holds, for a request that
    /// wants `next`.
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

/// The adapters that a request wants of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Any adapters: the server would not compare them.
    #[default]
    Any,
    /// These adapters.
    Blend(Blend),
    /// Adapters that are not known. No slot counts.
    Unknown,
}

/// The adapters that a request names: index in the server's list, and scale.
pub(crate) type Named = Vec<(i32, Scale)>;

/// The index in a prompt at which an adapter that is activated by tokens begins to act. The server
/// never reuses the token before this index, nor any later one. It searches for the adapter's tokens
/// backwards, and starts the search again after each token that does not match.
///
/// `None`: not exactly one adapter is applied with a positive scale, it is an ordinary one, or the
/// prompt does not contain its tokens.
#[must_use]
pub fn activation(adapters: &[Adapter], prompt: &[Token]) -> Option<usize> {
    let mut enabled = adapters.iter().filter(|adapter| adapter.scale.get() > 0.0);
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
        Blend::from_adapters(adapters.iter().map(|adapter| (adapter, adapter.scale)))
    }

    #[test]
    fn blends_are_equal_if_the_same_adapters_are_applied_at_the_same_scales() {
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
        for (nth, blend) in all.iter().enumerate() {
            assert!(!all[nth + 1..].contains(blend), "{nth}");
        }
    }

    /// The rule is that of `lora_should_clear_cache`, `server-common.cpp` of 2026.
    #[test]
    fn a_slot_is_kept_for_other_adapters_only_if_those_are_activated_by_tokens() {
        let ordinary = blend(&[adapter(1, 1.0, &[])]);
        let negative = blend(&[adapter(1, -1.0, &[])]);
        let by_token = adapter(2, 1.0, &[5]);
        let mixed = blend(&[adapter(1, 1.0, &[]), by_token.clone()]);
        let (invoked, other) = (blend(&[by_token]), blend(&[adapter(3, 1.0, &[6])]));
        let none = Blend::default();
        for (before, next, kept) in [
            (ordinary, ordinary, true),
            (ordinary, none, false),
            (none, ordinary, false),
            (none, invoked, true),
            (invoked, other, true),
            (invoked, none, false),
            (ordinary, invoked, false),
            (invoked, ordinary, false),
            (mixed, invoked, false),
            (none, mixed, false),
            // A negative scale is applied (it is not 0) but not enabled (it is not above 0).
            (negative, invoked, true),
            (negative, none, false),
        ] {
            assert_eq!(before.keeps_for(next), kept, "{before:?} {next:?}");
        }
    }

    #[test]
    fn an_adapter_acts_from_its_last_activation_in_the_prompt() {
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
