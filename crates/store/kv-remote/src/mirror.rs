//! What is sent, and what is fetched.

mod models;
mod take;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contextpilot_kv_files::{Done, Folder, Header, Refusal, Watch, Writer};
use contextpilot_kv_store::{Chunk, Fingerprint, Name};

use self::models::Models;
use crate::known::Known;
use crate::remote::{Remote, RemoteError, Sending};

/// Chunks of one question.
const AT_ONCE: usize = 256;
/// Chunks that are listed with one question, at the beginning.
const LISTED_AT_ONCE: usize = 4096;
/// Of what others sent before this began, so many chunks of a model are looked at.
const LOOK_BACK: usize = 1 << 20;
/// Bytes that are fetched in one turn, at least, before something is sent again.
const FETCHED_IN_A_TURN: u64 = 64 << 20;
/// Bytes that are sent in one turn, at least, before something is fetched. Few in a test, so that it has several turns.
const SENT_IN_A_TURN: u64 = if cfg!(test) { 1 << 10 } else { 16 << 20 };
/// Sent at once: so many chunks, and so many bytes.
const SENT_AT_ONCE: (usize, u64) = (16, 4 << 20);
/// Chunks that are refused in a turn, before there is a pause.
const REFUSED_IN_A_TURN: u64 = 256;
/// Bytes of rows that wait for the disk.
pub(crate) const QUEUE: u64 = 64 << 20;
/// How long the disk may take for them.
pub(crate) const DISK: Duration = Duration::from_secs(30);
/// Chunks are fetched for models that servers here have used within this time.
const LATELY: Duration = Duration::from_secs(7 * 24 * 3600);
/// At the beginning the folder is filled up to so many tenths of its limit. What servers here write needs the rest.
const FILLED: u64 = 9;
/// Nothing is fetched while the folder has so many tenths of its limit. A server here lets what is beyond the limit go
/// within two seconds, and meanwhile fetching goes on. Without a server, nothing is let go.
const BEYOND: u64 = 11;
/// A remote that says it began anew is believed at most so often.
const ANEW: Duration = Duration::from_secs(30);
/// What was refused is not asked for again for so long.
const REFUSED_FOR: Duration = Duration::from_secs(600);
/// So many of those are known.
const MOST_REFUSED: usize = 1 << 16;

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
    /// What is there and was not taken, as it cannot be what a server sent.
    pub refused: u64,
    /// Why the last of these was not.
    pub why_refused: Option<&'static str>,
}

impl Moved {
    fn refuse(&mut self, count: u64, why: &'static str) {
        if count > 0 {
            self.refused += count;
            self.why_refused = Some(why);
        }
    }
}

