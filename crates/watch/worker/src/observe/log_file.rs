//! `CONTEXTPILOT_LOG_FILE`: a line of JSON for each finished request.
//!
//! A separate thread writes it, so that a slow disk stalls nothing else. Lines that the disk cannot keep up
//! with are dropped and counted. At its limit the file is renamed to `<file>.1`, replacing an older file
//! of that name, and a new one begins. So there are two files at most.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use contextpilot_admission::STACK;
use contextpilot_control::LogLine;
use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::fs::{FlockOperation, flock};

use super::own_file;
use crate::bounds::{LOG_IDS, LOG_LINES};
use crate::library::Library;

/// Accepts lines. When it is dropped, the thread writes the waiting lines and ends.
pub(crate) struct LogFile {
    /// Bounded by [`Waiting`]: a bounded channel would allocate all of its memory at once.
    lines: Sender<LogLine>,
    waiting: Arc<Waiting>,
    library: &'static dyn Library,
}

/// Set when everything is written.
pub(crate) type Written = Arc<AtomicBool>;

/// The lines that the thread has not written yet.
#[derive(Default)]
struct Waiting {
    lines: AtomicUsize,
    /// Request ids in these lines.
    ids: AtomicUsize,
}

impl Waiting {
    /// Reserves room for a line; false if there is none. Only one thread calls this.
    fn take_room(&self, line: &LogLine) -> bool {
        let room = self.lines.load(Ordering::Relaxed) < LOG_LINES
            && self.ids.load(Ordering::Relaxed) + ids_in(line) <= LOG_IDS;
        if room {
            self.lines.fetch_add(1, Ordering::Relaxed);
            self.ids.fetch_add(ids_in(line), Ordering::Relaxed);
        }
        room
    }

    fn give_room(&self, line: &LogLine) {
        self.lines.fetch_sub(1, Ordering::Relaxed);
        self.ids.fetch_sub(ids_in(line), Ordering::Relaxed);
    }
}

fn ids_in(line: &LogLine) -> usize {
    line.evicted.len() + 1
}

impl LogFile {
    /// Starts the thread. The caller has blocked all signals. `file`: what [`open`] returned, or `None` if it
    /// failed and that was said; it is then tried again for each line.
    pub(crate) fn start(
        library: &'static dyn Library,
        path: PathBuf,
        file: Option<File>,
        limit: u64,
    ) -> io::Result<(Self, Written)> {
        let (sender, lines) = unbounded();
        let waiting = Arc::new(Waiting::default());
        let taken = Arc::clone(&waiting);
        let written = Written::default();
        let end = Arc::clone(&written);
        let thread = thread::Builder::new()
            .name("contextpilot-log".to_owned())
            .stack_size(STACK);
        thread.spawn(move || {
            library.enter_thread();
            // A panic loses a line, and nothing else.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                write_all(library, &path, file, limit, &lines, &taken);
            }));
            end.store(true, Ordering::SeqCst);
        })?;
        let file = Self {
            lines: sender,
            waiting,
            library,
        };
        Ok((file, written))
    }

    pub(crate) fn write(&self, line: LogLine) {
        if !self.waiting.take_room(&line) || self.lines.send(line).is_err() {
            self.library.count_lost_log_line();
        }
    }
}

fn write_all(
    library: &dyn Library,
    path: &Path,
    mut file: Option<File>,
    limit: u64,
    lines: &Receiver<LogLine>,
    waiting: &Waiting,
) {
    // Report a full disk once, not for each request.
    let mut told = file.is_none().then_some(Step::Write);
    for line in lines {
        waiting.give_room(&line);
        match write(path, limit, &mut file, &line) {
            Ok(()) => told = None,
            Err((step, error)) => {
                library.count_lost_log_line();
                file = None;
                if told.replace(step) != Some(step) {
                    let why = match step {
                        Step::Write => not_written(path, &error),
                        Step::SetAside => not_set_aside(path, &error),
                    };
                    library.say(format_args!("{why}: {CONSEQUENCE}"));
                }
            }
        }
    }
}

