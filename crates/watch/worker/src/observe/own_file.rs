//! Files that a setting names. Only regular files of this user are opened, renamed or replaced: a path such as
//! `/dev/full`, a link or another user's file is refused, and stays as it is.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, OFlags, access};
use rustix::process::geteuid;

/// Whether there is a file at this path.
///
/// # Errors
/// What is there is not a regular file of this user.
pub(crate) fn exists(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(found) => check(&found).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens the file for reading and appending, or creates it, readable by this user only.
///
/// # Errors
/// As for [`exists`], or it cannot be opened.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    open(
        path,
        OpenOptions::new().read(true).append(true).create(true),
    )
}

/// Opens with these options. It follows no link, and never waits.
///
/// # Errors
/// As for [`append`].
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Opening a device can have effects, so look first.
    exists(path)?;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    // An `int` in the C interface.
    let flags = flags.bits() as i32;
    let file = options.mode(0o600).custom_flags(flags).open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

/// Where a file goes when a new one of its name begins: `<file>.1`.
pub(crate) fn aside(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".1");
    PathBuf::from(aside)
}

/// Renames the file to [`aside`], and replaces an older one there.
///
/// # Errors
/// What is there must not be replaced, or renaming fails.
pub(crate) fn set_aside(path: &Path) -> io::Result<()> {
    fs::rename(path, free_aside(path)?)
}

/// Whether [`set_aside`] would work now, as far as that can be seen.
///
/// # Errors
/// As for [`set_aside`].
pub(crate) fn can_set_aside(path: &Path) -> io::Result<()> {
    free_aside(path)?;
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("{}: {error}", folder.display()))
    })
}

/// [`aside`], if nothing is there that must stay.
fn free_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = aside(path);
    match exists(&aside) {
        Ok(_) => Ok(aside),
        Err(error) => {
            let text = format!("{}: {error}", aside.display());
            Err(io::Error::new(error.kind(), text))
        }
    }
}

fn check(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    let what = if kind.is_symlink() {
        "it is a link"
    } else if kind.is_dir() {
        "it is a folder"
    } else if !kind.is_file() {
        "it is a device, a pipe or a socket"
    } else if found.uid() != geteuid().as_raw() {
        "it is another user's"
    } else {
        return Ok(());
    };
    let text = format!("{what}; give a path for a regular file of its own");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_this_user_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(!exists(&path).unwrap());
        append(&path).unwrap();
        assert!(exists(&path).unwrap());
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let dangling = folder.path().join("dangling");
        std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
        let folder = folder.path().to_owned();
        for (path, what) in [
            (link, "it is a link"),
            (dangling, "it is a link"),
            (folder, "it is a folder"),
            ("/dev/null".into(), "it is a device"),
        ] {
            let error = append(&path).unwrap_err().to_string();
            assert!(error.starts_with(what), "{path:?}: {error}");
        }
    }

    #[test]
    fn what_is_no_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        append(&path).unwrap();
        let target = folder.path().join("target");
        fs::write(&target, "mine").unwrap();
        std::os::unix::fs::symlink(&target, aside(&path)).unwrap();
        let error = set_aside(&path).unwrap_err().to_string();
        assert!(error.contains("file.1: it is a link"), "{error}");
        assert!(path.exists());
        assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
    }
}
