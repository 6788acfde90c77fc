//! What is sent, and what is fetched.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use contextpilot_kv_files::{Done, Folder, Header, Refusal, Watch, Writer, read_whole};
use contextpilot_kv_store::{Chunk, Fingerprint, Name};

use crate::remote::{Listed, Remote, RemoteError};
use crate::supply::Known;

/// Chunks of one question.
const AT_ONCE: usize = 256;
/// Of what others sent before this began, so many chunks of a model are looked at.
const LOOK_BACK: usize = 1 << 20;
/// Bytes that are fetched in one turn, at least, before something is sent again.
const FETCHED_IN_A_TURN: u64 = 64 << 20;
/// Bytes that are sent in one turn, at least, before something is fetched. Few in a test, so that it has several turns.
const SENT_IN_A_TURN: u64 = if cfg!(test) { 1 << 10 } else { 16 << 20 };
/// Bytes of rows that wait for the disk.
pub(crate) const QUEUE: u64 = 64 << 20;
/// How long the disk may take for them.
pub(crate) const DISK: Duration = Duration::from_secs(30);
/// Chunks are fetched for models that servers here have used within this time.
const LATELY: Duration = Duration::from_secs(7 * 24 * 3600);
/// At the beginning the folder is filled up to so many tenths of its limit. What servers here write needs the rest.
const FILLED: u64 = 9;
/// Nothing is fetched while the folder has so many tenths of its limit. A server here lets what is beyond the limit go
/// within two seconds, and meanwhile fetching goes on. Without one, nobody does.
const BEYOND: u64 = 11;

/// How much was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Chunks that were sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Chunks that were fetched.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Chunks that were damaged there. They are removed from there.
    pub damaged: u64,
}

/// A folder and a remote that become alike.
pub struct Mirror {
    folder: Folder,
    watch: Watch,
    writer: Writer,
    remote: Remote,
    limit: u64,
    /// What is in the folder or will be when the writer is done, and its size on the disk.
    here: HashMap<Name, u64>,
    /// The sum of these sizes.
    bytes: u64,
    /// What is in the folder and perhaps not there yet, in the order in which prompts continue.
    unsent: BTreeMap<(Fingerprint, u32, Name), Chunk>,
    /// What came from there.
    fetched: HashSet<Name>,
    /// What is there.
    known: Known,
    /// Of each model, the number of the last chunk that was looked at.
    seen: HashMap<Fingerprint, u64>,
    /// The remote was of no use. It may be another one when it is there again.
    is_lost: bool,
}

