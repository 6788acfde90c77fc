//! What the writer's thread does.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use contextpilot_admission::give_way;
use contextpilot_kv_store::{Chunk, Name};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::disk::Disk;
use super::rest::Rests;
use super::rows::Rows;
use super::spare::{IDLE, Spares};
use super::{Done, Job, Note, WriterShared};
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

/// What the thread leaves for others, and shares with them.
#[derive(Clone, Copy)]
pub(super) struct Outbox<'a> {
    pub(super) done: &'a Sender<Done>,
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
    let mut thread = Thread {
        disk,
        rests: Rests::new(is_busy),
        outbox,
        touch_at: None,
        idle_at: None,
        pause: None,
        next_pause: FIRST_PAUSE,
        notes: Vec::new(),
        note_at: None,
    };
    while thread.step(jobs) {}
}

struct Thread<'a> {
    disk: Disk,
    rests: Rests,
    outbox: Outbox<'a>,
    touch_at: Option<Instant>,
    /// When to look whether anybody has wanted memory.
    idle_at: Option<Instant>,
    /// Until when nothing is written, and why.
    pause: Option<(Instant, Problem)>,
    next_pause: Duration,
    /// Notes that could not be written, and when they are tried again.
    notes: Vec<Note>,
    note_at: Option<Instant>,
}

impl Thread<'_> {
    /// The next job. Whether there may be another one.
    fn step(&mut self, jobs: &Receiver<Job>) -> bool {
        let ends = self.pause.as_ref().map(|(until, _)| *until);
        let next = [self.touch_at, self.idle_at, self.note_at, ends];
        let next = next.into_iter().flatten().min();
        let job = match next {
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => jobs.recv_deadline(at),
        };
        let now = Instant::now();
        if ends.is_some_and(|until| until <= now) {
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
                // From now on nobody finds the rows in memory.
                if let Ok(buffer) = Arc::try_unwrap(rows.into_bytes()) {
                    self.keep(buffer);
                }
                self.outbox
                    .shared
                    .queued
                    .fetch_sub(bytes, Ordering::Relaxed);
                let _ = self.outbox.done.send(done);
            }
            // If it cannot be removed, the next start finds it again.
            Ok(Job::Remove(name)) => drop(self.disk.remove(&name)),
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
                Done::Written(chunk.name)
            }
            // Cannot be: whoever hands a state over has read it.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Done::Failed(chunk.name, Problem::new(self.disk.path(), &error))
            }
            Err(error) => Done::Failed(chunk.name, self.pause(&error)),
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

    fn resume(&mut self) {
        let gone = |(_, problem): (_, Problem)| {
            matches!(
                problem.kind,
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            )
        };
        if self.pause.take().is_some_and(gone) {
            if let Err(error) = self.disk.open_again() {
                self.pause(&error);
                return;
            }
        }
        self.outbox.shared.paused.store(false, Ordering::Relaxed);
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
