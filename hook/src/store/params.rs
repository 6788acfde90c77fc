//! What a program that is no llama-server creates its contexts and models with. KV depends on some of it, and
//! there are no flags that say the same.
//!
//! The structures differ by version. So the engine is asked for its defaults, in which the parts that matter can
//! be told by their neighbours. If they cannot, there is no store.

use super::{acts, hears, purpose, with_record};
use crate::attach::{is_embedded, plain, unstorable};
use crate::base::abi::{ContextParams, Pointer};
use crate::base::guard::EngineCall;

/// A context was created with these parameters.
pub(crate) fn note_context(call: &EngineCall, context: Pointer, params: &ContextParams) {
    if context.is_null() || !is_embedded() || !acts(call, context) {
        return;
    }
    if let Some(why) = unstorable() {
        return purpose::refuse(call, context, why);
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
    with_record(context, |one| {
        one.set_params(read.relevant);
        one.set_embeddings(read.embeddings);
    });
}

/// Whether a model that is loaded with these parameters is what its file says.
pub(crate) fn may_store_model(call: &EngineCall, params: &ContextParams) -> bool {
    if !is_embedded() || !hears(call) {
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
    /// What KV may depend on: all but sizes and pointers.
    relevant: Vec<u8>,
    /// `cb_eval` is set.
    has_callback: bool,
    /// Every token is an output.
    embeddings: bool,
}

/// The types of keys and values, both 16-bit numbers by default (`GGML_TYPE_F16`).
const TYPES: u64 = 0x0000_0001_0000_0001;

/// No known structure is longer, in words.
const LONGEST: usize = 32;

impl Read {
    fn of(defaults: &[u64; 64], params: &[u64; 64]) -> Option<Self> {
        let form = Form::of(defaults)?;
        let flags = params[form.flags];
        // The first four numbers are sizes.
        let last = form.types - 3;
        let numbers = params[2..last].iter().copied();
        let numbers = numbers.chain([params[last] & form.last_numbers, params[form.types]]);
        let relevant = numbers.chain([flags & form.relevant_flags]);
        Some(Self {
            relevant: relevant.flat_map(u64::to_le_bytes).collect(),
            has_callback: params[form.types - 2] != 0,
            embeddings: flags & form.output_flags != 0,
        })
    }
}

/// Where the parts of the structure are, by the engine's defaults, and which bits of them say something: what fills
/// the room between numbers and pointers is anything, and another thing in the next process.
struct Form {
    /// The word of the types of keys and values.
    types: usize,
    /// The word of the flags.
    flags: usize,
    last_numbers: u64,
    /// Flags that KV may depend on.
    relevant_flags: u64,
    /// Any of these makes every token an output.
    output_flags: u64,
}

impl Form {
    /// The types of keys and values stand behind two pointers, the callback for each evaluation. Behind them come the
    /// callback for aborting and then the flags, of which the first is `embeddings`; until May 2025 first the flags,
    /// `logits_all` and `embeddings` and three others, and then that callback.
    fn of(defaults: &[u64; 64]) -> Option<Self> {
        const FIRST_FIVE: u64 = 0xff_ffff_ffff;
        let is_flags = |word: u64| word != 0 && word.to_le_bytes().iter().all(|flag| *flag <= 1);
        let at_types = |at: usize| {
            let is_null = |at: usize| defaults[at] == 0;
            if defaults[at] != TYPES || !is_null(at - 2) || !is_null(at - 1) || !is_null(at + 2) {
                return None;
            }
            // The last number is `defrag_thold`, whose default is not 0, and the one before it `yarn_orig_ctx`, whose
            // default is 0.
            let last_numbers = match defaults[at - 3] as u32 {
                0 => u64::MAX,
                _ => u32::MAX.into(),
            };
            let form = |flags, relevant_flags, output_flags| Self {
                types: at,
                flags,
                last_numbers,
                relevant_flags,
                output_flags,
            };
            match defaults[at + 1] {
                0 => {
                    let flags = defaults[at + 3].to_le_bytes();
                    let count = flags.iter().position(|flag| *flag > 1).unwrap_or(8);
                    let all = u64::MAX.checked_shr(64 - 8 * count as u32).unwrap_or(0);
                    Some(form(at + 3, all & !0xff, 0xff))
                }
                flags if is_flags(flags & FIRST_FIVE) && is_null(at + 3) => {
                    Some(form(at + 1, FIRST_FIVE & !0xffff, 0xffff))
                }
                _ => None,
            }
        };
        let mut found = (5..LONGEST).filter_map(at_types);
        found.next().filter(|_| found.next().is_none())
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

    /// As an engine of April 2025 and one of August 2025 return them, with what was on their stacks.
    fn untidy() -> [[u64; 64]; 2] {
        let numbers = [
            0x0800_0000_0200,
            0x0001_0000_0200,
            0x0004_0000_0004,
            u64::MAX,
            0xffff_ffff,
            0xbf80_0000_0000_0000,
            0x4200_0000_3f80_0000,
            0x3f80_0000,
            0x7fa1_bf80_0000,
            0,
            0,
            TYPES,
        ];
        let with = |rest: [u64; 3]| {
            let mut words = [u64::MAX; 64];
            words[..12].copy_from_slice(&numbers);
            words[12..15].copy_from_slice(&rest);
            words
        };
        [
            with([0x7f01_0001_0000, 0, 0]),
            with([0, 0, 0x7f01_0101_0001_0100]),
        ]
    }

    #[test]
    fn what_fills_the_structure_up_does_not_count() {
        for (defaults, flags, outputs) in [(untidy()[0], 12, &[0, 1][..]), (untidy()[1], 14, &[0])]
        {
            let read = |params: &[u64; 64]| Read::of(&defaults, params).unwrap();
            let plain = read(&defaults);
            assert!(!plain.has_callback && !plain.embeddings);
            let mut next = defaults;
            next[8] ^= 0x55 << 32;
            next[flags] ^= 0x15 << 56;
            assert_eq!(read(&next), plain);
            // In the next process the defaults have other bytes, too.
            assert_eq!(Read::of(&next, &next), Some(read(&next)));
            for output in outputs {
                let mut all = defaults;
                all[flags] |= 1 << (8 * output);
                let read = read(&all);
                assert!(read.embeddings && read.relevant == plain.relevant);
            }
            for (at, bits) in [(8, 1), (flags, 1 << 24), (11, 1), (2, 1 << 32)] {
                let mut other = defaults;
                other[at] ^= bits;
                assert_ne!(read(&other).relevant, plain.relevant, "{at}");
            }
            let mut observed = defaults;
            observed[9] = 0x7000_0000_1000;
            assert!(read(&observed).has_callback);
        }
    }

    #[test]
    fn a_structure_of_another_form_is_not_understood() {
        let [mut defaults, _] = versions();
        let types = defaults.iter().position(|word| *word == TYPES).unwrap();
        defaults[types + 1] = 0x0201;
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
