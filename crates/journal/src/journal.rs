use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use contextpilot_private_folder::{Base, PrivateFolder};

use crate::Identity;
use crate::file::{self, Found, JournalFile, MAX_NUMBER};
use crate::recent::file::{Ring, Rings};
use crate::recent::{Map, Recent};
use crate::record::{self, HEADER_BYTES, Kind, MAX_ID_BYTES, MAX_IDS, MAX_LIVE_BYTES};
use crate::sweep;

#[cfg(test)]
mod tests;

/// Between two writes, at least.
pub const INTERVAL: Duration = Duration::from_millis(250);

/// A smaller file is not compacted, bytes. That waits for the disk, so it had better
/// be rare.
const COMPACT_FROM: u64 = 1 << 20;

/// So many changes are written even before they are due: memory is bounded even
/// if nobody ever flushes.
pub const MAX_CHANGES: usize = 1 << 16;

/// The ids that the index believes in, in memory and, a little later, on disk.
///
/// Any error turns it off, with one line: the server goes on, and what a crash
/// takes with it is then not reported.
pub struct Journal {
    state: State,
    ring: Option<Ring>,
    log: fn(&str),
}

enum State {
    On(Box<Running>),
    /// What is on disk is no longer kept up to date, but still locked: else another
    /// start would take this process, which lives, for dead.
    Off {
        _lock: Option<File>,
    },
}

struct Running {
    folder: PrivateFolder,
    file: JournalFile,
    ids: HashMap<Arc<str>, Entry>,
    /// Ids whose entry may differ from the disk. May hold an id twice.
    changes: Vec<Arc<str>>,
    /// What the records of all `ids` take, bytes. With those that are gone, as a
    /// flush may write the new ones first, and a reader has the same cap.
    bytes: u64,
    /// Of the live records in the file, bytes.
    written_bytes: u64,
    next_write: Option<Instant>,
    buffer: Vec<u8>,
    /// It was said that an id cannot be kept.
    refusal_said: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    belief: Belief,
    /// Live on disk.
    written: bool,
    /// In `changes`.
    changed: bool,
}

/// What the index believes, and how well that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    /// Rightly.
    Live,
    /// Wrongly, until it is told.
    Evicted,
    /// Rightly again: the request came back while the index was being told that
    /// it had gone. What comes of that telling concerns the earlier life.
    Returned,
    /// Not any more; on disk it is still live.
    Gone,
}

impl Journal {
    /// Opens the journal of this instance in the user's state folder,
    /// `$XDG_STATE_HOME/contextpilot-llama` or `~/.local/state/contextpilot-llama`.
    /// `lookup` reads the environment. The rest is as with [`open`](Self::open).
    pub fn in_state_folder(
        lookup: impl Fn(&str) -> Option<OsString>,
        map: Option<Map>,
        identity: Identity,
        log: fn(&str),
    ) -> (Self, Vec<Arc<str>>) {
        match PrivateFolder::open(Base::State, lookup) {
            Ok(folder) => Self::open(folder, map, identity, log),
            Err(error) => {
                log(&format!(
                    "[ContextPilot] no journal: {error}. Set XDG_STATE_HOME to a folder of \
                     your own; without one, what a crash takes from the cache is not reported"
                ));
                (Self::off(log), Vec::new())
            }
        }
    }