impl Mirror {
    /// `limit`: how large the folder may become, bytes.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(folder: Folder, remote: Remote, limit: u64) -> io::Result<Self> {
        Ok(Self {
            watch: Watch::new(folder.clone()),
            writer: Writer::start(folder.clone(), QUEUE, || {}, || false)?,
            folder,
            remote,
            limit,
            here: HashMap::new(),
            bytes: 0,
            unsent: BTreeMap::new(),
            fetched: HashSet::new(),
            known: Known::default(),
            seen: HashMap::new(),
            is_lost: false,
        })
    }

    /// The remote.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// What the remote has, as far as that is known.
    pub fn known(&self) -> Known {
        self.known.clone()
    }

    /// Asks whether the remote can be used: a turn in which nothing is to be moved asks nothing.
    ///
    /// # Errors
    /// It cannot.
    pub fn reach(&mut self) -> Result<(), MirrorError> {
        let reached = self.remote.reach();
        self.note(reached.map_err(MirrorError::Remote))
    }

    /// Sends what is new here, and fetches what is new there; of both not all at once. Returns whether they are alike
    /// now. After an error of the remote the next turn compares all that is in both.
    ///
    /// # Errors
    /// The folder cannot be read, or the remote is of no use now. `moved` says what was done before.
    pub fn turn(&mut self, moved: &mut Moved) -> Result<bool, MirrorError> {
        let is_sent = self.send_some(moved)?;
        let fetched = self.fetch(moved);
        Ok(self.note(fetched)? && is_sent)
    }

    /// Sends what is new here, and not all at once. Returns whether all is sent.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn send_some(&mut self, moved: &mut Moved) -> Result<bool, MirrorError> {
        if std::mem::take(&mut self.is_lost) {
            self.watch = Watch::new(self.folder.clone());
            self.here.clear();
            self.unsent.clear();
            self.fetched.clear();
            self.known.clear();
            self.seen.clear();
        }
        self.look()?;
        let sent = self.send(moved);
        self.note(sent)
    }

    fn note<T>(&mut self, done: Result<T, MirrorError>) -> Result<T, MirrorError> {
        self.is_lost |= matches!(done, Err(MirrorError::Remote(_)));
        done
    }

    /// Finds out what has changed in the folder.
    fn look(&mut self) -> Result<(), MirrorError> {
        self.note_failed();
        let mut new = Vec::new();
        let changed = self.watch.look(|header: Header| new.push(header.chunk));
        let changed = changed.map_err(MirrorError::Folder)?;
        if self.watch.is_another() {
            // What was looked at before is not here any more.
            self.seen.clear();
        }
        let lists = changed
            .iter()
            .map(|listing| (listing.first, &listing.names));
        let lists: HashMap<u8, &Vec<Name>> = lists.collect();
        // What waited for the disk when the folder was read may have been written since.
        let is_there = |name: &Name| self.writer.is_pending(name) || !self.folder.lacks(name);
        let stays = |name: &Name| {
            let list = lists.get(&name.0[0]);
            list.is_none_or(|names| names.binary_search(name).is_ok() || is_there(name))
        };
        self.here.retain(|name, _| stays(name));
        self.fetched.retain(stays);
        self.unsent.retain(|(_, _, name), _| stays(name));
        for chunk in new {
            self.here.insert(chunk.name, chunk.cost());
            if !self.fetched.contains(&chunk.name) {
                let key = (chunk.fingerprint, chunk.start, chunk.name);
                self.unsent.insert(key, chunk);
            }
        }
        self.bytes = self.here.values().sum();
        Ok(())
    }

    fn send(&mut self, moved: &mut Moved) -> Result<bool, MirrorError> {
        let begin = moved.sent_bytes;
        let is_over = |moved: &Moved| moved.sent_bytes - begin > SENT_IN_A_TURN;
        'turn: while let Some((&(of, ..), _)) = self.unsent.first_key_value() {
            let some = self.unsent.iter().take(AT_ONCE);
            let some = some.take_while(|((fingerprint, ..), _)| *fingerprint == of);
            let some: Vec<_> = some.map(|(key, chunk)| (*key, chunk.clone())).collect();
            let names: Vec<_> = some
                .iter()
                .map(|(_, chunk)| (chunk.name, chunk.cost()))
                .collect();
            let there = self.remote.0.has(&of, &names)?;
            for ((key, chunk), there) in some.iter().zip(there) {
                // It may have been removed since, or be damaged: a server will find that out.
                if let (false, Ok(whole)) = (there, self.folder.whole(chunk)) {
                    self.remote.0.put(&of, &chunk.name, chunk.cost(), &whole)?;
                    moved.sent += 1;
                    moved.sent_bytes += whole.len() as u64;
                    self.known.add([chunk.name]);
                }
                self.unsent.remove(key);
                if is_over(moved) {
                    break 'turn;
                }
            }
        }
        if moved.sent_bytes > begin {
            self.remote.0.publish()?;
        }
        Ok(self.unsent.is_empty())
    }

    /// Only for models that servers here have used the folder for: others are of no use here. If the folder has no room,
    /// the rest is fetched when it has some again.
    fn fetch(&mut self, moved: &mut Moved) -> Result<bool, MirrorError> {
        let mut is_all = true;
        let most = (self.limit / 10).saturating_mul(BEYOND);
        for origin in self.folder.origins_within(LATELY) {
            let of = origin.fingerprint;
            let begin = moved.fetched_bytes;
            'of_model: loop {
                let some = match self.seen.get(&of) {
                    None => self.latest(&of)?,
                    Some(&nth) => {
                        let some = self.remote.0.after(&of, nth, AT_ONCE)?;
                        self.known.add(some.iter().map(|listed| listed.name));
                        some
                    }
                };
                let is_over = some.len() < AT_ONCE;
                for listed in some {
                    if !self.here.contains_key(&listed.name) && self.bytes >= most {
                        break 'of_model;
                    }
                    self.take(&of, &listed, moved)?;
                    self.seen.insert(of, listed.nth);
                    if moved.fetched_bytes - begin > FETCHED_IN_A_TURN {
                        is_all = false;
                        break 'of_model;
                    }
                }
                if is_over {
                    break;
                }
            }
        }
        Ok(is_all)
    }

    /// Of what was sent before this began, as many of the last ones as there is room for, in order.
    fn latest(&mut self, of: &Fingerprint) -> Result<Vec<Listed>, RemoteError> {
        let mut room = (self.limit / 10 * FILLED).saturating_sub(self.bytes);
        let last = self.remote.0.last(of, LOOK_BACK)?;
        self.known.add(last.iter().map(|listed| listed.name));
        let newest = last.first().map_or(0, |listed| listed.nth);
        let fits = |listed: &Listed| {
            let size = if self.here.contains_key(&listed.name) {
                0
            } else {
                listed.size
            };
            let left = room.checked_sub(size);
            room = left.unwrap_or(0);
            left.is_some()
        };
        let mut some: Vec<Listed> = last.into_iter().take_while(fits).collect();
        some.reverse();
        if some.is_empty() {
            self.seen.insert(*of, newest);
        }
        Ok(some)
    }

    /// Fetches a chunk, and what it continues.
    fn take(
        &mut self,
        of: &Fingerprint,
        listed: &Listed,
        moved: &mut Moved,
    ) -> Result<(), MirrorError> {
        let mut names = vec![(listed.name, Some(listed))];
        while let Some((name, listed)) = names.pop() {
            if self.here.contains_key(&name) {
                continue;
            }
            let Fetched { size, chunk } = fetch_chunk(&mut self.remote, of, &name)?;
            let Some((chunk, rows)) = chunk else {
                moved.damaged += u64::from(size.is_some());
                self.known.remove(&name);
                if let Some(listed) = listed {
                    self.remote.0.forget(of, listed)?;
                }
                continue;
            };
            self.write(&chunk, rows)?;
            moved.fetched += 1;
            moved.fetched_bytes += size.unwrap_or(0);
            names.extend(chunk.parent.map(|(parent, _)| (parent, None)));
        }
        Ok(())
    }

    fn write(&mut self, chunk: &Chunk, rows: Vec<u8>) -> Result<(), MirrorError> {
        let rows = Arc::new(rows);
        let mut written = self.writer.write(chunk, Arc::clone(&rows));
        if written == Err(Refusal::Full) {
            self.writer.flush(DISK);
            written = self.writer.write(chunk, rows);
        }
        written.map_err(MirrorError::Writer)?;
        self.note_failed();
        if self.here.insert(chunk.name, chunk.cost()).is_none() {
            self.bytes += chunk.cost();
        }
        self.fetched.insert(chunk.name);
        Ok(())
    }

    /// What the writer could not write is not here.
    fn note_failed(&mut self) {
        for done in self.writer.done() {
            if let Done::Failed(name, _) = done {
                self.fetched.remove(&name);
                let size = self.here.remove(&name);
                self.bytes = self.bytes.saturating_sub(size.unwrap_or(0));
            }
        }
    }
}

