//! Digests of files: what a model or an adapter *is*. A path says little, because the file behind it may be
//! another one tomorrow.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use sha2::{Digest, Sha256};

use contextpilot_admission::STACK;

use super::figures::DIGESTS;
use crate::attach::engines::{self, ENGINES};
use crate::base::guard;

/// What is in a file.
pub(super) struct Content {
    /// What people call it: the file's name.
    pub(super) name: String,
    path: PathBuf,
    /// Tells whether the file, and all its parts, are still the same.
    mark: Vec<Mark>,
    /// `None` inside: the file cannot be read. Empty while it is being made.
    digest: OnceLock<Option<[u8; 16]>>,
}

impl Content {
    fn of(path: PathBuf, mark: Vec<Mark>) -> Self {
        let name = path.file_name().unwrap_or_default();
        Self {
            name: name.to_string_lossy().into_owned(),
            path,
            mark,
            digest: OnceLock::new(),
        }
    }

    /// The digest, if it is there.
    pub(super) fn digest(&self) -> Option<&[u8; 16]> {
        self.digest.get()?.as_ref()
    }

    /// Whether its path still leads to it, unchanged.
    pub(super) fn is_still_there(&self) -> bool {
        self.mark == marks_of(&self.path)
    }

    /// Whether somebody has written into the file since. An engine that has it mapped computes with what is there now.
    /// (Whoever replaces a file by another one of its name does no harm to those who have the old one.)
    pub(super) fn is_overwritten(&self) -> bool {
        let now = marks_of(&self.path);
        let is_other = |(then, now): (&Mark, &Mark)| then.is_overwritten(now);
        self.mark.iter().zip(&now).any(is_other)
    }
}

/// Tells a file from what is at its path later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    device: u64,
    number: u64,
    size: u64,
    /// When it was written, nanoseconds.
    written: i128,
    /// When that, its name or its rights changed. Nobody can set it, as copies do with the time above.
    changed: i128,
}

impl Mark {
    /// Of what is at this path now.
    fn of(path: &Path) -> Self {
        let Ok(found) = std::fs::metadata(path) else {
            return Self::default();
        };
        let time = |seconds: i64, more: i64| i128::from(seconds) * 1_000_000_000 + i128::from(more);
        Self {
            device: found.dev(),
            number: found.ino(),
            size: found.size(),
            written: time(found.mtime(), found.mtime_nsec()),
            changed: time(found.ctime(), found.ctime_nsec()),
        }
    }

    /// Whether it is the same file with something else in it. That it got another name or other rights does not matter.
    fn is_overwritten(&self, now: &Self) -> bool {
        let same_file = (self.device, self.number) == (now.device, now.number);
        same_file && (self.size, self.written) != (now.size, now.written)
    }
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
    /// From which file is not known. Later another one may be at this address.
    Unknown(usize),
}

/// A model or an adapter will be loaded from this file: its digest is made on a thread of its own, while
/// the engine loads it.
pub(super) fn begin(path: &CStr) -> Arc<Content> {
    let path = PathBuf::from(OsStr::from_bytes(path.to_bytes()));
    let mark = marks_of(&path);
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    // Newer servers load a model twice, first without its tensors.
    let known = files
        .iter()
        .find(|file| file.path == path && file.mark == mark);
    if let Some(known) = known {
        return Arc::clone(known);
    }
    files.retain(|file| file.path != path);
    let content = Arc::new(Content::of(path, mark));
    files.push(Arc::clone(&content));
    let result = Arc::clone(&content);
    let finish = |content: &Content, digest| {
        let _ = content.digest.set(digest);
        DIGESTS.fetch_sub(1, Ordering::Release);
    };
    DIGESTS.fetch_add(1, Ordering::Relaxed);
    let digest = move || {
        guard::enter_for_life();
        let digest = digest_of(&result.path);
        // Whoever replaces a file while it is loaded has another model than either.
        finish(&result, digest.filter(|_| result.is_still_there()));
    };
    let thread = thread::Builder::new()
        .name("contextpilot-digest".to_owned())
        .stack_size(STACK);
    if thread.spawn(digest).is_err() {
        finish(&content, None);
    }
    content
}

/// Those of all parts of a model.
fn marks_of(path: &Path) -> Vec<Mark> {
    parts(path).iter().map(|part| Mark::of(part)).collect()
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

/// The digest of a file and, if it is the first of several parts, of the others.
fn digest_of(path: &Path) -> Option<[u8; 16]> {
    let mut digester = Sha256::new();
    let mut block = vec![0; 1 << 20];
    for part in parts(path) {
        let mut file = File::open(part).ok()?;
        loop {
            match file.read(&mut block).ok()? {
                0 => break,
                read => digester.update(&block[..read]),
            }
        }
    }
    let whole = digester.finalize();
    Some(std::array::from_fn(|i| whole[i]))
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

    #[test]
    fn a_file_that_was_written_into_is_another_one_and_one_with_another_name_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, "first").unwrap();
        let content = Content::of(path.clone(), marks_of(&path));
        std::fs::hard_link(&path, folder.path().join("other.gguf")).unwrap();
        assert!(!content.is_overwritten());
        // The engine keeps the file that it has mapped.
        let new = folder.path().join("new.gguf");
        std::fs::write(&new, "another").unwrap();
        std::fs::rename(&new, &path).unwrap();
        assert!(!content.is_overwritten());
        std::fs::remove_file(&path).unwrap();
        assert!(!content.is_overwritten());

        std::fs::write(&path, "first").unwrap();
        let content = Content::of(path.clone(), marks_of(&path));
        std::fs::write(&path, "another").unwrap();
        assert!(content.is_overwritten());
    }

    /// As `cp -p` writes it, from one with the same times.
    #[test]
    fn a_file_with_the_size_and_the_time_of_an_earlier_one_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, "first").unwrap();
        let written = std::fs::metadata(&path).unwrap().modified().unwrap();
        let before = Mark::of(&path);
        // Its clock has steps of some milliseconds.
        thread::sleep(std::time::Duration::from_millis(30));
        std::fs::write(&path, "other").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(written).unwrap();
        let now = Mark::of(&path);
        assert_eq!((now.size, now.written), (before.size, before.written));
        assert_ne!(now, before);
        let content = Content::of(path, vec![before]);
        assert!(!content.is_still_there());
    }
}
