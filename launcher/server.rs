//! Finding the llama-server to run.
//!
//! This uses only `stat` and `access`. A file is opened only to find out whether it is
//! another copy of this launcher under the name of llama-server, and only if that
//! is possible: if it has exactly the size of this executable, or if this
//! executable is itself on `PATH` as llama-server, behind the file.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use contextpilot_settings::env;

use crate::error::Error;
use crate::variables::Lookup;

#[cfg(test)]
mod tests;

const NAME: &str = "llama-server";

/// The path that a C library searches when `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// A mark that every build of this launcher contains, and nothing else.
static MARK: &[u8] = b"contextpilot-launcher 6c1f4a0e-3d0b-4a57-9a55-08d3c9b7e2f1";

/// Larger files are not searched for the mark: no launcher is larger.
const LARGEST_LAUNCHER: u64 = 64 << 20;

/// A llama-server: its file, and its `argv[0]`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundServer {
    /// With a slash in it, so that exec does not search for it again.
    pub(crate) path: PathBuf,
    /// What a shell would pass: the word that was typed.
    pub(crate) argv0: OsString,
}

/// The server that `LLAMA_SERVER_BIN` names, or else the first `llama-server`
/// on `PATH` that is not this launcher.
pub(crate) fn find(lookup: impl Lookup) -> Result<FoundServer, Error> {
    let this = This::executable();
    match lookup.non_empty(env::LLAMA_SERVER_BIN) {
        Some(path) => named(path, this.as_ref()),
        None => {
            let path = lookup("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
            on_path(path, this.as_ref()).ok_or(Error::NotFound)
        }
    }
}

fn named(argv0: OsString, this: Option<&This>) -> Result<FoundServer, Error> {
    let path = with_slash(PathBuf::from(&argv0));
    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Missing(argv0.into()));
        }
        Err(_) => return Err(Error::NotExecutable(argv0.into(), "cannot be reached")),
    };
    let refuse = |why| Err(Error::NotExecutable(argv0.clone().into(), why));
    if !metadata.is_file() {
        return refuse("is not a file");
    }
    // Given a path, `which` checks just that path, by `access`.
    if which::which_in(&path, None::<&str>, ".").is_err() {
        return refuse("is not executable");
    }
    if this.is_some_and(|this| this.is_at(&path, &metadata)) {
        return refuse("is this launcher itself");
    }
    // Without /proc it is not known which file this is. It would execute itself for ever.
    if this.is_none() && has_mark(&path) {
        return refuse("is this launcher");
    }
    Ok(FoundServer { path, argv0 })
}

/// Searches `PATH`. Several versions of this launcher may be on it as
/// `llama-server`, and must not start each other in circles. So each takes the first
/// candidate behind itself. Only if there is none, it looks at those before itself,
/// and skips every file with the launcher's mark. So it does with all of them if it does not know which file it is itself,
/// without /proc.
fn on_path(path: OsString, this: Option<&This>) -> Option<FoundServer> {
    let candidates = which::which_in_global(NAME, Some(path)).ok()?;
    let mut before = Vec::new();
    let mut behind = Vec::new();
    for candidate in candidates {
        let candidate = with_slash(candidate);
        let Ok(metadata) = fs::metadata(&candidate) else {
            continue;
        };
        if this.is_some_and(|this| this.is_at(&candidate, &metadata)) {
            before.append(&mut behind);
        } else {
            behind.push(candidate);
        }
    }
    behind
        .into_iter()
        .find(|path| this.is_some() || !has_mark(path))
        .or_else(|| before.into_iter().find(|path| !has_mark(path)))
        .map(|path| FoundServer {
            path,
            argv0: NAME.into(),
        })
}

/// Exec searches `PATH` for a name without a slash.
fn with_slash(path: PathBuf) -> PathBuf {
    if path.as_os_str().as_encoded_bytes().contains(&b'/') {
        path
    } else {
        Path::new(".").join(path)
    }
}

/// This launcher's executable.
struct This {
    path: PathBuf,
    metadata: Metadata,
}

impl This {
    fn executable() -> Option<Self> {
        // On Linux this link still leads to the file after it was replaced.
        let path = if cfg!(target_os = "linux") {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe().ok()?
        };
        let metadata = fs::metadata(&path).ok()?;
        Some(Self { path, metadata })
    }

    /// Whether this executable is at `path`: by any link, or as a copy.
    fn is_at(&self, path: &Path, metadata: &Metadata) -> bool {
        let same_file =
            metadata.dev() == self.metadata.dev() && metadata.ino() == self.metadata.ino();
        same_file
            || (metadata.len() == self.metadata.len()
                && same_content(path, &self.path).unwrap_or(false))
    }
}

fn same_content(a: &Path, b: &Path) -> std::io::Result<bool> {
    const CHUNK: u64 = 1 << 16;
    let (mut a, mut b) = (File::open(a)?, File::open(b)?);
    let (mut from_a, mut from_b) = (Vec::new(), Vec::new());
    loop {
        from_a.clear();
        from_b.clear();
        Read::by_ref(&mut a).take(CHUNK).read_to_end(&mut from_a)?;
        Read::by_ref(&mut b).take(CHUNK).read_to_end(&mut from_b)?;
        if from_a != from_b {
            return Ok(false);
        }
        if from_a.is_empty() {
            return Ok(true);
        }
    }
}

fn has_mark(path: &Path) -> bool {
    let content = File::open(path).and_then(|file| {
        let mut content = Vec::new();
        file.take(LARGEST_LAUNCHER).read_to_end(&mut content)?;
        Ok(content)
    });
    // A file that cannot be read may be a launcher. But it is executable, so
    // it is more likely a server that was made unreadable on purpose.
    // The black box keeps the mark in one piece: compared with a constant, it
    // could end up as immediate operands.
    let mark = std::hint::black_box(MARK);
    content.is_ok_and(|content| content.windows(mark.len()).any(|window| window == mark))
}
