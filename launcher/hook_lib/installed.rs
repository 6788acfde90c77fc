//! The library that a package has installed beside this program: in
//! `../lib/contextpilot-llama-server/`, relative to the program's folder.
//!
//! It is loaded as it lies there, and nothing is copied, if two things hold. It is of the same build as the library in
//! this program: by its name, which has a hash of its bytes, its size, its first page (which has the linker's build id) and its
//! last. And who could change it could change this program just as well: each
//! folder that leads to it is no more open than the program's own. Otherwise the cache is used,
//! as where there is no package. All bytes are not read: that takes a millisecond of each start, and shows only what a
//! program's own bytes are not asked about either.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use contextpilot_private_folder::effective_user;

use super::mount;

/// Relative to the folder that contains `bin`.
const FOLDERS: [&str; 2] = ["lib", "contextpilot-llama-server"];

const GROUP_MAY_WRITE: u32 = 0o020;
const OTHERS_MAY_WRITE: u32 = 0o002;
const ROOT: u32 = 0;
/// Bytes.
const PAGE: usize = 4096;

/// The library `name` with this content, if the package that `program` came with has it.
pub(super) fn beside(program: &Path, name: &str, content: &[u8]) -> Option<PathBuf> {
    let bin = program.parent()?;
    let allowed = Access::from_metadata(&std::fs::metadata(bin).ok()?);
    let mut path = bin.parent()?.to_owned();
    for part in FOLDERS.into_iter().chain([name]) {
        path.push(part);
        let found = Access::from_metadata(&std::fs::metadata(&path).ok()?);
        if !found.no_wider_than(allowed, effective_user()) {
            return None;
        }
    }
    mount::executes(&path).ok()?;
    let file = File::open(&path).ok()?;
    let metadata = file.metadata().ok()?;
    let same = metadata.is_file()
        && metadata.len() == content.len() as u64
        && begins_and_ends_as(&file, content).ok()?;
    same.then_some(path)
}

/// Whether a file of this length has the first and the last page of `content`.
fn begins_and_ends_as(file: &File, content: &[u8]) -> io::Result<bool> {
    let mut page = [0; PAGE];
    let last = content.len().saturating_sub(PAGE);
    for (at, expected) in [
        (0, &content[..PAGE.min(content.len())]),
        (last, &content[last..]),
    ] {
        let page = &mut page[..expected.len()];
        file.read_exact_at(page, at as u64)?;
        if page != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Who may change a file or a folder.
#[derive(Clone, Copy, Debug)]
struct Access {
    owner: u32,
    group: u32,
    mode: u32,
}

impl Access {
    fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            owner: metadata.uid(),
            group: metadata.gid(),
            mode: metadata.mode(),
        }
    }

    /// Whether all who may write here are trusted by `user` anyway, or may write to `other` too.
    fn no_wider_than(self, other: Self, user: u32) -> bool {
        let owner = [ROOT, user, other.owner].contains(&self.owner);
        let open = |access: Self, bit| access.mode & bit != 0;
        let others = !open(self, OTHERS_MAY_WRITE) || open(other, OTHERS_MAY_WRITE);
        let group = !open(self, GROUP_MAY_WRITE)
            || open(other, OTHERS_MAY_WRITE)
            || (open(other, GROUP_MAY_WRITE) && self.group == other.group);
        owner && others && group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u32 = 1000;
    const THEM: u32 = 1001;
    const STAFF: u32 = 50;

    fn access(owner: u32, group: u32, mode: u32) -> Access {
        Access { owner, group, mode }
    }

    #[test]
    fn the_library_is_used_only_if_no_more_users_can_change_it_than_the_program() {
        let system = access(ROOT, ROOT, 0o755);
        let local = access(ROOT, STAFF, 0o2775);
        let home = access(US, US, 0o700);
        for (library, program, good) in [
            (system, system, true),
            (local, local, true),
            (home, home, true),
            (access(US, US, 0o775), access(US, US, 0o775), true),
            // Only root can change root's library.
            (system, home, true),
            // Another user's home, whose program we are about to run anyway.
            (access(THEM, THEM, 0o755), access(THEM, THEM, 0o755), true),
            (access(THEM, THEM, 0o755), system, false),
            (access(THEM, THEM, 0o755), home, false),
            (local, system, false),
            (access(ROOT, THEM, 0o775), local, false),
            (access(ROOT, ROOT, 0o757), local, false),
            (access(ROOT, ROOT, 0o1777), system, false),
        ] {
            assert_eq!(
                library.no_wider_than(program, US),
                good,
                "{library:?} {program:?}"
            );
        }
    }
}
