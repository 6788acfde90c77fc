//! The file's format.
//!
//! ```text
//! header   magic "CPjournl" | version: u32 | identity: 16 bytes | CRC
//! record   kind: u8 (1 live, 2 gone) | length: u16 | CRC: u32 | id (UTF-8)
//! ```
//! Integers are little-endian. The checksum is CRC-32 (ISO-HDLC, as in zlib), not a
//! faster hash: it is certain to notice damage within 32 successive bits, such as a
//! flipped byte. It misses other damage once in 2³². The checksum of a record also covers
//! the journal's identity: a power cut may leave a block of another journal in this one,
//! and its records must not be read as ours. Zeros are never a record.

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::Arc;

use crate::Identity;

/// The longest id that is kept, in bytes.
pub const MAX_ID_BYTES: usize = 512;
/// The most ids that a journal holds as live.
pub const MAX_IDS: usize = 1 << 17;
/// The most bytes that the records of all live ids may take.
pub const MAX_LIVE_BYTES: u64 = 16 << 20;
/// The largest file that is read, bytes. Our own journals stay below 33 MiB: a flush after
/// which dead records would take more than live ones (at most [`MAX_LIVE_BYTES`])
/// compacts the file instead.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 20;

const MAGIC: &[u8; 8] = b"CPjournl";
const VERSION: u32 = 1;
pub(crate) const HEADER_BYTES: usize = MAGIC.len() + 4 + Identity::LENGTH + 4;
pub(crate) const HEAD_BYTES: usize = 1 + 2 + 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Live = 1,
    Gone = 2,
}

/// The size of an id's record, bytes.
pub(crate) fn size(id: &str) -> u64 {
    (HEAD_BYTES + id.len()) as u64
}

pub(crate) fn header(identity: &Identity) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(identity.bytes());
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// What a new file begins with: the header, and a record that says of which index and machine it is. To a reader it
/// is an id that is gone and never was there, so earlier versions read it, too.
pub(crate) fn opening(identity: &Identity) -> Vec<u8> {
    let mut bytes = header(identity);
    let family = format!("index and machine {}", identity.family());
    write(&mut bytes, identity, Kind::Gone, &family);
    bytes
}

/// Appends a record. `id` must have 1 to [`MAX_ID_BYTES`] bytes.
pub(crate) fn write(into: &mut Vec<u8>, identity: &Identity, kind: Kind, id: &str) {
    debug_assert!((1..=MAX_ID_BYTES).contains(&id.len()));
    let length = (id.len() as u16).to_le_bytes();
    let kind = kind as u8;
    let crc = checksum(identity, kind, length, id.as_bytes());
    into.push(kind);
    into.extend(length);
    into.extend(crc.to_le_bytes());
    into.extend(id.as_bytes());
}

fn checksum(identity: &Identity, kind: u8, length: [u8; 2], id: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(identity.bytes());
    crc.update(&[kind]);
    crc.update(&length);
    crc.update(id);
    crc.finalize()
}

/// How a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// After a whole record.
    Whole,
    /// Within a record that was being written when the process or the machine stopped.
    Torn,
    /// With bytes that no crash of ours leaves behind. The reason.
    Damaged(&'static str),
    /// It is the journal of another instance.
    Foreign,
}

/// The content of a file, up to its first bad record.
#[derive(Debug)]
pub(crate) struct Content {
    /// The live ids, in the order in which they became live.
    pub(crate) live: Vec<Arc<str>>,
    /// The length of the good part, bytes. 0: not even the header is good.
    pub(crate) good: u64,
    pub(crate) end: End,
}

/// Reads a file of `length` bytes. Its memory is bounded by [`MAX_IDS`] and
/// [`MAX_LIVE_BYTES`], whatever the file holds.
pub(crate) fn read(file: impl Read, length: u64, identity: &Identity) -> io::Result<Content> {
    if length > MAX_FILE_BYTES {
        return Ok(Content {
            live: Vec::new(),
            good: 0,
            end: End::Damaged("it is larger than any journal"),
        });
    }
    let mut scan = Scan {
        file: io::BufReader::with_capacity(length.min(1 << 16) as usize, file.take(length)),
        identity,
        good: 0,
        rest: length,
        live: HashMap::new(),
        live_bytes: 0,
        order: 0,
    };
    let end = scan.run()?;
    let live = scan.live.into_iter().map(|(id, order)| (order, id));
    let mut live: Vec<_> = live.collect();
    live.sort_unstable();
    Ok(Content {
        live: live.into_iter().map(|(_, id)| id).collect(),
        good: scan.good,
        end,
    })
}

