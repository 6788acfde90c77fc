//! Whether what stands in rows are numbers at all.
//!
//! A value that is no number (NaN), or is infinite, does not stay where it is: the attention of some engines reads the rows
//! of all sequences and multiplies those of others by zero, which makes of such a value one that is no number. So one bad
//! row spoils every answer of a server, and all rows that are computed meanwhile. Values of 16 and 32 bits are looked at
//! one by one. Of quantised rows (ggml's blocks) the scales are: what is multiplied by them is an integer.

use crate::Layout;
use crate::layout::Rows;

/// What rows consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Anything: nothing is looked at.
    Any,
    F32,
    F16,
    Bf16,
    /// Blocks of so many bytes, each with so many scales of 16 bits (`ggml_half`) in front.
    Blocks(usize, usize),
}

/// The longest element, bytes.
const LONGEST: usize = 36;

impl Kind {
    /// By the engine's number for it (`ggml_type`). `None`: no engine keeps keys or values so, as far as is known.
    pub(crate) fn from_ggml_type(kind: i32) -> Option<Self> {
        Some(match kind {
            0 => Self::F32,
            1 => Self::F16,
            30 => Self::Bf16,
            // Q4_0 and IQ4_NL, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1: 32 values each.
            2 | 20 => Self::Blocks(18, 1),
            3 => Self::Blocks(20, 2),
            6 => Self::Blocks(22, 1),
            7 => Self::Blocks(24, 2),
            8 => Self::Blocks(34, 1),
            9 => Self::Blocks(36, 2),
            _ => return None,
        })
    }

    /// What the rows of a layer consist of.
    pub(crate) fn of_rows(rows: &Rows) -> Self {
        Self::from_ggml_type(rows.kind).unwrap_or(Self::Any)
    }

    /// The size of what is looked at together, bytes.
    fn element(self) -> usize {
        match self {
            Self::Any => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
            Self::Blocks(size, _) => size,
        }
    }

    /// Whether all of these are finite. What is not a whole element at the end is not looked at.
    pub(crate) fn are_finite(self, bytes: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::F16 => are_finite_16::<0x7c00>(bytes),
            Self::Bf16 => are_finite_16::<0x7f80>(bytes),
            Self::F32 => are_finite_32(bytes),
            Self::Blocks(18, 1) => are_blocks_finite::<18, 1>(bytes),
            Self::Blocks(20, 2) => are_blocks_finite::<20, 2>(bytes),
            Self::Blocks(22, 1) => are_blocks_finite::<22, 1>(bytes),
            Self::Blocks(24, 2) => are_blocks_finite::<24, 2>(bytes),
            Self::Blocks(34, 1) => are_blocks_finite::<34, 1>(bytes),
            Self::Blocks(36, 2) => are_blocks_finite::<36, 2>(bytes),
            Self::Blocks(..) => false,
        }
    }
}

/// Whether no value has all bits of its exponent set, which those that are none have, and infinite ones. Then, and only then,
/// this sum carries into the bit of the value's sign, and never into the next value: so eight bytes are looked at together,
/// and there is no branch.
fn no_exponent_is_full(bytes: &[u8], exponents: u64, least: u64, signs: u64) -> bool {
    const STEP: usize = 64;
    let mut all = [0; STEP / 8];
    let mut look_at = |step: &[u8]| {
        for (all, word) in all.iter_mut().zip(step.chunks_exact(8)) {
            let word = word
                .first_chunk()
                .map_or(0, |word| u64::from_le_bytes(*word));
            *all |= (word & exponents).wrapping_add(least);
        }
    };
    let steps = bytes.chunks_exact(STEP);
    let mut last = [0; STEP];
    last[..steps.remainder().len()].copy_from_slice(steps.remainder());
    steps.for_each(&mut look_at);
    look_at(&last);
    all.iter().fold(0, |all, lane| all | lane) & signs == 0
}

/// The same pattern in each of the values of a word, which have so many bits.
const fn repeated(pattern: u64, bits: u32) -> u64 {
    let mut word = pattern;
    let mut width = bits;
    while width < 64 {
        word |= word << width;
        width *= 2;
    }
    word
}

