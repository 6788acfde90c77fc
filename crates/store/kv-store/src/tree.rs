//! The radix tree of chunks.
//!
//! ```text
//!  (fingerprint)
//!     └─ [0, 256) ──────── [256, 300) ── [300, 320)
//!           └─ at 100: [100, 180)
//! ```
//!
//! A chunk stands behind some of its parent's tokens: all of them, or fewer where a prompt differs.
//! Of the chunks that a process inserts at one such *site* each begins with another token, and with another one than the
//! parent has there: there is one way through the tree for a prompt. Where several processes wrote at the same time for
//! prompts that part within a chunk, a few may begin with the same token, and there are several ways.
//!
//! The children of a chunk are linked in the order of their last use, latest first.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::chunk::{Size, common};
use crate::slab::{Key, Slab};
use crate::{Chunk, Fingerprint, Found, Name, Piece, TAIL, Tail, media};

/// No chunk.
const NONE: Key = Key::MAX;
/// How many children are looked at for the one used last. They are in order, unless files with
/// old times were loaded.
const LOOKED_AT: usize = 64;
/// So many chunks may begin with the same token at one site: those with the least names.
pub const MOST_ALIKE: usize = 4;
/// So many ways through the tree are followed to their ends for a prompt.
pub const MOST_WAYS: usize = 16;

#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Slab<Node>,
    // Not hashed: a table would be made anew and filled now and then, while the server waits.
    edges: BTreeMap<Edge, Key>,
    names: BTreeMap<Name, Key>,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) chunk: Chunk,
    /// Or [`NONE`].
    parent: Key,
    first_child: Key,
    /// Siblings.
    next: Key,
    previous: Key,
    /// When any of its tokens were last used.
    pub(crate) used: u64,
    /// When all of its tokens were last used.
    whole: u64,
    /// The size of the chunk and of all that it continues.
    path: Size,
    /// Its rows are what an encoder has made, and no KV.
    pub(crate) is_encoding: bool,
}

/// A child, by where it stands and its first token.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    site: Site,
    token: i32,
    name: Name,
}

/// Where chunks can stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Site {
    /// At position 0.
    Start(Fingerprint),
    /// Behind so many tokens of a chunk.
    Behind(Key, u32),
}

