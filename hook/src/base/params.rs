//! What a program creates its contexts with, read from `llama_context_params`.
//!
//! The structure differs by version. So the engine is asked for its defaults, in which the parts that matter can
//! be told by their neighbours. What cannot be told is not used.

use crate::base::abi::ContextParams;

/// What matters of a context's parameters.
#[derive(Debug, PartialEq)]
pub(crate) struct Read {
    /// What KV may depend on: all but sizes and pointers.
    pub(crate) relevant: Vec<u8>,
    /// `cb_eval` is set.
    pub(crate) has_callback: bool,
    /// Every token is an output.
    pub(crate) embeddings: bool,
    /// `swa_full`: the cache of sliding windows keeps every position. `None`: the engine has no such setting, or it is
    /// not found.
    pub(crate) keeps_windows: Option<bool>,
    /// `kv_unified`: all sequences share one cache. `None`: it is not found; engines without this setting always did that.
    pub(crate) is_shared: Option<bool>,
}

/// The types of keys and values, both 16-bit numbers by default (`GGML_TYPE_F16`).
const TYPES: u64 = 0x0000_0001_0000_0001;

/// No known structure is longer, in words.
const LONGEST: usize = 32;

impl Read {
    /// `None`: the parameters are not understood.
    pub(crate) fn of(defaults: &ContextParams, params: &ContextParams) -> Option<Self> {
        Self::of_words(defaults.words(), params.words())
    }