fn are_finite_16<const EXPONENT: u64>(bytes: &[u8]) -> bool {
    let least = EXPONENT & EXPONENT.wrapping_neg();
    let whole = &bytes[..bytes.len() / 2 * 2];
    no_exponent_is_full(
        whole,
        repeated(EXPONENT, 16),
        repeated(least, 16),
        repeated(0x8000, 16),
    )
}

fn are_finite_32(bytes: &[u8]) -> bool {
    let whole = &bytes[..bytes.len() / 4 * 4];
    let [exponents, least, signs] =
        [0x7f80_0000, 0x0080_0000, 0x8000_0000].map(|pattern| repeated(pattern, 32));
    no_exponent_is_full(whole, exponents, least, signs)
}

fn are_blocks_finite<const SIZE: usize, const SCALES: usize>(bytes: &[u8]) -> bool {
    // With one scale, the other two bytes are of the values.
    let scales = bytes
        .chunks_exact(SIZE)
        .filter_map(|block| block.first_chunk());
    let carry = |scales: &[u8; 4]| (u32::from_le_bytes(*scales) & 0x7c00_7c00) + 0x0400_0400;
    let all = scales.fold(0, |all, scales| all | carry(scales));
    all & if SCALES == 1 { 0x8000 } else { 0x8000_8000 } == 0
}

/// What the rows of chunks of one layout consist of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// In the order of a chunk: what it is, and how many bytes each token has of it.
    parts: Vec<(Kind, usize)>,
}

impl Numbers {
    /// Of a chunk of which nothing is known: nothing is looked at.
    pub const ANY: &'static Self = &Self { parts: Vec::new() };

    fn from_layout(layout: &Layout) -> Self {
        let mut all = Self { parts: Vec::new() };
        all.add(Kind::Any, layout.words_size(1));
        for rows in layout.layers() {
            all.add(Kind::of_rows(rows), rows.bytes());
        }
        all
    }

    fn add(&mut self, kind: Kind, bytes: usize) {
        match self.parts.last_mut() {
            Some((last, all)) if *last == kind => *all += bytes,
            _ if bytes > 0 => self.parts.push((kind, bytes)),
            _ => {}
        }
    }

    /// Looks at the rows of a chunk of so many tokens.
    pub fn check(&self, tokens: usize) -> Check<'_> {
        Check {
            parts: &self.parts,
            tokens,
            done: 0,
            begun: [0; LONGEST],
            is_finite: true,
        }
    }
}

impl Layout {
    /// What rows consist of.
    pub fn numbers(&self) -> Numbers {
        Numbers::from_layout(self)
    }

    /// Whether it is known of all layers what their rows consist of.
    pub fn has_known_numbers(&self) -> bool {
        self.layers()
            .all(|rows| Kind::from_ggml_type(rows.kind).is_some())
    }
}

/// Looks at the rows of a chunk, from the first byte to the last, in pieces of whatever size.
#[derive(Debug)]
pub struct Check<'a> {
    /// The parts that come next.
    parts: &'a [(Kind, usize)],
    tokens: usize,
    /// Bytes of the first part that were seen.
    done: usize,
    /// What was seen of an element that is not at its end.
    begun: [u8; LONGEST],
    is_finite: bool,
}

