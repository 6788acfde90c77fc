//! Digests of files: what a model or an adapter *is*. A path says little, because the file behind it may be
//! another one tomorrow.

use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, Metadata};
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::SystemTime;

use contextpilot_admission::{STACK, give_way};
use contextpilot_control::FilesRead;
use contextpilot_kv_files::{Folder, Readers};

use super::figures::DIGESTS;
use crate::attach::engines::{self, ENGINES};
use crate::base::{faults, guard, signals};

/// What is in a file.
pub(super) struct Content {
    /// What people call it: the file's name.
    pub(super) name: String,
    path: PathBuf,
    /// The file with all its parts, open: whatever its path leads to later, these are what the engine has loaded.
    parts: Vec<File>,
    /// What tells whether a process has written into them since.
    marks: Mutex<Vec<Mark>>,
    /// Bytes of all parts, and how many of them were read for the digest.
    bytes: u64,
    read: AtomicU64,
    /// `None` inside: the file cannot be read. Empty while it is being made.
    digest: OnceLock<Option<[u8; 16]>>,
    /// Why the digest no longer says what an engine that has loaded the file computes with.
    spoiled: OnceLock<&'static str>,
    /// How often it was in doubt.
    doubts: AtomicU32,
    /// It is in doubt.
    in_doubt: AtomicBool,
}

/// Whether the digest of a file still says what an engine that has loaded the file computes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The digest still says it.
    Same,
    /// A process may have written into the file, and its digest is being made again.
    InDoubt,
    /// The digest does not say it any more, for this reason.
    Spoiled(&'static str),
}

const OVERWRITTEN: &str = "somebody has written into the model's file since it was loaded";
const UNREADABLE: &str = "the model's file cannot be read";

impl Content {
    fn of(path: PathBuf) -> Self {
        let name = path.file_name().unwrap_or_default();
        let parts: Option<Vec<File>> = parts(&path).iter().map(|part| open(part)).collect();
        let parts = parts.unwrap_or_default();
        Self {
            name: name.to_string_lossy().into_owned(),
            marks: Mutex::new(marks(&parts)),
            path,
            bytes: (parts.iter())
                .filter_map(|part| Some(part.metadata().ok()?.len()))
                .sum(),
            parts,
            read: AtomicU64::new(0),
            digest: OnceLock::new(),
            spoiled: OnceLock::new(),
            doubts: AtomicU32::new(0),
            in_doubt: AtomicBool::new(false),
        }
    }

    /// The digest, if it is there.
    pub(super) fn digest(&self) -> Option<&[u8; 16]> {
        self.digest.get()?.as_ref()
    }

    fn known_marks(&self) -> MutexGuard<'_, Vec<Mark>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its path still leads to it, unchanged.
    pub(super) fn is_still_there(&self) -> bool {
        let now: Vec<_> = parts(&self.path)
            .iter()
            .map(|part| Mark::at(part))
            .collect();
        !self.parts.is_empty() && *self.known_marks() == now
    }

    /// How often it was in doubt. What was evaluated before the last time may not be what the digest says.
    pub(super) fn doubts(&self) -> u32 {
        self.doubts.load(Ordering::Acquire)
    }

    /// An engine that has loaded the file computes with something else from now on.
    fn spoil(&self, why: &'static str) {
        let _ = self.spoiled.set(why);
    }

    /// Whether a process has written into the file since. An engine that has it mapped computes with what is there now.
    /// (Replacing a file by another one of its name does no harm to engines that have the old one. That file got
    /// another number of names, which cannot be told from something written with size and time restored: such a file is
    /// read again.)
    pub(super) fn standing(self: &Arc<Self>) -> Standing {
        if let Some(why) = self.spoiled.get() {
            return Standing::Spoiled(why);
        }
        if self.in_doubt.load(Ordering::Acquire) {
            return Standing::InDoubt;
        }
        let then = self.known_marks();
        let mut each = then.iter().zip(&self.parts);
        // 0.2 µs behind each token that is generated (docs/benchmarks.md).
        if each.all(|(then, part)| *then == Mark::of_open(part)) {
            return Standing::Same;
        }
        let now = marks(&self.parts);
        let is_other =
            then.len() != now.len() || then.iter().zip(&now).any(|(then, now)| then.is_other(now));
        drop(then);
        let Some(digest) = self.digest().filter(|_| !is_other) else {
            self.spoil(OVERWRITTEN);
            return Standing::Spoiled(OVERWRITTEN);
        };
        self.doubt(*digest, now);
        Standing::InDoubt
    }