    /// Opens the journal of this instance, and returns the ids that its last
    /// process left: the index believes in them, and their KV died with that
    /// process. They stay in the journal until [`note_gone`](Self::note_gone), so
    /// that a crash while they are being told loses none.
    ///
    /// The file is locked for the life of this process. What is not locked belongs
    /// to a process that is dead, so nothing that is live is ever reported, not even
    /// when two servers have the same [`Identity`]: the second takes a file with
    /// the next number, up to 16. Whoever starts next takes over all those whose
    /// processes have died. Beyond 16, or where the file system cannot lock, there
    /// is no journal.
    ///
    /// Files of other instances that nobody has held for a month are removed.
    ///
    /// With a `map`, and where the system has memory for it, there is a
    /// [`recent`](Self::recent) too.
    ///
    /// `log` gets lines that begin with `[ContextPilot]`, without a line end.
    pub fn open(
        folder: PrivateFolder,
        map: Option<Map>,
        identity: Identity,
        log: fn(&str),
    ) -> (Self, Vec<Arc<str>>) {
        match Running::start(folder, map, identity, log) {
            Ok(Some((open, ring, lost))) => {
                let journal = Self {
                    state: State::On(Box::new(open)),
                    ring,
                    log,
                };
                (journal, lost)
            }
            Ok(None) => {
                log(&format!(
                    "[ContextPilot] no journal: {MAX_NUMBER} servers with the same index and \
                     address have one. What a crash takes from this one is not reported; \
                     give each server a port of its own"
                ));
                (Self::off(log), Vec::new())
            }
            Err((path, error)) => {
                log(&format!(
                    "[ContextPilot] no journal: {path} cannot be used ({error}). What a crash \
                     takes from the cache is not reported; set XDG_STATE_HOME to a folder on a \
                     disk that can be written to"
                ));
                (Self::off(log), Vec::new())
            }
        }
    }

    /// One that keeps nothing.
    pub fn off(log: fn(&str)) -> Self {
        Self {
            state: State::Off { _lock: None },
            ring: None,
            log,
        }
    }

    /// Whether it keeps what it is told.
    pub fn is_on(&self) -> bool {
        matches!(self.state, State::On(_))
    }

    /// What keeps ids until they are in the file, so that they need not be written at
    /// once. `None`: there is no memory for it, or none that the next start would find.
    pub fn recent(&self) -> Option<Recent> {
        self.ring.as_ref().map(|ring| ring.recent)
    }

    /// The index believes in this id from now on. That is when the request
    /// arrives, not when it is cached: the index sent it.
    ///
    /// Ids that are empty or longer than [`MAX_ID_BYTES`], and any above
    /// [`MAX_IDS`], are not kept, which is said once.
    pub fn note_live(&mut self, id: &Arc<str>) {
        let log = self.log;
        self.on(|open| open.live(id, log));
    }

    /// It is gone from the cache, and the index is to be told. Until then it is
    /// as live in the file as before; the difference is for
    /// [`note_gone`](Self::note_gone) to see.
    pub fn note_evicted(&mut self, id: &str) {
        self.on(|open| {
            if let Some(entry) = open.ids.get_mut(id) {
                if entry.belief != Belief::Gone {
                    entry.belief = Belief::Evicted;
                }
            }
            Ok(())
        });
    }

    /// The index was told that it is gone, or need not or cannot be told.
    ///
    /// Nothing happens if the id became live after
    /// [`note_evicted`](Self::note_evicted): then this is about its earlier life.
    /// So a caller whose telling takes time may call in whatever order things
    /// turn out.
    pub fn note_gone(&mut self, id: &str) {
        self.on(|open| open.gone(id));
    }

    /// Writes what has changed, unless that was done less than [`INTERVAL`] ago.
    pub fn flush_if_due(&mut self, now: Instant) {
        self.on(|open| {
            if open.due(now).is_none_or(|due| now < due) {
                return Ok(());
            }
            open.next_write = now.checked_add(INTERVAL);
            open.flush()
        });
    }

    /// Whether everything that was noted is in the file. Asked now and then, it also finds
    /// out whether the next start would still find [`recent`](Self::recent).
    pub fn is_written(&mut self) -> bool {
        let written = match &self.state {
            State::On(open) => open.changes.is_empty(),
            State::Off { .. } => true,
        };
        if written && self.ring.as_ref().is_some_and(|ring| !ring.has_name()) {
            self.ring = None;
        }
        written
    }

