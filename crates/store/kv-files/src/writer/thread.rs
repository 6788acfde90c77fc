//! What the writer's thread does, and when it rests.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use contextpilot_admission::{give_way, processor_time};
use contextpilot_kv_store::{Chunk, Fingerprint, Name, Origin};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::disk::{Disk, is_not_finite};
use super::rows::Rows;
use super::spare::{IDLE, Spares};
use crate::{Folder, Problem};

/// How long nothing is written after a failure. After each further one twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// But no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// From a note that cannot be written to the next attempt.
const NOTE_AGAIN: Duration = Duration::from_secs(5);
/// So many notes wait for it. Further ones are forgotten.
const MOST_NOTES: usize = 64;

/// How long touched names are collected.
const COLLECT: Duration = Duration::from_secs(30);
/// How long the thread waits before it begins: what follows a save is the evaluation for which room was made.
const FIRST_REST: Duration = Duration::from_millis(20);
/// How many times as long as it has worked the thread rests.
const REST: u32 = 3;
/// And the longest rest.
const LONGEST_REST: Duration = Duration::from_millis(50);

/// What the writer and its thread share.
#[derive(Debug, Default)]
pub(super) struct WriterShared {
    /// Bytes of rows in the queue, and of those being written.
    pub(super) queued: AtomicU64,
    /// After a failure nothing is written for a while.
    pub(super) paused: AtomicBool,
    /// A caller waits for the thread.
    pub(super) hurry: AtomicBool,
    pub(super) touched: Mutex<HashSet<Name>>,
}

#[derive(Debug)]
pub(super) enum Job {
    Write(Chunk, Rows),
    /// Held until it is done. True: it has begun, or was called off.
    Remove(Name, Arc<AtomicBool>),
    Note(Note),
    /// There are touched names from now on.
    Touched,
    /// A state may soon be copied that is larger than those before.
    Expected,
    /// Memory that a caller does not need any more.
    Spare(Vec<u8>),
    /// Everything before this was done.
    Flush(Sender<()>),
}

/// What is written down of a fingerprint.
#[derive(Debug)]
pub(super) enum Note {
    /// How people call the model.
    Model(Fingerprint, String),
    /// Of what the fingerprint is made.
    Origin(Box<Origin>),
}

/// What the thread says when it has done something.
#[derive(Debug)]
pub(super) enum Over {
    Write(Done),
    Removal(Name),
}

/// What became of [`Writer::write`](crate::Writer::write).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// The file is there.
    Written(Name),
    /// It is not, and what continues it is of no use.
    Failed(Name, Problem),
    /// It is not, because values of its rows are no numbers, or infinite. Neither are those of what continues it.
    NotFinite(Name),
    /// After a failure nothing is written for a while. That is over, and for this reason nothing is written still.
    Paused(Problem),
    /// The reason is gone.
    Resumed,
}

impl Done {
    /// The chunk that it is about.
    #[must_use]
    pub fn name(&self) -> Option<Name> {
        match self {
            Self::Written(name) | Self::Failed(name, _) | Self::NotFinite(name) => Some(*name),
            Self::Paused(_) | Self::Resumed => None,
        }
    }
}

/// What the thread leaves for others, and shares with them.
#[derive(Clone, Copy)]
pub(super) struct Outbox<'a> {
    pub(super) done: &'a Sender<Over>,
    pub(super) spares: &'a Spares,
    pub(super) shared: &'a WriterShared,
    /// Bytes of rows that may wait, and of memory that is ready.
    pub(super) queue_bytes: u64,
}

pub(super) fn run(folder: Folder, is_busy: fn() -> bool, jobs: &Receiver<Job>, outbox: Outbox<'_>) {
    give_way();
    let mut disk = Disk::new(folder);
    disk.sweep();
    disk.renew_origins();
    let mut thread = Thread::new(disk, Rests::new(is_busy), outbox);
    while thread.step(jobs) {}
}

