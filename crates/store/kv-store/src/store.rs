//! The tree, with a budget.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::chunk::Size;
use crate::kept::{KEPT_SHARE, Kept, Weight};
use crate::name::{Naming, quick};
use crate::slab::Key;
use crate::tree::{Misplaced, Tree};
use crate::waiting::Waiting;
use crate::{Chunk, Fingerprint, Found, GRID, Name, Piece, Place, TAIL, Tail, media};

/// What a store's tree may take in memory, bytes.
pub const MEMORY: usize = 256 << 20;

/// What encoders have made leaves only for more of that, as long as all of it takes no more than one part of the budget in so many: it
/// is small, and takes longer to make than anything else.
const ENCODINGS_SHARE: u64 = 8;

/// The latest use of a loaded chunk. Whatever is used afterwards is later.
const LATEST: u64 = u64::MAX >> 1;

/// What is there: which tokens in which chunks, and which of them were used when.
///
/// Time is counted in uses, and may be [told](Store::now). Of two chunks that nothing continues, the one that was used earlier
/// leaves first.
#[derive(Debug)]
pub struct Store {
    tree: Tree,
    naming: Naming,
    limit: u64,
    memory: usize,
    size: Size,
    tokens: usize,
    /// What may leave: chunks that nothing continues, by their last use.
    leaves: Leaves,
    /// The same of what encoders have made, and bytes of all of that.
    encodings: Leaves,
    encoding_bytes: u64,
    models: BTreeMap<Fingerprint, Model>,
    kept: Kept,
    /// The number of the last use.
    clock: u64,
    /// The time that was told last, and by how much the clock was set back in all.
    last_time: u64,
    set_back: u64,
    /// Loaded chunks whose parents are not there.
    waiting: Waiting,
    /// Loaded chunks that can stand nowhere.
    stray: Vec<Name>,
    /// Chunks that had to leave because others stand in their place.
    displaced: Vec<Name>,
    /// What has changed, if a caller wants to know.
    changes: Option<Changes>,
}

/// Chunks that nothing continues, by their last use.
type Leaves = BTreeSet<(u64, Key)>;

/// What has changed since the caller last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Chunks that came and left, in order. A chunk may do so several times.
    pub chunks: Vec<Change>,
    /// So much has changed that it was not noted.
    pub too_many: bool,
}

/// A chunk came, or it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there.
    Came(Name),
    /// It is not there any more.
    Left(Name),
}

impl Changes {
    /// The most that are noted: a megabyte.
    pub const MOST: usize = 1 << 16;

    fn note(&mut self, change: Change) {
        if self.chunks.len() < Self::MOST {
            self.chunks.push(change);
        } else {
            self.too_many = true;
        }
    }
}

/// What is there with one fingerprint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Chunks.
    pub chunks: usize,
    /// Tokens in them.
    pub tokens: u64,
    /// Bytes of their files.
    pub bytes: u64,
}

/// Why a chunk was not inserted. Nothing has left for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// It does not fit the budget together with what it continues.
    Full,
    /// It is there.
    Known,
    /// What it continues is not there.
    NoParent,
    /// [`Store::missing`] did not make it, or so long ago that another one is in its place.
    Malformed,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "the budget is too small for the chunk and what it continues",
            Self::Known => "the chunk is there",
            Self::NoParent => "what the chunk continues is not there",
            Self::Malformed => "the chunk does not fit what it continues",
        })
    }
}

impl std::error::Error for Refused {}

impl Store {
    /// `limit`: bytes of all files.
    pub fn new(limit: u64) -> Self {
        Self::with_memory(limit, MEMORY)
    }

    /// Of a store that has no files, as in a simulation. Its chunks have names that take a fraction of the time, and mean
    /// nothing elsewhere.
    pub fn without_files(limit: u64) -> Self {
        Self {
            naming: quick,
            ..Self::new(limit)
        }
    }

