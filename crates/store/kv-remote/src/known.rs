//! What a remote has, as far as it is known.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contextpilot_kv_store::{Fingerprint, Name};

/// Of so many chunks it is known that they are there; when there are more, of half as many. 40 bytes each.
const MOST_KNOWN: usize = 1 << 20;
/// As many are noted at a time, so that no asker waits for it.
const AT_A_TIME: usize = 4096;
/// So many models that are wanted are noted.
const MOST_WANTED: usize = 64;

/// What a remote is known to have, as far as it was listed. Copies are the same.
///
/// So no prompt waits for the network to hear that nothing is there, which is so for almost every new prompt.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<Mutex<Names>>);

/// A name is in one of both.
#[derive(Debug, Default)]
struct Names {
    newer: HashSet<Name>,
    older: HashSet<Name>,
    /// Models of which a prompt wanted something that is not known to be there.
    wanted: Vec<Fingerprint>,
}

impl Names {
    fn has(&self, name: &Name) -> bool {
        self.newer.contains(name) || self.older.contains(name)
    }
}

impl Known {
    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many chunks it is known to have.
    pub fn count(&self) -> usize {
        let known = self.names();
        known.newer.len() + known.older.len()
    }

    pub(crate) fn add(&self, names: impl IntoIterator<Item = Name>) {
        let mut names = names.into_iter().peekable();
        while names.peek().is_some() {
            let mut known = self.names();
            if known.newer.len() >= MOST_KNOWN / 2 {
                known.older = std::mem::take(&mut known.newer);
            }
            for name in names.by_ref().take(AT_A_TIME) {
                known.older.remove(&name);
                known.newer.insert(name);
            }
        }
    }

    pub(crate) fn remove(&self, name: &Name) {
        let mut known = self.names();
        known.newer.remove(name);
        known.older.remove(name);
    }

    pub(crate) fn clear(&self) {
        *self.names() = Names::default();
    }

    /// A prompt wants something of this model, and it may not have been looked at.
    pub(crate) fn want(&self, of: Fingerprint) {
        let mut known = self.names();
        if known.wanted.len() < MOST_WANTED && !known.wanted.contains(&of) {
            known.wanted.push(of);
        }
    }

    /// The models that prompts have wanted since the last call.
    pub(crate) fn take_wanted(&self) -> Vec<Fingerprint> {
        std::mem::take(&mut self.names().wanted)
    }

    /// The first of these that is there.
    pub(crate) fn first(
        &self,
        mut names: impl Iterator<Item = (usize, Name)>,
    ) -> Option<(usize, Name)> {
        let known = self.names();
        names.find(|(_, name)| known.has(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_is_heard_of_again_counts_once() {
        let name = |nth: usize| Name((nth as u128).to_le_bytes());
        let known = Known::default();
        known.add((0..MOST_KNOWN / 2).map(name));
        // Those are the older ones from now on.
        known.add([name(MOST_KNOWN)]);
        known.add([name(0), name(1), name(1)]);
        assert_eq!(known.count(), MOST_KNOWN / 2 + 1);
        assert_eq!(
            known.first([(1, name(2)), (2, name(0))].into_iter()),
            Some((1, name(2)))
        );
        known.remove(&name(0));
        assert_eq!(known.count(), MOST_KNOWN / 2);
    }
}