/// What failed, so that a line was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Write,
    /// The file is at its limit, and was not renamed.
    SetAside,
}

/// For people: the file cannot be written.
pub(crate) fn not_written(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    format!("CONTEXTPILOT_LOG_FILE is {path}, which cannot be written ({error})")
}

/// For people: the file is full, and cannot make room for a new one.
fn not_set_aside(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    format!(
        "CONTEXTPILOT_LOG_FILE is {path}, which is as large as CONTEXTPILOT_LOG_FILE_MB allows and cannot be renamed ({error})"
    )
}

/// What follows if a line cannot be written.
pub(crate) const CONSEQUENCE: &str = "requests are not logged until it can be";

/// For people: the file can be written, but not renamed once it is full.
pub(crate) fn never_set_aside(path: &Path, error: &io::Error) -> String {
    let path = path.display();
    format!("CONTEXTPILOT_LOG_FILE is {path}, which cannot be renamed at its limit ({error})")
}

/// What follows if the file cannot be renamed once it is full.
pub(crate) const LATER_CONSEQUENCE: &str = "from there on requests are not logged until it can be";

/// Never writes to a file that is at its limit, so that it does not grow if it cannot be renamed.
fn write(
    path: &Path,
    limit: u64,
    file: &mut Option<File>,
    line: &LogLine,
) -> Result<(), (Step, io::Error)> {
    let mut open = match file.take() {
        Some(open) => open,
        None => self::open(path).map_err(|error| (Step::Write, error))?,
    };
    // Twice, as the first one may have been renamed by another server.
    for _ in 0..2 {
        if is_full(&open, limit).map_err(|error| (Step::Write, error))? {
            set_aside(path, &open).map_err(|error| (Step::SetAside, error))?;
            open = self::open(path).map_err(|error| (Step::Write, error))?;
        }
    }
    let open = file.insert(open);
    append(open, line).map_err(|error| (Step::Write, error))?;
    // If it cannot be renamed, the next line says so: this one is written.
    if is_full(open, limit).unwrap_or(false) && set_aside(path, open).is_ok() {
        *file = None;
    }
    Ok(())
}

fn append(open: &mut File, line: &LogLine) -> io::Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    if ends_torn(open)? {
        text.insert(0, '\n');
    }
    // One write, so that lines of several servers do not mix, and a line is whole if a server is killed.
    open.write_all(text.as_bytes())
}

fn is_full(file: &File, limit: u64) -> io::Result<bool> {
    Ok(file.metadata()?.len() >= limit)
}

/// Whether the file ends within a line: a disk was full.
fn ends_torn(file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if let Some(at) = length.checked_sub(1) {
        file.read_at(&mut last, at)?;
    }
    Ok(last != [b'\n'])
}

/// Opens the log file for [`LogFile::start`].
pub(crate) fn open(path: &Path) -> io::Result<File> {
    own_file::append(path)
}

/// Whether the file could be renamed now, for the start: what is wrong is said before it is full.
///
/// # Errors
/// It could not.
pub(crate) fn can_be_set_aside(path: &Path) -> io::Result<()> {
    own_file::can_set_aside(path)
}

/// Renames the file, unless another server with the same one has done so.
fn set_aside(path: &Path, file: &File) -> io::Result<()> {
    // Closing the file releases the lock.
    flock(file, FlockOperation::LockExclusive)?;
    let (ours, there) = (file.metadata()?, fs::metadata(path));
    let same = there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()));
    if !same {
        return Ok(());
    }
    own_file::set_aside(path)
}

#[cfg(test)]
mod tests {
    use contextpilot_control::{Evicted, Outcome, Reason, Timestamp};

    use super::*;

    fn line(id: &str) -> LogLine {
        LogLine {
            at: Timestamp::from_unix_ms(0),
            id: Some(id.to_owned()),
            outcome: Outcome::Answered,
            slot: Some(0),
            prompts: 1,
            prompt_tokens: 1,
            reused: 0,
            evaluated: 1,
            time_to_first_token_seconds: None,
            total_seconds: 0.0,
            evicted: Vec::new(),
            evaluation: None,
            sections: None,
        }
    }