    /// With another bound than [`MEMORY`].
    pub fn with_memory(limit: u64, memory: usize) -> Self {
        Self {
            tree: Tree::new(),
            naming: Name::next,
            limit,
            memory,
            size: Size::default(),
            tokens: 0,
            leaves: Leaves::new(),
            encodings: Leaves::new(),
            encoding_bytes: 0,
            models: BTreeMap::new(),
            kept: Kept::default(),
            clock: 0,
            last_time: 0,
            set_back: 0,
            waiting: Waiting::default(),
            stray: Vec::new(),
            displaced: Vec::new(),
            changes: None,
        }
    }

    /// What has changed since the last call. From the first one on, changes are noted.
    pub fn changes(&mut self) -> Changes {
        self.changes.replace(Changes::default()).unwrap_or_default()
    }

    /// A chunk, and when it was used last.
    pub fn chunk(&self, name: &Name) -> Option<(&Chunk, u64)> {
        let node = self.tree.get(self.tree.key(name)?)?;
        Some((&node.chunk, node.used))
    }

    /// The longest beginning of `tokens` that is there. Compares tokens, hashes none.
    pub fn find(&self, fingerprint: &Fingerprint, tokens: &[i32]) -> Found {
        self.tree.find(fingerprint, tokens)
    }

    /// What continues `found`, and was used last of what does: at most `most` tokens, and the
    /// pieces of all tokens since position 0.
    pub fn continuation(&self, found: &Found, most: usize) -> (Vec<i32>, Found) {
        self.tree.continuation(found, most)
    }

    /// The tails that stand behind some of what was found, in the order of their positions.
    pub fn tails(&self, found: &Found) -> Vec<Tail> {
        self.tree.tails(found)
    }

    /// Whether a tail stands at the end of what was found, or behind it. Seldom false though there is one: only some
    /// chunks are looked at.
    pub fn leads_to_tail(&self, found: &Found) -> bool {
        self.tree.leads_to_tail(found)
    }

    /// The chunk that must be inserted for a tail of this size to be there behind all of `tokens`. `None`: it is
    /// there, or some of the tokens are not.
    pub fn missing_tail(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        bytes: u64,
    ) -> Option<Chunk> {
        let with_tail: Vec<i32> = tokens.iter().copied().chain([TAIL]).collect();
        let mut missing = self.missing(fingerprint, &with_tail, 0);
        let chunk = missing.pop().filter(|_| missing.is_empty())?;
        chunk.is_tail().then_some(Chunk { bytes, ..chunk })
    }

    /// The chunks that must be inserted for all of `tokens` to be there, in order. (But for an image or a sound at their end
    /// that is not whole.)
    pub fn missing(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        bytes_per_token: usize,
    ) -> Vec<Chunk> {
        self.missing_divided(fingerprint, tokens, bytes_per_token, &[])
    }

    /// The same, where a chunk ends behind each of these numbers of tokens, which grow.
    pub fn missing_divided(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        bytes_per_token: usize,
        ends: &[usize],
    ) -> Vec<Chunk> {
        self.missing_one_by_one(fingerprint, tokens, bytes_per_token, ends)
            .collect()
    }

    /// The same, each made when it is asked for: its name takes time.
    fn missing_one_by_one(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        bytes_per_token: usize,
        ends: &[usize],
    ) -> impl Iterator<Item = Chunk> {
        let tokens = &tokens[..media::whole(tokens)];
        let found = self.find(fingerprint, tokens);
        let mut at = found.tokens();
        let last = found.pieces.last();
        let mut parent = last.map(|last| (last.name, last.take as u32));
        let mut place = self.place_behind(&found, fingerprint, tokens);
        std::iter::from_fn(move || {
            let grid = at - place.skip;
            let next = ends.iter().copied().find(|end| *end > at);
            let cell = &tokens[grid..next.map_or(tokens.len(), |end| end.min(tokens.len()))];
            let (end, name) = place.chunks_by(self.naming, cell).next()?;
            let chunk = Chunk {
                name,
                parent,
                fingerprint: *fingerprint,
                link: place.link,
                start: at as u32,
                tokens: tokens[at..grid + end].into(),
                bytes: ((grid + end - at) as u64).saturating_mul(bytes_per_token as u64),
            };
            parent = Some((chunk.name, chunk.tokens.len() as u32));
            place = if place.skip == 0 && end == GRID {
                // The name of a whole chunk is the next link.
                Place {
                    link: name,
                    ..place
                }
            } else {
                place.behind_by(self.naming, cell, end)
            };
            at = grid + end;
            Some(chunk)
        })
    }

