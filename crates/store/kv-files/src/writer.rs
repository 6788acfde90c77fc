//! The thread that writes, and what others ask of it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contextpilot_admission::STACK;
use contextpilot_kv_store::{Chunk, Fingerprint, Name, Numbers, Origin, StateMap};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};

use crate::Folder;

mod disk;
mod rows;
mod spare;
mod thread;

use rows::{Rows, Waiting};
use spare::Spares;
pub use thread::Done;
use thread::{Job, Note, Over, WriterShared};

/// How many names wait to be touched, at most. More are forgotten: the order of their last uses
/// is not that important.
const MOST_TOUCHED: usize = 1 << 16;

/// Writes, removes and touches files, on a thread of its own and in the order in which it was told.
///
/// No method waits for the disk or for the thread, except [`flush`](Self::flush). The thread takes
/// no lock for longer than a few instructions, and none that [`write`](Self::write) takes: it has a
/// low priority, and a thread that waited for its lock would have the same.
///
/// When it is dropped, the thread does what is queued, and ends.
#[derive(Debug)]
pub struct Writer {
    jobs: Sender<Job>,
    done: Receiver<Over>,
    spares: Spares,
    shared: Arc<WriterShared>,
    queue_bytes: u64,
    /// What the thread was asked for and has not done yet.
    pending: Mutex<HashMap<Name, Waiting>>,
}

/// Why a chunk was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue has no room. The disk is slower than what comes.
    Full,
    /// Writing failed a short time ago.
    Paused,
    /// The thread has ended.
    Stopped,
}