    /// Makes the digest again, of which there is one. Two threads may come here at once; then one does it.
    fn doubt(self: &Arc<Self>, digest: [u8; 16], now: Vec<Mark>) {
        if self.in_doubt.swap(true, Ordering::AcqRel) {
            return;
        }
        self.doubts.fetch_add(1, Ordering::AcqRel);
        let content = Arc::clone(self);
        let started = on_thread(move || {
            let again = digest_of(&content);
            if again == Some(digest) && marks(&content.parts) == now {
                *content.known_marks() = now;
            } else {
                content.spoil(OVERWRITTEN);
            }
            content.in_doubt.store(false, Ordering::Release);
        });
        if !started {
            self.spoil(OVERWRITTEN);
        }
    }
}

/// Opens a file that can be read to its end.
fn open(path: &Path) -> Option<File> {
    // Without `O_NONBLOCK`, opening a pipe would wait for a process at its other end.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    file.metadata()
        .is_ok_and(|found| found.is_file())
        .then_some(file)
}

fn marks(parts: &[File]) -> Vec<Mark> {
    parts.iter().map(Mark::of_open).collect()
}

/// Threads that make a digest: more wait for memory.
const MOST_HASHERS: usize = 16;

/// Runs this on a thread of its own, which gives way to the host's. False if there can be none.
fn on_thread(work: impl FnOnce() + Send + 'static) -> bool {
    let thread = thread::Builder::new()
        .name("contextpilot-digest".to_owned())
        .stack_size(STACK);
    let work = || {
        guard::enter_for_life();
        give_way();
        work();
    };
    signals::blocked(|| thread.spawn(work)).is_ok()
}

/// Tells a file from what is at its path later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    device: u64,
    number: u64,
    size: u64,
    /// When it was written, nanoseconds.
    written: i128,
    /// When that, its name or its rights changed. No program can set it, as copies do with the time above.
    changed: i128,
}

impl Mark {
    /// The mark of what is at this path now.
    fn at(path: &Path) -> Self {
        std::fs::metadata(path).map_or(Self::default(), |found| Self::of(&found))
    }

    /// The mark of an open file.
    fn of_open(file: &File) -> Self {
        file.metadata()
            .map_or(Self::default(), |found| Self::of(&found))
    }

    fn of(found: &Metadata) -> Self {
        let time = |seconds: i64, more: i64| i128::from(seconds) * 1_000_000_000 + i128::from(more);
        Self {
            device: found.dev(),
            number: found.ino(),
            size: found.size(),
            written: time(found.mtime(), found.mtime_nsec()),
            changed: time(found.ctime(), found.ctime_nsec()),
        }
    }

    /// Whether something else is in the file now. That it got another name or other rights does not matter.
    fn is_other(&self, now: &Self) -> bool {
        Self {
            changed: 0,
            ..*self
        } != Self { changed: 0, ..*now }
    }
}

/// Where digests are kept.
static KEPT: OnceLock<Folder> = OnceLock::new();

/// Digests are kept in this folder, beside the store.
pub(super) fn keep_in(folder: &Folder) {
    let _ = KEPT.set(folder.clone());
}

/// Files that were named so far. A server has a few models and adapters.
static FILES: Mutex<Vec<Arc<Content>>> = Mutex::new(Vec::new());
/// Models and adapters, and their files.
static OWNERS: Mutex<Vec<Owner>> = Mutex::new(Vec::new());

struct Owner {
    address: usize,
    /// Another one may get the address later, but not the number.
    number: u64,
    content: Arc<Content>,
}

/// An adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adapter {
    /// It was loaded from a file: the number of that.
    Loaded(u64),
    /// The file is not known. Later another adapter may be at this address.
    Unknown(usize),
}

