//! Names of chunks.
//!
//! The name of a chunk is a hash of everything that its rows depend on. It is a chain, with a link
//! at each multiple of [`GRID`]: the hash of the previous link and the tokens since. So the names
//! of a prompt's whole chunks are the same on every machine, however the prompt grew there.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// No chunk crosses a multiple of this many tokens. Few when fuzzing, so that small inputs do.
pub const GRID: usize = if cfg!(fuzzing) { 8 } else { 256 };

/// What rows depend on besides their tokens: the model, its adapters, the layout, settings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 16]);

/// The name of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(pub [u8; 16]);

impl Fingerprint {
    /// The fingerprint of these facts. Order and division matter: `["ab", "c"]` is not `["a", "bc"]`.
    pub fn from_facts(facts: &[&[u8]]) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"fingerprint");
        for fact in facts {
            hash.update((fact.len() as u64).to_le_bytes());
            hash.update(fact);
        }
        Self(first_half(hash))
    }

    /// The first link of the chain.
    pub(crate) fn link(&self) -> Name {
        let mut hash = Sha256::new();
        hash.update(b"chain");
        hash.update(self.0);
        Name(first_half(hash))
    }
}

impl Name {
    pub(crate) const LEAST: Self = Self([0; 16]);
    pub(crate) const GREATEST: Self = Self([u8::MAX; 16]);

    /// The names among these that begin with this byte, in order.
    pub(crate) fn all_with<V>(all: &BTreeMap<Self, V>, first: u8) -> impl Iterator<Item = &Self> {
        let mut from = Self([0; 16]);
        from.0[0] = first;
        let names = all.range(from..).map(|(name, _)| name);
        names.take_while(move |name| name.0[0] == first)
    }

    /// The name of the chunk that begins `skip` tokens behind a multiple of [`GRID`]. `self` is the
    /// link at that multiple, `tokens` are those from there to the chunk's end, at most [`GRID`].
    ///
    /// With all [`GRID`] tokens and no `skip` that is the next link, too.
    pub(crate) fn next(&self, skip: usize, tokens: &[i32]) -> Self {
        debug_assert!(skip < tokens.len() && tokens.len() <= GRID);
        let mut bytes = [0; GRID * 4];
        for (into, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            into.copy_from_slice(&token.to_le_bytes());
        }
        let mut hash = Sha256::new();
        hash.update(b"chunk");
        hash.update(self.0);
        hash.update((skip as u32).to_le_bytes());
        hash.update(&bytes[..tokens.len().min(GRID) * 4]);
        Self(first_half(hash))
    }
}

/// How chunks are named: by the link at the last multiple of [`GRID`], how many tokens behind that the chunk begins, and
/// the tokens from there to its end.
pub(crate) type Naming = fn(&Name, usize, &[i32]) -> Name;

/// A name for a store that has no files: made in a fraction of the time, and unlike another one's but by chance. A client
/// that chooses the tokens can find two that are alike.
pub(crate) fn quick(link: &Name, skip: usize, tokens: &[i32]) -> Name {
    const ODD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];
    let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|nth| link.0[at + nth]));
    let mut lanes = [half(0), half(8)];
    let mut mix = |word: u64| {
        for (lane, odd) in lanes.iter_mut().zip(ODD) {
            *lane = (*lane ^ word).wrapping_mul(odd).rotate_left(29);
        }
    };
    mix((skip * 2 * GRID + tokens.len()) as u64);
    let mut pairs = tokens.chunks_exact(2);
    for pair in &mut pairs {
        mix(u64::from(pair[0] as u32) << 32 | u64::from(pair[1] as u32));
    }
    for token in pairs.remainder() {
        mix(u64::from(*token as u32));
    }
    // The last token goes through all bits.
    mix(0);
    mix(0);
    let bytes = lanes.map(u64::to_le_bytes);
    Name(std::array::from_fn(|at| bytes[at / 8][at % 8]))
}

