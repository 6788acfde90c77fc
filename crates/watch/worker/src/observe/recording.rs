//! Recordings of traffic without its text: in a file (`CONTEXTPILOT_TRAFFIC_FILE`), and of the last requests in memory, for
//! `GET /recent` (`CONTEXTPILOT_RECENT_MB`).
//!
//! The worker writes a piece for each request into the file. An existing recording of that name is renamed to `<file>.1`:
//! each recording has its own key, so an old one cannot be continued. Nothing but a recording is renamed or
//! replaced.
//!
//! The children of a llama-server in router mode share the setting, so each model has a file of its own beside the named one,
//! `<file>.<model>`. There the next process of the model goes on, if the one before has left what it takes
//! ([`handover`](super::handover)), so the file says also what was lost when the router made room for another model.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use contextpilot_control::Recording as State;
use contextpilot_observer::{MOST_RECORDED_TOKENS, Recorder};
use contextpilot_residency::Ledger;
use contextpilot_settings::TrafficFile;
use contextpilot_traffic::{Key, MAGIC, Recent, Setup, Writer};
use rustix::fs::{FlockOperation, flock};

use super::handover::{Beginning, HandoverFolder, LAST_REQUESTS, RECORDING};
use super::own_file;
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
    library: &'static dyn Library,
    /// `None`: this is no child of a router.
    place: Option<HandoverFolder>,
    beginning: Beginning,
}

impl Recording {
    /// `place`: where the last child of the model may have left what it takes to go on with its file.
    pub(crate) fn start(
        library: &'static dyn Library,
        wanted: &TrafficFile,
        setup: Setup,
        place: Option<HandoverFolder>,
    ) -> io::Result<Self> {
        let given = library.flags();
        let path = match given.router_port() {
            Some(_) => of_model(
                &wanted.path,
                given.model().map(|model| model.name).as_deref(),
            ),
            None => wanted.path.clone(),
        };
        let left = place.as_ref().and_then(|place| place.take(RECORDING));
        let resumed = left.and_then(|left| {
            let (writer, progress) = Writer::resume(MOST_RECORDED_TOKENS, &left.bytes)?;
            let file = reopen(&path, progress.written)?;
            let writer = writer.appending(progress.written, wanted.limit);
            let recorder = Recorder::resumed(writer, &progress, left.models, setup.clone());
            Some((recorder, file, progress))
        });
        if let Some((recorder, file, progress)) = resumed {
            return Ok(Self {
                running: Ok((recorder, file)),
                path: std::path::absolute(&path).unwrap_or(path),
                written: progress.written,
                library,
                place,
                beginning: Beginning::earlier(library, &progress),
            });
        }
        let file = create(&path).map_err(|error| {
            let text = format!(
                "CONTEXTPILOT_TRAFFIC_FILE is {}, which cannot be written ({error})",
                path.display()
            );
            io::Error::new(error.kind(), text)
        })?;
        let (key, keep_key, limit) = (random_key()?, wanted.keep_key, wanted.limit);
        let recorder = match place {
            Some(_) => Recorder::handed_on(key, keep_key, limit, setup),
            None => Recorder::new(key, keep_key, limit, setup),
        };
        Ok(Self {
            running: Ok((recorder, file)),
            path: std::path::absolute(&path).unwrap_or(path),
            written: 0,
            library,
            place,
            beginning: Beginning::here(library),
        })
    }

    /// The process ends: leaves what the next child of the model needs to go on with the file.
    pub(crate) fn leave(&mut self, ledger: Option<&Ledger>) {
        let Some(place) = self.place.take() else {
            return;
        };
        if let Some(ledger) = ledger {
            self.watch(|recorder, _| recorder.finish(ledger));
        }
        let Ok((recorder, _)) = &self.running else {
            return;
        };
        let progress = self
            .beginning
            .progress(self.library, recorder, self.written);
        let bytes = recorder.writer().handover(&progress);
        if let Err(error) = place.leave(RECORDING, &bytes) {
            self.library.say(format_args!(
                "Traffic file {} cannot be handed over to the next process of this model ({error}), which will begin \
                 another one",
                self.path.display()
            ));
        }
    }

    pub(crate) fn state(&self) -> State {
        State {
            file: self.path.display().to_string(),
            bytes: self.written,
            ended: self.running.as_ref().err().map(|&why| why.to_owned()),
        }
    }

