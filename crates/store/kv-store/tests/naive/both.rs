//! Runs the store beside the naive implementation.

use contextpilot_kv_store::{Chunk, Fingerprint, Found, Name, Refused, Store};

use super::Naive;

/// A prompt as a walk: how long, and where it leaves the one before.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A prompt that shares so much with an earlier one and goes on: find, use, insert what is missing.
    Prompt {
        model: u8,
        like: usize,
        share: u16,
        more: u16,
        salt: i32,
    },
    /// The file of a chunk is gone.
    Lose(usize),
    /// The budget changes, in thousandths of what is there.
    Limit(u64),
    /// A new process loads the files, in another order; one of them is gone.
    Restart { seed: u64, without: usize },
}

const ROW: usize = 500;

pub(crate) struct Both {
    store: Store,
    naive: Naive,
    prompts: Vec<Vec<i32>>,
}

impl Both {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            store: Store::new(limit),
            naive: Naive::new(limit),
            prompts: vec![vec![]],
        }
    }

    pub(crate) fn apply(&mut self, step: &Step) {
        match *step {
            Step::Prompt {
                model,
                like,
                share,
                more,
                salt,
            } => {
                let earlier = &self.prompts[like % self.prompts.len()];
                let mut prompt = earlier[..earlier.len().min(share as usize)].to_vec();
                let at = prompt.len() as i32;
                // Few different tokens, so that different prompts agree for a while.
                prompt.extend(
                    (at..at + i32::from(more)).map(|i| if i % 97 == 0 { salt } else { i % 5 }),
                );
                self.prompt(Fingerprint([model; 16]), &prompt);
                self.prompts.push(prompt);
            }
            Step::Lose(which) => {
                if let Some(kept) = self.naive.kept.get(which % self.naive.kept.len().max(1)) {
                    let name = kept.chunk.name;
                    let gone = self.store.remove(&name);
                    self.children_first(&gone);
                    assert_eq!(sorted(gone), self.naive.remove(&name));
                }
            }
            Step::Limit(share) => {
                let limit = self.store.bytes() * share / 1000;
                self.naive.limit = limit;
                assert_eq!(self.store.set_limit(limit, [], 0), self.naive.shrink(None));
                self.check();
                // Room for what comes.
                let limit = limit.max(1 << 20);
                self.naive.limit = limit;
                assert_eq!(self.store.set_limit(limit, [], 0), []);
            }
            Step::Restart { seed, without } => self.restart(seed, without),
        }
        self.check();
    }

    fn prompt(&mut self, fingerprint: Fingerprint, prompt: &[i32]) {
        let found = self.store.find(&fingerprint, prompt);
        assert_eq!(found.tokens(), self.naive.find(&fingerprint, prompt));
        self.check_pieces(&found, prompt);
        self.store.used(found.pieces());
        self.naive.used(found.pieces());

        let missing = self.store.missing(&fingerprint, prompt, ROW);
        let tokens: usize = missing.iter().map(|chunk| chunk.tokens.len()).sum();
        assert_eq!(found.tokens() + tokens, prompt.len());
        let mut room = Some(self.store.has_room(&fingerprint, prompt, ROW));
        assert!(!missing.is_empty() || room == Some(true));
        for chunk in missing {
            let inserted = self.store.insert(chunk.clone());
            assert_eq!(inserted, self.naive.insert(&chunk));
            // It was asked about the first one.
            if let Some(room) = room.take() {
                assert_eq!(room, inserted != Err(Refused::Full));
            }
            let Ok(gone) = inserted else { break };
            assert!(!gone.contains(&chunk.name));
        }
    }

    /// The pieces are the prompt's beginning, without gaps.
    fn check_pieces(&self, found: &Found, prompt: &[i32]) {
        let mut at = 0;
        for piece in found.pieces() {
            let chunk = self.chunk(&piece.name);
            assert_eq!((piece.start, piece.chunk_tokens), (at, chunk.tokens.len()));
            assert_eq!(chunk.tokens[..piece.take], prompt[at..at + piece.take]);
            at += piece.take;
        }
        assert_eq!(at, found.tokens());
    }

    fn chunk(&self, name: &Name) -> &Chunk {
        let kept = self.naive.kept.iter().find(|kept| kept.chunk.name == *name);
        &kept.expect("it is there").chunk
    }

    fn children_first(&self, gone: &[Name]) {
        for (index, name) in gone.iter().enumerate() {
            let parent = self.chunk(name).parent;
            assert!(parent.is_none_or(|(parent, _)| !gone[..index].contains(&parent)));
        }
    }

    fn restart(&mut self, seed: u64, without: usize) {
        let picked = self.naive.kept.get(without % self.naive.kept.len().max(1));
        let lost = picked.map(|kept| kept.chunk.name);
        let mut files: Vec<_> = self
            .naive
            .kept
            .iter()
            .map(|kept| (kept.chunk.clone(), kept.used))
            .collect();
        files.retain(|(chunk, _)| Some(chunk.name) != lost);
        // Any order will do.
        files.sort_by_key(|(chunk, _)| {
            u64::from_le_bytes(*chunk.name.0.first_chunk().expect("8")).wrapping_mul(seed | 1)
        });
        let mut store = Store::new(self.store.limit());
        for (chunk, used) in files {
            store.load(chunk, used);
        }
        let mut orphans = sorted(store.orphans(u64::MAX));
        if let Some(lost) = lost {
            orphans.push(lost);
            assert_eq!(sorted(orphans), self.naive.remove(&lost));
        }
        self.store = store;
    }

    fn check(&self) {
        let kept = &self.naive.kept;
        assert_eq!(self.store.chunks(), kept.len());
        assert_eq!(self.store.bytes(), self.naive.bytes());
        assert!(self.store.bytes() <= self.store.limit());
        let tokens: usize = kept.iter().map(|kept| kept.chunk.tokens.len()).sum();
        assert_eq!(self.store.tokens(), tokens);
        let models: Vec<_> = self.store.models().collect();
        for (fingerprint, model) in &models {
            let of = || {
                kept.iter()
                    .filter(|kept| kept.chunk.fingerprint == *fingerprint)
            };
            assert_eq!(model.chunks, of().count());
            assert_eq!(model.bytes, of().map(|kept| kept.chunk.cost()).sum::<u64>());
            assert_eq!(
                model.tokens,
                of().map(|kept| kept.chunk.tokens.len() as u64).sum::<u64>()
            );
        }
        assert_eq!(
            models.iter().map(|(_, model)| model.chunks).sum::<usize>(),
            kept.len()
        );
    }

    /// Every token is stored once: two chunks that both have a position differ there or before.
    pub(crate) fn nothing_is_twice(&self) {
        for (index, later) in self.naive.kept.iter().enumerate() {
            for earlier in &self.naive.kept[..index] {
                let same = later.chunk.fingerprint == earlier.chunk.fingerprint;
                let pairs = later.path.iter().zip(&earlier.path);
                let common = pairs.take_while(|(a, b)| a == b).count();
                let begin = later.chunk.start.max(earlier.chunk.start) as usize;
                assert!(!same || common <= begin, "{later:?} {earlier:?}");
            }
        }
    }
}

fn sorted(mut names: Vec<Name>) -> Vec<Name> {
    names.sort();
    names
}