/// What a remote gave.
pub(crate) struct Fetched {
    /// Bytes, if there was anything.
    size: Option<u64>,
    /// The chunk and its rows, if that is what was there, and whole.
    pub(crate) chunk: Option<(Chunk, Vec<u8>)>,
}

/// Asks for a chunk.
pub(crate) fn fetch_chunk(
    remote: &mut Remote,
    of: &Fingerprint,
    name: &Name,
) -> Result<Fetched, RemoteError> {
    let whole = remote.0.get(of, name)?;
    let size = whole.as_ref().map(|whole| whole.len() as u64);
    let chunk = whole.and_then(|whole| read_whole(whole).ok());
    let chunk = chunk.filter(|(chunk, _)| chunk.name == *name && chunk.fingerprint == *of);
    Ok(Fetched { size, chunk })
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.writer.flush(DISK);
    }
}

/// Why nothing is moved now.
#[derive(Debug)]
#[non_exhaustive]
pub enum MirrorError {
    /// The folder cannot be read.
    Folder(io::Error),
    /// The folder takes nothing.
    Writer(Refusal),
    /// The remote is of no use.
    Remote(RemoteError),
}

impl From<RemoteError> for MirrorError {
    fn from(error: RemoteError) -> Self {
        Self::Remote(error)
    }
}

impl fmt::Display for MirrorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(error) => write!(f, "the folder cannot be read ({error})"),
            Self::Writer(Refusal::Full) => f.write_str("the disk is too slow"),
            Self::Writer(_) => f.write_str("the folder cannot be written: is its disk full?"),
            Self::Remote(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for MirrorError {}

#[cfg(test)]
mod tests;