struct Thread<'a> {
    disk: Disk,
    rests: Rests,
    outbox: Outbox<'a>,
    touch_at: Option<Instant>,
    /// When to look whether memory was wanted.
    idle_at: Option<Instant>,
    /// Until when nothing is written, and why.
    pause: Option<(Instant, Problem)>,
    next_pause: Duration,
    /// When to look whether there is room for what had none. Smaller chunks are written meanwhile.
    look_at: Option<Instant>,
    /// Bytes of the chunk that could not be written.
    refused: u64,
    /// Notes that could not be written, and when they are tried again.
    notes: Vec<Note>,
    note_at: Option<Instant>,
}

fn is_about_size(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::FileTooLarge | io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

impl<'a> Thread<'a> {
    fn new(disk: Disk, rests: Rests, outbox: Outbox<'a>) -> Self {
        Self {
            disk,
            rests,
            outbox,
            touch_at: None,
            idle_at: None,
            pause: None,
            next_pause: FIRST_PAUSE,
            look_at: None,
            refused: 0,
            notes: Vec::new(),
            note_at: None,
        }
    }

    /// The next job. Whether there may be another one.
    fn step(&mut self, jobs: &Receiver<Job>) -> bool {
        let ends = self.pause.as_ref().map(|(until, _)| *until);
        let next = [
            self.touch_at,
            self.idle_at,
            self.note_at,
            ends,
            self.look_at,
        ];
        let next = next.into_iter().flatten().min();
        let job = match next {
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => jobs.recv_deadline(at),
        };
        let now = Instant::now();
        if ends.or(self.look_at).is_some_and(|until| until <= now) {
            self.resume();
        }
        if self.touch_at.is_some_and(|at| at <= now) {
            self.touch();
        }
        if self.note_at.is_some_and(|at| at <= now) {
            self.note_at = None;
            let notes = std::mem::take(&mut self.notes);
            notes.into_iter().for_each(|note| self.note(note));
        }
        if self.idle_at.is_some_and(|at| at <= now) {
            let may_have_some = self.outbox.spares.look_for_idle();
            self.idle_at = may_have_some.then(|| now + IDLE);
        }
        match job {
            Ok(Job::Write(chunk, rows)) => {
                self.rests.begin(&self.outbox.shared.hurry);
                // The next state may come before this one is written.
                self.make_ready();
                let done = self.write(&chunk, &rows);
                let bytes = rows.size(&chunk);
                // From now on no reader finds the rows in memory.
                if let Ok(buffer) = Arc::try_unwrap(rows.into_bytes()) {
                    self.keep(buffer);
                }
                self.outbox
                    .shared
                    .queued
                    .fetch_sub(bytes, Ordering::Relaxed);
                self.say(done);
            }
            Ok(Job::Remove(name, queued)) => {
                if !queued.swap(true, Ordering::AcqRel) {
                    // If it cannot be removed, the next start finds it again.
                    let _ = self.disk.remove(&name);
                }
                drop(queued);
                let _ = self.outbox.done.send(Over::Removal(name));
            }
            Ok(Job::Note(note)) => self.note(note),
            Ok(Job::Expected) => {
                self.rests.begin(&self.outbox.shared.hurry);
                self.make_ready();
            }
            Ok(Job::Spare(buffer)) => self.keep(buffer),
            Ok(Job::Touched) => self.touch_at = self.touch_at.or(Some(now + COLLECT)),
            Ok(Job::Flush(waiting)) => {
                self.touch();
                self.outbox.shared.hurry.store(false, Ordering::Relaxed);
                let _ = waiting.send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                self.touch();
                return false;
            }
        }
        true
    }

    fn write(&mut self, chunk: &Chunk, rows: &Rows) -> Done {
        if let Some((_, problem)) = &self.pause {
            return Done::Failed(chunk.name, problem.clone());
        }
        let (rests, shared) = (&mut self.rests, self.outbox.shared);
        let rest = || rests.rest(&shared.hurry);
        match self.disk.write(chunk, rows, rest) {
            Ok(()) => {
                self.next_pause = FIRST_PAUSE;
                if self.look_at.is_some() && rows.size(chunk) >= self.refused {
                    self.all_is_well();
                }
                Done::Written(chunk.name)
            }
            Err(error) if is_not_finite(&error) => Done::NotFinite(chunk.name),
            // Cannot be: the caller that hands a state over has read it.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Done::Failed(chunk.name, Problem::new(self.disk.path(), &error))
            }
            Err(error) => {
                self.refused = rows.size(chunk);
                Done::Failed(chunk.name, self.pause(&error))
            }
        }
    }

    /// What is fetched for this folder depends on it, so it is tried until it is there.
    fn note(&mut self, note: Note) {
        let noted = match &note {
            Note::Model(fingerprint, model) => self.disk.name_model(fingerprint, model),
            Note::Origin(origin) => self.disk.note_origin(origin),
        };
        if noted.is_err() && self.notes.len() < MOST_NOTES {
            self.notes.push(note);
            self.note_at = self.note_at.or_else(|| Some(Instant::now() + NOTE_AGAIN));
        }
    }

    fn make_ready(&mut self) {
        let (rests, shared) = (&mut self.rests, self.outbox.shared);
        let queued = shared.queued.load(Ordering::Relaxed);
        let room = self.outbox.queue_bytes.saturating_sub(queued);
        self.outbox.spares.make_ready(room, || {
            rests.rest(&shared.hurry);
            !shared.hurry.load(Ordering::Relaxed)
        });
        self.note_spares();
    }

    fn keep(&mut self, buffer: Vec<u8>) {
        self.outbox.spares.keep(buffer, self.outbox.queue_bytes);
        self.note_spares();
    }

    /// There may be memory that is to be let go some time.
    fn note_spares(&mut self) {
        self.idle_at = self.idle_at.or_else(|| Some(Instant::now() + IDLE));
    }

    fn pause(&mut self, error: &io::Error) -> Problem {
        let problem = Problem::new(self.disk.path(), error);
        self.outbox.shared.paused.store(true, Ordering::Relaxed);
        self.pause = Some((Instant::now() + self.next_pause, problem.clone()));
        self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
        problem
    }

    /// The pause is over, or it is time to look again whether what caused it is. No chunk is lost by trying.
    fn resume(&mut self) {
        self.look_at = None;
        let paused = self.pause.take().is_some();
        match self.disk.try_again(self.refused) {
            Ok(()) => self.all_is_well(),
            // Something smaller may have room.
            Err(error) if is_about_size(&error) => {
                self.look_at = Some(Instant::now() + LONGEST_PAUSE)
            }
            Err(error) => {
                let still = self.pause(&error);
                self.say(Done::Paused(still));
                return;
            }
        }
        if paused {
            self.outbox.shared.paused.store(false, Ordering::Relaxed);
        }
    }

    fn all_is_well(&mut self) {
        self.look_at = None;
        self.say(Done::Resumed);
    }

    fn say(&self, done: Done) {
        let _ = self.outbox.done.send(Over::Write(done));
    }

    fn touch(&mut self) {
        self.touch_at = None;
        let touched: HashSet<Name> = {
            let mut touched = self
                .outbox
                .shared
                .touched
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *touched)
        };
        touched.iter().for_each(|name| self.disk.touch(name));
    }
}

