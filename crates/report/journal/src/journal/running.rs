//! A journal that is on: the ids in memory, and when their records are written.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use contextpilot_private_folder::PrivateFolder;

use crate::Identity;
use crate::file::{self, Found, JournalFile, MAX_NUMBER};
use crate::recent::Map;
use crate::recent::file::{Ring, Rings};
use crate::record::{self, HEADER_BYTES, Kind, MAX_ID_BYTES, MAX_IDS, MAX_LIVE_BYTES};
use crate::relatives;

/// At this many changes the journal is written even if that is not due, so its memory is
/// bounded even if the caller never flushes.
pub const MAX_CHANGES: usize = 1 << 16;

/// How long to wait after a write that failed before the next one. It doubles with each failure, so that a
/// disk that is now full and now not brings a few lines a minute at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(16);

/// A file up to this size is not compacted, bytes. Compaction waits for the disk, so it
/// should be rare.
pub(super) const COMPACT_FROM: u64 = 1 << 20;

pub(super) struct Running {
    pub(super) folder: PrivateFolder,
    pub(super) file: JournalFile,
    pub(super) ids: HashMap<Arc<str>, Entry>,
    /// Ids whose entry may differ from the disk. May hold an id twice.
    pub(super) changes: Vec<Arc<str>>,
    /// The size of the records of all `ids`, bytes. Counts ids that are gone until that is
    /// flushed: a flush may write new ids before it writes that others are gone, and a reader
    /// accepts no more than [`MAX_LIVE_BYTES`] at any point of the file.
    pub(super) bytes: u64,
    /// The size of the live records in the file, bytes.
    pub(super) written_bytes: u64,
    pub(super) next_write: Option<Instant>,
    /// The last write failed, so the file may end within a record: when to try a new file with all ids. Until
    /// then only `ids` and `bytes` are kept up to date.
    pub(super) retry: Option<Instant>,
    /// How long to wait after the next failure.
    pub(super) pause: Duration,
    pub(super) buffer: Vec<u8>,
    /// The log line about ids that cannot be kept was written.
    pub(super) refusal_said: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) belief: Belief,
    /// The file has it as live.
    pub(super) written: bool,
    /// It is in `changes`.
    pub(super) changed: bool,
}

/// What the index believes of an id, and whether it is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belief {
    /// The index believes it to be cached, and it is, or will be.
    Live,
    /// The index believes it to be cached, but it was evicted. The report is under way.
    Evicted,
    /// The id came again while its eviction was being reported. The end of that report
    /// concerns its earlier request.
    Returned,
    /// The eviction was reported. The file still has the id as live.
    Gone,
}

/// The journal, its ring, and the ids that dead processes left. `None`: every number is
/// taken. An error comes with the path, as a message shows it.
pub(super) type Start = Result<Option<(Running, Option<Ring>, Vec<Arc<str>>)>, (String, io::Error)>;

impl Running {
    pub(super) fn start(
        folder: PrivateFolder,
        map: Option<Map>,
        identity: Identity,
        log: fn(&str),
    ) -> Start {
        let at_folder = |error| (format!("{:?}", folder.path()), error);
        let rings = map.and_then(|map| Rings::new(&folder, map));
        let mut own = None;
        let mut lost = Vec::new();
        let mut dead = Vec::new();
        let mut left = Vec::new();
        for number in 1..=MAX_NUMBER {
            let create = own.is_none();
            if lost.len() >= MAX_IDS {
                // The next start takes the other files.
                break;
            }
            let found = file::lock(&folder, identity, number, create, log).map_err(at_folder)?;
            let Found::Ours(file, ids) = found else {
                continue;
            };
            left.extend(
                rings
                    .as_ref()
                    .and_then(|rings| rings.left(&identity, number, log)),
            );
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
        for (relative, number) in relatives::journals(&folder, &identity) {
            if lost.len() >= MAX_IDS {
                break;
            }
            // Whatever is wrong with it is for its own next start.
            let found = file::lock(&folder, relative, number, false, log);
            let Ok(Found::Ours(file, ids)) = found else {
                continue;
            };
            left.extend(
                rings
                    .as_ref()
                    .and_then(|rings| rings.left(&relative, number, log)),
            );
            dead.push(file);
            lost.extend(ids);
        }
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
            retry: None,
            pause: FIRST_PAUSE,
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
            // If this fails, the next start reports its ids once more.
            let _ = file.remove(&open.folder);
        }
        let ring = rings.and_then(|rings| {
            for ring in &left {
                rings.remove(ring);
            }
            rings.sweep();
            rings.create(&identity, number)
        });
        relatives::sweep(&open.folder, &identity, SystemTime::now());
        let mut seen = HashSet::new();
        lost.retain(|id| seen.insert(Arc::clone(id)));
        Ok(Some((open, ring, lost)))
    }

    pub(super) fn live(&mut self, id: &Arc<str>, log: fn(&str)) -> io::Result<()> {
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
                     like it: if the server crashes, their evictions are not reported"
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

    pub(super) fn gone(&mut self, id: &str) -> io::Result<()> {
        let Some(entry) = self.ids.get_mut(id) else {
            return Ok(());
        };
        if matches!(entry.belief, Belief::Returned | Belief::Gone) {
            return Ok(());
        }
        if !entry.written || self.retry.is_some() {
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
        if self.retry.is_some() {
            return Ok(());
        }
        self.changes.push(id);
        if self.changes.len() < MAX_CHANGES {
            return Ok(());
        }
        self.flush()
    }

    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        if self.retry.is_some() {
            return self.retry;
        }
        let due = self.next_write.unwrap_or(now);
        (!self.changes.is_empty()).then_some(due)
    }

    /// Whether everything that was noted is in the file.
    pub(super) fn is_written(&self) -> bool {
        self.changes.is_empty() && self.retry.is_none()
    }

    /// Notes that a write failed. Returns true if the write before it did not fail.
    pub(super) fn fail(&mut self, now: Instant) -> bool {
        let retry = now.checked_add(self.pause).unwrap_or(now);
        self.pause = LONGEST_PAUSE.min(self.pause * 2);
        let before = self.retry.replace(retry);
        self.changes = Vec::new();
        let bytes = &mut self.bytes;
        self.ids.retain(|id, entry| {
            let stays = entry.belief != Belief::Gone;
            *bytes -= if stays { 0 } else { record::size(id) };
            stays
        });
        before.is_none()
    }

    /// After a failure: replaces the file by one with all ids.
    fn write_anew(&mut self) -> io::Result<()> {
        self.file.compact(&self.folder, self.ids.keys())?;
        self.retry = None;
        self.written_bytes = self.bytes;
        for entry in self.ids.values_mut() {
            entry.written = true;
            entry.changed = false;
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        if self.retry.is_some() {
            return self.write_anew();
        }
        self.buffer.clear();
        let identity = *self.file.identity();
        for id in self.changes.drain(..) {
            // It came and went between two flushes.
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
            // All entries are live, and were marked as written above.
            self.file.compact(&self.folder, self.ids.keys())
        } else {
            self.file.append(&self.buffer)
        }
    }
}

impl Entry {
    /// The entry of an id that the last process left.
    fn on_disk() -> Self {
        Self {
            belief: Belief::Evicted,
            written: true,
            changed: false,
        }
    }
}