    fn of_words(defaults: &[u64; 64], params: &[u64; 64]) -> Option<Self> {
        let form = Form::of(defaults)?;
        // A pointer that is not known here: what is behind it is not known, either.
        if form.unknown().any(|at| params[at] != 0) {
            return None;
        }
        let flag = |nth: usize| params[form.flags].to_le_bytes()[nth] != 0;
        let threads = threads(defaults);
        let number = |at: usize| params[at] & !threads.map_or(0, |threads| threads.bits_in(at));
        // The first four numbers are sizes.
        let last = form.types - 3;
        let numbers = (2..last).map(number);
        let numbers = numbers.chain([params[last] & form.last_numbers, params[form.types]]);
        let relevant = numbers.chain([params[form.flags] & form.relevant_flags]);
        Some(Self {
            relevant: relevant.flat_map(u64::to_le_bytes).collect(),
            has_callback: params[form.types - 2] != 0,
            embeddings: (0..form.outputs).any(flag),
            keeps_windows: form.keeps_windows.map(flag),
            is_shared: form.is_shared.map(flag),
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
    /// Flags that KV depends on.
    relevant_flags: u64,
    /// Any of so many first flags makes every token an output.
    outputs: usize,
    /// Which flag is `swa_full`.
    keeps_windows: Option<usize>,
    /// Which flag is `kv_unified`.
    is_shared: Option<usize>,
}

impl Form {
    /// The types of keys and values stand behind two pointers, the callback for each evaluation. Behind them come the
    /// callback for aborting, since 2026 another pointer, and then the flags; until May 2025 first the flags and then
    /// that callback.
    fn of(defaults: &[u64; 64]) -> Option<Self> {
        let is_null = |at: usize| defaults[at] == 0;
        let at_types = |types: usize| {
            if defaults[types] != TYPES || !is_null(types - 2) || !is_null(types - 1) {
                return None;
            }
            let flags = (types + 1..types + 6).find(|at| !is_null(*at))?;
            let of_flags = Flags::of(defaults[flags].to_le_bytes())?;
            let is_there = match of_flags {
                Flags::BeforeMay2025 => {
                    flags == types + 1 && is_null(flags + 1) && is_null(flags + 2)
                }
                Flags::Of2025 { .. } | Flags::Of2026 { .. } => flags >= types + 3,
            };
            // The last number is `defrag_thold`, whose default is not 0, and the one before it `yarn_orig_ctx`, whose
            // default is 0.
            let last_numbers = match defaults[types - 3] as u32 {
                0 => u64::MAX,
                _ => u32::MAX.into(),
            };
            let (relevant_flags, outputs, keeps_windows, is_shared) = match of_flags {
                Flags::BeforeMay2025 => (0xff_ff00_0000, 2, None, None),
                // Not all of these have `kv_unified`, and what stands in its place is anything.
                Flags::Of2025 { has_windows } => (0xff_0000, 1, has_windows.then_some(5), None),
                Flags::Of2026 { has_windows } => {
                    (0, 1, has_windows.then_some(4), has_windows.then_some(5))
                }
            };
            is_there.then_some(Self {
                types,
                flags,
                last_numbers,
                relevant_flags,
                outputs,
                keeps_windows,
                is_shared,
            })
        };
        // The first: behind the structure's end is what the stack had there before, such as another one of its kind.
        (5..LONGEST).find_map(at_types)
    }

    /// The pointers between the callback for aborting and the flags.
    fn unknown(&self) -> std::ops::Range<usize> {
        (self.types + 3).min(self.flags)..self.flags
    }
}

/// The two numbers of threads, 4 by default (`GGML_DEFAULT_N_THREADS`), as the index of the first in numbers of 32 bits.
#[derive(Clone, Copy)]
struct Threads(usize);

fn threads(defaults: &[u64; 64]) -> Option<Threads> {
    let number = |at: usize| (defaults[at / 2] >> (32 * (at % 2))) as u32;
    (4..10)
        .find(|&at| number(at) == 4 && number(at + 1) == 4)
        .map(Threads)
}

impl Threads {
    /// Which bits of a word of the structure are theirs.
    fn bits_in(self, word: usize) -> u64 {
        let half = |at: usize| {
            if at / 2 == word {
                u64::from(u32::MAX) << (32 * (at % 2))
            } else {
                0
            }
        };
        half(self.0) | half(self.0 + 1)
    }
}

/// The flags at the end of the structure, by their defaults.
enum Flags {
    /// `logits_all`, `embeddings`, `offload_kqv`, `flash_attn`, `no_perf`.
    BeforeMay2025,
    /// `embeddings`, `offload_kqv`, `flash_attn`, `no_perf`; later also `op_offload`, `swa_full`, and `kv_unified`.
    Of2025 { has_windows: bool },
    /// `flash_attn` is a number since September 2025: `embeddings`, `offload_kqv`, `no_perf`, `op_offload`, `swa_full`,
    /// `kv_unified`.
    Of2026 { has_windows: bool },
}

impl Flags {
    fn of(defaults: [u8; 8]) -> Option<Self> {
        match defaults {
            [0, 0, 1, 0, 1, ..] => Some(Self::BeforeMay2025),
            [0, 1, 0, 1, more @ ..] => Some(Self::Of2025 {
                has_windows: more[..2] == [1, 1],
            }),
            [0, 1, 1, 1, more @ ..] => Some(Self::Of2026 {
                has_windows: more[..2] == [1, 0],
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pairs: &[u32], rest: &[u64]) -> [u64; 64] {
        let mut words = [u64::MAX; 64];
        for (word, pair) in words.iter_mut().zip(pairs.chunks(2)) {
            *word = u64::from(pair[0]) | u64::from(*pair.get(1).unwrap_or(&0)) << 32;
        }
        let after = pairs.len().div_ceil(2);
        words[after..after + 3].copy_from_slice(&[0, 0, TYPES]);
        words[after + 3..after + 3 + rest.len()].copy_from_slice(rest);
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
            words(&[&old[..], &rope].concat(), &[0, 0, 0x0101_0100_0100]),
            words(&[&new[..], &rope].concat(), &[0, 0, 0, 0x01_0101_0100]),
        ]
    }

    #[test]
    fn sizes_do_not_count_and_frequencies_do() {
        for defaults in versions() {
            let read = |params: &[u64; 64]| Read::of_words(&defaults, params).unwrap();
            let plain = read(&defaults);
            assert!(!plain.has_callback && !plain.embeddings);
            let mut longer = defaults;
            longer[0] = 8192 | 64 << 32;
            longer[1] = 64 | 8 << 32;
            longer[40] = 7;
            assert_eq!(read(&longer), plain);
            let types = defaults.iter().position(|word| *word == TYPES).unwrap();
            let flags = (types + 1..).find(|at| defaults[*at] != 0).unwrap();
            for (at, value) in [(types - 4, 1), (types, 8 | 8 << 32)] {
                let mut other = defaults;
                other[at] = value;
                assert_ne!(read(&other).relevant, plain.relevant, "{at}");
            }
            let mut observed = defaults;
            observed[types - 2] = 0x7000_0000_1000;
            assert!(read(&observed).has_callback);
            let mut embedding = defaults;
            embedding[flags] |= 1;
            assert!(read(&embedding).embeddings);
            assert_eq!(read(&embedding).relevant, plain.relevant);
            assert_eq!(plain.keeps_windows, Some(true));
            let mut small = defaults;
            small[flags] &= !(0xff << (8 * if flags == types + 3 { 5 } else { 4 }));
            assert_eq!(read(&small).keeps_windows, Some(false));
            assert_eq!(read(&small).relevant, plain.relevant);
            let mut pooled = defaults;
            pooled[flags] ^= 1 << (8 * if flags == types + 3 { 6 } else { 5 });
            assert_eq!(read(&pooled).relevant, plain.relevant);
            // Of 2025 it is not known whether there is this flag.
            let of_2026 = flags > types + 3;
            assert_eq!(plain.is_shared, of_2026.then_some(false));
            assert_eq!(read(&pooled).is_shared, of_2026.then_some(true));
        }
    }

    #[test]
    fn threads_do_not_count() {
        for (defaults, at) in [(versions()[0], 2), (versions()[1], 3)] {
            let plain = Read::of_words(&defaults, &defaults);
            let mut other = defaults;
            other[at] ^= 1 << 34;
            assert_eq!(Read::of_words(&defaults, &other), plain);
            other[at + 4] ^= 1;
            assert_ne!(Read::of_words(&defaults, &other), plain);
        }
    }

    /// The engine writes its structure over what was there, which may have been one.
    #[test]
    fn what_stands_behind_the_structure_does_not_count() {
        for defaults in versions().into_iter().chain(untidy()) {
            let plain = Read::of_words(&defaults, &defaults);
            assert!(plain.is_some());
            let end = defaults.iter().rposition(|word| *word != u64::MAX).unwrap() + 1;
            let mut twice = defaults;
            twice[end..2 * end].copy_from_slice(&defaults[..end]);
            assert_eq!(Read::of_words(&twice, &twice), plain);
        }
    }

    #[test]
    fn what_is_behind_a_pointer_that_is_not_known_is_not_understood() {
        let [_, defaults] = versions();
        let flags = defaults
            .iter()
            .rposition(|word| *word == 0x01_0101_0100)
            .unwrap();
        let mut other = defaults;
        other[flags - 1] = 0x7000_0000_1000;
        assert_eq!(Read::of_words(&defaults, &other), None);
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
            with([0, 0, 0x7f00_0101_0100_0100]),
        ]
    }

    #[test]
    fn what_fills_the_structure_up_does_not_count() {
        for (defaults, flags, outputs, attention) in [
            (untidy()[0], 12, &[0, 1][..], 24),
            (untidy()[1], 14, &[0], 16),
        ] {
            let read = |params: &[u64; 64]| Read::of_words(&defaults, params).unwrap();
            let plain = read(&defaults);
            assert!(!plain.has_callback && !plain.embeddings);
            let mut next = defaults;
            next[8] ^= 0x55 << 32;
            next[flags] ^= 0x15 << 56;
            assert_eq!(read(&next), plain);
            // In the next process the defaults have other bytes, too.
            assert_eq!(Read::of_words(&next, &next), Some(read(&next)));
            for output in outputs {
                let mut all = defaults;
                all[flags] |= 1 << (8 * output);
                let read = read(&all);
                assert!(read.embeddings && read.relevant == plain.relevant);
            }
            for (at, bits) in [(8, 1), (flags, 1 << attention), (11, 1), (4, 1 << 32)] {
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
        assert_eq!(Read::of_words(&defaults, &defaults), None);
        assert_eq!(Read::of_words(&[0; 64], &defaults), None);
    }
}
