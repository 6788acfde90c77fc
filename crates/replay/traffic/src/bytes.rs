//! What a file is made of: a header, frames with a length and a checksum, and numbers as bytes, seven bits each, the lowest
//! first (LEB128).

/// The first bytes of a file.
pub const MAGIC: &[u8; 8] = b"CPTRAFIC";
/// The version of the format. It follows [`MAGIC`], as 2 bytes, little-endian. A reader accepts this
/// version and older ones. Versions up to 4 have no prompts with kept tokens. Versions up to 3 have no infill prompts in the other order. Version 1 has no changes of slots. In versions 1 and 2, equal tokens in the
/// middle of prompts may have different identities.
pub const VERSION: u16 = 5;

/// Bytes of a frame besides its body: kind, length and checksum.
const AROUND: usize = 9;
/// The longest body, bytes (16 MiB). A length above it is damage.
const LONGEST: usize = 1 << 24;

pub(crate) fn header() -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes
}

/// A frame, or `None` if the body is too long for one.
pub(crate) fn frame(kind: u8, body: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(body.len()).ok()?;
    if body.len() > LONGEST {
        return None;
    }
    let mut bytes = Vec::with_capacity(body.len() + AROUND);
    bytes.push(kind);
    bytes.extend(length.to_le_bytes());
    bytes.extend(body);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    Some(bytes)
}

/// What the rest of a file begins with.
pub(crate) enum Next<'a> {
    /// A good frame: its kind, its body, and what follows it.
    Frame(u8, &'a [u8], &'a [u8]),
    /// The end of the file.
    End,
    /// The beginning of a frame: the file was cut off.
    Cut,
    /// The checksum is wrong, or the length is impossible.
    Damaged,
}

pub(crate) fn next(bytes: &[u8]) -> Next<'_> {
    let Some((&[kind, a, b, c, d], rest)) = bytes.split_first_chunk::<5>() else {
        return if bytes.is_empty() {
            Next::End
        } else {
            Next::Cut
        };
    };
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > LONGEST {
        return Next::Damaged;
    }
    let Some((body, rest)) = rest.split_at_checked(length) else {
        return Next::Cut;
    };
    let Some((&sum, rest)) = rest.split_first_chunk::<4>() else {
        return Next::Cut;
    };
    // A fuzzer cannot guess checksums, so under it they are not compared.
    if cfg!(fuzzing) || crc32fast::hash(&bytes[..5 + length]) == u32::from_le_bytes(sum) {
        Next::Frame(kind, body, rest)
    } else {
        Next::Damaged
    }
}

pub(crate) fn put(into: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

/// A signed number in zigzag encoding: the sign is in the lowest bit.
pub(crate) fn put_signed(into: &mut Vec<u8>, number: i64) {
    put(into, ((number << 1) ^ (number >> 63)) as u64);
}

pub(crate) fn put_text(into: &mut Vec<u8>, text: &str) {
    put(into, text.len() as u64);
    into.extend(text.as_bytes());
}

/// Reads what the functions above write. `None`: the bytes end too soon, or are no such value.
#[derive(Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                return None;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(crate) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(crate) fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// A count of items that take at least a byte each. `None` if fewer bytes follow, so a count from
    /// a damaged file makes no reader reserve memory.
    pub(crate) fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len()).then_some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_were_written_are_read_back_and_overlong_ones_refused() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            put_signed(&mut bytes, number as i64);
            let mut read = Bytes(&bytes);
            assert_eq!(read.number(), Some(number));
            assert_eq!(read.signed(), Some(number as i64));
            assert_eq!(read.number(), None);
        }
        assert_eq!(Bytes(&[0xff; 10]).number(), None, "more than 64 bits");
        assert_eq!(Bytes(&[5, 0]).count(), None, "more than there is");
    }
}