    /// Runs `work`. A panic ends the recording, and nothing else.
    pub(crate) fn watch(&mut self, work: impl FnOnce(&mut Recorder, &Beginning)) {
        let Ok((recorder, file)) = &mut self.running else {
            return;
        };
        if catch_unwind(AssertUnwindSafe(|| work(recorder, &self.beginning))).is_err() {
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

/// The last requests, as a recording has them.
pub(crate) struct RecentTraffic {
    /// `None`: it panicked.
    kept: Option<(Recorder, Recent)>,
    library: &'static dyn Library,
    /// `None`: this is no child of a router.
    place: Option<HandoverFolder>,
    beginning: Beginning,
}

impl RecentTraffic {
    /// `limit`: bytes. `place`: where the last child of the model may have left its requests.
    pub(crate) fn new(
        library: &'static dyn Library,
        limit: u64,
        setup: Setup,
        place: Option<HandoverFolder>,
    ) -> io::Result<Self> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let left = place.as_ref().and_then(|place| place.take(LAST_REQUESTS));
        let left = left.and_then(|left| Some((Recent::resume(limit, &left.bytes)?, left.models)));
        let (kept, beginning) = match left {
            None => {
                let (recent, tokens) = Recent::new(limit);
                let recorder = Recorder::recent(random_key()?, tokens, setup);
                ((recorder, recent), Beginning::here(library))
            }
            Some((resumed, models)) => {
                let progress = &resumed.progress;
                let recorder = Recorder::resumed(resumed.writer, progress, models, setup);
                let beginning = Beginning::earlier(library, progress);
                ((recorder, resumed.recent), beginning)
            }
        };
        Ok(Self {
            kept: Some(kept),
            library,
            place,
            beginning,
        })
    }

    /// The process ends: leaves the requests for the next child of the model.
    pub(crate) fn leave(&mut self, ledger: Option<&Ledger>) {
        let Some(place) = self.place.take() else {
            return;
        };
        if let Some(ledger) = ledger {
            self.watch(|recorder, _| recorder.finish(ledger));
        }
        let Some((recorder, recent)) = &self.kept else {
            return;
        };
        let progress = self.beginning.progress(self.library, recorder, 0);
        let bytes = recent.handover(recorder.writer(), &progress);
        if let Err(error) = place.leave(LAST_REQUESTS, &bytes) {
            self.library.say(format_args!(
                "Recent requests are not handed over to the next process of this model ({error}): its `why` will take \
                 their prompts for new"
            ));
        }
    }

    /// The recording. Those that are not over are in it as they are now.
    pub(crate) fn recording(&mut self, ledger: Option<&Ledger>) -> Option<Vec<u8>> {
        let open = match ledger {
            Some(ledger) => self.watch(|recorder, _| recorder.open_requests(ledger))?,
            None => Vec::new(),
        };
        let (_, recent) = self.kept.as_ref()?;
        Some(recent.recording(&open))
    }

    /// Runs `work`, and keeps what it wrote. After a panic nothing is kept any more.
    pub(crate) fn watch<R>(
        &mut self,
        work: impl FnOnce(&mut Recorder, &Beginning) -> R,
    ) -> Option<R> {
        let (recorder, recent) = self.kept.as_mut()?;
        let done = catch_unwind(AssertUnwindSafe(|| {
            let done = work(recorder, &self.beginning);
            recent.push(&recorder.take());
            done
        }));
        if done.is_err() {
            self.kept = None;
            self.library.say(format_args!(
                "Recent requests are not kept any more after an internal error at {}: all else goes on. Please \
                 report this line",
                self.library.place_of_panic()
            ));
        }
        done.ok()
    }
}

/// The file of a router's model.
fn of_model(path: &Path, model: Option<&OsStr>) -> PathBuf {
    /// A name of a file has at most 255 bytes.
    const LONGEST: usize = 100;
    let model = model.unwrap_or_default();
    let text = model.to_string_lossy();
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "._-".contains(*letter);
    let plain = text
        .chars()
        .map(|letter| if is_plain(&letter) { letter } else { '_' });
    let plain: String = plain.take(LONGEST).collect();
    let mut file = path.as_os_str().to_owned();
    file.push(".");
    file.push(&plain);
    if plain != text || plain.is_empty() || TrafficFile::is_aside(&plain) {
        // Only to tell such names apart: nothing secret is hashed.
        let digest = Key::new([0; 16]).hash(model.as_bytes());
        file.push(format!("-{:08x}", digest >> 32));
    }
    file.into()
}

/// Opens the file that the last process of the model wrote. `None`: it is not as it was left.
fn reopen(path: &Path, written: u64) -> Option<File> {
    let file = own_file::open(path, OpenOptions::new().read(true).append(true)).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    let is_as_left = file.metadata().ok()?.len() == written && is_recording(&start_of(&file).ok()?);
    is_as_left.then_some(file)
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

/// A key that was never used.
fn random_key() -> io::Result<Key> {
    let mut key = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    Ok(Key::new(key))
}

#[cfg(test)]
mod tests {
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
    fn each_model_of_a_router_has_a_file_of_its_own() {
        let of = |model: &str| {
            let file = of_model(Path::new("/a/traffic"), Some(OsStr::new(model)));
            file.to_str().unwrap().to_owned()
        };
        assert_eq!(of("one"), "/a/traffic.one");
        assert_eq!(of("Qwen3-0.6B-Q4_K_M"), "/a/traffic.Qwen3-0.6B-Q4_K_M");
        // Others are told apart, stay in the folder, and are none that was set aside.
        let others = [
            "a/b:Q4",
            "a:b/Q4",
            "../x",
            "1",
            "one.1",
            "",
            &"x".repeat(300),
        ];
        let mut files = others.map(of);
        for file in &files {
            let name = file.strip_prefix("/a/traffic.").expect("it is beside");
            assert!(
                !name.contains('/') && !name.ends_with(".1") && name != "1",
                "{file}"
            );
            assert!(name.len() < 120, "{file}");
        }
        files.sort();
        assert!(files.windows(2).all(|two| two[0] != two[1]), "{files:?}");
    }

    #[test]
    fn a_file_is_gone_on_with_only_as_it_was_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("traffic.one");
        assert!(reopen(&path, 0).is_none());
        let good = recorded("good");
        fs::write(&path, &good).unwrap();
        let length = good.len() as u64;
        assert!(reopen(&path, length - 1).is_none());
        let mut file = reopen(&path, length).expect("it is as it was left");
        assert!(reopen(&path, length).is_none(), "another process writes it");
        file.write_all(b" and more").unwrap();
        assert_eq!(fs::read(&path).unwrap(), recorded("good and more"));
        drop(file);
        fs::write(&path, vec![b'x'; good.len()]).unwrap();
        assert!(reopen(&path, length).is_none(), "it is no recording");
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