impl Check<'_> {
    /// These bytes are next.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while let (Some(&(kind, each)), false) = (self.parts.first(), bytes.is_empty()) {
            let left = each.saturating_mul(self.tokens) - self.done;
            let (here, rest) = bytes.split_at(left.min(bytes.len()));
            self.look_at(kind, here);
            self.done += here.len();
            bytes = rest;
            if here.len() == left {
                self.parts = &self.parts[1..];
                self.done = 0;
            }
        }
    }

    fn look_at(&mut self, kind: Kind, mut bytes: &[u8]) {
        let element = kind.element();
        let begun = self.done % element;
        if begun > 0 {
            let (here, rest) = bytes.split_at((element - begun).min(bytes.len()));
            self.begun[begun..begun + here.len()].copy_from_slice(here);
            if begun + here.len() < element {
                return;
            }
            self.is_finite &= kind.are_finite(&self.begun[..element]);
            bytes = rest;
        }
        self.is_finite &= kind.are_finite(bytes);
        let end = &bytes[bytes.len() - bytes.len() % element..];
        self.begun[..end.len()].copy_from_slice(end);
    }

    /// Whether all that was seen are finite numbers.
    pub fn is_finite(&self) -> bool {
        self.is_finite
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: [u8; 2] = [0x01, 0x7e];
    const INFINITE: [u8; 2] = [0x00, 0xfc];

    /// Finite values of every kind, whatever its elements are.
    fn good(kind: Kind, elements: usize) -> Vec<u8> {
        let value: Vec<u8> = match kind {
            Kind::Any => vec![0xff],
            Kind::F32 => f32::MAX.to_le_bytes().to_vec(),
            Kind::F16 => vec![0xff, 0xfb],
            Kind::Bf16 => vec![0x7f, 0xff],
            Kind::Blocks(size, scales) => {
                let mut block = vec![0xff; size];
                block[..2 * scales].copy_from_slice(&[0xff, 0x7b].repeat(scales));
                block
            }
        };
        value.repeat(elements)
    }

    /// What makes the element that begins here none.
    fn bad(kind: Kind) -> Vec<(usize, Vec<u8>)> {
        match kind {
            Kind::Any => Vec::new(),
            Kind::F32 => [f32::NAN, f32::INFINITY, -f32::INFINITY, -f32::NAN]
                .map(|value| (0, value.to_le_bytes().to_vec()))
                .to_vec(),
            Kind::F16 => vec![(0, NAN.to_vec()), (0, INFINITE.to_vec())],
            Kind::Bf16 => vec![(0, vec![0x80, 0x7f]), (0, vec![0xff, 0xff])],
            Kind::Blocks(_, scales) => (0..scales)
                .flat_map(|nth| [NAN, INFINITE].map(|value| (2 * nth, value.to_vec())))
                .collect(),
        }
    }

    fn kinds() -> Vec<Kind> {
        (0..64).filter_map(Kind::from_ggml_type).collect()
    }

    #[test]
    fn one_value_that_is_none_is_found_among_many_wherever_it_is() {
        assert_eq!(kinds().len(), 10);
        for kind in kinds() {
            let all = good(kind, 100);
            assert!(kind.are_finite(&all), "{kind:?}");
            for (at, value) in bad(kind) {
                for element in [0, 1, 31, 63, 98, 99] {
                    let mut damaged = all.clone();
                    let at = element * kind.element() + at;
                    damaged[at..at + value.len()].copy_from_slice(&value);
                    assert!(!kind.are_finite(&damaged), "{kind:?} {element} {value:?}");
                }
            }
        }
    }

    /// In pieces of every size, so that elements are divided at every byte.
    #[test]
    fn it_does_not_matter_how_rows_are_divided() {
        let kinds = kinds();
        let tokens = 3;
        let mut numbers = Numbers { parts: Vec::new() };
        numbers.add(Kind::Any, 5);
        numbers.add(Kind::Any, 0);
        let mut rows = good(Kind::Any, 5 * tokens);
        let mut places = Vec::new();
        for &kind in &kinds {
            numbers.add(kind, 2 * kind.element());
            for (at, value) in bad(kind) {
                let elements = [0, 2 * tokens - 1];
                places
                    .extend(elements.map(|element| {
                        (rows.len() + element * kind.element() + at, value.clone())
                    }));
            }
            rows.extend(good(kind, 2 * tokens));
        }
        let is_finite = |rows: &[u8], step: usize| {
            let mut check = numbers.check(tokens);
            rows.chunks(step).for_each(|piece| check.update(piece));
            check.is_finite()
        };
        for step in 1..80 {
            assert!(is_finite(&rows, step), "{step}");
            for (at, value) in &places {
                let mut damaged = rows.clone();
                damaged[*at..at + value.len()].copy_from_slice(value);
                assert!(!is_finite(&damaged, step), "{step} {at}");
            }
        }
    }

    #[test]
    fn what_is_not_known_is_not_looked_at() {
        let mut check = Numbers::ANY.check(7);
        check.update(&[0xff; 1000]);
        assert!(check.is_finite());
    }
}
