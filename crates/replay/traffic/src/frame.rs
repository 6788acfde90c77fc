//! The frames of a file: header, length, checksum.

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
