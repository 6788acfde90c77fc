//! Decides whether this process is a llama-server, and where its engine is.
//!
//! The preload variable is inherited by everything that the server starts, and by the script that
//! starts the server: a shell, a download, a tool, another program with its own engine.
//! In those, nothing is patched, opened or printed.

use std::ffi::{CString, OsStr, c_void};
use std::path::Path;

use super::inline::Inside;
use super::linker;
use super::table::MEMORY;
use crate::base::environment;

/// Where the process has an engine.
pub(super) enum Engine {
    /// In libraries that were loaded with the process.
    Libraries,
    /// Linked into the executable.
    Executable(Box<Inside>),
}

impl Engine {
    /// `None` in most processes. The answer is quick for programs that never call `accept`, which every server
    /// does. A file is opened only to read the executable's own symbols.
    pub(super) fn find() -> Option<Self> {
        let mut anchors = MEMORY.iter().filter_map(|(_, name)| {
            let name = CString::new(*name).ok()?;
            let address = linker::behind(&name);
            (!address.is_null()).then_some(address)
        });
        let program = Program::look();
        let inside = || Inside::with_engine().map(|inside| Self::Executable(Box::new(inside)));
        match anchors.next() {
            // The executable exports the function, but calls it directly.
            Some(anchor) if program.contains(anchor) => inside().or(Some(Self::Libraries)),
            Some(_) => Some(Self::Libraries),
            None if program.accepts_connections() => inside(),
            None => None,
        }
    }
}

/// The executable, by what is in memory.
#[cfg(target_os = "linux")]
struct Program(Option<super::elf::Object>);

#[cfg(target_os = "linux")]
impl Program {
    fn look() -> Self {
        Self(super::elf::program())
    }

    fn contains(&self, address: *const c_void) -> bool {
        self.0
            .as_ref()
            .is_some_and(|program| program.contains(address.addr()))
    }

    fn accepts_connections(&self) -> bool {
        self.0.as_ref().is_some_and(|program| {
            let calls = |name| program.words().any(|word| word.name() == name);
            calls(c"listen") && calls(c"recv") && (calls(c"accept4") || calls(c"accept"))
        })
    }
}

/// On other systems nothing is looked up in the executable.
#[cfg(not(target_os = "linux"))]
struct Program;

#[cfg(not(target_os = "linux"))]
impl Program {
    fn look() -> Self {
        Self
    }

    fn contains(&self, _: *const c_void) -> bool {
        false
    }

    fn accepts_connections(&self) -> bool {
        false
    }
}

/// Whether a process that has an engine is a llama-server. `has_server`: it has the server's own
/// functions. Other commands of llama.cpp may have them as well.
pub(super) fn is_llama_server(has_server: bool) -> bool {
    let program = environment::program();
    let name = file_name(&program);
    let command = environment::arguments().nth(1);
    is_named_server(&name) || has_server && !is_other_command(&name, command)
}

/// Whether the program is one of llama.cpp's own commands. They may use the server's functions without a server.
#[cfg(target_os = "linux")]
pub(super) fn is_command_of_engine() -> bool {
    let name = file_name(&environment::program());
    is_other_command(&name, environment::arguments().nth(1))
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn is_named_server(name: &str) -> bool {
    name.contains("llama-server")
}

/// Whether this is `llama-cli` or the like, or the combined program `llama` with another command than
/// `serve` (or its other name, `server`).
fn is_other_command(name: &str, command: Option<&OsStr>) -> bool {
    match name {
        "llama" => !command.is_some_and(|command| command == "serve" || command == "server"),
        name => name.starts_with("llama-"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_server_of_llama_cpps_commands_is_recognised() {
        let other = |name: &str, command: Option<&str>| {
            !is_named_server(name) && is_other_command(name, command.map(OsStr::new))
        };
        for name in ["llama-cli", "llama-bench", "llama-mtmd-cli"] {
            assert!(other(name, Some("serve")), "{name}");
        }
        assert!(other("llama", None) && other("llama", Some("cli")));
        for (name, command) in [
            ("llama", Some("serve")),
            ("llama", Some("server")),
            ("llama-server", None),
            ("llama-server-cuda", Some("-m")),
            ("server", None),
            ("host", Some("evict")),
        ] {
            assert!(!other(name, command), "{name} {command:?}");
        }
    }
}
