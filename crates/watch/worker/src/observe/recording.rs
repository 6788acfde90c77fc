//! `CONTEXTPILOT_TRAFFIC_FILE`: a recording of traffic without its text.
//!
//! The worker writes a piece for each request. An existing recording of that name is renamed to `<file>.1`:
//! each recording has its own key, so an old one cannot be continued. Nothing but a recording is renamed or
//! replaced.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use contextpilot_control::Recording as State;
use contextpilot_observer::{Note, Recorder, Stamp};
use contextpilot_residency::{Fact, Ledger, Upcoming};
use contextpilot_settings::TrafficFile;
use contextpilot_traffic::{MAGIC, Setup};
use rustix::fs::{FlockOperation, flock};

use super::own_file;
use super::recent::random_key;
use super::setup::StoreLimit;
use crate::library::Library;

/// How many bytes of an existing file are looked at.
const START: u64 = 1 << 16;

/// An open recording.
pub(crate) struct Recording {
    /// The recorder and its file, or why the recording has ended.
    running: Result<(Recorder, File), &'static str>,
    /// Absolute, because a client may have another working directory.
    path: PathBuf,
    /// Bytes written.
    written: u64,
    store_limit: StoreLimit,
    library: &'static dyn Library,
}

impl Recording {
    pub(crate) fn start(
        library: &'static dyn Library,
        wanted: &TrafficFile,
        setup: Setup,
    ) -> io::Result<Self> {
        let path = wanted.path.clone();
        let file = create(&path).map_err(|error| {
            let text = format!(
                "CONTEXTPILOT_TRAFFIC_FILE is {}, which cannot be written ({error})",
                path.display()
            );
            io::Error::new(error.kind(), text)
        })?;
        let recorder = Recorder::new(random_key()?, wanted.keep_key, wanted.limit, setup);
        Ok(Self {
            running: Ok((recorder, file)),
            path: std::path::absolute(&path).unwrap_or(path),
            written: 0,
            store_limit: StoreLimit::default(),
            library,
        })
    }

    pub(crate) fn state(&self) -> State {
        State {
            file: self.path.display().to_string(),
            bytes: self.written,
            ended: self.running.as_ref().err().map(|&why| why.to_owned()),
        }
    }

    pub(crate) fn note(&mut self, note: &Note) {
        self.watch(|recorder| recorder.note(note));
    }

    pub(crate) fn upcoming(&mut self, upcoming: Upcoming<'_>, at: Stamp, ledger: &Ledger) {
        if matches!(upcoming, Upcoming::Launch { .. }) {
            if let Some(limit) = self.store_limit.take(self.library) {
                self.watch(|recorder| recorder.store(limit));
            }
        }
        self.watch(|recorder| recorder.upcoming(upcoming, at, ledger));
    }

    pub(crate) fn fact(&mut self, fact: &Fact, at: Stamp, ledger: &Ledger) {
        self.watch(|recorder| recorder.fact(fact, at, ledger));
    }

    /// Runs `work`. A panic ends the recording, and nothing else.
    fn watch(&mut self, work: impl FnOnce(&mut Recorder)) {
        let Ok((recorder, file)) = &mut self.running else {
            return;
        };
        if catch_unwind(AssertUnwindSafe(|| work(recorder))).is_err() {
            self.library.say(format_args!(
                "The recording of traffic stopped after an internal error at {}: all else goes \
                 on. Please report this line",
                self.library.place_of_panic()
            ));
            self.running = Err("an internal error");
            return;
        }
        let bytes = recorder.take();
        let written = if bytes.is_empty() {
            Ok(())
        } else {
            file.write_all(&bytes)
        };
        self.written += bytes.len() as u64;
        let path = self.path.display();
        self.running = Err(if let Err(error) = written {
            self.library.say(format_args!(
                "Traffic file {path} cannot be written ({error}): the recording ends here; check \
                 the disk"
            ));
            "the file cannot be written"
        } else if recorder.is_full() {
            self.library.say(format_args!(
                "Traffic file {path} is full: the recording ends here; \
                 CONTEXTPILOT_TRAFFIC_FILE_MB raises its limit"
            ));
            "the file is full"
        } else {
            return;
        });
    }
}

/// Creates the file. A recording of that name is set aside, unless it has no traffic: so a good one outlives
/// starts after which nothing was asked.
fn create(path: &Path) -> io::Result<File> {
    if own_file::exists(path)? {
        let old = own_file::open(path, OpenOptions::new().read(true))?;
        flock(&old, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| refused("another server records there; give each a file of its own"))?;
        let start = start_of(&old)?;
        let aside = own_file::aside(path);
        if start.is_empty() || contextpilot_traffic::is_empty(&start) {
            fs::remove_file(path)?;
        } else if !is_recording(&start) {
            return Err(refused("it is not a recording; give another path"));
        } else if own_file::exists(&aside)? && !is_recording(&start_of(&File::open(&aside)?)?) {
            let text = format!("{} is not a recording; give another path", aside.display());
            return Err(refused(&text));
        } else {
            own_file::set_aside(path)?;
        }
    }
    let file = own_file::open(path, OpenOptions::new().write(true).create_new(true))?;
    // For as long as it is open. Another server may have been faster.
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    Ok(file)
}

/// The first bytes of a file: more than a recording has before its first request.
fn start_of(file: &File) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    file.take(START).read_to_end(&mut start)?;
    Ok(start)
}

fn is_recording(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use contextpilot_traffic::Key;

    use super::*;

    /// A recording with traffic, as far as its kind can be seen.
    fn recorded(what: &str) -> Vec<u8> {
        [MAGIC.as_slice(), &[3, 0], what.as_bytes()].concat()
    }

    #[test]
    fn only_recordings_are_set_aside_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("traffic");
        let aside = folder.path().join("traffic.1");
        fs::write(&path, "a letter").unwrap();
        let error = create(&path).unwrap_err().to_string();
        assert!(error.contains("not a recording"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"a letter");

        fs::write(&path, recorded("one")).unwrap();
        fs::write(&aside, "another letter").unwrap();
        let error = create(&path).unwrap_err().to_string();
        assert!(error.contains("traffic.1 is not a recording"), "{error}");
        assert_eq!(fs::read(&aside).unwrap(), b"another letter");
        assert_eq!(fs::read(&path).unwrap(), recorded("one"));

        fs::remove_file(&aside).unwrap();
        create(&path).unwrap();
        assert_eq!(fs::read(&aside).unwrap(), recorded("one"));
    }

    #[test]
    fn a_good_recording_outlives_starts_without_traffic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("traffic");
        fs::write(&path, recorded("good")).unwrap();
        for _ in 0..3 {
            let mut file = create(&path).unwrap();
            let recorder = Recorder::new(Key::new([0; 16]), true, 1 << 20, Setup::default());
            let mut recorder = recorder;
            file.write_all(&recorder.take()).unwrap();
        }
        let aside = folder.path().join("traffic.1");
        assert_eq!(fs::read(&aside).unwrap(), recorded("good"));
        assert!(fs::read(&path).unwrap().starts_with(MAGIC));
    }

    #[test]
    fn a_recording_of_a_running_server_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("traffic");
        let mut running = create(&path).unwrap();
        let error = create(&path).unwrap_err().to_string();
        assert!(error.contains("another server records there"), "{error}");
        running.write_all(b"more").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"more");
    }
}