/// Files that are not used any more, and whose digests are remembered.
const UNUSED: usize = 8;

/// A model or an adapter will be loaded from this file: its digest is made on a thread of its own, while
/// the engine loads it.
pub(super) fn begin(path: &CStr) -> Arc<Content> {
    let path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    // Newer servers load a model twice, first without its tensors.
    let known = files.iter().find(|file| {
        file.path == path && file.is_still_there() && file.standing() == Standing::Same
    });
    if let Some(known) = known {
        return Arc::clone(known);
    }
    files.retain(|file| file.path != path);
    let mut unused = files
        .iter()
        .filter(|file| Arc::strong_count(file) == 1)
        .count();
    files.retain(|file| {
        let goes = unused > UNUSED && Arc::strong_count(file) == 1;
        unused -= usize::from(goes);
        !goes
    });
    let content = Arc::new(Content::of(path));
    files.push(Arc::clone(&content));
    let result = Arc::clone(&content);
    let finish = |content: &Content, digest: Option<_>| {
        if digest.is_none() {
            content.spoil(UNREADABLE);
        }
        let _ = content.digest.set(digest);
        DIGESTS.fetch_sub(1, Ordering::Release);
    };
    DIGESTS.fetch_add(1, Ordering::Relaxed);
    let digest = move || {
        faults::hold_digest();
        let began = SystemTime::now();
        let kept = KEPT
            .get()
            .and_then(|folder| folder.kept_digest(&result.parts));
        let digest = kept.or_else(|| digest_of(&result));
        // If a process writes into the file while it is loaded, the engine has neither the old model nor the new one.
        let is_same = marks(&result.parts) == *result.known_marks();
        if let (Some(folder), Some(digest), None, true) = (KEPT.get(), digest, kept, is_same) {
            // Else it is made again.
            let _ = folder.keep_digest(&result.parts, began, digest);
        }
        if digest.is_some() && !is_same {
            result.spoil(OVERWRITTEN);
        }
        finish(&result, digest.filter(|_| is_same));
    };
    if !on_thread(digest) {
        finish(&content, None);
    }
    content
}

/// How far the files have been read whose first digests are being made; `None`: there are none.
pub(super) fn being_read() -> Option<FilesRead> {
    let files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let unread = files.iter().filter(|file| file.digest.get().is_none());
    let sums = unread.map(|file| (file.read.load(Ordering::Relaxed), file.bytes));
    sums.reduce(|sum, other| (sum.0 + other.0, sum.1 + other.1))
        .map(|(bytes_read, bytes)| FilesRead { bytes_read, bytes })
}

/// The model or adapter at this address was loaded from that file.
pub(super) fn own(address: usize, content: Arc<Content>) {
    if address == 0 {
        return;
    }
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
    owners.retain(|owner| owner.address != address);
    owners.push(Owner {
        address,
        number,
        content,
    });
}

/// What is at this address is freed: another one may get the address.
pub(super) fn disown(address: usize) {
    let mut owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
    owners.retain(|owner| owner.address != address);
}

fn find<T>(is_it: impl Fn(&Owner) -> bool, what: impl FnOnce(&Owner) -> T) -> Option<T> {
    let owners = OWNERS.lock().unwrap_or_else(PoisonError::into_inner);
    owners.iter().find(|owner| is_it(owner)).map(what)
}

fn of_address(address: usize) -> Option<Arc<Content>> {
    find(
        |owner| owner.address == address,
        |owner| Arc::clone(&owner.content),
    )
}

pub(super) fn of_model(address: usize) -> Option<Arc<Content>> {
    of_address(address)
}

/// The adapter that is at this address now.
pub(super) fn adapter_at(address: usize) -> Adapter {
    let number = find(|owner| owner.address == address, |owner| owner.number);
    number.map_or(Adapter::Unknown(address), Adapter::Loaded)
}

/// What is in its file. `None`: that is not known, or it was freed.
pub(super) fn of_adapter(adapter: Adapter) -> Option<Arc<Content>> {
    let Adapter::Loaded(number) = adapter else {
        return None;
    };
    find(
        |owner| owner.number == number,
        |owner| Arc::clone(&owner.content),
    )
}

