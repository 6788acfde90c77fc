//! A chunk is fetched, with all that it continues, if all of that is as it must be.
//!
//! A writer there is not trusted. Until all is checked, one chunk and the headers of what it continues are kept in
//! memory, and nothing is written: a chain that has no beginning, or one that is larger than there is room, leaves
//! nothing in the folder.

use std::collections::HashMap;
use std::time::Instant;

use contextpilot_kv_files::{read_header, read_whole};
use contextpilot_kv_store::{Chunk, Fingerprint, GRID, HEADER_BYTES, Name, Place};

use super::{MOST_REFUSED, Mirror, MirrorError, Moved};
use crate::remote::{Body, Listed};

/// Of so many chunks before one that is fetched the headers are fetched.
const MOST_BEFORE: usize = 4096;
/// Bytes of the longest header, with its tokens.
const LONGEST_HEADER: u64 = HEADER_BYTES + 4 * GRID as u64;

const TOO_LARGE: &str = "a chunk is larger than it says";
const ODD_SIZE: &str = "a chunk has another size than its tokens need";
const NO_CHAIN: &str = "a chunk does not continue what it says";
const ODD_NAME: &str = "a chunk's name is not that of its tokens";
const NO_ROOM: &str = "what a chunk continues is larger than there is room for";
const LATE: &str = "a chunk could not be had, twice";

/// Why a chunk is not taken.
enum Not {
    /// It is refused, for this reason.
    Refused(&'static str),
    /// It is damaged.
    Damaged,
    /// It is not there any more.
    Gone,
    /// What it continues is not there any more.
    Incomplete,
    /// Nothing can be taken now.
    Error(MirrorError),
}

impl Not {
    /// The reason for a chunk, if this is the reason for one that it continues.
    fn of_another(self) -> Self {
        match self {
            Self::Gone => Self::Incomplete,
            Self::Damaged => Self::Refused(NO_CHAIN),
            other => other,
        }
    }
}

impl<E: Into<MirrorError>> From<E> for Not {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

impl Mirror {
    /// Fetches a chunk that is listed, and what it continues.
    pub(super) fn take(
        &mut self,
        at: usize,
        listed: &Listed,
        moved: &mut Moved,
    ) -> Result<(), MirrorError> {
        let of = self.models.all[at].of;
        let taken = self.try_take(at, listed, moved);
        match taken {
            Ok(()) => self.late = None,
            Err(Not::Incomplete) => {}
            Err(Not::Gone) => {
                self.known.remove(&listed.name);
                self.remote.0.forget(&of, listed)?;
            }
            Err(Not::Damaged) => {
                moved.damaged += 1;
                self.known.remove(&listed.name);
                self.remote.0.forget(&of, listed)?;
            }
            Err(Not::Refused(why)) => self.refuse(listed.name, why, moved),
            Err(Not::Error(MirrorError::Remote(error))) => {
                // If it is for this chunk alone, the next attempt passes it over.
                if self.late.replace(listed.name) == Some(listed.name) {
                    self.late = None;
                    self.refuse(listed.name, LATE, moved);
                }
                return Err(error.into());
            }
            Err(Not::Error(error)) => return Err(error),
        }
        Ok(())
    }

    fn refuse(&mut self, name: Name, why: &'static str, moved: &mut Moved) {
        moved.refuse(1, why);
        self.known.remove(&name);
        if self.refused.len() >= MOST_REFUSED {
            self.refused.clear();
        }
        self.refused.insert(name, Instant::now());
    }

    fn try_take(&mut self, at: usize, listed: &Listed, moved: &mut Moved) -> Result<(), Not> {
        let of = self.models.all[at].of;
        let (chunk, rows, size) = self.get(&of, &listed.name, listed.size)?;
        // A Redis lists what it takes on the disk, a bucket what the file has.
        if listed.size != chunk.cost() && listed.size != size {
            return Err(Not::Refused(ODD_SIZE));
        }
        self.check_size(at, &chunk)?;
        let before = self.before(at, &chunk)?;
        let heads: HashMap<Name, &Chunk> = before.iter().map(|head| (head.name, head)).collect();
        let all = before.iter().rev().chain([&chunk]);
        let is_named = |chunk: &Chunk| self.is_named(chunk, &heads);
        if !all.clone().all(is_named) {
            return Err(Not::Refused(ODD_NAME));
        }
        for head in before.iter().rev() {
            let got = self.get(&of, &head.name, head.cost());
            let (chunk, rows, size) = got.map_err(Not::of_another)?;
            if chunk != *head {
                return Err(Not::Refused(NO_CHAIN));
            }
            self.write(&chunk, rows)?;
            moved.fetched += 1;
            moved.fetched_bytes += size;
        }
        self.write(&chunk, rows)?;
        moved.fetched += 1;
        moved.fetched_bytes += size;
        Ok(())
    }

    /// A chunk, its rows, and how many bytes came.
    fn get(
        &mut self,
        of: &Fingerprint,
        name: &Name,
        most: u64,
    ) -> Result<(Chunk, Vec<u8>, u64), Not> {
        let whole = match self.remote.0.get(of, name, most)? {
            Body::Whole(whole) => whole,
            Body::Nothing => return Err(Not::Gone),
            Body::TooLarge => return Err(Not::Refused(TOO_LARGE)),
        };
        let size = whole.len() as u64;
        let (chunk, rows) = read_whole(whole).map_err(|_| Not::Damaged)?;
        if chunk.name == *name && chunk.fingerprint == *of {
            Ok((chunk, rows, size))
        } else {
            Err(Not::Damaged)
        }
    }

