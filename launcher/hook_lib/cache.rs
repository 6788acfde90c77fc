use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use contextpilot_private_folder::{PrivateFolder, effective_user};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::checked;
use crate::error::HookError;

/// A file with the right content.
#[derive(Debug)]
pub(super) struct LaidDown {
    pub(super) path: PathBuf,
    /// It was just written.
    pub(super) new: bool,
}

/// The path of a file in `folder` that holds exactly `content`.
///
/// Many processes may do this at once. Each writes its own file
/// and renames it, so a file under the final name is always complete.
pub(super) fn ensure(
    folder: &PrivateFolder,
    name: &str,
    content: &[u8],
) -> Result<LaidDown, HookError> {
    let path = folder.path().join(name);
    if matches!(holds(folder, name, content), Ok(true)) {
        return Ok(LaidDown { path, new: false });
    }
    let error = |source| HookError::Write {
        path: path.clone(),
        source,
    };
    replace(folder, name, content).map_err(error)?;
    match holds(folder, name, content) {
        Ok(true) => Ok(LaidDown { path, new: true }),
        Ok(false) => Err(error(io::Error::other("it was changed after writing"))),
        Err(e) => Err(error(e)),
    }
}

/// Whether `name` is a file of ours alone, with this content.
fn holds(folder: &PrivateFolder, name: &str, content: &[u8]) -> io::Result<bool> {
    // A FIFO at the path must not make us wait.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    let ours = metadata.is_file()
        && metadata.uid() == effective_user()
        && metadata.mode() & 0o022 == 0
        && metadata.len() == content.len() as u64;
    if !ours {
        return Ok(false);
    }
    let stamp = checked::stamp(&metadata);
    if stamp.is_some() && checked::noted(folder, name) == stamp {
        return Ok(true);
    }
    let same = reads_as(&mut file, content)?;
    if let Some(stamp) = stamp.filter(|_| same && checked::is_settled(&metadata)) {
        // Else it is compared again.
        let _ = replace(folder, &checked::note_of(name), stamp.as_bytes());
    }
    Ok(same)
}

/// Whether the rest of `file` is `content`.
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

fn replace(folder: &PrivateFolder, name: &str, content: &[u8]) -> io::Result<()> {
    let (temporary, mut file) = create_new(folder)?;
    // No fsync: a file that a power cut damaged is replaced at the next start.
    let done = file.write_all(content).and_then(|()| {
        rustix::fs::renameat(folder, &*temporary, folder, name).map_err(io::Error::from)
    });
    if done.is_err() {
        // The first error is the one to report.
        let _ = rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
    }
    done
}

/// A new file under an unused name, and that name.
fn create_new(folder: &PrivateFolder) -> io::Result<(String, File)> {
    // Fails if anything exists at the path, even a link.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let process = std::process::id();
    let mut attempt = 0_u32;
    loop {
        let name = format!(".new-{process}-{attempt}");
        match rustix::fs::openat(folder, &*name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => return Ok((name, File::from(file))),
            // Left by a process with the same id, which was killed or is in another
            // container.
            Err(Errno::EXIST) if attempt < 1000 => attempt += 1,
            Err(e) => return Err(e.into()),
        }
    }
}