    /// How many of these tokens are there, the place behind them, and what is the parent of a chunk that is put there.
    pub fn place(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
    ) -> (usize, Place, Option<(Name, u32)>) {
        let found = self.find(fingerprint, tokens);
        let place = self.place_behind(&found, fingerprint, tokens);
        let last = found.pieces.last();
        let parent = last.map(|last| (last.name, last.take as u32));
        (found.tokens(), place, parent)
    }

    /// The place behind what was found of these tokens.
    fn place_behind(&self, found: &Found, fingerprint: &Fingerprint, tokens: &[i32]) -> Place {
        let chunk = |last: &Piece| Some(&self.tree.get(self.tree.key(&last.name)?)?.chunk);
        let Some(chunk) = found.pieces.last().and_then(chunk) else {
            return Place::first(*fingerprint);
        };
        let grid = chunk.start as usize / GRID * GRID;
        let before = Place {
            fingerprint: *fingerprint,
            link: chunk.link,
            skip: chunk.start as usize - grid,
        };
        before.behind_by(self.naming, &tokens[grid..], found.tokens() - grid)
    }

    /// Whether the first chunk that must be inserted for all of `tokens` to be there fits the budget together with what
    /// it continues. True if there is none.
    pub fn has_room(
        &self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        bytes_per_token: usize,
    ) -> bool {
        let mut missing = self.missing_one_by_one(fingerprint, tokens, bytes_per_token, &[]);
        missing.next().is_none_or(|chunk| self.has_room_for(&chunk))
    }

    /// Whether this chunk, which is [missing](Self::missing), fits the budget together with what it continues.
    pub fn has_room_for(&self, chunk: &Chunk) -> bool {
        let parent = chunk.parent.and_then(|(name, _)| self.tree.key(&name));
        self.fits(chunk, parent)
    }

    /// The chunk is there from now on. Its file is yet to be written.
    ///
    /// Returns what has to leave for it: those used least recently, and no chunk before those that
    /// continue it. Nothing leaves that the new chunk continues; [`used`](Self::used) says when that
    /// was used.
    ///
    /// # Errors
    /// It cannot be there.
    pub fn insert(&mut self, chunk: Chunk) -> Result<Vec<Name>, Refused> {
        let parent = self.tree.place(&chunk).map_err(|why| match why {
            Misplaced::Known => Refused::Known,
            Misplaced::NoParent => Refused::NoParent,
            Misplaced::Malformed | Misplaced::Taken(_) => Refused::Malformed,
        })?;
        if !self.fits(&chunk, parent) {
            return Err(Refused::Full);
        }
        self.clock += 1;
        let name = chunk.name;
        let new = self.attach(chunk, parent, self.clock);
        while let Some((chunk, last_used)) = self.next_waiting(&name) {
            self.load(chunk, last_used);
        }
        Ok(self.shrink(Some(new)))
    }

    /// What is used from now on is used later than that, in the unit of [`load`](Self::load). Processes that
    /// share files say the time, so that they agree on what was used least recently.
    ///
    /// If the time is earlier than the last one, the clock was set back, and what [others write](Self::share) from now on
    /// says so. The order of uses stays, but for what they wrote between the two.
    pub fn now(&mut self, time: u64) {
        let time = time.min(LATEST);
        let back = self.last_time.saturating_sub(time);
        self.set_back = self.set_back.saturating_add(back);
        self.last_time = time;
        self.clock = self.clock.max(time.saturating_add(self.set_back));
    }

