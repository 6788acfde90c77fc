//! What is in the folder.

use std::collections::{HashMap, HashSet};
use std::io;

use contextpilot_kv_files::{Child, Folder, Header, Headers, ReadError, clock};
use contextpilot_kv_store::{Chunk, Fingerprint, Name, Numbers, Store, is_tail_finite};
use serde::Serialize;

use crate::companion::progress::Progress;
use crate::companion::show::Visible;

/// So much of a fingerprint says which is meant.
const SHORTEST: usize = 8;

/// All chunks whose headers are good.
pub(super) struct Contents {
    pub(super) folder: Folder,
    /// The chunks that were used longest ago come first.
    pub(super) headers: Vec<Header>,
    /// Files with damaged headers, which were removed.
    pub(super) damaged: usize,
    /// Files that are not the store's, or another version's.
    pub(super) foreign: usize,
    /// Files that the system did not let us read.
    pub(super) unreadable: usize,
}

/// What is there of one model.
#[derive(Serialize)]
pub(super) struct OfModel {
    /// What the server called it; `None`: it did not say.
    pub(super) model: Option<String>,
    /// Stands for the model, its adapters, and everything else that KV depends on.
    pub(super) fingerprint: String,
    /// In what it differs from the model of the same name that was used last: its side, and that one's. `None`: no other
    /// has this name, or it is that one itself, or it is not known.
    pub(super) differs: Option<String>,
    pub(super) chunks: usize,
    pub(super) tokens: u64,
    pub(super) bytes: u64,
    /// Nanoseconds since 1970.
    #[serde(skip)]
    pub(super) last_used: u64,
}

/// A prompt that a client asked to keep.
#[derive(Serialize)]
pub(super) struct KeptPrompt {
    /// As in [`OfModel`].
    pub(super) model: Option<String>,
    pub(super) fingerprint: String,
    /// Only requests with its `cache_salt` get it.
    pub(super) is_salted: bool,
    pub(super) tokens: u64,
    /// Nanoseconds since 1970.
    #[serde(skip)]
    pub(super) until: u64,
}

/// What became of checking everything.
#[derive(Default, Serialize)]
pub(super) struct Checked {
    pub(super) good: usize,
    /// Of the good ones.
    pub(super) bytes: u64,
    /// They were removed.
    pub(super) damaged: usize,
    pub(super) unreadable: usize,
}

/// What became of removing.
#[derive(Serialize)]
pub(super) struct Removed {
    pub(super) chunks: usize,
    pub(super) bytes: u64,
    pub(super) left_chunks: usize,
    pub(super) left_bytes: u64,
}

impl Contents {
    pub(super) fn read(folder: Folder) -> io::Result<Self> {
        let mut found: Headers = folder.headers()?;
        let mut headers: Vec<Header> = found.by_ref().collect();
        headers.sort_by_key(|header| (header.last_used, header.chunk.name));
        Ok(Self {
            damaged: found.damaged,
            foreign: found.foreign,
            unreadable: found.unreadable,
            headers,
            folder,
        })
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.headers.iter().map(|header| header.chunk.cost()).sum()
    }

    pub(super) fn tokens(&self) -> u64 {
        let tokens = self
            .headers
            .iter()
            .map(|header| header.chunk.tokens.len() as u64);
        tokens.sum()
    }

    /// What servers were asked to keep, what is kept longest last.
    pub(super) fn kept(&self) -> Vec<KeptPrompt> {
        let chunk = |name: &Name| {
            let mut chunks = self.headers.iter().map(|header| &header.chunk);
            chunks.find(|chunk| chunk.name == *name)
        };
        let all = self.folder.kept().into_iter();
        let mut kept: Vec<KeptPrompt> = all
            .filter(|(_, until)| *until > clock::time())
            .filter_map(|(end, until)| {
                let chunk = chunk(&end)?;
                let of = &chunk.fingerprint;
                let own = if chunk.is_tail() {
                    0
                } else {
                    chunk.tokens.len()
                };
                Some(KeptPrompt {
                    model: self.folder.model_name(of),
                    fingerprint: of.to_string(),
                    is_salted: self
                        .folder
                        .origin(of)
                        .is_some_and(|origin| origin.is_salted()),
                    tokens: u64::from(chunk.start) + own as u64,
                    until,
                })
            })
            .collect();
        kept.sort_by_key(|prompt| prompt.until);
        kept
    }

