use std::fmt;
use std::path::PathBuf;

use crate::{Machine, Privilege};

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