/// Whether it is known what is in its file, or will be.
pub(super) fn may_know(adapter: Adapter) -> bool {
    of_adapter(adapter).is_some_and(|content| content.digest.get() != Some(&None))
}

/// The weights of the model at this address are about to be changed.
pub(super) fn spoil_model(address: usize, why: &'static str) {
    if let Some(content) = of_address(address) {
        // What is loaded from the file later is what the file says.
        let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|file| !Arc::ptr_eq(file, &content));
        content.spoil(why);
    }
}

/// The digest of a file and, if it is the first of several parts, of the others: by all processors, as far as the host leaves
/// them. On a thread of [`on_thread`], whose priority the others inherit.
fn digest_of(content: &Content) -> Option<[u8; 16]> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let readers = Readers {
        threads: processors.min(MOST_HASHERS) - 1,
        on_start: guard::enter_for_life,
    };
    contextpilot_kv_files::digest_of(&content.parts, readers, &content.read)
}

/// The parts of a model that is divided: `…-00001-of-00003.gguf`.
fn parts(path: &Path) -> Vec<PathBuf> {
    // The end is ASCII, whatever is before it.
    let parted = || {
        let name = path.file_name()?.as_bytes();
        let (stem, end) =
            name.split_at_checked(name.len().checked_sub("-00001-of-00002.gguf".len())?)?;
        let end = std::str::from_utf8(end).ok()?.strip_prefix("-00001-of-")?;
        let count: usize = end.strip_suffix(".gguf")?.parse().ok()?;
        (2..10_000).contains(&count).then(|| {
            let part = |part| {
                let end = format!("-{part:05}-of-{end}");
                path.with_file_name(OsStr::from_bytes(&[stem, end.as_bytes()].concat()))
            };
            (1..=count).map(part).collect()
        })
    };
    parted().unwrap_or_else(|| vec![path.to_owned()])
}

/// The file of each engine in a program that is no llama-server, and of one that does not say which it is.
static FILES_OF_ENGINES: [OnceLock<PathBuf>; ENGINES] = [const { OnceLock::new() }; ENGINES];

/// The file of the engine that the thread is in.
fn file_of_engine() -> &'static OnceLock<PathBuf> {
    &FILES_OF_ENGINES[engines::current() % ENGINES]
}

/// The engine that the thread is in is known by what is in this file: the program is no llama-server, or the engine
/// does not name its commit.
pub(crate) fn set_engine(file: PathBuf) {
    let _ = file_of_engine().set(file);
}

/// Makes the digest of the file of the engine that the thread is in, if that is needed, and was not done before: the
/// file may have been replaced since the engine was loaded from it.
pub(super) fn begin_engine() {
    if of_address(engine_itself()).is_some() {
        return;
    }
    let file = file_of_engine()
        .get()
        .map(|file| file.as_os_str().as_bytes());
    if let Some(Ok(file)) = file.map(CString::new) {
        own(engine_itself(), begin(&file));
    }
}

/// Stands for the engine that the thread is in among the addresses of models and adapters.
fn engine_itself() -> usize {
    1 + engines::current()
}