    /// By model, the one that was used last first.
    pub(super) fn models(&self) -> Vec<OfModel> {
        let mut models: Vec<(Fingerprint, OfModel)> = Vec::new();
        for Header { chunk, last_used } in &self.headers {
            let known = models
                .iter()
                .position(|(fingerprint, _)| *fingerprint == chunk.fingerprint);
            let at = known.unwrap_or_else(|| {
                models.push((chunk.fingerprint, self.model(&chunk.fingerprint)));
                models.len() - 1
            });
            let model = &mut models[at].1;
            model.chunks += 1;
            model.tokens += chunk.tokens.len() as u64;
            model.bytes += chunk.cost();
            model.last_used = model.last_used.max(*last_used);
        }
        models.sort_by_key(|(_, model)| std::cmp::Reverse(model.last_used));
        let mut latest: HashMap<String, Fingerprint> = HashMap::new();
        for (fingerprint, model) in &mut models {
            let Some(name) = &model.model else { continue };
            let latest = *latest.entry(name.clone()).or_insert(*fingerprint);
            let both = self
                .folder
                .origin(fingerprint)
                .zip(self.folder.origin(&latest));
            model.differs = both.and_then(|(origin, latest)| origin.difference(&latest));
        }
        models.into_iter().map(|(_, model)| model).collect()
    }

    fn model(&self, fingerprint: &Fingerprint) -> OfModel {
        OfModel {
            model: self.folder.model_name(fingerprint),
            fingerprint: fingerprint.to_string(),
            differs: None,
            chunks: 0,
            tokens: 0,
            bytes: 0,
            last_used: 0,
        }
    }

    /// The fingerprints of a model, by its name or the beginning of its fingerprint.
    pub(super) fn named(&self, name: &str) -> Result<HashSet<Fingerprint>, String> {
        let all: HashSet<Fingerprint> = self
            .headers
            .iter()
            .map(|header| header.chunk.fingerprint)
            .collect();
        let is_called = |of: &&Fingerprint| {
            self.folder
                .model_name(of)
                .is_some_and(|model| model == name)
                || name.len() >= SHORTEST && of.to_string().starts_with(name)
        };
        let named: HashSet<Fingerprint> = all.iter().filter(is_called).copied().collect();
        if named.is_empty() {
            Err(format!(
                "The store has nothing of a model that is called {}: contextpilot-llama store lists those that it has",
                Visible(name)
            ))
        } else {
            Ok(named)
        }
    }

    /// Reads all rows. What is damaged is removed, and `say` is told. So is what continues rows with values that are no
    /// numbers: it was computed from them.
    pub(super) fn verify(&mut self, say: impl Fn(&Name, &ReadError)) -> Checked {
        let mut checked = Checked {
            damaged: self.damaged,
            unreadable: self.unreadable,
            ..Checked::default()
        };
        let mut rows = Vec::new();
        let mut numbers: HashMap<Fingerprint, Option<Numbers>> = HashMap::new();
        let mut not_finite = HashSet::new();
        // What continues a chunk comes behind it.
        let mut all: Vec<&Chunk> = self.headers.iter().map(|header| &header.chunk).collect();
        all.sort_by_key(|chunk| chunk.start);
        let progress = Progress::new("chunks checked");
        let of = all.len() as u64;
        for (chunk, done) in all.into_iter().zip(0..) {
            progress.at(done, Some(of));
            let layout = || self.folder.origin(&chunk.fingerprint)?.layout;
            let numbers = numbers
                .entry(chunk.fingerprint)
                .or_insert_with(|| Some(layout()?.numbers()));
            let continues = chunk.parent.map(|(parent, _)| parent);
            let read = if continues.is_some_and(|parent| not_finite.contains(&parent)) {
                Err(ReadError::CONTINUES_NOT_FINITE)
            } else {
                read_finite(&self.folder, chunk, numbers.as_ref(), &mut rows)
            };
            match read {
                Ok(()) => {
                    checked.good += 1;
                    checked.bytes += chunk.cost();
                }
                // A server has let it go meanwhile.
                Err(ReadError::Gone) => {}
                Err(why @ ReadError::Damaged(_)) if self.folder.remove(&chunk.name).is_ok() => {
                    if why.is_not_finite() {
                        not_finite.insert(chunk.name);
                    }
                    checked.damaged += 1;
                    progress.erase();
                    say(&chunk.name, &why);
                }
                Err(_) => checked.unreadable += 1,
            }
        }
        checked
    }

