//! Why a preloaded library would not be loaded: for one, the program runs with more rights than its caller, and for those
//! the dynamic linker ignores preloads (`AT_SECURE`, see ld.so(8)).

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::Machine;

/// Why a preloaded library would not be loaded, or the program not even start. Each is one clause
/// for people: "*the server* …".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// No dynamic linker runs, so `LD_PRELOAD` is not read.
    Static,
    /// It is no program.
    Library,
    /// Its dynamic linker is musl's: a library built for glibc does not load there.
    Musl,
    /// Its dynamic linker is neither glibc's nor musl's.
    ForeignLinker(String),
    /// Its dynamic linker is not there; the kernel will refuse to run it.
    NoLinker(String),
    /// Built for another machine: the library is of the wrong kind for its dynamic linker.
    Machine {
        /// The server's machine.
        server: Machine,
        /// The library's machine.
        hook: Machine,
    },
    /// Runs with more rights than its caller.
    Privileged(Privilege),
    /// A Mach-O file: not for this system.
    MachO,
    /// An ELF file: not for this system.
    Elf,
    /// Lies in one of macOS's own folders, for whose programs dyld drops its variables.
    Protected,
    /// A script for such a program: the variables end there, before the server starts.
    ProtectedInterpreter(PathBuf),
    /// Signed, or marked, such that dyld drops its variables.
    DropsVariables,
    /// Signed such that an inserted library of another signer ends it.
    DemandsSigner,
    /// For signed pointers: an inserted library without them ends it.
    Arm64e,
    /// Neither ELF, script nor Mach-O.
    UnknownFormat,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static => f.write_str("is linked fully statically, so that nothing can be preloaded into it; use a build that links the C library dynamically"),
            Self::Library => f.write_str("is a library, and no program; name the program that loads it"),
            Self::Musl => f.write_str("is linked with musl, and this hook is built for glibc; use a build for glibc"),
            Self::ForeignLinker(linker) => write!(f, "is loaded by {linker}, which this hook is not built for"),
            Self::NoLinker(linker) => write!(f, "needs {linker}, which is not there; install what provides it"),
            Self::Machine { server, hook } => write!(f, "is built for {server}, and this hook for {hook}; use a server for {hook}, or the hook for {server}"),
            Self::Privileged(privilege) => write!(f, "has the {privilege}, for which the dynamic linker ignores preloads; remove it (setcap -r, chmod ug-s)"),
            Self::MachO => f.write_str("is a Mach-O file, which this system does not run"),
            Self::Elf => f.write_str("is an ELF file, which this system does not run"),
            Self::Protected => f.write_str("is one of macOS's own programs, into which nothing can be inserted; use a llama-server from elsewhere"),
            Self::ProtectedInterpreter(interpreter) => write!(f, "is a script for {}, a program of macOS's own that keeps DYLD_INSERT_LIBRARIES from the server; set LLAMA_SERVER_BIN to the server itself", interpreter.display()),
            Self::DropsVariables => f.write_str("was signed for the hardened runtime, or restricted, without the entitlement com.apple.security.cs.allow-dyld-environment-variables, so that nothing can be inserted; sign it anew (codesign --force --sign -), or use a build of your own"),
            Self::DemandsSigner => f.write_str("was signed to load libraries of its own signer only (without the entitlement com.apple.security.cs.disable-library-validation), and would not start with another; sign it anew (codesign --force --sign -), or use a build of your own"),
            Self::Arm64e => f.write_str("is built for arm64e, where a library for arm64 cannot be inserted and the server would not start; use a build for arm64"),
            Self::UnknownFormat => f.write_str("is neither an ELF file nor a script"),
        }
    }
}

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

pub(crate) fn privilege_of(path: &Path, metadata: &Metadata) -> Option<Privilege> {
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