/// Spreads the thread's work over time while others compute.
///
/// A low priority is not enough. Threads that compute together wait for each other at every step, so a
/// thread that takes one of their processors for a millisecond keeps all of them waiting. Writing 100 MB
/// at once made one token take 20 ms more; in small pieces with rests it makes each of a few dozen take a
/// little more.
///
/// Work is the thread's processor time. While it waited for a processor, or for the disk, it has rested already: beside
/// threads that spin it waits for milliseconds, and would never be done if it rested as often as long as that.
#[derive(Debug)]
struct Rests {
    is_busy: fn() -> bool,
    since: Instant,
    /// The thread's processor time then.
    spent: Duration,
    /// When the last work ended.
    until: Option<Instant>,
}

impl Rests {
    /// `is_busy`: whether others compute now.
    fn new(is_busy: fn() -> bool) -> Self {
        Self {
            is_busy,
            since: Instant::now(),
            spent: Duration::ZERO,
            until: None,
        }
    }

    /// The thread begins to work.
    fn begin(&mut self, hurry: &AtomicBool) {
        let rested = self.until.is_none_or(|until| until.elapsed() >= FIRST_REST);
        if rested && !hurry.load(Ordering::Relaxed) {
            std::thread::sleep(FIRST_REST);
        }
        self.start();
    }

