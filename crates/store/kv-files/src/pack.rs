//! Chunks outside of their folder: one in one piece, as its file has it, for stores elsewhere; and packs.
//!
//! A pack has chunks of one model in one file, to be moved to another folder:
//!
//! ```text
//!   0  "CPkvpack"
//!   8  version: u32
//!  12  size of the origins: u32
//!  16  chunks: u64
//!  24  bytes of all that follows the origins, but for the last 32: u64
//!  32  the origin (Origin::encode), without secrets; in version 3 several, each behind its size: u32
//!      each chunk as in its file: header, tokens, rows; what a chunk continues stands before it
//!      SHA-256 of all before it
//! ```
//! Integers are little-endian. A reader takes nothing from a pack before it has read all of it and compared the sum.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use contextpilot_kv_store::{Chunk, Fingerprint, Name, Origin};
use sha2::{Digest, Sha256};

use crate::format::{Fault, HEAD, Head};
use crate::{Folder, ReadError};

const MAGIC: &[u8; 8] = b"CPkvpack";
/// Version 1 has another origin, with the server's flags as they were. It is read, and nothing of that is kept.
const OLDEST: u32 = 1;
/// Of one origin: the chunks are KV, or hidden states.
const OF_ONE: u32 = 2;
/// Of several: a model's KV, and its hidden states.
const OF_SEVERAL: u32 = 3;
const START: usize = 32;
const SUM: usize = 32;
const LONGEST_ORIGIN: u32 = 1 << 20;
/// The longest rows of a chunk: 256 tokens of 16 MiB each.
const LONGEST_ROWS: u64 = 256 << 24;
/// Read at a time.
const STEP: usize = 256 << 10;

/// Writes a pack.
pub struct PackWriter<W> {
    to: W,
    sum: Sha256,
    /// What was announced and is not written yet.
    chunks: u64,
    bytes: u64,
}

impl<W: Write> PackWriter<W> {
    /// Begins a pack with exactly these chunks, which are written next in this order. Each is of one of these origins.
    ///
    /// # Errors
    /// Those of writing.
    pub fn begin(to: W, origins: &[Origin], chunks: &[Chunk]) -> io::Result<Self> {
        let (version, block) = match origins {
            [origin] => (OF_ONE, origin.encode()),
            all => (OF_SEVERAL, all.iter().flat_map(framed).collect()),
        };
        let size = u32::try_from(block.len()).unwrap_or(u32::MAX);
        if size > LONGEST_ORIGIN {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the origin is too long",
            ));
        }
        let mut writer = Self {
            to,
            sum: Sha256::new(),
            chunks: chunks.len() as u64,
            bytes: chunks.iter().map(Head::file_size).sum(),
        };
        let mut start = MAGIC.to_vec();
        start.extend(version.to_le_bytes());
        start.extend(size.to_le_bytes());
        start.extend(writer.chunks.to_le_bytes());
        start.extend(writer.bytes.to_le_bytes());
        start.extend(block);
        writer.put(&start)?;
        Ok(writer)
    }

    /// The next chunk.
    ///
    /// # Errors
    /// Those of writing.
    pub fn chunk(&mut self, chunk: &Chunk, rows: &[u8]) -> io::Result<()> {
        let head = Head::write(chunk, rows.len() as u64, crc32fast::hash(rows));
        let size = (head.len() + rows.len()) as u64;
        let left = self.bytes.checked_sub(size).zip(self.chunks.checked_sub(1));
        let (bytes, chunks) = left.ok_or(io::ErrorKind::InvalidInput)?;
        self.put(&head)?;
        self.put(rows)?;
        (self.bytes, self.chunks) = (bytes, chunks);
        Ok(())
    }

    /// The end. Returns what was written to.
    ///
    /// # Errors
    /// Those of writing, and chunks that are missing.
    pub fn finish(mut self) -> io::Result<W> {
        if (self.bytes, self.chunks) != (0, 0) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sum = self.sum.finalize();
        self.to.write_all(&sum)?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.update(bytes);
        self.to.write_all(bytes)
    }
}