/// What is left to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// Nothing: both are alike.
    Alike,
    /// Something, after a pause: it would cost too much at once.
    Later,
    /// Something, now.
    More,
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
    /// What came from there, and its size on the disk.
    fetched: HashMap<Name, u64>,
    /// The most bytes that servers here have written or used, since this began: all but what came from there.
    own_bytes: u64,
    /// What the remote is known to have.
    known: Known,
    models: Models,
    /// What was refused, and when.
    refused: HashMap<Name, Instant>,
    /// What did not come in time, once.
    late: Option<Name>,
    /// Headers of what was written last: it may not be in the folder yet.
    written: HashMap<Name, Chunk>,
    /// The remote was of no use. It may be another one when it is there again.
    is_lost: bool,
    /// The remote has begun anew, and when that was last believed.
    is_anew: bool,
    anew_at: Option<Instant>,
    /// Nothing is to be fetched any more.
    is_over: Box<dyn Fn() -> bool + Send>,
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
            fetched: HashMap::new(),
            own_bytes: 0,
            known: Known::default(),
            models: Models::default(),
            refused: HashMap::new(),
            late: None,
            written: HashMap::new(),
            is_lost: false,
            is_anew: false,
            anew_at: None,
            is_over: Box::new(|| false),
        })
    }

    /// Fetching ends soon after this says so: what is new here is to be sent.
    pub fn fetch_until(&mut self, is_over: impl Fn() -> bool + Send + 'static) {
        self.is_over = Box::new(is_over);
    }

    /// The remote.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// What the remote has, as far as that is known.
    pub fn known(&self) -> Known {
        self.known.clone()
    }

    /// How many chunks wait to be compared with the remote, and sent if it lacks them.
    pub fn waiting(&self) -> usize {
        self.unsent.len()
    }

    /// Asks whether the remote can be used: a turn in which nothing is to be moved asks nothing.
    ///
    /// # Errors
    /// It cannot.
    pub fn reach(&mut self) -> Result<(), MirrorError> {
        let reached = self.remote.reach();
        self.note(reached.map_err(MirrorError::Remote))
    }

    /// Sends what is new here, and fetches what is new there; of both not all at once. After an error of the remote the
    /// next turn compares all that is in both.
    ///
    /// # Errors
    /// The folder cannot be read, or the remote is of no use now. `moved` says what was done before.
    pub fn turn(&mut self, moved: &mut Moved) -> Result<Turn, MirrorError> {
        let sent = self.send_some(moved)?;
        let fetched = self.fetch(moved);
        Ok(self.note(fetched)?.max(sent))
    }

    /// Sends what is new here, and not all at once.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn send_some(&mut self, moved: &mut Moved) -> Result<Turn, MirrorError> {
        let is_due = self.anew_at.is_none_or(|at| at.elapsed() > ANEW);
        if self.is_anew && is_due {
            self.anew_at = Some(Instant::now());
            self.is_anew = false;
            self.is_lost = true;
        }
        if std::mem::take(&mut self.is_lost) {
            self.watch = Watch::new(self.folder.clone());
            self.here.clear();
            self.unsent.clear();
            self.fetched.clear();
            self.known.clear();
            self.models.forget();
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
        let looked = self.watch.look(|header: Header| new.push(header.chunk));
        let changed = looked.map_err(MirrorError::Folder)?;
        if self.watch.is_another() {
            // What was looked at before is not here any more.
            self.models.forget();
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
        self.fetched.retain(|name, _| stays(name));
        self.unsent.retain(|(_, _, name), _| stays(name));
        for chunk in new {
            self.here.insert(chunk.name, chunk.cost());
            if !self.fetched.contains_key(&chunk.name) {
                let key = (chunk.fingerprint, chunk.start, chunk.name);
                self.unsent.insert(key, chunk);
            }
        }
        self.bytes = self.here.values().sum();
        let own = self.bytes.saturating_sub(self.fetched_bytes());
        self.own_bytes = self.own_bytes.max(own);
        Ok(())
    }

    fn fetched_bytes(&self) -> u64 {
        self.fetched.values().sum()
    }

    /// Bytes that may be fetched now. Servers let go what was used longest ago, and what was fetched came just now. So
    /// that a remote with much of no use takes the place of no more than half of what they have used, as it was at
    /// its most, half of the limit is kept for that.
    fn room(&self) -> u64 {
        let most = (self.limit / 10).saturating_mul(BEYOND);
        let kept = self.own_bytes.min(self.limit / 2);
        let of_fetched = most
            .saturating_sub(kept)
            .saturating_sub(self.fetched_bytes());
        most.saturating_sub(self.bytes).min(of_fetched)
    }

    fn send(&mut self, moved: &mut Moved) -> Result<Turn, MirrorError> {
        let begin = moved.sent_bytes;
        let mut turn = Turn::Alike;
        let mut next = Fingerprint([0; 16]);
        'turn: while let Some((&(of, ..), _)) = self.unsent.range((next, 0, Name([0; 16]))..).next()
        {
            next = of;
            let unsent = self.unsent.range((of, 0, Name([0; 16]))..).take(AT_ONCE);
            let of_model = unsent.take_while(|((fingerprint, ..), _)| *fingerprint == of);
            let some: Vec<_> = of_model.map(|(key, chunk)| (*key, chunk.clone())).collect();
            let names: Vec<_> = some
                .iter()
                .map(|(_, chunk)| (chunk.name, chunk.cost()))
                .collect();
            let Some(there) = self.remote.0.has(&of, &names)? else {
                turn = Turn::Later;
                match following(of) {
                    Some(following) => next = following,
                    None => break,
                }
                continue;
            };
            let mut sending = Vec::new();
            let (mut bytes, mut keys) = (0, Vec::new());
            for (nth, ((key, chunk), there)) in some.iter().zip(there).enumerate() {
                keys.push(*key);
                // It may have been removed since, or be damaged: a server will find that out.
                if let (false, Ok(whole)) = (there, self.folder.whole(chunk)) {
                    bytes += whole.len() as u64;
                    sending.push(Sending {
                        name: chunk.name,
                        size: chunk.cost(),
                        whole,
                    });
                }
                let is_over = moved.sent_bytes + bytes - begin > SENT_IN_A_TURN;
                let is_much = sending.len() >= SENT_AT_ONCE.0 || bytes >= SENT_AT_ONCE.1;
                if is_over || is_much || nth + 1 == some.len() {
                    self.put(&of, &sending, moved)?;
                    sending.clear();
                    bytes = 0;
                    for key in keys.drain(..) {
                        self.unsent.remove(&key);
                    }
                }
                if is_over {
                    turn = Turn::More;
                    break 'turn;
                }
            }
        }
        if moved.sent_bytes > begin {
            self.remote.0.publish()?;
        }
        Ok(if self.unsent.is_empty() {
            Turn::Alike
        } else {
            turn
        })
    }

    fn put(
        &mut self,
        of: &Fingerprint,
        chunks: &[Sending],
        moved: &mut Moved,
    ) -> Result<(), MirrorError> {
        if !chunks.is_empty() {
            self.remote.0.put(of, chunks)?;
            moved.sent += chunks.len() as u64;
            moved.sent_bytes += chunks
                .iter()
                .map(|chunk| chunk.whole.len() as u64)
                .sum::<u64>();
            self.known.add(chunks.iter().map(|chunk| chunk.name));
        }
        Ok(())
    }

    /// Only for models that servers here have used the folder for: others are of no use here. If the folder has no room,
    /// the rest is fetched when it has some again.
    fn fetch(&mut self, moved: &mut Moved) -> Result<Turn, MirrorError> {
        self.models.read(&self.folder, LATELY);
        self.written.clear();
        let mut turn = Turn::Alike;
        // One model at a time is looked at for the first time, in turn with looking at what is new of the others: a thousand
        // cost no more at a time than one.
        let wanted = self.known.take_wanted();
        let first = self.models.next_new(&wanted);
        if let Some(at) = first {
            self.latest(at, moved)?;
        }
        let has_new = self.models.has_new();
        if has_new {
            turn = Turn::Later;
        }
        if !self.models.all.is_empty() && (first.is_none() || !has_new) {
            let asked = self.models.asked();
            let round = self.remote.0.round(&asked)?;
            if round.is_anew {
                self.is_anew = true;
            }
            if self.is_anew && self.anew_at.is_none_or(|at| at.elapsed() > ANEW) {
                return Ok(Turn::More);
            }
            self.models.note(&asked, &round.marks);
        }
        for at in self.models.due() {
            let begin = moved.refused;
            turn = turn.max(self.fetch_new(at, moved)?);
            if moved.refused - begin >= REFUSED_IN_A_TURN {
                turn = Turn::Later;
                break;
            }
        }
        Ok(turn)
    }

    /// Fetches what is new of a model.
    fn fetch_new(&mut self, at: usize, moved: &mut Moved) -> Result<Turn, MirrorError> {
        const PAGES: usize = 64;
        let (begin, refused) = (moved.fetched_bytes, moved.refused);
        let of = self.models.all[at].of;
        let seen = self.models.all[at].seen.unwrap_or(0);
        let mut nth = seen.saturating_sub(self.remote.0.overlap());
        for _ in 0..PAGES {
            if (self.is_over)() {
                return Ok(Turn::Alike);
            }
            let page = self.remote.0.after(&of, nth, AT_ONCE)?;
            moved.refuse(page.refused, "no chunk has such a line in a list");
            self.known.add(page.listed.iter().map(|listed| listed.name));
            for listed in page.listed {
                let looked = self.models.all[at].looked.get(&listed.name);
                if looked.is_some_and(|nth| *nth >= listed.nth) {
                    continue;
                }
                if !self.here.contains_key(&listed.name) && !self.is_refused(&listed.name) {
                    if listed.size > self.room() {
                        return Ok(Turn::Alike);
                    }
                    self.take(at, &listed, moved)?;
                }
                self.models.saw(at, listed.nth);
                self.models.all[at].looked.insert(listed.name, listed.nth);
                if moved.fetched_bytes - begin > FETCHED_IN_A_TURN {
                    return Ok(Turn::More);
                }
                if moved.refused - refused >= REFUSED_IN_A_TURN {
                    return Ok(Turn::Later);
                }
                if (self.is_over)() {
                    return Ok(Turn::Alike);
                }
            }
            let end = page.end.filter(|end| *end > nth);
            if let Some(end) = end {
                self.models.saw(at, end);
                nth = end;
            }
            if page.is_last || end.is_none() {
                self.models.all[at].is_due = false;
                self.models.forget_older(at, self.remote.0.overlap());
                return Ok(Turn::Alike);
            }
        }
        Ok(Turn::Later)
    }

    /// Finds out what was sent before this began, and from where on there is room for it.
    fn latest(&mut self, at: usize, moved: &mut Moved) -> Result<(), MirrorError> {
        let of = self.models.all[at].of;
        let filled = (self.limit / 10 * FILLED).saturating_sub(self.bytes);
        let mut room = filled.min(self.room());
        let (mut newest, mut oldest) = (0, None);
        // What there is no room for is not looked at again.
        let mut recent: HashMap<Name, u64> = HashMap::new();
        let (mut before, mut count, mut fits) = (None, 0, true);
        loop {
            let page = self.remote.0.before(&of, before, LISTED_AT_ONCE)?;
            moved.refuse(page.refused, "no chunk has such a line in a list");
            self.known.add(page.listed.iter().map(|listed| listed.name));
            for listed in &page.listed {
                newest = newest.max(listed.nth);
                if listed.nth.saturating_add(self.remote.0.overlap()) >= oldest.unwrap_or(newest) {
                    recent.insert(listed.name, listed.nth);
                }
                let is_here = self.here.contains_key(&listed.name);
                let left = room.checked_sub(if is_here { 0 } else { listed.size });
                fits &= left.is_some();
                if let Some(left) = left.filter(|_| fits) {
                    room = left;
                    oldest = Some(oldest.map_or(listed.nth, |oldest: u64| oldest.min(listed.nth)));
                }
            }
            count += LISTED_AT_ONCE;
            let end = page
                .end
                .filter(|end| before.is_none_or(|before| *end < before));
            if page.is_last || end.is_none() || count >= LOOK_BACK || (self.is_over)() {
                break;
            }
            before = end;
        }
        let seen = oldest.map_or(newest, |oldest| oldest.saturating_sub(1));
        let from = seen.saturating_sub(self.remote.0.overlap());
        recent.retain(|_, nth| (from..=seen).contains(nth));
        let model = &mut self.models.all[at];
        model.seen = Some(seen);
        model.looked = recent;
        model.is_due = oldest.is_some();
        Ok(())
    }

    fn is_refused(&self, name: &Name) -> bool {
        let at = self.refused.get(name);
        at.is_some_and(|at| at.elapsed() < REFUSED_FOR)
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
        self.fetched.insert(chunk.name, chunk.cost());
        self.written.insert(chunk.name, chunk.clone());
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

/// The fingerprint after this one, if there is one.
fn following(of: Fingerprint) -> Option<Fingerprint> {
    let next = u128::from_be_bytes(of.0).checked_add(1)?;
    Some(Fingerprint(next.to_be_bytes()))
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
