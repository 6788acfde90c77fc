//! What a prompt wants and the folder does not have: it is fetched at once.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contextpilot_kv_files::{Asker, Done, Folder, Wish, Writer};
use contextpilot_kv_store::{Fingerprint, GRID, Name};

use crate::mirror::{DISK, QUEUE, fetch_chunk};
use crate::remote::Remote;

/// Of more chunks it is not known that they are there. 40 bytes each.
const MOST_KNOWN: usize = 1 << 20;

/// What a remote is known to have, as far as it was listed. Copies are the same.
///
/// So nobody waits for the network to hear that nothing is there, which is so for almost every new prompt.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<Mutex<HashSet<Name>>>);

impl Known {
    fn names(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, names: impl IntoIterator<Item = Name>) {
        let mut known = self.names();
        let room = MOST_KNOWN.saturating_sub(known.len());
        known.extend(names.into_iter().take(room));
    }

    pub(crate) fn remove(&self, name: &Name) {
        self.names().remove(name);
    }

    pub(crate) fn clear(&self) {
        self.names().clear();
    }

    /// The first of these that is there.
    fn first(&self, mut names: impl Iterator<Item = (usize, Name)>) -> Option<(usize, Name)> {
        let known = self.names();
        names.find(|(_, name)| known.contains(name))
    }
}

/// Fetches what prompts want, over a connection of its own: what is moved meanwhile makes nobody wait.
pub struct Supplier {
    folder: Folder,
    remote: Remote,
    writer: Writer,
    known: Known,
}

impl Supplier {
    /// `known`: of the [`Mirror`](crate::Mirror) of the same folder and remote.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(folder: Folder, remote: Remote, known: Known) -> io::Result<Self> {
        Ok(Self {
            writer: Writer::start(folder.clone(), QUEUE, || {}, || false)?,
            folder,
            remote,
            known,
        })
    }

    /// Puts into the folder what continues the tokens of a wish, and tells of each chunk, until there is no more of it or
    /// nobody waits any more.
    pub fn supply(&mut self, mut asker: Asker) {
        let Wish { mut place, tokens } = asker.wish.clone();
        let mut tokens = &tokens[..];
        while let Some((end, name)) = self.known.first(place.chunks(tokens)) {
            if !self.bring(&place.fingerprint, &name) {
                break;
            }
            if asker.tell(&name).is_err() {
                return;
            }
            place = place.behind(tokens, end);
            if end == GRID {
                tokens = &tokens[GRID..];
            }
        }
        asker.end();
    }

    /// Whether the chunk is in the folder now.
    fn bring(&mut self, of: &Fingerprint, name: &Name) -> bool {
        if !self.folder.lacks(name) {
            return true;
        }
        // What is wrong with the remote, or with a chunk there, the mirror finds out, and says it.
        let Ok(fetched) = fetch_chunk(&mut self.remote, of, name) else {
            return false;
        };
        let Some((chunk, rows)) = fetched.chunk else {
            self.known.remove(name);
            return false;
        };
        let written = self.writer.write(&chunk, Arc::new(rows)).is_ok() && self.writer.flush(DISK);
        let failed = self
            .writer
            .done()
            .any(|done| matches!(done, Done::Failed(..)));
        written && !failed
    }
}