fn first_half(hash: Sha256) -> [u8; 16] {
    let whole = hash.finalize();
    std::array::from_fn(|i| whole[i])
}

fn hex(bytes: &[u8; 16], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

/// It does not have 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameError;

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name has 32 lower-case hexadecimal digits")
    }
}

impl std::error::Error for NameError {}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(NameError),
        };
        if text.len() != 32 {
            return Err(NameError);
        }
        let mut bytes = [0; 16];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = digit(digits[0])? << 4 | digit(digits[1])?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let name = Name(std::array::from_fn(|i| (i * 17) as u8));
        assert_eq!(name.to_string(), "00112233445566778899aabbccddeeff");
        assert_eq!(name.to_string().parse(), Ok(name));
        for text in [
            "",
            "00112233445566778899AABBCCDDEEFF",
            "00112233445566778899aabbccddeef",
            "00112233445566778899aabbccddeeff0",
            "00112233445566778899aabbccddee+f",
        ] {
            assert_eq!(text.parse::<Name>(), Err(NameError), "{text}");
        }
    }

    #[test]
    fn facts_are_told_apart() {
        let fingerprint = Fingerprint::from_facts(&[b"ab", b"c"]);
        assert_eq!(fingerprint, Fingerprint::from_facts(&[b"ab", b"c"]));
        for other in [&[&b"a"[..], b"bc"][..], &[b"abc"], &[b"c", b"ab"], &[]] {
            assert_ne!(fingerprint, Fingerprint::from_facts(other), "{other:?}");
        }
    }

    #[test]
    fn a_name_depends_on_everything_before() {
        let link = Fingerprint([1; 16]).link();
        let name = link.next(0, &[1, 2, 3]);
        assert_eq!(name, link.next(0, &[1, 2, 3]));
        assert_ne!(name, link.next(1, &[1, 2, 3]));
        assert_ne!(name, link.next(0, &[1, 2]));
        assert_ne!(name, link.next(0, &[1, 2, 4]));
        assert_ne!(name, Fingerprint([2; 16]).link().next(0, &[1, 2, 3]));
        assert_ne!(name, name.next(0, &[1, 2, 3]));
    }

    #[test]
    fn a_quick_name_depends_on_everything_before_too() {
        let link = Fingerprint([1; 16]).link();
        let name = quick(&link, 0, &[1, 2, 3]);
        assert_eq!(name, quick(&link, 0, &[1, 2, 3]));
        let others: [(usize, &[i32]); 5] = [
            (1, &[1, 2, 3]),
            (0, &[1, 2]),
            (0, &[1, 2, 4]),
            (0, &[1, 2, 3, 0]),
            (0, &[2, 1, 3]),
        ];
        for (skip, tokens) in others {
            assert_ne!(name, quick(&link, skip, tokens), "{tokens:?}");
        }
        assert_ne!(name, quick(&name, 0, &[1, 2, 3]));
        let firsts: BTreeMap<Name, i32> = (0..100_000)
            .map(|nth| (quick(&link, 0, &[nth]), nth))
            .collect();
        assert_eq!(firsts.len(), 100_000);
    }

    /// These names are in files, and are to be the same on every machine.
    #[test]
    fn names_stay_what_they_are() {
        let link = Fingerprint([0; 16]).link();
        assert_eq!(link.to_string(), "0a2d6b8f89b140c39e4b0d5dbcb4b743");
        assert_eq!(
            link.next(0, &[1, -2]).to_string(),
            "f9f6af2710b80450eee0646fb7b38be5"
        );
        let fingerprint = Fingerprint::from_facts(&[b"a"]);
        assert_eq!(fingerprint.to_string(), "feb9baa221f6b16eb56d336718ed606b");
        // Messages name files by them, too.
        assert_eq!(format!("{link:?}"), link.to_string());
        assert_eq!(format!("{fingerprint:?}"), fingerprint.to_string());
    }
}
