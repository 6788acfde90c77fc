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
use super::{Done, Job, SPARE, WriterShared};
use crate::{Folder, Problem};

/// How long nothing is written after a failure. After each further one twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// But no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long touched names are collected.
const COLLECT: Duration = Duration::from_secs(30);

pub(super) fn run(
    folder: Folder,
    is_busy: fn() -> bool,
    jobs: &Receiver<Job>,
    done: &Sender<Done>,
    spare: &Sender<Vec<u8>>,
    shared: &WriterShared,
) {
    give_way();
    let disk = Disk::new(folder);
    disk.sweep();
    let mut thread = Thread {
        disk,
        rests: Rests::new(is_busy),
        done,
        spare,
        shared,
        touch_at: None,
        pause: None,
        next_pause: FIRST_PAUSE,
    };
    while thread.step(jobs) {}
}

struct Thread<'a> {
    disk: Disk,
    rests: Rests,
    done: &'a Sender<Done>,
    spare: &'a Sender<Vec<u8>>,
    shared: &'a WriterShared,
    touch_at: Option<Instant>,
    /// Until when nothing is written, and why.
    pause: Option<(Instant, Problem)>,
    next_pause: Duration,
}

impl Thread<'_> {
    /// The next job. Whether there may be another one.
    fn step(&mut self, jobs: &Receiver<Job>) -> bool {
        let ends = self.pause.as_ref().map(|(until, _)| *until);
        let next = [self.touch_at, ends].into_iter().flatten().min();
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
        match job {
            Ok(Job::Write(chunk, rows)) => {
                self.rests.begin(&self.shared.hurry);
                let done = self.write(&chunk, &rows);
                let bytes = rows.size(&chunk);
                // From now on nobody finds the rows in memory.
                self.keep(rows.into_bytes());
                self.shared.queued.fetch_sub(bytes, Ordering::Relaxed);
                let _ = self.done.send(done);
            }
            // If it cannot be removed, the next start finds it again.
            Ok(Job::Remove(name)) => drop(self.disk.remove(&name)),
            // Nothing but a person's reading depends on it.
            Ok(Job::NameModel(fingerprint, model)) => {
                drop(self.disk.name_model(&fingerprint, &model));
            }
            Ok(Job::NoteOrigin(origin)) => drop(self.disk.note_origin(&origin)),
            Ok(Job::Touched) => self.touch_at = self.touch_at.or(Some(now + COLLECT)),
            Ok(Job::Flush(waiting)) => {
                self.touch();
                self.shared.hurry.store(false, Ordering::Relaxed);
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
        let (rests, shared) = (&mut self.rests, self.shared);
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

    /// Keeps the memory of rows that are written, if nobody else has them.
    fn keep(&self, rows: Arc<Vec<u8>>) {
        let Ok(buffer) = Arc::try_unwrap(rows) else {
            return;
        };
        let size = buffer.capacity() as u64;
        let kept = self.shared.spare.load(Ordering::Relaxed);
        if kept == 0 || kept + size <= SPARE {
            self.shared.spare.fetch_add(size, Ordering::Relaxed);
            let _ = self.spare.send(buffer);
        }
    }

    fn pause(&mut self, error: &io::Error) -> Problem {
        let problem = Problem::new(self.disk.path(), error);
        self.shared.paused.store(true, Ordering::Relaxed);
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
        self.shared.paused.store(false, Ordering::Relaxed);
    }

    fn touch(&mut self) {
        self.touch_at = None;
        let touched: HashSet<Name> = {
            let mut touched = self
                .shared
                .touched
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *touched)
        };
        touched.iter().for_each(|name| self.disk.touch(name));
    }
}
