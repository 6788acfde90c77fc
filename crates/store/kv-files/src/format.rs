//! The format of a file.
//!
//! ```text
//!   0  "CPkvrows"           64  link of the chain of names   104  size of the rows: u64
//!   8  version: u32         80  start: u32                   112  CRC of the rows: u32
//!  12  0: u32               84  tokens: u32                  116  0: u64
//!  16  name                 88  tokens of the parent that    124  CRC of bytes 0 to 124
//!  32  name of the parent       stand before, or 0: u32           and of the tokens: u32
//!  48  fingerprint          92  0: 12 bytes                  128  tokens, then rows
//! ```
//! Integers are little-endian.

use contextpilot_kv_store::{Chunk, Fingerprint, GRID, HEADER_BYTES, Name};

const MAGIC: &[u8; 8] = b"CPkvrows";
const VERSION: u32 = 1;
/// The size of a header.
pub(crate) const HEAD: usize = HEADER_BYTES as usize;
/// The size of a header with the most tokens.
pub(crate) const LONGEST_HEAD: usize = HEAD + 4 * GRID;

/// Where the header's own checksum is.
const CHECK_AT: usize = 124;

/// What a file says about itself.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) chunk: Chunk,
    pub(crate) rows_crc: u32,
}

/// Why there is no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another version of this program has written it.
    Foreign,
    /// What is wrong with it.
    Damaged(&'static str),
}

impl Head {
    /// The size of the head of a chunk's file, and so where the rows begin.
    pub(crate) fn size(chunk: &Chunk) -> usize {
        HEAD + 4 * chunk.tokens.len()
    }

    /// The size of a chunk's file.
    pub(crate) fn file_size(chunk: &Chunk) -> u64 {
        (Self::size(chunk) as u64).saturating_add(chunk.bytes)
    }

    /// How many tokens a header without them says that it has. `None`: it cannot have so many.
    pub(crate) fn tokens(header: &[u8]) -> Option<usize> {
        let word = header.get(84..88)?;
        let count = u32::from_le_bytes(std::array::from_fn(|i| word[i])) as usize;
        (1..=GRID).contains(&count).then_some(count)
    }

    /// Header and tokens of a chunk with so many bytes of rows, which have this checksum.
    pub(crate) fn write(chunk: &Chunk, rows: u64, rows_crc: u32) -> Vec<u8> {
        let (parent, offset) = chunk.parent.unwrap_or((Name([0; 16]), 0));
        let mut bytes = Vec::with_capacity(Self::size(chunk));
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(chunk.name.0);
        bytes.extend(parent.0);
        bytes.extend(chunk.fingerprint.0);
        bytes.extend(chunk.link.0);
        bytes.extend(chunk.start.to_le_bytes());
        bytes.extend((chunk.tokens.len() as u32).to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend(rows.to_le_bytes());
        bytes.extend(rows_crc.to_le_bytes());
        bytes.resize(HEAD, 0);
        for token in &*chunk.tokens {
            bytes.extend(token.to_le_bytes());
        }
        let crc = check(&bytes);
        bytes[CHECK_AT..HEAD].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `bytes` is the beginning of a file, or all of it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let short = Fault::Damaged("it is cut off");
        let word = |at: usize| -> [u8; 4] { std::array::from_fn(|i| bytes[at + i]) };
        let name = |at: usize| -> [u8; 16] { std::array::from_fn(|i| bytes[at + i]) };
        let u32 = |at: usize| u32::from_le_bytes(word(at));
        if bytes.len() < HEAD {
            return Err(short);
        }
        if !bytes.starts_with(MAGIC) {
            return Err(Fault::Damaged("it does not begin as such files do"));
        }
        match u32(8) {
            VERSION => {}
            0 => return Err(Fault::Damaged("it has no version")),
            _ => return Err(Fault::Foreign),
        }
        let count = u32(84) as usize;
        if count == 0 || count > GRID {
            return Err(Fault::Damaged("it has an impossible number of tokens"));
        }
        let bytes = bytes.get(..HEAD + 4 * count).ok_or(short)?;
        if check(bytes) != u32(CHECK_AT) {
            return Err(Fault::Damaged("the checksum of its header is wrong"));
        }
        let tokens = bytes[HEAD..].chunks_exact(4);
        let token = |bytes: &[u8]| i32::from_le_bytes(std::array::from_fn(|i| bytes[i]));
        let offset = u32(88);
        Ok(Self {
            rows_crc: u32(112),
            chunk: Chunk {
                name: Name(name(16)),
                parent: (offset > 0).then(|| (Name(name(32)), offset)),
                fingerprint: Fingerprint(name(48)),
                link: Name(name(64)),
                start: u32(80),
                tokens: tokens.map(token).collect(),
                bytes: u64::from(u32(104)) | u64::from(u32(108)) << 32,
            },
        })
    }
}

/// The checksum of header and tokens, without itself.
fn check(head: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&head[..CHECK_AT]);
    crc.update(&head[HEAD..]);
    crc.finalize()
}