impl Node {
    pub(crate) fn is_leaf(&self) -> bool {
        self.first_child == NONE
    }
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self {
            nodes: Slab::new(),
            edges: BTreeMap::new(),
            names: BTreeMap::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn key(&self, name: &Name) -> Option<Key> {
        self.names.get(name).copied()
    }

    /// The names that begin with this byte, in order.
    pub(crate) fn names(&self, first: u8) -> impl Iterator<Item = &Name> {
        Name::all_with(&self.names, first)
    }

    /// The names behind this one, in order; `None`: all.
    pub(crate) fn names_after(&self, name: Option<Name>) -> impl Iterator<Item = &Name> {
        let from = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.names
            .range((from, Bound::Unbounded))
            .map(|(name, _)| name)
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Node> {
        self.nodes.get(key)
    }

    pub(crate) fn parent(&self, key: Key) -> Option<Key> {
        let parent = self.nodes.get(key)?.parent;
        (parent != NONE).then_some(parent)
    }

    /// The size of a chunk and of all that it continues.
    pub(crate) fn path(&self, key: Option<Key>) -> Size {
        let node = key.and_then(|key| self.nodes.get(key));
        node.map_or(Size::default(), |node| node.path)
    }

    /// The longest beginning of `tokens` that is there.
    pub(crate) fn find(&self, fingerprint: &Fingerprint, tokens: &[i32]) -> Found {
        let mut longest = Found::default();
        // As many as an ordinary prompt has.
        let mut pieces: Vec<Piece> = Vec::with_capacity(16);
        // Where other ways go on: behind so many pieces, with this chunk.
        let mut others = Vec::new();
        let mut ways = 0;
        let mut at = 0;
        let mut next = self.best(Site::Start(*fingerprint), (tokens, 0), &mut others);
        loop {
            while let Some((key, node)) = next {
                let take = common(&node.chunk.tokens, &tokens[at..]);
                pieces.push(node.piece(take));
                at += take;
                let rest = (&tokens[at..], pieces.len());
                next = self.behind((key, node), take, rest, &mut others);
            }
            let is_longer = at > longest.tokens();
            if is_longer && others.is_empty() {
                longest.pieces = pieces;
                break;
            }
            if is_longer {
                longest.pieces.clone_from(&pieces);
            }
            ways += 1;
            if ways == MOST_WAYS || longest.tokens() == tokens.len() {
                break;
            }
            let Some((before, key)) = others.pop() else {
                break;
            };
            pieces.truncate(before);
            at = pieces.last().map_or(0, |last| last.start + last.take);
            next = self.node(key);
        }
        longest.cut(media::certain(&tokens[..longest.tokens()]));
        longest
    }

    fn node(&self, key: Key) -> Option<(Key, &Node)> {
        Some((key, self.nodes.get(key)?))
    }

    /// The chunk with which these tokens go on behind so many of a chunk. Looks through its children, which are few as a
    /// rule: that is faster than the map of all.
    fn behind(
        &self,
        (key, node): (Key, &Node),
        take: usize,
        (tokens, before): (&[i32], usize),
        others: &mut Vec<(usize, Key)>,
    ) -> Option<(Key, &Node)> {
        /// More children are looked for in the map.
        const MOST: usize = 16;
        let token = tokens.first()?;
        let mut next = node.first_child;
        let mut found = None;
        for _ in 0..MOST {
            let Some(child) = self.nodes.get(next) else {
                return found;
            };
            if child.offset() == take && child.chunk.tokens.first() == Some(token) {
                if found.is_some() {
                    return self.best(Site::Behind(key, take as u32), (tokens, before), others);
                }
                found = Some((next, child));
            }
            next = child.next;
        }
        match next {
            NONE => found,
            _ => self.best(Site::Behind(key, take as u32), (tokens, before), others),
        }
    }

    /// The chunk with which these tokens go on at a site. Of several the one that has most of them, and the others are
    /// noted. `before`: how many pieces are in front of it.
    fn best(
        &self,
        site: Site,
        (tokens, before): (&[i32], usize),
        others: &mut Vec<(usize, Key)>,
    ) -> Option<(Key, &Node)> {
        let first = others.len();
        let alike = self.alike(site, *tokens.first()?);
        others.extend(alike.map(|key| (before, key)));
        others[first..].reverse();
        if let several @ [_, _, ..] = &mut others[first..] {
            let node = |key| self.nodes.get(key);
            several.sort_by_key(|(_, key)| {
                node(*key).map_or(0, |node| common(&node.chunk.tokens, tokens))
            });
        }
        let best = (others.len() > first).then(|| others.pop()).flatten();
        best.and_then(|(_, key)| self.node(key))
    }

    /// The chunks that begin with this token at a site, in the order of their names.
    fn alike(&self, site: Site, token: i32) -> impl Iterator<Item = Key> + '_ {
        let least = Edge {
            site,
            token,
            name: Name::LEAST,
        };
        // One search in the map, where one for each end takes twice as long.
        let from = self.edges.range(least..);
        let here = from.take_while(move |(edge, _)| edge.token == token && edge.site == site);
        here.map(|(_, key)| *key)
    }

    /// What was used last behind these pieces, at most `most` tokens: the tokens, and all pieces.
    pub(crate) fn continuation(&self, found: &Found, most: usize) -> (Vec<i32>, Found) {
        let mut tokens = Vec::new();
        let mut pieces = found.pieces.clone();
        let last = pieces.pop();
        let known = last.and_then(|last| Some((self.key(&last.name)?, last.take)));
        let Some((mut key, mut from)) = known else {
            return (tokens, found.clone());
        };
        while let Some(node) = self.nodes.get(key) {
            let branch = self.latest_child(node, from);
            let end = branch.map_or(node.chunk.tokens.len(), |(_, offset)| offset);
            let to = end.min(from.saturating_add(most - tokens.len()));
            tokens.extend(node.chunk.tokens.get(from..to).unwrap_or_default());
            pieces.push(node.piece(to.max(from)));
            let Some((child, _)) = branch.filter(|_| tokens.len() < most) else {
                break;
            };
            (key, from) = (child, 0);
        }
        (tokens, Found { pieces })
    }

    /// The tails along this way through the tree, in order.
    pub(crate) fn tails(&self, found: &Found) -> Vec<Tail> {
        let mut tails = Vec::new();
        for piece in &found.pieces {
            let Some(key) = self.key(&piece.name) else {
                break;
            };
            let edge = |behind: usize, name| Edge {
                site: Site::Behind(key, behind as u32),
                token: TAIL,
                name,
            };
            let (first, last) = (edge(1, Name::LEAST), edge(piece.take, Name::GREATEST));
            let edges = self.edges.range(first..=last);
            let here = edges.filter(|(edge, _)| edge.token == TAIL);
            tails.extend(here.filter_map(|(_, tail)| {
                let node = self.nodes.get(*tail)?;
                Some(Tail {
                    piece: node.piece(1),
                    bytes: node.chunk.bytes,
                })
            }));
        }
        tails
    }

    /// Whether there is a tail at the end of these pieces or behind it. Looks at some chunks, those used last first.
    pub(crate) fn leads_to_tail(&self, found: &Found) -> bool {
        let Some(last) = found.pieces.last() else {
            return false;
        };
        let Some(key) = self.key(&last.name) else {
            return false;
        };
        let mut open = vec![(key, last.take)];
        for _ in 0..LOOKED_AT {
            let Some((key, from)) = open.pop() else {
                break;
            };
            let Some(node) = self.nodes.get(key) else {
                continue;
            };
            let siblings = std::iter::successors(Some(node.first_child), |key| {
                self.nodes.get(*key).map(|node| node.next)
            });
            let mut further = Vec::new();
            for child in siblings.take(LOOKED_AT) {
                let Some(node) = self.nodes.get(child) else {
                    break;
                };
                if node.offset() < from {
                    continue;
                }
                if node.chunk.is_tail() {
                    return true;
                }
                further.push((child, 0));
            }
            // The one used last is looked at next.
            open.extend(further.into_iter().rev());
        }
        false
    }

    /// The child that was used last of those behind at least `from` tokens, and how many tokens it
    /// is behind. None, if the rest of the node was used since without one.
    fn latest_child(&self, node: &Node, from: usize) -> Option<(Key, usize)> {
        let siblings = std::iter::successors(Some(node.first_child), |key| {
            self.nodes.get(*key).map(|node| node.next)
        });
        let all = node.chunk.tokens.len();
        siblings
            .take(LOOKED_AT)
            .map_while(|key| Some((key, self.nodes.get(key)?)))
            .map(|(key, child)| (key, child.offset(), child.used))
            .filter(|(_, offset, used)| *offset >= from && (*offset == all || *used > node.whole))
            .max_by_key(|(_, offset, used)| (*used, *offset))
            .map(|(key, offset, _)| (key, offset))
    }

    /// Whether the chunk can be attached now. Its parent's key, if it has one.
    pub(crate) fn place(&self, chunk: &Chunk) -> Result<Option<Key>, Misplaced> {
        if !chunk.is_well_formed() {
            return Err(Misplaced::Malformed);
        }
        if self.names.contains_key(&chunk.name) {
            return Err(Misplaced::Known);
        }
        let (site, parent) = match chunk.parent {
            None => (Site::Start(chunk.fingerprint), None),
            Some((name, tokens)) => {
                let key = self.key(&name).ok_or(Misplaced::NoParent)?;
                let node = self.nodes.get(key).ok_or(Misplaced::NoParent)?;
                let next = node.chunk.tokens.get(tokens as usize);
                if node.chunk.is_tail()
                    || tokens as usize > node.chunk.tokens.len()
                    || node.chunk.start + tokens != chunk.start
                    || node.chunk.fingerprint != chunk.fingerprint
                    || next == Some(&chunk.tokens[0])
                {
                    return Err(Misplaced::Malformed);
                }
                (Site::Behind(key, tokens), Some(key))
            }
        };
        let there = self.alike(site, chunk.tokens[0]);
        let most = if chunk.is_tail() { 1 } else { MOST_ALIKE };
        // The last of them, if there are so many.
        match there
            .skip(most - 1)
            .last()
            .and_then(|key| self.nodes.get(key))
        {
            Some(last) => Err(Misplaced::Taken(last.chunk.name)),
            None => Ok(parent),
        }
    }

    /// Attaches a chunk for which [`place`](Self::place) has found this parent.
    pub(crate) fn attach(&mut self, chunk: Chunk, parent: Option<Key>, used: u64) -> Key {
        let (name, site) = (chunk.name, chunk.site(parent));
        let token = chunk.tokens[0];
        let path = self.path(parent).and(Size::from_chunk(&chunk));
        let above = parent.and_then(|key| self.nodes.get(key));
        let is_encoding = match above {
            Some(above) => above.is_encoding,
            None => media::begins_encoding(&chunk.tokens),
        };
        let parent = parent.unwrap_or(NONE);
        let key = self.nodes.insert(Node {
            chunk,
            parent,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            used,
            whole: used,
            path,
            is_encoding,
        });
        self.names.insert(name, key);
        self.edges.insert(Edge { site, token, name }, key);
        self.link(key, parent);
        key
    }

    /// Takes a chunk out that nothing continues.
    pub(crate) fn detach(&mut self, key: Key) -> Option<Node> {
        debug_assert!(self.nodes.get(key).is_none_or(Node::is_leaf));
        self.unlink(key);
        let node = self.nodes.remove(key)?;
        self.names.remove(&node.chunk.name);
        let parent = (node.parent != NONE).then_some(node.parent);
        self.edges.remove(&Edge {
            site: node.chunk.site(parent),
            token: node.chunk.tokens[0],
            name: node.chunk.name,
        });
        Some(node)
    }

    /// The first `take` tokens of a chunk are used.
    pub(crate) fn touch(&mut self, key: Key, take: usize, now: u64) {
        let Some(node) = self.nodes.get_mut(key) else {
            return;
        };
        node.used = now;
        if take == node.chunk.tokens.len() {
            node.whole = now;
        }
        let (parent, first) = (node.parent, node.previous == NONE);
        if !first {
            self.unlink(key);
            self.link(key, parent);
        }
    }

    /// A chunk and all that continue it, parents first.
    pub(crate) fn family(&self, key: Key) -> Vec<Key> {
        let mut family = vec![key];
        let mut next = 0;
        while let Some(node) = family.get(next).and_then(|key| self.nodes.get(*key)) {
            let mut child = node.first_child;
            while let Some(node) = self.nodes.get(child) {
                family.push(child);
                child = node.next;
            }
            next += 1;
        }
        family
    }

    /// Puts a node in front of its siblings.
    fn link(&mut self, key: Key, parent: Key) {
        let Some(parent) = self.nodes.get_mut(parent) else {
            return;
        };
        let second = std::mem::replace(&mut parent.first_child, key);
        if let Some(node) = self.nodes.get_mut(second) {
            node.previous = key;
        }
        if let Some(node) = self.nodes.get_mut(key) {
            node.previous = NONE;
            node.next = second;
        }
    }

    fn unlink(&mut self, key: Key) {
        let Some(node) = self.nodes.get_mut(key) else {
            return;
        };
        let next = std::mem::replace(&mut node.next, NONE);
        let previous = std::mem::replace(&mut node.previous, NONE);
        let parent = node.parent;
        if let Some(node) = self.nodes.get_mut(next) {
            node.previous = previous;
        }
        if let Some(node) = self.nodes.get_mut(previous) {
            node.next = next;
        } else if let Some(node) = self.nodes.get_mut(parent) {
            node.first_child = next;
        }
    }
}

/// Why a chunk cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misplaced {
    /// No tree can have it, or not behind the parent that it names.
    Malformed,
    /// It is there.
    Known,
    /// Its parent is not there.
    NoParent,
    /// As many as may begin with the same token there do. This one has the greatest name.
    Taken(Name),
}

impl Node {
    fn piece(&self, take: usize) -> Piece {
        Piece {
            name: self.chunk.name,
            start: self.chunk.start as usize,
            chunk_tokens: self.chunk.tokens.len(),
            take,
        }
    }

    /// How many of its parent's tokens stand before it.
    fn offset(&self) -> usize {
        self.chunk.parent.map_or(0, |(_, tokens)| tokens as usize)
    }
}

impl Chunk {
    fn site(&self, parent: Option<Key>) -> Site {
        match (parent, self.parent) {
            (Some(key), Some((_, tokens))) => Site::Behind(key, tokens),
            _ => Site::Start(self.fingerprint),
        }
    }
}
