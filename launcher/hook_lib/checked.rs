//! Which library was compared with the embedded bytes. Reading and comparing megabytes takes longer than all else that the
//! launcher does, so what was not written to since is compared once after each start of the machine.
//!
//! The time of a file's last change cannot be set by a program. What a loss of power does to a file shows after the next
//! start of the machine.

use std::fs::{File, Metadata, read_to_string};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use contextpilot_private_folder::PrivateFolder;
use rustix::fs::{Mode, OFlags};

/// A file that was changed more recently may be changed again without another time.
const SETTLED: Duration = Duration::from_secs(2);

/// Longer than any line that is written here.
const MOST: u64 = 512;

/// The name of the file that says it of the library `name`.
pub(super) fn note_of(name: &str) -> String {
    format!("{name}.checked")
}

/// What a file is as long as nothing is written to it and the machine runs. `None`: that is not known here.
pub(super) fn stamp(of: &Metadata) -> Option<String> {
    let boot = read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let (boot, number, size) = (boot.trim(), of.ino(), of.size());
    let written = (of.mtime(), of.mtime_nsec());
    let changed = (of.ctime(), of.ctime_nsec());
    Some(format!(
        "{boot} {} {number} {size} {written:?} {changed:?}\n",
        of.dev()
    ))
}

/// Whether a later change would have another time.
pub(super) fn is_settled(of: &Metadata) -> bool {
    let since = u64::try_from(of.ctime()).ok();
    let changed = since.map(|seconds| UNIX_EPOCH + Duration::from_secs(seconds + 1));
    let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
    age >= Some(SETTLED)
}

/// The stamp of the library when it was compared.
pub(super) fn noted(folder: &PrivateFolder, name: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, note_of(name), flags, Mode::empty()).ok()?;
    let mut text = String::new();
    File::from(file).take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}