struct Scan<'a, R> {
    file: R,
    identity: &'a Identity,
    good: u64,
    /// Bytes that are not read yet.
    rest: u64,
    live: HashMap<Arc<str>, u64>,
    live_bytes: u64,
    order: u64,
}

impl<R: Read> Scan<'_, R> {
    fn run(&mut self) -> io::Result<End> {
        if let Some(end) = self.header()? {
            return Ok(end);
        }
        let mut id = [0; MAX_ID_BYTES];
        while self.rest > 0 {
            if let Some(end) = self.record(&mut id)? {
                return Ok(end);
            }
        }
        Ok(End::Whole)
    }

    /// Fills `bytes`. The caller has checked that so many are left.
    fn take(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact(bytes)?;
        self.rest -= bytes.len() as u64;
        Ok(())
    }

    fn header(&mut self) -> io::Result<Option<End>> {
        let ours = header(self.identity);
        let mut found = vec![0; HEADER_BYTES.min(self.rest as usize)];
        self.take(&mut found)?;
        if found.len() < HEADER_BYTES {
            let torn = ours.starts_with(&found) || found.iter().all(|&byte| byte == 0);
            return Ok(Some(if torn {
                End::Torn
            } else {
                End::Damaged("it does not begin as a journal")
            }));
        }
        if found != ours {
            if found == [0; HEADER_BYTES] && self.only_zeros_follow()? {
                return Ok(Some(End::Torn));
            }
            let (body, crc) = found.split_at(HEADER_BYTES - 4);
            let right = crc32fast::hash(body).to_le_bytes() == crc;
            return Ok(Some(if !right || !body.starts_with(MAGIC) {
                End::Damaged("it does not begin as a journal")
            } else if body[MAGIC.len()..][..4] != VERSION.to_le_bytes() {
                End::Damaged("it was written by another version")
            } else {
                End::Foreign
            }));
        }
        self.good = HEADER_BYTES as u64;
        Ok(None)
    }

    /// Reads one record, or says how the file ends here.
    fn record(&mut self, buffer: &mut [u8; MAX_ID_BYTES]) -> io::Result<Option<End>> {
        if self.rest < HEAD_BYTES as u64 {
            return Ok(Some(End::Torn));
        }
        let mut head = [0; HEAD_BYTES];
        self.take(&mut head)?;
        let [kind, l0, l1, c0, c1, c2, c3] = head;
        let length = usize::from(u16::from_le_bytes([l0, l1]));
        let kind_known = match kind {
            1 => Some(Kind::Live),
            2 => Some(Kind::Gone),
            _ => None,
        };
        let (Some(known), 1..=MAX_ID_BYTES) = (kind_known, length) else {
            // After a power cut, what had not reached the disk reads as zeros.
            let zeros = length == 0 && self.only_zeros_follow()?;
            return Ok(Some(if zeros {
                End::Torn
            } else {
                End::Damaged("it holds something that is not a record")
            }));
        };
        if self.rest < length as u64 {
            return Ok(Some(End::Torn));
        }
        let id = &mut buffer[..length];
        self.take(id)?;
        let crc = u32::from_le_bytes([c0, c1, c2, c3]);
        if checksum(self.identity, kind, [l0, l1], id) != crc {
            // If only zeros follow, this is the last record, and a part of it reached the disk.
            let torn = self.only_zeros_follow()?;
            return Ok(Some(if torn {
                End::Torn
            } else {
                End::Damaged("a checksum is wrong")
            }));
        }
        let Ok(id) = std::str::from_utf8(id) else {
            return Ok(Some(End::Damaged("an id is not text")));
        };
        match known {
            Kind::Live if !self.live.contains_key(id) => {
                self.live_bytes += size(id);
                if self.live.len() >= MAX_IDS || self.live_bytes > MAX_LIVE_BYTES {
                    return Ok(Some(End::Damaged("it holds more ids than any journal")));
                }
                self.live.insert(id.into(), self.order);
                self.order += 1;
            }
            Kind::Live => {}
            Kind::Gone => {
                if self.live.remove(id).is_some() {
                    self.live_bytes -= size(id);
                }
            }
        }
        self.good += size(id);
        Ok(None)
    }

    fn only_zeros_follow(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        while self.rest > 0 {
            let n = chunk.len().min(self.rest as usize);
            self.take(&mut chunk[..n])?;
            if chunk[..n].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