    /// When to call [`flush_if_due`](Self::flush_if_due) next; `now` or earlier: at
    /// once. `None`: nothing has changed.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        match &self.state {
            State::On(open) => open.due(now),
            State::Off { .. } => None,
        }
    }

    /// Writes what has changed.
    pub fn flush(&mut self) {
        self.on(Running::flush);
    }

    /// The clean end: what is left will be reported by the next start; if nothing
    /// is, the file goes.
    pub fn close(mut self) {
        self.flush();
        if let State::On(open) = self.state {
            if let Some(ring) = &self.ring {
                ring.remove();
            }
            if open.ids.is_empty() {
                // If it stays, it is empty: no harm.
                let _ = open.file.remove(&open.folder);
            }
        }
    }

    fn on(&mut self, action: impl FnOnce(&mut Running) -> io::Result<()>) {
        let State::On(open) = &mut self.state else {
            return;
        };
        let Err(error) = action(open) else { return };
        (self.log)(&format!(
            "[ContextPilot] the journal {:?} cannot be written ({error}): it is off until the \
             next start, and a crash before that leaves ids in the index. Check the disk",
            open.file.path(&open.folder)
        ));
        let off = State::Off { _lock: None };
        if let State::On(open) = std::mem::replace(&mut self.state, off) {
            let lock = Some(open.file.into_lock());
            self.state = State::Off { _lock: lock };
        }
    }
}

/// `None`: every number is taken. An error comes with the path, as a message
/// shows it.
type Start = Result<Option<(Running, Option<Ring>, Vec<Arc<str>>)>, (String, io::Error)>;

impl Running {
    fn start(folder: PrivateFolder, map: Option<Map>, identity: Identity, log: fn(&str)) -> Start {
        let at_folder = |error| (format!("{:?}", folder.path()), error);
        let rings = map.and_then(|map| Rings::of(&folder, map, identity));
        let mut own = None;
        let mut lost = Vec::new();
        let mut dead = Vec::new();
        let mut left = Vec::new();
        for number in 1..=MAX_NUMBER {
            let create = own.is_none();
            if lost.len() >= MAX_IDS {
                // The rest waits for the next start.
                break;
            }
            let found = file::take(&folder, identity, number, create, log).map_err(at_folder)?;
            let Found::Ours(file, ids) = found else {
                continue;
            };
            left.extend(rings.as_ref().and_then(|rings| rings.left(number, log)));
            if create {
                own = Some((file, number, ids.len()));
            } else {
                dead.push(file);
            }
            lost.extend(ids);
        }
        let Some((file, number, own_ids)) = own else {
            return Ok(None);
        };
        for ring in &mut left {
            lost.append(&mut ring.ids);
        }

        let mut open = Self {
            folder,
            file,
            ids: HashMap::new(),
            changes: Vec::new(),
            bytes: 0,
            written_bytes: 0,
            next_write: None,
            buffer: Vec::new(),
            refusal_said: false,
        };
        for (i, id) in lost.iter().enumerate() {
            if i < own_ids {
                let size = record::size(id);
                open.bytes += size;
                open.written_bytes += size;
                open.ids.insert(Arc::clone(id), Entry::on_disk());
            } else if let Err(error) = open.live(id, log) {
                return Err((format!("{:?}", open.file.path(&open.folder)), error));
            } else if let Some(entry) = open.ids.get_mut(id) {
                entry.belief = Belief::Evicted;
            }
        }
        if let Err(error) = open.flush() {
            return Err((format!("{:?}", open.file.path(&open.folder)), error));
        }
        for file in dead {
            // If it stays, its ids are told once more.
            let _ = file.remove(&open.folder);
        }
        let ring = rings.and_then(|rings| {
            for ring in &left {
                rings.remove(ring);
            }
            rings.sweep();
            rings.create(number)
        });
        sweep::sweep(&open.folder, &identity, SystemTime::now());
        let mut seen = HashSet::new();
        lost.retain(|id| seen.insert(Arc::clone(id)));
        Ok(Some((open, ring, lost)))
    }