/// An origin behind its size.
fn framed(origin: &Origin) -> Vec<u8> {
    let bytes = origin.encode();
    [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
}

/// The origins of a pack of this version. `None`: it is damaged.
fn origins(version: u32, mut block: &[u8]) -> Option<Vec<Origin>> {
    if version < OF_SEVERAL {
        return Some(vec![Origin::decode(block)?]);
    }
    let mut all = Vec::new();
    while let Some((size, rest)) = block.split_first_chunk() {
        let (origin, rest) = rest.split_at_checked(u32::from_le_bytes(*size) as usize)?;
        all.push(Origin::decode(origin)?);
        block = rest;
    }
    (block.is_empty() && !all.is_empty()).then_some(all)
}

/// A pack that was read to its end, and is whole.
pub struct Pack<R> {
    from: BufReader<R>,
    /// Of which model its chunks are, and of which kind. At least one.
    pub origins: Vec<Origin>,
    /// Its chunks, in order.
    pub chunks: Vec<Chunk>,
    begin: u64,
}

impl<R: Read + Seek> Pack<R> {
    /// Reads all of it, and compares the sums.
    ///
    /// # Errors
    /// It is something else, another version's, or damaged.
    pub fn open(from: R) -> Result<Self, PackError> {
        let mut from = Summed {
            from: BufReader::with_capacity(STEP, from),
            sum: Sha256::new(),
        };
        let start: [u8; START] = from.array()?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| start[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| start[at + i]));
        if !start.starts_with(MAGIC) {
            return Err(PackError::Foreign);
        }
        if !(OLDEST..=OF_SEVERAL).contains(&word(8)) {
            return Err(PackError::Version(word(8)));
        }
        let size = word(12);
        if size > LONGEST_ORIGIN {
            return Err(DAMAGED);
        }
        let mut block = vec![0; size as usize];
        from.fill(&mut block)?;
        let origins = origins(word(8), &block).ok_or(DAMAGED)?;
        let is_of = |of: &Fingerprint| origins.iter().any(|origin| origin.fingerprint == *of);
        let (count, mut left) = (long(16), long(24));
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut names: HashSet<(Fingerprint, Name)> = HashSet::new();
        let mut step = vec![0; STEP];
        for _ in 0..count {
            let head = from.head()?;
            let chunk = head.chunk;
            left = left.checked_sub(Head::file_size(&chunk)).ok_or(DAMAGED)?;
            if !is_of(&chunk.fingerprint) || !is_next(&chunk, &names) {
                return Err(DAMAGED);
            }
            let mut crc = crc32fast::Hasher::new();
            let mut rows = chunk.bytes;
            while rows > 0 {
                let part = &mut step[..rows.min(STEP as u64) as usize];
                from.fill(part)?;
                crc.update(part);
                rows -= part.len() as u64;
            }
            if crc.finalize() != head.rows_crc {
                return Err(DAMAGED);
            }
            names.insert((chunk.fingerprint, chunk.name));
            chunks.push(chunk);
        }
        let sum = std::mem::take(&mut from.sum).finalize();
        let mut from = from.from;
        let mut written = [0; SUM];
        from.read_exact(&mut written).map_err(cut)?;
        let is_end = from.read(&mut [0])? == 0;
        if left > 0 || !is_end || written[..] != sum[..] {
            return Err(DAMAGED);
        }
        let begin = (START + size as usize) as u64;
        from.seek(SeekFrom::Start(begin))?;
        Ok(Self {
            from,
            origins,
            chunks,
            begin,
        })
    }

    /// Calls `take` with each chunk and its rows, in order, until that says no more. What is read is compared with the
    /// sums once more.
    ///
    /// # Errors
    /// The file has changed since it was opened, or cannot be read.
    pub fn each(&mut self, mut take: impl FnMut(&Chunk, &[u8]) -> bool) -> Result<(), PackError> {
        self.from.seek(SeekFrom::Start(self.begin))?;
        let mut rows = Vec::new();
        for chunk in &self.chunks {
            let head = head(|bytes| self.from.read_exact(bytes).map_err(cut))?;
            if head.chunk != *chunk {
                return Err(DAMAGED);
            }
            rows.resize(usize::try_from(chunk.bytes).map_err(|_| DAMAGED)?, 0);
            self.from.read_exact(&mut rows).map_err(cut)?;
            if crc32fast::hash(&rows) != head.rows_crc {
                return Err(DAMAGED);
            }
            if !take(chunk, &rows) {
                break;
            }
        }
        Ok(())
    }
}

