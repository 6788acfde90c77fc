use std::ffi::OsString;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contextpilot_private_folder::{Base, PrivateFolder};

use crate::Identity;
use crate::file::MAX_NUMBER;
use crate::recent::file::Ring;
use crate::recent::{Map, Recent};

mod running;
#[cfg(test)]
mod tests;

pub use running::MAX_CHANGES;
use running::{Belief, Running};

/// The least time between two writes of [`Journal::flush_if_due`].
pub const INTERVAL: Duration = Duration::from_millis(250);

/// The ids that the index believes to be cached, in memory and, a little later, on disk.
///
/// If it cannot be opened, it is off, and a line says so. If it cannot be written later, a line says so, and
/// after a while a new file with all ids is tried. The server goes on either way, and meanwhile the evictions by
/// a crash are not reported.
pub struct Journal {
    state: State,
    ring: Option<Ring>,
    log: fn(&str),
}

enum State {
    On(Box<Running>),
    Off,
}

impl Journal {
    /// Opens the journal of this instance in the user's state folder,
    /// `$XDG_STATE_HOME/contextpilot-llama` or `~/.local/state/contextpilot-llama`.
    /// `lookup` reads environment variables. Otherwise like [`open`](Self::open).
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
                     your own; without one, evictions by a crash are not reported"
                ));
                (Self::off(log), Vec::new())
            }
        }
    }

    /// Opens the journal of this instance, and returns the ids that its last
    /// process left: the index believes them to be cached, but their KV cache died with
    /// that process. They stay in the journal until [`note_gone`](Self::note_gone), so
    /// a crash while they are being reported loses none.
    ///
    /// The file is locked for the life of this process. A file that is not locked belongs
    /// to a dead process, so no id of a living server is ever reported. Two servers may
    /// have the same [`Identity`]: then the second takes a file with the next number, up
    /// to 16. The next start takes over the files of all dead processes, also of those with
    /// another identity, the same index and the same machine. Beyond 16, or
    /// where the file system cannot lock, there is no journal.
    ///
    /// Files of other instances are removed if no process holds them and they were not written
    /// for 30 days.
    ///
    /// If there is a `map`, and the system has shared memory, there is a
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
                     address have one. Evictions by a crash of this one are not reported; \
                     give each server a port of its own"
                ));
                (Self::off(log), Vec::new())
            }
            Err((path, error)) => {
                log(&format!(
                    "[ContextPilot] no journal: {path} cannot be used ({error}). Evictions by a \
                     crash are not reported; set XDG_STATE_HOME to a folder on a disk that can be \
                     written to"
                ));
                (Self::off(log), Vec::new())
            }
        }
    }

    /// A journal that keeps nothing.
    pub fn off(log: fn(&str)) -> Self {
        Self {
            state: State::Off,
            ring: None,
            log,
        }
    }

    /// Whether it keeps the ids that are noted.
    pub fn is_on(&self) -> bool {
        matches!(self.state, State::On(_))
    }

    /// The ring that keeps ids until they are in the file, so that they need not be written at
    /// once. `None`: there is no memory for it, or the next start would not find it.
    pub fn recent(&self) -> Option<Recent> {
        self.ring.as_ref().map(|ring| ring.recent)
    }

    /// The index believes this id to be cached from now on. Call it when the request
    /// arrives, not when it is cached: the index believes it from when it sends the request.
    ///
    /// Some ids are not kept, and the first of them is logged: ids that are empty or longer
    /// than [`MAX_ID_BYTES`](crate::MAX_ID_BYTES), and ids beyond
    /// [`MAX_IDS`](crate::MAX_IDS) or [`MAX_LIVE_BYTES`](crate::MAX_LIVE_BYTES).
    pub fn note_live(&mut self, id: &Arc<str>) {
        let log = self.log;
        self.on(|open| open.live(id, log));
    }

    /// The id was evicted, and this is to be reported to the index. Until
    /// [`note_gone`](Self::note_gone) it stays live in the file.
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

    /// The eviction of the id was reported to the index, or need not or cannot be reported.
    ///
    /// Nothing happens if the id became live again after
    /// [`note_evicted`](Self::note_evicted): the report was about its earlier request. So a
    /// caller whose reports take time may call this whenever one of them ends.
    pub fn note_gone(&mut self, id: &str) {
        self.on(|open| open.gone(id));
    }

    /// Writes what has changed, unless this wrote less than [`INTERVAL`] ago.
    pub fn flush_if_due(&mut self, now: Instant) {
        self.on(|open| {
            if open.due(now).is_none_or(|due| now < due) {
                return Ok(());
            }
            open.next_write = now.checked_add(INTERVAL);
            open.flush()
        });
    }

    /// Whether everything that was noted is in the file. If so, and if the file of
    /// [`recent`](Self::recent) was removed meanwhile, this drops it: the next start would not
    /// find it. So call this now and then.
    pub fn is_written(&mut self) -> bool {
        let written = match &self.state {
            State::On(open) => open.is_written(),
            State::Off => true,
        };
        if written && self.ring.as_ref().is_some_and(|ring| !ring.has_name()) {
            self.ring = None;
        }
        written
    }

    /// When to call [`flush_if_due`](Self::flush_if_due) next. A time of `now` or earlier
    /// means at once. `None`: nothing has changed.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        match &self.state {
            State::On(open) => open.due(now),
            State::Off => None,
        }
    }

    /// Writes what has changed, at once. After a failed write, only if it is time to try again.
    pub fn flush(&mut self) {
        self.on(|open| match open.retry {
            Some(retry) if Instant::now() < retry => Ok(()),
            _ => open.flush(),
        });
    }

    /// Ends the journal when the server ends cleanly. The next start reports the ids that are
    /// left. If there are none, the file is removed. Returns whether the file has every id: not if it is off or
    /// cannot be written, nor if ids were too many or too long for it.
    pub fn close(mut self) -> bool {
        self.on(Running::flush);
        let State::On(open) = self.state else {
            return false;
        };
        if !open.is_written() {
            // The ring has ids that the file lacks, and the next start reads both.
            return false;
        }
        if let Some(ring) = &self.ring {
            ring.remove();
        }
        if open.ids.is_empty() {
            // If this fails, the file has no live ids, so it does no harm.
            let _ = open.file.remove(&open.folder);
        }
        !open.refusal_said
    }

    fn on(&mut self, action: impl FnOnce(&mut Running) -> io::Result<()>) {
        let State::On(open) = &mut self.state else {
            return;
        };
        let failed = open.retry.is_some();
        let path = |open: &Running| open.file.path(&open.folder);
        match action(open) {
            Ok(()) if failed && open.retry.is_none() => (self.log)(&format!(
                "[ContextPilot] the journal {:?} can be written again, and has everything",
                path(open)
            )),
            Ok(()) => {}
            Err(error) => {
                if open.fail(Instant::now()) {
                    (self.log)(&format!(
                        "[ContextPilot] the journal {:?} cannot be written ({error}): evictions by \
                         a crash may not be reported until it can be, which is tried every few \
                         seconds. Check the disk",
                        path(open)
                    ));
                }
            }
        }
    }
}

/// Shows the number of ids and the file, but no ids: this may end up in a log.
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
            State::Off => f.write_str("Journal(off)"),
        }
    }
}
