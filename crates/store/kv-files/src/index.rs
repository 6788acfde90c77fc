//! Which chunk stands where, of all chunks in one file: a process that starts looks a prompt up, and need not read 200,000 files
//! before.
//!
//! ```text
//!   0  "CPkvind1"
//!   8  number of children: u64
//!  16  for each, in order: name of the parent, or the fingerprint; tokens of the parent that stand before: u32;
//!      first token: i32; name                                                       (40 bytes)
//!      CRC of all of that: u32
//! ```
//! It may be old: what it names may be gone, and what is new is not in it. So nothing is believed but that there may be a file.
//! All of the folder is read behind it.

use std::io::{self, Read, Write};

use contextpilot_kv_store::{Chunk, Fingerprint, MOST_ALIKE, MOST_WAYS, Name, Store, TAIL};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::folder::{Folder, NEW, open_to_read, put};

/// Where it is.
const FILE: &str = "index";
const MAGIC: &[u8; 8] = b"CPkvind1";
const HEAD: usize = 16;
const ENTRY: usize = 40;
const SUM: usize = 4;
/// More are not written, and not read: 40 MB. A tree has fewer.
const MOST: usize = 1 << 20;

/// The headers of fewer chunks are read in some ten milliseconds.
const LEAST: usize = 4096;

/// What a chunk stands behind.
#[derive(Clone, Copy)]
enum Site {
    /// Nothing. It is a prompt's beginning.
    Start(Fingerprint),
    /// So many tokens of this chunk.
    Behind(Name, u32),
}

/// A chunk, by where it stands and its first token. In the order of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Child {
    site: [u8; 16],
    behind: u32,
    token: i32,
    name: Name,
}

impl Child {
    /// The chunk as a child.
    pub fn from_chunk(chunk: &Chunk) -> Self {
        let site = match chunk.parent {
            None => Site::Start(chunk.fingerprint),
            Some((name, behind)) => Site::Behind(name, behind),
        };
        let first = chunk.tokens.first();
        Self::at(site, first.copied().unwrap_or(TAIL), chunk.name)
    }