    fn live(&mut self, id: &Arc<str>, log: fn(&str)) -> io::Result<()> {
        if let Some(entry) = self.ids.get_mut(id) {
            match entry.belief {
                Belief::Live | Belief::Returned => {}
                Belief::Evicted => entry.belief = Belief::Returned,
                Belief::Gone => entry.belief = Belief::Live,
            }
            return Ok(());
        }
        let size = record::size(id);
        let why = if id.is_empty() {
            Some("it is empty")
        } else if id.len() > MAX_ID_BYTES {
            Some("it is longer than 512 bytes")
        } else if self.ids.len() >= MAX_IDS || self.bytes + size > MAX_LIVE_BYTES {
            Some("the journal is full")
        } else {
            None
        };
        if let Some(why) = why {
            if !self.refusal_said {
                self.refusal_said = true;
                log(&format!(
                    "[ContextPilot] the journal does not keep a request id ({why}), nor others \
                     like it: if the server crashes, the index will not hear of them"
                ));
            }
            return Ok(());
        }
        self.bytes += size;
        self.ids.insert(
            Arc::clone(id),
            Entry {
                belief: Belief::Live,
                written: false,
                changed: true,
            },
        );
        self.changed(Arc::clone(id))
    }

    fn gone(&mut self, id: &str) -> io::Result<()> {
        let Some(entry) = self.ids.get_mut(id) else {
            return Ok(());
        };
        if matches!(entry.belief, Belief::Returned | Belief::Gone) {
            return Ok(());
        }
        if !entry.written {
            self.bytes -= record::size(id);
            self.ids.remove(id);
            return Ok(());
        }
        entry.belief = Belief::Gone;
        if std::mem::replace(&mut entry.changed, true) {
            return Ok(());
        }
        self.changed(Arc::from(id))
    }

    fn changed(&mut self, id: Arc<str>) -> io::Result<()> {
        self.changes.push(id);
        if self.changes.len() < MAX_CHANGES {
            return Ok(());
        }
        self.flush()
    }

    fn due(&self, now: Instant) -> Option<Instant> {
        let due = self.next_write.unwrap_or(now);
        (!self.changes.is_empty()).then_some(due)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.buffer.clear();
        let identity = *self.file.identity();
        for id in self.changes.drain(..) {
            // Not there: it came and went.
            let Some(entry) = self.ids.get_mut(&id) else {
                continue;
            };
            entry.changed = false;
            let live = entry.belief != Belief::Gone;
            if live && !entry.written {
                entry.written = true;
                self.written_bytes += record::size(&id);
                record::write(&mut self.buffer, &identity, Kind::Live, &id);
            } else if !live && entry.written {
                self.ids.remove(&id);
                self.bytes -= record::size(&id);
                self.written_bytes -= record::size(&id);
                record::write(&mut self.buffer, &identity, Kind::Gone, &id);
            }
        }
        if self.buffer.is_empty() {
            return Ok(());
        }
        let length = self.file.length() + self.buffer.len() as u64;
        let dead = length - HEADER_BYTES as u64 - self.written_bytes;
        if length > COMPACT_FROM && dead > self.written_bytes {
            // All entries are live and written by now.
            self.file.compact(&self.folder, self.ids.keys())
        } else {
            self.file.append(&self.buffer)
        }
    }
}

impl Entry {
    /// As the last process left it.
    fn on_disk() -> Self {
        Self {
            belief: Belief::Evicted,
            written: true,
            changed: false,
        }
    }
}

/// The number of ids and the file, but no ids: this may end up in a log.
impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::On(open) => write!(
                f,
                "Journal({} ids, {} bytes in {:?})",
                open.ids.len(),
                open.file.length(),
                open.file.path(&open.folder)
            ),
            State::Off { .. } => f.write_str("Journal(off)"),
        }
    }
}