    /// A piece of the work is done. `hurry`: a caller waits for the rest of it.
    fn rest(&mut self, hurry: &AtomicBool) {
        if !hurry.load(Ordering::Relaxed) && (self.is_busy)() {
            let worked = processor_time().saturating_sub(self.spent);
            let rest = due(worked, self.since.elapsed());
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
        }
        self.start();
        self.until = Some(self.since);
    }

    fn start(&mut self) {
        self.since = Instant::now();
        self.spent = processor_time();
    }
}

/// How long to rest after work of so much processor time, and of so much time in all.
fn due(worked: Duration, elapsed: Duration) -> Duration {
    let waited = elapsed.saturating_sub(worked);
    (worked * REST).saturating_sub(waited).min(LONGEST_REST)
}

#[cfg(test)]
mod tests {
    use contextpilot_kv_store::Store;
    use contextpilot_testbed::private_folder;

    use super::*;

    #[test]
    fn after_each_failure_the_pause_is_longer_until_something_is_written() {
        let home = private_folder();
        let (sender, done) = crossbeam_channel::unbounded();
        let (spares, shared) = (Spares::new(), WriterShared::default());
        let outbox = Outbox {
            done: &sender,
            spares: &spares,
            shared: &shared,
            queue_bytes: 0,
        };
        let disk = Disk::new(Folder::open(home.path()).unwrap());
        let mut thread = Thread::new(disk, Rests::new(|| false), outbox);
        let fail = |thread: &mut Thread<'_>| {
            thread.pause(&io::Error::from(io::ErrorKind::StorageFull));
            thread.next_pause
        };
        let pauses: Vec<Duration> = (0..7).map(|_| fail(&mut thread)).collect();
        assert_eq!(pauses[..2], [2 * FIRST_PAUSE, 4 * FIRST_PAUSE]);
        assert_eq!(pauses[5..], [LONGEST_PAUSE, LONGEST_PAUSE]);
        let chunk = Store::new(0)
            .missing(&Fingerprint([5; 16]), &[1, 2, 3], 10)
            .remove(0);
        let rows = Rows::Cut(Arc::new(vec![7; chunk.bytes as usize]), None);
        assert!(matches!(thread.write(&chunk, &rows), Done::Failed(..)));
        thread.resume();
        assert_eq!(thread.write(&chunk, &rows), Done::Written(chunk.name));
        assert_eq!(fail(&mut thread), 2 * FIRST_PAUSE);
        // Only that writing goes on again.
        let said: Vec<Over> = done.try_iter().collect();
        assert!(matches!(said[..], [Over::Write(Done::Resumed)]), "{said:?}");
    }

    #[test]
    fn who_has_waited_has_rested() {
        let due = |worked, elapsed| {
            due(
                Duration::from_micros(worked),
                Duration::from_micros(elapsed),
            )
        };
        assert_eq!(due(100, 100), Duration::from_micros(300));
        assert_eq!(due(100, 150), Duration::from_micros(250));
        assert_eq!(due(100, 10_000), Duration::ZERO);
        assert_eq!(due(100_000, 100_000), LONGEST_REST);
    }
}