    /// A prompt uses these pieces, from position 0 on.
    pub fn used(&mut self, pieces: &[Piece]) {
        self.clock += 1;
        for piece in pieces {
            let Some(key) = self.tree.key(&piece.name) else {
                continue;
            };
            let was = self.tree.get(key).map_or(0, |node| node.used);
            self.tree.touch(key, piece.take, self.clock);
            let clock = self.clock;
            let leaves = self.leaves_with(key);
            if leaves.remove(&(was, key)) {
                leaves.insert((clock, key));
            }
        }
    }

    /// These tokens stay as long as anything else may leave, until this time, which is in the unit of [`now`](Self::now). Returns
    /// the name of the chunk that they end in, or in which what is there of them does, and those of beginnings that were kept,
    /// and need not be any more. `None`: nothing is there of them, or what is kept would take more than its
    /// [share](KEPT_SHARE) of the budget.
    pub fn keep(
        &mut self,
        fingerprint: &Fingerprint,
        tokens: &[i32],
        until: u64,
    ) -> Option<(Name, Vec<Name>)> {
        let end = self.end_of(fingerprint, tokens)?;
        if !self.keep_to(&end, until) {
            return None;
        }
        let of_beginnings = self.kept_on_the_way_to(&end);
        let is_over =
            |name: &Name| *name != end && self.kept.until(name).is_some_and(|other| other <= until);
        let over: Vec<Name> = of_beginnings.into_iter().filter(is_over).collect();
        for name in &over {
            self.release_to(name);
        }
        Some((end, over))
    }

    /// The same of a prompt that ends in this chunk. False if that is not there, or too much.
    pub fn keep_to(&mut self, end: &Name, until: u64) -> bool {
        let Some(key) = self.tree.key(end) else {
            return false;
        };
        let path = self.path_of(key);
        self.kept.add(*end, until, &path, self.limit / KEPT_SHARE)
    }

    /// These tokens and all of their beginnings leave in their turn again. The chunks in which those end that were kept.
    pub fn release(&mut self, fingerprint: &Fingerprint, tokens: &[i32]) -> Vec<Name> {
        let end = self.end_of(fingerprint, tokens);
        let kept = end
            .map(|end| self.kept_on_the_way_to(&end))
            .unwrap_or_default();
        for name in &kept {
            self.release_to(name);
        }
        kept
    }

    /// The chunks in which kept prompts end, among this one and those that it continues.
    fn kept_on_the_way_to(&self, end: &Name) -> Vec<Name> {
        let path = self.tree.key(end).map(|key| self.path_of(key));
        let nodes = path.into_iter().flatten();
        let names = nodes.filter_map(|(key, _)| Some(self.tree.get(key)?.chunk.name));
        names
            .filter(|name| self.kept.until(name).is_some())
            .collect()
    }

    /// The prompt that ends in this chunk leaves in its turn again. False if it was not kept.
    pub fn release_to(&mut self, end: &Name) -> bool {
        if self.kept.until(end).is_none() {
            return false;
        }
        let path = self.tree.key(end).map(|key| self.path_of(key));
        self.kept.remove(end, &path.unwrap_or_default());
        true
    }

    /// What was kept until now leaves in its turn again. The chunks that these prompts end in.
    pub fn expire(&mut self, now: u64) -> Vec<Name> {
        let over = self.kept.over(now);
        for end in &over {
            self.release_to(end);
        }
        over
    }

    /// The chunks that kept prompts end in, and until when.
    pub fn kept(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.kept.ends()
    }

    /// How many tokens at the beginning of what was found are kept, and until when. `None`: none are.
    pub fn kept_of(&self, found: &Found) -> Option<(usize, u64)> {
        found.pieces.iter().rev().find_map(|piece| {
            let until = self.kept.chunk_until(self.tree.key(&piece.name)?)?;
            Some((piece.start + piece.take, until))
        })
    }

    /// Whether a chunk is kept.
    pub fn is_kept(&self, name: &Name) -> bool {
        self.tree.key(name).is_some_and(|key| self.kept.has(key))
    }

