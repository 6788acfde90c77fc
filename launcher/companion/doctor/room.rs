//! Whether the disk of a folder has room for a prefix store.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use super::super::show::bytes;

/// With less than this free, or a budget of less, next to nothing is stored.
const LEAST: u64 = 1_000_000;
/// The usual budget is one part in so many of what is free (`Folder::usual_limit`).
const SHARE: u64 = 10;

/// The disk of a folder, which may be one that is still to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes that are free for this user.
    free: u64,
    /// Bytes that the folder's own files take.
    own: u64,
    is_read_only: bool,
    /// Its file system has a size. `/proc` has none, and some of FUSE do not say it.
    has_size: bool,
}

impl Room {
    pub(super) fn of(folder: &Path) -> io::Result<Self> {
        let there = folder.ancestors().find(|path| path.is_dir());
        let disk = statvfs(there.unwrap_or(Path::new("/")))?;
        Ok(Self {
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            own: size_of(folder),
            is_read_only: disk.f_flag.contains(StatVfsMountFlags::RDONLY),
            has_size: disk.f_blocks > 0,
        })
    }

    /// What is wrong, and what to do. `budget`: `None` if no setting gives one.
    pub(super) fn problem(&self, budget: Option<u64>) -> Option<String> {
        const DO: &str = "make room there, or";
        if self.is_read_only {
            return Some(
                "its disk cannot be written to (read-only), so nothing is stored: correct CONTEXTPILOT_STORE"
                    .to_owned(),
            );
        }
        if !self.has_size {
            return budget.is_none().then(|| {
                "its file system says that it has no room at all: correct CONTEXTPILOT_STORE, or set \
                 CONTEXTPILOT_STORE_GB"
                    .to_owned()
            });
        }
        let most = self.free.saturating_add(self.own);
        match budget {
            Some(budget) if most < budget => Some(format!(
                "its disk has room for {} of the budget of {}: {DO} lower CONTEXTPILOT_STORE_GB",
                bytes(most),
                bytes(budget)
            )),
            None if self.free < LEAST || most / SHARE < LEAST => Some(format!(
                "its disk has {} free, so next to nothing is stored: {DO} name a folder elsewhere",
                bytes(self.free)
            )),
            _ => None,
        }
    }
}

/// Bytes of all files in a folder, as far as they can be seen.
fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_of(&entry.path()),
        Ok(found) => found.blocks() * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_full_or_smaller_than_the_budget_is_noticed_and_the_stores_own_files_count() {
        const MB: u64 = 1_000_000;
        let problem = |free, own, budget| {
            let room = Room {
                free,
                own,
                is_read_only: false,
                has_size: true,
            };
            room.problem(budget)
        };
        let smaller = problem(MB, 0, Some(1000 * MB)).unwrap();
        assert!(smaller.contains("lower CONTEXTPILOT_STORE_GB"), "{smaller}");
        assert_eq!(problem(MB, 999 * MB, Some(1000 * MB)), None);
        let full = problem(MB - 1, 100 * MB, None).unwrap();
        assert!(full.contains("make room"), "{full}");
        assert!(problem(9 * MB, 0, None).is_some());
        assert_eq!(problem(10 * MB, 0, None), None);
        let read_only = Room {
            free: 1000 * MB,
            own: 0,
            is_read_only: true,
            has_size: true,
        };
        assert!(read_only.problem(Some(MB)).unwrap().contains("read-only"));
        let unknown = Room {
            free: 0,
            own: 0,
            is_read_only: false,
            has_size: false,
        };
        assert_eq!(unknown.problem(Some(MB)), None);
        assert!(
            unknown
                .problem(None)
                .unwrap()
                .contains("CONTEXTPILOT_STORE_GB")
        );
    }
}
