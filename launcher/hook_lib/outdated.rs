//! Removes unused libraries of older versions from the cache folder.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use contextpilot_private_folder::PrivateFolder;
use rustix::fs::AtFlags;

/// A library is removed if nothing has loaded it for so long. A server may run longer than that: see
/// [`in_use`]. We cannot see a server in a container that shares this home. What it has loaded
/// stays loaded, but processes that it starts later need the file.
const UNUSED_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Removes files that older versions of this program have left in `folder`: libraries other than `keep`,
/// and unfinished copies. A file is removed if it was not read for a month and is in no process's
/// memory. Files that cannot be examined stay.
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
        // Another process may have removed it first.
        let _ = rustix::fs::unlinkat(folder, &*name, AtFlags::empty());
    }
}

/// Whether this is a name that `build.rs` gives to libraries, or `cache` to unfinished copies.
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

/// The files that this user's processes have mapped. `None` if that cannot be found out
/// here.
fn memory_maps() -> Option<Vec<Vec<u8>>> {
    // Without `/proc`, every library would seem unused.
    fs::read("/proc/self/maps").ok()?;
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let maps = processes.filter_map(|process| fs::read(process.path().join("maps")).ok());
    Some(maps.collect())
}