/// The digest of the engine that the thread is in; nothing if its version says enough. `None`: not known, or not yet.
pub(super) fn of_engine() -> Option<Option<[u8; 16]>> {
    match file_of_engine().get() {
        Some(_) => Some(Some(*of_address(engine_itself())?.digest()?)),
        None => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_a_divided_model_are_read() {
        let names = |path: &str| {
            let all = parts(Path::new(path));
            all.iter()
                .map(|p| p.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names("/m/a.gguf"), ["/m/a.gguf"]);
        assert_eq!(names("a"), ["a"]);
        assert_eq!(names("/m/-00001-of-00001.gguf").len(), 1);
        let odd = Path::new(OsStr::from_bytes(b"/m/\xff-00001-of-00003.gguf"));
        let third = parts(odd).pop();
        assert_eq!(
            third.as_deref(),
            Some(Path::new(OsStr::from_bytes(b"/m/\xff-00003-of-00003.gguf")))
        );
        assert_eq!(
            names("/m/a-00001-of-00002.gguf"),
            ["/m/a-00001-of-00002.gguf", "/m/a-00002-of-00002.gguf"]
        );
        assert_eq!(
            names("/m/a-00002-of-00002.gguf"),
            ["/m/a-00002-of-00002.gguf"]
        );
    }

    fn written(path: &Path, text: &str) -> SystemTime {
        std::fs::write(path, text).unwrap();
        std::fs::metadata(path).unwrap().modified().unwrap()
    }

    /// As `cp -p` writes it, and others who put the time back.
    fn write_as_of(path: &Path, text: &str, time: SystemTime) {
        // The clock of files has steps of some milliseconds.
        let before = Mark::at(path);
        while Mark::at(path).changed == before.changed {
            std::fs::write(path, text).unwrap();
        }
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(time).unwrap();
        let now = Mark::at(path);
        assert_eq!((now.size, now.written), (before.size, before.written));
    }

    fn begun(path: &Path) -> Arc<Content> {
        let content = begin(&CString::new(path.as_os_str().as_bytes()).unwrap());
        content.digest.wait();
        content
    }

    /// What it is when it is not in doubt any more.
    fn settled(content: &Arc<Content>) -> Standing {
        loop {
            match content.standing() {
                Standing::InDoubt => thread::yield_now(),
                standing => return standing,
            }
        }
    }

    #[test]
    fn a_file_that_was_written_into_is_another_one_and_one_with_another_name_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        written(&path, "first");
        let content = begun(&path);
        std::fs::hard_link(&path, folder.path().join("other.gguf")).unwrap();
        assert_eq!(settled(&content), Standing::Same);
        // The engine keeps the file that it has mapped.
        let new = folder.path().join("new.gguf");
        written(&new, "another");
        std::fs::rename(&new, &path).unwrap();
        assert_eq!(settled(&content), Standing::Same);
        assert!(!content.is_still_there());
        std::fs::remove_file(folder.path().join("other.gguf")).unwrap();
        assert_eq!(settled(&content), Standing::Same);

        let content = begun(&path);
        written(&path, "third");
        assert_eq!(settled(&content), Standing::Spoiled(OVERWRITTEN));
    }

    #[test]
    fn a_file_that_is_written_into_with_its_size_and_its_time_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let time = written(&path, "first");
        let content = begun(&path);
        let doubts = content.doubts();
        write_as_of(&path, "other", time);
        assert_eq!(settled(&content), Standing::Spoiled(OVERWRITTEN));
        assert_ne!(content.doubts(), doubts);
        assert!(!content.is_still_there());
        assert_eq!(
            begun(&path).standing(),
            Standing::Same,
            "what is loaded now"
        );
    }

    #[test]
    fn the_file_that_was_loaded_counts_and_not_what_its_path_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, path] =
            ["one", "other", "model.gguf"].map(|name| folder.path().join(name));
        written(&one, "first");
        written(&other, "other");
        std::os::unix::fs::symlink(&one, &path).unwrap();
        let content = begun(&path);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert_eq!(settled(&content), Standing::Same);
        written(&one, "second");
        assert_eq!(settled(&content), Standing::Spoiled(OVERWRITTEN));
    }

    #[test]
    fn what_cannot_be_read_is_said_and_nobody_waits_for_a_pipe() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: a path that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in [&pipe, &folder.path().join("nothing")] {
            assert_eq!(begun(path).standing(), Standing::Spoiled(UNREADABLE));
        }
    }

    #[test]
    fn few_files_that_nobody_uses_stay_open() {
        let folder = tempfile::tempdir().unwrap();
        for nth in 0..3 * UNUSED {
            let path = folder.path().join(format!("{nth}.gguf"));
            written(&path, "some");
            let content = begun(&path);
            // Its thread uses it until it ends.
            while Arc::strong_count(&content) > 2 {
                thread::yield_now();
            }
        }
        let files = FILES.lock().unwrap();
        let mine = files
            .iter()
            .filter(|file| file.path.starts_with(folder.path()));
        assert!(mine.count() <= UNUSED + 2);
    }
}