impl Writer {
    /// Starts the thread, which first calls `on_start`, then removes what dead processes were
    /// writing. `queue_bytes` bounds the rows that wait; what is asked for while none do is always taken. While `is_busy`
    /// says that others compute, the thread rests for most of the time.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        folder: Folder,
        queue_bytes: u64,
        on_start: fn(),
        is_busy: fn() -> bool,
    ) -> io::Result<Self> {
        let (jobs, inbox) = unbounded();
        let (outbox, done) = unbounded();
        let spares = Spares::new();
        let shared = Arc::new(WriterShared::default());
        let (theirs, its_spares) = (Arc::clone(&shared), spares.clone());
        let builder = std::thread::Builder::new()
            .name("contextpilot-kv".into())
            .stack_size(STACK);
        builder.spawn(move || {
            on_start();
            let outbox = thread::Outbox {
                done: &outbox,
                spares: &its_spares,
                shared: &theirs,
                queue_bytes,
            };
            thread::run(folder, is_busy, &inbox, outbox);
        })?;
        Ok(Self {
            jobs,
            done,
            spares,
            shared,
            queue_bytes,
            pending: Mutex::default(),
        })
    }

    /// Writes a chunk with these rows. [`done`](Self::done) says what became of it.
    ///
    /// # Errors
    /// The chunk was not taken, and nothing will become of it.
    pub fn write(&self, chunk: &Chunk, rows: Arc<Vec<u8>>) -> Result<(), Refusal> {
        self.accepts(rows.len() as u64)?;
        self.write_accepted(chunk, rows, None)
    }

    /// As [`write`](Self::write), for one of several chunks for which there was room together: [`accepts`](Self::accepts) was
    /// asked before the first. `numbers`: what the rows consist of; if some are not finite, they are not written.
    ///
    /// # Errors
    /// As there, but never for want of room.
    pub fn write_accepted(
        &self,
        chunk: &Chunk,
        rows: Arc<Vec<u8>>,
        numbers: Option<Arc<Numbers>>,
    ) -> Result<(), Refusal> {
        self.send(chunk, Rows::Cut(rows, numbers))
    }

    /// As [`write_accepted`](Self::write_accepted), with the rows that the chunk has in this state, of which this is the map.
    /// The state stays in memory until all of its chunks are written: to refuse some of them would save nothing.
    ///
    /// # Errors
    /// As there.
    pub fn write_from(
        &self,
        chunk: &Chunk,
        state: &Arc<Vec<u8>>,
        map: &Arc<StateMap>,
    ) -> Result<(), Refusal> {
        let from = chunk.start as usize;
        let range = from..from + chunk.tokens.len();
        self.send(
            chunk,
            Rows::InState(Arc::clone(state), Arc::clone(map), range),
        )
    }

    fn send(&self, chunk: &Chunk, rows: Rows) -> Result<(), Refusal> {
        if self.shared.paused.load(Ordering::Relaxed) {
            return Err(Refusal::Paused);
        }
        let bytes = rows.size(chunk);
        let waiting = rows.waiting();
        self.shared.queued.fetch_add(bytes, Ordering::Relaxed);
        if self.jobs.send(Job::Write(chunk.clone(), rows)).is_err() {
            return Err(Refusal::Stopped);
        }
        self.waiting().insert(chunk.name, waiting);
        Ok(())
    }

    /// Whether [`write`](Self::write) would take a chunk of this size now, or there is room for several of this size
    /// together. If nothing waits, there is for any.
    ///
    /// # Errors
    /// It would not.
    pub fn accepts(&self, bytes: u64) -> Result<(), Refusal> {
        let queued = self.shared.queued.load(Ordering::Relaxed);
        if self.shared.paused.load(Ordering::Relaxed) {
            Err(Refusal::Paused)
        } else if queued > 0 && queued.saturating_add(bytes) > self.queue_bytes {
            Err(Refusal::Full)
        } else {
            Ok(())
        }
    }

    /// Whether [`expect`](Self::expect) would change nothing. What is expected stays so.
    pub fn expects(&self, bytes: usize) -> bool {
        self.spares.expects(bytes as u64)
    }

    /// A state of this size may soon be copied: the thread makes memory ready for it, and for one more while that is
    /// written. All that it makes ready is bounded as the rows are that wait, and is let go when nothing was expected
    /// or taken for a minute.
    pub fn expect(&self, bytes: usize) {
        if self.spares.expect(bytes as u64) {
            let _ = self.jobs.send(Job::Expected);
        }
    }

    /// Memory for so many bytes of rows, if there is any that is ready or that rows had which are written by now. It may
    /// have less room, and holds anything. Fresh pages take longer than the copy that fills them.
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        self.spares.take(bytes)
    }

    /// Gives back what [`buffer`](Self::buffer) gave, or other memory.
    pub fn give_back(&self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 {
            let _ = self.jobs.send(Job::Spare(buffer));
        }
    }

    /// Bytes of rows that are not on disk yet.
    pub fn queued(&self) -> u64 {
        self.shared.queued.load(Ordering::Relaxed)
    }

    /// The rows of a chunk that is not on disk yet.
    pub fn pending(&self, name: &Name) -> Option<Arc<Vec<u8>>> {
        let rows = self.waiting().get(name)?.rows()?;
        rows.cut()
    }

    /// Whether a chunk is still to be written.
    pub fn is_pending(&self, name: &Name) -> bool {
        let is_queued = |waiting: &Waiting| !waiting.is_removal() && !waiting.is_over();
        self.waiting().get(name).is_some_and(is_queued)
    }

    /// Whether a chunk's file is still to be removed.
    pub fn is_leaving(&self, name: &Name) -> bool {
        let is_queued = |waiting: &Waiting| waiting.is_removal() && !waiting.is_over();
        self.waiting().get(name).is_some_and(is_queued)
    }

    /// Removes a chunk's file, also if it is still to be written.
    pub fn remove(&self, name: Name) {
        let queued = Arc::new(AtomicBool::new(false));
        let waiting = Waiting::Removal(Arc::downgrade(&queued));
        self.waiting().insert(name, waiting);
        if self.jobs.send(Job::Remove(name, queued)).is_err() {
            // The thread has ended. The next start loads the file, and finds it useless or not.
            self.waiting().remove(&name);
        }
    }

    /// A chunk's file stays that was still to be removed. False: none was, or it is too late.
    pub fn keep(&self, name: &Name) -> bool {
        let mut waiting = self.waiting();
        let stays = waiting.get(name).is_some_and(Waiting::call_removal_off);
        if stays {
            waiting.remove(name);
        }
        stays
    }

    /// Writes down how people call the model with this fingerprint, for [`Folder::model_name`].
    pub fn name_model(&self, fingerprint: Fingerprint, model: String) {
        let _ = self.jobs.send(Job::Note(Note::Model(fingerprint, model)));
    }

    /// Writes down of what a fingerprint is made, for [`Folder::origin`].
    pub fn note_origin(&self, origin: Origin) {
        let _ = self.jobs.send(Job::Note(Note::Origin(Box::new(origin))));
    }

    /// Chunks were used: the times of their files are set soon, so that the next start knows.
    pub fn touch(&self, names: impl IntoIterator<Item = Name>) {
        let Ok(mut touched) = self.shared.touched.try_lock() else {
            return;
        };
        let first = touched.is_empty();
        let room = MOST_TOUCHED.saturating_sub(touched.len());
        touched.extend(names.into_iter().take(room));
        if first && !touched.is_empty() {
            let _ = self.jobs.send(Job::Touched);
        }
    }

    /// What became of chunks since the last call. Call it now and then: each takes some bytes until then.
    pub fn done(&self) -> impl Iterator<Item = Done> + '_ {
        self.done.try_iter().filter_map(|over| {
            let (name, done) = match over {
                Over::Removal(name) => (Some(name), None),
                Over::Write(done) => (done.name(), Some(done)),
            };
            let mut waiting = self.waiting();
            // The same chunk may have been queued again since.
            if let Some(name) = name.filter(|name| waiting.get(name).is_some_and(Waiting::is_over))
            {
                waiting.remove(&name);
            }
            done
        })
    }

    /// Waits until everything that was asked for so far is done, but no longer than this. Whether it is.
    pub fn flush(&self, within: Duration) -> bool {
        let (sender, receiver) = bounded(1);
        self.shared.hurry.store(true, Ordering::Relaxed);
        self.jobs.send(Job::Flush(sender)).is_ok() && receiver.recv_timeout(within).is_ok()
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Name, Waiting>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
