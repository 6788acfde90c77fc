//! Whether a preload would have an effect in the server that was found.
//!
//! This runs only if a setting asks for the hook: it opens the server's file and reads its
//! headers, which takes some 50 µs. A file that cannot be read or understood is started
//! with the hook; the dynamic linker and the hook decide then.

use std::path::Path;

use contextpilot_inspect::{
    Executable, Format, FunctionPlace, Libc, Linkage, Machine, Obstacle, Program, Search,
};

use crate::error::HookError;
use crate::table;

/// Less than any llama.cpp takes (the smallest seen, without symbols, is 5 MB), in bytes. A
/// smaller program without one is a wrapper such as `tini` or `nice`: the variable goes through
/// it to the server that it starts.
pub(crate) const SMALLEST_ENGINE: u64 = 1 << 20;

/// Advice about a server that the hook may not reach, as a part of a message. Mostly `None`.
///
/// # Errors
/// The hook cannot reach it.
pub(crate) fn examine(server: &Path, library: &Library) -> Result<Option<String>, HookError> {
    let Ok(program) = Program::open(server) else {
        return Ok(None);
    };
    match obstacle(&program, library) {
        Some(why) => Err(HookError::Server {
            path: server.to_owned(),
            why,
        }),
        None => Ok(advice(&program).or_else(|| no_server(&program))),
    }
}

/// What to say of a program without llama.cpp that is not even called so: a shell, say. It may be a wrapper, and start a
/// server, which then gets the hook.
fn no_server(program: &Program) -> Option<String> {
    let name = program.path.file_name()?.to_string_lossy();
    let executable = program.executable()?;
    let is_none = !name.contains("llama")
        && !executable.needs_engine()
        && !is_large(program)
        && !exports_engine(program);
    is_none.then(|| {
        format!(
            "{} is no llama-server: there is no llama.cpp in it; unless it starts one, set {} to a llama-server",
            program.path.display(),
            contextpilot_settings::env::LLAMA_SERVER_BIN
        )
    })
}

/// What the hook library was built for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Library {
    machine: Machine,
    musl: bool,
}

impl Library {
    /// The embedded library, which was built like this launcher; or the one at `given`.
    pub(crate) fn new(given: Option<&Path>) -> Self {
        let embedded = Self {
            machine: Machine::OURS,
            musl: cfg!(target_env = "musl"),
        };
        let given = given.and_then(|path| Program::open(path).ok());
        match given.as_ref().and_then(Program::executable) {
            Some(library) => Self {
                machine: library.machine,
                musl: library.dynamic.needed.iter().any(|name| is_musl(name)),
            },
            None => embedded,
        }
    }
}

fn is_musl(library: &str) -> bool {
    library.contains("musl") || library == "libc.so"
}

/// The problem and what to do, as text after the server's name.
pub(crate) fn obstacle(program: &Program, library: &Library) -> Option<String> {
    if cfg!(target_os = "macos") {
        return obstacle_on_macos(program, library);
    }
    if let Some(why) = to_loading(program, library) {
        return Some(why);
    }
    let executable = program.executable()?;
    if is_stripped(program, executable) {
        return Some(
            "was stripped, and llama.cpp is not among its libraries: if it is inside, its functions \
             cannot be found; use a shared build, or one that is not stripped"
                .into(),
        );
    }
    is_out_of_reach(program, executable).then(|| {
        "has llama.cpp inside, and its functions cannot be found without /proc; mount /proc \
         here, or use a shared build"
            .into()
    })
}

/// Why the dynamic linker would not load the library into this program, whatever it is: as [`obstacle`].
pub(crate) fn to_loading(program: &Program, library: &Library) -> Option<String> {
    let obstacles = program.obstacles(library.machine);
    let found = obstacles.iter().find(|obstacle| match obstacle {
        Obstacle::Static => is_large(program),
        Obstacle::Musl => !library.musl,
        Obstacle::ForeignLinker(_) => !library.musl,
        // If this is an error, exec will report it.
        Obstacle::NoLinker(_) | Obstacle::UnknownFormat => false,
        _ => true,
    });
    if let Some(obstacle) = found {
        return Some(obstacle.to_string());
    }
    let is_glibc = matches!(
        program.executable()?.linkage,
        Linkage::Dynamic {
            libc: Libc::Glibc,
            ..
        }
    );
    (library.musl && is_glibc).then(|| {
        "is linked with glibc, and this hook is built for musl; use a hook for glibc".into()
    })
}

fn obstacle_on_macos(program: &Program, library: &Library) -> Option<String> {
    let found = program.obstacles_on_macos(library.machine);
    // Exec decides what it can run.
    let mut found = found.iter().filter(|it| **it != Obstacle::UnknownFormat);
    if let Some(obstacle) = found.next() {
        return Some(obstacle.to_string());
    }
    let slice = program.slice(library.machine)?;
    (!slice.needs_engine() && is_large(program)).then(|| {
        "has llama.cpp inside, whose calls within one file nothing can be put between on macOS; \
         use a build with shared libraries"
            .into()
    })
}

fn is_stripped(program: &Program, executable: &Executable) -> bool {
    !executable.has_symbols
        && !executable.needs_engine()
        && is_large(program)
        // Some that were stripped still export what is inside, and libraries may have other
        // names. Worth a closer look, as it is the rare case.
        && !exports_engine(program)
}

/// Whether its functions are in the executable, which the hook cannot read: a process finds its own
/// executable by way of `/proc`.
fn is_out_of_reach(program: &Program, executable: &Executable) -> bool {
    !executable.needs_engine()
        && is_large(program)
        && std::fs::symlink_metadata("/proc/self/exe").is_err()
        && !finds_engine(program, |place| {
            matches!(place, FunctionPlace::Dynamic { .. })
        })
}

/// In the executable, or in a library.
fn exports_engine(program: &Program) -> bool {
    finds_engine(program, |place| {
        !matches!(place, FunctionPlace::Missing { .. })
    })
}

/// Whether a function that every engine has is in such a place.
fn finds_engine(program: &Program, is_wanted: fn(&FunctionPlace) -> bool) -> bool {
    let search = Search {
        library_path: std::env::var_os("LD_LIBRARY_PATH"),
        ..Search::default()
    };
    let anchors = table::MEMORY.iter().map(|(_, anchor)| *anchor);
    let Ok(located) = program.locate(&anchors.collect::<Vec<_>>(), &search) else {
        return true;
    };
    located.functions.iter().any(|(_, place)| is_wanted(place))
}

fn is_large(program: &Program) -> bool {
    std::fs::metadata(&program.path).is_ok_and(|file| file.len() >= SMALLEST_ENGINE)
}

fn advice(program: &Program) -> Option<String> {
    let Format::Script(script) = &program.format else {
        return None;
    };
    let command = script.resets_environment.as_ref()?;
    let instead = match script.mentions.first() {
        Some(server) => format!(
            "{} to {server:?}",
            contextpilot_settings::env::LLAMA_SERVER_BIN
        ),
        None => format!(
            "{} to the server that it starts",
            contextpilot_settings::env::LLAMA_SERVER_BIN
        ),
    };
    Some(format!(
        "{:?} runs {command:?}, which may keep the hook from the server: \
         let {} and CONTEXTPILOT_* through there, or set {instead}",
        program.path,
        crate::variables::PRELOAD
    ))
}
