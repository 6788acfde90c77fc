//! Libraries of older versions in the cache folder, which nobody uses any more.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use contextpilot_private_folder::PrivateFolder;
use rustix::fs::AtFlags;

/// How long nobody has loaded a library that is removed. A server may run longer than that: see
/// [`in_use`]. It can be out of sight, in a container that shares this home; what it has loaded
/// stays loaded, and this is for the processes that it may yet start.
const UNUSED_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Removes what older versions of this program have left in `folder`: libraries other than `keep`,
/// and files of which one was to become, that were not read for a month and are in no process's
/// memory. What cannot be looked at stays.
pub(super) fn remove(folder: &PrivateFolder, keep: &str, now: SystemTime) {
    let Ok(entries) = fs::read_dir(folder.path()) else {
        return;
    };
    let mut old: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name() != keep && is_ours(&entry.file_name()))
        .filter(|entry| unused_since(&entry.path(), now) >= Some(UNUSED_FOR))
        .map(|entry| entry.file_name())
        .collect();
    if old.is_empty() {
        return;
    }
    let Some(maps) = memory_maps() else {
        return;
    };
    old.retain(|name| !in_use(name, &maps));
    for name in old {
        // Another process may have been first.
        let _ = rustix::fs::unlinkat(folder, &*name, AtFlags::empty());
    }
}

/// As `build.rs` names libraries, and `cache` what is to become one.
fn is_ours(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        name.starts_with("libcontextpilot_llama_hook-") || name.starts_with(".new-")
    })
}

/// Since it was last read or written, as far as the file system notes that. Each start reads the
/// library that it uses.
fn unused_since(path: &Path, now: SystemTime) -> Option<Duration> {
    let metadata = fs::symlink_metadata(path).ok()?;
    if !metadata.is_file() {
        return None;
    }
    let last = metadata.modified().ok()?.max(metadata.accessed().ok()?);
    now.duration_since(last).ok()
}

/// By name, which has the hash of the content in it: the same file has other numbers and another
/// path in a container.
fn in_use(name: &OsStr, maps: &[Vec<u8>]) -> bool {
    let name = name.as_encoded_bytes();
    maps.iter()
        .any(|map| map.windows(name.len()).any(|part| part == name))
}

/// What each process has in its memory, of those that may be looked at: this user's. `None`: that
/// cannot be seen here.
fn memory_maps() -> Option<Vec<Vec<u8>>> {
    // Without it, no process would be seen, and all would be removed.
    fs::read("/proc/self/maps").ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let maps = processes.filter_map(|process| fs::read(process.path().join("maps")).ok());
    Some(maps.collect())
}
