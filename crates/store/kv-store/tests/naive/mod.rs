//! A second implementation of the store: a list of chunks, each with all tokens from position 0 on.
//! It says the same in the slowest way.

use contextpilot_kv_store::{Chunk, Fingerprint, Name, Piece, Refused};

mod both;

pub(crate) use both::{Both, Step};

#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) chunk: Chunk,
    /// All tokens up to the chunk's end.
    pub(crate) path: Vec<i32>,
    pub(crate) used: u64,
}

#[derive(Debug)]
pub(crate) struct Naive {
    pub(crate) kept: Vec<Kept>,
    pub(crate) limit: u64,
    clock: u64,
}

impl Naive {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            kept: Vec::new(),
            limit,
            clock: 0,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.kept.iter().map(|kept| kept.chunk.cost()).sum()
    }

    fn get(&self, name: &Name) -> Option<&Kept> {
        self.kept.iter().find(|kept| kept.chunk.name == *name)
    }

    /// How many tokens of the prompt are there.
    pub(crate) fn find(&self, fingerprint: &Fingerprint, tokens: &[i32]) -> usize {
        let same = self
            .kept
            .iter()
            .filter(|kept| kept.chunk.fingerprint == *fingerprint);
        let common = |kept: &Kept| {
            kept.path
                .iter()
                .zip(tokens)
                .take_while(|(a, b)| a == b)
                .count()
        };
        same.map(common).max().unwrap_or(0)
    }

    pub(crate) fn insert(&mut self, chunk: &Chunk) -> Result<Vec<Name>, Refused> {
        if self.get(&chunk.name).is_some() {
            return Err(Refused::Known);
        }
        let mut path = match chunk.parent {
            None => Vec::new(),
            Some((name, _)) => {
                let parent = self.get(&name).ok_or(Refused::NoParent)?;
                parent.path[..chunk.start as usize].to_vec()
            }
        };
        let (mut bytes, mut above) = (chunk.cost(), chunk.parent);
        while let Some((name, _)) = above {
            let parent = self.get(&name).expect("parents stay");
            bytes += parent.chunk.cost();
            above = parent.chunk.parent;
        }
        if bytes > self.limit {
            return Err(Refused::Full);
        }
        path.extend(&chunk.tokens[..]);
        self.clock += 1;
        self.kept.push(Kept {
            chunk: chunk.clone(),
            path,
            used: self.clock,
        });
        Ok(self.shrink(Some(chunk.name)))
    }

    pub(crate) fn shrink(&mut self, new: Option<Name>) -> Vec<Name> {
        let mut gone = Vec::new();
        while self.bytes() > self.limit {
            let parents: Vec<Name> = self
                .kept
                .iter()
                .filter_map(|kept| kept.chunk.parent)
                .map(|(name, _)| name)
                .collect();
            let leaf =
                |kept: &&Kept| !parents.contains(&kept.chunk.name) && Some(kept.chunk.name) != new;
            let Some(first) = self.kept.iter().filter(leaf).min_by_key(|kept| kept.used) else {
                break;
            };
            let name = first.chunk.name;
            self.kept.retain(|kept| kept.chunk.name != name);
            gone.push(name);
        }
        gone
    }

    pub(crate) fn used(&mut self, pieces: &[Piece]) {
        self.clock += 1;
        for kept in &mut self.kept {
            if pieces.iter().any(|piece| piece.name == kept.chunk.name) {
                kept.used = self.clock;
            }
        }
    }

    /// The names that leave, sorted.
    pub(crate) fn remove(&mut self, name: &Name) -> Vec<Name> {
        let mut gone = Vec::new();
        if self.get(name).is_some() {
            gone.push(*name);
        }
        let mut next = 0;
        while next < gone.len() {
            let parent = gone[next];
            let child = |kept: &&Kept| kept.chunk.parent.is_some_and(|(name, _)| name == parent);
            gone.extend(self.kept.iter().filter(child).map(|kept| kept.chunk.name));
            next += 1;
        }
        self.kept.retain(|kept| !gone.contains(&kept.chunk.name));
        gone.sort();
        gone
    }
}
