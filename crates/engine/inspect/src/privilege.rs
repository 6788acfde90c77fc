//! Programs that run with more rights than their caller: for them the dynamic linker ignores
//! preloads (`AT_SECURE`, see ld.so(8)).

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What gives the program rights that its caller does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// The set-user-ID bit, and an owner who is not us.
    SetUser,
    /// The set-group-ID bit, and a group that is not ours.
    SetGroup,
    /// File capabilities, and we are not root.
    Capabilities,
}

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// Without it the set-group-ID bit once meant mandatory locking.
const GROUP_EXECUTES: u32 = 0o010;

pub(crate) fn find(path: &Path, metadata: &Metadata) -> Option<Privilege> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let privilege = if metadata.mode() & SET_USER != 0 && metadata.uid() != user.as_raw() {
        Privilege::SetUser
    } else if metadata.mode() & (SET_GROUP | GROUP_EXECUTES) == SET_GROUP | GROUP_EXECUTES
        && metadata.gid() != group.as_raw()
    {
        Privilege::SetGroup
    } else if !user.is_root() && has_capabilities(path) {
        Privilege::Capabilities
    } else {
        return None;
    };
    (!granted_nothing(path)).then_some(privilege)
}

#[cfg(target_os = "linux")]
fn has_capabilities(path: &Path) -> bool {
    // The value does not matter: a set of capabilities that is there is not empty in practice.
    let mut value = [0; 64];
    rustix::fs::getxattr(path, c"security.capability", &mut value[..]).is_ok_and(|size| size > 0)
}

#[cfg(not(target_os = "linux"))]
fn has_capabilities(_: &Path) -> bool {
    false
}

/// Whether the kernel will leave the bits aside: `no_new_privs` is set (common in containers and
/// services), or the file system is mounted `nosuid`.
fn granted_nothing(path: &Path) -> bool {
    let nosuid = rustix::fs::statvfs(path)
        .is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    nosuid
        || std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
            status
                .lines()
                .filter_map(|line| line.strip_prefix("NoNewPrivs:"))
                .any(|value| value.trim() == "1")
        })
}

impl fmt::Display for Privilege {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SetUser => "set-user-ID bit",
            Self::SetGroup => "set-group-ID bit",
            Self::Capabilities => "file capabilities",
        })
    }
}