    /// Removes chunks until all files have at most so many bytes, in the order in which a server with this
    /// budget would. What cannot be used goes first.
    /// `only`: what is of these, and nothing else.
    pub(super) fn shrink(
        &mut self,
        to: u64,
        only: Option<&HashSet<Fingerprint>>,
    ) -> io::Result<Removed> {
        let mut tree = Store::with_memory(u64::MAX, usize::MAX);
        let is_meant = |of: &Fingerprint| only.is_none_or(|only| only.contains(of));
        let (mut before, mut others) = ((0, 0), (0, 0));
        let mut left = HashSet::new();
        for Header { chunk, last_used } in &self.headers {
            let sum = if is_meant(&chunk.fingerprint) {
                tree.load(chunk.clone(), *last_used);
                &mut before
            } else {
                left.insert(chunk.fingerprint);
                &mut others
            };
            *sum = (sum.0 + 1, sum.1 + chunk.cost());
        }
        let mut names = tree.orphans(u64::MAX);
        names.extend(tree.set_limit(to, self.folder.kept(), clock::time()));
        for name in &names {
            self.folder.remove(name)?;
        }
        let gone: HashSet<&Name> = names.iter().collect();
        let there = self.headers.iter().map(|header| &header.chunk);
        let there = there.filter(|chunk| !gone.contains(&chunk.name));
        self.folder
            .keep_index(there.map(Child::from_chunk).collect())?;
        // A file that cannot be read may be of any model.
        if self.unreadable == 0 {
            left.extend(tree.models().map(|(of, _)| of));
            self.folder.forget_unused(|of| left.contains(of));
        }
        Ok(Removed {
            chunks: before.0 - tree.chunks(),
            bytes: before.1 - tree.bytes(),
            left_chunks: others.0 + tree.chunks(),
            left_bytes: others.1 + tree.bytes(),
        })
    }
}

/// All tokens up to a chunk's end.
pub(super) fn row_of(chunk: &Chunk, all: &HashMap<Name, Chunk>) -> Option<Vec<i32>> {
    let mut parts = vec![&*chunk.tokens];
    let mut start = chunk.start;
    let mut parent = chunk.parent;
    while let Some((name, behind)) = parent {
        let before = all.get(&name)?;
        // A pack may say anything: so each step must lead towards position 0.
        if before.start >= start || before.start + behind != start {
            return None;
        }
        parts.push(before.tokens.get(..behind as usize)?);
        (start, parent) = (before.start, before.parent);
    }
    (start == 0).then(|| parts.into_iter().rev().flatten().copied().collect())
}

/// The rows of a chunk, which must be finite numbers. `numbers`: of what they consist, if that is known.
fn read_finite(
    folder: &Folder,
    chunk: &Chunk,
    numbers: Option<&Numbers>,
    rows: &mut Vec<u8>,
) -> Result<(), ReadError> {
    let numbers = numbers.filter(|_| !chunk.is_tail()).unwrap_or(Numbers::ANY);
    folder.read_finite(&chunk.name, chunk.bytes, numbers, rows)?;
    if chunk.is_tail() && !is_tail_finite(rows) {
        Err(ReadError::NOT_FINITE)
    } else {
        Ok(())
    }
}