/// Whether a chunk may stand behind those.
fn is_next(chunk: &Chunk, before: &HashSet<(Fingerprint, Name)>) -> bool {
    let is_before = |name: Name| before.contains(&(chunk.fingerprint, name));
    chunk.bytes <= LONGEST_ROWS
        && !is_before(chunk.name)
        && match chunk.parent {
            Some((parent, _)) => is_before(parent),
            None => chunk.start == 0,
        }
}

/// Header and tokens of a chunk.
fn head(mut fill: impl FnMut(&mut [u8]) -> Result<(), PackError>) -> Result<Head, PackError> {
    let mut bytes = vec![0; HEAD];
    fill(&mut bytes)?;
    let tokens = Head::tokens(&bytes).ok_or(DAMAGED)?;
    bytes.resize(HEAD + 4 * tokens, 0);
    fill(&mut bytes[HEAD..])?;
    Head::read(&bytes).map_err(|fault| match fault {
        Fault::Foreign => PackError::Version(0),
        Fault::Damaged(_) => DAMAGED,
    })
}

struct Summed<R> {
    from: BufReader<R>,
    sum: Sha256,
}

impl<R: Read> Summed<R> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), PackError> {
        self.from.read_exact(bytes).map_err(cut)?;
        self.sum.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PackError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn head(&mut self) -> Result<Head, PackError> {
        head(|bytes| self.fill(bytes))
    }
}

const DAMAGED: PackError = PackError::Damaged("a checksum is wrong, or a number is impossible");

fn cut(error: io::Error) -> PackError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => PackError::Damaged("it is cut off"),
        _ => PackError::System(error),
    }
}

/// Why a pack cannot be used. `Display` says what is wrong with the file.
#[derive(Debug)]
#[non_exhaustive]
pub enum PackError {
    /// It is no pack.
    Foreign,
    /// Another version of this program has written it.
    Version(u32),
    /// It is not what was written.
    Damaged(&'static str),
    /// The system's refusal.
    System(io::Error),
}

impl From<io::Error> for PackError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("it was not written by store export"),
            Self::Version(_) => write!(
                f,
                "another version of this program has written it (this one reads version {OF_SEVERAL}): use the same \
                 on both machines"
            ),
            Self::Damaged(why) => write!(f, "it is damaged: {why}; copy it again"),
            Self::System(error) => write!(f, "it cannot be read ({error})"),
        }
    }
}

impl std::error::Error for PackError {}

impl Folder {
    /// Header, tokens and rows of a chunk, verified.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn whole(&self, chunk: &Chunk) -> Result<Vec<u8>, ReadError> {
        let mut rows = Vec::new();
        self.read(&chunk.name, chunk.bytes, &mut rows)?;
        let mut whole = Head::write(chunk, rows.len() as u64, crc32fast::hash(&rows));
        whole.append(&mut rows);
        Ok(whole)
    }
}

/// What the first bytes of a chunk say that it is. Its rows may be others than it says.
///
/// # Errors
/// It is damaged, or another version's.
pub fn read_header(bytes: &[u8]) -> Result<Chunk, ReadError> {
    Ok(Head::read(bytes)?.chunk)
}

/// Takes apart what [`Folder::whole`] has put together: the chunk, and its rows.
///
/// # Errors
/// It is damaged, or another version's.
pub fn read_whole(mut bytes: Vec<u8>) -> Result<(Chunk, Vec<u8>), ReadError> {
    let head = Head::read(&bytes)?;
    let rows = bytes.split_off(Head::size(&head.chunk));
    if rows.len() as u64 != head.chunk.bytes {
        return Err(ReadError::Damaged("it has another size than it says"));
    }
    if crc32fast::hash(&rows) != head.rows_crc {
        return Err(ReadError::Damaged("the checksum of its rows is wrong"));
    }
    Ok((head.chunk, rows))
}