    /// Bytes of all that is kept.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.weight().bytes
    }

    /// Tokens of all that is kept. Those that several kept prompts begin with count once.
    pub fn kept_tokens(&self) -> usize {
        self.kept.weight().tokens
    }

    /// The chunk in which these tokens end, or what is there of them. Where there are tails, the last one: what is behind it is of
    /// no use.
    fn end_of(&self, fingerprint: &Fingerprint, tokens: &[i32]) -> Option<Name> {
        let found = self.find(fingerprint, tokens);
        let tail = self.tails(&found).last().map(|tail| tail.piece.name);
        tail.or_else(|| found.pieces.last().map(|last| last.name))
    }

    /// A chunk and all that it continues, and what they take.
    fn path_of(&self, key: Key) -> Vec<(Key, Weight)> {
        let keys = std::iter::successors(Some(key), |key| self.tree.parent(*key));
        let weight = |key| {
            let node = self.tree.get(key);
            node.map_or(Weight::default(), |node| Weight {
                bytes: node.chunk.cost(),
                tokens: node.chunk.tokens.len(),
            })
        };
        keys.map(|key| (key, weight(key))).collect()
    }

    /// A file is gone or damaged. The chunk leaves, and everything that continues it.
    /// Their names, without those of `name`'s parents; a chunk after those that continue it.
    pub fn remove(&mut self, name: &Name) -> Vec<Name> {
        let key = self.tree.key(name);
        let family = key.map(|key| self.tree.family(key));
        family
            .unwrap_or_default()
            .iter()
            .rev()
            .filter_map(|key| self.detach(*key))
            .collect()
    }

    /// A chunk that another process has written. Chunks may come in any order. `last_used`: in any
    /// unit that grows.
    ///
    /// Several may stand in one place: processes wrote for prompts that part within a chunk. If there are more than a few, those with
    /// the least names stay, so that all processes keep the same. Another one leaves with all that continues it.
    ///
    /// Afterwards, ask [`orphans`](Self::orphans).
    pub fn load(&mut self, chunk: Chunk, last_used: u64) {
        let mut ready = vec![(chunk, last_used.min(LATEST))];
        while let Some((chunk, last_used)) = ready.pop() {
            match self.tree.place(&chunk) {
                Ok(parent) => {
                    let name = chunk.name;
                    self.clock = self.clock.max(last_used);
                    self.attach(chunk, parent, last_used);
                    ready.extend(std::iter::from_fn(|| self.next_waiting(&name)));
                }
                Err(Misplaced::NoParent) => {
                    let size = Size::from_chunk(&chunk);
                    if self.waiting.add(chunk, last_used) {
                        self.size = self.size.and(size);
                    }
                }
                Err(Misplaced::Known) => {}
                Err(Misplaced::Taken(there)) if chunk.name < there => {
                    let left = self.remove(&there);
                    self.displaced.extend(left);
                    ready.push((chunk, last_used));
                }
                Err(Misplaced::Taken(_)) => self.displace(chunk.name),
                Err(Misplaced::Malformed) => self.stray.push(chunk.name),
            }
        }
    }

    /// A loaded chunk has no place, nor has what waits for it.
    fn displace(&mut self, name: Name) {
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            while let Some((child, _)) = self.next_waiting(&name) {
                open.push(child.name);
            }
            self.displaced.push(name);
        }
    }

    /// One of the chunks that wait for this one. It waits no more.
    fn next_waiting(&mut self, parent: &Name) -> Option<(Chunk, u64)> {
        let child = self.waiting.child(parent)?;
        self.take_waiting(&child)
    }

    fn take_waiting(&mut self, name: &Name) -> Option<(Chunk, u64)> {
        let (chunk, last_used) = self.waiting.take(name)?;
        self.size = self.size.without(Size::from_chunk(&chunk));
        Some((chunk, last_used))
    }

    /// Everything was loaded: the names of those chunks that cannot be used, because what they
    /// continue is not there or does not fit. What has to leave for the budget is said by [`set_limit`](Self::set_limit).
    ///
    /// `since`: chunks that were used later wait on, for another process may be about to write what they
    /// continue. They count in the budget.
    pub fn orphans(&mut self, since: u64) -> Vec<Name> {
        let mut names = std::mem::take(&mut self.stray);
        while let Some((_, name)) = self.waiting.oldest().filter(|(used, _)| *used <= since) {
            self.take_waiting(&name);
            names.push(name);
        }
        names.append(&mut self.displaced);
        names.retain(|name| !self.has(name));
        names
    }

    /// Chunks that another process has written and removed. Returns what has to leave: for the budget, or because
    /// others [stand in its place](Self::load). Chunks that cannot be used here stay where they are: they may be of
    /// use there.
    pub fn share(
        &mut self,
        written: impl IntoIterator<Item = (Chunk, u64)>,
        removed: &[Name],
    ) -> Vec<Name> {
        for (chunk, last_used) in written {
            self.load(chunk, last_used.saturating_add(self.set_back));
        }
        self.stray.clear();
        let mut names = std::mem::take(&mut self.displaced);
        names.retain(|name| !self.has(name));
        for name in removed {
            // What continues it is of no use any more.
            names.extend(self.remove(name).into_iter().filter(|gone| gone != name));
            self.take_waiting(name);
        }
        names.extend(self.shrink(None));
        names
    }

    /// Another budget, once everything was loaded. What has to leave for it. `kept`: where prompts end that are kept, and until when. These leave last, if they
    /// are within their share of the new budget and not over at `now`.
    pub fn set_limit(
        &mut self,
        limit: u64,
        kept: impl IntoIterator<Item = (Name, u64)>,
        now: u64,
    ) -> Vec<Name> {
        self.limit = limit;
        for (end, until) in kept {
            if until > now {
                self.keep_to(&end, until);
            }
        }
        self.shrink(None)
    }

    /// Whether a chunk is there.
    pub fn has(&self, name: &Name) -> bool {
        self.tree.key(name).is_some()
    }

    /// Whether the file of a chunk is counted: it is there, or waits for what it continues.
    pub fn knows(&self, name: &Name) -> bool {
        self.has(name) || self.waiting.has(name)
    }

    /// The chunks whose files are counted and whose names begin with this byte.
    pub fn known(&self, first: u8) -> impl Iterator<Item = &Name> {
        self.tree.names(first).chain(self.waiting.names(first))
    }

    /// The names behind this one, in order; `None`: all. For callers that look at some at a time.
    pub fn names_after(&self, name: Option<Name>) -> impl Iterator<Item = &Name> {
        self.tree.names_after(name)
    }

    /// Bytes of all files, with those of chunks that wait for what they continue.
    pub fn bytes(&self) -> u64 {
        self.size.bytes
    }

    /// How many chunks.
    pub fn chunks(&self) -> usize {
        self.tree.len()
    }

    /// Tokens in all chunks.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The most bytes that all files may have.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What is there, by fingerprint.
    pub fn models(&self) -> impl Iterator<Item = (Fingerprint, Model)> + '_ {
        self.models
            .iter()
            .map(|(fingerprint, model)| (*fingerprint, *model))
    }

    /// Whether the budget has room for a chunk and what it continues.
    fn fits(&self, chunk: &Chunk, parent: Option<Key>) -> bool {
        let path = self.tree.path(parent).and(Size::from_chunk(chunk));
        path.bytes <= self.limit && path.memory <= self.memory
    }

    /// Bytes of all that encoders have made.
    pub fn encoding_bytes(&self) -> u64 {
        self.encoding_bytes
    }

    /// The leaves among which a chunk is, if it is one.
    fn leaves_with(&mut self, key: Key) -> &mut Leaves {
        if self.tree.get(key).is_some_and(|node| node.is_encoding) {
            &mut self.encodings
        } else {
            &mut self.leaves
        }
    }

    /// The chunk that is to leave first. `new` does not.
    fn next_to_leave(&self, new: Option<Key>) -> Option<(u64, Key)> {
        let others = |leaves: &Leaves| {
            let found = leaves.iter().find(|(_, key)| Some(*key) != new);
            found.copied()
        };
        let is_plain = |(_, key): &&(u64, Key)| Some(*key) != new && !self.kept.has(*key);
        let plain = self.leaves.iter().find(is_plain).copied();
        let encoding = others(&self.encodings);
        let is_too_much = self.encoding_bytes > self.limit / ENCODINGS_SHARE;
        match (plain, encoding) {
            (Some(plain), Some(encoding)) if is_too_much => Some(plain.min(encoding)),
            // If all others have left, so does what is kept.
            (plain, encoding) => plain.or(encoding).or_else(|| others(&self.leaves)),
        }
    }

    /// Lets chunks leave until the rest fits. `new` is not one of them.
    fn shrink(&mut self, new: Option<Key>) -> Vec<Name> {
        let mut names = Vec::new();
        while self.size.bytes > self.limit || self.size.memory > self.memory {
            let leaf = self.next_to_leave(new);
            let waiting = self.waiting.oldest();
            match (leaf, waiting) {
                (Some((used, key)), waiting) if waiting.is_none_or(|(other, _)| used < other) => {
                    names.extend(self.detach(key));
                }
                (_, Some((_, name))) => {
                    self.take_waiting(&name);
                    names.push(name);
                }
                (_, None) => break,
            }
        }
        names
    }

    fn attach(&mut self, chunk: Chunk, parent: Option<Key>, used: u64) -> Key {
        // It may wait for another parent, which has the same tokens.
        self.take_waiting(&chunk.name);
        if let Some((key, node)) = parent.and_then(|key| Some((key, self.tree.get(key)?))) {
            let used = node.used;
            self.leaves_with(key).remove(&(used, key));
        }
        self.size = self.size.and(Size::from_chunk(&chunk));
        self.tokens += chunk.tokens.len();
        let model = self.models.entry(chunk.fingerprint).or_default();
        model.chunks += 1;
        model.tokens += chunk.tokens.len() as u64;
        model.bytes += chunk.cost();
        self.note(Change::Came(chunk.name));
        let cost = chunk.cost();
        let key = self.tree.attach(chunk, parent, used);
        if self.tree.get(key).is_some_and(|node| node.is_encoding) {
            self.encoding_bytes += cost;
        }
        self.leaves_with(key).insert((used, key));
        key
    }

    fn note(&mut self, change: Change) {
        if let Some(changes) = &mut self.changes {
            changes.note(change);
        }
    }

    /// Takes out a chunk that nothing continues.
    fn detach(&mut self, key: Key) -> Option<Name> {
        let parent = self.tree.parent(key);
        let node = self.tree.get(key)?;
        let (name, used) = (node.chunk.name, node.used);
        self.release_to(&name);
        self.leaves_with(key).remove(&(used, key));
        let node = self.tree.detach(key)?;
        let chunk = node.chunk;
        self.note(Change::Left(chunk.name));
        if node.is_encoding {
            self.encoding_bytes -= chunk.cost();
        }
        self.size = self.size.without(Size::from_chunk(&chunk));
        self.tokens -= chunk.tokens.len();
        if let Some(model) = self.models.get_mut(&chunk.fingerprint) {
            model.chunks -= 1;
            model.tokens -= chunk.tokens.len() as u64;
            model.bytes -= chunk.cost();
            if model.chunks == 0 {
                self.models.remove(&chunk.fingerprint);
            }
        }
        let parent = parent.and_then(|key| Some((key, self.tree.get(key)?)));
        if let Some((key, node)) = parent.filter(|(_, node)| node.is_leaf()) {
            let used = node.used;
            self.leaves_with(key).insert((used, key));
        }
        Some(chunk.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_bounded() {
        let mut changes = Changes::default();
        let change = Change::Left(Name([0; 16]));
        for _ in 0..Changes::MOST {
            changes.note(change);
        }
        assert!(!changes.too_many);
        changes.note(change);
        assert!(changes.too_many && changes.chunks.len() == Changes::MOST);
    }
}