    /// Where rows have a known size for each token, a chunk has that.
    fn check_size(&self, at: usize, chunk: &Chunk) -> Result<(), Not> {
        let per_token = self.models.all[at].per_token.filter(|_| !chunk.is_tail());
        let needed = per_token.map(|bytes| bytes.saturating_mul(chunk.tokens.len() as u64));
        if needed.is_none_or(|needed| chunk.bytes == needed || chunk.bytes == 0) {
            Ok(())
        } else {
            Err(Not::Refused(ODD_SIZE))
        }
    }

    /// The headers of what a chunk continues and the folder lacks, the last one first. All of it fits.
    fn before(&mut self, at: usize, chunk: &Chunk) -> Result<Vec<Chunk>, Not> {
        let of = self.models.all[at].of;
        let mut all: Vec<Chunk> = Vec::new();
        let (mut start, mut parent) = (chunk.start, chunk.parent);
        let mut bytes = chunk.cost();
        while let Some((name, take)) = parent {
            let head = if self.here.contains_key(&name) {
                // What it continues is here, too.
                self.header(&name).ok_or(Not::Incomplete)?
            } else {
                if self.is_refused(&name) || all.len() >= MOST_BEFORE {
                    return Err(Not::Refused(NO_CHAIN));
                }
                let head = match self.remote.0.head(&of, &name, LONGEST_HEADER)? {
                    Body::Whole(bytes) => {
                        read_header(&bytes).map_err(|_| Not::Refused(NO_CHAIN))?
                    }
                    Body::Nothing => return Err(Not::Incomplete),
                    Body::TooLarge => return Err(Not::Refused(TOO_LARGE)),
                };
                self.check_size(at, &head)?;
                head
            };
            let is_before = head.name == name
                && head.fingerprint == of
                && !head.is_tail()
                && take as usize <= head.tokens.len()
                && head.start.checked_add(take) == Some(start)
                && head.start < start;
            if !is_before {
                return Err(Not::Refused(NO_CHAIN));
            }
            if self.here.contains_key(&name) {
                return Ok(all);
            }
            bytes = bytes.saturating_add(head.cost());
            if bytes > self.room() {
                return Err(Not::Refused(NO_ROOM));
            }
            (start, parent) = (head.start, head.parent);
            all.push(head);
        }
        match start {
            0 => Ok(all),
            _ => Err(Not::Refused(NO_CHAIN)),
        }
    }

    /// What is in the folder, or about to be.
    fn header(&self, name: &Name) -> Option<Chunk> {
        let written = self.written.get(name).cloned();
        written.or_else(|| self.folder.header(name).map(|header| header.chunk))
    }

    /// Whether a chunk has the name that follows from its tokens and those before, as far as the multiple of [`GRID`] before
    /// the last one. What is before that was looked at when it came.
    fn is_named(&self, chunk: &Chunk, heads: &HashMap<Name, &Chunk>) -> bool {
        let find = |name: &Name| {
            let head = heads.get(name).map(|head| (*head).clone());
            head.or_else(|| self.header(name))
        };
        let grid = chunk.start as usize / GRID * GRID;
        let first = Place::first(chunk.fingerprint);
        let Some((cell, before, last)) =
            tokens_since(chunk.start as usize, grid, chunk.parent, find)
        else {
            return false;
        };
        if last.is_some_and(|link| link != chunk.link) {
            return false;
        }
        let link = match grid {
            0 => first.link,
            _ => {
                let earlier = grid - GRID;
                let Some((cell, _, Some(link))) = tokens_since(grid, earlier, before, find) else {
                    return false;
                };
                let place = Place {
                    link,
                    skip: 0,
                    ..first
                };
                place.behind(&cell, GRID).link
            }
        };
        let skip = cell.len();
        let tokens = [&cell[..], &chunk.tokens].concat();
        let place = Place {
            link: chunk.link,
            skip,
            ..first
        };
        let named = place.chunks(&tokens).next();
        link == chunk.link && named == Some((tokens.len(), chunk.name))
    }
}

/// The tokens from one position to another, what stands before the first, and the link that the chunks there name.
#[allow(clippy::type_complexity)]
fn tokens_since(
    end: usize,
    begin: usize,
    mut parent: Option<(Name, u32)>,
    find: impl Fn(&Name) -> Option<Chunk>,
) -> Option<(Vec<i32>, Option<(Name, u32)>, Option<Name>)> {
    let (mut at, mut parts, mut link) = (end, Vec::new(), None);
    while at > begin {
        let (name, take) = parent?;
        let chunk = find(&name)?;
        let start = chunk.start as usize;
        let is_here = start >= begin && start + take as usize == at;
        let part = chunk.tokens.get(..take as usize).filter(|_| is_here)?;
        if link
            .replace(chunk.link)
            .is_some_and(|link| link != chunk.link)
        {
            return None;
        }
        parts.push(part.to_vec());
        (at, parent) = (start, chunk.parent);
    }
    let cell = parts.into_iter().rev().flatten().collect();
    Some((cell, parent, link))
}