    fn at(site: Site, token: i32, name: Name) -> Self {
        let (site, behind) = match site {
            Site::Start(fingerprint) => (fingerprint.0, 0),
            Site::Behind(name, behind) => (name.0, behind),
        };
        Self {
            site,
            behind,
            token,
            name,
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        into.extend(self.site);
        into.extend(self.behind.to_le_bytes());
        into.extend(self.token.to_le_bytes());
        into.extend(self.name.0);
    }

    fn read(entry: &[u8]) -> Self {
        let word = |at: usize| -> [u8; 4] { std::array::from_fn(|i| entry[at + i]) };
        let name = |at: usize| -> [u8; 16] { std::array::from_fn(|i| entry[at + i]) };
        Self {
            site: name(0),
            behind: u32::from_le_bytes(word(16)),
            token: i32::from_le_bytes(word(20)),
            name: Name(name(24)),
        }
    }
}

/// What was in the folder when the index was written.
#[derive(Debug)]
pub struct Index {
    /// Entries as they are in the file.
    entries: Vec<u8>,
}

impl Index {
    /// How many chunks.
    pub fn len(&self) -> usize {
        self.entries.len() / ENTRY
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The chunks as they stand in it.
    pub fn children(&self) -> impl Iterator<Item = Child> {
        (0..self.len()).map(|nth| self.get(nth))
    }

    fn get(&self, nth: usize) -> Child {
        Child::read(&self.entries[nth * ENTRY..][..ENTRY])
    }

    /// The first that is not less.
    fn first(&self, least: &Child) -> usize {
        let (mut from, mut to) = (0, self.len());
        while from < to {
            let middle = from + (to - from) / 2;
            if self.get(middle) < *least {
                from = middle + 1
            } else {
                to = middle
            }
        }
        from
    }

    /// Loads into a tree what the folder has of these tokens, with the tails on the way, unless it is there. Chunks that were
    /// used in the future were used `now`.
    pub fn look_up(
        &self,
        folder: &Folder,
        tree: &mut Store,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        now: u64,
    ) {
        let load = |tree: &mut Store, name: &Name| {
            if tree.knows(name) {
                return;
            }
            if let Some(header) = folder.header(name) {
                tree.load(header.chunk, header.last_used.min(now));
            }
        };
        // Ways through the tree that are still to be followed, and how many tokens each has.
        let mut open = vec![(Site::Start(*fingerprint), 0)];
        let mut ways = 0;
        while let Some((site, at)) = open.pop() {
            let Some(token) = tokens.get(at) else {
                break;
            };
            let others = open.len();
            for name in self.alike(site, *token) {
                load(tree, &name);
                let Some((chunk, _)) = tree.chunk(&name) else {
                    continue;
                };
                let same = chunk.tokens.iter().zip(&tokens[at..]);
                let take = same.take_while(|(stored, wanted)| stored == wanted).count();
                if take > 0 {
                    open.push((Site::Behind(name, take as u32), at + take));
                }
            }
            ways += usize::from(open.len() == others);
            if ways == MOST_WAYS {
                break;
            }
            // The one with most tokens is followed next.
            open[others..].sort_by_key(|(_, at)| *at);
        }
        for piece in tree.find(fingerprint, tokens).pieces() {
            for name in self.tails(piece.name, piece.take as u32) {
                load(tree, &name);
            }
        }
    }

    /// The chunks that begin with this token there: as many as a tree keeps.
    fn alike(&self, site: Site, token: i32) -> impl Iterator<Item = Name> {
        let least = Child::at(site, token, Name([0; 16]));
        let all = (self.first(&least)..self.len()).map(|nth| self.get(nth));
        let here = all.take_while(move |child| {
            let name = least.name;
            Child { name, ..*child } == least
        });
        here.take(MOST_ALIKE).map(|child| child.name)
    }

    /// The tails behind at most so many tokens of this chunk, but for the first ones.
    fn tails(&self, name: Name, behind: u32) -> impl Iterator<Item = Name> {
        let least = Child::at(Site::Behind(name, 0), TAIL, Name([0; 16]));
        let all = (self.first(&least)..self.len()).map(|nth| self.get(nth));
        let here = all.take_while(move |child| child.site == name.0 && child.behind <= behind);
        let tails = here.filter(|child| child.token == TAIL);
        tails.map(|child| child.name)
    }
}

impl Folder {
    /// What was written down last. `None`: nothing, or it is damaged.
    pub fn index(&self) -> Option<Index> {
        let file = open_to_read(&*self.private(), FILE).ok()?;
        let size = usize::try_from(file.metadata().ok()?.len()).ok()?;
        let count = size.checked_sub(HEAD + SUM)? / ENTRY;
        if count > MOST || size != HEAD + count * ENTRY + SUM {
            return None;
        }
        let mut bytes = Vec::with_capacity(size);
        file.take(size as u64).read_to_end(&mut bytes).ok()?;
        let (all, sum) = bytes.split_at_checked(bytes.len().checked_sub(SUM)?)?;
        let is_good = bytes.len() == size
            && all.starts_with(MAGIC)
            && all[MAGIC.len()..HEAD] == (count as u64).to_le_bytes()
            && sum == crc32fast::hash(all).to_le_bytes();
        bytes.truncate(size - SUM);
        bytes.drain(..HEAD);
        is_good.then_some(Index { entries: bytes })
    }

    /// Writes down what is in the folder, if there is much. (Else that is soon read, and nothing is written down.)
    ///
    /// # Errors
    /// It cannot be written, or not removed.
    pub fn keep_index(&self, children: Vec<Child>) -> io::Result<()> {
        if children.len() >= LEAST {
            return self.write_index(children);
        }
        match rustix::fs::unlinkat(&*self.private(), FILE, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`keep_index`](Self::keep_index), however much that is.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_index(&self, mut children: Vec<Child>) -> io::Result<()> {
        children.sort_unstable();
        children.dedup();
        children.truncate(MOST);
        let mut bytes = Vec::with_capacity(HEAD + children.len() * ENTRY + SUM);
        bytes.extend(MAGIC);
        bytes.extend((children.len() as u64).to_le_bytes());
        for child in &children {
            child.write(&mut bytes);
        }
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        let new = self.inner(NEW)?;
        put(self, &mut 0, &new, |file| file.write_all(&bytes), FILE)
    }
}
