use std::fmt;
use std::io;
use std::path::PathBuf;

use contextpilot_settings::env;

use crate::misspelt::Misspelt;
use crate::variables::PRELOAD;

/// Why llama-server was not started.
#[derive(Debug)]
pub(crate) enum Error {
    /// An environment variable that cannot be used.
    Settings(contextpilot_settings::Error),
    /// No `llama-server` on `PATH`.
    NotFound,
    /// `LLAMA_SERVER_BIN` names a file that does not exist.
    Missing(PathBuf),
    /// `LLAMA_SERVER_BIN` names a file that cannot be executed.
    NotExecutable(PathBuf, &'static str),
    /// The hook cannot be used, and `CONTEXTPILOT_STRICT` is set.
    Strict(HookError),
    /// Nothing asks for the hook but a misspelt setting, and `CONTEXTPILOT_STRICT` is set.
    Unwanted(Misspelt),
    /// The system refused to execute the server.
    Exec { path: PathBuf, source: io::Error },
}

impl Error {
    /// The exit code: 126 and 127 as in a shell; 2 and 3 are ours.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Settings(_) => 2,
            Self::Strict(_) | Self::Unwanted(_) => 3,
            Self::NotExecutable(..) => 126,
            Self::NotFound | Self::Missing(_) => 127,
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
        }
    }
}

impl From<contextpilot_settings::Error> for Error {
    fn from(error: contextpilot_settings::Error) -> Self {
        Self::Settings(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variable = env::LLAMA_SERVER_BIN;
        match self {
            Self::Settings(error) => error.fmt(f),
            Self::NotFound => write!(
                f,
                "llama-server was not found on PATH: install llama.cpp, \
                 or set {variable} to the path of llama-server"
            ),
            Self::Missing(path) => write!(
                f,
                "{variable} is {path:?}, which does not exist: \
                 set it to the path of llama-server, or unset it to search PATH"
            ),
            Self::NotExecutable(path, why) => write!(
                f,
                "{variable} is {path:?}, which {why}: \
                 set it to the path of llama-server, or unset it to search PATH"
            ),
            Self::Strict(why) => write!(
                f,
                "llama-server not started, as {} is set and the hook cannot be used: {why}",
                env::STRICT
            ),
            Self::Unwanted(misspelt) => write!(
                f,
                "llama-server not started, as {} is set and no setting asks for the hook: \
                 {misspelt}",
                env::STRICT
            ),
            Self::Exec { path, source } => write!(
                f,
                "{path:?} could not be executed ({source}): {}",
                what_to_do(source.kind())
            ),
        }
    }
}

/// After the system refused to execute a file that is there.
fn what_to_do(refusal: io::ErrorKind) -> &'static str {
    match refusal {
        io::ErrorKind::NotFound => {
            "if it is a script, check that the program in its first line is there; \
             else that its dynamic linker is: it may be built for another C library (glibc, musl)"
        }
        io::ErrorKind::ArgumentListTooLong => {
            "with the hook's variable, its arguments and the environment are more than \
             the system passes on: shorten them"
        }
        _ => "check that it is a llama-server built for this machine",
    }
}

/// Why the hook library cannot be used. The message says what to do about it.
#[derive(Debug)]
pub(crate) enum HookError {
    /// A preload has no effect in this server.
    Server { path: PathBuf, why: String },
    /// The library's file system is mounted `noexec`. Checked on Linux only.
    #[cfg(target_os = "linux")]
    NoExec { path: PathBuf },
    /// `CONTEXTPILOT_HOOK_LIB` names no readable file.
    Library { path: PathBuf, source: io::Error },
    /// Neither `XDG_CACHE_HOME` nor `HOME` says where the cache is.
    NoCache,
    /// The cache folder cannot be made or read.
    Folder { path: PathBuf, source: io::Error },
    /// The cache folder is one that others could change.
    Unsafe(contextpilot_private_folder::Error),
    /// The library cannot be written to the cache folder.
    Write { path: PathBuf, source: io::Error },
    /// A path that the preload variable cannot express.
    Path { path: PathBuf, byte: u8 },
    /// Neither a file nor a file in memory can be used.
    Memory {
        no_file: Box<HookError>,
        source: io::Error,
    },
}

/// What to do if the cache folder cannot be used.
const ANOTHER_FOLDER: &str = "set XDG_CACHE_HOME to a folder of your own, or";

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variable = env::HOOK_LIB;
        match self {
            Self::Server { path, why } => write!(f, "{path:?} {why}"),
            #[cfg(target_os = "linux")]
            Self::NoExec { path } => write!(
                f,
                "{path:?} is on a file system that is mounted noexec, from which no library \
                 can be loaded: set XDG_CACHE_HOME or {variable} to somewhere else"
            ),
            Self::Library { path, source } => write!(
                f,
                "{variable} is {path:?}, which cannot be read ({source}): \
                 set it to the hook library, or unset it to use the built-in one"
            ),
            // A shared folder such as /tmp cannot be used: names in it can be
            // guessed, and the first user to create the file chooses what we preload.
            Self::NoCache => write!(
                f,
                "neither XDG_CACHE_HOME nor HOME names a folder to keep the library in: \
                 set one of them, or {variable}"
            ),
            Self::Folder { path, source } => write!(
                f,
                "the cache folder {path:?} cannot be used ({source}): \
                 {ANOTHER_FOLDER} set {variable}"
            ),
            Self::Unsafe(error) => write!(
                f,
                "the cache folder {error}: {ANOTHER_FOLDER} set {variable}"
            ),
            Self::Write { path, source } => write!(
                f,
                "the library cannot be written to {path:?} ({source}): \
                 {ANOTHER_FOLDER} set {variable}"
            ),
            Self::Path { path, byte } => write!(
                f,
                "{path:?} holds {:?}, which {PRELOAD} cannot express: \
                 set XDG_CACHE_HOME or {variable} to a path without it",
                char::from(*byte)
            ),
            Self::Memory { no_file, source } => {
                write!(f, "{no_file} (nor can it be loaded from memory: {source})")
            }
        }
    }
}
