use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use contextpilot_private_folder::effective_user;

use crate::error::HookError;

/// The path of a file in `folder` that holds exactly `content`.
///
/// Any number of processes may do this at once: each writes a file of its own
/// and renames it, and what a name refers to is complete at every moment.
pub(super) fn ensure(folder: &Path, name: &str, content: &[u8]) -> Result<PathBuf, HookError> {
    let path = folder.join(name);
    if matches!(holds(&path, content), Ok(true)) {
        return Ok(path);
    }
    let error = |source| HookError::Write {
        path: path.clone(),
        source,
    };
    replace(folder, &path, content).map_err(error)?;
    match holds(&path, content) {
        Ok(true) => Ok(path),
        Ok(false) => Err(error(io::Error::other("it was changed after writing"))),
        Err(e) => Err(error(e)),
    }
}

/// Whether `path` is a file of ours alone, with this content.
fn holds(path: &Path, content: &[u8]) -> io::Result<bool> {
    let mut file = OpenOptions::new()
        .read(true)
        // Nor may a FIFO in its place make us wait.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    let metadata = file.metadata()?;
    let ours = metadata.is_file()
        && metadata.uid() == effective_user()
        && metadata.mode() & 0o022 == 0
        && metadata.len() == content.len() as u64;
    Ok(ours && reads_as(&mut file, content)?)
}

fn reads_as(file: &mut File, content: &[u8]) -> io::Result<bool> {
    // Small enough to stay in the processor's cache, where it is compared.
    let mut chunk = vec![0; 128 << 10];
    let mut rest = content;
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(rest.is_empty()),
            Ok(n) => match rest.strip_prefix(&chunk[..n]) {
                Some(after) => rest = after,
                None => return Ok(false),
            },
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

fn replace(folder: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    let (temporary, mut file) = create_new(folder)?;
    // No fsync: what a power cut leaves behind is not used but replaced.
    let done = file
        .write_all(content)
        .and_then(|()| fs::rename(&temporary, path));
    if done.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    done
}

/// A new file under a name that nobody else uses.
fn create_new(folder: &Path) -> io::Result<(PathBuf, File)> {
    let process = std::process::id();
    let mut attempt = 0_u32;
    loop {
        let path = folder.join(format!(".new-{process}-{attempt}"));
        let file = OpenOptions::new()
            .write(true)
            // Refuses whatever is there, links included.
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match file {
            Ok(file) => return Ok((path, file)),
            // Left behind by a process of the same number, in another
            // container or killed.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && attempt < 1000 => attempt += 1,
            Err(e) => return Err(e),
        }
    }
}
