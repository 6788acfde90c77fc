//! What a program that is no llama-server creates its contexts and models with. KV depends on some of it, and
//! there are no flags that say the same.
//!
//! The structures differ by version. So the engine is asked for its defaults, in which the parts that matter can
//! be told by their neighbours. If they cannot, there is no store.

use super::{acts, purpose, with_context};
use crate::attach::{is_embedded, plain};
use crate::base::abi::{ContextParams, Pointer};
use crate::base::guard::EngineCall;

/// A context was created with these parameters.
pub(crate) fn note_context(call: &EngineCall, context: Pointer, params: &ContextParams) {
    if context.is_null() || !is_embedded() || !acts(call) {
        return;
    }
    // SAFETY: no preconditions.
    let defaults = unsafe { plain::default_context() };
    let read = defaults.and_then(|defaults| Read::of(defaults.words(), params.words()));
    let Some(read) = read else {
        return purpose::refuse(
            call,
            context,
            "the parameters of the context are not understood",
        );
    };
    if read.has_callback {
        return purpose::refuse(
            call,
            context,
            "the program looks at each evaluation (cb_eval)",
        );
    }
    with_context(context, |_, one| {
        one.params = Some(read.relevant);
        one.embeddings = read.embeddings;
    });
}

/// Whether a model that is loaded with these parameters is what its file says.
pub(crate) fn may_store_model(call: &EngineCall, params: &ContextParams) -> bool {
    if !is_embedded() || !acts(call) {
        return true;
    }
    // SAFETY: no preconditions.
    let defaults = unsafe { plain::default_model() };
    let at = defaults.and_then(|defaults| overrides(defaults.words()));
    at.is_some_and(|at| params.words()[at] == 0)
}

/// What matters of a context's parameters.
#[derive(Debug, PartialEq)]
struct Read {
    /// What KV may depend on: all but sizes, pointers and what comes after them.
    relevant: Vec<u8>,
    /// `cb_eval` is set.
    has_callback: bool,
    /// `embeddings` is set: every token is an output.
    embeddings: bool,
}

/// The types of keys and values, both 16-bit numbers by default (`GGML_TYPE_F16`).
const TYPES: u64 = 0x0000_0001_0000_0001;

/// No known structure is longer, in words.
const LONGEST: usize = 32;

impl Read {
    /// The types of keys and values stand between two pairs of pointers: the callback for each evaluation before
    /// them, the callback for aborting behind them. Then come the flags, of which the first is `embeddings`.
    fn of(defaults: &[u64; 64], params: &[u64; 64]) -> Option<Self> {
        let is_types = |at: &usize| {
            let at = *at;
            let pointers = [at - 2, at - 1, at + 1, at + 2];
            defaults[at] == TYPES && pointers.iter().all(|at| defaults[*at] == 0)
        };
        let mut found = (4..LONGEST).filter(is_types);
        let types = found.next()?;
        if found.next().is_some() {
            return None;
        }
        let flags = params[types + 3];
        // The first four numbers are sizes. Of the flags, `embeddings` has no effect on KV.
        let numbers = params[2..types - 2].iter();
        let relevant = numbers.chain([&params[types]]).copied();
        let relevant = relevant.chain([flags & !0xff]);
        Some(Self {
            relevant: relevant.flat_map(u64::to_le_bytes).collect(),
            has_callback: params[types - 2] != 0,
            embeddings: flags & 0xff != 0,
        })
    }
}

/// Where the pointer to metadata stands that replace those of the file: the last of four pointers, before the
/// flags, of which some are set.
fn overrides(defaults: &[u64; 64]) -> Option<usize> {
    (4..LONGEST).find(|&at| defaults[at - 3..=at] == [0; 4] && defaults[at + 1] != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pairs: &[u32], flags: u64) -> [u64; 64] {
        let mut words = [u64::MAX; 64];
        for (word, pair) in words.iter_mut().zip(pairs.chunks(2)) {
            *word = u64::from(pair[0]) | u64::from(*pair.get(1).unwrap_or(&0)) << 32;
        }
        let after = pairs.len().div_ceil(2);
        words[after..after + 6].copy_from_slice(&[0, 0, TYPES, 0, 0, flags]);
        words
    }

    /// As in mid-2025 and in late 2026.
    fn versions() -> [[u64; 64]; 2] {
        let rope = [
            0_u32,
            0,
            0xbf80_0000,
            0xbf80_0000,
            0x4200_0000,
            0x3f80_0000,
            0,
            0,
        ];
        let old = [512, 2048, 512, 1, 4, 4, u32::MAX, u32::MAX, u32::MAX];
        let new = [
            512,
            2048,
            512,
            1,
            0,
            0,
            0,
            4,
            4,
            0,
            u32::MAX,
            u32::MAX,
            u32::MAX,
            u32::MAX,
        ];
        [
            words(&[&old[..], &rope].concat(), 0x01_00),
            words(&[&new[..], &rope].concat(), 0x01_00),
        ]
    }

    #[test]
    fn sizes_do_not_count_and_frequencies_do() {
        for defaults in versions() {
            let read = |params: &[u64; 64]| Read::of(&defaults, params).unwrap();
            let plain = read(&defaults);
            assert!(!plain.has_callback && !plain.embeddings);
            let mut longer = defaults;
            longer[0] = 8192 | 64 << 32;
            longer[1] = 64 | 8 << 32;
            longer[40] = 7;
            assert_eq!(read(&longer), plain);
            let types = defaults.iter().position(|word| *word == TYPES).unwrap();
            for (at, value) in [(types - 4, 1), (types, 8 | 8 << 32), (types + 3, 0)] {
                let mut other = defaults;
                other[at] = value;
                assert_ne!(read(&other).relevant, plain.relevant, "{at}");
            }
            let mut observed = defaults;
            observed[types - 2] = 0x7000_0000_1000;
            assert!(read(&observed).has_callback);
            let mut embedding = defaults;
            embedding[types + 3] |= 1;
            assert!(read(&embedding).embeddings);
            assert_eq!(read(&embedding).relevant, plain.relevant);
        }
    }

    #[test]
    fn a_structure_of_another_form_is_not_understood() {
        let [mut defaults, _] = versions();
        let types = defaults.iter().position(|word| *word == TYPES).unwrap();
        defaults[types + 1] = 5;
        assert_eq!(Read::of(&defaults, &defaults), None);
        assert_eq!(Read::of(&[0; 64], &defaults), None);
    }

    #[test]
    fn the_pointer_before_the_flags_replaces_metadata() {
        let flags = 0x01_0000_0100;
        let mut old = [u64::MAX; 64];
        old[..9].copy_from_slice(&[0, 0, 1 << 32 | 999, 0, 0, 0, 0, 0, flags]);
        assert_eq!(overrides(&old), Some(7));
        let mut new = [u64::MAX; 64];
        new[..10].copy_from_slice(&[0, 0, 1 << 32, 1, 0xdead_0000_0000, 0, 0, 0, 0, flags]);
        assert_eq!(overrides(&new), Some(8));
        assert_eq!(overrides(&[1; 64]), None);
    }
}
