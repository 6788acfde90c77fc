//! `CONTEXTPILOT_TRAFFIC_FILE`: a recording of traffic without its text.
//!
//! The worker writes a piece for each request. An existing file of that name is renamed to `<file>.1`: each
//! recording has its own key, so an old one cannot be continued.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use contextpilot_control::Recording as State;
use contextpilot_observer::{Note, Recorder, Stamp};
use contextpilot_residency::{Event, Ledger};
use contextpilot_settings::TrafficFile;
use contextpilot_traffic::{Key, Setup};

use crate::library::Library;

/// An open recording.
pub(crate) struct Recording {
    /// The recorder and its file, or why the recording has ended.
    running: Result<(Recorder, File), &'static str>,
    /// Absolute, because a client may have another working directory.
    path: PathBuf,
    /// Bytes written.
    written: u64,
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
                "{} cannot be written ({error}); check CONTEXTPILOT_TRAFFIC_FILE",
                path.display()
            );
            io::Error::new(error.kind(), text)
        })?;
        let mut key = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut key)?;
        let recorder = Recorder::new(Key::new(key), wanted.keep_key, wanted.limit, setup);
        Ok(Self {
            running: Ok((recorder, file)),
            path: std::path::absolute(&path).unwrap_or(path),
            written: 0,
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

    pub(crate) fn note(&mut self, note: &Note, at: Stamp) {
        self.watch(|recorder| recorder.note(note, at));
    }

    pub(crate) fn before(&mut self, event: &Event, at: Stamp, ledger: &Ledger) {
        self.watch(|recorder| recorder.before(event, at, ledger));
    }

    pub(crate) fn after(&mut self, ledger: &Ledger) {
        self.watch(|recorder| recorder.after(ledger));
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
        let written = match bytes.is_empty() {
            true => Ok(()),
            false => file.write_all(&bytes),
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

fn create(path: &Path) -> io::Result<File> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".1");
    match fs::rename(path, aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}