    #[test]
    fn waiting_lines_are_bounded_in_number_and_in_ids() {
        let waiting = Waiting::default();
        let short = line("req-1");
        for _ in 0..LOG_LINES {
            assert!(waiting.take_room(&short));
        }
        assert!(!waiting.take_room(&short));
        waiting.give_room(&short);
        let evicted = Evicted {
            id: "req-0".to_owned(),
            reason: Reason::Overwritten,
        };
        let long = LogLine {
            evicted: vec![evicted; LOG_IDS - LOG_LINES + 1],
            ..line("req-2")
        };
        assert!(!waiting.take_room(&long), "one id too many");
        waiting.give_room(&short);
        assert!(waiting.take_room(&long));
    }

    #[test]
    fn a_file_is_renamed_at_its_limit_and_no_line_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queries.jsonl");
        let aside = folder.path().join("queries.jsonl.1");
        let length = serde_json::to_string(&line("req-0")).unwrap().len() as u64 + 1;
        // Two servers with the same file.
        let (mut first, mut second) = (None, None);
        for nth in 0..4 {
            let file = if nth % 2 == 0 {
                &mut first
            } else {
                &mut second
            };
            write(&path, 3 * length, file, &line(&format!("req-{nth}"))).unwrap();
        }
        let ids = |path: &Path| -> Vec<String> {
            let text = fs::read_to_string(path).unwrap();
            text.lines()
                .map(|line| serde_json::from_str::<LogLine>(line).unwrap().id.unwrap())
                .collect()
        };
        // The second server still had the file open, and noticed that it was renamed.
        assert_eq!(ids(&aside), ["req-0", "req-1", "req-2"]);
        assert_eq!(ids(&path), ["req-3"]);
        write(&path, 3 * length, &mut second, &line("req-4")).unwrap();
        assert_eq!(ids(&path), ["req-3", "req-4"]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_cannot_be_renamed_stops_growing_until_it_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queries.jsonl");
        let aside = folder.path().join("queries.jsonl.1");
        fs::create_dir(&aside).unwrap();
        assert!(can_be_set_aside(&path).is_err());
        let length = || fs::metadata(&path).unwrap().len();
        let mut file = None;
        // The line that fills it is written, so it is no error.
        write(&path, 1, &mut file, &line("req-0")).unwrap();
        let full = length();
        for _ in 0..3 {
            let (step, error) = write(&path, 1, &mut file, &line("req-1")).unwrap_err();
            assert_eq!(step, Step::SetAside);
            let said = not_set_aside(&path, &error);
            assert!(said.contains("queries.jsonl.1: it is a folder"), "{said}");
        }
        assert_eq!(length(), full);
        fs::remove_dir(&aside).unwrap();
        assert!(can_be_set_aside(&path).is_ok());
        write(&path, 1 << 20, &mut file, &line("req-2")).unwrap();
        write(&path, full, &mut file, &line("req-3")).unwrap();
        assert!(aside.exists());
    }

    #[test]
    fn a_torn_line_does_not_take_the_next_one_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queries.jsonl");
        let mut file = None;
        write(&path, 1 << 20, &mut file, &line("req-0")).unwrap();
        // What a full disk leaves, of this server or another one with the same file.
        let mut torn = open(&path).unwrap();
        torn.write_all(b"{\"at\":\"1970-01-01T").unwrap();
        write(&path, 1 << 20, &mut file, &line("req-2")).unwrap();
        write(&path, 1 << 20, &mut file, &line("req-3")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let ids = text.lines().map(|line| {
            let line = serde_json::from_str::<LogLine>(line);
            line.ok().and_then(|line| line.id)
        });
        let ids: Vec<_> = ids.collect();
        let ids: Vec<_> = ids.iter().map(Option::as_deref).collect();
        assert_eq!(ids, [Some("req-0"), None, Some("req-2"), Some("req-3")]);
    }
}
